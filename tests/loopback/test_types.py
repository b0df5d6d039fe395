"""Members of one cluster with different entity types: a release adds one, removes one."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from shardbus import Entity, ShardBus, UnknownEntityType, handler
from shardbus.membership import known_types
from shardbus.node.node import Node
from shardbus.shells.singleton import SingletonShell
from shardbus.shells.type_members import TypeMembers
from tests.loopback.nodes import QUICK, Nodes, ready
from tests.records import replace
from tests.waiting import until


def release(*types: str, **options: Any) -> ShardBus:
    """An application with these entity types."""
    bus = ShardBus("shop")
    for name in types:

        @bus.entity(name, shards=8, **options)
        class Thing(Entity):
            @handler
            def hi(self) -> str:
                return f"{self.context.entity_type} at {self.context.node}"

    return bus


OLD, NEW = release("cart"), release("cart", "wishlist")


async def answers(node: Node, entity_type: str, count: int = 16) -> set[str]:
    """The nodes that answer for entities of this type."""
    asks = (node.ref(entity_type, f"e{i}").hi() for i in range(count))
    return {answer.rpartition(" ")[2] for answer in await asyncio.gather(*asks)}


def coordinator(node: Node, entity_type: str) -> Any:
    return node.regions[entity_type].coordinator


@pytest.mark.parametrize("announces", [True, False], ids=["announced", "asked"])
async def test_a_new_type_is_coordinated_by_the_oldest_node_that_has_it(
    nodes: Nodes, announces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Builds that do not announce their types answer that they do not have one."""
    if not announces:
        monkeypatch.setattr("shardbus.node.node.announced", lambda types: ())
    old = [await nodes.start(OLD) for _ in range(2)]
    new = [await nodes.start(NEW) for _ in range(2)]
    await nodes.agree(4)
    await until(lambda: coordinator(new[1], "wishlist") == new[0].me, "the older of the two")
    assert coordinator(new[0], "cart") == old[0].me
    assert await answers(new[1], "wishlist") == {str(node.me) for node in new}
    assert len(await answers(old[0], "cart", 60)) >= 2
    assert {str(m.node) for m in old[0].view.members} >= await answers(old[1], "cart")  # type: ignore[union-attr]


async def test_types_whose_codes_are_equal_are_told_apart_by_asking(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_types, "_code", lambda name: "same")
    known_types._codes.cache_clear()
    await nodes.start(OLD)
    new = await nodes.start(NEW)
    assert await answers(new, "wishlist") == {str(new.me)}


async def test_a_rollout_with_a_new_type_goes_on_as_the_old_nodes_leave(nodes: Nodes) -> None:
    old = [await nodes.start(OLD) for _ in range(2)]
    new = [await nodes.start(NEW)]
    before = await answers(new[0], "wishlist")
    await nodes.leave(old[0])
    new.append(await nodes.start(NEW))
    await nodes.leave(old[1])
    assert await answers(new[1], "wishlist") >= before
    await until(lambda: coordinator(new[1], "cart") == new[0].me, "the next of the old type")
    assert len(await answers(new[1], "cart")) == 2


async def test_a_removed_type_works_until_its_last_node_has_left(nodes: Nodes) -> None:
    old = [await nodes.start(NEW) for _ in range(2)]
    new = [await nodes.start(OLD) for _ in range(2)]
    await nodes.agree(4)
    assert await answers(old[1], "wishlist") == {str(node.me) for node in old}
    await nodes.leave(old[0])
    assert await answers(old[1], "wishlist") == {str(old[1].me)}
    await nodes.leave(old[1])
    assert len(await answers(new[0], "cart")) == 2
    with pytest.raises(UnknownEntityType):
        new[0].ref("wishlist", "a")


@pytest.mark.parametrize("by", ["name", "class"])
async def test_a_client_of_an_old_node_uses_a_new_type(nodes: Nodes, by: str) -> None:
    old = [await nodes.start(OLD) for _ in range(2)]
    new = [await nodes.start(NEW) for _ in range(2)]
    await nodes.agree(4)
    client = await nodes.client()
    assert client.contact in [node.me for node in old]
    kind: Any = "wishlist" if by == "name" else NEW.types["wishlist"].cls

    async def found() -> set[str]:
        asks = (client.call(kind, f"e{i}", "hi") for i in range(16))
        return {answer.rpartition(" ")[2] for answer in await asyncio.gather(*asks)}

    assert await found() == {str(node.me) for node in new}
    assert (await client.call("cart", "a", "hi")).startswith("cart at ")
    await nodes.leave(new[0])
    assert await found() == {str(new[1].me)}
    assert client.refused_messages == {}


async def test_the_oldest_that_has_the_type_hands_it_over_to_the_next_that_has_it(
    nodes: Nodes,
) -> None:
    first = await nodes.start(NEW)
    await nodes.start(OLD)
    third, fourth = await nodes.start(NEW), await nodes.start(NEW)
    await nodes.agree(4)
    assert await answers(fourth, "wishlist") == {str(n.me) for n in (first, third, fourth)}
    await nodes.leave(first)
    await until(lambda: coordinator(fourth, "wishlist") == third.me, "the next that has it")
    assert await answers(fourth, "wishlist") == {str(n.me) for n in (third, fourth)}


@pytest.mark.parametrize("of", ["role", "coordinator_role"])
async def test_a_type_whose_role_has_old_members_only_delays_no_readiness(
    nodes: Nodes, of: str
) -> None:
    """A rollout that renews the other role first would wait for ever."""
    old, new = release("cart"), release("cart")
    for bus, types in ((old, ()), (new, ("wishlist",))):
        for name in types:
            assert bus is new

            @bus.entity(name, shards=8, **{of: "back"})
            class Thing(Entity):
                @handler
                def hi(self) -> str:
                    return f"{self.context.entity_type} at {self.context.node}"

    back = await nodes.start(old, roles=("back",))
    front = await nodes.start(new, roles=("front",))
    assert ready(front)
    assert len(await answers(front, "cart", 60)) == 2
    late = asyncio.ensure_future(front.ref("wishlist", "a").within(60).hi())
    renewed = await nodes.start(new, roles=("back",))
    await nodes.leave(back)
    assert (await late).rpartition(" ")[2] in {str(front.me), str(renewed.me)}


async def test_S2_34_a_minimum_of_members_is_one_of_those_that_have_the_type() -> None:
    async with Nodes(replace(QUICK, min_members=2)) as nodes:
        await nodes.start(OLD, up=False)
        await nodes.start(OLD)
        new = await nodes.start(NEW)
        assert await answers(new, "wishlist") == {str(new.me)}


async def test_the_cost_of_a_type_does_not_grow_with_the_number_of_types(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each type takes part in each change of the members, and not in the claims of all others."""
    updates: Counter[str] = Counter()
    update = SingletonShell.update

    def counted(self: SingletonShell, members: TypeMembers) -> None:
        updates[self._region.name] += 1
        update(self, members)

    monkeypatch.setattr(SingletonShell, "update", counted)

    async def most(count: int) -> int:
        """The most updates of one of so many types while a node starts and another joins."""
        async with Nodes() as cluster:
            updates.clear()
            bus = release(*(f"type-{i}" for i in range(count)))
            await cluster.cluster(bus, 2)
            return max(updates.values())

    few = await most(2)
    assert await most(40) <= few + 10
