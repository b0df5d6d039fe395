"""The first minute of a user: `--help`, `shardbus dev` to its first answer, and a reload.

    python -m benchmarks.first_answer [--rounds 5]

`help` is the time of a whole process; `first_answer` begins with the start of `shardbus dev` in an
empty directory and ends with the answer of an entity to a client that tries all the time; `ready`
ends with the ready line of all three nodes; `reload` begins with a changed source file and ends
with the first answer of the new code. Each line is the median and the slowest round.
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

from shardbus import AsyncClient, ShardBusError

SHARDBUS = str(Path(sys.executable).with_name("shardbus"))
DEADLINE_S = 60.0


def help_s(*words: str) -> float:
    began = time.monotonic()
    subprocess.run([SHARDBUS, *words, "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


async def answer_s(began: float, addresses: list[str], wanted: int) -> float:
    """Seconds from `began` to the answer `wanted`."""
    while time.monotonic() < began + DEADLINE_S:
        try:
            async with AsyncClient(*addresses, cluster="first", timeout=0.5) as client:
                while await client.call("counter", "a-1", "factor") != wanted:
                    await asyncio.sleep(0.01)
                return time.monotonic() - began
        except ShardBusError:
            await asyncio.sleep(0.01)
    raise SystemExit("there was no answer")


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
        began = time.monotonic()
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE) as dev:
            try:
                found = {"first_answer": await answer_s(began, addresses, 1)}
                assert dev.stdout is not None
                await asyncio.to_thread(dev.stdout.readline)
                found["ready"] = time.monotonic() - began
                (Path(folder) / "app.py").write_text(APP.replace("FACTOR = 1", "FACTOR = 22"))
                found["reload"] = await answer_s(time.monotonic(), addresses, 22)
                began = time.monotonic()
                dev.send_signal(signal.SIGINT)
                dev.stdout.read()
                dev.wait(DEADLINE_S)
                found["end"] = time.monotonic() - began
            finally:
                dev.kill()
        return found


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
