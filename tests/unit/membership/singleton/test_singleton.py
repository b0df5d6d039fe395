"""The singleton machine as a truth table, and the rules behind it one by one."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from shardbus.config.settings import SingletonSettings
from shardbus.errors import LocalProtocolError
from shardbus.ids import NodeId
from shardbus.membership.known_types import announced
from shardbus.membership.member import Member, Status
from shardbus.membership.singleton import messages as ho
from shardbus.membership.singleton.singleton import (
    TRANSITIONS,
    Singleton,
    SingletonState,
    SingletonTrigger,
)
from shardbus.membership.view import MembershipView
from tests.records import replace

WAITS = SingletonSettings(
    hand_over_retry_interval=0.75,
    silence_timeout=3.0,
    hand_over_timeout=6.0,
    retire_timeout=4.0,
    restart_backoff=1.5,
)
"""All of them other than the defaults."""
RETRY = WAITS.hand_over_retry_interval

A, ME, C, D = (NodeId(name, 1, uid + 1) for uid, name in enumerate(("a", "me", "c", "d")))
NAMES = {A: "A", ME: "me", C: "C", D: "D"}
UP, LEAVING, EXITING, DOWN = Status.UP, Status.LEAVING, Status.EXITING, Status.DOWN


def seen(
    *,
    unreachable: tuple[NodeId, ...] = (),
    terminated: tuple[NodeId, ...] = (),
    epoch: int = 0,
    preparing: bool = False,
    roles: tuple[str, ...] = (),
    **statuses: Status,
) -> ho.MembershipSeen:
    """A picture; the members are as old as their letters: `a`, then `me`, `c`, `d`."""
    nodes = {"a": A, "me": ME, "c": C, "d": D}
    members = tuple(
        Member(nodes[name], 1, status=status, up_number=nodes[name].uid, roles=roles)
        for name, status in statuses.items()
    )
    epochs = {"t": epoch} if epoch else {}
    view = MembershipView(ME, members, (*unreachable, *terminated), terminated, epochs=epochs)
    return ho.MembershipSeen(view, preparing)


def aged(event: ho.MembershipSeen, me: int) -> ho.MembershipSeen:
    """The same picture with another age of this node."""
    members = tuple(
        replace(member, up_number=me) if member.node == ME else member
        for member in event.view.members
    )
    return replace(event, view=replace(event.view, members=members))


ALL_UP = seen(a=UP, me=UP, c=UP)
A_LEAVES = seen(a=LEAVING, me=UP, c=UP)
I_LEAVE = seen(a=LEAVING, me=LEAVING, c=UP)


class Bench:
    """A machine under test, its clock, and its effects as words."""

    def __init__(self, *events: ho.Event, margin: float = 0.0, role: str = "") -> None:
        self.machine = Singleton("t", ME, role, margin, WAITS)
        self.now = 0.0
        self.turns: set[tuple[str, str, str]] = set()
        self.do(*events)

    def do(self, *events: ho.Event) -> list[str]:
        """The results of these."""
        effects = [effect for event in events for effect in self.machine.handle(event, self.now)]
        self.machine.check()
        return self.words(effects)

    def hear(self, sender: NodeId, message: ho.Message) -> list[str]:
        return self.do(ho.HandOverReceived(sender, message))

    def wait(self, seconds: float) -> list[str]:
        """Time passes, deadline by deadline."""
        said: list[str] = []
        until = self.now + seconds
        while (due := self.machine.deadline()) is not None and due <= until:
            assert due >= self.now, "a deadline in the past"
            self.now = due
            said += self.words(self.machine.tick(due))
            self.machine.check()
        self.now = until
        return said

    def words(self, effects: Iterable[ho.Effect]) -> list[str]:
        """The effects, but for turns, which are gathered."""
        said = []
        for effect in effects:
            match effect:
                case ho.SendHandOver(to, message):
                    said.append(f"{type(message).__name__} {NAMES[to]}")
                case ho.StartInstance(epoch):
                    said.append(f"StartInstance {epoch}")
                case ho.SingletonStateChanged(before, after, why):
                    self.turns.add((before, after, why))
                case _:
                    said.append(type(effect).__name__)
        return said

    @property
    def state(self) -> SingletonState:
        return self.machine.state


def standing(state: SingletonState) -> Bench:
    """A machine in that state, by the way it gets there. A is older and leaving, C is younger."""
    bench = Bench(ALL_UP)
    if state is SingletonState.YOUNGER:
        return bench
    bench.do(A_LEAVES)
    if state is SingletonState.BECOMING_OLDEST:
        return bench
    bench.wait(WAITS.silence_timeout)
    bench.do(ho.InstanceStarted(7))
    if state is SingletonState.OLDEST:
        return bench
    bench.do(I_LEAVE)
    if state is SingletonState.WAS_OLDEST:
        return bench
    bench.hear(C, ho.HandOverToMe(7))
    if state is SingletonState.HANDING_OVER:
        return bench
    bench.do(ho.InstanceStopped())
    return bench


EVENTS: dict[str, ho.Event | None] = {
    "all up": ALL_UP,
    "A leaves": A_LEAVES,
    "A exits": seen(a=EXITING, me=UP, c=UP),
    "A is gone": seen(me=UP, c=UP),
    "A is dead": seen(a=LEAVING, me=UP, c=UP, terminated=(A,)),
    "A is down": seen(a=DOWN, me=UP, c=UP),
    "A leaves, preparing": seen(a=LEAVING, me=UP, c=UP, preparing=True),
    "I leave": I_LEAVE,
    "I leave, preparing": seen(a=LEAVING, me=LEAVING, c=UP, preparing=True),
    "I leave, the last": seen(a=LEAVING, me=LEAVING),
    "I am down": seen(a=LEAVING, me=DOWN, c=UP),
    "I am removed": seen(c=UP),
    "left": ho.MembershipEnded(True),
    "downed": ho.MembershipEnded(False),
    "A: TakeOverFromMe": ho.HandOverReceived(A, ho.TakeOverFromMe(8)),
    "A: HandOverToMe": ho.HandOverReceived(A, ho.HandOverToMe(8)),
    "A: HandOverInProgress": ho.HandOverReceived(A, ho.HandOverInProgress(8)),
    "A: HandOverDone": ho.HandOverReceived(A, ho.HandOverDone(8)),
    "C: HandOverToMe": ho.HandOverReceived(C, ho.HandOverToMe(8)),
    "C: HandOverDone": ho.HandOverReceived(C, ho.HandOverDone(8)),
    "D, no member: HandOverToMe": ho.HandOverReceived(D, ho.HandOverToMe(8)),
    "ruling": ho.InstanceStarted(9),
    "over": ho.InstanceStopped(),
    "the first deadline": None,
}


TABLE: dict[SingletonState, dict[str, tuple[str, str]]] = {
    SingletonState.YOUNGER: {
        "A leaves": ("becoming oldest", "HandOverToMe A, PrepareInstance"),
        "A exits": ("becoming oldest", "HandOverToMe A, PrepareInstance"),
        "A is gone": ("becoming oldest", "PrepareInstance"),
        "A is dead": ("oldest", "StartInstance 0"),
        "A is down": ("oldest", "StartInstance 0"),
        "I leave": ("ended", ""),
        "I leave, preparing": ("ended", ""),
        "I leave, the last": ("ended", ""),
        "I am down": ("ended", ""),
        "I am removed": ("ended", ""),
        "left": ("ended", ""),
        "downed": ("ended", ""),
        "A: TakeOverFromMe": ("becoming oldest", "HandOverToMe A, PrepareInstance"),
        "A: HandOverDone": ("oldest", "StartInstance 8"),
        "the first deadline": ("younger", "nothing is due"),
    },
    SingletonState.BECOMING_OLDEST: {
        "all up": ("younger", "HaltInstance"),
        "A is dead": ("oldest", "StartInstance 0"),
        "A is down": ("oldest", "StartInstance 0"),
        "A leaves, preparing": ("younger", "HaltInstance"),
        "I leave": ("ended", "HaltInstance"),
        "I leave, preparing": ("ended", "HaltInstance"),
        "I leave, the last": ("ended", "HaltInstance"),
        "I am down": ("ended", "HaltInstance"),
        "I am removed": ("ended", "HaltInstance"),
        "left": ("ended", "HaltInstance"),
        "downed": ("ended", "HaltInstance"),
        "A: TakeOverFromMe": ("becoming oldest", "HandOverToMe A"),
        "A: HandOverDone": ("oldest", "StartInstance 8"),
        "the first deadline": ("becoming oldest", "HandOverToMe A"),
    },
    SingletonState.OLDEST: {
        "all up": ("younger", "HaltInstance"),
        "I leave": ("was oldest", "TakeOverFromMe C"),
        "I leave, preparing": ("handing over", "RetireInstance"),
        "I leave, the last": ("handing over", "RetireInstance"),
        "I am down": ("ended", "HaltInstance"),
        "I am removed": ("ended", "HaltInstance"),
        "left": ("handing over", "RetireInstance"),
        "downed": ("ended", "HaltInstance"),
        "A: TakeOverFromMe": ("oldest", "HandOverToMe A"),
        "the first deadline": ("oldest", "nothing is due"),
    },
    SingletonState.WAS_OLDEST: {
        "all up": ("was oldest", "TakeOverFromMe A"),
        "A leaves": ("was oldest", "TakeOverFromMe me"),
        "A exits": ("was oldest", "TakeOverFromMe me"),
        "A is gone": ("was oldest", "TakeOverFromMe me"),
        "A is dead": ("was oldest", "TakeOverFromMe me"),
        "A is down": ("was oldest", "TakeOverFromMe me"),
        "A leaves, preparing": ("was oldest", "TakeOverFromMe me"),
        "I leave, preparing": ("handing over", "RetireInstance"),
        "I leave, the last": ("handing over", "RetireInstance"),
        "I am down": ("ended", "HaltInstance"),
        "I am removed": ("handing over", "RetireInstance"),
        "left": ("handing over", "RetireInstance"),
        "downed": ("ended", "HaltInstance"),
        "A: HandOverToMe": ("handing over", "HandOverInProgress A, RetireInstance"),
        "C: HandOverToMe": ("handing over", "HandOverInProgress C, RetireInstance"),
        "C: HandOverDone": ("handing over", "RetireInstance"),
        "over": ("ended", "HandOverDone C"),
        "the first deadline": ("was oldest", "TakeOverFromMe C"),
    },
    SingletonState.HANDING_OVER: {
        "I am down": ("ended", "HaltInstance"),
        "downed": ("ended", "HaltInstance"),
        "A: HandOverToMe": ("handing over", "HandOverInProgress A"),
        "C: HandOverToMe": ("handing over", "HandOverInProgress C"),
        "over": ("ended", "HandOverDone C"),
        "the first deadline": ("ended", "HaltInstance, HandOverDone C"),
    },
    SingletonState.ENDED: {
        "A: HandOverToMe": ("ended", "HandOverDone A"),
        "C: HandOverToMe": ("ended", "HandOverDone C"),
        "the first deadline": ("ended", "nothing is due"),
    },
}
"""State and event to the state after and the actions. In a state without the event, it changes
nothing."""


def meet(bench: Bench, event: ho.Event | None) -> list[str]:
    """The event, or the first deadline."""
    if event is not None:
        return bench.do(event)
    due = bench.machine.deadline()
    return bench.wait(due - bench.now) if due is not None else ["nothing is due"]


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("state", SingletonState, ids=lambda state: state.value)
def test_every_event_in_every_state(state: SingletonState, name: str) -> None:
    bench = standing(state)
    assert bench.state is state
    said = meet(bench, EVENTS[name])
    assert (bench.state.value, ", ".join(said)) == TABLE[state].get(name, (state.value, ""))


def test_the_table_has_no_other_events() -> None:
    assert {name for events in TABLE.values() for name in events} <= EVENTS.keys()


def test_every_arrow_of_the_drawing_is_walked_and_no_other() -> None:
    walked: set[tuple[str, str, str]] = set()
    for state in SingletonState:
        for event in EVENTS.values():
            bench = standing(state)
            meet(bench, event)
            walked |= bench.turns
        late = standing(state)
        late.wait(10.0)
        walked |= late.turns
    drawn = {(s.value, after.value, cue.value) for (s, cue), after in TRANSITIONS.items()}
    assert walked == drawn


def test_an_arrow_that_is_not_drawn_is_refused() -> None:
    machine = Singleton("t", ME, settings=WAITS)
    with pytest.raises(LocalProtocolError, match="'asked to hand over' in YOUNGER"):
        machine._transition(SingletonTrigger.ASKED, 0.0)
    assert machine.state is SingletonState.YOUNGER


# -- who starts, and when ------------------------------------------------------------------------


def test_TG6_the_first_node_starts_at_once_when_it_is_up() -> None:
    bench = Bench()
    assert bench.do(seen(me=Status.JOINING)) == []
    assert bench.do(seen(me=Status.WEAKLY_UP)) == []
    assert bench.do(seen(me=UP)) == ["StartInstance 0"]
    assert bench.machine.deadline() is None


def test_TG1_who_takes_over_from_the_dead_waits_for_nobody() -> None:
    assert Bench(ALL_UP).do(seen(a=DOWN, me=UP, terminated=(A,))) == ["StartInstance 0"]
    assert Bench(ALL_UP).do(seen(a=DOWN, me=UP, unreachable=(A,))) == ["StartInstance 0"]
    dying = Bench(ALL_UP, seen(a=UP, me=UP, c=UP, unreachable=(A,)))
    assert dying.do(seen(me=UP, c=UP)) == ["StartInstance 0"]


def test_B97_questions_are_repeated_and_end() -> None:
    bench = Bench(ALL_UP, A_LEAVES)
    assert bench.wait(WAITS.silence_timeout - 0.01) == ["HandOverToMe A"] * int(
        (WAITS.silence_timeout - 0.01) / RETRY
    )
    assert bench.wait(0.01) == ["StartInstance 0"]
    assert bench.state is SingletonState.OLDEST


def test_B97_one_that_is_finishing_is_waited_for_longer_but_not_for_ever() -> None:
    bench = Bench(ALL_UP, A_LEAVES)
    bench.hear(A, ho.HandOverInProgress(3))
    for _ in range(2):
        bench.wait(WAITS.hand_over_timeout / 2 - 0.01)
        bench.hear(A, ho.HandOverInProgress(3))
    assert bench.state is SingletonState.BECOMING_OLDEST
    assert bench.wait(0.03)[-1:] == ["StartInstance 3"]
    assert bench.state is SingletonState.OLDEST


def test_B97_who_is_next_once_more_asks_and_waits_anew() -> None:
    """It had gone on without one that was silent, and has become the youngest since."""
    bench = Bench(A_LEAVES)
    assert bench.wait(WAITS.silence_timeout)[-1] == "StartInstance 0"
    assert bench.do(aged(A_LEAVES, me=9)) == ["HaltInstance"]
    assert bench.do(aged(seen(a=LEAVING, me=UP), me=9)) == ["HandOverToMe A", "PrepareInstance"]
    assert bench.wait(WAITS.silence_timeout)[-1] == "StartInstance 0"


def test_B97_an_instance_that_does_not_finish_is_stopped() -> None:
    bench = standing(SingletonState.HANDING_OVER)
    assert bench.wait(WAITS.retire_timeout - 0.01) == []
    assert bench.wait(0.01) == ["HaltInstance", "HandOverDone C"]
    assert WAITS.retire_timeout < WAITS.hand_over_timeout


def test_the_end_is_announced_to_those_who_follow_if_the_next_oldest_leaves_as_well() -> None:
    """C may be leaving already, and this node, which is no member any more, cannot see it: D awaits
    the end of both."""
    bench = Bench(seen(me=UP, c=UP, d=UP), seen(me=LEAVING, c=UP, d=UP))
    bench.hear(C, ho.HandOverToMe(7))
    assert bench.do(ho.InstanceStopped()) == ["HandOverDone C", "HandOverDone D"]


def test_B97_one_that_is_never_asked_stops_in_the_end() -> None:
    bench = standing(SingletonState.WAS_OLDEST)
    said = bench.wait(WAITS.hand_over_timeout)
    assert said.count("TakeOverFromMe C") == int(WAITS.hand_over_timeout / RETRY) - 1
    assert said[-1] == "RetireInstance"
    assert bench.do(ho.InstanceStopped()) == ["HandOverDone C"]


def test_epochs_are_begun_above_the_highest_heard_of() -> None:
    bench = Bench(seen(a=UP, me=UP, epoch=4), A_LEAVES)
    assert bench.hear(A, ho.HandOverDone(6)) == ["StartInstance 6"]
    dead = seen(a=DOWN, me=UP, epoch=9)
    assert Bench(seen(a=UP, me=UP, epoch=4)).do(dead) == ["StartInstance 9"]


def test_TG5_several_that_leave_are_all_waited_for() -> None:
    bench = Bench(seen(a=UP, me=LEAVING, c=UP))
    assert bench.state is SingletonState.ENDED
    third = Bench()
    third.machine = Singleton("t", C, settings=WAITS)
    both = MembershipView(C, seen(a=LEAVING, me=LEAVING, c=UP).view.members)
    assert third.do(ho.MembershipSeen(both)) == [
        "HandOverToMe A",
        "HandOverToMe me",
        "PrepareInstance",
    ]
    assert bench.hear(C, ho.HandOverToMe(0)) == ["HandOverDone C"]
    assert third.hear(ME, ho.HandOverDone(0)) == []
    assert third.hear(A, ho.HandOverDone(5)) == ["StartInstance 5"]


def test_TG5_the_last_one_just_ends() -> None:
    bench = Bench(seen(me=UP))
    assert bench.do(seen(me=LEAVING)) == ["RetireInstance"]
    assert bench.do(ho.InstanceStopped()) == []
    assert bench.state is SingletonState.ENDED


def test_TG5_another_heir_is_told_when_the_first_goes() -> None:
    bench = Bench(seen(me=UP, c=UP, d=UP))
    assert bench.do(seen(me=LEAVING, c=UP, d=UP)) == ["TakeOverFromMe C"]
    assert bench.do(seen(me=LEAVING, c=DOWN, d=UP)) == ["TakeOverFromMe D"]
    assert bench.hear(D, ho.HandOverToMe(0)) == ["HandOverInProgress D", "RetireInstance"]


def test_one_that_asks_too_early_is_answered_when_this_node_knows_that_it_leaves() -> None:
    bench = Bench(seen(me=UP, c=UP))
    assert bench.hear(C, ho.HandOverToMe(0)) == []
    said = bench.do(seen(me=LEAVING, c=UP))
    assert said[-2:] == ["HandOverInProgress C", "RetireInstance"]
    young = Bench(ALL_UP)
    assert young.hear(C, ho.HandOverToMe(0)) == []
    assert young.do(seen(a=UP, me=LEAVING, c=UP)) == ["HandOverDone C"]


def test_TG9_the_word_of_one_that_leaves_counts_before_membership_brings_it() -> None:
    bench = Bench(ALL_UP)
    assert bench.hear(A, ho.TakeOverFromMe(2)) == ["HandOverToMe A", "PrepareInstance"]
    assert bench.do(ALL_UP) == []
    assert bench.hear(A, ho.HandOverDone(2)) == ["StartInstance 2"]
    assert bench.do(ALL_UP) == []
    assert bench.state is SingletonState.OLDEST


def test_TG10_another_incarnation_at_the_same_address_is_another_node() -> None:
    again = A._replace(uid=99)
    bench = Bench(ALL_UP, A_LEAVES)
    members = (*A_LEAVES.view.members, Member(again, 1, status=UP, up_number=9))
    assert bench.do(ho.MembershipSeen(MembershipView(ME, members))) == []
    assert bench.hear(again, ho.HandOverDone(3)) == []
    assert bench.state is SingletonState.BECOMING_OLDEST
    assert bench.hear(A, ho.HandOverDone(3)) == ["StartInstance 3"]


def test_TG3_a_downed_node_stops_at_once_and_says_nothing() -> None:
    for state in (SingletonState.OLDEST, SingletonState.WAS_OLDEST, SingletonState.HANDING_OVER):
        for event in (seen(a=UP, me=DOWN, c=UP), ho.MembershipEnded(False)):
            bench = standing(state)
            assert bench.do(event) == ["HaltInstance"]
            assert bench.state is SingletonState.ENDED


def test_TG7_nothing_is_handed_over_while_the_whole_cluster_stops() -> None:
    oldest = Bench(seen(me=UP, c=UP))
    assert oldest.do(seen(me=UP, c=UP, preparing=True)) == []
    assert oldest.do(seen(me=LEAVING, c=UP, preparing=True)) == ["RetireInstance"]
    assert oldest.do(ho.InstanceStopped()) == []
    younger = Bench(ALL_UP)
    assert younger.do(seen(me=UP, c=UP, preparing=True)) == []
    assert younger.state is SingletonState.YOUNGER


def test_an_instance_that_ends_by_itself_begins_again() -> None:
    bench = standing(SingletonState.OLDEST)
    assert bench.do(ho.InstanceStopped()) == []
    assert bench.wait(WAITS.restart_backoff - 0.01) == []
    assert bench.wait(0.01) == ["StartInstance 7"]
    bench.do(ho.InstanceStopped())
    bench.do(I_LEAVE)
    bench.hear(C, ho.HandOverToMe(7))
    assert "StartInstance 7" not in bench.wait(WAITS.restart_backoff)


def test_only_members_with_the_role_take_part() -> None:
    bench = Bench(seen(a=UP, me=UP, roles=("db",)), role="db")
    assert bench.do(seen(a=UP, me=LEAVING, roles=("db",))) == []
    assert Bench(seen(a=UP, me=UP), role="db").state is SingletonState.YOUNGER
    mine = Member(ME, 1, status=UP, up_number=2, roles=("db",))
    other = Member(A, 1, status=LEAVING, up_number=1)
    lone = Bench(role="db")
    assert lone.do(ho.MembershipSeen(MembershipView(ME, (other, mine)))) == ["StartInstance 0"]
    assert lone.hear(A, ho.HandOverToMe(1)) == []


# -- those that have left ------------------------------------------------------------------------


def test_TG9_one_that_has_left_is_waited_for_until_it_says_that_it_is_done() -> None:
    bench = Bench(ALL_UP, A_LEAVES, seen(me=UP, c=UP))
    assert bench.wait(1.0) == []
    assert bench.hear(A, ho.HandOverDone(4)) == ["StartInstance 4"]


def test_TG9_one_that_has_left_and_says_nothing_is_not_waited_for_longer() -> None:
    bench = Bench(ALL_UP, seen(me=UP, c=UP))
    assert bench.wait(WAITS.silence_timeout - 0.01) == []
    assert bench.wait(0.01) == ["StartInstance 0"]


def test_TG5_one_that_has_left_is_of_no_account_once_another_one_has_taken_over() -> None:
    third = Bench()
    third.machine = Singleton("t", C, settings=WAITS)

    def view(epoch: int, **statuses: Status) -> ho.MembershipSeen:
        return ho.MembershipSeen(replace(seen(epoch=epoch, **statuses).view, me=C))

    third.do(view(1, a=UP, me=UP, c=UP), view(1, a=LEAVING, me=UP, c=UP), view(1, me=UP, c=UP))
    third.do(view(2, me=UP, c=UP))
    assert third.do(view(2, me=LEAVING, c=UP)) == ["HandOverToMe me", "PrepareInstance"]
    assert third.hear(ME, ho.HandOverDone(2)) == ["StartInstance 2"]


def test_TG5_one_that_left_long_ago_is_of_no_account() -> None:
    third = Bench()
    third.machine = Singleton("t", C, settings=WAITS)

    def view(**statuses: Status) -> ho.MembershipSeen:
        return ho.MembershipSeen(replace(seen(epoch=1, **statuses).view, me=C))

    third.do(view(a=UP, me=UP, c=UP), view(me=UP, c=UP))
    third.now = WAITS.silence_timeout
    assert third.do(view(me=DOWN, c=UP)) == ["StartInstance 1"]


# -- the margin after a downing without proof ----------------------------------------------------

CUT = seen(a=UP, me=UP, unreachable=(A,))


def test_B34_the_margin_counts_from_when_the_older_one_was_cut_off() -> None:
    bench = Bench(seen(a=UP, me=UP), CUT, margin=5.0)
    bench.wait(2.0)
    assert bench.do(seen(a=DOWN, me=UP, unreachable=(A,))) == ["PrepareInstance"]
    bench.wait(1.0)
    assert bench.do(seen(me=UP)) == []
    assert bench.wait(1.99) == []
    assert bench.wait(0.01) == ["StartInstance 0"]


def test_B34_a_margin_that_the_downing_has_waited_is_not_waited_again() -> None:
    bench = Bench(seen(a=UP, me=UP), CUT, margin=5.0)
    bench.wait(6.0)
    assert bench.do(seen(a=DOWN, me=UP, unreachable=(A,))) == ["StartInstance 0"]


def test_B34_there_is_no_margin_after_proof_or_a_proper_leave() -> None:
    dead = seen(a=DOWN, me=UP, terminated=(A,))
    assert Bench(seen(a=UP, me=UP), CUT, margin=5.0).do(dead) == ["StartInstance 0"]
    assert Bench(dead, margin=5.0).do(seen(me=UP)) == []
    bench = Bench(seen(a=UP, me=UP), seen(a=EXITING, me=UP), margin=5.0)
    bench.hear(A, ho.HandOverDone(3))
    assert bench.do(seen(me=UP)) == []
    assert bench.state is SingletonState.OLDEST


def test_B34_one_that_vanished_while_it_was_cut_off_is_taken_for_downed() -> None:
    bench = Bench(seen(a=UP, me=UP), CUT, margin=5.0)
    assert bench.do(seen(me=UP)) == ["PrepareInstance"]
    assert bench.wait(5.0) == ["StartInstance 0"]


def test_B34_one_that_is_reachable_again_and_leaves_has_no_margin() -> None:
    bench = Bench(seen(a=UP, me=UP), CUT, seen(a=UP, me=UP), margin=5.0)
    assert bench.do(seen(a=LEAVING, me=UP)) == ["HandOverToMe A", "PrepareInstance"]
    assert bench.hear(A, ho.HandOverDone(1)) == ["StartInstance 1"]


# -- members without the entity type --------------------------------------------------------------

OTHERS = announced(("another type",))


def without(event: ho.MembershipSeen, *nodes: NodeId) -> ho.MembershipSeen:
    """The same picture; these members do not have the entity type."""
    members = tuple(
        replace(member, features=OTHERS) if member.node in nodes else member
        for member in event.view.members
    )
    return replace(event, view=replace(event.view, members=members))


def test_the_oldest_that_has_the_type_rules_beside_older_members() -> None:
    assert Bench(without(ALL_UP, A)).state is SingletonState.OLDEST
    assert Bench(ALL_UP).state is SingletonState.YOUNGER
    first = Bench()
    first.machine = Singleton("t", C, settings=WAITS)
    younger = without(ALL_UP, A)
    assert first.do(replace(younger, view=replace(younger.view, me=C))) == []


def test_older_members_without_the_type_are_not_awaited_and_hand_nothing_over() -> None:
    bench = Bench(without(A_LEAVES, A))
    assert bench.state is SingletonState.OLDEST
    assert bench.hear(A, ho.TakeOverFromMe(3)) == []
    assert bench.machine.epoch == 0


def test_the_last_that_has_a_removed_type_hands_it_to_none() -> None:
    """It would wait for a request that the others never send."""
    bench = Bench(without(seen(me=UP, c=UP, d=UP), C, D))
    bench.do(ho.InstanceStarted(1))
    assert bench.do(without(seen(me=LEAVING, c=UP, d=UP), C, D)) == ["RetireInstance"]
    assert bench.do(ho.InstanceStopped()) == []


def test_the_next_that_has_the_type_takes_over_from_the_oldest_that_had_it() -> None:
    bench = Bench(without(seen(a=UP, me=UP, c=UP), C))
    bench.wait(1.0)
    bench = Bench(
        without(seen(a=UP, me=UP, c=UP, d=UP), C), without(seen(a=UP, me=LEAVING, c=UP, d=UP), C)
    )
    assert bench.state is SingletonState.ENDED, "A rules"
    bench = Bench(without(seen(me=UP, c=UP, d=UP), C))
    bench.do(ho.InstanceStarted(1))
    leaving = without(seen(me=LEAVING, c=UP, d=UP), C)
    assert bench.do(leaving) == ["TakeOverFromMe D"], "C is older, and does not have it"


def test_an_answer_that_the_type_is_missing_counts_as_an_announcement() -> None:
    bench = Bench(ALL_UP)
    assert bench.do(ho.TypeMissing(A)) == ["StartInstance 0"]
    assert bench.do(ALL_UP) == []
    assert bench.do(A_LEAVES) == []
    assert bench.state is SingletonState.OLDEST


def test_a_node_that_waits_for_an_older_one_begins_when_that_does_not_have_the_type() -> None:
    bench = Bench(ALL_UP, A_LEAVES)
    assert bench.state is SingletonState.BECOMING_OLDEST
    assert bench.do(ho.TypeMissing(A)) == ["StartInstance 0"]


def test_what_a_node_answered_is_forgotten_with_it() -> None:
    bench = Bench(ALL_UP, ho.TypeMissing(A))
    bench.do(seen(me=UP, c=UP))
    assert not bench.machine._predecessors._without
