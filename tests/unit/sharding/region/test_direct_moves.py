"""The two homes of a direct move and its senders, as region machines in single steps.

N1 is the old home, N2 the new one, S a sender; the shard is 17, its fences are 1 and 2.
"""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import pytest

from shardbus.config.settings import ShardingSettings
from shardbus.ids import NodeId
from shardbus.sharding import events as ev
from shardbus.sharding import messages as msg
from shardbus.sharding.handoff_modes import MODES, NAMED
from shardbus.sharding.messages import Home, ShardMove
from shardbus.sharding.region import outgoing_moves as module
from shardbus.sharding.region.incoming_moves import ACK_PATIENCE_S
from shardbus.sharding.region.outgoing_moves import (
    FORWARD_S,
    GONE_MAX,
    TRANSITIONS,
    OutgoingMove,
    OutgoingPhase,
    OutgoingTrigger,
    mode_of,
)
from shardbus.sharding.region.region import HostedState, ShardRegion
from shardbus.sharding.region.route import LEFT_MAX
from shardbus.sharding.region.shutdown import EMPTY_S
from tests.records import replace
from tests.unit.sharding.sharding_process import Letter
from tests.unit.transition_tables import check_drawing, check_step

COORDINATOR, N1, N2, S, CLIENT = (NodeId("n", port, port) for port in (9, 1, 2, 3, 4))
OLD, NEW = Home("17", N1, 1), Home("17", N2, 2)
MOVE = ShardMove(OLD, NEW)
SENDERS = (N1, N2, S)
MODES_OF_MOVES = {text: mode for text, mode in MODES.items() if mode is not None}
EPOCH = 1


def letter(seq: int) -> Letter:
    return Letter("s", "17", "e", seq, S)


class Here:
    """One region, and its actions since the last look."""

    def __init__(self, me: NodeId | None) -> None:
        self.now = 0.0
        self.region = ShardRegion("t", me, "crc32/100", ShardingSettings())
        self.done: list[Any] = []
        self.do(ev.CoordinatorAt(COORDINATOR))
        self.got(COORDINATOR, msg.RegisterAck(EPOCH, COORDINATOR, (OLD,)))
        if me == N1:
            self.got(COORDINATOR, msg.HostShard(EPOCH, (OLD,)))
            self.do(ev.ShardReady("17"))
        self.look()

    def do(self, event: ev.RegionEvent) -> None:
        self.done += self.region.handle(event, self.now)
        self.tick()

    def tick(self) -> None:
        while (due := self.region.deadline()) is not None and due <= self.now:
            self.done += self.region.tick(self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.tick()

    def got(self, sender: NodeId, message: ev.Message) -> None:
        self.do(ev.MessageReceived(sender, message))

    def deliver(self, seq: int, via: NodeId | None) -> None:
        self.do(ev.Deliver("17", letter(seq), via))

    def look(self) -> list[Any]:
        done, self.done = self.done, []
        self.region.check()
        return done

    def sent(self) -> list[tuple[NodeId | None, type]]:
        """Messages to other nodes (None is the coordinator), without requests for homes."""
        sent_: list[tuple[NodeId | None, type]] = []
        for effect in self.look():
            if isinstance(effect, ev.Send):
                sent_.append((effect.to, type(effect.message)))
            elif isinstance(effect, ev.SendCoordinator):
                sent_.append((None, type(effect.message)))
        return [row for row in sent_ if row[1] not in (msg.GetShardHome, msg.ShardStarted)]

    def messages(self) -> list[tuple[NodeId, ev.Message]]:
        """Messages to other regions, whole."""
        return [(e.to, e.message) for e in self.look() if isinstance(e, ev.Send)]

    def released(self) -> list[tuple[NodeId, list[int]]]:
        return [
            (effect.node, [message.seq for message in effect.messages])
            for effect in self.look()
            if isinstance(effect, ev.Release)
        ]

    def rejected(self) -> list[tuple[int, str]]:
        return [(e.message.seq, e.reason) for e in self.look() if isinstance(e, ev.Reject)]


def old_home(mode: str = "ordered") -> Here:
    here = Here(N1)
    here.got(COORDINATOR, msg.BeginMove(EPOCH, mode, SENDERS, (MOVE,)))
    return here


def switched(mode: str = "ordered") -> Here:
    """The old home after it has handed the shard over."""
    here = old_home(mode)
    here.got(N2, msg.MovePrepared((MOVE,)))
    here.do(ev.ShardDown("17"))
    here.look()
    return here


def new_home(mode: str = "ordered", *, runs: bool = True) -> Here:
    here = Here(N2)
    here.got(N1, msg.PrepareMove(mode, SENDERS, (MOVE,)))
    if runs:
        here.got(N1, msg.Switch((MOVE,)))
        here.do(ev.ShardReady("17"))
        here.look()
    return here


def ack(sender: NodeId) -> msg.MoveAck:
    return msg.MoveAck(sender, (MOVE,))


# The diagram.


@pytest.mark.parametrize(("phase", "trigger"), list(product(OutgoingPhase, OutgoingTrigger)))
def test_every_trigger_in_every_phase(phase: OutgoingPhase, trigger: OutgoingTrigger) -> None:
    machine = OutgoingMove(MOVE, mode_of("ordered"), SENDERS, {}, phase)
    check_step(TRANSITIONS, lambda: machine.phase, machine.advance, trigger)


def test_the_diagram_names_every_phase_and_trigger() -> None:
    check_drawing(module, OutgoingPhase, OutgoingTrigger)


def test_an_unknown_mode_keeps_messages_and_their_order() -> None:
    assert mode_of("from a newer version") == mode_of("ordered")


# The old home.


def test_the_shard_runs_on_until_the_new_home_is_ready() -> None:
    here = old_home()
    assert here.sent() == [(N2, msg.PrepareMove)]
    assert here.region.state_of("17") is HostedState.RUNNING
    here.got(N2, msg.MovePrepared((MOVE,)))
    assert ev.StopShard("17", 1) in here.look()


def test_leftovers_go_before_what_waits_and_behind_switch() -> None:
    here = old_home()
    here.got(N2, msg.MovePrepared((MOVE,)))
    here.deliver(3, S)
    here.look()
    here.do(ev.ShardDown("17", (letter(1), letter(2))))
    done = here.look()
    sent = [e for e in done if isinstance(e, ev.Send | ev.Release)]
    assert [type(e) for e in sent] == [ev.Send, ev.Release]
    assert [message.seq for message in sent[1].messages] == [1, 2, 3]
    assert ev.SendCoordinator(msg.ShardMoved(N1, (MOVE,))) in done


@pytest.mark.parametrize("mode", ["forward/buffer/forward", "forward/open/forward"])
def test_option_2b_stops_at_once_and_forwards_before_the_new_home_is_ready(mode: str) -> None:
    here = old_home(mode)
    assert ev.StopShard("17", 1) in here.look()
    here.deliver(1, S)
    here.do(ev.ShardDown("17"))
    assert here.released() == [(N2, [1])]
    assert here.sent() == [], "the coordinator learns of the move once the new home is ready"
    here.got(N2, msg.MovePrepared((MOVE,)))
    assert (None, msg.ShardMoved) in here.sent()


@pytest.mark.parametrize("mode", ["drop", "drop/open/forward"])
def test_option_2c_drops_what_comes_and_what_is_left(mode: str) -> None:
    here = old_home(mode)
    here.look()
    here.deliver(1, S)
    here.deliver(2, None)
    here.do(ev.ShardDown("17", (letter(3),)))
    reason = "dropped_in_move"
    assert here.rejected() == [(1, reason), (2, reason), (3, reason)]


@pytest.mark.parametrize("via", [S, CLIENT])
@pytest.mark.parametrize(
    ("mode", "drops"), [("ordered", False), ("drop/open/forward", False), ("drop", True)]
)
def test_options_4a_and_4b_until_every_sender_has_acknowledged(
    mode: str, drops: bool, via: NodeId
) -> None:
    """A client does not acknowledge. Its messages of the meantime go the way of the rest."""
    here = switched(mode)
    here.deliver(1, via)
    assert here.rejected() == ([(1, "dropped_in_move")] if drops else [])
    for sender in SENDERS:
        here.got(sender, ack(sender))
    here.deliver(2, CLIENT)
    assert here.released() == [(N2, [2])], "the home is known, and this is not it"


def test_a_flush_is_no_message_and_is_never_dropped() -> None:
    here = switched("drop")
    here.do(ev.Deliver("17", Letter("", "17", "", 0, S, flush_id=1), S))
    assert here.rejected() == []


def test_options_2a_3a_hand_over_while_entities_still_run() -> None:
    here = old_home("forward")
    here.look()
    here.got(N2, msg.MovePrepared((MOVE,)))
    assert here.sent() == [(N2, msg.Switch), (None, msg.ShardMoved)]
    here.deliver(1, S)
    assert here.released() == [(N2, [1])]
    for sender in SENDERS:
        here.got(sender, ack(sender))
    here.do(ev.ShardDown("17", (letter(0),)))
    assert here.released() == [(N2, [0])]


def test_the_old_home_counts_five_acknowledgements_and_its_own() -> None:
    others = tuple(NodeId("n", port, port) for port in range(20, 25))
    here = Here(N1)
    here.got(COORDINATOR, msg.BeginMove(EPOCH, "ordered", (N1, *others), (MOVE,)))
    here.got(N2, msg.MovePrepared((MOVE,)))
    here.do(ev.ShardDown("17"))
    here.got(COORDINATOR, msg.HomesMoved(EPOCH, "ordered", (MOVE,)))  # its own
    here.look()
    for sender in others:
        assert here.region.moving == ("17",)
        here.got(sender, ack(sender))
        assert here.sent() == [(N2, msg.MoveAck)]
    assert here.region.moving == ()


def test_an_acknowledgement_in_the_name_of_another_node_does_not_count() -> None:
    here = switched()
    here.got(CLIENT, ack(S))
    assert here.sent() == []


def test_the_old_home_stops_counting_after_a_while_and_forwards_late_acknowledgements() -> None:
    here = switched()
    here.pass_time(FORWARD_S)
    assert here.region.moving == ()
    here.look()
    here.got(S, ack(S))
    assert here.sent() == [(N2, msg.MoveAck)]


def test_an_acknowledgement_does_not_overtake_messages_that_wait_at_the_old_home() -> None:
    """A late message of the new home looks like a circle: it waits for the coordinator's answer."""
    here = switched()
    here.pass_time(FORWARD_S)
    here.deliver(1, N2)
    here.look()
    here.got(N2, ack(N2))
    assert here.sent() == []
    here.got(COORDINATOR, msg.ShardHomes(EPOCH, (NEW,)))
    [released] = [e for e in here.look() if isinstance(e, ev.Release)]
    assert (released.node, [m.seq for m in released.messages]) == (N2, [1])
    here.got(N2, ack(N2))
    assert here.sent() == [(N2, msg.MoveAck)]


def test_a_sender_that_is_gone_is_acknowledged_behind_its_messages() -> None:
    here = switched()
    here.do(ev.NodeGone(S))
    assert here.sent() == [(N2, msg.MoveAck)]


@pytest.mark.parametrize("when", ["before the move", "before the switch", "afterwards"])
def test_the_new_home_gets_the_acknowledgement_of_a_sender_that_is_gone(when: str) -> None:
    """It may ask before the old home knows, and after the old home has stopped counting."""
    here = Here(N1)
    if when == "before the move":
        here.do(ev.NodeGone(S))
    here.got(COORDINATOR, msg.BeginMove(EPOCH, "ordered", SENDERS, (MOVE,)))
    if when == "before the switch":
        here.do(ev.NodeGone(S))
    here.got(N2, msg.MovePrepared((MOVE,)))
    here.do(ev.ShardDown("17"))
    here.pass_time(FORWARD_S)
    if when == "afterwards":
        here.got(N2, msg.AckWanted((MOVE,)))
        assert (N2, ack(S)) not in here.messages()
        here.do(ev.NodeGone(S))
    here.look()
    here.got(N2, msg.AckWanted((MOVE,)))
    assert here.messages().count((N2, ack(S))) == 1


def refusal() -> msg.MoveCancelled:
    return msg.MoveCancelled((MOVE,))


def test_a_shard_that_its_new_home_refuses_runs_on() -> None:
    here = old_home()
    here.look()
    here.got(N2, refusal())
    assert here.sent() == [(None, msg.MoveRefused)]
    assert here.region.state_of("17") is HostedState.RUNNING


def test_a_shard_that_is_refused_while_it_stops_is_reported_as_stopped() -> None:
    here = old_home("drop")
    here.got(N2, refusal())
    here.look()
    here.do(ev.ShardDown("17"))
    assert here.sent() == [(None, msg.ShardStopped)]


def test_a_shard_that_is_refused_after_it_stopped_is_reported_as_stopped() -> None:
    here = old_home("drop")
    here.do(ev.ShardDown("17"))
    here.look()
    here.got(N2, refusal())
    assert here.sent() == [(None, msg.ShardStopped)]
    here.got(N2, msg.MovePrepared((MOVE,)))
    assert here.sent() == [(N2, msg.MoveCancelled)], "it has not moved"


def test_a_refusal_after_the_new_home_was_prepared_changes_nothing() -> None:
    here = switched("drop")
    here.got(N2, refusal())
    assert here.sent() == []


def test_a_new_home_without_an_answer_to_a_stopped_shard_is_asked_again_and_again() -> None:
    here = old_home("drop")
    here.do(ev.ShardDown("17"))
    here.look()
    for _ in range(3):
        here.pass_time(FORWARD_S)
        assert here.messages() == [(N2, msg.PrepareMove("drop", SENDERS, (MOVE,)))]
    here.got(N2, msg.MovePrepared((MOVE,)))
    assert (None, msg.ShardMoved) in here.sent()


@pytest.mark.parametrize("mode", ["drop", "forward/buffer/forward"])
def test_a_repeated_command_ends_the_wait_for_a_new_home_without_an_answer(mode: str) -> None:
    """The coordinator asks again after `handoff_timeout`, and knows whether the new home lives."""
    here = old_home(mode)
    begin = msg.BeginMove(EPOCH, mode, SENDERS, (MOVE,))
    here.got(COORDINATOR, begin)
    assert (None, msg.ShardMoved) not in here.sent(), "the shard is not handed over"
    here.do(ev.ShardDown("17"))
    here.look()
    here.got(COORDINATOR, begin)
    assert here.sent() == [(None, msg.ShardMoved)]
    here.pass_time(FORWARD_S)
    assert (N2, msg.PrepareMove) not in here.sent()
    here.pass_time(100.0)
    assert here.region.deadline() is None or here.region.deadline() > here.now


@pytest.mark.parametrize("mode", NAMED)
def test_a_shard_does_not_leave_for_a_node_that_is_gone(mode: str) -> None:
    here = Here(N1)
    here.do(ev.NodeGone(N2))
    here.look()
    here.got(COORDINATOR, msg.BeginMove(EPOCH, mode, SENDERS, (MOVE,)))
    assert here.sent() == [(None, msg.MoveRefused)]
    assert here.region.state_of("17") is HostedState.RUNNING


def test_a_deadline_of_an_earlier_move_does_not_end_the_next_one_of_the_shard() -> None:
    """The shard came back before every sender had acknowledged, and its entities stop slowly."""
    here = switched("drop")
    back = Home("17", N1, 3)
    here.got(COORDINATOR, msg.HostShard(EPOCH, (back,)))
    here.do(ev.ShardReady("17"))
    (flush,) = [effect for effect in here.look() if isinstance(effect, ev.SendFlush)]
    here.do(ev.FlushDone("17", flush.flush_id))
    again = ShardMove(back, Home("17", N2, 4))
    here.got(COORDINATOR, msg.BeginMove(EPOCH, "drop", SENDERS, (again,)))
    here.look()
    here.pass_time(FORWARD_S + 1)
    assert here.messages() == []
    here.got(N2, msg.MovePrepared((again,)))
    here.do(ev.ShardDown("17"))
    assert here.sent() == [(N2, msg.Switch), (None, msg.ShardMoved)]


def test_a_shard_that_comes_back_while_its_entities_still_stop_starts_again_after_that() -> None:
    """Options 2a 3a: it was handed over before they had stopped."""
    here = old_home("forward")
    here.got(N2, msg.MovePrepared((MOVE,)))
    for sender in SENDERS[1:]:
        here.got(sender, ack(sender))
    here.got(COORDINATOR, msg.HomesMoved(EPOCH, "forward", (MOVE,)))
    back = Home("17", N1, 3)
    here.got(COORDINATOR, msg.HostShard(EPOCH, (back,)))
    assert not any(isinstance(effect, ev.StartShard) for effect in here.look())
    here.do(ev.ShardDown("17", (letter(1),)))
    done = here.look()
    assert ev.StartShard("17", 3) in done
    assert [e.node for e in done if isinstance(e, ev.Release)] == [N2], "N2 sends it on"
    here.do(ev.ShardReady("17"))
    assert here.region.state_of("17") is HostedState.RUNNING


def test_a_shard_that_waits_for_its_new_home_is_handed_off_if_the_coordinator_says_so() -> None:
    """The next coordinator does not know of the move, for its store was set back."""
    here = old_home()
    here.look()
    here.got(COORDINATOR, msg.HandOff(EPOCH, (OLD,)))
    done = here.look()
    assert ev.Send(N2, refusal()) in done
    assert ev.StopShard("17", 1) in done
    here.do(ev.ShardDown("17"))
    assert here.sent() == [(None, msg.ShardStopped)]
    here.got(N2, msg.MovePrepared((MOVE,)))
    assert here.sent() == [(N2, msg.MoveCancelled)]


@pytest.mark.parametrize("stops", [False, True])
def test_a_shard_with_a_newer_home_is_not_handed_over(stops: bool) -> None:
    """The store had lost the move, and the shard got another home."""
    here = old_home()
    if stops:
        here.got(N2, msg.MovePrepared((MOVE,)))
    here.look()
    here.got(COORDINATOR, msg.ShardHomes(EPOCH + 1, (Home("17", S, 3),)))
    assert here.messages() == [(N2, refusal())]
    here.got(N2, msg.MovePrepared((MOVE,)))
    assert here.messages() == [(N2, refusal())]
    here.do(ev.ShardDown("17", (letter(1),)))
    done = here.look()
    assert [(e.message.seq, e.reason) for e in done if isinstance(e, ev.Reject)] == [(1, "stopped")]
    assert not any(isinstance(effect, ev.Send) for effect in done)


@pytest.mark.parametrize("mode", ["drop", "ordered"])
def test_a_shard_that_leaves_already_is_not_handed_off_too(mode: str) -> None:
    here = old_home(mode)
    here.got(N2, msg.MovePrepared((MOVE,)))
    here.look()
    here.got(COORDINATOR, msg.HandOff(EPOCH, (OLD,)))
    assert here.sent() == []
    here.do(ev.ShardDown("17"))
    assert (None, msg.ShardMoved) in here.sent()


def test_a_new_home_answers_again_and_refuses_what_has_ended() -> None:
    here = new_home()
    here.got(N1, msg.PrepareMove("ordered", SENDERS, (MOVE,)))
    assert here.messages() == [(N1, msg.MovePrepared((MOVE,), carries=True))]
    here.do(ev.ShardDown("17"))
    here.look()
    here.got(N1, msg.PrepareMove("ordered", SENDERS, (MOVE,)))
    assert here.messages() == [(N1, refusal())]


def test_a_region_that_has_shut_down_refuses_shards() -> None:
    here = Here(N2)
    here.do(ev.Shutdown())
    here.pass_time(EMPTY_S)
    here.look()
    here.got(N1, msg.PrepareMove("ordered", SENDERS, (MOVE,)))
    assert here.messages() == [(N1, refusal())]


def test_a_region_that_knows_a_newer_home_refuses_the_shard() -> None:
    """The store has lost the move, and the old home receives both late. Nothing would stop the
    shard here: the news of the newer home has come already."""
    here = Here(N2)
    here.got(COORDINATOR, msg.ShardHomes(EPOCH + 1, (Home("17", S, 3),)))
    here.look()
    here.got(N1, msg.PrepareMove("ordered", SENDERS, (MOVE,)))
    assert here.messages() == [(N1, refusal())]
    assert here.region.state_of("17") is None


def test_the_old_home_that_is_asked_does_not_acknowledge_for_itself() -> None:
    """Messages of its own senders before HomesMoved may still wait here."""
    here = switched()
    here.got(N2, msg.AckWanted((MOVE,)))
    assert here.messages() == []
    assert here.region.moving == ("17",)


def test_only_the_new_home_gets_the_acknowledgement_of_a_sender_that_is_gone() -> None:
    here = switched()
    here.do(ev.NodeGone(S))
    here.look()
    here.got(CLIENT, msg.AckWanted((MOVE,)))
    assert here.messages() == []


def test_the_old_home_remembers_a_bounded_number_of_nodes_that_are_gone() -> None:
    here = switched()
    here.do(ev.NodeGone(S))
    for number in range(GONE_MAX):
        here.do(ev.NodeGone(NodeId("gone", 1, number + 1)))
    here.look()
    here.got(N2, msg.AckWanted((MOVE,)))
    assert here.messages() == []


def test_messages_of_the_new_home_itself_are_no_circle() -> None:
    here = switched()
    here.deliver(1, N2)
    assert here.released() == [(N2, [1])]


def test_a_new_home_that_dies_before_it_is_ready_does_not_get_the_shard() -> None:
    here = old_home()
    here.look()
    here.do(ev.NodeGone(N2))
    assert here.sent() == [(None, msg.MoveRefused)]
    assert here.region.state_of("17") is HostedState.RUNNING


def test_a_new_home_without_an_answer_does_not_get_the_shard() -> None:
    here = old_home()
    here.look()
    here.pass_time(ShardingSettings().shard_start_timeout)
    assert (N2, msg.MoveCancelled) in here.sent()
    assert here.region.moving == ()
    here.got(N2, msg.MovePrepared((MOVE,)))
    assert here.sent() == [(N2, msg.MoveCancelled)]


def test_a_shard_that_stops_for_a_dead_new_home_is_reported_with_what_is_left() -> None:
    here = old_home()
    here.got(N2, msg.MovePrepared((MOVE,)))
    here.do(ev.NodeGone(N2))
    here.do(ev.ShardDown("17", (letter(1),)))
    assert ev.SendCoordinator(msg.ShardStopped(N1, (OLD,), ("17",))) in here.look()


def test_a_repeated_command_changes_nothing_and_is_answered_once_the_shard_has_moved() -> None:
    here = old_home()
    here.look()
    here.got(COORDINATOR, msg.BeginMove(EPOCH, "ordered", SENDERS, (MOVE,)))
    assert here.sent() == []
    here = switched()
    for command in (msg.BeginMove(EPOCH, "ordered", SENDERS, (MOVE,)), msg.HandOff(EPOCH, (OLD,))):
        here.got(COORDINATOR, command)
        assert here.sent() == [(None, msg.ShardMoved)]


def test_a_shard_that_is_not_here_is_reported_as_stopped() -> None:
    here = Here(S)
    move = ShardMove(Home("17", S, 1), NEW)
    here.got(COORDINATOR, msg.BeginMove(EPOCH, "ordered", SENDERS, (move,)))
    assert here.sent() == [(None, msg.ShardStopped)]


# The new home.


def test_nothing_runs_before_switch_and_the_old_home_is_reminded() -> None:
    here = new_home(runs=False)
    assert here.sent() == [(N1, msg.MovePrepared)]
    assert here.region.hosted == ()
    here.pass_time(ShardingSettings().retry_interval)
    assert (N1, msg.MovePrepared) in here.sent()
    here.got(N1, msg.Switch((MOVE,)))
    assert ev.StartShard("17", 2) in here.look()


def test_a_direct_message_waits_for_the_acknowledgement_behind_forwarded_ones() -> None:
    """S3.59: forwarded, ack, then direct."""
    here = new_home()
    here.deliver(2, S)
    assert here.released() == []
    assert here.region.buffered == (1, 10)
    here.deliver(1, N1)
    assert here.released() == [(N2, [1])]
    here.got(N1, ack(S))
    assert here.released() == [(N2, [2])]
    here.deliver(3, S)
    assert here.released() == [(N2, [3])]


def test_option_3a_keeps_nothing() -> None:
    here = new_home("forward")
    assert here.region.moving == ()
    here = new_home("forward", runs=False)
    here.got(N1, msg.Switch((MOVE,)))
    here.deliver(1, N1)
    here.deliver(2, S)
    here.do(ev.ShardReady("17"))
    done = here.look()
    assert ev.SetArrivals("17", True) in done
    assert ev.SendCoordinator(msg.MoveComplete(N2, (MOVE,))) in done


def test_the_move_is_complete_with_the_last_acknowledgement_and_opens_for_all() -> None:
    here = new_home()
    here.got(N1, ack(S))
    assert here.sent() == []
    here.got(N1, ack(N2))
    done = here.look()
    assert ev.SetArrivals("17", True) in done
    assert ev.SendCoordinator(msg.MoveComplete(N2, (MOVE,))) in done
    assert here.region.moving == ()


def test_a_move_that_was_complete_is_reported_again_to_the_next_coordinator() -> None:
    here = new_home("forward")
    here.got(COORDINATOR, msg.HomesMoved(EPOCH + 1, "forward", (MOVE,)))
    assert (None, msg.MoveComplete) in here.sent()


def test_a_shard_that_has_stopped_since_it_moved_here_is_reported_as_stopped() -> None:
    """The store was set back to the time of the move; the next coordinator takes it up again."""
    here = new_home("drop")
    here.got(COORDINATOR, msg.HandOff(EPOCH, (NEW,)))
    here.do(ev.ShardDown("17"))
    here.look()
    here.got(COORDINATOR, msg.HomesMoved(EPOCH, "drop", (MOVE,)))
    assert (None, msg.ShardStopped) in here.sent()


def test_a_shard_that_never_came_is_reported_as_stopped() -> None:
    here = Here(N2)
    here.got(COORDINATOR, msg.HomesMoved(EPOCH, "drop", (MOVE,)))
    assert here.sent()[-1] == (None, msg.ShardStopped)
    here.got(N1, msg.PrepareMove("drop", SENDERS, (MOVE,)))
    assert here.sent() == [(N1, msg.MoveCancelled)], "it may have another home by now"


def test_a_move_that_is_not_complete_is_not_reported_as_such() -> None:
    here = new_home()
    here.got(COORDINATOR, msg.HomesMoved(EPOCH, "ordered", (MOVE,)))
    assert (None, msg.MoveComplete) not in here.sent()
    later = new_home("forward")
    at_a_later_home = ShardMove(OLD, Home("17", N2, 3))
    later.got(COORDINATOR, msg.HomesMoved(EPOCH, "forward", (at_a_later_home,)))
    assert (None, msg.MoveComplete) not in later.sent()


def test_a_client_is_let_in_because_its_flush_keeps_its_order() -> None:
    here = new_home()
    here.deliver(1, CLIENT)
    assert here.released() == [(N2, [1])]


def test_a_late_sender_is_asked_and_given_up_in_the_end() -> None:
    here = new_home()
    here.deliver(1, S)
    here.look()
    here.pass_time(ShardingSettings().retry_interval)
    sent = here.sent()
    assert (S, msg.AckWanted) in sent
    assert (N1, msg.AckWanted) in sent
    here.pass_time(ACK_PATIENCE_S)
    done = here.look()
    assert any(isinstance(e, ev.Note) and e.kind == "ack_given_up" for e in done)
    assert any(isinstance(e, ev.Release) for e in done)


def test_every_buffer_opens_when_the_old_home_is_gone() -> None:
    here = new_home()
    here.deliver(1, S)
    here.do(ev.NodeGone(N1))
    assert (N2, [1]) in here.released()
    assert here.region.moving == ()


def test_a_prepared_shard_starts_at_the_coordinators_command_only() -> None:
    here = new_home(runs=False)
    here.do(ev.NodeGone(N1))
    assert ev.StartShard("17", 2) not in here.look()
    here.got(COORDINATOR, msg.HostShard(EPOCH, (NEW,)))
    assert ev.StartShard("17", 2) in here.look()


@pytest.mark.parametrize("reported", [False, True])
@pytest.mark.parametrize("node", [N2, S])
def test_a_prepared_shard_that_no_coordinator_knows_gets_a_home_when_its_old_one_is_gone(
    node: NodeId, reported: bool
) -> None:
    """Switch was lost, and the store has lost the move. Senders use the new home already."""
    here = new_home(runs=False)
    if reported:
        here.got(COORDINATOR, msg.HomesMoved(EPOCH, "ordered", (MOVE,)))
    here.deliver(1, S)
    here.do(ev.NodeGone(N1))
    here.look()
    for _ in range(2):
        here.pass_time(ShardingSettings().retry_interval)
        done = here.look()
        assert ev.SendCoordinator(msg.GetShardHome(("17",))) in done
        assert not any(isinstance(effect, ev.Send) for effect in done)
    home = Home("17", node, 3)
    if node == N2:
        here.got(COORDINATOR, msg.HostShard(EPOCH + 1, (home,)))
        assert ev.StartShard("17", 3) in here.look()
        here.do(ev.ShardReady("17"))
    here.got(COORDINATOR, msg.ShardHomes(EPOCH + 1, (home,)))
    assert here.released() == [(node, [1])]
    assert here.region.moving == ()


def test_a_prepared_shard_that_must_move_on_starts_first() -> None:
    here = new_home(runs=False)
    on = ShardMove(NEW, Home("17", S, 3))
    here.got(COORDINATOR, msg.BeginMove(EPOCH, "ordered", SENDERS, (on,)))
    assert ev.StartShard("17", 2) in here.look()
    here.do(ev.ShardReady("17"))
    here.do(ev.NodeGone(N1, ()))
    assert (S, msg.PrepareMove) in here.sent()


def test_a_cancelled_move_leaves_nothing_behind() -> None:
    here = new_home("forward/buffer/forward", runs=False)
    here.deliver(1, S)
    here.got(N1, msg.MoveCancelled((MOVE,)))
    assert here.region.moving == ()
    assert here.region.state_of("17") is None
    assert here.released() == [(N1, [1])]


def test_what_is_kept_is_bounded() -> None:
    here = Here(N2)
    here.region = ShardRegion("t", N2, "crc32/100", replace(ShardingSettings(), buffer_size=2))
    here.do(ev.CoordinatorAt(COORDINATOR))
    here.got(N1, msg.PrepareMove("ordered", SENDERS, (MOVE,)))
    for seq in range(4):
        here.deliver(seq, S)
    assert here.rejected() == [(2, "buffer_full"), (3, "buffer_full")]


# Senders.


def test_a_sender_acknowledges_on_the_old_link_and_then_sends_to_the_new_home() -> None:
    here = Here(S)
    here.got(COORDINATOR, msg.HomesMoved(EPOCH, "ordered", (MOVE,)))
    done = [e for e in here.look() if isinstance(e, ev.Send | ev.SetRoute | ev.SendFlush)]
    assert done[0] == ev.Send(N1, ack(S))
    assert done[-1] == ev.SetRoute("17", N2)
    assert not any(isinstance(e, ev.SendFlush) for e in done)


def test_a_sender_that_is_asked_acknowledges_again() -> None:
    here = Here(S)
    here.got(COORDINATOR, msg.HomesMoved(EPOCH, "ordered", (MOVE,)))
    here.look()
    here.got(N2, msg.AckWanted((MOVE,)))
    assert here.sent() == [(N1, msg.MoveAck)]


@pytest.mark.parametrize(("mode", "kept"), [("ordered", False), ("forward", True)])
def test_what_comes_back_from_a_dead_old_home_does_not_go_behind_later_messages(
    mode: str, kept: bool
) -> None:
    """The new home may have later ones already, and may have opened since the old one is gone. A
    mode without an order sends it on."""
    here = Here(S)
    here.got(COORDINATOR, msg.HomesMoved(EPOCH, mode, (MOVE,)))
    here.look()
    here.do(ev.NodeGone(N1, (("17", letter(1)),)))
    done = here.look()
    rejected = [(e.message.seq, e.reason) for e in done if isinstance(e, ev.Reject)]
    released = [e.node for e in done if isinstance(e, ev.Release)]
    assert (rejected, released) == (([], [N2]) if kept else ([(1, "stopped")], []))


@pytest.mark.parametrize("mode", MODES_OF_MOVES)
def test_a_client_needs_a_flush_only_in_a_mode_with_an_order(mode: str) -> None:
    """Its contact reports a move without an order as such."""
    contact = Here(S)
    contact.got(CLIENT, msg.GetShardHome(("17",)))
    contact.look()
    contact.got(COORDINATOR, msg.HomesMoved(EPOCH, mode, (MOVE,)))
    (news,) = [message for to, message in contact.messages() if to == CLIENT]
    client = Here(None)
    client.got(COORDINATOR, msg.ShardHomes(EPOCH, (OLD,)))
    client.look()
    client.got(COORDINATOR, news)
    done = client.look()
    ordered = MODES_OF_MOVES[mode].keeps_order
    assert any(isinstance(effect, ev.SendFlush) for effect in done) == ordered
    assert (ev.SetRoute("17", N2) in done) != ordered
    assert not any(isinstance(effect, ev.Send) for effect in done)


@pytest.mark.parametrize(("mode", "news"), [("ordered", msg.ShardHomes), ("drop", msg.HomesMoved)])
def test_the_old_home_reports_the_move_to_its_clients_when_it_hands_over(
    mode: str, news: type
) -> None:
    here = Here(N1)
    here.got(CLIENT, msg.GetShardHome(("17",)))
    here.got(COORDINATOR, msg.BeginMove(EPOCH, mode, SENDERS, (MOVE,)))
    here.got(N2, msg.MovePrepared((MOVE,)))
    here.look()
    here.do(ev.ShardDown("17"))
    here.got(COORDINATOR, msg.HomesMoved(EPOCH, mode, (MOVE,)))
    assert [type(message) for to, message in here.messages() if to == CLIENT] == [news]


@pytest.mark.parametrize(("mode", "refused"), [("ordered", [1]), ("forward", [])])
def test_what_a_dead_new_home_gives_back_of_others_does_not_go_behind_their_later_messages(
    mode: str, refused: list[int]
) -> None:
    """Their senders may have acknowledged, and use the next home by themselves. Messages of the old
    home itself go on, and a Flush, for which its sender waits."""
    here = switched(mode)
    forwarded, last, flush = letter(1), letter(2), replace(letter(3), flush_id=1)
    forwarded.hops = flush.hops = 1
    here.do(ev.NodeGone(N2, tuple(("17", message) for message in (forwarded, last, flush))))
    assert here.rejected() == [(seq, "stopped") for seq in refused]
    here.got(COORDINATOR, msg.ShardHomes(EPOCH, (Home("17", S, 3),)))
    assert here.released() == [(S, [seq for seq in (1, 2, 3) if seq not in refused])]


# How the shard left the new home without the old one: it died, or a still newer home is known.
DIED = (ev.NodeGone(N2, ()),)
LIVES_ELSEWHERE = (
    ev.MessageReceived(COORDINATOR, msg.ShardHomes(EPOCH, (Home("17", CLIENT, 3),))),
)


@pytest.mark.parametrize("left", [DIED, LIVES_ELSEWHERE, DIED + LIVES_ELSEWHERE])
@pytest.mark.parametrize(
    ("mode", "acked", "refused"),
    [("ordered", False, [1]), ("ordered", True, []), ("forward", False, [])],
)
def test_what_comes_when_the_shard_has_left_the_new_home_does_not_go_behind_later_messages(
    left: tuple[ev.RegionEvent, ...], mode: str, acked: bool, refused: list[int]
) -> None:
    """A sender that has not acknowledged may have sent later ones to the newest home. One that has
    does not know of the move any more when it sends here. A Flush goes on in any case."""
    here = switched(mode)
    if acked:
        here.got(S, ack(S))
    for event in left:
        here.do(event)
    here.look()
    here.deliver(1, S)
    assert here.rejected() == [(seq, "stopped") for seq in refused]
    here.do(ev.Deliver("17", replace(letter(2), flush_id=1), S))
    if not acked:
        here.got(S, ack(S))
    here.deliver(3, S)
    assert here.rejected() == []


def test_an_acknowledgement_that_never_came_refuses_nothing_once_the_shard_has_come_back() -> None:
    here = switched()
    here.do(ev.NodeGone(N2, ()))
    here.pass_time(FORWARD_S)
    again = Home("17", N1, 3)
    here.got(COORDINATOR, msg.HostShard(EPOCH, (again,)))
    here.do(ev.ShardReady("17"))
    here.got(COORDINATOR, msg.HandOff(EPOCH, (again,)))
    here.do(ev.ShardDown("17"))
    here.look()
    here.deliver(1, S)
    assert here.rejected() == []


def test_a_client_that_knows_another_home_leaves_it_with_a_flush() -> None:
    client = Here(None)
    later = ShardMove(Home("17", S, 2), Home("17", N2, 3))
    client.got(COORDINATOR, msg.HomesMoved(EPOCH, "forward", (later,)))
    assert ev.SendFlush("17", N1, 1) in client.look()


def test_what_a_dead_old_home_has_forwarded_arrives_before_later_messages() -> None:
    """It forwarded to a home in between, which still has it: the next Flush goes there."""
    here = Here(S)
    between, last = Home("17", N2, 2), Home("17", COORDINATOR, 3)
    here.got(COORDINATOR, msg.ShardHomes(EPOCH, (between,)))
    here.got(COORDINATOR, msg.ShardHomes(EPOCH, (last,)))
    assert ev.SendFlush("17", N1, 1) in here.look()
    here.deliver(1, None)
    here.do(ev.NodeGone(N1, ()))
    assert ev.SendFlush("17", N2, 2) in here.look()
    assert here.released() == []
    here.do(ev.FlushDone("17", 2))
    assert here.released() == [(COORDINATOR, [1])]


def test_no_home_in_between_that_is_dead_too_is_waited_for() -> None:
    here = Here(S)
    here.got(COORDINATOR, msg.ShardHomes(EPOCH, (NEW,)))
    here.got(COORDINATOR, msg.ShardHomes(EPOCH, (Home("17", COORDINATOR, 3),)))
    here.deliver(1, None)
    here.do(ev.NodeGone(N2, ()))
    here.look()
    here.do(ev.NodeGone(N1, ()))
    assert here.released() == [(COORDINATOR, [1])]


def test_a_sender_remembers_a_bounded_number_of_old_homes() -> None:
    here = Here(S)
    homes = [Home("17", NodeId("m", port, port), port) for port in range(10, 30)]
    for old, new in pairwise([OLD, *homes]):
        here.got(COORDINATOR, msg.HomesMoved(EPOCH, "ordered", (ShardMove(old, new),)))
    assert len(here.region.routing._route("17").unflushed_homes) == LEFT_MAX


def test_local_senders_of_the_new_home_wait_until_its_own_acknowledgement_is_back() -> None:
    here = new_home()
    here.got(COORDINATOR, msg.HomesMoved(EPOCH, "ordered", (MOVE,)))
    here.look()
    here.deliver(1, None)
    assert here.released() == []
    here.got(N1, ack(N2))
    assert here.released() == [(N2, [1])]


# Carried states.

CARRIED = msg.CarriedEntity("t", "e", b"state", b"data")


def carried_by(effects: list[ev.RegionEffect]) -> list[msg.Carry | msg.Switch]:
    messages = (
        message.message for message in effects if isinstance(message, ev.Send) and message.to == N2
    )
    return [message for message in messages if isinstance(message, msg.Carry | msg.Switch)]


def test_what_entities_carry_precedes_switch() -> None:
    here = old_home()
    here.got(N2, msg.MovePrepared((MOVE,), carries=True))
    here.look()
    here.do(ev.ShardDown("17", (), (CARRIED,)))
    assert carried_by(here.look()) == [msg.Carry(MOVE, (CARRIED,)), msg.Switch((MOVE,))]


def test_a_new_home_that_does_not_take_it_gets_switch_alone() -> None:
    here = old_home()
    here.got(N2, msg.MovePrepared((MOVE,)))
    here.look()
    here.do(ev.ShardDown("17", (), (CARRIED,)))
    assert carried_by(here.look()) == [msg.Switch((MOVE,))]


def test_no_message_exceeds_the_bounds() -> None:
    large = [CARRIED._replace(id=f"l{n}", data=bytes(msg.CARRIED_BYTES_MAX // 2)) for n in range(3)]
    small = [CARRIED._replace(id=f"s{n}") for n in range(msg.CARRIED_MAX + 1)]
    here = old_home()
    here.got(N2, msg.MovePrepared((MOVE,), carries=True))
    here.look()
    here.do(ev.ShardDown("17", (), (*large, *small)))
    *parts, last = carried_by(here.look())
    assert last == msg.Switch((MOVE,))
    sent = [part.entities for part in parts if isinstance(part, msg.Carry)]
    assert [message for part in sent for message in part] == [*large, *small]
    assert all(len(part) <= msg.CARRIED_MAX for part in sent)
    assert all(sum(message.size for message in part) <= msg.CARRIED_BYTES_MAX for part in sent)


def starts(here: Here) -> list[ev.StartShard]:
    return [effect for effect in here.look() if isinstance(effect, ev.StartShard)]


def test_the_shard_starts_with_what_was_carried() -> None:
    here = new_home(runs=False)
    here.got(N1, msg.Carry(MOVE, (CARRIED,)))
    here.got(N1, msg.Carry(MOVE, (CARRIED._replace(id="f"),)))
    here.look()
    here.got(N1, msg.Switch((MOVE,)))
    assert starts(here) == [ev.StartShard("17", 2, (CARRIED, CARRIED._replace(id="f")))]


def test_what_comes_from_another_node_or_too_late_is_refused() -> None:
    here = new_home(runs=False)
    here.got(COORDINATOR, msg.Carry(MOVE, (CARRIED,)))
    here.got(N1, msg.Switch((MOVE,)))
    assert starts(here) == [ev.StartShard("17", 2)]
    here.got(N1, msg.Carry(MOVE, (CARRIED,)))
    notes = [effect.kind for effect in here.look() if isinstance(effect, ev.Note)]
    assert notes == ["carry_refused"]


def test_what_exceeds_the_bound_of_a_node_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardbus.sharding.region.incoming_moves.CARRY_MAX", 10)
    here = new_home(runs=False)
    here.got(N1, msg.Carry(MOVE, (CARRIED,)))
    here.got(N1, msg.Carry(MOVE, (CARRIED._replace(id="f"),)))
    here.got(N1, msg.Switch((MOVE,)))
    effects = here.look()
    assert [effect for effect in effects if isinstance(effect, ev.StartShard)] == [
        ev.StartShard("17", 2, (CARRIED,))
    ]
    assert "carry_refused" in [effect.kind for effect in effects if isinstance(effect, ev.Note)]


@pytest.mark.parametrize(("fence", "reports"), [(2, 1), (EPOCH << 32 | 2, 0)])
def test_an_arrival_is_reported_if_a_former_coordinator_has_moved_it(
    fence: int, reports: int
) -> None:
    new = Home("17", N2, fence)
    move = ShardMove(OLD, new)
    here = Here(N2)
    here.got(N1, msg.PrepareMove("ordered", SENDERS, (move,)))
    here.got(N1, msg.Switch((move,)))
    sent_ = [e.message for e in here.look() if isinstance(e, ev.SendCoordinator)]
    assert [m.hosted for m in sent_ if isinstance(m, msg.Register)] == [(new,)] * reports
