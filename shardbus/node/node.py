"""A node: composes the parts of two loops.

The cluster thread runs membership. The application loop, in this module, runs sessions, regions,
entities, coordinators and HTTP. The two exchange immutable events only: an effect of membership
arrives by `call_soon_threadsafe`, and events for membership are posted to the cluster thread.

    start   open the store, listen on the ROUTER, create the regions
    join    start membership, and join unless the operator decides when
    leave   hand everything off and leave, or stop with the whole cluster (`shutdown`)
    close   release everything at once; a node that is downed does only this, since other nodes may
            run its shards already

Source: docs/architecture.md; S0.1, S1.60-S1.62, S2.52.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from shardbus.config.replicas import is_replicated, own_replica
from shardbus.config.settings import Settings, ShardingSettings
from shardbus.entities import durable_mailboxes, entity_sends
from shardbus.entities.entity_type import EntityTypes
from shardbus.entities.gate import SuspensionGate
from shardbus.entities.message_times import MARK_S
from shardbus.entities.type_settings import settings_by_type
from shardbus.errors import NodeLost, Refused
from shardbus.guarded_log import GuardedLog
from shardbus.ids import Address, NodeId
from shardbus.membership import events as cluster
from shardbus.membership.joining import STORE_IDENTITY
from shardbus.membership.known_types import announced
from shardbus.membership.member import FEATURES, REPLICA, Member, Status
from shardbus.membership.view import (
    DowningDecided,
    HandlingResumed,
    HandlingSuspended,
    MembershipView,
)
from shardbus.membership.vitals import Vitals
from shardbus.node.dispatch import Dispatcher
from shardbus.node.downing_log import fingerprint
from shardbus.node.members import ClusterMembers
from shardbus.node.membership_link import LINK_TEST, MembershipLink
from shardbus.node.recent_drops import PERIOD_S
from shardbus.node.records import NodeRecords
from shardbus.node.reports import NodeReports
from shardbus.node.rpc import NodeRpc
from shardbus.node.session_loss import SessionLoss
from shardbus.node.shutdown_phases import Phases
from shardbus.node.store_upkeep import StoreUpkeep
from shardbus.node.subscriptions import Subscriptions
from shardbus.node.ticker import SECOND, Ticker
from shardbus.routing.delivering import DeliveryCounts, DeliverySender
from shardbus.routing.refs import ASK_TIMEOUT_MS, Ref
from shardbus.routing.tracer import Tracer, open_tracing
from shardbus.sharding import events
from shardbus.sharding.allocation.circular import Ring
from shardbus.sharding.allocation.least_load import LeastLoad
from shardbus.sharding.allocation.selection import may_block, strategy_for
from shardbus.sharding.allocation.strategies import AllocationStrategy
from shardbus.sharding.coordinator.coordinator import Coordinator
from shardbus.sharding.coordinator.registry import cluster_minimum
from shardbus.shells.cluster_thread import ClusterThread, MembershipRunner
from shardbus.shells.region import RegionShell, check_own_table, region_of
from shardbus.shells.reminded_shards import SelfActing
from shardbus.shells.singleton import SingletonShell
from shardbus.shells.type_members import TypeMembers
from shardbus.store.entity_state import EntityStates
from shardbus.store.group_commit import ATTEMPTS
from shardbus.store.protocol import HasKeys, StateStore
from shardbus.store.urls import family
from shardbus.task_set import failed_tasks
from shardbus.tasks.eager import OWNER
from shardbus.transport.asks import Unsent
from shardbus.transport.endpoint import Endpoint
from shardbus.transport.endpoint_events import EndpointEvents
from shardbus.transport.environment import Environment
from shardbus.transport.fork_guard import guard
from shardbus.transport.permissions import JOIN_REQUESTS, authorize
from shardbus.transport.send_buffer import SEND_BUFFER_FULL, SendBufferLimit
from shardbus.transport.session import Session
from shardbus.transport.zmq.curve import Keyring
from shardbus.transport.zmq.network import ZmqNetwork
from shardbus.wire import gossip
from shardbus.wire.control import encode_control

log = GuardedLog("shardbus.node")

STORE_TROUBLE = ("store_failed", "persist_failed")
"""Notes of coordinators that could not use the store."""
STORE_MARK_S = 10
"""Between two marks of the store's latencies (`EntityStates.mark`)."""
UNREACHABLE_TIMEOUT_S = 0.5
"""For an answer of a member that is unreachable."""


class Node:
    """One node of a cluster, in the running loop."""

    def __init__(
        self,
        name: str,
        types: EntityTypes,
        settings: Settings,
        store: StateStore,
        *,
        environment: Environment | None = None,
        membership: Callable[..., MembershipRunner] = ClusterThread,
    ) -> None:
        self.loop, self.settings, self.store = asyncio.get_running_loop(), settings, store
        security, place = settings.security, settings.node
        self.keyring = Keyring.at(security.secret, security.keys, security.allowed)
        self.environment = environment or Environment(network=ZmqNetwork(self.keyring))
        self.me = NodeId(
            *Address.advertised(place.advertise or place.host, place.port), self.environment.uid
        )
        self.regions: dict[str, RegionShell] = {}
        self.singletons: dict[str, SingletonShell] = {}
        me, loop = self.me, self.loop
        self.members = ClusterMembers(me, loop)
        self.membership = MembershipLink(
            name, me, settings, store, self.members, loop, membership,
            self.environment.network.who_listens,
        )  # fmt: skip
        self.records = NodeRecords(
            me, types, settings, loop, self.environment.wall_clock, self._dropped
        )
        self.subscriptions = Subscriptions(me, self.records.events)
        self._make_services()
        self._make_sessions()
        by_load = dict(self._add_types(types))
        self.reports.loads.switch(by_load)

    def _make_services(self) -> None:
        """Make the parts that do work beside the messages."""
        environment = self.environment
        self.gate = SuspensionGate(environment.clock)
        self.phases = Phases(self.settings.shutdown)
        self.tracer = self._make_tracer()
        """None unless tracing is enabled."""
        counts = DeliveryCounts(self.records.letters.undelivered)
        self.deliverer = DeliverySender(str(self.me), self.settings.delivery, counts, self.loop)
        """The deliveries of this process."""
        self.rpc = NodeRpc(self.me, self._session_to, self._query_timeout, self.members.ids)
        self.rpc.register(LINK_TEST, lambda: True)
        self.reports = NodeReports(
            self.me, self.regions, environment, self.loop.time, self._publish_vitals, self.send,
            self.settings.kubernetes,
        )  # fmt: skip
        self._upkeep = StoreUpkeep(
            self.store, self.regions, self.singletons, self.gate, self.rpc, self.membership,
            self.members, self.settings.cluster.coordinator_stall, environment.wall_clock,
        )  # fmt: skip

    def _make_sessions(self) -> None:
        """Make the parts that carry messages."""
        uid, loop, drops = self.me.uid, self.loop, self.records.drops
        self._ticker = Ticker()
        self.dispatcher = self._make_dispatcher()
        endpoint = self.endpoint = self._make_endpoint(uid)
        self.dispatcher.attach(endpoint)
        within = ATTEMPTS * self.settings.store.timeout
        clock = self.environment.clock
        self.states = EntityStates(self.store, uid, within, endpoint.end_turn, clock)
        self.session_loss = SessionLoss(
            self.regions, endpoint, self.dispatcher, self.rpc, drops, self.is_member, loop
        )
        limit = endpoint.send_buffer_limit
        self.loopback = Session(
            str(self.me), loop, endpoint.clock, self.dispatcher, None, limit, endpoint.sent
        )
        self.loopback.tag, self.loopback.mark = self.me, drops.own_mark

    def _session_to(self, node: NodeId) -> Session:
        return self.endpoint.session_to(node.address, node)

    def _make_dispatcher(self) -> Dispatcher:
        return Dispatcher(
            self.regions,
            self.singletons,
            self.rpc,
            self.records.drops,
            self.records.refused,
            self.records.letters,
            self.members.hosting,
            self._may_coordinate,
            self.members.with_type,
        )

    # ---- start

    async def start(self) -> None:
        """Open the store and listen; no shard runs yet.

        Raises:
            ConfigError: a port is taken.
            StoreUnavailable: the store does not answer.
        """
        guard(self)
        await self._upkeep.open()
        self._warn_of_levels()
        self.endpoint.start(self.settings.node.host, self.settings.node.port)
        self._upkeep.start()
        self._add_periodic_tasks()

    def _warn_of_levels(self) -> None:
        if is_replicated(self.settings.store.url):
            from shardbus.store.replicated_data import warn_of_levels

            warn_of_levels(self.store, self.settings.data)

    @property
    def store_identity(self) -> str | None:
        """The identity of the store; None until it has answered: there is nothing to close."""
        return self._upkeep.identity

    def _make_endpoint(self, uid: int) -> Endpoint:
        endpoint = Endpoint(
            self.membership.cluster_name,
            str(self.me),
            uid,
            self.dispatcher,
            node=self.me,
            secret=self.environment.secret,
            events=EndpointEvents(
                lost=self._session_lost,
                client=self.dispatcher.on_client,
                membership=self._on_membership,
                denied=self.membership.denied,
                refused=self.membership.session_refused,
                tick=self._ticker.beat,
            ),
            authorize=self.keyring.authorize if self.keyring is not None else authorize,
            network=self.environment.network,
            send_buffer_limit=SendBufferLimit(self.settings.node.send_buffer_bytes),
        )
        endpoint.set_members(())
        return endpoint

    def _make_tracer(self) -> Tracer | None:
        settings = self.settings.tracing
        if not settings.enabled:
            return None
        dice, outside = self.environment.dice, lambda: OWNER.get() is None
        return open_tracing(str(self.me), settings.ratio, dice, self.loop, outside, settings.limit)

    def _add_types(self, types: EntityTypes) -> Iterator[tuple[str, ShardingSettings]]:
        """Make a region of each type, and the singleton of its coordinator. Yields the types whose
        load is reported, with their settings."""
        ring, chosen = Ring(), settings_by_type(types, self.settings)
        states = self.states if self.tracer is None else self.tracer.keeper(self.states)
        for name, entity_type in types.items():
            settings, parent = chosen[name], entity_type.interface.within
            within = self.regions[parent.name] if parent is not None else None
            hosts = (
                entity_type.hosted_by(settings.role, self.settings.node)
                if within is None
                else within.hosts
            )
            region = self.regions[name] = RegionShell(
                entity_type, settings, self, states, self.ref, hosts=hosts, within=within
            )
            region.host.wall_clock = self.environment.wall_clock
            if (projecting := region.host.runner.projecting) is not None:
                self.regions[projecting.events.source].host.runner.follow(projecting)
            strategy = strategy_for(
                name, self.settings.sharding, settings, entity_type.strategy, ring
            )
            if within is None:
                self.singletons[name] = self._make_singleton(region, settings, strategy)
                instances = entity_type.interface.instances
                follows = instances is not None and instances.follows_load
                if isinstance(strategy, LeastLoad) or may_block(strategy) or follows:
                    yield name, settings

    def _make_singleton(
        self, region: RegionShell, settings: ShardingSettings, strategy: AllocationStrategy
    ) -> SingletonShell:
        section, interface = self.settings.cluster, region.entity_type.interface
        name, margin = region.name, section.downing.down_removal_margin
        least, threads = cluster_minimum(section, settings.role), may_block(strategy)

        def make() -> Coordinator:
            layout, instances, me = interface.layout, interface.instances, self.me
            return Coordinator(
                name, me, layout, settings, strategy, instances, least, threaded=threads
            )

        def self_acting() -> SelfActing:
            kinds = [other.entity_type for other in self.regions.values() if other.table is region]
            reminds = {
                kind.name: self.regions[kind.name].router.shard_of for kind in kinds if kind.reminds
            }
            projections = [kind.projection for kind in kinds if kind.projection is not None]
            shards = interface.shards if interface.shard_of is None else 0
            listed = [k.name + durable_mailboxes.LIST for k in kinds if k.durable_mailbox]
            listed += [k.name + entity_sends.LIST for k in kinds if entity_sends.delivers(k)]
            return SelfActing(reminds, {p.source for p in projections}, listed, shards)

        return SingletonShell(region, make, self, margin, section.singleton, self_acting)

    def _add_periodic_tasks(self) -> None:
        """Register the work of every tick, and the sweeps that run once a second."""
        add, endpoint, slow = self._ticker.add, self.endpoint, self.records.slow
        add("suspension", lambda tick: self.gate.poll())
        for name, region in self.regions.items():
            add(f"time of {name}", region.advance)
        for name, region in self.regions.items():
            for what, sweep in region.host.sweeps().items():
                add(f"{what} of {name}", sweep, SECOND)
            add(f"handlers of {name}", partial(region.find_slow_handlers, slow), SECOND)
            add(f"samples of {name}", region.pace, SECOND)
            self.every(f"latencies of {name}", MARK_S, region.times.mark)
        add("loads", self.reports.loads.on_tick, SECOND)
        add("latencies of the store", lambda tick: self.states.mark(), STORE_MARK_S * SECOND)
        add("samples of asks", lambda tick: endpoint.sent.pace(), SECOND)
        quarantine = partial(self.membership.quarantine_stalled_peers, endpoint, self.rpc)
        add("quarantine", lambda tick: quarantine(), SECOND)
        add("loopback", lambda tick: self.loopback.expire())
        add("drops", self.records.drops.report)
        add("refusals", lambda tick: self.records.log_refused())
        add("recent drops", self.records.recent_drops.sample, PERIOD_S * SECOND)

    def every(self, name: str, period: int, run: Callable[[], object]) -> None:
        """Call a function every `period` seconds, at the beats of the ticker."""
        self._ticker.add(name, lambda tick: run(), period * SECOND)

    def join(self, http: str, rejoins_by: Sequence[str] = (), turn: int = 1) -> None:
        """Start membership, and join unless `node.join` is `manual`.

        Args:
            http: HOST:PORT of this node's HTTP.
            rejoins_by: the members through which it joins again after it was downed.
            turn: how many times in a row it does so.
        """
        settings, membership = self.settings.node, self.membership
        bound = settings.gossip_port or settings.port + 1
        gossip = Address.advertised(settings.advertise_gossip or self.me.host, bound)
        types = {name: region.entity_type for name, region in self.regions.items()}
        member = Member(
            node=self.me,
            gossip_port=gossip.port,
            gossip_host="" if gossip.host == self.me.host else gossip.host,
            http=http,
            roles=tuple(settings.roles),
            version=settings.version,
            zone=settings.zone,
            features=(*FEATURES, *announced(types), *self._own_replica()),
        )
        shared = fingerprint(self.settings.cluster)
        shared["store.url"] = family(self.settings.store.url)
        if membership.joins.shares_store:
            shared[STORE_IDENTITY] = self._upkeep.identity or ""
        for region in self.regions.values():
            shared |= region.shared
        stalled, confirmed = self.records.slow.stalled, self.gate.confirmed
        membership.start(member, shared, self.keyring, self._notified, stalled, confirmed)
        self.reports.vitals.start()
        self._ticker.add("vitals", self.reports.vitals.on_tick)
        self._ticker.add("sign of life", lambda tick: self.cluster.app_alive())
        self._ticker.add("joining", lambda tick: membership.watch_joining(), SECOND)
        self._ticker.add("voters", lambda tick: self._upkeep.show_voters(), SECOND)
        membership.joins.begin(rejoins_by, turn)

    def _own_replica(self) -> tuple[str, ...]:
        """Return the feature that announces this node's replica, none if it has none."""
        address = own_replica(self.settings)
        return (f"{REPLICA}{address}",) if address is not None else ()

    # ---- effects of membership

    def _publish_vitals(self, vitals: Vitals) -> None:
        self.cluster.post(cluster.SetVitals(vitals))

    def _notified(self, effect: object) -> None:
        """Hand an effect to the loop; called in the cluster thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the node with it
            self.loop.call_soon_threadsafe(self._on_cluster, effect)

    def _on_cluster(self, effect: object) -> None:
        match effect:
            case cluster.ViewChanged(view=view):
                self._on_view(view)
            case cluster.SendControl(to=to, message=message):
                body = gossip.encode(message)
                if isinstance(message, JOIN_REQUESTS):
                    self.endpoint.request_membership(to, body)
                elif isinstance(to, NodeId):
                    self.endpoint.answer_membership(to, body)
            case (
                cluster.AcquireLease()
                | cluster.ReadClaim()
                | cluster.WriteClaim()
                | cluster.FreeClaim()
            ):
                self.membership.requests.perform(effect)
            case cluster.Stopped(reason=reason):
                for singleton in self.singletons.values():
                    singleton.on_membership_ended(gracefully=reason == cluster.LEFT)
                self.membership.ended(reason)
            case cluster.CommandRefused(reason=reason):
                log.error("the cluster refuses: %s", reason)
                self.membership.refusals.append(reason)
            case cluster.Notice(event=event):
                self._keep_notice(event)
                self.records.decisions.record(event)
                self.subscriptions.on_notice(event)
            case _:
                pass

    def _keep_notice(self, event: object) -> None:
        """Keep for the pages why membership has suspended this node, and its reports of other
        clusters."""
        self.membership.requests.on_notice(event)
        match event:
            case HandlingSuspended(reason=reason):
                self.gate.suspended(reason)
            case HandlingResumed():
                self.gate.resumed()
            case DowningDecided(decision=decision):
                why = f"{decision.rule}: {decision.reason}"
                self.records.lost_nodes.decided(decision.down, why)

    def _on_view(self, view: MembershipView) -> None:
        former, members = self.view, self.members
        gone = members.update(view)
        self.subscriptions.on_view(view)
        self.endpoint.set_members(members.may_connect)
        for node, member in gone.items():
            if node != self.me:
                self._on_gone(node, member)
        self.records.drops.somebody_leaves = members.somebody_leaves
        zones = members.zones()
        for region in self.regions.values():
            region.set_zones(zones)
        self._update_singletons(former, view)
        self.reports.on_view(view)
        stops = self.membership.cluster_stops
        if view.status is Status.READY_FOR_SHUTDOWN and view.converged and not stops.done():
            stops.set_result(None)
        self.dispatcher.notify_clients()

    def _update_singletons(self, former: MembershipView | None, view: MembershipView) -> None:
        """Update the singletons that a new view concerns: all of them if it shows other members,
        otherwise only for types with another epoch."""
        same = former is not None and view.same_members(former)
        epochs = former.epochs if former is not None else {}
        members = TypeMembers(view)
        for name, singleton in self.singletons.items():
            if not same or view.epochs.get(name) != epochs.get(name):
                singleton.update(members)

    def _on_gone(self, node: NodeId, before: Member) -> None:
        """Act on a member that is down or was removed. The process of one that leaves in order ends
        before its removal, and is unreachable for a moment."""
        died = self.members.died(node)
        if self.members.is_down(node) or (died and before.status is not Status.EXITING):
            self.records.lost_nodes.gone(node, self.loop.time())
        self.session_loss.member_gone(node, died=died)

    @property
    def failed_tasks(self) -> int:
        """Tasks of this node's loops that ended by an error."""
        runner = self.membership.runner
        return failed_tasks(self.loop) + (runner.failed_tasks if runner is not None else 0)

    @property
    def cluster(self) -> MembershipRunner:
        """The cluster thread of a node that has begun to join."""
        assert self.membership.runner is not None
        return self.membership.runner

    @property
    def view(self) -> MembershipView | None:
        """The last view of the cluster."""
        return self.members.view

    def rekey(self) -> bool:
        """Read the file of the cluster's secret again, and let the replicas of `cluster://` do so.
        If it has changed, listen under the newest secret, and end every connection that was
        accepted before; peers connect again, and sessions go on. Returns True if it has changed.

        Raises:
            Refused: this node has no secret.
            ConfigError: the file cannot be used. Nothing changed.
        """
        if self.keyring is None:
            raise Refused("this node has no secret", hint="start it with security.secret")
        if isinstance(self.store, HasKeys):
            self.store.rekey()
        if not self.keyring.adopt():
            return False
        self.environment.network.rekey()
        if self.membership.runner is not None:
            self.membership.runner.rekey()
        log.warning("listening under secret %s", self.keyring.newest.fingerprint)
        return True

    def _may_coordinate(self, node: NodeId, entity_type: str) -> bool:
        """True if the node may run the type's coordinator, now or a moment ago."""
        region = self.regions.get(entity_type)
        return region is None or self.members.may_coordinate(
            node, entity_type, region.coordinator_role
        )

    def _on_membership(self, sender: NodeId, body: bytes, contact: Address | None) -> None:
        if reason := self.membership.received(sender, body, contact):
            self.endpoint.count_drop(reason)

    def _session_lost(self, session: Session, unsent: list[Unsent]) -> None:
        self.session_loss.session_lost(session, unsent)

    # ---- services of regions and coordinators

    def send(self, to: NodeId, entity_type: str, message: object) -> None:
        """Send a machine's message to a machine of a node, or to a client."""
        control = encode_control(entity_type, message)
        if to == self.me:
            self.loopback.outbox.control(control)
        elif to in self.dispatcher.clients:
            self.dispatcher.clients[to].outbox.control(control)
        elif to in self.members:
            self.endpoint.session_to(to.address, to).outbox.control(control)

    def write_meta(self, name: str, data: bytes) -> None:
        """Spread bytes of the application to every node with the gossip."""
        self.cluster.post(cluster.SetMeta(name, data))

    def is_member(self, node: NodeId) -> bool:
        """True if membership reports when this node's process ends."""
        return node in self.members

    def coordinator_of(self, entity_type: str) -> NodeId | None:
        """The node of the type's coordinator, if it is known."""
        return self.regions[entity_type].coordinator

    def epoch_met(self, entity_type: str, epoch: int) -> None:
        """Look for another cluster if no member announces this epoch, which the store has shown."""
        self.membership.requests.epoch_met(entity_type, epoch)

    def epoch_claimed(self, entity_type: str, epoch: int) -> None:
        """Spread the epoch of a coordinator on this node, and register the region here with it."""
        self.membership.record_epoch(entity_type, epoch)
        self.regions[entity_type].router.handle(events.CoordinatorAt(self.me))

    def note(self, entity_type: str, note: events.Note) -> None:
        """Count and log a machine's note."""
        if note.kind in STORE_TROUBLE:
            self._upkeep.suspect(entity_type)
        region = self.regions.get(entity_type)
        self.records.note(entity_type, note, region.router.region.epoch if region else 0)

    def _dropped(self) -> dict[tuple[str, str], int]:
        """Count the messages that this node has dropped, by entity type and reason."""
        dropped = {
            (name, reason): count
            for name, region in self.regions.items()
            for reason, count in region.host.counts.dropped.items()
        }
        refused = self.endpoint.send_buffer_limit.refused
        return dropped | {(name, SEND_BUFFER_FULL): count for name, count in refused.items()}

    def _query_timeout(self, node: NodeId, entity_type: str) -> float:
        """Seconds to wait for a node's answer: few if the node is unreachable."""
        region = self.regions.get(entity_type)
        settings = self.settings.sharding if region is None else region.settings
        seconds = settings.shard_region_query_timeout
        lost = self.members.is_unreachable(node)
        return min(seconds, UNREACHABLE_TIMEOUT_S) if lost else seconds

    # ---- services of the application

    def ref(self, entity_type: Any, entity_id: str) -> Any:
        """A reference for code inside this node. `entity_type`: its class or its name.

        Raises:
            UnknownEntityType: this application has no such type.
        """
        return Ref(region_of(self.regions, entity_type).sender, entity_id, ASK_TIMEOUT_MS)

    def set_active_entity_limit(self, entity_type: Any, limit: int) -> None:
        """Bound the type's entities in memory on this node to `limit`; 0 is no bound.

        Raises:
            UnknownEntityType: this application has no such type.
            Refused: the type's entities are remembered.
        """
        region_of(self.regions, entity_type).host.set_active_entity_limit(limit)

    async def shutdown_region(self, entity_type: Any) -> None:
        """Hand off every shard of a type on this node. The region is a proxy from then on: it sends
        and hosts nothing, until this process ends. Returns when nothing of the type runs here.

        Raises:
            UnknownEntityType: this application has no such type.
            Refused: the type lives within another.
            NodeLost: this node's membership ended first.
        """
        region = region_of(self.regions, entity_type)
        check_own_table(region)
        drained = region.shutdown()
        ends: set[asyncio.Future[Any]] = {drained, self.membership.stopped}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not drained.done():
            raise NodeLost(f"{self.me} is no member any more")

    def region_state(self, entity_type: Any) -> dict[str, list[str]]:
        """Return the type's shards on this node, each with the ids of its entities in memory.

        Raises:
            UnknownEntityType: this application has no such type.
        """
        host = region_of(self.regions, entity_type).host
        return {shard: sorted(ids) for shard, ids in host.activations.ids_by_shard().items()}

    # ---- the end

    async def close(self) -> None:
        """Release everything at once. May be called at any time after `start`."""
        self.gate.end()
        self._ticker.stop()
        self.reports.stop()
        self._upkeep.stop()
        for singleton in self.singletons.values():
            singleton.close()
        self.session_loss.closing()
        for region in self.regions.values():
            region.give_up_undelivered()
        # The report leaves ahead of the departure notice.
        self.records.drops.report(self.endpoint.clock.tick, last=True)
        self.deliverer.close("the node of this process has ended")
        for region in self.regions.values():
            region.close()
        ends = [singleton.end() for singleton in self.singletons.values()]
        leases = (region.shard_leases.end() for region in self.regions.values())
        await asyncio.gather(*ends, *leases)
        await self.membership.close()
        sessions = self.endpoint.sessions()
        self.endpoint.close()
        self.session_loss.closed(sessions)
        await self.store.close()
