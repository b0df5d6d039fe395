"""The region, told what happens and asked what it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.config.settings import ShardingSettings
from shardbus.ids import NodeId
from shardbus.sharding import events as ev
from shardbus.sharding import messages as msg
from shardbus.sharding.messages import Home
from shardbus.sharding.region.region import HostedState, ShardRegion
from shardbus.sharding.region.route import (
    FORWARDED_MAX,
    REJECT_BUFFER_FULL,
    REJECT_EXPIRED,
    REJECT_HOP_LIMIT,
    REJECT_REFUSED,
    RouteBuffers,
)

ME, B, C, RULER, CLIENT = (NodeId(name, 1, 1) for name in ("me", "b", "c", "ruler", "client"))
LAYOUT = "crc32/8"


@dataclass(frozen=True)
class Letter:
    """A message; the region never looks inside."""

    text: str
    size: int = 10
    expired: bool = False


class Post:
    """A region that is registered with RULER under epoch 1."""

    def __init__(
        self,
        settings: ShardingSettings | None = None,
        me: NodeId | None = ME,
        *,
        registered: bool = True,
    ) -> None:
        self.region = ShardRegion("t", me, LAYOUT, settings or ShardingSettings())
        self.now = 0.0
        if registered:
            self.do(ev.CoordinatorAt(RULER))
            self.hear(msg.RegisterAck(1, RULER, ()))

    def do(self, *events: ev.RegionEvent) -> list[ev.RegionEffect]:
        """Handle these in one turn."""
        effects = [effect for event in events for effect in self.region.handle(event, self.now)]
        while (due := self.region.deadline()) is not None and due <= self.now:
            effects += self.region.tick(self.now)
        self.region.check()
        return effects

    def hear(self, *messages: ev.Message, sender: NodeId = RULER) -> list[ev.RegionEffect]:
        return self.do(*(ev.MessageReceived(sender, message) for message in messages))

    def wait(self, seconds: float) -> list[ev.RegionEffect]:
        effects: list[ev.RegionEffect] = []
        until = self.now + seconds
        while (due := self.region.deadline()) is not None and due <= until:
            self.now = max(due, self.now)
            effects += self.do()
        self.now = until
        return effects

    def tell(self, text: str, via: NodeId | None = None, hops: int = 0) -> list[ev.RegionEffect]:
        return self.do(ev.Deliver("1", Letter(text), via, hops))

    def host(self, fence: int = 5) -> None:
        self.hear(msg.HostShard(1, (home(ME, fence),)))
        self.do(ev.ShardReady("1"))


def home(node: NodeId, fence: int, shard: str = "1") -> Home:
    return Home(shard, node, fence)


def homes(node: NodeId, fence: int, epoch: int = 1) -> msg.ShardHomes:
    return msg.ShardHomes(epoch, (home(node, fence),))


def said(effects: list[ev.RegionEffect]) -> list[ev.Message]:
    return [effect.message for effect in effects if isinstance(effect, ev.SendCoordinator)]


def released(effects: list[ev.RegionEffect]) -> list[tuple[NodeId, list[str]]]:
    found: list[tuple[NodeId, list[str]]] = []
    for effect in effects:
        if isinstance(effect, ev.Release):
            letters = [one.text for one in effect.messages if isinstance(one, Letter)]
            found.append((effect.node, letters))
    return found


def test_an_unknown_home_is_asked_for_once_and_what_waited_goes_in_order() -> None:
    post = Post()
    assert said(post.tell("m1")) == [msg.GetShardHome(("1",))]
    assert post.tell("m2") == []
    effects = post.hear(homes(B, 5))
    release, route = effects
    assert released([release]) == [(B, ["m1", "m2"])]
    assert route == ev.SetRoute("1", B), "after the release, so that nothing overtakes"


def test_a_question_is_repeated_and_more_slowly_after_a_wait() -> None:
    post = Post()
    post.tell("m1")
    assert said(post.wait(2.0)) == [msg.GetShardHome(("1",))]
    post.hear(msg.Wait(1, ("1",), "why"))
    assert said(post.wait(5.9)) == []
    assert said(post.wait(0.2)) == [msg.GetShardHome(("1",))]


def test_the_wait_of_a_coordinator_that_was_replaced_holds_back_no_question() -> None:
    post = Post()
    post.tell("m1")
    post.region.handle(ev.CoordinatorAt(C), post.now)
    late = ev.MessageReceived(RULER, msg.Wait(1, ("1",), "its home is being stored"))
    post.region.handle(late, post.now)
    assert msg.GetShardHome(("1",)) in said(post.region.tick(post.now))


def test_questions_of_one_turn_are_one_message() -> None:
    post = Post()
    effects = post.do(*(ev.Deliver(str(i), Letter("m")) for i in range(3)))
    assert said(effects) == [msg.GetShardHome(("0", "1", "2"))]


def test_a_new_coordinator_is_asked_again_and_told_what_is_hosted() -> None:
    post = Post()
    post.host()
    post.do(ev.Deliver("2", Letter("m")))
    effects = post.do(ev.CoordinatorAt(B))
    assert said(effects) == [
        msg.Register(ME, False, LAYOUT, (home(ME, 5),)),
        msg.GetShardHome(("2",)),
    ]


def test_registration_is_repeated_at_growing_intervals() -> None:
    post = Post(registered=False)
    post.do(ev.CoordinatorAt(RULER))
    times: list[float] = []
    while len(times) < 8:
        start = post.now
        while not said(post.wait(0.05)):
            pass
        times.append(round(post.now - start, 1))
    assert times == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]


def test_buffers_are_bounded_and_counts_are_exact() -> None:
    post = Post(ShardingSettings(buffer_size=2))
    post.tell("m1")
    post.tell("m2")
    letter = Letter("m3")
    assert ev.Reject("2", letter, REJECT_BUFFER_FULL) in post.do(ev.Deliver("2", letter))
    assert post.region.buffered == (2, 20)
    post.hear(homes(B, 5))
    assert post.region.buffered == (0, 0)


def test_S2_65_asks_that_have_expired_leave_where_there_is_no_room() -> None:
    post = Post(ShardingSettings(buffer_size=4))
    post.tell("m1")
    post.do(ev.Deliver("1", Letter("a", expired=True)))
    post.do(ev.Deliver("2", Letter("b", expired=True)))
    post.tell("m2")
    assert post.do(ev.Expired(("1", "2", "never heard of"))) == []
    assert post.region.buffered == (4, 40), "nobody needs the room yet"
    assert post.tell("m3") == [
        ev.Reject("1", Letter("a", expired=True), REJECT_EXPIRED),
        ev.Reject("2", Letter("b", expired=True), REJECT_EXPIRED),
    ]
    assert post.region.buffered == (3, 30)
    post.tell("m4")
    assert ev.Reject("1", Letter("m5"), REJECT_BUFFER_FULL) in post.tell("m5")
    assert released(post.hear(homes(B, 5))) == [(B, ["m1", "m2", "m3", "m4"])]


def test_a_full_buffer_is_searched_once_for_what_has_expired() -> None:
    looked: list[str] = []

    class Ask(Letter):
        def __getattribute__(self, name: str) -> Any:
            if name == "expired":
                looked.append(name)
            return super().__getattribute__(name)

    post = Post(ShardingSettings(buffer_size=3))
    post.do(*(ev.Deliver("1", Ask(f"a{i}")) for i in range(3)))
    post.tell("m")
    assert looked == [], "nothing has expired"
    post.do(ev.Expired(("1",)))
    post.tell("m")
    once = len(looked)
    assert once > 0
    for _ in range(5):
        post.tell("m")
    assert len(looked) == once


def test_bytes_count_too() -> None:
    post = Post(ShardingSettings(buffer_bytes=1024))
    big = Letter("big", size=1020)
    post.do(ev.Deliver("1", big))
    assert ev.Reject("1", Letter("m"), REJECT_BUFFER_FULL) in post.tell("m")


@given(st.lists(st.integers(0, 30), max_size=60))
def test_a_buffer_counts_what_it_takes(sizes: list[int]) -> None:
    buffers = RouteBuffers(20, 200)
    taken = [letter for size in sizes if buffers.add(letter := Letter("m", size))]
    assert (buffers.messages, buffers.bytes) == (len(taken), sum(one.size for one in taken))
    assert buffers.messages <= 20
    assert buffers.bytes <= 200
    buffers.remove(list(taken))
    assert (buffers.messages, buffers.bytes) == (0, 0)


def test_buffer_use_is_noted_at_every_tenth() -> None:
    post = Post(ShardingSettings(buffer_size=20))
    notes = [e for i in range(20) for e in post.tell(str(i)) if isinstance(e, ev.Note)]
    assert [note.detail for note in notes] == [f"{percent} %" for percent in range(10, 110, 10)]


@pytest.mark.parametrize(("fence", "moves"), [(4, False), (5, False), (6, True)])
def test_of_two_homes_the_higher_fence_counts(fence: int, moves: bool) -> None:
    post = Post()
    post.hear(homes(B, 5))
    assert bool(post.hear(homes(C, fence))) is moves


def test_a_home_that_changed_unannounced_is_flushed_before_the_next_is_used() -> None:
    post = Post()
    post.hear(homes(B, 5))
    assert post.hear(homes(C, 6)) == [ev.SetRoute("1", None), ev.SendFlush("1", B, 1)]
    assert post.tell("m1") == []
    assert post.do(ev.FlushDone("1", 99)) == []
    effects = post.do(ev.FlushDone("1", 1))
    assert released(effects) == [(C, ["m1"])]
    assert effects[-1] == ev.SetRoute("1", C)


def test_begin_handoff_is_acknowledged_after_the_echo() -> None:
    post = Post()
    post.hear(homes(B, 5))
    effects = post.hear(msg.BeginHandOff(1, (home(B, 5),)))
    assert effects == [ev.SetRoute("1", None), ev.SendFlush("1", B, 1)]
    assert said(post.tell("m1")) == []
    assert said(post.do(ev.FlushDone("1", 1)))[-1] == msg.BeginHandOffAck(ME, (home(B, 5),))
    assert released(post.hear(homes(C, 6))) == [(C, ["m1"])]


def test_a_flush_without_echo_is_sent_again_and_the_old_homes_death_ends_it() -> None:
    post = Post()
    post.hear(homes(B, 5), homes(C, 6))
    assert ev.SendFlush("1", B, 1) in post.wait(2.0)
    post.tell("m1")
    assert released(post.do(ev.NodeGone(B))) == [(C, ["m1"])]


@pytest.mark.parametrize("known", [False, True])
def test_begin_handoff_is_acknowledged_at_once_where_nothing_is_on_the_way(known: bool) -> None:
    post = Post()
    if known:
        post.host()
    old = home(ME if known else B, 5)
    effects = post.hear(msg.BeginHandOff(1, (old,)))
    assert said(effects) == [msg.BeginHandOffAck(ME, (old,))]
    assert not [e for e in effects if isinstance(e, ev.SendFlush)]


def test_after_begin_handoff_the_old_home_counts_again_only_for_a_new_coordinator() -> None:
    post = Post()
    post.hear(homes(B, 5))
    post.hear(msg.BeginHandOff(1, (home(B, 5),)))
    post.do(ev.FlushDone("1", 1))
    post.tell("m1")
    assert released(post.hear(homes(B, 5))) == [], "a late word of the same coordinator"
    assert released(post.hear(homes(B, 5, epoch=2), sender=C)) == [(B, ["m1"])]


def test_hosting_goes_through_its_states() -> None:
    post = Post()
    post.tell("m1")
    assert post.hear(msg.HostShard(1, (home(ME, 5),))) == [ev.StartShard("1", 5)]
    assert post.region.state_of("1") is HostedState.STARTING
    effects = post.do(ev.ShardReady("1"))
    assert effects == [
        ev.Release("1", ME, (Letter("m1"),)),
        ev.SetArrivals("1", True),
        ev.SetRoute("1", ME),
        ev.SendCoordinator(msg.ShardStarted((home(ME, 5),))),
    ]
    assert said(post.hear(msg.HostShard(1, (home(ME, 5),)))) == [msg.ShardStarted((home(ME, 5),))]
    assert post.hear(msg.HandOff(1, (home(ME, 5),))) == [
        ev.SetArrivals("1", False),
        ev.SetRoute("1", None),
        ev.StopShard("1", 5),
    ]
    assert post.region.state_of("1") is HostedState.STOPPING
    assert said(post.do(ev.ShardDown("1"))) == [msg.ShardStopped(ME, (home(ME, 5),))]
    assert post.region.state_of("1") is None


def test_the_old_home_lets_others_in_until_it_stops() -> None:
    post = Post()
    post.host()
    effects = post.hear(msg.BeginHandOff(1, (home(ME, 5),)))
    assert ev.SetRoute("1", None) in effects
    assert not [e for e in effects if isinstance(e, ev.SetArrivals)]
    assert ev.SetArrivals("1", False) in post.hear(msg.HandOff(1, (home(ME, 5),)))


def test_what_arrives_after_the_stop_is_forwarded_in_order() -> None:
    post = Post()
    post.host()
    post.hear(msg.BeginHandOff(1, (home(ME, 5),)))
    post.tell("own 1")
    post.hear(msg.HandOff(1, (home(ME, 5),)))
    post.tell("late 1", via=C)
    post.tell("flush of C", via=C)
    post.tell("own 2")
    post.do(ev.ShardDown("1"))
    assert released(post.hear(homes(B, 6))) == [(B, ["own 1", "late 1", "flush of C", "own 2"])]
    assert released(post.tell("later still", via=C)) == [(B, ["later still"])]


def test_a_shard_that_stopped_never_comes_back_under_the_same_fence() -> None:
    post = Post()
    post.host(5)
    post.hear(msg.HandOff(1, (home(ME, 5),)))
    post.do(ev.ShardDown("1"))
    for fence in (4, 5):
        effects = post.hear(msg.HostShard(1, (home(ME, fence),)))
        assert effects == [ev.SendCoordinator(msg.ShardStopped(ME, (home(ME, fence),)))]
    assert ev.StartShard("1", 6) in post.hear(msg.HostShard(1, (home(ME, 6),)))


def test_a_handoff_of_what_is_not_here_is_answered_and_remembered() -> None:
    post = Post()
    stopped = ev.SendCoordinator(msg.ShardStopped(ME, (home(ME, 5),)))
    assert post.hear(msg.HandOff(1, (home(ME, 5),))) == [stopped]
    assert post.hear(msg.HostShard(1, (home(ME, 5),))) == [stopped], "it was overtaken"


def test_a_handoff_of_an_earlier_home_leaves_the_shard_alone() -> None:
    post = Post()
    post.host(5)
    post.hear(msg.HandOff(1, (home(ME, 4),)))
    assert post.region.state_of("1") is HostedState.RUNNING


def test_a_home_told_that_is_here_and_stopped_is_given_back() -> None:
    post = Post()
    post.host(5)
    post.do(ev.ShardDown("1"))
    assert said(post.hear(homes(ME, 5))) == [msg.ShardStopped(ME, (home(ME, 5),))]


def test_a_shard_that_lives_elsewhere_by_a_higher_fence_is_stopped() -> None:
    post = Post()
    post.host(5)
    effects = post.hear(homes(B, 6))
    assert ev.StopShard("1", 5) in effects
    assert effects.index(ev.SetRoute("1", None)) < effects.index(ev.SetRoute("1", B))


def test_a_higher_fence_for_a_shard_that_runs_here_starts_it_anew() -> None:
    post = Post()
    post.host(5)
    assert ev.StopShard("1", 5) in post.hear(msg.HostShard(1, (home(ME, 9),)))
    assert post.do(ev.ShardDown("1")) == [ev.StartShard("1", 9)]
    assert ev.SetRoute("1", ME) in post.do(ev.ShardReady("1"))


def test_a_new_home_that_still_flushes_lets_in_only_what_the_old_home_sends_on() -> None:
    post = Post()
    post.hear(homes(B, 5))
    post.tell("sent on to B", via=C)
    post.hear(msg.HostShard(1, (home(ME, 6),)))
    post.tell("own")
    post.tell("from B, before it is ready", via=B)
    effects = post.do(ev.ShardReady("1"))
    assert released(effects) == [(ME, ["from B, before it is ready"])]
    assert ev.SetArrivals("1", True, via=B) in effects
    assert not [e for e in effects if isinstance(e, ev.SetRoute)]
    post.tell("from C", via=C)
    effects = post.do(ev.FlushDone("1", 1))
    assert released(effects) == [(ME, ["own", "from C"])]
    assert effects[-2:] == [ev.SetArrivals("1", True), ev.SetRoute("1", ME)]


def test_what_a_lost_session_gives_back_goes_before_what_waits() -> None:
    post = Post()
    post.hear(homes(B, 5))
    post.hear(msg.BeginHandOff(1, (home(B, 5),)))
    post.tell("m3")
    post.do(*(ev.Deliver("1", Letter(text), older=True) for text in ("m2", "m1")))
    post.hear(homes(C, 6))
    assert released(post.do(ev.FlushDone("1", 1))) == [(C, ["m1", "m2", "m3"])]


@pytest.mark.parametrize("ready", [False, True], ids=["it starts", "it runs"])
def test_whose_messages_never_went_to_the_old_home_need_not_wait_for_its_echo(ready: bool) -> None:
    """Else two homes in a row that flush towards each other's way would wait for each other."""
    post = Post()
    post.hear(homes(B, 5))
    post.tell("sent on to B", via=C)
    post.hear(msg.HostShard(1, (home(ME, 6),)))
    if ready:
        post.do(ev.ShardReady("1"))
    effects = post.tell("own") + post.tell("m1", via=CLIENT) + post.tell("from C", via=C)
    effects += post.tell("m2", via=CLIENT)
    effects += [] if ready else post.do(ev.ShardReady("1"))
    assert [letter for _, some in released(effects) for letter in some] == ["m1", "m2"]
    effects = post.do(ev.FlushDone("1", 1))
    assert released(effects) == [(ME, ["own", "from C"])]


def test_what_was_forwarded_before_it_went_to_the_old_home_may_be_anybodys() -> None:
    post = Post()
    post.hear(homes(B, 5))
    assert released(post.tell("of somebody, by C", via=C, hops=1)) == [(B, ["of somebody, by C"])]
    post.hear(homes(ME, 6))
    post.hear(msg.HostShard(1, (home(ME, 6),)))
    post.do(ev.ShardReady("1"))
    assert released(post.tell("m1", via=CLIENT)) == []


def test_of_very_many_that_sent_to_the_old_home_by_us_none_is_told_apart() -> None:
    post = Post()
    post.hear(homes(B, 5))
    for uid in range(FORWARDED_MAX + 1):
        post.tell("m", via=NodeId("client", 0, uid))
    post.hear(homes(C, 6))
    assert released(post.tell("m1", via=NodeId("client", 0, FORWARDED_MAX))) == []
    assert released(post.tell("m2", via=RULER)) == []


def test_who_sent_to_a_home_by_us_waits_for_its_echo_after_a_move_that_changed_nothing() -> None:
    """The old home hosts again under a higher fence, and the way to it is the same."""
    post = Post()
    post.hear(homes(B, 5))
    post.tell("m1", via=CLIENT)
    post.hear(msg.BeginHandOff(1, (home(B, 5),)))
    post.hear(homes(B, 6))
    post.hear(msg.BeginHandOff(1, (home(B, 6),)))
    assert released(post.hear(homes(C, 7))) == []
    assert released(post.tell("m2", via=CLIENT)) == []


def test_a_message_from_its_own_home_waits_while_the_coordinator_is_asked() -> None:
    post = Post()
    post.hear(homes(B, 5))
    assert released(post.tell("from C", via=C)) == [(B, ["from C"])]
    effects = post.tell("circles", via=B)
    assert released(effects) == []
    assert said(effects) == [msg.GetShardHome(("1",))]
    post.tell("own")
    post.tell("circles too", via=B)
    assert released(post.hear(homes(B, 5))) == [(B, ["circles", "circles too", "own"])]


def test_a_message_does_not_travel_for_ever() -> None:
    post = Post(ShardingSettings(hop_limit=8))
    assert ev.Reject("1", Letter("m"), REJECT_HOP_LIMIT) in post.tell("m", via=B, hops=8)


@pytest.mark.parametrize("epoch", [1, 2])
def test_commands_of_the_past_and_of_others_are_refused(epoch: int) -> None:
    post = Post()
    post.hear(msg.RegisterAck(2, RULER, ()))
    effects = post.hear(msg.HostShard(epoch, (home(ME, 5),)), sender=C)
    assert [effect.kind for effect in effects if isinstance(effect, ev.Note)] == ["refused"]
    assert post.region.state_of("1") is None


def test_a_higher_epoch_commands_and_is_registered_with_again() -> None:
    post = Post()
    effects = post.hear(msg.HostShard(2, (home(ME, 5),)), sender=C)
    assert ev.StartShard("1", 5) in effects
    assert isinstance(said(effects)[0], msg.Register)
    post.hear(msg.RegisterAck(2, C, ()), sender=C)
    assert said(post.do(ev.EpochSeen(2))) == []
    assert isinstance(said(post.do(ev.EpochSeen(3)))[0], msg.Register)


def test_a_dead_home_is_forgotten_and_never_believed_again() -> None:
    post = Post()
    post.hear(homes(B, 5))
    assert post.do(ev.NodeGone(B)) == [ev.SetRoute("1", None)]
    assert said(post.tell("m1")) == [msg.GetShardHome(("1",))]
    assert post.hear(homes(B, 5)) == []
    assert post.hear(homes(B, 6)) == []
    assert released(post.hear(homes(C, 7))) == [(C, ["m1"])]


def test_a_refused_region_neither_hosts_nor_sends() -> None:
    post = Post()
    post.host()
    post.do(ev.Deliver("2", Letter("m")))
    effects = post.hear(msg.RegisterRefused(1, "crc32/8 is not crc32/9"))
    assert ev.StopShard("1", 5) in effects
    assert ev.Reject("2", Letter("m"), REJECT_REFUSED) in effects
    assert ev.Reject("1", Letter("n"), REJECT_REFUSED) in post.tell("n")
    post.hear(msg.RegisterAck(1, RULER, ()))
    assert said(post.tell("o")) == [msg.GetShardHome(("1",))]


def test_a_leaving_region_asks_until_the_coordinator_confirms() -> None:
    post = Post()
    post.host()
    bye = msg.GracefulShutdownRequest(ME)
    assert said(post.do(ev.Shutdown())) == [bye]
    assert said(post.wait(4.0)) == [bye, bye]
    post.hear(msg.HandOff(1, (home(ME, 5),)))
    assert ev.Drained() not in post.do(ev.ShardDown("1")), "another shard may be on its way here"
    assert ev.Drained() in post.hear(msg.RegionStopped(ME))
    assert released(post.tell("m1") + post.hear(homes(B, 6))) == [(B, ["m1"])]
    assert post.do(ev.Shutdown()) == []
    assert said(post.do(ev.CoordinatorAt(C))) == [msg.Register(ME, True, LAYOUT, ())]


def test_without_any_coordinator_a_region_stops_its_shards_itself() -> None:
    post = Post(registered=False)
    assert ev.Drained() in post.do(ev.Shutdown())


def test_with_a_coordinator_lost_it_waits_for_the_next_one_so_long() -> None:
    post = Post()
    post.host()
    post.do(ev.CoordinatorAt(None))
    post.do(ev.Shutdown())
    assert ev.StopShard("1", 5) not in post.wait(59.0)
    assert ev.StopShard("1", 5) in post.wait(2.0)
    assert ev.Drained() in post.do(ev.ShardDown("1"))


def test_a_client_asks_and_never_registers() -> None:
    post = Post(me=None, registered=False)
    assert post.do(ev.CoordinatorAt(B)) == []
    assert said(post.tell("m1")) == [msg.GetShardHome(("1",))]
    assert released(post.hear(homes(C, 5, epoch=0), sender=B)) == [(C, ["m1"])]
    assert said(post.do(ev.CoordinatorAt(C))) == [msg.GetShardHome(("1",))], "to hear of moves"


def test_a_client_is_answered_and_kept_informed() -> None:
    post = Post()
    post.hear(homes(B, 5))
    question = msg.GetShardHome(("1", "2"))
    effects = post.hear(question, sender=CLIENT)
    assert ev.Send(CLIENT, homes(B, 5)) in effects
    assert ev.Send(CLIENT, msg.Wait(1, ("2",), "the coordinator is asked")) in effects
    assert said(effects) == [msg.GetShardHome(("2",))]
    assert ev.Send(CLIENT, homes(C, 6)) in post.hear(homes(C, 6))
    post.do(ev.NodeGone(CLIENT))
    assert not [e for e in post.hear(homes(B, 7)) if isinstance(e, ev.Send)]
