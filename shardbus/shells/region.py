"""One entity type on one node: its host, its router and its coordinator, and what passes between
them.

The way of a message, from the link to the handler: a run of messages of one type and method
arrives; each id is looked up among the active entities and handed over. An id that is not there
takes the slow
path: its shard lives here and lets it in (start the entity), or the region machine has the word (it
buffers, or sends it on).

Source: S0.10, S0.14, S0.15, S2.22-S2.24; docs/architecture.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import repeat
from typing import Any, Protocol

from shardbus.config.settings import ShardingSettings
from shardbus.entities.activation import Activation, Message
from shardbus.entities.entity_type import EntityType, StopReason
from shardbus.entities.host import Host
from shardbus.entities.reentrancy import NodeRouter
from shardbus.entities.runner import read_ahead
from shardbus.entities.supervision import StateLoader
from shardbus.errors import ConfigError, Unhandled
from shardbus.ids import NodeId
from shardbus.routing.pending_message import PendingMessage
from shardbus.routing.refs import start_entity
from shardbus.sharding import events, messages
from shardbus.sharding.region.region import ShardRegion
from shardbus.shells.forwarding import LATEST_MS, ForwardedAsk, passed_on
from shardbus.shells.load_sampling import LoadSampling
from shardbus.shells.shard_leases import ShardLeases
from shardbus.store.protocol import StateStore
from shardbus.transport.drop_reports import DropTallies, Origin
from shardbus.transport.endpoint import Endpoint
from shardbus.transport.loopback import Loopback
from shardbus.transport.session import Session
from shardbus.wire.batch import AskRun, Chain, Flush, Relayed, TellRun

log = logging.getLogger("shardbus.sharding")

START_MS = 30_000

EVERY_NODE = "*"
"""As `coordinator_role`: whatever role the type has."""


class RegionServices(Protocol):
    """What a type needs from its node."""

    me: NodeId
    endpoint: Endpoint
    loopback: Loopback
    store: StateStore
    drops: DropTallies

    def send(self, to: NodeId, entity_type: str, message: events.Message) -> None: ...
    def coordinator_of(self, entity_type: str) -> NodeId | None: ...
    def is_member(self, node: NodeId) -> bool: ...
    def note(self, entity_type: str, note: events.Note) -> None: ...


class RegionShell:
    """See the module."""

    def __init__(
        self,
        kind: EntityType,
        settings: ShardingSettings,
        node: RegionServices,
        keeper: StateLoader,
        ref: Callable[[Any, str], Any],
        *,
        hosts: bool,
    ) -> None:
        self.kind, self.name, self.settings, self.hosts = kind, kind.name, settings, hosts
        self._node = node
        loop = asyncio.get_running_loop()
        self._loop = loop
        self.host = Host(
            kind,
            settings,
            str(node.me),
            loop,
            keeper,
            ref,
            lambda shard: self.shard_leases.stopped(shard),
            node.store,
            lambda entity_id: self.router.shard_of(entity_id),
            self._start_elsewhere,
        )
        self.host.passes_on = True
        drop, name = node.drops.drop, kind.name
        self.host.counts.report_drop = lambda via, reason, count: drop(via, name, reason, count)
        self.shard_leases: ShardLeases = ShardLeases(self, self.host, node.store, node.me, settings)
        self._look = self.shard_leases.look
        interface = kind.interface
        region = ShardRegion(kind.name, node.me, interface.layout, settings, proxy=not hosts)
        self.router: NodeRouter = NodeRouter(interface, region, self, loop, node.endpoint.clock)
        self.sampling = LoadSampling(self.router.shard_of)
        self.coordinator: NodeId | None = None
        """Where this node believes the coordinator to be."""
        self.stranger: NodeId | None = None
        """A node that should have the coordinator, and does not know the type."""
        self.drained: asyncio.Future[None] = loop.create_future()
        self.relayed_messages = 0
        self._stopping: list[str] = []
        self._stop_reason = StopReason.HANDOFF
        self._stopped_here: asyncio.Future[None] | None = None
        self._find = self.host.active.get
        self._deliver, self._mailbox_limits = (
            self.host.runner.deliver,
            self.host.runner.mailbox_limits,
        )

    @property
    def coordinator_role(self) -> str:
        """The role of the nodes among which the oldest coordinates; empty is every node."""
        wanted = self.settings.coordinator_role or self.settings.role
        return "" if wanted == EVERY_NODE else wanted

    @property
    def shared(self) -> dict[str, str]:
        """What every node that knows the type must say alike: where its entities live, who may
        coordinate them, and what runs only with a lease."""
        values = {
            "layout": self.kind.interface.layout,
            "role": self.settings.role,
            "coordinator_role": self.coordinator_role,
            "use_lease": self.settings.use_lease,
        }
        return {f"types.{self.name}.{key}": value for key, value in values.items()}

    # ---- what arrives

    def on_tells(self, session: Session, run: TellRun) -> None:
        """Messages to which nobody waits for an answer."""
        if self._look is not None:
            self._look()
        invoker = self.kind.invokers.get(run.method)
        via = session.mark or self._node.drops.mark(session)
        if invoker is None:
            self.host.counts.drop("unhandled", len(run.ids), via)
            return

        def arrive(entity_id: str, payload: bytes, corr: int) -> Activation | None:
            activation = self._enter(session, entity_id)
            if activation is None:
                self._pass_on(session, entity_id, Message(invoker, payload, None, corr, 0), 0)
            return activation

        mailbox_limits = self._mailbox_limits
        ahead = read_ahead(invoker, run.payloads)
        mailbox_limits.arrives(not session.forced)
        rows = zip(run.ids, run.payloads, repeat(via))
        try:
            self._deliver(self._find, arrive, invoker, None, rows, 0, (), ahead)
        finally:
            mailbox_limits.soft = False
        if mailbox_limits.met:
            mailbox_limits.pause(session)
        counts = self.host.counts
        counts.accepted += len(run.ids)
        if counts.accepted >= self.sampling.mark:
            self.sampling.take(counts.accepted, run.ids)

    def on_asks(self, session: Session, run: AskRun) -> None:
        """Messages whose senders wait."""
        if self._look is not None:
            self._look()
        invoker = self.kind.invokers.get(run.method)
        if invoker is None:
            self.host.counts.drop("unhandled", len(run.ids))
            text = (
                f"{self.name} has no handler {run.method!r}"
                if run.method
                else f"{self.name} has no receive"
            )
            for corr in run.corrs:
                session.fail(corr, Unhandled(text))
            return
        if run.timeout_ms <= 0:
            self.host.counts.drop("expired", len(run.ids))  # held on its way for too long
            return
        deadline = self._node.endpoint.clock.after(run.timeout_ms)

        def arrive(entity_id: str, payload: bytes, corr: int) -> Activation | None:
            activation = self._enter(session, entity_id, run.chain)
            if activation is None:
                message = Message(invoker, payload, session, corr, deadline, run.chain)
                self._pass_on(session, entity_id, message, 0)
            return activation

        rows = zip(run.ids, run.payloads, run.corrs, strict=True)
        ahead = read_ahead(invoker, run.payloads)
        self._deliver(self._find, arrive, invoker, session, rows, deadline, run.chain, ahead)
        counts = self.host.counts
        counts.accepted += len(run.ids)
        if counts.accepted >= self.sampling.mark:
            self.sampling.take(counts.accepted, run.ids)

    def on_relayed(self, session: Session, message: Relayed) -> None:
        """A message that another node, or our own router, sends on."""
        if self._look is not None:
            self._look()
        invoker = self.kind.invokers.get(message.method)
        local = session is self._node.loopback
        asker, corr = (session, message.corr) if message.corr else (None, message.via)
        if asker is None and not local:
            corr = session.mark or self._node.drops.mark(session)
        if invoker is None:
            self.host.counts.drop("unhandled", via=corr)
            if asker is not None:
                session.fail(message.corr, Unhandled(f"{self.name} has no {message.method!r}"))
            return
        if not local:  # from there it was counted when it came
            counts = self.host.counts
            counts.accepted += 1
            if counts.accepted >= self.sampling.mark:
                self.sampling.take(counts.accepted, (message.id,))
        deadline = self._node.endpoint.clock.after(message.timeout_ms) if asker is not None else 0
        waiting = Message(invoker, message.payload, asker, corr, deadline, message.chain)
        activation = self._find(message.id) or self._enter(session, message.id, message.chain)
        if activation is not None:
            self.host.runner.receive(activation, waiting)
        else:
            self._pass_on(session, message.id, waiting, message.hops)

    def _enter(self, session: Session, entity_id: str, chain: Chain = ()) -> Activation | None:
        """The entity, started if need be; None if its shard does not let this session's messages
        in."""
        try:
            shard = self.router.shard_of(entity_id)
        except ConfigError:
            return None
        hosted = self.host.shards.get(shard)
        if hosted is None or not hosted.lets_in(session, session is self._node.loopback):
            return None
        activation = hosted.activations.get(entity_id)
        return activation or self.host.activate(hosted, entity_id, chain=chain)

    def _pass_on(self, session: Session, entity_id: str, message: Message, hops: int) -> None:
        """The message is not for this node: let the region machine decide."""
        try:
            shard = self.router.shard_of(entity_id)
        except ConfigError as e:
            self.host.counts.drop("malformed", via=message.corr)
            if message.session is not None:
                message.session.fail(message.corr, Unhandled(str(e)))
            return
        local = session is self._node.loopback
        envelope = self._envelope(shard, entity_id, message, hops)
        self.router.arrived(envelope, None if local else session.tag)

    def _envelope(self, shard: str, entity_id: str, message: Message, hops: int) -> PendingMessage:
        self.relayed_messages += 1
        key = self.router.key(message.invoker.name)
        latest = self._node.endpoint.clock.after(LATEST_MS)
        return passed_on(key, shard, entity_id, message, hops, latest)

    def on_flush(self, session: Session, flush: Flush) -> None:
        """Answer if the shard lives here and everything before has come in; else send it on."""
        local = session is self._node.loopback
        hosted = self.host.shards.get(flush.shard)
        if hosted is not None and hosted.lets_in(session, local):
            session.reply(flush.corr, b"")
            return
        if not self.router.has_shard(flush.shard):
            self.host.counts.drop("malformed")
            session.fail(flush.corr, Unhandled(f"{self.name} has no shard {flush.shard:.80}"))
            return
        deadline = self._node.endpoint.clock.after(flush.timeout_ms)
        waiter = ForwardedAsk(session, flush.corr)
        envelope = PendingMessage(
            None, flush.shard, self.name, b"", flush.hops + 1, waiter, None, deadline
        )
        self.router.arrived(envelope, None if local else session.tag)

    # ---- what the router asks for

    def out_for(self, node: NodeId) -> Session:
        """The session to a node; to this one, the loopback."""
        if node == self._node.me:
            return self._node.loopback
        known = self._node.is_member(node)
        return self._node.endpoint.session_to(node.address, node, probe=not known)

    def is_here(self, node: NodeId) -> bool:
        """Whether that is this node."""
        return node == self._node.me

    def perform(self, effect: events.RegionEffect) -> None:
        """Carry out what the region machine says about anything but routes."""
        match effect:
            case events.SendCoordinator(message=message):
                coordinator = self._node.coordinator_of(self.name)
                if coordinator is not None:
                    self._node.send(coordinator, self.name, message)
            case events.Send(to=to, message=message):
                self._node.send(to, self.name, message)
            case events.SetArrivals(shard=shard, local=local, via=via):
                self.host.set_arrivals(shard, local, via)
            case events.StartShard(shard=shard, fence=fence):
                self.shard_leases.start(shard, fence)
            case events.StopShard(shard=shard):
                if not self._stopping:
                    self._loop.call_soon(self._stop_shards)
                self._stopping.append(shard)
            case events.Drained():
                if not self.drained.done():
                    self.drained.set_result(None)
            case events.Note():
                self._node.note(self.name, effect)
            case _:
                log.error("nothing performs a %s", type(effect).__name__)

    def _stop_shards(self) -> None:
        shards, self._stopping = self._stopping, []
        self.host.stop_shards(shards, self._stop_reason)

    async def _start_elsewhere(self, entity_id: str) -> None:
        await start_entity(self.router, entity_id, START_MS)

    def ready(self, shard: str) -> None:
        """The shard has started."""
        self._loop.call_soon(self.router.handle, events.ShardReady(shard))

    def down(self, shard: str) -> None:
        """Nothing of the shard runs here any more."""
        if self._stopped_here is None:
            left = self.host.take_left(shard)
            self.router.stopped(shard, [self._envelope(shard, i, m, 0) for i, m in left])
        elif not self.host.shards and not self._stopped_here.done():
            self._stopped_here.set_result(None)

    def rehouse(self, shard: str) -> None:
        """The shard had to stop, and shall run somewhere."""
        if self._stopped_here is None:
            asked = messages.GetShardHome((shard,))
            self.router.handle(events.MessageReceived(self._node.me, asked))

    def note(self, note: events.Note) -> None:
        """What became of the type's leases."""
        self._node.note(self.name, note)

    def dropped(self, reason: str, count: int, via: int = Origin.UNREPORTED) -> None:
        """The router could not send messages."""
        self.host.counts.drop(reason, count, via)

    # ---- news

    def unknown_at(self, node: NodeId) -> None:
        """The node that should have the coordinator runs an application without this type."""
        if self.stranger != node:
            self.stranger = node
            log.warning("%s; messages wait for a coordinator", self.missing)

    @property
    def missing(self) -> str:
        """Why there is no coordinator."""
        return f"{self.stranger} does not know entity type {self.name!r}: is it an older version?"

    def shutdown(self) -> asyncio.Future[None]:
        """Move everything away; done when nothing runs here."""
        self._stop_reason = StopReason.SHUTDOWN
        self.router.handle(events.Shutdown())
        return self.drained

    def stop_here(self) -> asyncio.Future[None]:
        """Stop everything where it is, and tell nobody: the whole cluster stops. Done when nothing
        runs here."""
        self._stopped_here = self._loop.create_future()
        self.host.passes_on = False
        if self.host.shards:
            self.host.stop_shards(list(self.host.shards), StopReason.SHUTDOWN)
        else:
            self._stopped_here.set_result(None)
        return self._stopped_here

    def close(self) -> None:
        """Stop the clock, and cut off what is still running. What never found its home is counted
        and named."""
        if left := self.router.region.buffered[0] - self.router.buffered_asks.flushes:
            self.host.counts.drop("undelivered", left)
            log.warning("%d messages of %r found no home before this node ended", left, self.name)
        self.router.close()
        self.host.close()

    def advance(self, tick: int) -> None:
        """Coarse time goes on."""
        self.host.runner.advance(tick)
        if self.router.buffered_asks:
            self._node.endpoint.asks_timed_out += self.router.expire()
