"""The states that entities carry out of one host and into another, without the store."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.entities.entity_type import StopReason
from shardbus.errors import ConfigError, StaleActivation, StoreUnavailable
from shardbus.sharding.messages import CARRIED_BYTES_MAX, CarriedEntity
from tests.unit.entities.entity_kit import Bench
from tests.waiting import turns, until


@dataclass
class Cart:
    items: list[str] = field(default_factory=list)


def carts(**options: Any) -> ShardBus:
    """Return an application whose carts have a state and something else in memory."""
    bus = ShardBus("test")

    @bus.entity(name="cart", handoff="ordered", carry=True, **options)
    class CartEntity(Entity):
        state: Cart

        def __init__(self) -> None:
            self.views = 0
            self.last = ""

        async def on_stop(self, reason: StopReason) -> None:
            self.last = reason.value

        def dehydrate(self) -> bytes:
            if self.views < 0:
                raise ValueError("broken")
            return b"%d %s" % (self.views, self.last.encode())

        def rehydrate(self, data: bytes) -> None:
            if data == b"bad":
                self.views = 99
                raise ValueError("from another version")
            self.views = int(data.split()[0])

        @handler
        def view(self, count: int = 1) -> tuple[int, list[str]]:
            self.views += count
            return self.views, self.state.items

        @handler
        async def fail(self, item: str) -> None:
            self.state.items.append(item)
            await turns(20)
            raise ValueError("half done")

        @handler
        def grow(self, size: int) -> None:
            self.state.items.append("x" * size)

        @handler
        async def add(self, item: str) -> list[str]:
            self.state.items.append(item)
            try:
                await self.save()
            except StoreUnavailable:
                self.state.items.append("unknown")
            return self.state.items

    return bus


async def frozen(bench: Bench, reason: StopReason = StopReason.HANDOFF) -> tuple[Any, ...]:
    """Stop the shard and return the states that its entities carry."""
    bench.stop(reason)
    await bench.stopped()
    assert bench.host.carrying is not None
    return bench.host.carrying.take(Bench.SHARD)


def arriving(carried: tuple[Any, ...], fence: int = 9, start: int = 9) -> Bench:
    """A host at which a shard starts under `start` with the states carried for `fence`."""
    bench = Bench(carts())
    host = bench.host
    host.shards.clear()
    assert host.carrying is not None
    host.carrying.put(Bench.SHARD, fence, carried)
    host.start_shard(Bench.SHARD, start)
    host.set_arrivals(Bench.SHARD, True, None)
    return bench


async def one_cart() -> tuple[Any, ...]:
    bench = Bench(carts())
    assert await bench.ask("c", "add", "tea") == ["tea"]
    assert await bench.ask("c", "view", 3) == [3, ["tea"]]
    return await frozen(bench)


@pytest.mark.parametrize("reason", [StopReason.HANDOFF, StopReason.SHUTDOWN])
async def test_an_entity_carries_what_it_has_after_on_stop(reason: StopReason) -> None:
    bench = Bench(carts())
    await bench.ask("c", "add", "tea")
    await bench.ask("c", "view")
    [carried] = await frozen(bench, reason)
    assert (carried.kind, carried.id) == ("cart", "c")
    assert carried.data == b"1 %s" % reason.value.encode()
    assert b"tea" in (carried.state or b"")
    assert bench.host.counts.carried == {"frozen": 1}
    assert bench.host.carrying is not None
    assert bench.host.carrying.take(Bench.SHARD) == ()


async def test_it_starts_with_its_shard_and_without_a_load_from_the_store() -> None:
    bench = arriving(await one_cart())
    await until(lambda: bench.entity("c") is not None, "the entity's start")
    assert bench.keeper.loads == 0
    assert await bench.ask("c", "view") == [4, ["tea"]]
    assert bench.host.counts.carried == {"restored": 1}
    assert bench.host.counts.started == {"carried": 1}


async def test_a_message_that_comes_first_finds_it() -> None:
    bench = arriving(await one_cart())
    assert await bench.ask("c", "view") == [4, ["tea"]]
    await turns()
    assert bench.host.counts.started == {"message": 1}


async def test_what_is_for_another_fence_is_not_taken() -> None:
    bench = arriving(await one_cart(), fence=9, start=10)
    assert await bench.ask("c", "view") == [1, []]


async def test_what_belongs_to_another_shard_is_not_taken() -> None:
    bench = Bench(carts())
    assert bench.host.carrying is not None
    bench.host.carrying.put("5", 9, await one_cart())
    assert bench.host.carrying.waiting("5", 9) == []


async def test_it_is_taken_once() -> None:
    bench = arriving(await one_cart())
    assert await bench.ask("c", "view") == [4, ["tea"]]
    activation = bench.activation("c")
    assert activation is not None
    bench.host.stopper.leave(activation, StopReason.STOPPED)  # type: ignore[arg-type]
    await until(lambda: bench.activation("c") is None, "the entity's end")
    assert await bench.ask("c", "view") == [1, []]


async def test_what_no_activation_took_is_carried_on() -> None:
    carried = await one_cart()
    bench = arriving(carried)
    bench.stop()
    await bench.stopped()
    assert bench.host.carrying is not None
    assert bench.host.carrying.take(Bench.SHARD) == carried


async def test_an_entity_that_cannot_take_it_starts_from_the_store() -> None:
    bench = arriving((CarriedEntity("cart", "c", None, b"0"),))
    assert await bench.ask("c", "view") == [1, []]
    [whole] = await one_cart()
    bench = arriving((whole._replace(data=b"bad"),))
    assert await bench.ask("c", "view") == [1, []]
    assert bench.host.counts.carried == {"not_taken": 1}


async def test_one_that_cannot_be_frozen_or_is_too_large_carries_nothing() -> None:
    bench = Bench(carts())
    await bench.ask("broken", "view", -1)
    await bench.ask("large", "grow", CARRIED_BYTES_MAX)
    await bench.ask("good", "view")
    assert [entity.id for entity in await frozen(bench)] == ["good"]
    assert bench.host.counts.carried == {"failed": 1, "too_large": 1, "frozen": 1}


async def test_one_whose_handler_fails_while_its_shard_moves_carries_nothing() -> None:
    """Elsewhere it would start again with its stored state. Its memory has half of the changes."""
    bench = Bench(carts())
    await bench.ask("c", "add", "tea")
    failing = asyncio.ensure_future(bench.ask("c", "fail", "half"))
    await until(lambda: bench.entity("c").state.items == ["tea", "half"], "the first change")
    assert await frozen(bench) == ()
    assert bench.host.counts.carried == {"failed": 1}
    with pytest.raises(Exception, match="half done"):
        await failing


async def test_one_whose_save_has_an_unknown_outcome_carries_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(carts())

    async def fails(*args: object) -> None:
        raise StoreUnavailable("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(bench.keeper, "save", fails)
        assert await bench.ask("c", "add", "tea") == ["tea", "unknown"]
    assert await frozen(bench) == ()
    assert bench.host.counts.carried == {"save_unknown": 1}


async def test_a_refused_save_of_a_former_object_keeps_nothing_back() -> None:
    """Its outcome is known: nothing was written."""
    bench = Bench(carts())
    await bench.ask("c", "add", "tea")
    with pytest.MonkeyPatch.context() as patched:

        async def refuses(*_: object) -> None:
            raise StaleActivation("cart", "c", 7, "save")

        patched.setattr(bench.keeper, "save", refuses)
        with pytest.raises(StaleActivation):
            await bench.entity("c").save()
    assert len(await frozen(bench)) == 1
    assert bench.host.counts.carried == {"frozen": 1}


async def test_one_that_stops_for_another_reason_carries_nothing() -> None:
    bench = Bench(carts())
    await bench.ask("c", "view")
    assert await frozen(bench, StopReason.FAILURE) == ()


async def test_an_activation_that_has_ended_cannot_save() -> None:
    bench = Bench(carts())
    await bench.ask("c", "view")
    entity = bench.entity("c")
    await frozen(bench)
    before = dict(bench.keeper.states)
    with pytest.raises(StaleActivation, match="this activation of 'cart' 'c' has ended"):
        await entity.save()
    assert bench.keeper.states == before


@pytest.mark.parametrize(
    ("declared", "error"),
    [
        ({"carry": True}, "'cart': carry needs handoff ordered, not buffer"),
        ({"carry": True, "handoff": "forward"}, "'cart': .*"),
        ({"carry": True, "handoff": "ordered", "remember": True}, "'cart': carry with remember"),
        ({"carry": "yes", "handoff": "ordered"}, "'cart': carry is 'yes'"),
    ],
    ids=["buffer", "forward", "remember", "text"],
)
def test_wrong_declarations_are_refused_in_one_line(declared: dict[str, Any], error: str) -> None:
    class Plain(Entity):
        def dehydrate(self) -> bytes:
            return b""

        def rehydrate(self, data: bytes) -> None: ...

    with pytest.raises(ConfigError, match=error) as caught:
        ShardBus("test").entity("cart", **declared)(Plain)
    assert "\n" not in str(caught.value)


def test_a_class_with_nothing_to_carry_or_an_async_method_is_refused() -> None:
    class Half(Entity):
        def dehydrate(self) -> bytes:
            return b""

    class Waits(Half):
        async def rehydrate(self, data: bytes) -> None: ...  # type: ignore[override]

    for cls, error in ((Half, "carry needs a state, or both"), (Waits, "rehydrate is async")):
        with pytest.raises(ConfigError, match=error):
            ShardBus("test").entity("cart", handoff="ordered", carry=True)(cls)


async def test_a_save_makes_what_was_carried_old() -> None:
    bench = arriving(await one_cart())
    carrying = bench.host.carrying
    assert carrying is not None
    hosted = bench.host.shards[Bench.SHARD]
    activation = bench.host.activate(hosted, "c")
    carrying.put(Bench.SHARD, 9, await one_cart())
    assert carrying.has(activation)
    with carrying.saving(activation):
        assert not carrying.has(activation)
