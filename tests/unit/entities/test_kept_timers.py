"""An entity keeps the timers that are set, and not those that have fired or were cancelled. A
repeated one keeps its rate."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextvars import ContextVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus import Entity, ShardBus, handler
from shardbus.entities.activation import TIMERS_MIN, Extras
from shardbus.entities.context import following
from tests.unit.entities.entity_kit import Bench
from tests.waiting import until

bus, late = ShardBus("shop"), ShardBus("shop")


@bus.entity("clock")
class Clocked(Entity):
    def __init__(self) -> None:
        self.ticks = 0

    @handler
    def repeat(self, times: int) -> None:
        for _ in range(times):
            self.context.schedule(0.001, "tick")

    @handler
    def once(self, delays: list[float]) -> None:
        for delay in delays:
            self.context.schedule_once(delay, "tick")

    @handler
    def withdraw(self, times: int) -> None:
        for _ in range(times):
            self.context.schedule_once(3600, "tick").cancel()

    @handler
    def tick(self) -> None:
        self.ticks += 1


async def test_a_repeated_timer_and_one_that_has_fired_leave_nothing_behind() -> None:
    b = Bench(bus)
    await b.ask("e", "once", [0.0] * 3)
    await b.ask("e", "once", [3600.0])
    await b.ask("e", "repeat", 2)
    await until(lambda: b.entity("e").ticks > 13, "some ticks")
    activation = b.activation("e")
    assert activation is not None
    assert len(activation.more().timers) == 3
    assert all(not timer.cancelled() for timer in activation.more().timers.values())


@pytest.mark.parametrize("live", [0, 5, 100])
async def test_cancelled_timers_are_bounded_by_those_that_are_set(live: int) -> None:
    b = Bench(bus)
    await b.ask("e", "once", [3600.0] * live)
    for _ in range(20):
        await b.ask("e", "withdraw", 50)
        activation = b.activation("e")
        assert activation is not None
        assert len(activation.more().timers) <= max(TIMERS_MIN, 2 * (live + 1))


def test_many_timers_that_are_set_are_looked_through_seldom() -> None:
    """Each one that is set must not cost a look at all others."""

    class Handle:
        looks = 0

        def cancelled(self) -> bool:
            Handle.looks += 1
            return False

    extras = Extras()
    for number in range(10_000):
        extras.add_timer(number, Handle())  # type: ignore[arg-type]
    assert len(extras.timers) == 10_000
    assert Handle.looks < 3 * 10_000


INTERVAL = 0.01


@late.entity("late")
class Late(Entity):
    def __init__(self) -> None:
        self.ticks = 0

    @handler
    def begin(self) -> None:
        self.context.schedule(INTERVAL, "tick")

    @handler
    def tick(self) -> None:
        """Hold the loop up for some intervals."""
        self.ticks += 1
        loop = asyncio.get_running_loop()
        ends = loop.time() + 2.5 * INTERVAL
        while loop.time() < ends:
            pass


async def test_a_repeated_timer_that_was_late_fires_at_whole_intervals() -> None:
    b = Bench(late)
    await b.ask("e", "begin")
    activation = b.activation("e")
    assert activation is not None
    loop, timers = asyncio.get_running_loop(), activation.more().timers
    [first] = [timer.when() for timer in timers.values()]
    for ticks in range(1, 4):
        await until(lambda ticks=ticks: b.entity("e").ticks >= ticks, "a tick")  # type: ignore[misc]
        [after] = [timer.when() for timer in timers.values()]
        steps = (after - first) / INTERVAL
        assert abs(steps - round(steps)) < 1e-3
        assert round(steps) >= ticks
        assert after - loop.time() <= INTERVAL


@given(st.floats(0, 1e6), st.floats(0.001, 3600), st.floats(-0.001, 1e5))
def test_the_next_moment_is_the_first_of_its_rate(at: float, interval: float, delay: float) -> None:
    after = following(at, interval, at + delay)
    assert after > at
    assert after >= at + delay - 1e-6
    assert after <= max(at, at + delay) + interval + 1e-6


class Request:
    """A large object of one message."""


REQUEST: ContextVar[Request] = ContextVar("request")


async def test_a_timer_holds_nothing_of_the_handler_that_has_set_it() -> None:
    class Served(Entity):
        request: weakref.ref[Request]

        @handler
        async def serve(self) -> None:
            request = Request()
            REQUEST.set(request)
            self.request = weakref.ref(request)
            self.context.schedule(3600.0, "serve")
            self.context.schedule_once(3600.0, "serve")

    web = ShardBus("shop")
    web.entity("web")(Served)
    b = Bench(web)
    await b.ask("e", "serve")
    gc.collect()
    assert b.entity("e").request() is None
