"""How a node leaves in good order, phase by phase (`shutdown_phases`).

    hand off    its shards move to other nodes; if the whole cluster stops, they end here, and no
                node gets them
    leave       clients are asked to leave, the member leaves the cluster, and messages under way
                get some time

The owner closes the sockets afterwards. If the shards are not handed off in time, the node does not
leave: other nodes may start the shards only once this process has ended. A node that is downed in
any phase stops at once.

Source: docs/architecture.md; S1.61, S3.39.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from shardbus.membership import events as cluster
from shardbus.membership.events import LEFT
from shardbus.node.node import Node
from shardbus.node.shutdown_phases import HAND_OFF, LAST, LEAVE, PHASES, Progress
from shardbus.quantities import counted

PART_S = 5.0
"""For messages under way, at most."""
PART_FIRST_S = 1.0
"""For clients to leave, and for the homes of their last messages, while this node is a member; or
for clients if no other node serves them later; at most. Those that wait for late answers stay until
it has left."""
POLL_S = 0.02


async def leave(node: Node, progress: Progress) -> bool:
    """Go through the phases; returns in any case. True if everything was handed off and the member
    has left, each within its timeout. If other nodes have downed this one, they have its shards,
    and it waits for nothing."""
    going = asyncio.ensure_future(_go_through(node, progress))
    try:
        ends: set[asyncio.Future[Any]] = {going, node.membership.stopped}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if node.membership.stopped.done() and node.membership.stopped.result() != LEFT:
            return False
        return await going
    finally:
        going.cancel()


async def _go_through(node: Node, progress: Progress) -> bool:
    work = {HAND_OFF: _hand_off, LEAVE: _leave}
    in_time = True
    for phase in PHASES:
        if in_time or phase == LAST:
            step = work[phase](node, progress) if phase in work else None
            seconds = node.phases.seconds(phase, longest_move(node))
            in_time &= await node.phases.run(phase, seconds, progress, step)
    return in_time


async def _hand_off(node: Node, progress: Progress) -> None:
    """Hand off every shard. Stop the shards here instead if the whole cluster stops, also if that
    becomes known meanwhile."""
    if not node.membership.cluster_stops.done():
        progress(f"handing off {_hosted(node)}")
        drained = asyncio.gather(*(region.shutdown() for region in node.regions.values()))
        ends: set[asyncio.Future[Any]] = {drained, node.membership.cluster_stops}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if drained.done():
            await _await_homes(node)
            return
    progress(f"the whole cluster stops: stopping {_hosted(node)}")
    await asyncio.gather(*(region.stop_here() for region in node.regions.values()))


async def _await_homes(node: Node) -> None:
    """Wait for the homes of messages, for as long as a move may take, but for `PART_S` at most once
    no region may take shards, as if all nodes leave at a time."""
    now = node.loop.time
    until, may_find = now() + longest_move(node), now()
    while _awaits_homes(node) and now() < min(until, may_find + PART_S):
        if not any(region.router.region.lacks_regions for region in node.regions.values()):
            may_find = now()
        await asyncio.sleep(POLL_S)


async def _leave(node: Node, progress: Progress) -> None:
    node.records.drops.prompt = True
    served = False
    if not node.membership.cluster_stops.done():
        progress("leaving the cluster")
        served = _others_host(node)
        if served:  # a member can still request homes for clients' messages
            _part_with_clients(node)
            await _until(node, lambda: not _clients_need(node), PART_FIRST_S)
    node.membership.post(cluster.Leave(node.me))
    if await asyncio.shield(node.membership.stopped) != LEFT:
        return
    _part_with_clients(node)
    seconds = PART_S if served and not node.membership.cluster_stops.done() else PART_FIRST_S
    await _until(node, lambda: not _busy(node) and not _hands_over(node), seconds)
    await _give_up_undelivered(node)


async def _give_up_undelivered(node: Node) -> None:
    """Give up the messages that have found no home, and wait until their senders have the reports:
    a socket without room holds them up."""
    if any(region.router.region.buffered[0] for region in node.regions.values()):
        for region in node.regions.values():
            region.give_up_undelivered()
        node.records.drops.report(node.endpoint.clock.tick, last=True)
        for session in node.endpoint.sessions():
            session.outbox.flush()
        await _until(node, lambda: not _busy(node), PART_FIRST_S)


def _part_with_clients(node: Node) -> None:
    node.records.drops.report(node.endpoint.clock.tick, last=True)
    node.endpoint.announce_leaving()
    for session in node.dispatcher.clients.values():
        session.outbox.flush()


def longest_move(node: Node) -> float:
    """The longest `handoff_timeout` of a type, in seconds: messages may wait here that long for a
    home. May be called from any thread."""
    regions = tuple(node.regions.values())
    return max((region.settings.handoff_timeout for region in regions), default=0.0)


def waits_for(node: Node) -> str:
    """Return why a node that leaves waits now. May be called from any thread: a number may be a
    moment old."""
    waits = list(node.phases.unfinished)
    match node.phases.current:
        case "" if not node.membership.stopped.done():
            waits.append("the present step of its start")
        case phase if phase == HAND_OFF:
            waits += _hand_off_waits(node)
        case phase if phase == LEAVE and not node.membership.stopped.done():
            clients = node.endpoint.clients
            waits += [f"{counted(clients, 'client')} to take another way"] if clients else []
            waits.append("the other members to know that this node leaves")
        case phase if phase == LEAVE:
            waits.append("clients, and messages under way")
    return " and ".join(waits) or "its callbacks and sockets to end"


def _hand_off_waits(node: Node) -> list[str]:
    """Return the shards that are still here, with a handler that keeps them."""
    waits: list[str] = []
    for name, region in list(node.regions.items()):
        if shards := len(region.host.shards):
            running = region.host.runner.running_handlers
            keepers = (running.running(eager) for eager in list(running.tasks.values()))
            keeper = next((handler for handler in keepers if handler is not None), None)
            why = f" ({keeper} runs)" if keeper is not None else ""
            waits.append(f"{counted(shards, 'shard')} of {name!r}{why}")
    return waits or ["messages without a home"]


async def _until(node: Node, condition: Callable[[], bool], seconds: float) -> None:
    """Wait for the condition, at most for `seconds`."""
    deadline = node.loop.time() + seconds
    while not condition() and node.loop.time() < deadline:
        await asyncio.sleep(POLL_S)


def _hosted(node: Node) -> str:
    """Return the number of shards here with its noun."""
    shards = sum(len(r.host.shards) for r in node.regions.values() if r.table is r)
    return counted(shards, "shard")


def _awaits_homes(node: Node) -> bool:
    """True if messages wait here for shards that another node can host."""
    buffered = any(region.router.region.buffered[0] for region in node.regions.values())
    return buffered and _others_host(node)


def _clients_need(node: Node) -> bool:
    """True if clients are connected, or their messages may still find a home."""
    return bool(node.endpoint.clients) or _awaits_homes(node)


def _others_host(node: Node) -> bool:
    """True if another member hosts shards."""
    return any(other != node.me for other in node.members.hosting())


def _hands_over(node: Node) -> bool:
    """True if a coordinator here has not ended: its successor may wait for it."""
    return any(singleton.ending for singleton in node.singletons.values())


def _busy(node: Node) -> bool:
    """True if clients are connected, or members have not acknowledged or answered messages."""
    if node.endpoint.clients:
        return True
    return any(
        session.lost is None and session.busy
        for session in node.endpoint.sessions()
        if session.tag in node.members
    )
