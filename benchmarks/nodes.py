"""Real nodes for the benchmarks of membership: started by the command line, watched over HTTP.

All are on the loopback interface, or each is on a machine of its own, so that a wall can stand
between them (`tests/process/namespaces.py`).
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.harness import emit, free_port, percentile
from tests.process.namespaces import Machine

STEP_S = 0.004
PATIENCE_S = 60.0
MACHINE_PORTS = (7355, 7356, 8558)
COUNTERS = "benchmarks.counters:bus"
STAYS_DOWN = "cluster.rejoin_after_down=false"

# A node dies with the benchmark, even if that is killed.
START = """
import ctypes, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
from shardbus_cli.main import main
sys.exit(main())
"""


class Node:
    """One process started by the command line. It logs to `log`, and ends if it is downed. Without
    a `store` it shares a SQLite file in the folder; `ports` are the ports of ROUTER, gossip and
    HTTP."""

    def __init__(
        self,
        folder: str,
        seeds: list[str],
        settings: Iterable[str] = (),
        machine: Machine | None = None,
        *,
        app: str = COUNTERS,
        store: str = "",
        ports: tuple[int, int, int] | None = None,
    ) -> None:
        free = ports or (free_port(), free_port(), free_port())
        port, gossip, self.http = self.ports = MACHINE_PORTS if machine else free
        host = machine.address if machine else "127.0.0.1"
        self.machine = machine
        self.address = f"{host}:{port}"
        self.log = Path(folder) / f"{host}-{port}-{time.monotonic_ns()}.log"
        arguments = [
            *("node", "start", app, "--host", host, "--port", str(port)),
            *("--gossip-port", str(gossip), "--http-port", str(self.http)),
            *("--store", store or f"sqlite:///{folder}/store.db", "--log-format", "pretty"),
        ]
        for seed in seeds:
            arguments += ["--seed", seed]
        flags = (STAYS_DOWN, f"security.insecure={str(machine is not None).lower()}")
        for assignment in (*flags, *settings):
            arguments += ["--set", assignment]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SHARDBUS_")}
        root = Path(__file__).parent.parent
        environment |= {"PYTHONPATH": f"{root}:{root / 'cli'}", "BENCH_FOLDER": folder}
        self.started = time.monotonic()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*(machine.enter if machine else ()), sys.executable, "-c", START, *arguments],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def view(self) -> dict[str, object]:
        """Its view of the cluster; empty if it does not answer."""
        return self.page("/v1/cluster")

    def page(self, path: str, method: str = "GET", token: str = "") -> dict[str, Any]:
        """A page of its HTTP; empty if it does not answer."""
        place = ("127.0.0.1", self.http)
        connection = http.client.HTTPConnection(*place, timeout=2)
        try:
            dial = self.machine.dial if self.machine else None
            connection.sock = dial(place[1]) if dial else socket.create_connection(place, 2)
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            connection.request(method, path, headers=headers)
            answer: dict[str, Any] = json.load(connection.getresponse())
            return answer
        except (OSError, ValueError, http.client.HTTPException):
            return {}
        finally:
            connection.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def settled(nodes: list[Node]) -> bool:
    """Every node is Up and sees exactly these nodes, all of them reachable."""
    views = [node.view() for node in nodes]
    return all(
        v.get("status") == "up" and v.get("members") == len(nodes) and not v.get("unreachable")
        for v in views
    )


async def wait(condition: Callable[[], bool], what: str, step: float = STEP_S) -> None:
    """Until it holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        await asyncio.sleep(step)


def emit_times(name: str, seconds: Iterable[float], **parameters: object) -> None:
    """Print the middle, the 99th percentile and the worst."""
    taken = sorted(seconds)
    for suffix, q in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
        emit(f"{name}_{suffix}", 1000 * percentile(taken, q), "ms", **parameters)
