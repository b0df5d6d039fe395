"""What becomes of sessions when the other process, or this one, ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from shardbus.entities.supervision import EntityCounts
from shardbus.ids import NodeId
from shardbus.node.session_loss import DEPART_S, SessionLoss
from shardbus.sharding import events
from tests.unit.transport.session_pair import pair

GONE = NodeId("n2", 7355, 2)


class Around:
    """A node as its losses see it. `linked`: it has a link to who is gone."""

    def __init__(self, *, linked: bool) -> None:
        self.dropped: list[NodeId] = []
        self.later: list[tuple[float, Any, tuple[Any, ...]]] = []
        self.heard: list[object] = []
        self.counts = EntityCounts()
        kind = SimpleNamespace(
            router=SimpleNamespace(handle=self.heard.append),
            host=SimpleNamespace(counts=self.counts),
        )
        self.kinds = {"counter": kind}
        self.loop = SimpleNamespace(call_later=self._call_later)
        self.endpoint = SimpleNamespace(
            watch=lambda node: linked, remove=lambda node, error: self.dropped.append(node)
        )

    def _call_later(self, delay: float, call: Any, *args: Any) -> None:
        self.later.append((delay, call, args))


@pytest.mark.parametrize("linked", [True, False])
def test_sessions_of_a_member_that_left_end_after_a_while_whoever_opened_them(
    linked: bool,
) -> None:
    """Its goodbye may have been lost, and a session that it opened has nobody else who ends it."""
    node: Any = Around(linked=linked)
    SessionLoss(node).member_gone(GONE, died=False)
    news = events.NodeLeft(GONE) if linked else events.NodeGone(GONE)
    assert (node.heard, node.dropped) == ([news], [])
    [(delay, call, args)] = node.later
    assert delay == DEPART_S
    call(*args)
    assert node.dropped == [GONE]


async def test_a_node_that_ends_counts_what_nobody_has_confirmed() -> None:
    a, b = pair()
    for side, count in ((a, 2), (b, 1)):
        for _ in range(count):
            side.session.tell(("counter", "add"), "x", b"")
        side.session.flush()
    await asyncio.sleep(0)
    node: Any = Around(linked=True)
    for side in (a, b):
        side.session.finish()
    SessionLoss(node).closed([a.session, b.session])
    assert node.counts.dropped == {"unconfirmed": 3}
