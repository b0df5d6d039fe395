"""Every strategy: the decision tables, and the proof by trial that two sides never both stay.

T.U17."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbus.config.settings import STRATEGIES, DowningSettings
from shardbus.errors import ConfigError
from shardbus.ids import NodeId
from shardbus.membership.downing.split import (
    Decision,
    DowningOutcome,
    Split,
    describe_decision,
    survey,
)
from shardbus.membership.downing.strategies import (
    down_all,
    keep_majority,
    keep_oldest,
    lease_majority,
    static_quorum,
    strategy_of,
    user_strategy,
)
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Member, Status
from shardbus.membership.reachability import Flag, ObserverRow, Reachability
from tests.markers import long_only
from tests.records import replace
from tests.unit.membership.downing.test_split import split
from tests.unit.membership.test_gossip import A, B, C, D, E, state

J, W, U, PREPARING, READY, L, X, DOWN, REMOVED = Status
NOTHING, OTHERS, OURSELVES, LEASE = DowningOutcome
Rule = Callable[[Split], Decision]

RULES: dict[str, Rule] = {
    "keep-majority": keep_majority,
    "static-quorum": lambda s: static_quorum(s, 2),
    "keep-oldest": lambda s: keep_oldest(s, False),
    "keep-oldest, not alone": lambda s: keep_oldest(s, True),
    "down-all": down_all,
    "lease-majority": lambda s: lease_majority(s, 2.0),
}
FIVE = state(a=U, b=U, c=U, d=U, e=U)


# -- tables: `me` is A, and A is the oldest, unless said ---------------------------------------


@pytest.mark.parametrize(
    ("copy", "cut", "size", "outcome"),
    [
        (FIVE, (), 3, NOTHING),
        (FIVE, (D, E), 3, OTHERS),
        (FIVE, (C, D, E), 3, OURSELVES),
        (FIVE, (E,), 4, OTHERS),
        (FIVE, (D, E), 4, OURSELVES),
        (state(a=U, b=U), (B,), 2, OURSELVES),
        (state(a=U, b=U), (B,), 1, OURSELVES),
        (state(a=U), (), 1, NOTHING),
        (FIVE, (D, E), 2, OURSELVES),
        (state(a=U, b=U, c=U, d=J), (C,), 2, OURSELVES),
        (state(a=U, b=U, c=J), (C,), 2, OTHERS),
        (state(a=U, b=J, c=U), (C,), 2, OURSELVES),
        (state(a=U, b=W, c=U), (C,), 2, OURSELVES),
        (state(a=U, b=L, c=U), (C,), 2, OURSELVES),
        (state(a=U, b=U, c=L), (C,), 2, OTHERS),
        (state(a=U, b=U, c=U, d=X), (C,), 2, OTHERS),
        (state(a=U, b=U, c=U, d=DOWN), (C, D), 2, OURSELVES),  # c and d may be two as well
    ],
)
def test_TU17_static_quorum(
    copy: Gossip, cut: tuple[NodeId, ...], size: int, outcome: DowningOutcome
) -> None:
    split_ = split(copy, *cut)
    decision = static_quorum(split_, size)
    assert decision.outcome is outcome
    assert decision.down == {NOTHING: (), OTHERS: split_.cut, OURSELVES: split_.side}[outcome]


def test_a_cluster_too_large_for_its_quorum_says_so() -> None:
    reason = static_quorum(split(FIVE, E), 2).reason
    assert reason.endswith("too large for its quorum: 5 members, and 2 is a quorum of at most 3")


@pytest.mark.parametrize(
    ("copy", "cut", "me", "alone_goes", "outcome"),
    [
        (FIVE, (D, E), A, True, OTHERS),
        (FIVE, (C, D, E), A, True, OTHERS),
        (FIVE, (B, C, D, E), A, True, OURSELVES),
        (FIVE, (B, C, D, E), A, False, OTHERS),
        (FIVE, (A,), B, True, OTHERS),
        (FIVE, (A,), B, False, OURSELVES),
        (FIVE, (A, E), B, True, OURSELVES),
        (FIVE, (A, B), C, True, OURSELVES),
        (state(a=U, b=U), (B,), A, True, OURSELVES),
        (state(a=U, b=U), (A,), B, True, OTHERS),
        (state(a=U, b=U), (B,), A, False, OTHERS),
        (state(a=U, b=U), (A,), B, False, OURSELVES),
        (state(a=U, b=J), (B,), A, True, OTHERS),
        (state(a=U, b=J), (A,), B, True, OURSELVES),
        (state(a=U, b=J, c=U), (C,), A, True, OURSELVES),
        (state(a=U, b=J, c=U), (A, B), C, True, OURSELVES),
        (state(a=J, b=J), (B,), A, True, OURSELVES),
        (state(a=L, b=U, c=U), (C,), A, True, OURSELVES),
        (state(a=L, b=U, c=U, d=U), (D,), A, True, OTHERS),
        (state(a=L, b=U, c=U, d=U), (A,), B, True, OURSELVES),
        (state(a=L, b=U, c=U, d=U), (A, B), C, True, OURSELVES),
        (state(a=X, b=U, c=U, d=U), (D,), B, True, OTHERS),
        (state(a=DOWN, b=U, c=U, d=U), (A, D), B, True, OTHERS),
    ],
)
def test_TU17_keep_oldest(
    copy: Gossip, cut: tuple[NodeId, ...], me: NodeId, alone_goes: bool, outcome: DowningOutcome
) -> None:
    split_ = split(copy, *cut, me=me)
    decision = keep_oldest(split_, alone_goes)
    assert decision.outcome is outcome
    assert decision.down == (split_.cut if outcome is OTHERS else split_.side)


def test_TU17_the_oldest_is_by_age_not_by_address() -> None:
    members = {n: replace(m, up_number=9 - i) for i, (n, m) in enumerate(FIVE.members.items())}
    copy = replace(FIVE, members=members)
    assert split(copy, A).elders == (E,)
    assert keep_oldest(split(copy, D, E), False).outcome is OURSELVES


@pytest.mark.parametrize("cut", [(), (B,), (B, C, D, E)])
def test_TU17_down_all(cut: tuple[NodeId, ...]) -> None:
    decision = down_all(split(FIVE, *cut))
    assert decision.outcome is (OURSELVES if cut else NOTHING)


@pytest.mark.parametrize(
    ("copy", "cut", "outcome", "delay"),
    [
        (FIVE, (D, E), LEASE, 0.0),
        (FIVE, (C, D, E), LEASE, 2.0),
        (state(a=U, b=U), (B,), LEASE, 0.0),
        (state(a=U, b=J, c=U, d=J), (C, D), LEASE, 2.0),
        (state(a=U, b=X, c=X), (C,), NOTHING, 0.0),
        (state(a=L, b=U), (B,), OURSELVES, 0.0),
        (state(a=J, b=U), (B,), OURSELVES, 0.0),
    ],
)
def test_TU17_lease_majority(
    copy: Gossip, cut: tuple[NodeId, ...], outcome: DowningOutcome, delay: float
) -> None:
    decision = lease_majority(split(copy, *cut), 2.0)
    assert (decision.outcome, decision.delay) == (outcome, delay)
    if outcome is LEASE:
        assert decision.down == cut


def with_roles(copy: Gossip, *nodes: NodeId) -> Gossip:
    roles = {n: replace(copy.members[n], roles=("db",)) for n in nodes if n in copy.members}
    return replace(copy, members={**copy.members, **roles})


@pytest.mark.parametrize(
    ("rule", "everybody", "role"),
    [
        ("keep-majority", OTHERS, OURSELVES),
        ("static-quorum", OURSELVES, OURSELVES),
        ("keep-oldest", OTHERS, OURSELVES),
        ("keep-oldest, not alone", OTHERS, OURSELVES),
        ("down-all", OURSELVES, OURSELVES),
        ("lease-majority", LEASE, OURSELVES),
    ],
)
def test_TU17_only_members_with_the_role_count(
    rule: str, everybody: DowningOutcome, role: DowningOutcome
) -> None:
    copy = with_roles(FIVE, D, E)
    rows = Reachability({A: ObserverRow(1, {D: Flag.UNREACHABLE, E: Flag.UNREACHABLE})})
    copy = replace(copy, reachability=rows, seen=frozenset({A, B, C}))
    assert RULES[rule](survey(copy, A)).outcome is everybody
    assert RULES[rule](survey(copy, A, "db")).outcome is role


@pytest.mark.parametrize("rule", RULES)
def test_what_no_strategy_has_a_say_in(rule: str) -> None:
    assert RULES[rule](split(FIVE)).outcome is NOTHING
    indirectly = RULES[rule](split(FIVE, C, seen=(C,)))
    asks = rule == "lease-majority"
    assert (indirectly.outcome, indirectly.down) == (LEASE if asks else OTHERS, (C,))
    flags = dict.fromkeys((A, C, D, E), Flag.UNREACHABLE)
    cables = replace(
        FIVE,
        reachability=Reachability({B: ObserverRow(1, flags)}),
        seen=frozenset((*FIVE.members,)),
    )
    assert {RULES[rule](survey(cables, me)).down for me in FIVE.members} == {(B,)}


@pytest.mark.parametrize("rule", ["keep-majority", "keep-oldest", "lease-majority"])
def test_TU17_bad_links_go_with_those_cut_off(rule: str) -> None:
    rows = Reachability(
        {A: ObserverRow(1, {E: Flag.UNREACHABLE}), B: ObserverRow(1, {C: Flag.UNREACHABLE})}
    )
    copy = replace(FIVE, reachability=rows, seen=frozenset({A, B, C, D}))
    assert RULES[rule](survey(copy, A)).down == (C, E)


@pytest.mark.parametrize(
    ("rule", "outcome"),
    [
        ("keep-majority", OURSELVES),
        ("static-quorum", OURSELVES),
        ("keep-oldest", OTHERS),
        ("down-all", OURSELVES),
        ("lease-majority", LEASE),
    ],
)
def test_TU17_three_parts(rule: str, outcome: DowningOutcome) -> None:
    """{A, B} | {C, D} | {E}, as A sees it; the others never stay beside it."""
    assert RULES[rule](split(FIVE, C, D, E)).outcome is outcome
    assert OTHERS not in {
        RULES[rule](split(FIVE, A, B, E, me=C)).outcome,
        RULES[rule](split(FIVE, A, B, C, D, me=E)).outcome,
    }


def test_every_choice_has_its_rule() -> None:
    settings = DowningSettings(static_quorum_size=2, down_if_alone=False)
    for name in STRATEGIES:
        rule = strategy_of(replace(settings, strategy=name))
        if name == "none":
            assert rule is None
        else:
            assert rule is not None
            assert rule(split(FIVE, E)) == RULES[name](split(FIVE, E))
            assert rule(split(FIVE, E)).rule == name


def by_vault(split: Split) -> tuple[DowningOutcome, str]:
    """B has the vault: its side stays."""
    return (OTHERS, "the vault is here") if B in split.ours else (OURSELVES, "the vault is there")


by_name: dict[str, object] = {"what": "to do"}


@pytest.mark.parametrize(
    ("cut", "me", "outcome", "down"),
    [((C, D, E), A, OTHERS, (C, D, E)), ((A, B), C, OURSELVES, (C, D, E)), ((), A, NOTHING, ())],
)
def test_a_function_of_the_users_decides(
    cut: tuple[NodeId, ...], me: NodeId, outcome: DowningOutcome, down: tuple[NodeId, ...]
) -> None:
    """B.31. A strategy is not asked about cases outside its say."""
    name = f"{__name__}:by_vault"
    rule = strategy_of(DowningSettings(strategy=name))
    assert rule is not None
    decision = rule(split(FIVE, *cut, me=me))
    assert (decision.outcome, decision.down, decision.rule) == (outcome, down, name)


def test_it_may_ask_for_the_lease_or_wait() -> None:
    cut = split(FIVE, C, D)
    decision = user_strategy(cut, "x:y", lambda _: (LEASE, "equal"))
    assert (decision.outcome, decision.down, decision.reason) == (LEASE, (C, D), "equal")
    assert user_strategy(cut, "x:y", lambda _: (NOTHING, "let be")).down == ()


@pytest.mark.parametrize("said", [None, "stay", ("stay", "why"), (OTHERS,), 1 / 3])
def test_a_side_whose_function_says_nothing_that_can_be_done_goes(said: object) -> None:
    """The other side's may be sound, and keep that side."""
    decision = user_strategy(split(FIVE, C, D), "x:y", lambda _: said)  # type: ignore[arg-type,return-value]
    assert (decision.outcome, decision.down) == (OURSELVES, (A, B, E))
    assert decision.reason.startswith("the strategy failed: ")


def test_so_does_one_whose_function_raises() -> None:
    def broken(split: Split) -> tuple[DowningOutcome, str]:
        return {}[split]  # type: ignore[no-any-return]

    decision = user_strategy(split(FIVE, E), "x:y", broken)
    assert decision.outcome is OURSELVES
    assert "KeyError" in decision.reason


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("no_such_module:rule", "No module named 'no_such_module'"),
        (f"{__name__}:no_rule", "no_rule"),
        (f"{__name__}:by_name", "cannot be called"),
        (":rule", "cannot load ':rule'"),
    ],
)
def test_a_function_that_cannot_be_had_is_refused(name: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        strategy_of(DowningSettings(strategy=name))


def test_a_decision_is_told_with_what_it_went_by() -> None:
    copy = state(a=U, b=U, c=U)
    assert describe_decision(keep_majority(split(copy, C))) == (
        f"keep-majority: majority: 2 votes here, at most 1 there "
        f"(this side: {A}, {B}; cut off: {C}; oldest: {A}): down others: {C}"
    )


# -- laws --------------------------------------------------------------------------------------

AHEAD = (
    (J, J), (W, J), (J, W), (U, J), (U, W), (W, W),
    (U, U), (U, L), (L, U), (L, L), (X, L), (X, X), (REMOVED, X),
)  # fmt: skip
"""The views that two sides may have of one member. The first side's leader has acted once more:
only it may have made somebody Up, Exiting or removed. Anybody may have begun to leave, on either
side, and weakly-up needs no convergence."""


def legal(
    pairs: Iterable[tuple[Status, Status]], first: Iterable[bool]
) -> list[tuple[Status, Status]]:
    """They, without the work of a leader where there was none. `first`: who stands on
    the first side. Before anybody is Up, the Joining ones lead."""
    pairs, first = list(pairs), list(first)
    before = [(there, here) for (_, there), here in zip(pairs, first, strict=True)]
    led = any(s not in (J, W) for s, here in before if here) or all(s in (J, W) for s, _ in before)
    return [(b, b) if (a, b) in ((U, J), (U, W)) and not led else (a, b) for a, b in pairs]


def view(
    nodes: Iterable[NodeId], statuses: Iterable[Status], base: Iterable[Status], ages: Iterable[int]
) -> Gossip:
    """A copy in which ages are as given; who has become Up only here is younger than all."""
    members = {}
    for node, status, before, age in zip(nodes, statuses, base, ages, strict=True):
        fresh = status is U and before in (J, W)
        number = 0 if status in (J, W) else 100 + age if fresh else age
        if status is not REMOVED:
            members[node] = Member(node, 2, status=status, up_number=number)
    return Gossip(members)


def stays(decision: Decision, split: Split, copy: Gossip) -> bool:
    """The side may go on: it wins, or it sees no split and has somebody who is not leaving."""
    return decision.outcome in (OTHERS, LEASE) or (
        decision.outcome is NOTHING and any(copy.members[n].status is U for n in split.side)
    )


def check(
    sides: list[list[NodeId]],
    copies: list[Gossip],
    rules: Mapping[str, Rule] = RULES,
    role: str = "",
) -> None:
    """No rule lets two of these sides stay, however the store answers."""
    divided: list[tuple[list[Split], Gossip]] = []
    for side, copy in zip(sides, copies, strict=True):
        present = [n for n in side if n in copy.members]
        cut = [n for n in copy.members if n not in side]
        if present:
            divided.append(([surveyed(copy, cut, me, role) for me in present], copy))
    for name, rule in rules.items():
        decisions = [
            ([rule(split) for split in splits], splits[0], copy) for splits, copy in divided
        ]
        for decided, _, _ in decisions:
            assert len({(d.outcome, d.delay) for d in decided}) == 1, (name, decided)
            speakers = {d.split.speaker for d in decided if d.outcome is LEASE}
            assert len(speakers) < 2, (name, decided)
        winners = [
            decided[0] for decided, split, copy in decisions if stays(decided[0], split, copy)
        ]
        at_most_one = len(winners) < 2 or all(d.outcome is LEASE for d in winners)
        assert at_most_one, (name, [describe_decision(decided[0]) for decided, _, _ in decisions])


def surveyed(copy: Gossip, cut: list[NodeId], me: NodeId, role: str) -> Split:
    rows = {me: ObserverRow(1, dict.fromkeys(cut, Flag.UNREACHABLE))} if cut else {}
    side = frozenset(n for n in copy.members if n not in cut)
    return survey(replace(copy, reachability=Reachability(rows), seen=side), me, role)


@pytest.mark.parametrize("alone", [0, *long_only(1, 2)])
@pytest.mark.parametrize("swapped", [False, *long_only(True)])
def test_TU17_of_three_members_never_two_sides_stay(alone: int, swapped: bool) -> None:
    nodes = (A, B, C)
    sides = [[nodes[alone]], [n for n in nodes if n != nodes[alone]]]
    if swapped:
        sides.reverse()
    for ages in permutations((1, 2, 3)):
        for pairs in product(AHEAD, repeat=3):
            first, second = zip(*legal(pairs, [n in sides[0] for n in nodes]), strict=True)
            check(sides, [view(nodes, first, second, ages), view(nodes, second, second, ages)])


@given(st.data())
@settings(max_examples=4 * settings.default.max_examples)
def test_TU17_of_many_members_never_two_sides_stay(data: st.DataObject) -> None:
    """Any members, any ages, any three sides, some with the role that votes, any size of a quorum;
    one side is a legal step ahead about every member. Whoever decides for a side decides alike."""
    count = data.draw(st.integers(2, 7))
    nodes = [NodeId(f"n{i}", 1, 1) for i in range(count)]
    pairs = data.draw(st.lists(st.sampled_from(AHEAD), min_size=count, max_size=count))
    ages = data.draw(st.permutations(range(1, count + 1)))
    where = data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    role = data.draw(st.sampled_from(["", "db"]))
    chosen = [n for n in nodes if data.draw(st.booleans())] if role else []
    rules = {**RULES, "static-quorum": quorum_of(data.draw(st.integers(1, 5)))}
    sides = [[n for n, at in zip(nodes, where, strict=True) if at == part] for part in range(3)]
    pairs = legal(pairs, [at == 0 for at in where])
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    ahead = with_roles(view(nodes, first, second, ages), *chosen)
    behind = with_roles(view(nodes, second, second, ages), *chosen)
    check(sides, [ahead, behind, behind], rules, role)


def quorum_of(size: int) -> Rule:
    return lambda split: static_quorum(split, size)


# -- a dumb reference: the promises of the documents for a cluster at rest
# -----------------------------


def promised(rule: str, sides: list[list[NodeId]], size: int) -> list[str]:
    """Who stays, counted on fingers: `stays`, `goes` or `asks` for each side of Up members, of
    which the first of all in order of age is n0."""
    everybody = sum(map(len, sides))
    oldest = next(side for side in sides if NodeId("n0", 1, 1) in side)
    words = []
    for side in sides:
        others = everybody - len(side)
        match rule:
            case "keep-majority":
                word = "stays" if len(side) > others else "goes"
                word = "asks" if len(side) == others else word
            case "static-quorum":
                stays = len(side) >= size and everybody <= 2 * size - 1
                word = "stays" if stays else "goes"
            case "keep-oldest":
                word = "stays" if side is oldest else "goes"
            case "keep-oldest, not alone":
                alone = len(oldest) == 1
                second = alone and side is not oldest and len(sides) == 2
                word = "stays" if second or (side is oldest and not alone) else "goes"
            case "lease-majority":
                word = "asks"
            case _:
                word = "goes"
        words.append(word)
    return words


@given(st.lists(st.integers(0, 2), min_size=2, max_size=9), st.integers(1, 6))
@settings(max_examples=3 * settings.default.max_examples)
def test_TU17_against_what_is_promised_of_a_cluster_at_rest(where: list[int], size: int) -> None:
    nodes = [NodeId(f"n{i}", 1, 1) for i in range(len(where))]
    copy = view(nodes, [U] * len(nodes), [U] * len(nodes), range(1, len(nodes) + 1))
    parts = [[n for n, at in zip(nodes, where, strict=True) if at == part] for part in range(3)]
    sides = [side for side in parts if side]
    if len(sides) < 2:
        return
    words = {OTHERS: "stays", OURSELVES: "goes", LEASE: "asks"}
    for name, rule in {**RULES, "static-quorum": quorum_of(size)}.items():
        decided = []
        for side in sides:
            cut = [n for n in nodes if n not in side]
            outcomes = {rule(split(copy, *cut, me=me)).outcome for me in side}
            assert len(outcomes) == 1
            decided.append(words[outcomes.pop()])
        assert decided == promised(name, sides, size), name
