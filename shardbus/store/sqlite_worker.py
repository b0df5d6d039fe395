"""The thread that owns the connection to an SQLite file, and its queue of requests.

The thread runs everything that is queued in one transaction, so that many callers share one sync of
the disk. Each request has a savepoint of its own, so that a refused request undoes nothing of the
others. Requests run in the order of their arrival. A request whose caller gives up before its turn
does not run.

After an error of the file the thread closes the connection, and the next request opens a new one.
It also does so when the file at the path has been replaced: a process that writes to a removed file
would not see the writes of others to the new one. The new file may be an older copy, so the store
calls `on_new_file`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from shardbus.errors import ShardBusError, StoreError, StoreUnavailable
from shardbus.guarded_log import GuardedLog
from shardbus.store.outage import Outage
from shardbus.store.sqlite_steps import Steps, prepare

log = GuardedLog("shardbus.store")

T = TypeVar("T")

BATCH_MAX = 512


@dataclass(slots=True, eq=False)
class _Request:
    step: Callable[[Steps], Any]
    writes: bool
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]
    abandoned: bool = False
    outcome: Any = field(default=None, init=False)
    failure: Exception | None = field(default=None, init=False)


_Queue: TypeAlias = "queue.SimpleQueue[_Request | None]"


class SqliteWorker:
    """Runs steps on the file at `path` for the cluster of that name. `timeout` bounds each call, in
    seconds."""

    def __init__(
        self, path: Path, cluster: str, claimer: str, *, full_sync: bool, timeout: float
    ) -> None:
        self._path = path
        self._cluster = cluster
        self._claimer = claimer
        self._full_sync = full_sync
        self._timeout = timeout
        self._queue: _Queue = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._steps: Steps | None = None
        self._file: tuple[int, int] | None = None
        self._replaced = False
        """Another file is at the path, and no caller knows yet."""
        self.on_new_file: Callable[[], None] = lambda: None
        self._outage = Outage(str(path))

    def start(self) -> None:
        """Start the thread. Does nothing if it runs already."""
        if self._thread is None:
            self._queue = queue.SimpleQueue()
            self._thread = threading.Thread(
                target=self._run, args=(self._queue,), name="shardbus-sqlite", daemon=True
            )
            self._thread.start()

    async def close(self) -> None:
        """Wait until the thread has run the queued requests and has ended, at most `timeout`
        seconds, because a disk may hang."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(thread.join, self._timeout)

    async def call(self, step: Callable[[Steps], T], *, writes: bool = True) -> T:
        """Run `step` in the thread.

        Raises:
            StoreUnavailable: the file failed, or the thread gave no answer in time; the step may
                have run. StoreError, ConfigError: the step raised it and changed nothing.
        """
        if self._thread is None:
            raise StoreUnavailable(f"the store sqlite:///{self._path} is not open")
        loop = asyncio.get_running_loop()
        request = _Request(step, writes, loop, loop.create_future())
        self._queue.put(request)
        try:
            async with asyncio.timeout(self._timeout):
                answer: T = await request.answer
                return answer
        except TimeoutError:
            raise StoreUnavailable(
                f"{self._path} gave no answer within {self._timeout:g} s",
                hint="check whether its disk is slow or another process holds its lock",
            ) from None
        finally:
            request.abandoned = True
            if self._replaced:
                self._replaced = False
                self.on_new_file()

    def _run(self, requests: _Queue) -> None:
        closing = False
        while not closing:
            batch: list[_Request] = []
            waiting = requests.get()
            while waiting is not None:
                batch.append(waiting)
                if len(batch) == BATCH_MAX or requests.empty():
                    break
                waiting = requests.get()
            closing = waiting is None
            self._run_batch([request for request in batch if not request.abandoned])
        self._disconnect()

    def _run_batch(self, batch: list[_Request]) -> None:
        if not batch:
            return
        try:
            steps = self._connected()
            steps.db.execute("BEGIN IMMEDIATE" if any(r.writes for r in batch) else "BEGIN")
            for request in batch:
                _attempt(steps, request)
            steps.db.execute("COMMIT")
        except Exception as error:  # a defect must not end the thread, or every call would time out
            if not isinstance(error, sqlite3.Error | OSError | ShardBusError):
                log.exception("the thread of the store %s failed", self._path)
            self._disconnect()
            for request in batch:
                request.failure = unavailable(self._path, error)
            is_open = self._file is not None  # else the start fails, which reports it itself
            if batch and is_open and isinstance(failure := batch[0].failure, StoreUnavailable):
                self._outage.failed(failure.message.removeprefix(f"{self._path} "), failure.hint)
        else:
            if any(request.writes for request in batch):
                self._outage.answered()
        _answer(batch)

    def _connected(self) -> Steps:
        if self._steps is not None and self._file == _identity(self._path):
            return self._steps
        gone = self._file not in (None, _identity(self._path))  # its number may be used again
        self._disconnect()
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        db = sqlite3.connect(self._path, timeout=self._timeout / 2, isolation_level=None)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"PRAGMA synchronous = {'FULL' if self._full_sync else 'NORMAL'}")
            db.execute("BEGIN IMMEDIATE")
            prepare(db, str(self._path))
            self._steps = Steps.of(db, self._cluster, self._claimer)
            db.execute("COMMIT")
        except BaseException:
            self._steps = None
            db.close()
            raise
        file = _identity(self._path)
        self._replaced = self._replaced or gone or self._file not in (None, file)
        self._file = file
        return self._steps

    def _disconnect(self) -> None:
        steps, self._steps = self._steps, None
        if steps is not None:
            with contextlib.suppress(sqlite3.Error):
                steps.db.close()


def unavailable(path: Path, error: Exception) -> Exception:
    """Return the error for callers when the file fails, with the cause by SQLite's error code."""
    if isinstance(error, ShardBusError):
        return error
    name = getattr(error, "sqlite_errorname", "") or ""
    for prefix, (text, hint) in _CAUSES.items():
        if name.startswith(prefix):
            definite = prefix in _NOT_WRITTEN
            return StoreUnavailable(f"{path} {text} ({name})", hint=hint, definite=definite)
    if isinstance(error, OSError) and error.strerror:  # its text would name the path once more
        return StoreUnavailable(f"{path} cannot be used: {error.strerror}", hint=_PLACE)
    return StoreUnavailable(f"{path} cannot be used: {error}")


_PLACE = (
    "name a file that this user may write, as in --store sqlite:///state.db, or a folder for all by"
    " XDG_STATE_HOME"
)
_MODES = "check the owner and the mode of the file and its folder"
_LOCK = ("is locked by another process", "end the process that holds a transaction open")
_CAUSES = {
    "SQLITE_BUSY": _LOCK,
    "SQLITE_LOCKED": _LOCK,
    "SQLITE_FULL": ("cannot grow: the disk is full", "free some space"),
    "SQLITE_CORRUPT": ("is damaged", "restore it from a backup, or move it away to start empty"),
    "SQLITE_NOTADB": ("is not an SQLite database, or is damaged", "name another file in store.url"),
    "SQLITE_READONLY": ("may not be written", _MODES),
    "SQLITE_CANTOPEN": ("cannot be opened", _MODES),
    "SQLITE_IOERR": ("is on a disk that fails", "see the system log"),
}
_NOT_WRITTEN = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_READONLY", "SQLITE_CANTOPEN")
"""Errors after which the transaction is certainly rolled back. A disk that fails may have kept
it."""


def _attempt(steps: Steps, request: _Request) -> None:
    steps.db.execute("SAVEPOINT request")
    try:
        request.outcome = request.step(steps)
    except sqlite3.Error:
        raise
    except Exception as error:
        request.failure = too_large(error) if isinstance(error, OverflowError) else error
        steps.db.execute("ROLLBACK TO request")
    steps.db.execute("RELEASE request")


def too_large(error: OverflowError) -> StoreError:
    """Return the error for a number of more than 63 bits."""
    return StoreError(f"a number is too large for the store: {error}")


def _answer(batch: list[_Request]) -> None:
    for loop in dict.fromkeys(request.loop for request in batch):
        try:
            loop.call_soon_threadsafe(_settle, [r for r in batch if r.loop is loop])
        except RuntimeError:
            continue  # The loop is closed, and its callers with it.


def _settle(batch: list[_Request]) -> None:
    for request in batch:
        if request.answer.done():
            continue
        if request.failure is None:
            request.answer.set_result(request.outcome)
        else:
            request.answer.set_exception(request.failure)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino
