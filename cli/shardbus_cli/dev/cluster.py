"""The life of the nodes of `shardbus dev`. Pure.

A **run** is one process of a node. Runs belong to a generation: the source files as they were when
its processes started.

    LOADING ──> LOADED ──> STARTING ──> READY        the process runs
                               └───────────┤
                                           ├──> RESTING ──> a new run, LOADING
                                           └──> ENDING ──> gone

The runs of the generation that serves are the nodes; a generation that has not loaded yet is
`fresh`. Rules:

1. Of a fresh generation, node 1 loads the application first, then the others.
2. Once node 1 has loaded, the nodes that serve end. Once they are gone, the fresh runs are the
   nodes and start. So an application that cannot be loaded stops nothing.
3. Node 1 of a generation founds the cluster; the others start when it serves.
4. A change of the source discards the fresh generation and begins another one.
5. A node that fails before all nodes were ready once ends its generation: with `reload` this
   program waits for a change, without it ends. Later, a node that ends by an error or a signal is
   started again after a pause. A node that ends with 0 left by order, and stays away.
6. Runs that were asked to end and have not after `END_S` are killed.
"""

from __future__ import annotations

from enum import Enum
from typing import assert_never

import msgspec

from shardbus_cli.children import group
from shardbus_cli.children.group import ChildEffect, Word

END_S = 10.0
"""For nodes to end: their entities stop, and the cluster agrees that it stops."""
LONGEST_PAUSE_S = 10.0
FOUNDER = 1
"""The number of the node that founds the cluster."""


class DevStage(Enum):
    """The stage of a run, or of a node between two runs."""

    LOADING = "loading"
    LOADED = "loaded"
    STARTING = "starting"
    READY = "ready"
    ENDING = "ending"
    RESTING = "resting"


class DevNode(msgspec.Struct):
    """A node and its present run, 0 between two runs."""

    number: int
    run: int
    stage: DevStage = DevStage.LOADING
    ready_at: float = 0.0
    until: float = 0.0
    pause: group.RestartPause = msgspec.field(
        default_factory=lambda: group.RestartPause(LONGEST_PAUSE_S)
    )


class DevCluster:
    """The nodes of one `shardbus dev`, as a state machine. `nodes`: how many; `reload`: whether it
    waits for a change after a failure."""

    def __init__(self, nodes: int, *, reload: bool) -> None:
        self._numbers = tuple(range(FOUNDER, FOUNDER + nodes))
        self._reload = reload
        self._runs = 0
        self._generation = 0
        self._nodes: dict[int, DevNode] = {}
        self._fresh: dict[int, DevNode] = {}
        self._discarded: set[int] = set()
        self._founded = self._announced = False
        self._ending = self._interrupted = False
        self._code = group.OK
        self._deadline = 0.0

    @property
    def stages(self) -> dict[int, DevStage]:
        """Return the stage of each node that serves, starts or ends."""
        return {number: node.stage for number, node in self._nodes.items()}

    @property
    def ending(self) -> list[int]:
        """Return the numbers of the nodes that end."""
        return [n for n, node in self._nodes.items() if node.stage is DevStage.ENDING]

    @property
    def ends_by(self) -> float:
        """Return the time at which the nodes that end are killed."""
        return self._deadline

    def handle(self, event: group.ChildEvent, now: float) -> list[ChildEffect]:
        """Handle an event and return its effects."""
        match event:
            case group.StartAll():
                return self._start_generation()
            case group.ChildLoaded(run):
                return self._on_loaded(run, now)
            case group.ChildServes(run=run):
                return self._on_serves(run)
            case group.ChildReady(run):
                return self._on_ready(run, now)
            case group.ChildExited(run, code):
                return [*self._on_exited(run, code, now), *self._settle()]
            case group.SourceChanged():
                return self._on_changed()
            case group.Interrupt():
                return [*self._on_interrupt(now), *self._settle()]
            case group.ChildClosed() | group.ChildLeaves():
                return []  # of a unit of workers
            case _:
                assert_never(event)

    def deadline(self) -> float | None:
        """Return the time at which `tick` is due, None if there is none."""
        due = [n.until for n in self._nodes.values() if n.stage is DevStage.RESTING]
        if self.ending:
            due.append(self._deadline)
        return min(due, default=None)

    def tick(self, now: float) -> list[ChildEffect]:
        """Start nodes whose pause is over; kill those that do not end."""
        effects: list[ChildEffect] = []
        for node in self._nodes.values():
            if node.stage is DevStage.RESTING and node.until <= now:
                effects += self._start_again(node)
            elif node.stage is DevStage.ENDING and self._deadline <= now:
                effects.append(group.KillChild(node.run))
        if self._deadline <= now:
            self._deadline = now + END_S
        return effects

    def check(self) -> None:
        """Assert that each run is in one place, and that nothing starts while the program ends."""
        runs = [n.run for n in (*self._nodes.values(), *self._fresh.values()) if n.run]
        assert len(set(runs)) == len(runs)
        assert not self._discarded & set(runs)
        if self._ending:
            assert not self._fresh
            assert all(node.stage is DevStage.ENDING for node in self._nodes.values())

    # ---- a generation

    def _start_generation(self) -> list[ChildEffect]:
        self._generation += 1
        effects: list[ChildEffect] = []
        for number in self._numbers:
            node = self._fresh[number] = DevNode(number, self._next_run())
            seeds = () if number == FOUNDER else self._numbers
            effects.append(group.SpawnChild(node.run, number, seeds))
        return [*effects, group.CommandChild(self._fresh[FOUNDER].run, Word.LOAD)]

    def _on_changed(self) -> list[ChildEffect]:
        if self._ending:
            return []
        return [*self._discard(), *self._start_generation()]

    def _discard(self) -> list[ChildEffect]:
        """Drop the fresh generation."""
        dropped = [node.run for node in self._fresh.values() if node.run]
        self._fresh = {}
        self._discarded.update(dropped)
        return [group.KillChild(run) for run in dropped]

    def _on_loaded(self, run: int, now: float) -> list[ChildEffect]:
        node = self._find(run)
        if node is None or node.stage is not DevStage.LOADING:
            return []
        node.stage = DevStage.LOADED
        if self._fresh.get(node.number) is not node:
            return self._start_loaded()
        effects: list[ChildEffect] = []
        if node.number == FOUNDER:
            others = (n for n in self._fresh.values() if n.number != FOUNDER)
            effects += [group.CommandChild(other.run, Word.LOAD) for other in others]
            effects += self._end_nodes(now)
        return [*effects, *self._promote()]

    def _promote(self) -> list[ChildEffect]:
        """Let the fresh runs be the nodes, if no other is left."""
        founder = self._fresh.get(FOUNDER)
        if self._nodes or founder is None or founder.stage is not DevStage.LOADED:
            return []
        self._nodes, self._fresh = self._fresh, {}
        self._founded = self._announced = False
        return self._start_loaded()

    def _start_loaded(self) -> list[ChildEffect]:
        effects: list[ChildEffect] = []
        for node in self._nodes.values():
            if node.stage is DevStage.LOADED and (self._founded or node.number == FOUNDER):
                node.stage = DevStage.STARTING
                effects.append(group.CommandChild(node.run, Word.RUN))
        return effects

    def _on_serves(self, run: int) -> list[ChildEffect]:
        node = self._find(run)
        self._founded |= node is not None and node.stage is DevStage.STARTING
        return self._start_loaded()

    def _on_ready(self, run: int, now: float) -> list[ChildEffect]:
        node = self._find(run)
        if node is None or node.stage is not DevStage.STARTING:
            return []
        node.stage, node.ready_at = DevStage.READY, now
        if self._announced:
            return [group.ChildBack(node.number)]
        return self._announce()

    def _announce(self) -> list[ChildEffect]:
        if self._announced or set(self.stages.values()) != {DevStage.READY}:
            return []
        self._announced = True
        return [group.AllReady(self._generation)]

    # ---- the end of a run

    def _on_exited(self, run: int, code: int, now: float) -> list[ChildEffect]:
        if run in self._discarded:
            self._discarded.discard(run)
            return []
        node = self._find(run)
        if node is None:
            return []
        node.run = 0
        if self._fresh.get(node.number) is node:
            return self._on_failed(code)
        if node.stage is DevStage.ENDING:
            del self._nodes[node.number]
            return self._promote()
        if code == group.OK and node.stage in (DevStage.STARTING, DevStage.READY):
            del self._nodes[node.number]
            return [group.ChildLeft(node.number), *self._after_leaving()]
        if not self._announced:
            del self._nodes[node.number]
            return [*self._end_nodes(now, at_once=True), *self._on_failed(code)]
        return [self._rest(node, code, now)]

    def _on_failed(self, code: int) -> list[ChildEffect]:
        """A generation cannot run. The nodes of an earlier one stay, if there are any."""
        effects = self._discard()
        kept = any(node.stage is not DevStage.ENDING for node in self._nodes.values())
        if kept or self._reload:
            return [*effects, *([] if self._ending else [group.NotLoaded(kept)])]
        self._ending, self._code = True, code if code > 0 else group.FAILED
        return effects

    def _after_leaving(self) -> list[ChildEffect]:
        """End after the last node has left by order, unless a change can start others."""
        self._ending |= not (self._nodes or self._fresh or self._reload)
        return self._announce() if self._nodes else self._promote()

    def _rest(self, node: DevNode, code: int, now: float) -> group.RestartLater:
        pause = node.pause.next(now - node.ready_at if node.stage is DevStage.READY else 0.0)
        node.stage, node.until = DevStage.RESTING, now + pause
        return group.RestartLater(node.number, code, pause)

    def _start_again(self, node: DevNode) -> list[ChildEffect]:
        node.run, node.stage = self._next_run(), DevStage.LOADING
        # All of them, in one order: so a node joins the others, and if all ended, the first founds.
        seeds = tuple(sorted(self._nodes))
        return [
            group.SpawnChild(node.run, node.number, seeds),
            group.CommandChild(node.run, Word.LOAD),
        ]

    # ---- the end

    def _end_nodes(self, now: float, *, at_once: bool = False) -> list[ChildEffect]:
        """End every node. One that has not started yet is killed, as all are if `at_once`."""
        effects: list[ChildEffect] = []
        for number, node in list(self._nodes.items()):
            if not node.run:
                del self._nodes[number]
            elif node.stage is not DevStage.ENDING or at_once:
                runs = node.stage in (DevStage.STARTING, DevStage.READY) and not at_once
                node.stage = DevStage.ENDING
                effects.append(
                    group.CommandChild(node.run, Word.END) if runs else group.KillChild(node.run)
                )
        if effects:
            self._deadline = now + END_S
        return effects

    def _on_interrupt(self, now: float) -> list[ChildEffect]:
        again, self._interrupted = self._interrupted, True
        self._ending = True
        if again:
            self._code = max(self._code, group.FAILED)
        return [group.Ending(), *self._discard(), *self._end_nodes(now, at_once=again)]

    def _settle(self) -> list[ChildEffect]:
        """End the program when no process is left."""
        if self._ending and not (self._nodes or self._fresh or self._discarded):
            return [group.EndAll(self._code)]
        return []

    # ---- small parts

    def _next_run(self) -> int:
        self._runs += 1
        return self._runs

    def _find(self, run: int) -> DevNode | None:
        for node in (*self._nodes.values(), *self._fresh.values()):
            if node.run == run and run:
                return node
        return None
