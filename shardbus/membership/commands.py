"""What an operator, or the application, asks of membership.

    Leave               joining to preparing -> leaving
    Down                anything             -> down, for one that is surely dead
    Remove              anything             -> removed, whether or not the cluster can agree on it
    Quarantine          it must start anew: final, and for the downing strategy to act on
    SetService          cordoned, draining or open, for whoever gives shards away
    PrepareForShutdown  up                   -> preparing, everybody; the leader does the rest
    YieldSeniority      this node becomes the youngest; its coordinators move to the next oldest
    RecordEpoch, SetMeta  facts for every node

Each is one step from a copy of the state to the next, or a refusal. Any member may be asked; what
it does spreads by gossip.

Source: S1.25, S1.61, S1.62, S3.34, S3.41; B.12, B.152, N.11.
"""

from __future__ import annotations

from typing import assert_never

from shardbus.ids import NodeId
from shardbus.membership import events as ev
from shardbus.membership.gossip import META_BYTES_MAX, META_MAX, META_NAME_MAX, Gossip
from shardbus.membership.member import WORKING, Status, age_order
from shardbus.membership.reachability import Flag

Order = (
    ev.Leave
    | ev.Down
    | ev.Remove
    | ev.Quarantine
    | ev.SetService
    | ev.PrepareForShutdown
    | ev.YieldSeniority
    | ev.RecordEpoch
    | ev.SetMeta
)
MAY_LEAVE = (Status.JOINING, Status.WEAKLY_UP, Status.UP, Status.PREPARING_FOR_SHUTDOWN)


def obey(gossip: Gossip, me: NodeId, order: Order, now: float) -> tuple[Gossip, str]:
    """The state after that order, and why not, if it is refused."""
    match order:
        case ev.PrepareForShutdown():
            return _prepare(gossip, me)
        case ev.YieldSeniority():
            return _yield(gossip, me), ""
        case ev.RecordEpoch(entity_type, epoch):
            if me not in gossip.members:
                return gossip, ""
            return gossip.with_epoch(me, entity_type, epoch), ""
        case ev.SetMeta(name, data):
            return _write(gossip, me, name, data)
        case ev.Quarantine(node):
            if node == me or node not in gossip.members:
                return gossip, ""
            return gossip.with_flag(me, node, Flag.QUARANTINED), ""
        case ev.Leave(node) | ev.Down(node) | ev.Remove(node) | ev.SetService(node):
            if node not in gossip.members:
                return gossip, f"{node} is no member"
            if isinstance(order, ev.SetService):
                return _serve(gossip, me, order), ""
            return _send_away(gossip, me, order, now)
        case _:
            assert_never(order)


def _send_away(
    gossip: Gossip, me: NodeId, order: ev.Leave | ev.Down | ev.Remove, now: float
) -> tuple[Gossip, str]:
    member = gossip.members[order.node]
    if isinstance(order, ev.Leave):
        if member.status not in MAY_LEAVE:
            return gossip, ""
        return gossip.with_members(me, member.moved(Status.LEAVING)), ""
    if isinstance(order, ev.Remove) and order.node == me:
        return gossip, "a node cannot remove itself"
    gossip = downed(gossip, me, (order.node,))
    if isinstance(order, ev.Remove):
        gossip = gossip.without_members(me, (order.node,), now)
    return gossip, ""


def downed(gossip: Gossip, me: NodeId, nodes: tuple[NodeId, ...]) -> Gossip:
    """With these members Down. The same object if they are, or are no members."""
    members = [gossip.members[n] for n in nodes if n in gossip.members]
    fresh = [m.moved(Status.DOWN) for m in members if m.status is not Status.DOWN]
    return gossip.with_members(me, *fresh) if fresh else gossip


def _serve(gossip: Gossip, me: NodeId, order: ev.SetService) -> Gossip:
    before = gossip.members[order.node]
    after = before.serving(order.service)
    return gossip if after is before else gossip.with_members(me, after)


def _yield(gossip: Gossip, me: NodeId) -> Gossip:
    """Make this node the youngest. The same object if it is not Up, or is the youngest already."""
    mine = gossip.members.get(me)
    working = [m for m in gossip.members.values() if m.status in WORKING]
    if mine is None or mine.status is not Status.UP or mine == max(working, key=age_order):
        return gossip
    number = max(m.up_number for m in gossip.members.values())
    return gossip.with_members(me, mine.yielding(number + 1))


def _prepare(gossip: Gossip, me: NodeId) -> tuple[Gossip, str]:
    up = [m for m in gossip.members.values() if m.status is Status.UP]
    if up:
        preparing = (m.moved(Status.PREPARING_FOR_SHUTDOWN) for m in up)
        return gossip.with_members(me, *preparing), ""
    if gossip.stopping:
        return gossip, ""
    return gossip, "no member is up"


def _write(gossip: Gossip, me: NodeId, name: str, data: bytes) -> tuple[Gossip, str]:
    known = gossip.meta
    if me not in gossip.members:
        return gossip, "this node is no member yet"
    if name not in known and len(known) >= META_MAX:
        return gossip, f"there are {META_MAX} names of meta already"
    if not 0 < len(name) <= META_NAME_MAX or len(data) > META_BYTES_MAX:
        return gossip, (
            f"meta {name[:40]!r} of {len(data)} bytes: a name has 1 to {META_NAME_MAX} characters, "
            f"its value at most {META_BYTES_MAX} bytes"
        )
    return gossip.with_meta(me, name, data), ""
