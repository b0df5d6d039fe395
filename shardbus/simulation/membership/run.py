"""A run of one seed, from the first join to the verdict.

Safety: nodes join, faults happen, and `checks` runs after every event. Then all faults are healed,
and liveness is demanded: within `SETTLED_WITHIN` every running process is a member, Up, and sees
exactly the other running ones (I9); dead nodes and nodes that left are gone from every view, and no
other node is (I10); all nodes have the highest epoch that any of them had recorded (I6). It must
stay so for a while. In the end one command stops the whole cluster, and every member ends by
itself.

A store that granted a lease twice leaves two sides that have removed each other. Each of them must
agree within itself.

A run in which every side lost has no node left to demand anything of. A node whose seeds are all
gone, or never joined, waits for ever, and may.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from shardbus.config.settings import ClusterSettings
from shardbus.ids import NodeId
from shardbus.membership import events as ev
from shardbus.membership.member import Status
from shardbus.simulation.membership.checks import Checks, Violation, content
from shardbus.simulation.membership.fairness import Fairness
from shardbus.simulation.membership.faults import Faults
from shardbus.simulation.membership.options import Options
from shardbus.simulation.membership.process import Process
from shardbus.simulation.membership.world import World

SETTLED_WITHIN = 45.0
"""Seconds within which all nodes must agree after the faults, and for which they must then do
so."""
STAYS_FOR = 5.0
STOPS_WITHIN = 2.0
STOPPED_WITHIN = 30.0
"""Seconds that a process needs to stop its work at most, and within which all must have ended."""
CHECK_EVERY_S = 0.25
"""Seconds between two checks of a condition."""
LANES_SHOWN = 60
EVENTS_PER_SECOND_MAX = 500
"""More events per node and simulated second mean that the machines do not come to rest."""


class Drawn(Protocol):
    """The options of a run, of either kind."""

    @property
    def seed(self) -> int: ...
    def lines(self) -> list[str]: ...
    def command(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Broken:
    """A violated rule, and when."""

    rule: str
    detail: str
    at: float
    lanes: tuple[str, ...]
    picture: str


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The outcome of a run. `settled_s`: seconds from healing until all nodes agreed; None if they
    never did. `digest` is equal for equal runs. `counts`: other counts, by name."""

    options: Drawn
    broken: Broken | None
    simulated_s: float
    settled_s: float | None
    survivors: int
    events: int
    digest: str
    counts: Mapping[str, int] = field(default_factory=dict)

    def report(self) -> str:
        """Describe a violation, and how to replay it."""
        if self.broken is None:
            return f"seed {self.options.seed}: nothing is broken"
        broken = self.broken
        lines = [
            f"seed {self.options.seed}, at {broken.at:.3f}: {broken.rule}: {broken.detail}",
            f"replay: {self.options.command()}",
            "options:",
            *(f"  {line}" for line in self.options.lines()),
            "lanes:",
            *(f"  {line}" for line in broken.lanes),
            broken.picture,
        ]
        return "\n".join(lines)


def simulate(options: Options, settings: ClusterSettings | None = None) -> RunOutcome:
    """Run these options, with other settings than theirs if given. Two calls with the same options
    have the same outcome, in any process."""
    world = World(f"world {options.seed}", settings or options.settings())
    checks, fairness = Checks(world, gentle=options.gentle), Fairness(world, options)

    def after(process: Process) -> None:
        checks.after(process)
        fairness.after(process)

    world.hooks.on_step = after
    fairness.begin()
    began = world.now
    broken, settled = None, None
    try:
        settled = _two_phases(world, options)
    except Violation as violation:
        broken = broken_by(world, violation.rule, violation.detail)
    except Exception as raised:
        broken = broken_by(world, "raised", f"{type(raised).__name__}: {raised}")
    return RunOutcome(
        options=options,
        broken=broken,
        simulated_s=world.now - began,
        settled_s=settled,
        survivors=len(members(world)),
        events=world.events,
        digest=world.trace.digest,
    )


def broken_by(world: World, rule: str, detail: str) -> Broken:
    """Return the violation, with the world's state at this moment."""
    lanes = tuple(world.trace.lanes(LANES_SHOWN))
    return Broken(rule, detail, world.now, lanes, world.picture())


def _two_phases(world: World, options: Options) -> float:
    """Run to the end. Return the seconds from healing until all nodes agreed.

    Raises:
        Violation: a rule is broken.
    """
    faults = Faults(world, options)
    faults.begin()
    advance(world, options.seconds)
    faults.heal()
    healed = world.now
    while why := unsettled(world):
        if world.now - healed > SETTLED_WITHIN:
            raise Violation("I9", f"{SETTLED_WITHIN:g} s after the faults: {why}")
        advance(world, CHECK_EVERY_S)
    settled = world.now - healed
    advance(world, STAYS_FOR)
    if why := unsettled(world):
        raise Violation("I9", f"agreed after {settled:g} s, and then not: {why}")
    stop_all(world, options, lambda seconds: advance(world, seconds))
    return settled


def stop_all(world: World, options: Options, run: Callable[[float], None]) -> None:
    """Stop the whole cluster by one command, while messages are lost again.

    Raises:
        Violation: a process does not end, or is downed.
    """
    up = [p for p in members(world) if p.machine.view.status is Status.UP]
    if not up:
        return
    cluster = [p for p in members(world) if up[0].machine.view.member(p.id)]
    world.network.loss, world.stops_within_s = options.loss, STOPS_WITHIN
    world.trace.mark(world.now, up[0].name, "stops the whole cluster")
    world.deliver(up[0], ev.PrepareForShutdown())
    began = world.now
    while waiting := [p for p in cluster if p.running]:
        if world.now - began > STOPPED_WITHIN:
            raise Violation("stop", f"{waiting[0].id} still runs after {STOPPED_WITHIN:g} s")
        run(CHECK_EVERY_S)
    downed = [p for p in cluster if p.stopped != "left"]
    if downed:
        raise Violation("stop", f"{downed[0].id} ended as {downed[0].stopped!r}")


def advance(world: World, seconds: float, check: Callable[[], None] = lambda: None) -> None:
    """Let `seconds` pass, and call `check` after each step.

    Raises:
        Violation: the machines do not come to rest.
    """
    end, bound = world.now + seconds, world.events
    bound += int(EVENTS_PER_SECOND_MAX * max(1.0, seconds) * len(world.nodes))
    world.later(seconds, lambda: None)
    while world.now < end:
        world.step()
        check()
        if world.events > bound:
            raise Violation("I12", "the machines do not come to rest")


def members(world: World) -> list[Process]:
    """Return the processes that take part in a cluster."""
    return [process for process in world.running() if process.member]


def _may_hope(world: World, process: Process) -> bool:
    """True if one of the process's seeds is a member, or it finds those that are."""
    if process.discovers or world.leases.claims:
        return True
    seeds = (world.nodes.get(seed.host) for seed in process.seeds)
    return any(seed is not None and seed.member for seed in seeds)


def _may_work(world: World, present: list[Process]) -> bool:
    """False while too few nodes have joined for any to become Up."""
    ever_up = any(m.up_number for p in present for m in p.machine.view.members)
    return ever_up or len(present) >= world.settings.min_members


def unsettled(world: World) -> str:
    """Return why the cluster has not settled. Empty if it has."""
    present = members(world)
    if not present:
        return ""
    expected = [p for p in world.running() if p.member or _may_hope(world, p)]
    status = Status.UP if _may_work(world, present) else Status.JOINING
    for process in expected:
        if process.leaving:
            return f"{process.id} is still there"
        running = sorted(p.id for p in expected if p is process or not _apart(world, process, p))
        if why := _differs(process, running, status):
            return why
    contents: dict[tuple[NodeId, ...], object] = {}
    for process in present:
        gossip = process.machine.gossip
        if contents.setdefault(tuple(gossip.members), content(gossip)) != content(gossip):
            return "members have different states"
    return ""


def _apart(world: World, a: Process, b: Process) -> bool:
    """True if a store that granted a lease twice has left them in two clusters: a member of one has
    been removed from the other. Nodes that joined later may never have seen each other."""
    return world.leases.twice and (_removes(a, b) or _removes(b, a))


def _removes(a: Process, b: Process) -> bool:
    """True if the cluster of a process has removed the other, or a member of its cluster."""
    removed = a.machine.gossip.tombstones
    return b.id in removed or any(node in removed for node in b.machine.gossip.members)


def _differs(process: Process, running: list[NodeId], status: Status) -> str:
    """Return the fault in the process's view, if these nodes run and have that status. Where too
    few nodes have joined for Up, some may have become WeaklyUp while they were apart."""
    seen = [(m.node, m.status) for m in process.machine.view.members]
    if status is Status.JOINING:
        seen = [(node, status if shown is Status.WEAKLY_UP else shown) for node, shown in seen]
    if seen != [(node, status) for node in running]:
        missing = [str(node) for node in running if (node, status) not in seen]
        extra = [f"{node} {status.value}" for node, status in seen if node not in running]
        return f"{process.id} lacks [{', '.join(missing)}] and still has [{', '.join(extra)}]"
    if process.machine.view.unreachable or not process.machine.view.converged:
        return f"{process.id} has not converged"
    return ""
