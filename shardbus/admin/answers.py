"""A node's answers to the questions that other nodes ask for their operators (`node.rpc`).

The coordinator of a type knows where its shards are; each node knows what runs on it. Commands to a
coordinator are questions, too: they are answered once they are stored or done, and a refusal is an
answer. A node that does not run the type's coordinator answers None.

`checkup` is what `shardbus doctor` compares between nodes: the shards that run here, the expected
coordinators, the lag of the loop, the clocks, what waits, and the settings that differ from their
defaults. Here nothing is judged.

Source: docs/reference/http.md; S2.82-S2.84.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any

from shardbus.admin.brief import brief_of
from shardbus.admin.build_versions import build_versions
from shardbus.admin.dead_letters import LetterAnswers
from shardbus.admin.entity_watch import to_plain, watch
from shardbus.admin.metrics import VERSION
from shardbus.admin.services import AdminServices
from shardbus.admin.shard_map import ShardMaps
from shardbus.config.settings import ShardingSettings
from shardbus.errors import (
    BufferFull,
    ConfigError,
    Refused,
    ShardBusError,
    StoreError,
    StoreUnavailable,
)
from shardbus.ids import Address, NodeId
from shardbus.membership.member import FEATURES
from shardbus.membership.messages import OLDEST_PROTOCOL, PROTOCOL
from shardbus.sharding.coordinator.coordinator import Coordinator
from shardbus.sharding.coordinator.epoch_claim import CoordinatorState
from shardbus.sharding.events import Note, Rebalance
from shardbus.shells.coordinator import CoordinatorShell
from shardbus.shells.region import RegionShell, check_own_table, region_of
from shardbus.store.protocol import clock_offset_of, problems_of
from shardbus.store.urls import default_url, mask_url
from shardbus.transport.descriptors import descriptors_limit, in_use
from shardbus.transport.permissions import LIST_STORED
from shardbus.wire.schema import decode_value

STOP_PART = 0.5
"""The part of the asker's timeout that stopping shards may take; then the answer names the shards
that are still to stop."""
PAGE_MAX = 1000
"""Entities on one page."""
EVENTS_MAX = 1000
SLICE = 2048
"""Entities that are looked at between two turns of the loop."""
WALKS_MAX = 4
"""Lists of entities, at most, that a node makes at once."""
NODES_MAX = 1000
"""Nodes, at most, that a plan may add."""
FULLEST = 3
"""Entities with the longest mailboxes, in a checkup."""
FAILING_MAX = 20
"""Methods of a type that failed, in a checkup."""
FAILED_S = 600.0
"""Seconds for which a failure is in a checkup."""
COMPARED = ("cluster", "sharding")
"""Sections of the settings in which the nodes of a cluster should agree."""


class NodeAnswers:
    """Answers the questions of other nodes, from one node's state."""

    def __init__(self, node: AdminServices) -> None:
        self._node = node
        self._walks = 0
        """Lists of entities that are being made."""
        self._maps = ShardMaps()

    def register(self) -> None:
        """Answer questions through the node's `NodeRpc` from now on."""
        for answer in (
            self.stats,
            self.state_bytes,
            self.suspension,
            self.figures,
            self.vitals,
            self.table,
            self.shard,
            self.plan,
            self.rebalance,
            self.running,
            self.entities,
            self.leave,
            self.places,
            self.place,
            self.slow,
            self.stop,
            self.limit,
            self.change_state,
            self.change_state_if,
            self.shutdown_region,
            self.checkup,
            self.reload_keys,
            self.brief,
            self.shard_map,
            self.slow_reports,
            self.recent_events,
            self.losses,
        ):
            self._node.rpc.register(answer.__name__, answer)
        LetterAnswers(self._node).register()
        to_clients = self._node.settings.security.list_states
        self._node.rpc.register(LIST_STORED, self.stored, to_clients=to_clients)

    # ---- what runs on this node

    def stats(self) -> dict[str, dict[str, int]]:
        """Entity types to their shards here, each with its number of entities in memory."""
        return {
            name: {shard: hosted.live for shard, hosted in region.host.shards.items()}
            for name, region in self._node.regions.items()
        }

    def state_bytes(self) -> dict[str, int]:
        """Entity types with state to the bytes of the states of their entities in memory here."""
        return {
            name: region.host.state_sizes.total
            for name, region in self._node.regions.items()
            if region.host.state_sizes is not None
        }

    def brief(self) -> dict[str, Any]:
        """What this node hosts, how busy it is, and what it has counted."""
        return brief_of(self._node)

    def slow_reports(self) -> list[list[Any]]:
        """The last slow handlers here, oldest first: seconds since the report, the entity type,
        `waited` or `blocked`, and the report."""
        now = self._node.loop.time()
        return [[now - r.at, r.entity_type, r.how, r.text] for r in self._node.slow.reports()]

    def recent_events(self, seconds: float, most: int) -> list[list[Any]]:
        """The last events here, oldest first, none older than that: age, number, name, entity type,
        node, text."""
        return self._node.recent_events.within(seconds, min(most, EVENTS_MAX))

    def suspension(self) -> str:
        """Why no entity of this node handles messages; empty if they do."""
        return self._node.gate.describe()

    async def figures(self, name: str, shard: str, entity_id: str) -> dict[str, Any]:
        """What this node knows about an entity that lives here, and about itself."""
        region = region_of(self._node.regions, name)
        return to_plain(await watch(self._node, region, shard, entity_id))

    def vitals(self) -> list[list[Any]]:
        """How busy this node is, and the nodes that it watches: for each its name, its vitals, and
        their age in seconds."""
        watching = self._node.watching
        known = dict(watching.overview.vitals) if watching is not None else {}
        known[self._node.me] = (self._node.vitals.vitals, 0.0)
        return [[str(node), list(vitals), age] for node, (vitals, age) in known.items()]

    def running(self, name: str, shard: str, entity_id: str) -> bool:
        """True if the entity is in memory here."""
        return region_of(self._node.regions, name).host.find(entity_id, shard) is not None

    async def entities(
        self, name: str, shard: str, prefix: str, after: str, limit: int
    ) -> list[list[str]]:
        """Up to `limit` entities (id, shard) in memory here, sorted by id, with ids above `after`.

        One pass over the entities, in slices between which the loop turns.

        Raises:
            BufferFull: `WALKS_MAX` passes run already.
        """
        host = region_of(self._node.regions, name).host
        if self._walks >= WALKS_MAX:
            raise BufferFull(f"{WALKS_MAX} lists of entities are being made: try again")
        limit = max(0, min(limit, PAGE_MAX + 1))
        self._walks += 1
        try:
            first: list[tuple[str, str]] = []
            for part in host.walk(SLICE):
                found = [
                    (i, s)
                    for i, s in part
                    if i > after and i.startswith(prefix) and (not shard or s == shard)
                ]
                if found:
                    first = heapq.nsmallest(limit, [*first, *found])
                await asyncio.sleep(0)
            return [list(row) for row in first]
        finally:
            self._walks -= 1

    async def stored(
        self, name: str, shard: str, prefix: str, cursor: str, limit: int
    ) -> tuple[list[str], str | None]:
        """About `limit` ids of entities with a stored state, of one shard or of all, and the next
        cursor.

        Raises:
            BufferFull: `WALKS_MAX` lists are being made already.
            ConfigError: the type has no such shard, or the cursor is not of this store.
            StoreUnavailable: the store does not answer.
        """
        region = region_of(self._node.regions, name)
        if shard and not region.router.has_shard(shard):
            raise ConfigError(f"{name!r} has no shard {shard!r:.100}")
        if self._walks >= WALKS_MAX:
            raise BufferFull(f"{WALKS_MAX} lists of entities are being made: try again")
        if region.entity_type.states is None:
            return [], None
        self._walks += 1
        try:
            limit = max(1, min(limit, PAGE_MAX))
            ids, following = await self._node.store.page_stored(name, prefix, cursor or None, limit)
        except StoreUnavailable:
            raise
        except StoreError as e:
            raise ConfigError(e.message, hint="begin the list anew, without a cursor") from None
        finally:
            self._walks -= 1
        if shard:
            ids = [entity_id for entity_id in ids if _is_in(region, entity_id, shard)]
        return ids, following

    async def change_state(
        self, name: str, shard: str, entity_id: str, value: bytes | None, operator: str
    ) -> dict[str, Any]:
        """Make the encoded plain value the state of an entity whose shard is here; None removes the
        state. `operator` names who asks, for the log."""
        return await self.change_state_if(name, shard, entity_id, value, operator, "")

    async def change_state_if(
        self,
        name: str,
        shard: str,
        entity_id: str,
        value: bytes | None,
        operator: str,
        revision: str,
    ) -> dict[str, Any]:
        """As `change_state`, but only if the stored state has this revision; empty is any. A
        question of its own, which a node of an earlier release refuses."""
        region = region_of(self._node.regions, name)
        codec = region.entity_type.states
        try:
            if codec is None:
                raise ConfigError(f"{name!r} has no state")
            data = None if value is None else codec.of_plain(decode_value(value))
            await region.host.change_state(shard, entity_id, data, revision)
        except ShardBusError as e:
            return _refusal(e)
        size = 0 if data is None else len(data)
        self._node.note(name, changed_state(entity_id, size, operator))
        return {"bytes": size}

    def limit(self, name: str, wanted: int | None) -> list[int] | None:
        """The limit on entities in memory here, their number, and how many were evicted. `wanted`
        is set as the new limit. None if this node does not host the type, or the type takes no
        limit."""
        region = region_of(self._node.regions, name)
        if not region.hosts:
            return None
        if wanted is not None:
            try:
                region.host.set_active_entity_limit(wanted)
            except Refused:
                return None
        passivator = region.host.passivator
        return [passivator.limit, region.host.entities, passivator.evicted]

    def reload_keys(self) -> list[Any]:
        """Read the file of the cluster's secret again. Returns whether it has changed, the
        fingerprints of its secrets, the newest first, and why it could not be read."""
        changed, error = False, ""
        try:
            changed = self._node.rekey()
        except (ConfigError, Refused) as refused:
            error = str(refused)
        keyring = self._node.keyring
        return [changed, [keys.fingerprint for keys in keyring.keys] if keyring else [], error]

    def shutdown_region(self, name: str) -> int:
        """Begin to hand off every shard of the type here. Returns the number of shards left."""
        region = region_of(self._node.regions, name)
        check_own_table(region)
        region.shutdown()
        return len(region.host.shards)

    def leave(self) -> bool:
        """Begin to leave, as at a SIGTERM. False if this node cannot yet."""
        if self._node.on_leave is None:
            return False
        self._node.on_leave()
        return True

    def checkup(self) -> dict[str, Any]:
        """This node's state, for comparison with that of other nodes."""
        node, now = self._node, self._node.loop.time()
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
                "strategy": self._strategy_faults(name),
                "failing": _failing(shell, now),
                **_failed_starts(shell, now),
            }
        url = node.settings.store.url or default_url(node.cluster_name)
        return {
            "build": VERSION,
            "versions": build_versions(),
            "version": node.settings.node.version,
            "time": time.time(),
            "lag": node.lag,
            "vitals": node.vitals.vitals._asdict(),
            "descriptors": [in_use(), descriptors_limit()],
            "protocol": [OLDEST_PROTOCOL, PROTOCOL],
            "features": list(FEATURES),
            "suspended": node.gate.describe(),
            "rival": node.membership_store.rival,
            "store": mask_url(url),
            "store_silent_ago": node.states.silent_ago,
            "store_silent_because": node.states.silent_because,
            "store_problems": list(problems_of(node.store)),
            "store_clock": clock_offset_of(node.store),
            "saves": list(node.states.backlog),
            "dropped": list(node.recent_drops.lately()),
            "settings": dict(_changed_settings(node)),
            "types": types,
        }

    def losses(self) -> list[list[Any]]:
        """The nodes that were lost, as this node has seen it, oldest first: the node, seconds
        since then, why this node decided so, and how many of its shards each coordinator here has
        freed and has given a new home."""
        now = self._node.loop.time()
        return [
            [str(lost.node), now - lost.at, lost.why, self._freed(lost.node)]
            for lost in self._node.lost_nodes
        ]

    def _freed(self, node: NodeId) -> dict[str, list[int]]:
        found = {}
        for name in self._node.singletons:
            coordinator = self._coordinator(name)
            freed = coordinator.history.freed(node) if coordinator is not None else (0, 0)
            if freed[0]:
                found[name] = list(freed)
        return found

    # ---- what a coordinator on this node knows

    def table(self, name: str) -> dict[str, Any] | None:
        """The coordinator's table of a type."""
        coordinator = self._coordinator(name)
        if coordinator is None:
            return None
        homes, now = coordinator.table.homes, self._node.loop.time()
        load_of, state_of = coordinator.rebalancing.load_of, coordinator.state_of
        since = coordinator.unsettled_since
        shards = [
            [
                shard,
                str(home.node),
                home.fence,
                state_of(shard),
                load_of(shard),
                now - began if (began := since(shard)) is not None else None,
            ]
            for shard, home in homes.items()
        ]
        return {
            "epoch": coordinator.epoch,
            "shards": shards,
            "load_unit": coordinator.rebalancing.load_unit,
            **_pace(coordinator),
        }

    def shard_map(self, name: str, known: str) -> dict[str, Any] | None:
        """The homes of a type's shards in columns, and the last moves; no columns if the asker has
        the version `known`."""
        coordinator = self._coordinator(name)
        if coordinator is None:
            return None
        drawn = self._maps.of(name, coordinator, known, self._node.loop.time())
        return {**drawn, **_pace(coordinator)}

    def shard(self, name: str, shard: str) -> dict[str, Any] | None:
        """The home of a shard and its changes, each with its age in seconds."""
        coordinator = self._coordinator(name)
        if coordinator is None:
            return None
        home, now = coordinator.table.homes.get(shard), self._node.loop.time()
        changes = []
        for c in coordinator.history.of(shard):
            ends = (node and str(node) for node in (c.source, c.target))
            changes.append([now - c.at, *ends, c.why, c.epoch, c.fence, c.seconds])
        return {
            "epoch": coordinator.epoch,
            "node": str(home.node) if home is not None else None,
            "fence": home.fence if home is not None else None,
            "state": coordinator.state_of(shard),
            "changes": changes,
        }

    async def plan(self, name: str, add: int, remove: list[str]) -> Any:
        """The moves that would follow if `add` nodes came and those in `remove` went."""
        coordinator = self._coordinator(name)
        if coordinator is None:
            return None
        if not 0 <= add <= NODES_MAX:
            raise ConfigError(f"a plan may add 0 to {NODES_MAX} nodes, not {add}")
        call = coordinator.forecasting(add, tuple(NodeId.parse(node) for node in remove))
        try:
            seen = await self._shell(name).ask_strategy(coordinator, call)
        except ShardBusError as e:
            return _refusal(e)
        nodes = {**seen.before, **seen.after}
        return {
            "moves": [[shard, str(a), str(b)] for shard, (a, b) in seen.moved.items()],
            "nodes": [[str(n), seen.before.get(n, 0), seen.after.get(n, 0)] for n in nodes],
            "rounds": seen.rounds,
            "settled": seen.settled,
            **_pace(coordinator),
        }

    def places(self, name: str) -> dict[str, Any] | None:
        """The places that were set for shards of the type."""
        if self._coordinator(name) is None:
            return None
        places = self._shell(name).overrides.places
        return {"places": {shard: str(place) for shard, place in places.items()}}

    def _strategy_faults(self, name: str) -> list[list[str]]:
        """The methods of the type's allocation strategy that fail, and how, if its coordinator is
        here."""
        coordinator = self._coordinator(name)
        if coordinator is None or name not in self._node.singletons:
            return []
        return [list(row) for row in coordinator.rebalancing.faults.shown(self._node.loop.time())]

    # ---- commands to a coordinator on this node

    def rebalance(self, name: str) -> dict[str, Any] | None:
        """Check the balance now."""
        coordinator = self._coordinator(name)
        if coordinator is None:
            return None
        self._shell(name).handle(Rebalance())
        return _pace(coordinator)

    async def slow(self, name: str, paused: bool | None, moves: int | None) -> Any:
        """Pause or resume rebalancing, and bound the moves at a time; answered once it is
        stored."""
        coordinator = self._coordinator(name)
        if coordinator is None:
            return None
        try:
            await self._shell(name).override(lambda current: current.slowed(paused, moves))
        except ShardBusError as e:
            return _refusal(e)
        return _pace(coordinator)

    async def stop(self, name: str, shards: list[str]) -> Any:
        """Stop these shards; the answer lists those that have stopped and those still to stop."""
        if self._coordinator(name) is None:
            return None
        settings = region_of(self._node.regions, name).settings
        patience = STOP_PART * settings.shard_region_query_timeout
        try:
            left = await self._shell(name).stop_shards(shards, patience)
        except ShardBusError as e:
            return _refusal(e)
        return {"stopped": [s for s in shards if s not in left], "stopping": left}

    async def place(self, name: str, changes: dict[str, str]) -> dict[str, Any] | None:
        """Set the places of shards; an empty text takes a place away. Answered once it is
        stored."""
        coordinator = self._coordinator(name)
        if coordinator is None:
            return None
        try:
            places = {s: Address.parse(text) if text else None for s, text in changes.items()}
            coordinator.rebalancing.check_places({p for p in places.values() if p is not None})
            await self._shell(name).override(lambda current: current.placed(places))
        except ShardBusError as e:
            return _refusal(e)
        return self.places(name)

    def _shell(self, name: str) -> CoordinatorShell:
        return self._node.singletons[region_of(self._node.regions, name).table.name].coordinator

    def _coordinator(self, name: str) -> Coordinator | None:
        """The coordinator of a type, if it rules here."""
        machine = self._shell(name).machine
        rules = machine is not None and machine.state in (
            CoordinatorState.RULING,
            CoordinatorState.RETIRING,
        )
        return machine if rules else None


def changed_state(entity_id: str, size: int, operator: str) -> Note:
    """Return what the log says about a state that an operator has changed."""
    what = f"{size} bytes" if size else "removed"
    kind = "state_set" if size else "state_removed"
    text = f"of {entity_id!r:.100}: {what}, by {operator:.100}"
    return Note(kind, text, entity_id=entity_id)


def _is_in(region: RegionShell, entity_id: str, shard: str) -> bool:
    """True if the entity belongs to the shard. What is stored may have an id of another release."""
    try:
        return region.router.shard_of(entity_id) == shard
    except ConfigError:
        return False


def _pace(coordinator: Coordinator) -> dict[str, Any]:
    """How fast the coordinator moves shards, and why it may not."""
    balance = coordinator.rebalancing
    moving, most = balance.moves_in_flight
    held = balance.why_not()
    return {"paused": balance.paused, "held": held, "moving": moving, "moves_at_a_time": most}


def _mailboxes(shell: RegionShell) -> dict[str, Any]:
    """What waits in the mailboxes of a type, their bound, and how many senders wait for room."""
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
            "method": method if method and not method.startswith("$") else "receive",
            "count": failures.count,
            "last": [[now - one.at, *one[1:]] for one in failures.last],
        }
        for method, failures in islice(methods, FAILING_MAX)
        if now - failures.last[-1].at <= FAILED_S
    ]


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


def _refusal(error: ShardBusError) -> dict[str, Any]:
    """A refusal as an answer, which `ShardControl` raises again."""
    return {"refused": [type(error).__name__, error.message, error.hint]}


def _changed_settings(node: AdminServices) -> Iterator[tuple[str, str]]:
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
