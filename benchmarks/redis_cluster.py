"""Measure saves over one master of a Redis Cluster and over three, when the masters are the limit.

Two cores cannot show it with servers: the node that saves is the limit there. So this runs the
store and the group commit of a node in virtual time, where code takes no time, over masters that
run one script at a time and take a millisecond for each, as a master does that is a network and a
busy core away. The work: entities of 100 shards, 100 bytes each, 64 to 2,048 saves in flight. The
figures depend on nothing else, so every run has the same.

    python -m benchmarks.redis_cluster
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from benchmarks.harness import emit
from shardbus.ids import Address, shard_of
from shardbus.simulation.timeline import Timeline
from shardbus.simulation.virtual_loop import VirtualLoop
from shardbus.store.entity_state import EntityStates
from shardbus.store.redis import RedisStore
from shardbus.store.redis_scripts import PROBE, SAVE_STATES, VERSION

ENTITIES, SHARDS = 10_000, 100
IN_FLIGHT = (64, 512, 2_048)
HOLD_S, SECONDS = 0.001, 2.0
SLOTS = 16_384


class Masters:
    """A cluster of `count` masters."""

    def __init__(self, count: int) -> None:
        self.at = [Address("10.0.0.1", 7000 + n) for n in range(count)]
        self.busy = {at: asyncio.Lock() for at in self.at}
        self.scripts = 0

    def connect(self, at: Address) -> Client:
        """Return a client of one master."""
        return Client(self, at)

    def answer(self, name: str, *args: Any) -> Any:
        """Return a master's answer to a command."""
        if name == "CLUSTER SLOTS":
            share = -(-SLOTS // len(self.at))
            return [
                [n * share, min((n + 1) * share, SLOTS) - 1, [at.host.encode(), at.port]]
                for n, at in enumerate(self.at)
            ]
        if name == "EVALSHA":
            answers = {VERSION.sha: b"2", PROBE.sha: [b"mark", b"id", b"0"], SAVE_STATES.sha: []}
            return answers[args[0]]
        return {"run_id": "id", "role": "master"} if name == "INFO" else None


class Client:
    """A connection to one master."""

    def __init__(self, masters: Masters, at: Address, *, queues: bool = False) -> None:
        self._masters, self._at, self._queues = masters, at, queues
        self._queued: list[tuple[Any, ...]] = []

    def pipeline(self, transaction: Any = None) -> Client:
        """Return a pipeline."""
        return Client(self._masters, self._at, queues=True)

    def execute_command(self, *args: Any) -> Any:
        """Queue a command, or run it."""
        self._queued.append(args)
        return self if self._queues else self._single()

    async def _single(self) -> Any:
        [answer] = await self.execute()
        return answer

    async def execute(self, raise_on_error: bool = False) -> list[Any]:
        """Run the queued calls."""
        queued, self._queued = self._queued, []
        saves = [args for args in queued if args[:2] == ("EVALSHA", SAVE_STATES.sha)]
        self._masters.scripts += len(saves)
        async with self._masters.busy[self._at]:
            await asyncio.sleep(HOLD_S * len(saves))
        return [self._masters.answer(*args) for args in queued]

    async def aclose(self) -> None:
        """Close nothing."""


async def measure(masters: int, in_flight: int, seconds: float) -> tuple[float, float]:
    """Return saves a second of virtual time, and saves in a script."""
    servers = Masters(masters)
    store = RedisStore(
        "redis+cluster://10.0.0.1:7000",
        timeout=60.0,
        connect=lambda: servers.connect(servers.at[0]),
        connect_to=servers.connect,
    )
    await store.start()
    states, numbers = EntityStates(store, 7, 60.0), itertools.count()
    clock = asyncio.get_running_loop().time
    end, done = clock() + seconds, 0

    async def save() -> None:
        nonlocal done
        while clock() < end:
            name = f"e-{next(numbers) % ENTITIES}"
            await states.save("cart", shard_of(name, SHARDS), name, 1, bytes(100))
            done += 1

    began = clock()
    await asyncio.gather(*(save() for _ in range(in_flight)))
    rate = done / (clock() - began)
    await store.close()
    return rate, done / servers.scripts


def measured(masters: int, in_flight: int, seconds: float = SECONDS) -> tuple[float, float]:
    """Return the result of `measure` in virtual time."""
    timeline = Timeline()
    errors: list[dict[str, Any]] = []
    loop = VirtualLoop(timeline, errors.append)  # type: ignore[abstract]
    task = loop.create_task(measure(masters, in_flight, seconds))
    while not task.done():
        timeline.step()
    loop.kill()
    return task.result()


def main() -> None:
    """Measure and print."""
    for in_flight in IN_FLIGHT:
        rates = {}
        for masters in (1, 3):
            rates[masters], size = measured(masters, in_flight)
            name = f"saves/redis_cluster/{in_flight}/{masters}"
            emit(name, rates[masters], "saves/s", saves_per_script=round(size, 2))
        emit(f"saves/redis_cluster/{in_flight}/ratio", rates[3] / rates[1], "x", of="one master")


if __name__ == "__main__":
    main()
