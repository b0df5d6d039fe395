"""`Client`: the asynchronous client for programs without an event loop. It runs one in a thread of
its own.

Source: docs/how-to.md.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, TypeVar, cast

from shardbus.client.asynchronous import ASK_TIMEOUT_S, CONNECT_TIMEOUT_S, AsyncClient
from shardbus.transport.addressing import Region
from shardbus.transport.refs import Call, Ref

E = TypeVar("E")
T = TypeVar("T")


class Client:
    """Use it as `with Client("tcp://host:port", cluster="shop") as client`. Safe to use from
    several threads."""

    def __init__(
        self,
        *addresses: str,
        cluster: str,
        timeout: float = ASK_TIMEOUT_S,
        connect_timeout: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self._addresses, self._cluster = addresses, cluster
        self._timeout, self._connect_timeout = timeout, connect_timeout
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shardbus", daemon=True)

    def __enter__(self) -> Client:
        self._thread.start()
        try:
            self._client = self._run(self._open)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go. `flush` first to wait until every tell is acknowledged."""
        if self._thread.is_alive():
            self._run(self._client.close)
            self._stop()

    async def _open(self) -> AsyncClient:
        client = AsyncClient(
            *self._addresses,
            cluster=self._cluster,
            timeout=self._timeout,
            connect_timeout=self._connect_timeout,
        )
        return await client.__aenter__()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        async def call() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    # ---- sending

    def ref(self, kind: type[E], entity_id: str) -> E:
        """A reference whose handlers block until they are answered. Raises as `AsyncClient.ref`."""

        async def make() -> Any:
            return self._client.ref(kind, entity_id)

        return cast("E", _BlockingRef(self._run, self._run(make)))

    def region(self, kind: type) -> BlockingRegion:
        """The type as a region, which finds the entity by the message. Raises as
        `AsyncClient.region`."""

        async def make() -> Region:
            return self._client.region(kind)

        return BlockingRegion(self._run, self._run(make))

    def tell(self, kind: str | type, entity_id: str, message: object, *args: Any) -> None:
        """Send without waiting for an answer; blocks while the send buffer is full."""
        self._run(lambda: self._client.tell(kind, entity_id, message, *args))

    def tell_nowait(self, kind: str | type, entity_id: str, message: object, *args: Any) -> None:
        """Send, or raise BufferFull where `tell` would wait."""

        async def tell() -> None:
            self._client.tell_nowait(kind, entity_id, message, *args)

        self._run(tell)

    def tell_many(self, kind: str | type, messages: Iterable[tuple[str, object]]) -> None:
        """Send a batch of (entity id, message), in order."""
        batch = list(messages)
        self._run(lambda: self._client.tell_many(kind, batch))

    def ask(
        self,
        kind: str | type,
        entity_id: str,
        message: object,
        *args: Any,
        timeout: float | None = None,
    ) -> Any:
        """Send and return the answer. Raises a RequestError."""
        return self._run(lambda: self._client.ask(kind, entity_id, message, *args, timeout=timeout))

    def call(
        self,
        kind: str | type,
        entity_id: str,
        handler: str,
        *args: Any,
        timeout: float | None = None,
    ) -> Any:
        """Ask a handler by its name, also one without arguments."""
        return self._run(
            lambda: self._client.call(kind, entity_id, handler, *args, timeout=timeout)
        )

    def start_entity(self, kind: str | type, entity_id: str, timeout: float | None = None) -> None:
        """Start an entity without a message; returns when it runs."""
        self._run(lambda: self._client.start_entity(kind, entity_id, timeout))

    def cast(self, kind: str | type, entity_id: str, handler: str, *args: Any) -> None:
        """Tell a handler by its name, also one without arguments."""
        self._run(lambda: self._client.cast(kind, entity_id, handler, *args))

    def ask_many(
        self,
        kind: str | type,
        messages: Iterable[tuple[str, object]],
        timeout: float | None = None,
    ) -> list[Any]:
        """Ask a batch of (entity id, message); answers or errors, in their order."""
        batch = list(messages)
        return self._run(lambda: self._client.ask_many(kind, batch, timeout))

    def flush(self) -> None:
        """Block until a node has acknowledged every tell so far."""
        self._run(self._client.flush)


class BlockingRegion:
    """A type's region, for threads."""

    def __init__(self, run: Callable[[Callable[[], Awaitable[Any]]], Any], region: Region) -> None:
        self._run, self._region = run, region

    def tell(self, message: object) -> None:
        """Send to the entity that the message names. Raises as `Region.tell`."""
        self._run(lambda: self._region.tell(message))

    def ask(self, message: object, timeout: float | None = None) -> Any:
        """Ask it. Raises as `Region.ask`."""
        return self._run(lambda: self._region.ask(message, timeout))


class _BlockingCall:
    """A handler that blocks its caller's thread."""

    __slots__ = ("_call", "_run")

    def __init__(self, run: Callable[[Callable[[], Awaitable[Any]]], Any], call: Call) -> None:
        self._run, self._call = run, call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(lambda: self._call(*args, **kwargs))

    def tell(self, *args: Any, **kwargs: Any) -> None:
        self._run(lambda: self._call.tell(*args, **kwargs))

    def tell_nowait(self, *args: Any, **kwargs: Any) -> None:
        async def tell() -> None:
            self._call.tell_nowait(*args, **kwargs)

        self._run(tell)


class _BlockingRef:
    """One entity, for threads."""

    def __init__(self, run: Callable[[Callable[[], Awaitable[Any]]], Any], ref: Ref) -> None:
        self._run, self._ref = run, ref

    def __getattr__(self, name: str) -> _BlockingCall:
        call = _BlockingCall(self._run, getattr(self._ref, name))
        self.__dict__[name] = call
        return call

    def __repr__(self) -> str:
        return repr(self._ref)
