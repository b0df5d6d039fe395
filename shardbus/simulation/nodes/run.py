"""One seed of whole nodes, from the first join to the verdict.

As a run of membership, in two phases. Safety: nodes join, senders send, faults happen, and both
`checks` and the `witness` look on. Then everything heals, the cluster agrees, the senders fall
silent, and in the quiet nothing may be missing:

    every letter was handled, refused, or with somebody who ended in disorder    (I3, I4)
    remembered entities run                                                      (I5)
    each type has one coordinator, and table, store and regions agree            (I6, I7)
    nobody buffers, nobody waits                                                 (I11)

In the end the whole cluster stops by one command.

A store that granted the lease of a downing decision twice leaves two clusters, which take turns at
one table and one store: nothing is demanded of them in the quiet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from shardbus.membership.member import Status
from shardbus.node.node import Node
from shardbus.sharding.coordinator.coordinator import Coordinator
from shardbus.sharding.coordinator.epoch_claim import CoordinatorState
from shardbus.simulation.membership.checks import Checks, Violation
from shardbus.simulation.membership.faults import Faults
from shardbus.simulation.membership.run import (
    LOOK_EVERY,
    SETTLED_WITHIN,
    RunOutcome,
    advance,
    broken_by,
    members,
    stop_all,
    unsettled,
)
from shardbus.simulation.nodes.application import SimApplication, SimSender
from shardbus.simulation.nodes.checker import DeliveryChecker, waiting
from shardbus.simulation.nodes.faults import NodeFaults
from shardbus.simulation.nodes.options import NodeOptions
from shardbus.simulation.nodes.world import NodeWorld, SimNode, SimProcess

QUIET_WITHIN = 90.0
"""Longer than the longest wait in a node: a Flush that nobody answers."""
SOME_MORE_S = 3.0
"""So long senders go on after the faults."""


class NodeRun:
    """See the module."""

    def __init__(self, load: NodeOptions) -> None:
        self.load = load
        self.stage = SimApplication(load)
        self.fleet = NodeWorld(
            f"fleet {load.seed}", load.faults.settings(), load.sharding(), self.stage.bus.types
        )
        self.checker = self.stage.checker = DeliveryChecker(self.fleet)
        self.fleet.on_start = self._add_sender
        self.fleet.on_step = Checks(self.fleet, gentle=False).after
        self.senders: list[SimSender] = []
        self.settled_s: float | None = None
        self._counts: dict[str, int] | None = None
        """What there was until the verdict: afterwards everybody ends."""

    def run(self) -> RunOutcome:
        """Run it."""
        fleet, broken = self.fleet, None
        began = fleet.now
        with errors_logged(fleet.defects):
            try:
                self._phases()
            except Violation as violation:
                broken = broken_by(fleet, violation.rule, violation.detail)
            except Exception as raised:
                broken = broken_by(fleet, "raised", f"{type(raised).__name__}: {raised}")
            fleet.close()
        return RunOutcome(
            options=self.load,
            broken=broken,
            simulated_s=fleet.now - began,
            settled_s=self.settled_s,
            survivors=len(members(fleet)),
            events=fleet.events,
            digest=fleet.trace.digest,
            counts=self._counts or self.checker.counts(),
        )

    # ---- the phases

    def _phases(self) -> None:
        fleet, load = self.fleet, self.load
        faults, node_faults = Faults(fleet, load.faults), NodeFaults(fleet, load)
        node_faults.restart = faults.restart
        faults.begin()
        node_faults.begin()
        for number in range(load.clients):
            fleet.later(1.0 + number, lambda n=number: self._add_client(n))  # type: ignore[misc]
        self._advance(load.faults.seconds)
        faults.heal()
        fleet.resume_all()
        fleet.exchange.changed()
        node_faults.heal()
        self.stage.calm()
        self.settled_s = self._until(self._unsettled, SETTLED_WITHIN, "I9")
        self._advance(SOME_MORE_S)
        for sender in self.senders:
            sender.stopped = True
        self._until(self._unquiet, QUIET_WITHIN, "I11")
        self._verdict()
        self._counts = self.checker.counts()
        for client in fleet.clients.values():
            client.end(badly=False)
            fleet.exchange.ended(client.name, silent=False)
        stop_all(fleet, load.faults, self._advance)

    def _advance(self, seconds: float) -> None:
        def look() -> None:
            if self.checker.violation is not None:
                raise self.checker.violation
            if self.fleet.defects:
                raise Violation("raised", self.fleet.defects[0])

        end = self.fleet.now + seconds
        while (left := end - self.fleet.now) > 0.0:
            advance(self.fleet, min(left, LOOK_EVERY), look)
            self.checker.look()

    def _until(self, why_not: Callable[[], str], within: float, rule: str) -> float:
        """Wait until nothing is wrong any more; says how long it took.

        Raises:
            Violation: of this rule, if it takes too long.
        """
        began = self.fleet.now
        while why := why_not():
            if self.fleet.now - began > within:
                raise Violation(rule, f"{within:g} s later: {why}")
            self._advance(LOOK_EVERY)
        return self.fleet.now - began

    # ---- who sends

    def _add_client(self, number: int) -> None:
        self._add_sender(self.fleet.add_client(f"c{number + 1}"))

    def _add_sender(self, home: SimProcess) -> None:
        name = f"s{len(self.senders) + 1}"
        dice = Random(f"sender {self.load.seed} {name}")
        sender = SimSender(name, home, self.stage, dice, self.load)
        self.senders.append(sender)

    # ---- the quiet

    def _unsettled(self) -> str:
        """Where everybody leaves, nobody need agree; but each waits, for as long as a hand-off may
        take, for homes of what it has buffered."""
        if all(process.leaving for process in members(self.fleet)):
            return ""
        return unsettled(self.fleet)

    def _working(self) -> list[SimNode]:
        residents = self.fleet.residents.values()
        return [r for r in residents if r.ended_at is None and r.process.member]

    def _unquiet(self) -> str:
        """Why it is not quiet; empty if it is."""
        working = self._working()
        up = any(r.process.machine.view.status is Status.UP for r in working)
        if self.fleet.leases.twice or not up:
            return ""
        for resident in working:
            if why := waiting(resident):
                return why
            for name, kind in resident.node.kinds.items():
                if not kind.router.region.registered:
                    return f"{resident.name} is not registered for {name}"
        for client in self.fleet.clients.values():
            if client.in_touch and (why := client.waiting()):
                return why
        for name in self.fleet.types:
            if why := self._disagree(name, working):
                return why
        if pending := self.checker.pending():
            return f"{pending} senders wait for answers"
        return self.checker.forgotten()

    def _disagree(self, name: str, working: list[SimNode]) -> str:
        """I6, I7."""
        rulers = [r for r in working if rules(r.node, name)]
        if len(rulers) != 1:
            return f"{name} has {len(rulers)} coordinators"
        coordinator = rulers[0].node.singletons[name].coordination.coordinator
        assert isinstance(coordinator, Coordinator)
        table = {s: (str(h.node), h.fence) for s, h in coordinator.table.homes.items()}
        hosted = {
            shard: (str(r.process.id), one.fence)
            for r in working
            for shard, one in r.node.kinds[name].host.shards.items()
        }
        if table != hosted:
            return f"{name}: the table has {table}, hosted are {hosted}"
        held = self.fleet.store.data.tables.get(name)
        stored = {s: (str(node), fence) for s, (node, fence) in held.homes.items()} if held else {}
        if stored != table and not self.fleet.store.lied:
            return f"{name}: the table has {table}, the store {stored}"
        return ""

    def _verdict(self) -> None:
        if self.fleet.leases.twice or not self._working():
            return
        if why := self.checker.lost():
            raise Violation("I3", why)


def rules(node: Node, name: str) -> bool:
    """A coordinator of the type rules there."""
    found = node.singletons[name].coordination.coordinator
    return found is not None and found.state is CoordinatorState.RULING


class LoggedExceptions(logging.Handler):
    """Collects what is logged as an exception: somebody caught it and went on."""

    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._found.append(describe(record))


@contextmanager
def errors_logged(found: list[str]) -> Iterator[None]:
    """Collect them, and let nothing else be logged."""
    logger, handler = logging.getLogger("shardbus"), LoggedExceptions(found)
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
    """A record with an exception, in one line."""
    error = record.exc_info[1] if record.exc_info else None
    return f"{record.name}: {record.getMessage()}: {type(error).__name__}: {error}"


def simulate_fleet(load: NodeOptions) -> RunOutcome:
    """Run this load. Two calls with the same give the same outcome, in any process."""
    return NodeRun(load).run()
