"""Which asks an entity of the same node handles where they are awaited: the whole table."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from shardbus.shells.direct_asks import DirectAsks
from shardbus.tasks.eager import FirstSteps
from shardbus.transport.direct_ask import DEPTH_MAX

CONDITIONS = {
    "not held": lambda way: setattr(way.outbox, "held", object()),
    "not lost": lambda way: setattr(way.outbox, "lost", RuntimeError()),
    "clear": lambda way: setattr(way.state.inbox, "is_clear", False),
    "confirmed": lambda way: setattr(way.gate, "valid_until", 5.0),
    "gate open": lambda way: setattr(way.gate, "closed", True),
    "time left": lambda way: setattr(way.ask, "timeout_ms", 0),
    "stack known": lambda way: setattr(way.state.stack, "depth", 1),
    "stack ends": lambda way: setattr(way.state, "depth", DEPTH_MAX),
    "active": lambda way: way.active.clear(),
    "a handler": lambda way: way.invokers.clear(),
}
"""What breaks each condition."""


class Way:
    """The direct way of a type with one entity, of which nothing is in question."""

    def __init__(self, *, leases: bool, busy: bool, waits: bool) -> None:
        self.handled, self.batched = list[Any](), list[Any]()
        self.state = SimpleNamespace(
            inbox=SimpleNamespace(is_clear=True), asks=None, stack=FirstSteps(), depth=0, ways={},
            turn_ends=0.0, turn_left=9, at_hand=None,
        )  # fmt: skip
        self.outbox = SimpleNamespace(
            held=None, lost=None, direct=self.state, put_at_hand=lambda: self.batched.append(1)
        )
        self.gate = SimpleNamespace(closed=False, valid_until=99.0, clock=lambda: 10.0)
        runner = SimpleNamespace(
            counts=None, loop=object(), gate=self.gate, eager=SimpleNamespace(stack=None)
        )
        entity = SimpleNamespace(busy=busy, task=object() if waits else None)
        self.active, self.invokers = {"a": entity}, {"do": object()}
        parts: dict[str, Any] = {
            "outbox": self.outbox, "runner": runner, "find": self.active.get,
            "runs": SimpleNamespace(handle_ask=None), "invokers": self.invokers, "session": None,
            "sampling": SimpleNamespace(marks=None), "sent": None, "leases": leases,
        }  # fmt: skip
        self.way = DirectAsks("one", **parts)
        self.ask = SimpleNamespace(entity_id="a", key=("one", "do"), timeout_ms=5)

    def take(self, patch: pytest.MonkeyPatch) -> bool:
        """Take the ask. Returns True if the entity gets it, False if the batch does."""
        patch.setattr(DirectAsks, "_hand_over", lambda *args: self.handled.append(args))
        self.way.take(self.ask)  # type: ignore[arg-type]
        assert len(self.handled) + len(self.batched) == 1
        return bool(self.handled)


@pytest.mark.parametrize("broken", [None, *CONDITIONS])
@pytest.mark.parametrize("leases", [False, True])
@pytest.mark.parametrize(("busy", "waits"), [(False, False), (True, False), (True, True)])
def test_an_ask_is_direct_only_if_nothing_is_in_question(
    broken: str | None, leases: bool, busy: bool, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = Way(leases=leases, busy=busy, waits=waits)
    if broken is not None:
        CONDITIONS[broken](way)
    direct = broken is None and not leases and (not busy or waits)
    assert way.take(monkeypatch) is direct


def test_no_condition_makes_up_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    for pair in product(CONDITIONS, repeat=2):
        way = Way(leases=False, busy=False, waits=False)
        for broken in pair:
            CONDITIONS[broken](way)
        assert not way.take(monkeypatch)
