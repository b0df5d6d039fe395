"""The periodic duty of a node: each part is on its own, and the next beat comes in any case."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardbus.node import ticker
from shardbus.node.node import Node
from shardbus.node.ticker import QUIET_TICKS, SWEEP_TICKS, Ticker

PARTS = [
    "advance",
    "mailboxes",
    "ends",
    "residents",
    "loads",
    "handlers",
    "quarantine",
    "loopback",
    "drops",
    "refusals",
]


class World:
    """A node of two types that only counts what it is told to do. `broken`: the part that raises,
    where there is one for each type that of the first."""

    def __init__(self, broken: str = "") -> None:
        self.done: Counter[str] = Counter()
        self.broken = broken
        self.tick = 0
        self.timers: list[Callable[[], None]] = []
        self.slow = SimpleNamespace(
            check=lambda waiting, limit, tick: self.do(f"{waiting} handlers")
        )
        self.endpoint = SimpleNamespace(clock=self)
        self.loop = SimpleNamespace(call_later=self.call_later, time=lambda: 0.0)
        self.loopback = SimpleNamespace(expire=lambda: self.do("loopback"))
        self.drops = SimpleNamespace(report=lambda tick: self.do("drops"))
        self.refused = SimpleNamespace(log_line=lambda now: self.do("refusals"))
        self.watching = SimpleNamespace(app_alive=lambda: self.do("alive"))
        self.quarantine_stalled_peers = lambda: self.do("quarantine")
        self.kinds = {name: self.kind(name) for name in ("first", "second")}

    def kind(self, name: str) -> Any:
        def do(part: str) -> Callable[[], None]:
            return lambda: self.do(f"{name} {part}")

        sweeps = {part: do(part) for part in ("mailboxes", "ends", "residents")}
        runner = SimpleNamespace(running_handlers=name)
        return SimpleNamespace(
            name=name,
            advance=lambda tick: self.do(f"{name} advance"),
            host=SimpleNamespace(sweeps=lambda tick: sweeps, runner=runner),
            settings=SimpleNamespace(slow_handler_after=1.0),
        )

    def do(self, what: str) -> None:
        self.done[what] += 1
        if self.broken and what in (self.broken, f"first {self.broken}"):
            raise ArithmeticError(what)

    def call_later(self, delay: float, beat: Callable[[], None]) -> Any:
        self.timers.append(beat)
        return SimpleNamespace(cancel=lambda: self.timers.remove(beat))

    def beat(self, ticks: int = SWEEP_TICKS) -> None:
        """The one timer that is armed, so many ticks later."""
        [timer], self.timers = self.timers, []
        self.tick += ticks
        timer()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[World, Ticker]]:
    def loads(kind: Any, node: Any, tick: int) -> None:
        node.do(f"{kind.name} loads")

    def start(broken: str = "") -> tuple[World, Ticker]:
        monkeypatch.setattr(ticker, "report_loads", loads)
        world = World(broken)
        beats = Ticker(cast("Node", world))
        beats.start()
        return world, beats

    return start


@pytest.mark.parametrize("broken", PARTS)
def test_a_part_that_raises_concerns_no_other_and_not_the_next_beat(
    started: Any, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    well, _ = started("")
    ill, _ = started(broken)
    for _ in range(3):
        well.beat()
        ill.beat()
    assert ill.done == well.done
    assert ill.done["alive"] == 4
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None


def test_its_failures_are_told_again_after_a_while(
    started: Any, caplog: pytest.LogCaptureFixture
) -> None:
    world, _ = started("drops")
    while world.tick < 2 * QUIET_TICKS:
        world.beat()
    assert len(caplog.records) == 3


def test_sweeps_come_once_a_second_and_nothing_after_the_stop(started: Any) -> None:
    world, beats = started()
    for _ in range(SWEEP_TICKS):
        world.beat(1)
    assert world.done["first residents"] == 1
    assert world.done["first advance"] == SWEEP_TICKS + 1
    beats.stop()
    assert world.timers == []
