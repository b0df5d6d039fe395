"""From threads to the event loop: one queue that keeps the order of everything that threads send.

To hand each message to the loop by itself would cost one wake-up per message. A thread packs its
message, appends it to the queue and goes on; the loop is woken once and takes the whole queue.

    thread   put ──> queue ──room below QUEUE_BYTES──┐
    loop                     take all ──> send one by one, until the send buffer is full
                                              └──> wait for room; threads that put meanwhile wait

A tell to an entity without room (`transport.held_entities`) stops nothing but later tells to this
entity: the threads that put them wait, and the loop goes on with the items of others.

Asks, flushes and other calls pass through the same queue, so each comes after the tells before it.
A tell may fail only when the loop sends it (its shard has had no home, and the buffer no room, for
longer than `timeout`). It cannot raise in the call that put it: it is counted in `dropped`, and the
next call of any thread raises its error.

An ask ends by its deadline wherever it waits: for room in the queue, in the queue behind tells that
wait for room in the send buffer, or for its answer. It is not sent if it leaves the queue later.

A signal may raise an exception between any two steps of a thread (Ctrl-C, the time limit of a task
queue). A thread that is interrupted while it puts wakes the loop once more: else a
mark without a wake-up would keep the items of all threads in the queue for ever.

**Ends.** A thread whose wait ends without an outcome, by an interrupt (Ctrl-C, or an exception of
another signal handler) or by its deadline, cancels its call in the loop and waits briefly for its
end. A client that closes refuses new items, cancels the calls under way, whose threads get
NodeLost, and refuses items that are still queued when the loop stops: no thread waits for a loop
that has ended.

**Traces.** The span that is current when a thread sends is the parent of its messages. In a client
with tracing, each item of the queue has the thread's context, unless that has no span. Other calls
run in a copy of all context variables of the thread. Everything else of the loop runs in an empty
context, not in the context of the thread that happened to wake it.

Source: docs/how-to/send.md, docs/how-to/trace.md; S0.35.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from shardbus.errors import AskTimeout, BufferFull, LocalProtocolError, NodeLost
from shardbus.ids import check_id
from shardbus.routing.instance_policies import Choice
from shardbus.routing.router import LoopSender
from shardbus.routing.shard_route import NO_ROUTE, ShardRoute
from shardbus.routing.tracer import Tracer
from shardbus.task_set import TaskSet
from shardbus.transport.asks import Key
from shardbus.transport.fork_guard import guard
from shardbus.transport.full_entities import Target
from shardbus.transport.outbox import HoldWaiter, too_large
from shardbus.wire.batch import PAYLOAD_BYTES_MAX
from shardbus.wire.schema import Decode, Interface, form_of

T = TypeVar("T")

QUEUE_BYTES = 1024 * 1024
ITEM_BYTES = 256
"""The weight of a message besides its payload; about 4,000 small messages fit into the queue."""
TURN_MAX = 2048
"""Messages that are sent before the loop's other work gets a turn."""
RETRY_S = 0.01
GRACE_S = 1.0
"""How long after its deadline a thread waits for the loop, which knows more about the reason."""
END_S = 1.0
"""How long cancelled calls may take to end: one of a thread that was interrupted, and those under
way when the client closes."""
ROUNDS = 3
"""How often the tasks are cancelled that have begun while others ended."""
CLOSED = "the client is closed"
NO_ROOM = "the send buffer was full for as long as the call may take"


class ThreadFuture:
    """The outcome of an ask, for which a thread waits. It has those methods of a future that an
    answer uses; set it once."""

    __slots__ = ("_lock", "_value", "deadline", "error")

    def __init__(self, deadline: float = math.inf) -> None:
        self.deadline = deadline
        """Time by which the outcome must be there, by the monotonic clock."""
        self._lock = threading.Lock()
        self._lock.acquire()
        self._value: Any = None
        self.error: BaseException | None = None
        """The outcome, if it is an error."""

    def done(self) -> bool:
        """True if there is an outcome."""
        return not self._lock.locked()

    def set_result(self, value: Any) -> None:
        """Set a value as the outcome."""
        self._value = value
        self._lock.release()

    def set_exception(self, error: BaseException) -> None:
        """Set an error as the outcome."""
        self.error = error
        self._lock.release()

    def result(self) -> Any:
        """Wait for the outcome and return or raise it.

        Raises:
            AskTimeout: there is none by the deadline. The loop decides before, unless it does not
                get to it.
        """
        left = self.deadline - monotonic() + GRACE_S
        if not self._lock.acquire(timeout=-1 if left == math.inf else max(left, 0)):
            raise AskTimeout("no answer in time: the client was busy with earlier messages")
        try:
            if self.error is not None:
                raise self.error
            return self._value
        finally:
            self._lock.release()


class ThreadCall:
    """Work that a thread runs in the loop, in its context, and whose outcome it waits for."""

    __slots__ = ("_work", "answer", "context", "given_up", "task")

    def __init__(self, work: Callable[[], Awaitable[Any]], answer: ThreadFuture) -> None:
        self._work, self.answer, self.given_up = work, answer, False
        self.context: contextvars.Context = contextvars.copy_context()
        self.task: asyncio.Task[None] | None = None
        """The task that does the work; None before it begins."""

    async def run(self) -> None:
        """Do the work, and hand its result or its error to the thread. If the task is cancelled,
        the bridge does so, because a task that has not begun cannot."""
        try:
            result = await self._work()
        except asyncio.CancelledError:
            raise
        except BaseException as e:
            self.answer.set_exception(e)
        else:
            self.answer.set_result(result)


TellItem = tuple[LoopSender, Key, str, bytes]
"""A tell: its sender, key, entity id and payload."""
AskItem = tuple[LoopSender, Key, str, bytes, int, ThreadFuture, Decode]
"""An ask: as a tell, then its timeout in ms, the waiting future and the decoder of the answer."""
Queued = tuple[TellItem | AskItem | ThreadCall, Any]
"""An item with the trace context to send it under; None, the empty one."""


class ThreadBridge:
    """The queue of one client. Call `put`, and the methods that use it, from any thread but the
    loop's. `timeout` is how long a tell may wait for room, in seconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        guard(self)
        self._loop, self._timeout = loop, timeout
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._queue: list[Queued] = []
        self._weight = 0
        self._is_woken = self._waits_for_room = False
        self._drains = False
        """The loop sends the queue, or waits for room or its next turn to do so."""
        self._taken: deque[Queued] = deque()
        self._full: dict[Target, asyncio.Future[Any]] = {}
        """Entities whose tells wait for room, each with a future that is done when it has room."""
        self._refused_since: float | None = None
        self._error: Exception | None = None
        self._calls: dict[asyncio.Task[None], ThreadCall] = {}
        """The calls under way."""
        self._closed, self._tasks = False, TaskSet()
        self.tracer: Tracer | None = None
        """The tracer of a client with tracing, once it is open."""
        self.dropped = 0
        """Tells that were queued and could not be sent."""

    # ---- threads

    def tell(self, item: TellItem) -> None:
        """Queue a tell. Raises as `put`."""
        self.put(item, len(item[3]), target=(item[1][0], item[2]))

    def tell_nowait(self, item: TellItem) -> None:
        """Queue a tell, or raise BufferFull if the thread or the loop would wait for room."""
        full = (item[1][0], item[2]) in self._full
        if full or self._waits_for_room or self._weight > QUEUE_BYTES:
            raise BufferFull("the send buffer is full")
        self.tell(item)

    def put(
        self,
        item: TellItem | AskItem | ThreadCall,
        size: int = 0,
        *,
        last: bool = False,
        deadline: float = math.inf,
        target: Target | None = None,
    ) -> None:
        """Queue an item; wait while the queue is full, or the entity that a tell is for. `last`:
        leave the error of an earlier tell to `raise_error`, and queue it even after `close`.

        Raises:
            MessageTooLarge: the payload is over the limit. LocalProtocolError: the client is
                closed. BufferFull: there was no room by the deadline. Others, and BufferFull, too:
                an earlier tell could not be sent.
        """
        if size > PAYLOAD_BYTES_MAX:
            raise too_large(size)
        context = None
        if self.tracer is not None and (here := self.tracer.current()) is not self.tracer.plain:
            context = here
        try:
            with self._lock:
                while (
                    (self._weight > QUEUE_BYTES or target in self._full)
                    and not self._closed
                    and self._error is None
                ):
                    left = deadline - monotonic()
                    if left <= 0:
                        raise BufferFull(NO_ROOM)
                    self._room.wait(None if left == math.inf else left)
                if self._closed and not last:
                    raise LocalProtocolError(CLOSED)
                if not last:
                    self._raise_error()
                self._queue.append((item, context))
                self._weight += size + ITEM_BYTES
                if self._is_woken:
                    return
                self._is_woken = True
            self._wake()
        except BaseException:  # an interrupt may come between the mark and the call
            if self._is_woken:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._wake()
            raise

    def _wake(self) -> None:
        """Let the loop send the queue, unless it does."""
        self._loop.call_soon_threadsafe(self._begin_to_drain, context=contextvars.Context())

    def raise_error(self) -> None:
        """Raise the error of an earlier tell that could not be sent, if no call has raised it."""
        with self._lock:
            self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def ask(
        self,
        router: LoopSender,
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        read: Decode,
    ) -> Any:
        """Ask, and wait for the answer. Raises as `put`, or a RequestError."""
        answer = ThreadFuture(monotonic() + timeout_ms / 1000)
        item = (router, key, entity_id, payload, timeout_ms, answer, read)
        self.put(item, len(payload), deadline=answer.deadline)
        return answer.result()

    def run(
        self, work: Callable[[], Awaitable[T]], *, last: bool = False, within: float = math.inf
    ) -> T:
        """Run `work` in the loop after everything queued before, and return its result. If this
        thread is interrupted, the work is cancelled. Raises as `put` and as the work, AskTimeout
        after `within` seconds, and NodeLost if the client closes meanwhile."""
        call = ThreadCall(work, ThreadFuture(monotonic() + within))
        self.put(call, last=last, deadline=call.answer.deadline)
        try:
            result: T = call.answer.result()
        except BaseException as error:
            if error is not call.answer.error:  # interrupted, or out of time
                self._give_up(call)
            raise
        return result

    def _give_up(self, call: ThreadCall) -> None:
        """Cancel a call whose thread waits no more, and wait up to END_S for its end."""
        ended = threading.Event()

        def cancel() -> None:
            call.given_up = True
            if call.task is None or call.task.done():
                ended.set()
            else:
                call.task.add_done_callback(lambda _: ended.set())
                call.task.cancel()

        with contextlib.suppress(RuntimeError):  # the loop is closed, and the call has ended
            self._loop.call_soon_threadsafe(cancel)
            ended.wait(END_S)

    def close(self) -> bool:
        """Refuse new items, also of threads that wait for room. Returns False if it was closed."""
        with self._lock:
            was_open, self._closed = not self._closed, True
            self._room.notify_all()
        return was_open

    def stop(self) -> None:
        """Refuse everything, end the tasks of the loop, each within END_S, and stop it. The thread
        of the loop ends soon afterwards."""
        self.close()
        self._loop.call_soon_threadsafe(lambda: self._tasks.spawn(self._stop()))

    # ---- the loop

    def _begin(self, call: ThreadCall) -> None:
        """Begin a call, unless its thread waits no more."""
        if call.given_up:
            return
        task = call.task = self._loop.create_task(call.run(), context=call.context)
        self._calls[task] = call
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        call = self._calls.pop(task, None)
        if call is not None and task.cancelled():
            call.answer.set_exception(self._cancelled())

    def _cancelled(self) -> BaseException:
        """Return the outcome of a call that was cancelled."""
        return NodeLost(CLOSED) if self._closed else asyncio.CancelledError()

    async def end_calls(self) -> None:
        """End the calls under way, but the one that runs this: the client is closed. Waits up to
        END_S for their ends."""
        mine = asyncio.current_task()
        tasks = [task for task in self._calls if task is not mine]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=END_S)

    async def _stop(self) -> None:
        """Refuse what is queued, end every task, and stop the loop, whatever happens."""
        try:
            self._take()
            while self._taken:
                self._refuse(self._taken.popleft()[0])
            for _ in range(ROUNDS):  # a task that ends may begin others
                tasks = asyncio.all_tasks() - {asyncio.current_task()}
                for task in tasks:
                    task.cancel()
                if not tasks or (await asyncio.wait(tasks, timeout=END_S))[1]:
                    break
            for call in self._calls.values():
                call.answer.set_exception(NodeLost(CLOSED))
            self._calls.clear()
        finally:
            self._loop.stop()

    def _refuse(self, item: TellItem | AskItem | ThreadCall) -> None:
        """Refuse an item that the loop does not send any more."""
        error = LocalProtocolError(CLOSED)
        if isinstance(item, ThreadCall):
            item.answer.set_exception(error)
        elif len(item) == 7:
            item[5].set_exception(error)
        else:
            self._failed(error)

    def _begin_to_drain(self) -> None:
        if not self._drains:
            self._drains = True
            self._drain()

    def _drain(self) -> None:
        """Send queued items while there is room, TURN_MAX items in one turn."""
        for _ in range(TURN_MAX):
            if not self._taken and not self._take():
                self._waits_for_room = self._drains = False
                return
            item, context = self._taken.popleft()
            if context is None or self.tracer is None:
                waits = self._send(item)
            else:
                waits = self.tracer.under(context, partial(self._send, item, context))
            self._waits_for_room = waits is not None
            if waits is not None:
                waits.add_done_callback(lambda _: self._drain())
                return
        self._loop.call_soon(self._drain)

    def _take(self) -> bool:
        """Take over the queue. Returns False if it is empty; the next item then wakes the loop."""
        with self._lock:
            if not self._queue:
                self._is_woken = False
                return False
            self._taken.extend(self._queue)
            self._queue.clear()
            if self._weight > QUEUE_BYTES:
                self._room.notify_all()
            self._weight = 0
        return True

    def _send(
        self, item: TellItem | AskItem | ThreadCall, context: Any = None
    ) -> asyncio.Future[Any] | None:
        """Send one item. Returns an awaitable to wait for before the next one, None if there is
        room."""
        if isinstance(item, ThreadCall):
            self._begin(item)
            return None
        try:
            if len(item) == 7:
                router, key, entity_id, payload, timeout_ms, answer, decode = item
                left = answer.deadline - monotonic()
                if left <= 0 < timeout_ms:
                    raise BufferFull(NO_ROOM)
                timeout_ms = max(0, min(timeout_ms, int(left * 1000)))
                router.ask_for(answer, key, entity_id, payload, timeout_ms, decode)
                return None
            router, key, entity_id, payload = item
            room = router.tell(key, entity_id, payload)
            self._refused_since = None
            if room is router.done:
                return None
            waits: asyncio.Future[Any] = asyncio.ensure_future(room, loop=self._loop)
            if not isinstance(room, HoldWaiter):
                return waits
            self._wait_for((key[0], entity_id), waits)
            return None
        except Exception as e:
            if len(item) == 7:
                if not item[5].done():
                    item[5].set_exception(e)
            elif isinstance(e, BufferFull):
                return self._retry(item, context, e)
            else:
                self._failed(e)
            return None

    def _wait_for(self, target: Target, room: asyncio.Future[Any]) -> None:
        """Let threads with further tells to an entity wait until it has room."""

        def done(_: object) -> None:
            with self._lock:
                if self._full.get(target) is room:
                    del self._full[target]
                    self._room.notify_all()

        with self._lock:
            self._full[target] = room
        room.add_done_callback(done)

    def _retry(self, item: TellItem, context: Any, error: BufferFull) -> asyncio.Future[Any] | None:
        """Try a tell again later: its shard has no home, and the buffer is full. Once `timeout` has
        passed the tell fails, and so do those behind it until one can be sent."""
        now = self._loop.time()
        if self._refused_since is None:
            self._refused_since = now
        elif now - self._refused_since > self._timeout:
            self._failed(error)
            return None
        self._taken.appendleft((item, context))
        later: asyncio.Future[Any] = self._loop.create_future()
        self._loop.call_later(RETRY_S, later.set_result, None)
        return later

    def _failed(self, error: Exception) -> None:
        """Drop a tell; the next call of a thread raises the error, also one that waits for room."""
        with self._lock:
            self.dropped += 1
            self._error = self._error or error
            self._room.notify_all()


class ThreadDeliverer:
    """Delivers by `sender` for threads, which wait for the confirmation."""

    __slots__ = ("_bridge", "_deliverer", "_sender")

    def __init__(self, bridge: ThreadBridge, sender: LoopSender) -> None:
        self._bridge, self._sender, self._deliverer = bridge, sender, sender.deliverer

    def deliver(
        self,
        sender: object,
        entity_id: str,
        method: str,
        payload: bytes,
        within: float | None = None,
        *,
        waits: bool = True,
    ) -> None:
        """Deliver a message, and wait for its confirmation; without `waits`, until it has room."""
        deliver, by = self._deliverer.deliver, self._sender

        async def begin() -> None:
            confirmed = deliver(by, entity_id, method, payload, within, waits=waits)
            if waits:
                await confirmed

        self._bridge.run(begin)

    def ask_once(
        self,
        sender: object,
        entity_id: str,
        method: str,
        payload: bytes,
        once: str,
        timeout_ms: int,
        decode: Decode,
    ) -> Any:
        """Ask, and wait for the answer. Raises a RequestError."""
        ask, by = self._deliverer.ask_once, self._sender

        async def begin() -> Any:
            return await ask(by, entity_id, method, payload, once, timeout_ms, decode)

        return self._bridge.run(begin, within=timeout_ms / 1000)


class ThreadSender:
    """Sends by `sender` for threads: a tell waits while there is no room, an ask for its answer."""

    __slots__ = ("_bridge", "_sender")

    def __init__(self, bridge: ThreadBridge, sender: LoopSender) -> None:
        self._bridge, self._sender = bridge, sender

    @property
    def interface(self) -> Interface:
        """The interface of the type, as its router knows it now."""
        return self._sender.interface

    @property
    def address(self) -> tuple[Any, ...]:
        """Equal for two senders that send alike."""
        return self._bridge, *self._sender.address

    @property
    def done(self) -> None:
        """The result of a tell, which has waited already."""
        return

    @property
    def deliverer(self) -> ThreadDeliverer:
        """The deliverer of threads. Raises ConfigError: the type takes no deliveries."""
        return ThreadDeliverer(self._bridge, self._sender)

    def key(self, method: str) -> Key:
        """Return the key of a method; always the same object."""
        return self._sender.key(method)

    def by(self, choice: Choice) -> ThreadSender:
        """Return a sender to the same type by this choice of instances."""
        return ThreadSender(self._bridge, self._sender.by(choice))

    def route_for(self, entity_id: str) -> ShardRoute:
        """Return no route: the loop alone may use one."""
        check_id("an entity id", entity_id)
        return NO_ROUTE

    def tell(self, key: Key, entity_id: str, payload: bytes) -> None:
        """Queue a tell. Raises as `ThreadBridge.put`."""
        self._bridge.tell((self._sender, key, check_id("an entity id", entity_id), payload))

    def tell_nowait(self, key: Key, entity_id: str, payload: bytes) -> None:
        """Queue a tell, or raise BufferFull if the thread or the loop would wait for room."""
        check_id("an entity id", entity_id)
        self._bridge.tell_nowait((self._sender, key, entity_id, payload))

    def send(self, entity_id: str, message: object) -> None:
        """Tell a message to `receive`."""
        form = form_of(message)
        self.tell(self.key(form.method), entity_id, form.encode(message))

    def ask(self, key: Key, entity_id: str, payload: bytes, timeout_ms: int, decode: Decode) -> Any:
        """Ask, and return the answer. Raises a RequestError."""
        check_id("an entity id", entity_id)
        return self._bridge.ask(self._sender, key, entity_id, payload, timeout_ms, decode)
