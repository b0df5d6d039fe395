"""A region: one entity type on one node, in a proxy or in a client, and the shards it hosts.

The hot path is not here. The shell keeps a route per shard, set by `SetRoute`, and sends along it
without asking. The region handles messages that have no route, and messages that arrive for a shard
that is not here; `routing` keeps them in order. This module registers, obeys, hosts and shuts down.

    HostShard ──> STARTING ──ShardReady──> RUNNING ──HandOff──> STOPPING ──ShardDown──> (gone)
                   ^  └──────────────────HandOff───────────────────^
    PrepareMove ──> PREPARED

- A shard that stopped under a fence never starts again under that fence or a lower one. A late
  HostShard, or a home on this node, is answered with ShardStopped of that very home, which frees
  the shard if that home is in the table, and otherwise does nothing.
- A region obeys the sender of the highest epoch seen. Commands with a lower epoch, or with the same
  epoch from another sender, are refused and noted.
- A *region* (`me` is a node, and it hosts) registers with its shards. A *proxy* registers and hosts
  nothing. A *client* (`me` is None) does neither: it asks any node's region, which answers and
  reports later moves.
- In a direct move, BeginMove takes the place of HandOff, and PrepareMove takes the place of
  HostShard: `outgoing_moves` and `incoming_moves` have the two sides.
- To shut down, a region asks the coordinator to move everything away until that confirms. Without a
  coordinator it stops its shards itself.

Source: S0.1, S0.6, S0.8, S0.14, S0.15, S2.23, S2.24, S2.50, S2.51, S2.62, B.56.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import assert_never

import msgspec
from msgspec.structs import replace

from shardbus.config.settings import ShardingSettings
from shardbus.ids import NodeId
from shardbus.sharding import events as ev
from shardbus.sharding import messages as msg
from shardbus.sharding.handoff_phases import MovePhase
from shardbus.sharding.messages import CarriedEntity, Home, ShardMove
from shardbus.sharding.region.incoming_moves import IncomingMoves
from shardbus.sharding.region.outgoing_moves import OutgoingMoves, mode_of
from shardbus.sharding.region.registration import Registration
from shardbus.sharding.region.reports import CoordinatorReports
from shardbus.sharding.region.route import Absence, BufferedMessage
from shardbus.sharding.region.routing import Routing
from shardbus.sharding.region.shutdown import RegionShutdown, ShutdownStep
from shardbus.sharding.region.table_gossip import TableGossip
from shardbus.sharding.region.watchers import Watchers


class HostedState(Enum):
    """The state of a hosted shard."""

    PREPARED = "prepared"
    """Another home hands it over; nothing of it runs here."""
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


class HostedShard(msgspec.Struct):
    """A shard on this node."""

    fence: int
    state: HostedState = HostedState.STARTING
    restart_fence: int = 0
    """The fence under which it starts again once it has stopped; 0 if it does not."""
    stop_fence: int = 0
    """The highest fence under which the coordinator has ordered it to stop."""


class ShardRegion:
    """One entity type on one node, or in one client. `events` describes `handle`, `deadline` and
    `tick`."""

    def __init__(
        self,
        entity_type: str,
        me: NodeId | None,
        layout: str,
        settings: ShardingSettings,
        *,
        proxy: bool = False,
    ) -> None:
        self.entity_type = entity_type
        self._me = me
        self._layout = layout
        self._proxy = proxy or me is None
        self._out: list[ev.RegionEffect] = []
        self.routing = Routing(me, settings, self._out)
        self._registration = Registration(me is not None, settings.retry_interval)
        self._outgoing = OutgoingMoves(me, settings, self.routing, self._out, self._stop_moving)
        self._incoming = IncomingMoves(
            me, settings, self.routing, self._out, self._start_prepared, self._drop_prepared
        )
        self.table_gossip = TableGossip(me, self._out)
        self._deferred: list[ev.MessageReceived] = []
        """Commands that wait for the end of an incoming move."""
        self._hosted: dict[str, HostedShard] = {}
        self._stopped: dict[str, int] = {}
        self._reports = CoordinatorReports(
            me, self.routing, self._outgoing, self._incoming, self._out
        )
        self._watchers = Watchers(
            me, self._registration, self.routing, self.table_gossip, self._out
        )
        self._shutdown = RegionShutdown(settings.handoff_timeout, settings.retry_interval)
        self._turn_at: float | None = None

    @property
    def epoch(self) -> int:
        """The highest epoch of a coordinator seen."""
        return self._registration.epoch

    @property
    def hosted(self) -> tuple[Home, ...]:
        """The shards that run, start or stop here."""
        if self._me is None:
            return ()
        return tuple(
            Home(shard, self._me, hosted.fence)
            for shard, hosted in self._hosted.items()
            if hosted.state is not HostedState.PREPARED
        )

    @property
    def registered(self) -> bool:
        """True if the coordinator of the highest epoch seen has this region in its table."""
        return self._registration.is_registered

    @property
    def buffered(self) -> tuple[int, int]:
        """The messages and bytes that wait for a home."""
        counts = self.routing.waiting.counts
        return counts.messages, counts.bytes

    def kept(self) -> Iterator[BufferedMessage]:
        """Yield every message that waits here for a home or for its turn."""
        yield from self.routing.kept()
        yield from self._incoming.kept()

    @property
    def moving(self) -> tuple[str, ...]:
        """The shards that this node gives away or takes over directly."""
        return (*self._outgoing.shards, *self._incoming.shards)

    def move_phases(self) -> Iterator[MovePhase]:
        """Yield the same moves with their phases."""
        yield from self._outgoing.phases()
        yield from self._incoming.phases()

    def state_of(self, shard: str) -> HostedState | None:
        """Return the state of the shard on this node, None if it is not here."""
        hosted = self._hosted.get(shard)
        return hosted.state if hosted is not None else None

    def home_of(self, shard: str) -> Home | None:
        """Return the best home known."""
        return self.routing.home_of(shard)

    def absence_of(self, shard: str) -> tuple[Absence, NodeId | None]:
        """Return why a shard has no home that takes messages, and the home that it had last."""
        return self.routing.absence_of(shard)

    @property
    def lacks_regions(self) -> bool:
        """True if messages wait for shards that no region may take."""
        return self.buffered[0] > 0 and self.routing.requests.lacks_regions

    def why_waiting(self, shard: str) -> str:
        """Return why a requested shard has no home, empty if that is not known."""
        return self.routing.requests.why_waiting(shard)

    @property
    def instances(self) -> int:
        """The number of instances of the type; 0: it has none, or the number is not known."""
        return self.routing.instances

    def handle(self, event: ev.RegionEvent, now: float) -> list[ev.RegionEffect]:
        """Handle one event; return its immediate effects."""
        self._turn_at = now
        match event:
            case ev.Deliver():
                moves = self._outgoing.deliver(event) or self._incoming.deliver(event)
                if not moves:
                    self.routing.deliver(event, now)
            case ev.MessageReceived(sender, message):
                self._on_message(sender, message, now)
            case ev.Expired(shards):
                self.routing.mark_expired(shards)
            case ev.Withdrawn(messages):
                self.routing.withdraw(messages)
            case ev.Watch(shards):
                for shard in shards:
                    self.routing.watch(shard, now)
            case ev.InstancesDescribed(count):
                if not self.routing.instances:
                    self.routing.set_instances(count)
            case ev.CoordinatorAt(node, why_no_home):
                self.routing.requests.why_no_home = why_no_home
                self._registration.set_coordinator(node, now)
                self.routing.request_again(now, everything=self._me is None)
                self._set_help(now)
            case ev.EpochSeen(epoch):
                self._registration.on_epoch(epoch, now)
            case ev.FlushDone(shard, flush_id):
                self.routing.on_flushed(shard, flush_id, now)
            case ev.CallSent(shard):
                self.routing.on_call_sent(shard, now)
            case ev.ShardReady(shard):
                self._on_ready(shard, now)
            case ev.ShardDown(shard, left, carried):
                self._on_down(shard, left, now, carried)
            case ev.NodeGone(node, returned):
                self._watchers.forget(node)
                returned = self._outgoing.refuse_returned(node, returned)
                self._outgoing.on_node_gone(node)
                self.routing.on_node_gone(node, returned, now)
                self._incoming.on_node_gone(node)
                self.table_gossip.on_node_gone(node)
            case ev.NodeLeft(node):
                self.routing.on_node_left(node, now)
                self.table_gossip.on_node_gone(node)
            case ev.NodeBack(node):
                self.routing.on_node_back(node)
                self.table_gossip.on_node_back(node)
            case ev.AskTableVersions():
                self.table_gossip.ask_versions()
            case ev.Shutdown():
                self._shutdown.begin(now, hosts=self._has_shards())
                self._set_help(now)
            case _:
                assert_never(event)
        return self._take_effects()

    def deadline(self) -> float | None:
        """Return when `tick` is due."""
        ends = self._shutdown.deadlines()
        moves = (self._outgoing.deadline(), self._incoming.deadline())
        starts = (self._turn_at, self._registration.due, self.table_gossip.due)
        dues = (*starts, self.routing.requests.timers.deadline(), *moves, *ends)
        return min((due for due in dues if due is not None), default=None)

    def tick(self, now: float) -> list[ev.RegionEffect]:
        """End the turn: send one message per receiver."""
        self._turn_at = None
        if self._registration.take_due(now) and self._me is not None:
            proxy = self._proxy or self._shutdown.done
            self._registration.reported = self.hosted
            self._tell_coordinator(msg.Register(self._me, proxy, self._layout, self.hosted))
        self._outgoing.tick(now)
        self._incoming.tick(now)
        if self._deferred:
            self._take_up_deferred(now)
        self.table_gossip.tick(now)
        self.routing.pass_to_instances()
        requests = self.routing.due_requests(now)
        if self._registration.coordinator is not None:
            self._reports.send(requests)
        self._watchers.inform()
        self._shut_down(now)
        return self._take_effects()

    def check(self) -> None:
        """Check the invariants; for tests."""
        self.routing.check(self._incoming.kept())
        self._outgoing.check()
        self._incoming.check()
        for shard, hosted in self._hosted.items():
            assert hosted.fence > self._stopped.get(shard, 0), f"fence of {shard} ended"
        assert not (self._shutdown.done and self._hosted)

    # Messages of the coordinator, other regions and clients.

    def _on_message(self, sender: NodeId, message: ev.Message, now: float) -> None:
        match message:
            case msg.RegisterAck(epoch, _, homes):
                if self._obeys(sender, epoch, now):
                    self._registration.on_registered(self.hosted, now)
                    self.routing.admit()
                    self.table_gossip.forget_before(epoch)
                    self.routing.requests.by_gossip = self.table_gossip.state is not None
                    self._on_homes(homes, epoch, now)
            case msg.RegisterRefused(epoch, reason):
                if self._obeys(sender, epoch, now):
                    self._on_refused(reason, now)
            case msg.ShardHomes(epoch, homes):
                if self._obeys(sender, epoch, now):
                    self._on_homes(homes, epoch, now)
            case msg.InstanceCount(epoch, count):
                if self._obeys(sender, epoch, now) and count != self.routing.instances:
                    self.routing.set_instances(count)
                    self._watchers.send_count()
            case msg.HostShard(epoch, homes, behind):
                if self._obeys(sender, epoch, now):
                    before = {home.shard: home for home in behind}
                    for home in homes:
                        self._on_host(home, before.get(home.shard), epoch, now)
            case msg.PassOn(homes):
                for home in homes:
                    if home.node == sender:
                        self.routing.on_pass_on(home)
            case msg.BeginHandOff(epoch, homes):
                if self._obeys(sender, epoch, now):
                    for home in homes:
                        self.routing.begin_handoff(home, epoch, now)
            case msg.HandOff(epoch, homes):
                if self._obeys(sender, epoch, now):
                    for home in homes:
                        self._on_handoff(home, now)
            case (
                msg.BeginMove() | msg.HomesMoved() | msg.PrepareMove() | msg.MovePrepared()
                | msg.MoveCancelled() | msg.Carry() | msg.Switch() | msg.MoveAck() | msg.AckWanted()
            ):  # fmt: skip
                self._on_move_message(sender, message, now)
            case msg.Wait(epoch, shards, why):  # a former coordinator will not answer
                if self._obeys(sender, epoch, now) and sender == self._registration.coordinator:
                    self.routing.on_wait(shards, why, now)
            case msg.RegionStopped(node):
                if node == self._me and sender == self._registration.coordinator:
                    self._shutdown.confirm()
            case msg.GetShardHome(shards):
                self._watchers.on_request(sender, shards, now)
            case msg.TableStatus():
                self.table_gossip.on_status(sender, message, now)
            case msg.TableState():
                self._on_table(sender, message, now)
            case (
                msg.Register() | msg.ShardStarted() | msg.BeginHandOffAck() | msg.ShardStopped()
                | msg.ShardLoads() | msg.GracefulShutdownRequest() | msg.ShardMoved()
                | msg.MoveRefused() | msg.MoveComplete()
            ):  # fmt: skip
                self._note("unexpected", f"{type(message).__name__} from {sender}")
            case _:
                assert_never(message)

    # Direct moves.

    def _on_move_message(self, sender: NodeId, message: ev.Message, now: float) -> None:
        match message:
            case msg.BeginMove(epoch, mode, senders, moves):
                if self._obeys(sender, epoch, now):
                    for move in moves:
                        self._on_begin_move(sender, message, move, now)
            case msg.HomesMoved(epoch, mode, moves):
                if self._obeys(sender, epoch, now):
                    ordered = mode_of(mode).keeps_order
                    self._acknowledge(moves)
                    for move in moves:
                        self._on_moved(move, epoch, now, ordered=ordered)
                        if not ordered:
                            self.routing.note_unordered(move, mode)
            case msg.AckWanted(moves):
                to_sender = [move for move in moves if move.new.node == sender]
                for move in to_sender:
                    if move.old.node == self._me:  # it counts its own with HomesMoved
                        self._outgoing.on_ack_wanted(move)
                mine = tuple(move for move in to_sender if move.old.node != self._me)
                self._acknowledge(mine)
                for move in mine:
                    self.routing.on_moved(move, self.epoch, now, ordered=True)
            case msg.PrepareMove(mode, senders, moves):
                for move in moves:
                    if move.old.node == sender:
                        self._on_prepare(move, mode, senders, now)
            case msg.MovePrepared(moves, carries):
                for move in moves:
                    if move.new.node == sender:
                        self._outgoing.on_prepared(move, now, carries=carries)
            case msg.MoveCancelled(moves):
                for move in moves:
                    if move.old.node == sender:
                        self._incoming.on_cancelled(move, now)
                    elif move.new.node == sender and self._outgoing.on_refused(move):
                        self._report_stopped(move.old)
            case msg.Carry(move, entities):
                if move.old.node == sender:
                    self._incoming.on_carried(move, entities)
            case msg.Switch(moves):
                for move in moves:
                    if move.old.node == sender and self._incoming.on_switch(move):
                        self._registration.on_arrival(move.new, now)
            case msg.MoveAck(origin, moves):
                for move in moves:
                    if move.old.node == self._me and origin == sender:
                        self._outgoing.on_ack(origin, move)
                    elif move.old.node == sender:
                        self._incoming.on_ack(origin, move, now)

    def _acknowledge(self, moves: tuple[ShardMove, ...]) -> None:
        """Send MoveAck to the old homes, behind everything that this node sent there."""
        if self._me is None:
            return
        by_home: dict[NodeId, list[ShardMove]] = {}
        for move in moves:
            by_home.setdefault(move.old.node, []).append(move)
        for node, left in by_home.items():
            if node != self._me:
                self._out.append(ev.Send(node, msg.MoveAck(self._me, tuple(left))))
                continue
            for move in left:
                self._outgoing.on_ack(self._me, move)

    def _on_begin_move(
        self, sender: NodeId, message: msg.BeginMove, move: ShardMove, now: float
    ) -> None:
        shard, old = move.old.shard, move.old
        if self._outgoing.has_moved(move):
            return
        hosted = self._hosted.get(shard)
        if hosted is None or old.node != self._me or hosted.fence > old.fence:
            self._report_stopped(old)
            return
        if shard in self._incoming:
            self._incoming.on_host(old)  # it has moved here, or it could not move on
            self._deferred.append(ev.MessageReceived(sender, replace(message, moves=(move,))))
            return
        running = hosted.state in (HostedState.STARTING, HostedState.RUNNING)
        if not running or hosted.restart_fence or not self.routing.is_settled_here(shard):
            self._outgoing.refused[shard] = move
            return
        self._outgoing.begin(move, message.mode, message.senders, now)

    def _on_prepare(
        self, move: ShardMove, mode: str, senders: tuple[NodeId, ...], now: float
    ) -> None:
        shard, home = move.new.shard, move.new
        if home.node != self._me:
            return
        hosted = self._hosted.get(shard)
        if hosted is not None and hosted.fence == home.fence:
            if hosted.state is not HostedState.STOPPING:  # the first answer was lost
                self._out.append(ev.Send(move.old.node, msg.MovePrepared((move,), carries=True)))
            return
        ended = home.fence <= self._stopped.get(shard, 0)
        closed = self._proxy or self._shutdown.alone or self._shutdown.done
        late = not self.routing.accepts(home, self.epoch)  # the shard lives somewhere else by now
        if hosted is not None or ended or closed or late:
            self._out.append(ev.Send(move.old.node, msg.MoveCancelled((move,))))
            return
        self._hosted[shard] = HostedShard(home.fence, HostedState.PREPARED)
        self._incoming.prepare(move, mode, senders, now)

    def _on_moved(self, move: ShardMove, epoch: int, now: float, *, ordered: bool) -> None:
        """Use the new home. If that is this node, and the shard is not here, it has stopped here
        since, or never came: the coordinator has no record of that, for its store was set back."""
        if move.new.node == self._me and move.new.shard not in self._hosted:
            self._report_stopped(move.new)
            return
        self.routing.on_moved(move, epoch, now, ordered=ordered)
        self._repeat_complete(move)

    def _repeat_complete(self, move: ShardMove) -> None:
        """Report a move as complete that was so before this coordinator took over."""
        hosted = self._hosted.get(move.new.shard)
        if hosted is None or move.new.node != self._me or move.new.shard in self._incoming:
            return
        if hosted.fence == move.new.fence and hosted.state is HostedState.RUNNING:
            self._incoming.complete[move.new.shard] = move

    def _start_prepared(self, shard: str, carried: tuple[CarriedEntity, ...]) -> None:
        hosted = self._hosted[shard]
        hosted.state = HostedState.STARTING
        self._out.append(ev.StartShard(shard, hosted.fence, carried))

    def _drop_prepared(self, shard: str) -> None:
        hosted = self._hosted.get(shard)
        if hosted is not None and hosted.state is HostedState.PREPARED:
            del self._hosted[shard]

    def _stop_moving(self, shard: str, now: float) -> None:
        hosted = self._hosted.get(shard)
        if hosted is not None:
            self._stop(shard, hosted, now)

    def _take_up_deferred(self, now: float) -> None:
        """Obey commands for shards whose incoming move is over."""
        deferred, self._deferred = self._deferred, []
        for event in deferred:
            self._on_message(event.sender, event.message, now)

    # Commands.

    def _obeys(self, sender: NodeId, epoch: int, now: float) -> bool:
        refusal = self._registration.refusal(sender, epoch)
        if refusal:
            self._note("refused", refusal)
        else:
            self._registration.on_epoch(epoch, now)
        return not refusal

    def _on_homes(self, homes: tuple[Home, ...], epoch: int, now: float) -> None:
        for home in homes:
            hosted = self._hosted.get(home.shard)
            if home.node == self._me and hosted is None:
                if home.fence <= self._stopped.get(home.shard, 0):
                    self._report_stopped(home)
                    continue
            elif hosted is not None and home.node != self._me and home.fence > hosted.fence:
                self._note("superseded", f"shard {home.shard} lives at {home.node}")
                hosted.restart_fence = 0
                self._outgoing.on_superseded(home.shard)
                self._stop(home.shard, hosted, now)
            self.routing.on_home(home, epoch, now)

    def _on_table(self, sender: NodeId, state: msg.TableState, now: float) -> None:
        """Use the homes of a newer table. Any region may have sent it: homes are believed by their
        fences."""
        if state.epoch >= self.epoch:
            self._on_homes(self.table_gossip.on_state(sender, state, now), state.epoch, now)
            self.routing.requests.by_gossip = self.table_gossip.state is not None

    def _on_host(self, home: Home, behind: Home | None, epoch: int, now: float) -> None:
        shard, hosted = home.shard, self._hosted.get(home.shard)
        if home.node != self._me or self._proxy:
            self._note("unexpected", f"HostShard {shard} for {home.node}")
            return
        if hosted is None:
            ended = home.fence <= self._stopped.get(shard, 0)
            if ended or self._shutdown.alone or not self.routing.accepts(home, epoch):
                self._report_stopped(home)
                return
            if behind is not None and self.routing.await_leftovers(behind, now):
                self._out.append(ev.Send(behind.node, msg.PassOn((home,))))
            self._start(home, epoch, now)
        elif home.fence == hosted.fence and hosted.state is HostedState.PREPARED:
            self._incoming.on_host(home)
            self.routing.on_home(home, epoch, now)
        elif home.fence == hosted.fence and hosted.state is HostedState.RUNNING:
            self._reports.started[shard] = home
        elif home.fence > hosted.fence:
            hosted.restart_fence = max(hosted.restart_fence, home.fence)
            self._stop(shard, hosted, now)
            self.routing.on_home(home, epoch, now)

    def _on_handoff(self, home: Home, now: float) -> None:
        hosted = self._hosted.get(home.shard)
        if hosted is None or home.node != self._me:
            self._report_stopped(home)
            return
        if home.fence < hosted.fence:
            self._note("stale_handoff", home.shard)
            return
        leaves = home.shard in self._outgoing and home.fence == hosted.fence
        if leaves and not self._outgoing.on_handoff(home.shard):
            return
        if home.fence >= hosted.restart_fence:
            hosted.restart_fence = 0
            hosted.stop_fence = home.fence
        self._stop(home.shard, hosted, now)
        self.routing.on_shard_stopping(home.shard, home.fence, now)

    def _on_refused(self, reason: str, now: float) -> None:
        self._note("register_refused", reason)
        self._registration.on_refused(now)
        for shard, hosted in self._hosted.items():
            self._stop(shard, hosted, now)
        self.routing.refuse()

    # Shards on this node.

    def _start(self, home: Home, epoch: int, now: float) -> None:
        self._hosted[home.shard] = HostedShard(home.fence)
        self.routing.on_home(home, epoch, now)
        self._out.append(ev.StartShard(home.shard, home.fence))

    def _stop(self, shard: str, hosted: HostedShard, now: float) -> None:
        if hosted.state is HostedState.STOPPING:
            return
        prepared = hosted.state is HostedState.PREPARED
        hosted.state = HostedState.STOPPING
        self.routing.on_shard_stopping(shard, hosted.fence, now)
        self._incoming.end(shard, now)
        if prepared:
            self._on_down(shard, (), now)
        else:
            self._out.append(ev.StopShard(shard, hosted.fence))

    def _on_ready(self, shard: str, now: float) -> None:
        hosted = self._hosted.get(shard)
        if hosted is None or hosted.state is not HostedState.STARTING or self._me is None:
            return
        hosted.state = HostedState.RUNNING
        self._outgoing.on_running(shard)
        self._reports.started[shard] = Home(shard, self._me, hosted.fence)
        if not self._incoming.on_running(shard, now):
            self.routing.on_shard_running(shard, hosted.fence)

    def _on_down(
        self,
        shard: str,
        left: tuple[BufferedMessage, ...],
        now: float,
        carried: tuple[CarriedEntity, ...] = (),
    ) -> None:
        hosted = self._hosted.pop(shard, None)
        if hosted is None or self._me is None:
            return
        fence = self._stopped[shard] = max(hosted.fence, hosted.stop_fence)
        self._incoming.end(shard, now)
        if self._outgoing.on_stopped(shard, left, now, carried):
            if hosted.restart_fence:  # it came back while its entities still stopped
                self._restart(shard, hosted.restart_fence)
            return
        if hosted.state is not HostedState.STOPPING or not hosted.restart_fence:
            self.routing.on_shard_stopping(shard, fence, now)  # it may have this home again
        self.routing.keep_leftovers(shard, left, self.epoch, now)
        if hosted.restart_fence:
            self._restart(shard, hosted.restart_fence)
        else:
            self._reports.stopped[shard] = Home(shard, self._me, self._stopped[shard])

    def _restart(self, shard: str, fence: int) -> None:
        self._hosted[shard] = HostedShard(fence)
        self._out.append(ev.StartShard(shard, fence))

    def _report_stopped(self, home: Home) -> None:
        if self._outgoing.has_left(home):
            return  # it may run at its new home
        self._stopped[home.shard] = max(self._stopped.get(home.shard, 0), home.fence)
        self._reports.stopped[home.shard] = home

    # Shutdown.

    def _set_help(self, now: float) -> None:
        here = self._registration.coordinator is not None
        self._shutdown.on_coordinator(here=here, ever=bool(self.epoch), now=now)

    def _has_shards(self) -> bool:
        """True if the region hosts shards, or forwards messages of those that moved away."""
        return bool(self._hosted) or self._outgoing.forwards()

    def _shut_down(self, now: float) -> None:
        step = self._shutdown.step(now, hosts=self._has_shards(), proxy=self._proxy)
        if step is ShutdownStep.STOP:
            for shard, hosted in self._hosted.items():
                self._stop(shard, hosted, now)
            step = self._shutdown.step(now, hosts=bool(self._hosted), proxy=self._proxy)
        if step is ShutdownStep.DONE:
            self._out.append(ev.Drained())
            if not self._shutdown.confirmed:
                self._registration.register_again(now)
        elif step is ShutdownStep.ASK and self._registration.is_registered and self._me is not None:
            self._tell_coordinator(msg.GracefulShutdownRequest(self._me))

    def _tell_coordinator(self, message: ev.Message) -> None:
        self._out.append(ev.SendCoordinator(message))

    def _note(self, kind: str, detail: str) -> None:
        self._out.append(ev.Note(kind, detail))

    def _take_effects(self) -> list[ev.RegionEffect]:
        effects = list(self._out)
        self._out.clear()
        return effects
