"""The replicas of a store inside the simulated cluster, of which only the reach matters here.

A name reaches the store if it reaches a majority of the ring's replicas: they end with their nodes,
except those of witnesses, which have none. Each node receives each ring a while after it has
changed.

**Repair.** With `repair_after`, a host that its ring has missed for that long gives way to a spare,
as the replicas decide it (`replication.ring_repair`). Two rules hold for each of these changes:

    repair majority    the host that decides reaches a majority before, and afterwards
    repair sight       no host that it reaches has reached the lost one of late

Not here: the rows of a store, and how its ring changes (`simulation.replication`).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from shardbus.membership.downing.electorate import RingVoters
from shardbus.membership.events import SetRing
from shardbus.replication.ring import ReplicaRing, RingMember, majority
from shardbus.replication.ring_repair import GivesWay, Sight, ring_repair
from shardbus.simulation.membership.checks import Violation
from shardbus.simulation.membership.process import Process
from shardbus.simulation.membership.world import World, place_of

RECEIVED_WITHIN_S = 2.0
"""Seconds within which a node that runs has received a ring."""
REPORT_S = 1.0
"""Between two reports of a replica."""


class SimRing:
    """The ring. `hosts`: the names of nodes and witnesses that have its replicas; `replicas`: with
    these the names of the spares. `repair_after`: seconds, 0 for never."""

    def __init__(
        self,
        world: World,
        hosts: Sequence[str],
        replicas: Sequence[str] = (),
        repair_after: float = 0.0,
    ) -> None:
        self.world = world
        self.number, self.hosts = 1, tuple(hosts)
        self.repairs = 0
        """The hosts that gave way to spares."""
        self._replicas, self._after = tuple(replicas), repair_after
        self._seen_at: dict[tuple[str, object, str], float] = {}
        """When a host, in one run, has reached another one last, or missed it first."""
        if repair_after:
            world.later(REPORT_S, self._report)
        self._dice = Random(f"ring {len(self.hosts)}")
        world.leases.reaches = self.reached_by
        world.hooks.on_added = self._show

    def change(self, hosts: Sequence[str]) -> None:
        """Let the next ring have these hosts."""
        self.number, self.hosts = self.number + 1, tuple(hosts)
        for process in self.world.running():
            self._show(process)

    def reached_by(self, name: str) -> bool:
        """True if this name reaches a majority of the replicas."""
        return sum(self._reaches(name, host) for host in self.hosts) >= majority(len(self.hosts))

    def _reaches(self, name: str, host: str) -> bool:
        process, network = self.world.nodes.get(host), self.world.network
        if process is not None and not process.alive:
            return False
        return name == host or not (network.walled(name, host) or network.walled(host, name))

    # -- repair

    def _report(self) -> None:
        """Let each host look for the others, and decide."""
        self.world.later(REPORT_S, self._report)
        here = [host for host in self.hosts if self._runs(host)]
        for host in here:
            for other in self.hosts:
                key = host, self._run(host), other
                if self._reaches(host, other) or key not in self._seen_at:
                    self._seen_at[key] = self.world.now
        for host in here:
            decision = self._decided(host)
            if isinstance(decision, GivesWay):
                self._replace(host, decision.lost.address, decision.spare.address)
                return

    def _decided(self, host: str) -> object:
        members = tuple(self._member(each) for each in self.hosts)
        reached = [each for each in self.hosts if self._runs(each) and self._reaches(host, each)]
        sights = {self._member(each).disk: self._sight(each) for each in reached}
        spares = [
            self._member(each)
            for each in self._replicas
            if each not in self.hosts and self._runs(each) and self._reaches(host, each)
        ]
        ring = ReplicaRing(self.number, len(members), members)
        return ring_repair(ring, self._member(host).disk, sights, spares, self._after)

    def _sight(self, host: str) -> Sight:
        now, run = self.world.now, self._run(host)
        away = {
            self._member(other).disk: now - self._seen_at.get((host, run, other), now)
            for other in self.hosts
            if other != host
        }
        return Sight(self.number, self.reached_by(host), {d: s for d, s in away.items() if s})

    def _replace(self, host: str, lost: str, spare: str) -> None:
        now = self.world.now
        reached = [each for each in self.hosts if self._runs(each) and self._reaches(host, each)]
        hosts = [each for each in self.hosts if each != lost] + [spare]
        if not self.reached_by(host):
            raise Violation("repair majority", f"{host} decides, and reaches no majority")
        for each in reached:
            if each == lost or now - self._seen_at[each, self._run(each), lost] < self._after:
                raise Violation("repair sight", f"{lost} gives way, and {each} has seen it")
        self.world.trace.mark(now, "store", f"{lost} gives way to {spare}")
        self.repairs += 1
        self.change(hosts)
        if not self.reached_by(host):
            raise Violation("repair majority", f"{host} reaches no majority after {lost} is gone")

    def _runs(self, host: str) -> bool:
        process = self.world.nodes.get(host)
        return host.startswith("w") if process is None else process.alive

    def _run(self, host: str) -> object:
        process = self.world.nodes.get(host)
        return None if process is None else process.id

    def _member(self, host: str) -> RingMember:
        return RingMember(self._replicas.index(host), address=host)

    def _show(self, process: Process) -> None:
        voters = RingVoters(self.number, tuple(map(place_of, self.hosts)))
        delay = self._dice.uniform(0.0, RECEIVED_WITHIN_S)
        self.world.later(delay, lambda: self.world.deliver(process, SetRing(voters)))
