"""The rows of a type with instances, as a region routes them: those above N are no more."""

from __future__ import annotations

from dataclasses import dataclass

from shardbus.config.settings import ShardingSettings
from shardbus.ids import NodeId
from shardbus.sharding import events as ev
from shardbus.sharding import messages as msg
from shardbus.sharding.messages import Home
from shardbus.sharding.region.region import ShardRegion
from shardbus.sharding.region.route import REJECT_NO_INSTANCE, Absence

ME, PEER, CLIENT = (NodeId("10.0.0.1", port, port) for port in (1, 2, 3))


@dataclass(frozen=True)
class Word:
    text: str
    size: int = 1
    expired: bool = False
    any_instance: bool = False


def region() -> ShardRegion:
    made = ShardRegion("quote", ME, "crc32/9~N", ShardingSettings())
    made.handle(ev.CoordinatorAt(PEER), 0.0)
    made.handle(ev.MessageReceived(PEER, msg.RegisterAck(1, PEER, ())), 0.0)
    made.tick(0.0)
    return made


def rejected(effects: list[ev.RegionEffect]) -> list[str]:
    rejects = [e for e in effects if isinstance(e, ev.Reject) and e.reason == REJECT_NO_INSTANCE]
    return [e.message.text for e in rejects if isinstance(e.message, Word)]


def count(made: ShardRegion, number: int) -> list[ev.RegionEffect]:
    return made.handle(ev.MessageReceived(PEER, msg.InstanceCount(1, number)), 0.0)


def test_what_waits_for_a_row_above_N_is_rejected_and_what_comes_later() -> None:
    made = region()
    count(made, 3)
    for row, text in (("7~2", "two"), ("7~3", "three"), ("7~3", "four"), ("8", "plain")):
        assert rejected(made.handle(ev.Deliver(row, Word(text)), 0.0)) == []
    assert rejected(count(made, 2)) == ["three", "four"]
    assert made.buffered[0] == 2
    assert rejected(made.handle(ev.Deliver("7~3", Word("late")), 0.0)) == ["late"]
    assert rejected(made.handle(ev.Deliver("7~2", Word("good")), 0.0)) == []
    assert rejected(count(made, 3)) == []
    assert rejected(made.handle(ev.Deliver("7~3", Word("again")), 0.0)) == []


def test_what_a_dead_node_never_got_for_a_row_that_is_gone_is_rejected() -> None:
    made = region()
    count(made, 2)
    gone = ev.NodeGone(CLIENT, (("7~3", Word("back")), ("7~1", Word("kept"))))
    assert rejected(made.handle(gone, 0.0)) == ["back"]
    assert made.buffered[0] == 1


def homes(made: ShardRegion, *rows: str) -> list[str]:
    """Tell the region homes of rows, end the turn, and return its effects."""
    homes_ = tuple(Home(row, CLIENT, number) for number, row in enumerate(rows, 1))
    effects = made.handle(ev.MessageReceived(PEER, msg.ShardHomes(1, homes_)), 0.0)
    effects += made.tick(0.0)
    made.check()
    return rejected(effects)


def test_what_waits_for_a_row_without_a_home_goes_to_another_instance() -> None:
    made = region()
    count(made, 3)
    for row, text in (("7~1", "one"), ("7~1", "two"), ("6~1", "other shard"), ("8", "plain")):
        made.handle(ev.Deliver(row, Word(text, any_instance=True)), 0.0)
    made.handle(ev.Deliver("7~1", Word("bound")), 0.0)
    assert homes(made, "7~2", "8") == ["one", "two"]
    assert made.buffered[0] == 2
    assert homes(made, "7~3") == []


def test_a_message_stays_with_its_instance_if_that_gets_a_home_in_the_same_turn() -> None:
    made = region()
    made.handle(ev.Deliver("7~3", Word("one", any_instance=True)), 0.0)
    assert homes(made, "7~2", "7~3") == []
    assert made.buffered[0] == 0


def test_what_waits_for_a_row_that_starts_here_stays() -> None:
    made = region()
    made.handle(ev.MessageReceived(PEER, msg.HostShard(1, (Home("7~1", ME, 1),), ())), 0.0)
    made.handle(ev.Deliver("7~1", Word("one", any_instance=True)), 0.0)
    assert homes(made, "7~2") == []
    assert made.buffered[0] == 1


def test_a_client_learns_N_with_its_first_request_and_when_it_changes() -> None:
    made = region()
    count(made, 3)

    def sent(effects: list[ev.RegionEffect]) -> list[int]:
        answers = [e.message for e in effects if isinstance(e, ev.Send) and e.to == CLIENT]
        return [m.count for m in answers if isinstance(m, msg.InstanceCount)]

    question = ev.MessageReceived(CLIENT, msg.GetShardHome(("7~1",)))
    assert sent(made.handle(question, 0.0)) == [3]
    assert sent(made.handle(question, 0.0)) == []
    assert sent(count(made, 3)) == []
    assert sent(count(made, 2)) == [2]


def test_a_described_number_counts_until_the_coordinators_is_known() -> None:
    made = region()
    made.handle(ev.InstancesDescribed(5), 0.0)
    assert made.instances == 5
    made.handle(ev.InstancesDescribed(6), 0.0)
    assert made.instances == 5
    count(made, 2)
    assert made.instances == 2


def test_a_stale_coordinator_does_not_change_N() -> None:
    made = region()
    made.handle(ev.MessageReceived(PEER, msg.RegisterAck(4, PEER, ())), 0.0)
    count(made, 7)
    assert made.instances == 0


def test_homes_are_asked_for_without_a_message() -> None:
    made = region()
    made.handle(ev.Watch(("7~1", "7~2")), 0.0)
    questions = [e.message for e in made.tick(0.0) if isinstance(e, ev.SendCoordinator)]
    assert msg.GetShardHome(("7~1", "7~2")) in questions


def test_the_absence_of_a_home_has_its_reason() -> None:
    made = region()
    assert made.absence_of("7~1") == (Absence.NEVER, None)
    made.handle(ev.MessageReceived(PEER, msg.ShardHomes(1, (Home("7~1", CLIENT, 4),))), 0.0)
    begin = msg.BeginHandOff(1, (Home("7~1", CLIENT, 4),))
    made.handle(ev.MessageReceived(PEER, begin), 0.0)
    assert made.absence_of("7~1") == (Absence.MOVING, CLIENT)
    made.handle(ev.MessageReceived(PEER, msg.ShardHomes(1, (Home("7~2", CLIENT, 5),))), 0.0)
    made.handle(ev.NodeGone(CLIENT), 0.0)
    assert made.absence_of("7~2") == (Absence.DEAD, CLIENT)
