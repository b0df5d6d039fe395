"""A node's pages for operators: `http.api.NodeApi`, answered from the node's own state and by
questions to the nodes that know more (`answers`).

Source: docs/reference/http.md; S2.82, S2.83.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from heapq import nlargest
from operator import itemgetter
from random import Random
from typing import Any

from shardbus.admin.answers import NodeAnswers
from shardbus.admin.dead_letters import LetterFilter, LetterPages
from shardbus.admin.diagnosis import Picture
from shardbus.admin.entity_watch import of_plain, to_plain
from shardbus.admin.examination import Examination, Losses
from shardbus.admin.metrics import render
from shardbus.admin.overview import ClusterOverview
from shardbus.admin.services import AdminServices
from shardbus.admin.setting_rows import rows_of
from shardbus.admin.shard_control import ShardControl, address_of, agreed
from shardbus.admin.shared_answer import SharedAnswer
from shardbus.admin.slowness import EntityPlace, causes
from shardbus.admin.task_stacks import task_stacks
from shardbus.errors import (
    ConfigError,
    Refused,
    RequestError,
    ShardBusError,
    StoreError,
    StoreUnavailable,
    Unhandled,
)
from shardbus.http.api import Check, Checks, Json
from shardbus.ids import Address, NodeId
from shardbus.membership import events as cluster
from shardbus.membership.member import Member, Service, Status
from shardbus.membership.view import MembershipView
from shardbus.membership.vitals import Survey, Vitals
from shardbus.node.event_log import fact, picture
from shardbus.routing.instance_policies import Choice
from shardbus.routing.instance_routes import wire_id
from shardbus.routing.instance_sender import InstanceSender
from shardbus.routing.paths import ancestors
from shardbus.routing.refs import start_entity
from shardbus.sharding.events import Note
from shardbus.sharding.instances import INSTANCE_MARK, split_row
from shardbus.sharding.intents import split_intents
from shardbus.sharding.messages import Home
from shardbus.sharding.shard_load import MESSAGES, UNITS
from shardbus.shells.region import RegionShell, check_own_table, region_of
from shardbus.transport.permissions import LIST_STORED
from shardbus.wire.plain_json import from_json
from shardbus.wire.schema import encode_value
from shardbus.wire.shown_state import as_text, shown
from shardbus.wire.stored_state import StateCodec

STALLED_S = 10.0
"""A node whose loop is later than this is not alive."""
STORE_FAILED_S = 60.0
"""Seconds for which readiness shows a failure of the store."""
STORE_WITHIN_S = 3.5
"""For the store to answer a checkup."""
HOTTEST = 10
"""Shards with the most load, on the page of loads."""
ENTITIES_MAX = 1000
"""Entities on one page."""
HOME_WITHIN_MS = 1500
"""For a shard to get a home, before a state in it is changed."""
STATE_SHOWN_MAX = 256 * 1024
"""Bytes of the value of a stored state on a page, before it is JSON."""
TASKS_FRESH_S = 1.0
"""For which readers share the list of tasks."""
PACE = ("paused", "held", "moving", "moves_at_a_time")
_STATES = {
    "begin": "handing_off",
    "stopping": "handing_off",
    "handing_off": "handing_off",
    "starting": "starting",
    "unallocated": "unallocated",
}


def _vitals_of(answer: list[Any]) -> dict[NodeId, tuple[Vitals, float]]:
    """The answer of a node to `vitals`."""
    return {NodeId.parse(name): (Vitals(*values), age) for name, values, age in answer}


def _load_unit(table: Mapping[str, Any]) -> str:
    """The unit of a table's loads; the coordinator of an older version does not name it."""
    return str(table.get("load_unit") or UNITS[MESSAGES])


def administer(
    node: AdminServices,
    origins: Mapping[str, str] | None = None,
    log: Callable[[], list[str]] | None = None,
) -> AdminPages:
    """Let the node answer other nodes' questions; returns its pages. `origins`: who set each
    setting, by its key (`config.loading.origins`). `log` returns the last lines of the log."""
    NodeAnswers(node).register()
    return AdminPages(node, origins, log)


def _by_shard(row: Mapping[str, Any]) -> tuple[int, str]:
    """A key that sorts numbers as numbers."""
    return len(row["shard"]), row["shard"]


def _instances_of(region: RegionShell) -> int | None:
    """The number of instances of a type as this node knows it; None if the type has none."""
    return None if region.router.rows is None else region.router.rows.count


def _gossip_of(region: RegionShell) -> Json | None:
    """The table of a type as this node has it by gossip; None if none travels."""
    gossip = region.table.router.region.table_gossip
    if gossip.state is None:
        return None
    epoch, version = gossip.version
    return {
        "epoch": epoch,
        "version": version,
        "behind": [str(node) for node in gossip.behind(gossip.version)],
        "pending": [
            {
                "shard": change.shard,
                "from": change.source and str(change.source),
                "to": change.target and str(change.target),
                "status": change.status,
            }
            for change in gossip.state.changes
        ],
    }


def _shard_of(region: RegionShell, entity_id: str) -> str | None:
    """The shard of a stored id; None for one that no entity of the type has."""
    try:
        return region.router.shard_of(entity_id)
    except ConfigError:
        return None


def _check_shard(region: RegionShell, shard: str) -> None:
    if not region.router.has_shard(shard):
        raise ConfigError(f"{region.name!r} has no shard {shard!r}")


def _shard_row(
    shard: str,
    node: str,
    fence: int,
    state: str,
    load: float | None = None,
    age: float | None = None,
    *_: object,
) -> dict[str, Any]:
    """A row of a coordinator's table as a page has it; `age`: for how long the shard has been
    neither running nor at rest. A coordinator of an older version sends less."""
    return {
        "shard": shard,
        "node": node,
        "state": _STATES.get(state, "running"),
        "age": round(age, 3) if age is not None else None,
        "fence": fence,
        "load": round(load, 2) if load is not None else None,
    }


def _moves(region: RegionShell, shard: str) -> bool:
    """True if messages for a shard wait here until it has moved."""
    route = region.router.routes.get(shard)
    return route is not None and route.out is None


def _key(answer: Json) -> str:
    """The id under which an entity's messages arrive: with the number of its instance, if it has
    one."""
    entity_id, instance = str(answer["id"]), answer.get("instance")
    if not isinstance(instance, int) or INSTANCE_MARK in entity_id:
        return entity_id
    return wire_id(entity_id, instance)


def _ago(now: datetime, age: float) -> str:
    return (now - timedelta(seconds=age)).isoformat(timespec="milliseconds")


def _changes(answer: Mapping[str, Any] | None) -> list[Json] | None:
    """The changes of a shard, oldest first; None without an answer of the coordinator."""
    if answer is None:
        return None
    now = datetime.now(UTC)
    return [
        {
            "at": _ago(now, age),
            "from": source,
            "to": target,
            "why": why,
            "epoch": epoch,
            "fence": fence or None,
            "seconds": round(seconds, 3),
        }
        for age, source, target, why, epoch, fence, seconds in answer["changes"]
    ]


def _limits(region: RegionShell, asked: list[NodeId], answers: Mapping[NodeId, Any]) -> Json:
    """The answers to `limit` as a page; nodes without an answer are `silent`."""
    rows = [
        {"node": str(node), "limit": row[0], "entities": row[1], "evicted": row[2]}
        for node, row in answers.items()
        if row is not None
    ]
    return {
        "type": region.name,
        "strategy": region.settings.passivation_strategy,
        "nodes": rows,
        "silent": [str(node) for node in asked if node not in answers],
    }


class AdminPages:
    """The pages of one node; see `NodeApi` for what each method returns."""

    def __init__(
        self,
        node: AdminServices,
        origins: Mapping[str, str] | None = None,
        log: Callable[[], list[str]] | None = None,
    ) -> None:
        self._node, self._origins, self._log = node, origins, log
        self._shard_control = ShardControl(node.regions, node.rpc)
        self._overview = ClusterOverview(node, self._facts)
        self._letters = LetterPages(node)
        self._tasks = SharedAnswer(self._list_tasks, TASKS_FRESH_S)
        self._examination = Examination(self._look, lambda: node.loop.time())
        self._was_ready = False

    @property
    def cluster_name(self) -> str:
        return self._node.cluster_name

    # ---- the cluster

    async def cluster(self) -> Json:
        """Membership as this node sees it, and the nodes of the coordinators."""
        node, view = self._node, self._node.view
        coordinators: dict[str, object] = {}
        for name, region in node.regions.items():
            if region.coordinator is not None:
                epoch = region.router.region.epoch
                coordinators[name] = {"node": str(region.coordinator), "epoch": epoch}
        oldest = view.oldest() if view is not None else None
        return {
            "cluster": node.cluster_name,
            "self": str(node.me),
            "status": self._status(),
            "status_for": round(node.loop.time() - node.ages.status_since(node.me), 3),
            "leader": str(view.leader) if view is not None and view.leader else None,
            "oldest": str(oldest.node) if oldest is not None else None,
            "converged": view.converged if view is not None else False,
            "converged_for": round(node.loop.time() - node.ages.converged_since, 3),
            "suspended": node.gate.describe() or None,
            "stopping": node.phases.current or None,
            "members": len(view.members) if view is not None else 0,
            "unreachable": [str(n) for n in view.unreachable] if view is not None else [],
            "coordinators": coordinators,
            "other_clusters": [
                {
                    "seed": str(other.seed),
                    "node": str(other.node) if other.node is not None else None,
                    "reason": other.reason,
                }
                for other in node.membership_store.other_clusters
            ],
            "rival": node.membership_store.rival or None,
        }

    def _status(self) -> str:
        status = self._node.view.status if self._node.view is not None else None
        return status.value if status is not None else "joining"

    async def nodes(self) -> Json:
        """Every member with what it hosts; empty counts for members that do not answer in time."""
        view = self._node.view
        if view is None:
            return {"nodes": []}
        ask_all = self._node.rpc.ask_all
        stats, suspended, sizes = await asyncio.gather(
            ask_all("stats"), ask_all("suspension"), ask_all("state_bytes")
        )
        return {
            "nodes": [
                self._row(m, stats.get(m.node), suspended.get(m.node), view)
                | {"state_bytes": sizes.get(m.node, {})}
                for m in view.members
            ]
        }

    def _row(self, member: Member, stats: Any, suspended: str | None, view: Any) -> Json:
        oldest, answered = view.oldest(), stats is not None
        stats = stats or {}
        return {
            "node": str(member.node),
            "address": str(member.node.address),
            "http": member.http,
            "status": member.status.value,
            "status_for": round(self._status_for(member.node), 3),
            "reachable": member.node not in view.unreachable,
            "answered": answered,
            "suspended": suspended or None,
            "roles": list(member.roles),
            "shards": {name: len(shards) for name, shards in stats.items()},
            "entities": {name: sum(shards.values()) for name, shards in stats.items()},
            "version": member.version,
            "zone": member.zone,
            "service": member.service.value,
            "oldest": oldest is not None and member.node == oldest.node,
            "leader": member.node == view.leader,
        }

    def _status_for(self, node: NodeId) -> float:
        return self._node.loop.time() - self._node.ages.status_since(node)

    async def _facts(self) -> tuple[Json, Json]:
        return await self.cluster(), await self.types()

    async def overview(self) -> Json:
        """Members, types and counters in one answer."""
        return await self._overview.overview()

    async def shard_map(self, type: str, known: str) -> Json:
        """The homes of a type's shards in columns."""
        return await self._overview.shard_map(type, known)

    async def settings(self) -> Json:
        """The settings of this node and who set them."""
        return {"node": str(self._node.me), "settings": rows_of(self._node.settings, self._origins)}

    async def slow(self) -> Json:
        """The last slow handlers of every member, newest first."""
        asked = self._node.rpc.members()
        answers = await self._node.rpc.ask_all("slow_reports")
        now = datetime.now(UTC)
        rows = [
            {"age": age, "node": str(node), "type": type, "how": how, "text": text}
            for node, reports in answers.items()
            for age, type, how, text in reports
        ]
        rows.sort(key=itemgetter("age"))
        handlers = [{"at": _ago(now, row.pop("age")), **row} for row in rows]
        return {"handlers": handlers, "silent": [str(n) for n in asked if n not in answers]}

    async def findings(self) -> Json:
        """What is wrong with the cluster, or soon will be, and what it has lost."""
        return await self._examination.get()

    async def _look(self) -> tuple[Picture, Losses]:
        """Read the pages that the findings are made from."""
        node, view = self._node, self._node.view
        own = [name for name, region in node.regions.items() if region.table is region]
        (cluster, checkup, slow), losses, tables = await asyncio.gather(
            asyncio.gather(self.cluster(), self.checkup(), self.slow()),
            node.rpc.ask_all("losses"),
            asyncio.gather(*map(self._table, own)),
        )
        members = view.members if view is not None else ()
        picture = Picture(
            ready={name: asdict(check) for name, check in self.readiness().items()},
            cluster=cluster,
            nodes={"nodes": [self._row(member, None, None, view) for member in members]},
            gossip=await self.gossip() if node.watching is not None else {},
            checkup=checkup,
            slow=slow,
            shards={
                name: {
                    "epoch": table["epoch"],
                    "complete": table["complete"],
                    "shards": [_shard_row(*row) for row in table["shards"]],
                }
                for name, table in zip(own, tables, strict=True)
            },
        )
        return picture, losses

    async def dead_letters(self, type: str, reason: str, within: float, limit: int) -> Json:
        """The last dropped messages of every member, newest first."""
        return await self._letters.newest(LetterFilter(type, reason, within), limit)

    async def replay(
        self,
        type: str,
        reason: str,
        within: float,
        names: tuple[str, ...],
        limit: int,
        operator: str,
        *,
        answered: bool,
        dry_run: bool,
    ) -> Json:
        """Send dropped messages again, by name or by a filter."""
        if type and not names:
            self._region(type)
        wanted = LetterFilter(type, reason, within, once=not answered)
        return await self._letters.replay(wanted, names, limit, operator, dry_run=dry_run)

    async def recent_events(self, seconds: float, most: int) -> Json:
        """The last events of every member, oldest first by this node's clock."""
        asked = self._node.rpc.members() or [self._node.me]
        answers = await self._node.rpc.ask_all("recent_events", seconds, most)
        now = datetime.now(UTC)
        names = ("age", "number", "event", "type", "node", "text")
        rows = [
            {"seen_by": str(node), **dict(zip(names, row, strict=True))}
            for node, events in answers.items()
            for row in events
        ]
        rows.sort(key=lambda row: (-row["age"], row["seen_by"], row["number"]))
        events = [{"at": _ago(now, row.pop("age")), **row} for row in rows[-most:]]
        return {
            "time": now.isoformat(),
            "events": events,
            "silent": [str(n) for n in asked if n not in answers],
        }

    async def tasks(self) -> Json:
        """Where the tasks of this node wait; readers share it for a second."""
        return {"node": str(self._node.me), **await self._tasks.get()}

    def _list_tasks(self) -> Awaitable[Json]:
        return task_stacks(self._node.loop, self._node.regions.values())

    async def log_lines(self) -> Json:
        """The last lines of this node's log, as JSON objects; none if the application writes the
        log itself."""
        lines = self._log() if self._log is not None else []
        return {"node": str(self._node.me), "held": self._log is not None, "lines": lines}

    async def types(self) -> Json:
        """The entity types of this application."""
        rows = [
            {
                "type": name,
                "shards": region.entity_type.interface.shards,
                "layout": region.entity_type.interface.layout,
                "instances": _instances_of(region),
                "router": region.entity_type.interface.router or None,
                "within": [one.name for one in ancestors(region.entity_type.interface)],
                "role": region.settings.role,
                "coordinator_role": region.coordinator_role,
                "remember": region.settings.remember,
                "handoff": region.settings.handoff,
                "state": region.entity_type.states is not None,
                "hosted_here": region.hosts,
                "coordinator": str(region.coordinator) if region.coordinator else None,
                "active_entity_limit": region.host.passivator.limit,
                "entities_here": region.host.entities,
                "state_bytes_here": sizes.total if (sizes := region.host.state_sizes) else None,
            }
            for name, region in self._node.regions.items()
        ]
        return {"types": rows}

    # ---- decisions and events

    async def downing(self) -> Json:
        """How this node decides after a split, and its last decisions."""
        settings = self._node.settings.cluster.downing
        return {
            "node": str(self._node.me),
            "strategy": settings.strategy,
            "stable_after": settings.stable_after,
            "decisions": self._node.decisions.page(),
        }

    async def gossip(self) -> Json:
        """The version of the membership that each node has seen, and what prevents convergence."""
        seen = self._node.cluster.overview
        return {
            "node": str(self._node.me),
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
                for name, data in self._node.subscriptions.view.meta.items()
            },
        }

    async def load(self) -> Json:
        """How busy the nodes are, by asking a few of them (`membership.vitals`), and the shards
        with the most load."""
        node, survey = self._node, Survey(self._node.rpc.members(), Random())
        while chosen := survey.next_look():
            asked = (node.rpc.ask(one, "vitals") for one in chosen)
            answers = await asyncio.gather(*asked, return_exceptions=True)
            survey.record(_vitals_of(one) for one in answers if isinstance(one, list))
        rows = [
            {"node": str(one), **vitals._asdict(), "age": round(age, 3)}
            for one, (vitals, age) in sorted(survey.found.items())
        ]
        return {
            "node": str(node.me),
            "nodes": rows,
            "unseen": [str(one) for one in survey.unseen()],
            "looks": survey.looks,
            "hottest": await self._hottest(),
        }

    async def _hottest(self) -> list[Json]:
        """The shards with the most load, of the types that are balanced by it: `HOTTEST` of each
        unit, for loads in different units cannot be compared."""
        own = [name for name, region in self._node.regions.items() if region.table is region]
        tables = await asyncio.gather(*map(self._table, own))
        rows: list[Json] = [
            {
                "type": name,
                "shard": row[0],
                "node": row[1],
                "load": round(row[4], 3),
                "unit": _load_unit(table),
            }
            for name, table in zip(own, tables, strict=True)
            for row in table["shards"]
            if len(row) > 4 and row[4]
        ]
        rows.sort(key=lambda row: (str(row["type"]), str(row["shard"])))
        hottest: list[Json] = []
        for unit in dict.fromkeys(row["unit"] for row in rows):
            same = (row for row in rows if row["unit"] == unit)
            hottest += nlargest(HOTTEST, same, key=itemgetter("load"))
        return hottest

    async def checkup(self) -> Json:
        """The state of every member and of the store, for the doctor to compare."""
        node, began = self._node, time.time()
        members = node.rpc.members()
        answers, store = await asyncio.gather(node.rpc.ask_all("checkup"), self._stored())
        if not members:  # before it is a member, a node knows itself alone
            members, answers = [node.me], {node.me: await node.rpc.ask(node.me, "checkup")}
        rows = [{"node": str(m), "answered": m in answers, **answers.get(m, {})} for m in members]
        return {
            "node": str(node.me),
            "time": {"asked": began, "answered": time.time()},
            "members": rows,
            "store": store,
        }

    async def _stored(self) -> dict[str, Any]:
        """Whether this node's store answers, and a summary of each table in it."""
        tables: dict[str, Any] = {}
        try:
            async with asyncio.timeout(STORE_WITHIN_S):
                for name in (n for n, r in self._node.regions.items() if r.table is r):
                    tables[name] = await self._stored_table(name)
        except (ShardBusError, TimeoutError) as e:
            error = str(e) or f"no answer within {STORE_WITHIN_S:g} s"
            return {"answers": False, "error": error, "tables": tables}
        return {"answers": True, "error": "", "tables": tables}

    async def _stored_table(self, name: str) -> dict[str, Any] | None:
        """A summary of a stored table, or why it cannot be read."""
        try:
            table = await self._node.store.load_table(name)
        except StoreUnavailable:
            raise
        except StoreError as e:
            return {"damaged": e.message}
        if table is None:
            return None
        dropped = list(table.dropped)
        homes, _ = split_intents(table.homes)
        return {"epoch": table.epoch, "shards": len(homes), "dropped": dropped}

    async def events(self) -> AsyncIterator[Json]:
        """The membership as it is now, then the events."""
        subscription = self._node.subscriptions.subscribe()
        try:
            async for event in subscription:
                yield picture(event) if isinstance(event, MembershipView) else fact(event)
        finally:
            subscription.close()

    # ---- health

    def liveness(self) -> Checks:
        """Checks that this process works. Asks neither the store nor another node."""
        ended = self._node.stopped.done()
        lag = self._node.lag
        return {
            "loop": Check(lag < STALLED_S, f"{lag:.3f} s late"),
            "membership": Check(not ended, self._node.stopped.result() if ended else "running"),
        }

    def readiness(self) -> Checks:
        """Checks that this node is Up and its regions are registered with their coordinators. A
        store that fails is shown, and takes no node out of service: all would go at once. The
        settings of HTTP say which types count, and for how long."""
        status = self._node.view.status if self._node.view is not None else None
        phase = self._node.phases.current
        detail = phase or self._node.describe_joining() or self._status()
        checks = {"membership": Check(status is Status.UP and not phase, detail)}
        if suspended := self._node.gate.describe():
            checks["suspension"] = Check(False, suspended)
        if rival := self._node.membership_store.rival:  # what is in memory works beside it
            checks["cluster"] = Check(True, rival)
        if failed := self._node.failed_tasks:
            what = f"{failed} task{'s' if failed > 1 else ''} of this node failed: see its log"
            checks["tasks"] = Check(False, what)
        ago, why = self._node.states.silent_ago, self._node.states.silent_because
        if ago is not None and ago < STORE_FAILED_S:  # what is in memory works without the store
            checks["store"] = Check(True, f"a load or a save failed {ago:.0f} s ago: {why}")
        wanted, ends = (
            self._node.settings.http.ready_types,
            self._node.settings.http.ready_types_once,
        )
        for name, region in self._node.regions.items():
            if region.table is not region:
                continue
            known = region.coordinator is not None and region.router.region.registered
            detail = f"coordinator {region.coordinator}" if known else "not registered yet"
            singleton = self._node.singletons[name]
            if why := singleton.why_no_member(region.settings.role):
                known, detail = True, f"no member hosts it: {why}"
            elif not known and (why := singleton.why_no_member(region.coordinator_role)):
                # A rollout that waited for this node would never reach those that lack the type.
                known = not self._lacks(region.coordinator_role)
                detail = f"no member coordinates it: {why}"
            counts = (not wanted or name in wanted) and not (ends and self._was_ready)
            checks[f"coordinator:{name}"] = Check(known or not counts, detail)
        self._was_ready = self._was_ready or all(check.ok for check in checks.values())
        return checks

    def _lacks(self, role: str) -> bool:
        """True if no member is up with this role."""
        view = self._node.view
        return bool(role) and view is not None and view.oldest(role) is None

    def metrics(self) -> bytes:
        """The metrics in Prometheus's text format."""
        return render(self._node)

    # ---- commands

    async def leave(self, node: str | None) -> Json:
        """Begin to hand off and leave."""
        target = self._node.me if node is None else self._member(node)
        if not await self._node.rpc.ask(target, "leave"):
            raise ConfigError(f"{target} is not able to leave now")
        return {"node": str(target), "leaving": True}

    async def shutdown_region(self, node: str, type: str) -> Json:
        """Begin to hand off every shard of a type on one node."""
        target = self._node.me if node == "self" else self._member(node, itself=True)
        check_own_table(self._region(type))
        left = await self._node.rpc.ask(target, "shutdown_region", type, of=type)
        return {"node": str(target), "type": type, "shards": left}

    async def down(self, node: str, *, force: bool) -> Json:
        """Declare a member dead; with `force`, remove it without the agreement of the others."""
        target = self._member(node)
        if force and target == self._node.me:
            raise Refused(f"{target} is this node: a node cannot remove itself")
        command = cluster.Remove(target) if force else cluster.Down(target, for_good=True)
        self._node.lost_nodes.decided([target], "an operator declared it dead")
        self._node.cluster.post(command)
        return {"node": str(target), "down": True, "removed": force}

    async def serve(self, node: str, service: str) -> Json:
        """Cordon, uncordon or drain a member. The last open member stays open, since no other
        could take shards without a home."""
        target = self._member(node, itself=True)
        others = [m for m in self._node.subscriptions.view.members if m.node != target]
        if service != Service.OPEN.value and not any(
            m.status is Status.UP and m.service is Service.OPEN for m in others
        ):
            raise Refused(f"no member but {target} would take shards")
        self._node.cluster.post(cluster.SetService(target, Service(service)))
        return {"node": str(target), "service": service}

    async def join(self, seeds: tuple[str, ...]) -> Json:
        """Begin to join."""
        if self._node.joining:
            raise Refused("this node has joined already", hint="node.join = manual lets it wait")
        self._node.join_by(seeds)
        return {"node": str(self._node.me), "joining": True, "seeds": list(seeds)}

    async def shut_down(self) -> Json:
        """Stop the whole cluster."""
        if not self._node.is_up:
            raise Refused(f"this node is {self._status()}: ask one that is up")
        self._node.cluster.post(cluster.PrepareForShutdown())
        return {"cluster": self._node.cluster_name, "stopping": True}

    # ---- one entity type

    async def _table(self, name: str) -> dict[str, Any]:
        """The coordinator's table, or the part that this node knows, which is not `complete`."""
        region = self._region(name)
        if region.coordinator is not None:
            try:
                table = await self._node.rpc.ask(region.coordinator, "table", name, of=name)
                if table is not None:
                    return {**table, "complete": True}
            except RequestError:
                pass
        machine = region.router.region
        known = [machine.home_of(shard) for shard in region.router.routes]
        rows = [[h.shard, str(h.node), h.fence, "running"] for h in known if h is not None]
        return {"epoch": machine.epoch, "shards": rows, "complete": False}

    async def shards(self, type: str) -> Json:
        """The homes of a type's shards, and how many entities each has in memory."""
        region = self._region(type)
        asked = self._node.rpc.ask_all("stats", of=type)
        table, stats = await asyncio.gather(self._table(type), asked)
        answered = {str(node) for node in stats}
        live = {
            (str(node), shard): count
            for node, types in stats.items()
            for shard, count in types.get(type, {}).items()
        }
        rows = [_shard_row(*columns) for columns in table["shards"]]
        for row in rows:
            node, shard = row["node"], row["shard"]
            row["entities"] = live.get((node, shard), 0) if node in answered else None
        rows.sort(key=_by_shard)
        return {
            "type": type,
            "coordinator": str(region.coordinator) if region.coordinator else None,
            "epoch": table["epoch"],
            "complete": table["complete"],
            **{name: table.get(name) for name in PACE},
            "load_unit": _load_unit(table),
            "shards": rows,
        }

    async def partitions(self, type: str) -> Json:
        """The instances of each shard of a type: a shard without instances is its only one."""
        region = self._region(type)
        table = await self._table(type)
        members = self._node.view.members if self._node.view is not None else ()
        instances: dict[str, list[dict[str, Any]]] = {}
        for row, node, fence, state, *_ in table["shards"]:
            shard, instance = split_row(row)
            one = {"instance": instance or 1, "node": node, "fence": fence}
            instances.setdefault(shard, []).append({**one, "state": _STATES.get(state, "running")})
        partitions: list[Json] = [
            {"shard": shard, "instances": sorted(instances[shard], key=lambda one: one["instance"])}
            for shard in sorted(instances, key=lambda shard: (len(shard), shard))
        ]
        return {
            "type": type,
            "instances": _instances_of(region),
            "complete": table["complete"],
            "nodes": [str(node) for node in sorted(member.node for member in members)],
            "partitions": partitions,
            "gossip": _gossip_of(region),
        }

    async def where(self, type: str, id: str) -> Json:
        """The home of one entity, whether it is in memory or not. Of an entity with instances: the
        home of the instance to which this node sends by `nearest`, and all of them."""
        region = self._region(type)
        router = region.router
        if router.rows is None or INSTANCE_MARK in id:
            return await self._place(region, type, id)
        count = len(router.rows.of(id).routes)
        places = await asyncio.gather(
            *(self._place(region, type, wire_id(id, k)) for k in range(1, count + 1))
        )
        nearest = InstanceSender(router, Choice()).pick(id)
        found = next((place for place in places if place["id"] == nearest), places[0])
        columns = ("shard", "node", "state", "running")
        rows = [
            {"instance": k, **{column: place[column] for column in columns}}
            for k, place in enumerate(places, 1)
        ]
        return {**found, "id": id, "instance": split_row(str(found["id"]))[1], "instances": rows}

    async def _place(self, region: RegionShell, type: str, id: str) -> Json:
        """The home of an entity by its wire id."""
        shard = region.router.route_of(id).shard
        home = region.router.region.home_of(shard)
        running = False
        state = "unallocated"
        if home is not None:
            state = "running"
            try:
                running = await self._node.rpc.ask(home.node, "running", type, shard, id, of=type)
            except RequestError:
                state = "unknown"
        return {
            "type": type,
            "id": id,
            "shard": shard,
            "node": str(home.node) if home is not None else None,
            "state": state,
            "running": running,
        }

    async def entities(
        self, type: str, shard: str | None, prefix: str, limit: int, cursor: str | None
    ) -> Json:
        """A page of the entities in memory, sorted by id; nodes without an answer are `silent`."""
        region = self._region(type)
        if shard:
            _check_shard(region, shard)
        limit = min(limit, ENTITIES_MAX)
        asked = self._node.rpc.members()
        pages = await self._node.rpc.ask_all(
            "entities", type, shard or "", prefix, cursor or "", limit + 1, of=type
        )
        rows = [
            {"id": i, "shard": s, "node": str(node)}
            for node, page in pages.items()
            for i, s in page or ()
        ]
        rows.sort(key=lambda row: (row["id"], row["node"]))
        more = len(rows) > limit
        rows = rows[:limit]
        following = rows[-1]["id"] if more and rows else None
        if region.entity_type.interface.instances is not None:
            for row in rows:
                row["id"], row["instance"] = split_row(row["id"])
        return {
            "entities": rows,
            "next": following,
            "silent": [str(node) for node in asked if node not in pages],
        }

    async def explain(self, type: str, id: str) -> Json:
        """The home of an entity, the reason for it, and why its messages take long."""
        region = self._region(type)
        answer = await self.where(type, id)
        machine = region.router.region
        shard = str(answer["shard"])
        home = machine.home_of(shard)
        suspended, figures, known = await asyncio.gather(
            self._of_home(home, "suspension"),
            self._of_home(home, "figures", type, shard, _key(answer)),
            self._shard_answer(region, shard),
        )
        messages, size = machine.buffered
        state = str((known or {}).get("state", ""))
        place = self._entity_place(region, shard, state, suspended)
        seen = of_plain(figures) if figures else None
        answer |= {
            "layout": region.entity_type.interface.layout,
            "fence": home.fence if home is not None else None,
            "coordinator": str(region.coordinator) if region.coordinator else None,
            "epoch": machine.epoch,
            "why": self._why(region, shard, home, suspended),
            "suspended": suspended or None,
            "buffered": {"messages": messages, "bytes": size},
            "causes": [asdict(cause) for cause in causes(place, seen)],
            "figures": to_plain(seen) if seen is not None else None,
            "history": _changes(known),
        }
        return answer

    def _why(
        self, region: RegionShell, shard: str, home: Home | None, suspended: str | None
    ) -> str:
        """Where the messages for a shard go."""
        if home is None:
            return "no home is known here; the coordinator is asked while messages wait"
        if suspended is None:
            return (
                f"its home {home.node} does not answer; messages wait until it does or is removed"
            )
        if suspended:
            place = "this node" if home.node == self._node.me else str(home.node)
            return f"its home is {place}, which is {suspended}; messages wait for their entities"
        if _moves(region, shard):
            return "messages wait here: the shard is on the move"
        return "the home is known, messages go there directly"

    def _entity_place(
        self, region: RegionShell, shard: str, state: str, suspended: str | None
    ) -> EntityPlace:
        node, home = self._node, region.router.region.home_of(shard)
        at = home.node if home is not None else None
        since = node.ages.unreachable.get(at) if at is not None else None
        phis = node.watching.overview.phis if node.watching is not None else {}
        downing = node.settings.cluster.downing
        return EntityPlace(
            home=str(at) if at is not None else "",
            shard=shard,
            shard_state=state,
            moving=home is not None and _moves(region, shard),
            suspended=suspended,
            unreachable_for=node.loop.time() - since if since is not None else None,
            phi=phis.get(at) if at is not None else None,
            waiting=region.router.region.buffered[0],
            missing="" if region.coordinator is not None else self._no_coordinator(region.table),
            decision=f"`{downing.strategy}` decides once membership has been stable for "
            f"{downing.stable_after:g} s",
        )

    def _no_coordinator(self, region: RegionShell) -> str:
        why = self._node.singletons[region.name].why_no_member(region.coordinator_role)
        return why or "none is known here"

    async def _of_home(self, home: Home | None, question: str, *arguments: object) -> Any:
        """The answer of an entity's home; empty if it is of an older release, which does not know
        the question, or there is no home. None without an answer."""
        if home is None:
            return ""
        of = str(arguments[0]) if arguments else ""
        try:
            return await self._node.rpc.ask(home.node, question, *arguments, of=of)
        except Unhandled:
            return ""
        except RequestError:
            return None

    async def explain_shard(self, type: str, shard: str) -> Json:
        """The home of a shard, and its history."""
        region = self._region(type)
        _check_shard(region, shard)
        answer = await self._shard_answer(region, shard)
        known = answer or {}
        if answer is None and (home := region.router.region.home_of(shard)) is not None:
            known = {"node": str(home.node), "fence": home.fence}
        return {
            "type": type,
            "shard": shard,
            "node": known.get("node"),
            "state": known.get("state", "unknown"),
            "fence": known.get("fence"),
            "coordinator": str(region.coordinator) if region.coordinator else None,
            "epoch": known.get("epoch", region.router.region.epoch),
            "history": _changes(answer),
        }

    async def _shard_answer(self, region: RegionShell, shard: str) -> dict[str, Any] | None:
        """The coordinator's answer about a shard; None without one."""
        if region.coordinator is None:
            return None
        try:
            answer = await self._node.rpc.ask(
                region.coordinator, "shard", region.name, shard, of=region.name
            )
        except RequestError:
            return None
        return dict(answer) if answer is not None else None

    # ---- commands about one entity type

    async def plan(self, type: str, add: int, remove: tuple[str, ...]) -> Json:
        """The moves that would follow if `add` nodes came and those in `remove` went."""
        gone = [str(self._member(node)) for node in remove]
        found = await self._shard_control.ask(type, "plan", add, gone)
        return {
            "type": type,
            "add": add,
            "remove": gone,
            "moves": [{"shard": s, "from": a, "to": b} for s, a, b in found["moves"]],
            "nodes": [{"node": n, "before": b, "after": a} for n, b, a in found["nodes"]],
            "rounds": found["rounds"],
            "settled": found["settled"],
            **{name: found[name] for name in PACE},
        }

    async def rebalance(self, type: str, pause: bool | None, moves: int | None) -> Json:
        """Check the balance of a type now; or pause, resume or bound its moves."""
        pace = await self._shard_control.rebalance(type, paused=pause, moves=moves)
        return {"type": type, "rebalancing": not pace["held"], **pace}

    async def stop(self, type: str, shards: tuple[str, ...]) -> Json:
        """Stop shards until a message arrives for them."""
        return {"type": type, **await self._shard_control.stop(type, shards)}

    async def places(self, type: str) -> Json:
        """The places that were set for shards, and their homes."""
        return await self._places(type, await self._shard_control.places(type))

    async def place(self, type: str, places: Mapping[str, str]) -> Json:
        """Set the places of shards; an empty text takes a place away."""
        wanted = {shard: address_of(text) if text else None for shard, text in places.items()}
        return await self._places(type, await self._shard_control.place(type, wanted))

    async def _places(self, type: str, places: Mapping[str, Address]) -> Json:
        table = await self._table(type)
        homes = {row[0]: row[1] for row in table["shards"]}
        rows = [
            {"shard": shard, "place": str(place), "node": homes.get(shard)}
            for shard, place in places.items()
        ]
        rows.sort(key=_by_shard)
        return {"type": type, "places": rows}

    # ---- stored states

    async def stored(
        self, type: str, shard: str | None, prefix: str, limit: int, cursor: str | None
    ) -> Json:
        """A page of the entities with a stored state, from this node's store."""
        region = self._region(type)
        ids, following = await self._node.rpc.ask(
            self._node.me, LIST_STORED, type, shard or "", prefix, cursor or "", limit
        )
        rows = [{"id": one, "shard": shard or _shard_of(region, one)} for one in ids]
        return {"type": type, "stored": rows, "next": following}

    async def state(self, type: str, id: str, operator: str, *, text: bool) -> Json:
        """The stored state of an entity, from this node's store. The log names who has read it."""
        self._codec(type)
        shard = self._region(type).router.route_of(id).shard
        [data] = await self._node.store.read_states(type, [id])
        row = await asyncio.to_thread(shown, data, STATE_SHOWN_MAX)
        note = Note("state_read", f"of {id!r:.100}: by {operator:.100}", entity_id=id)
        self._node.note(type, note)
        return {"type": type, "id": id, "shard": shard, **(as_text(row) if text else row)}

    async def set_state(
        self, type: str, id: str, state: object, operator: str, revision: str
    ) -> Json:
        """Let the owner of an entity replace its state."""
        codec = self._codec(type)
        try:
            plain = from_json(state)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"the state: {error}") from None
        codec.of_plain(plain)  # the owner may have another release, and checks it again
        return await self._change_state(type, id, encode_value(plain), operator, revision)

    async def remove_state(self, type: str, id: str, operator: str, revision: str) -> Json:
        """Let the owner of an entity remove its state."""
        return await self._change_state(type, id, None, operator, revision)

    def _codec(self, type: str) -> StateCodec:
        codec = self._region(type).entity_type.states
        if codec is None:
            raise ConfigError(f"{type!r} has no state")
        return codec

    async def _change_state(
        self, type: str, id: str, value: bytes | None, operator: str, revision: str
    ) -> Json:
        """Let the home of an entity change its state. Without a home, a start of the entity
        allocates one; it may fail, by the very state that is to be replaced."""
        region = self._region(type)
        shard, machine = region.router.route_of(id).shard, region.router.region
        if machine.home_of(shard) is None:
            with suppress(RequestError):
                await start_entity(region.router, id, HOME_WITHIN_MS)
        home = machine.home_of(shard)
        if home is None:
            raise Refused(f"shard {shard!r} of {type!r} has no home yet", hint="try again")
        asked = [type, shard, id, value, operator]
        question = "change_state"
        if revision:
            question, asked = "change_state_if", [*asked, revision]
        answer = agreed(await self._node.rpc.ask(home.node, question, *asked, of=type))
        return {
            "type": type,
            "id": id,
            "shard": shard,
            "node": str(home.node),
            "bytes": answer["bytes"],
            "removed": value is None,
        }

    async def limits(self, type: str) -> Json:
        """The limit on entities in memory on every node that hosts the type."""
        region = self._region(type)
        asked = self._node.rpc.members()
        answers = await self._node.rpc.ask_all("limit", type, None, of=type)
        return _limits(region, asked, answers)

    async def set_limit(self, type: str, limit: int, node: str | None) -> Json:
        """Set the limit on entities in memory, on one node or on all. It lasts for the life of the
        process: a node that starts later begins with its settings.

        Raises:
            Refused: the type's entities are remembered, or the one node does not host it.
        """
        region, rpc = self._region(type), self._node.rpc
        on = None if node is None else self._member(node, itself=True)
        if region.settings.remember:
            raise Refused(f"entities of {type!r} are remembered: there is no limit on them")
        if on is None:
            asked = rpc.members()
            return _limits(region, asked, await rpc.ask_all("limit", type, limit, of=type))
        answers = {}
        try:
            answers[on] = await rpc.ask(on, "limit", type, limit, of=type)
        except RequestError:
            pass
        else:
            if answers[on] is None:
                raise Refused(f"{on} hosts no {type!r}, or keeps its entities in memory")
        return _limits(region, [on], answers)

    async def reload_keys(self, node: str | None) -> Json:
        """Let one member, or all, read the file of the cluster's secret again."""
        rpc = self._node.rpc
        asked = rpc.members() if node is None else [self._member(node, itself=True)]
        answers = {}
        if node is None:
            answers = await rpc.ask_all("reload_keys")
        else:
            with suppress(RequestError):
                answers[asked[0]] = await rpc.ask(asked[0], "reload_keys")
        rows = [
            {"node": str(member), "changed": row[0], "keys": row[1], "error": row[2]}
            for member, row in answers.items()
        ]
        return {"nodes": rows, "silent": [str(one) for one in asked if one not in answers]}

    def _region(self, name: str) -> RegionShell:
        return region_of(self._node.regions, name)

    def _member(self, text: str, *, itself: bool = False) -> NodeId:
        view = self._node.view
        if itself and text == "self" and view is not None and view.status is not None:
            return self._node.me
        members = [m.node for m in view.members] if view is not None else []
        for node in members:
            if text in (str(node), str(node.address)):
                return node
        raise ConfigError(f"no member is called {text!r}", hint="`shardbus nodes` lists them")
