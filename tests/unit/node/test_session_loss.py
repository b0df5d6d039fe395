"""The fate of sessions when the other process, or this one, ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from shardbus.entities.supervision import EntityCounts
from shardbus.ids import NodeId
from shardbus.node.session_loss import DEPART_S, SessionLoss
from shardbus.sharding import events
from shardbus.transport.drop_reports import DropTallies
from tests.unit.transport.session_pair import pair

GONE = NodeId("n2", 7355, 2)


class Around:
    """The collaborators of a node's SessionLoss. `linked`: this node has a session to the node that
    is gone."""

    def __init__(self, *, linked: bool) -> None:
        self.dropped: list[NodeId] = []
        self.later: list[tuple[float, Any, tuple[Any, ...]]] = []
        self.events: list[object] = []
        self.died: list[tuple[NodeId, ...]] = []
        self.counts = EntityCounts()
        region: Any = SimpleNamespace(
            router=SimpleNamespace(handle=self.events.append),
            host=SimpleNamespace(counts=self.counts),
        )
        region.table = region
        endpoint: Any = SimpleNamespace(
            watch=lambda node: linked, remove=lambda node, error: self.dropped.append(node)
        )
        dispatcher: Any = SimpleNamespace(
            clients={}, notify_clients=lambda died: self.died.append(died)
        )
        loop: Any = SimpleNamespace(call_later=self._call_later)
        rpc: Any = None
        self.loss = SessionLoss(
            {"counter": region}, endpoint, dispatcher, rpc, DropTallies(), lambda _: False, loop
        )

    def _call_later(self, delay: float, call: Any, *args: Any) -> None:
        self.later.append((delay, call, args))


@pytest.mark.parametrize("linked", [True, False])
def test_sessions_of_a_member_that_left_end_after_a_while(linked: bool) -> None:
    """Its departure notice may be lost, and a session that it opened has no other end."""
    around = Around(linked=linked)
    around.loss.member_gone(GONE, died=False)
    event = events.NodeLeft(GONE) if linked else events.NodeGone(GONE)
    assert (around.events, around.dropped, around.died) == ([event], [], [])
    [(delay, call, args)] = around.later
    assert delay == DEPART_S
    call(*args)
    assert around.dropped == [GONE]


@pytest.mark.parametrize("linked", [True, False])
def test_sessions_of_a_member_that_died_end_at_once_and_clients_learn_it(linked: bool) -> None:
    around = Around(linked=linked)
    around.loss.member_gone(GONE, died=True)
    assert (around.events, around.dropped) == ([events.NodeGone(GONE)], [GONE])
    assert (around.died, around.later) == ([(GONE,)], [])


async def test_a_node_that_ends_counts_what_is_unacknowledged() -> None:
    a, b = pair()
    for side, count in ((a, 2), (b, 1)):
        for _ in range(count):
            side.session.outbox.tell(("counter", "add"), "x", b"")
        side.session.outbox.flush()
    await asyncio.sleep(0)
    around = Around(linked=True)
    for side in (a, b):
        side.session.finish()
    around.loss.closed([a.session, b.session])
    assert around.counts.dropped == {"unconfirmed": 3}
