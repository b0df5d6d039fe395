"""Count how often a starved cluster removes a healthy node, with and without self-health,
simulated.

Five nodes at default settings, no message lost, no process dead; the only fault is that
processes get too little processor time:

- single processes stop for 0.5 to 8 s, each about every 30 s,
- whole groups stop together for as long, about every minute: a hypervisor that gives its time away,
- event loops are slow for 10 to 60 s: of each 0.2 to 4 s they work 30 to 90 %.

A removed node returns as a new process 5 s later. The same seeds starve both sides in the
same way. Time is virtual, so a figure is the same on every machine.

    python -m benchmarks.starvation compare [HOURS]     false removals per hour, both sides
    python -m benchmarks.starvation detect [DEATHS]     time to find a silent death, in good health
    python -m benchmarks.starvation starved [DEATHS]    the same among starved observers
    python -m benchmarks.starvation days [SEEDS]        24 h each of mild trouble, all checks on
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

from benchmarks.harness import emit, median, percentile
from shardbus.config.settings import ClusterSettings, FailureDetectorSettings
from shardbus.simulation.membership.options import Options
from shardbus.simulation.membership.process import Process
from shardbus.simulation.membership.run import simulate
from shardbus.simulation.membership.world import World

NODES = 5
HOUR = 3600.0
SHORTEST_S, LONGEST_S = 0.5, 8.0
SINGLE_EVERY_S, GROUP_EVERY_S, SLOW_EVERY_S = 30.0, 60.0, 120.0
SLOW_PHASE_S = (10.0, 60.0)
DUTY, PERIOD_S = (0.3, 0.9), (0.2, 4.0)
BACK_AFTER_S = 5.0
DAY_PAUSES = 4 * 24 * 60


class Starved:
    """Simulate a cluster that is always starved. `removed` counts removed nodes."""

    def __init__(self, seed: int, *, self_health: bool, starve: bool = True) -> None:
        detector = FailureDetectorSettings(self_health=self_health)
        self.world = World(seed, ClusterSettings(failure_detector=detector))
        self.world.hooks.on_step = self._look
        self.dice = Random(f"starvation {seed}")
        self.removed = 0
        self.names = [f"n{i}" for i in range(1, NODES + 1)]
        for name in self.names:
            self._start(name)
            self.world.run(0.5)
        self.world.run(20.0)
        if starve:
            for name in self.names:
                self._again(SINGLE_EVERY_S, partial(self._pause, [name]))
                self._again(SLOW_EVERY_S, partial(self._slow, name))
            self._again(GROUP_EVERY_S, self._pause_group)

    def _start(self, name: str) -> None:
        others = [p.name for p in self.world.running() if p.member]
        self.world.enter(self.world.add(name), *others)

    def _look(self, process: Process) -> None:
        if process.stopped == "downed" and process.refused != ["counted"]:
            process.refused = ["counted"]
            self.removed += 1
            self.world.later(BACK_AFTER_S, lambda: self._start(process.name))

    def _again(self, every: float, what: Callable[[], None]) -> None:
        def happen() -> None:
            what()
            self._again(every, what)

        self.world.later(self.dice.expovariate(1.0 / every), happen)

    def _pause(self, names: list[str]) -> None:
        seconds = self.dice.uniform(SHORTEST_S, LONGEST_S)
        for name in names:
            self.world.pause(name, seconds)

    def _pause_group(self) -> None:
        self._pause(self.dice.sample(self.names, self.dice.randint(2, NODES)))

    def _slow(self, name: str) -> None:
        until = self.world.now + self.dice.uniform(*SLOW_PHASE_S)
        duty, period = self.dice.uniform(*DUTY), self.dice.uniform(*PERIOD_S)

        def stall() -> None:
            if self.world.now < until:
                self.world.pause(name, (1.0 - duty) * period)
                self.world.later(period, stall)

        stall()


def compare(hours: int) -> None:
    """Compare false removals with and without self-health."""
    removed = {True: 0, False: 0}
    for seed in range(hours):
        for self_health in removed:
            cluster = Starved(seed, self_health=self_health)
            cluster.world.run(HOUR)
            removed[self_health] += cluster.removed
        print(f"# hour {seed + 1}: with {removed[True]}, without {removed[False]}", flush=True)
    for self_health, name in ((True, "with_self_health"), (False, "without_self_health")):
        emit(f"false_removals_{name}", removed[self_health] / hours, "1/h", hours=hours)
    emit("ratio", removed[False] / max(1, removed[True]), "x", hours=hours)


def found_after(cluster: Starved) -> float | None:
    """Kill one node silently; return the seconds until the first of the others marks it."""
    world = cluster.world
    victim = world.nodes[cluster.dice.choice(cluster.names)]
    world.run(cluster.dice.uniform(0.0, 60.0))
    if not victim.member or victim.machine.view.unreachable:
        return None
    world.kill(victim.name, silent=True)
    killed = world.now
    others = [p for p in world.running() if p.member and p is not victim]
    while world.now < killed + 120.0:
        world.step()
        if any(victim.id in p.machine.view.unreachable for p in others):
            return world.now - killed
    raise RuntimeError(f"not found within 120 s:\n{world.picture()}")


def detect(deaths: int, *, starve: bool) -> None:
    """Measure the time until a silent death is detected."""
    for self_health in (True, False):
        taken = []
        for seed in range(deaths):
            found_at = found_after(Starved(seed, self_health=self_health, starve=starve))
            taken += [] if found_at is None else [found_at]
        taken.sort()
        side = "with" if self_health else "without"
        for name, value in (
            ("median", median(taken)),
            ("p99", percentile(taken, 0.99)),
            ("max", taken[-1]),
        ):
            emit(f"found_{side}_{name}", value, "s", deaths=len(taken), starved=starve)


def days(seeds: int) -> None:
    """Simulate whole days of stalls up to 2 s, drift and small loss, with every check of the
    simulator: a healthy node that is removed breaks one."""
    mild = Options(seed=0, nodes=NODES, seconds=24 * HOUR, loss=0.01, drift=0.001)
    mild = replace(mild, pauses=DAY_PAUSES, pause_s=2.0, epochs=24, delay_s=0.05)
    for seed in range(seeds):
        outcome = simulate(replace(mild, seed=seed))
        assert mild.gentle
        if outcome.broken:
            print(outcome.report())
        broken = int(outcome.broken is not None)
        emit("days_broken", broken, "rules", seed=seed, seconds=outcome.simulated_s)


def main(command: str, times: int | None) -> None:
    """Run one of the four measurements."""
    match command:
        case "compare":
            compare(times or 20)
        case "detect" | "starved":
            detect(times or 200, starve=command == "starved")
        case "days":
            days(times or 5)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main((sys.argv[1:] or [""])[0], int(sys.argv[2]) if sys.argv[2:] else None)
