"""The voters of the store's ring, on their way to membership."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from shardbus.membership.downing.electorate import RingVoters
from shardbus.membership.events import SetRing
from shardbus.node.store_upkeep import StoreUpkeep


def upkeep(store: object, posted: list[object]) -> StoreUpkeep:
    parts: Any = SimpleNamespace(register=lambda *_: None, post=posted.append, ask=None)
    nothing: Any = SimpleNamespace(others_up=list, suspended=False)
    it: Any = store
    return StoreUpkeep(it, {}, {}, nothing, parts, parts, nothing, 1.0, lambda: 0.0)


def test_membership_receives_each_ring_once() -> None:
    posted: list[object] = []
    store = SimpleNamespace(voters=None)
    it = upkeep(store, posted)
    it.show_voters()
    assert posted == []
    store.voters = (1, ("a:7357", "b:7357"))
    it.show_voters()
    it.show_voters()
    store.voters = (2, ("a:7357", ""))
    it.show_voters()
    assert posted == [
        SetRing(RingVoters(1, ("a:7357", "b:7357"))),
        SetRing(RingVoters(2, ("a:7357", ""))),
    ]


def test_another_store_has_no_voters() -> None:
    posted: list[object] = []
    upkeep(SimpleNamespace(), posted).show_voters()
    assert posted == []
