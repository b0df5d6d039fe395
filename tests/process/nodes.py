"""Nodes as processes of their own, started by the command line as an operator starts them: all on
this machine's loopback interface, or each on a machine of its own (`namespaces`)."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from shardbus import AsyncClient
from tests.message_accounts import missing
from tests.ports import free_port
from tests.process import warm
from tests.process.namespaces import Machine, Network
from tests.waiting import PATIENCE_S, until

QUICK = ("cluster.gossip_interval=200ms", "cluster.leader_actions_interval=200ms")
PATIENT = ("store.timeout=60s",)
"""For a file that no test takes away: only a machine that stands still keeps it from answering."""
SERVED = ("store.timeout=10s",)
"""For a server that a test may stop: longer than a busy machine needs for an answer."""
STAYS_DOWN = ("cluster.rejoin_after_down=false",)
"""Tests look at the end of a downed node, unless they say otherwise."""
MACHINE_PORTS = (7355, 7356, 8558)
"""ROUTER, gossip and HTTP of a node that has a machine to itself."""

_EMBEDDED = f"""{warm.WITH_THE_TEST}
from tests.process.embedded import run
run()
"""


class NodeProcess:
    """One node. `port` and `http_port` are its own; `machine` is where it runs, None for here."""

    def __init__(
        self,
        folder: Path,
        name: str,
        command: list[str],
        machine: Machine | None = None,
        program: str = warm.COMMAND,
        stderr: int | None = None,
        stdout: int | None = None,
        enter: tuple[str, ...] = (),
        fresh: bool = True,
        **environment: str,
    ) -> None:
        """Start it, in an interpreter that is `fresh` or has imported the command (`warm`)."""
        self.name, self.folder, self.machine = name, folder, machine
        self.host = machine.address if machine else "127.0.0.1"
        self.out, self.err = folder / f"{name}.out", folder / f"{name}.err"
        self.port = self.gossip_port = self.http_port = 0
        env = {k: v for k, v in os.environ.items() if not k.startswith("SHARDBUS_")}
        env |= {"PYTHONPATH": warm.PATHS, "APP_FOLDER": str(folder), "COLUMNS": "200"} | environment
        plain = machine is None or machine.is_plain
        forked = not fresh and not enter and plain and warm.can(environment)
        self.process: subprocess.Popen[bytes] | warm.Forked
        with self.out.open("wb") as out, self.err.open("wb") as err:
            stdout = out.fileno() if stdout is None else stdout
            stderr = err.fileno() if stderr is None else stderr
            if forked:
                namespace = machine.name if machine else ""
                self.process = warm.fork(command, folder, env, stdout, stderr, namespace)
            else:
                enter = machine.enter if machine else enter
                self.process = subprocess.Popen(
                    [*enter, sys.executable, "-c", program, *command],
                    cwd=folder,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                )

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def get(self, path: str, within_s: float = 60.0) -> Any:
        """Return a page of its HTTP; None if it does not answer in time, or not with success."""
        text = self.read(path, within_s)
        try:
            return None if text is None else json.loads(text)
        except ValueError:
            return None

    def read(self, path: str, within_s: float = 60.0) -> str | None:
        """Return the text of a page; None if it does not answer in time, or not with success."""
        place = ("127.0.0.1", self.http_port)
        connection = http.client.HTTPConnection(*place, timeout=within_s)
        try:
            dial = self.machine.dial if self.machine else None
            connection.sock = dial(place[1]) if dial else socket.create_connection(place, within_s)
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.read().decode() if answer.status < 400 else None
        except (OSError, ValueError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    async def accounts(self) -> bool:
        """True if its metrics account for every message that it has accepted."""
        text = await asyncio.to_thread(self.read, "/metrics")
        return text is not None and not missing(text)

    async def page(self, path: str) -> Any:
        return await asyncio.to_thread(self.get, path)

    async def ready(self) -> bool:
        assert self.running, f"{self.name} ended with {self.process.returncode}"
        return "ready: " in self.out.read_text()

    async def says(self, what: str) -> None:
        """Wait until its log says this: a thread writes the log, some time after the event."""
        await until(
            lambda: what in self.err.read_text(errors="replace"),
            f"{what!r} in the log of {self.name}",
        )

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    async def ended(self) -> int:
        """Its exit code, once it has ended."""
        await until(lambda: not self.running, f"the end of {self.name}")
        return int(self.process.returncode)

    async def terminate(self) -> int:
        self.signal(signal.SIGTERM)
        return await self.ended()


class Processes:
    """The nodes of one test, over one store. With a network, each is on a machine of its own."""

    def __init__(self, folder: Path, store: str, network: Network | None = None) -> None:
        self.folder, self.store, self.network = folder, store, network
        self.all: list[NodeProcess] = []

    @property
    def live(self) -> list[NodeProcess]:
        return [node for node in self.all if node.running]

    def run(
        self,
        *command: str,
        machine: Machine | None = None,
        fresh: bool = False,
        **options: Any,
    ) -> NodeProcess:
        """A command that may be anything."""
        name = f"n{len(self.all) + 1}"
        node = NodeProcess(self.folder, name, list(command), machine, fresh=fresh, **options)
        self.all.append(node)
        return node

    def begin(
        self,
        *options: str,
        port: int = 0,
        settings: tuple[str, ...] = (),
        seeds: list[str] | None = None,
        machine: Machine | None = None,
        app: str = "tests.process.app:bus",
        fresh: bool = False,
        **environment: Any,
    ) -> NodeProcess:
        """Start a node of the tests' application; does not wait. Joins those that run, or `seeds`.
        Without a machine it gets a new one, if there is a network."""
        if machine is None and self.network is not None:
            machine = self.network.machine()
        port, gossip_port, http_port = (
            MACHINE_PORTS if machine else (port or free_port(), free_port(), free_port())
        )
        command = ["node", "start", app, "--port", str(port)]
        command += ["--gossip-port", str(gossip_port), "--http-port", str(http_port)]
        command += ["--store", self.store, "--log-format", "pretty"]
        if machine:
            command += ["--host", machine.address, "--set", "security.insecure=true"]
        for seed in [node.address for node in self.live[:2]] if seeds is None else seeds:
            command += ["--seed", seed]
        patience = SERVED if self.store.startswith(("redis", "postgresql")) else PATIENT
        for assignment in (*QUICK, *STAYS_DOWN, *patience, *settings):
            command += ["--set", assignment]
        node = self.run(*command, *options, machine=machine, fresh=fresh, **environment)
        node.port, node.gossip_port, node.http_port = port, gossip_port, http_port
        return node

    def embed(self, settings: tuple[str, ...], machine: Machine | None = None) -> NodeProcess:
        """Start an application that embeds a node; does not wait. It joins those that run."""
        if machine is None and self.network is not None:
            machine = self.network.machine()
        ports = MACHINE_PORTS if machine else (free_port(), free_port(), free_port())
        options = [f"node.port={ports[0]}", f"node.gossip_port={ports[1]}", f"http.port={ports[2]}"]
        options += [f"store.url={self.store}", *QUICK, *PATIENT, *settings]
        options.append(f"node.seeds={','.join(node.address for node in self.live[:2])}")
        if machine:
            options += [f"node.host={machine.address}", "security.insecure=true"]
        pairs = (assignment.split("=", 1) for assignment in options)
        environment = {f"SHARDBUS_{k.upper().replace('.', '__')}": v for k, v in pairs}
        name = f"n{len(self.all) + 1}"
        node = NodeProcess(self.folder, name, [], machine, _EMBEDDED, **environment)
        node.port, node.gossip_port, node.http_port = ports
        self.all.append(node)
        return node

    async def start(self, **options: Any) -> NodeProcess:
        """Start a node and wait until it says that it is ready."""
        node = self.begin(**options)
        await until(node.ready, f"the ready line of {node.name}")
        return node

    async def cluster(self, count: int, **options: Any) -> list[NodeProcess]:
        """Several nodes that agree on who is Up."""
        for _ in range(count):
            await self.start(**options)
        await self.agree()
        return self.all[-count:]

    async def together(self, count: int, **options: Any) -> list[NodeProcess]:
        """The same, started at once. The first of them is the oldest."""
        first = self.begin(**options)
        nodes = [first, *(self.begin(seeds=[first.address], **options) for _ in range(count - 1))]
        await self.agree(*nodes)
        return nodes

    async def agree(self, *nodes: NodeProcess) -> None:
        """Wait until these nodes (all that run) see each other Up, and nobody else."""
        chosen = list(nodes) or self.live
        statuses = {node.address: "up" for node in chosen}

        async def seen() -> bool:
            ended = [node.name for node in chosen if not node.running]
            assert ended == [], self.logs()
            pages = await asyncio.gather(*(node.page("/v1/nodes") for node in chosen))
            return all(
                page and {row["address"]: row["status"] for row in page["nodes"]} == statuses
                for page in pages
            )

        await until(seen, f"agreement of {sorted(statuses)}")

    def client(
        self, *nodes: NodeProcess, timeout: float = PATIENCE_S, cluster: str = "lab"
    ) -> AsyncClient:
        """A client that knows these nodes, or all that run."""
        addresses = [f"tcp://{node.address}" for node in (nodes or self.live)]
        return AsyncClient(*addresses, cluster=cluster, timeout=timeout, connect_timeout=PATIENCE_S)

    def logs(self) -> str:
        """The end of every node's output."""
        parts = []
        for node in self.all:
            state = "runs" if node.running else f"ended with {node.process.returncode}"
            said = node.out.read_text() + node.err.read_text(errors="replace")
            parts.append(f"---- {node.name} {node.address} {state}\n{said[-3000:]}")
        return "\n".join(parts)

    def close(self) -> None:
        for node in self.all:
            if node.running:
                node.signal(signal.SIGCONT)
                node.kill()
