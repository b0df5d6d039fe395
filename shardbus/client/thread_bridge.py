"""From threads to the event loop: one line in which everything that threads send keeps its order.

Handing each message to the loop by itself would cost a wake-up and a wait of two threads for each
other. So a thread packs its message, puts it in line and goes on; the loop is woken once and takes
everything that stands there.

    thread   put ──> line ──room below LINE_BYTES──┐
    loop                    take all ──> send one after the other, until the send buffer is full
                                             └──> wait for room; who puts meanwhile waits, too

An ask, a flush, whatever else a thread wants from the client stands in the same line, so that it
comes after what the thread has told before. A tell that the client refuses only once its turn has
come (no home, and its buffer full, for longer than `timeout`) cannot raise where it was told: it is
counted, and the next call of any thread raises its error.

Source: docs/how-to/send.md; S0.35.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from shardbus.errors import BufferFull, LocalProtocolError
from shardbus.routing.router import Router
from shardbus.transport.asks import Key
from shardbus.transport.fork_guard import guard
from shardbus.transport.session import too_large
from shardbus.wire.batch import PAYLOAD_BYTES_MAX
from shardbus.wire.schema import Decode

T = TypeVar("T")

LINE_BYTES = 1024 * 1024
ITEM_BYTES = 256
"""What a message weighs in the line besides its payload: some 3,000 small ones stand there."""
TURN_MAX = 2048
"""Messages that are sent before the loop's other work gets a turn."""
AGAIN_S = 0.01


class ThreadFuture:
    """What a thread waits for: as much of a future as whoever answers an ask uses."""

    __slots__ = ("_error", "_lock", "_value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._value: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Whether there is an outcome."""
        return not self._lock.locked()

    def set_result(self, value: Any) -> None:
        """The outcome is a value."""
        self._value = value
        self._lock.release()

    def set_exception(self, error: BaseException) -> None:
        """The outcome is an error."""
        self._error = error
        self._lock.release()

    def result(self) -> Any:
        """Wait for it. Every ask has its outcome in time."""
        with self._lock:
            if self._error is not None:
                raise self._error
            return self._value


Told = tuple[Router, Key, str, bytes]
"""A message for an entity."""
Asked = tuple[Router, Key, str, bytes, int, ThreadFuture, Decode]
"""The same with its timeout in ms, who waits, and how to read the answer."""
Errand = Callable[[], None]
"""What else the loop shall do."""


class ThreadBridge:
    """See the module. `put` and what is built on it may be called by any thread but the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        guard(self)
        self._loop, self._timeout = loop, timeout
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._line: list[Told | Asked | Errand] = []
        self._weight = 0
        self._woken = self._waits = False
        self._taken: deque[Told | Asked | Errand] = deque()
        self._refused_since: float | None = None
        self._error: Exception | None = None
        self._closed = False
        self.dropped = 0
        """Tells that could not be sent."""

    # ---- threads

    def tell(self, told: Told) -> None:
        """Stand in line with a message. Raises as `put`."""
        self.put(told, len(told[3]))

    def tell_nowait(self, told: Told) -> None:
        """`tell`, or raise BufferFull where it or the sending of what stands there would wait."""
        if self._waits or self._weight > LINE_BYTES:
            raise BufferFull("the send buffer is full")
        self.tell(told)

    def put(self, item: Told | Asked | Errand, size: int = 0) -> None:
        """Stand in line; wait at its end while it is full.

        Raises:
            MessageTooLarge: just that. LocalProtocolError: the client is closed. BufferFull and
                others: an earlier tell could not be sent.
        """
        if size > PAYLOAD_BYTES_MAX:
            raise too_large(size)
        with self._lock:
            while self._weight > LINE_BYTES and not self._closed and self._error is None:
                self._room.wait()
            if self._closed:
                raise LocalProtocolError("the client is closed")
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            self._line.append(item)
            self._weight += size + ITEM_BYTES
            if self._woken:
                return
            self._woken = True
        self._loop.call_soon_threadsafe(self._go_on)

    def ask(
        self,
        router: Router,
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        read: Decode,
    ) -> Any:
        """Ask, and wait for the answer. Raises as `put`, and a RequestError."""
        answer = ThreadFuture()
        self.put((router, key, entity_id, payload, timeout_ms, answer, read), len(payload))
        return answer.result()

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Let the loop do something after all that stands in line, and wait for what comes of it.
        Raises as `put`, and what the work raises."""
        answer = ThreadFuture()

        async def call() -> None:
            try:
                answer.set_result(await work())
            except BaseException as e:
                answer.set_exception(e)

        tasks: list[asyncio.Task[None]] = []  # keeps the task
        errand = lambda: tasks.append(self._loop.create_task(call()))  # noqa: E731
        self.put(errand)
        result: T = answer.result()
        return result

    def close(self) -> None:
        """Nobody may stand in line any more; who waits at its end is sent away."""
        with self._lock:
            self._closed = True
            self._room.notify_all()

    # ---- the loop

    def _go_on(self) -> None:
        """Send what stands in line, as far as there is room."""
        for _ in range(TURN_MAX):
            if not self._taken and not self._take():
                return
            item = self._taken.popleft()
            waits = self._send(item)
            self._waits = waits is not None
            if waits is not None:
                waits.add_done_callback(lambda _: self._go_on())
                return
        self._loop.call_soon(self._go_on)

    def _take(self) -> bool:
        """Take over the line; False if nobody stands there, then the next to come wakes us."""
        with self._lock:
            if not self._line:
                self._woken = False
                return False
            self._taken.extend(self._line)
            self._line.clear()
            if self._weight > LINE_BYTES:
                self._room.notify_all()
            self._weight = 0
        return True

    def _send(self, item: Told | Asked | Errand) -> asyncio.Future[Any] | None:
        """Send one; what to wait for before the next, if there is need to."""
        if not isinstance(item, tuple):
            item()
            return None
        try:
            if len(item) == 7:
                router, key, entity_id, payload, timeout_ms, answer, decode = item
                router.ask_for(answer, key, entity_id, payload, timeout_ms, decode)
                return None
            router, key, entity_id, payload = item
            room = router.tell(key, entity_id, payload)
            self._refused_since = None
            return None if room is router.done else asyncio.ensure_future(room, loop=self._loop)
        except Exception as e:
            if len(item) == 7:
                if not item[5].done():
                    item[5].set_exception(e)
            elif isinstance(e, BufferFull):
                return self._again(item, e)
            else:
                self._failed(e)
            return None

    def _again(self, item: Told, error: BufferFull) -> asyncio.Future[Any] | None:
        """The shard has no home, and its buffer is full: wait for that to end, but not again for
        each message behind this one."""
        now = self._loop.time()
        if self._refused_since is None:
            self._refused_since = now
        elif now - self._refused_since > self._timeout:
            self._failed(error)
            return None
        self._taken.appendleft(item)
        later: asyncio.Future[Any] = self._loop.create_future()
        self._loop.call_later(AGAIN_S, later.set_result, None)
        return later

    def _failed(self, error: Exception) -> None:
        """A tell is dropped: the next call says so, that of a thread which waits here, too."""
        with self._lock:
            self.dropped += 1
            self._error = self._error or error
            self._room.notify_all()
