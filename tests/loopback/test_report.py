"""A report and the events of real nodes, one of which is gone, over HTTP."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from shardbus.node.node import Node
from shardbus_cli.exit_codes import ExitCode
from shardbus_cli.main import run
from tests.loopback.nodes import Nodes
from tests.loopback.test_doctor import http_of
from tests.loopback.test_node_http import IDS, get, two
from tests.loopback.test_state_changes import application, heard
from tests.waiting import until


async def shell(*words: str) -> int:
    return await asyncio.to_thread(run, list(words))


def files_of(path: Path) -> dict[str, Any]:
    with ZipFile(path) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


async def test_the_recent_events_of_all_members_come_in_order_of_time(nodes: Nodes) -> None:
    first, second = await two(nodes)
    page = await get(second, "/v1/events/recent")
    assert page["silent"] == []
    rows = page["events"]
    assert {row["seen_by"] for row in rows} == {str(first.me), str(second.me)}
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    ups = [row for row in rows if row["event"] == "MemberUp" and row["seen_by"] == str(first.me)]
    assert [row["node"] for row in ups] == [str(first.me), str(second.me)]
    claimed = [row for row in rows if row["event"] == "epoch_claimed"]
    assert [(row["type"], row["seen_by"]) for row in claimed] == [("counter", str(first.me))]
    few = (await get(second, "/v1/events/recent?limit=3"))["events"]
    assert few == rows[-3:] or len(few) == 3


async def test_events_are_printed(nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = await two(nodes)
    async with http_of(second) as http:
        words = ("events", "--node", http.url, "--event", "memberup", "--last", "9")
        assert await shell(*words) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("MemberUp")[1].split()[0] for line in lines] == [
        str(first.me),
        str(second.me),
    ]


async def test_a_report_has_what_could_be_read_and_says_what_could_not(
    nodes: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = await two(nodes)
    out = tmp_path / "report.zip"
    async with http_of(first) as http:
        assert await shell("report", "--node", http.url, "--out", str(out), "--json") == 0
        assert await shell("report", "--node", http.url, "--out", str(out)) == ExitCode.FAILED
    printed = capsys.readouterr()
    assert printed.err.endswith(f"shardbus: {out} exists; name another file with --out\n")
    summary, files = json.loads(printed.out), files_of(out)
    assert out.stat().st_mode & 0o777 == 0o600
    assert summary["bytes"] == out.stat().st_size
    assert summary["files"] == len(files)
    assert (summary["members"], summary["cluster"]) == (2, "shop")
    missing = json.loads(files["missing.json"])
    assert set(missing) == {_folder(first), _folder(second)}
    assert all("is no URL" in why for why in missing.values())
    homes = json.loads(files["cluster/shards/counter.json"])["shards"]
    assert len(homes) == len({first.regions["counter"].router.shard_of(i) for i in IDS})
    versions = json.loads(files["versions.json"])
    assert set(versions["members"]) == {str(first.me), str(second.me)}
    assert {"python", "shardbus", "pyzmq", "libzmq"} <= set(versions["this command"])
    for name in ("cluster/checkup.json", "cluster/events/recent.json", "doctor.json"):
        assert json.loads(files[name]) is not None


async def test_a_handler_that_waits_is_in_the_list_of_tasks(nodes: Nodes) -> None:
    bus, cart = application()
    node = await nodes.start(bus)
    client = await nodes.client()
    waiting = [asyncio.ensure_future(client.ref(cart, f"c{n}").wait("open")) for n in range(3)]
    host = node.regions["cart"].host
    await until(lambda: len(host.runner.running_handlers.tasks) == 3, "three handlers")
    page = await get(node, "/v1/tasks")
    heard.append(("gate", "open"))
    await asyncio.gather(*waiting)
    groups = [g for g in page["groups"] if any("Cart.wait" in place for place in g["stack"])]
    names = [name for group in groups for name in group["names"]]
    assert sorted(names) == [f"wait of cart 'c{n}'" for n in range(3)]
    assert sum(group["count"] for group in groups) == 3
    assert {group["state"] for group in groups} <= {"waiting", "ready"}
    assert (page["node"], page["left_out"]) == (str(node.me), 0)
    assert any(row["stack"] for row in page["threads"])


async def test_every_member_is_read_and_a_dead_one_is_named(
    nodes: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    first, second = await two(nodes)
    out = tmp_path / "report.zip"
    async with http_of(first) as http:
        dead = "127.0.0.1:1"
        urls = {first: http.url.partition("://")[2], second: dead}
        monkeypatch.setattr(
            "shardbus_cli.report.http_urls",
            lambda url, page: [(str(node.me), f"http://{at}") for node, at in urls.items()],
        )
        assert await shell("report", "--node", http.url, "--out", str(out)) == ExitCode.OK
    files, missing = files_of(out), json.loads(files_of(out)["missing.json"])
    assert len([name for name in missing if name.startswith(_folder(second))]) == 9
    assert all(f"no node at http://{dead}" in why for why in missing.values())
    here = {name.rpartition("/")[2] for name in files if name.startswith(_folder(first))}
    assert here == {
        "cluster.json", "settings.json", "gossip.json", "downing.json", "tasks.json", "log.json",
        "readyz.json", "livez.json", "metrics.txt",
    }  # fmt: skip
    assert "shardbus_build_info" in files[f"{_folder(first)}/metrics.txt"]
    output = capsys.readouterr().out
    assert output.startswith(f"{out}: ")
    assert "1 of 2 members answered over HTTP" in output
    assert "missing: nodes/" in output


def _folder(node: Node) -> str:
    from shardbus_cli.report_bundle import folder_of

    return folder_of(str(node.me))


async def test_without_a_node_there_is_no_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.zip"
    words = ("report", "--node", "http://127.0.0.1:1", "--out", str(out))
    assert await shell(*words) == ExitCode.UNREACHABLE
    assert not out.exists()
