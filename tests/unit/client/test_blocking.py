"""The blocking client: its counts and its calls of the other client, without a node."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import AsyncGenerator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from shardbus.client import blocking
from shardbus.client.asynchronous import AsyncClient
from shardbus.client.blocking import BlockingTowards, Client
from shardbus.errors import LocalProtocolError, NodeLost, UnknownEntityType
from shardbus.wire.schema import Interface


class FakeRouter:
    """A router that refuses every tell."""

    def __init__(self) -> None:
        self.interface = Interface("page", 4, "crc32/4")

    def key(self, method: str) -> tuple[str, str]:
        return "page", method

    def tell(self, key: object, entity_id: str, payload: bytes) -> Any:
        raise UnknownEntityType("no such type")


class FakeAsyncClient:
    """An `AsyncClient` that has lost 3 messages; entering it fails on demand."""

    error: Exception | None = None
    tracer = None
    entered = closed = 0

    def __init__(self, *addresses: str, **options: Any) -> None:
        self.options = options
        self.routers = {"page": FakeRouter()}
        self.lost_messages = 3
        self.refused_messages = {"mailbox_full": 1}

    async def __aenter__(self) -> FakeAsyncClient:
        if self.error is not None:
            raise self.error
        return self

    async def close(self) -> None:
        type(self).closed += 1

    async def flush(self) -> None:
        await asyncio.sleep(0)


def test_tells_that_could_not_be_sent_are_counted_as_lost() -> None:
    def flush_twice() -> None:
        """The first flush may be queued before the tell fails; the second is not."""
        client.flush()
        client.flush()

    with (
        patch.object(blocking, "AsyncClient", FakeAsyncClient),
        Client("tcp://h:1", cluster="shop") as client,
    ):
        assert client.lost_messages == 3
        client.tell("page", "x", 1)
        with pytest.raises(UnknownEntityType):
            flush_twice()
        assert client.lost_messages == 4
        assert client.refused_messages == {"mailbox_full": 1}


def test_close_closes_the_client_and_then_raises_the_error_of_an_earlier_tell() -> None:
    counting = type("Counting", (FakeAsyncClient,), {"closed": 0})
    with patch.object(blocking, "AsyncClient", counting):
        client = Client("tcp://h:1", cluster="shop").__enter__()
        client.tell("page", "x", 1)
        # The loop runs this after it has failed to send the tell.
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), client._loop).result(20)
        assert client.lost_messages == 4
        with pytest.raises(UnknownEntityType):
            client.close()
        assert counting.closed == 1  # type: ignore[attr-defined]
        assert not client._thread.is_alive()


def test_a_client_that_cannot_connect_leaves_no_thread() -> None:
    failing = type("Failing", (FakeAsyncClient,), {"error": NodeLost("no node answers")})
    with patch.object(blocking, "AsyncClient", failing):
        client = Client("tcp://h:1", cluster="shop")
        with pytest.raises(NodeLost):
            client.__enter__()
        assert not client._thread.is_alive()
        assert client._loop.is_closed()


def test_close_closes_once_and_joins_the_thread() -> None:
    counting = type("Counting", (FakeAsyncClient,), {"closed": 0})
    with patch.object(blocking, "AsyncClient", counting):
        with Client("tcp://h:1", cluster="shop") as client:
            pass
        client.close()
        assert counting.closed == 1  # type: ignore[attr-defined]
        assert not client._thread.is_alive()


FIRST_USES: dict[str, Any] = {
    "lost_messages": lambda client: client.lost_messages,
    "flush": lambda client: client.flush(),
    "tell": lambda client: client.tell("page", "x", 1),
    "tell_nowait": lambda client: client.tell_nowait("page", "x", 1),
    "to": lambda client: client.to("all"),
    "ref": lambda client: client.ref("page", "x"),
}


@pytest.mark.parametrize("use", FIRST_USES.values(), ids=FIRST_USES)
def test_a_client_without_with_opens_at_its_first_use(use: Any) -> None:
    counting = type("Counting", (FakeAsyncClient,), {"closed": 0, "to": lambda *_, **__: None})
    with patch.object(blocking, "AsyncClient", counting), patch.object(blocking, "atexit") as ends:
        client = Client("tcp://h:1", cluster="shop")
        use(client)
        thread = client._thread
        _ = client.refused_messages
        assert client._thread is thread
        [registered] = ends.register.call_args.args
        with suppress(UnknownEntityType), client as entered:
            assert entered._thread is thread, "it is open already"
        assert counting.closed == 1  # type: ignore[attr-defined]
        assert not thread.is_alive()
        assert ends.unregister.call_args.args == (registered,)


def test_a_client_without_with_closes_at_the_end_of_its_process() -> None:
    counting = type("Counting", (FakeAsyncClient,), {"closed": 0})
    with patch.object(blocking, "AsyncClient", counting), patch.object(blocking, "atexit") as ends:
        client = Client("tcp://h:1", cluster="shop")
        client.flush()
        [registered] = ends.register.call_args.args
        registered()
        assert counting.closed == 1  # type: ignore[attr-defined]


def test_a_client_that_was_never_used_has_nothing_to_close() -> None:
    client = Client("tcp://h:1", cluster="shop")
    client.close()
    assert not hasattr(client, "no_such_attribute")


def test_a_first_use_that_fails_may_be_repeated() -> None:
    failing = type("Failing", (FakeAsyncClient,), {"error": NodeLost("no node answers")})
    client = Client("tcp://h:1", cluster="shop")
    with patch.object(blocking, "AsyncClient", failing), pytest.raises(NodeLost):
        client.flush()
    with patch.object(blocking, "AsyncClient", FakeAsyncClient):
        client.flush()
        client.close()


def test_options_reach_the_asynchronous_client() -> None:
    with patch.object(blocking, "AsyncClient", FakeAsyncClient):
        options = {"timeout": 2.0, "connect_timeout": 3.0, "send_buffer_bytes": 2**25}
        options |= {"secret": "cluster.secret", "key": "own.key"}
        options |= {"tracing": False, "trace_ratio": 0.5, "trace_limit": 7}
        with Client("tcp://h:1", cluster="shop", **options) as client:  # type: ignore[arg-type]
            made: Any = client._client
            assert made.options == {"cluster": "shop", **options}


def test_a_region_asks_and_tells_through_the_client_thread() -> None:
    async def answer(message: object, timeout: float | None = None) -> object:
        return message, timeout

    region: Any = SimpleNamespace(tell=answer, ask=answer)
    loop = asyncio.new_event_loop()
    made = blocking.BlockingRegion(lambda work: loop.run_until_complete(work()), region)  # type: ignore[arg-type]
    try:
        made.tell("m")
        assert made.ask("m", timeout=2.0) == ("m", 2.0)
    finally:
        loop.close()


class SlowBridge:
    """A bridge whose calls take time, and write down how much they may take."""

    def __init__(self, takes_s: float) -> None:
        self.now, self.takes_s = 100.0, takes_s
        self.ends_at: list[float] = []
        """When each call must be over."""

    def run(self, work: Any, *, last: bool = False, within: float = float("inf")) -> Any:
        self.ends_at.append(self.now + within)
        self.now += self.takes_s
        return FakeRouter()

    def ask(self, router: Any, *item: Any) -> None:
        *_, timeout_ms, _ = item
        self.ends_at.append(self.now + timeout_ms / 1000)


VERBS: dict[str, Any] = {
    "ask": lambda to: to.ask("page", "x", 1, timeout=2.0),
    "call": lambda to: to.call("page", "x", "add", timeout=2.0),
    "ask_many": lambda to: to.ask_many("page", [("x", 1)], timeout=2.0),
    "start_entity": lambda to: to.start_entity("page", "x", timeout=2.0),
}


@pytest.mark.parametrize("takes_s", [0.0, 0.5, 1.9, 5.0])
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("verb", VERBS)
def test_every_step_of_a_call_ends_with_the_time_of_the_call(
    verb: str, is_known: bool, takes_s: float
) -> None:
    """Also if the client must find the type first: that time is a part of the call."""
    bridge: Any = SlowBridge(takes_s)
    to: Any = SimpleNamespace(routers={"page": FakeRouter()} if is_known else {})
    with patch.object(blocking, "monotonic", lambda: bridge.now):
        VERBS[verb](BlockingTowards(bridge, to, 10_000))
    assert bridge.ends_at
    latest = max(102.0, bridge.now)
    assert all(at <= latest for at in bridge.ends_at), f"{bridge.ends_at}, and the call until 102"


def test_an_interrupt_of_a_thread_that_waits_for_the_next_item_stays_what_it_is() -> None:
    async def endless() -> AsyncGenerator[int, None]:
        yield 1

    errors: list[BaseException] = [KeyboardInterrupt(), RuntimeError("it is running")]

    def run(work: object) -> Any:
        raise errors.pop(0)

    with pytest.raises(KeyboardInterrupt):
        next(blocking.each(run, endless()))
    assert not errors, "the generator is closed"


@pytest.mark.parametrize("error", [None, ValueError("the block failed")])
def test_a_block_of_work_that_ends_after_the_client_raises_its_own_error(
    error: ValueError | None,
) -> None:
    def run(work: object) -> Any:
        raise LocalProtocolError("the client is closed")

    item: Any = SimpleNamespace(number=1, attempt=1)
    work: blocking.BlockingWork[int] = blocking.BlockingWork(run, item)

    def block() -> None:
        with work:
            if error is not None:
                raise error

    with pytest.raises(ValueError if error else LocalProtocolError):
        block()


def test_a_client_is_closed_although_its_thread_is_interrupted() -> None:
    class Interrupted(FakeAsyncClient):
        async def close(self) -> None:
            raise KeyboardInterrupt

    with patch.object(blocking, "AsyncClient", Interrupted):
        client = Client("tcp://h:1", cluster="shop")
        client.flush()
        with pytest.raises(KeyboardInterrupt):
            client.close()
        assert not client._thread.is_alive()
        client.close()


@pytest.mark.parametrize("make", [Client, AsyncClient])
def test_a_client_is_its_own_copy_and_is_not_pickled(make: Any) -> None:
    client = make("tcp://127.0.0.1:7355", cluster="shop")
    assert copy.copy(client) is client
    assert copy.deepcopy({"client": client})["client"] is client
    with pytest.raises(TypeError, match=r"cannot be pickled: .* make one in each process"):
        pickle.dumps(client)
