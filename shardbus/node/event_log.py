"""Events of the cluster and notes of machines, as sentences for the log and as JSON.

Source: docs/reference/http.md.
"""

from __future__ import annotations

import logging
import re

from shardbus.http.page import Json
from shardbus.ids import NodeId
from shardbus.membership import view
from shardbus.membership.claim_record import named
from shardbus.membership.downing.split import describe_decision
from shardbus.quantities import counted
from shardbus.sharding.events import Note

NOTEWORTHY = frozenset(
    {
        "epoch_claimed",
        "region_drained",
        "region_terminated",
        "register_refused",
        "rebalance",
        "handoff_overdue",
        "start_overdue",
        "superseded",
        "store_failed",
        "forged",
        "rows_dropped",
        "refused",
        "persist_failed",
        "succession",
        "lease_refused",
        "lease_kept",
        "state_read",
    }
)
"""Notes logged at INFO; the other notes are counted, and logged at DEBUG."""

ALARMING = frozenset(
    {
        "lease_lost",
        "state_set",
        "reminder_cancelled",
        "state_removed",
        "letters_replayed",
        "outbox_dropped",
        "outbox_retried",
        "message_sent",
        "too_few_shards",
        "too_many_shards",
        "hot_shard",
        "strategy_failed",
        "flush_given_up",
        "rows_dropped",
    }
)
"""Notes logged as WARNING: an operator should look into them."""


def level_of(note: Note) -> int:
    """The log level of a note."""
    if note.kind in ALARMING:
        return logging.WARNING
    return logging.INFO if note.kind in NOTEWORTHY else logging.DEBUG


def remark(note: Note) -> str:
    """A note in words."""
    if note.kind == "succession":
        return note.detail  # a sentence by itself
    count = f" {note.count}:" if note.kind == "rows_dropped" else ""
    return f"{note.kind.replace('_', ' ')}{count} {note.detail}".rstrip()


def note_fields(note: Note, entity_type: str, epoch: int) -> dict[str, object]:
    """The fields of a note's line. `epoch`: the highest that the region here has seen."""
    about = {"shard": note.shard, "entity_id": note.entity_id}
    return {
        "event": note.kind,
        "entity_type": entity_type,
        "epoch": note.epoch or epoch,
        **{name: value for name, value in about.items() if value},
    }


def event_name(event: type[view.DomainEvent]) -> str:
    """The name of an event of membership in the log: `member_up` for `MemberUp`."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", event.__name__).lower()


def event_fields(event: view.DomainEvent) -> dict[str, object]:
    """The fields of the line of an event of membership: its name, and the member or the leader that
    it concerns."""
    fields: dict[str, object] = {"event": event_name(type(event))}
    if node := concerned_by(event):
        fields["member"] = str(node)
    if isinstance(event, view.RoleLeaderChanged):
        fields["role"] = event.role
    return fields


def concerned_by(event: view.DomainEvent) -> NodeId | None:
    """The node that an event concerns; None if it is not one."""
    member = getattr(event, "member", None)
    node = member.node if member is not None else getattr(event, "node", None)
    return node or getattr(event, "leader", None)


def picture(now: view.MembershipView) -> Json:
    """The current membership as JSON, the first item of a stream of events."""
    return {
        "event": "snapshot",
        "leader": str(now.leader) if now.leader else None,
        "converged": now.converged,
        "members": [
            {
                "node": str(m.node),
                "status": m.status.value,
                "reachable": m.node not in now.unreachable,
                "roles": list(m.roles),
            }
            for m in now.members
        ],
    }


def fact(event: view.DomainEvent) -> Json:
    """One event as JSON: its name, the node that it concerns, and the sentence."""
    member = getattr(event, "member", None)
    node = member.node if member is not None else getattr(event, "node", None)
    return {
        "event": type(event).__name__,
        "node": str(node) if node else None,
        "text": sentence(event),
    }


def sentence(event: view.DomainEvent) -> str:
    """One event of membership as a sentence."""
    match event:
        case view.MemberJoined(member=m):
            return f"{m.node} joins"
        case view.MemberWeaklyUp(member=m):
            return f"{m.node} is weakly up"
        case view.MemberUp(member=m):
            return f"{m.node} is up"
        case view.MemberPreparingForShutdown(member=m):
            return f"{m.node} is preparing for the shutdown of the whole cluster"
        case view.MemberReadyForShutdown(member=m):
            return f"{m.node} is ready for the shutdown of the whole cluster"
        case view.MemberLeaving(member=m):
            return f"{m.node} is leaving"
        case view.MemberExiting(member=m):
            return f"{m.node} is exiting"
        case view.MemberDowned(member=m):
            return f"{m.node} is down"
        case view.MemberRemoved(member=m):
            return f"{m.node} is removed"
        case view.UnreachableMember(member=m, terminated=gone):
            return f"{m.node} {'is gone: its process ended' if gone else 'is unreachable'}"
        case view.QuarantinedMember(member=m):
            return f"{m.node} is quarantined: it acknowledges no message and must restart"
        case view.ServiceChanged(member=m):
            return f"{m.node} is {m.service.value}"
        case view.ReachableMember(member=m):
            return f"{m.node} is reachable again"
        case view.LeaderChanged(leader=node):
            return f"the leader is {node}" if node else "there is no leader"
        case view.RoleLeaderChanged(role=role, leader=node):
            return f"the leader of role {role!r} is {node or 'none'}"
        case view.ConvergenceChanged(converged=converged):
            return "the cluster has converged" if converged else "the cluster has not converged"
        case view.MetaChanged(name=name, data=data):
            return f"meta {name!r} is {counted(len(data), 'byte')} now"
        case view.SelfStarved(seconds=late):
            return f"this node was starved: its timer fired {late:.1f} s late"
        case view.NodeStarved(node=node, seconds=late):
            return f"{node} is starved: its timer fired {late:.1f} s late"
        case view.SlowHeartbeat(node=node, seconds=took):
            return f"{node} took {took:.1f} s to answer a heartbeat"
        case view.OtherClustersChanged(clusters=clusters):
            return _others(clusters)
        case view.DowningDecided(decision=decision):
            return f"downing: {describe_decision(decision)}"
        case view.HandlingSuspended(reason=reason):
            return f"suspended, because {reason}: no entity handles a message"
        case view.HandlingResumed(seconds=lasted):
            return f"resumed after {lasted:.1f} s: entities handle messages again"
        case view.RivalCluster(gone=True):
            return "this cluster has the store's claim again: no other cluster has it"
        case view.RivalCluster(addresses=addresses):
            return (
                f"another cluster writes this store: {named(addresses)}; it has the claim of this"
                " one: stop the nodes of one of the two"
            )
        case view.FoundingWaits(reason=reason):
            return f"this node {reason}"


def _others(clusters: tuple[view.OtherCluster, ...]) -> str:
    if not clusters:
        return "no seed is in another cluster any more"
    seeds = [
        f"{cluster.seed} ({cluster.reason or f'it is {cluster.node}, which is no member here'})"
        for cluster in clusters
    ]
    writers = [cluster.seed for cluster in clusters if cluster.writes]
    writes = f"; another cluster writes this store: {named(writers)}" if writers else ""
    which = "nodes" if writers else "seeds"
    return (
        f"ANOTHER CLUSTER of this name exists: these {which} are in it: {'; '.join(seeds)}{writes}."
        " The two never merge: stop the nodes of one, and start them with seeds of the other"
    )
