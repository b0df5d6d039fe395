"""The steps of a link, one by one and in any order; the frames that each state lets through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import product

import pytest

from shardbus.errors import NodeLost
from shardbus.transport.link import NEXT, LinkState
from shardbus.transport.session import Session
from shardbus.wire.batch import FrameType
from tests.unit.transport.session_pair import Side

STEPS: dict[str, tuple[LinkState, Callable[[Session], object]]] = {
    "open": (LinkState.OPEN, lambda session: session.opened(0)),
    "break": (LinkState.BROKEN, lambda session: session.link.suspend()),
    "end": (LinkState.ENDED, lambda session: session.close(NodeLost("gone"))),
}
KEY = ("counter", "add")


def test_only_the_end_is_final() -> None:
    assert set(NEXT) == set(LinkState)
    assert [state for state, steps in NEXT.items() if not steps] == [LinkState.ENDED]
    assert all(LinkState.OPENING not in steps for steps in NEXT.values())


@pytest.mark.parametrize("steps", list(product(STEPS, repeat=3)))
async def test_a_session_keeps_to_its_table_in_every_order_of_steps(steps: tuple[str, ...]) -> None:
    side = Side("a", is_open=False)
    state = LinkState.OPENING
    for step in steps:
        side.session.outbox.tell(KEY, "x", b"p")
        side.session.outbox.flush()
        reached, take = STEPS[step]
        state = reached if reached in NEXT[state] else state
        take(side.session)
        assert side.session.link.state is state
        side.session.check()


@pytest.mark.parametrize("step", ["break", "end"])
async def test_nothing_is_sent_by_a_link_that_is_not_open(step: str) -> None:
    side = Side("a")
    STEPS[step][1](side.session)
    side.session.outbox.tell(KEY, "x", b"p")
    side.session.outbox.flush()
    side.session.keep_alive()
    side.session.link.send_numbers(FrameType.NAK)
    await asyncio.sleep(0)
    assert side.frames == []


async def test_a_link_that_ended_wakes_whoever_waits_for_it() -> None:
    side = Side("a", is_open=False)
    side.session.outbox.tell(KEY, "x", b"p")
    waiting = side.session.link.opening(), side.session.drained()
    STEPS["end"][1](side.session)
    assert all(future.done() for future in waiting)
    assert side.session.link.opening().done()
