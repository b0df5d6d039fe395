"""The replicas of a store inside the simulated cluster, of which only the reach matters here.

A name reaches the store if it reaches a majority of the ring's replicas: they end with their nodes,
except those of witnesses, which have none. Each node receives each ring a while after it has
changed.

Not here: the rows of a store, and how its ring changes (`simulation.replication`).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from shardbus.membership.downing.electorate import RingVoters
from shardbus.membership.events import SetRing
from shardbus.replication.ring import majority
from shardbus.simulation.membership.process import Process
from shardbus.simulation.membership.world import World, place_of

RECEIVED_WITHIN_S = 2.0
"""Seconds within which a node that runs has received a ring."""


class SimRing:
    """The ring. `hosts`: the names of nodes and witnesses that have its replicas."""

    def __init__(self, world: World, hosts: Sequence[str]) -> None:
        self.world = world
        self.number, self.hosts = 1, tuple(hosts)
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

    def _show(self, process: Process) -> None:
        voters = RingVoters(self.number, tuple(map(place_of, self.hosts)))
        delay = self._dice.uniform(0.0, RECEIVED_WITHIN_S)
        self.world.later(delay, lambda: self.world.deliver(process, SetRing(voters)))
