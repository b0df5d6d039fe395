"""`WorkQueue`: items that workers pull, each worked at least once.

    class Emails(WorkQueue[Email]):          # and @bus.entity("emails") over it
        lease = 60.0

A queue is an event-sourced entity: its items are in its journal, under the fence of its shard,
so it moves and survives as any other. `client.queue(Emails, "main")` returns the means to put and
to work. `deliveries.work_items` has the rules.

**One append for many requests.** Handlers only note their requests. A writer takes all that have
come, lets the machine decide, persists the events in one append, and gives the answers then. So a
queue under load takes as many requests as fit between two answers of the store, and a waiting pull
keeps no other request waiting.

    put, pull, confirm ... ──> requests ──writer──> machine ──events──> journal ──> answers

The machine changes the state before the store has the events, and changes nothing while an append
is under way. If the append fails, the entity stops, its askers get EntityFailed, and the next
activation begins with the stored items. So no answer leaves that is not stored.

**Moves.** A queue that must stop lets nothing wait: pulls are answered with nothing, and come again
to the next home. Leases are in the journal, with their ends.

Source: docs/how-to/queue-work.md; B.104.
"""

from __future__ import annotations

import asyncio
import math
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import msgspec

from shardbus.deliveries import work_items as work
from shardbus.deliveries.work_items import QueueState
from shardbus.entity import handler
from shardbus.errors import ConfigError, SchemaError
from shardbus.event_sourced import EventSourced, event
from shardbus.wire.schema import decode_value

T = TypeVar("T")
R = TypeVar("R")

WAIT_MAX_S = 60.0
"""Seconds for which a request waits at most."""
PULL_MAX = 1000
"""Items that one pull leases at most."""
SHOWN_MAX = 1000
"""Items that one look shows at most."""
SHOWN_BYTES = 1000
"""A longer body is shown by its length alone."""
BYTES_LIMIT_MAX = 32 * 2**20


class _Answer(msgspec.Struct, frozen=True):
    """The answer to a request, on its way to its asker."""

    value: Any


class WorkQueue(EventSourced, work.HasQueue, Generic[T]):
    """The base of queues of work; the parameter is the class of an item's value, any plain value by
    default. A subclass may set:

    Args:
        lease: seconds for which a worker has an item; 30.
        attempts: leases after which an item that no worker has confirmed is set aside; 5.
        limit: items in the queue, beyond which `put` waits; 1,000.
        bytes_limit: bytes of their values, beyond which `put` waits; 4 MiB. At most 32 MiB.
        backoff: seconds after which an item is ready again whose worker has failed; 1, doubling
        with each failure up to 60.
    """

    state: QueueState

    lease: ClassVar[float] = 30.0
    attempts: ClassVar[int] = 5
    limit: ClassVar[int] = 1000
    bytes_limit: ClassVar[int] = 4 * 2**20
    backoff: ClassVar[float] = 1.0

    __shardbus_defaults__: ClassVar[Mapping[str, object]] = {
        "snapshot_after": 1000,
        "events_kept": 1,
        "state_limit": 64 * 2**20,
        "stop_message": "leave",
    }
    __shardbus_rules__: ClassVar[work.QueueRules] = work.QueueRules()
    __shardbus_item__: ClassVar[Any] = Any

    if TYPE_CHECKING:

        def __shardbus_value__(self) -> T:
            """Return an item's value, for type checkers alone."""
            ...

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in getattr(cls, "__orig_bases__", ()):
            origin = typing.get_origin(base)
            if isinstance(origin, type) and issubclass(origin, WorkQueue):
                item = typing.get_args(base)[0]
                cls.__shardbus_item__ = Any if isinstance(item, TypeVar) else item
        cls.__shardbus_rules__ = _rules_of(cls)

    async def on_start(self) -> None:
        """Begin with the stored items. A subclass with an `on_start` of its own calls this one."""
        loop = asyncio.get_running_loop()
        self._ahead = self.context.now().timestamp() - loop.time()
        self._loop = loop
        self._requests: list[tuple[int, work.Request]] = []
        self._answers: dict[int, asyncio.Future[_Answer]] = {}
        self._ticket = 0
        self._writes = False
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = math.inf
        self._items = work.WorkItems(self.state, self.__shardbus_rules__, self._now())

    # ---- for producers and workers

    @handler
    def put(
        self, bodies: list[bytes], producer: str = "", first: int = 1, wait: float = 0.0
    ) -> int:
        """Put encoded items; see `PutWork`. Returns how many of them are in the queue."""
        return self._later(work.PutWork(bodies, producer, first, _bounded(wait)), 0)

    @handler
    def pull(
        self, most: int = 1, wait: float = 0.0, token: str = "", again: bool = False
    ) -> list[work.LeasedItem]:
        """Lease up to `most` items, and wait for the first one; see `PullWork`."""
        most = min(max(most, 1), PULL_MAX)
        return self._later(work.PullWork(token, most, _bounded(wait), again), [])

    @handler
    def confirm(self, numbers: list[int]) -> int:
        """Remove items that are done. Returns how many were in the queue."""
        return self._later(work.ConfirmWork(numbers), 0)

    @handler
    def release(self, numbers: list[int], token: str, error: str = "") -> list[int]:
        """Give items back: with the error of the work, or empty if it has not begun. Returns the
        numbers that the pull with this token held."""
        return self._later(work.ReturnWork(token, numbers, error), [])

    @handler
    def cancel(self, token: str) -> list[int]:
        """End a pull whose worker has left. Returns the numbers that it held."""
        return self._later(work.CancelPull(token), [])

    @handler
    def extend(self, numbers: list[int], token: str) -> tuple[list[int], float]:
        """Begin the lease of items anew. Returns the numbers that the pull with this token holds,
        and the seconds of the lease."""
        return self._later(work.ExtendWork(token, numbers), ([], 0.0))

    # ---- for operators

    @handler
    def show(self, limit: int = 100, place: str = "") -> dict[str, Any]:
        """Return the figures of the queue and its first items, all or those of one place: ready,
        leased, delayed, aside."""
        now, machine = self._now(), self._items
        counts = dict.fromkeys((item_place.value for item_place in work.ItemPlace), 0)
        items: list[dict[str, Any]] = []
        oldest = now
        for number, item in self.state.items.items():
            at = machine.place_of(item, now)
            counts[at.value] += 1
            oldest = min(oldest, item.taken)
            if place in ("", at.value) and len(items) < min(limit, SHOWN_MAX):
                items.append(_shown(number, item, at, now))
        workers, producers = machine.waiting
        return {
            **counts,
            "bytes": machine.bytes,
            "oldest_s": round(now - oldest, 3),
            "confirmed": self.state.confirmed,
            "dropped": self.state.dropped,
            "waiting_pulls": workers,
            "waiting_puts": producers,
            "items": items,
        }

    @handler
    def retry(self, numbers: list[int]) -> int:
        """Let workers try items again that were set aside. Returns how many there were."""
        return self._later(work.RetryWork(numbers), 0)

    @handler
    def drop(self, numbers: list[int]) -> int:
        """Remove items that were set aside. Returns how many there were."""
        return self._later(work.DropWork(numbers), 0)

    # ---- for the queue itself

    @handler
    def wake(self) -> None:
        """End leases and waits that are due: a timer of the queue."""
        self._timer, self._wakes_at = None, math.inf
        self._write_soon()

    @handler
    def leave(self) -> None:
        """Let nothing wait, and stop: the node's stop message."""
        self._items.leave()
        self._write_soon()
        self.context.stop()

    @property
    def sizes(self) -> work.QueueSizes:
        """Its figures; zeros before it has started."""
        machine: work.WorkItems | None = vars(self).get("_items")
        return work.QueueSizes() if machine is None else machine.sizes

    def receive(self, message: object) -> Any:
        """Answer a request that is stored, or fail with the writer."""
        if isinstance(message, _Answer):
            return message.value
        if isinstance(message, BaseException):
            self.context.stop()  # the changes of the machine are not stored
            raise message
        if message is not None:
            self.unhandled(message)
        return None

    # ---- the writer

    def _later(self, request: work.Request, nothing: R) -> R:
        """Note a request, whose asker gets its answer once it is stored. If too many wait, return
        `nothing` as the answer."""
        if self._items.is_crowded and isinstance(request, work.PutWork | work.PullWork):
            return nothing
        self._ticket += 1
        answer = self._answers[self._ticket] = self._loop.create_future()
        self.context.pipe_to_self(answer, answer=True)
        self._requests.append((self._ticket, request))
        self._write_soon()
        return nothing

    def _write_soon(self) -> None:
        if not self._writes:
            self._writes = True
            self.context.pipe_to_self(self._write())

    async def _write(self) -> None:
        """Work off the requests, all that have come in one append."""
        machine, answers = self._items, self._answers
        while True:
            requests, self._requests = self._requests, []
            now = self._now()
            for ticket, request in requests:
                machine.handle(ticket, request, now)
            events, done = machine.step(now)
            if events:
                await self.persist(*events)
            for ticket, value in done:
                answers.pop(ticket).set_result(_Answer(value))
            if not self._requests:
                break
        self._writes = False
        self._set_timer()

    def _set_timer(self) -> None:
        """Wake at the machine's deadline. A timer that wakes earlier stays, and sets the next."""
        due = self._items.deadline()
        if due is None or due >= self._wakes_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_at = due
        self._timer = self.context.schedule_once(max(due - self._now(), 0.001), "wake")

    def _now(self) -> float:
        """Seconds since 1970, by a clock that never goes back while this object lives."""
        return self._loop.time() + self._ahead

    # ---- replay

    def _fold(self, event: work.QueueEvent) -> None:
        """Apply a stored event at a start. Later ones the machine has applied already."""
        if "_items" not in vars(self):
            self.state.apply(event)

    @event
    def _queued(self, event: work.Queued) -> None:
        self._fold(event)

    @event
    def _leased(self, event: work.Leased) -> None:
        self._fold(event)

    @event
    def _extended(self, event: work.Extended) -> None:
        self._fold(event)

    @event
    def _returned(self, event: work.Returned) -> None:
        self._fold(event)

    @event
    def _put_aside(self, event: work.PutAside) -> None:
        self._fold(event)

    @event
    def _requeued(self, event: work.Requeued) -> None:
        self._fold(event)

    @event
    def _removed(self, event: work.Removed) -> None:
        self._fold(event)


def _bounded(wait: float) -> float:
    return min(max(wait, 0.0), WAIT_MAX_S)


def _shown(number: int, item: work.WorkItem, place: work.ItemPlace, now: float) -> dict[str, Any]:
    value: Any = None
    if len(item.body) <= SHOWN_BYTES:
        try:
            value = decode_value(item.body)
        except SchemaError:
            value = None
    left = (
        round(item.until - now, 3)
        if place in (work.ItemPlace.LEASED, work.ItemPlace.DELAYED)
        else 0.0
    )
    return {
        "number": number,
        "place": place.value,
        "attempts": item.attempts,
        "age_s": round(now - item.taken, 3),
        "left_s": left,
        "worker": item.holder if place is work.ItemPlace.LEASED else "",
        "error": item.error,
        "bytes": len(item.body),
        "value": value,
    }


def _rules_of(cls: type[WorkQueue[Any]]) -> work.QueueRules:
    """Return the rules that a class declares.

    Raises:
        ConfigError: a value is out of its range.
    """
    ranges: dict[str, tuple[type, float, float]] = {
        "lease": (float, 0.1, 86_400.0),
        "attempts": (int, 1, 1000),
        "limit": (int, 1, 100_000),
        "bytes_limit": (int, 1, BYTES_LIMIT_MAX),
        "backoff": (float, 0.0, 60.0),
    }
    for name, (kind, low, high) in ranges.items():
        value = getattr(cls, name)
        fits = isinstance(value, kind | int) and not isinstance(value, bool)
        if not fits or not low <= value <= high:
            raise ConfigError(f"{cls.__name__}.{name} is {value!r:.60}, not {low:g} to {high:g}")
    return work.QueueRules(
        lease=float(cls.lease),
        attempts=cls.attempts,
        limit=cls.limit,
        bytes_limit=cls.bytes_limit,
        aside_limit=cls.limit,
        backoff=float(cls.backoff),
    )
