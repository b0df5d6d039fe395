"""How a node goes, if nothing forces it to: phase by phase (`phases`).

    hand off    its shards move to the others; or, if the whole cluster stops, they end where they
                are, and nobody gets them
    leave       the member leaves, clients are asked to part, and what is under way gets some time

Sockets are closed afterwards, by the owner. If the shards are not handed off in time, the node does
not leave: others may start them only once this process has ended.

Source: S1.61, S3.39; B.12, B.141, C.8.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shardbus.membership import events as cluster
from shardbus.runtime.phases import HAND_OFF, LAST, LEAVE, PHASES, Progress

if TYPE_CHECKING:
    from shardbus.runtime.node import Node

PART_S = 5.0
LOOK_S = 0.02


async def leave(node: Node, progress: Progress) -> bool:
    """Go through the phases. Ends in any case; whether everything was handed off and the member has
    left, each in its time."""
    work = {HAND_OFF: _hand_off, LEAVE: _leave}
    in_time = True
    for phase in PHASES:
        if in_time or phase == LAST:
            own = work[phase](node, progress) if phase in work else None
            seconds = node.phases.seconds(phase, longest_handoff(node))
            in_time &= await node.phases.run(phase, seconds, progress, own)
    return in_time


def longest_handoff(node: Node) -> float:
    """The longest `handoff_timeout` of the node's types."""
    return max((kind.settings.handoff_timeout for kind in node.kinds.values()), default=0.0)


async def _hand_off(node: Node, progress: Progress) -> None:
    """Move everything away. If the whole cluster stops, or turns out to, there is nowhere to move
    to."""
    if not node.cluster_stops.done():
        progress(f"handing off {_hosted(node)} shards")
        if not node.is_up:
            return
        drained = asyncio.gather(*(kind.shutdown() for kind in node.kinds.values()))
        ends: set[asyncio.Future[Any]] = {drained, node.cluster_stops}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if drained.done():
            await _for_a_while(node, lambda: not _buffering(node))
            return
    progress(f"the whole cluster stops: stopping {_hosted(node)} shards")
    await asyncio.gather(*(kind.stop_here() for kind in node.kinds.values()))


async def _leave(node: Node, progress: Progress) -> None:
    if not node.cluster_stops.done():
        progress("leaving the cluster")
    node.cluster.post(cluster.Leave(node.me))
    await asyncio.shield(node.stopped)
    node.endpoint.announce_leaving()
    for session in node.switchboard.clients.values():
        session.flush()
    await _for_a_while(node, lambda: not _busy(node) and not _hands_over(node))


async def _for_a_while(node: Node, condition: Callable[[], bool]) -> None:
    """Wait for it, but not for ever."""
    deadline = node.loop.time() + PART_S
    while not condition() and node.loop.time() < deadline:
        await asyncio.sleep(LOOK_S)


def _hosted(node: Node) -> int:
    return sum(len(kind.host.shards) for kind in node.kinds.values())


def _buffering(node: Node) -> bool:
    """Something waits here for a shard that went elsewhere."""
    return any(kind.router.region.buffered[0] for kind in node.kinds.values())


def _hands_over(node: Node) -> bool:
    """A coordinator here has not ended, and the next one may wait for it."""
    return any(succession.ending for succession in node.successions.values())


def _busy(node: Node) -> bool:
    """Somebody still talks to us, or waits for what we sent on."""
    if node.endpoint.clients:
        return True
    return any(
        session.open and (session.waiting_asks or session.outstanding)
        for session in node.endpoint.sessions()
        if node.is_member(session.tag)
    )
