"""The floor of homes, event by event, and the combinations that a route may have."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shardbus.ids import NodeId
from shardbus.sharding.messages import Home
from shardbus.sharding.region.route import (
    LEGAL,
    HomeFloor,
    LeftoversState,
    OpenFlush,
    Route,
    RouteState,
)

B, C = NodeId("b", 7355, 2), NodeId("c", 7355, 3)
OLD, NEW = Home("1", B, 5), Home("1", C, 6)
EVENTS: dict[str, tuple[Callable[[HomeFloor], object], int]] = {
    "left": (lambda floor: floor.set(6), 6),
    "begin handoff": (lambda floor: floor.on_begin_handoff(OLD, 3, in_use=True), 6),
    "died": (lambda floor: floor.on_home_dead(OLD), 6),
    "died, and is back": (lambda floor: (floor.on_home_dead(OLD), floor.on_node_back(B)), 5),
    "died, another is back": (lambda floor: (floor.on_home_dead(OLD), floor.on_node_back(C)), 6),
}


@pytest.mark.parametrize("event", EVENTS)
def test_the_floor_after_each_event(event: str) -> None:
    happens, lowest = EVENTS[event]
    floor = HomeFloor(fence=5)
    happens(floor)
    floor.check()
    assert floor.fence == lowest
    assert floor.accepts(NEW, 3)
    assert floor.accepts(OLD, 3) is (lowest == 5)


def test_only_a_newer_coordinator_puts_a_shard_back_after_begin_handoff() -> None:
    floor = HomeFloor(fence=5)
    assert floor.on_begin_handoff(OLD, 3, in_use=True)
    assert [floor.accepts(OLD, epoch) for epoch in (2, 3, 4)] == [False, False, True]
    assert floor.on_begin_handoff(OLD, 4, in_use=True), "a coordinator that is newer begins it anew"
    assert [floor.accepts(OLD, epoch) for epoch in (4, 5)] == [False, True]
    assert not floor.on_begin_handoff(Home("1", B, 4), 9, in_use=True), "an earlier home"


def test_a_node_that_is_back_does_not_undo_a_newer_home() -> None:
    """The newer home may have the very fence to which the death had raised the floor."""
    route = Route("1")
    route.floor.on_home_dead(OLD)
    route.set_next(NEW)
    route.open(NEW)
    route.floor.on_node_back(B)
    route.check()
    assert not route.accepts(OLD, 9)


@pytest.mark.parametrize("state", RouteState)
def test_a_route_with_a_part_that_its_state_does_not_have_is_found(state: RouteState) -> None:
    home, flush, *_ = LEGAL[state]
    parts = {"home": OLD if home else None, "flush": OpenFlush(1, 0.0) if flush else None}
    Route("1", state, **parts).check()
    for name, part in {"home": OLD, "flush": OpenFlush(1, 0.0)}.items():
        other = parts | {name: None if parts[name] is not None else part}
        with pytest.raises(AssertionError):
            Route("1", state, **other).check()


def test_leftovers_are_awaited_only_behind_a_flush() -> None:
    for state, (home, flush, _, _, allowed) in LEGAL.items():
        route = Route("1", state, OLD if home else None, OpenFlush(1, 0.0) if flush else None)
        route.leftovers.awaits = True
        assert route.leftovers.state is LeftoversState.AWAITED
        if LeftoversState.AWAITED in allowed:
            route.check()
        else:
            with pytest.raises(AssertionError):
                route.check()
