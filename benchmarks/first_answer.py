"""The first minute of a user: `--help`, `shardbus dev` to its first answer, and a reload.

    python -m benchmarks.first_answer [--rounds 5]

`help` is the time of a whole process. `ready` begins with the start of `shardbus dev` in an empty
directory and ends with the ready line of all three nodes; `first_answer` ends when an entity has
answered a client that connects then. `reload` begins with a changed source file and ends with the
answer of the new code to a client that connects when `dev` reports it. `end` is the time from
Ctrl-C to the end. Each line is the median and the slowest round.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from shardbus import AsyncClient

SHARDBUS = str(Path(sys.executable).with_name("shardbus"))
DEADLINE_S = 60.0


def help_s(*words: str) -> float:
    began = time.monotonic()
    subprocess.run([SHARDBUS, *words, "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


async def ask(addresses: list[str], expected: int) -> None:
    """Ask an entity, as a client that connects for it."""
    async with AsyncClient(*addresses, cluster="first", timeout=DEADLINE_S) as client:
        factor = await client.call("counter", "a-1", "factor")
        if factor != expected:
            raise SystemExit(f"the answer is {factor}, not {expected}")


async def line_with(text: str, dev: subprocess.Popen[str]) -> None:
    """Wait for a line of `dev`."""
    assert dev.stdout is not None
    while text not in (line := await asyncio.to_thread(dev.stdout.readline)):
        if not line:
            raise SystemExit("dev ended")


APP = """
from shardbus import Entity, ShardBus, handler

bus = ShardBus("first")
FACTOR = 1


@bus.entity("counter")
class Counter(Entity):
    @handler
    def factor(self) -> int:
        return FACTOR
"""


async def round_s() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "app.py").write_text(APP)
        port, http_port = free_block()
        command = [SHARDBUS, "dev", "app:bus", "--reload"]
        command += ["--port", str(port), "--http-port", str(http_port)]
        addresses = [f"tcp://127.0.0.1:{port + 10 * n}" for n in range(3)]
        seconds: dict[str, float] = {}
        began = time.monotonic()
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as dev:
            try:
                await line_with("ready:", dev)
                seconds["ready"] = time.monotonic() - began
                await ask(addresses, 1)
                seconds["first_answer"] = time.monotonic() - began
                (Path(folder) / "app.py").write_text(APP.replace("FACTOR = 1", "FACTOR = 22"))
                began = time.monotonic()
                await line_with("the nodes run the new code", dev)
                await ask(addresses, 22)
                seconds["reload"] = time.monotonic() - began
                began = time.monotonic()
                dev.send_signal(signal.SIGINT)
                await asyncio.to_thread(dev.wait, DEADLINE_S)
                seconds["end"] = time.monotonic() - began
            finally:
                dev.kill()
        return seconds


def free_block() -> tuple[int, int]:
    """Ports of node 1, below those that the system gives to outgoing connections."""
    base = 20_000 + os.getpid() % 10_000
    return base, base + 100


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    times = {"help": [help_s() for _ in range(rounds)]}
    times["help of a command"] = [help_s("node", "start") for _ in range(rounds)]
    for _ in range(rounds):
        for name, seconds in (await round_s()).items():
            times.setdefault(name, []).append(seconds)
    for name, taken in times.items():
        print(f"{name:<18} {median(taken):6.2f} s   slowest {max(taken):6.2f} s")


if __name__ == "__main__":
    asyncio.run(main())
