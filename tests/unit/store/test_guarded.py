"""The guard around a store that is a plug-in: faults of the store cost its own calls."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from types import coroutine
from typing import Any

import pytest

from shardbus.errors import ConfigError, StaleFence, StoreError, StoreUnavailable
from shardbus.store import guarded
from shardbus.store.guarded import GuardedStore
from shardbus.store.memory import MemoryData, MemoryStore
from shardbus.store.protocol import Save, StateStore, on_new_server
from shardbus.testing import StoreSuite
from tests.waiting import PATIENCE_S, until

URL = "own://host/x?password=***"


class TestGuardedStore(StoreSuite):
    """A store keeps every rule of the protocol behind the guard."""

    @pytest.fixture
    def store_factory(self) -> Callable[[], StateStore]:
        data = MemoryData()
        return lambda: GuardedStore(MemoryStore(data), URL, PATIENCE_S)


class NoException(BaseException):
    """An error that no `except Exception` catches."""


class Own(MemoryStore):
    """Executes a test's value in a method: raises it, returns it, or calls it."""

    def __init__(self) -> None:
        super().__init__(MemoryData())
        self.does: dict[str, Any] = {}
        self.threads: set[int] = set()
        self.go_on = threading.Event()
        self.began = threading.Event()

    async def _do(self, method: str, otherwise: Any) -> Any:
        self.threads.add(threading.get_ident())
        what = self.does.get(method, self)
        if what is self:
            return await otherwise
        otherwise.close()
        self.began.set()
        if isinstance(what, BaseException):
            raise what
        return await what() if callable(what) else what

    async def load_state(self, *args: Any) -> Any:
        return await self._do("load_state", super().load_state(*args))

    async def load_table(self, entity_type: str) -> Any:
        return await self._do("load_table", super().load_table(entity_type))

    async def save_states(self, saves: Sequence[Save]) -> Any:
        if "after" in self.does:
            await self.does["after"]()
        return await self._do("save_states", super().save_states(saves))

    async def page_stored(self, *args: Any) -> Any:
        return await self._do("page_stored", super().page_stored(*args))

    async def never(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def block(self) -> None:
        """Block the thread, as a driver without asyncio does, until the test goes on."""
        self.go_on.wait(PATIENCE_S)

    async def swallow(self) -> None:
        """Go on after a cancellation, until the test goes on."""
        while not self.go_on.is_set():
            try:
                await asyncio.sleep(PATIENCE_S)
            except asyncio.CancelledError:
                await asyncio.get_running_loop().run_in_executor(None, self.go_on.wait, PATIENCE_S)


def save(op_id: int, data: bytes = b"x", entity_id: str = "a") -> Save:
    return Save("t", "1", entity_id, 1, data, op_id)


@pytest.fixture
async def plugin() -> AsyncIterator[Own]:
    store = Own()
    yield store
    store.go_on.set()


@pytest.fixture
async def store(plugin: Own, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GuardedStore]:
    store = GuardedStore(plugin, URL, PATIENCE_S)
    await store.start()
    yield store
    plugin.go_on.set()
    await store.close()


def hurry(store: GuardedStore) -> None:
    """Give the calls of the store little time from now on."""
    store._seconds = 0.02


async def test_the_store_runs_in_one_thread_that_is_not_the_nodes(
    plugin: Own, store: GuardedStore
) -> None:
    await store.load_state("t", "1", "a", 1)
    await store.save_states([save(1)])
    assert len(plugin.threads) == 1
    assert threading.get_ident() not in plugin.threads


@pytest.mark.parametrize(
    "raised",
    [KeyError("k"), SystemExit(3), KeyboardInterrupt(), NoException(), StopAsyncIteration()],
)
async def test_whatever_a_method_raises_is_an_unavailable_store_that_names_it(
    plugin: Own, store: GuardedStore, raised: BaseException
) -> None:
    plugin.does["load_state"] = raised
    with pytest.raises(StoreUnavailable, match=rf"Own\.load_state raised {type(raised).__name__}"):
        await store.load_state("t", "1", "a", 1)
    del plugin.does["load_state"]
    assert await store.load_state("t", "1", "a", 1) is None, "it goes on"


@pytest.mark.parametrize(
    "raised",
    [StaleFence("t", "a", 1, 2), StoreError("no"), StoreUnavailable("no"), ConfigError("no")],
)
async def test_what_the_protocol_allows_reaches_the_caller_as_it_is(
    plugin: Own, store: GuardedStore, raised: Exception
) -> None:
    plugin.does["load_state"] = raised
    with pytest.raises(type(raised)) as caught:
        await store.load_state("t", "1", "a", 1)
    assert caught.value is raised


@pytest.mark.parametrize("method", ["never", "block", "swallow"])
async def test_a_method_that_does_not_return_costs_its_own_call(
    plugin: Own, store: GuardedStore, method: str
) -> None:
    plugin.does["load_state"] = getattr(plugin, method)
    hurry(store)
    with pytest.raises(StoreUnavailable, match=r"Own\.load_state has not returned within"):
        await store.load_state("t", "1", "a", 1)
    plugin.go_on.set()
    store._seconds = PATIENCE_S
    plugin.does.clear()
    assert await store.load_state("t", "1", "b", 1) is None


@pytest.mark.parametrize(
    ("method", "answer", "call"),
    [
        ("load_state", "text", lambda s: s.load_state("t", "1", "a", 1)),
        ("load_state", bytearray(b"x"), lambda s: s.load_state("t", "1", "a", 1)),
        ("load_table", {"epoch": 1}, lambda s: s.load_table("t")),
        ("save_states", None, lambda s: s.save_states([save(1)])),
        ("save_states", [], lambda s: s.save_states([save(1)])),
        ("page_stored", ["a"], lambda s: s.page_stored("t", "", None, 10)),
        ("page_stored", ([1], None), lambda s: s.page_stored("t", "", None, 10)),
    ],
)
async def test_an_answer_of_another_type_is_named(
    plugin: Own, store: GuardedStore, method: str, answer: Any, call: Callable[[Any], Any]
) -> None:
    plugin.does[method] = answer
    with pytest.raises(
        StoreUnavailable, match=rf"Own\.{method} returned a {type(answer).__name__}"
    ):
        await call(store)


async def test_a_wrong_answer_about_one_save_is_the_fault_of_that_save(
    plugin: Own, store: GuardedStore
) -> None:
    plugin.does["save_states"] = [None, KeyError("x"), StaleFence("t", "a", 1, 2)]
    saves = [save(n, entity_id=f"e{n}") for n in range(3)]
    first, second, third = await store.save_states(saves)
    assert first is None
    assert isinstance(second, StoreUnavailable)
    assert isinstance(third, StaleFence)


async def test_a_plain_method_is_named(store: GuardedStore, plugin: Own) -> None:
    plugin.load_state = lambda *args: None  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable, match="it is no coroutine function"):
        await store.load_state("t", "1", "a", 1)


@coroutine
def cancelled() -> Any:
    raise asyncio.CancelledError
    yield


async def test_a_cancellation_by_the_store_cancels_no_caller(
    plugin: Own, store: GuardedStore
) -> None:
    plugin.does["load_state"] = cancelled
    with pytest.raises(StoreUnavailable, match="was cancelled"):
        await store.load_state("t", "1", "a", 1)


async def test_a_load_waits_for_a_save_that_was_given_up_and_has_not_ended(
    plugin: Own, store: GuardedStore
) -> None:
    plugin.does["after"] = plugin.swallow
    hurry(store)
    with pytest.raises(StoreUnavailable):
        await store.save_states([save(1, b"late")])
    with pytest.raises(StoreUnavailable, match="an earlier save of t 'a' has not ended"):
        await store.load_state("t", "1", "a", 1)
    store._seconds = PATIENCE_S
    assert await store.load_state("t", "1", "other", 1) is None
    loading = asyncio.ensure_future(store.load_state("t", "1", "a", 1))
    await asyncio.sleep(0)
    plugin.go_on.set()
    assert await loading == b"late"


async def test_a_cancelled_call_is_cancelled_in_the_store(plugin: Own, store: GuardedStore) -> None:
    ended = threading.Event()

    async def wait() -> None:
        try:
            await plugin.never()
        finally:
            ended.set()

    plugin.does["load_state"] = wait
    call = asyncio.ensure_future(store.load_state("t", "1", "a", 1))
    await until(plugin.began.is_set, "the call to begin")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(ended.is_set, "the store's method to end")


async def test_calls_that_have_not_returned_are_bounded(
    plugin: Own, store: GuardedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded, "CALLS_MAX", 3)
    plugin.does["load_state"] = plugin.block
    hurry(store)
    for name in "abc":
        with pytest.raises(StoreUnavailable, match="has not returned"):
            await store.load_state("t", "1", name, 1)
    with pytest.raises(StoreUnavailable, match="3 calls of Own have not returned"):
        await store.load_state("t", "1", "d", 1)
    plugin.go_on.set()
    store._seconds = PATIENCE_S
    plugin.does.clear()

    async def works() -> bool:
        try:
            return await store.load_state("t", "1", "e", 1) is None
        except StoreUnavailable:
            return False

    await until(works, "a store that takes calls")


async def test_a_fault_is_logged_once_while_it_lasts(
    plugin: Own, store: GuardedStore, caplog: pytest.LogCaptureFixture
) -> None:
    plugin.does["load_state"] = KeyError("k")
    with caplog.at_level(logging.WARNING, "shardbus.store"):
        for name in "abcdef":
            with pytest.raises(StoreUnavailable):
                await store.load_state("t", "1", name, 1)
    [line] = [record.getMessage() for record in caplog.records]
    assert "Own.load_state raised KeyError" in line


async def test_a_store_that_hangs_in_every_method_is_logged_once(
    plugin: Own, store: GuardedStore, caplog: pytest.LogCaptureFixture
) -> None:
    plugin.does |= {"load_state": plugin.block, "load_table": plugin.block}
    hurry(store)
    with caplog.at_level(logging.WARNING, "shardbus.store"):
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await store.load_state("t", "1", "a", 1)
            with pytest.raises(StoreUnavailable):
                await store.load_table("t")
    [line] = [record.getMessage() for record in caplog.records]
    assert "calls do not return; Own.load_state has not returned" in line


async def test_a_store_that_hangs_is_closed_all_the_same(plugin: Own) -> None:
    store = GuardedStore(plugin, URL, PATIENCE_S)
    await store.start()
    plugin.does["load_state"] = plugin.block
    hurry(store)
    with pytest.raises(StoreUnavailable):
        await store.load_state("t", "1", "a", 1)
    await store.close()


async def test_what_a_store_has_besides_is_passed_on(plugin: Own) -> None:
    assert not hasattr(GuardedStore(plugin, URL, 1.0), "lane")
    assert not hasattr(GuardedStore(plugin, URL, 1.0), "placed")
    on_new_server(GuardedStore(plugin, URL, 1.0), lambda: None)
    assert not hasattr(plugin, "on_new_server")
    more: Any = plugin
    more.lane = lambda entity_type, shard: int(shard)
    more.on_new_server = None
    more.problems = ("it forgets",)
    more.clock_offset = 1.5
    store: Any = GuardedStore(plugin, URL, 1.0)
    assert store.lane("t", "7") == 7
    assert store.lane("t", "no number") == 0
    assert (store.problems, store.clock_offset) == (("it forgets",), 1.5)
    seen: list[int] = []
    store.on_new_server = lambda: seen.append(threading.get_ident())
    thread = threading.Thread(target=lambda: more.on_new_server())
    thread.start()
    await until(lambda: seen, "the call")
    assert seen == [threading.get_ident()], "in the node's loop"
