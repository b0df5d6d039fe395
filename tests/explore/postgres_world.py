"""The world of saves in PostgreSQL: the store, its link, and a server that answers when the world
says so.

    save, save twice     a batch of one state; of two states of one entity, in two statements
    ok                   the server runs the oldest statement, and answers
    lost, late           it never gets it; it runs it, and the answer is lost
    full                 it refuses the statement: its disk is full
    cancel, second

Laws: a caller has one outcome; a definite error means that the server has run nothing of the batch,
and never will. At rest no call and no statement is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import asyncpg  # type: ignore[import-untyped]

from shardbus.errors import StoreUnavailable
from shardbus.store.postgres import PostgresStore
from shardbus.store.postgres_link import PostgresLink
from shardbus.store.postgres_urls import FoundServer
from shardbus.store.protocol import Save
from tests.explore.on_a_loop import LoopOfWorld

TIMEOUT_S, PAUSE_S = 2.0, 0.05


@dataclass(eq=False)
class Running:
    """A statement at the server."""

    states: list[bytes]
    answer: asyncio.Future[str]


class SlowServer:
    """A connection to the server. `ran` has its statements."""

    def __init__(self) -> None:
        self.running: list[Running] = []
        self.ran: list[bytes] = []
        self.at_once = False
        self._closed = False

    async def execute(self, text: str, *args: Any) -> str:
        states = list(args[-1])
        if self.at_once:
            self.ran += states
            return f"INSERT 0 {len(states)}"
        running = Running(states, asyncio.get_running_loop().create_future())
        self.running.append(running)
        try:
            return await running.answer
        finally:
            if running in self.running:  # given up: it may still have been run
                self.running.remove(running)
                self.ran += states

    def is_closed(self) -> bool:
        return self._closed

    async def close(self) -> None:
        self._closed = True

    def terminate(self) -> None:
        self._closed = True


class PostgresWorld:
    """One store over one connection at a time."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.world, self.number = LoopOfWorld(), 0
        self.servers = [SlowServer()]
        self.calls: list[tuple[Any, list[bytes]]] = []
        self.store: Any = self.world.run(self._store)

    def _store(self) -> PostgresStore:
        store: Any = PostgresStore("postgresql://p/db", "shop", timeout=TIMEOUT_S)
        store._link = PostgresLink(
            self._connect, self._prepare, schema="s", shown="p", timeout=TIMEOUT_S, connections=1
        )
        store._link.open()
        made: PostgresStore = store
        return made

    async def _connect(self) -> FoundServer:
        if self.servers[-1].is_closed():
            server = SlowServer()
            server.at_once = self.servers[-1].at_once
            self.servers.append(server)
        return FoundServer(self.servers[-1], "1")  # type: ignore[arg-type]

    async def _prepare(self, connection: object, anew: bool) -> bool:
        return False

    def events(self) -> Iterable[str]:
        verbs = ["save", "save twice", "second"]
        if self._running():
            verbs += ["ok", "lost", "late", "full"]
        if any(not task.done() for task, _ in self.calls):
            verbs.append("cancel")
        return verbs

    def _running(self) -> list[tuple[SlowServer, Running]]:
        return [(server, running) for server in self.servers for running in server.running]

    def do(self, event: str) -> None:
        match event.split():
            case ["save", *twice]:
                self._save(2 if twice else 1)
            case ["cancel"]:
                task = next(task for task, _ in reversed(self.calls) if not task.done())
                self.world.run(task.cancel)
            case ["second"]:
                self.world.wait(1.0)
            case [how]:
                self._answer(how)
        self.world.wait(PAUSE_S)
        self._check()

    def _save(self, count: int) -> None:
        saves = []
        for _ in range(count):
            self.number += 1
            saves.append(Save("page", "0", "x", 1, b"%d" % self.number, self.number))
        states = [save.data or b"" for save in saves]
        self.calls.append((self.world.spawn(self.store.save_states(saves)), states))

    def _answer(self, how: str) -> None:
        server, running = self._running()[0]
        server.running.remove(running)
        if how in ("ok", "late"):
            server.ran += running.states
        if how == "ok":
            self.world.run(running.answer.set_result, f"INSERT 0 {len(running.states)}")
        else:
            error = asyncpg.DiskFullError("full") if how == "full" else ConnectionResetError()
            self.world.run(running.answer.set_exception, error)

    def _check(self) -> None:
        ran = {state for server in self.servers for state in server.ran}
        for task, states in self.calls:
            if not task.done() or task.cancelled():
                continue
            error = task.exception()
            if error is None:
                assert ran.issuperset(states), f"{states} are saved, the server has {ran}"
            else:
                assert isinstance(error, StoreUnavailable), error
                written = ran.intersection(states)
                assert not (error.definite and written), f"{written} are written for certain not"

    def key(self) -> Hashable:
        link = self.store._link
        running = tuple(tuple(len(o.states) for o in s.running) for s in self.servers[-1:])
        waiting = tuple((call.in_doubt, call.was_in_doubt) for call in link._waiting)
        ran = {state for server in self.servers for state in server.ran}
        open_calls = tuple(
            (len(states), len(ran.intersection(states)))
            for task, states in self.calls
            if not task.done()
        )
        return running, waiting, link._busy, open_calls, link._trouble is None

    def rest(self) -> None:
        for server in self.servers:
            server.at_once = True
        while self._running():
            self.do("ok")
        self.world.wait(3 * TIMEOUT_S)
        self._check()
        assert all(task.done() for task, _ in self.calls), "a call has no outcome"
        link = self.store._link
        assert not link._waiting
        assert not link._busy

    def close(self) -> None:
        for task, _ in self.calls:
            if task.done() and not task.cancelled():
                task.exception()
        self.world.close()
