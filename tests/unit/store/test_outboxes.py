"""Outboxes in a store: openers in turn, messages that an operator gives up, and the list."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest

from shardbus.errors import JournalConflict, Refused, StaleFence, StoreError
from shardbus.store.memory import MemoryData, MemoryStore
from shardbus.store.outboxes import (
    DROPPED_MAX,
    OutboxMessage,
    StoredOutboxes,
    decode_message,
    encode_message,
)

TTL = 5.0
COPIES = 3


class World:
    """A store with outboxes, and a clock."""

    def __init__(self) -> None:
        self.now, self.op_ids = 1000.0, count(1)
        self.store = MemoryStore(MemoryData(), clock=lambda: self.now)
        self.outboxes = StoredOutboxes(self.store, self.store.journals, lambda: self.now)

    async def open(self, name: str = "orders", producer: str = "p1", former: int = 0) -> int:
        fence = await self.outboxes.open(name, producer, TTL, former)
        assert fence is not None
        return fence

    async def send(self, fence: int, after: int, *ids: str, name: str = "orders") -> int:
        entries = [encode_message(OutboxMessage("page", i, "add", b"\x91\x01")) for i in ids]
        return await self.outboxes.append(name, fence, after, entries, next(self.op_ids))

    async def ids(self, name: str = "orders") -> list[str]:
        _, messages = await self.outboxes.messages(name, 0, 100)
        return [message.message.entity_id for message in messages]

    async def read(self, fence: int, after: int = 0) -> list[bytes]:
        return (await self.outboxes.read("orders", fence, after)).entries

    async def listed(self) -> list[str]:
        rows, more = await self.outboxes.summaries()
        assert not more
        return [row.name for row in rows]


@pytest.fixture
async def world() -> World:
    world = World()
    await world.store.start()
    return world


async def test_a_list_has_what_is_open_or_pending_the_oldest_message_first(world: World) -> None:
    for at, name in enumerate(("idle", "new", "old")):
        fence = await world.open(name, f"p{at}")
        if name != "idle":
            await world.send(fence, 0, "a", "b", name=name)
            world.now -= 10.0
    rows, _ = await world.outboxes.summaries()
    assert [(row.name, row.pending, row.register.producer) for row in rows] == [
        ("old", 2, "p2"),
        ("new", 2, "p1"),
        ("idle", 0, "p0"),
    ]
    oldest = rows[0].oldest
    assert oldest is not None
    assert (oldest.number, oldest.taken, oldest.message.entity_id) == (1, 990_000, "a")
    await world.outboxes.close("idle", "p0", 1, TTL)
    await world.outboxes.close("old", "p2", 1, TTL)
    assert await world.listed() == ["old", "new"]
    fence = await world.open("old", "p3")
    await world.outboxes.trim("old", fence, 2)
    await world.outboxes.close("old", "p3", fence, TTL)
    assert await world.listed() == ["new"]


async def test_one_process_has_it_open_and_a_former_one_changes_nothing(world: World) -> None:
    first = await world.open()
    last = await world.send(first, 0, "a")
    assert await world.outboxes.open("orders", "p2", TTL) is None
    world.now += TTL
    second = await world.open(producer="p2")
    assert second > first
    for refused in (
        world.send(first, last, "b"),
        world.outboxes.trim("orders", first, 1),
        world.outboxes.read("orders", first, 0),
    ):
        with pytest.raises(StaleFence):
            await refused
    await world.outboxes.close("orders", "p1", first, TTL)
    assert await world.outboxes.open("orders", "p3", TTL) is None
    with pytest.raises(JournalConflict):
        await world.send(second, 0, "b")
    assert await world.ids() == ["a"]


async def test_a_process_opens_it_again_unless_another_was_the_opener_since(world: World) -> None:
    first = await world.open()
    world.now += TTL
    again = await world.open(former=first)
    assert again > first
    assert await world.open(former=first) == again  # its answer was lost, and it asks again
    world.now += TTL
    unseen, again = again, await world.open(former=first)  # the lease has ended meanwhile
    assert again > unseen
    await world.send(again, 0, "a")
    world.now += TTL
    await world.outboxes.drop("orders")
    with pytest.raises(StaleFence):
        await world.open(former=again)
    assert await world.outboxes.open("orders", "p2", TTL) is not None  # the lease is free


@pytest.mark.parametrize("reopens", [False, True])
async def test_copies_of_an_opening_at_once_have_one_outcome(world: World, reopens: bool) -> None:
    """A node that did not answer handles the step and its repetitions together."""
    former = await world.open() if reopens else 0
    world.now += TTL
    read, halted = world.store.journals.open, [0]

    async def halting(*arguments: Any) -> Any:
        """Let every copy read the register before one writes it."""
        page = await read(*arguments)
        halted[0] += 1
        while halted[0] < COPIES:
            await asyncio.sleep(0)
        return page

    with patch.object(world.store.journals, "open", halting):
        fences = await asyncio.gather(*(world.open(former=former) for _ in range(COPIES)))
    assert len(set(fences)) == 1
    assert fences[0] > former
    register = await world.outboxes.register("orders")
    assert (register.fence, register.producer) == (fences[0], "p1")
    await world.send(fences[0], 0, "a")
    assert await world.listed() == ["orders"]


async def test_a_message_that_is_given_up_is_empty_for_the_next_opener(world: World) -> None:
    fence = await world.open()
    await world.send(fence, 0, "a", "b", "c", "d")
    await world.outboxes.close("orders", "p1", fence, TTL)
    dropped = await world.outboxes.drop("orders", 3)
    assert (dropped.number, dropped.left) == (1, 3)
    assert [message.message.entity_id for message in dropped.first] == ["c"]
    assert await world.ids() == ["a", "b", "d"]
    for number in (3, 5):
        with pytest.raises(Refused, match=f"has no message {number}"):
            await world.outboxes.drop("orders", number)
    fence = await world.open(producer="p2")
    read = await world.read(fence)
    assert [row and decode_message(row).entity_id for row in read] == ["a", "b", b"", "d"]
    assert [decode_message(message).entity_id for message in await world.read(fence, 3)] == ["d"]
    await world.outboxes.trim("orders", fence, 3)
    await world.outboxes.close("orders", "p2", fence, TTL)
    await world.open(producer="p3")
    assert (await world.outboxes.register("orders")).dropped == []


async def test_the_first_messages_go_with_those_given_up_behind_them(world: World) -> None:
    fence = await world.open()
    await world.send(fence, 0, "a", "b", "c")
    await world.outboxes.close("orders", "p1", fence, TTL)
    await world.outboxes.drop("orders", 2)
    assert (await world.outboxes.drop("orders", 1)).left == 1
    page = await world.store.journals.read("$outbox", "orders", "orders", 0, 9)
    assert (page.first, page.last) == (3, 3)
    assert (await world.outboxes.register("orders")).dropped == []
    assert (await world.outboxes.drop("orders", 3)).left == 0
    assert await world.listed() == []


async def test_numbers_go_on_after_all_is_given_up(world: World) -> None:
    """A receiver has the last number that it has handled; a lower one would pass for a repeat."""
    fence = await world.open()
    last = await world.send(fence, 0, "a", "b", "c")
    await world.outboxes.close("orders", "p1", fence, TTL)
    await world.outboxes.drop("orders", 2)
    dropped = await world.outboxes.drop("orders")
    assert (dropped.number, dropped.left) == (2, 0)
    assert [message.message.entity_id for message in dropped.first] == ["a", "c"]
    assert await world.listed() == []
    fence = await world.open(producer="p2")
    assert await world.send(fence, last, "d") == 4
    assert await world.ids() == ["d"]


async def test_nothing_is_given_up_while_a_process_has_it_open(world: World) -> None:
    fence = await world.open()
    await world.send(fence, 0, "a")
    for number in (0, 1):
        with pytest.raises(Refused, match="is open in a process"):
            await world.outboxes.drop("orders", number)
    assert await world.ids() == ["a"]
    assert await world.outboxes.renew("orders", "p1", fence, TTL)
    with pytest.raises(Refused, match="no outbox is called"):
        await world.outboxes.drop("bills")


async def test_few_are_given_up_behind_one_that_is_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardbus.store.outboxes.DROPPED_MAX", 2)
    assert DROPPED_MAX > 2
    fence = await world.open()
    await world.send(fence, 0, *"abcde")
    await world.outboxes.close("orders", "p1", fence, TTL)
    for number in (2, 3):
        await world.outboxes.drop("orders", number)
    with pytest.raises(Refused, match="2 messages are given up"):
        await world.outboxes.drop("orders", 4)
    assert (await world.outboxes.drop("orders")).number == 3


async def test_a_damaged_message_is_named_as_such(world: World) -> None:
    for damaged in (b"", b"\xc1", b"\x92\xa1a\xa1b"):
        with pytest.raises(StoreError, match="cannot be read"):
            decode_message(damaged)


async def test_a_long_list_is_cut(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardbus.store.outboxes.LISTED_MAX", 3)
    for name in "abcd":
        await world.open(name)
    rows: Any = await world.outboxes.summaries()
    assert ([row.name for row in rows[0]], rows[1]) == (["a", "b", "c"], True)
