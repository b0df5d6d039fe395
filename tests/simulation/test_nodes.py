"""Whole nodes in the simulator: nothing breaks, a seed is one history, and its parts work as named.

A failing seed prints the command that replays it.
"""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import pytest

from shardbus.config.settings import ClusterSettings
from shardbus.entities.mailboxes import MailboxLimits
from shardbus.errors import StaleEpoch, StoreUnavailable
from shardbus.ids import Address, NodeId
from shardbus.membership.events import RecordEpochs
from shardbus.simulation.membership.checks import Checks, Violation
from shardbus.simulation.membership.network import SimPubSub, partition
from shardbus.simulation.membership.options import Options
from shardbus.simulation.membership.troubles import NodeTrouble
from shardbus.simulation.nodes.application import KEPT, PLAIN, REMEMBERED, SimApplication, SimSender
from shardbus.simulation.nodes.checker import DeliveryChecker
from shardbus.simulation.nodes.network import HEARTBEAT_S, SimExchange, SimNetwork
from shardbus.simulation.nodes.options import NodeOptions, draw_node_options
from shardbus.simulation.nodes.run import NodeRun, simulate_nodes
from shardbus.simulation.nodes.stores import PROBE_S, SimStore, StoreServer
from shardbus.simulation.nodes.world import NodeWorld
from shardbus.simulation.timeline import ProcessClock, Timeline
from shardbus.simulation.virtual_loop import VirtualLoop
from shardbus.transport import fragments, link
from shardbus.transport.network import SendResult
from tests.markers import long_only, soak_only
from tests.records import replace
from tests.simulation.test_seeds import run_cli

SEEDS, BLOCK, SECONDS = 20, 4, 12.0
SMOOTH: dict[str, Any] = {
    "rolls": 0, "downs": 0, "hangs": 0, "room": 0, "slow_starts": 0.0, "failing_starts": 0.0,
}  # fmt: skip
"""Runs that once broke something had none of these."""

ENDS = (
    "handled", "refused", "unsure", "lost_with_their_sender", "lost_with_another",
    "counted_as_dropped",
)  # fmt: skip
"""The ends of a message: each has one."""


@pytest.mark.parametrize("block", [0, *long_only(1), *soak_only(*range(2, SEEDS // BLOCK))])
def test_nothing_breaks(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        outcome = simulate_nodes(draw_node_options(seed, seconds=SECONDS))
        assert outcome.broken is None, outcome.report()
        assert outcome.counts["letters"] == sum(outcome.counts[end] for end in ENDS)


@pytest.mark.long
def test_nothing_breaks_with_tiny_mailboxes_and_batches_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Links hold frames back, and batches pass each other, all the time."""
    for module in (fragments, link):
        monkeypatch.setattr(module, "LARGE_WEIGHT", 600)
    monkeypatch.setattr(fragments, "PART_BYTES", 200)
    pauses, pause = [], MailboxLimits.pause

    def counted(self: MailboxLimits, held: Any) -> None:
        pauses.append(held)
        pause(self, held)

    monkeypatch.setattr(MailboxLimits, "pause", counted)
    for seed in range(5):
        outcome = simulate_nodes(
            replace(draw_node_options(seed, seconds=SECONDS), mailbox=2, cuts=12)
        )
        assert outcome.broken is None, outcome.report()
    assert len(pauses) > 10


@pytest.mark.long
def test_a_wall_that_refuses_a_client_does_not_make_a_member_dead() -> None:
    """It was once: in this run the client is refused after the last news of who is a member."""
    load = draw_node_options(
        5017, nodes=7, seconds=20.0, strategy="lease-majority", density="thin", splits=False
    )
    load = replace(load, sleeps=0, **SMOOTH)
    outcome = simulate_nodes(load)
    assert outcome.broken is None, outcome.report()


@pytest.mark.long
def test_two_late_moves_in_a_row_do_not_wait_for_each_other() -> None:
    """In this run each of two former homes once kept the other's Flush behind its own."""
    outcome = simulate_nodes(
        replace(draw_node_options(4, seconds=12.0, density="dense", splits=False), **SMOOTH)
    )
    assert outcome.broken is None, outcome.report()


@pytest.mark.long
def test_what_a_broken_link_gives_back_during_a_move_does_not_go_behind_what_came_later() -> None:
    """In this run a node that leaves drops a link while somebody flushes towards it."""
    load = draw_node_options(64, seconds=12.0, splits=False)
    walls = {"leaves": 2, "partitions": 2, "one_ways": 2, "wall_s": 25.0}
    faults = replace(load.faults, strategy="keep-majority", nodes=5, **walls)
    outcome = simulate_nodes(replace(load, faults=faults, sleeps=0, **SMOOTH))
    assert outcome.broken is None, outcome.report()


@pytest.mark.long
def test_what_a_coordinator_did_that_was_removed_in_its_sleep_does_not_last() -> None:
    """It woke, took the table for a few seconds, and went; the other one had nothing to write and
    never received that its shards were fenced."""
    load = draw_node_options(
        5, nodes=5, seconds=45.0, strategy="keep-majority", density="thin", splits=False
    )
    faults = replace(load.faults, pauses=4, pause_s=40.0, one_ways=0, swizzles=0)
    load = replace(load, every_s=0.1, store="slow", clients=2, faults=faults, **SMOOTH)
    outcome = simulate_nodes(load)
    assert outcome.broken is None, outcome.report()


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_nothing_breaks_for_thousands_of_seeds() -> None:
    for seed in range(10_000, 12_000):
        outcome = simulate_nodes(draw_node_options(seed))
        assert outcome.broken is None, outcome.report()


def test_a_calm_run_loses_nothing_and_does_what_it_is_for() -> None:
    run = NodeRun(NodeOptions(Options(seed=1, nodes=3, seconds=10.0), clients=1))
    outcome = run.run()
    assert outcome.broken is None, outcome.report()
    checker = run.checker
    assert checker.sent == checker.handled > 100
    assert {kind for kind, _ in checker.acknowledged} == {REMEMBERED}
    assert {kind for kind, _ in checker.saved} == {KEPT}
    assert outcome.survivors == 0  # in the end the whole cluster stops


@pytest.mark.long
def test_a_seed_is_the_same_in_every_process_under_every_hash_seed() -> None:
    """One of the two is thin, the other dense."""
    arguments = ("--sharding", "--seed", "5", "--seeds", "2", "--seconds", "5", "--json")
    first, second = run_cli("0", *arguments), run_cli("4242", *arguments)
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    rows = [json.loads(line) for line in first.stdout.splitlines()]
    assert all("--sharding --load " in row["replay"] for row in rows)
    assert all(row["counts"]["letters"] > 0 for row in rows)


def test_seeds_bring_different_loads() -> None:
    drawn = [draw_node_options(seed) for seed in range(200)]
    assert len(set(drawn)) == 200
    assert {load.store for load in drawn} == {
        "sound", "slow", "failing", "away", "forgetful", "rolled back",
    }  # fmt: skip
    for name in (
        "cuts",
        "stops",
        "services",
        "rebalances",
        "sleeps",
        "hurried",
        "clients",
        "pairs",
        "splits",
        "freezes",
        "blocks",
        "suspends",
        *SMOOTH,
    ):
        assert {bool(getattr(load, name)) for load in drawn} == {True, False}
    assert drawn[5].sharding().allocation == drawn[5].allocation


def test_a_machine_that_was_not_told_to_join_yet_waits_for_nothing_and_may() -> None:
    load = NodeOptions(Options(seed=1, nodes=1))
    application = SimApplication(load)
    world = NodeWorld("x", ClusterSettings(), load.sharding(), application.bus.types)
    application.checker = DeliveryChecker(world)
    world.hooks.on_step = Checks(world).after
    world.add("n1")
    process = world.add("n2")
    world.run(0.1)
    world.pause("n2", 2.0)
    world.enter(process, "n1")
    world.deliver(process, RecordEpochs({"a": 1}))
    world.run(3.0)
    assert process.seeds
    world.close()


# -- the witness ---------------------------------------------------------------------------------


@pytest.fixture
def checker() -> DeliveryChecker:
    load = NodeOptions(Options(seed=1, nodes=1), shards=4)
    application = SimApplication(load)
    return DeliveryChecker(
        NodeWorld("x", ClusterSettings(), load.sharding(), application.bus.types)
    )


class Cell:
    """An activation, as a witness sees one."""

    entity_type, entity_id, shard_id = PLAIN, "e1", "1"

    def __init__(self, fence: int = 1) -> None:
        self.node, self.fence = "n1:7355#0000000000000001", fence


@pytest.mark.parametrize(("again", "why"), [(1, "1 after 2"), (2, "had been handled")])
def test_a_letter_that_comes_twice_or_late_is_a_violation(
    checker: DeliveryChecker, again: int, why: str
) -> None:
    activation: Any = Cell()
    by: Any = None
    for _ in range(3):
        checker.send("s", by, PLAIN, "e1", is_ask=False)
    checker.on_handled(activation, "s", 2)
    with pytest.raises(Violation, match=why) as raised:
        checker.on_handled(activation, "s", again)
    assert raised.value.rule == "I2"
    assert checker.violation is raised.value


# -- the loop ------------------------------------------------------------------------------------


def virtual(timeline: Timeline, **more: Any) -> VirtualLoop:
    return VirtualLoop(timeline, lambda context: None, **more)  # type: ignore[abstract]


def test_coroutines_run_in_virtual_time() -> None:
    timeline, seen = Timeline(10.0), []
    loop = virtual(timeline)

    async def work() -> None:
        await asyncio.sleep(2.0)
        seen.append(("slept", round(loop.time(), 3)))
        try:
            async with asyncio.timeout(1.0):
                await loop.create_future()
        except TimeoutError:
            seen.append(("late", round(loop.time(), 3)))
        done, _ = await asyncio.wait({asyncio.ensure_future(asyncio.sleep(5.0, "x"))})
        seen.append((done.pop().result(), round(loop.time(), 3)))

    loop.create_task(work())
    timeline.run(60.0)
    assert [name for name, _ in seen] == ["slept", "late", "x"]
    assert [at for _, at in seen] == pytest.approx([12.0, 13.0, 18.0], abs=0.01)


def test_a_paused_loop_does_later_what_was_due_and_a_killed_one_never() -> None:
    timeline, seen = Timeline(0.0), []
    loop, dead = virtual(timeline), virtual(timeline)
    for target in (loop, dead):
        target.call_later(1.0, lambda target=target: seen.append(target))
    loop.paused_until = 5.0
    dead.kill()
    timeline.run(4.0)
    assert seen == []
    loop.resume()
    timeline.run(0.5)
    assert seen == [loop]


def test_a_fast_clock_rings_early_for_the_world_and_never_before_its_own_time() -> None:
    timeline, rang = Timeline(100.0), []
    loop = virtual(timeline, clock=ProcessClock(2.0))
    when = loop.time() + 10.0
    loop.call_at(when, lambda: rang.append((timeline.now, loop.time())))
    timeline.run(20.0)
    (world, rang_on) = rang[0]
    assert world == pytest.approx(105.0, abs=0.01)
    assert rang_on >= when


# -- the wires -----------------------------------------------------------------------------------


class Line:
    """A listener at n1 and a connection of n2."""

    def __init__(self) -> None:
        self.timeline = Timeline(0.0)
        self.network = SimPubSub(Random(1))
        self.exchange = SimExchange(self.timeline, self.network, Random(2), lambda name: False)
        self.came: list[list[bytes]] = []
        self.back: list[list[bytes]] = []
        self.ups = self.downs = 0
        here, there = virtual(self.timeline), virtual(self.timeline)
        self.listener = SimNetwork(self.exchange, "n1", here).listen(
            "n1", 7355, "x", self.came.append, lambda reason: None
        )
        self.connection = SimNetwork(self.exchange, "n2", there).connect(
            Address("n1", 7355), self.back.append, self._up, self._down
        )

    def _up(self) -> None:
        self.ups += 1

    def _down(self) -> None:
        self.downs += 1


def test_frames_come_in_order_both_ways_and_what_waits_for_a_connection_too() -> None:
    line = Line()
    line.connection.send(b"h", b"0")
    line.timeline.run(1.0)
    for body in (b"1", b"2", b"3"):
        line.connection.send(b"h", body)
    line.timeline.run(1.0)
    assert [fragments[2] for fragments in line.came] == [b"0", b"1", b"2", b"3"]
    who = line.came[0][0]
    assert line.listener.send(who, b"h", b"answer") is SendResult.TAKEN
    assert line.listener.send(b"nobody", b"h", b"x") is SendResult.UNROUTABLE
    line.timeline.run(1.0)
    assert line.back == [[b"h", b"answer"]]
    assert (line.ups, line.downs) == (1, 0)


@pytest.mark.parametrize(("kind", "arrives"), [("deaf", ["answer"]), ("mute", ["question"])])
def test_a_wall_against_data_holds_frames_in_one_direction_while_the_connection_stands(
    kind: str, arrives: list[str]
) -> None:
    """n1 listens, and is in trouble."""
    line = Line()
    line.connection.send(b"h", b"first")
    line.timeline.run(1.0)
    wall = NodeTrouble(kind, "n1", ("n2",), 0.0, 9.0, ("messages",)).wall()
    assert wall is not None
    line.network.walls.append(wall)
    line.exchange.changed()
    line.connection.send(b"h", b"question")
    line.listener.send(line.came[0][0], b"h", b"answer")
    line.timeline.run(3 * HEARTBEAT_S)
    came = [parts[-1].decode() for parts in (*line.came[1:], *line.back)]
    assert (came, line.ups, line.downs) == (arrives, 1, 0)
    line.network.walls.clear()
    line.exchange.changed()
    line.timeline.run(1.0)
    assert len(line.came) == 2
    assert len(line.back) == 1


@pytest.mark.parametrize(("kind", "breaks"), [("cannot-connect", False), ("cannot-accept", True)])
def test_a_wall_against_connections_breaks_those_of_one_end(kind: str, breaks: bool) -> None:
    """n1 listens, and is in trouble; n2 has connected."""
    line = Line()
    line.timeline.run(1.0)
    wall = NodeTrouble(kind, "n1", ("n2",), 0.0, 9.0, ("messages",)).wall()
    assert wall is not None
    line.network.walls.append(wall)
    line.exchange.changed()
    line.timeline.run(2 * HEARTBEAT_S)
    assert line.connection.up is not breaks
    line.network.walls.clear()
    line.timeline.run(2 * HEARTBEAT_S)
    assert line.connection.up


def test_a_wall_holds_frames_and_then_breaks_the_connection() -> None:
    line = Line()
    line.timeline.run(1.0)
    wall = partition(["n1"], ["n2"])
    line.network.walls.append(wall)
    line.exchange.changed()
    line.connection.send(b"h", b"held")
    line.timeline.run(HEARTBEAT_S / 2)
    assert line.came == []
    line.network.walls.clear()
    line.exchange.changed()
    line.timeline.run(0.1)
    assert [fragments[2] for fragments in line.came] == [b"held"]
    line.network.walls.append(wall)
    line.exchange.changed()
    line.connection.send(b"h", b"lost")
    line.timeline.run(HEARTBEAT_S + 1.0)
    assert line.downs >= 1
    line.network.walls.clear()
    line.timeline.run(2.0)
    assert (line.ups, [fragments[2] for fragments in line.came]) == (2, [b"held"])


def test_a_cut_loses_what_is_under_way_and_the_end_that_connects_comes_back() -> None:
    line = Line()
    line.timeline.run(1.0)
    line.connection.send(b"h", b"lost")
    line.exchange.cut()
    line.timeline.run(2.0)
    line.connection.send(b"h", b"kept")
    line.timeline.run(1.0)
    assert [fragments[2] for fragments in line.came] == [b"kept"]
    assert (line.ups, line.downs) == (2, 1)


def test_one_that_hangs_swallows_what_is_sent_until_it_breaks() -> None:
    line = Line()
    line.timeline.run(1.0)
    line.exchange.hang()
    line.connection.send(b"h", b"there")
    line.listener.send(next(iter(line.listener.here)), b"h", b"back")
    line.timeline.run(HEARTBEAT_S + 1.0)
    assert len(line.came) + len(line.back) < 2
    line.connection.send(b"h", b"kept")
    line.timeline.run(1.0)
    assert line.came[-1][2] == b"kept"
    assert (line.ups, line.downs) == (2, 1)


def test_a_full_connection_takes_no_frame_until_one_has_arrived() -> None:
    line = Line()
    line.timeline.run(1.0)
    line.exchange.room = 2
    who = next(iter(line.listener.here))
    assert [line.connection.send(b"h", b"x") for _ in range(3)] == [True, True, False]
    fates = [line.listener.send(who, b"h", b"x") for _ in range(3)]
    assert fates == [SendResult.TAKEN, SendResult.TAKEN, SendResult.NO_ROOM]
    line.timeline.run(1.0)
    assert line.connection.send(b"h", b"x")
    assert line.listener.send(who, b"h", b"x") is SendResult.TAKEN


def test_the_end_of_a_process_behind_a_wall_is_noticed_late() -> None:
    line = Line()
    line.timeline.run(1.0)
    line.network.walls.append(partition(["n1"], ["n2"]))
    line.exchange.ended("n1", silent=False)
    line.timeline.run(HEARTBEAT_S / 2)
    assert line.downs == 0
    line.timeline.run(HEARTBEAT_S)
    assert line.downs >= 1


# -- the store -----------------------------------------------------------------------------------


def asked(server: StoreServer, timeline: Timeline, *works: Any) -> list[Any]:
    """The answers of the store to one process, one call after the other."""
    loop = virtual(timeline)
    store = SimStore(server, loop, lambda: NodeId("n1", 1, 1))
    heard: list[Any] = []

    async def ask() -> None:
        await store.start()
        for work in works:
            try:
                heard.append(await work(store))
            except (StoreUnavailable, StaleEpoch) as error:
                heard.append(type(error))

    loop.create_task(ask())
    timeline.run(30.0)
    return heard


def test_a_store_that_fails_may_have_done_its_work_and_one_rolled_back_has_lied() -> None:
    timeline = Timeline(0.0)
    server = StoreServer(timeline, Random(3))
    server.failing = 1.0
    claims = [lambda s, n=n: s.claim_epoch("a", n, "crc32/4") for n in range(1, 9)]
    assert set(asked(server, timeline, *claims)) == {StoreUnavailable}
    assert server.data.tables["a"].epoch in range(1, 9)
    server.calm()
    done = server.data.tables["a"].epoch
    server.snapshot()
    assert asked(server, timeline, lambda s: s.claim_epoch("a", 20, "crc32/4"))[0].epoch == 20
    assert not server.lied
    server.roll_back()
    assert (server.lied, server.data.tables["a"].epoch) == (True, done)
    server.up = False
    assert asked(server, timeline, lambda s: s.load_table("a")) == [StoreUnavailable]
    server.up = True
    server.forget()
    assert asked(server, timeline, lambda s: s.load_table("a")) == [None]


@pytest.mark.parametrize("loss", ["forget", "roll_back"])
def test_fences_that_the_store_has_lost_are_raised_again_without_a_message(loss: str) -> None:
    """Every node meets another server, and writes the fences of its entities in memory."""
    load = NodeOptions(Options(seed=1, nodes=2), shards=4, entities=8, every_s=0.05)
    application = SimApplication(load)
    world = NodeWorld("x", ClusterSettings(), load.sharding(), application.bus.types)
    application.checker = DeliveryChecker(world)
    world.enter(world.add("n1"))
    world.enter(world.add("n2"), "n1")
    world.run(5.0)
    world.store.snapshot()
    homes = list(world.sim_nodes.values())
    senders = [SimSender(h.name, h, application, Random(h.name), load) for h in homes]
    world.run(5.0)
    for sender in senders:
        sender.stopped = True
    world.run(5.0)
    fences = {
        (KEPT, i): a.shard.fence
        for home in homes
        for i, a in home.node.regions[KEPT].host.active.items()
    }
    assert len(fences) > 4
    getattr(world.store, loss)()
    assert not any(key[0] == KEPT for key in world.store.data.states)
    world.run(PROBE_S + 1.0)
    stored = {key: s.fence for key, s in world.store.data.states.items() if key[0] == KEPT}
    assert stored == fences
    assert world.defects == []
    world.close()


# -- membership without entities -----------------------------------------------------------------


def test_S1_5_a_node_without_entity_types_is_a_member_like_any_other() -> None:
    """It hosts nothing, comes up, counts as a member, and leaves."""
    load = NodeOptions(Options(seed=1, nodes=1))
    application = SimApplication(load)
    world = NodeWorld("x", ClusterSettings(), load.sharding(), application.bus.types)
    application.checker = DeliveryChecker(world)
    first = world.add("n1")
    world.types = {}
    second = world.add("n2")
    world.enter(first)
    world.enter(second, "n1")
    world.run(5.0)
    assert first.view == second.view == [("n1", "up"), ("n2", "up")]
    assert world.sim_nodes["n2"].node.members.is_up
    assert list(world.sim_nodes["n2"].node.regions) == []
    world.leave(second)
    world.run(10.0)
    assert (second.stopped, first.view) == ("left", [("n1", "up")])
    world.close()
