"""The faults of a run: `Options` turned into things that happen to a world.

Each fault has a moment drawn from the seed. Whom it strikes is drawn when it happens, among those
it can strike then. A node that comes back, or comes new, joins by the others and never founds a
cluster of its own: which of two islands is the cluster is not membership's to say.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from shardbus.membership import events as ev
from shardbus.simulation.membership.network import CutLink, Wall, partition
from shardbus.simulation.membership.options import ROLE, Options
from shardbus.simulation.membership.process import Process
from shardbus.simulation.membership.world import World

SLOW_STORE_S = 8.0
FAILING_STORE = 0.5
FORGETS = 3
BREAKING = 0.3
"""The part of connections that a wall breaks which does not reject."""
LONGEST_REST_S = 12.0
"""How long an ended process stays away at most."""
BOUNCE_S = (0.001, 0.05)
"""How soon a process that is restarted in place is there again."""
ENTITY_TYPES = ("a", "b")


class Faults:
    """Brings the faults of these options over the world."""

    def __init__(self, world: World, options: Options) -> None:
        self.world = world
        self.options = options
        self.dice = Random(f"faults {options.seed}")
        self.epoch = 0
        self.over = False
        self._names = 0

    # -- the two phases ------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the nodes, and let the faults come."""
        options, world = self.options, self.world
        first = self._new()
        world.enter(first)
        for _ in range(options.nodes - 1):
            process = self._new()
            self._later(2.0, lambda p=process: self._enter(p))  # type: ignore[misc]
        kinds: tuple[tuple[int, Callable[[], None]], ...] = (
            (options.pauses, self._pause),
            (options.kills, lambda: self._end(silent=False)),
            (options.vanishes, lambda: self._end(silent=True)),
            (options.leaves, self._leave),
            (options.joins, self._join),
            (options.partitions, lambda: self._partition(one_way=False)),
            (options.one_ways, lambda: self._partition(one_way=True)),
            (options.cut_links, self._cut_link),
            (options.bounces, self._bounce),
            (options.swizzles, self._swizzle),
            (options.epochs, self._new_epoch),
            (FORGETS if options.store == "forgetful" else 0, world.leases.forget),
        )
        for times, what in kinds:
            for _ in range(times):
                at = self.dice.uniform(0.1, 0.9) * options.seconds
                world.later(at, lambda w=what: self._happen(w))  # type: ignore[misc]
        network = world.network
        network.delay_s, network.late_s = options.delay_s, options.late_s
        network.loss, network.duplication = options.loss, options.duplication
        network.reordering = options.reordering
        world.leases.slow_s = SLOW_STORE_S if options.store == "slow" else 0.0
        world.leases.failing = FAILING_STORE if options.store == "failing" else 0.0

    def heal(self) -> None:
        """From now on nothing goes wrong."""
        self.over = True
        self.world.trace.mark(self.world.now, "", "healed")
        self.world.network.calm()
        self.world.leases.calm()
        for process in self.world.nodes.values():
            process.paused_until = min(process.paused_until, self.world.now)

    def _happen(self, what: Callable[[], None]) -> None:
        if not self.over:
            what()

    def _later(self, longest: float, what: Callable[[], None]) -> None:
        self.world.later(self.dice.uniform(0.05, longest), what)

    def _some(self, fits: Callable[[Process], bool]) -> Process | None:
        able = [p for p in self.world.nodes.values() if fits(p)]
        return self.dice.choice(able) if able else None

    # -- processes -----------------------------------------------------------------------------

    def _new(self, name: str = "") -> Process:
        if not name:
            self._names += 1
            name = f"n{self._names}"
        rate = 1.0 + self.dice.uniform(-self.options.drift, self.options.drift)
        number = int(name.removeprefix("n"))
        roles = (ROLE,) if number % 2 else ()
        return self.world.add(name, rate=rate, roles=roles)

    def _enter(self, process: Process) -> None:
        others = [name for name in self.world.nodes if name != process.name]
        seeds = self.dice.sample(others, min(3, len(others)))
        if seeds and process.running:
            self.world.trace.mark(self.world.now, process.name, "joins")
            self.world.enter(process, *seeds)

    def _join(self) -> None:
        self._enter(self._new())

    def _end(self, *, silent: bool) -> None:
        struck = self._some(_has_company)
        if struck is None:
            return
        self.world.trace.mark(self.world.now, struck.name, "vanishes" if silent else "killed")
        self.world.kill(struck.name, silent=silent)
        if self.options.restarts:
            self._later(LONGEST_REST_S, lambda: self._come_back(struck.name))

    def _come_back(self, name: str) -> None:
        if not self.over and not self.world.nodes[name].alive:
            self._enter(self._new(name))

    def _bounce(self) -> None:
        struck = self._some(_has_company)
        if struck is None:
            return
        self.world.trace.mark(self.world.now, struck.name, "is restarted in place")
        self.world.kill(struck.name)
        self.restart(struck.name)

    def restart(self, name: str) -> None:
        """Its process has ended; the next stands at its address within milliseconds."""
        self.world.later(self.dice.uniform(*BOUNCE_S), lambda: self._come_back(name))

    def _leave(self) -> None:
        struck = self._some(lambda p: p.member and not p.leaving)
        if struck is not None:
            self.world.trace.mark(self.world.now, struck.name, "is asked to leave")
            self.world.leave(struck)

    def _pause(self) -> None:
        struck = self._some(lambda p: p.running)
        if struck is not None:
            seconds = self.dice.uniform(0.0, self.options.pause_s)
            self.world.trace.mark(self.world.now, struck.name, f"pauses for {seconds:.3f} s")
            self.world.pause(struck.name, seconds)

    def _new_epoch(self) -> None:
        struck = self._some(lambda p: p.member)
        if struck is not None:
            self.epoch += 1
            kind = self.dice.choice(ENTITY_TYPES)
            self.world.trace.mark(self.world.now, struck.name, f"sees epoch {self.epoch} of {kind}")
            self.world.give(struck, ev.RecordEpoch(kind, self.epoch))
            self.world.give(struck, ev.SetMeta(kind, b"%d" % self.epoch))

    # -- walls ---------------------------------------------------------------------------------

    def _partition(self, *, one_way: bool) -> None:
        names = self.world.names()
        self.dice.shuffle(names)
        at = self.dice.choice((self.dice.randint(1, max(1, len(names) - 1)), len(names) // 2))
        sides = sorted(names[:at]), sorted(names[at:])
        rejecting = self.options.rejecting and not one_way
        arrow = "does not reach" if one_way else "and"
        self._wall(
            partition(*sides, one_way=one_way, rejecting=rejecting),
            f"wall: {','.join(sides[0])} {arrow} {','.join(sides[1])}",
        )

    def _cut_link(self) -> None:
        names = self.world.names()
        if len(names) > 1:
            ends = self.dice.sample(names, 2)
            rejecting = self.options.rejecting
            self._wall(CutLink(frozenset(ends), rejecting), f"no link between {' and '.join(ends)}")

    def _swizzle(self) -> None:
        """Links break one by one, and come back one by one."""
        names = sorted(self.world.nodes)
        links = [(a, b) for a in names for b in names if a < b]
        chosen = self.dice.sample(links, self.dice.randint(1, len(links))) if links else []
        for a, b in chosen:
            wall = CutLink(frozenset((a, b)), self.options.rejecting)
            words = f"no link between {a} and {b}"
            self._later(self.options.wall_s, lambda w=wall, s=words: self._clog(w, s))  # type: ignore[misc]

    def _clog(self, wall: Wall, words: str) -> None:
        self._happen(lambda: self._wall(wall, words))

    def _wall(self, wall: Wall, words: str) -> None:
        self.world.trace.mark(self.world.now, "", words)
        self.world.wall_up(wall, BREAKING)

        def down() -> None:
            self.world.trace.mark(self.world.now, "", f"no more: {words}")
            self.world.wall_down(wall)

        self._later(self.options.wall_s, lambda: self._happen(down))


def _has_company(process: Process) -> bool:
    """A cluster of one is spared: without it nobody could ever join."""
    return process.member and len(process.view) > 1
