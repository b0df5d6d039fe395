"""The faults of a run: `Options` turned into events in a world.

The seed draws the moment of each fault. The victim is drawn when the fault happens, among the
processes that it can then strike. Some faults are scheduled close to another one, so that two of
them coincide. A node that comes back, or is new, joins by the others and never founds a cluster of
its own: membership does not decide which of two islands is the cluster. With discovery or claims
the store does, and every node may found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from shardbus.ids import Address
from shardbus.membership import events as ev
from shardbus.node.rejoining import contacts
from shardbus.simulation.membership.network import CutLink, Wall, partition
from shardbus.simulation.membership.options import ROLE, Options
from shardbus.simulation.membership.process import Process
from shardbus.simulation.membership.replicas import SimRing
from shardbus.simulation.membership.unfair import BREAKING, UnfairFaults
from shardbus.simulation.membership.world import World

SLOW_STORE_S = 8.0
FAILING_STORE = 0.5
FORGETS = 3
LONGEST_REST_S = 12.0
"""Seconds, at most, before an ended process comes back."""
BOUNCE_S = (0.001, 0.05)
"""Seconds before a process that is restarted in place is back."""
PAIR_WITHIN_S = 1.5
"""Seconds, at most, between two faults that are made to coincide."""
FLAP_S = (0.2, 12.0)
"""Seconds, drawn from this range, until a flapping wall falls, and until it rises again."""
ENTITY_TYPES = ("a", "b")
SEEDS = ("n1", "n2")
"""With claims, the seeds of every node."""


def move_together(
    times: list[float], anchors: Sequence[float], pairs: int, dice: Random
) -> list[float]:
    """Move `pairs` of these times close to one of the anchors. No fault is added."""
    moved = list(times)
    for _ in range(min(pairs, len(times)) if anchors else 0):
        anchor = dice.choice(anchors)
        near = anchor + dice.uniform(-PAIR_WITHIN_S, PAIR_WITHIN_S)
        moved[dice.randrange(len(moved))] = max(0.0, near)
    return moved


class Faults:
    """Brings the faults of these options into the world."""

    def __init__(self, world: World, options: Options) -> None:
        self.world = world
        self.options = options
        self.dice = Random(f"faults {options.seed}")
        self.epoch = 0
        self.over = False
        self.times: list[float] = []
        """When the faults happen, in seconds from `begin`."""
        self._names = 0
        witnesses = [f"w{number}" for number in range(1, options.witnesses + 1)]
        self._hosts = [f"n{n}" for n in range(1, options.replicas + options.spares + 1)]
        self._hosts += witnesses
        """The names that have replicas."""
        self.ring: SimRing | None = None
        if options.replicas:
            hosts = [*self._hosts[: options.replicas], *witnesses]
            self.ring = SimRing(world, hosts, self._hosts, options.repair_after)
        self._unfair = UnfairFaults(
            world,
            options.troubles,
            Random(f"troubles {options.seed}"),
            self.bounce,
            self._run_unless_healed,
        )
        if options.rejoins:
            world.hooks.on_stopped = self._rejoin
        self._flaps = options.flaps
        if options.flaps:
            world.hooks.on_lease_request = self._flap

    # -- the two phases ------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the nodes, and schedule the faults."""
        options, world = self.options, self.world
        world.leases.claims = options.claims
        founders = 0 if options.discovery or options.claims else 1
        if founders:
            world.enter(self._new())
        for _ in range(options.nodes - founders):
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
            (options.ring_changes, self._change_ring),
            (FORGETS if options.store == "forgetful" else 0, world.leases.forget),
        )
        actions = [what for times, what in kinds for _ in range(times)]
        drawn = [self.dice.uniform(0.1, 0.9) * options.seconds for _ in actions]
        pairs = Random(f"paired faults {options.seed}")
        self.times = move_together(drawn, drawn, options.pairs, pairs)
        for at, what in zip(self.times, actions, strict=True):
            world.later(at, lambda w=what: self._run_unless_healed(w))  # type: ignore[misc]
        network = world.network
        network.delay_s, network.late_s = options.delay_s, options.late_s
        network.loss, network.duplication = options.loss, options.duplication
        network.reordering = options.reordering
        world.leases.slow_s = SLOW_STORE_S if options.store == "slow" else 0.0
        world.leases.failing = FAILING_STORE if options.store == "failing" else 0.0
        self._unfair.begin()

    def heal(self) -> None:
        """Let no fault happen from now on."""
        self.over = True
        self.world.trace.mark(self.world.now, "", "healed")
        self.world.network.calm()
        self._unfair.heal()
        self.world.leases.calm()
        for process in self.world.nodes.values():
            process.paused_until = min(process.paused_until, self.world.now)

    def _run_unless_healed(self, what: Callable[[], object]) -> None:
        if not self.over:
            what()

    def _later(self, longest: float, what: Callable[[], None]) -> None:
        self.world.later(self.dice.uniform(0.05, longest), what)

    def _draw_process(self, fits: Callable[[Process], bool]) -> Process | None:
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
        return self.world.add(name, rate=rate, roles=roles, replica=name in self._hosts)

    def _change_ring(self) -> None:
        """Take a replica into the ring, or out of it, or both."""
        if self.ring is None:
            return
        dice, hosts = self.dice, list(self.ring.hosts)
        spares = [host for host in self._hosts if host not in hosts]
        changes = [change for change in ("add", "replace") if spares]
        change = dice.choice([*changes, *(["remove"] if len(hosts) > 1 else [])] or ["none"])
        if change in ("remove", "replace"):
            hosts.remove(dice.choice(hosts))
        if change in ("add", "replace"):
            hosts.append(dice.choice(spares))
        self.world.trace.mark(self.world.now, "store", f"its replicas: {', '.join(hosts)}")
        self.ring.change(hosts)

    def _enter(self, process: Process) -> None:
        if self.options.discovery:
            if process.running:
                self.world.trace.mark(self.world.now, process.name, "looks for others")
                self.world.discover(process)
            return
        others = [name for name in self.world.nodes if name != process.name]
        seeds = self.dice.sample(others, min(3, len(others)))
        if self.options.claims:
            seeds = list(SEEDS)
        if seeds and process.running:
            self.world.trace.mark(self.world.now, process.name, "joins")
            self.world.enter(process, *seeds)

    def _join(self) -> None:
        self._enter(self._new())

    def _end(self, *, silent: bool) -> None:
        victim = self._draw_process(_has_company)
        if victim is None:
            return
        self.world.trace.mark(self.world.now, victim.name, "vanishes" if silent else "killed")
        self.world.kill(victim.name, silent=silent)
        if self.options.restarts:
            self._later(LONGEST_REST_S, lambda: self.come_back(victim.name))

    def come_back(self, name: str) -> None:
        """Start the next process at this name's address, unless one runs there."""
        if not self.over and not self.world.nodes[name].alive:
            self._enter(self._new(name))

    def _bounce(self) -> None:
        victim = self._draw_process(_has_company)
        if victim is not None:
            self.bounce(victim.name)

    def bounce(self, name: str) -> None:
        """Kill the process at this name, whatever it is doing, and restart it in place."""
        if self.world.nodes[name].alive:
            self.world.trace.mark(self.world.now, name, "is restarted in place")
            self.world.kill(name)
            self.restart(name)

    def _rejoin(self, process: Process) -> None:
        """Let a process that was downed start anew within milliseconds, and join by the members of
        its last view."""
        by = contacts(process.machine.view, ())
        if process.stopped != ev.DOWNED or not by or self.over:
            return

        def start() -> None:
            if self.world.nodes[process.name] is process:
                self.world.kill(process.name)
                self.world.trace.mark(self.world.now, process.name, "rejoins")
                again = self._new(process.name)
                if self.options.discovery:
                    self.world.discover(again)
                    return
                hosts = [Address.parse(seed).host for seed in by]
                seeds = dict.fromkeys((*hosts, *SEEDS)) if self.options.claims else hosts
                founder = SEEDS[0] if self.options.claims else ""
                self.world.enter(again, *seeds, founds=False, founder=founder)

        self.world.later(self.dice.uniform(*BOUNCE_S), start)

    def restart(self, name: str) -> None:
        """Start the next process at this name's address within milliseconds. The former one has
        ended."""
        self.world.later(self.dice.uniform(*BOUNCE_S), lambda: self.come_back(name))

    def _leave(self) -> None:
        victim = self._draw_process(lambda p: p.member and not p.leaving)
        if victim is not None:
            self.world.trace.mark(self.world.now, victim.name, "is asked to leave")
            self.world.leave(victim)

    def _pause(self) -> None:
        victim = self._draw_process(lambda p: p.running)
        if victim is not None:
            seconds = self.dice.uniform(0.0, self.options.pause_s)
            self.world.trace.mark(self.world.now, victim.name, f"pauses for {seconds:.3f} s")
            self.world.pause(victim.name, seconds)

    def _new_epoch(self) -> None:
        victim = self._draw_process(lambda p: p.member)
        if victim is not None:
            self.epoch += 1
            kind = self.dice.choice(ENTITY_TYPES)
            self.world.trace.mark(self.world.now, victim.name, f"sees epoch {self.epoch} of {kind}")
            self.world.deliver(victim, ev.RecordEpochs({kind: self.epoch}))
            self.world.deliver(victim, ev.SetMeta(kind, b"%d" % self.epoch))

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
        """Break links one by one, and mend them one by one."""
        names = sorted(self.world.nodes)
        links = [(a, b) for a in names for b in names if a < b]
        chosen = self.dice.sample(links, self.dice.randint(1, len(links))) if links else []
        for a, b in chosen:
            wall = CutLink(frozenset((a, b)), self.options.rejecting)
            text = f"no link between {a} and {b}"
            self._later(self.options.wall_s, lambda w=wall, s=text: self._raise_unless_healed(w, s))  # type: ignore[misc]

    def _raise_unless_healed(self, wall: Wall, text: str) -> None:
        self._run_unless_healed(lambda: self._wall(wall, text))

    def _flap(self, process: Process) -> None:
        """Let a wall fall soon after a side has requested the lease, and rise again."""
        if self._flaps and not self.over and self.world.network.walls:
            self._flaps -= 1
            wall = self.dice.choice(self.world.network.walls)

            def fall() -> None:
                self.world.trace.mark(self.world.now, "", "the wall falls for a moment")
                self.world.wall_down(wall)
                self._raise_later(wall, "the wall rises again")

            self.world.later(self.dice.uniform(*FLAP_S) / 4, lambda: self._run_unless_healed(fall))

    def _raise_later(self, wall: Wall, text: str) -> None:
        again = self.dice.uniform(*FLAP_S)
        self.world.later(again, lambda: self._run_unless_healed(lambda: self._wall(wall, text)))

    def _wall(self, wall: Wall, text: str) -> None:
        self.world.trace.mark(self.world.now, "", text)
        self.world.wall_up(wall, BREAKING)

        def down() -> None:
            self.world.trace.mark(self.world.now, "", f"no more: {text}")
            self.world.wall_down(wall)

        self._later(self.options.wall_s, lambda: self._run_unless_healed(down))


def _has_company(process: Process) -> bool:
    """True if the process is not alone in its cluster. Without a last member no node could ever
    join."""
    return process.member and len(process.view) > 1
