"""The link to a PostgreSQL server: one queue, and a few tasks with a connection each.

A caller queues a statement and waits. A free task takes it, runs it over its connection, and
delivers the answer. So a caller can be cancelled at any moment without mixing up answers: only the
task reads. Connections are opened when they are needed, and kept.

The task drops the connection if no answer comes, or if the server cannot write now (see
`postgres_errors`). It connects again, which finds the server that takes writes, creates the tables
if they are gone, and sends the statement again, under a new sequence number (see
`postgres_statements`). A caller waits at most `timeout` seconds and then gets `StoreUnavailable`,
at once if the server is full or refuses the user. A statement without an answer is cancelled at the
server, too, as far as that can be reached.

A server that was started anew, or another one, may have lost writes that the last one had
acknowledged; `on_new_server` is called before a statement is sent to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from shardbus.errors import StoreUnavailable
from shardbus.store.outage import Outage
from shardbus.store.postgres_errors import TABLES_GONE, ends_connection, trouble_of
from shardbus.store.postgres_statements import Statement
from shardbus.store.postgres_urls import FoundServer, PostgresConnection
from shardbus.store.trouble import Trouble
from shardbus.task_set import TaskSet

FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.2
CREATE_S = 30.0
"""For the creation of the tables, whose callers may have given up long before."""


class _Call(msgspec.Struct, eq=False):
    statement: Statement
    args: tuple[Any, ...]
    answer: asyncio.Future[Any]
    was_in_doubt: bool = False
    in_doubt: bool = False
    """Whether the server may have run it: it was sent, and no answer says that it did not run.
    `was_in_doubt`: the same before it was sent last."""


class PostgresLink:
    """Runs statements on tables of `schema`, over at most `connections` connections that `connect`
    opens. `prepare` creates the tables if they are missing, and returns whether they were;
    `shown` is the URL without secrets. `timeout` bounds a call, in seconds."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[FoundServer]],
        prepare: Callable[[PostgresConnection, bool], Awaitable[bool]],
        *,
        schema: str,
        shown: str,
        timeout: float,
        connections: int,
    ) -> None:
        self._connect, self._prepare = connect, prepare
        self._schema, self._shown, self._timeout = schema, shown, timeout
        self._connections = connections
        self.session = secrets.randbits(62) + 1
        """Names the store object in its writes; 0 names none."""
        self._sequence = 0
        self._texts: dict[Statement, str] = {}
        self._waiting: deque[_Call] = deque()
        self._idle: list[PostgresConnection] = []
        self._busy = 0
        self._running, self._closing = TaskSet(), TaskSet()
        self._trouble: Trouble | None = None
        """Why the last statement failed, None if it did not."""
        self._outage = Outage(shown)
        self._server: str | None = None
        self._tables_gone = False
        self._open = False
        self.on_new_server: Callable[[], None] = lambda: None

    def open(self) -> None:
        """Accept calls."""
        self._open = True

    async def close(self) -> None:
        """Fail the waiting calls and close the connections."""
        self._open = False
        self._running.cancel()
        await self._running.wait(self._timeout)
        self._busy = 0
        while self._waiting:
            self._refuse(self._waiting.popleft(), Trouble("was closed here"))
        self._drop_idle()
        await self._closing.wait(self._timeout)

    async def call(self, statement: Statement, *args: Any) -> Any:
        """Run a statement; return its rows, or the number of rows written.

        Raises:
            StoreUnavailable: the server did not answer in time, or answered with an error; unless
            `definite`, the statement may have run.
        """
        if not self._open:
            raise StoreUnavailable(f"the store {self._shown} is not open")
        call = _Call(statement, args, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        if self._busy < self._connections:
            if not self._busy:
                self._trouble = None
            self._busy += 1
            self._running.spawn(self._run(), name="shardbus-postgres")
        try:
            async with asyncio.timeout(self._timeout):
                return await call.answer
        except TimeoutError:
            raise self._outage.no_answer(
                self._timeout, self._trouble, in_doubt=call.in_doubt
            ) from None

    async def _run(self) -> None:
        """Run statements until none waits."""
        connection: PostgresConnection | None = None
        pause = FIRST_PAUSE_S
        try:
            while (call := self._take()) is not None:
                try:
                    if connection is None:
                        # A refused connection says nothing about a call that was sent before.
                        call.was_in_doubt = call.in_doubt
                        connection = await self._connection()
                        if call.answer.done():  # Sent now, it would be newer than later calls.
                            continue
                    async with asyncio.timeout(self._timeout / 2):
                        answer = await self._send(connection, call)
                except asyncio.CancelledError:
                    self._waiting.appendleft(call)
                    raise
                except Exception as error:  # The client library's errors have no common root.
                    if connection is not None and ends_connection(error):
                        self._drop(connection)
                        self._drop_idle()
                        connection = None
                    if self._fail(call, error):
                        self._waiting.appendleft(call)
                        await asyncio.sleep(pause)
                        pause = min(2 * pause, LONGEST_PAUSE_S)
                    continue
                pause, self._trouble = FIRST_PAUSE_S, None
                if call.statement.writes:
                    self._outage.answered()
                if not call.answer.done():
                    call.answer.set_result(answer)
        finally:
            self._busy -= 1
            if connection is not None:
                self._keep(connection)

    def _take(self) -> _Call | None:
        while self._waiting:
            call = self._waiting.popleft()
            if not call.answer.done():
                return call
        return None

    async def _connection(self) -> PostgresConnection:
        """Return an open connection, a new one if none is idle."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        async with asyncio.timeout(self._timeout / 2):
            opened = await self._connect()
        try:
            self.meet(opened.identity)
            async with asyncio.timeout(CREATE_S):
                created = await self._prepare(opened.connection, self._tables_gone)
        except BaseException:
            self._drop(opened.connection)
            raise
        if created or self._tables_gone:
            self._tables_gone = False
            self.on_new_server()
        return opened.connection

    def meet(self, server: str) -> None:
        """Note which server a connection has met."""
        before, self._server = self._server, server
        if before is not None and before != server:
            self.on_new_server()

    async def _send(self, connection: PostgresConnection, call: _Call) -> Any:
        statement, args = call.statement, call.args
        text = self._texts.get(statement)
        if text is None:
            text = self._texts[statement] = statement.text(self._schema)
        if statement.signed:
            self._sequence += 1
            args = (self.session, self._sequence, *args)
        call.was_in_doubt, call.in_doubt = call.in_doubt, True
        if statement.counts:
            status = await connection.execute(text, *args)
            return int(status.rpartition(" ")[2])
        return await connection.fetch(text, *args)

    def _fail(self, call: _Call, error: Exception) -> bool:
        """Note that a statement has failed. Returns whether to send it again."""
        trouble = self._trouble = trouble_of(error)
        self._outage.failed(trouble.what, trouble.hint)
        if getattr(error, "sqlstate", None) in TABLES_GONE:
            self._tables_gone = True
        if trouble.definite:
            call.in_doubt = call.was_in_doubt
        if trouble.again:
            return not call.answer.done()
        self._refuse(call, trouble)
        return False

    def _refuse(self, call: _Call, trouble: Trouble) -> None:
        trouble.refuse(call.answer, self._shown, in_doubt=call.in_doubt)

    def _keep(self, connection: PostgresConnection) -> None:
        if self._open and not connection.is_closed():
            self._idle.append(connection)
        else:
            self._drop(connection)

    def _drop_idle(self) -> None:
        while self._idle:
            self._drop(self._idle.pop())

    def _drop(self, connection: PostgresConnection) -> None:
        self._closing.spawn(close_connection(connection, self._timeout / 2))


async def close_connection(connection: PostgresConnection, within: float) -> None:
    """Close a connection, and cancel its running statement, within that many seconds."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(within):
            await connection.close()
    if not connection.is_closed():
        connection.terminate()
