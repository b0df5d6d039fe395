"""The shell of a region: one entity type on one node, with its host and its router.

The way of a message from the session to the handler: a run of messages of one type and method
arrives; each entity id is looked up among the activations and the message is handed over. An id
without an activation takes the slow path. If its shard runs here and is open to the session, the
entity is started; otherwise the region machine buffers the message or forwards it.

    session ──run──> RegionShell ──> activation's mailbox
                         │
                         └──> router (region machine) ──> another node, a buffer, the coordinator

A message forwarded from here keeps its deadline. A message that its entity has deferred has no
deadline on this node any more, since it waits as long as the entity lets it; on the way it gets one
of `FORWARD_TIMEOUT_MS`.

Source: docs/architecture.md; S0.10, S0.14, S0.15, S2.22-S2.24.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from shardbus.config.options import closest
from shardbus.config.settings import Settings, ShardingSettings
from shardbus.entities.activation import Activation, Message, Shard
from shardbus.entities.dead_letters import DeadLetters
from shardbus.entities.durable_mailboxes import RECORD
from shardbus.entities.entity_type import EntityType, Invoker, StopReason
from shardbus.entities.gate import SuspensionGate
from shardbus.entities.host import Host
from shardbus.entities.message_times import MessageTimes
from shardbus.entities.running_handlers import entity_now
from shardbus.entities.runs import Arrive, RunHandler, read_ahead
from shardbus.entities.slow_handlers import SlowHandlers
from shardbus.entities.supervision import StateLoader
from shardbus.errors import ConfigError, NodeLost, Refused, Unhandled, UnknownEntityType
from shardbus.guarded_log import GuardedLog
from shardbus.ids import NodeId
from shardbus.routing.delivering import DeliverySender
from shardbus.routing.instance_sender import sender_of
from shardbus.routing.paths import ancestors
from shardbus.routing.pending_message import PendingMessage
from shardbus.routing.refs import start_entity
from shardbus.routing.router import LoopSender, Router
from shardbus.routing.tracer import Tracer
from shardbus.sharding import events, messages
from shardbus.sharding.region.region import ShardRegion
from shardbus.shells.direct_messages import DirectMessages
from shardbus.shells.load_sampling import LoadSampling
from shardbus.shells.shard_hosts import ShardHosts
from shardbus.shells.shard_leases import ShardLeases
from shardbus.shells.text_messages import handler_call, handler_runs, unhandled
from shardbus.store.protocol import StateStore
from shardbus.tasks.eager import OWNER
from shardbus.transport.asks import Failure
from shardbus.transport.direct_message import LocalOutbox
from shardbus.transport.drop_reports import DropTallies, Origin
from shardbus.transport.endpoint import Endpoint
from shardbus.transport.outbox import SessionOutbox
from shardbus.transport.session import Session
from shardbus.wire.batch import AskRun, Chain, Flush, Relayed, TellRun
from shardbus.wire.schema import Interface

log = GuardedLog("shardbus.sharding")

START_MS = 30_000

EVERY_NODE = "*"
"""As `coordinator_role`: any node may coordinate, whatever role the type has."""

FORWARD_TIMEOUT_MS = 86_400_000
"""For a forwarded message that has no deadline."""


class RegionRecords(Protocol):
    """The records of a node that its regions write."""

    drops: DropTallies
    letters: DeadLetters


class RegionServices(Protocol):
    """The services that a region needs from its node."""

    me: NodeId
    endpoint: Endpoint
    loopback: Session
    store: StateStore
    gate: SuspensionGate
    tracer: Tracer | None
    deliverer: DeliverySender
    settings: Settings
    regions: dict[str, RegionShell]

    @property
    def records(self) -> RegionRecords: ...
    def send(self, to: NodeId, entity_type: str, message: events.Message) -> None: ...
    def coordinator_of(self, entity_type: str) -> NodeId | None: ...
    def is_member(self, node: NodeId) -> bool: ...
    def note(self, entity_type: str, note: events.Note) -> None: ...


class ForwardedAsk:
    """Passes the answer to a message that this node forwarded back to the session it came from.
    `begun`: a handler has begun with it here, so no error of another node is definite."""

    __slots__ = ("_begun", "_corr", "_session")

    def __init__(self, session: Session, corr: int, *, begun: bool = False) -> None:
        self._session, self._corr, self._begun = session, corr, begun

    @property
    def sender(self) -> str:
        """The name of the process that asked, or forwarded the ask."""
        return self._session.name

    def resolve(self, payload: bytes) -> None:
        if self._session.lost is None:
            self._session.outbox.reply(self._corr, payload)

    def fail(self, error: Failure) -> None:
        if self._session.lost is None:
            self._session.outbox.fail(self._corr, error, begun=self._begun)


class RegionShell:
    """Runs the region of one entity type.

    Args:
        entity_type, settings: as the application declared and configured them.
        node: the services of the node.
        states: loads the state of entities.
        ref: makes references for handlers.
        hosts: False for a proxy, which only sends.
    """

    def __init__(
        self,
        entity_type: EntityType,
        settings: ShardingSettings,
        node: RegionServices,
        states: StateLoader,
        ref: Callable[[Any, str], Any],
        *,
        hosts: bool,
        within: RegionShell | None = None,
    ) -> None:
        self.entity_type, self.name = entity_type, entity_type.name
        self.settings, self.hosts = settings, hosts
        self.shard_hosts: ShardHosts
        self.shard_leases: ShardLeases
        self.router: Router
        self.sender: LoopSender
        """The sender of this node's messages: the router, or a sender by the router of the type."""
        self.table: RegionShell = self if within is None else within.table
        """The region whose coordinator places the shards of this type: this one, or the region of
        the outermost type that this one lives within."""
        self.inner: list[RegionShell] = []
        """The regions that use this one's table."""
        self._node = node
        loop = asyncio.get_running_loop()
        self._loop = loop
        self.host = Host(
            entity_type,
            settings,
            str(node.me),
            loop,
            states,
            ref,
            lambda shard: self.shard_hosts.stopped(self.host, shard),
            node.store,
            lambda entity_id: self.router.shard_of(entity_id),
            self._start_elsewhere,
            node.gate,
            node.deliverer.settings,
            node.deliverer.counts,
            node.settings.data,
        )
        self.host.draining.passes_on, self.host.tracer = True, node.tracer
        drop, name = node.records.drops.drop, entity_type.name
        self.host.counts.report_drop = lambda via, reason, count: drop(via, name, reason, count)
        self.host.counts.keep_letter = node.records.letters.keeper(name, settings)
        self._place(within)
        self.ask_failed = node.endpoint.sent.ended
        self._check_leases = self.shard_leases.check
        self.times = MessageTimes(loop.time)
        self.sampling = LoadSampling(self.router.shard_of, loop.time, self.times)
        self._coordinator: NodeId | None = None
        self.coordinator_since = loop.time()
        """When this node came to expect the coordinator there, or nowhere."""
        self.drained: asyncio.Future[None] = loop.create_future()
        self.relayed_messages = 0
        self._stop_reason = StopReason.HANDOFF
        self._stopped_here: asyncio.Future[None] | None = None
        runs = RunHandler(self.host.runner)
        mailboxes = self.host.deliveries.mailboxes
        self._deliver = runs.deliver if mailboxes is None else mailboxes.before(runs)
        self._take_directly(runs)
        self._mailbox_limits = self.host.runner.mailbox_limits

    def _place(self, within: RegionShell | None) -> None:
        """Make the region machine that places the shards, or use the outermost type's."""
        interface, node, settings = self.entity_type.interface, self._node, self.settings
        if within is None:
            self.shard_hosts = ShardHosts(self.host, self._loop, self._hosts_stopped)
            self.shard_leases = ShardLeases(self, self.shard_hosts, node.store, node.me, settings)
            layout, proxy = interface.layout, not self.hosts
            region = ShardRegion(self.name, node.me, layout, settings, proxy=proxy)
        else:
            table = self.table
            table.inner.append(self)
            self.shard_hosts, self.shard_leases = table.shard_hosts, table.shard_leases
            self.shard_hosts.add(self.host, len(ancestors(interface)))
            region = table.router.region
        self.router = Router(
            interface,
            region,
            self,
            self._loop,
            node.endpoint.clock,
            within.router if within is not None else None,
            tracer=node.tracer,
            caller=OWNER.get,
        )
        if self.router.rows is not None:
            self.router.rows.here, self.router.rows.sender_name = node.me, str(node.me)
        self.sender = sender_of(self.router)
        awaited = partial(any_leaves, node.regions)
        self.host.draining.attach(node.me, region.routing.find, awaited)

    @property
    def deliverer(self) -> DeliverySender:
        """The deliverer of this node."""
        return self._node.deliverer

    def _take_directly(self, runs: RunHandler) -> None:
        """Let entities here handle messages of this node where they are awaited."""
        node, host, outbox = self._node, self.host, self._node.loopback.outbox
        if self.hosts and isinstance(outbox, LocalOutbox):
            DirectMessages(
                self.name,
                node.loopback,
                outbox,
                host.runner,
                runs,
                host.deliveries.find_direct(host.active.get),
                self.entity_type.invokers,
                self.sampling,
                node.endpoint.sent,
                leases=self._check_leases is not None,
            )

    def set_zones(self, zones: Mapping[NodeId, str]) -> None:
        """Use these zones of the members that have one, to find the nearest instance."""
        if self.router.rows is not None:
            self.router.rows.set_zones(zones)

    @property
    def coordinator(self) -> NodeId | None:
        """The node on which this node expects the coordinator."""
        return self.table._coordinator

    @coordinator.setter
    def coordinator(self, node: NodeId | None) -> None:
        if node != self.table._coordinator:
            self.table._coordinator = node
            self.table.coordinator_since = self._loop.time()

    @property
    def coordinator_role(self) -> str:
        """The role of the nodes among which the oldest coordinates; empty means every node."""
        role = self.settings.coordinator_role or self.settings.role
        return "" if role == EVERY_NODE else role

    @property
    def shared(self) -> dict[str, str]:
        """Settings that must be equal on every node that knows the type: the layout, the roles of
        hosts and coordinators, and the use of leases."""
        values = {
            "layout": self.entity_type.interface.layout,
            "role": self.settings.role,
            "coordinator_role": self.coordinator_role,
            "use_lease": self.settings.use_lease,
        }
        return {f"types.{self.name}.{key}": value for key, value in values.items()}

    # ---- arrivals

    def on_tells(self, session: Session, run: TellRun) -> None:
        """Deliver tells, to which no sender waits for an answer."""
        if self._check_leases is not None:
            self._check_leases()
        invoker = self.host.deliveries.invokers.get(run.method)
        via = session.mark or self._node.records.drops.mark(session)
        counts = self.host.counts
        if invoker is None:
            for part in handler_runs(run, self.entity_type):
                if part.method in self.host.deliveries.invokers:
                    self.on_tells(session, part)
                else:
                    counts.accepted += len(part.ids)
                    self._lost_run("unhandled", part, via)
            return
        if run.trace:
            invoker = self.host.traced(invoker, run.trace, is_ask=False)

        def arrive(entity_id: str, payload: bytes, corr: int) -> Activation | None:
            activation = self._enter(session, entity_id)
            if activation is None:
                self._forward(session, entity_id, Message(invoker, payload, None, corr, 0), 0)
            return activation

        mailbox_limits = self._mailbox_limits
        ahead = read_ahead(invoker, run.payloads)
        mailbox_limits.arrives(not session.inbox.forced, session.inbox.owed)
        counts.accepted += len(run.ids)
        try:
            if counts.accepted >= self.sampling.marks.mark:
                self._deliver_sampled(arrive, invoker, None, run, via, 0, (), ahead)
            else:
                ids = run.ids
                find, payloads = self.host.active.get, run.payloads
                self._deliver(find, arrive, invoker, None, ids, payloads, via, 0, (), ahead)
        finally:
            mailbox_limits.handed_out()
        if mailbox_limits.met:
            mailbox_limits.pause(session)

    def on_asks(self, session: Session, run: AskRun) -> None:
        """Deliver asks, whose senders wait for an answer."""
        if self._check_leases is not None:
            self._check_leases()
        invoker, counts = self.host.deliveries.invokers.get(run.method), self.host.counts
        if invoker is None:
            for part in handler_runs(run, self.entity_type):
                if part.method in self.host.deliveries.invokers:
                    self.on_asks(session, part)
                else:
                    counts.accepted += len(part.ids)
                    self._lost_run("unhandled", part, session.name)
                    for corr in part.corrs:
                        session.outbox.fail(corr, unhandled(self.entity_type, part.method))
            return
        counts.accepted += len(run.ids)
        if run.timeout_ms <= 0:
            self._lost_run("expired", run, session.name)  # it was under way for too long
            return
        deadline = self._node.endpoint.clock.after(run.timeout_ms)
        if run.trace:
            invoker = self.host.traced(invoker, run.trace, is_ask=True)

        def arrive(entity_id: str, payload: bytes, corr: int) -> Activation | None:
            activation = self._enter(session, entity_id, run.chain)
            if activation is None:
                message = Message(invoker, payload, session, corr, deadline, run.chain)
                self._forward(session, entity_id, message, 0)
            return activation

        ahead, chain = read_ahead(invoker, run.payloads), run.chain
        if counts.accepted >= self.sampling.marks.mark:
            self._deliver_sampled(arrive, invoker, session, run, run.corrs, deadline, chain, ahead)
        else:
            ids = run.ids
            find, payloads, corrs = self.host.active.get, run.payloads, run.corrs
            self._deliver(
                find, arrive, invoker, session, ids, payloads, corrs, deadline, chain, ahead
            )

    def _deliver_sampled(
        self,
        arrive: Arrive,
        invoker: Invoker,
        session: Session | None,
        run: TellRun | AskRun,
        corrs: int | Sequence[int],
        deadline: int,
        chain: Chain,
        ahead: list[Any] | None,
    ) -> None:
        """Deliver a run of which one message is a sample of the load."""
        find, ids, payloads = self.host.active.get, run.ids, run.payloads
        if not ids:
            return
        at, timed = self.sampling.sample(self.host.counts.accepted, ids, invoker)
        parts = [(0, len(ids), invoker)]
        if timed is not None:
            parts = [(0, at, invoker), (at, at + 1, timed), (at + 1, len(ids), invoker)]
        for begin, end, by in parts:
            if begin < end:
                part, some = slice(begin, end), payloads[begin:end]
                marks = corrs if isinstance(corrs, int) else corrs[part]
                self._deliver(
                    find, arrive, by, session, ids[part], some, marks, deadline, chain, ahead
                )

    def on_relayed(self, session: Session, message: Relayed) -> None:
        """Deliver a message that another node, or this node's router, forwards."""
        if self._check_leases is not None:
            self._check_leases()
        invoker = self.host.deliveries.invokers.get(message.method)
        if invoker is None:
            message = handler_call(message, self.entity_type)
            invoker = self.host.deliveries.invokers.get(message.method)
        local = session is self._node.loopback
        asker, corr = (session, message.corr) if message.corr else (None, message.via)
        if asker is None and not local:
            corr = self._node.records.drops.mark_forwarded(session, message.via)
        counts = self.host.counts
        if local:  # it was counted when it arrived
            counts.readmitted += 1
        else:
            counts.accepted += 1
        if invoker is None:
            sender = corr if asker is None else session.name
            self._lost("unhandled", message.id, message.method, message.payload, sender)
            if asker is not None:
                session.outbox.fail(message.corr, unhandled(self.entity_type, message.method))
            return
        if not local:
            if counts.accepted >= self.sampling.marks.mark:
                _, timed = self.sampling.sample(counts.accepted, (message.id,), invoker)
                invoker = timed or invoker
        else:
            invoker = self.sampling.timed_alone(invoker)
        if message.trace:
            invoker = self.host.traced(invoker, message.trace, is_ask=asker is not None)
        deadline = self._node.endpoint.clock.after(message.timeout_ms) if asker is not None else 0
        arrived = Message(invoker, message.payload, asker, corr, deadline, message.chain)
        if message.method == RECORD and self._adopts(session, message):
            return
        self._node.gate.close_if_due()  # a start looks at the last check only
        activation = self.host.active.get(message.id) or self._enter(
            session, message.id, message.chain
        )
        if activation is not None:
            self._mailbox_limits.arrives(False, owed=asker is None)
            try:
                self.host.deliveries.receive(activation, arrived)
            finally:
                self._mailbox_limits.handed_out()
        else:
            self._forward(session, message.id, arrived, message.hops)

    def _adopts(self, session: Session, message: Relayed) -> bool:
        """Take the record of deliveries that the shard's former home has left, if the shard is
        here. Returns True if it is."""
        hosted = self.host.shards.get(self.router.shard_of(message.id))
        if hosted is None or not hosted.lets_in(session, session is self._node.loopback):
            return False
        self.host.deliveries.adopt(hosted, message.id, message.payload)
        self.host.counts.begun += 1
        return True

    def _enter(self, session: Session, entity_id: str, chain: Chain = ()) -> Activation | None:
        """The activation of the entity, started if need be; None if its shard does not run here or
        is closed to this session."""
        try:
            shard = self.router.shard_of(entity_id)
        except ConfigError:
            return None
        hosted = self.host.shards.get(shard)
        if hosted is None:
            return None
        if not hosted.open:
            local = session is self._node.loopback
            if hosted.stopping is not None and (local or (chain and self._takes(session, hosted))):
                return self.host.draining.enter(hosted, entity_id, chain)
            if not hosted.lets_in(session, local):
                return None
            if (activation := hosted.activations.get(entity_id)) is not None:
                return activation
        return self.host.activate(hosted, entity_id, "message", None, chain)

    def _takes(self, session: Session, hosted: Shard) -> bool:
        """True if a shard that stops takes calls of entities of another node: nothing older of it
        waits here for the next home."""
        route = self.router.region.routing.find(hosted.shard)
        return route is not None and not route.keeps_from(session.tag)

    def _forward(self, session: Session, entity_id: str, message: Message, hops: int) -> None:
        """Let the region machine buffer or forward a message that cannot be delivered here."""
        try:
            shard = self.router.shard_of(entity_id)
        except ConfigError as e:
            self.host.counts.lose("malformed", entity_id, *message[:4])
            message.refuse(Unhandled(str(e)))
            return
        local = session is self._node.loopback
        envelope = self._envelope(shard, entity_id, message, hops)
        self.router.arrived(envelope, None if local else session.tag)

    def _envelope(self, shard: str, entity_id: str, message: Message, hops: int) -> PendingMessage:
        """The message for another node, forwarded `hops` times before."""
        self.relayed_messages += 1
        invoker, payload, asker, corr, deadline, chain = message
        key = self.router.key(invoker.name)
        waiter = ForwardedAsk(asker, corr, begun=message.begun) if asker is not None else None
        until = min(deadline, self._node.endpoint.clock.after(FORWARD_TIMEOUT_MS))
        via = min(corr, 0)
        pending = PendingMessage(
            key, shard, entity_id, payload, hops + 1, waiter, None, until, chain, via
        )
        if invoker.trace:
            pending.trace = self._relayed(invoker.trace, shard)
        return pending

    def _relayed(self, trace: str, shard: str) -> str:
        """Note in a trace that this node passes its message on."""
        tracer = self._node.tracer
        about = {"shardbus.entity_type": self.name, "shardbus.shard": shard}
        return trace if tracer is None else tracer.passed(trace, "relay", about)

    def on_flush(self, session: Session, flush: Flush) -> None:
        """Echo the flush if the shard runs here and all earlier messages have arrived; otherwise
        forward it."""
        local = session is self._node.loopback
        hosted = self.host.shards.get(flush.shard)
        if hosted is not None and (
            hosted.lets_in(session, local)
            or (self.host.draining.takes(hosted) and self._takes(session, hosted))
        ):
            session.outbox.reply(flush.corr, b"")
            return
        if not self.router.has_shard(flush.shard):
            self.host.counts.accepted += 1
            self.host.counts.drop("malformed")
            session.outbox.fail(
                flush.corr, Unhandled(f"{self.name} has no shard {flush.shard:.80}")
            )
            return
        deadline = self._node.endpoint.clock.after(flush.timeout_ms)
        waiter = ForwardedAsk(session, flush.corr)
        envelope = PendingMessage(
            None, flush.shard, self.name, b"", flush.hops + 1, waiter, None, deadline
        )
        self.router.arrived(envelope, None if local else session.tag)

    # ---- services of the router

    def out_for(self, node: NodeId) -> SessionOutbox:
        """The outbox of the session to a node; to this one, of the loopback."""
        if node == self._node.me:
            return self._node.loopback.outbox
        is_member = self._node.is_member(node)
        return self._node.endpoint.session_to(node.address, node, probe=not is_member).outbox

    def why_away(self) -> str:
        """Return nothing: a node is a part of its cluster."""
        return ""

    def is_here(self, node: NodeId) -> bool:
        """True if `node` is this node."""
        return node == self._node.me

    def send_to_leaving(self, pending: PendingMessage) -> SessionOutbox | None:
        """Send a message of an entity to the home that its shard leaves, if that takes it; return
        None for any other."""
        if (now := entity_now()) is None or pending.hops:
            return None
        asks, shard = pending.waiter is not None, pending.shard
        home = self.host.draining.home_for(shard, now[1], asks=asks, chain=pending.chain)
        if home is None or self.router.region.routing.is_gone(home.node):
            return None
        out = self.out_for(home.node)
        pending.send(out, self._node.endpoint.clock)
        if home.node != self._node.me:
            self.router.handle(events.CallSent(pending.shard))
        return out

    def perform(self, effect: events.RegionEffect) -> None:
        """Perform the region machine's effects that do not concern routes."""
        match effect:
            case events.SendCoordinator(message=message):
                coordinator = self._node.coordinator_of(self.name)
                if coordinator is not None:
                    self._node.send(coordinator, self.name, message)
            case events.Send(to=to, message=message):
                self._node.send(to, self.name, message)
            case events.SetArrivals(shard=shard, local=local, via=via):
                self.shard_hosts.set_arrivals(shard, local, via)
            case events.StartShard(shard=shard, fence=fence, carried=carried):
                if carried:
                    self.shard_hosts.carry_in(shard, fence, carried)
                self.shard_leases.start(shard, fence)
            case events.StopShard(shard=shard):
                self.shard_hosts.stop_soon(shard, self._stop_reason)
            case events.Drained():
                if not self.drained.done():
                    self.drained.set_result(None)
            case events.Note():
                self._node.note(self.name, effect)
            case _:
                log.error("no part of this node performs a %s", type(effect).__name__)

    def _hosts_stopped(self, shard: str) -> None:
        self.shard_leases.stopped(shard)

    async def _start_elsewhere(self, entity_id: str) -> None:
        await start_entity(self.router, entity_id, START_MS)

    def ready(self, shard: str) -> None:
        """Report that the shard has started."""
        self._loop.call_soon(self.router.handle, events.ShardReady(shard))

    def down(self, shard: str) -> None:
        """Report that the shard has stopped here, and forward the messages it left."""
        if self._stopped_here is None:
            left = [
                shell._envelope(shard, entity_id, message, 0)
                for shell in (self, *self.inner)
                for entity_id, message in shell.host.draining.take_unhandled(shard)
            ]
            self.router.stopped(shard, left, self.shard_hosts.carry_out(shard))
        elif not self.host.shards and not self._stopped_here.done():
            self._stopped_here.set_result(None)

    def rehouse(self, shard: str) -> None:
        """Request a new home for a shard whose lease was lost."""
        if self._stopped_here is None:
            request = messages.GetShardHome((shard,))
            self.router.handle(events.MessageReceived(self._node.me, request))

    def note(self, note: events.Note) -> None:
        """Log a note of the leases."""
        self._node.note(self.name, note)

    def dropped(self, reason: str) -> None:
        """Count a message of this node that names no entity, and of which the sender knows."""
        self.host.counts.drop(reason, via=Origin.OWN)
        if self.host.counts.keep_letter is not None:
            self.host.counts.keep_letter(reason, "", "", None, Origin.OWN, answered=True)

    def lost(self, pending: PendingMessage, reason: str, *, answered: bool) -> None:
        """Count a message that the router could not send."""
        assert pending.key is not None
        waiter, via = pending.waiter, pending.via
        sender = waiter.sender if isinstance(waiter, ForwardedAsk) else via or Origin.OWN
        _, method = pending.key
        self.host.counts.drop(reason, via=via or Origin.UNREPORTED)
        keep = self.host.counts.keep_letter
        if keep is not None:
            keep(
                reason,
                pending.entity_id,
                method,
                pending.payload,
                sender,
                pending.trace,
                answered=answered,
            )

    def _lost_run(self, reason: str, run: TellRun | AskRun, sender: str | int) -> None:
        """Count the messages of a run. `sender`: of asks, the name of their asker."""
        for entity_id, payload in zip(run.ids, run.payloads, strict=True):
            self._lost(reason, entity_id, run.method, payload, sender, run.trace)

    def _lost(
        self,
        reason: str,
        entity_id: str,
        method: str,
        payload: bytes,
        sender: str | int,
        trace: str = "",
    ) -> None:
        """Count a message that has arrived here. `sender`: the mark of the session by which a tell
        came, or the name of the asker."""
        is_ask = isinstance(sender, str)
        self.host.counts.drop(reason, via=Origin.UNREPORTED if isinstance(sender, str) else sender)
        if self.host.counts.keep_letter is not None:
            self.host.counts.keep_letter(
                reason, entity_id, method, payload, sender, trace, answered=is_ask
            )

    # ---- the node's side

    def shutdown(self) -> asyncio.Future[None]:
        """Hand off every shard; done when none runs here."""
        if self.table is self:
            self._stop_reason = StopReason.SHUTDOWN
            self.router.handle(events.Shutdown())
        return self.table.drained

    def stop_here(self) -> asyncio.Future[None]:
        """Stop every shard without a hand-off, because the whole cluster stops; done when none
        runs here."""
        table = self.table
        if table._stopped_here is None:
            table._stopped_here = self._loop.create_future()
            for host in self.shard_hosts:
                host.draining.passes_on = False
            if table.host.shards:
                self.shard_hosts.stop_shards(list(table.host.shards), StopReason.SHUTDOWN)
            else:
                table._stopped_here.set_result(None)
        return table._stopped_here

    def give_up_undelivered(self) -> None:
        """Count and log the messages that never found a home, for the reports to their senders."""
        if left := self.router.give_up("undelivered"):
            log.warning("%d messages of %r found no home before this node ended", left, self.name)

    def close(self) -> None:
        """Stop at once."""
        if self.table is not self:
            self.host.close()
            return
        self.router.close()
        self.host.close()
        self.router.end(NodeLost("the node of this process has left its cluster, or was downed"))

    # ---- periodic tasks

    def advance(self, tick: int) -> None:
        """Move the coarse time of the entities on, and fail asks that have expired."""
        self.host.runner.advance(tick)
        if self.table is self and self.router.buffered_asks:
            self._node.endpoint.asks_timed_out += self.router.expire()

    def pace(self, tick: int) -> None:
        """Adapt the sampling to the rate of messages. Called about once a second."""
        self.sampling.pace(self.host.counts.accepted)

    def find_slow_handlers(self, slow: SlowHandlers, tick: int) -> None:
        """Report handlers that have waited for `slow_handler_after`. Called about once a second."""
        if self._node.gate.closed:
            return
        slow.check(self.host.runner.running_handlers, self.settings.slow_handler_after, tick)


def check_own_table(region: RegionShell) -> None:
    """Check that a command about the homes of a type names the type that has the table.

    Raises:
        Refused: the type lives within another one.
    """
    if region.table is not region:
        table = region.table.name
        raise Refused(f"{region.name!r} lives within {table!r}", hint=f"name {table} instead")


def any_leaves(regions: Mapping[str, RegionShell], chain: Chain) -> bool:
    """True if an entity of the chain is in a shard that leaves its home, here or elsewhere."""
    for entity_type, entity_id, _ in chain:
        if (region := regions.get(entity_type)) is None:
            continue
        with suppress(ConfigError):  # the id is of another build's shard function
            route = region.router.region.routing.find(region.router.shard_of(entity_id))
            if route is not None and route.leaving_home is not None:
                return True
    return False


def region_of(regions: Mapping[str, RegionShell], entity_type: str | type) -> RegionShell:
    """The region of an entity type, given by its name or its class.

    Raises:
        UnknownEntityType: this application has no such type.
    """
    interface = getattr(entity_type, "__shardbus_interface__", None)
    name = interface.name if isinstance(interface, Interface) else entity_type
    region = regions.get(name) if isinstance(name, str) else None
    if region is None:
        near, names = closest(str(name), regions), ", ".join(sorted(regions))
        others = f"there {'is' if len(regions) == 1 else 'are'} {names}"
        hint = f"did you mean {near}?" if near else others
        raise UnknownEntityType(f"there is no entity type {name!r:.100}", hint=hint[:300])
    return region
