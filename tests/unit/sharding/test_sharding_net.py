"""Regions, clients and coordinators in `sharding_net`, over many seeds: the invariants hold.

A failing seed is replayed with `run_seed(SEED, tracing=True)`; its `log` has all that happened.
"""

from __future__ import annotations

import pytest

from shardbus.sharding import events as ev
from tests.markers import long_only
from tests.records import replace
from tests.unit.sharding.sharding_net import SETTINGS, Net

SEEDS = 300
BLOCK = 25


FAULTS = ("kill", "join", "join", "leave", "stall", "stall", "store", "slow", "stop", "stop")
FORGETFUL = ("kill", "join", "leave", "forget", "forget", "stop")


def run_seed(
    seed: int,
    faults: tuple[str, ...] = FAULTS,
    *,
    mail: float = 0.0,
    tracing: bool = False,
    homes: str = "ask",
    calls: float = 0.0,
) -> Net:
    """Nodes and clients send for fourteen seconds while faults happen; then there is quiet."""
    hurry = {"begin_handoff_timeout": 0.02, "handoff_timeout": 0.04} if seed % 3 == 0 else {}
    net = Net(seed, settings=replace(SETTINGS, homes=homes, **hurry))
    net.tracing, net.calls = tracing, calls
    if calls:
        net.work_s = 0.1
    live(net, faults, (1, 7), mail)
    net.run_to(60)
    net.check_quiet()
    return net


def live(net: Net, faults: tuple[str, ...], count: tuple[int, int], mail: float) -> None:
    """Plan nodes and clients, fourteen seconds of messages, and as many faults as lie within
    `count`. `mail`: see `Net.leaving_mail`."""
    if mail:
        net.leaving_mail, net.work_s = mail, 0.15
    dice = net.dice
    for _ in range(dice.randint(2, 4)):
        net.add_node()
    for _ in range(dice.randint(1, 2)):
        net.add_client()
    for _ in range(dice.randint(*count)):
        net.at(dice.uniform(0.5, 12), lambda: fault(net, dice.choice(faults)))
    for _ in range(30):
        net.at(dice.uniform(0.5, 14), lambda: stall(net, dice.uniform(0.05, 0.6)))
    for _ in range(250):
        net.at(dice.uniform(0, 14), lambda: chatter(net))


def chatter(net: Net) -> None:
    """Send a few messages in a row."""
    process = net.dice.choice(list(net.processes.values()))
    entity = f"e{net.dice.randrange(5)}"
    for index in range(net.dice.randint(1, 6)):
        net.at(net.now + 0.05 * index, lambda: net.tell(process, "a", entity))


def stall(net: Net, seconds: float) -> None:
    """A link between two processes is slow for so long."""
    everybody = list(net.processes.values())
    net.stall(net.dice.choice(everybody).me, net.dice.choice(everybody).me, seconds)


def fault(net: Net, what: str) -> None:
    """One of the things that happen."""
    live = net.staying()
    if what in ("kill", "leave") and len(live) > 1:
        (net.kill if what == "kill" else net.leave)(net.dice.choice(live))
    elif what == "join":
        net.add_node()
    elif what == "stall":
        stall(net, net.dice.uniform(0.5, 4))
    elif what == "stop":
        shards = tuple(net.dice.sample([str(shard) for shard in range(net.shards)], 4))
        for process in live:
            process.into_coordinator(ev.StopShards(shards))
    elif what == "store":
        net.store.failing_until = net.now + net.dice.uniform(0.5, 4)
    elif what == "forget":
        net.store.forget()
    elif what == "slow":
        net.store.slow = net.dice.choice([1.0, 20.0])


def check_seeds(
    seeds: range, faults: tuple[str, ...], homes: str = "ask", calls: float = 0.0
) -> None:
    for seed in seeds:
        try:
            run_seed(seed, faults, homes=homes, calls=calls)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("block", [0, 1, 2, *long_only(*range(3, SEEDS // BLOCK))])
def test_what_must_hold_holds(block: int) -> None:
    check_seeds(range(block * BLOCK, (block + 1) * BLOCK), FAULTS)


@pytest.mark.parametrize("block", [0, 1, *long_only(*range(2, SEEDS // BLOCK))])
@pytest.mark.parametrize("calls", [0.6, 1.0])
def test_it_holds_while_shards_take_calls_until_they_have_left(block: int, calls: float) -> None:
    check_seeds(range(5000 + block * BLOCK, 5000 + (block + 1) * BLOCK), FAULTS, calls=calls)


@pytest.mark.parametrize("block", [0, *long_only(1, 2, 3)])
def test_S3_45_what_must_hold_holds_if_homes_travel_by_gossip(block: int) -> None:
    check_seeds(range(3000 + 15 * block, 3015 + 15 * block), FAULTS, "gossip")


def test_a_store_that_loses_its_memory_is_rebuilt_from_the_regions() -> None:
    check_seeds(range(1000, 1060), FORGETFUL)
