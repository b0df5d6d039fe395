"""A rolling update in `sharding_net`: where shards go while nodes of two versions host."""

from __future__ import annotations

import pytest

from shardbus.ids import shard_of
from tests.records import replace
from tests.unit.sharding.sharding_net import SETTINGS, Net
from tests.unit.sharding.sharding_process import Process

OLD, NEW = "1.9.0", "1.10.0"


class Rollout(Net):
    """Remembers every start of a shard; the first nodes run the old version."""

    def __init__(self, seed: int, nodes: int) -> None:
        super().__init__(seed, shards=18, settings=replace(SETTINGS, rebalance_interval=1.0))
        self.starts: dict[str, list[tuple[float, Process]]] = {}
        self.version = OLD
        self.old = [self.add_node() for _ in range(nodes)]
        self.run_to(3)
        self.version = NEW
        self.touch(range(6))
        self.began = self.now

    def touch(self, shards: range) -> None:
        """Send to an entity of each of these."""
        for entity in map(str, range(1000)):
            if int(shard_of(entity, self.shards)) in shards:
                self.tell(self.live()[0], "a", entity)
        self.run_to(self.now + 3)
        assert {str(shard) for shard in shards} <= self.starts.keys()

    def on_start(self, process: Process, shard: str, fence: int) -> None:
        super().on_start(process, shard, fence)
        self.starts.setdefault(shard, []).append((self.now, process))

    def is_new(self, process: Process) -> bool:
        return self.versions[process.me] == NEW

    def moves(self, since: float, until: float) -> dict[str, int]:
        """How often each shard started within that time."""
        return {
            shard: sum(since < at <= until for at, _ in starts)
            for shard, starts in self.starts.items()
        }

    def replace_one(self, old: Process, *, first: str) -> None:
        """A new node starts and an old one leaves, this or that first."""
        if first == "start":
            self.add_node()
            self.run_to(self.now + self.dice.uniform(1, 3))
            self.touch(range(6, self.shards))
        self.leave(old)
        self.run_to(self.now + 6)
        assert not old.shards
        if first == "stop":
            self.add_node()
            self.run_to(self.now + self.dice.uniform(1, 3))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("nodes", [2, 3])
def test_a_rolling_update_moves_each_shard_once_and_then_balances(seed: int, nodes: int) -> None:
    net = Rollout(seed, nodes)
    for old in net.old[:-1]:
        net.replace_one(old, first="start")
    net.add_node()
    net.run_to(net.now + 3)
    last = net.old[-1]
    assert len(last.shards) == 6 // nodes, "none but drains"
    net.leave(last)
    while not last.drained:
        net.run_to(net.now + 0.001)
    assert max(net.moves(net.began, net.now).values()) == 1
    over = net.now
    net.run_to(net.now + 20)
    net.check_quiet()
    assert max(net.moves(over, net.now).values()) <= 1
    counts = [len(process.shards) for process in net.live()]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("seed", range(8))
def test_nodes_that_stop_before_new_ones_start_give_shards_to_old_ones_only_at_first(
    seed: int,
) -> None:
    net = Rollout(seed, 3)
    net.replace_one(net.old[0], first="stop")
    begun = net.now
    net.touch(range(net.shards))
    for old in net.old[1:]:
        net.replace_one(old, first="stop")
    for starts in net.starts.values():
        assert all(net.is_new(process) for at, process in starts if at > begun)
    net.run_to(net.now + 20)
    net.check_quiet()


def test_B65_no_shard_moves_while_versions_differ() -> None:
    net = Rollout(1, 2)
    hosted = {process.name: set(process.shards) for process in net.old}
    net.add_node()
    net.run_to(net.now + 60)
    assert {process.name: set(process.shards) for process in net.old} == hosted
    assert not any(net.moves(net.began, net.now).values())
    net.version = OLD
    net.kill(net.live()[-1])
    net.add_node()
    net.run_to(net.now + 20)
    assert [len(process.shards) for process in net.live()] == [2, 2, 2]
