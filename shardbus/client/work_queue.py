"""A work queue as its producers and workers use it.

    queue = client.queue(Emails, "main")
    await queue.put(Email("ada@example.org"))

    async for work in queue.work():
        async with work:                 # confirmed at the end, given back if the block raises
            await send(work.value)

**Puts** of concurrent callers share a request, and there is one request under way. It is repeated,
under the same numbers, until the queue has answered, so the queue recognises items that it has. A
put that is given up may have been taken or not.

    waiting ──numbered──> request ──answer n──> the first n are done
                             └──no answer──> again after a pause

**Confirmations** share requests in the same way; a repeated one changes nothing.

**Pulls** are long polls. One without an answer is repeated with its token, and gets the items that
it has leased. Items of a pull that are not begun when the iteration ends are given back, by a task,
because a generator that is collected cannot wait. A client that closes waits for these tasks.

Source: docs/how-to/queue-work.md; B.104.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import platform
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from itertools import count
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from shardbus import errors
from shardbus.backoff import doubling
from shardbus.error_text import callable_name, described, shown
from shardbus.guarded_log import GuardedLog
from shardbus.quantities import counted
from shardbus.routing.refs import OfOneProcess, milliseconds
from shardbus.task_set import TaskSet
from shardbus.tasks.interrupts import raise_interrupt
from shardbus.wire.schema import decoder, encoder, packer
from shardbus.wire.shapes import shape_of
from shardbus.wire.values import pack_whole

log = GuardedLog("shardbus.client")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

PUT_WAIT_S = 5.0
"""Seconds for which a put waits at the queue for room before it comes again."""
PULL_WAIT_S = 20.0
"""Seconds for which a pull waits for work before it comes again."""
ANSWER_S = 5.0
"""Seconds beyond its wait after which a request without an answer is repeated."""
TIMEOUT_S = 30.0
"""Seconds for which a put and a confirmation are tried by default."""
PATIENCE_S = 60.0
"""Seconds after which a worker that reaches no queue gives up."""
AGAIN_S, AGAIN_MAX_S = 0.05, 1.0
"""The pause before a request is repeated, which doubles."""
BATCH_MAX = 500
BATCH_BYTES = 512 * 1024
"""Entries, and bytes of entries, of one request."""
BODY_MAX = 2**20
"""Bytes of one encoded value."""
LEAVE_S = 2.0
"""Seconds for which a worker that stops gives its items back."""

REPEATED = (
    errors.AskTimeout,
    errors.NodeLost,
    errors.BufferFull,
    errors.MailboxFull,
    errors.EntityFailed,
    errors.Unhandled,
)
"""Errors after which a request is repeated. Unhandled: it was dropped while the queue moved."""


class HasValues(Protocol[T_co]):
    """A class of queues, for type checkers."""

    def __shardbus_value__(self) -> T_co: ...


class Refs(Protocol):
    """Makes references: a client, or the application inside a node."""

    def ref(self, kind: type[Any], entity_id: str, /) -> Any: ...


def may_repeat(error: Exception) -> bool:
    """True if a request with this error is repeated."""
    return isinstance(error, REPEATED) and not isinstance(error, errors.StateUnreadable)


def _closed(error: errors.LocalProtocolError, repeats: bool) -> errors.NodeLost:
    """Return the error of a request that a closed client did not send, or not again."""
    lost = errors.NodeLost(error.message)
    lost.definite = not repeats
    return lost


def _check_worker(handle: object) -> None:
    """Check that a worker's function can be called with values.

    Raises:
        TypeError: it cannot, or its call runs nothing.
    """
    if inspect.iscoroutine(handle):
        handle.close()
        raise TypeError("queue.run takes the function, not its call: queue.run(send)")
    if not callable(handle):
        raise TypeError(f"queue.run takes a function, not {shown(handle)}")
    if inspect.isgeneratorfunction(handle) or inspect.isasyncgenfunction(handle):
        raise TypeError(f"{callable_name(handle)} has a yield, so that a call of it runs nothing")


async def _handled(handle: Callable[[T], object], value: T) -> None:
    """Call the application's function, and await its result if that can be awaited. A
    CancelledError that does not cancel this task, as of another task that the function has
    awaited, is a failure.

    Raises:
        RuntimeError: for such a CancelledError. TypeError: the result is a generator, which has not
            run.
    """
    task = asyncio.current_task()
    begun = task.cancelling() if task is not None else 0
    try:
        result = handle(value)
        if inspect.isawaitable(result):
            await result
        elif inspect.isgenerator(result) or inspect.isasyncgen(result):
            raise TypeError("the call returned a generator, which has not run")
    except asyncio.CancelledError as error:
        if task is None or task.cancelling() > begun:
            raise
        raise RuntimeError(f"the call raised {described(error)}") from error


class _Entry:
    """One put value or one confirmed number, with the outcome for its caller, who waits until this
    time of the loop."""

    __slots__ = ("body", "number", "outcome", "until")

    def __init__(
        self, body: bytes, number: int, outcome: asyncio.Future[None], until: float
    ) -> None:
        self.body, self.number, self.outcome, self.until = body, number, outcome, until


def wait_of(batch: list[_Entry], now: float) -> float:
    """Return the seconds for which a put waits at the queue for room: at most half of the time that
    the first of its callers has, so that the answer comes before the caller gives up."""
    left = [entry.until - now for entry in batch if not entry.outcome.done()]
    return max(0.0, min([PUT_WAIT_S, *(seconds / 2 for seconds in left)]))


class SharedRequests:
    """Sends the entries of concurrent callers together, one request at a time, and repeats it until
    it is answered. `send` returns how many entries are done, from the first one on. Entries get
    numbers, from 1, when they are first sent, unless they have one."""

    def __init__(self, send: Callable[[list[_Entry]], Awaitable[int]], tasks: TaskSet) -> None:
        self._send, self._tasks = send, tasks
        self._sent: list[_Entry] = []
        """Entries of the request under way, or of the one that is repeated next."""
        self._waiting: deque[_Entry] = deque()
        self._sending = False
        self._number = 0
        self.is_short_of_room = False
        """True if the last answer left some entries: there was no room."""
        self.trouble: Exception | None = None
        """The error after which a request is repeated; None if there is none, or an answer."""

    async def add(self, entries: Iterable[tuple[bytes, int]], timeout: float) -> None:
        """Send entries, each with its body and its number, or 0 for the next one. Returns once
        all are done.

        Raises:
            TimeoutError: they are not done in time. RequestError: they are refused. ConfigError:
                the timeout is no number of seconds, and nothing was sent.
        """
        seconds = milliseconds(timeout) / 1000
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        queued = [_Entry(body, number, loop.create_future(), until) for body, number in entries]
        self._waiting.extend(queued)
        if queued and not self._sending:
            self._sending, self.is_short_of_room, self.trouble = True, False, None
            self._tasks.spawn(self._run())
        try:
            async with asyncio.timeout(seconds):
                for entry in queued:
                    await entry.outcome
        finally:
            for entry in queued:
                if not entry.outcome.done():
                    entry.outcome.cancel()
                elif not entry.outcome.cancelled():
                    entry.outcome.exception()  # it is raised for the first of them

    async def _run(self) -> None:
        try:
            failures, repeats = 0, None
            while batch := self._batch():
                try:
                    done = await self._send(batch)
                except errors.LocalProtocolError as error:  # the client is closed
                    failures, self.is_short_of_room = 0, False
                    self._end(len(batch), error if repeats is None else _closed(error, repeats))
                except Exception as error:  # each caller gets it
                    self.is_short_of_room = False
                    if may_repeat(error):
                        failures, self.trouble = failures + 1, error
                    else:
                        failures = 0
                        self._end(len(batch), error)
                else:
                    failures, self.trouble = 0 if done else failures + 1, None
                    self.is_short_of_room = done < len(batch)
                    self._end(done, None)
                repeats = bool(self._sent)
                if failures:
                    await asyncio.sleep(doubling(AGAIN_S, AGAIN_MAX_S, failures))
        finally:
            self._sending = False

    def _batch(self) -> list[_Entry]:
        """Return the entries to send. Those that were sent keep their places until they are
        answered, because the entries behind them have the next numbers, unless no caller waits for
        any."""
        if all(entry.outcome.done() for entry in self._sent):
            self._sent = []
        sent, waiting = self._sent, self._waiting
        size = sum(len(entry.body) for entry in sent)
        while waiting:
            entry = waiting[0]
            size += len(entry.body)
            if sent and (len(sent) == BATCH_MAX or size > BATCH_BYTES):
                break
            waiting.popleft()
            if entry.outcome.done():
                size -= len(entry.body)
                continue
            if not entry.number:
                self._number += 1
                entry.number = self._number
            sent.append(entry)
        return sent

    def _end(self, done: int, error: Exception | None) -> None:
        ended, self._sent = self._sent[:done], self._sent[done:]
        for entry in ended:
            outcome = entry.outcome
            if not outcome.done():
                if error is None:
                    outcome.set_result(None)
                else:
                    outcome.set_exception(error)


class ClientQueue(OfOneProcess, Generic[T]):
    """A queue of work: put values, and work on them. Made by `client.queue(Emails, "main")`, or by
    `bus.queue` inside a node. Tasks of one event loop may share it."""

    def __init__(self, refs: Refs, kind: type[HasValues[T]], entity_id: str) -> None:
        declared: Any = getattr(kind, "__shardbus_item__", None)
        if declared is None or not isinstance(kind, type):
            shown = getattr(kind, "__name__", repr(kind))
            raise errors.ConfigError(
                f"{shown:.60} is no class of queues", hint="write class Emails(WorkQueue[Email])"
            )
        self._ref = refs.ref(kind, entity_id)
        self._where = where = f"an item of {kind.__name__} {entity_id!r:.100}"
        self._encode = encoder(where, packer(shape_of(where, declared), pack_whole))
        self._decode = decoder(declared)
        self.name: str = f"{platform.node():.60}-{os.getpid()}-{secrets.token_hex(4)}"
        """The name of this producer and worker; operators see it with the items that it has."""
        self._pulls = count(1)
        self._tasks, self._returns = TaskSet(), TaskSet()
        self._puts = SharedRequests(self._send_puts, self._tasks)
        self._confirmations = SharedRequests(self._send_confirmations, self._tasks)

    # ---- producers

    async def put(self, value: T, *, timeout: float = TIMEOUT_S) -> None:
        """Put a value into the queue. Returns once the store has it: then it is worked at least
        once. Waits while the queue is full.

        Raises:
            SchemaError: the value is not of the queue's class. MessageTooLarge: it is over 1 MiB.
                It is not put then.
            BufferFull: the queue is full for longer than `timeout` seconds. AskTimeout: no answer
                in this time. It may have been put. NodeLost: the client has closed meanwhile. It
                may have been put unless `definite`.
        """
        await self.put_many([value], timeout=timeout)

    async def put_many(self, values: Iterable[T], *, timeout: float = TIMEOUT_S) -> None:
        """Put values, in this order. Raises as `put`; then some of them may have been put."""
        bodies = [self._encode(value) for value in values]
        for body in bodies:
            if len(body) > BODY_MAX:
                raise errors.MessageTooLarge(
                    f"an item of {counted(len(body), 'byte')} is larger than {BODY_MAX}",
                    hint="put a reference to the data into the queue",
                )
        try:
            await self._puts.add([(body, 0) for body in bodies], timeout)
        except TimeoutError:
            if not self._puts.is_short_of_room:
                raise self._late("put", timeout, self._puts.trouble) from None
            full = errors.BufferFull(
                f"the queue {self._ref.entity_id!r} is full",
                hint="add workers; `shardbus queue show` has its items",
            )
            full.definite = False  # the request under way may still find room
            raise full from None

    def _late(self, what: str, timeout: float, trouble: Exception | None) -> errors.AskTimeout:
        """Return the error for a request without an answer. An earlier copy of it may have been
        handled, whatever became of the last one."""
        last = "" if trouble is None else f": {described(trouble)}"
        name = self._ref.entity_id
        return errors.AskTimeout(
            f"the queue {name!r} has not answered a {what} in {timeout:g} s{last}"
        )

    async def _send_puts(self, batch: list[_Entry]) -> int:
        wait = wait_of(batch, asyncio.get_running_loop().time())
        ref = self._ref.within(wait + ANSWER_S)
        bodies = [entry.body for entry in batch]
        done: int = await ref.put(bodies, self.name, batch[0].number, wait)
        return done

    # ---- workers

    async def work(
        self, *, most: int = 1, patience: float = PATIENCE_S
    ) -> AsyncGenerator[Work[T], None]:
        """Yield items as they come, without an end: `async for work in queue.work()`. Several tasks
        and processes may do so at once.

        Args:
            most: items that are leased at once. The next ones wait here under their leases, so
            more than 1 is for work that is short.
            patience: seconds for which no node is reached before the error is raised.

        Raises:
            RequestError: the queue cannot be reached, or refuses.
        """
        while True:
            held = deque(await self.pull(most, patience=patience))
            try:
                while held:
                    work = held.popleft()
                    if not work.has_ended:
                        yield work
            finally:
                if held:
                    self._give_back(held)

    async def pull(
        self, most: int = 1, *, wait: float = PULL_WAIT_S, patience: float = PATIENCE_S
    ) -> list[Work[T]]:
        """Lease up to `most` items; wait up to `wait` seconds for the first one. Returns nothing if
        none came. Raises as `work`."""
        token = f"{self.name}/{next(self._pulls)}"
        try:
            return await self._pull(token, most, wait, patience)
        except asyncio.CancelledError:
            self._returns.spawn(self._cancel(token))
            raise

    async def _pull(self, token: str, most: int, wait: float, patience: float) -> list[Work[T]]:
        loop, ref = asyncio.get_running_loop(), self._ref.within(wait + ANSWER_S)
        until, failures = loop.time() + patience + wait, 0
        trouble: errors.RequestError | None = None
        while True:
            begun = loop.time()
            try:
                rows = await ref.pull(most, wait, token, failures > 0)
            except errors.LocalProtocolError as closed:
                raise trouble or closed from None
            except errors.RequestError as error:
                failures, trouble = failures + 1, error
                if not may_repeat(error) or loop.time() >= until:
                    raise
                await asyncio.sleep(doubling(AGAIN_S, AGAIN_MAX_S, failures))
                continue
            if not rows and loop.time() - begun < min(wait, AGAIN_S):  # the queue moves
                await asyncio.sleep(AGAIN_S)
            return [
                Work(self, token, number, attempt, begun + lease, body, loop.time)
                for number, attempt, lease, body in rows
            ]

    async def _cancel(self, token: str) -> None:
        """Let the queue give the items of a pull to others. If it fails, their leases end."""
        with contextlib.suppress(errors.RequestError, errors.LocalProtocolError):
            await self._ref.within(LEAVE_S).cancel(token)

    async def run(self, handle: Callable[[T], object], *, at_once: int = 1, most: int = 1) -> None:
        """Call a function with each value, in `at_once` tasks, until this call is cancelled. An
        async function is awaited; a plain one is called in the event loop, as a plain handler is,
        and must not block. An item whose call raises is given back with the error, which is logged;
        CancelledError is an error, too, unless the task of the call is being cancelled.

        Raises:
            TypeError: `handle` is no function, or one with a yield. ValueError: `at_once` or `most`
                is below 1. Nothing was leased.
            RequestError: the queue cannot be reached, or refuses, as in `work`. It is the first
                task's error; the other tasks are cancelled, and their items given back.
        """
        _check_worker(handle)
        if at_once < 1 or most < 1:
            raise ValueError(f"at_once={at_once}, most={most}: each is at least 1")

        async def worker() -> None:
            async for work in self.work(most=most):
                try:
                    async with work:
                        await _handled(handle, work.value)
                except Exception as error:  # whatever the application raises
                    name, text = self._ref.entity_id, described(error)
                    log.warning("item %d of %r failed: %s", work.number, name, text)

        try:
            async with asyncio.TaskGroup() as group:
                _ = [group.create_task(worker()) for _ in range(at_once)]
        except BaseExceptionGroup as failed:  # of the errors of `work` alone
            raise failed.exceptions[0] from None

    def _give_back(self, held: Iterable[Work[T]]) -> None:
        """Give items of one pull back that were not begun. If it fails, their leases end."""
        with contextlib.suppress(RuntimeError):  # without a loop the process ends
            asyncio.get_running_loop()
            works = list(held)
            numbers, token = [work.number for work in works], works[0].token
            self._returns.spawn(self._return(numbers, token))

    async def _return(self, numbers: list[int], token: str) -> None:
        with contextlib.suppress(errors.RequestError, errors.LocalProtocolError):
            await self.release(numbers, token, within=LEAVE_S)

    async def leave(self) -> None:
        """Wait, for up to 2 s, until items are given back: the client closes."""
        await self._returns.wait(LEAVE_S)

    async def confirm(self, numbers: Iterable[int], *, timeout: float = TIMEOUT_S) -> None:
        """Remove items that are done. Raises RequestError if there is no answer in time."""
        try:
            await self._confirmations.add([(b"", number) for number in numbers], timeout)
        except TimeoutError:
            trouble = self._confirmations.trouble
            raise self._late("confirmation", timeout, trouble) from None

    async def _send_confirmations(self, batch: list[_Entry]) -> int:
        await self._ref.within(ANSWER_S).confirm([entry.number for entry in batch])
        return len(batch)

    async def release(
        self, numbers: list[int], token: str, error: str = "", *, within: float = ANSWER_S
    ) -> None:
        """Give items of a pull back. Raises RequestError; their leases end then."""
        await self._ref.within(within).release(numbers, token, error)

    async def extend(self, numbers: list[int], token: str) -> tuple[list[int], float]:
        """Begin the lease of items anew. Returns the numbers that this pull still holds, and the
        seconds of a lease. Raises RequestError."""
        held: tuple[list[int], float] = await self._ref.within(ANSWER_S).extend(numbers, token)
        return held

    def decode(self, body: bytes) -> T:
        """Return the value of an item. Raises SchemaError."""
        try:
            value: T = self._decode(body)
        except BaseException as error:
            raise_interrupt(error)
            raise errors.SchemaError(f"{self._where} cannot be read: {described(error)}") from error
        return value


class Work(Generic[T]):
    """An item that this worker has for a time. `async with work` confirms it at the end of the
    block, and gives it back if the block raises, which goes on."""

    def __init__(
        self,
        queue: ClientQueue[T],
        token: str,
        number: int,
        attempt: int,
        ends: float,
        body: bytes,
        clock: Callable[[], float],
    ) -> None:
        self._queue, self._body, self._clock = queue, body, clock
        self.token: str = token
        """The token of the pull that has leased it."""
        self.number: int = number
        """The number of the item in its queue, the same each time that a worker gets it."""
        self.attempt: int = attempt
        """1 the first time that a worker gets it."""
        self.ends: float = ends
        """When the lease ends, by the clock of the event loop."""

    @property
    def value(self) -> T:
        """The value that was put.

        Raises:
            SchemaError: the class of this worker cannot read it.
        """
        return self._queue.decode(self._body)

    @property
    def has_ended(self) -> bool:
        """True if the lease has ended: another worker may have the item."""
        return self._clock() >= self.ends

    async def confirm(self, *, timeout: float = TIMEOUT_S) -> None:
        """Remove the item: it is done. Returns once the store has that.

        Raises:
            RequestError: no answer in time; another worker may get it again.
        """
        await self._queue.confirm([self.number], timeout=timeout)

    async def release(self, error: object = "") -> None:
        """Give the item back: because of this error, or because its work has not begun. Then it is
        ready for another worker, after a failure with a pause. After the last permitted failure it
        is set aside."""
        text = described(error) if isinstance(error, BaseException) else str(error)
        await self._queue.release([self.number], self.token, text)

    async def extend(self) -> bool:
        """Begin the lease anew, for work that takes longer. Returns False if the lease has ended,
        and the item is another worker's, or soon will be."""
        begun = self._clock()
        held, lease = await self._queue.extend([self.number], self.token)
        if held:
            self.ends = begun + lease
        return bool(held)

    async def __aenter__(self) -> Work[T]:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.confirm()
            return
        text = described(error) if isinstance(error, Exception) else ""  # cancelled: not its fault
        with contextlib.suppress(errors.RequestError, errors.LocalProtocolError):
            await self._queue.release([self.number], self.token, text)
