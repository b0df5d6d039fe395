"""Many seeds of `shardbus simulate`: nothing breaks, and a seed is one history everywhere.

A failing seed prints the command that replays it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from random import Random

import pytest

from shardbus.membership import events as ev
from shardbus.membership.failure.confirmed_death import ProbeOutcome
from shardbus.simulation.membership.faults import PAIR_WITHIN_S, move_together
from shardbus.simulation.membership.leases import SimLeases
from shardbus.simulation.membership.network import CutLink, SimPubSub, partition
from shardbus.simulation.membership.options import STRATEGIES, Options, draw
from shardbus.simulation.membership.run import simulate
from shardbus.simulation.membership.world import World
from shardbus.simulation.timeline import Timeline
from shardbus.simulation.trace import Trace
from tests.markers import long_only, soak_only
from tests.records import replace

ROOT = Path(__file__).resolve().parents[2]
SEEDS, BLOCK = 50, 5
CLI = [sys.executable, "-c", "from shardbus_cli.main import main; main()", "simulate"]


def check(options: Options) -> None:
    outcome = simulate(options)
    assert outcome.broken is None, outcome.report()


@pytest.mark.parametrize("block", [0, *long_only(1), *soak_only(*range(2, SEEDS // BLOCK))])
def test_nothing_breaks(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        check(draw(seed))


@pytest.mark.parametrize("seed", [500, 501, 502, *long_only(503), *soak_only(*range(504, 520))])
def test_nothing_breaks_in_two_halves(seed: int) -> None:
    """Equal splits, with stores of all kinds: the lease decides."""
    halves = draw(seed, nodes=4, strategy="keep-majority")
    check(replace(halves, partitions=2, wall_s=25.0, loss=0.0, restarts=True))


@pytest.mark.parametrize("seeds", [range(600, 601), *soak_only(range(601, 608))], ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_holds_behind_walls(strategy: str, seeds: range) -> None:
    for seed in seeds:
        drawn = draw(seed, strategy=strategy)
        check(replace(drawn, partitions=2, swizzles=1, bounces=1, wall_s=25.0, loss=0.0))


def test_who_must_go_for_a_bad_link_and_loses_its_others_does_not_stay_beside_us() -> None:
    """Two of the links of n4 break, so it must go; the last one breaks before that. Cut off, it
    decides about the split that it sees, long after the lease of the last decision would have run
    out."""
    check(draw(6366, seconds=60.0))


def test_who_is_heard_but_does_not_hear_votes_for_one_side_only() -> None:
    """n4 stands with n1. Of n2 and n3 it hears nothing, but they hear its heartbeats, and counted
    it among theirs."""
    check(draw(13459, seconds=60.0))


@pytest.mark.long
def test_the_last_of_a_side_does_not_wait_for_the_dead() -> None:
    """n5 was to request the lease, and died. n1 had flagged it before, so n1's view does not
    change."""
    check(draw(16323, nodes=6, seconds=60.0, strategy="lease-majority"))


@pytest.mark.parametrize(
    "options",
    [
        draw(179, strategy="lease-majority"),
        *long_only(
            draw(2188, nodes=4, seconds=60.0, strategy="lease-majority"),
            draw(156, nodes=6, seconds=60.0, strategy="keep-majority"),
        ),
    ],
    ids=lambda options: f"seed {options.seed}",
)
def test_a_store_that_granted_a_lease_twice_may_leave_two_sides_in_peace(options: Options) -> None:
    """They have removed each other, and will never agree; who joins one side is not missed by the
    other."""
    check(options)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_nothing_breaks_for_thousands_of_seeds() -> None:
    for seed in range(10_000, 15_000):
        check(draw(seed))


def run_cli(hash_seed: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "cli")])
    return subprocess.run([*CLI, *arguments], env=env, capture_output=True, text=True)


@pytest.mark.long
def test_a_seed_is_the_same_in_every_process_under_every_hash_seed() -> None:
    arguments = ("--seed", "17", "--seeds", "3", "--seconds", "15", "--json")
    first, second = run_cli("0", *arguments), run_cli("4242", *arguments)
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    rows = [json.loads(line) for line in first.stdout.splitlines()]
    assert [row["seed"] for row in rows] == [17, 18, 19]
    assert len({row["digest"] for row in rows}) == 3


def test_the_replay_command_gives_the_same_run() -> None:
    options = draw(23, seconds=15.0)
    once = simulate(options)
    command = options.command().split()
    assert command[:2] == ["shardbus", "simulate"]
    again = run_cli("7", *command[2:], "--json")
    row = json.loads(again.stdout)
    assert row["digest"] == once.digest
    assert row["options"] == json.loads(json.dumps(asdict(options)))  # JSON has no tuples


@pytest.mark.long
def test_jobs_change_nothing_in_what_is_printed() -> None:
    arguments = ("--seeds", "9", "--seconds", "3", "--json")
    alone, together = run_cli("0", *arguments), run_cli("0", *arguments, "--jobs", "3")
    assert together.returncode == 0, together.stderr
    assert len(alone.stdout.splitlines()) == 9
    assert together.stdout == alone.stdout


@pytest.mark.long
def test_a_strategy_can_be_asked_for_and_an_unknown_one_is_refused() -> None:
    run = run_cli("0", "--seeds", "2", "--seconds", "2", "--strategy", "down-all", "--json")
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    assert [row["options"]["strategy"] for row in rows] == ["down-all", "down-all"]
    refused = run_cli("0", "--strategy", "keep-calm")
    assert refused.returncode == 2
    assert "keep-majority" in refused.stderr


def test_without_json_the_sums_are_printed() -> None:
    run = run_cli("1", "--seeds", "2", "--seconds", "5", "--nodes", "3")
    assert run.returncode == 0, run.stderr
    facts = dict(line.split(maxsplit=1) for line in run.stdout.splitlines())
    assert (facts["seeds"], facts["broken"]) == ("2", "0")
    assert int(facts["per_wall_second"]) > 0


def test_seeds_bring_different_faults_and_the_same_ones_each_time() -> None:
    drawn = [draw(seed) for seed in range(200)]
    assert drawn == [draw(seed) for seed in range(200)]
    assert len(set(drawn)) == 200
    names = ("loss", "drift", "pauses", "kills", "one_ways", "cut_links", "restarts", "leaves")
    names += (
        "pairs",
        "flaps",
        "bounces",
        "swizzles",
        "margin_s",
        "role",
        "quorum",
        "weakly_up",
        "down_if_alone",
    )
    for name in names:
        assert {bool(getattr(options, name)) for options in drawn} == {True, False}
    assert {options.strategy for options in drawn} == set(STRATEGIES)
    sizes = {(o.quorum > o.nodes // 2) for o in drawn if o.strategy == "static-quorum"}
    assert sizes == {True, False}
    assert {options.min_members > 1 for options in drawn} == {True, False}
    assert {options.store for options in drawn} == {"sound", "slow", "failing", "forgetful"}
    assert 10 < sum(options.gentle for options in drawn) < 180
    five, nine = asdict(draw(5)), asdict(draw(5, nodes=9))
    assert {name for name in five if five[name] != nine[name]} <= {"nodes", "quorum", "min_members"}


def test_pairs_of_faults_coincide_and_none_is_added() -> None:
    times = [3.0, 9.0, 15.0, 21.0]
    moved = [move_together(times, [50.0], 4, Random(seed)) for seed in range(50)]
    assert all(len(row) == len(times) for row in moved)
    near = [sum(abs(at - 50.0) <= PAIR_WITHIN_S for at in row) for row in moved]
    assert min(near) >= 1
    assert max(near) >= 3
    assert move_together(times, [10.0], 0, Random(1)) == times
    assert move_together(times, [], 4, Random(1)) == times


# -- the parts -----------------------------------------------------------------------------------


def test_things_at_one_time_happen_in_the_order_in_which_they_were_asked_for() -> None:
    timeline, seen = Timeline(10.0), []
    for name in "abc":
        timeline.later(1.0, lambda name=name: seen.append((name, timeline.now)))
    timeline.run(0.5)
    assert (seen, timeline.now) == ([], 10.5)
    timeline.run(1.0)
    assert seen == [("a", 11.0), ("b", 11.0), ("c", 11.0)]
    assert timeline.empty


def test_walls_stand_where_they_are_put() -> None:
    network = SimPubSub(Random(1))
    network.walls = [partition(["a"], ["b"], one_way=True)]
    assert (network.walled("a", "b"), network.walled("b", "a")) == (True, False)
    assert network.severed("b", "a")
    network.walls = [CutLink(frozenset("ab"), rejecting=True), partition(["c"], ["a", "b"])]
    assert network.rejects("a", "b")
    assert not network.rejects("a", "c")
    assert network.walled("c", "newcomer")
    network.calm()
    assert not network.walled("a", "b")


@pytest.mark.parametrize(
    ("fate", "outcome"),
    [("lives", "other"), ("sleeps", "open"), ("vanished", "unknown"), ("died", "refused")],
)
def test_a_probe_of_a_former_process_is_answered_by_its_successor_if_that_answers(
    fate: str, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(1)
    prober, former = world.add("a"), world.add("b")
    world.kill("b")
    world.add("b")
    if fate == "sleeps":
        world.pause("b", 5.0)
    elif fate != "lives":
        world.kill("b", silent=fate == "vanished")
    events: list[ev.Event] = []

    def asks(event: ev.Event, now: float) -> list[ev.Effect]:
        events.append(event)
        return [ev.Probe(former.id)] if event == ev.JoinSelf() else []

    monkeypatch.setattr(prober.machine, "handle", asks)
    world.enter(prober)
    world.run(2.0)
    assert events == [ev.JoinSelf(), ev.ProbeResult(former.id, ProbeOutcome(outcome))]


def test_the_network_loses_repeats_and_delays_its_part() -> None:
    network = SimPubSub(Random(1))
    assert len(network.copies()) == 1
    network.loss, network.duplication, network.reordering = 0.2, 0.2, 0.2
    copies = [network.copies() for _ in range(1000)]
    assert {len(delays) for delays in copies} == {0, 1, 2}
    assert 100 < sum(not delays for delays in copies) < 300
    assert 50 < sum(max(delays, default=0.0) > network.delay_s for delays in copies) < 350


def test_a_lease_has_one_owner_until_it_ends_or_is_forgotten() -> None:
    leases = SimLeases(Random(1))
    assert leases.acquire("x", "a", 20.0, 0.0) is True
    assert leases.acquire("x", "b", 20.0, 19.0) is False
    assert leases.acquire("x", "a", 20.0, 19.0) is True
    assert leases.acquire("x", "b", 20.0, 40.0) is True
    assert not leases.twice
    leases.forget()
    assert leases.acquire("x", "a", 20.0, 41.0) is True
    assert leases.twice
    leases.up = False
    assert leases.acquire("x", "a", 20.0, 42.0) is None


def test_lanes_show_who_said_what_to_whom() -> None:
    trace = Trace()
    trace.arrow(1.0, "n1", "n2", "GossipState")
    trace.arrow(2.0, "n2", "n1", "GossipSeen", "lost")
    trace.arrow(2.5, "n1", "n2", "Heartbeat")
    trace.mark(3.0, "n2", "stopped: downed")
    trace.mark(4.0, "", "healed")
    assert trace.lanes(10) == [
        "          n1              n2",
        "   1.000  o─GossipState───>",
        "   2.000  x╌GossipSeen╌╌╌╌o  lost",
        "   3.000                  * stopped: downed",
        "   4.000  == healed",
    ]


@pytest.mark.parametrize(
    "seeds", [range(700, 701), *long_only(range(701, 703)), *soak_only(range(703, 716))], ids=str
)
def test_nodes_that_start_at_once_form_one_cluster(seeds: range) -> None:
    """They find each other by the store, while walls rise and founders are killed and paused."""
    for seed in seeds:
        drawn = draw(seed)
        store = "slow" if drawn.store == "forgetful" else drawn.store
        check(replace(drawn, discovery=True, store=store, nodes=max(3, drawn.nodes)))


@pytest.mark.parametrize(
    "seeds", [range(740, 741), *long_only(range(741, 743)), *soak_only(range(743, 760))], ids=str
)
def test_seeds_that_restart_at_any_moment_leave_one_cluster(seeds: range) -> None:
    """All nodes have the same two seeds; nodes are killed, the seeds among them, and come back."""
    for seed in seeds:
        drawn = draw(seed)
        store = "slow" if drawn.store == "forgetful" else drawn.store
        faults = {"kills": 3, "bounces": 2, "restarts": True, "nodes": max(4, drawn.nodes)}
        check(replace(drawn, claims=True, store=store, **faults))


@pytest.mark.parametrize("seed", [720, *long_only(721), *soak_only(*range(722, 730))])
def test_a_wall_while_the_cluster_is_founded_leaves_one(seed: int) -> None:
    drawn = replace(draw(seed, nodes=5), discovery=True, store="sound", seconds=10.0)
    check(replace(drawn, partitions=2, one_ways=1, wall_s=8.0, pauses=2, pause_s=20.0))
