"""The simulator's world, in the words of the tests of membership.

Every machine is audited after every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from shardbus.config.settings import ClusterSettings, DowningSettings
from shardbus.membership.member import Status
from shardbus.simulation.membership.checks import Checks, content
from shardbus.simulation.membership.network import CutLink, partition
from shardbus.simulation.membership.process import Process as Node
from shardbus.simulation.membership.world import World

__all__ = ["Net", "Node", "content"]


class Net(World):
    """A world with checks. `loss` is the part of published messages that vanish."""

    def __init__(
        self, seed: int, settings: ClusterSettings | None = None, *, loss: float = 0.0
    ) -> None:
        super().__init__(seed, settings)
        self.network.loss = loss
        self.hooks.on_step = Checks(self).after

    def join(self, name: str, *seeds: str, **options: Any) -> Node:
        """Add a node and let it join by these seeds; without any it founds a cluster."""
        node = self.add(name, **options)
        self.enter(node, *seeds)
        return node

    def start(self, n: int, **options: Any) -> list[Node]:
        """A cluster of n nodes, all Up."""
        names = [f"n{i:02}" for i in range(1, n + 1)]
        nodes = [self.join(names[0], **options)]
        nodes += [self.join(name, names[0], **options) for name in names[1:]]
        self.until(lambda: self.agreed(names), 30)
        return nodes

    def partition(self, *sides: Iterable[str], rejecting: bool = False) -> None:
        """Nothing crosses from one side to another."""
        self.wall_up(partition(*sides, rejecting=rejecting))

    @property
    def cut_links(self) -> list[frozenset[str]]:
        """Pairs that do not reach each other."""
        return [wall.ends for wall in self.network.walls if isinstance(wall, CutLink)]

    @cut_links.setter
    def cut_links(self, links: Iterable[Iterable[str]]) -> None:
        for ends in links:
            self.wall_up(CutLink(frozenset(ends)))

    @property
    def store_up(self) -> bool:
        """Whether the store answers."""
        return self.leases.up

    @store_up.setter
    def store_up(self, up: bool) -> None:
        self.leases.up = up

    def heal(self) -> None:
        """No walls any more."""
        self.network.walls.clear()

    def until(self, condition: Callable[[], bool], limit: float) -> float:
        """Let time pass until the condition holds; returns how long that took."""
        began = self.now
        while not condition():
            assert not self.empty, "nothing will ever happen again"
            assert self.now - began <= limit, f"not within {limit} s:\n{self.picture()}"
            self.step()
        return self.now - began

    def agreed(self, names: Sequence[str], status: Status = Status.UP) -> bool:
        """Exactly these nodes run, and each sees exactly these, all in that status."""
        statuses = [(name, status.value) for name in sorted(names)]
        running = self.running()
        return sorted(n.name for n in running) == sorted(names) and all(
            node.view == statuses for node in running
        )


def cut_off_at_the_decision() -> Net:
    """Two of four nodes do not answer. n01 gets the lease, marks them Down, and is cut off before
    anybody hears of it; and the two wake up on the other side."""
    net = Net(1)
    net.start(4)
    asleep = [net.nodes[name] for name in ("n03", "n04")]
    for process in asleep:
        net.pause(process.name, 100.0)
    leader = net.nodes["n01"]
    net.until(lambda: leader.view[2:] == [("n03", "down"), ("n04", "down")], 60.0)
    net.partition(["n01"], ["n02", "n03", "n04"])
    for process in asleep:
        process.paused_until = net.now
    return net


def half_asleep_behind_a_wall(strategy: str) -> Net:
    """Four nodes in two halves. One half sleeps for a minute; the wall stands for ever."""
    net = Net(1, ClusterSettings(downing=DowningSettings(strategy=strategy)))
    net.start(4)
    net.partition(["n01", "n02"], ["n03", "n04"])
    for name in ("n03", "n04"):
        net.pause(name, 60.0)
    return net
