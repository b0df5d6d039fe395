"""The coordinator of one entity type: it alone decides where shards live.

A region that has a message for a shard without a known home asks the coordinator. The coordinator
allocates a home, writes it to the store, and announces it to every region and proxy. Later it moves
shards: for balance, away from nodes that leave or drain, and from nodes that died.

`tick` ends one turn of the loop:

    1. requests, registrations and regions that shut down show which shards need a home or must
       leave theirs; planned moves begin as far as their bounds allow
    2. all shards that need a home get one in one plan, and the plan is one guarded write: `Persist`
    3. every request is answered: ShardHomes, or Wait with a reason, and then ShardHomes follows
    4. all messages of the turn are gathered into few per receiver

When the write is durable, `Persisted` applies it to the table and announces it: HostShard to the
new owners, ShardHomes to every region, proxy and waiting client. No node receives a home before.
Changes that come up while a write is under way gather for the next one. A write without an answer
is tried again as the same operation. A refused write ends this coordinator, and so does Retire,
once the write under way is done. A coordinator with nothing to write for `CONFIRM_S` writes an
empty change. So a paused coordinator notices that it was replaced.

A shard never leaves a live owner that has not sent ShardStopped, however long that takes. The
shards of a dead node get new homes at once; no request is needed.

The parts, each in a module of its own:

    epoch_claim   how a coordinator gets an epoch before it decides anything
    registry      which nodes live, how regions register, which may host
    ledger        the table, pending changes, the write under way
    handoff       the phases of one move
    direct_moves  moves in which the old home hands the shard to the new one
    moves         all moves under way, and those planned
    rebalancing   when to plan, how fast to move
    load_estimates the cost of shards, and the spare capacity of nodes
    placing       the questions to the strategy
    starts, stops shards that must start, shards that an operator stops
    instance_rows the number of instances of a type, and its rows
    outbox        messages of one turn, and requests for homes
    history       the last changes of each shard's home
    table_versions the table as it travels by gossip

Not here: which node a shard should go to (`allocation`), the work of regions (`region`).

Source: S0.6-S0.8, S0.16-S0.25, S0.32-S0.34, S2.23-S2.28, S2.34, S2.50, S2.61, S2.66, S2.67, S2.70,
B.57, B.63-B.65, N.1, N.5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shardbus.config.settings import ShardingSettings
from shardbus.ids import NodeId
from shardbus.quantities import counted
from shardbus.sharding import events as ev
from shardbus.sharding import messages as msg
from shardbus.sharding.allocation.distinct import DistinctRows
from shardbus.sharding.allocation.forecast import Forecast, forecast
from shardbus.sharding.allocation.strategies import AllocationStrategy
from shardbus.sharding.coordinator import ledger
from shardbus.sharding.coordinator.direct_moves import DirectMoves
from shardbus.sharding.coordinator.epoch_claim import CoordinatorState, EpochClaim, backoff
from shardbus.sharding.coordinator.handoff import Handoff, HandoffPurpose
from shardbus.sharding.coordinator.history import ShardHistory
from shardbus.sharding.coordinator.instance_rows import InstanceRows
from shardbus.sharding.coordinator.moves import Moves
from shardbus.sharding.coordinator.outbox import HomeMessage, HomeRequests, Outbox
from shardbus.sharding.coordinator.placing import Placing
from shardbus.sharding.coordinator.rebalancing import COALESCE_S, Rebalancing
from shardbus.sharding.coordinator.registry import LOSS_PATIENCE, Registrar, Registry
from shardbus.sharding.coordinator.starts import TRIES, PendingStarts
from shardbus.sharding.coordinator.stops import PendingStops
from shardbus.sharding.coordinator.table_versions import AWAITING, COMPLETE, TableVersions
from shardbus.sharding.handoff_phases import MovePhase
from shardbus.sharding.instances import Instances, split_row
from shardbus.sharding.messages import Home, PartitionChange, ShardMove
from shardbus.sharding.overrides import Overrides
from shardbus.sharding.table import (
    ShardTable,
)
from shardbus.sharding.timers import Timers

GRACE, WRITE, CONFIRM = "grace", "write", "confirm"
WHY_MAX = 300
"""Characters of a store's error in the reason for which a shard has no home."""


class Coordinator:
    """Decides homes. `events` describes `handle`, `deadline` and `tick`."""

    def __init__(
        self,
        entity_type: str,
        me: NodeId,
        layout: str,
        settings: ShardingSettings,
        strategy: AllocationStrategy,
        instances: Instances | None = None,
        cluster_minimum: int = 0,
        *,
        threaded: bool = False,
    ) -> None:
        """`threaded`: the strategy is called in a thread, by the shell (`strategy_calls`)."""
        self.entity_type = entity_type
        self._rows = InstanceRows(instances) if instances is not None else None
        self._settings = settings
        self.layout = layout
        """The name of the shard function: a table of another one cannot be claimed."""
        self._epoch_claim = EpochClaim(layout, settings.coordinator_failure_backoff)
        self._registry = Registry(settings.min_members, cluster_minimum)
        self._ledger = ledger.Ledger(ShardTable(0, layout))
        self._outbox = Outbox(me)
        live, proxy = self._registry.is_live, self._registry.is_proxy
        self._direct = DirectMoves(self._ledger, settings, live, proxy)
        self._moves = Moves(self._outbox, settings, self._direct)
        self._ledger.rows = rows = instances is not None
        self.rebalancing = Rebalancing(
            settings,
            layout,
            strategy,
            self._registry,
            self._ledger,
            self._moves,
            rows=rows,
            threaded=threaded,
        )
        self._placing = Placing(self._registry, self._ledger, self._direct, self.rebalancing)
        self._stops = PendingStops(self._ledger, self._moves)
        self._timers: Timers[str] = Timers()
        self._home_requests = HomeRequests(self._outbox)
        self._versions = TableVersions() if settings.homes == "gossip" else None
        self._me = me
        self._starts = PendingStarts(self._outbox, settings.shard_start_timeout)
        self._registrar = Registrar(
            layout,
            self._registry,
            self._ledger,
            self._moves,
            self._direct,
            self._starts,
            self._outbox,
            self._settled,
        )
        self._effects: list[ev.CoordinatorEffect] = []
        self._turn_at: float | None = None

    @property
    def state(self) -> CoordinatorState:
        """Whether it rules, or how far it is from that."""
        return self._epoch_claim.state

    @property
    def epoch(self) -> int:
        """The epoch that it claims or holds."""
        return self._epoch_claim.epoch

    @property
    def table(self) -> ShardTable:
        """The table, as durable in the store."""
        return self._ledger.table

    @property
    def history(self) -> ShardHistory:
        """The changes of homes since this coordinator rules."""
        return self._ledger.history

    @property
    def stopping(self) -> tuple[str, ...]:
        """The shards that must stop for an operator, and have not stopped yet."""
        return self._stops.shards

    @property
    def table_version(self) -> int:
        """The number of the last version of the table that travels by gossip; 0 if none does."""
        return self._versions.number if self._versions is not None else 0

    def move_phases(self) -> Iterator[MovePhase]:
        """Yield the shards on the move, and those that start at their home, with their phases."""
        yield from self._direct.phases()
        for shard, handoff in self._moves.handoffs.items():
            yield MovePhase(shard, handoff.phase.value, False, handoff.home.node, handoff.target)
        for shard, old, new in self._ledger.being_moved():
            if shard not in self._direct:
                yield MovePhase(shard, "storing", False, old, new)
        for home in self._starts.homes():
            yield MovePhase(home.shard, "starting", False, None, home.node)

    def forecasting(self, add: int, remove: tuple[NodeId, ...]) -> Callable[[], Forecast]:
        """Return a function that computes the moves that would follow with `add` nodes more and
        without the nodes in `remove`. It reads nothing that changes, and calls the strategy many
        times: where that may block, call it in a thread."""
        planner, table = self.rebalancing.unreported(), self.table
        candidates, loads = self._registry.candidates(), self.rebalancing.loads()
        return lambda: forecast(planner, table, candidates, add, remove, loads)

    def state_of(self, shard: str) -> str:
        """Return `starting`, `running`, `handing_off` or `unallocated`."""
        if shard in self._moves.handoffs or shard in self._direct:
            return "handing_off"
        if self._ledger.home_of(shard) is None:
            return "unallocated"
        return "starting" if shard in self._starts else "running"

    def unsettled_since(self, shard: str) -> float | None:
        """Return when a shard began to move or to start; None if it does neither."""
        move = self._moves.handoffs.get(shard) or self._direct.moves.get(shard)
        return move.begun if move is not None else self._starts.begun(shard)

    def unsettled(self) -> dict[str, str]:
        """Return the states of the shards that are on the move or starting."""
        changing = [*self._moves.handoffs, *dict(self._direct.under_way())]
        changing += [home.shard for home in self._starts.homes()]
        return {shard: self.state_of(shard) for shard in changing}

    def handle(self, event: ev.CoordinatorEvent, now: float) -> list[ev.CoordinatorEffect]:
        """Handle one event; return its immediate effects."""
        if self.state is CoordinatorState.STOPPED:
            return []
        self._turn_at = now
        match event:
            case ev.MessageReceived(sender, message):
                self._on_message(sender, message, now)
            case ev.MembersChanged():
                self._registry.update(event)
                if isinstance(planner := self.rebalancing.planner, DistinctRows):
                    planner.zones = event.zones
                self._check_balance_at(now + COALESCE_S)
                self._end_dead_nodes(now)
            case ev.Persisted(op_id):
                self._on_persisted(op_id, now)
            case ev.PersistFailed():
                self._on_persist_failed(event, now)
            case ev.EpochClaimed():
                self._effects += self._epoch_claim.handle(event, now)
                if self.state is CoordinatorState.RULING and self.table.epoch != self.epoch:
                    self._take_over(event, now)
            case ev.Rebalance():
                self._check_balance_at(now)
            case Overrides():
                self.rebalancing.apply_overrides(event)
                self._check_balance_at(now)
            case ev.StopShards(shards):
                self._stops.add(shards)
            case ev.StrategyAnswered():
                if (calls := self.rebalancing.calls) is not None:
                    self.rebalancing.take_faults(now, calls.on_answer(event, now))
            case _:
                self._effects += self._epoch_claim.handle(event, now)
        return self._take_effects()

    def deadline(self) -> float | None:
        """Return when `tick` is due."""
        if self.state is CoordinatorState.STOPPED:
            return None
        dues = [self._turn_at, self._epoch_claim.deadline()]
        if self.state is CoordinatorState.RULING:
            parts = (self._timers, self._moves, self._direct, self._starts, self.rebalancing)
            dues += [part.deadline() for part in parts]
            if self._rows is not None:
                dues.append(self._rows.deadline())
            if self._versions is not None:
                dues.append(self._versions.due)
        return min((due for due in dues if due is not None), default=None)

    def tick(self, now: float) -> list[ev.CoordinatorEffect]:
        """End the turn, as the module's docstring describes."""
        self._turn_at = None
        self._effects += self._epoch_claim.tick(now)
        if self.state is CoordinatorState.RETIRING:
            self._retire()
        if self.state is not CoordinatorState.RULING:
            return self._take_effects()
        self._on_timers(now)
        if self._registrar.register_early(self.epoch, now):
            self._check_balance_at(now + COALESCE_S)
        if self._rows is not None:
            self._count_instances(self._rows, now)
        self._stops.advance(
            self._settled,
            lambda shard: self._begin(shard, HandoffPurpose.STOP, None, now),
            complete=not self._registry.is_incomplete(now),
        )
        for shard in self._home_requests.shards():
            moving = self._settled(shard) is None and shard not in self._direct
            if not moving:
                continue
            if self._rows is None or self._rows.exists(shard):
                self._ledger.want(shard)
        for node in (*self._registry.to_drain(), *self._registry.shutting_down):
            self._drain(node, now)
        for node in filter(self._ledger.hosts_nothing, list(self._registry.shutting_down)):
            if not self._direct.goes_to(node):
                self._on_drained(node, now)
        for move in self.rebalancing.take_ready(now):
            self._begin(move.shard, HandoffPurpose.REBALANCE, move.target, now)
        self._end_direct_moves({}, now)
        self._direct.reassert()
        if (writing := self._placing.plan(now)) is not None:
            self._persist(writing)
        self._answer(now)
        self._effects += self._outbox.drain(self.epoch)
        registered = self._registry.registered.__contains__
        self._effects += self._direct.drain(self.epoch, registered)
        if self._versions is not None:
            self._publish(self._versions, now)
        self.rebalancing.take_faults(now)
        if self.rebalancing.calls is not None:
            self._effects += self.rebalancing.calls.end_turn(now)
        return self._take_effects()

    def _publish(self, versions: TableVersions, now: float) -> None:
        """Give a new version of the table to the region on this node, if there is one."""
        nodes = self._registry.registered
        state = versions.update(self.table, nodes, self._changes(), self._settled, now)
        if state is not None:
            self._effects.append(ev.Send(self._me, state))

    def _changes(self) -> Iterator[PartitionChange]:
        """Yield the shards on the move, and those that start at their home."""
        for shard, handoff in self._moves.handoffs.items():
            yield PartitionChange(shard, handoff.home.node, handoff.target, AWAITING)
        for shard, (old, new) in self._direct.under_way():
            status = COMPLETE if self._direct.home_of(shard) else AWAITING
            yield PartitionChange(shard, old.node, new.node, status)
        for home in self._starts.homes():
            yield PartitionChange(home.shard, None, home.node, COMPLETE)

    def _count_instances(self, rows: InstanceRows, now: float) -> None:
        """Decide N, stop the rows above it, get homes for those below, and announce it."""
        nodes = 0 if self._registry.why_not(now) else len(self._registry.candidates())
        rows.by_load.forget_others(self._registry.registered)
        changed = rows.update(nodes, now)
        if not nodes:
            return
        if changed:
            self._note("instances", f"{counted(rows.count, 'instance')} of each entity")
        homes = self.table.homes
        requested = self._home_requests.shards()
        if rows.is_new(self.table) or changed:
            self._stops.add([row for row in homes if not rows.exists(row)])
            stopping = {split_row(row)[0] for row in self._stops.shards if rows.exists(row)}
            for row in (*homes, *self._ledger.wanted_homes):
                if (changed or rows.exists(row)) and split_row(row)[0] not in stopping:
                    requested[row] = None
        for row in [row for row in self._ledger.wanted_homes if not rows.exists(row)]:
            self._ledger.forget_wanted(row)
        for shard in dict.fromkeys(split_row(row)[0] for row in requested):
            for sibling in rows.rows_of(shard):
                if self._settled(sibling) is None and self._ledger.is_nowhere(sibling):
                    self._ledger.want(sibling)
        for node in rows.to_inform(self._registry.registered):
            self._effects.append(ev.Send(node, msg.InstanceCount(self.epoch, rows.count)))

    def check(self) -> None:
        """Check that the parts agree with each other; for tests."""
        self._ledger.check()
        self._moves.check()
        self._direct.check()
        self._starts.check()
        for shard in self._ledger.wanted_homes:
            assert self._settled(shard) is None, f"{shard} is wanted and at home"
        for shard, handoff in self._moves.handoffs.items():
            assert self.table.homes.get(shard) == handoff.home, f"{shard} moves from nowhere"

    def _on_message(self, sender: NodeId, message: ev.Message, now: float) -> None:
        node = getattr(message, "node", sender)
        if node != sender:
            self._note("forged", f"{sender} sent a message in the name of {node}")
            return
        match message:
            case msg.Register():
                self._registry.keep_early(message)
                if self._rows is not None:
                    self._rows.forget(sender)
            case msg.GetShardHome(shards):
                self._home_requests.add(sender, shards)
            case msg.ShardStarted(homes):
                for home in homes:
                    if self.table.homes.get(home.shard) == home and home.node == sender:
                        self._starts.forget(home.shard)
            case msg.BeginHandOffAck(_, homes):
                for home in homes:
                    self._moves.on_ack(home, sender, now)
            case msg.ShardStopped(_, homes, left):
                for home in homes:
                    self._on_stopped(home, sender, home.shard in left, now)
            case msg.ShardMoved(_, moves):
                for move in moves:
                    self._on_moved(sender, move, now)
            case msg.MoveRefused(_, moves):
                for move in moves:
                    self._direct.on_refused(sender, move)
            case msg.MoveComplete(_, moves):
                for move in moves:
                    self._direct.on_complete(sender, move)
            case msg.ShardLoads():
                self.rebalancing.on_loads(message, now)
                if self._rows is not None:
                    self._rows.by_load.record(message)
            case msg.GracefulShutdownRequest(_):
                if self._registry.registered.get(sender) is False:
                    self._registry.shutting_down[sender] = None
                elif sender in self._registry.registered:
                    self._outbox.region_stopped(sender)
            case _:
                self._note("unexpected", f"{type(message).__name__} from {sender}")

    def _on_timers(self, now: float) -> None:
        for timer in self._timers.due(now):
            if timer == WRITE and self._ledger.writing is not None:
                self._persist(self._ledger.writing)
            elif timer == CONFIRM and (probe := self._ledger.probe()):
                self._persist(probe)
        self.rebalancing.tick(now)
        for home, tries in self._starts.overdue(now):
            self._on_start_overdue(home, tries, now)
        self._moves.tick(now)
        for home in self._direct.tick(now):
            self._starts.host(home, now)

    def _on_moved(self, sender: NodeId, move: ShardMove, now: float) -> None:
        """Record that a shard was handed over. A coordinator that does not have the move, because
        the store has lost it, takes the new home as reported, or allocates another one if the node
        of that is gone by now. It ends a later move of its own, which cannot take place."""
        old, new = move
        if self._direct.on_moved(sender, move):
            if not self._registry.is_live(new.node):
                self._end_direct_moves({new.node: None}, now)
        elif sender == old.node and self.table.homes.get(old.shard) == old:
            self._moves.forget(old.shard)
            self._direct.forget(old.shard)
            if self._registry.is_live(new.node):
                if self._registry.registered.get(new.node):  # it hosts again, after it was drained
                    self._registry.register(new.node, proxy=False)
                    self._ledger.register(new.node, now, proxy=False)
                self._ledger.freed.pop(old.shard, None)
                self._ledger.adopted[old.shard] = new
            else:
                self._ledger.free(old, "died", now)
                self._ledger.want(old.shard)

    def _end_direct_moves(self, gone: dict[NodeId, None], now: float) -> None:
        """Get new homes for the shards that were handed to nodes that are gone or host no more, and
        have those hosted that nodes which are gone have handed over."""
        homeless, alone = self._direct.on_nodes_gone(gone)
        for direct in homeless:
            if self.table.homes.get(direct.move.old.shard) == direct.move.old:
                self._ledger.free(direct.move.old, direct.why, direct.begun)
            self._ledger.want(direct.move.old.shard)
        for home in alone:
            self._starts.host(home, now)

    def _on_stopped(self, home: Home, sender: NodeId, left: bool, now: float) -> None:
        if self.table.homes.get(home.shard) != home or home.node != sender:
            return
        self._outbox.set_leftovers(home, left)
        handoff, direct = self._moves.on_stopped(home), self._direct.on_stopped(home)
        if handoff is not None:
            self._on_freed(handoff)
        elif direct is not None:
            self._ledger.free(home, direct.why, direct.begun)
            self._ledger.want(home.shard)
        elif self._settled(home.shard) == home:
            if home.shard in self._starts or self._settings.remember:
                self._ledger.want(home.shard)
            self._starts.forget(home.shard)
            self._ledger.free(home, "ended", now)
            self._stops.on_freed(home.shard)
            self._note("shard_freed", home.shard)

    def _end_dead_nodes(self, now: float) -> None:
        """End all waits for nodes that membership no longer shows."""
        if self.state is not CoordinatorState.RULING or not self._registry.membership_known:
            return
        nodes = [*self.table.regions, *self.table.proxies]
        dead = {node: None for node in nodes if not self._registry.is_live(node)}
        for handoff in self._moves.on_nodes_gone(dead, now):
            self._on_freed(handoff)
        moving = (node for node in self._direct.nodes() if not self._registry.is_live(node))
        self._end_direct_moves(dict.fromkeys(moving), now)
        for shard in self._ledger.remove_nodes(dead, now):
            self._starts.forget(shard)
        self._direct.reassert()
        for node in dead:
            self._outbox.forget(node)
            self._home_requests.forget(node)
            self._note("region_terminated", str(node))

    def _take_over(self, claimed: ev.EpochClaimed, now: float) -> None:
        former = 0 if self._epoch_claim.table_lost else self.epoch - 1
        intents = self._ledger.load(self.epoch, claimed.table.homes, former)
        self._direct.recover(intents, now)
        if self._rows is not None:
            self._rows.load(claimed.table.homes)
        if claimed.table.homes:
            self._registry.assume_enough()
        patience = LOSS_PATIENCE if self._epoch_claim.table_lost else 1.0
        self._registry.grace_until = now + self._settings.waiting_for_state_timeout * patience
        self._timers.set(GRACE, self._registry.grace_until)
        self._timers.set(CONFIRM, now + ledger.CONFIRM_S)
        self.rebalancing.start(now)
        self._end_dead_nodes(now)

    def _retire(self) -> None:
        """Send the decisions made and stop, for another coordinator is next. A write under way has
        one attempt to become durable."""
        writing = self._ledger.writing
        if writing is None or writing.attempts:
            self._effects += self._outbox.drain(self.epoch)
            self._effects += self._epoch_claim.stop("handed over")

    def _persist(self, writing: ledger.PendingWrite) -> None:
        self._effects.append(ev.Persist(writing.op_id, self.epoch, writing.stored()))

    def _on_persisted(self, op_id: int, now: float) -> None:
        writing = self._ledger.writing
        if writing is None or writing.op_id != op_id:
            return
        self._timers.cancel(WRITE)
        self._timers.set(CONFIRM, now + ledger.CONFIRM_S)
        homes = self._ledger.apply_write(now)
        for home in self._direct.on_written(writing.intents, homes, now):
            self._starts.host(home, now)
        self._home_requests.on_homes(homes)
        if self._versions is not None:
            return  # regions without a request get the homes by gossip
        for node in self._registry.registered:
            if news := self._direct.news_for(node, homes):
                self._outbox.add(node, HomeMessage.SHARD_HOMES, news)

    def _on_persist_failed(self, failed: ev.PersistFailed, now: float) -> None:
        writing = self._ledger.writing
        if writing is None or writing.op_id != failed.op_id:
            return
        writing.why = failed.why[:WHY_MAX]
        if failed.definite_stale:
            self._effects += self._epoch_claim.stop("the store has a newer epoch")
            return
        writing.attempts += 1
        wait = backoff(self._settings.coordinator_failure_backoff, writing.attempts)
        self._timers.set(WRITE, now + wait)
        self._note("persist_failed", f"{counted(writing.attempts, 'time')}, again in {wait:g} s")

    def _drain(self, node: NodeId, now: float) -> None:
        """Begin to move the shards that may leave this node now."""
        changing = self._ledger.changing()
        shards = self._moves.may_leave(self.table.shards_at(node), changing, now)
        targets = self._placing.leaving(shards, node, now) if self._direct.used else {}
        if targets is None:
            return  # the strategy's answer comes in a later turn
        for shard in shards:
            self._begin(shard, HandoffPurpose.DRAIN, targets.get(shard), now)

    def _begin(
        self, shard: str, purpose: HandoffPurpose, target: NodeId | None, now: float
    ) -> None:
        """Begin a move, a direct one if the mode of the type is one. Otherwise a shard that is not
        moved for balance gets its next home when it has stopped."""
        home = self._settled(shard)
        if home is None:
            return
        self._starts.forget(shard)
        self._moves.drop_planned(shard)
        registered = self._registry.registered
        stops = purpose is HandoffPurpose.STOP
        if not stops and self._direct.takes(shard):
            if target is None and self.rebalancing.calls is None:
                target = (self._placing.leaving([shard], home.node, now) or {}).get(shard)
            if target is not None and target != home.node:
                self._direct.begin(home, target, purpose.value, registered, now)
                return
        if not stops:
            self._direct.forget_refusal(shard)
        if purpose is not HandoffPurpose.REBALANCE:
            target = None
        self._moves.begin(home, purpose, target, registered, now)

    def _on_freed(self, handoff: Handoff) -> None:
        """Get a new home for a shard that stopped, unless an operator stopped it or no region may
        take it. A shard with remembered entities always gets one."""
        home = handoff.home
        self._ledger.free(home, handoff.purpose.value, handoff.begun)
        if self._stops.on_freed(home.shard) and not self._settings.remember:
            return
        drained = handoff.purpose is HandoffPurpose.DRAIN
        moves_on = handoff.purpose is HandoffPurpose.REBALANCE or self._settings.remember
        if moves_on or (drained and self._registry.candidates()):
            source = (home.node,) if drained else ()
            self._ledger.want(
                home.shard, ledger.WantedHome(handoff.target, tuple(handoff.unacked) + source)
            )

    def _on_drained(self, node: NodeId, now: float) -> None:
        """Confirm to the region that it hosts nothing; it is a proxy in the table from now on."""
        self._registry.register(node, proxy=True)
        self._ledger.register(node, now, proxy=True)
        self._outbox.region_stopped(node)
        self._note("region_drained", str(node))

    def _check_balance_at(self, at: float) -> None:
        if self.state is CoordinatorState.RULING:
            self.rebalancing.check_at(at)

    def _settled(self, shard: str) -> Home | None:
        moves = shard in self._moves.handoffs or shard in self._direct
        return None if moves else self._ledger.home_of(shard)

    def _open_home(self, shard: str) -> Home | None:
        """Return the home to which messages for the shard may go."""
        return self._settled(shard) or self._direct.home_of(shard)

    def _answer(self, now: float) -> None:
        reason, calls, writing = (
            self._registry.why_not(now),
            self.rebalancing.calls,
            self._ledger.writing,
        )
        waits = calls.waits() if calls is not None else ""
        if not waits:
            failed = f": {writing.why}" if writing is not None and writing.why else ""
            waits = f"its home is being stored{failed}"

        def why_not(shard: str) -> str:
            if shard in self._moves.handoffs or shard in self._direct:
                return "the shard is on the move"
            return reason or self._why_no_place(shard) or waits

        nodes = {} if self._versions is not None else self._registry.registered
        for asker, home in self._home_requests.answer(self._open_home, why_not, nodes.__contains__):
            if asker == home.node and home.shard in self._starts:
                self._outbox.add(asker, HomeMessage.HOST_SHARD, (home,))

    def _why_no_place(self, row: str) -> str:
        """Return why the row of an instance has no home; empty if it can have one."""
        rows = self._rows
        if rows is None:
            return ""
        if not rows.exists(row):
            return f"its type has {counted(rows.count, 'instance')}"
        homes = map(self._ledger.home_of, rows.siblings(row))
        taken = {home.node for home in homes if home is not None}
        if taken.issuperset(self._registry.candidates()):
            return "each node that may host it hosts another instance"
        return ""

    def _on_start_overdue(self, home: Home, tries: int, now: float) -> None:
        """Send HostShard again to a region that has not confirmed, or hand the shard off."""
        others = [node for node in self._registry.candidates() if node != home.node]
        text = f"shard {home.shard} at {home.node}, {counted(tries, 'time')}"
        self._note("start_overdue", text, home.shard)
        if tries >= TRIES and others:
            self._begin(home.shard, HandoffPurpose.DRAIN, None, now)
        else:
            self._starts.host(home, now, tries + 1)

    def _note(self, kind: str, detail: str, shard: str = "") -> None:
        self._effects.append(ev.Note(kind, detail, shard=shard))

    def _take_effects(self) -> list[ev.CoordinatorEffect]:
        effects = [*self._registrar.notes, *self._moves.notes, *self._direct.notes, *self._effects]
        self._registrar.notes, self._moves.notes, self._effects = [], [], []
        self._direct.notes = []
        if stopped := self._stops.take_stopped():
            effects.append(ev.ShardsStopped(stopped))
        return effects
