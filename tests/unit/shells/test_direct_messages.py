"""Which messages an entity of the same node handles where they are awaited: the whole table."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from shardbus.shells.direct_messages import DirectMessages
from shardbus.tasks.eager import FirstSteps
from shardbus.transport.direct_message import DEPTH_MAX, DirectTell

CONDITIONS: dict[str, Callable[[Any], object]] = {
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
            turn_ends=0.0, turn_left=9, tells_left=9, at_hand=None,
        )  # fmt: skip
        self.outbox = SimpleNamespace(
            held=None,
            lost=None,
            direct=self.state,
            put_at_hand=lambda: self.batched.append(1),
            took_tell=lambda: None,
        )
        self.gate = SimpleNamespace(closed=False, valid_until=99.0, clock=lambda: 10.0)
        runner = SimpleNamespace(
            counts=None, loop=object(), gate=self.gate, eager=SimpleNamespace(stack=None)
        )
        entity = SimpleNamespace(busy=busy, task=object() if waits else None)
        self.active, self.invokers = {"a": entity}, {"do": object()}
        parts: dict[str, Any] = {
            "outbox": self.outbox, "runner": runner, "find": self.active.get,
            "runs": SimpleNamespace(handle_one=None), "invokers": self.invokers, "session": None,
            "sampling": SimpleNamespace(marks=None), "sent": None, "leases": leases,
        }  # fmt: skip
        self.way = DirectMessages("one", **parts)
        self.ask = SimpleNamespace(entity_id="a", key=("one", "do"), timeout_ms=5)
        self.tell = DirectTell(self.outbox, ("one", "do"), "a", b"")  # type: ignore[arg-type]

    def take(self, patch: pytest.MonkeyPatch, *, tell: bool = False) -> bool:
        """Take the message. Returns True if the entity gets it, False if the batch does."""
        for name in ("_hand_over_ask", "_hand_over_tell"):
            patch.setattr(DirectMessages, name, lambda *args: self.handled.append(args))
        self.way.take(self.tell if tell else self.ask)  # type: ignore[arg-type]
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


@pytest.mark.parametrize("broken", [None, *sorted(set(CONDITIONS) - {"time left"})])
@pytest.mark.parametrize(("busy", "waits"), [(False, False), (True, False), (True, True)])
def test_a_tell_is_direct_only_to_an_idle_entity(
    broken: str | None, busy: bool, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = Way(leases=False, busy=busy, waits=waits)
    if broken is not None:
        CONDITIONS[broken](way)
    assert way.take(monkeypatch, tell=True) is (broken is None and not busy)


def test_no_condition_makes_up_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    for pair in product(CONDITIONS, repeat=2):
        way = Way(leases=False, busy=False, waits=False)
        for broken in pair:
            CONDITIONS[broken](way)
        assert not way.take(monkeypatch)
