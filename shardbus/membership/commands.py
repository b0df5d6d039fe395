"""Commands of the operator and of the application.

    Leave               joining to preparing -> leaving
    Down                any status           -> down, for a member that is surely dead
    Remove              any status           -> removed, whether or not the cluster can converge
    Quarantine          a final flag: the member must restart, and the downing strategy acts on it
    SetService          cordoned, draining or open; the coordinators act on it
    PrepareForShutdown  up                   -> preparing, all members; the leader does the rest
    YieldSeniority      this node becomes the youngest; its coordinators move to the next oldest
    RecordEpochs        the epochs of coordinators, for all nodes
    SetMeta             bytes of the application, for all nodes

Each command is one step from a copy of the state to the next, or a refusal. Any member accepts it;
gossip spreads its effect.

Source: S1.25, S1.61, S1.62, S3.34, S3.41, B.12, B.152, N.11.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from shardbus.errors import ConfigError
from shardbus.ids import NodeId, check_text
from shardbus.membership import events as ev
from shardbus.membership.gossip import (
    EPOCHS_MAX,
    META_BYTES_MAX,
    META_MAX,
    META_NAME_MAX,
    VOTERS_META,
    Gossip,
)
from shardbus.membership.member import WORKING, Status, age_order
from shardbus.membership.reachability import Flag
from shardbus.quantities import counted

Command = (
    ev.Leave
    | ev.Down
    | ev.Remove
    | ev.Quarantine
    | ev.SetService
    | ev.PrepareForShutdown
    | ev.YieldSeniority
    | ev.RecordEpochs
    | ev.SetMeta
)
MAY_LEAVE = (Status.JOINING, Status.WEAKLY_UP, Status.UP, Status.PREPARING_FOR_SHUTDOWN)
"""A Leave has no effect on a member in any other status."""


def apply_command(gossip: Gossip, me: NodeId, command: Command, now: float) -> tuple[Gossip, str]:
    """Return the state after that command, and the reason if it is refused."""
    match command:
        case ev.PrepareForShutdown():
            return _prepare_for_shutdown(gossip, me)
        case ev.YieldSeniority():
            return _yield_seniority(gossip, me), ""
        case ev.RecordEpochs(epochs):
            return _record_epochs(gossip, me, epochs)
        case ev.SetMeta(name, data):
            return _set_meta(gossip, me, name, data)
        case ev.Quarantine(node):
            if node == me or node not in gossip.members:
                return gossip, ""
            return gossip.with_flag(me, node, Flag.QUARANTINED), ""
        case ev.Leave(node) | ev.Down(node) | ev.Remove(node) | ev.SetService(node):
            if node not in gossip.members:
                return gossip, f"{node} is no member"
            if isinstance(command, ev.SetService):
                return _set_service(gossip, me, command), ""
            return _remove_member(gossip, me, command, now)
        case _:
            assert_never(command)


def _remove_member(
    gossip: Gossip, me: NodeId, command: ev.Leave | ev.Down | ev.Remove, now: float
) -> tuple[Gossip, str]:
    member = gossip.members[command.node]
    if isinstance(command, ev.Leave):
        if member.status not in MAY_LEAVE:
            return gossip, ""
        return gossip.with_members(me, member.moved(Status.LEAVING)), ""
    if isinstance(command, ev.Remove) and command.node == me:
        return gossip, "a node cannot remove itself"
    gossip = downed(gossip, me, (command.node,))
    if isinstance(command, ev.Remove) or command.for_good:
        gossip = gossip.with_kept_down(me, command.node)
    if isinstance(command, ev.Remove):
        gossip = gossip.without_members(me, (command.node,), now)
    return gossip, ""


def downed(gossip: Gossip, me: NodeId, nodes: tuple[NodeId, ...]) -> Gossip:
    """Mark these members Down. Return the same object if all of them are Down or no members."""
    members = [gossip.members[n] for n in nodes if n in gossip.members]
    fresh = [m.moved(Status.DOWN) for m in members if m.status is not Status.DOWN]
    return gossip.with_members(me, *fresh) if fresh else gossip


def _set_service(gossip: Gossip, me: NodeId, command: ev.SetService) -> Gossip:
    before = gossip.members[command.node]
    after = before.serving(command.service)
    return gossip if after is before else gossip.with_members(me, after)


def _yield_seniority(gossip: Gossip, me: NodeId) -> Gossip:
    """Make this node the youngest. The same object if it is not Up, or is the youngest already."""
    mine = gossip.members.get(me)
    working = [m for m in gossip.members.values() if m.status in WORKING]
    if mine is None or mine.status is not Status.UP or mine == max(working, key=age_order):
        return gossip
    number = max(m.up_number for m in gossip.members.values())
    return gossip.with_members(me, mine.yielding(number + 1))


def _prepare_for_shutdown(gossip: Gossip, me: NodeId) -> tuple[Gossip, str]:
    up = [m for m in gossip.members.values() if m.status is Status.UP]
    if up:
        preparing = (m.moved(Status.PREPARING_FOR_SHUTDOWN) for m in up)
        return gossip.with_members(me, *preparing), ""
    if gossip.stopping:
        return gossip, ""
    return gossip, "no member is up"


def _record_epochs(gossip: Gossip, me: NodeId, epochs: Mapping[str, int]) -> tuple[Gossip, str]:
    """Record these epochs. A name that has none yet is refused once there are `EPOCHS_MAX`: the
    store has its epoch nevertheless."""
    if me not in gossip.members:
        return gossip, ""
    new = [name for name in epochs if name not in gossip.epochs]
    refused = new[max(EPOCHS_MAX - len(gossip.epochs), 0) :]
    recorded = {name: epoch for name, epoch in epochs.items() if name not in refused}
    refusal = f"{EPOCHS_MAX} entity types have had coordinators already" if refused else ""
    return gossip.with_epochs(me, recorded), refusal


def _set_meta(gossip: Gossip, me: NodeId, name: str, data: bytes) -> tuple[Gossip, str]:
    meta = gossip.meta
    try:
        name, data = check_meta(name, data)
    except ConfigError as error:
        return gossip, error.message
    if me not in gossip.members:
        return gossip, "this node is no member yet"
    if name not in meta and len(meta.keys() - {VOTERS_META}) >= META_MAX:
        return gossip, f"there are {META_MAX} names of meta already"
    return gossip.with_meta(me, name, data), ""


def check_meta(name: object, data: object) -> tuple[str, bytes]:
    """Return a name and its bytes if the gossip can carry them.

    Raises:
        ConfigError: one of them is of another type, not encodable, or too long.
    """
    text = check_text("the name of meta", name)
    if not isinstance(data, bytes):
        raise ConfigError(
            f"meta {text[:40]!r} must be bytes, not {type(data).__name__}",
            hint="encode it: text.encode(), or json.dumps(value).encode()",
        )
    if text == VOTERS_META:
        raise ConfigError(f"meta {text!r} is the cluster's own")
    if not 0 < len(text) <= META_NAME_MAX or len(data) > META_BYTES_MAX:
        raise ConfigError(
            f"meta {text[:40]!r} of {counted(len(data), 'byte')}: a name has 1 to {META_NAME_MAX} "
            f"characters, its value at most {META_BYTES_MAX} bytes"
        )
    return text, bytes(data)
