"""Kills at the phases of a move: a process dies when a shard on the move has reached a phase.

Random moments seldom meet a phase that lasts milliseconds. Here each kill has a target, a phase and
a victim, and waits for a move that reaches the phase. Meanwhile nodes are drained and opened again,
and shards are balanced, so that shards move. The phases are as in `sharding/handoff_phases`; the
victims:

    old-home      the node that gives the shard away
    new-home      the node that gets it
    coordinator   the node of the type's coordinator, if it is neither of these
    sender        any other node, or a client

A kill comes at the end of the turn in which the phase was entered, since some phases last one
turn, or up to `LATER_S` seconds later, if the move is still in the phase; otherwise the kill waits
for the next one. A node comes back at its address, within milliseconds or after seconds; in some
kills its whole machine vanishes, and refuses no connection. Only moves in the mode of the run
count: types with a state move in mode `ordered` where the mode of the run is not for them.

Source: docs/simulation.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from random import Random
from typing import NamedTuple

from shardbus.ids import NodeId
from shardbus.membership import events as ev
from shardbus.membership.member import Service
from shardbus.sharding.coordinator.coordinator import Coordinator
from shardbus.sharding.coordinator.epoch_claim import CoordinatorState
from shardbus.sharding.handoff_modes import MODES, HandoffMode
from shardbus.sharding.handoff_phases import MovePhase, phases_of
from shardbus.simulation.membership.faults import Faults
from shardbus.simulation.nodes.options import VICTIMS, NodeOptions
from shardbus.simulation.nodes.world import NodeWorld, SimClient, SimNode, SimProcess

LATER_S = 0.02
"""Seconds, at most, between the start of a phase and a kill in it."""
VANISHES = 0.15
"""The part of kills in which the whole machine dies."""
BEGINS_S = 2.0
"""Seconds until the first kill may come: the nodes have begun to join by then."""
PROVOKES_S = (0.2, 0.6)
"""Seconds between two commands that make shards move, and for which a node is drained."""
BACK_S = (0.5, 4.0)
"""Seconds until a killed node is back, if it is not back within milliseconds."""


class Target(NamedTuple):
    """The move that a kill waits for."""

    phase: str
    victim: str

    def __str__(self) -> str:
        return f"{self.phase}/{self.victim}"


class SeenMove(NamedTuple):
    """A move of a type, as one process sees it."""

    entity_type: str
    move: MovePhase


def targets_of(mode: HandoffMode | None) -> list[Target]:
    """Return every phase of a move in this mode with every victim."""
    return [Target(*pair) for pair in product(phases_of(mode), VICTIMS)]


class MoveKills:
    """Kills processes at the phases of moves, as the options say."""

    def __init__(
        self,
        world: NodeWorld,
        load: NodeOptions,
        modes: Mapping[str, HandoffMode | None],
        faults: Faults,
        add_client: Callable[[], None],
    ) -> None:
        self.hit: Counter[Target] = Counter()
        self._world, self._load, self._faults = world, load, faults
        self._add_client = add_client
        self._dice = Random(f"move kills {load.seed}")
        mode = MODES[load.handoff]
        self._direct = mode is not None
        self._types = [name for name, handoff in modes.items() if handoff == mode]
        every = targets_of(mode)
        chosen = [target for target in every if str(target) == load.kill_at] or every
        self._waiting = [self._dice.choice(chosen) for _ in range(load.move_kills)]
        self._seen_moves: dict[SimNode, dict[SeenMove, None]] = {}
        self._old_homes: dict[tuple[str, str], NodeId] = {}
        """By type and shard: the home that it leaves, for machines that do not keep it."""
        self._drained: SimNode | None = None
        self._begins_at = world.now + BEGINS_S
        world.later(BEGINS_S, self._provoke)

    def watch(self, sim_node: SimNode) -> None:
        """Look at the moves of this node after each of its turns."""
        self._seen_moves[sim_node] = {}
        sim_node.loop.after_turn = lambda: self._look(sim_node)

    def heal(self) -> None:
        """Kill nothing from now on."""
        self._waiting.clear()

    # ---- victims

    def _look(self, sim_node: SimNode) -> None:
        """Kill, now or soon, if a move has reached a phase that a kill waits for."""
        if not self._waiting:
            return
        now: dict[SeenMove, None] = dict.fromkeys(self._moves(sim_node))
        before, self._seen_moves[sim_node] = self._seen_moves[sim_node], now
        for seen in before:
            if seen.move.old is None and seen not in now:
                self._old_homes.pop((seen.entity_type, seen.move.shard), None)
        if self._world.now < self._begins_at:
            return
        phases = {target.phase for target in self._waiting}
        for seen in now:
            if seen.move.phase in phases and seen not in before:
                later = self._dice.choice((0.0, 0.0, self._dice.uniform(0.0, LATER_S)))
                if not later:
                    self._kill(sim_node, seen)  # the next turn, at this time, may end the phase
                    continue
                self._world.later(later, lambda s=seen: self._kill(sim_node, s))  # type: ignore[misc]

    def _kill(self, sim_node: SimNode, seen: SeenMove) -> None:
        """Kill a victim that waits for this phase, if the move is still in it."""
        if sim_node.ended_at is not None or seen not in self._moves(sim_node):
            return
        for target in self._waiting:
            victim = self._victim(seen, target) if target.phase == seen.move.phase else None
            if victim is not None:
                self._waiting.remove(target)
                self.hit[target] += 1
                what = f"is killed: {target} of {seen.entity_type} {seen.move.shard}"
                self._mark(victim.name, what)
                self._end(victim)
                return

    def _end(self, victim: SimProcess) -> None:
        if isinstance(victim, SimClient):
            self._world.kill_client(victim.name)
            self._world.later(self._dice.uniform(*BACK_S), self._add_client)
            return
        self._world.kill(victim.name, silent=self._dice.random() < VANISHES)
        if self._dice.random() < 0.5:
            self._faults.restart(victim.name)
        else:
            back = self._dice.uniform(*BACK_S)
            self._world.later(back, lambda: self._faults.come_back(victim.name))

    def _victim(self, seen: SeenMove, target: Target) -> SimProcess | None:
        """Return the process to kill. None if the move has none, or too few nodes would be left."""
        working = self._working()
        if len(working) < len(VICTIMS) - 1:
            return None
        move = seen.move
        old = move.old or self._old_homes.get((seen.entity_type, move.shard))
        ends = [node for node in (old, move.new) if node is not None]
        ruling = [r for r in working if _coordinator(r, seen.entity_type) is not None]
        others = [r for r in working if r.process.id not in ends]
        match target.victim:
            case "old-home":
                able: list[SimProcess] = [r for r in working if r.process.id == old]
            case "new-home":
                able = [r for r in working if r.process.id == move.new]
            case "coordinator":
                able = [r for r in others if r in ruling]
            case _:
                able = [r for r in others if r not in ruling]
                able += [c for c in self._world.clients.values() if c.in_touch]
        return self._dice.choice(able) if able and old is not None else None

    def _moves(self, sim_node: SimNode) -> Iterator[SeenMove]:
        """Yield the moves that this node takes part in, or coordinates. A start counts only if the
        shard has left another node."""
        for name in self._types:
            coordinator = _coordinator(sim_node, name)
            for move in coordinator.move_phases() if coordinator is not None else ():
                if move.direct is not self._direct:
                    continue  # a direct move that was refused is tried again in mode `buffer`
                if move.old is not None:
                    self._old_homes[name, move.shard] = move.old
                    yield SeenMove(name, move)
                elif self._old_homes.get((name, move.shard), move.new) != move.new:
                    yield SeenMove(name, move)
            for move in sim_node.node.regions[name].router.region.move_phases():
                yield SeenMove(name, move)

    def _working(self) -> list[SimNode]:
        sim_nodes = self._world.sim_nodes.values()
        return [r for r in sim_nodes if r.ended_at is None and r.node.members.is_up]

    # ---- causes of moves

    def _provoke(self) -> None:
        """Drain another node, or balance, for as long as a kill waits."""
        if self._drained is not None:
            self._serve(self._drained, Service.OPEN)
            self._drained = None
        if not self._waiting or self._faults.over:
            return
        working = self._working()
        if len(working) > 1 and self._dice.random() < 0.7:
            self._drained = self._dice.choice(working)
            self._serve(self._drained, Service.DRAINING)
        self._world.later(self._dice.uniform(*PROVOKES_S), self._provoke)

    def _serve(self, sim_node: SimNode, service: Service) -> None:
        process = sim_node.process
        if self._world.now < process.paused_until:
            return  # it would obey later, perhaps after the end of the faults
        if sim_node.ended_at is None:
            self._mark(sim_node.name, f"is {service.value}")
            self._world.deliver(process, ev.SetService(process.id, service))

    def _mark(self, name: str, what: str) -> None:
        self._world.trace.mark(self._world.now, name, what)


def _coordinator(sim_node: SimNode, name: str) -> Coordinator | None:
    """Return the ruling coordinator of the type at this node."""
    machine = sim_node.node.singletons[name].coordinator.machine
    rules = machine is not None and machine.state is CoordinatorState.RULING
    return machine if rules else None
