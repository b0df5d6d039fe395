"""Measure calls between entities of one node, beside calls without entities and a remote pair.

One process runs a node of its own loop and all its callers. The sides take turns, in slices, and
each ratio is taken slice by slice:

    bare      a coroutine call, with msgspec copies of its arguments and its answer: the limit
    pykka     an actor of pykka in a thread of its own, if that is installed
    remote    a node and a producer, two processes

    one       one ask at a time, from the application and from an entity: p50
    typed     the same with a dataclass of four fields, as argument and as answer
    waiting   the same to a handler that waits for a turn of the loop
    chain     an ask that goes through ten entities, beside an ask to one: p50
    256       asks in flight, a second
    tell      tells to 10,000 entities, a second

    python -m benchmarks.home

BENCH_RUNS (3) and BENCH_SECONDS (4) make it shorter or longer.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from benchmarks.harness import (
    ENTITIES,
    IDS,
    IN_FLIGHT,
    PAYLOAD,
    RUNS,
    SECONDS,
    Side,
    asked,
    emit,
    free_port,
    median,
    percentile,
    told,
    warmed,
)
from benchmarks.home_app import CHAIN, Bare, Callee, Caller, Reading, bus
from benchmarks.sides import Product

SLICE = 400
"""Asks in a slice of one at a time."""
READING = Reading("sensor-7", 1.5, 42, PAYLOAD)
Figures = dict[str, list[float]]
Ask = Callable[[], Awaitable[list[float]]]


@asynccontextmanager
async def node() -> AsyncIterator[None]:
    """Run a node in this loop."""
    ports = {f"{name}port": free_port() for name in ("node.", "node.gossip_", "http.")}
    async with bus.run({"store.url": "memory://", **ports}):
        yield


def one_at_a_time(call: Callable[..., Awaitable[object]], *args: object) -> Ask:
    """Return a function that calls a slice one by one and returns the microseconds of each."""

    async def run() -> list[float]:
        taken, clock = list[float](), time.monotonic_ns
        for _ in range(SLICE):
            began = clock()
            await call(*args)
            taken.append((clock() - began) / 1e3)
        return taken

    return run


def from_entity() -> Ask:
    """Return a function that lets an entity ask a slice."""
    caller: Any = bus.ref(Caller, "caller")
    call = caller.within(60.0).ask_often

    async def run() -> list[float]:
        taken: list[float] = await call(SLICE, PAYLOAD)
        return taken

    return run


async def single(stack: AsyncExitStack) -> None:
    """Measure asks one at a time."""
    bare, ref = Bare(), bus.ref(Callee, "beside")
    chain = bus.ref(Callee, "chain")
    sides: dict[str, Ask] = {
        "bare": one_at_a_time(bare.hit, PAYLOAD),
        "bare_typed": one_at_a_time(bare.note, READING),
        "one": one_at_a_time(ref.hit, PAYLOAD),
        "from_entity": from_entity(),
        "typed": one_at_a_time(ref.note, READING),
        "waiting": one_at_a_time(ref.waiting, PAYLOAD),
        "chain_of_one": one_at_a_time(chain.link, "chain", 0),
        "chain": one_at_a_time(chain.link, "chain", CHAIN - 1),
    }
    if (actor := pykka_actor(stack)) is not None:
        sides["pykka"] = one_at_a_time(actor)
    p50: Figures = {name: [] for name in sides}
    for side in sides.values():
        await side()
    end = time.monotonic() + RUNS * SECONDS
    while time.monotonic() < end:
        for name, side in sides.items():
            p50[name].append(percentile(sorted(await side()), 0.5))
    for name, values in p50.items():
        emit(f"home/{name}_p50", median(values), "us", slices=len(values))
    for name, of in (
        ("one", "bare"),
        ("from_entity", "bare"),
        ("typed", "bare_typed"),
        ("waiting", "bare"),
        ("chain", "chain_of_one"),
        ("one", "pykka"),
    ):
        if of in p50:
            ratios = [a / b for a, b in zip(p50[name], p50[of], strict=True)]
            emit(f"home/ratio_{name}_p50", median(ratios), "x", of=of)


def pykka_actor(stack: AsyncExitStack) -> Callable[..., Awaitable[object]] | None:
    """Start an actor of pykka; return its asking function, None if pykka is not installed."""
    try:
        import pykka  # type: ignore[import-not-found]
    except ImportError:
        return None

    class Counter(pykka.ThreadingActor):  # type: ignore[misc]
        count = 0

        def on_receive(self, message: Any) -> int:
            self.count += 1
            return self.count

    actor = Counter.start()
    stack.callback(actor.stop)

    async def ask() -> object:
        return actor.ask(PAYLOAD)

    return ask


class Home(Side):
    """The node of this process."""

    def __init__(self) -> None:
        self.name = "home"
        self._calls: dict[str, Any] = {}

    def _call(self, entity_id: str) -> Any:
        call = self._calls.get(entity_id)
        if call is None:
            call = self._calls[entity_id] = bus.ref(Callee, entity_id).hit
        return call

    def ask(self, entity_id: str) -> Any:
        """Ask one."""
        return self._call(entity_id)(PAYLOAD)

    async def __aexit__(self, *exception: object) -> None:
        """Do nothing: the node is closed elsewhere."""

    async def tells(self, rounds: int) -> float:
        """Tell every entity `rounds` times; return messages a second until all are handled."""
        began = time.monotonic()
        for _ in range(rounds):
            for i, entity_id in enumerate(IDS, 1):
                await self._call(entity_id).tell(PAYLOAD)
                if i % 1_000 == 0:
                    await asyncio.sleep(0)
        await asyncio.gather(*(self._call(entity_id)(PAYLOAD) for entity_id in IDS[:100]))
        return rounds * ENTITIES / (time.monotonic() - began)


def spent(pid: int) -> int:
    """Return the nanoseconds of processor time that the loop of a process has taken."""
    with open(f"/proc/{pid}/task/{pid}/schedstat") as file:
        return int(file.read().split()[0])


async def many() -> None:
    """Measure asks in flight and tells, beside a remote pair."""
    home = Home()
    async with Product("remote", "at_once") as remote:
        rounds = await warmed(remote)
        await home.tells(2)
        for side in (home, remote):
            await asked(side, IN_FLIGHT, 0.5)

        async def asks(side: Home | Product) -> tuple[int, float]:
            rate, taken = await asked(side, IN_FLIGHT, SECONDS)
            return len(taken), rate

        async def tells(side: Home | Product) -> tuple[int, float]:
            local = side.tells(rounds) if isinstance(side, Home) else told(side, rounds)
            return rounds * ENTITIES, await local

        for what, unit, work in (("256", "req/s", asks), ("tell", "msg/s", tells)):
            await compare(what, unit, work, home, remote)


async def compare(
    what: str,
    unit: str,
    work: Callable[[Home | Product], Awaitable[tuple[int, float]]],
    home: Home,
    remote: Product,
) -> None:
    """Do the work on both sides in turn; print rates, processor times and ratios. The remote pair
    has two loops: on two free processors its slower one sets the pace (`ratio_WHAT_cpu`)."""
    rates: Figures = {"home": [], "remote": []}
    cpus: Figures = {"home": [], "remote_node": [], "remote_producer": []}
    producer = os.getpid()
    node = remote.host.process.pid
    for _ in range(RUNS):
        for side in (home, remote):
            before = spent(producer), spent(node)
            n, rate = await work(side)
            mine, theirs = (
                (spent(p) - b) / n / 1e3 for p, b in zip((producer, node), before, strict=True)
            )
            rates[side.name].append(rate)
            if side is home:
                cpus["home"].append(mine)
            else:
                cpus["remote_node"].append(theirs)
                cpus["remote_producer"].append(mine)
    report(what, rates, unit)
    for name, values in cpus.items():
        emit(f"home/{what}_{name}_cpu", median(values), "us")
    slower = map(max, cpus["remote_node"], cpus["remote_producer"])
    ratios = [b / a for a, b in zip(cpus["home"], slower, strict=True)]
    emit(f"home/ratio_{what}_cpu", median(ratios), "x", of="remote")


def report(what: str, rates: Figures, unit: str) -> None:
    """Print rates and their ratio."""
    for name, values in rates.items():
        emit(f"home/{what}_{name}", median(values), unit, runs=[round(value) for value in values])
    ratios = [a / b for a, b in zip(rates["home"], rates["remote"], strict=True)]
    pairs = [round(ratio, 3) for ratio in ratios]
    emit(f"home/ratio_{what}", median(ratios), "x", of="remote", pairs=pairs)


async def main() -> None:
    """Measure and print."""
    async with AsyncExitStack() as stack, node():
        await single(stack)
        await many()


if __name__ == "__main__":
    asyncio.run(main())
