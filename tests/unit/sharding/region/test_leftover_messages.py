"""Leftovers of a shard: they go to the next home before everything else, or are rejected."""

from __future__ import annotations

import pytest

from shardbus.config.settings import ShardingSettings
from shardbus.ids import NodeId
from shardbus.sharding import events as ev
from shardbus.sharding import messages as msg
from shardbus.sharding.region.route import REJECT_BUFFER_FULL, REJECT_EXPIRED, REJECT_STOPPED
from shardbus.sharding.region.routing import LEFTOVERS_PATIENCE_S
from tests.markers import long_only
from tests.unit.sharding.coordinator.test_coordinator import CoordinatorDriver
from tests.unit.sharding.coordinator.test_coordinator import ack as acked
from tests.unit.sharding.coordinator.test_coordinator import move as moving
from tests.unit.sharding.region.test_region import (
    ME,
    B,
    C,
    Message,
    RegionDriver,
    home,
    homes,
    released,
    sent,
)
from tests.unit.sharding.test_sharding_net import FAULTS, FORGETFUL, run_seed

SEEDS, BLOCK = 100, 25


def left(*texts: str) -> tuple[Message, ...]:
    return tuple(map(Message, texts))


def stopped(driver: RegionDriver, *leftovers: str) -> list[ev.RegionEffect]:
    """The shard ran here, and stops with this unhandled."""
    driver.host(5)
    driver.receive(msg.BeginHandOff(1, (home(ME, 5),)), msg.HandOff(1, (home(ME, 5),)))
    return driver.handle(ev.ShardDown("1", left(*leftovers)))


def rejected(effects: list[ev.RegionEffect]) -> list[tuple[str, str]]:
    return [
        (effect.message.text, effect.reason)
        for effect in effects
        if isinstance(effect, ev.Reject) and isinstance(effect.message, Message)
    ]


# The old home


def test_leftovers_wait_for_the_next_home_to_ask_and_go_before_everything() -> None:
    driver = RegionDriver()
    effects = stopped(driver, "a", "b")
    assert sent(effects) == [msg.ShardStopped(ME, (home(ME, 5),), ("1",))]
    driver.send("later", via=C)
    assert released(driver.receive(homes(B, 6))) == []
    driver.send("flush of B", via=B)
    effects = driver.receive(msg.PassOn((home(B, 6),)), sender=B)
    assert released(effects) == [(B, ["a", "b", "later", "flush of B"])]
    assert released(driver.send("after that", via=C)) == [(B, ["after that"])]
    assert rejected(driver.wait(2 * LEFTOVERS_PATIENCE_S)) == []


def test_a_home_that_asks_before_it_is_known_here_gets_the_leftovers() -> None:
    driver = RegionDriver()
    stopped(driver, "a")
    assert released(driver.receive(msg.PassOn((home(B, 6),)), sender=B)) == []
    assert released(driver.receive(homes(B, 6))) == [(B, ["a"])]


def test_a_node_cannot_ask_for_leftovers_in_the_name_of_another() -> None:
    driver = RegionDriver()
    stopped(driver, "a")
    driver.receive(homes(B, 6))
    assert released(driver.receive(msg.PassOn((home(B, 6),)), sender=C)) == []
    assert released(driver.receive(msg.PassOn((home(B, 7),)), sender=B)) == []


def test_leftovers_that_no_home_asks_for_are_rejected_and_the_rest_goes_on() -> None:
    driver = RegionDriver()
    stopped(driver, "a")
    driver.send("later", via=C)
    driver.receive(homes(B, 6))
    effects = driver.wait(LEFTOVERS_PATIENCE_S)
    assert rejected(effects) == [("a", REJECT_STOPPED)]
    assert released(effects) == [(B, ["later"])]


@pytest.mark.parametrize("next_home", [C, ME])
def test_leftovers_are_rejected_once_another_home_than_the_first_is_known(
    next_home: NodeId,
) -> None:
    """The first may have let others in."""
    driver = RegionDriver()
    stopped(driver, "a")
    driver.receive(homes(B, 6))
    driver.handle(ev.NodeGone(B))
    assert rejected(driver.receive(homes(next_home, 7))) == [("a", REJECT_STOPPED)]


def test_a_shard_that_comes_back_gets_its_leftovers() -> None:
    driver = RegionDriver()
    stopped(driver, "a")
    driver.send("own")
    driver.receive(msg.HostShard(1, (home(ME, 6),), (home(ME, 5),)))
    effects = driver.handle(ev.ShardReady("1"))
    assert released(effects) == [(ME, ["a", "own"])]
    assert ev.SetArrivals("1", True) in effects


def test_leftovers_are_rejected_if_another_coordinator_brings_the_shard_back() -> None:
    """It may have lived elsewhere, and nobody sent so here."""
    driver = RegionDriver()
    stopped(driver, "a")
    driver.handle(ev.EpochSeen(2))
    effects = driver.receive(msg.HostShard(2, (home(ME, 7),)))
    assert rejected(effects) == [("a", REJECT_STOPPED)]


def test_a_home_that_awaits_leftovers_rejects_its_own_older_ones() -> None:
    driver = RegionDriver()
    stopped(driver, "a")
    effects = driver.receive(msg.HostShard(1, (home(ME, 7),), (home(B, 6),)))
    assert rejected(effects) == [("a", REJECT_STOPPED)]
    assert ev.Send(B, msg.PassOn((home(ME, 7),))) in effects
    driver.handle(ev.ShardReady("1"))
    driver.send("of C, as ever", via=C)
    assert released(driver.send("of B", via=B)) == [(ME, ["of B"])]


def test_leftovers_of_a_shard_with_another_home_are_rejected() -> None:
    driver = RegionDriver()
    driver.host(5)
    driver.receive(homes(B, 6))
    effects = driver.handle(ev.ShardDown("1", left("a")))
    assert rejected(effects) == [("a", REJECT_STOPPED)]
    assert sent(effects) == [msg.ShardStopped(ME, (home(ME, 5),))]


def test_leftovers_count_in_the_buffer() -> None:
    driver = RegionDriver(ShardingSettings(buffer_size=2))
    effects = stopped(driver, "a", "b", "c")
    assert rejected(effects) == [("c", REJECT_BUFFER_FULL)]
    assert driver.region.buffered == (2, 20)


def with_expired_leftovers(*texts: str) -> RegionDriver:
    """A full buffer: leftovers of a shard without a home, an expired ask and these."""
    driver = RegionDriver(ShardingSettings(buffer_size=1 + len(texts)))
    driver.host(5)
    driver.receive(msg.BeginHandOff(1, (home(ME, 5),)), msg.HandOff(1, (home(ME, 5),)))
    driver.handle(ev.ShardDown("1", (Message("asked", expired=True), *left(*texts))))
    driver.handle(ev.Expired(("1",)))
    return driver


def test_S2_65_expired_leftovers_make_room_in_a_full_buffer() -> None:
    driver = with_expired_leftovers("a")
    assert rejected(driver.send("b")) == [("asked", REJECT_EXPIRED)]
    driver.receive(msg.PassOn((home(B, 6),)), sender=B)
    assert released(driver.receive(homes(B, 6))) == [(B, ["a", "b"])]


def test_messages_behind_expired_leftovers_need_no_request() -> None:
    driver = with_expired_leftovers()
    assert rejected(driver.send("b")) == [("asked", REJECT_EXPIRED)]
    driver.receive(msg.PassOn((home(B, 6),)), sender=B)
    assert released(driver.receive(homes(B, 6))) == [(B, ["b"])]


def test_expired_leftovers_that_a_home_may_ask_for_stay() -> None:
    driver = with_expired_leftovers()
    driver.receive(homes(B, 6))
    assert rejected(driver.send("b")) == [("b", REJECT_BUFFER_FULL)]
    effects = driver.receive(msg.PassOn((home(B, 6),)), sender=B)
    assert released(effects) == [(B, ["asked"])]


# The new home


def test_a_home_that_awaits_leftovers_lets_in_nothing_else_before() -> None:
    driver = RegionDriver()
    driver.send("own")
    host = msg.HostShard(1, (home(ME, 6),), (home(B, 5),))
    effects = driver.receive(host)
    flush = next(at for at, e in enumerate(effects) if isinstance(e, ev.SendFlush))
    index = effects.index(ev.Send(B, msg.PassOn((home(ME, 6),))))
    assert flush < index, "the Flush is behind what waits there, and the leftovers goes before it"
    effects = driver.handle(ev.ShardReady("1"))
    assert released(effects) == []
    assert ev.SetArrivals("1", True, via=B) in effects
    driver.send("from C", via=C)
    effects = driver.handle(ev.FlushDone("1", 1))
    assert released(effects) == [(ME, ["own", "from C"])]
    assert ev.SetArrivals("1", True) in effects


def test_an_echo_of_an_earlier_flush_does_not_open_it() -> None:
    driver = RegionDriver()
    driver.receive(homes(B, 5))
    driver.receive(msg.BeginHandOff(1, (home(B, 5),)))
    driver.receive(msg.HostShard(1, (home(ME, 6),), (home(B, 5),)))
    driver.handle(ev.ShardReady("1"))
    driver.send("own")
    assert released(driver.handle(ev.FlushDone("1", 1))) == []
    assert released(driver.handle(ev.FlushDone("1", 2))) == [(ME, ["own"])]


def test_the_death_of_the_old_home_opens_the_next() -> None:
    driver = RegionDriver()
    driver.receive(msg.HostShard(1, (home(ME, 6),), (home(B, 5),)))
    driver.handle(ev.ShardReady("1"))
    driver.send("own")
    assert released(driver.handle(ev.NodeGone(B))) == [(ME, ["own"])]


def test_a_home_that_stops_while_it_awaits_leftovers_has_leftovers_itself() -> None:
    driver = RegionDriver()
    driver.receive(msg.HostShard(1, (home(ME, 6),), (home(B, 5),)))
    driver.handle(ev.ShardReady("1"))
    driver.receive(msg.HandOff(1, (home(ME, 6),)))
    driver.send("on the way", via=B)
    effects = driver.handle(ev.ShardDown("1", left("taken in")))
    assert sent(effects) == [msg.ShardStopped(ME, (home(ME, 6),), ("1",))]
    driver.receive(homes(C, 7))
    effects = driver.receive(msg.PassOn((home(C, 7),)), sender=C)
    assert released(effects) == [(C, ["taken in", "on the way"])]


# The coordinator


def test_only_the_home_right_after_the_old_one_awaits_its_leftovers() -> None:
    driver = CoordinatorDriver(live=(ME,))
    old = moving_out(driver, ("2",))
    hosts = [message for _, message in driver.persisted() if isinstance(message, msg.HostShard)]
    [host] = hosts
    assert host.behind == (old,)
    again = [m for _, m in driver.wait(60) if isinstance(m, msg.HostShard)]
    assert again[0] == host, "a question that is repeated is the same"


def test_a_home_without_leftovers_is_not_awaited() -> None:
    driver = CoordinatorDriver(live=(ME,))
    moving_out(driver, ())
    [host] = [message for _, message in driver.persisted() if isinstance(message, msg.HostShard)]
    assert host.behind == ()


def moving_out(driver: CoordinatorDriver, leftovers: tuple[str, ...]) -> msg.Home:
    """A shard leaves for the balance; it has stopped."""
    old = moving(driver)
    for node in list(driver.coordinator.table.regions):
        acked(driver, node, old)
    driver.handle(ev.MessageReceived(old.node, msg.ShardStopped(old.node, (old,), leftovers)))
    return old


# All of them


@pytest.mark.parametrize("block", [0, *long_only(*range(1, SEEDS // BLOCK))])
@pytest.mark.parametrize("faults", [FAULTS, FORGETFUL], ids=["faults", "forgetful"])
def test_invariants_hold_with_leftovers(block: int, faults: tuple[str, ...]) -> None:
    there = lost = 0
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        try:
            net = run_seed(5000 + seed, faults, mail=0.8)
        except AssertionError as error:
            raise AssertionError(f"seed {5000 + seed}: {error}") from error
        there += net.left
        lost += list(net.rejected.values()).count(REJECT_STOPPED)
    assert there > 2 * lost
    assert there > 100
