"""A real Prometheus reads real nodes, and its rules find each fault of a test.

The rules and the queries come from `deploy/`, made from the declarations of the metrics; only
the times for which an alert must hold are shorter here. Grafana itself does not run: its own types
read the dashboard (`tests/unit/test_docs.py`), and Prometheus answers each of its queries.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sqlite3
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs import make_monitoring
from shardbus import AsyncClient, RequestError
from tests.ports import free_port
from tests.process.nodes import NodeProcess, Processes
from tests.waiting import until

SMALL = (
    "sharding.mailbox=4",
    "sharding.mailbox_patience=off",
    "store.timeout=3s",
    "cluster.app_block_warning=1s",
)
"""Mailboxes that are soon full and drop at once, a store that is soon given up."""


PLACEHOLDERS = {"$__rate_interval": "5s", "$instance": ".*", "$entity_type": ".*"}
"""The variables that Grafana fills in."""


class Prometheus:
    """A Prometheus that reads these nodes twice a second."""

    def __init__(self, folder: Path, nodes: list[NodeProcess]) -> None:
        self.port = free_port()
        (folder / "alerts.yml").write_text(make_monitoring.rules(lasts="0s"))
        config = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": ["alerts.yml"],
            "scrape_configs": [
                {
                    "job_name": "shardbus",
                    "static_configs": [
                        {"targets": [f"127.0.0.1:{node.http_port}" for node in nodes]}
                    ],
                }
            ],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        self.log = folder / "prometheus.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={folder}/prometheus.yml",
                    f"--storage.tsdb.path={folder}/series",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=log,
                stderr=log,
            )

    def get(self, path: str, **query: str) -> Any:
        """Return the data of an answer; raises for an error of the query."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.load(answer)["data"]

    async def reads(self, count: int) -> None:
        """Wait until it has read that many nodes."""

        async def read() -> bool:
            try:
                answer = await asyncio.to_thread(self.get, "query", query="sum(up)")
            except OSError:
                return False
            return bool(answer["result"]) and float(answer["result"][0]["value"][1]) == count

        await until(read, "Prometheus's first look at the nodes")

    async def fires(self, alert: str, **labels: str) -> None:
        """Wait until the alert fires with these labels."""
        labels_wanted = {"alertname": alert, **labels}.items()

        async def fires() -> bool:
            alerts = (await asyncio.to_thread(self.get, "alerts"))["alerts"]
            return any(
                row["state"] == "firing" and labels_wanted <= row["labels"].items()
                for row in alerts
            )

        await until(fires, f"the alert {labels_wanted}")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def started() -> Iterator[list[Prometheus]]:
    if shutil.which("prometheus") is None:
        pytest.skip("there is no prometheus here: apt-get install prometheus")
    made: list[Prometheus] = []
    yield made
    for node in made:
        node.close()


async def every_query_is_answered(prometheus: Prometheus) -> None:
    """Ask Prometheus all that the dashboard would."""
    panels = make_monitoring.dashboard()["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert len(queries) >= len(make_monitoring.METRICS)
    for query in queries:
        for name, value in PLACEHOLDERS.items():
            query = query.replace(name, value)
        assert "$" not in query
        await asyncio.to_thread(prometheus.get, "query", query=query)  # raises if it is none


async def flood(client: AsyncClient, account: str, gate: Path) -> None:
    """Tell an account that handles nothing before the gate is open."""
    while not gate.exists():
        for _ in range(10):
            await client.cast("account", account, "get")
        await asyncio.sleep(0.1)


async def save(client: AsyncClient, account: str, enough: Path) -> None:
    """Make an account save, which fails while the store is locked."""
    while not enough.exists():
        with contextlib.suppress(RequestError):
            await client.call("account", account, "add", 1)
        await asyncio.sleep(0.1)


@pytest.mark.long
async def test_B151_prometheus_finds_a_full_mailbox_a_blocked_loop_a_lost_store_and_a_dead_node(
    lab: Processes, started: list[Prometheus], tmp_path: Path
) -> None:
    nodes = first, second = await lab.cluster(2, settings=SMALL)
    prometheus = Prometheus(tmp_path, [first, second])
    started.append(prometheus)
    async with lab.client(*nodes) as client:
        places = [await client.call("account", f"a{n}", "where") for n in range(12)]
        account = next(f"a{n}" for n, at in enumerate(places) if at.startswith(first.address))
        await prometheus.reads(2)
        await every_query_is_answered(prometheus)

        gate = tmp_path / "open"
        waiting = asyncio.ensure_future(client.call("account", account, "add_late", 1, str(gate)))
        flooding = asyncio.ensure_future(flood(client, account, gate))
        await prometheus.fires(
            "ShardbusMailboxFull",
            entity_type="account",
            reason="mailbox_full",
            instance=f"127.0.0.1:{first.http_port}",
        )
        gate.touch()
        await asyncio.gather(waiting, flooding)

        await client.call("page", "page-1", "block", 3.0)
        await prometheus.fires("ShardbusHandlerBlocksLoop", entity_type="page", how="blocked")

        enough = tmp_path / "enough"
        with contextlib.closing(sqlite3.connect(tmp_path / "store.db")) as lock:
            lock.execute("BEGIN EXCLUSIVE")
            saving = asyncio.ensure_future(save(client, account, enough))
            await prometheus.fires("ShardbusStoreErrors", severity="critical")
        enough.touch()
        await saving
    second.kill()
    await prometheus.fires("ShardbusNodeDown", instance=f"127.0.0.1:{second.http_port}")


def test_B151_rules_and_configuration_pass_promtool(started: list[Prometheus]) -> None:
    folder = make_monitoring.RULES.parent
    for what, name in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        done = subprocess.run(
            ["promtool", "check", what, folder / name], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
