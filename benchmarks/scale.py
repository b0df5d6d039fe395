"""Measure how membership grows with the cluster, in simulation: 10 to 1,000 nodes.

    join      all nodes join by three seeds within two seconds: until each sees all of them Up
    spread    one node makes a change: until every node has it, by news, and by rounds alone
    quiet     the traffic of a node while nothing happens, and the cost of one change in all

The machines and the codec's sizes equal real nodes'; time is virtual, so every figure but the
wall time is the same on every machine. Checks are off, and states are passed on as objects: only
the first copy of each is encoded, for its size.

    python -m benchmarks.scale [NODES ...]      10 30 100 300 1000 by default
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random

from benchmarks.harness import emit, median
from shardbus.config.settings import ClusterSettings
from shardbus.ids import NodeId
from shardbus.membership import events as ev
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Member, Status
from shardbus.membership.messages import (
    PROTOCOL,
    GossipState,
    GossipStatus,
    Greeting,
    InitAck,
    Message,
    Welcome,
)
from shardbus.simulation.membership.process import Process
from shardbus.simulation.membership.world import GOSSIP_PORT, World
from shardbus.wire.gossip import encode

SIZES = (10, 30, 100, 300, 1000)
SEEDS = 3
SPREADS = 5
JOIN_NODES_MAX = 100
"""Larger clusters are made without the work of joining: it grows faster than the square."""
JOIN_WITHIN_S = 2.0
GREETING = Greeting("test", PROTOCOL, {})
"""The traffic of the nodes of a simulated world."""
QUIET_S = 5.0
LONGEST_S = 120.0
LOOK_EVERY_S = 0.01


class Large(World):
    """Simulate a world of many nodes. `sent`: bytes of all messages so far."""

    def __init__(self, seed: int, settings: ClusterSettings | None = None) -> None:
        super().__init__(seed, settings)
        self.sent = 0
        self.encode, self.decode = self._pack, self._unpack
        self._parcels: dict[bytes, Message] = {}
        self._numbers = count()
        self._sizes: dict[int, tuple[object, int]] = {}

    def _pack(self, message: Message) -> bytes:
        self.sent += self._size(message)
        parcel = b"%d" % next(self._numbers)
        self._parcels[parcel] = message
        return parcel

    def _unpack(self, parcel: bytes) -> Message:
        return self._parcels.pop(parcel)

    def _size(self, message: Message) -> int:
        """Return the encoded size; of states and versions that are sent to many, known from the
        first."""
        match message:
            case GossipState(_, part) | Welcome(part) | GossipStatus(part, _):
                kept = self._sizes.get(id(part))
                if kept is None or kept[0] is not part:
                    if len(self._sizes) > 1000:
                        self._sizes.clear()
                    kept = self._sizes[id(part)] = (part, len(encode(message)))
                return kept[1]
            case _:
                return len(encode(message))

    def until_all(self, done: Callable[[Process], bool]) -> float:
        """Run until the condition holds for every process; return the seconds. A process that
        fulfilled it is checked again only at the end."""
        began = self.now
        waiting = everybody = list(self.nodes.values())
        while waiting:
            assert self.now - began < LONGEST_S, "it takes too long"
            self.run(LOOK_EVERY_S)
            waiting = [p for p in waiting if not done(p)] or [p for p in everybody if not done(p)]
        return self.now - began


def tuned(*, news: bool = True) -> ClusterSettings:
    """Return default settings. Without news, only rounds spread changes."""
    return ClusterSettings() if news else ClusterSettings(news_fanout=0)


def settled(nodes: int, seed: int, settings: ClusterSettings) -> Large:
    """Return a cluster in which all have been Up for a while, without the work of joining."""
    world = Large(seed, settings)
    processes = [world.add(f"n{i:04}") for i in range(nodes)]
    members = {
        p.id: Member(p.id, GOSSIP_PORT, status=Status.UP, up_number=i + 1)
        for i, p in enumerate(processes)
    }
    state = Gossip(dict(sorted(members.items())), frozenset(members)).with_members(processes[0].id)
    state = Gossip(state.members, frozenset(members), clock=state.clock)
    for process in processes:
        sponsor = processes[0] if process is not processes[0] else processes[-1]
        world.deliver(process, ev.JoinSeeds((sponsor.id.address,)))
        world.deliver(process, ev.ControlReceived(sponsor.id, InitAck(GREETING)))
        world.deliver(process, ev.ControlReceived(sponsor.id, Welcome(state)))
    world.run(2.0)
    return world


def spread(world: Large, dice: Random) -> float:
    """Give one node a new epoch; return the seconds until all have it."""
    epoch = int(1000 * world.now)
    world.deliver(dice.choice(list(world.nodes.values())), ev.RecordEpochs({"scale": epoch}))
    taken = world.until_all(lambda p: p.machine.gossip.epochs.get("scale") == epoch)
    world.until_all(lambda p: p.machine.gossip.converged())
    return taken


def joined(nodes: int, seed: int) -> tuple[float, Large]:
    """Let all join by three seeds; return the seconds until each node sees all of them Up, and
    converged."""
    world, dice = Large(seed, tuned()), Random(seed)
    names = [f"n{i:04}" for i in range(nodes)]
    world.enter(world.add(names[0]))
    for name in names[1:]:
        seeds = dice.sample(names[:3], 2) if name not in names[:3] else names[:1]
        at = dice.uniform(0.01, JOIN_WITHIN_S)
        process = world.add(name)
        world.later(at, partial(world.enter, process, *seeds))

    def complete(process: Process) -> bool:
        view = process.machine.view
        return view.converged and [m.status for m in view.members] == [Status.UP] * nodes

    return world.until_all(complete), world


def measure(nodes: int) -> None:
    """Measure one size."""
    began = time.perf_counter()
    seeds = SEEDS if nodes <= 100 else 1
    if nodes <= JOIN_NODES_MAX:
        first, world = joined(nodes, 0)
        emit("scale_join", 1000 * first, "ms", nodes=nodes)
        emit("scale_join_bytes", world.sent / nodes, "bytes per node", nodes=nodes)
    world = settled(nodes, 0, tuned())
    gossip = world.nodes["n0000"].machine.gossip
    state = GossipState(NodeId("n0000", 1, 1), gossip)
    emit("scale_state", len(encode(state)), "bytes", nodes=nodes)
    for news in (True, False):
        taken, cost, quiet = [], [], []
        for seed in range(seeds):
            world, dice = settled(nodes, seed, tuned(news=news)), Random(seed)
            sent, since = world.sent, world.now
            world.run(QUIET_S)
            rate = (world.sent - sent) / (world.now - since)
            quiet.append(rate / nodes)
            for _ in range(SPREADS if nodes <= 100 else 1):
                sent, since = world.sent, world.now
                taken.append(spread(world, dice))
                cost.append((world.sent - sent - rate * (world.now - since)) / nodes)
        by = "news" if news else "rounds"
        most = round(1000 * max(taken))
        emit(f"scale_spread_by_{by}", 1000 * median(taken), "ms", nodes=nodes, most=most)
        emit(f"scale_change_by_{by}", median(cost), "bytes per node", nodes=nodes)
        if news:
            emit("scale_quiet", median(quiet), "bytes per node and second", nodes=nodes)
    emit("scale_wall", time.perf_counter() - began, "s", nodes=nodes)


if __name__ == "__main__":
    for size in map(int, sys.argv[1:] or SIZES):
        measure(size)
