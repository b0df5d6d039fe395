"""The loads of many entities share round trips, and each gets its own answer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

import pytest

from shardbus.errors import StaleFence, StoreUnavailable
from shardbus.store.load_group import (
    GROUP_LOADS,
    GROWS_AFTER,
    GROWS_AFTER_MAX,
    GroupSize,
    Load,
    Loaded,
    LoadGroup,
)
from tests.waiting import turns


class Script:
    """Loads all entities of a group, once the gate is open."""

    def __init__(self) -> None:
        self.groups: list[list[Load]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None

    async def load_all(self, loads: Sequence[Load]) -> list[Loaded]:
        self.groups.append(list(loads))
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return [
            StaleFence(load.entity_type, load.entity_id, load.fence, 9)
            if load.entity_id == "stale"
            else load.entity_id.encode()
            for load in loads
        ]

    @property
    def sizes(self) -> list[int]:
        return [len(group) for group in self.groups]


@pytest.fixture
def store() -> Script:
    return Script()


@pytest.fixture
def group(store: Script) -> LoadGroup:
    return LoadGroup(store.load_all)


async def test_loads_of_one_turn_share_a_step(store: Script, group: LoadGroup) -> None:
    loads = [group.load("cart", "7", f"e-{n}", 1) for n in range(60)]
    assert await asyncio.gather(*loads) == [b"e-%d" % n for n in range(60)]
    assert store.sizes == [60]


async def test_a_second_group_goes_along_once_there_is_enough_for_it(
    store: Script, group: LoadGroup
) -> None:
    store.gate.clear()
    loads = [group.load("cart", "7", "first", 1)]
    await turns()
    for n in range(64):
        assert store.sizes == [1]
        loads.append(group.load("cart", "7", f"e-{n}", 1))
        await turns()
    assert store.sizes == [1, 64]
    store.gate.set()
    assert len(await asyncio.gather(*loads)) == 65


async def test_groups_are_bounded_and_of_one_type_and_have_an_entity_once(
    store: Script, group: LoadGroup
) -> None:
    store.gate.clear()
    loads = [group.load("cart", "7", "a", 1)]
    await turns()
    loads += [
        group.load("cart", "7", "a", 2),
        group.load("cart", "7", "a", 3),
        group.load("order", "7", "b", 4),
    ]
    store.gate.set()
    assert await asyncio.gather(*loads) == [b"a", b"a", b"a", b"b"]
    assert [[load.fence for load in loads] for loads in store.groups] == [[1], [2], [3], [4]]
    store.groups.clear()
    await asyncio.gather(
        *(group.load("cart", "7", f"e-{n}", 1) for n in range(2 * GROUP_LOADS + 5))
    )
    assert sorted(store.sizes) == [5, GROUP_LOADS, GROUP_LOADS]


async def test_a_stale_one_fails_alone(group: LoadGroup) -> None:
    outcomes = await asyncio.gather(
        *(group.load("cart", "7", name, 1) for name in ("a", "stale", "b")), return_exceptions=True
    )
    assert (outcomes[0], outcomes[2]) == (b"a", b"b")
    assert isinstance(outcomes[1], StaleFence)


async def test_a_store_that_does_not_answer_fails_each_with_an_error_of_its_own(
    store: Script, group: LoadGroup
) -> None:
    store.error = StoreUnavailable("away", hint="wait", definite=False)
    outcomes = await asyncio.gather(
        *(group.load("cart", "7", name, 1) for name in "ab"), return_exceptions=True
    )
    assert [str(error) for error in outcomes] == ["away; wait", "away; wait"]
    assert outcomes[0] is not outcomes[1]
    store.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        await group.load("cart", "7", "a", 1)
    store.error = None
    assert await group.load("cart", "7", "a", 1) == b"a"


async def test_what_waited_behind_a_group_without_an_answer_fails_with_it(
    store: Script, group: LoadGroup
) -> None:
    """Otherwise the last of many would wait for as many groups that the store does not answer."""
    store.gate.clear()
    store.error = StoreUnavailable("away")
    loads = [group.load("cart", "7", f"e-{n}", 1) for n in range(5 * GROUP_LOADS)]
    await turns()
    later = group.load("cart", "7", "later", 1)
    store.gate.set()
    outcomes = await asyncio.gather(*loads, later, return_exceptions=True)
    assert {type(error) for error in outcomes} == {StoreUnavailable}
    assert store.sizes == [GROUP_LOADS, GROUP_LOADS, 1], "what came after them was tried"


async def test_a_cancelled_load_leaves_the_others_alone(store: Script, group: LoadGroup) -> None:
    store.gate.clear()
    first, second = group.load("cart", "7", "a", 1), group.load("cart", "7", "b", 1)
    await turns()
    late = group.load("cart", "7", "c", 1)
    second.cancel()
    late.cancel()
    store.gate.set()
    assert await first == b"a"
    await turns()
    assert store.sizes == [2]


class Limited(Script):
    """Its server sends at most `most` states at a time, and ends the connection before more."""

    most = 8

    async def load_all(self, loads: Sequence[Load]) -> list[Loaded]:
        self.error = StoreUnavailable("no answer") if len(loads) > self.most else None
        return await super().load_all(loads)


async def test_groups_become_small_enough_for_a_server_that_limits_its_replies() -> None:
    store = Limited()
    group = LoadGroup(store.load_all)
    missing = {f"e{n}" for n in range(GROUP_LOADS)}
    tries = 0
    while missing:
        tries += 1
        ids = sorted(missing)
        loads = [group.load("cart", "0", each, 10) for each in ids]
        results = await asyncio.gather(*loads, return_exceptions=True)
        failed = [isinstance(result, StoreUnavailable) for result in results]
        missing = set(itertools.compress(ids, failed))
        assert tries < 10
    assert len(store.groups[-1]) <= store.most


async def test_groups_that_were_refused_keep_their_size(store: Script, group: LoadGroup) -> None:
    """A full server has not tried to answer."""
    store.error = StoreUnavailable("is full", definite=True)
    for _ in range(2):
        loads = [group.load("cart", "0", f"e{n}", 10) for n in range(GROUP_LOADS)]
        await asyncio.gather(*loads, return_exceptions=True)
    assert [len(each) for each in store.groups] == [GROUP_LOADS] * 2


def test_groups_grow_again_and_ever_later_while_they_meet_the_limit() -> None:
    size = GroupSize()
    size.lost(GROUP_LOADS)
    assert size.most == GROUP_LOADS // 2
    size.lost(GROUP_LOADS // 2)
    waits: list[int] = []
    for _ in range(12):
        before, answered = size.most, 0
        while size.most == before:
            size.answered()
            answered += 1
        waits.append(answered)
        size.lost(size.most)
    assert waits == [min(GROWS_AFTER * 2**n, GROWS_AFTER_MAX) for n in range(1, 13)]


def test_a_load_that_is_not_answered_alone_is_tried_alone() -> None:
    size = GroupSize()
    for _ in range(20):
        size.lost(1)
    assert size.most == 1
