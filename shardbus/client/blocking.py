"""`Client`: send to entities from programs without an event loop.

The client runs an `AsyncClient` in a thread of its own; other threads reach it by a `ThreadBridge`.

Source: docs/how-to/send.md.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Iterator
from functools import partial
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from shardbus.client.asynchronous import ASK_TIMEOUT_S, TRACES_A_SECOND, AsyncClient
from shardbus.client.outbox import ClientOutbox
from shardbus.client.stored import PAGE, ForEach, call_each_here
from shardbus.client.thread_bridge import TellItem, ThreadBridge, ThreadSender
from shardbus.client.towards import Towards
from shardbus.client.work_queue import (
    PATIENCE_S,
    TIMEOUT_S,
    ClientQueue,
    HasValues,
    Work,
)
from shardbus.errors import LocalProtocolError, NodeLost
from shardbus.ids import check_id
from shardbus.routing.refs import OfOneProcess, ThreadRef, milliseconds, named, pack, question
from shardbus.routing.region import Region
from shardbus.routing.router import LoopSender
from shardbus.transport.asks import Key
from shardbus.transport.fork_guard import guard
from shardbus.transport.send_buffer import SEND_BUFFER_BYTES
from shardbus.wire.schema import Decode

if TYPE_CHECKING:
    from shardbus.client.values import ClientData
    from shardbus.replication.kinds import KindT, Versioned
    from shardbus.replication.quorum import Level

E = TypeVar("E")
T = TypeVar("T")
V = TypeVar("V")


class Run(Protocol):
    """Runs work in the loop of the client, while the thread waits for its result."""

    def __call__(self, work: Callable[[], Awaitable[T]], /) -> T: ...


SET_BY_OPENING = ("_bridge", "_client", "_to")
"""The attributes of a client that it has once it is open."""


CLOSING_S = 10.0
"""How long `close` waits for another thread that closes the client."""


def each(run: Run, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """Yield what an asynchronous generator of the client's loop yields; the thread waits. The
    generator is closed at the end, unless the loop has ended or does not get to it."""
    try:
        while True:
            yield run(lambda: anext(items))
    finally:
        with contextlib.suppress(LocalProtocolError, NodeLost, RuntimeError):
            run(items.aclose)


class BlockingTowards:
    """The verbs of a client for threads, as `to` has them for its loop."""

    def __init__(self, bridge: ThreadBridge, to: Towards, timeout_ms: int) -> None:
        self._bridge, self._to, self._timeout_ms = bridge, to, timeout_ms

    def tell(
        self, kind: str | type, entity_id: str, message: object, *args: Any, ack: bool = False
    ) -> None:
        """Send without an answer; blocks while the send buffer is full.

        The client's own thread sends it. An error at that moment (BufferFull, if there has been no
        room for longer than `timeout`) is raised by a later call. Raises as `AsyncClient.tell`.

        With `ack` it is delivered, and this call returns once the entity has confirmed it."""
        if ack:
            self._run(lambda: self._to.tell(kind, entity_id, message, *args, ack=True))
            return
        self._bridge.tell(self._item(kind, entity_id, message, args))

    def tell_nowait(self, kind: str | type, entity_id: str, message: object, *args: Any) -> None:
        """Send at once, or raise BufferFull if `tell` would wait."""
        self._bridge.tell_nowait(self._item(kind, entity_id, message, args))

    def _item(
        self, kind: str | type, entity_id: str, message: object, args: tuple[Any, ...]
    ) -> TellItem:
        router = self._router(kind)
        key, payload = pack(router, message, args)
        return router, key, check_id("an entity id", entity_id), payload

    def tell_many(self, kind: str | type, messages: Iterable[tuple[str, object]]) -> None:
        """Send a batch of (entity id, message), in order. Raises as `AsyncClient.tell_many`."""
        batch = list(messages)
        self._run(lambda: self._to.tell_many(kind, batch))

    def ask(
        self,
        kind: str | type,
        entity_id: str,
        message: object,
        *args: Any,
        timeout: float | None = None,
    ) -> Any:
        """Send and return the answer, after at most `timeout` seconds. Raises a RequestError."""
        router, deadline = self._router_until(kind, timeout)
        key, payload, decode = question(router, message, args)
        return self._answered(router, key, entity_id, payload, deadline, decode)

    def call(
        self,
        kind: str | type,
        entity_id: str,
        handler: str,
        *args: Any,
        timeout: float | None = None,
    ) -> Any:
        """Ask a handler by its name; it may have no arguments."""
        router, deadline = self._router_until(kind, timeout)
        key, payload, decode = named(router, handler, args)
        return self._answered(router, key, entity_id, payload, deadline, decode)

    def _answered(
        self,
        router: LoopSender,
        key: Key,
        entity_id: str,
        payload: bytes,
        deadline: float,
        decode: Decode,
    ) -> Any:
        check_id("an entity id", entity_id)
        timeout_ms = max(0, int((deadline - monotonic()) * 1000))
        return self._bridge.ask(router, key, entity_id, payload, timeout_ms, decode)

    def start_entity(self, kind: str | type, entity_id: str, timeout: float | None = None) -> None:
        """Start an entity without a message; returns when it runs."""
        self._run_within(lambda: self._to.start_entity(kind, entity_id, timeout), timeout)

    def cast(self, kind: str | type, entity_id: str, handler: str, *args: Any) -> None:
        """Tell a handler by its name; it may have no arguments. Raises as `tell`."""
        router = self._router(kind)
        key, payload, _ = named(router, handler, args)
        self._bridge.tell((router, key, check_id("an entity id", entity_id), payload))

    def ask_many(
        self,
        kind: str | type,
        messages: Iterable[tuple[str, object]],
        timeout: float | None = None,
    ) -> list[Any]:
        """Ask a batch of (entity id, message). Returns answers or errors, in the same order."""
        batch = list(messages)
        return self._run_within(lambda: self._to.ask_many(kind, batch, timeout), timeout)

    def _router(self, kind: str | type) -> LoopSender:
        return self._to.routers.get(kind) or self._run(lambda: self._to.router_of(kind))

    def _run_within(self, work: Callable[[], Awaitable[T]], timeout: float | None) -> T:
        """Run work that takes at most `timeout` seconds once it begins, or the default."""
        timeout_ms = self._timeout_ms if timeout is None else milliseconds(timeout)
        return self._bridge.run(work, within=timeout_ms / 1000)

    def _router_until(self, kind: str | type, timeout: float | None) -> tuple[LoopSender, float]:
        """Return the sender to a type, and the time at which the call must end."""
        timeout_ms = self._timeout_ms if timeout is None else milliseconds(timeout)
        deadline = monotonic() + timeout_ms / 1000
        router = self._to.routers.get(kind)
        if router is None:
            router = self._bridge.run(
                lambda: self._to.router_of(kind, timeout_ms), within=timeout_ms / 1000
            )
        return router, deadline

    def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        return self._bridge.run(work)


class Client(BlockingTowards, OfOneProcess):
    """Send to entities from any thread; use it as `with Client("tcp://host:port",
    cluster="shop") as client`. Without `with` it opens at its first use, and closes by `close` or
    at the end of the process. Threads may share it. It takes the arguments of `AsyncClient`; with
    `tracing`, the span of the calling thread is the parent of its messages."""

    def __init__(
        self,
        *addresses: str,
        cluster: str,
        timeout: float | None = None,
        connect_timeout: float | None = None,
        send_buffer_bytes: int = SEND_BUFFER_BYTES,
        secret: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        tracing: bool = False,
        trace_ratio: float = 0.0,
        trace_limit: int = TRACES_A_SECOND,
    ) -> None:
        self._tracing, self._trace_ratio, self._trace_limit = tracing, trace_ratio, trace_limit
        self._secret, self._key = secret, key
        self._addresses, self._cluster = addresses, cluster
        self._send_buffer_bytes = send_buffer_bytes
        self._timeout, self._connect_timeout = timeout, connect_timeout
        self._timeout_ms = milliseconds(ASK_TIMEOUT_S if timeout is None else timeout)
        if connect_timeout is not None:
            milliseconds(connect_timeout)
        self._opening, self._opened = threading.Lock(), False
        self._at_exit: Callable[[], None] | None = None
        """Closes a client that is used without `with`, at the end of its process."""

    def __enter__(self) -> Client:
        self._open_once()
        return self

    def _open_once(self) -> None:
        """Connect, unless that has succeeded before."""
        with self._opening:
            if self._opened:
                return
            guard(self)
            self._loop = asyncio.new_event_loop()
            bridge = ThreadBridge(self._loop, self._timeout_ms / 1000)
            run = self._loop.run_forever
            self._thread = threading.Thread(target=run, name="shardbus", daemon=True)
            self._thread.start()
            try:
                client = bridge.run(self._open)
            except BaseException:
                self._stop(bridge)
                raise
            bridge.tracer = client.tracer
            self._bridge, self._client, self._to = bridge, client, client
            self._opened = True

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            """Open a client that is used without `with`."""
            if name not in SET_BY_OPENING:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            self._open_once()
            self._at_exit = partial(_close_in, os.getpid(), self)
            atexit.register(self._at_exit)
            return vars(self)[name]

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the client; call `flush` before to wait until every tell is acknowledged. Calls of
        other threads end: one under way with NodeLost, a later one with LocalProtocolError.

        Raises the error of an earlier tell that could not be sent; the client is closed then, too.
        """
        if self._opened and self._thread.is_alive():
            if self._at_exit is not None:
                atexit.unregister(self._at_exit)
            if not self._bridge.close():  # another thread closes it
                self._thread.join(CLOSING_S)
                return
            try:
                self._bridge.run(self._close, last=True)
            finally:
                self._stop(self._bridge)
            self._bridge.raise_error()

    async def _close(self) -> None:
        """End the calls of other threads, so that workers cancel their pulls, and close."""
        await self._bridge.end_calls()
        await self._client.close()

    async def _open(self) -> AsyncClient:
        client = AsyncClient(
            *self._addresses,
            cluster=self._cluster,
            timeout=self._timeout,
            connect_timeout=self._connect_timeout,
            send_buffer_bytes=self._send_buffer_bytes,
            secret=self._secret,
            key=self._key,
            tracing=self._tracing,
            trace_ratio=self._trace_ratio,
            trace_limit=self._trace_limit,
        )
        return await client.__aenter__()

    def _stop(self, bridge: ThreadBridge) -> None:
        bridge.stop()
        self._thread.join()
        self._loop.close()

    # ---- sending

    def ref(self, kind: type[E], entity_id: str) -> type[E]:
        """Return a reference to one entity; its handlers block until they are answered: `total =
        client.ref(Counter, "page-7").add(2)` is an int. For type checkers it has the attributes of
        the class, whose handlers are blocking, and not of an object, whose handlers are awaited.
        Raises as `AsyncClient.ref`."""
        sender = ThreadSender(self._bridge, self._router(kind))
        interface = getattr(kind, "__shardbus_interface__", None)
        return cast("type[E]", ThreadRef(sender, entity_id, self._timeout_ms, interface))

    def to(self, policy: str, *, key: object = None, after: object = None) -> BlockingTowards:
        """Send to types with instances by this router, as `AsyncClient.to`."""
        to = self._client.to(policy, key=key, after=after)
        return BlockingTowards(self._bridge, to, self._timeout_ms)

    def region(self, kind: type) -> BlockingRegion:
        """Return the type's region, which finds the entity of a message. Raises as
        `AsyncClient.region`."""

        async def make() -> Region:
            return self._client.region(kind)

        return BlockingRegion(self._run, self._run(make))

    def outbox(self, name: str) -> BlockingOutbox:
        """Return a durable sender, as `AsyncClient.outbox`: `with client.outbox("orders") as
        outbox: outbox.send(ref.add, 2)`.

        Raises:
            ConfigError: the name is not valid.
        """
        return BlockingOutbox(self._run, self._client.outbox(name))

    @property
    def data(self) -> BlockingData:
        """The replicated values of the cluster, as `AsyncClient.data`."""
        return BlockingData(self._run, self._client.data)

    def queue(self, kind: type[HasValues[V]], entity_id: str) -> BlockingQueue[V]:
        """Return the means to put into a queue of work, and to work on its items. Raises as
        `AsyncClient.queue`."""

        async def make() -> ClientQueue[V]:
            return self._client.queue(kind, entity_id)

        return BlockingQueue(self._run, self._run(make))

    def stored(
        self, kind: str | type, *, prefix: str = "", shard: str | None = None
    ) -> Iterator[str]:
        """Yield the ids of entities that have a stored state or events, as `AsyncClient.stored`."""
        ids = self._client.stored(kind, prefix=prefix, shard=shard)

        async def some() -> list[str]:
            page: list[str] = []
            async for entity_id in ids:
                page.append(entity_id)
                if len(page) == PAGE:
                    break
            return page

        while page := self._run(some):
            yield from page

    def for_each(
        self,
        kind: str | type,
        action: str | Callable[[Any], object],
        *args: Any,
        rate: float = 100.0,
        at_once: int = 16,
        prefix: str = "",
        shard: str | None = None,
        tell: bool = False,
        timeout: float | None = None,
        on_error: Callable[[str, Exception], object] | None = None,
    ) -> ForEach:
        """Call a handler of each entity of the type that `stored` yields, as
        `AsyncClient.for_each`. A function as `action` takes a blocking reference and runs in this
        thread, one call after the other; `on_error` runs in the client's thread otherwise."""
        if isinstance(action, str):
            return self._run(
                lambda: self._client.for_each(
                    kind,
                    action,
                    *args,
                    rate=rate,
                    at_once=at_once,
                    prefix=prefix,
                    shard=shard,
                    tell=tell,
                    timeout=timeout,
                    on_error=on_error,
                )
            )
        sender, timeout_ms = ThreadSender(self._bridge, self._router(kind)), self._timeout_ms

        def call(entity_id: str) -> None:
            action(ThreadRef(sender, entity_id, timeout_ms))

        return call_each_here(
            self.stored(kind, prefix=prefix, shard=shard), call, rate=rate, on_error=on_error
        )

    @property
    def lost_messages(self) -> int:
        """Return the number of tells that could not be sent, or whose arrival is unknown."""
        return self._bridge.dropped + self._client.lost_messages

    @property
    def refused_messages(self) -> dict[str, int]:
        """Return the number of dropped messages by reason, as `AsyncClient.refused_messages`."""
        return self._client.refused_messages

    def flush(self) -> None:
        """Block until a node has acknowledged every tell so far."""
        self._run(self._client.flush)


def _close_in(pid: int, client: Client) -> None:
    """Close a client at the end of the process that has opened it, but not of a fork of it."""
    if os.getpid() == pid:
        client.close()


class BlockingData:
    """The replicated values of a cluster, for threads: `client.data.put("rate", 1.09)`. Several
    threads may use one. The calls are those of `SharedValues`, with the same errors."""

    def __init__(self, run: Run, data: ClientData) -> None:
        self._run, self._data = run, data

    def get(self, key: str, *, r: Level | None = None) -> Versioned | None:
        """Return the value of a key; None if there is none."""
        return self._run(lambda: self._data.get(key, r=r))

    def put(
        self,
        key: str,
        value: object,
        *,
        after: Versioned | None = None,
        w: Level | None = None,
        r: Level | None = None,
    ) -> Versioned:
        """Put a plain value in place of those that `after` has, or that are there."""
        return self._run(lambda: self._data.put(key, value, after=after, w=w, r=r))

    def update(
        self,
        key: str,
        kind: type[KindT],
        change: Callable[[KindT], object],
        *,
        r: Level | None = None,
        w: Level | None = None,
    ) -> Versioned:
        """Change a value of a kind. `change` is called once, in the client's own thread, and must
        not wait."""
        return self._run(lambda: self._data.update(key, kind, change, r=r, w=w))

    def delete(
        self,
        key: str,
        *,
        after: Versioned | None = None,
        w: Level | None = None,
        r: Level | None = None,
    ) -> bool:
        """Delete a value. Returns False if there was none."""
        return self._run(lambda: self._data.delete(key, after=after, w=w, r=r))

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys that begin with `prefix`."""
        return self._run(lambda: self._data.keys(prefix))

    def watch(
        self, prefix: str = "", *, r: Level | None = None
    ) -> Generator[tuple[str, Versioned | None], None, None]:
        """Yield keys with their values, and then each change, without an end. The thread waits for
        the next one."""
        yield from each(self._run, self._data.watch(prefix, r=r))


class BlockingQueue(OfOneProcess, Generic[T]):
    """A queue of work, for threads. Several threads may use one."""

    def __init__(self, run: Run, queue: ClientQueue[T]) -> None:
        self._run, self._queue = run, queue

    @property
    def name(self) -> str:
        """The name of this producer and worker."""
        return self._queue.name

    def put(self, value: T, *, timeout: float = TIMEOUT_S) -> None:
        """Put a value. Raises as `ClientQueue.put`."""
        self._run(lambda: self._queue.put(value, timeout=timeout))

    def put_many(self, values: Iterable[T], *, timeout: float = TIMEOUT_S) -> None:
        """Put values, in this order. Raises as `ClientQueue.put_many`."""
        batch = list(values)
        self._run(lambda: self._queue.put_many(batch, timeout=timeout))

    def work(
        self, *, most: int = 1, patience: float = PATIENCE_S
    ) -> Generator[BlockingWork[T], None, None]:
        """Yield items as they come, without an end, as `ClientQueue.work`: `for work in
        queue.work():`, and `with work:` in it."""
        items = each(self._run, self._queue.work(most=most, patience=patience))
        with contextlib.closing(items):
            for work in items:
                yield BlockingWork(self._run, work)


class BlockingWork(Generic[T]):
    """An item that this thread has for a time, as `Work`."""

    def __init__(self, run: Run, work: Work[T]) -> None:
        self._run, self._work = run, work
        self.number: int = work.number
        """The number of the item in its queue, the same each time that a worker gets it."""
        self.attempt: int = work.attempt
        """1 the first time that a worker gets it."""

    @property
    def value(self) -> T:
        """The value that was put. Raises as `Work.value`."""
        return self._work.value

    @property
    def has_ended(self) -> bool:
        """True if the lease has ended: another worker may have the item."""
        return self._work.has_ended

    def confirm(self, *, timeout: float = TIMEOUT_S) -> None:
        """Remove the item: it is done. Raises as `Work.confirm`."""
        self._run(lambda: self._work.confirm(timeout=timeout))

    def release(self, error: object = "") -> None:
        """Give the item back, as `Work.release`."""
        self._run(lambda: self._work.release(error))

    def extend(self) -> bool:
        """Begin the lease anew, as `Work.extend`."""
        return self._run(self._work.extend)

    def __enter__(self) -> BlockingWork[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._run(lambda: self._work.__aexit__(kind, error, trace))
        except LocalProtocolError:  # the client is closed: the error of the block is the cause
            if error is None:
                raise


class BlockingRegion:
    """The region of a type, for threads."""

    def __init__(self, run: Run, region: Region) -> None:
        self._run, self._region = run, region

    def tell(self, message: object) -> None:
        """Send to the entity that the message names. Raises as `Region.tell`."""
        self._run(lambda: self._region.tell(message))

    def ask(self, message: object, timeout: float | None = None) -> Any:
        """Ask the entity that the message names. Raises as `Region.ask`."""
        return self._run(lambda: self._region.ask(message, timeout))


class BlockingOutbox(OfOneProcess):
    """An outbox of a client, for threads: `with client.outbox("orders") as outbox:
    outbox.send(ref.add, 2)`. Several threads may use one; messages that they send at the same time
    share a write."""

    def __init__(self, run: Run, outbox: ClientOutbox) -> None:
        self._run, self._outbox = run, outbox

    def __enter__(self) -> BlockingOutbox:
        self._run(self._outbox.__aenter__)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def send(self, call: Any, /, *args: Any, **kwargs: Any) -> None:
        """Take a message, and return once the store has it. Raises as `ClientOutbox.send`."""
        self._run(lambda: self._outbox.send(call, *args, **kwargs))

    @property
    def unconfirmed(self) -> int:
        """Messages that the outbox has taken, and that are not confirmed."""
        return self._outbox.unconfirmed

    @property
    def failed(self) -> dict[str, int]:
        """Deliveries that were given up, by reason."""
        return dict(self._outbox.failed)

    def close(self) -> None:
        """Wait, for up to 30 s, until everything is confirmed, and close, as
        `ClientOutbox.close`."""
        self._run(self._outbox.close)
