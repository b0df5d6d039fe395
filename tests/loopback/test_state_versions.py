"""A class with a newer version reads the older one's state; a state that none can read is an error
at once: over sockets, by ask, by tell, relayed, and from entity to entity."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from shardbus import ConfigError, Entity, EntityFailed, ShardBus, StateUnreadable, handler
from shardbus.ids import shard_of
from shardbus.store.protocol import Save
from shardbus.wire.schema import encode_value
from tests.loopback.nodes import Nodes
from tests.unit.declaring import Anything
from tests.waiting import until

IDS = [f"c-{n}" for n in range(12)]
SHARDS = 12


@dataclass
class OldState:
    things: list[str] = field(default_factory=list)


@dataclass
class NewState:
    items: dict[str, int] = field(default_factory=dict)


def old() -> tuple[ShardBus, Any]:
    bus = ShardBus("shop")

    @bus.entity("cart", shards=SHARDS)
    class Cart(Entity):
        state: OldState

        @handler
        async def add(self, thing: str) -> int:
            self.state.things.append(thing)
            await self.save()
            return len(self.state.things)

    return bus, Cart


def new() -> tuple[ShardBus, Any, Any]:
    bus = ShardBus("shop")

    @bus.entity("cart", shards=SHARDS, state_version=2)
    class Cart(Entity):
        state: NewState

        @handler
        def show(self) -> dict[str, int]:
            return self.state.items

        @handler
        async def add(self, item: str) -> int:
            self.state.items[item] = self.state.items.get(item, 0) + 1
            await self.save()
            return self.state.items[item]

    @bus.entity("clerk", shards=SHARDS)
    class Clerk(Entity):
        @handler
        async def look(self, cart: str) -> dict[str, int]:
            return await self.context.ref(Cart, cart).show()

    @bus.migrate(Cart, 1)
    def to_items(value: dict[str, Any]) -> dict[str, Any]:
        return {"items": {thing: value["things"].count(thing) for thing in value["things"]}}

    return bus, Cart, Clerk


@pytest.mark.long
async def test_a_newer_class_reads_what_the_older_one_has_saved(nodes: Nodes) -> None:
    before, old_cart = old()
    first = await nodes.start(before)
    client = await nodes.client()
    for entity_id in IDS:
        for thing in ("tea", "cake", "tea"):
            await client.ref(old_cart, entity_id).add(thing)
    await nodes.leave(first)
    after, cart, _ = new()
    await nodes.cluster(after, 2)
    client = await nodes.client()
    shown = await asyncio.gather(*(client.ref(cart, entity_id).show() for entity_id in IDS))
    assert shown == [{"tea": 2, "cake": 1}] * len(IDS)
    stored = await nodes.all[-1].store.load_state("cart", shard_of(IDS[0], SHARDS), IDS[0], 2**40)
    assert stored == encode_value(OldState(["tea", "cake", "tea"])), "it is written with a save"


async def test_what_no_version_can_read_is_an_error_at_once(nodes: Nodes) -> None:
    bus, cart, clerk = new()
    first, _ = await nodes.cluster(bus, 2)
    bad = encode_value({"items": 7})
    client = await nodes.client()
    for entity_id in IDS:
        assert await client.ref(cart, entity_id).add("tea") == 1
    saves = [
        Save("cart", shard_of(f"x{entity_id}", SHARDS), f"x{entity_id}", 0, bad, n)
        for n, entity_id in enumerate(IDS)
    ]
    assert set(await first.store.save_states(saves)) == {None}
    for entity_id in (f"x{i}" for i in IDS):
        with pytest.raises(StateUnreadable) as caught:
            await client.ref(cart, entity_id).show()
        error = caught.value
        place = (error.entity_type, error.entity_id, error.version)
        assert place == ("cart", entity_id, 1)
        assert error.definite
        assert "KeyError: 'things'" in str(error)
        with pytest.raises(EntityFailed) as failure:
            await client.ref(clerk, "c").look(entity_id)
        assert failure.value.type == "StateUnreadable"
        assert not failure.value.definite, "the clerk's handler ran"
    named = [node.regions["cart"].host.counts.failed.unreadable for node in nodes.all]
    assert sum(map(len, named)) == len(IDS)
    assert any("KeyError" in record.get(f"x{IDS[0]}", "") for record in named)
    await client.ref(cart, f"x{IDS[0]}").show.tell()
    await until(lambda: client.refused_messages == {"start_failed": 1}, "the report")
    assert await client.ref(cart, IDS[0]).show() == {"tea": 1}


def test_declarations_are_checked() -> None:
    bus, cart, clerk = new()
    for kind, version, why in (
        (cart, 1, "two migrations from version 1"),
        (cart, 2, "a migration from version 2, and the state has 2"),
        (cart, 0, "a migration from version 0"),
        (cart, True, "a migration from version True"),
        (clerk, 1, "'clerk' has no state"),
        ("stock", 1, "there is no entity type 'stock'"),
    ):
        with pytest.raises(ConfigError, match=why):
            bus.migrate(kind, version)
    for declaration, why in (
        ({"state_version": 0}, "state_version is 0, not 1 to 65534"),
        ({"state_version": "2"}, "state_version is '2'"),
        ({"state_version": 2}, "state_version without a state"),
    ):
        with pytest.raises(ConfigError, match=why):
            bus.entity("other", **declaration)(type("Other", (Anything,), {}))  # type: ignore[arg-type]
