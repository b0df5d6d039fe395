"""The life of the nodes of `shardbus dev`. Pure: `now` is passed in, in seconds.

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

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

END_S = 10.0
"""For nodes to end: their entities stop, and the cluster agrees that it stops."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
RAN_WELL_S = 60.0
OK, FAILED = 0, 1
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


class Word(Enum):
    """A command to a node's process."""

    LOAD = "load"
    RUN = "run"
    END = "end"


# Events


@dataclass(frozen=True, slots=True)
class StartAll:
    """Start the nodes."""


@dataclass(frozen=True, slots=True)
class AppLoaded:
    """A run has loaded the application."""

    run: int


@dataclass(frozen=True, slots=True)
class RunServes:
    """A run listens."""

    run: int


@dataclass(frozen=True, slots=True)
class RunReady:
    """A run is Up, with its regions registered."""

    run: int


@dataclass(frozen=True, slots=True)
class RunExited:
    """The process of a run has ended; a negative `code` is a signal."""

    run: int
    code: int


@dataclass(frozen=True, slots=True)
class SourceChanged:
    """Source files have changed."""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """End; a second one kills the nodes."""


DevEvent = StartAll | AppLoaded | RunServes | RunReady | RunExited | SourceChanged | Interrupt


# Effects


@dataclass(frozen=True, slots=True)
class StartRun:
    """Start a process for node `number`, which joins by `seeds` (numbers of nodes)."""

    run: int
    number: int
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CommandRun:
    """Send a word to the process of a run."""

    run: int
    word: Word


@dataclass(frozen=True, slots=True)
class KillRun:
    """Kill the process of a run."""

    run: int


@dataclass(frozen=True, slots=True)
class AllReady:
    """Report that all nodes are ready. `generation` is 1 at the first start."""

    generation: int


@dataclass(frozen=True, slots=True)
class NodeRestarts:
    """Report that a node ended and starts again after `seconds`."""

    number: int
    code: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RunBack:
    """Report that a node that had ended is ready again."""

    number: int


@dataclass(frozen=True, slots=True)
class RunLeft:
    """Report that a node left by order and stays away."""

    number: int


@dataclass(frozen=True, slots=True)
class NotLoaded:
    """Report that a generation failed, and that the program waits for a change. `kept`: the nodes
    of the earlier one still serve."""

    kept: bool


@dataclass(frozen=True, slots=True)
class EndDev:
    """End the program with this exit code: no process is left."""

    code: int


DevEffect = (
    StartRun
    | CommandRun
    | KillRun
    | AllReady
    | NodeRestarts
    | RunBack
    | RunLeft
    | NotLoaded
    | EndDev
)


@dataclass(slots=True)
class DevNode:
    """A node: its present run (0 between two runs), and how often it ended lately."""

    number: int
    run: int
    stage: DevStage = DevStage.LOADING
    ends: int = 0
    ready_at: float = 0.0
    until: float = 0.0


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
        self._code = OK
        self._deadline = 0.0

    @property
    def stages(self) -> dict[int, DevStage]:
        """Return the stage of each node that serves, starts or ends."""
        return {number: node.stage for number, node in self._nodes.items()}

    def handle(self, event: DevEvent, now: float) -> list[DevEffect]:
        """Handle an event and return its effects."""
        match event:
            case StartAll():
                return self._start_generation()
            case AppLoaded(run):
                return self._on_loaded(run, now)
            case RunServes(run):
                return self._on_serves(run)
            case RunReady(run):
                return self._on_ready(run, now)
            case RunExited(run, code):
                return [*self._on_exited(run, code, now), *self._settle()]
            case SourceChanged():
                return self._on_changed()
            case Interrupt():
                return [*self._on_interrupt(now), *self._settle()]
            case _:
                assert_never(event)

    def deadline(self) -> float | None:
        """Return the time at which `tick` is due, None if there is none."""
        due = [n.until for n in self._nodes.values() if n.stage is DevStage.RESTING]
        if any(node.stage is DevStage.ENDING for node in self._nodes.values()):
            due.append(self._deadline)
        return min(due, default=None)

    def tick(self, now: float) -> list[DevEffect]:
        """Start nodes whose pause is over; kill those that do not end."""
        effects: list[DevEffect] = []
        for node in self._nodes.values():
            if node.stage is DevStage.RESTING and node.until <= now:
                effects += self._start_again(node)
            elif node.stage is DevStage.ENDING and self._deadline <= now:
                effects.append(KillRun(node.run))
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

    def _start_generation(self) -> list[DevEffect]:
        self._generation += 1
        effects: list[DevEffect] = []
        for number in self._numbers:
            node = self._fresh[number] = DevNode(number, self._next_run())
            seeds = () if number == FOUNDER else self._numbers
            effects.append(StartRun(node.run, number, seeds))
        return [*effects, CommandRun(self._fresh[FOUNDER].run, Word.LOAD)]

    def _on_changed(self) -> list[DevEffect]:
        if self._ending:
            return []
        return [*self._discard(), *self._start_generation()]

    def _discard(self) -> list[DevEffect]:
        """Drop the fresh generation."""
        dropped = [node.run for node in self._fresh.values() if node.run]
        self._fresh = {}
        self._discarded.update(dropped)
        return [KillRun(run) for run in dropped]

    def _on_loaded(self, run: int, now: float) -> list[DevEffect]:
        node = self._find(run)
        if node is None or node.stage is not DevStage.LOADING:
            return []
        node.stage = DevStage.LOADED
        if self._fresh.get(node.number) is not node:
            return self._start_loaded()
        effects: list[DevEffect] = []
        if node.number == FOUNDER:
            others = (n for n in self._fresh.values() if n.number != FOUNDER)
            effects += [CommandRun(other.run, Word.LOAD) for other in others]
            effects += self._end_nodes(now)
        return [*effects, *self._promote()]

    def _promote(self) -> list[DevEffect]:
        """Let the fresh runs be the nodes, if no other is left."""
        founder = self._fresh.get(FOUNDER)
        if self._nodes or founder is None or founder.stage is not DevStage.LOADED:
            return []
        self._nodes, self._fresh = self._fresh, {}
        self._founded = self._announced = False
        return self._start_loaded()

    def _start_loaded(self) -> list[DevEffect]:
        effects: list[DevEffect] = []
        for node in self._nodes.values():
            if node.stage is DevStage.LOADED and (self._founded or node.number == FOUNDER):
                node.stage = DevStage.STARTING
                effects.append(CommandRun(node.run, Word.RUN))
        return effects

    def _on_serves(self, run: int) -> list[DevEffect]:
        node = self._find(run)
        self._founded |= node is not None and node.stage is DevStage.STARTING
        return self._start_loaded()

    def _on_ready(self, run: int, now: float) -> list[DevEffect]:
        node = self._find(run)
        if node is None or node.stage is not DevStage.STARTING:
            return []
        node.stage, node.ready_at = DevStage.READY, now
        if self._announced:
            return [RunBack(node.number)]
        return self._announce()

    def _announce(self) -> list[DevEffect]:
        if self._announced or set(self.stages.values()) != {DevStage.READY}:
            return []
        self._announced = True
        return [AllReady(self._generation)]

    # ---- the end of a run

    def _on_exited(self, run: int, code: int, now: float) -> list[DevEffect]:
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
        if code == OK and node.stage in (DevStage.STARTING, DevStage.READY):
            del self._nodes[node.number]
            return [RunLeft(node.number), *self._after_leaving()]
        if not self._announced:
            del self._nodes[node.number]
            return [*self._end_nodes(now, at_once=True), *self._on_failed(code)]
        return [self._rest(node, code, now)]

    def _on_failed(self, code: int) -> list[DevEffect]:
        """A generation cannot run. The nodes of an earlier one stay, if there are any."""
        effects = self._discard()
        kept = any(node.stage is not DevStage.ENDING for node in self._nodes.values())
        if kept or self._reload:
            return [*effects, *([] if self._ending else [NotLoaded(kept)])]
        self._ending, self._code = True, code if code > 0 else FAILED
        return effects

    def _after_leaving(self) -> list[DevEffect]:
        """End after the last node has left by order, unless a change can start others."""
        self._ending |= not (self._nodes or self._fresh or self._reload)
        return self._announce() if self._nodes else self._promote()

    def _rest(self, node: DevNode, code: int, now: float) -> NodeRestarts:
        if node.stage is DevStage.READY and now - node.ready_at >= RAN_WELL_S:
            node.ends = 0
        pause = min(FIRST_PAUSE_S * 2.0**node.ends, LONGEST_PAUSE_S)
        node.ends += pause < LONGEST_PAUSE_S
        node.stage, node.until = DevStage.RESTING, now + pause
        return NodeRestarts(node.number, code, pause)

    def _start_again(self, node: DevNode) -> list[DevEffect]:
        node.run, node.stage = self._next_run(), DevStage.LOADING
        # All of them, in one order: so a node joins the others, and if all ended, the first founds.
        seeds = tuple(sorted(self._nodes))
        return [StartRun(node.run, node.number, seeds), CommandRun(node.run, Word.LOAD)]

    # ---- the end

    def _end_nodes(self, now: float, *, at_once: bool = False) -> list[DevEffect]:
        """End every node. One that has not started yet is killed, as all are if `at_once`."""
        effects: list[DevEffect] = []
        for number, node in list(self._nodes.items()):
            if not node.run:
                del self._nodes[number]
            elif node.stage is not DevStage.ENDING or at_once:
                runs = node.stage in (DevStage.STARTING, DevStage.READY) and not at_once
                node.stage = DevStage.ENDING
                effects.append(CommandRun(node.run, Word.END) if runs else KillRun(node.run))
        if effects:
            self._deadline = now + END_S
        return effects

    def _on_interrupt(self, now: float) -> list[DevEffect]:
        again, self._interrupted = self._interrupted, True
        self._ending = True
        if again:
            self._code = max(self._code, FAILED)
        return [*self._discard(), *self._end_nodes(now, at_once=again)]

    def _settle(self) -> list[DevEffect]:
        """End the program when no process is left."""
        if self._ending and not (self._nodes or self._fresh or self._discarded):
            return [EndDev(self._code)]
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
