"""What a shard leaves unhandled: it goes to the next home before everything else, or is refused."""

from __future__ import annotations

import pytest

from shardbus.config.settings import ShardingSettings
from shardbus.ids import NodeId
from shardbus.sharding import events as ev
from shardbus.sharding import messages as msg
from shardbus.sharding.region.route import REJECT_BUFFER_FULL, REJECT_EXPIRED, REJECT_STOPPED
from shardbus.sharding.region.routing import LEFTOVERS_PATIENCE_S
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
    said,
)
from tests.unit.sharding.test_sharding_net import FAULTS, FORGETFUL, run_seed

SEEDS, BLOCK = 100, 25


def left(*texts: str) -> tuple[Message, ...]:
    return tuple(map(Message, texts))


def stopped(driver: RegionDriver, *mail: str) -> list[ev.RegionEffect]:
    """The shard ran here, and stops with this unhandled."""
    driver.host(5)
    driver.receive(msg.BeginHandOff(1, (home(ME, 5),)), msg.HandOff(1, (home(ME, 5),)))
    return driver.handle(ev.ShardDown("1", left(*mail)))


def rejected(effects: list[ev.RegionEffect]) -> list[tuple[str, str]]:
    return [
        (effect.message.text, effect.reason)
        for effect in effects
        if isinstance(effect, ev.Reject) and isinstance(effect.message, Message)
    ]


# The old home


def test_mail_waits_for_the_next_home_to_ask_and_goes_before_everything() -> None:
    driver = RegionDriver()
    effects = stopped(driver, "a", "b")
    assert said(effects) == [msg.ShardStopped(ME, (home(ME, 5),), ("1",))]
    driver.send("later", via=C)
    assert released(driver.receive(homes(B, 6))) == []
    driver.send("flush of B", via=B)
    effects = driver.receive(msg.PassOn((home(B, 6),)), sender=B)
    assert released(effects) == [(B, ["a", "b", "later", "flush of B"])]
    assert released(driver.send("after that", via=C)) == [(B, ["after that"])]
    assert rejected(driver.wait(2 * LEFTOVERS_PATIENCE_S)) == []


def test_a_home_that_asks_before_it_is_known_here_is_remembered() -> None:
    driver = RegionDriver()
    stopped(driver, "a")
    assert released(driver.receive(msg.PassOn((home(B, 6),)), sender=B)) == []
    assert released(driver.receive(homes(B, 6))) == [(B, ["a"])]


def test_nobody_asks_for_another() -> None:
    driver = RegionDriver()
    stopped(driver, "a")
    driver.receive(homes(B, 6))
    assert released(driver.receive(msg.PassOn((home(B, 6),)), sender=C)) == []
    assert released(driver.receive(msg.PassOn((home(B, 7),)), sender=B)) == []


def test_mail_for_which_nobody_asks_is_refused_and_the_rest_goes_on() -> None:
    driver = RegionDriver()
    stopped(driver, "a")
    driver.send("later", via=C)
    driver.receive(homes(B, 6))
    effects = driver.wait(LEFTOVERS_PATIENCE_S)
    assert rejected(effects) == [("a", REJECT_STOPPED)]
    assert released(effects) == [(B, ["later"])]


@pytest.mark.parametrize("next_home", [C, ME])
def test_mail_is_refused_once_another_home_than_the_first_is_known(next_home: NodeId) -> None:
    """The first may have let others in."""
    driver = RegionDriver()
    stopped(driver, "a")
    driver.receive(homes(B, 6))
    driver.handle(ev.NodeGone(B))
    assert rejected(driver.receive(homes(next_home, 7))) == [("a", REJECT_STOPPED)]


def test_a_shard_that_comes_back_finds_its_mail() -> None:
    driver = RegionDriver()
    stopped(driver, "a")
    driver.send("own")
    driver.receive(msg.HostShard(1, (home(ME, 6),), (home(ME, 5),)))
    effects = driver.handle(ev.ShardReady("1"))
    assert released(effects) == [(ME, ["a", "own"])]
    assert ev.SetArrivals("1", True) in effects


def test_mail_is_refused_if_another_coordinator_brings_the_shard_back() -> None:
    """It may have lived elsewhere, and nobody said so here."""
    driver = RegionDriver()
    stopped(driver, "a")
    driver.handle(ev.EpochSeen(2))
    effects = driver.receive(msg.HostShard(2, (home(ME, 7),)))
    assert rejected(effects) == [("a", REJECT_STOPPED)]


def test_who_comes_back_behind_anothers_mail_has_none_of_its_own() -> None:
    driver = RegionDriver()
    stopped(driver, "a")
    effects = driver.receive(msg.HostShard(1, (home(ME, 7),), (home(B, 6),)))
    assert rejected(effects) == [("a", REJECT_STOPPED)]
    assert ev.Send(B, msg.PassOn((home(ME, 7),))) in effects
    driver.handle(ev.ShardReady("1"))
    driver.send("of C, as ever", via=C)
    assert released(driver.send("of B", via=B)) == [(ME, ["of B"])]


def test_mail_of_a_shard_that_lives_elsewhere_already_comes_too_late() -> None:
    driver = RegionDriver()
    driver.host(5)
    driver.receive(homes(B, 6))
    effects = driver.handle(ev.ShardDown("1", left("a")))
    assert rejected(effects) == [("a", REJECT_STOPPED)]
    assert said(effects) == [msg.ShardStopped(ME, (home(ME, 5),))]


def test_mail_counts_in_the_buffer() -> None:
    driver = RegionDriver(ShardingSettings(buffer_size=2))
    effects = stopped(driver, "a", "b", "c")
    assert rejected(effects) == [("c", REJECT_BUFFER_FULL)]
    assert driver.region.buffered == (2, 20)


def with_mail_of_nobody(*texts: str) -> RegionDriver:
    """A full buffer: an ask that has expired, in the mail of a shard without a home, and these."""
    driver = RegionDriver(ShardingSettings(buffer_size=1 + len(texts)))
    driver.host(5)
    driver.receive(msg.BeginHandOff(1, (home(ME, 5),)), msg.HandOff(1, (home(ME, 5),)))
    driver.handle(ev.ShardDown("1", (Message("asked", expired=True), *left(*texts))))
    driver.handle(ev.Expired(("1",)))
    return driver


def test_S2_65_mail_that_has_expired_leaves_where_there_is_no_room() -> None:
    driver = with_mail_of_nobody("a")
    assert rejected(driver.send("b")) == [("asked", REJECT_EXPIRED)]
    driver.receive(msg.PassOn((home(B, 6),)), sender=B)
    assert released(driver.receive(homes(B, 6))) == [(B, ["a", "b"])]


def test_where_all_mail_has_expired_what_waits_needs_nobody_to_ask_for_it() -> None:
    driver = with_mail_of_nobody()
    assert rejected(driver.send("b")) == [("asked", REJECT_EXPIRED)]
    driver.receive(msg.PassOn((home(B, 6),)), sender=B)
    assert released(driver.receive(homes(B, 6))) == [(B, ["b"])]


def test_mail_that_a_home_may_ask_for_stays_though_it_has_expired() -> None:
    driver = with_mail_of_nobody()
    driver.receive(homes(B, 6))
    assert rejected(driver.send("b")) == [("b", REJECT_BUFFER_FULL)]
    effects = driver.receive(msg.PassOn((home(B, 6),)), sender=B)
    assert released(effects) == [(B, ["asked"])]


# The new home


def test_a_home_behind_mail_lets_in_nothing_else_before() -> None:
    driver = RegionDriver()
    driver.send("own")
    host = msg.HostShard(1, (home(ME, 6),), (home(B, 5),))
    effects = driver.receive(host)
    flush = next(at for at, e in enumerate(effects) if isinstance(e, ev.SendFlush))
    asked = effects.index(ev.Send(B, msg.PassOn((home(ME, 6),))))
    assert flush < asked, "the Flush is behind what waits there, and the mail goes before it"
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


def test_when_the_old_home_dies_nothing_is_waited_for() -> None:
    driver = RegionDriver()
    driver.receive(msg.HostShard(1, (home(ME, 6),), (home(B, 5),)))
    driver.handle(ev.ShardReady("1"))
    driver.send("own")
    assert released(driver.handle(ev.NodeGone(B))) == [(ME, ["own"])]


def test_who_stops_while_mail_is_on_the_way_has_mail_itself() -> None:
    driver = RegionDriver()
    driver.receive(msg.HostShard(1, (home(ME, 6),), (home(B, 5),)))
    driver.handle(ev.ShardReady("1"))
    driver.receive(msg.HandOff(1, (home(ME, 6),)))
    driver.send("on the way", via=B)
    effects = driver.handle(ev.ShardDown("1", left("taken in")))
    assert said(effects) == [msg.ShardStopped(ME, (home(ME, 6),), ("1",))]
    driver.receive(homes(C, 7))
    effects = driver.receive(msg.PassOn((home(C, 7),)), sender=C)
    assert released(effects) == [(C, ["taken in", "on the way"])]


# The coordinator


def test_the_next_home_is_told_behind_whom_it_is_and_those_after_it_are_not() -> None:
    driver = CoordinatorDriver(live=(ME,))
    old = moving_out(driver, ("2",))
    hosts = [message for _, message in driver.persisted() if isinstance(message, msg.HostShard)]
    [told] = hosts
    assert told.behind == (old,)
    again = [m for _, m in driver.wait(60) if isinstance(m, msg.HostShard)]
    assert again[0] == told, "a question that is repeated is the same"


def test_who_has_nothing_left_is_not_followed() -> None:
    driver = CoordinatorDriver(live=(ME,))
    moving_out(driver, ())
    [told] = [message for _, message in driver.persisted() if isinstance(message, msg.HostShard)]
    assert told.behind == ()


def moving_out(driver: CoordinatorDriver, mail: tuple[str, ...]) -> msg.Home:
    """A shard leaves for the balance; it has stopped."""
    old = moving(driver)
    for node in list(driver.coordinator.table.regions):
        acked(driver, node, old)
    driver.handle(ev.MessageReceived(old.node, msg.ShardStopped(old.node, (old,), mail)))
    return old


# All of them


@pytest.mark.parametrize("block", range(SEEDS // BLOCK))
@pytest.mark.parametrize("faults", [FAULTS, FORGETFUL], ids=["faults", "forgetful"])
def test_what_must_hold_holds_with_mail(block: int, faults: tuple[str, ...]) -> None:
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
