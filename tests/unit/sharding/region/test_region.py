"""The region: events in, messages and routes out."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
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
from shardbus.sharding.region.requested_homes import ASKED, REASON_S
from shardbus.sharding.region.route import (
    FORWARDED_MAX,
    REJECT_BUFFER_FULL,
    REJECT_EXPIRED,
    REJECT_HOP_LIMIT,
    REJECT_REFUSED,
    RouteBuffers,
)
from shardbus.sharding.region.routing import FLUSH_PATIENCE_S, SUSPECT_HOPS
from shardbus.sharding.table_state import pack_homes

ME, B, C, RULER, CLIENT = (NodeId(name, 1, 1) for name in ("me", "b", "c", "ruler", "client"))
LAYOUT = "crc32/8"


@dataclass(frozen=True)
class Message:
    """A message; the region never looks inside."""

    text: str
    size: int = 10
    expired: bool = False
    any_instance: bool = False


class RegionDriver:
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
            self.handle(ev.CoordinatorAt(RULER))
            self.receive(msg.RegisterAck(1, RULER, ()))

    def handle(self, *events: ev.RegionEvent) -> list[ev.RegionEffect]:
        """Handle these in one turn."""
        effects = [effect for event in events for effect in self.region.handle(event, self.now)]
        while (due := self.region.deadline()) is not None and due <= self.now:
            effects += self.region.tick(self.now)
        self.region.check()
        return effects

    def receive(self, *messages: ev.Message, sender: NodeId = RULER) -> list[ev.RegionEffect]:
        return self.handle(*(ev.MessageReceived(sender, message) for message in messages))

    def wait(self, seconds: float) -> list[ev.RegionEffect]:
        effects: list[ev.RegionEffect] = []
        until = self.now + seconds
        while (due := self.region.deadline()) is not None and due <= until:
            self.now = max(due, self.now)
            effects += self.handle()
        self.now = until
        return effects

    def send(self, text: str, via: NodeId | None = None, hops: int = 0) -> list[ev.RegionEffect]:
        return self.handle(ev.Deliver("1", Message(text), via, hops))

    def host(self, fence: int = 5) -> None:
        self.receive(msg.HostShard(1, (home(ME, fence),)))
        self.handle(ev.ShardReady("1"))


def home(node: NodeId, fence: int, shard: str = "1") -> Home:
    return Home(shard, node, fence)


def homes(node: NodeId, fence: int, epoch: int = 1) -> msg.ShardHomes:
    return msg.ShardHomes(epoch, (home(node, fence),))


def sent(effects: list[ev.RegionEffect]) -> list[ev.Message]:
    return [effect.message for effect in effects if isinstance(effect, ev.SendCoordinator)]


def sent_to(effects: list[ev.RegionEffect], node: NodeId) -> list[ev.Message]:
    """Messages to one node."""
    return [
        effect.message for effect in effects if isinstance(effect, ev.Send) and effect.to == node
    ]


def released(effects: list[ev.RegionEffect]) -> list[tuple[NodeId, list[str]]]:
    batches: list[tuple[NodeId, list[str]]] = []
    for effect in effects:
        if isinstance(effect, ev.Release):
            messages = [message.text for message in effect.messages if isinstance(message, Message)]
            batches.append((effect.node, messages))
    return batches


def test_an_unknown_home_is_requested_once_and_waiting_messages_go_in_order() -> None:
    driver = RegionDriver()
    assert sent(driver.send("m1")) == [msg.GetShardHome(("1",))]
    assert driver.send("m2") == []
    effects = driver.receive(homes(B, 5))
    release, route = effects
    assert released([release]) == [(B, ["m1", "m2"])]
    assert route == ev.SetRoute("1", B), "after the release, so that nothing overtakes"


def test_a_request_is_repeated_and_more_slowly_after_a_wait() -> None:
    driver = RegionDriver()
    driver.send("m1")
    assert sent(driver.wait(2.0)) == [msg.GetShardHome(("1",))]
    driver.receive(msg.Wait(1, ("1",), "why"))
    assert sent(driver.wait(5.9)) == []
    assert sent(driver.wait(0.2)) == [msg.GetShardHome(("1",))]


def test_the_reason_for_a_wait_is_kept_until_the_home_is_known() -> None:
    driver = RegionDriver()
    assert driver.region.why_waiting("1") == ""
    driver.send("m1")
    driver.receive(msg.Wait(1, ("1", "other"), "Own.allocate is to answer"))
    assert driver.region.why_waiting("1") == "Own.allocate is to answer"
    assert driver.region.why_waiting("other") == "", "this region has not asked for it"
    driver.receive(homes(B, 5))
    assert driver.region.why_waiting("1") == ""


def test_a_region_knows_that_no_other_may_take_the_shards_of_its_messages() -> None:
    driver = RegionDriver()
    driver.send("m1")
    driver.receive(msg.Wait(1, ("1", "other"), "it moves"))
    assert not driver.region.lacks_regions
    driver.receive(msg.Wait(1, ("1", "other"), msg.NO_REGION))
    assert driver.region.lacks_regions
    driver.receive(homes(B, 5))
    assert not driver.region.lacks_regions


def test_while_no_member_can_be_a_home_every_shard_has_that_reason() -> None:
    driver = RegionDriver()
    driver.send("m1")
    driver.receive(msg.Wait(1, ("1",), "why"))
    why = "no member hosts it: none is up with role 'reports'"
    driver.handle(ev.CoordinatorAt(None, why))
    assert {driver.region.why_waiting(shard) for shard in ("1", "other")} == {why}
    waits = sent_to(driver.receive(msg.GetShardHome(("2",)), sender=CLIENT), CLIENT)
    assert waits == [msg.Wait(1, ("2",), why)], "its client has it, too"
    driver.handle(ev.CoordinatorAt(RULER))
    assert driver.region.why_waiting("other") == ""


def test_a_client_asks_soon_for_the_coordinators_reason_and_once() -> None:
    driver = RegionDriver(me=None, registered=False)
    driver.handle(ev.CoordinatorAt(B))
    driver.send("m1")
    for pause in (REASON_S, 6.0, 6.0):
        driver.receive(msg.Wait(0, ("1",), ASKED), sender=B)
        assert sent(driver.wait(pause - 0.1)) == []
        assert sent(driver.wait(0.2)) == [msg.GetShardHome(("1",))]


def test_a_client_gets_the_coordinators_reason_once_it_is_known() -> None:
    driver = RegionDriver()
    question = msg.GetShardHome(("1", "2"))
    driver.receive(question, sender=CLIENT)
    driver.receive(msg.Wait(1, ("2",), "why"))
    effects = driver.receive(question, sender=CLIENT)
    waits = [e.message for e in effects if isinstance(e, ev.Send) and e.to == CLIENT]
    assert waits == [msg.Wait(1, ("1",), ASKED), msg.Wait(1, ("2",), "why")]


def test_a_wait_of_a_replaced_coordinator_delays_no_request() -> None:
    driver = RegionDriver()
    driver.send("m1")
    driver.region.handle(ev.CoordinatorAt(C), driver.now)
    late = ev.MessageReceived(RULER, msg.Wait(1, ("1",), "its home is being stored"))
    driver.region.handle(late, driver.now)
    assert msg.GetShardHome(("1",)) in sent(driver.region.tick(driver.now))


def test_requests_of_one_turn_are_one_message() -> None:
    driver = RegionDriver()
    effects = driver.handle(*(ev.Deliver(str(i), Message("m")) for i in range(3)))
    assert sent(effects) == [msg.GetShardHome(("0", "1", "2"))]


def test_a_new_coordinator_gets_the_requests_again_and_what_is_hosted() -> None:
    driver = RegionDriver()
    driver.host()
    driver.handle(ev.Deliver("2", Message("m")))
    effects = driver.handle(ev.CoordinatorAt(B))
    assert sent(effects) == [
        msg.Register(ME, False, LAYOUT, (home(ME, 5),)),
        msg.GetShardHome(("2",)),
    ]


def test_registration_is_repeated_at_growing_intervals() -> None:
    driver = RegionDriver(registered=False)
    driver.handle(ev.CoordinatorAt(RULER))
    times: list[float] = []
    while len(times) < 8:
        start = driver.now
        while not sent(driver.wait(0.05)):
            pass
        times.append(round(driver.now - start, 1))
    assert times == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]


def test_buffers_are_bounded_and_counts_are_exact() -> None:
    driver = RegionDriver(ShardingSettings(buffer_size=2))
    driver.send("m1")
    driver.send("m2")
    message = Message("m3")
    assert ev.Reject("2", message, REJECT_BUFFER_FULL) in driver.handle(ev.Deliver("2", message))
    assert driver.region.buffered == (2, 20)
    driver.receive(homes(B, 5))
    assert driver.region.buffered == (0, 0)


def test_S2_65_expired_asks_make_room_in_a_full_buffer() -> None:
    driver = RegionDriver(ShardingSettings(buffer_size=4))
    driver.send("m1")
    driver.handle(ev.Deliver("1", Message("a", expired=True)))
    driver.handle(ev.Deliver("2", Message("b", expired=True)))
    driver.send("m2")
    assert driver.handle(ev.Expired(("1", "2", "never heard of"))) == []
    assert driver.region.buffered == (4, 40), "the room is not needed yet"
    assert driver.send("m3") == [
        ev.Reject("1", Message("a", expired=True), REJECT_EXPIRED),
        ev.Reject("2", Message("b", expired=True), REJECT_EXPIRED),
    ]
    assert driver.region.buffered == (3, 30)
    driver.send("m4")
    assert ev.Reject("1", Message("m5"), REJECT_BUFFER_FULL) in driver.send("m5")
    assert released(driver.receive(homes(B, 5))) == [(B, ["m1", "m2", "m3", "m4"])]


def test_a_full_buffer_is_searched_once_for_expired_asks() -> None:
    looked: list[str] = []

    class Ask(Message):
        def __getattribute__(self, name: str) -> Any:
            if name == "expired":
                looked.append(name)
            return super().__getattribute__(name)

    driver = RegionDriver(ShardingSettings(buffer_size=3))
    driver.handle(*(ev.Deliver("1", Ask(f"a{i}")) for i in range(3)))
    driver.send("m")
    assert looked == [], "nothing has expired"
    driver.handle(ev.Expired(("1",)))
    driver.send("m")
    once = len(looked)
    assert once > 0
    for _ in range(5):
        driver.send("m")
    assert len(looked) == once


def test_the_bound_on_bytes_counts_too() -> None:
    driver = RegionDriver(ShardingSettings(buffer_bytes=1024))
    big = Message("big", size=1020)
    driver.handle(ev.Deliver("1", big))
    assert ev.Reject("1", Message("m"), REJECT_BUFFER_FULL) in driver.send("m")


@given(st.lists(st.integers(0, 30), max_size=60))
def test_a_buffer_counts_what_it_takes(sizes: list[int]) -> None:
    buffers = RouteBuffers(20, 200)
    taken = [message for size in sizes if buffers.add(message := Message("m", size))]
    assert (buffers.messages, buffers.bytes) == (len(taken), sum(each.size for each in taken))
    assert buffers.messages <= 20
    assert buffers.bytes <= 200
    buffers.remove(list(taken))
    assert (buffers.messages, buffers.bytes) == (0, 0)


def test_buffer_use_is_noted_at_every_tenth() -> None:
    driver = RegionDriver(ShardingSettings(buffer_size=20))
    notes = [e for i in range(20) for e in driver.send(str(i)) if isinstance(e, ev.Note)]
    assert [note.detail for note in notes] == [f"{percent} %" for percent in range(10, 110, 10)]


@pytest.mark.parametrize(("fence", "moves"), [(4, False), (5, False), (6, True)])
def test_of_two_homes_the_higher_fence_counts(fence: int, moves: bool) -> None:
    driver = RegionDriver()
    driver.receive(homes(B, 5))
    assert bool(driver.receive(homes(C, fence))) is moves


def test_a_home_that_changed_unannounced_is_flushed_before_the_next_is_used() -> None:
    driver = RegionDriver()
    driver.receive(homes(B, 5))
    assert driver.receive(homes(C, 6)) == [ev.SetRoute("1", None), ev.SendFlush("1", B, 1)]
    assert driver.send("m1") == []
    assert driver.handle(ev.FlushDone("1", 99)) == []
    effects = driver.handle(ev.FlushDone("1", 1))
    assert released(effects) == [(C, ["m1"])]
    assert effects[-1] == ev.SetRoute("1", C)


def test_begin_handoff_is_acknowledged_after_the_echo() -> None:
    driver = RegionDriver()
    driver.receive(homes(B, 5))
    effects = driver.receive(msg.BeginHandOff(1, (home(B, 5),)))
    assert effects == [ev.SetRoute("1", None), ev.SendFlush("1", B, 1)]
    assert sent(driver.send("m1")) == []
    assert sent(driver.handle(ev.FlushDone("1", 1)))[-1] == msg.BeginHandOffAck(ME, (home(B, 5),))
    assert released(driver.receive(homes(C, 6))) == [(C, ["m1"])]


def leaving_home(driver: RegionDriver) -> Home | None:
    route = driver.region.routing.find("1")
    return None if route is None else route.leaving_home


def flushes(effects: list[ev.RegionEffect]) -> list[tuple[NodeId, int]]:
    return [(e.node, e.flush_id) for e in effects if isinstance(e, ev.SendFlush)]


def test_a_flush_follows_each_call_to_the_home_that_a_shard_leaves() -> None:
    driver = RegionDriver()
    driver.receive(homes(B, 5))
    old = home(B, 5)
    driver.receive(msg.BeginHandOff(1, (old,)))
    assert leaving_home(driver) == old
    assert driver.handle(ev.CallSent("1")) == [], "the first Flush is under way"
    effects = driver.handle(ev.FlushDone("1", 1))
    assert flushes(effects) == [(B, 2)]
    assert sent(effects)[-1] == msg.BeginHandOffAck(ME, (old,)), "it waits for no later call"
    assert flushes(driver.handle(ev.FlushDone("1", 2))) == []
    assert leaving_home(driver) == old
    assert flushes(driver.handle(ev.CallSent("1"))) == [(B, 3)]
    driver.send("m1")
    assert released(driver.receive(homes(C, 6))) == [], "the call may not have arrived"
    assert leaving_home(driver) is None
    assert released(driver.handle(ev.FlushDone("1", 3))) == [(C, ["m1"])]


def test_no_flush_follows_to_a_node_that_has_left() -> None:
    driver = RegionDriver()
    driver.receive(homes(B, 5))
    driver.receive(msg.BeginHandOff(1, (home(B, 5),)))
    driver.handle(ev.CallSent("1"))
    driver.handle(ev.NodeLeft(B))
    assert flushes(driver.handle(ev.FlushDone("1", 1))) == []


def test_calls_go_only_where_messages_went_until_then() -> None:
    """A message that waits longer would be overtaken."""
    driver = RegionDriver()
    driver.send("m1")
    driver.receive(msg.BeginHandOff(1, (home(B, 5),)))
    assert leaving_home(driver) is None, "no home was known"
    driver = RegionDriver()
    driver.receive(homes(B, 5), homes(C, 6))
    driver.send("m1")
    driver.receive(msg.BeginHandOff(1, (home(C, 6),)))
    assert leaving_home(driver) is None, "the next home is left while messages wait for it"


@pytest.mark.parametrize("begins", [True, False])
def test_a_shard_of_this_node_takes_calls_until_messages_are_left_over(begins: bool) -> None:
    driver = RegionDriver()
    driver.host()
    if begins:
        driver.receive(msg.BeginHandOff(1, (home(ME, 5),)))
    driver.receive(msg.HandOff(1, (home(ME, 5),)))
    assert leaving_home(driver) == home(ME, 5)
    route = driver.region.routing.find("1")
    assert route is not None
    driver.send("m1")
    assert not route.keeps_from(B)
    driver.send("m2", via=B)
    assert route.keeps_from(B), "a later call of that node would overtake it"
    driver.handle(ev.ShardDown("1", (Message("left"),)))
    assert leaving_home(driver) is None


def by_gossip() -> RegionDriver:
    """A region that knows by gossip that shard 1 is at home on B."""
    driver = RegionDriver()
    state = msg.TableState(1, 1, (ME, B, C), pack_homes((home(B, 5),), (ME, B, C)))
    driver.receive(state, sender=C)
    return driver


def asked(effects: list[ev.RegionEffect]) -> bool:
    return msg.GetShardHome(("1",)) in sent(effects)


@pytest.mark.parametrize("gossip", [True, False])
def test_a_region_asks_at_once_for_the_home_of_a_moving_shard_only_if_others_come_by_gossip(
    gossip: bool,
) -> None:
    driver = by_gossip() if gossip else RegionDriver()
    driver.receive(homes(B, 5))
    driver.receive(msg.BeginHandOff(1, (home(B, 5),)))
    assert not asked(driver.send("m1"))  # it waits for the echo first
    assert asked(driver.handle(ev.FlushDone("1", 1))) is gossip
    driver.receive(msg.Wait(1, ("1",), "it moves"))
    assert not asked(driver.send("m2"))  # the coordinator knows
    assert released(driver.receive(homes(C, 6))) == [(C, ["m1", "m2"])]


def test_a_message_that_comes_during_the_move_is_asked_for_at_once() -> None:
    driver = by_gossip()
    driver.receive(msg.BeginHandOff(1, (home(B, 5),)))
    assert not asked(driver.handle(ev.FlushDone("1", 1)))  # nothing waits
    assert asked(driver.send("m1"))


def test_a_region_waits_for_homes_again_if_the_next_coordinator_does_not_gossip() -> None:
    driver = by_gossip()
    driver.receive(msg.RegisterAck(2, RULER, ()))
    driver.receive(msg.ShardHomes(2, (home(B, 5),)))
    driver.receive(msg.BeginHandOff(2, (home(B, 5),)))
    driver.send("m1")
    assert not asked(driver.handle(ev.FlushDone("1", 1)))


def test_a_flush_without_an_echo_is_repeated_until_the_old_home_dies() -> None:
    driver = RegionDriver()
    driver.receive(homes(B, 5), homes(C, 6))
    assert ev.SendFlush("1", B, 1) in driver.wait(2.0)
    driver.send("m1")
    assert released(driver.handle(ev.NodeGone(B))) == [(C, ["m1"])]


@pytest.mark.parametrize("is_known", [False, True])
def test_begin_handoff_is_acknowledged_at_once_if_no_message_is_under_way(is_known: bool) -> None:
    driver = RegionDriver()
    if is_known:
        driver.host()
    old = home(ME if is_known else B, 5)
    effects = driver.receive(msg.BeginHandOff(1, (old,)))
    assert sent(effects) == [msg.BeginHandOffAck(ME, (old,))]
    assert not [e for e in effects if isinstance(e, ev.SendFlush)]


def test_after_begin_handoff_only_a_new_coordinator_brings_the_old_home_back() -> None:
    driver = RegionDriver()
    driver.receive(homes(B, 5))
    driver.receive(msg.BeginHandOff(1, (home(B, 5),)))
    driver.handle(ev.FlushDone("1", 1))
    driver.send("m1")
    assert released(driver.receive(homes(B, 5))) == [], "a late word of the same coordinator"
    assert released(driver.receive(homes(B, 5, epoch=2), sender=C)) == [(B, ["m1"])]


def test_hosting_goes_through_its_states() -> None:
    driver = RegionDriver()
    driver.send("m1")
    assert driver.receive(msg.HostShard(1, (home(ME, 5),))) == [ev.StartShard("1", 5)]
    assert driver.region.state_of("1") is HostedState.STARTING
    effects = driver.handle(ev.ShardReady("1"))
    assert effects == [
        ev.Release("1", ME, (Message("m1"),)),
        ev.SetArrivals("1", True),
        ev.SetRoute("1", ME),
        ev.SendCoordinator(msg.ShardStarted((home(ME, 5),))),
    ]
    assert sent(driver.receive(msg.HostShard(1, (home(ME, 5),)))) == [
        msg.ShardStarted((home(ME, 5),))
    ]
    assert driver.receive(msg.HandOff(1, (home(ME, 5),))) == [
        ev.SetArrivals("1", False),
        ev.SetRoute("1", None),
        ev.StopShard("1", 5),
    ]
    assert driver.region.state_of("1") is HostedState.STOPPING
    assert sent(driver.handle(ev.ShardDown("1"))) == [msg.ShardStopped(ME, (home(ME, 5),))]
    assert driver.region.state_of("1") is None


def test_the_old_home_lets_messages_in_until_it_stops() -> None:
    driver = RegionDriver()
    driver.host()
    effects = driver.receive(msg.BeginHandOff(1, (home(ME, 5),)))
    assert ev.SetRoute("1", None) in effects
    assert not [e for e in effects if isinstance(e, ev.SetArrivals)]
    assert ev.SetArrivals("1", False) in driver.receive(msg.HandOff(1, (home(ME, 5),)))


def test_messages_that_arrive_after_the_stop_are_forwarded_in_order() -> None:
    driver = RegionDriver()
    driver.host()
    driver.receive(msg.BeginHandOff(1, (home(ME, 5),)))
    driver.send("own 1")
    driver.receive(msg.HandOff(1, (home(ME, 5),)))
    driver.send("late 1", via=C)
    driver.send("flush of C", via=C)
    driver.send("own 2")
    driver.handle(ev.ShardDown("1"))
    assert released(driver.receive(homes(B, 6))) == [
        (B, ["own 1", "late 1", "flush of C", "own 2"])
    ]
    assert released(driver.send("later still", via=C)) == [(B, ["later still"])]


def test_a_stopped_shard_never_starts_under_the_same_fence() -> None:
    driver = RegionDriver()
    driver.host(5)
    driver.receive(msg.HandOff(1, (home(ME, 5),)))
    driver.handle(ev.ShardDown("1"))
    for fence in (4, 5):
        effects = driver.receive(msg.HostShard(1, (home(ME, fence),)))
        assert effects == [ev.SendCoordinator(msg.ShardStopped(ME, (home(ME, fence),)))]
    assert ev.StartShard("1", 6) in driver.receive(msg.HostShard(1, (home(ME, 6),)))


def test_a_handoff_of_a_shard_that_is_not_here_is_answered_and_remembered() -> None:
    driver = RegionDriver()
    stopped = ev.SendCoordinator(msg.ShardStopped(ME, (home(ME, 5),)))
    assert driver.receive(msg.HandOff(1, (home(ME, 5),))) == [stopped]
    assert driver.receive(msg.HostShard(1, (home(ME, 5),))) == [stopped], "it was overtaken"


def test_a_handoff_of_an_earlier_home_leaves_the_shard_alone() -> None:
    driver = RegionDriver()
    driver.host(5)
    driver.receive(msg.HandOff(1, (home(ME, 4),)))
    assert driver.region.state_of("1") is HostedState.RUNNING


def test_a_home_on_this_node_whose_shard_stopped_is_given_back() -> None:
    driver = RegionDriver()
    driver.host(5)
    driver.handle(ev.ShardDown("1"))
    assert sent(driver.receive(homes(ME, 5))) == [msg.ShardStopped(ME, (home(ME, 5),))]


def test_a_shard_that_lives_elsewhere_by_a_higher_fence_is_stopped() -> None:
    driver = RegionDriver()
    driver.host(5)
    effects = driver.receive(homes(B, 6))
    assert ev.StopShard("1", 5) in effects
    assert effects.index(ev.SetRoute("1", None)) < effects.index(ev.SetRoute("1", B))


def test_a_higher_fence_for_a_shard_that_runs_here_starts_it_anew() -> None:
    driver = RegionDriver()
    driver.host(5)
    assert ev.StopShard("1", 5) in driver.receive(msg.HostShard(1, (home(ME, 9),)))
    assert driver.handle(ev.ShardDown("1")) == [ev.StartShard("1", 9)]
    assert ev.SetRoute("1", ME) in driver.handle(ev.ShardReady("1"))


def test_a_new_home_that_still_flushes_lets_in_only_what_the_old_home_sends_on() -> None:
    driver = RegionDriver()
    driver.receive(homes(B, 5))
    driver.send("sent on to B", via=C)
    driver.receive(msg.HostShard(1, (home(ME, 6),)))
    driver.send("own")
    driver.send("from B, before it is ready", via=B)
    effects = driver.handle(ev.ShardReady("1"))
    assert released(effects) == [(ME, ["from B, before it is ready"])]
    assert ev.SetArrivals("1", True, via=B) in effects
    assert not [e for e in effects if isinstance(e, ev.SetRoute)]
    driver.send("from C", via=C)
    effects = driver.handle(ev.FlushDone("1", 1))
    assert released(effects) == [(ME, ["own", "from C"])]
    assert effects[-2:] == [ev.SetArrivals("1", True), ev.SetRoute("1", ME)]


def test_messages_that_a_lost_session_returns_go_before_those_that_wait() -> None:
    driver = RegionDriver()
    driver.receive(homes(B, 5))
    driver.receive(msg.BeginHandOff(1, (home(B, 5),)))
    driver.send("m3")
    driver.handle(*(ev.Deliver("1", Message(text), older=True) for text in ("m2", "m1")))
    driver.receive(homes(C, 6))
    assert released(driver.handle(ev.FlushDone("1", 1))) == [(C, ["m1", "m2", "m3"])]


@pytest.mark.parametrize("ready", [False, True], ids=["it starts", "it runs"])
def test_senders_that_sent_nothing_to_the_old_home_do_not_wait_for_its_echo(ready: bool) -> None:
    """Else two homes in a row that flush towards each other's way would wait for each other."""
    driver = RegionDriver()
    driver.receive(homes(B, 5))
    driver.send("sent on to B", via=C)
    driver.receive(msg.HostShard(1, (home(ME, 6),)))
    if ready:
        driver.handle(ev.ShardReady("1"))
    effects = driver.send("own") + driver.send("m1", via=CLIENT) + driver.send("from C", via=C)
    effects += driver.send("m2", via=CLIENT)
    effects += [] if ready else driver.handle(ev.ShardReady("1"))
    assert [message for _, some in released(effects) for message in some] == ["m1", "m2"]
    effects = driver.handle(ev.FlushDone("1", 1))
    assert released(effects) == [(ME, ["own", "from C"])]


def test_a_message_forwarded_before_may_be_of_any_sender() -> None:
    driver = RegionDriver()
    driver.receive(homes(B, 5))
    assert released(driver.send("forwarded by C", via=C, hops=1)) == [(B, ["forwarded by C"])]
    driver.receive(homes(ME, 6))
    driver.receive(msg.HostShard(1, (home(ME, 6),)))
    driver.handle(ev.ShardReady("1"))
    assert released(driver.send("m1", via=CLIENT)) == []


def test_beyond_the_bound_senders_to_the_old_home_are_not_told_apart() -> None:
    driver = RegionDriver()
    driver.receive(homes(B, 5))
    for uid in range(FORWARDED_MAX + 1):
        driver.send("m", via=NodeId("client", 0, uid))
    driver.receive(homes(C, 6))
    assert released(driver.send("m1", via=NodeId("client", 0, FORWARDED_MAX))) == []
    assert released(driver.send("m2", via=RULER)) == []


def test_a_sender_to_the_old_home_waits_for_the_echo_after_a_move_to_the_same_node() -> None:
    """The old home hosts again under a higher fence, and the way to it is the same."""
    driver = RegionDriver()
    driver.receive(homes(B, 5))
    driver.send("m1", via=CLIENT)
    driver.receive(msg.BeginHandOff(1, (home(B, 5),)))
    driver.receive(homes(B, 6))
    driver.receive(msg.BeginHandOff(1, (home(B, 6),)))
    assert released(driver.receive(homes(C, 7))) == []
    assert released(driver.send("m2", via=CLIENT)) == []


def test_a_message_from_its_own_home_waits_while_the_coordinator_is_asked() -> None:
    driver = RegionDriver()
    driver.receive(homes(B, 5))
    assert released(driver.send("from C", via=C)) == [(B, ["from C"])]
    effects = driver.send("circles", via=B)
    assert released(effects) == []
    assert sent(effects) == [msg.GetShardHome(("1",))]
    driver.send("own")
    driver.send("circles too", via=B)
    assert released(driver.receive(homes(B, 5))) == [(B, ["circles", "circles too", "own"])]


def test_a_message_is_rejected_at_the_hop_limit() -> None:
    driver = RegionDriver(ShardingSettings(hop_limit=8))
    assert ev.Reject("1", Message("m"), REJECT_HOP_LIMIT) in driver.send("m", via=B, hops=8)


@pytest.mark.parametrize("epoch", [1, 2])
def test_commands_of_earlier_epochs_and_of_other_senders_are_refused(epoch: int) -> None:
    driver = RegionDriver()
    driver.receive(msg.RegisterAck(2, RULER, ()))
    effects = driver.receive(msg.HostShard(epoch, (home(ME, 5),)), sender=C)
    assert [effect.kind for effect in effects if isinstance(effect, ev.Note)] == ["refused"]
    assert driver.region.state_of("1") is None


def test_a_sender_of_a_higher_epoch_is_obeyed_and_registered_with() -> None:
    driver = RegionDriver()
    effects = driver.receive(msg.HostShard(2, (home(ME, 5),)), sender=C)
    assert ev.StartShard("1", 5) in effects
    assert isinstance(sent(effects)[0], msg.Register)
    driver.receive(msg.RegisterAck(2, C, ()), sender=C)
    assert sent(driver.handle(ev.EpochSeen(2))) == []
    assert isinstance(sent(driver.handle(ev.EpochSeen(3)))[0], msg.Register)


def test_a_region_registers_again_if_an_old_registration_counts_under_a_new_epoch() -> None:
    """The Register of epoch 1, in which nothing was hosted, waited for the next coordinator."""
    driver = RegionDriver()
    driver.host()
    [register] = sent(driver.receive(msg.RegisterAck(2, RULER, ())))
    assert isinstance(register, msg.Register)
    assert register.hosted == (home(ME, 5),)
    assert sent(driver.receive(msg.RegisterAck(2, RULER, ()))) == []
    assert sent(driver.wait(60.0)) == []
    [register] = sent(driver.handle(ev.EpochSeen(3)))
    assert sent(driver.receive(msg.RegisterAck(3, RULER, ()))) == []  # it had that shard


def test_a_dead_home_is_forgotten_and_never_accepted_again() -> None:
    driver = RegionDriver()
    driver.receive(homes(B, 5))
    assert driver.handle(ev.NodeGone(B)) == [ev.SetRoute("1", None)]
    assert sent(driver.send("m1")) == [msg.GetShardHome(("1",))]
    assert driver.receive(homes(B, 5)) == []
    assert driver.receive(homes(B, 6)) == []
    assert released(driver.receive(homes(C, 7))) == [(C, ["m1"])]


def test_a_refused_region_neither_hosts_nor_sends() -> None:
    driver = RegionDriver()
    driver.host()
    driver.handle(ev.Deliver("2", Message("m")))
    effects = driver.receive(msg.RegisterRefused(1, "crc32/8 is not crc32/9"))
    assert ev.StopShard("1", 5) in effects
    assert ev.Reject("2", Message("m"), REJECT_REFUSED) in effects
    assert ev.Reject("1", Message("n"), REJECT_REFUSED) in driver.send("n")
    driver.receive(msg.RegisterAck(1, RULER, ()))
    assert sent(driver.send("o")) == [msg.GetShardHome(("1",))]


def test_a_home_that_a_refused_region_learns_is_closed_by_the_next_refusal() -> None:
    driver = RegionDriver()
    refused = msg.RegisterRefused(1, "crc32/8 is not crc32/9")
    driver.receive(refused)
    assert ev.SetRoute("1", B) in driver.receive(homes(B, 6))
    assert ev.SetRoute("1", None) in driver.receive(refused)
    assert not [effect for effect in driver.receive(refused) if isinstance(effect, ev.SetRoute)]
    assert ev.Reject("1", Message("m"), REJECT_REFUSED) in driver.send("m")


def table_of(epoch: int, version: int, *homes: Home) -> msg.TableState:
    nodes = (ME, B, C)
    return msg.TableState(epoch, version, nodes, pack_homes(homes, nodes))


def test_S3_45_a_home_that_another_region_reports_is_used_by_its_fence() -> None:
    driver = RegionDriver()
    driver.receive(homes(B, 6))
    driver.receive(table_of(1, 1, home(C, 5)), sender=C)
    assert driver.region.home_of("1") == home(B, 6), "an older fence"
    effects = driver.receive(table_of(1, 2, home(B, 6), home(C, 9, "2")), sender=C)
    assert ev.SetRoute("2", C) in effects
    assert ev.Send(B, msg.TableStatus(1, 2)) in effects


def test_a_table_of_a_former_coordinator_is_not_used() -> None:
    driver = RegionDriver()
    driver.receive(homes(B, 6, epoch=3))
    driver.receive(table_of(2, 9, home(C, 7)), sender=C)
    assert driver.region.home_of("1") == home(B, 6)
    assert driver.region.table_gossip.state is None


def test_the_table_by_gossip_ends_with_its_coordinator() -> None:
    driver = RegionDriver()
    driver.receive(table_of(1, 9, home(C, 7)), sender=C)
    assert driver.region.table_gossip.version == (1, 9)
    driver.receive(msg.RegisterAck(2, RULER, ()))
    assert driver.region.table_gossip.state is None


def test_a_client_gets_every_home_with_its_first_request_if_homes_travel_by_gossip() -> None:
    driver = RegionDriver()
    driver.receive(table_of(1, 1, home(B, 6), home(C, 9, "2")), sender=C)
    client = NodeId("client", 0, 7)
    homes = sent_to(driver.receive(msg.GetShardHome(("2",)), sender=client), client)
    assert homes == [msg.ShardHomes(1, (home(C, 9, "2"), home(B, 6)))]
    again = sent_to(driver.receive(msg.GetShardHome(("2",)), sender=client), client)
    assert again == [msg.ShardHomes(1, (home(C, 9, "2"),))]


def test_a_leaving_region_asks_until_the_coordinator_confirms() -> None:
    driver = RegionDriver()
    driver.host()
    bye = msg.GracefulShutdownRequest(ME)
    assert sent(driver.handle(ev.Shutdown())) == [bye]
    assert sent(driver.wait(4.0)) == [bye, bye]
    driver.receive(msg.HandOff(1, (home(ME, 5),)))
    assert ev.Drained() not in driver.handle(ev.ShardDown("1")), (
        "another shard may be on its way here"
    )
    assert ev.Drained() in driver.receive(msg.RegionStopped(ME))
    assert released(driver.send("m1") + driver.receive(homes(B, 6))) == [(B, ["m1"])]
    assert driver.handle(ev.Shutdown()) == []
    assert sent(driver.handle(ev.CoordinatorAt(C))) == [msg.Register(ME, True, LAYOUT, ())]


def test_a_region_that_never_had_a_coordinator_shuts_down_at_once() -> None:
    driver = RegionDriver(registered=False)
    assert ev.Drained() in driver.handle(ev.Shutdown())


def test_a_region_that_no_coordinator_has_registered_shuts_down_at_once() -> None:
    driver = RegionDriver(registered=False)
    driver.handle(ev.CoordinatorAt(C))
    assert ev.Drained() in driver.handle(ev.Shutdown()), "a shutdown waits for a node that is mute"


def test_an_empty_region_waits_half_a_second_for_a_coordinator_that_does_not_answer() -> None:
    driver = RegionDriver()
    assert ev.Drained() not in driver.handle(ev.Shutdown())
    assert ev.Drained() not in driver.wait(0.4)
    assert ev.Drained() in driver.wait(0.2)
    effects = driver.receive(msg.HostShard(1, (home(ME, 5),)))
    assert sent(effects) == [msg.ShardStopped(ME, (home(ME, 5),))]


def test_an_empty_region_that_ends_without_a_confirmation_registers_as_a_proxy() -> None:
    """Otherwise its coordinator gives it the same shards again and again."""
    driver = RegionDriver()
    driver.handle(ev.Shutdown())
    assert msg.Register(ME, True, LAYOUT, ()) in sent(driver.wait(0.6))
    confirmed = RegionDriver()
    confirmed.handle(ev.Shutdown())
    effects = confirmed.receive(msg.RegionStopped(ME)) + confirmed.wait(0.6)
    assert ev.Drained() in effects
    assert sent(effects) == [], "its coordinator knows"


def test_an_empty_region_that_lost_its_coordinator_waits_half_a_second() -> None:
    driver = RegionDriver()
    driver.handle(ev.CoordinatorAt(None))
    driver.handle(ev.Shutdown())
    assert ev.Drained() in driver.wait(0.6)


def test_a_region_with_shards_does_not_end_with_those_that_are_empty() -> None:
    driver = RegionDriver()
    driver.host()
    driver.handle(ev.Shutdown())
    driver.wait(0.2)
    driver.receive(msg.HandOff(1, (home(ME, 5),)))
    assert ev.Drained() not in driver.handle(ev.ShardDown("1")) + driver.wait(1.0), (
        "another shard may be on its way here"
    )


def test_a_region_that_lost_its_coordinator_waits_before_it_shuts_down_alone() -> None:
    driver = RegionDriver()
    driver.host()
    driver.handle(ev.CoordinatorAt(None))
    driver.handle(ev.Shutdown())
    assert ev.StopShard("1", 5) not in driver.wait(59.0)
    assert ev.StopShard("1", 5) in driver.wait(2.0)
    assert ev.Drained() in driver.handle(ev.ShardDown("1"))


def test_a_client_asks_and_never_registers() -> None:
    driver = RegionDriver(me=None, registered=False)
    assert driver.handle(ev.CoordinatorAt(B)) == []
    assert sent(driver.send("m1")) == [msg.GetShardHome(("1",))]
    assert released(driver.receive(homes(C, 5, epoch=0), sender=B)) == [(C, ["m1"])]
    assert sent(driver.handle(ev.CoordinatorAt(C))) == [msg.GetShardHome(("1",))], (
        "to hear of moves"
    )


def test_a_client_is_answered_and_gets_later_homes() -> None:
    driver = RegionDriver()
    driver.receive(homes(B, 5))
    question = msg.GetShardHome(("1", "2"))
    effects = driver.receive(question, sender=CLIENT)
    assert ev.Send(CLIENT, homes(B, 5)) in effects
    assert ev.Send(CLIENT, msg.Wait(1, ("2",), "the coordinator is asked")) in effects
    assert sent(effects) == [msg.GetShardHome(("2",))]
    assert ev.Send(CLIENT, homes(C, 6)) in driver.receive(homes(C, 6))
    driver.handle(ev.NodeGone(CLIENT))
    assert not [e for e in driver.receive(homes(B, 7)) if isinstance(e, ev.Send)]


# Faults around a hand-off


def test_a_region_that_has_shut_down_without_a_coordinator_starts_no_shard() -> None:
    driver = RegionDriver()
    driver.handle(ev.CoordinatorAt(None))
    driver.handle(ev.Shutdown())
    assert ev.Drained() in driver.wait(61.0)
    driver.handle(ev.CoordinatorAt(RULER))
    effects = driver.receive(msg.HostShard(1, (home(ME, 5),)))
    assert sent(effects) == [msg.ShardStopped(ME, (home(ME, 5),))]
    assert driver.region.hosted == ()


def test_a_shard_that_must_stop_up_to_a_higher_fence_does_not_start_below_it() -> None:
    driver = RegionDriver()
    driver.host(5)
    driver.receive(msg.HandOff(1, (home(ME, 7),)))
    stopped = driver.handle(ev.ShardDown("1"))
    assert sent(stopped) == [msg.ShardStopped(ME, (home(ME, 7),))]
    for fence in (6, 7):
        assert ev.StartShard("1", fence) not in driver.receive(msg.HostShard(1, (home(ME, fence),)))
    assert ev.StartShard("1", 8) in driver.receive(msg.HostShard(1, (home(ME, 8),)))


def test_a_hand_off_below_the_fence_of_a_planned_restart_does_not_cancel_it() -> None:
    driver = RegionDriver()
    driver.host(5)
    driver.receive(msg.HostShard(1, (home(ME, 9),)))
    driver.receive(msg.HandOff(1, (home(ME, 6),)))
    assert driver.handle(ev.ShardDown("1")) == [ev.StartShard("1", 9)]


def test_messages_never_sent_to_a_dead_home_go_before_those_that_wait() -> None:
    driver = RegionDriver()
    driver.receive(homes(B, 5))
    driver.receive(msg.BeginHandOff(1, (home(B, 5),)))
    driver.send("m3")
    returned = (("1", Message("m1")), ("1", Message("m2")))
    driver.handle(ev.NodeGone(B, returned))
    driver.send("m4")
    assert released(driver.receive(homes(C, 6))) == [(C, ["m1", "m2", "m3", "m4"])]


def test_a_shard_that_stops_before_it_runs_is_not_its_own_next_home() -> None:
    driver = RegionDriver()
    driver.send("m1")
    driver.receive(msg.HostShard(1, (home(ME, 5),)))
    driver.receive(msg.HandOff(1, (home(ME, 5),)))
    assert driver.region.home_of("1") is None
    driver.handle(ev.ShardDown("1"))
    assert msg.GetShardHome(("1",)) in sent(driver.wait(2.0))
    assert released(driver.receive(homes(B, 6))) == [(B, ["m1"])]


@pytest.mark.parametrize("hops", [SUSPECT_HOPS - 1, SUSPECT_HOPS])
def test_a_message_that_was_forwarded_often_makes_the_region_check_the_home(hops: int) -> None:
    driver = RegionDriver()
    driver.receive(homes(B, 5))
    effects = driver.send("m1", via=C, hops=hops)
    checked = msg.GetShardHome(("1",)) in sent(effects)
    assert checked is (hops >= SUSPECT_HOPS)
    assert bool(released(effects)) is not checked


@pytest.mark.parametrize("retry", [2.0, 45.0, 100.0])
def test_S3_59_a_flush_without_an_echo_is_given_up_after_a_minute_and_noted(retry: float) -> None:
    driver = RegionDriver(ShardingSettings(retry_interval=retry))
    driver.receive(homes(B, 5), homes(C, 6))
    driver.send("m1")
    effects = driver.wait(59.9)
    assert released(effects) == []
    assert [e for e in effects if isinstance(e, ev.Note)] == []
    effects = driver.wait(0.1)
    assert released(effects) == [(C, ["m1"])]
    [note] = [e for e in effects if isinstance(e, ev.Note)]
    assert (note.kind, note.count) == ("flush_given_up", 1)
    assert "shard 1" in note.detail
    assert str(B) in note.detail
    assert FLUSH_PATIENCE_S == 60.0


@pytest.mark.parametrize("retry", [0.5, 2.0, 10.0])
def test_S2_62_requests_are_repeated_at_the_interval_of_the_setting(retry: float) -> None:
    driver = RegionDriver(ShardingSettings(retry_interval=retry))
    driver.send("m1")
    for _ in range(3):
        assert sent(driver.wait(retry * 0.99)) == []
        assert sent(driver.wait(retry * 0.01)) == [msg.GetShardHome(("1",))]


@pytest.mark.parametrize("retry", [0.5, 2.0, 10.0])
def test_S2_62_registration_is_repeated_at_the_interval_of_the_setting(retry: float) -> None:
    driver = RegionDriver(ShardingSettings(retry_interval=retry), registered=False)
    driver.handle(ev.CoordinatorAt(RULER))
    driver.wait(10 * retry + 1.0)
    times = []
    for _ in range(3):
        due = driver.region.deadline()
        assert due is not None
        times.append(due)
        assert msg.Register(ME, False, LAYOUT, ()) in sent(driver.wait(due - driver.now))
    assert [after - before for before, after in pairwise(times)] == pytest.approx([retry] * 2)
