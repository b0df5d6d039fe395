"""Compare sides that are at work in turn, each a node and a client of its own all the time.

Which side begins changes with every round. The first and the last side are the same, because two
sides of the same code differ. Each value is the median of the ratios to the mean of both in the
same round: of the rates, and of the processor time that client and node take for a message.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

from benchmarks.harness import ENTITIES, asked, emit, median, told, warmed
from benchmarks.sides import Product

WORKS = ("tell", "ask256", "ask1")
Beside = Mapping[str, Callable[[Product], Coroutine[Any, Any, None]]]
"""The processes that run while a side is at work, by its name."""


def options_of(about: str, pairs: int, seconds: float, **numbers: float) -> argparse.Namespace:
    """Return the options of a command line: the kinds of work, the pairs, the seconds of a slice,
    and further `numbers`, by their defaults."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("works", nargs="*", metavar="WORK", default=[])
    parser.add_argument("--pairs", type=int, default=pairs)
    parser.add_argument("--slice", type=float, default=seconds, dest="seconds")
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=float, default=default)
    options = parser.parse_args()
    options.works = options.works or list(WORKS)
    if unknown := set(options.works) - set(WORKS):
        parser.error(f"there is no work {', '.join(sorted(unknown))}: {', '.join(WORKS)}")
    return options


async def run(name: str, sides: list[Product], options: argparse.Namespace, beside: Beside) -> None:
    """Start the sides, and compare them in each kind of work."""
    async with contextlib.AsyncExitStack() as stack:
        for side in sides:
            await stack.enter_async_context(side)
        for work in options.works:
            await compare(name, sides, work, options.pairs, options.seconds, beside)


async def slice_of(side: Product, work: str, amount: float) -> dict[str, float]:
    """Do one slice of work. Return its rate, and nanoseconds of processor time for a message."""
    before, mine = (await side.host.ask("cpu"))["cpu"], time.process_time_ns()
    if work == "tell":
        n = int(amount) * ENTITIES
        rate = await told(side, int(amount))
    else:
        rate, taken = await asked(side, int(work[3:]), amount)
        n = len(taken)
    client = time.process_time_ns() - mine
    node = (await side.host.ask("cpu"))["cpu"] - before
    return {"rate": rate, "node": node / n, "client": client / n}


@contextlib.asynccontextmanager
async def running(side: Product, beside: Beside) -> AsyncIterator[None]:
    """Run the processes of a side."""
    task = asyncio.create_task(beside[side.name](side)) if side.name in beside else None
    yield
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def compare(
    name: str, sides: list[Product], work: str, pairs: int, seconds: float, beside: Beside
) -> None:
    """Run rounds of one kind of work, and print a line for each figure."""
    amount = seconds
    if work == "tell":
        amount = max([await warmed(side, seconds) for side in sides])
    else:
        for side in sides:
            await asked(side, int(work[3:]), seconds)
    ratios: dict[str, list[float]] = {}
    base: dict[str, list[float]] = {}
    for number in range(pairs):
        at = number % len(sides)
        figures: dict[Product, dict[str, float]] = {}
        for side in sides[at:] + sides[:at]:
            async with running(side, beside):
                figures[side] = await slice_of(side, work, amount)
        for what in ("rate", "node", "client"):
            first, *others, last = (figures[side][what] for side in sides)
            of = (first + last) / 2
            base.setdefault(what, []).append(of)
            ratios.setdefault(f"off/{work}_{what}", []).append(last / first)
            for side, value in zip(sides[1:-1], others, strict=True):
                ratios.setdefault(f"{side.name}/{work}_{what}", []).append(value / of)
    for what, values in base.items():
        unit = "msg/s" if what == "rate" else "ns"
        emit(f"{name}/off/{work}_{what}_base", median(values), unit)
    for ratio, values in ratios.items():
        quartiles = [round(q, 3) for q in statistics.quantiles(values, n=4)]
        emit(f"{name}/{ratio}", median(values), "x", pairs=pairs, quartiles=quartiles)
