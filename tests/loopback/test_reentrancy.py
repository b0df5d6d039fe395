"""Cycles of asks end at once, with the cycle named; and nothing else ends by them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from shardbus import AskTimeout, Entity, EntityFailed, ReentrancyError, ShardBus, handler
from shardbus.node.node import Node
from tests.loopback.nodes import Nodes
from tests.waiting import PATIENCE_S, until

A, B, C = "page-0", "page-1", "page-2"
WAYS = ["await", "later", "gather", "group", "wait", "wait_for", "shield", "timeout", "in_turn"]
"""How a handler may wait for its own asks."""


@dataclass
class Path:
    entities: list[str]


def application() -> tuple[ShardBus, Any]:
    """Entities that ask each other along a path that the message names."""
    bus = ShardBus("shop")

    @bus.entity("stop", shards=12, supervision={Exception: "resume"})
    class Stop(Entity):
        seen: ClassVar[dict[str, Exception]]
        gate: ClassVar[asyncio.Event]
        gave_up: ClassVar[asyncio.Event]
        kept: ClassVar[list[asyncio.Task[Any]]]

        def other(self, entity_id: str) -> Any:
            return self.context.ref("stop", entity_id)

        @handler
        async def walk(self, path: list[str], way: str = "await") -> list[str]:
            """This entity, and those that follow on the path."""
            here = [self.context.entity_id]
            if not path:
                return here
            try:
                return here + await getattr(self, f"_{way}")(path)
            except (ReentrancyError, EntityFailed) as e:
                self.seen[self.context.entity_id] = e
                raise

        async def _await(self, path: list[str]) -> Any:
            return await self.other(path[0]).walk(path[1:])

        async def _later(self, path: list[str]) -> Any:
            await asyncio.sleep(0)
            return await self._await(path)

        async def _gather(self, path: list[str]) -> Any:
            return (await asyncio.gather(self._await(path), asyncio.sleep(0)))[0]

        async def _group(self, path: list[str]) -> Any:
            # Before 3.11.4 an error that is raised in `except*` is wrapped in a group, too.
            cycles: list[Exception] = []
            try:
                async with asyncio.TaskGroup() as group:
                    task = group.create_task(self._gather(path))
            except* ReentrancyError as several:
                cycles += several.exceptions
            if cycles:
                raise cycles[0]
            return task.result()

        async def _wait(self, path: list[str]) -> Any:
            done, _ = await asyncio.wait([asyncio.create_task(self._later(path))])
            return done.pop().result()

        async def _wait_for(self, path: list[str]) -> Any:
            return await asyncio.wait_for(self._later(path), PATIENCE_S)

        async def _shield(self, path: list[str]) -> Any:
            return await asyncio.shield(self._later(path))

        async def _timeout(self, path: list[str]) -> Any:
            async with asyncio.timeout(PATIENCE_S):
                return await self._await(path)

        async def _in_turn(self, path: list[str]) -> Any:
            """Two asks at a time; the ask that closes the cycle is not awaited yet."""
            harmless = self.other("page-59").wait()
            answer = self.other(path[0]).walk(path[1:])
            await harmless
            return await answer

        @handler
        async def wait(self) -> str:
            await self.gate.wait()
            return "waited"

        @handler
        async def tell_and_wait(self, path: list[str]) -> None:
            await self.other(path[0]).walk.tell(path[1:])
            await self.gate.wait()

        @handler
        async def give_up_and_wait(self, path: list[str]) -> str:
            try:
                await self.other(path[0]).within(0.1).slow_walk(path[1:])
            except AskTimeout:
                self.gave_up.set()
                await self.gate.wait()
                return "gave up"
            raise AssertionError("it was answered")

        @handler
        async def slow_walk(self, path: list[str]) -> None:
            self.kept.append(asyncio.current_task())  # type: ignore[arg-type]
            await self.gave_up.wait()
            await self._await(path)

        @handler
        async def in_background(self, path: list[str]) -> str:
            self.kept.append(asyncio.create_task(self._await(path)))
            self.kept[-1].add_done_callback(lambda task: None)
            await self.gate.wait()
            return "done"

        @handler
        def put_aside(self, path: list[str]) -> str:
            """Answered at the second time; its asks in the first are ignored."""
            if self.kept:
                return "second"
            self.kept.append(self.other(path[0]).walk(path[1:]))
            self.context.stash()
            return "first"

        @handler
        def bring_back(self) -> None:
            self.context.unstash_all()

        @handler
        async def walk_at_the_second_time(self, path: list[str]) -> Any:
            """Answered at the second time, when it asks."""
            if not self.kept:
                self.kept.append(asyncio.current_task())  # type: ignore[arg-type]
                self.context.stash()
                return "first"
            return await self.walk(path)

        @handler
        def walk_after_work(self, path: list[str]) -> None:
            """Answered, and asking, once its work is done."""

            async def work() -> Path:
                await self.gate.wait()
                return Path(path)

            self.context.pipe_to_self(work(), answer=True)

        async def receive(self, message: Path) -> Any:
            return await self.walk(message.entities)

        @handler
        async def ask_by(self, name: str, path: list[str]) -> Any:
            return await getattr(self.other(path[0]), name)(path[1:])

        @handler
        async def ask_to_put_aside(self, path: list[str]) -> str:
            return await self.other(path[0]).put_aside(path[1:])

    Stop.seen, Stop.kept = {}, []
    Stop.gate, Stop.gave_up = asyncio.Event(), asyncio.Event()

    return bus, Stop


async def spread(nodes: Nodes, bus: ShardBus) -> list[Node]:
    """Three nodes, and every entity at home."""
    three = await nodes.cluster(bus, 3)
    client = await nodes.client()
    await asyncio.gather(*(client.ask("stop", f"page-{i}", "walk", []) for i in range(60)))
    return three


def named(cycle: str) -> tuple[tuple[str, str], ...]:
    return tuple(("stop", f"page-{i}") for i in cycle)


async def test_a_cycle_is_refused_and_named_wherever_its_entities_live(nodes: Nodes) -> None:
    bus, stop = application()
    await spread(nodes, bus)
    client = await nodes.client()
    for cycle in ("00", "010", "0120", "0123450", "1021"):
        stop.seen.clear()
        first, *path = [f"page-{i}" for i in cycle]
        with pytest.raises(EntityFailed, match="a cycle of asks: stop 'page-") as failed:
            await client.ref(stop, first).walk(path)
        assert failed.value.type == "ReentrancyError"
        assert set(stop.seen) == {f"page-{i}" for i in cycle}
        for error in stop.seen.values():  # as itself, to everybody on the cycle
            assert isinstance(error, ReentrancyError)
            assert error.cycle == named(cycle)
    assert await client.ref(stop, A).walk([B, C]) == [A, B, C]


async def test_a_cycle_needs_not_begin_at_the_first_who_asked(nodes: Nodes) -> None:
    bus, stop = application()
    await spread(nodes, bus)
    client = await nodes.client()
    with pytest.raises(EntityFailed, match="ReentrancyError"):
        await client.ref(stop, C).walk([A, B, "page-3", A])
    assert {i: type(e) for i, e in stop.seen.items()} == {
        A: ReentrancyError,
        B: ReentrancyError,
        "page-3": ReentrancyError,
        C: EntityFailed,  # who stands beside the cycle sees its entity fail
    }
    assert stop.seen[B].cycle == named("0130")  # type: ignore[attr-defined]


async def test_however_the_handler_waits(nodes: Nodes) -> None:
    bus, stop = application()
    await spread(nodes, bus)
    client = await nodes.client()
    for way in WAYS:
        stop.seen.clear()
        ask = asyncio.ensure_future(client.ref(stop, A).walk([B, A], way))
        await until(lambda: B in stop.seen, f"the end of a cycle of {way}")
        assert isinstance(stop.seen[B], ReentrancyError), way
        stop.gate.set()
        with pytest.raises(EntityFailed, match="ReentrancyError"):
            await ask


async def test_an_ask_that_is_sent_on_keeps_its_chain(nodes: Nodes) -> None:
    bus, stop = application()
    three = await spread(nodes, bus)
    home = {i: await home_of(three, i) for i in (A, B)}
    [third] = [node for node in three if node not in home.values()]
    kind = home[B].regions["stop"]
    kind.router.route_of(A).out = kind.out_for(third.me)  # B's node believes that A lives there
    client = await nodes.client()
    with pytest.raises(EntityFailed, match="ReentrancyError"):
        await client.ref(stop, A).walk([B, A])
    assert third.regions["stop"].relayed_messages == 1


async def test_an_ask_that_waited_for_a_home_keeps_its_chain(nodes: Nodes) -> None:
    bus, stop = application()
    await nodes.start(bus)
    client = await nodes.client()
    assert await client.ref(stop, A).walk([]) == [A]
    with pytest.raises(EntityFailed, match="ReentrancyError"):
        await client.ref(stop, A).walk([B, A])  # no message went to B's shard


async def test_a_message_that_was_put_aside_keeps_its_chain(nodes: Nodes) -> None:
    bus, stop = application()
    await spread(nodes, bus)
    client = await nodes.client()
    ask = asyncio.ensure_future(client.ref(stop, A).ask_by("walk_at_the_second_time", [B, A]))
    await until(lambda: stop.kept, "the first time")
    await client.ref(stop, B).bring_back()
    with pytest.raises(EntityFailed, match="ReentrancyError"):
        await ask
    assert stop.seen[B].cycle == named("010")  # type: ignore[attr-defined]


async def test_what_comes_of_work_keeps_the_chain_of_who_waits_for_it(nodes: Nodes) -> None:
    bus, stop = application()
    await spread(nodes, bus)
    client = await nodes.client()
    ask = asyncio.ensure_future(client.ref(stop, A).ask_by("walk_after_work", [B, A]))
    await busy(nodes, A)
    stop.gate.set()
    with pytest.raises(EntityFailed, match="ReentrancyError"):
        await ask
    assert stop.seen[B].cycle == named("010")  # type: ignore[attr-defined]


async def home_of(nodes: list[Node], entity_id: str) -> Node:
    """The node where an entity lives."""
    shard = nodes[0].regions["stop"].router.shard_of(entity_id)
    [home] = [node for node in nodes if shard in node.regions["stop"].host.shards]
    return home


# Chains that are no cycle


async def test_a_tell_closes_no_cycle(nodes: Nodes) -> None:
    bus, stop = application()
    await spread(nodes, bus)
    client = await nodes.client()
    waits = asyncio.ensure_future(client.ref(stop, A).tell_and_wait([B, A]))
    await busy(nodes, A, queued=1)
    stop.gate.set()
    await waits
    assert stop.seen == {}


async def test_who_gave_up_does_not_wait(nodes: Nodes) -> None:
    bus, stop = application()
    await spread(nodes, bus)
    client = await nodes.client()
    waits = asyncio.ensure_future(client.ref(stop, A).give_up_and_wait([B, A]))
    await busy(nodes, A, queued=1)
    stop.gate.set()
    assert await waits == "gave up"
    await until(lambda: stop.kept[0].done(), "B's handler")
    assert stop.seen == {}


async def test_a_task_that_the_handler_does_not_wait_for_is_on_no_chain(nodes: Nodes) -> None:
    bus, stop = application()
    await spread(nodes, bus)
    client = await nodes.client()
    waits = asyncio.ensure_future(client.ref(stop, A).in_background([B, A]))
    await busy(nodes, A, queued=1)
    stop.gate.set()
    assert await waits == "done"
    assert await stop.kept[0] == [B, A]


async def test_a_busy_entity_beside_the_chain_is_waited_for(nodes: Nodes) -> None:
    bus, stop = application()
    await spread(nodes, bus)
    client = await nodes.client()
    waits = asyncio.ensure_future(client.ref(stop, C).wait())
    await busy(nodes, C)
    asks = asyncio.ensure_future(client.ref(stop, A).walk([B, C]))
    await busy(nodes, C, queued=1)
    stop.gate.set()
    assert (await waits, await asks) == ("waited", [A, B, C])


async def test_a_handler_that_cannot_wait_is_on_no_chain(nodes: Nodes) -> None:
    bus, stop = application()
    await spread(nodes, bus)
    client = await nodes.client()
    waits = asyncio.ensure_future(client.ref(stop, A).ask_to_put_aside([B, C, A]))
    await busy(nodes, A, queued=1)
    await client.ref(stop, B).bring_back()
    assert await waits == "second"
    assert await stop.kept[0] == [C, A]


async def test_code_of_the_node_is_on_no_chain(nodes: Nodes) -> None:
    bus, stop = application()
    [node, *_] = await spread(nodes, bus)
    waits = node.ref(stop, A).wait()
    await busy(nodes, A)
    asks = node.ref(stop, B).walk([A])
    await busy(nodes, A, queued=1)
    stop.gate.set()
    assert (await waits, await asks) == ("waited", [B, A])


async def busy(nodes: Nodes, entity_id: str, queued: int = 0) -> None:
    """Wait until an entity's handler waits, and so many messages wait for it."""

    def is_so() -> bool:
        activations = [node.regions["stop"].host.active.get(entity_id) for node in nodes.all]
        return any(c and c.busy and len(c.mailbox or ()) == queued for c in activations)

    await until(is_so, f"{entity_id} busy, {queued} waiting")


# Starts


async def test_a_start_that_asks_who_waits_for_it(nodes: Nodes) -> None:
    bus, _ = application()

    @bus.entity("asker", shards=12)
    class Asker(Entity):
        @handler
        async def begin(self) -> str:
            return await self.context.ref("starter", self.context.entity_id).get()

        @handler
        def late(self) -> int:
            return 1

    @bus.entity("starter", shards=12)
    class Starter(Entity):
        async def on_start(self) -> None:
            self.cycle = ""
            try:
                await self.context.ref(Asker, self.context.entity_id).late()
            except ReentrancyError as e:
                self.cycle = str(e)

        @handler
        def get(self) -> str:
            return self.cycle

    await nodes.cluster(bus, 2)
    client = await nodes.client()
    outcomes = await asyncio.gather(*(client.ref(Asker, f"e-{i}").begin() for i in range(10)))
    assert [text.partition(";")[0] for text in outcomes] == [
        f"a cycle of asks: asker 'e-{i}' -> starter 'e-{i}' -> asker 'e-{i}'" for i in range(10)
    ]
