"""A node: two loops, wired together.

The cluster thread knows who is in the cluster; this, the application loop, runs links, entities,
coordinators and HTTP. They exchange immutable events only: what the cluster thread says arrives by
`call_soon_threadsafe`, and what it must know is posted to it.

    start   store, cluster thread, ROUTER, types, HTTP, then join
    go      hand everything off and leave, or stop with the whole cluster (`departure`)
    downed  stop at once: others may have our shards already

Source: docs/architecture.md; S0.1, S1.60-S1.62, S2.52; B.12, B.14, B.15.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast, get_args

from shardbus.admin.shard_control import ShardControl
from shardbus.config.settings import Settings, ShardingSettings
from shardbus.entities.entity_type import EntityType
from shardbus.entities.slow_handlers import SlowHandlers
from shardbus.entities.type_settings import settings_by_type
from shardbus.errors import ShardBusError, UnknownEntityType
from shardbus.ids import Address, NodeId
from shardbus.membership import events as cluster
from shardbus.membership.member import Member, Status
from shardbus.membership.messages import ControlMessage
from shardbus.membership.view import MembershipView
from shardbus.node.dispatch import Dispatcher
from shardbus.node.downing_log import DowningLog, fingerprint
from shardbus.node.event_log import level_of, remark
from shardbus.node.phases import Phases
from shardbus.node.rpc import NodeRpc
from shardbus.node.session_loss import SessionLoss
from shardbus.node.stalled_peers import StalledPeers
from shardbus.node.subscriptions import Subscriptions
from shardbus.node.ticker import Ticker
from shardbus.routing.refs import ASK_TIMEOUT_MS, Ref
from shardbus.sharding import events
from shardbus.sharding.allocation.least_load import LeastLoad
from shardbus.sharding.allocation.selection import strategy_for
from shardbus.sharding.coordinator.coordinator import Coordinator
from shardbus.shells.cluster_thread import ClusterThread, MembershipRunner
from shardbus.shells.region import RegionShell
from shardbus.shells.singleton import HOSTING, SingletonShell
from shardbus.store.entity_state import EntityStates
from shardbus.store.protocol import StateStore
from shardbus.store.urls import family
from shardbus.transport.drop_reports import DropTallies, RefusedTells
from shardbus.transport.endpoint import Endpoint
from shardbus.transport.environment import Environment
from shardbus.transport.fork_guard import guard
from shardbus.transport.loopback import Loopback
from shardbus.transport.send_buffer import SendBufferLimit
from shardbus.wire import gossip
from shardbus.wire.control import encode_control
from shardbus.wire.schema import Interface

log = logging.getLogger("shardbus.node")

CONTROL_MESSAGES: tuple[type, ...] = get_args(ControlMessage)


class Node:
    """See the module. `stopped` is done when membership is over, with its reason; `cluster_stops`
    when everybody knows that the whole cluster ends."""

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
        self.environment = environment or Environment()
        self._make_membership = membership
        self.cluster_name, self.types, self.settings, self.store = name, types, settings, store
        self.view: MembershipView | None = None
        self.kinds: dict[str, RegionShell] = {}
        self.singletons: dict[str, SingletonShell] = {}
        self.notes: dict[tuple[str, str], int] = {}
        """What the machines noted, by entity type and kind."""
        self.decisions = DowningLog()
        self.phases = Phases(settings.shutdown)
        self.quarantine = StalledPeers(settings.cluster.quarantine_after)
        self._peers: dict[NodeId, Member] = {}
        self._suspects: set[NodeId] = set()
        """Who was unreachable in the last view but one."""
        self.dispatcher = Dispatcher(self)
        self.session_loss, self.drops, self.refused = (
            SessionLoss(self),
            DropTallies(),
            RefusedTells(),
        )
        self.shard_control = ShardControl(self)
        self._leases: set[asyncio.Task[None]] = set()
        self._ticker = Ticker(self)
        self._thread: MembershipRunner | None = None

    # ---- start

    async def start(self) -> None:
        """Listen, host nothing yet, and begin to join.

        Raises:
            ConfigError: a port is taken, or a setting is unfit. StoreUnavailable: no store.
        """
        guard(self)
        self.loop = asyncio.get_running_loop()
        self.stopped: asyncio.Future[str] = self.loop.create_future()
        self.cluster_stops: asyncio.Future[None] = self.loop.create_future()
        self.refusals: list[str] = []
        self.joining = False
        settings = self.settings.node
        chosen = settings_by_type(self.types, self.settings)
        uid = self.environment.uid
        host, port = settings.host, settings.port
        self.me = NodeId(*Address.advertised(settings.advertise or host, port), uid)
        await self.store.start()
        self.slow = SlowHandlers(self.loop, self.settings.cluster.app_block_warning)
        self.subscriptions = Subscriptions(self.me)
        self.states = EntityStates(self.store, uid)
        self.endpoint = Endpoint(
            self.cluster_name,
            str(self.me),
            uid,
            self.dispatcher,
            node=self.me,
            on_lost=self.session_loss.session_lost,
            on_client=self.dispatcher.on_client,
            on_membership=self._on_membership,
            network=self.environment.network,
            send_buffer_limit=SendBufferLimit(settings.send_buffer_bytes),
        )
        self.endpoint.start(host, port)
        clock, send_buffer_limit = self.endpoint.clock, self.endpoint.send_buffer_limit
        self.loopback = Loopback(str(self.me), self.loop, clock, self.dispatcher, send_buffer_limit)
        self.loopback.tag = self.me
        self.rpc = NodeRpc(self)
        for name, kind in self.types.items():
            self._add_kind(name, kind, chosen[name])
        self._ticker.start()

    def _add_kind(self, name: str, kind: EntityType, chosen: ShardingSettings) -> None:
        hosts = kind.hosted_by(chosen.role, self.settings.node)
        strategy = strategy_for(name, self.settings.sharding, chosen, kind.strategy)
        made = RegionShell(kind, chosen, self, self.states, self.ref, hosts=hosts)
        made.sampling.switch(on=isinstance(strategy, LeastLoad))
        self.kinds[name] = made

        def make() -> Coordinator:
            return Coordinator(name, self.me, kind.interface.layout, chosen, strategy)

        margin = self.settings.cluster.downing.down_removal_margin
        self.singletons[name] = SingletonShell(self.kinds[name], make, self, margin)

    def join(self, http: str) -> None:
        """Start membership, and join unless somebody else shall say when. `http`: where this node's
        HTTP is."""
        settings = self.settings.node
        member = Member(
            node=self.me,
            gossip_port=settings.gossip_port or settings.port + 1,
            http=http,
            roles=tuple(settings.roles),
            version=settings.version,
        )
        shared = fingerprint(self.settings.cluster.downing)
        shared["store.url"] = family(self.settings.store.url)
        for kind in self.kinds.values():
            shared |= kind.shared
        self._thread = self.cluster = self._make_membership(
            member,
            self.cluster_name,
            self.settings.cluster,
            shared,
            bind_host=settings.host,
            notify=self._notified,
            stalled=self.slow.stalled,
        )
        self.cluster.start()
        if settings.join == "auto":
            self.join_by(settings.seeds)

    def join_by(self, seeds: Iterable[str]) -> None:
        """Begin to join by these seeds, HOST:PORT; without any, found a cluster."""
        addresses = tuple(Address.parse(seed) for seed in seeds)
        self.joining = True
        self.cluster.post(cluster.JoinSeeds(addresses) if addresses else cluster.JoinSelf())

    # ---- what the cluster thread says

    def _notified(self, effect: object) -> None:
        """Called in the cluster thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended: so has this node
            self.loop.call_soon_threadsafe(self._on_cluster, effect)

    def _on_cluster(self, effect: object) -> None:
        match effect:
            case cluster.ViewChanged(view=view):
                self._on_view(view)
            case cluster.SendControl(to=to, message=message):
                self.endpoint.send_membership(to, gossip.encode(message))
            case cluster.AcquireLease():
                task = self.loop.create_task(self._acquire(effect))
                self._leases.add(task)
                task.add_done_callback(self._leases.discard)
            case cluster.Stopped(reason=reason):
                for singleton in self.singletons.values():
                    singleton.left(gracefully=reason == "left")
                if not self.stopped.done():
                    self.stopped.set_result(reason)
            case cluster.CommandRefused(reason=reason):
                log.error("the cluster refuses: %s", reason)
                self.refusals.append(reason)
            case cluster.Notice(event=event):
                self.decisions.hear(event)
                self.subscriptions.on_notice(event)
            case _:
                pass

    async def _acquire(self, wanted: cluster.AcquireLease) -> None:
        granted: bool | None
        try:
            lease = await self.store.acquire_lease(wanted.name, wanted.owner, wanted.ttl)
            granted = lease is not None
        except ShardBusError as e:
            log.warning("no answer about lease %s: %s", wanted.name, e)
            granted = None
        self.cluster.post(cluster.LeaseResult(wanted.name, granted))

    def _on_view(self, view: MembershipView) -> None:
        before, self._suspects = self._peers, set(self.view.unreachable if self.view else ())
        self.view = view
        self.subscriptions.on_view(view)
        alive = {m.node: m for m in view.members if m.status not in (Status.DOWN, Status.REMOVED)}
        self._peers = alive
        for node in before:
            if node not in alive and node != self.me:
                self.session_loss.member_gone(node, died=self._died(node))
        for singleton in self.singletons.values():
            singleton.look(view)
        ready = view.status is Status.READY_FOR_SHUTDOWN and view.converged
        if ready and not self.cluster_stops.done():
            self.cluster_stops.set_result(None)
        self.dispatcher.tell_clients()

    def _died(self, node: NodeId) -> bool:
        """Whether a member that is removed was lost; otherwise it left."""
        seen = self.view.member(node) if self.view is not None else None
        return node in self._suspects or (seen is not None and seen.status is Status.DOWN)

    @property
    def lag(self) -> float:
        """Seconds by which this loop is late, as the cluster thread sees it."""
        return self._thread.lag if self._thread is not None else 0.0

    @property
    def watching(self) -> MembershipRunner | None:
        """The cluster thread, once it runs."""
        return self._thread

    def hosting_members(self) -> tuple[NodeId, ...]:
        """The members that host shards now."""
        members = self.view.members if self.view is not None else ()
        return tuple(m.node for m in members if m.status in HOSTING)

    @property
    def is_up(self) -> bool:
        """This node is a full member, so that its regions may register."""
        return self.view is not None and self.view.status in HOSTING

    def _on_membership(self, sender: NodeId, body: bytes) -> None:
        message = gossip.decode(body)
        if self._thread is None:  # listens, and does not join yet; who wants an answer asks again
            self.endpoint.count_drop("early")
        elif isinstance(message, CONTROL_MESSAGES):
            self.cluster.post(cluster.ControlReceived(sender, cast("ControlMessage", message)))
        else:
            self.endpoint.count_drop("unexpected")

    # ---- what types and coordinators need

    def send(self, to: NodeId, entity_type: str, message: object) -> None:
        """Send a machine's message to a node's machine, or to a client."""
        control = encode_control(entity_type, message)
        if to == self.me:
            self.loopback.control(control)
        elif to in self.dispatcher.clients:
            self.dispatcher.clients[to].control(control)
        elif to in self._peers:
            self.endpoint.session_to(to.address, to).control(control)

    def write_meta(self, name: str, data: bytes) -> None:
        """The application writes bytes for every node."""
        self.cluster.post(cluster.SetMeta(name, data))

    def is_member(self, node: NodeId) -> bool:
        """Whether membership says when this node's process ends."""
        return node in self._peers

    def coordinator_of(self, entity_type: str) -> NodeId | None:
        """Where the type's coordinator is, if that is known."""
        return self.kinds[entity_type].coordinator

    def epoch_claimed(self, entity_type: str, epoch: int) -> None:
        """A coordinator here rules under this epoch: let gossip spread it."""
        self.cluster.post(cluster.RecordEpoch(entity_type, epoch))
        self.kinds[entity_type].router.handle(events.CoordinatorAt(self.me))

    def note(self, entity_type: str, note: events.Note) -> None:
        """Count and log what a machine noted."""
        key = (entity_type, note.kind)
        self.notes[key] = self.notes.get(key, 0) + note.count
        log.log(level_of(note), "%s: %s", entity_type, remark(note))

    def ref(self, kind: Any, entity_id: str) -> Any:
        """A reference for code inside this node.

        Raises:
            UnknownEntityType: no such type here.
        """
        return Ref(self._kind(kind).router, entity_id, ASK_TIMEOUT_MS)

    def set_active_entity_limit(self, kind: Any, limit: int) -> None:
        """Another limit on the type's entities in memory here; 0 is none.

        Raises:
            UnknownEntityType: no such type here. Refused: its entities are remembered.
        """
        self._kind(kind).host.set_active_entity_limit(limit)

    def _kind(self, kind: Any) -> RegionShell:
        interface = getattr(kind, "__shardbus_interface__", None)
        name = interface.name if isinstance(interface, Interface) else kind
        if name not in self.kinds:
            raise UnknownEntityType(f"there is no entity type {name!r}")
        return self.kinds[name]

    def quarantine_stalled_peers(self) -> None:
        """Part from members that answer heartbeats and take no message. Called about once a
        second."""
        suspects = self.view.unreachable if self.view is not None else ()
        reachable = self._peers.keys() - set(suspects)
        for node in self.quarantine.look(self.endpoint.sessions(), reachable, self.loop.time()):
            log.error("%s answers heartbeats but takes no message: quarantined", node)
            self.cluster.post(cluster.Quarantine(node))

    # ---- the end

    async def close(self) -> None:
        """Let go of everything, hard. Safe at any time after `start`."""
        self._ticker.stop()
        for singleton in self.singletons.values():
            singleton.close()
        self.session_loss.stopper()
        self.drops.report(self.endpoint.clock.tick, last=True)  # ahead of the goodbye
        for kind in self.kinds.values():
            kind.close()
        ends = [singleton.end() for singleton in self.singletons.values()]
        await asyncio.gather(*ends, *(kind.shard_leases.end() for kind in self.kinds.values()))
        if self._thread is not None:
            await self._thread.close()
        sessions = self.endpoint.sessions()
        self.endpoint.close()
        self.session_loss.closed(sessions)
        await self.store.close()
