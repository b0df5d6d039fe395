"""The cluster of the demo: processes, started by the command line, on free ports of this machine.

No node outlives the demo. Each node asks the kernel for a signal when its parent ends, so that even
a SIGKILL of the demo leaves no node behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from urllib.request import ProxyHandler, build_opener

ROOT = Path(__file__).resolve().parents[2]
COMMAND = str(Path(sys.executable).with_name("shardbus"))
READY_WITHIN_S, LEAVE_WITHIN_S, ANSWER_WITHIN_S = 30.0, 20.0, 5.0
PORTS = range(26_000, 32_000)
"""Below the ports that the system gives to outgoing connections."""

# Requests the signal, then becomes the node. The parent may have ended before that. Without prctl
# the demo still ends its nodes, except when it is killed by SIGKILL.
DIES_WITH_PARENT = """
import ctypes, os, signal, sys
getattr(ctypes.CDLL(None), "prctl", lambda *_: 0)(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class DemoFailed(Exception):
    """The demo cannot continue; the text is the reason."""


def free_ports(count: int) -> list[int]:
    """Return `count` consecutive free ports."""
    while True:
        first = random.choice(PORTS)
        ports = list(range(first, first + count))
        if all(map(_is_free, ports)):
            return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


INSIDE = "cluster://"
"""The store that the nodes keep themselves, each of the first with a replica."""


class Node:
    """One node process. `name` is its name in the demo's output. If it keeps a replica of the
    store, that one listens at `store_port`, and has its disk in `replica`."""

    def __init__(self, name: str, folder: Path) -> None:
        file = name.replace(" ", "-")
        self.name, self.log, self.replica = name, folder / f"{file}.log", folder / f"{file}-replica"
        self.port, _, self.http_port, self.store_port = free_ports(4)
        self.address = f"127.0.0.1:{self.port}"
        self.process: asyncio.subprocess.Process | None = None

    async def start(self, store: str, seeds: list[str], cluster: str) -> None:
        """Start the node and return once it is Up.

        Raises:
            DemoFailed: the node ended, or took too long.
        """
        arguments = ["node", "start", "examples.flights:bus", "--store", store]
        arguments += ["--port", str(self.port), "--http-port", str(self.http_port)]
        arguments += ["--set", "store.start_timeout=10s"]  # the store runs before the nodes
        if store.startswith(INSIDE):
            arguments += ["--set", f"store.port={self.store_port}"]
            arguments += ["--set", f"store.path={self.replica}"]
        for seed in seeds:
            arguments += ["--seed", seed]
        with self.log.open("ab") as log:
            self.process = process = await dying_with_us(
                COMMAND, *arguments, cluster=cluster, stdout=asyncio.subprocess.PIPE, stderr=log
            )
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                assert process.stdout is not None
                line = await process.stdout.readline()
        except TimeoutError:
            raise DemoFailed(f"{self.name} is not up after {READY_WITHIN_S:g} s") from None
        if not line.startswith(b"ready:"):
            code = await process.wait()
            raise DemoFailed(f"{self.name} ended with exit code {code}")

    @property
    def runs(self) -> bool:
        """True if the process was started and has not ended."""
        return self.process is not None and self.process.returncode is None

    async def kill(self) -> None:
        """Kill the process with SIGKILL; return when it has ended."""
        if self.process is None:
            return
        if self.runs:
            self.process.kill()
        await self.process.wait()

    async def leave(self) -> int:
        """Send SIGTERM, so that the node hands off and leaves. Returns its exit code.

        Raises:
            DemoFailed: the node took too long, and was killed.
        """
        assert self.process is not None
        if self.runs:
            self.process.terminate()
        try:
            async with asyncio.timeout(LEAVE_WITHIN_S):
                return await self.process.wait()
        except TimeoutError:
            await self.kill()
            raise DemoFailed(f"{self.name} did not leave within {LEAVE_WITHIN_S:g} s") from None

    async def get(self, path: str) -> Any:
        """Return a page of the node's HTTP."""
        return await asyncio.to_thread(self._get, path)

    def _get(self, path: str) -> Any:
        opener = build_opener(ProxyHandler({}))
        url = f"http://127.0.0.1:{self.http_port}{path}"
        with opener.open(url, timeout=ANSWER_WITHIN_S) as answer:
            return json.load(answer)


class Nodes:
    """All node processes of the demo, in the order of their start."""

    def __init__(self, folder: Path, store: str, cluster: str) -> None:
        self.folder, self.store, self.cluster = folder, store, cluster
        self.started: list[Node] = []

    def __iter__(self) -> Iterator[Node]:
        """Return the running nodes."""
        return (node for node in self.started if node.runs)

    @property
    def inside(self) -> bool:
        """True if the nodes keep the store themselves."""
        return self.store.startswith(INSIDE)

    async def add_first(self, count: int) -> list[Node]:
        """Start the first nodes. A store that they keep themselves needs all of them at once."""
        if self.store != INSIDE:
            return [await self.add() for _ in range(count)]
        nodes = [Node(f"node {n + 1}", self.folder) for n in range(count)]
        self.store += ",".join(f"127.0.0.1:{node.store_port}" for node in nodes)
        self.started += nodes
        first = [nodes[0].address]
        await asyncio.gather(
            *(
                node.start(self.store, first if node.address not in first else [], self.cluster)
                for node in nodes
            )
        )
        return nodes

    async def add(self) -> Node:
        """Start one more node, which joins the running ones."""
        node = Node(f"node {len(self.started) + 1}", self.folder)
        seeds = [other.address for other in self]
        await node.start(self.store, seeds, self.cluster)
        self.started.append(node)
        return node

    def called(self, full_name: str) -> Node:
        """Return the node with the id `host:port#uid`."""
        return next(n for n in self.started if n.address == full_name.partition("#")[0])

    async def coordinator(self, entity_type: str) -> Node:
        """Return the node with the coordinator of the type."""
        cluster = await next(iter(self)).get("/v1/cluster")
        return self.called(cluster["coordinators"][entity_type]["node"])

    async def shards(self, entity_type: str) -> dict[Node, list[str]]:
        """Return the shards of each node, by the coordinator's table."""
        page = await (await self.coordinator(entity_type)).get(f"/v1/shards/{entity_type}")
        hosted: dict[Node, list[str]] = {node: [] for node in self}
        for row in page["shards"]:
            if row["state"] == "running":
                hosted.setdefault(self.called(row["node"]), []).append(row["shard"])
        return hosted

    async def leave(self) -> list[int]:
        """Let all nodes leave, the youngest first. Returns their exit codes. If they keep the store
        themselves, they leave together: the last ones could not save alone."""
        nodes = list(reversed(list(self)))
        if self.inside:
            return await asyncio.gather(*(node.leave() for node in nodes))
        return [await node.leave() for node in nodes]

    async def kill(self) -> None:
        """Kill every process that still runs."""
        for node in self.started:
            await node.kill()


async def dying_with_us(
    *command: str, cluster: str, stdout: int | IO[bytes], stderr: int | IO[bytes]
) -> asyncio.subprocess.Process:
    """Start a process that the kernel kills when this one ends."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SHARDBUS_")}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", DIES_WITH_PARENT, str(os.getpid()), *command,
        cwd=ROOT, env=environment | {"FLIGHTS_CLUSTER": cluster},
        stdin=asyncio.subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True,
    )  # fmt: skip
