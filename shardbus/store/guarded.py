"""A guard around a store that is not one of shardbus: a plug-in by an entry point.

Such a store has rules to keep (`protocol`), and a node that trusted it would stand still with it,
or end by its exceptions. So the node calls it through this guard:

    node's loop ──call──> GuardedStore ──> an event loop in a thread of its own ──> the store

- **A thread.** A method that blocks, as a driver without asyncio does, stops that thread and not
  the node. Every call of one store, from `start` to `close`, comes in the same loop.
- **A deadline.** A call has the store's `timeout`, and `PATIENCE_S` more; then it is cancelled, and
  its caller goes on with StoreUnavailable, even if the store swallows the cancellation.
- **Errors.** A StoreError or a ConfigError of the store reaches the caller. Anything else that it
  raises becomes StoreUnavailable with the name of the method, and so does an answer of another type
  than the protocol says.
- **Order.** A load waits for the saves of its entity that have not ended in the store, also those
  whose callers have gone on, and fails if they do not end: the third rule of `protocol`.

The log names the store, the method and the fault once, and again at intervals (`outage`). A call
costs two switches between threads, 0.1 to 0.2 ms; saves share it.

Not here: commands that work on a store without a node, as `shardbus data`. They call it directly.

Source: docs/how-to/own-store.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import wraps
from inspect import isawaitable, signature
from operator import attrgetter
from threading import Thread
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from shardbus.error_text import described, is_a, shown, text_of, type_name, written
from shardbus.errors import ConfigError, StoreError, StoreUnavailable
from shardbus.ids import NodeId
from shardbus.store.guarded_journals import GuardedJournals
from shardbus.store.journal_protocol import HasJournals
from shardbus.store.outage import Outage
from shardbus.store.placement import PlacingStore, RecordingStore
from shardbus.store.protocol import (
    HasLanes,
    Lease,
    MeetsServers,
    NewHomes,
    ReminderStore,
    Save,
    StateStore,
    StoredTable,
    StoreMethod,
    clock_offset_of,
    on_new_server,
    problems_of,
    reminder_store,
)
from shardbus.store.unended_writes import UnendedWrites

PATIENCE_S = 1.0
"""Seconds beyond the store's own timeout after which a call has failed."""
START_S = 30.0
"""Seconds for `start`, and for a look at all states of a type."""
END_S = 1.0
"""Seconds for calls that are under way when the store is closed."""
CALLS_MAX = 10_000
"""Calls that have not returned, above which no other one is made."""
LATE = "has not returned"
HINT = "the store is a plug-in: docs/how-to/own-store.md says what it must do"

P = ParamSpec("P")
T = TypeVar("T")
_Fits = Callable[[Any], bool]
"""Checks an answer."""


def _anything(answer: object) -> bool:
    return True


def _is_bool(answer: object) -> bool:
    return isinstance(answer, bool)


def _is_bytes(answer: object) -> bool:
    return isinstance(answer, bytes)


def _is_text(answer: object) -> bool:
    return isinstance(answer, str)


def _is_lease(answer: object) -> bool:
    return isinstance(answer, Lease)


def _is_table(answer: object) -> bool:
    if not isinstance(answer, StoredTable):
        return False
    table: Any = answer  # its contents may be of any type
    rows: Any = table.homes.items()
    return (
        isinstance(table.epoch, int) and isinstance(table.layout, str) and all(map(_is_row, rows))
    )


def _is_row(row: Any) -> bool:
    shard, (node, fence) = row
    return isinstance(shard, str) and isinstance(node, NodeId) and isinstance(fence, int)


def _is_due(answer: Any) -> bool:
    due, entity_id = answer
    return isinstance(due, int) and isinstance(entity_id, str)


def _is_page(answer: Any) -> bool:
    ids, cursor = answer
    return _list_of(_is_text)(ids) and (cursor is None or isinstance(cursor, str))


def _or_none(fits: _Fits) -> _Fits:
    return lambda answer: answer is None or fits(answer)


def _list_of(fits: _Fits, count: int | None = None) -> _Fits:
    """Return a check for a list or tuple of fitting values, `count` of them."""
    return lambda answer: (
        isinstance(answer, list | tuple)
        and (count is None or len(answer) == count)
        and all(map(fits, answer))
    )


def _page(answer: Any) -> Any:
    ids, cursor = answer
    return list(ids), cursor


def _forwards(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
    fits: _Fits = _anything,
    result_of: Callable[[Any], Any] = lambda answer: answer,
    within: float = 0.0,
) -> StoreMethod[P, T]:
    """Return the method of the guard that calls this one of the store. `fits` checks the answer,
    and `result_of` makes the result from it."""
    name, parameters = method.__name__, signature(method)

    @wraps(method)
    async def forward(self: GuardedStore, /, *args: P.args, **named: P.kwargs) -> T:
        bound = parameters.bind(self, *args, **named)
        bound.apply_defaults()
        return cast("T", result_of(await self._call(name, fits, *bound.args[1:], within=within)))

    return cast("StoreMethod[P, T]", forward)


class StoreThread:
    """An event loop in a thread, which does not keep the process from ending."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.calls = 0
        """Calls that have not ended."""
        Thread(target=self._run, name="shardbus-store", daemon=True).start()

    def end(self) -> None:
        """Let the loop end after its present work."""
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        if left:
            self.loop.run_until_complete(asyncio.wait(left, timeout=END_S))
        self.loop.close()


class GuardedStore:
    """Calls `store`. `url` is shown, so it has no password; `timeout` is the store's, in
    seconds."""

    def __init__(self, store: StateStore, url: str, timeout: float) -> None:
        self._store, self._url, self._seconds = store, url, timeout + PATIENCE_S
        self._name = type_name(store)
        self._thread: StoreThread | None = None
        self._writes = UnendedWrites(url, lambda: self._seconds, HINT)
        """Saves that have not ended in the store. Loads wait for them."""
        self._outage = Outage(url)
        if isinstance(store, HasJournals):
            appends = UnendedWrites(url, lambda: self._seconds, HINT)
            self.journals = GuardedJournals(self._call, self._outcome, appends)
        if isinstance(store, HasLanes):
            self.lane = self._lane_of
        if isinstance(store, PlacingStore):
            self.placed = self._placed
        if isinstance(store, RecordingStore):
            self.placement = self._placement
        if reminder_store(store) is not None:
            self.load_reminders = self._load_reminders
            self.page_due, self.due_shards = self._page_due, self._due_shards

    # ---- the guard

    async def _call(
        self,
        method: str,
        fits: _Fits,
        *args: object,
        within: float = 0.0,
        then: Callable[[], None] = lambda: None,
    ) -> Any:
        """Call a method of the store. `fits` checks its answer. `then` is called once the method
        has ended in the store, which may be after this call."""
        if self._thread is None:
            if method != "start":
                then()
                raise StoreUnavailable(f"{self._url} is not open", definite=True)
            self._thread = StoreThread()
        thread = self._thread
        if thread.calls >= CALLS_MAX:
            text = f"{self._url}: {CALLS_MAX} calls of {self._name} have not returned"
            then()
            raise StoreUnavailable(text, hint=HINT, definite=True)
        thread.calls += 1
        here, seconds = asyncio.get_running_loop(), within or self._seconds
        answered: asyncio.Future[object] = here.create_future()
        tasks: list[asyncio.Task[object]] = []

        def begin() -> None:
            tasks.append(thread.loop.create_task(self._run(method, args)))
            tasks[0].add_done_callback(lambda task: _post(here, end, task))

        def end(task: asyncio.Task[object]) -> None:
            thread.calls -= 1
            then()
            error = None if task.cancelled() else task.exception()
            if answered.done():
                return
            if task.cancelled():
                answered.set_exception(self._fault(method, "was cancelled"))
            elif error is not None:
                answered.set_exception(error)
            else:
                answered.set_result(task.result())

        _post(thread.loop, begin)
        try:
            async with asyncio.timeout(seconds):
                answer = await answered
        except TimeoutError:
            raise self._fault(method, f"{LATE} within {seconds:g} s") from None
        finally:
            if not answered.done() or answered.cancelled():
                _post(thread.loop, lambda: tasks[0].cancel())
        if not _holds(fits, answer):
            raise self._fault(method, f"returned a {type_name(answer)}", f": {shown(answer)}")
        return answer

    async def _run(self, method: str, args: tuple[object, ...]) -> object:
        """Call a method, in the thread of the store."""
        try:
            answer = attrgetter(method)(self._store)(*args)
            if not isawaitable(answer):
                raise TypeError("it is no coroutine function")
            return await answer
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            if is_a(error, StoreError, ConfigError):
                raise
            detail = f": {text_of(error, 500)}"
            raise self._fault(method, f"raised {type_name(error)}", detail) from error

    def _fault(self, method: str, kind: str, detail: str = "") -> StoreUnavailable:
        text = f"{self._name}.{method} {kind}"
        if kind.startswith(LATE):  # all methods may, one after the other
            self._outage.failed("fails: calls do not return", text)
        else:
            self._outage.failed(f"fails: {text}", detail.removeprefix(": "))
        return StoreUnavailable(f"{self._url}: {text}{detail}", hint=HINT)

    # ---- the store

    async def start(self) -> None:
        """Start the store, in its thread."""
        await self._call("start", _anything, within=START_S)

    async def close(self) -> None:
        """Close the store, and end its thread."""
        if self._thread is None:
            return
        with suppress(StoreError, ConfigError):
            await self._call("close", _anything)
        thread, self._thread = self._thread, None
        thread.end()
        self._writes.clear()

    async def identity(self, known: str = "") -> str:
        """Return the text that names the store."""
        return cast("str", await self._call("identity", _is_text, known))

    load_table = _forwards(StateStore.load_table, _or_none(_is_table))
    claim_epoch = _forwards(StateStore.claim_epoch, _is_table)

    async def write_homes(self, entity_type: str, epoch: int, homes: NewHomes, op_id: int) -> None:
        """Set homes of shards."""
        await self._call("write_homes", _anything, entity_type, epoch, homes, op_id)
        self._outage.answered()

    remove_table = _forwards(StateStore.remove_table, _is_bool)

    async def load_state(
        self, entity_type: str, shard: str, entity_id: str, fence: int
    ) -> bytes | None:
        """Return the state of an entity, once its saves have ended."""
        if (entity_type, entity_id) in self._writes:
            await self._writes.wait((entity_type, entity_id))
        args = (entity_type, shard, entity_id, fence)
        return cast("bytes | None", await self._call("load_state", _or_none(_is_bytes), *args))

    async def save_states(self, saves: Sequence[Save]) -> list[StoreError | None]:
        """Write states. Any other answer to a save than None or a StoreError is a fault of that
        save."""
        keys = [(save.entity_type, save.entity_id) for save in saves]
        self._writes.begin(keys)
        fits = _list_of(lambda answer: True, len(saves))
        answers = await self._call("save_states", fits, saves, then=lambda: self._writes.end(keys))
        return [self._outcome("save_states", answer) for answer in answers]

    def _outcome(self, method: str, answer: object) -> StoreError | None:
        """Return a store's answer to one write of several."""
        if answer is None:
            self._outage.answered()
        if answer is None or isinstance(answer, StoreError):
            return answer
        return self._fault(method, f"answered a save with a {type_name(answer)}")

    page_stored = _forwards(StateStore.page_stored, _is_page, _page)

    async def read_states(self, entity_type: str, entity_ids: Sequence[str]) -> list[bytes | None]:
        """Return states."""
        fits = _list_of(_or_none(_is_bytes), len(entity_ids))
        return list(await self._call("read_states", fits, entity_type, entity_ids))

    expire_states = _forwards(StateStore.expire_states, _list_of(_is_text), list)
    add_remembered = _forwards(StateStore.add_remembered)
    remove_remembered = _forwards(StateStore.remove_remembered)
    page_remembered = _forwards(StateStore.page_remembered, _is_page, _page)
    remembered_shards = _forwards(StateStore.remembered_shards, _list_of(_is_text), list)
    acquire_lease = _forwards(StateStore.acquire_lease, _or_none(_is_lease))
    renew_lease = _forwards(StateStore.renew_lease, _is_bool)
    release_lease = _forwards(StateStore.release_lease)

    # ---- optional abilities of a store

    @property
    def problems(self) -> tuple[str, ...]:
        """The faults in the settings of the store's server."""
        try:
            return tuple(written(problem) for problem in problems_of(self._store))
        except Exception as error:
            return (f"{self._name}.problems raised {described(error, 500)}",)

    @property
    def clock_offset(self) -> float | None:
        """How far the clock of the store's server is ahead."""
        return clock_offset_of(self._store)

    @property
    def on_new_server(self) -> Callable[[], None]:
        """Called in the node's loop when the store meets another server."""
        return self._store.on_new_server if isinstance(self._store, MeetsServers) else lambda: None

    @on_new_server.setter
    def on_new_server(self, call: Callable[[], None]) -> None:
        here = asyncio.get_running_loop()
        on_new_server(self._store, lambda: _post(here, call))

    def _lane_of(self, entity_type: str, shard: str) -> int:
        """Return the server of a shard; all shards are in one lane if the store does not say it."""
        try:
            lane: object = cast("Any", self._store).lane(entity_type, shard)
        except BaseException as error:
            self._fault("lane", f"raised {type_name(error)}")
            return 0
        return lane if isinstance(lane, int) else 0

    _placed = _forwards(PlacingStore.placed, _is_text, within=START_S)
    _placement = _forwards(RecordingStore.placement, _is_text)

    async def _load_reminders(
        self, entity_type: str, shard: str, entity_ids: Sequence[str]
    ) -> list[bytes | None]:
        fits = _list_of(_or_none(_is_bytes), len(entity_ids))
        return list(await self._call("load_reminders", fits, entity_type, shard, entity_ids))

    _page_due = _forwards(ReminderStore.page_due, _list_of(_is_due), list)
    _due_shards = _forwards(ReminderStore.due_shards, _list_of(_is_text), list)


def _post(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: object) -> None:
    """Call something in a loop, unless that loop has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *args)


def _holds(fits: _Fits, answer: object) -> bool:
    """True if the answer is as the protocol says; its class may raise when it is looked at."""
    try:
        return bool(fits(answer))
    except Exception:
        return False
