"""The door of the cluster from both sides, step by step. T.U10, T.U12, T.U13."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from shardbus.config.settings import ClusterSettings
from shardbus.ids import ID_BYTES_MAX, Address, NodeId
from shardbus.membership import joining
from shardbus.membership.admission import WAITING_MAX, Admission, admit, cookie_of
from shardbus.membership.events import SendControl, Unsubscribe
from shardbus.membership.gossip import Gossip
from shardbus.membership.join_contacts import NACK_LASTS
from shardbus.membership.joining import (
    Joiner,
    JoinPhase,
    JoinProgress,
    JoinStep,
    JoinTrigger,
    disagreement,
)
from shardbus.membership.member import Member, Status
from shardbus.membership.messages import (
    PROTOCOL,
    Greeting,
    HeartbeatReply,
    InitAck,
    InitJoin,
    InitNack,
    Join,
    JoinRefused,
    Trial,
    TrialResult,
    Welcome,
)
from shardbus.membership.reachability import Flag
from shardbus.membership.trials import HEARD_S
from shardbus.wire.gossip import decode, encode
from tests.records import replace
from tests.unit.membership.test_gossip import A, B, C, member, state
from tests.unit.transition_tables import check_drawing, check_step

GREETING = Greeting("shop", PROTOCOL, {"shards": "100"})
DEFAULTS = ClusterSettings()
NEW = NodeId("n", 7355, 7)
J, W, U, PREPARING, READY, L, X, DOWN, _ = Status


@pytest.mark.parametrize(
    ("theirs", "why"),
    [
        (GREETING, ""),
        (replace(GREETING, cluster="bank"), "cluster name 'bank' is not 'shop'"),
        (
            replace(GREETING, protocol=PROTOCOL - 1),
            f"membership protocol {PROTOCOL - 1} is not {PROTOCOL}: see docs/upgrading.md",
        ),
        (replace(GREETING, protocol=PROTOCOL + 1, oldest=PROTOCOL), ""),
        (
            replace(GREETING, protocol=PROTOCOL + 3, oldest=PROTOCOL + 1),
            f"membership protocol {PROTOCOL + 1} to {PROTOCOL + 3} is not {PROTOCOL}: "
            "see docs/upgrading.md",
        ),
        (
            replace(GREETING, settings={"shards": "50"}),
            "setting shards is '50' on one side and '100' on the other",
        ),
        (replace(GREETING, settings={"other": "1"}), ""),
        (replace(GREETING, settings={}), ""),
    ],
)
def test_TU12_disagreement_names_both_values(theirs: Greeting, why: str) -> None:
    assert disagreement(GREETING, theirs) == why


def settings_of(value: str, names: list[str]) -> Greeting:
    return replace(GREETING, settings=dict.fromkeys(names, value))


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (settings_of("1", names), settings_of("2", names))
        for names in ([f"types.t{i}.layout" for i in range(1000)], ["n" * 9000, "m" * 9000])
    ]
    + [
        (
            settings_of("\U000e0001" * 4000, ["a", "b", "c"]),
            settings_of("x" * 4096, ["a", "b", "c"]),
        ),
        (
            replace(GREETING, cluster="\U000e0001" * 256),
            replace(GREETING, cluster="\U000e0002" * 256),
        ),
    ],
    ids=["many", "long names", "long values", "cluster names that grow when they are shown"],
)
def test_a_refusal_always_fits_the_wire(mine: Greeting, theirs: Greeting) -> None:
    refused = JoinRefused(disagreement(mine, theirs))
    assert decode(encode(refused)) == refused


def test_a_refusal_names_the_first_differences_and_counts_the_rest() -> None:
    names = [f"types.t{i:02}.layout" for i in range(60)]
    why = disagreement(settings_of("shards=100", names), settings_of("shards=200", names))
    assert why.startswith(
        "setting types.t00.layout is 'shards=200' on one side and 'shards=100' on the other; "
    )
    assert "types.t04.layout" in why
    assert why.endswith("; and 55 more")


def test_the_settings_of_a_type_with_the_longest_name_are_compared() -> None:
    greeting = settings_of("1", ["types." + "x" * ID_BYTES_MAX + ".coordinator_role"])
    assert decode(encode(InitJoin(greeting))) == InitJoin(greeting)


def test_the_settings_of_some_thousand_types_are_compared() -> None:
    names = [f"types.{i}.{key}" for i in range(4000) for key in "abcd"]
    assert decode(encode(InitJoin(settings_of("1", names)))) == InitJoin(settings_of("1", names))


def ask(gossip: Gossip, node: NodeId = NEW, greeting: Greeting = GREETING) -> tuple[Gossip, object]:
    return admit(gossip, A, GREETING, node, Join(greeting, Member(node, 1, up_number=9)))


def test_a_newcomer_is_joining_whatever_it_says_of_itself() -> None:
    gossip, answer = ask(state(a=U, b=U))
    assert gossip.members[NEW] == Member(NEW, 1, status=J, up_number=0)
    assert answer == Welcome(gossip)


def test_TC1_a_newcomer_brings_its_version_and_keeps_it() -> None:
    """Through the Join, the Welcome, both over the wire, every status, and a merge."""
    newer = Join(GREETING, Member(NEW, 1, http="n:8558", roles=("db",), version="2.1.0"))
    join = decode(encode(newer))
    assert isinstance(join, Join)
    gossip, answer = admit(state(a=U), A, GREETING, NEW, join)
    welcome = decode(encode(answer))
    assert isinstance(welcome, Welcome)
    up = gossip.with_members(A, gossip.members[NEW].moved(U, 2))
    for copy in (welcome.gossip, up, up.merge(state(a=U)), state(a=U).merge(up)):
        member = copy.members[NEW]
        assert (member.version, member.roles, member.http) == ("2.1.0", ("db",), "n:8558")


def test_TC32_a_repeated_join_is_welcome_again_without_a_change() -> None:
    once, _ = ask(state(a=U))
    again, answer = ask(once)
    assert again is once
    assert answer == Welcome(once)


@pytest.mark.parametrize("mine", [J, W, U, L])
def test_TU10_who_may_take_in(mine: Status) -> None:
    assert isinstance(ask(state(a=mine))[1], Welcome)


@pytest.mark.parametrize("copy", [Gossip(), state(a=X), state(a=DOWN)])
def test_TU10_who_may_not(copy: Gossip) -> None:
    assert ask(copy) == (copy, InitNack())


def test_who_is_refused_for_ever() -> None:
    removed = state(a=U, b=X).without_members(A, (B,), 1.0)
    cases = [
        (ask(removed, B), "was removed"),
        (ask(state(a=U, b=DOWN), B), "is down"),
        (ask(state(a=U, b=X), B), "is exiting"),
        (ask(state(a=U), greeting=replace(GREETING, cluster="bank")), "'bank'"),
        (ask(state(a=U), A._replace(uid=99)), "this node's own"),
        (admit(state(a=U), A, GREETING, NEW, Join(GREETING, member(C))), "cannot join as"),
    ]
    for (gossip, answer), why in cases:
        assert isinstance(answer, JoinRefused)
        assert why in answer.reason
        assert NEW not in gossip.members


def test_the_trial_of_a_removed_incarnation_is_refused() -> None:
    """It has joined and was removed without a word of it: no member listens to its gossip, so its
    trial would never end."""
    door = Admission(Member(A, 1), GREETING, DEFAULTS, KEY)
    trial = Trial(Member(B, 1), cookie_of(KEY, B))
    removed = state(a=U, b=X).without_members(A, (B,), 1.0)
    for gossip, why in ((removed, "was removed"), (state(a=U, b=DOWN), "is down")):
        [answer] = door.on_message(gossip, B, trial, 1.0).send
        assert isinstance(answer.message, JoinRefused)
        assert why in answer.message.reason
    assert not any(
        isinstance(getattr(effect, "message", None), JoinRefused)
        for effect in door.on_message(state(a=U, b=J), B, trial, 1.0).send
    )


@pytest.mark.parametrize("mine", [PREPARING, READY])
def test_B12_a_join_that_comes_while_the_whole_cluster_stops_is_refused(mine: Status) -> None:
    """It was invited before; and who has been taken in is welcome still."""
    before = state(a=mine, b=U)
    gossip, answer = ask(before)
    assert (gossip, answer) == (before, JoinRefused("the whole cluster is shutting down"))
    inside = before.with_members(A, Member(NEW, 1))
    assert ask(inside) == (inside, Welcome(inside))


@pytest.mark.parametrize("former", [(B,), (B, B._replace(uid=98))])
def test_TC36_a_restarted_process_downs_its_former_incarnations(former: tuple[NodeId, ...]) -> None:
    again = B._replace(uid=99)
    before = state(a=U, b=U, c=U).with_members(A, *map(member, former))
    gossip, answer = ask(before, again)
    assert isinstance(answer, Welcome)
    assert {gossip.members[node].status for node in former} == {DOWN}
    assert gossip.members[again].status is J
    assert gossip.unreachable() == dict.fromkeys(former, Flag.TERMINATED)


def test_TC36_another_node_on_the_same_machine_stays() -> None:
    """Only who is at the same port is a former incarnation."""
    neighbour = B._replace(port=B.port + 1)
    gossip, answer = ask(state(a=U, b=U), neighbour)
    assert isinstance(answer, Welcome)
    assert gossip.members[B].status is U
    assert gossip.members[neighbour].status is J
    assert gossip.unreachable() == {}


def test_a_welcome_carries_the_ages_of_tombstones() -> None:
    """The newcomer's clock says something else than this one's."""
    removed = state(a=U, b=X).without_members(A, (B,), 100.0)
    door = Admission(Member(A, 1), GREETING, DEFAULTS)
    join = Join(GREETING, Member(NEW, 1), cookie_of(b"", NEW))
    progress = door.on_message(removed, NEW, join, 130.0)
    [welcome] = [effect.message for effect in progress.send]
    assert isinstance(welcome, Welcome)
    assert welcome.gossip.tombstones == {B: 30.0}
    assert progress.gossip is not None
    assert progress.gossip.tombstones == {B: 100.0}


SEEDS = tuple(Address(host, 1) for host in ("s", "t", "u"))
S, T, V = (NodeId(*seed, 5) for seed in SEEDS)


def joiner(me: NodeId = NEW, **settings: float) -> Joiner:
    return Joiner(Member(me, 1), GREETING, SEEDS, replace(DEFAULTS, **settings))  # type: ignore[arg-type]


def asked(send: Sequence[object]) -> list[object]:
    return [s.to for s in send if isinstance(s, SendControl) and isinstance(s.message, InitJoin)]


def test_the_seed_that_answers_first_gets_the_join() -> None:
    joining = joiner()
    assert asked(joining.start(10.0).send) == list(SEEDS)
    join = SendControl(T, Join(GREETING, joining.me))
    assert joining.on_ack(T, InitAck(GREETING), 10.1).send == (join,)
    assert joining.on_ack(S, InitAck(GREETING), 10.2).send == ()
    assert joining.deadline() == pytest.approx(10.6)
    assert joining.tick(10.6).send == (join,)


@pytest.mark.parametrize("setting", [10.0, 4.0])
def test_without_a_welcome_the_seeds_are_asked_anew(setting: float) -> None:
    joining = joiner(retry_unsuccessful_join_after=setting)
    joining.start(0.0)
    joining.on_ack(T, InitAck(GREETING), 1.0)
    assert asked(joining.tick(setting + 0.9).send) == []
    assert asked(joining.tick(setting + 1.0).send) == list(SEEDS)


def test_a_seed_that_changed_its_mind_is_left() -> None:
    joining = joiner()
    joining.start(0.0)
    joining.on_ack(T, InitAck(GREETING), 1.0)
    joining.on_nack(S, 1.1)
    assert asked(joining.tick(1.6).send) == []
    joining.on_nack(T, 1.7)
    assert asked(joining.tick(1.7).send) == list(SEEDS)


def test_the_first_seed_founds_a_cluster_when_all_others_are_in_none() -> None:
    first = joiner(S)
    assert asked(first.start(0.0).send) == [*SEEDS[1:]]
    assert first.on_nack(T, 0.1).step is JoinStep.NONE
    assert first.on_nack(V, 0.2).step is JoinStep.FOUND_CLUSTER


def test_what_was_said_before_the_seeds_were_asked_anew_does_not_count() -> None:
    """The node that was in no cluster then may be a member by now."""
    first = joiner(S, retry_unsuccessful_join_after=10.0)
    first.start(0.0)
    assert first.on_nack(T, 0.1).step is JoinStep.NONE
    first.on_ack(V, InitAck(GREETING), 0.2)
    assert asked(first.tick(10.2).send) == [*SEEDS[1:]]
    restarted = V._replace(uid=6)
    assert first.on_nack(restarted, 10.3).step is JoinStep.NONE
    assert first.on_nack(T, 10.4).step is JoinStep.FOUND_CLUSTER


@pytest.mark.parametrize("now", [0.5, 10.5], ids=["at once", "after the seeds were asked anew"])
def test_B2_the_nack_of_one_that_acknowledged_founds_nothing(now: float) -> None:
    """It is on its way out, and the cluster lives on without it."""
    first = joiner(S, retry_unsuccessful_join_after=10.0)
    first.start(0.0)
    first.on_ack(V, InitAck(GREETING), 0.2)
    first.tick(now)
    assert first.on_nack(V, now).step is JoinStep.NONE
    assert first.on_nack(T, now).step is JoinStep.NONE
    assert first.on_nack(V._replace(uid=6), now).step is JoinStep.FOUND_CLUSTER


@pytest.mark.parametrize(
    ("copy", "answer"),
    [
        (Gossip(), InitNack()),
        (state(a=J), InitAck(GREETING, cookie_of(b"", NEW))),
        (state(a=U), InitAck(GREETING, cookie_of(b"", NEW))),
        (state(a=L), InitAck(GREETING, cookie_of(b"", NEW))),
        (state(a=X, b=U), None),
        (state(a=DOWN, b=U), None),
    ],
)
def test_B2_only_who_is_in_no_cluster_says_so(
    copy: Gossip, answer: InitAck | InitNack | None
) -> None:
    door = Admission(Member(A, 1), GREETING, DEFAULTS)
    progress = door.on_message(copy, NEW, InitJoin(GREETING), 1.0)
    assert progress.send == ((SendControl(NEW, answer),) if answer else ())
    assert progress.step is (JoinStep.NONE if answer else JoinStep.DROP)


@pytest.mark.parametrize("setting", [5.0, 2.0])
def test_the_first_seed_founds_a_cluster_when_nobody_answers_in_time(setting: float) -> None:
    first = joiner(S, seed_node_timeout=setting)
    first.start(0.0)
    assert first.tick(setting - 0.1).step is JoinStep.NONE
    assert first.tick(setting).step is JoinStep.FOUND_CLUSTER


def test_another_seed_never_does() -> None:
    other = joiner(T)
    other.start(0.0)
    steps = [other.on_nack(S, 0.1).step, other.on_nack(V, 0.1).step]
    steps += [other.tick(t / 2).step for t in range(1, 200)]
    assert set(steps) == {JoinStep.NONE}


def test_TU13_giving_up_says_what_was_tried() -> None:
    joining = joiner(shutdown_after_unsuccessful_join=30.0)
    joining.start(0.0)
    assert joining.tick(29.9).step is JoinStep.NONE
    progress = joining.tick(30.0)
    assert progress.step is JoinStep.TIME_OUT
    assert progress.reason == "no seed took this node in within 30 s; tried s:1, t:1, u:1"


# Trials

TRIES = replace(GREETING, gossip=Address("t", 2))
"""The greeting of a build with trials."""


def tried(joining: Joiner, now: float, *others: Address) -> JoinProgress:
    """Let the seed T find that everything works."""
    joining.on_published(T, HeartbeatReply(0, now), now)
    return joining.on_result(T, TrialResult("", "", others), now)


def kinds(send: Sequence[object]) -> list[str]:
    return [type(getattr(s, "message", s)).__name__ for s in send]


def test_a_node_joins_only_after_it_was_tried() -> None:
    joining = joiner()
    joining.start(0.0)
    assert kinds(joining.on_ack(T, InitAck(TRIES, 7), 1.0).send) == ["Subscribe", "Trial"]
    assert joining.phase is JoinPhase.TRYING
    assert kinds(joining.tick(1.5).send) == ["Trial", "Heartbeat"]
    assert tried(joining, 1.6).send == (SendControl(T, Join(GREETING, joining.me, 7)),)
    assert joining.phase is JoinPhase.JOINING


@pytest.mark.parametrize(
    "evidence",
    [
        lambda joining: joining.on_published(T, HeartbeatReply(0, 1.0), 1.0),
        lambda joining: joining.on_result(T, TrialResult("", ""), 1.0),
        lambda joining: tried(joining, 1.0, Address("far", 1)),
        lambda joining: (tried(joining, 1.0, V.address), joining.on_ack(V, InitAck(TRIES), 1.0)),
        lambda joining: joining.on_result(T, TrialResult("connection refused", ""), 1.0),
        lambda joining: joining.on_published(S, HeartbeatReply(0, 1.0), 1.0),
    ],
    ids=["gossip only", "messages only", "none beyond", "beyond not yet", "refused", "another"],
)
def test_half_of_the_evidence_is_not_enough(evidence: Callable[[Joiner], object]) -> None:
    joining = joiner()
    joining.start(0.0)
    joining.on_ack(T, InitAck(TRIES, 7), 0.9)
    evidence(joining)
    assert joining.phase is JoinPhase.TRYING
    assert "Join" not in kinds(joining.tick(1.5).send)


def test_a_member_beyond_the_seed_is_asked_and_must_be_reached_too() -> None:
    joining, beyond = joiner(), NodeId("m", 7355, 5)
    joining.start(0.0)
    joining.on_ack(T, InitAck(TRIES, 7), 0.9)
    assert asked(tried(joining, 1.0, beyond.address).send) == [beyond.address]
    assert joining.has_asked(beyond.address)
    assert [str(link.address) for link in joining.broken(1.0)] == ["m:7355"]
    joining.on_ack(beyond, InitAck(TRIES, 8), 1.1)
    assert joining.on_published(beyond, HeartbeatReply(0, 1.2), 1.2).send == ()
    [join] = joining.on_result(beyond, TrialResult("", ""), 1.3).send
    assert join == SendControl(T, Join(GREETING, joining.me, 7))


def test_a_member_beyond_of_an_older_build_cannot_be_asked_for_more() -> None:
    joining, beyond = joiner(), NodeId("m", 7355, 5)
    joining.start(0.0)
    joining.on_ack(T, InitAck(TRIES, 7), 0.9)
    tried(joining, 1.0, beyond.address)
    assert kinds(joining.on_ack(beyond, InitAck(GREETING, 8), 1.1).send) == ["Join"]


def test_old_evidence_is_none() -> None:
    joining = joiner()
    joining.start(0.0)
    joining.on_ack(T, InitAck(TRIES, 7), 0.9)
    joining.on_published(T, HeartbeatReply(0, 1.0), 1.0)
    joining.on_result(T, TrialResult("", ""), 1.0 + HEARD_S)
    assert joining.phase is JoinPhase.TRYING


def test_a_seed_that_tries_and_falls_silent_is_left() -> None:
    joining = joiner(retry_unsuccessful_join_after=10.0)
    joining.start(0.0)
    joining.on_ack(T, InitAck(TRIES, 7), 1.0)
    joining.on_result(T, TrialResult("no answer", "not tried yet"), 5.0)
    assert joining.tick(14.9).step is JoinStep.NONE
    assert joining.phase is JoinPhase.TRYING
    send = joining.tick(15.0).send
    assert Unsubscribe(T) in send
    assert asked(send) == list(SEEDS)


def test_a_seed_that_leaves_during_the_trial_is_left() -> None:
    joining = joiner()
    joining.start(0.0)
    joining.on_ack(T, InitAck(TRIES, 7), 1.0)
    assert joining.on_nack(T, 1.1).send == (Unsubscribe(T),)
    assert joining.phase is JoinPhase.CONTACTING


def test_the_first_seed_founds_nothing_while_it_is_tried() -> None:
    first = joiner(S, seed_node_timeout=2.0)
    first.start(0.0)
    first.on_ack(T, InitAck(TRIES, 7), 0.1)
    assert first.tick(9.0).step is JoinStep.NONE


def test_what_was_tried_and_does_not_work_is_in_the_reason_for_giving_up() -> None:
    joining = joiner(shutdown_after_unsuccessful_join=30.0)
    joining.start(0.0)
    joining.on_ack(T, InitAck(TRIES), 1.0)
    joining.on_result(T, TrialResult("", "nothing has come yet"), 29.0)
    assert joining.tick(30.0).reason == (
        "no seed took this node in within 30 s; tried s:1, t:1, u:1; t:1 does not reach this node "
        "at n:1 (gossip): nothing has come yet"
    )


# This node by another name


def test_a_first_seed_that_is_this_node_by_another_name_founds() -> None:
    seeds = (Address("localhost", 7355), *SEEDS[1:])
    joining = Joiner(Member(NEW, 1), GREETING, seeds, DEFAULTS)
    assert asked(joining.start(0.0).send) == list(seeds)
    joining.on_nack(T, 0.1)
    joining.on_nack(V, 0.1)
    assert joining.on_nack(NEW, 0.2, seeds[0]).step is JoinStep.FOUND_CLUSTER


def test_another_seed_that_is_this_node_by_another_name_does_not_found() -> None:
    seeds = (*SEEDS[1:], Address("localhost", 7355))
    joining = Joiner(Member(NEW, 1), GREETING, seeds, DEFAULTS)
    joining.start(0.0)
    steps = [joining.on_nack(NEW, 0.1, seeds[2]).step]
    steps += [joining.on_nack(T, 0.2).step, joining.on_nack(V, 0.3).step]
    assert set(steps) == {JoinStep.NONE}
    assert asked(joining.tick(1.0).send) == [*SEEDS[1:]]


def test_TU12_a_seed_that_disagrees_ends_the_attempt() -> None:
    joining = joiner()
    joining.start(0.0)
    progress = joining.on_ack(S, InitAck(replace(GREETING, settings={"shards": "50"})), 0.1)
    assert progress.step is JoinStep.REFUSED
    assert "'50'" in progress.reason
    assert "'100'" in progress.reason


# Strangers

KEY = b"a key"


def member_door(host: str = "a") -> tuple[Admission, Gossip]:
    node = NodeId(host, 1, 1)
    state = Gossip().with_members(node, Member(node, 1, status=U))
    return Admission(Member(node, 1), GREETING, DEFAULTS, KEY), state


def test_a_join_needs_the_cookie_that_the_same_node_got_from_the_same_member() -> None:
    door, gossip = member_door()
    [ack] = door.on_message(gossip, NEW, InitJoin(GREETING), 1.0).send
    assert isinstance(ack.message, InitAck)
    cookie = ack.message.cookie
    other, later = NEW._replace(uid=8), cookie_of(b"another key", NEW)
    for node, wrong in ((NEW, 0), (NEW, cookie ^ 1), (NEW, later), (other, cookie)):
        progress = door.on_message(gossip, node, Join(GREETING, Member(node, 1), wrong), 2.0)
        assert (progress.step, progress.reason, progress.send) == (JoinStep.DROP, "no cookie", ())
    progress = door.on_message(gossip, NEW, Join(GREETING, Member(NEW, 1), cookie), 2.0)
    assert progress.step is JoinStep.ADMIT


def joining_door() -> Admission:
    door = Admission(Member(S, 1), GREETING, replace(DEFAULTS, seed_node_timeout=600.0))
    door.start(SEEDS, 0.0)
    return door


ANSWERS = [InitAck(GREETING), InitNack(), JoinRefused("no"), Welcome(Gossip())]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_an_answer_counts_only_from_an_address_that_was_asked(answer: object) -> None:
    door = joining_door()
    stranger = NodeId("x", 1, 5)
    for sender, address in ((stranger, None), (stranger, stranger.address), (T, stranger.address)):
        progress = door.on_message(Gossip(), sender, answer, 0.1, address)  # type: ignore[arg-type]
        assert (progress.step, progress.reason) == (JoinStep.DROP, "not asked")
    assert door.joining


def test_a_seed_may_have_another_name_than_the_address_that_was_asked() -> None:
    """As 127.0.0.1 and localhost."""
    door = joining_door()
    for address, known_as in zip(SEEDS[1:], (NodeId("y", 2, 1), NodeId("z", 2, 2)), strict=True):
        progress = door.on_message(Gossip(), known_as, InitNack(), 0.1, address)
    assert progress.step is JoinStep.FOUND_CLUSTER


def test_a_welcome_counts_only_from_a_node_that_got_the_join() -> None:
    door = joining_door()
    gossip = Gossip().with_members(T, Member(T, 1, status=U)).with_members(T, Member(S, 1))
    assert door.on_message(Gossip(), T, Welcome(gossip), 0.1).step is JoinStep.DROP
    door.on_message(Gossip(), T, InitAck(GREETING, 7), 0.2)
    assert door.on_message(Gossip(), T, Welcome(gossip), 0.3).step is JoinStep.ENTER


@pytest.mark.parametrize(
    ("here", "there", "why"),
    [
        ("127.0.0.1", "127.0.0.9", ""),
        ("::1", "localhost", ""),
        ("10.0.0.1", "db", ""),
        ("127.0.0.1", "10.0.0.1", "10.0.0.1:7355 is not on the loopback"),
        ("db", "localhost", "localhost:7355 is on the loopback"),
    ],
)
def test_nodes_on_the_loopback_and_others_refuse_each_other(
    here: str, there: str, why: str
) -> None:
    door, gossip = member_door(here)
    node = NodeId(there, 7355, 7)
    join = Join(GREETING, Member(node, 1), cookie_of(KEY, node))
    for message in (InitJoin(GREETING), join):
        [answer] = door.on_message(gossip, node, message, 1.0).send
        assert isinstance(answer.message, JoinRefused) is bool(why)
        assert why in getattr(answer.message, "reason", "")


def test_the_nodes_that_wait_for_a_member_are_bounded() -> None:
    door = joining_door()
    for uid in range(WAITING_MAX + 5):
        door.on_message(Gossip(), NEW._replace(uid=uid), InitJoin(GREETING), 0.1)
    acks = door.on_entered(Gossip())
    assert [ack.to for ack in acks][:1] == [NEW._replace(uid=5)]
    assert len(acks) == WAITING_MAX


# The table


@pytest.mark.parametrize("trigger", JoinTrigger)
@pytest.mark.parametrize("phase", JoinPhase)
def test_every_trigger_in_every_phase(phase: JoinPhase, trigger: JoinTrigger) -> None:
    trial = joiner()
    trial.phase = phase
    check_step(joining.TRANSITIONS, lambda: trial.phase, trial._advance, trigger)


def test_the_drawing_names_every_phase_and_trigger() -> None:
    check_drawing(joining, JoinPhase, JoinTrigger)


def test_S3_42_a_node_that_rejoins_asks_less_and_less_often_and_gives_up() -> None:
    rejoiner = Joiner(Member(NEW, 1), GREETING, SEEDS, DEFAULTS, founds=False, within=20.0)
    rejoiner.start(0.0)
    times, now, progress = [0.0], 0.0, joining.JoinProgress()
    while progress.step is JoinStep.NONE:
        now = rejoiner.deadline()
        progress = rejoiner.tick(now)
        times += [now] if progress.send else []
    assert times == [0.0, 0.5, 1.5, 3.5, 7.5, 12.5, 17.5]
    assert (now, progress.step) == (20.0, JoinStep.TIME_OUT)
    assert progress.reason.startswith("no member that it knew has taken this node in within 20 s")


def test_S3_42_one_that_was_acknowledged_asks_often_again() -> None:
    joining = Joiner(Member(NEW, 1), GREETING, SEEDS, DEFAULTS, founds=False)
    joining.start(0.0)
    for now in (0.5, 1.5, 3.5):
        assert joining.tick(now).send
    joining.on_ack(T, InitAck(GREETING), 4.0)
    assert joining.deadline() == 4.5, "its Join is repeated"
    joining.on_nack(T, 5.0)
    assert joining.tick(5.0).send
    assert joining.deadline() == 5.5
    for now in range(6, 4000, 5):
        assert joining.tick(now).step is JoinStep.NONE, "without a limit it never gives up"


HOUR = 3600.0
MINE, SEED, OTHER = NEW.address, S.address, T.address


@pytest.mark.parametrize(
    ("founder", "claims", "answers", "may"),
    [
        (MINE, True, {SEED: 0.0, OTHER: 0.0}, True),
        (MINE, True, {SEED: 0.0, OTHER: NACK_LASTS - 0.1}, True),
        (MINE, True, {SEED: 0.0, OTHER: NACK_LASTS}, False),
        (MINE, True, {SEED: 0.0}, False),
        (MINE, True, {}, False),
        (MINE, False, {SEED: 0.0, OTHER: 0.0}, False),
        (SEED, True, {SEED: 0.0, OTHER: 0.0}, False),
        (None, True, {SEED: 0.0, OTHER: 0.0}, False),
    ],
    ids=[
        "all have answered",
        "within the time of an answer",
        "an answer is too old",
        "a member is silent",
        "all are silent",
        "a store that nobody shares",
        "another node is the first seed",
        "no node may",
    ],
)
def test_S3_42_a_node_that_rejoins_may_found_once_no_member_lives_at_any_address(
    founder: Address | None, claims: bool, answers: dict[Address, float], may: bool
) -> None:
    """`answers`: how long ago each address has answered that it is in no cluster."""
    rejoiner = Joiner(
        Member(NEW, 1), GREETING, (MINE, SEED, OTHER), DEFAULTS,
        founds=False, founder=founder, claims=claims,
    )  # fmt: skip
    rejoiner.start(0.0)
    for at, ago in answers.items():
        answer = rejoiner.on_nack(NodeId(*at, 9), HOUR - ago)
        assert answer.step is JoinStep.NONE
    assert rejoiner.may_found(HOUR) is may
    assert rejoiner.is_lost(HOUR) is may, "it looks at the record before"
    assert rejoiner.tick(HOUR).step is JoinStep.NONE, "the claim decides"
    assert rejoiner.deadline() == HOUR + 0.5 or not may


def test_S3_42_with_new_clusters_off_it_founds_nothing() -> None:
    settings = replace(DEFAULTS, new_cluster=False)
    rejoiner = Joiner(
        Member(NEW, 1), GREETING, (SEED,), settings, founds=False, founder=MINE, claims=True
    )
    rejoiner.start(0.0)
    rejoiner.on_nack(S, 0.1)
    assert not rejoiner.may_found(0.2)


def test_S3_42_an_answer_of_a_member_ends_the_proof() -> None:
    rejoiner = Joiner(
        Member(NEW, 1), GREETING, (SEED, OTHER), DEFAULTS, founds=False, founder=MINE, claims=True
    )
    rejoiner.start(0.0)
    rejoiner.on_nack(S, 0.1)
    rejoiner.on_nack(T, 0.1)
    rejoiner.on_ack(NodeId(*SEED, 10), InitAck(GREETING), 0.2)
    assert not rejoiner.may_found(0.3)
    assert rejoiner.contacts.in_no_cluster(0.3) == [OTHER]


def test_S3_42_the_first_seed_by_another_name_is_itself() -> None:
    alias = Address("alias", 7355)
    rejoiner = Joiner(
        Member(NEW, 1), GREETING, (SEED, alias), DEFAULTS, founds=False, founder=alias, claims=True
    )
    rejoiner.start(0.0)
    rejoiner.on_nack(S, 0.1)
    assert not rejoiner.may_found(0.2)
    assert rejoiner.on_nack(NEW, 0.2, alias).step is JoinStep.NONE
    assert rejoiner.may_found(0.3)
