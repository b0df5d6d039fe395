"""The page of the reports that `shardbus doctor` compares between nodes: the shards that run there,
the expected coordinators, the lag of the loop, the clocks, the messages that wait, and the settings
that differ from their defaults. Here nothing is judged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any

from shardbus.admin.administration import Administration
from shardbus.admin.build_versions import build_versions
from shardbus.admin.own_replica import replica_zones, replicas_behind
from shardbus.admin.pages.handlers import handler_name
from shardbus.admin.questions import question
from shardbus.admin.queues import queue_sizes
from shardbus.config.settings import ShardingSettings
from shardbus.errors import ShardBusError, StoreError, StoreUnavailable
from shardbus.http.page import Json, page
from shardbus.ids import NodeId
from shardbus.membership.member import FEATURES
from shardbus.membership.messages import OLDEST_PROTOCOL, PROTOCOL
from shardbus.node.node import Node
from shardbus.sharding.intents import split_intents
from shardbus.shells.region import RegionShell
from shardbus.store.protocol import clock_offset_of, problems_of, value_conflicts_of
from shardbus.store.urls import default_url, mask_url
from shardbus.transport.descriptors import descriptors_limit, in_use
from shardbus.version import VERSION

STORE_WITHIN_S = 3.5
"""For the store to answer a checkup."""
FULLEST = 3
"""Entities with the longest mailboxes, in a checkup."""
STUCK_MAX = 1000
"""Durable mailboxes whose first message has failed that a checkup counts."""
FAILING_MAX = 20
"""Methods of a type that failed, in a checkup."""
FAILED_S = 600.0
"""Seconds for which a failure is in a checkup."""
COMPARED = ("cluster", "sharding")
"""Sections of the settings in which the nodes of a cluster should agree."""


@page("GET", "/v1/checkup")
async def checkup(admin: Administration) -> Json:
    """The reports of every member and of the store, from which findings are made.

    `node`, `time` (`asked` and `answered`, of this node's clock), `store` (`answers`, `error`, and
    `tables`: type to `epoch`, `shards`, `dropped` rows), `members`, each with `node`, `answered`,
    `build`, `version`, `time`, `lag`, `store` (its URL), `store_silent_ago` (seconds, or null),
    `settings` (values in sections cluster and sharding that are not at their defaults) and `types`
    (type to `coordinator`, `epoch`, `registered`, `buffered`, `layout`, `shards`: those that run
    there, with their fences, `deaf`: up to ten entities there that are busy without a task,
    `strategy`: if the coordinator is there, the methods of the type's allocation strategy that
    fail, each with its fault, `unreadable`: the last ten entities whose stored state cannot be
    read there, and why, and `poison`: the last ten deliveries of ten minutes that were skipped
    there: seconds since, entity, method, producer).
    """
    node, began = admin.node, time.time()
    members = node.rpc.members()
    answers, store = await asyncio.gather(node.rpc.ask_all("checkup"), _stored(admin))
    if not members:  # before it is a member, a node has only itself
        members, answers = [node.me], {node.me: await node.rpc.ask(node.me, "checkup")}
    rows = [{"node": str(m), "answered": m in answers, **answers.get(m, {})} for m in members]
    return {
        "node": str(node.me),
        "time": {"asked": began, "answered": time.time()},
        "members": rows,
        "store": store,
    }


async def _stored(admin: Administration) -> dict[str, Any]:
    """Whether this node's store answers, and a summary of each table in it."""
    tables: dict[str, Any] = {}
    try:
        async with asyncio.timeout(STORE_WITHIN_S):
            for name in admin.tables:
                tables[name] = await _stored_table(admin, name)
    except (ShardBusError, TimeoutError) as e:
        error = str(e) or f"no answer within {STORE_WITHIN_S:g} s"
        return {"answers": False, "error": error, "tables": tables}
    return {"answers": True, "error": "", "tables": tables}


async def _stored_table(admin: Administration, name: str) -> dict[str, Any] | None:
    """A summary of a stored table, or why it cannot be read."""
    try:
        table = await admin.node.store.load_table(name)
    except StoreUnavailable:
        raise
    except StoreError as e:
        return {"damaged": e.message}
    if table is None:
        return None
    dropped = list(table.dropped)
    homes, _ = split_intents(table.homes)
    return {"epoch": table.epoch, "shards": len(homes), "dropped": dropped}


# ---- answers of this node


@question("checkup")
def answer_checkup(admin: Administration) -> dict[str, Any]:
    """This node's state, for comparison with other nodes' states."""
    node, now = admin.node, admin.node.loop.time()
    types = {}
    for name, shell in node.regions.items():
        region = shell.router.region
        types[name] = {
            "coordinator": str(shell.coordinator) if shell.coordinator is not None else None,
            "coordinator_for": now - shell.table.coordinator_since,
            "epoch": region.epoch,
            "registered": region.registered,
            "buffered": region.buffered[0],
            "buffered_for": now - (shell.table.router.wanted_since or now),
            "mailboxes": _mailboxes(shell),
            "hot": shell.sampling.hot_spots.row(),
            "layout": shell.entity_type.interface.layout,
            "shards": {shard: hosted.fence for shard, hosted in shell.host.shards.items()},
            "deaf": shell.host.deaf.named(),
            "strategy": _strategy_faults(admin, name),
            "failing": _failing(shell, now),
            "poison": _poison(shell),
            **_failed_starts(shell, now),
        }
    url = node.settings.store.url or default_url(node.membership.cluster_name)
    return {
        "build": VERSION,
        "versions": build_versions(),
        "version": node.settings.node.version,
        "time": time.time(),
        "lag": node.membership.lag,
        "vitals": node.reports.vitals.vitals._asdict(),
        "descriptors": [in_use(), descriptors_limit()],
        "protocol": [OLDEST_PROTOCOL, PROTOCOL],
        "features": list(FEATURES),
        "suspended": node.gate.describe(),
        "rival": node.membership.requests.rival,
        "store": mask_url(url),
        "store_identity": node.store_identity or "",
        "store_silent_ago": node.states.silent_ago,
        "store_silent_because": node.states.silent_because,
        "store_problems": list(problems_of(node.store)),
        "replicas_behind": replicas_behind(node),
        "replica_zones": replica_zones(node),
        "value_conflicts": dict(value_conflicts_of(node.store)),
        "store_clock": clock_offset_of(node.store),
        "saves": list(node.states.backlog),
        "reminders": _overdue_reminders(node),
        "queues": {name: list(sizes) for name, sizes in queue_sizes(node) if sizes.aside},
        "projections": _projections_behind(node),
        "mailboxes_stuck": _stuck_mailboxes(node),
        "dropped": list(node.records.recent_drops.lately()),
        "settings": dict(_changed_settings(node)),
        "types": types,
    }


def _strategy_faults(admin: Administration, name: str) -> list[list[str]]:
    """The methods of the type's allocation strategy that fail, and how, if its coordinator is
    here."""
    coordinator = admin.ruling(name)
    if coordinator is None or name not in admin.node.singletons:
        return []
    return [list(row) for row in coordinator.rebalancing.faults.shown(admin.node.loop.time())]


def _mailboxes(shell: RegionShell) -> dict[str, Any]:
    """The messages that wait in the mailboxes of a type, their bound, and how many senders wait for
    room."""
    limits = shell.host.runner.mailbox_limits
    return {
        "waiting": limits.waiting,
        "fullest": [list(row) for row in limits.fullest(FULLEST)],
        "limit": shell.settings.mailbox,
        "paused": limits.paused,
    }


def _failing(shell: RegionShell, now: float) -> list[dict[str, Any]]:
    """The methods of a type that failed lately here, the last one first, with their last
    exceptions."""
    methods = reversed(shell.host.counts.failed.methods.items())
    return [
        {
            "method": handler_name(method),
            "count": failures.count,
            "last": [[now - failure.at, *failure[1:]] for failure in failures.last],
        }
        for method, failures in islice(methods, FAILING_MAX)
        if now - failures.last[-1].at <= FAILED_S
    ]


def _poison(shell: RegionShell) -> list[list[Any]]:
    """The last deliveries to entities here that were skipped as poison: the seconds since, the
    entity, the method, and the producer."""
    now, poison = shell.host.wall_clock(), shell.host.deliveries.poison
    return [[now - at, *rest] for at, *rest in poison if now - at <= FAILED_S]


def _failed_starts(shell: RegionShell, now: float) -> dict[str, Any]:
    """The entities that live here and did not start: those whose stored state cannot be read, and
    the others, with the seconds since then, the number of attempts, and the error."""
    unreadable, failed = {}, {}
    for entity_id, start in shell.host.counts.failed.starts.items():
        if shell.router.shard_of(entity_id) not in shell.host.shards:
            continue
        if start.unreadable:
            unreadable[entity_id] = start.error
        elif now - start.at <= FAILED_S:
            failed[entity_id] = [now - start.at, start.times, start.error]
    return {"unreadable": unreadable, "failed_starts": failed}


def _overdue_reminders(node: Node) -> dict[str, list[float]]:
    """Return, of each type that sets reminders, how many entities here have one that is due, and
    for how many seconds the first has been."""
    hosts = {name: region.host.runner.reminding for name, region in node.regions.items()}
    return {name: list(host.overdue()) for name, host in hosts.items() if host is not None}


def _projections_behind(node: Node) -> dict[str, list[float]]:
    """Return, of each projection, how many entities here stand at an event that has failed, and for
    how many seconds the first that is behind has been so."""
    parts = {name: region.host.runner.projecting for name, region in node.regions.items()}
    return {
        name: [projecting.parts.stopped, projecting.lag]
        for name, projecting in parts.items()
        if projecting is not None
    }


def _stuck_mailboxes(node: Node) -> dict[str, list[Any]]:
    """Return, of each type with a durable mailbox whose first message has failed, how many there
    are, the entity of the oldest one, and for how many seconds that message has waited."""
    rows: dict[str, list[Any]] = {}
    for name, region in node.regions.items():
        mailboxes = region.host.deliveries.mailboxes
        stuck = [] if mailboxes is None else mailboxes.stuck(STUCK_MAX)
        if stuck and stuck[0][1].stored is not None:
            age = region.host.wall_clock() - stuck[0][1].stored.at / 1000
            rows[name] = [len(stuck), stuck[0][0], max(0.0, age)]
    return rows


def _changed_settings(node: Node) -> Iterator[tuple[str, str]]:
    """The settings that differ from their defaults, as texts."""
    for section in COMPARED:
        value = getattr(node.settings, section)
        yield from _differences(section, value, type(value)())
    for name, region in node.regions.items():
        yield from _differences(f"sharding.types.{name}", region.settings, ShardingSettings())


def _differences(key: str, value: Any, default: Any) -> Iterator[tuple[str, str]]:
    for field in fields(value):
        here, usual = getattr(value, field.name), getattr(default, field.name)
        if is_dataclass(here):
            yield from _differences(f"{key}.{field.name}", here, usual)
        elif here != usual and field.name != "types":
            yield f"{key}.{field.name}", str(here)


@question("losses")
def answer_losses(admin: Administration) -> list[list[Any]]:
    """The nodes that were lost, as this node has seen it, oldest first: the node, seconds
    since then, why this node decided so, and how many of its shards each coordinator here has
    freed and has given a new home."""
    now = admin.node.loop.time()
    return [
        [str(lost.node), now - lost.at, lost.why, _freed(admin, lost.node)]
        for lost in admin.node.records.lost_nodes
    ]


def _freed(admin: Administration, node: NodeId) -> dict[str, list[int]]:
    freed_by_type = {}
    for name in admin.node.singletons:
        coordinator = admin.ruling(name)
        freed = coordinator.history.freed(node) if coordinator is not None else (0, 0)
        if freed[0]:
            freed_by_type[name] = list(freed)
    return freed_by_type
