"""How a node goes, if nothing forces it to: phase by phase (`phases`).

    hand off    its shards move to the others; or, if the whole cluster stops, they end where they
                are, and nobody gets them
    leave       clients are asked to part, the member leaves, and what is under way gets some time

Sockets are closed afterwards, by the owner. If the shards are not handed off in time, the node does
not leave: others may start them only once this process has ended. A node that is downed meanwhile
stops at once, in whatever phase.

Source: S1.61, S3.39; B.12, B.141, C.8.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shardbus.membership import events as cluster
from shardbus.node.phases import HAND_OFF, LAST, LEAVE, PHASES, Progress

if TYPE_CHECKING:
    from shardbus.node.node import Node

LEFT = "left"
"""How membership ends in good order."""
PART_S = 5.0
PART_FIRST_S = 1.0
"""Of a member, for clients to part: those that wait for long answers stay until it has left."""
LOOK_S = 0.02


async def leave(node: Node, progress: Progress) -> bool:
    """Go through the phases. Ends in any case; whether everything was handed off and the member has
    left, each in its time. If the others have downed this node, they have its shards: nothing is
    waited for."""
    going = asyncio.ensure_future(_go_through(node, progress))
    try:
        ends: set[asyncio.Future[Any]] = {going, node.stopped}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if node.stopped.done() and node.stopped.result() != LEFT:
            return False
        return await going
    finally:
        going.cancel()


async def _go_through(node: Node, progress: Progress) -> bool:
    work = {HAND_OFF: _hand_off, LEAVE: _leave}
    in_time = True
    for phase in PHASES:
        if in_time or phase == LAST:
            own = work[phase](node, progress) if phase in work else None
            seconds = node.phases.seconds(phase, longest_move(node))
            in_time &= await node.phases.run(phase, seconds, progress, own)
    return in_time


async def _hand_off(node: Node, progress: Progress) -> None:
    """Move everything away. If the whole cluster stops, or turns out to, there is nowhere to move
    to."""
    if not node.cluster_stops.done():
        progress(f"handing off {_hosted(node)} shards")
        drained = asyncio.gather(*(kind.shutdown() for kind in node.kinds.values()))
        ends: set[asyncio.Future[Any]] = {drained, node.cluster_stops}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if drained.done():
            await _for_a_while(node, lambda: not _awaits_homes(node), longest_move(node))
            return
    progress(f"the whole cluster stops: stopping {_hosted(node)} shards")
    await asyncio.gather(*(kind.stop_here() for kind in node.kinds.values()))


async def _leave(node: Node, progress: Progress) -> None:
    if not node.cluster_stops.done():
        progress("leaving the cluster")
        if _has_heirs(node):  # a member can ask where to pass on what clients still send
            _part_with_clients(node)
            await _for_a_while(node, lambda: not node.endpoint.clients, PART_FIRST_S)
    node.cluster.post(cluster.Leave(node.me))
    if await asyncio.shield(node.stopped) != LEFT:
        return
    _part_with_clients(node)
    await _for_a_while(node, lambda: not _busy(node) and not _hands_over(node))


def _part_with_clients(node: Node) -> None:
    node.endpoint.announce_leaving()
    for session in node.dispatcher.clients.values():
        session.flush()


def longest_move(node: Node) -> float:
    """Seconds that a shard may take to move; so long may messages wait here for its home. May be
    called from any thread."""
    return max((kind.settings.handoff_timeout for kind in tuple(node.kinds.values())), default=0.0)


async def _for_a_while(node: Node, condition: Callable[[], bool], seconds: float = PART_S) -> None:
    """Wait for it, but not for ever."""
    deadline = node.loop.time() + seconds
    while not condition() and node.loop.time() < deadline:
        await asyncio.sleep(LOOK_S)


def _hosted(node: Node) -> int:
    return sum(len(kind.host.shards) for kind in node.kinds.values())


def _awaits_homes(node: Node) -> bool:
    """Something waits here for a shard that goes elsewhere, and there is an elsewhere."""
    buffered = any(kind.router.region.buffered[0] for kind in node.kinds.values())
    return buffered and _has_heirs(node)


def _has_heirs(node: Node) -> bool:
    """Somebody else may host what was here."""
    return any(other != node.me for other in node.hosting_members())


def _hands_over(node: Node) -> bool:
    """A coordinator here has not ended, and the next one may wait for it."""
    return any(singleton.ending for singleton in node.singletons.values())


def _busy(node: Node) -> bool:
    """Somebody still talks to us, or waits for what we sent on."""
    if node.endpoint.clients:
        return True
    return any(
        session.lost is None and (session.waiting_asks or session.outstanding)
        for session in node.endpoint.sessions()
        if node.is_member(session.tag)
    )
