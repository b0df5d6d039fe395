"""The blocking client: threads that share a line to the event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from shardbus import Client, Entity, ShardBus, handler
from shardbus.client.blocking import BlockingOutbox
from shardbus.delivery import WorkQueue
from shardbus.errors import (
    AskTimeout,
    ConfigError,
    DeliveryFailed,
    KeyReused,
    LocalProtocolError,
    MessageTooLarge,
    NodeLost,
    SchemaError,
    UnknownEntityType,
)
from shardbus.wire.batch import PAYLOAD_BYTES_MAX
from tests.loopback.nodes import Nodes, blocking_client
from tests.waiting import PATIENCE_S, until


def application() -> tuple[ShardBus, type]:
    bus = ShardBus("shop")

    @bus.entity("page", shards=4)
    class Page(Entity):
        """Writes down its messages."""

        def __init__(self) -> None:
            self.seen: list[Any] = []

        @handler
        def add(self, value: int) -> int:
            self.seen.append(value)
            return len(self.seen)

        @handler
        def all(self) -> list[int]:
            return self.seen

        @handler
        async def never(self) -> None:
            await asyncio.Event().wait()

        async def receive(self, message: int | bytes) -> int:
            self.seen.append(message if isinstance(message, int) else len(message))
            return len(self.seen)

    return bus, Page


async def test_a_key_of_another_request_is_refused(nodes: Nodes) -> None:
    bus, page = application()
    [node] = await nodes.cluster(bus, 1)

    def use() -> list[int]:
        with blocking_client(node) as client:
            ref: Any = client.ref(page, "page-1")
            assert [ref.add.ask(7, key="one") for _ in range(2)] == [1, 1]
            for call, arguments in ((ref.add, (8,)), (ref.all, ())):
                with pytest.raises(KeyReused) as reused:
                    call.ask(*arguments, key="one")
                assert reused.value.definite
            return ref.all()

    assert await asyncio.to_thread(use) == [7]


async def test_messages_of_a_thread_keep_their_order_whatever_their_kind(nodes: Nodes) -> None:
    bus, page = application()
    [node] = await nodes.cluster(bus, 1)

    def use(thread: int) -> list[int]:
        with blocking_client(node) as client:
            ref: Any = client.ref(page, f"page-{thread}")
            for n in range(0, 3000, 6):
                ref.add.tell(n)
                client.tell("page", f"page-{thread}", n + 1)
                client.tell_many("page", [(f"page-{thread}", n + 2)])
                assert ref.add(n + 3) == n + 4
                client.cast("page", f"page-{thread}", "add", n + 4)
                ref.tell(n + 5)
            return ref.all()

    with ThreadPoolExecutor() as threads:
        seen = await asyncio.gather(
            *(asyncio.get_running_loop().run_in_executor(threads, use, n) for n in range(3))
        )
    assert seen == [list(range(3000))] * 3


async def test_threads_share_a_client_and_each_keeps_its_order(nodes: Nodes) -> None:
    bus, page = application()
    [node] = await nodes.cluster(bus, 1)

    def use() -> list[list[int]]:
        with blocking_client(node) as client:
            ref: Any = client.ref(page, "x")

            def tell(first: int) -> None:
                for n in range(first, first + 5000):
                    ref.add.tell(n)

            with ThreadPoolExecutor() as threads:
                list(threads.map(tell, (0, 10_000, 20_000)))
            seen: list[int] = ref.all()
        return [[n for n in seen if first <= n < first + 10_000] for first in (0, 10_000, 20_000)]

    seen = await asyncio.to_thread(use)
    assert seen == [list(range(first, first + 5000)) for first in (0, 10_000, 20_000)]


async def test_mistakes_are_raised_where_they_are_made(nodes: Nodes) -> None:
    bus, page = application()
    [node] = await nodes.cluster(bus, 1)

    def use() -> int:
        with blocking_client(node) as client:
            ref: Any = client.ref(page, "x")
            with pytest.raises(SchemaError):
                ref.tell(object())
            with pytest.raises(TypeError):
                ref.add.tell(1, 2)
            with pytest.raises(MessageTooLarge):
                client.tell("page", "x", bytes(PAYLOAD_BYTES_MAX + 1))
            with pytest.raises(ConfigError):
                client.tell("page", "", 1)
            with pytest.raises(UnknownEntityType):
                client.tell("book", "x", 1)
            with pytest.raises(AttributeError, match="no handler 'missing'"):
                ref.missing  # noqa: B018
            with pytest.raises(AskTimeout):
                ref.within(0.1).never()
            late = client.ref(page, "y")
            late.start_entity()  # type: ignore[attr-defined]
            answer: int = late.within(PATIENCE_S).ask(1)  # type: ignore[attr-defined]
        with pytest.raises(LocalProtocolError, match="closed"):
            client.tell("page", "x", 1)
        return answer

    assert await asyncio.to_thread(use) == 1


async def test_an_ask_whose_node_dies_has_its_outcome(nodes: Nodes) -> None:
    bus, page = application()
    [node] = await nodes.cluster(bus, 1)
    waiting = threading.Event()

    def use() -> str:
        with blocking_client(node) as client:
            ref: Any = client.ref(page, "x")
            ref.add(1)
            waiting.set()
            with pytest.raises((NodeLost, AskTimeout)) as caught:
                ref.never()
            return type(caught.value).__name__

    outcome = asyncio.get_running_loop().create_task(asyncio.to_thread(use))
    await until(waiting.is_set, "an ask under way")
    node.endpoint.close()
    assert await outcome in ("NodeLost", "AskTimeout")


async def test_threads_share_an_outbox_and_each_keeps_its_order(nodes: Nodes) -> None:
    bus, page = application()
    [node] = await nodes.cluster(bus, 1)

    def send(client: Client, outbox: BlockingOutbox, thread: int) -> None:
        ref: Any = client.ref(page, f"page-{thread}")
        for n in range(20):
            outbox.send(ref.add, n)

    def use() -> list[list[int]]:
        with blocking_client(node) as client:
            with client.outbox("orders") as outbox, ThreadPoolExecutor() as threads:
                for sent in [threads.submit(send, client, outbox, n) for n in range(3)]:
                    sent.result()
            assert (outbox.unconfirmed, outbox.failed) == (0, {})
            with pytest.raises(DeliveryFailed):
                outbox.send(client.ref(page, "page-0").add, 20)
            refs: list[Any] = [client.ref(page, f"page-{n}") for n in range(3)]
            return [ref.all() for ref in refs]

    assert await asyncio.to_thread(use) == [list(range(20))] * 3


async def test_threads_put_into_a_queue_and_work_on_its_items(nodes: Nodes) -> None:
    bus = ShardBus("shop")

    @bus.entity("jobs", shards=4)
    class Jobs(WorkQueue[str]):
        pass

    [node] = await nodes.cluster(bus, 1)

    def work(client: Client, done: list[str]) -> None:
        queue = client.queue(Jobs, "a")
        items = queue.work()
        for item in items:
            try:
                with item:
                    if item.value == "odd" and item.attempt == 1:
                        raise ValueError("not yet")
                    if item.value == "long":
                        assert item.extend()
                        assert not item.has_ended
                    done.append(item.value)
            except ValueError:
                continue
            if item.value == "end":
                items.close()

    def use() -> list[str]:
        done: list[str] = []
        with blocking_client(node) as client, ThreadPoolExecutor() as threads:
            queue = client.queue(Jobs, "a")
            working = [threads.submit(work, client, done) for _ in range(2)]
            queue.put_many(["a", "odd", "long"])
            queue.put("b")
            ref: Any = client.ref(Jobs, "a")
            while ref.show()["confirmed"] < 4:
                pass
            queue.put_many(["end", "end"])
            for one in working:
                one.result()
            assert ref.show(0)["confirmed"] == 6
        return done

    assert sorted(await asyncio.to_thread(use)) == ["a", "b", "end", "end", "long", "odd"]
