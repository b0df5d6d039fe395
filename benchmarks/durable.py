"""Measure durable asks beside DBOS and Restate, in turn: the new value is stored before the answer.

One counter for each of 64 keys, one ask under way for each key. Ours are entities whose handler
saves, on one node, in SQLite and in Redis. DBOS runs workflows in the process of the caller, with
all of its data in SQLite. Restate is one server with virtual objects, called over HTTP/1.1.

    pip install dbos restate-sdk hypercorn              into an environment of its own
    npm install @restatedev/restate-server
    BENCH_PEERS=PYTHON BENCH_RESTATE=SERVER python -m benchmarks.durable [sqlite] [redis] [dbos]
        [restate]

`PYTHON` is the interpreter of that environment, `SERVER` the program `restate-server`; a peer whose
program is not named is left out. BENCH_RUNS (3) and BENCH_SECONDS (4) make it shorter or longer.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from benchmarks.durable_peers import KEYS
from benchmarks.harness import RUNS, SECONDS, START_S, emit, free_port, median
from benchmarks.lanes import laned
from benchmarks.saves import saving
from tests.redis_server import RedisServer

ROOT = Path(__file__).parent.parent
Figures = tuple[float, float]
"""Asks a second, and the median of their durations in microseconds."""
Run = Callable[[float], Awaitable[Figures]]
"""Asks for this number of seconds."""


@asynccontextmanager
async def ours(url: str) -> AsyncIterator[Run]:
    """Run entities with this store."""
    async with saving(url, handler="add") as product:
        product.message = 1

        async def run(seconds: float) -> Figures:
            return await laned(product.ask, KEYS, seconds)

        yield run


@asynccontextmanager
async def dbos(python: str, folder: str) -> AsyncIterator[Run]:
    """Run DBOS in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        python, "-m", "benchmarks.durable_peers", "dbos", folder,
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    async def run(seconds: float) -> Figures:
        stdin.write(f"{seconds}\n".encode())
        rate, p50 = json.loads(await stdout.readline())
        return rate, p50

    try:
        await stdout.readline()
        yield run
    finally:
        stdin.close()
        with suppress(ProcessLookupError, TimeoutError):
            async with asyncio.timeout(10):
                await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def restate(python: str, server: str, folder: str) -> AsyncIterator[Run]:
    """Run Restate: its server, and the process with the counters."""
    ports = service, ingress, admin = free_port(), free_port(), free_port()
    settings = {
        "RESTATE_LISTEN_MODE": "tcp",
        "RESTATE_BIND_IP": "127.0.0.1",
        "RESTATE_BIND_PORT": str(free_port()),
        "RESTATE_INGRESS__BIND_PORT": str(ingress),
        "RESTATE_ADMIN__BIND_PORT": str(admin),
        "RESTATE_DISABLE_TELEMETRY": "true",
        "RESTATE_BASE_DIR": folder,
    }
    silent: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    commands = [python, "-m", "benchmarks.durable_peers", "restate", str(service)], [server]
    processes = [
        subprocess.Popen(command, cwd=ROOT, env={**os.environ, **settings}, **silent)
        for command in commands
    ]
    try:
        for port in ports:
            await until(lambda port=port: _connect(port))  # type: ignore[misc]
        uri = json.dumps({"uri": f"http://127.0.0.1:{service}"}).encode()
        register = Request(
            f"http://127.0.0.1:{admin}/deployments", uri, {"content-type": "application/json"}
        )
        await until(lambda: asyncio.to_thread(lambda: urlopen(register).read()))
        async with AsyncExitStack() as stack:
            callers = {
                key: await stack.enter_async_context(http_caller(ingress, key)) for key in KEYS
            }

            async def run(seconds: float) -> Figures:
                return await laned(lambda key: callers[key](), KEYS, seconds)

            yield run
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def _connect(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()


async def until(step: Callable[[], Awaitable[Any]]) -> None:
    """Repeat a step until it succeeds."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            await step()
        except (OSError, URLError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)
        else:
            return


@asynccontextmanager
async def http_caller(port: int, key: str) -> AsyncIterator[Callable[[], Awaitable[int]]]:
    """Open a connection of its own, and add to a counter with each call."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = (
        f"POST /Counter/{key}/add HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
        "content-type: application/json\r\ncontent-length: 1\r\n\r\n1"
    ).encode()

    async def call() -> int:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        if " 200 " not in head.partition("\r\n")[0]:
            raise RuntimeError(head)
        size = int(head.partition("content-length:")[2].partition("\r\n")[0])
        return int(await reader.readexactly(size))

    try:
        yield call
    finally:
        writer.close()


async def main() -> None:
    """Measure and print."""
    sides = sys.argv[1:] or ["sqlite", "redis", "dbos", "restate"]
    python, server = os.environ.get("BENCH_PEERS", ""), os.environ.get("BENCH_RESTATE", "")
    runs: dict[str, Run] = {}
    async with AsyncExitStack() as stack:
        for side in sides:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
            begin = stack.enter_async_context
            if side == "sqlite":
                runs[side] = await begin(ours(f"sqlite:///{folder}/store.db"))
            elif side == "redis":
                redis = stack.enter_context(RedisServer(Path(folder), "--appendfsync", "everysec"))
                runs[side] = await begin(ours(f"redis://127.0.0.1:{redis.port}/0"))
            elif side == "dbos" and python:
                runs[side] = await begin(dbos(python, folder))
            elif side == "restate" and python and server:
                runs[side] = await begin(restate(python, server, folder))
        figures: dict[str, list[Figures]] = {side: [] for side in runs}
        for run in runs.values():
            await run(1.0)
        for _ in range(RUNS):
            for side, run in runs.items():
                figures[side].append(await run(SECONDS))
    for side, measured in figures.items():
        rates = [rate for rate, _ in measured]
        emit(f"durable/{side}", median(rates), "asks/s", runs=[round(rate) for rate in rates])
        emit(f"durable/{side}_p50", median(p50 for _, p50 in measured), "us")


if __name__ == "__main__":
    asyncio.run(main())
