"""What a shard leaves unhandled: it goes to the next home before everything else, or is refused."""

from __future__ import annotations

import pytest

from shardbus.config.settings import ShardingSettings
from shardbus.ids import NodeId
from shardbus.sharding import events as ev
from shardbus.sharding import messages as msg
from shardbus.sharding.region.route import REJECT_BUFFER_FULL, REJECT_EXPIRED, REJECT_STOPPED
from shardbus.sharding.region.routing import LEFTOVERS_PATIENCE_S
from tests.unit.sharding.coordinator.test_coordinator import Desk
from tests.unit.sharding.coordinator.test_coordinator import ack as acked
from tests.unit.sharding.coordinator.test_coordinator import move as moving
from tests.unit.sharding.region.test_region import (
    ME,
    B,
    C,
    Letter,
    Post,
    home,
    homes,
    released,
    said,
)
from tests.unit.sharding.test_sharding_net import FAULTS, FORGETFUL, run_seed

SEEDS, BLOCK = 100, 25


def left(*texts: str) -> tuple[Letter, ...]:
    return tuple(map(Letter, texts))


def stopped(post: Post, *mail: str) -> list[ev.RegionEffect]:
    """The shard ran here, and stops with this unhandled."""
    post.host(5)
    post.hear(msg.BeginHandOff(1, (home(ME, 5),)), msg.HandOff(1, (home(ME, 5),)))
    return post.do(ev.ShardDown("1", left(*mail)))


def rejected(effects: list[ev.RegionEffect]) -> list[tuple[str, str]]:
    return [
        (effect.message.text, effect.reason)
        for effect in effects
        if isinstance(effect, ev.Reject) and isinstance(effect.message, Letter)
    ]


# The old home


def test_mail_waits_for_the_next_home_to_ask_and_goes_before_everything() -> None:
    post = Post()
    effects = stopped(post, "a", "b")
    assert said(effects) == [msg.ShardStopped(ME, (home(ME, 5),), ("1",))]
    post.tell("later", via=C)
    assert released(post.hear(homes(B, 6))) == []
    post.tell("flush of B", via=B)
    effects = post.hear(msg.PassOn((home(B, 6),)), sender=B)
    assert released(effects) == [(B, ["a", "b", "later", "flush of B"])]
    assert released(post.tell("after that", via=C)) == [(B, ["after that"])]
    assert rejected(post.wait(2 * LEFTOVERS_PATIENCE_S)) == []


def test_a_home_that_asks_before_it_is_known_here_is_remembered() -> None:
    post = Post()
    stopped(post, "a")
    assert released(post.hear(msg.PassOn((home(B, 6),)), sender=B)) == []
    assert released(post.hear(homes(B, 6))) == [(B, ["a"])]


def test_nobody_asks_for_another() -> None:
    post = Post()
    stopped(post, "a")
    post.hear(homes(B, 6))
    assert released(post.hear(msg.PassOn((home(B, 6),)), sender=C)) == []
    assert released(post.hear(msg.PassOn((home(B, 7),)), sender=B)) == []


def test_mail_for_which_nobody_asks_is_refused_and_the_rest_goes_on() -> None:
    post = Post()
    stopped(post, "a")
    post.tell("later", via=C)
    post.hear(homes(B, 6))
    effects = post.wait(LEFTOVERS_PATIENCE_S)
    assert rejected(effects) == [("a", REJECT_STOPPED)]
    assert released(effects) == [(B, ["later"])]


@pytest.mark.parametrize("next_home", [C, ME])
def test_mail_is_refused_once_another_home_than_the_first_is_known(next_home: NodeId) -> None:
    """The first may have let others in."""
    post = Post()
    stopped(post, "a")
    post.hear(homes(B, 6))
    post.do(ev.NodeGone(B))
    assert rejected(post.hear(homes(next_home, 7))) == [("a", REJECT_STOPPED)]


def test_a_shard_that_comes_back_finds_its_mail() -> None:
    post = Post()
    stopped(post, "a")
    post.tell("own")
    post.hear(msg.HostShard(1, (home(ME, 6),), (home(ME, 5),)))
    effects = post.do(ev.ShardReady("1"))
    assert released(effects) == [(ME, ["a", "own"])]
    assert ev.SetArrivals("1", True) in effects


def test_mail_is_refused_if_another_coordinator_brings_the_shard_back() -> None:
    """It may have lived elsewhere, and nobody said so here."""
    post = Post()
    stopped(post, "a")
    post.do(ev.EpochSeen(2))
    effects = post.hear(msg.HostShard(2, (home(ME, 7),)))
    assert rejected(effects) == [("a", REJECT_STOPPED)]


def test_who_comes_back_behind_anothers_mail_has_none_of_its_own() -> None:
    post = Post()
    stopped(post, "a")
    effects = post.hear(msg.HostShard(1, (home(ME, 7),), (home(B, 6),)))
    assert rejected(effects) == [("a", REJECT_STOPPED)]
    assert ev.Send(B, msg.PassOn((home(ME, 7),))) in effects
    post.do(ev.ShardReady("1"))
    post.tell("of C, as ever", via=C)
    assert released(post.tell("of B", via=B)) == [(ME, ["of B"])]


def test_mail_of_a_shard_that_lives_elsewhere_already_comes_too_late() -> None:
    post = Post()
    post.host(5)
    post.hear(homes(B, 6))
    effects = post.do(ev.ShardDown("1", left("a")))
    assert rejected(effects) == [("a", REJECT_STOPPED)]
    assert said(effects) == [msg.ShardStopped(ME, (home(ME, 5),))]


def test_mail_counts_in_the_buffer() -> None:
    post = Post(ShardingSettings(buffer_size=2))
    effects = stopped(post, "a", "b", "c")
    assert rejected(effects) == [("c", REJECT_BUFFER_FULL)]
    assert post.region.buffered == (2, 20)


def with_mail_of_nobody(*texts: str) -> Post:
    """A full buffer: an ask that has expired, in the mail of a shard without a home, and these."""
    post = Post(ShardingSettings(buffer_size=1 + len(texts)))
    post.host(5)
    post.hear(msg.BeginHandOff(1, (home(ME, 5),)), msg.HandOff(1, (home(ME, 5),)))
    post.do(ev.ShardDown("1", (Letter("asked", expired=True), *left(*texts))))
    post.do(ev.Expired(("1",)))
    return post


def test_S2_65_mail_that_has_expired_leaves_where_there_is_no_room() -> None:
    post = with_mail_of_nobody("a")
    assert rejected(post.tell("b")) == [("asked", REJECT_EXPIRED)]
    post.hear(msg.PassOn((home(B, 6),)), sender=B)
    assert released(post.hear(homes(B, 6))) == [(B, ["a", "b"])]


def test_where_all_mail_has_expired_what_waits_needs_nobody_to_ask_for_it() -> None:
    post = with_mail_of_nobody()
    assert rejected(post.tell("b")) == [("asked", REJECT_EXPIRED)]
    post.hear(msg.PassOn((home(B, 6),)), sender=B)
    assert released(post.hear(homes(B, 6))) == [(B, ["b"])]


def test_mail_that_a_home_may_ask_for_stays_though_it_has_expired() -> None:
    post = with_mail_of_nobody()
    post.hear(homes(B, 6))
    assert rejected(post.tell("b")) == [("b", REJECT_BUFFER_FULL)]
    effects = post.hear(msg.PassOn((home(B, 6),)), sender=B)
    assert released(effects) == [(B, ["asked"])]


# The new home


def test_a_home_behind_mail_lets_in_nothing_else_before() -> None:
    post = Post()
    post.tell("own")
    host = msg.HostShard(1, (home(ME, 6),), (home(B, 5),))
    effects = post.hear(host)
    flush = next(at for at, e in enumerate(effects) if isinstance(e, ev.SendFlush))
    asked = effects.index(ev.Send(B, msg.PassOn((home(ME, 6),))))
    assert flush < asked, "the Flush is behind what waits there, and the mail goes before it"
    effects = post.do(ev.ShardReady("1"))
    assert released(effects) == []
    assert ev.SetArrivals("1", True, via=B) in effects
    post.tell("from C", via=C)
    effects = post.do(ev.FlushDone("1", 1))
    assert released(effects) == [(ME, ["own", "from C"])]
    assert ev.SetArrivals("1", True) in effects


def test_an_echo_of_an_earlier_flush_does_not_open_it() -> None:
    post = Post()
    post.hear(homes(B, 5))
    post.hear(msg.BeginHandOff(1, (home(B, 5),)))
    post.hear(msg.HostShard(1, (home(ME, 6),), (home(B, 5),)))
    post.do(ev.ShardReady("1"))
    post.tell("own")
    assert released(post.do(ev.FlushDone("1", 1))) == []
    assert released(post.do(ev.FlushDone("1", 2))) == [(ME, ["own"])]


def test_when_the_old_home_dies_nothing_is_waited_for() -> None:
    post = Post()
    post.hear(msg.HostShard(1, (home(ME, 6),), (home(B, 5),)))
    post.do(ev.ShardReady("1"))
    post.tell("own")
    assert released(post.do(ev.NodeGone(B))) == [(ME, ["own"])]


def test_who_stops_while_mail_is_on_the_way_has_mail_itself() -> None:
    post = Post()
    post.hear(msg.HostShard(1, (home(ME, 6),), (home(B, 5),)))
    post.do(ev.ShardReady("1"))
    post.hear(msg.HandOff(1, (home(ME, 6),)))
    post.tell("on the way", via=B)
    effects = post.do(ev.ShardDown("1", left("taken in")))
    assert said(effects) == [msg.ShardStopped(ME, (home(ME, 6),), ("1",))]
    post.hear(homes(C, 7))
    effects = post.hear(msg.PassOn((home(C, 7),)), sender=C)
    assert released(effects) == [(C, ["taken in", "on the way"])]


# The coordinator


def test_the_next_home_is_told_behind_whom_it_is_and_those_after_it_are_not() -> None:
    desk = Desk(live=(ME,))
    old = moving_out(desk, ("2",))
    hosts = [message for _, message in desk.written() if isinstance(message, msg.HostShard)]
    [told] = hosts
    assert told.behind == (old,)
    again = [m for _, m in desk.wait(60) if isinstance(m, msg.HostShard)]
    assert again[0] == told, "a question that is repeated is the same"


def test_who_has_nothing_left_is_not_followed() -> None:
    desk = Desk(live=(ME,))
    moving_out(desk, ())
    [told] = [message for _, message in desk.written() if isinstance(message, msg.HostShard)]
    assert told.behind == ()


def moving_out(desk: Desk, mail: tuple[str, ...]) -> msg.Home:
    """A shard leaves for the balance; it has stopped."""
    old = moving(desk)
    for node in list(desk.coordinator.table.regions):
        acked(desk, node, old)
    desk.tell(ev.MessageReceived(old.node, msg.ShardStopped(old.node, (old,), mail)))
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
