"""How a node goes, if nothing forces it to.

    leave       its shards are handed off, then it leaves: the others stay
    stop_here   the whole cluster stops: its shards end where they are, and nobody gets them

Either way clients are asked to part, what is under way gets some time, and sockets are closed
afterwards, by the owner.

Source: S1.61, S3.39; B.12, B.141, C.8.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shardbus.membership import events as cluster

if TYPE_CHECKING:
    from shardbus.runtime.node import Node

LEFT = "left"
"""How membership ends in good order."""
LEAVE_WITHIN_S = 15.0
"""So long, beside the longest move of a shard, may a departure take."""
PART_S = 5.0
LOOK_S = 0.02

Progress = Callable[[str], None]


async def leave(node: Node, progress: Progress) -> None:
    """Move everything away, leave the cluster, let clients part. If the whole cluster turns out to
    stop, there is nowhere to move to. If the others have downed this node, they have its shards:
    nothing is waited for."""
    progress(f"handing off {_hosted(node)} shards")
    if node.is_up:
        drained = asyncio.gather(*(kind.shutdown() for kind in node.kinds.values()))
        ends: set[asyncio.Future[Any]] = {drained, node.cluster_stops, node.stopped}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if node.stopped.done():
            return
        if not drained.done():
            await stop_here(node, progress)
            return
        await _for_a_while(node, lambda: not _awaits_homes(node), longest_move(node))
    progress("leaving the cluster")
    await _part(node)


async def stop_here(node: Node, progress: Progress) -> None:
    """End everything that runs here, without moving it, and leave."""
    progress(f"the whole cluster stops: stopping {_hosted(node)} shards")
    await asyncio.gather(*(kind.stop_here() for kind in node.kinds.values()))
    await _part(node)


async def _part(node: Node) -> None:
    node.cluster.post(cluster.Leave(node.me))
    if await asyncio.shield(node.stopped) != LEFT:
        return
    node.endpoint.announce_leaving()
    for session in node.switchboard.clients.values():
        session.flush()
    await _for_a_while(node, lambda: not _busy(node) and not _hands_over(node))


def longest_move(node: Node) -> float:
    """Seconds that a shard may take to move; so long may messages wait here for its home."""
    return max((kind.settings.handoff_timeout for kind in node.kinds.values()), default=0.0)


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
    return buffered and any(other != node.me for other in node.hosting_members())


def _hands_over(node: Node) -> bool:
    """A coordinator here has not ended, and the next one may wait for it."""
    return any(succession.ending for succession in node.successions.values())


def _busy(node: Node) -> bool:
    """Somebody still talks to us, or waits for what we sent on."""
    if node.endpoint.clients:
        return True
    return any(
        session.lost is None and (session.waiting_asks or session.outstanding)
        for session in node.endpoint.sessions()
        if node.is_member(session.tag)
    )
