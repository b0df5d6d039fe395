"""Replacement policies: who goes, as tables, against dumb references, and under late news."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.entities.eviction import (
    CompositePolicy,
    EvictionPolicy,
    LeastFrequent,
    LeastRecent,
    MostRecent,
    RankedIds,
    Segmented,
)
from tests.unit.entities.entity_kit import PolicyMemory


def gone(policy: EvictionPolicy, limit: int, uses: str) -> str:
    memory = PolicyMemory(policy, limit)
    for entity_id in uses.split():
        memory.use(entity_id)
    return " ".join(memory.gone)


@pytest.mark.parametrize(
    ("uses", "victim"),
    [
        ("a b c", ""),
        ("a b c d", "a"),
        ("a b c a d", "b"),
        ("a b c a d e", "b c"),
        ("a b c a b c d e f", "a b c"),
        ("a b c d a", "a b"),
        ("a b c d b a", "a c"),
    ],
)
def test_B81_lru_takes_the_least_recently_used(uses: str, victim: str) -> None:
    assert gone(LeastRecent(), 3, uses) == victim


@pytest.mark.parametrize(
    ("uses", "victim"),
    [
        ("a b c d e", "a"),
        ("a a b c d e f g", "b c d"),  # a was used again: it is above, and victims come from below
        ("a a b b c d e f", "c d"),
        ("a a b b c c d e", "a"),  # c rises, a comes back below, in front of d
        ("a a b b c c a d e", "b"),  # a rises once more, b comes back
        ("a a b b c c d a e f", "d b"),
        ("a a b c c d d e f", "b a"),
    ],
)
def test_B81_slru_takes_entities_used_once_first(uses: str, victim: str) -> None:
    assert gone(Segmented(4, 0.5), 4, uses) == victim


@pytest.mark.parametrize(
    ("uses", "victim"),
    [
        ("a b c d", "c"),
        ("a b c d e f", "c d e"),
        ("a b c a d", "a"),
        ("a b c a b d", "b"),
    ],
)
def test_B82_mru_takes_the_second_most_recently_used(uses: str, victim: str) -> None:
    assert gone(MostRecent(), 3, uses) == victim


@pytest.mark.parametrize(
    ("limit", "uses", "victim"),
    [
        (3, "a a b b c d", "c"),
        (3, "a a a b b c d e f", "c d b"),  # c had 1, so who comes later begins with 2, as b has
        (3, "a b c d", "a"),  # alike: who has it for longest
        (2, "a a a b c d e f g", "b c d e a"),  # d and e began with 2, f and g with 3, as a has
    ],
)
def test_B83_lfu_takes_the_least_used_and_old_uses_lose_weight(
    limit: int, uses: str, victim: str
) -> None:
    assert gone(LeastFrequent(), limit, uses) == victim


def test_mru_keeps_what_a_loop_comes_back_to_and_lru_nothing() -> None:
    hits = {}
    for policy in (MostRecent(), LeastRecent()):
        memory = PolicyMemory(policy, 50)
        for n in range(2000):
            memory.use(f"e{n % 80}")
        hits[type(policy)] = memory.hits
    assert hits[LeastRecent] == 0
    assert hits[MostRecent] > 1000


def test_the_protected_level_follows_the_limit() -> None:
    memory = PolicyMemory(policy := Segmented(10, 0.5), 10)
    for entity_id in "abcde" * 2:
        memory.use(entity_id)
    policy.resize(4)
    assert [policy.victim(), len(policy)] == ["a", 5]
    memory.limit = 4
    memory.use("x")
    assert memory.gone == ["a", "b"]


# Against dumb references


class DumbLru:
    def __init__(self) -> None:
        self.last: dict[str, int] = {}

    def use(self, entity_id: str, now: int) -> None:
        self.last[entity_id] = now

    def victim(self) -> str:
        return min(self.last, key=self.last.__getitem__)

    def drop(self, entity_id: str) -> None:
        del self.last[entity_id]


class DumbMru(DumbLru):
    def victim(self) -> str:
        return sorted(self.last, key=self.last.__getitem__)[-2]


class DumbSlru(DumbLru):
    """Two plain lists, the oldest first."""

    def __init__(self, protected: int) -> None:
        self.low: list[str] = []
        self.high: list[str] = []
        self.protected = protected

    def use(self, entity_id: str, now: int) -> None:
        if entity_id not in self.low + self.high:
            self.low.append(entity_id)
            return
        self.drop(entity_id)
        self.high.append(entity_id)
        while len(self.high) > self.protected:
            self.low.append(self.high.pop(0))

    def victim(self) -> str:
        return (self.low + self.high)[0]

    def drop(self, entity_id: str) -> None:
        (self.low if entity_id in self.low else self.high).remove(entity_id)


class DumbLfu(DumbLru):
    def __init__(self) -> None:
        self.worth: dict[str, int] = {}
        self.age = 0

    def use(self, entity_id: str, now: int) -> None:
        worth = max(self.worth.pop(entity_id, 0), self.age) + 1
        self.worth[entity_id] = worth

    def victim(self) -> str:
        victim = min(self.worth, key=self.worth.__getitem__)
        self.age = max(self.age, self.worth[victim])
        return victim

    def drop(self, entity_id: str) -> None:
        del self.worth[entity_id]


LIMIT = 5
PAIRS: dict[str, tuple[Callable[[], EvictionPolicy], Callable[[], Any]]] = {
    "lru": (LeastRecent, DumbLru),
    "slru": (lambda: Segmented(LIMIT, 0.6), lambda: DumbSlru(3)),
    "mru": (MostRecent, DumbMru),
    "lfu": (LeastFrequent, DumbLfu),
}


@pytest.mark.parametrize("name", PAIRS)
@given(uses=st.lists(st.sampled_from("abcdefghij"), max_size=120))
def test_the_clever_one_does_as_the_dumb_one(name: str, uses: list[str]) -> None:
    policy, dumb = (make() for make in PAIRS[name])
    memory = PolicyMemory(policy, LIMIT)
    here: list[str] = []
    victims: list[str] = []
    for now, entity_id in enumerate(uses, 1):
        memory.use(entity_id)
        dumb.use(entity_id, now)
        if entity_id not in here:
            here.append(entity_id)
        if len(here) > LIMIT:
            victim = dumb.victim()
            dumb.drop(victim)
            here.remove(victim)
            victims.append(victim)
    assert memory.gone == victims


# Promises of every policy

EVERY: dict[str, Callable[[], EvictionPolicy]] = {
    **{name: pair[0] for name, pair in PAIRS.items()},
    "composite": lambda: CompositePolicy(LIMIT, 0.2, 0.8),
}
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["start", "use", "stop", "spare", "drop", "resize"]),
        st.sampled_from("abcdefghijkl"),
        st.integers(0, 3),
    ),
    max_size=150,
)


@pytest.mark.parametrize("name", EVERY)
@given(steps=STEPS)
def test_a_policy_names_only_ids_in_memory(name: str, steps: Any) -> None:
    policy, here, now = EVERY[name](), set[str](), 0
    for what, entity_id, later in steps:
        now += later
        victim = policy.victim()
        if what == "start" and entity_id not in here:
            policy.started(entity_id, now)
            here.add(entity_id)
        elif what == "use" and entity_id in here:
            policy.used(entity_id, now)
        elif what == "stop":
            policy.stopped(entity_id)
            here.discard(entity_id)
        elif what == "spare" and victim:
            policy.spared(victim)
        elif what == "drop" and victim:
            policy.stopped(victim)
            here.discard(victim)
        elif what == "resize":
            policy.resize(1 + later)
        assert len(policy) == len(here)
        assert policy.victim() in here if here else policy.victim() is None


@pytest.mark.parametrize("name", EVERY)
@given(steps=STEPS, busy=st.sets(st.sampled_from("abcdefghijkl")))
def test_an_id_that_can_leave_is_named_within_two_rounds(
    name: str, steps: Any, busy: set[str]
) -> None:
    policy, here = EVERY[name](), set[str]()
    for now, (what, entity_id, _) in enumerate(steps):
        if entity_id not in here:
            policy.started(entity_id, now)
            here.add(entity_id)
        elif what == "use":
            policy.used(entity_id, now)
    for _ in range(2 * len(here)):
        victim = policy.victim()
        assert victim is not None
        if victim not in busy:
            return
        policy.spared(victim)
    assert here <= busy


# Ranks


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(-2, 4)), max_size=60))
def test_ranks_keep_numbers_in_order_and_within_one_the_order_of_coming(
    puts: list[tuple[str, int]],
) -> None:
    ranks, plain = RankedIds(), dict[str, int]()
    for entity_id, rank in puts:
        plain.pop(entity_id, None)
        if rank == 4:
            ranks.discard(entity_id)
        else:
            ranks.put(entity_id, rank)
            plain[entity_id] = rank
        order = sorted(plain, key=plain.__getitem__)
        assert list(ranks.backwards()) == order[::-1]
        assert ranks.first() == (order[0] if order else None)
        assert len(ranks) == len(plain)
        assert [ranks.rank(i) for i in plain] == list(plain.values())
        least, greatest = min(plain.values(), default=0), max(plain.values(), default=0)
        assert (ranks.least, ranks.greatest) == (least, greatest)
        assert ranks.above(1) == min((n for n in plain.values() if n > 1), default=2)
