"""Pages about the cluster: its members, its types, how its nodes agree, and how busy they are."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from shardbus.admin.administration import Administration, text_of
from shardbus.admin.questions import question
from shardbus.admin.voters import voters_row
from shardbus.errors import Refused
from shardbus.http.page import Json, page
from shardbus.ids import NodeId
from shardbus.membership import events
from shardbus.membership.member import Member
from shardbus.membership.view import MembershipView
from shardbus.membership.vitals import Survey, Vitals
from shardbus.routing.paths import ancestors
from shardbus.shells.region import RegionShell
from shardbus.store.protocol import problems_of, replicas_of
from shardbus.store.urls import default_url, mask_url


@page("GET", "/v1/cluster")
async def cluster(admin: Administration) -> Json:
    """The membership as this node sees it, and the coordinators.

    `cluster`, `self`, `status`, `status_for` (for how many seconds this node has had it), `leader`,
    `oldest`, `converged`, `converged_for` (for how many seconds the members have agreed, or not),
    `stopping` (the phase of its end in which this node is, or null), `members`, `unreachable`,
    `suspended` (why this node's entities handle no message, or null), `coordinators` (type to
    `node` and `epoch`), `other_clusters` (seeds of this node that are in another cluster of its
    name, each with `seed`, `node` or null, and `reason` if that cluster would refuse this node),
    `rival` (which other cluster writes the store of this one, as text, or null), `voters` (the
    voters about a split where the store is inside the cluster: `count`, `replicas` or `members`,
    `why` it is the members, `ring`, its `replicas`, each with `address` and `nodes`, the number of
    those `without_node`, and `changing`, true while the voters change; null with another store, or
    where the settings let no replica vote).
    """
    node, view = admin.node, admin.node.view
    oldest = view.oldest() if view is not None else None
    return {
        "cluster": node.membership.cluster_name,
        "self": str(node.me),
        "status": admin.status,
        "status_for": admin.status_for(node.me),
        "leader": str(view.leader) if view is not None and view.leader else None,
        "oldest": str(oldest.node) if oldest is not None else None,
        "converged": view.converged if view is not None else False,
        "converged_for": round(node.loop.time() - node.members.ages.converged_since, 3),
        "suspended": node.gate.describe() or None,
        "stopping": node.phases.current or None,
        "members": len(view.members) if view is not None else 0,
        "unreachable": [str(n) for n in view.unreachable] if view is not None else [],
        "coordinators": {
            name: {"node": str(region.coordinator), "epoch": region.router.region.epoch}
            for name, region in node.regions.items()
            if region.coordinator is not None
        },
        "other_clusters": [
            {"seed": str(other.seed), "node": text_of(other.node), "reason": other.reason}
            for other in node.membership.requests.other_clusters
        ],
        "rival": node.membership.requests.rival or None,
        "voters": voters_row(node.settings, view),
    }


@page("GET", "/v1/store")
async def store(admin: Administration) -> Json:
    """The state store, as this node reaches it.

    `url` (without secrets), `silent_ago` (seconds since it last gave no answer, or null),
    `silent_because`, `problems` (the faults of its settings or replicas, as texts), `replicas` (of
    `cluster://`, each with `address`, `serves`, `disk` or null, `why` it does not serve, `member`,
    false for one outside of the ring, `spare`, true for one that waits to come into the ring,
    `zone`, and `repairs`, numbers of what it got from others; empty for other stores).
    """
    node = admin.node
    return {
        "url": mask_url(node.settings.store.url or default_url(node.membership.cluster_name)),
        "silent_ago": node.states.silent_ago,
        "silent_because": node.states.silent_because,
        "problems": list(problems_of(node.store)),
        "replicas": list(replicas_of(node.store)),
    }


@page("GET", "/v1/nodes")
async def nodes(admin: Administration) -> Json:
    """Every member with its shards and entities.

    `nodes`, each with `node`, `address`, `http`, `status`, `status_for` (seconds, as the node that
    answers has seen it), `reachable`, `answered`, `suspended` (why its entities handle no message,
    or null), `roles`, `shards` and `entities` (type to count), `state_bytes` (type to the stored
    size of the states in memory), `version`, `zone` (`node.zone`, or empty), `service` (`open`,
    `cordoned`, `draining`), `oldest`, `leader`. A node that does not answer within
    `sharding.shard_region_query_timeout` (3 s) has empty counts, and its suspension is unknown:
    `answered` is false.
    """
    view = admin.node.view
    if view is None:
        return {"nodes": []}
    ask_all = admin.node.rpc.ask_all
    stats, suspended, sizes = await asyncio.gather(
        ask_all("stats"), ask_all("suspension"), ask_all("state_bytes")
    )
    return {
        "nodes": [
            member_row(admin, m, stats.get(m.node), suspended.get(m.node), view)
            | {"state_bytes": sizes.get(m.node, {})}
            for m in view.members
        ]
    }


def member_row(
    admin: Administration, member: Member, stats: Any, suspended: str | None, view: MembershipView
) -> Json:
    """Return a member with its shards; `stats`: its answer, or None without one."""
    hosted = stats or {}
    oldest = view.oldest()
    return {
        "node": str(member.node),
        "address": str(member.node.address),
        "http": member.http,
        "status": member.status.value,
        "status_for": admin.status_for(member.node),
        "reachable": member.node not in view.unreachable,
        "answered": stats is not None,
        "suspended": suspended or None,
        "roles": list(member.roles),
        "shards": {name: len(shards) for name, shards in hosted.items()},
        "entities": {name: sum(shards.values()) for name, shards in hosted.items()},
        "version": member.version,
        "zone": member.zone,
        "service": member.service.value,
        "oldest": oldest is not None and member.node == oldest.node,
        "leader": member.node == view.leader,
    }


@page("GET", "/v1/types")
async def types(admin: Administration) -> Json:
    """The entity types of this node's application.

    `types`, each with `type`, `shards`, `layout`, `role`, `coordinator_role`, `remember`,
    `handoff`, `hosted_here`, `state` (true if its entities have one), `queue` (true if they are
    queues of work), `coordinator`,
    `active_entity_limit` (0 is none), `entities_here` and `state_bytes_here` (stored size of their
    states, null without state), all of the node that answers.
    """
    rows = [
        {
            "type": name,
            "shards": region.entity_type.interface.shards,
            "layout": region.entity_type.interface.layout,
            "instances": instances_of(region),
            "router": region.entity_type.interface.router or None,
            "within": [above.name for above in ancestors(region.entity_type.interface)],
            "role": region.settings.role,
            "coordinator_role": region.coordinator_role,
            "remember": region.settings.remember,
            "handoff": region.settings.handoff,
            "state": region.entity_type.has_state,
            "queue": region.entity_type.is_queue,
            "hosted_here": region.hosts,
            "coordinator": text_of(region.coordinator),
            "active_entity_limit": region.host.passivator.limit,
            "entities_here": region.host.entities,
            "state_bytes_here": sizes.total if (sizes := region.host.saver.sizes) else None,
        }
        for name, region in admin.node.regions.items()
    ]
    return {"types": rows}


def instances_of(region: RegionShell) -> int | None:
    """Return this node's number of instances of a type; None if it has none."""
    return None if region.router.rows is None else region.router.rows.count


@page("GET", "/v1/gossip")
async def gossip(admin: Administration) -> Json:
    """Which member has seen which version of the membership, and which members prevent convergence.

    `node`, `version` (a short name; equal names are equal versions), `seen`, `waiting_for`,
    `versions` (every other member to `same`, `older`, `newer`, `concurrent` or `unknown`, by the
    last exchange with it), `unreachable` (each with `observer`, `subject`, and `is`: `unreachable`,
    `quarantined` or `terminated`), `tombstones`, `phi` (watched node to suspicion), `meta`. At most
    a second old.
    """
    seen = admin.node.cluster.overview
    return {
        "node": str(admin.node.me),
        "version": seen.version,
        "seen": [str(n) for n in seen.seen],
        "waiting_for": [str(n) for n in seen.waiting_for],
        "versions": {str(n): word for n, word in seen.versions.items()},
        "unreachable": [
            {"observer": str(observer), "subject": str(subject), "is": flag.name.lower()}
            for observer, subject, flag in seen.records
        ],
        "tombstones": seen.tombstones,
        "phi": {str(n): round(phi, 3) for n, phi in seen.phis.items()},
        "meta": {
            name: data.decode(errors="replace")
            for name, data in admin.node.subscriptions.view.meta.items()
        },
    }


async def ask_loads(admin: Administration) -> Survey:
    """Ask a few members how busy the nodes are (`membership.vitals`)."""
    survey = Survey(admin.node.rpc.members(), Random())
    while chosen := survey.next_look():
        questions = (admin.node.rpc.ask(node, "vitals") for node in chosen)
        answers = await asyncio.gather(*questions, return_exceptions=True)
        survey.record(_vitals_of(answer) for answer in answers if isinstance(answer, list))
    return survey


def _vitals_of(answer: list[Any]) -> dict[NodeId, tuple[Vitals, float]]:
    """The answer of a node to `vitals`."""
    return {NodeId.parse(name): (Vitals(*values), age) for name, values, age in answer}


@page("POST", "/v1/cluster/join")
async def join(admin: Administration, seed: tuple[str, ...]) -> Json:
    """Make a waiting node join (`node.join = manual`), by `?seed=HOST:PORT`, or found a cluster."""
    if admin.node.membership.joins.began:
        raise Refused("this node has joined already", hint="node.join = manual lets it wait")
    admin.node.membership.joins.by(seed)
    return {"node": str(admin.node.me), "joining": True, "seeds": list(seed)}


@page("POST", "/v1/cluster/shutdown")
async def shut_down(admin: Administration) -> Json:
    """Stop the whole cluster; every node ends where it is, with exit code 0."""
    if not admin.node.members.is_up:
        raise Refused(f"this node is {admin.status}: ask one that is up")
    admin.node.cluster.post(events.PrepareForShutdown())
    return {"cluster": admin.node.membership.cluster_name, "stopping": True}


# ---- answers of this node


@question("stats")
def answer_stats(admin: Administration) -> dict[str, dict[str, int]]:
    """Entity types to their shards here, each with its number of entities in memory."""
    return {
        name: {shard: hosted.live for shard, hosted in region.host.shards.items()}
        for name, region in admin.node.regions.items()
    }


@question("state_bytes")
def answer_state_bytes(admin: Administration) -> dict[str, int]:
    """Entity types with state to the bytes of the states of their entities in memory here."""
    return {
        name: region.host.saver.sizes.total
        for name, region in admin.node.regions.items()
        if region.host.saver.sizes is not None
    }


@question("suspension")
def answer_suspension(admin: Administration) -> str:
    """Why no entity of this node handles messages; empty if they do."""
    return admin.node.gate.describe()


@question("vitals")
def answer_vitals(admin: Administration) -> list[list[Any]]:
    """How busy this node is, and the nodes that it watches: for each its name, its vitals, and
    their age in seconds."""
    watching = admin.node.membership.runner
    by_node = dict(watching.overview.vitals) if watching is not None else {}
    by_node[admin.node.me] = (admin.node.reports.vitals.vitals, 0.0)
    return [[str(node), list(vitals), age] for node, (vitals, age) in by_node.items()]
