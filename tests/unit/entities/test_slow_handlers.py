"""Slow handlers are named: those that wait, by a look once a second, and those that block, by a
look from another thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from shardbus import Entity, ShardBus, StopReason, handler
from shardbus.entities import slow_handlers
from shardbus.entities.slow_handlers import SlowHandlers
from tests.unit.entities.entity_kit import Bench
from tests.waiting import turns

HERE = __file__


class Gates:
    """The waits of this file's handlers."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.start = asyncio.Event()
        self.start.set()
        self.stop = asyncio.Event()
        self.stop.set()
        self.blocking: Callable[[], None] = lambda: None


class Worker(Entity):
    gates: ClassVar[Gates]

    async def on_start(self) -> None:
        await self.gates.start.wait()

    async def on_stop(self, reason: StopReason) -> None:
        await self.gates.stop.wait()

    async def _inner(self) -> None:
        await self.gates.open.wait()

    @handler
    async def wait(self) -> None:
        await self._inner()

    @handler
    def block(self) -> None:
        self.gates.blocking()

    @handler
    async def block_later(self) -> None:
        await asyncio.sleep(0)
        self.gates.blocking()

    async def receive(self, message: object) -> None:
        await self._inner()


class Looker:
    """A bench, and a look at it once a second."""

    def __init__(self, caplog: pytest.LogCaptureFixture, limit: float = 20.0) -> None:
        bus = ShardBus("shop")
        bus.entity("worker")(Worker)
        Worker.gates = self.gates = Gates()
        self.bench = Bench(bus)
        self.slow = SlowHandlers(asyncio.get_running_loop(), 1.0)
        self.limit = limit
        self._caplog = caplog

    def pass_seconds(self, seconds: int) -> None:
        for _ in range(seconds):
            runner = self.bench.host.runner
            runner.advance(runner.tick + 20)
            self.slow.check(runner.running_handlers, self.limit, runner.tick)

    @property
    def warnings(self) -> list[str]:
        return [
            r.getMessage()
            for r in self._caplog.records
            if r.levelno == logging.WARNING and r.name == "shardbus.entity"
        ]


async def test_a_handler_that_waits_is_named_once_with_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    look = Looker(caplog)
    look.bench.tell("e", "wait")
    await turns()
    look.pass_seconds(20)
    assert look.warnings == []
    look.pass_seconds(20)
    [text] = look.warnings
    assert text.startswith("wait of worker 'e' has waited 20 s, at ")
    inner, outer = text.partition(", at ")[2].split(" < ")[-2:]
    assert inner.startswith(HERE)
    assert inner.endswith(" in _inner")
    assert outer.endswith(" in wait")
    assert look.slow.counts == {("worker", "waited"): 1}
    [report] = look.slow.reports()
    assert (report.entity_type, report.how) == ("worker", "waited")
    assert report.text in caplog.text


async def test_a_handler_that_is_done_in_time_is_not_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    look = Looker(caplog)
    for _ in range(3):
        look.bench.tell("e", "wait")
        await turns()
        look.pass_seconds(15)
        look.gates.open.set()
        await turns()
        look.gates.open.clear()
    assert look.warnings == []


async def test_the_longest_waiting_handler_does_not_hide_others(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_handlers, "QUIET_S", 0.0)
    look = Looker(caplog)
    for second in range(3):
        look.bench.tell(f"e{second}", "wait")
        await turns()
        look.pass_seconds(1)
    look.pass_seconds(40)
    assert [text.partition("'")[2][:2] for text in look.warnings] == ["e0", "e1", "e2"]


async def test_many_at_once_are_one_warning_and_all_are_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Looker(caplog)
    look.bench.tell_many("wait", *((f"e{i}", ()) for i in range(50)))
    await turns()
    look.pass_seconds(21)
    assert len(look.warnings) == 1
    assert look.slow.counts == {("worker", "waited"): 50}
    look.bench.tell("late", "wait")
    await turns()
    look.slow._quiet_until.clear()
    look.pass_seconds(21)
    assert "'late'" in look.warnings[1]
    assert look.warnings[1].endswith("(49 others before)")


async def test_zero_is_off(caplog: pytest.LogCaptureFixture) -> None:
    look = Looker(caplog, limit=0.0)
    look.bench.tell("e", "wait")
    await turns()
    look.pass_seconds(100)
    assert look.warnings == []


async def test_messages_of_receive_starts_and_ends_are_named_too(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_handlers, "QUIET_S", 0.0)
    look = Looker(caplog)
    look.bench.ask_message("r", "hello")
    look.bench.tell("z", "block")
    await turns()
    look.gates.start.clear()
    look.gates.stop.clear()
    look.bench.tell("s", "block")
    activation = look.bench.activation("z")
    assert activation is not None
    activation.stop()
    await turns()
    look.pass_seconds(21)
    names = sorted(text.partition(" has")[0] for text in look.warnings)
    assert names == ["on_start of worker 's'", "on_stop of worker 'z'", "receive of worker 'r'"]


# Blocking


def block_while(look: Looker, *seconds: float) -> Callable[[], None]:
    """The action of a handler: block until another thread has looked at it as the watchdog does."""

    def block() -> None:
        watchdog = threading.Thread(target=lambda: [look.slow.stalled(s) for s in seconds])
        watchdog.start()
        watchdog.join()

    return block


@pytest.mark.parametrize("method", ["block", "block_later"])
async def test_a_handler_that_blocks_is_named_once_with_the_stack(
    caplog: pytest.LogCaptureFixture, method: str
) -> None:
    look = Looker(caplog)
    look.gates.blocking = block_while(look, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
    look.bench.tell("e", method)
    await turns()
    [text] = look.warnings
    assert text.startswith(f"{method} of worker 'e' blocks the loop since 1.0 s, at ")
    assert f"in {method}" in text.split(" < ")[-1] or f" in {method} <" in text
    assert " in block <" in text
    assert look.slow.counts == {("worker", "blocked"): 1}


def slow_codec(look: Looker, seconds: Sequence[float]) -> None:
    """An action of no handler."""
    block_while(look, *seconds)()


@pytest.mark.parametrize("stalls", [1, 2])
async def test_other_code_that_blocks_is_named_once_for_each_stall(
    caplog: pytest.LogCaptureFixture, stalls: int
) -> None:
    look = Looker(caplog)
    with caplog.at_level(logging.WARNING, "shardbus.entity"):
        slow_codec(look, [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 0.0] * stalls)
    assert len(look.warnings) == stalls
    start = "code outside of a handler blocks the loop since 1.0 s, at "
    assert all(text.startswith(start) and " in slow_codec" in text for text in look.warnings)


async def test_a_stall_in_which_handlers_ran_is_not_blamed_on_other_code(
    caplog: pytest.LogCaptureFixture,
) -> None:
    look = Looker(caplog)
    look.gates.blocking = block_while(look, 0.25, 0.5)
    look.bench.tell("e", "block")
    await turns()
    slow_codec(look, [0.75, 1.0, 1.25, 1.5])
    assert look.warnings == []


async def test_many_quick_handlers_are_no_slow_one(caplog: pytest.LogCaptureFixture) -> None:
    look = Looker(caplog)
    seen = iter([0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0])
    look.gates.blocking = lambda: block_while(look, next(seen))()
    look.bench.tell_many("block", *((f"e{i}", ()) for i in range(8)))
    await turns()
    assert look.warnings == []


async def test_a_blocking_handler_behind_quick_ones_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    look = Looker(caplog)
    steps = iter([[0.25, 0.5], [0.75, 1.0], [1.25, 1.5, 1.75, 2.0, 2.25]])
    look.gates.blocking = lambda: block_while(look, *next(steps))()
    look.bench.tell_many("block", *((f"e{i}", ()) for i in range(3)))
    await turns()
    [text] = look.warnings
    assert text.startswith("block of worker 'e2' blocks the loop since 1.0 s")


async def test_a_loop_that_turns_again_ends_the_suspicion(
    caplog: pytest.LogCaptureFixture,
) -> None:
    look = Looker(caplog)
    look.gates.blocking = block_while(look, 0.25, 0.5, 0.75, 0.0, 0.25, 0.5, 0.75)
    look.bench.tell("e", "block")
    await turns()
    assert look.warnings == []


async def test_blocking_code_outside_handlers_is_not_blamed_on_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    look = Looker(caplog)
    look.bench.tell("e", "block")
    block_while(look, *(0.25 * i for i in range(1, 10)))()
    assert [text for text in look.warnings if "'e'" in text] == []
    assert look.slow.counts == {}


async def test_a_constructor_that_blocks_is_not_blamed_on_the_message_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus = ShardBus("shop")
    built: list[Any] = []

    @bus.entity("plain")
    class Plain(Entity):
        def __init__(self) -> None:
            if built:
                block_while(look, *(0.25 * i for i in range(1, 10)))()
            built.append(self)

        @handler
        def hit(self) -> None: ...

    look = Looker(caplog)
    Bench(bus).tell_many("hit", ("a", ()), ("b", ()))
    assert len(built) == 2
    [text] = look.warnings
    assert text.startswith("code outside of a handler blocks the loop")
    assert " in __init__" in text
