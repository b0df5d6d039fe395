"""The loads of many entities share round trips, and each gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from shardbus.errors import StaleFence, StoreUnavailable
from shardbus.store.load_group import GROUP_LOADS, Load, Loaded, LoadGroup
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
