"""A minimal shell around the sharding machines: the processes of `sharding_net`.

It keeps the duties that `events` gives of a shell: a route per shard for the hot path, the links
that a shard accepts messages from, mailboxes, and a timer for each machine. It also shows, in fifty
lines, how the real shell is meant to be written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardbus.ids import NodeId
from shardbus.sharding import events as ev
from shardbus.sharding.coordinator.coordinator import Coordinator
from shardbus.sharding.coordinator.epoch_claim import CoordinatorState
from shardbus.sharding.messages import (
    BeginHandOffAck,
    GetShardHome,
    GracefulShutdownRequest,
    Home,
    MoveComplete,
    MoveRefused,
    Register,
    ShardMoved,
    ShardStarted,
    ShardStopped,
    TableState,
)
from shardbus.sharding.region.region import ShardRegion
from tests.machines import DeadlineTimer

if TYPE_CHECKING:
    from tests.unit.sharding.sharding_net import Net

TO_COORDINATOR = (
    Register, ShardStarted, BeginHandOffAck, ShardStopped, GracefulShutdownRequest, ShardMoved,
    MoveRefused, MoveComplete,
)  # fmt: skip


@dataclass(eq=False, slots=True)
class Letter:
    """A numbered message, or a Flush (`flush_id`), for an entity of a shard."""

    sender: str
    shard: str
    entity: str
    seq: int
    origin: NodeId
    flush_id: int = 0
    size: int = 10
    expired: bool = False
    any_instance: bool = False
    hops: int = 0
    calls: bool = False
    """It is a call of an entity, which a shard takes that leaves its home."""
    at: NodeId | None = None
    """The process that has it, or to which it is on the way."""

    @property
    def is_marker(self) -> bool:
        return self.flush_id > 0


@dataclass(frozen=True, slots=True)
class Echo:
    """Answer to a Flush."""

    shard: str
    flush_id: int


@dataclass(slots=True)
class Shard:
    """A shard on a process: one mailbox is enough to tell order by."""

    fence: int
    ready: bool = False
    stopping: bool = False
    mailbox: deque[Letter] = field(default_factory=deque)
    busy: bool = False
    leaves: bool = False
    """Messages in the mailbox now are not handled here any more."""
    ending: bool = False
    """No entity runs any more."""

    @property
    def takes_calls(self) -> bool:
        """True if it handles calls, though it may be about to leave."""
        return self.ready and not self.leaves and not self.ending


class Process:
    """A node (`hosts`) or a client."""

    def __init__(self, net: Net, me: NodeId, name: str, hosts: bool) -> None:
        self.net, self.me, self.name, self.hosts = net, me, name, hosts
        self.region = ShardRegion("t", me if hosts else None, net.layout, net.settings)
        self.coordinator: Coordinator | None = None
        self.coordinator_at: NodeId | None = None
        self.routes: dict[str, NodeId | None] = {}
        self.arrivals: dict[str, NodeId | bool] = {}
        self.shards: dict[str, Shard] = {}
        self.alive = True
        self.leaving = False
        self.epoch = 0
        self.drained = False
        self.waiting: dict[tuple[str, str], Home] = {}
        """Senders of which a message for a shard waits that leaves this home."""
        self._region_timer = DeadlineTimer(net, self._region_deadline, self._tick_region)
        self._coordinator_timer = DeadlineTimer(
            net, self._coordinator_deadline, self._tick_coordinator
        )

    # Its events.

    def tell(self, letter: Letter) -> None:
        letter.at = self.me
        node = self.routes.get(letter.shard)
        if node is not None:
            self.pass_on(letter, node)
        elif not self._sent_to_leaving(letter):
            self.into_region(ev.Deliver(letter.shard, letter))

    def _sent_to_leaving(self, letter: Letter) -> bool:
        """Send a call to the home that the shard leaves, unless an older message of its sender
        waits for the next one. Returns False if it waits, too."""
        route = self.region.routing.find(letter.shard)
        home = None if route is None else route.leaving_home
        if home is None or self.region.routing.is_gone(home.node):
            return False
        key = letter.sender, letter.shard
        here = self.shards.get(letter.shard) if home.node == self.me else None
        takes = home.node != self.me or (here is not None and here.takes_calls)
        if not letter.calls or self.waiting.get(key) == home or not takes:
            self.waiting[key] = home
            return False
        self.pass_on(letter, home.node)
        if home.node != self.me:
            self.into_region(ev.CallSent(letter.shard))
        return True

    def _takes_while_leaving(self, sender: NodeId, letter: Letter) -> bool:
        """True if a shard that stops takes a call, or echoes a Flush: nothing older waits here."""
        shard, route = self.shards.get(letter.shard), self.region.routing.find(letter.shard)
        if shard is None or route is None or not (letter.calls or letter.is_marker):
            return False
        leaves = route.leaving_home is not None and route.leaving_home.node == self.me
        return leaves and shard.stopping and shard.takes_calls and not route.keeps_from(sender)

    def arrive(self, sender: NodeId, item: object) -> None:
        match item:
            case Letter():
                let_in = self.arrivals.get(item.shard, False)
                if let_in is True or let_in == sender or self._takes_while_leaving(sender, item):
                    self.accept(item)
                else:
                    self.into_region(ev.Deliver(item.shard, item, sender, item.hops - 1))
            case Echo(shard, flush_id):
                self.into_region(ev.FlushDone(shard, flush_id))
            case TableState():
                self.net.check_table_is_not_ahead(item)
                self.into_region(ev.MessageReceived(sender, item))
            case _:
                asks = isinstance(item, GetShardHome) and sender in self.net.members
                if isinstance(item, TO_COORDINATOR) or asks:
                    self.into_coordinator(ev.MessageReceived(sender, item))
                else:
                    self.into_region(ev.MessageReceived(sender, item))

    def into_region(self, event: ev.RegionEvent) -> None:
        if self.alive:
            self.net.trace(self, event)
            self.perform(self.region.handle(event, self.net.now))
            self._region_timer.arm()

    def into_coordinator(self, event: ev.CoordinatorEvent) -> None:
        if self.alive and self.coordinator is not None:
            self.net.trace(self, event)
            self.perform(self.coordinator.handle(event, self.net.now))
            self._coordinator_timer.arm()

    def _region_deadline(self) -> float | None:
        return self.region.deadline() if self.alive else None

    def _tick_region(self) -> None:
        self.perform(self.region.tick(self.net.now))

    def _coordinator_deadline(self) -> float | None:
        return self.coordinator.deadline() if self.alive and self.coordinator else None

    def _tick_coordinator(self) -> None:
        if self.coordinator is not None:
            self.perform(self.coordinator.tick(self.net.now))

    # Its actions.

    def perform(self, effects: Sequence[ev.RegionEffect | ev.CoordinatorEffect]) -> None:
        for effect in effects:
            self.net.trace(self, effect)
            self._perform(effect)

    def _perform(self, effect: ev.RegionEffect | ev.CoordinatorEffect) -> None:
        net = self.net
        match effect:
            case ev.SendCoordinator(message):
                if self.coordinator_at is not None:
                    net.send(self.me, self.coordinator_at, message)
            case ev.Send(to, message):
                net.send(self.me, to, message)
            case ev.SetRoute(shard, node):
                self.routes[shard] = node
            case ev.SetArrivals(shard, local, via):
                self.arrivals[shard] = via if local and via is not None else local
            case ev.Release(_, node, envelopes):
                for letter in envelopes:
                    assert isinstance(letter, Letter)
                    self.pass_on(letter, node)
            case ev.SendFlush(shard, node, flush_id):
                self.pass_on(Letter("", shard, "", 0, self.me, flush_id), node)
                net.at(net.now + 60, lambda: self._flush_overdue(shard, flush_id))
            case ev.StartShard(shard, fence, carried):
                net.on_start(self, shard, fence)
                net.on_carried(shard, carried)
                self.shards[shard] = Shard(fence)
                net.at(net.now + net.dice.uniform(0, 0.1), lambda: self._ready(shard, fence))
            case ev.StopShard(shard, _):
                self.shards[shard].stopping = True
                self.shards[shard].leaves = net.dice.random() < net.leaving_mail
                self._work(shard)
            case ev.Reject(_, letter, reason):
                assert isinstance(letter, Letter)
                net.on_reject(letter, reason)
            case ev.Drained():
                self.drained = True
            case ev.Note(kind, detail):
                if kind == "epoch_claimed":
                    self.epoch = int(detail)
                    net.on_reign(self.epoch)
                net.notes[kind] = net.notes.get(kind, 0) + 1
            case ev.Stop():
                self.coordinator = None
                net.on_coordinator_stop(self)
            case ev.ShardsStopped(shards):
                net.on_shards_stopped(shards)
            case ev.LoadTable() | ev.ClaimEpoch() | ev.Persist():
                net.store.do(self, effect)

    def _flush_overdue(self, shard: str, flush_id: int) -> None:
        self.into_region(ev.FlushDone(shard, flush_id))

    def pass_on(self, letter: Letter, node: NodeId) -> None:
        if node == self.me:
            self.accept(letter)
        else:
            letter.hops += 1
            letter.at = node
            self.net.send(self.me, node, letter)

    # Shards and entities.

    def accept(self, letter: Letter) -> None:
        if letter.flush_id:
            self.net.send(self.me, letter.origin, Echo(letter.shard, letter.flush_id))
            return
        shard = self.shards.get(letter.shard)
        assert shard is not None, "let in without a shard"
        assert shard.ready, "let in before the shard is ready"
        late = letter.calls and shard.takes_calls
        assert late or not shard.stopping, "let in after the shard stopped"
        shard.mailbox.append(letter)
        self._work(letter.shard)

    def _ready(self, shard: str, fence: int) -> None:
        here = self.shards.get(shard)
        if self.alive and here is not None and here.fence == fence and not here.stopping:
            here.ready = True
            self.into_region(ev.ShardReady(shard))

    def _work(self, name: str) -> None:
        shard = self.shards[name]
        if shard.busy:
            return
        if shard.mailbox and not shard.leaves:
            shard.busy = True
            self.net.at(
                self.net.now + self.net.dice.uniform(0, self.net.work_s), lambda: self._step(name)
            )
        elif shard.stopping:
            shard.busy = shard.ending = True
            stopped_at = self.net.now + self.net.stop_s + self.net.dice.uniform(0, 0.05)
            self.net.at(stopped_at, lambda: self._down(name))

    def _step(self, name: str) -> None:
        if self.alive:
            shard = self.shards[name]
            shard.busy = False
            self.net.on_handled(self, shard.mailbox.popleft(), shard.fence)
            self._work(name)

    def _down(self, name: str) -> None:
        if self.alive:
            left = tuple(self.shards.pop(name).mailbox)
            self.net.left += len(left)
            self.into_region(ev.ShardDown(name, left, self.net.freeze(name)))

    def rules(self) -> bool:
        return self.coordinator is not None and self.coordinator.state is CoordinatorState.RULING
