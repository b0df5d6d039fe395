"""A run of whole nodes, from the first join to the verdict.

A run has two phases, as a run of membership has. Safety: nodes join, senders send, faults happen,
and both the invariants of membership and the delivery checker are checked. Then all faults are
healed, the cluster agrees, the senders stop, and in the quiet nothing may be missing:

    each message was handled, refused, or with a process that ended uncleanly    (I3, I4)
    remembered entities run                                                      (I5)
    each type has one coordinator, and table, store and regions agree            (I6, I7)
    no move is under way                                                         (I11)
    where no process ended without order, each has its dropped tells reported    (told)
    each node has the fate of each message that it accepted                   (account)
    nothing is buffered, and no sender waits                                     (I11)
    no node is suspended                                                         (I11)

In the end one command stops the whole cluster.

A store that granted the lease of a downing decision twice leaves two clusters, which take turns at
one table and one store. Nothing is demanded of them in the quiet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from shardbus.error_text import described
from shardbus.membership.member import Status
from shardbus.node.node import Node
from shardbus.sharding.coordinator.coordinator import Coordinator
from shardbus.sharding.coordinator.epoch_claim import CoordinatorState
from shardbus.sharding.instances import split_row
from shardbus.sharding.messages import Home
from shardbus.sharding.table_state import unpack_homes
from shardbus.simulation.membership.checks import Checks, Violation
from shardbus.simulation.membership.fairness import Fairness
from shardbus.simulation.membership.faults import Faults
from shardbus.simulation.membership.process import Process
from shardbus.simulation.membership.run import (
    CHECK_EVERY_S,
    SETTLED_WITHIN,
    RunOutcome,
    advance,
    broken_by,
    members,
    stop_all,
    unsettled,
)
from shardbus.simulation.nodes.application import SPREAD, SimApplication, SimSender
from shardbus.simulation.nodes.checker import DeliveryChecker, unbalanced, waiting
from shardbus.simulation.nodes.delivering import DELIVERED, EffectsChecker, SimDeliverer
from shardbus.simulation.nodes.event_sourcing import LEDGER, EventChecker, SimBooker
from shardbus.simulation.nodes.faults import NodeFaults
from shardbus.simulation.nodes.move_kills import MoveKills
from shardbus.simulation.nodes.options import NodeOptions
from shardbus.simulation.nodes.undisturbed import Undisturbed
from shardbus.simulation.nodes.world import NodeWorld, SimNode, SimProcess
from shardbus.transport.session import Session

QUIET_WITHIN = 90.0
"""Seconds: longer than the longest wait in a node, that for a Flush without an answer."""
REPORTED_WITHIN = 4.0
"""Seconds from the last failed message until its sender has the report, also by way of a node that
has forwarded it."""
UNDECIDED = ("lease-majority", "down-all")
"""Strategies under which no side is sure to stay."""
SOME_MORE_S = 3.0
"""Seconds for which senders go on after the faults."""


class NodeRun:
    """One run of these options. `reminds`: entities set reminders, and wall clocks jump."""

    def __init__(self, load: NodeOptions, *, reminds: bool = False) -> None:
        self.load = load
        self.application = SimApplication(load, reminds=reminds)
        self.world = NodeWorld(
            f"fleet {load.seed}",
            load.faults.settings(),
            load.sharding(),
            self.application.bus.types,
        )
        modes = self.application.modes
        self.checker = self.application.checker = DeliveryChecker(self.world, modes, (SPREAD,))
        if self.application.reminders is not None:
            self.application.reminders.attach(self.world, self.checker)
        if load.deliveries:
            dice = Random(f"effects {load.seed}")
            effects = EffectsChecker(self.world, self.checker.broken, dice)
            self.application.effects = effects
        if load.events:
            dice = Random(f"bookings {load.seed}")
            self.application.events = EventChecker(self.world, self.checker.broken, dice)
        self.world.hooks.on_start = self._on_start
        self._checks = Checks(self.world, gentle=False)
        self.fairness = Fairness(self.world, load.faults)
        self._undisturbed = Undisturbed(self.world, self.fairness, load.faults.troubles)
        self.world.hooks.on_step = self._after
        if load.faults.troubles and load.faults.strategy not in UNDECIDED:
            self.application.on_ask = self._undisturbed.on_ask
        self.senders: list[SimSender | SimDeliverer] = []
        self.kills: MoveKills | None = None
        self.settled_s: float | None = None
        self._marks: dict[Session, int] | None = {} if load.homes == "gossip" else None
        self._counts: dict[str, int] | None = None
        """The counts before the verdict; afterwards all processes end."""

    def run(self) -> RunOutcome:
        """Run to the verdict."""
        world, broken = self.world, None
        began = world.now
        with errors_logged(world.defects):
            try:
                self._phases()
            except Violation as violation:
                broken = broken_by(world, violation.rule, violation.detail)
            except Exception as raised:
                broken = broken_by(world, "raised", f"{type(raised).__name__}: {raised}")
            world.close()
        return RunOutcome(
            options=self.load,
            broken=broken,
            simulated_s=world.now - began,
            settled_s=self.settled_s,
            survivors=len(members(world)),
            events=world.events,
            digest=world.trace.digest,
            counts=(self._counts or self.checker.counts()) | self._kills(),
        )

    def _kills(self) -> dict[str, int]:
        """Return the number of kills at each phase, of each victim."""
        hit = self.kills.hit if self.kills is not None else {}
        return {f"killed_at {target}": times for target, times in hit.items()}

    # ---- the phases

    def _phases(self) -> None:
        world, load = self.world, self.load
        faults, node_faults = Faults(world, load.faults), NodeFaults(world, load)
        node_faults.restart = faults.restart
        if load.move_kills:
            modes = self.application.modes
            self.kills = MoveKills(world, load, modes, faults, self._add_client)
        faults.begin()
        self.fairness.begin()
        node_faults.begin(faults.times)
        reminders = self.application.reminders
        if reminders is not None:
            reminders.begin(load.faults.seconds)
        for number in range(load.clients):
            world.later(1.0 + number, self._add_client)
        self._advance(load.faults.seconds)
        if self.kills is not None:
            self.kills.heal()
        faults.heal()
        world.resume_all()
        world.exchange.changed()
        node_faults.heal()
        if reminders is not None:
            reminders.heal()
        self.application.calm()
        self.settled_s = self._until(self._unsettled, SETTLED_WITHIN, "I9")
        self._advance(SOME_MORE_S)
        for sender in self.senders:
            sender.stopped = True
        self._until(self._not_quiet, QUIET_WITHIN, "I11")
        if self.checker.untold():
            self._advance(REPORTED_WITHIN)
        self._verdict()
        self._counts = self.checker.counts()
        for client in world.clients.values():
            client.end(badly=False)
            world.exchange.ended(client.name, silent=False)
        stop_all(world, load.faults, self._advance)

    def _advance(self, seconds: float) -> None:
        def check() -> None:
            if self.checker.violation is not None:
                raise self.checker.violation
            if self.world.defects:
                raise Violation("raised", self.world.defects[0])
            if self.load.instances and not self.world.store.lied:
                self._check_rows()

        end = self.world.now + seconds
        while (left := end - self.world.now) > 0.0:
            advance(self.world, min(left, CHECK_EVERY_S), check)
            self.checker.check_exits()
            self._undisturbed.check()
            self._check_bounds()
            if self.load.homes == "gossip":
                self._check_gossip()

    def _until(self, why_not: Callable[[], str], within: float, rule: str) -> float:
        """Wait until `why_not` returns an empty text. Return how long it took.

        Raises:
            Violation: of this rule, if it takes too long.
        """
        began = self.world.now
        while why := why_not():
            if self.world.now - began > within:
                raise Violation(rule, f"{within:g} s later: {why}")
            self._advance(CHECK_EVERY_S)
        return self.world.now - began

    def _after(self, process: Process) -> None:
        """Check a machine after an event."""
        self._checks.after(process)
        self.fairness.after(process)

    # ---- senders

    def _on_start(self, sim_node: SimNode) -> None:
        self._add_sender(sim_node)
        if self.kills is not None:
            self.kills.watch(sim_node)

    def _add_client(self) -> None:
        self._add_sender(self.world.add_client(f"c{len(self.world.clients) + 1}"))

    def _add_sender(self, home: SimProcess) -> None:
        name = f"s{len(self.senders) + 1}"
        dice = Random(f"sender {self.load.seed} {name}")
        sender = SimSender(name, home, self.application, dice, self.load)
        self.senders.append(sender)
        if self.load.deliveries:
            dice, cls = Random(f"deliverer {self.load.seed} {name}"), DELIVERED
            effects, kinds = self.application.effects, self.application.classes
            self.senders.append(SimDeliverer(home, effects, kinds[cls], dice))
        if self.load.events:
            dice, cls = Random(f"booker {self.load.seed} {name}"), LEDGER
            events, kinds = self.application.events, self.application.classes
            self.senders.append(SimBooker(home, events, kinds[cls], dice))

    # ---- the quiet

    def _unsettled(self) -> str:
        """Return why the cluster has not settled. Where all nodes leave, they need not agree: each
        waits, for as long as a hand-off may take, for homes of its buffered messages."""
        if all(process.leaving for process in members(self.world)):
            return ""
        return unsettled(self.world)

    def _working(self) -> list[SimNode]:
        sim_nodes = self.world.sim_nodes.values()
        return [r for r in sim_nodes if r.ended_at is None and r.process.member]

    def _not_quiet(self) -> str:
        """Return why it is not quiet. Empty if it is."""
        working = self._working()
        up = any(r.process.machine.view.status is Status.UP for r in working)
        if self.world.leases.twice or not up:
            return ""
        for sim_node in working:
            if sim_node.node.gate.is_shut():
                return f"{sim_node.name} is still suspended: {sim_node.node.gate.reason}"
            if why := waiting(sim_node, self._marks):
                return why
            for name, kind in sim_node.node.regions.items():
                if not kind.router.region.registered:
                    return f"{sim_node.name} is not registered for {name}"
        for client in self.world.clients.values():
            if client.in_touch and (why := client.waiting()):
                return why
        for name in self._coordinated():
            if why := self._disagreement(name, working):
                return why
        if why := self._unfenced(working):
            return why
        if pending := self.checker.pending():
            return f"{pending} senders wait for answers"
        if (reminders := self.application.reminders) and (why := reminders.missing()):
            return why
        if self.load.deliveries and (why := self._undelivered()):
            return why
        types = self.application.bus.types
        if self.load.events and (why := self.application.events.unfinished(types)):
            return why
        return self.checker.missing_remembered()

    def _undelivered(self) -> str:
        """Return an undelivered message, or a missing payment (D4, D6)."""
        states = self.application.bus.types[DELIVERED].states
        assert states is not None
        stored = {
            entity_id: states.read(entity_id, state.data)
            for (name, entity_id), state in self.world.store.data.states.items()
            if name == DELIVERED and state.data is not None
        }
        return self.application.effects.unfinished(stored)

    def _coordinated(self) -> list[str]:
        """Return the types that have a coordinator: those that live within no other."""
        kinds = self.world.types.items()
        return [name for name, kind in kinds if kind.interface.within is None]

    def _disagreement(self, name: str, working: list[SimNode]) -> str:
        """Return where coordinator, table, store and regions disagree (I6, I7)."""
        rulers = [r for r in working if has_coordinator(r.node, name)]
        if len(rulers) != 1:
            return f"{name} has {len(rulers)} coordinators"
        coordinator = rulers[0].node.singletons[name].coordinator.machine
        assert isinstance(coordinator, Coordinator)
        if moving := list(coordinator.move_phases()):
            return f"{name}: {moving[0]} is not complete"
        table = {s: (str(h.node), h.fence) for s, h in coordinator.table.homes.items()}
        hosted = {
            shard: (str(r.process.id), running.fence)
            for r in working
            for shard, running in r.node.regions[name].host.shards.items()
        }
        if table != hosted:
            return f"{name}: the table has {table}, hosted are {hosted}"
        held = self.world.store.data.tables.get(name)
        stored = {s: (str(node), fence) for s, (node, fence) in held.homes.items()} if held else {}
        if stored != table and not self.world.store.lied:
            return f"{name}: the table has {table}, the store {stored}"
        if name == SPREAD and (why := self._rows_differ(coordinator, working)):
            return why
        return self._gossip_differs(name, coordinator, working) if self.load.homes != "ask" else ""

    def _check_rows(self) -> None:
        """Check that the instances of each shard are on distinct nodes."""
        for sim_node in self._working():
            coordinator = sim_node.node.singletons[SPREAD].coordinator.machine
            if coordinator is None or coordinator.state is not CoordinatorState.RULING:
                continue
            for shard, rows in rows_of(coordinator).items():
                if len({home.node for home in rows.values()}) < len(rows):
                    raise Violation("rows", f"instances of shard {shard} share a node: {rows}")

    def _check_bounds(self) -> None:
        """Check that no region keeps more messages than it may."""
        for sim_node in self.world.sim_nodes.values():
            for name, kind in sim_node.node.regions.items():
                kept = kind.router.region.buffered[0]
                if kept > self.load.buffer_size:
                    raise Violation("bound", f"{sim_node.name} keeps {kept} messages of {name}")

    def _check_gossip(self) -> None:
        """Check that no node has a table that its coordinator does not have, or that the store
        never had."""
        written = self.world.store.fences_written
        working = self._working()
        for name in self._coordinated():
            newest = {
                coordinator.epoch: coordinator.table_version
                for r in working
                if (coordinator := r.node.singletons[name].coordinator.machine) is not None
            }
            for sim_node in working:
                gossip = sim_node.node.regions[name].router.table.region.table_gossip
                epoch, version = gossip.version
                state = gossip.state
                if state is None:
                    continue
                if version > newest.get(epoch, version):
                    raise Violation("ahead", f"{sim_node.name} has table {version} of {name}")
                for home in unpack_homes(state.homes, state.nodes):
                    if home.fence > written.get((name, home.shard), 0):
                        raise Violation("ahead", f"{sim_node.name} has {home}, never written")

    def _rows_differ(self, ruler: Coordinator, working: list[SimNode]) -> str:
        """Return which shard has other instances than its type needs on this many nodes."""
        count = min(self.load.instances, len(working))
        for shard, rows in rows_of(ruler).items():
            if sorted(rows) != list(range(1, count + 1)):
                return f"shard {shard} has the instances {sorted(rows)}, not {count}"
        return ""

    def _gossip_differs(self, name: str, ruler: Coordinator, working: list[SimNode]) -> str:
        """Return which node lacks the coordinator's last version of the table (I7)."""
        newest = (ruler.epoch, ruler.table_version)
        for sim_node in working:
            gossip = sim_node.node.regions[name].router.table.region.table_gossip
            if gossip.version != newest or gossip.state is None:
                return f"{sim_node.name} has table {gossip.version} of {name}, not {newest}"
            homes = unpack_homes(gossip.state.homes, gossip.state.nodes)
            if {home.shard: home for home in homes} != ruler.table.homes or gossip.state.changes:
                return f"{sim_node.name} has other homes of {name} in table {newest}"
        return ""

    def _unfenced(self, working: list[SimNode]) -> str:
        """Return an entity in memory whose fence the store does not have: the store lost it, and
        the node has not written it again. An entity that was carried writes it with its first
        save."""
        states = self.world.store.data.states
        for sim_node in working:
            for name, kind in sim_node.node.regions.items():
                carried = name == DELIVERED and kind.host.carrying is not None
                if kind.host.kind.states is None or carried:  # the first save after it is not seen
                    continue
                for entity_id, activation in kind.host.active.items():
                    state, fence = states.get((name, entity_id)), activation.shard.fence
                    if (name, entity_id) in self.checker.unsaved:
                        continue
                    if activation.entity is not None and (state is None or state.fence < fence):
                        return f"{sim_node.name} has {name} {entity_id}, whose fence is not stored"
        return ""

    def _verdict(self) -> None:
        for sim_node in self._working():
            if why := unbalanced(sim_node):
                raise Violation("account", why)
        if self.world.leases.twice or not self._working():
            return
        if why := self.checker.lost():
            raise Violation("I3", why)
        if why := self.checker.untold():
            raise Violation("told", why)


def rows_of(coordinator: Coordinator) -> dict[str, dict[int, Home]]:
    """Return the homes of the instances of each shard, by their numbers."""
    by_shard: dict[str, dict[int, Home]] = {}
    for row, home in coordinator.table.homes.items():
        shard, instance = split_row(row)
        by_shard.setdefault(shard, {})[instance] = home
    return by_shard


def has_coordinator(node: Node, name: str) -> bool:
    """True if a ruling coordinator of the type is at this node."""
    machine = node.singletons[name].coordinator.machine
    return machine is not None and machine.state is CoordinatorState.RULING


class LoggedExceptions(logging.Handler):
    """Collects exceptions that the code under test logged after catching them."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._lines.append(describe(record))


@contextmanager
def errors_logged(lines: list[str]) -> Iterator[None]:
    """Collect logged exceptions, and let nothing else be logged."""
    logger, handler = logging.getLogger("shardbus"), LoggedExceptions(lines)
    level, propagate = logger.level, logger.propagate
    logger.setLevel(logging.ERROR)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def describe(record: logging.LogRecord) -> str:
    """Describe a record with an exception in one line."""
    error = record.exc_info[1] if record.exc_info else None
    what = "" if error is None else described(error)
    return f"{record.name}: {record.getMessage()}: {what}"


def simulate_nodes(load: NodeOptions) -> RunOutcome:
    """Run these options. Two calls with the same options have the same outcome, in any process."""
    return NodeRun(load).run()
