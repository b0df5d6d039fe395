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
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from shardbus.config.settings import Settings, ShardingSettings
from shardbus.entities.dead_letters import DeadLetters
from shardbus.entities.entity_type import EntityType
from shardbus.entities.gate import SuspensionGate
from shardbus.entities.message_times import MARK_S
from shardbus.entities.slow_handlers import SlowHandlers
from shardbus.entities.type_settings import settings_by_type
from shardbus.errors import NodeLost, Refused, RequestError, ShardBusError
from shardbus.guarded_log import GuardedLog
from shardbus.ids import Address, NodeId
from shardbus.membership import events as cluster
from shardbus.membership.joining import STORE_IDENTITY
from shardbus.membership.known_types import announced
from shardbus.membership.member import FEATURES, Member, Status, age_order
from shardbus.membership.messages import ControlMessage, JoinRefused
from shardbus.membership.view import (
    DowningDecided,
    HandlingResumed,
    HandlingSuspended,
    MembershipView,
)
from shardbus.membership.vitals import Vitals
from shardbus.node.dispatch import Dispatcher
from shardbus.node.downing_log import DowningLog, fingerprint
from shardbus.node.event_log import level_of, note_fields, remark
from shardbus.node.join_attempts import JoinAttempts
from shardbus.node.lost_nodes import LostNodes
from shardbus.node.membership_store import MembershipStore
from shardbus.node.recent_drops import PERIOD_S, RecentDrops
from shardbus.node.recent_events import RecentEvents
from shardbus.node.rpc import NodeRpc
from shardbus.node.session_loss import DEPART_S, SessionLoss
from shardbus.node.shutdown_phases import Phases
from shardbus.node.stalled_peers import StalledPeers
from shardbus.node.subscriptions import Subscriptions
from shardbus.node.ticker import SECOND, Ticker
from shardbus.node.view_ages import ViewAges
from shardbus.routing.delivering import DeliveryCounts, DeliverySender
from shardbus.routing.paths import ancestors
from shardbus.routing.refs import ASK_TIMEOUT_MS, Ref
from shardbus.routing.tracer import Tracer, open_tracing
from shardbus.sharding import events
from shardbus.sharding.allocation.circular import Ring
from shardbus.sharding.allocation.least_load import LeastLoad
from shardbus.sharding.allocation.selection import may_block, strategy_for
from shardbus.sharding.allocation.strategies import AllocationStrategy
from shardbus.sharding.coordinator.coordinator import Coordinator
from shardbus.sharding.coordinator.epoch_claim import CoordinatorState
from shardbus.sharding.coordinator.registry import cluster_minimum
from shardbus.sharding.messages import Home
from shardbus.shells.cluster_thread import ClusterThread, MembershipRunner
from shardbus.shells.load_reports import LoadReports
from shardbus.shells.pod_deletion_cost import PodDeletionCost
from shardbus.shells.region import RegionShell, check_own_table, region_of
from shardbus.shells.reminded_shards import ShardOf
from shardbus.shells.singleton import SingletonShell
from shardbus.shells.state_expiry import EXPIRE_STATES, StateExpiry
from shardbus.shells.store_reach import StoreReach, reaches_store
from shardbus.shells.type_members import HOSTING, TypeMembers
from shardbus.shells.vitals import VitalsSampler
from shardbus.store import node_registry
from shardbus.store.entity_state import EntityStates
from shardbus.store.group_commit import ATTEMPTS
from shardbus.store.protocol import StateStore, on_new_server
from shardbus.store.urls import family
from shardbus.task_set import TaskSet, failed_tasks
from shardbus.tasks.eager import OWNER
from shardbus.transport.asks import Unsent
from shardbus.transport.drop_reports import DropTallies, Origin, RefusedTells
from shardbus.transport.endpoint import Endpoint
from shardbus.transport.endpoint_events import EndpointEvents
from shardbus.transport.environment import Environment
from shardbus.transport.fork_guard import guard
from shardbus.transport.kubernetes_api import PodApi
from shardbus.transport.permissions import JOIN_ANSWERS, JOIN_REQUESTS, authorize
from shardbus.transport.send_buffer import SEND_BUFFER_FULL, SendBufferLimit
from shardbus.transport.session import Session
from shardbus.transport.zmq.curve import Keyring
from shardbus.transport.zmq.network import ZmqNetwork
from shardbus.wire import gossip
from shardbus.wire.control import encode_control

log = GuardedLog("shardbus.node")

REACHES_STORE = "reaches_store"
"""The question whether a node can use the store."""
STORE_TROUBLE = ("store_failed", "persist_failed")
"""Notes of coordinators that could not use the store."""
STORE_MARK_S = 10
"""Between two marks of the store's latencies (`EntityStates.mark`)."""
UNREACHABLE_TIMEOUT_S = 0.5
"""For an answer of a member that is unreachable."""
LINK_TEST = "link_test"
"""A question that every node answers at once."""


class Node:
    """One node of a cluster, in the running loop.

    `stopped` is done when membership has ended, with its reason; `cluster_stops` when all members
    know that the whole cluster stops. `on_leave` begins to leave, once the process can.
    """

    def __init__(
        self,
        name: str,
        types: Mapping[str, EntityType],
        settings: Settings,
        store: StateStore,
        *,
        environment: Environment | None = None,
        membership: Callable[..., MembershipRunner] = ClusterThread,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.cluster_name, self.types, self.settings, self.store = name, types, settings, store
        security, place = settings.security, settings.node
        self.keyring = Keyring.at(security.secret, security.keys, security.allowed)
        self._listens_under = self.keyring.state if self.keyring is not None else ()
        self.environment = environment or Environment(network=ZmqNetwork(self.keyring))
        self.me = NodeId(
            *Address.advertised(place.advertise or place.host, place.port), self.environment.uid
        )
        self._make_membership = membership
        self._thread: MembershipRunner | None = None
        self.started = False
        """True once the store has answered: there is something to close."""
        self.stopped: asyncio.Future[str] = self.loop.create_future()
        self.cluster_stops: asyncio.Future[None] = self.loop.create_future()
        self.refusals: list[str] = []
        self.on_leave: Callable[[], None] | None = None
        self.regions: dict[str, RegionShell] = {}
        self.singletons: dict[str, SingletonShell] = {}
        self._make_views()
        self._make_reports()
        self._make_services()
        self._make_sessions()
        by_load = dict(self._add_types())
        self.load_reports.switch(by_load)

    def _make_views(self) -> None:
        """Make the parts that keep views of the cluster."""
        now = self.loop.time
        self.view: MembershipView | None = None
        self._peers: dict[NodeId, Member] = {}
        self._suspects: set[NodeId] = set()
        """Members that were unreachable in the view before the last."""
        self._departed: dict[NodeId, None] = {}
        """Nodes that were members a moment ago, and may still forward messages."""
        self.member_since: float | None = None
        """When this node became a member, on the clock of the loop."""
        self.recent_events, self.ages = RecentEvents(now), ViewAges(now())
        self.subscriptions = Subscriptions(self.me, self.recent_events)
        self.membership_store = MembershipStore(self.store, self._post, lambda: self.view)
        who_listens = self.environment.network.who_listens
        self._joins = JoinAttempts(
            self.me.address, self.settings, self.store, self.loop, self._post,
            lambda: self.is_member_yet, who_listens,
        )  # fmt: skip
        self._store_identity = ""

    def _make_reports(self) -> None:
        """Make the parts that count and keep the events of this node."""
        self.notes: dict[tuple[str, str], int] = {}
        """Notes of the machines, counted by entity type and name."""
        self.decisions = DowningLog()
        self.refused = RefusedTells(self.types)
        self.drops = DropTallies(partial(self.refused.record, "another node"))
        self.letters = DeadLetters(self._sender_of, self.environment.wall_clock)
        self.letters.keep_strangers(self.settings.sharding)
        self.lost_nodes = LostNodes()
        self.recent_drops = RecentDrops(self._drops)
        self.stalled_peers = StalledPeers(self.settings.cluster.quarantine_after)
        self.slow = SlowHandlers(self.loop, self.settings.cluster.app_block_warning)

    def _make_services(self) -> None:
        """Make the parts that do work beside the messages."""
        self.gate = SuspensionGate(self.environment.clock)
        self.phases = Phases(self.settings.shutdown)
        self.pod_cost = self._make_pod_cost()
        """None unless this node's pod gets a deletion cost."""
        self.tracer = self._make_tracer()
        self.deliverer = DeliverySender(
            str(self.me),
            self.settings.delivery,
            DeliveryCounts(self.letters.undelivered),
            self.loop,
        )
        """The deliveries of this process."""
        """None unless tracing is enabled."""
        self.rpc = NodeRpc(self.me, self._session_to, self._query_timeout, self._member_ids)
        self.rpc.register(LINK_TEST, lambda: True)
        self.vitals = VitalsSampler(
            self.regions, self.environment, self.loop.time, self._publish_vitals
        )
        self.expiry = self._state_expiry()
        self.store_reach = self._store_reach()
        self._claimed: dict[str, int] = {}
        """The epochs that coordinators here have claimed in this turn of the loop."""
        self._reassertions, self._link_tests = TaskSet(), TaskSet()

    def _make_sessions(self) -> None:
        """Make the parts that carry messages."""
        uid, loop = self.me.uid, self.loop
        self.dispatcher = self._make_dispatcher()
        endpoint = self.endpoint = self._make_endpoint(uid)
        self.dispatcher.attach(endpoint)
        within = ATTEMPTS * self.settings.store.timeout
        clock = self.environment.clock
        self.states = EntityStates(self.store, uid, within, endpoint.end_turn, clock)
        self.session_loss = SessionLoss(
            self.regions, endpoint, self.dispatcher, self.rpc, self.drops, self.is_member, loop
        )
        limit = endpoint.send_buffer_limit
        self.loopback = Session(
            str(self.me), loop, endpoint.clock, self.dispatcher, None, limit, endpoint.sent
        )
        self.loopback.tag, self.loopback.mark = self.me, self.drops.own_mark
        self.load_reports = LoadReports(
            self.me, self.regions, self.environment, loop.time, self.send
        )
        self._ticker = Ticker(endpoint.clock, loop)

    def _session_to(self, node: NodeId) -> Session:
        return self.endpoint.session_to(node.address, node)

    def _make_dispatcher(self) -> Dispatcher:
        return Dispatcher(
            self.regions,
            self.singletons,
            self.rpc,
            self.drops,
            self.refused,
            self.letters,
            self.hosting_members,
            self.may_coordinate,
            self.members_with,
        )

    # ---- start

    async def start(self) -> None:
        """Open the store and listen; no shard runs yet.

        Raises:
            ConfigError: a port is taken.
            StoreUnavailable: the store does not answer.
        """
        guard(self)
        await self.store.start()
        self._store_identity = await self.store.identity()
        self.started = True
        self.endpoint.start(self.settings.node.host, self.settings.node.port)
        on_new_server(self.store, self._reassert)
        self.expiry.start()
        self.store_reach.start()
        self._add_periodic_tasks()
        self._ticker.start()

    def _sender_of(self, mark: int) -> str:
        """Return the name of the process that sent a tell with this mark; empty if unknown."""
        own = mark in (Origin.OWN, self.drops.own_mark)
        return str(self.me) if own else self.drops.sender_of(mark)

    def _make_endpoint(self, uid: int) -> Endpoint:
        endpoint = Endpoint(
            self.cluster_name,
            str(self.me),
            uid,
            self.dispatcher,
            node=self.me,
            secret=self.environment.secret,
            events=EndpointEvents(
                lost=self._session_lost,
                client=self.dispatcher.on_client,
                membership=self._on_membership,
                denied=self._on_denied,
                refused=self._on_session_refused,
            ),
            authorize=self.keyring.authorize if self.keyring is not None else authorize,
            network=self.environment.network,
            send_buffer_limit=SendBufferLimit(self.settings.node.send_buffer_bytes),
        )
        endpoint.set_members(())
        return endpoint

    def _make_pod_cost(self) -> PodDeletionCost | None:
        settings = self.settings.kubernetes
        if not settings.deletion_costs:
            return None
        return PodDeletionCost(settings.deletion_costs, PodApi(settings, os.environ).annotate)

    def _make_tracer(self) -> Tracer | None:
        settings = self.settings.tracing
        if not settings.enabled:
            return None
        dice, outside = self.environment.dice, lambda: OWNER.get() is None
        return open_tracing(str(self.me), settings.ratio, dice, self.loop, outside, settings.limit)

    def _add_types(self) -> Iterator[tuple[str, ShardingSettings]]:
        """Make a region of each type, and the singleton of its coordinator. Yields the types whose
        load is reported, with their settings."""
        ring, chosen = Ring(), settings_by_type(self.types, self.settings)
        states = self.states if self.tracer is None else self.tracer.keeper(self.states)
        for name, entity_type in self.types.items():
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
        own, interface = self.settings.cluster, region.entity_type.interface
        name, margin = region.name, own.downing.down_removal_margin
        least, threads = cluster_minimum(own, settings.role), may_block(strategy)

        def make() -> Coordinator:
            layout, instances, me = interface.layout, interface.instances, self.me
            return Coordinator(
                name, me, layout, settings, strategy, instances, least, threaded=threads
            )

        def reminded() -> dict[str, ShardOf]:
            kinds = [one.entity_type for one in self.regions.values() if one.entity_type.reminds]
            lines = [(kind.name, [kind.interface, *ancestors(kind.interface)]) for kind in kinds]
            names = [kind for kind, line in lines if line[-1].name == name]
            return {kind: self.regions[kind].router.shard_of for kind in names}

        return SingletonShell(region, make, self, margin, own.singleton, reminded)

    def _add_periodic_tasks(self) -> None:
        """Register the work of every tick, and the sweeps that run once a second."""
        add = self._ticker.add
        add("suspension", lambda tick: self.gate.poll())
        for name, region in self.regions.items():
            add(f"time of {name}", region.advance)
        for name, region in self.regions.items():
            for what, sweep in region.host.sweeps().items():
                add(f"{what} of {name}", sweep, SECOND)
            add(f"handlers of {name}", partial(region.find_slow_handlers, self.slow), SECOND)
            add(f"samples of {name}", region.pace, SECOND)
            self.every(f"latencies of {name}", MARK_S, region.times.mark)
        add("loads", self.load_reports.on_tick, SECOND)
        add("latencies of the store", lambda tick: self.states.mark(), STORE_MARK_S * SECOND)
        add("samples of asks", lambda tick: self.endpoint.sent.pace(), SECOND)
        add("quarantine", lambda tick: self.quarantine_stalled_peers(), SECOND)
        add("loopback", lambda tick: self.loopback.expire())
        add("drops", self.drops.report)
        add("refusals", lambda tick: self._log_refused())
        add("recent drops", self.recent_drops.sample, PERIOD_S * SECOND)

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
        settings = self.settings.node
        bound = settings.gossip_port or settings.port + 1
        gossip = Address.advertised(settings.advertise_gossip or self.me.host, bound)
        member = Member(
            node=self.me,
            gossip_port=gossip.port,
            gossip_host="" if gossip.host == self.me.host else gossip.host,
            http=http,
            roles=tuple(settings.roles),
            version=settings.version,
            zone=settings.zone,
            features=(*FEATURES, *announced(self.types)),
        )
        shared = fingerprint(self.settings.cluster)
        shared["store.url"] = family(self.settings.store.url)
        if self._joins.shares_store:
            shared[STORE_IDENTITY] = self._store_identity
        for region in self.regions.values():
            shared |= region.shared
        self._thread = self._make_membership(
            member,
            self.cluster_name,
            self.settings.cluster,
            shared,
            bind_host=settings.host,
            bind_port=bound,
            notify=self._notified,
            stalled=self.slow.stalled,
            keyring=self.keyring,
            confirmed=self.gate.confirmed,
        )
        self.cluster.start()
        self.vitals.start()
        self._ticker.add("vitals", self.vitals.on_tick)
        self._ticker.add("sign of life", lambda tick: self.cluster.app_alive())
        self._ticker.add("joining", lambda tick: self._watch_joining(), SECOND)
        self._joins.begin(rejoins_by, turn)

    def join_by(self, seeds: Iterable[str], *, founds: bool = True) -> None:
        """Begin to join through these seeds (`JoinAttempts.by`)."""
        self._joins.by(seeds, founds=founds)

    @property
    def joining(self) -> bool:
        """True once this node has begun to join."""
        return self._joins.began

    # ---- effects of membership

    def _post(self, event: cluster.Event) -> None:
        if self._thread is not None:
            self._thread.post(event)

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
                self.membership_store.perform(effect)
            case cluster.Stopped(reason=reason):
                for singleton in self.singletons.values():
                    singleton.left(gracefully=reason == cluster.LEFT)
                if not self.stopped.done():
                    self.stopped.set_result(reason)
            case cluster.CommandRefused(reason=reason):
                log.error("the cluster refuses: %s", reason)
                self.refusals.append(reason)
            case cluster.Notice(event=event):
                self._keep_notice(event)
                self.decisions.record(event)
                self.subscriptions.on_notice(event)
            case _:
                pass

    def _reassert(self) -> None:
        """Write again the rows that another server of the store may lack, and check the claims of
        the coordinators here."""
        log.warning("the store has another server, which may have lost writes: fences are raised")
        self._reassertions.cancel()
        self._reassertions.spawn(self._register_again())
        for shell in self.regions.values():
            self._reassertions.spawn(shell.host.reassert())
        self._post(cluster.CheckClaim())
        for singleton in self.singletons.values():
            self._reassertions.spawn(singleton.coordinator.check_claim())

    def _keep_notice(self, event: object) -> None:
        """Keep for the pages why membership has suspended this node, and its reports of other
        clusters."""
        self.membership_store.on_notice(event)
        match event:
            case HandlingSuspended(reason=reason):
                self.gate.suspended(reason)
            case HandlingResumed():
                self.gate.resumed()
            case DowningDecided(decision=decision):
                why = f"{decision.rule}: {decision.reason}"
                self.lost_nodes.decided(decision.down, why)

    async def _register_again(self) -> None:
        try:
            await self.store.identity(self._store_identity)
            await node_registry.register(self.store, self.me.address)
        except ShardBusError as e:
            log.warning("the store may lack its identity and this node's address: %s", e)

    def _on_view(self, view: MembershipView) -> None:
        former, before = self.view, self._peers
        self._suspects = set(former.unreachable if former else ())
        self.view, now = view, self.loop.time()
        self.ages.seen(view, now)
        if self.member_since is None and view.status is not None:
            self.member_since = now
        self.subscriptions.on_view(view)
        alive = {m.node: m for m in view.members if m.status not in (Status.DOWN, Status.REMOVED)}
        self._peers = alive
        for node in before:
            if node not in alive:
                self._departed[node] = None
                self.loop.call_later(DEPART_S, self._departed.pop, node, None)
        self.endpoint.set_members((*alive, *self._departed))
        for node in before:
            if node not in alive and node != self.me:
                self._on_gone(node, before[node], now)
        going = (Status.LEAVING, Status.EXITING)
        self.drops.somebody_leaves = any(m.status in going for m in view.members)
        zones = {member.node: member.zone for member in view.members if member.zone}
        for region in self.regions.values():
            region.set_zones(zones)
        self._update_singletons(former, view)
        if self.pod_cost is not None:
            self.pod_cost.on_view(view)
        ready = view.status is Status.READY_FOR_SHUTDOWN and view.converged
        if ready and not self.cluster_stops.done():
            self.cluster_stops.set_result(None)
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

    def _on_gone(self, node: NodeId, before: Member, now: float) -> None:
        """Act on a member that is down or was removed. The process of one that leaves in order ends
        before its removal, and is unreachable for a moment."""
        died = self._died(node)
        down = self.view is not None and self.view.member(node) is not None
        if down or (died and before.status is not Status.EXITING):
            self.lost_nodes.gone(node, now)
        self.session_loss.member_gone(node, died=died)

    def _died(self, node: NodeId) -> bool:
        """True if a removed member was lost, and did not leave."""
        seen = self.view.member(node) if self.view is not None else None
        return node in self._suspects or (seen is not None and seen.status is Status.DOWN)

    @property
    def lag(self) -> float:
        """Seconds by which this loop is late, as the cluster thread measures it."""
        return self._thread.lag if self._thread is not None else 0.0

    @property
    def failed_tasks(self) -> int:
        """Tasks of this node's loops that ended by an error."""
        return failed_tasks(self.loop) + (self._thread.failed_tasks if self._thread else 0)

    @property
    def cluster(self) -> MembershipRunner:
        """The cluster thread of a node that has begun to join."""
        assert self._thread is not None
        return self._thread

    @property
    def watching(self) -> MembershipRunner | None:
        """The cluster thread, once it runs."""
        return self._thread

    @property
    def member_for(self) -> float:
        """Seconds since this node became a member; 0 if it is none yet."""
        since = self.member_since
        return 0.0 if since is None else self.loop.time() - since

    def describe_joining(self) -> str:
        """Return why a node waits that is in no cluster (`JoinAttempts.describe`)."""
        return self._joins.describe(self.membership_store.waits_for)

    @property
    def is_member_yet(self) -> bool:
        """True once this node is in a cluster."""
        return self.view is not None and self.view.member(self.me) is not None

    def rekey(self) -> bool:
        """Read the file of the cluster's secret again. If it has changed, listen under the newest
        secret, and end every connection that was accepted before; peers connect again, and sessions
        go on. Returns True if it has changed.

        Raises:
            Refused: this node has no secret.
            ConfigError: the file cannot be used. Nothing changed.
        """
        if self.keyring is None:
            raise Refused("this node has no secret", hint="start it with security.secret")
        self.keyring.reload()
        if self.keyring.state == self._listens_under:
            return False  # a failed handshake may have read the files already
        self._listens_under = self.keyring.state
        self.environment.network.rekey()
        if self._thread is not None:
            self._thread.rekey()
        log.warning("listening under secret %s", self.keyring.newest.fingerprint)
        return True

    def hosting_members(self) -> tuple[NodeId, ...]:
        """The members that host shards now."""
        members = self.view.members if self.view is not None else ()
        return tuple(m.node for m in members if m.status in HOSTING)

    @property
    def is_up(self) -> bool:
        """True if this node is a full member, so that its regions may register."""
        return self.view is not None and self.view.status in HOSTING

    def _state_expiry(self) -> StateExpiry:
        """Create the sweeps of idle states, and answer the questions of other nodes' sweeps."""
        expiry = StateExpiry(
            self.regions,
            self.store,
            self.gate,
            self._homes_here,
            lambda node, name, ids: self.rpc.ask(node, EXPIRE_STATES, name, ids, of=name),
            self.environment.wall_clock,
        )
        self.rpc.register(EXPIRE_STATES, expiry.expire)
        return expiry

    def _store_reach(self) -> StoreReach:
        """Create the probes of the store, and answer other nodes' probes."""

        async def answer(types: list[str]) -> bool:
            return await reaches_store(self.store, types)

        self.rpc.register(REACHES_STORE, answer)
        return StoreReach(
            self.store,
            self.settings.cluster.coordinator_stall,
            self._successors,
            lambda node, types: self.rpc.ask(node, REACHES_STORE, types),
            lambda: self._post(cluster.YieldSeniority()),
        )

    def _successors(self) -> list[NodeId]:
        """Return the members that could take over a coordinator that rules here, oldest first."""
        ruling = [singleton for singleton in self.singletons.values() if singleton.rules]
        if self.view is None or not ruling:
            return []
        away = {self.me, *self.view.unreachable}
        up = [m for m in self.view.members if m.status is Status.UP and m.node not in away]
        able = [m for m in up if any(one.may_rule_at(m) for one in ruling)]
        return [member.node for member in sorted(able, key=age_order)]

    def _homes_here(self, entity_type: str) -> Mapping[str, Home] | None:
        """Return the homes of a type's shards if this node coordinates it, None otherwise."""
        machine = self.singletons[entity_type].coordinator.machine
        rules = machine is not None and machine.state is CoordinatorState.RULING
        return machine.table.homes if machine is not None and rules else None

    def may_coordinate(self, node: NodeId, entity_type: str) -> bool:
        """True if the node may run the type's coordinator, now or a moment ago."""
        region, member = self.regions.get(entity_type), self._peers.get(node)
        if region is None or node == self.me or node in self._departed:
            return True
        if member is None or not member.may_have_type(entity_type):
            return False
        return member.has_role(region.coordinator_role)

    def members_with(self, entity_type: str) -> tuple[NodeId, ...]:
        """The hosting members that have announced the entity type, the oldest first."""
        members = self.view.members if self.view is not None else ()
        found = [m for m in members if m.status in HOSTING and m.announces(entity_type)]
        return tuple(m.node for m in sorted(found, key=age_order))

    def _on_membership(self, sender: NodeId, body: bytes, asked: Address | None) -> None:
        kind, wanted = gossip.kind_of(body), JOIN_REQUESTS if asked is None else JOIN_ANSWERS
        if kind not in wanted:
            self.endpoint.count_drop("not_allowed")
            log.warning("dropped a message of membership that %s may not send", sender)
        elif self._thread is None or (asked is not None and self._is_late(asked)):
            self.endpoint.count_drop("early")  # or late: this node does not join now
        else:
            control = cast("ControlMessage", gossip.decode(body))
            self.cluster.post(cluster.ControlReceived(sender, control, asked))

    def _is_late(self, asked: Address) -> bool:
        """True if this node has no use for an answer from there: it does not join now, and that is
        no seed of it."""
        watched = self.membership_store.suspects.union(self._joins.watched)
        return self.view is not None and asked not in watched

    def _on_session_refused(self, reason: str, address: Address) -> None:
        """A node that this node asked to join refuses its session, so it refuses the node."""
        if self._thread is not None:
            sender = NodeId(*address, 0)
            self.cluster.post(cluster.ControlReceived(sender, JoinRefused(reason), address))

    def _on_denied(self, address: Address, reason: str) -> None:
        """Stop a node that no seed can admit, because its secret differs from all of theirs."""
        if self._joins.denied(address) and not self.stopped.done():
            self.refusals.append(reason)
            self.stopped.set_result(f"join failed: {reason}")

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
        elif to in self._peers:
            self.endpoint.session_to(to.address, to).outbox.control(control)

    def write_meta(self, name: str, data: bytes) -> None:
        """Spread bytes of the application to every node with the gossip."""
        self.cluster.post(cluster.SetMeta(name, data))

    def is_member(self, node: NodeId) -> bool:
        """True if membership reports when this node's process ends."""
        return node in self._peers

    def coordinator_of(self, entity_type: str) -> NodeId | None:
        """The node of the type's coordinator, if it is known."""
        return self.regions[entity_type].coordinator

    def epoch_met(self, entity_type: str, epoch: int) -> None:
        """Look for another cluster if no member announces this epoch, which the store has shown."""
        self.membership_store.epoch_met(entity_type, epoch)

    def epoch_claimed(self, entity_type: str, epoch: int) -> None:
        """Spread the epoch of a coordinator on this node, and register the region here with it."""
        if not self._claimed:
            self.loop.call_soon(self._record_epochs)
        self._claimed[entity_type] = epoch
        self.regions[entity_type].router.handle(events.CoordinatorAt(self.me))

    def _record_epochs(self) -> None:
        """Spread the epochs of this turn in one version of the gossip state."""
        claimed, self._claimed = self._claimed, {}
        self.cluster.post(cluster.RecordEpochs(claimed))

    def note(self, entity_type: str, note: events.Note) -> None:
        """Count and log a machine's note."""
        if note.kind in STORE_TROUBLE:
            self.store_reach.suspect(entity_type)
        key = (entity_type, note.kind)
        self.notes[key] = self.notes.get(key, 0) + note.count
        self.recent_events.add_note(entity_type, note)
        region = self.regions.get(entity_type)
        about = note_fields(note, entity_type, region.router.region.epoch if region else 0)
        log.log(level_of(note), "%s: %s", entity_type, remark(note), extra=about)

    def _drops(self) -> dict[tuple[str, str], int]:
        """Count the messages that this node has dropped, by entity type and reason."""
        dropped = {
            (name, reason): count
            for name, region in self.regions.items()
            for reason, count in region.host.counts.dropped.items()
        }
        refused = self.endpoint.send_buffer_limit.refused
        return dropped | {(name, SEND_BUFFER_FULL): count for name, count in refused.items()}

    def _member_ids(self) -> list[NodeId]:
        return [m.node for m in self.view.members] if self.view is not None else []

    def _query_timeout(self, node: NodeId, entity_type: str) -> float:
        """Seconds to wait for a node's answer: few if the node is unreachable."""
        region = self.regions.get(entity_type)
        settings = self.settings.sharding if region is None else region.settings
        seconds = settings.shard_region_query_timeout
        lost = self.view is not None and node in self.view.unreachable
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
        ends: set[asyncio.Future[Any]] = {drained, self.stopped}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not drained.done():
            raise NodeLost(f"{self.me} is no member any more")

    def region_state(self, entity_type: Any) -> dict[str, list[str]]:
        """Return the type's shards on this node, each with the ids of its entities in memory.

        Raises:
            UnknownEntityType: this application has no such type.
        """
        host = region_of(self.regions, entity_type).host
        return {shard: sorted(ids) for shard, ids in host.ids_by_shard().items()}

    # ---- periodic tasks

    def quarantine_stalled_peers(self) -> None:
        """Quarantine members that answer heartbeats and acknowledge no message. Called about once
        a second."""
        suspects = self.view.unreached if self.view is not None else ()
        reachable = self._peers.keys() - set(suspects)
        now = self.loop.time()
        for node in self.stalled_peers.check(self.endpoint.sessions(), reachable, now):
            log.error("%s answers heartbeats but acknowledges no message: quarantined", node)
            self.cluster.post(cluster.Quarantine(node))
        for node in self.stalled_peers.untested(reachable - {self.me}):
            self._link_tests.spawn(self._test_link(node))

    async def _test_link(self, node: NodeId) -> None:
        """Send a question, so that the session has something to acknowledge."""
        with contextlib.suppress(RequestError):
            await self.rpc.ask(node, LINK_TEST)

    def _watch_joining(self) -> None:
        self._joins.watch(self.cluster.overview.broken, ended=self.stopped.done())

    def _log_refused(self) -> None:
        if line := self.refused.log_line(self.loop.time()):
            log.warning("%s", line)

    # ---- the end

    @property
    def _ends_the_cluster(self) -> bool:
        """True if this node has left in good order, and no member is left."""
        view, left = self.view, self.stopped.done() and self.stopped.result() == cluster.LEFT
        alone = view is not None and {m.node for m in view.members} <= {self.me}
        return left and (alone or self.cluster_stops.done())

    async def close(self) -> None:
        """Release everything at once. May be called at any time after `start`."""
        self.gate.end()
        self._ticker.stop()
        self.vitals.stop()
        self._reassertions.cancel()
        self._link_tests.cancel()
        self.expiry.stop()
        self.store_reach.stop()
        if self.pod_cost is not None:
            self.pod_cost.stop()
        for singleton in self.singletons.values():
            singleton.close()
        self.session_loss.closing()
        for region in self.regions.values():
            region.give_up_undelivered()
        # The report leaves ahead of the departure notice.
        self.drops.report(self.endpoint.clock.tick, last=True)
        self.deliverer.close(NodeLost("the node of this process has ended"))
        for region in self.regions.values():
            region.close()
        ends = [singleton.end() for singleton in self.singletons.values()]
        leases = (region.shard_leases.end() for region in self.regions.values())
        await asyncio.gather(*ends, *leases)
        if self._thread is not None:
            await self._thread.close()
        await self._joins.close()
        self.membership_store.close()
        if self._ends_the_cluster:
            await self.membership_store.release()
        sessions = self.endpoint.sessions()
        self.endpoint.close()
        self.session_loss.closed(sessions)
        await self.store.close()
