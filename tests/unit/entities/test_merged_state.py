"""The state that instances share: what each of them has after saves, news, clears and failures of
the others. One value stands for the replicas; the instances take turns in any order."""

from __future__ import annotations

from collections import Counter as Tally
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.data import Counter, Map, Register, Set
from shardbus.entities.merged_state import MergedState, StateCopy, StateOfKind, StateWithMerge
from shardbus.errors import SchemaError, StateUnreadable
from shardbus.replication.versions import (
    COUNTER,
    MAP,
    NOTHING,
    REGISTER,
    SET,
    DataChange,
    DataValue,
    NotTaken,
    joined,
    taken,
)
from shardbus.wire.schema import decoder
from shardbus.wire.stored_state import StateCodec, compressed

INSTANCES = 3


@dataclass
class Votes:
    by: dict[str, int] = field(default_factory=dict)


def merge(first: Votes, other: Votes) -> Votes:
    names = first.by.keys() | other.by.keys()
    return Votes({name: max(first.by.get(name, 0), other.by.get(name, 0)) for name in names})


def votes_form(function: Any = merge) -> StateWithMerge:
    return StateWithMerge(StateCodec("votes", Votes, decoder(Votes)), function)


class Replicas:
    """Disks, each with a value of its own. A write is taken by one of them; a read has two."""

    def __init__(self, form: MergedState, disks: int = 3) -> None:
        self.form = form
        self.values = [NOTHING] * disks
        self.counters = [0] * disks

    def read(self, at: int) -> DataValue:
        pair = at % len(self.values), (at + 1) % len(self.values)
        value = joined(*(self.values[disk] for disk in pair))
        for disk in pair:
            self._store(disk, value)
        return value

    def write(self, at: int, change: DataChange) -> DataValue:
        disk = at % len(self.values)
        step = taken(self.values[disk], disk + 1, self.counters[disk], change._replace(time=1))
        assert not isinstance(step, NotTaken)
        self._store(disk, step[0])
        self._store((disk + 1) % len(self.values), step[0])
        return step[0]

    def _store(self, disk: int, value: DataValue) -> None:
        value = self.values[disk] = joined(self.values[disk], value)
        highest = [counter for _, counter in value.clock]
        self.counters[disk] = max([self.counters[disk], *highest])


class Instance:
    """One instance: the steps of `merging`, without waiting."""

    def __init__(self, replicas: Replicas, at: int = 0) -> None:
        self.replicas, self.form, self.at = replicas, replicas.form, at
        self.copy = StateCopy(SimpleNamespace(state=None))
        self.form.first("a", self.copy, replicas.read(at))

    @property
    def state(self) -> Any:
        return self.copy.entity.state

    def take(self) -> None:
        self.form.take("a", self.copy, self.replicas.read(self.at))

    def begin(self) -> Any:
        """Read, and return the save on its way."""
        self.take()
        data = self.form.write(self.state)
        return self.form.outgoing(self.copy, data, data)

    def end(self, save: Any) -> None:
        if save.change is not None:
            value = self.replicas.write(self.at, save.change)
            self.form.saved("a", self.copy, save, value)

    def save(self) -> None:
        self.end(self.begin())

    def clear(self) -> None:
        self.take()
        change = DataChange("", seen=self.copy.value.clock)
        value = joined(self.copy.value, self.replicas.write(self.at, change))
        self.form.first("a", self.copy, value)


steps = st.lists(
    st.tuples(
        st.integers(0, INSTANCES - 1),
        st.sampled_from(["change", "begin", "end", "take", "restart", "give up"]),
    ),
    max_size=40,
)


@given(steps)
def test_additions_of_all_instances_count_once(script: list[tuple[int, str]]) -> None:
    replicas = Replicas(StateOfKind("hits", COUNTER))
    instances = [Instance(replicas, n) for n in range(INSTANCES)]
    under_way: dict[int, Any] = {}
    unsaved, sent, total = Tally[int](), Tally[int](), 0
    for n, step in script:
        instance = instances[n]
        match step:
            case "change":
                instance.state.add(1)
                unsaved[n] += 1
            case "begin" if n not in under_way:
                under_way[n] = instance.begin()
                sent[n], unsaved[n] = unsaved[n], 0
            case "end" if n in under_way:
                instance.end(under_way.pop(n))
                total += sent.pop(n)
            case "give up" if n in under_way:
                instance.form.give_up(instance.copy, under_way.pop(n))
                del sent[n]
            case "take":
                instance.take()
            case "restart" if n not in under_way:
                instances[n] = Instance(replicas, n)
                unsaved[n] = 0
            case _:
                continue
        assert instances[n].state.value <= total + unsaved[n] + sent[n]
    for n in under_way:
        instances[n].end(under_way[n])
        total += sent[n]
    for n, instance in enumerate(instances):
        instance.save()
        total += unsaved[n]
    for instance in instances:
        instance.take()
        assert instance.state.value == total


@given(steps)
def test_a_function_makes_one_state_of_all(script: list[tuple[int, str]]) -> None:
    replicas = Replicas(votes_form())
    instances = [Instance(replicas, n) for n in range(INSTANCES)]
    under_way: dict[int, Any] = {}
    saved: dict[str, int] = {}
    for n, step in script:
        instance, name = instances[n], f"voter-{n}"
        match step:
            case "change":
                instance.state.by[name] = instance.state.by.get(name, 0) + 1
            case "begin" if n not in under_way:
                under_way[n] = instance.begin()
            case "end" if n in under_way:
                save = under_way.pop(n)
                instance.end(save)
                for voter, votes in replicas.form.codec.read("a", save.data).by.items():  # type: ignore[union-attr]
                    saved[voter] = max(votes, saved.get(voter, 0))
            case "take":
                instance.take()
            case "restart" if n not in under_way:
                instances[n] = Instance(replicas, n)
            case _:
                continue
        assert len(replicas.read(0).dots) <= INSTANCES + 1, "contents are bounded"
    for n in range(INSTANCES):
        fresh = Instance(replicas, n)
        assert all(fresh.state.by[voter] == votes for voter, votes in saved.items())
    for instance in instances:
        instance.save()
    states = {tuple(sorted(Instance(replicas, n).state.by.items())) for n in range(INSTANCES)}
    assert len(states) == 1


@pytest.mark.parametrize("form", [votes_form(), StateOfKind("hits", COUNTER)])
def test_a_cleared_state_is_empty_at_all_instances(form: MergedState) -> None:
    replicas = Replicas(form)
    near, other = Instance(replicas, 0), Instance(replicas, 1)
    empty = form.write(near.state)
    change(near)
    near.save()
    other.take()
    assert shown(other.state)
    other.clear()
    near.take()
    for instance in (near, other, Instance(replicas, 2)):
        assert not shown(instance.state)
        assert form.write(instance.state) == empty


def test_a_change_that_is_not_saved_survives_news_and_clears() -> None:
    for form in (votes_form(), StateOfKind("hits", COUNTER)):
        replicas = Replicas(form)
        near, other = Instance(replicas, 0), Instance(replicas, 1)
        change(other)
        other.save()
        change(near, "mine")
        near.take()
        assert shown(near.state) == {"theirs": 1, "mine": 1} if form.codec else {"": 2}
        other.take()
        other.clear()
        near.save()
        other.take()
        assert "mine" in shown(other.state) or shown(other.state) == {"": 1}


def change(instance: Instance, name: str = "theirs") -> None:
    if isinstance(instance.state, Counter):
        instance.state.add(1)
    else:
        instance.state.by[name] = 1


def shown(state: Any) -> dict[str, int]:
    if isinstance(state, Counter):
        return {"": state.value} if state.value else {}
    votes: dict[str, int] = state.by
    return votes


def test_the_same_object_stays_while_nobody_else_saves() -> None:
    """A handler may hold a part of its state over a save."""
    instance = Instance(Replicas(votes_form()))
    state = instance.state
    state.by["a"] = 1
    instance.save()
    instance.take()
    assert instance.state is state


def test_two_saves_at_once_of_a_set_with_a_removal_in_between() -> None:
    replicas = Replicas(StateOfKind("names", SET))
    instance = Instance(replicas)
    instance.state.add("ada", "bob")
    save = instance.begin()
    instance.state.remove("bob").add("eve")
    instance.end(save)
    assert instance.state.value == {"ada", "eve"}
    assert Instance(replicas).state.value == {"ada", "bob"}, "only the first is saved"
    instance.save()
    assert Instance(replicas).state.value == {"ada", "eve"}


@pytest.mark.parametrize(
    ("letter", "first", "second", "both"),
    [
        (REGISTER, lambda r: r.set("one"), lambda r: r.set("other"), {"one", "other"}),
        (SET, lambda s: s.add("one"), lambda s: s.add("other"), {frozenset({"one", "other"})}),
        (MAP, lambda m: m.set("a", 1), lambda m: m.set("b", 2), {(("a", 1), ("b", 2))}),
    ],
)
def test_changes_of_a_kind_at_the_same_time_both_stay(
    letter: str, first: Any, second: Any, both: set[Any]
) -> None:
    replicas = Replicas(StateOfKind("kept", letter))
    near, other = Instance(replicas, 0), Instance(replicas, 1)
    first(near.state)
    second(other.state)
    saves = [near.begin(), other.begin()]
    near.end(saves[0])
    other.end(saves[1])
    merged = Instance(replicas, 2).state
    match merged:
        case Register():
            assert {merged.value, *merged.conflicts} == both
        case Map():
            assert {tuple(sorted(merged.value.items()))} == both
        case Set():
            assert {merged.value} == both


def fails(first: Votes, other: Votes) -> Votes:
    raise RuntimeError("cannot")


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (fails, "RuntimeError: cannot"),
        (lambda first, other: None, "SchemaError"),
        (lambda: 0, ""),
    ],
)
def test_contents_that_do_not_merge_stay_and_are_named(function: Any, why: str) -> None:
    replicas = Replicas(votes_form(function))
    near, other = Instance(replicas, 0), Instance(replicas, 1)
    change(near, "one")
    change(other, "other")
    saves = [near.begin(), other.begin()]
    near.end(saves[0])
    with pytest.raises(StateUnreadable, match=f"states .* do not merge: {why}") as caught:
        other.end(saves[1])
    assert (caught.value.entity_type, caught.value.entity_id) == ("votes", "a")
    with pytest.raises(StateUnreadable, match="of votes 'a'"):
        Instance(replicas, 2)
    replicas.form = votes_form()
    assert Instance(replicas, 2).state.by == {"one": 1, "other": 1}, "a class that can merges them"


def test_a_value_of_another_declaration_is_named() -> None:
    replicas = Replicas(StateOfKind("hits", COUNTER))
    near = Instance(replicas)
    change(near)
    near.save()
    replicas.form = votes_form()
    with pytest.raises(StateUnreadable, match="it is a counter, and the class declares a register"):
        Instance(replicas)


def test_contents_of_older_versions_and_compressed_ones_merge() -> None:
    old = votes_form()
    replicas = Replicas(old)
    near = Instance(replicas, 0)
    near.state.by = {f"voter-{n}": 1 for n in range(200)}
    other = Instance(replicas, 1)
    change(other)
    saves = [near.begin(), other.begin()]
    short = compressed(saves[0].data)
    assert short != saves[0].data
    near.end(near.form.outgoing(near.copy, saves[0].data, short))
    other.end(saves[1])
    codec = StateCodec("votes", Votes, decoder(Votes), 2)
    codec.migrations[1] = lambda state: {"by": {f"{name}!": n for name, n in state["by"].items()}}
    replicas.form = StateWithMerge(codec, merge)
    state = Instance(replicas, 2).state
    assert len(state.by) == 201
    assert state.by["theirs!"] == 1


def test_a_state_that_is_none_is_refused_before_it_is_sent() -> None:
    form = StateOfKind("hits", COUNTER)
    with pytest.raises(SchemaError, match="the state of hits: it is a int, and not a counter"):
        form.write(3)
    instance = Instance(Replicas(form))
    instance.copy.entity.state = Counter().add(2)
    instance.save()
    assert instance.state.value == 2, "a new object of the kind is as good"


def test_a_removal_that_is_not_saved_survives_news() -> None:
    replicas = Replicas(StateOfKind("names", SET))
    near, other = Instance(replicas, 0), Instance(replicas, 1)
    near.state.add("ada", "bob")
    near.save()
    near.state.remove("bob")
    other.take()
    other.state.add("eve")
    other.save()
    near.take()
    assert near.state.value == {"ada", "eve"}
    near.save()
    other.take()
    assert other.state.value == {"ada", "eve"}
