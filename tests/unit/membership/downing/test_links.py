"""The graph of working links: tables, the smallest removal against brute force, and laws over
generated graphs. B.40, S1.25."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.ids import NodeId
from shardbus.membership.downing.links import BadLinks, group_of
from shardbus.membership.downing.split import (
    Decision,
    DowningOutcome,
    Preference,
    Split,
    survey,
)
from shardbus.membership.downing.strategies import (
    keep_majority,
    keep_oldest,
    lease_majority,
    static_quorum,
)
from shardbus.membership.failure.ring import neighbours
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Member, Status
from shardbus.membership.reachability import Flag, ObserverRow, Reachability
from tests.records import replace

UN, BAD, GONE = Flag.UNREACHABLE, Flag.QUARANTINED, Flag.TERMINATED
OTHERS, OURSELVES = DowningOutcome.DOWN_OTHERS, DowningOutcome.DOWN_OURSELVES
Flags = list[tuple[NodeId, NodeId, Flag]]


def node(host: str) -> NodeId:
    return NodeId(host, 1, 1)


def nodes(hosts: str) -> list[NodeId]:
    return [node(host) for host in hosts]


def hosts(nodes: Iterable[NodeId]) -> str:
    return "".join(sorted(n.host for n in nodes))


def flags(words: str) -> Flags:
    """`a>b`: a does not reach b; `a-b`: neither reaches the other; `a!b`: a accuses b."""
    flags_of = []
    for first, how, other in words.split():
        kind = BAD if how == "!" else UN
        flags_of.append((node(first), node(other), kind))
        if how == "-":
            flags_of.append((node(other), node(first), kind))
    return sorted(flags_of)


@pytest.mark.parametrize(
    ("words", "me", "group"),
    [
        ("", "a", "abcde"),
        ("e>a e>b e>c e>d", "a", "abcd"),
        ("e>a e>b e>c e>d", "e", "e"),
        ("a>e b>e c>e d>e", "a", "abcd"),
        ("a>e b>e c>e d>e", "e", "e"),
        ("e>a e>b c>e d>e", "a", "abcd"),
        ("e!a e!b e!c e!d", "b", "abcd"),
        ("e>a e>b e>c", "a", "abcde"),
        ("a-b", "a", "abcde"),
        ("d>a d>b d>c e>a e>b e>c", "a", "abc"),
        ("d>a d>b d>c e>a e>b e>c", "d", "de"),
        ("d>a d>b d>c d>e e>a e>b e>c", "a", "abc"),
        ("d>a d>b d>c d>e e>a e>b e>c", "d", "d"),
    ],
)
def test_groups_are_what_working_links_connect(words: str, me: str, group: str) -> None:
    assert hosts(group_of(node(me), nodes("abcde"), flags(words), 9)) == group


@pytest.mark.parametrize("words", ["", "a-b", "a-b a-c a-d b-c b-d c-d"])
def test_a_node_that_others_have_removed_is_in_no_group_and_on_no_side(words: str) -> None:
    """It receives the copy without it, whatever the flags among the others are."""
    four = {n: Member(n, 2, status=Status.UP, up_number=i) for i, n in enumerate(nodes("abcd"), 1)}
    rows: dict[NodeId, dict[NodeId, Flag]] = {}
    for observer, subject, flag in flags(words):
        rows.setdefault(observer, {})[subject] = flag
    reachability = Reachability({n: ObserverRow(1, flagged) for n, flagged in rows.items()})
    copy = Gossip(four, seen=frozenset(nodes("abc")), reachability=reachability)
    assert group_of(node("x"), nodes("abcd"), flags(words), 9) == frozenset()
    assert survey(copy, node("x"), doubtful=nodes("d"), unborn=True) == Split(unborn=True)


def test_in_a_ring_a_pair_that_nobody_watches_proves_no_link() -> None:
    """X hears none of those that it watches, and is heard by none that watches it."""
    ring = [NodeId(f"n{i}", 1, i) for i in range(30)]
    near = neighbours(ring, 3)
    x = ring[0]
    assert len(near[x]) == 6
    alone = [(x, other, UN) for other in near[x]]
    assert group_of(x, ring, alone, 3) == {x}
    assert group_of(ring[1], ring, alone, 3) == frozenset(ring) - {x}
    assert group_of(x, ring, alone[:-1], 3) == frozenset(ring)


@pytest.mark.parametrize(
    ("words", "voters", "stays", "go"),
    [
        ("e>a e>b e>c", "abcde", "", "e"),
        ("a>e b>e c>e", "abcde", "", "e"),
        ("e!a e!b e!c", "abcde", "", "e"),
        ("e!a e!b", "abcde", "", "e"),
        ("a-b", "abcde", "", "b"),
        ("a-b", "bcde", "", "a"),
        ("a-b", "abcde", "b", "a"),
        ("b!a", "abcde", "", "a"),
        ("b!a a!b", "abcde", "", "b"),
        ("b!a a>b", "abcde", "", "a"),
        ("b!a c!a", "abcde", "", "a"),
        ("a-b b-c c-d", "abcde", "", "bc"),
        ("a-b c-d", "abcde", "", "bd"),
        ("a-b a-c a-d", "abcde", "a", "bcd"),
        ("a-b b-c c-d", "abcde", "b", "ac"),
        ("a-b a-c b-c", "abcde", "", "bc"),
    ],
)
def test_the_fewest_go_then_those_without_votes_then_by_direction_and_address(
    words: str, voters: str, stays: str, go: str
) -> None:
    links = BadLinks(flags(words), nodes(voters))
    assert hosts(links.fewest_to_go(node(stays) if stays else None)) == go


def test_very_many_bad_links_are_cured_too() -> None:
    ring = [NodeId(f"n{i:02}", 1, i) for i in range(40)]
    every = [(a, b, UN) for a, b in combinations(ring, 2)]
    assert len(BadLinks(every, ring).fewest_to_go()) == 39
    chain = [(a, b, UN) for a, b in pairwise(ring)]
    gone = BadLinks(chain, ring).fewest_to_go()
    assert all(a in gone or b in gone for a, b, _ in chain)


HOSTS = "abcdefg"
a_flag = st.tuples(
    st.sampled_from(HOSTS), st.sampled_from(HOSTS), st.sampled_from([UN, BAD])
).filter(lambda ends: ends[0] != ends[1])


def as_flags(words: Iterable[tuple[str, str, Flag]]) -> Flags:
    worst: dict[tuple[NodeId, NodeId], Flag] = {}
    for first, other, flag in words:
        key = (node(first), node(other))
        worst[key] = max(flag, worst.get(key, flag))
    return sorted((o, s, flag) for (o, s), flag in worst.items())


@given(st.lists(a_flag, max_size=14), st.sets(st.sampled_from(HOSTS)))
def test_against_every_possible_removal(
    edges: list[tuple[str, str, Flag]], voters: set[str]
) -> None:
    """A dumb reference: all sets of members, the first in the order of the module's text."""
    given_flags, votes = as_flags(edges), nodes("".join(sorted(voters)))
    bad = {frozenset(record[:2]) for record in given_flags}
    degree = {n: sum(n in link for link in bad) for n in nodes(HOSTS)}
    accused = {
        n: sum((s == n) - (o == n) for o, s, flag in given_flags if flag is BAD)
        for n in nodes(HOSTS)
    }

    def cost(go: tuple[NodeId, ...]) -> tuple[object, ...]:
        places = sorted(-nodes(HOSTS).index(n) for n in go)
        evidence = -sum(degree[n] for n in go), -sum(accused[n] for n in go)
        return (len(go), len(set(votes) & set(go)), *evidence, places)

    covers = [
        go
        for count in range(len(HOSTS) + 1)
        for go in combinations(nodes(HOSTS), count)
        if all(link & set(go) for link in bad)
    ]
    assert BadLinks(given_flags, votes).fewest_to_go() == min(covers, key=cost)


@given(st.lists(a_flag, max_size=14), st.sampled_from(HOSTS))
def test_who_must_stay_stays_and_no_bad_link_is_left(
    edges: list[tuple[str, str, Flag]], stays: str
) -> None:
    given_flags = as_flags(edges)
    go = BadLinks(given_flags, nodes(HOSTS)).fewest_to_go(node(stays))
    assert node(stays) not in go
    assert all(o in go or s in go for o, s, _ in given_flags)
    assert set(go) <= {end for record in given_flags for end in record[:2]}


# -- harm of one node to the others ----------------------------------------------------------------


def cluster(count: int, seen: Iterable[NodeId], flags: Flags) -> Gossip:
    members = {
        n: Member(n, 2, status=Status.UP, up_number=1 + i)
        for i, n in enumerate(nodes("abcdefghij"[:count]))
    }
    rows: dict[NodeId, dict[NodeId, Flag]] = {}
    for observer, subject, flag in flags:
        rows.setdefault(observer, {})[subject] = flag
    table = Reachability({o: ObserverRow(1, row) for o, row in sorted(rows.items())})
    return Gossip(members, frozenset(seen), reachability=table)


@given(
    st.integers(3, 9),
    st.data(),
    st.sampled_from([UN, BAD]),
)
def test_one_node_that_is_deaf_mute_or_accuses_is_the_only_one_that_goes(
    count: int, data: st.DataObject, kind: Flag
) -> None:
    """X flags any of the others, any of the others flag X, and any have seen that. From two bad
    links on no other node is chosen, and with one, one end of it."""
    names = "abcdefghij"[:count]
    x = data.draw(st.sampled_from(names))
    others = names.replace(x, "")
    of_x = data.draw(st.sets(st.sampled_from(others)))
    by_others = data.draw(st.sets(st.sampled_from(others)))
    edges = [(node(x), node(n), kind) for n in sorted(of_x)]
    edges += [(node(n), node(x), UN) for n in sorted(by_others)]
    copy = cluster(count, nodes(names), sorted(edges))
    links = of_x | by_others
    for me in nodes(others):
        split = survey(copy, me)
        goes = {*split.cut, *split.broken}
        if len(links) > 1:
            assert goes == {node(x)}
        else:
            assert goes <= {node(x), *nodes("".join(links))}
            assert len(goes) == len(links)


@given(st.integers(4, 9), st.data())
def test_the_flags_of_a_node_that_hears_no_other_cut_nobody_off(
    count: int, data: st.DataObject
) -> None:
    """Whoever has seen them, and whether or not anybody has noticed that it is deaf."""
    names = "abcdefghij"[:count]
    deaf, me = data.draw(st.permutations(names))[:2]
    others = names.replace(deaf, "")
    seen = data.draw(st.sets(st.sampled_from(others)))
    edges = [(node(deaf), node(n), UN) for n in others]
    edges += [(node(n), node(deaf), UN) for n in data.draw(st.sets(st.sampled_from(others)))]
    copy = cluster(count, nodes("".join(sorted(seen))), sorted(edges))
    split = survey(copy, node(me))
    assert split.cut == (node(deaf),)
    assert keep_majority(split).outcome is OTHERS
    itself = survey(replace(copy, seen=frozenset({node(deaf)})), node(deaf))
    assert itself.side == (node(deaf),)
    assert keep_majority(itself).outcome is OURSELVES


# -- never two winners, over generated graphs ------------------------------------------------------

RULES = {
    "keep-majority": (keep_majority, Preference()),
    "static-quorum": (lambda s: static_quorum(s, 4), Preference()),
    "keep-oldest": (lambda s: keep_oldest(s, True), Preference(oldest_stays=True)),
    "keep-oldest, alone too": (
        lambda s: keep_oldest(s, False),
        Preference(oldest_stays=True, unless_alone=False),
    ),
    "lease-majority": (lambda s: lease_majority(s, 2.0), Preference()),
}
PAIRS = list(combinations(HOSTS, 2))
a_link = st.sampled_from(["works"] * 5 + ["silent", "one flags", "accuses", "both accuse"])


def connected(kinds: Mapping[tuple[str, str], str]) -> list[str]:
    """The links that gossip uses: everything but silent links."""
    left, parts = set(HOSTS), []
    for first in HOSTS:
        if first not in left:
            continue
        part, todo = {first}, [first]
        while todo:
            here = todo.pop()
            near = {n for n in HOSTS if kinds.get((min(n, here), max(n, here))) != "silent"}
            todo += sorted(near - part - {here})
            part |= near
        left -= part
        parts.append("".join(sorted(part)))
    return parts


@given(st.lists(a_link, min_size=len(PAIRS), max_size=len(PAIRS)), st.data())
def test_of_any_graph_at_most_one_part_stays_and_no_bad_link_is_left_in_it(
    drawn: list[str], data: st.DataObject
) -> None:
    kinds = dict(zip(PAIRS, drawn, strict=True))
    parts = connected(kinds)
    for name, (rule, preference) in RULES.items():
        stays: list[Decision] = []
        for part in parts:
            edges: list[tuple[str, str, Flag]] = []
            for (a, b), kind in kinds.items():
                match kind:
                    case "silent":
                        edges += [(a, b, UN)] if a in part else []
                        edges += [(b, a, UN)] if b in part else []
                    case "one flags" if a in part and b in part:
                        edges.append((a, b, UN))
                    case "accuses" if a in part and b in part:
                        edges.append((a, b, BAD))
                    case "both accuse" if a in part and b in part:
                        edges += [(a, b, BAD), (b, a, BAD)]
                    case _:
                        pass
            records = as_flags(edges)
            copy = cluster(len(HOSTS), nodes(part), records)
            splits = [survey(copy, me, preference=preference) for me in nodes(part)]
            assert {hosts(split.side) for split in splits} == {part}, name
            assert len({split.broken for split in splits}) == 1, name
            decision = rule(splits[0])
            left = set(nodes(part)) - set(splits[0].broken)
            assert not any(o in left and s in left for o, s, _ in records), name
            if preference.oldest_stays and not preference.unless_alone and "a" in part:
                assert node("a") in left
            if decision.outcome is not OURSELVES:
                stays.append(decision)
        if name == "lease-majority":
            assert all(d.outcome is not OTHERS for d in stays)
        elif len(parts) > 1:
            sure = [d for d in stays if d.outcome is OTHERS]
            assert len(sure) <= 1, (name, parts)
            assert not sure or len(stays) == 1, (name, parts)
