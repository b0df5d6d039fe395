"""One PostgreSQL server that syncs each commit. It is killed, frozen, and ends in order."""

from __future__ import annotations

import asyncio

import asyncpg

from tests.chaos.steps import OF_NODES, Kind, Step
from tests.chaos.store import ChaosStore, Note, Site
from tests.postgres_server import PostgresServer
from tests.waiting import until


class PostgresChaosStore(ChaosStore):
    """The server. Nothing that it has acknowledged may be lost."""

    kinds = OF_NODES | {Kind.KILL_MASTER, Kind.FREEZE_MASTER, Kind.RESTART}

    def __init__(self, site: Site) -> None:
        self._server = PostgresServer(host=site.host, enter=site.enter)
        self._server.__enter__()
        self.url = self._server.url()

    async def begin(self) -> None:
        """Wait until the server takes writes."""
        await self.whole()

    async def whole(self) -> None:
        """Wait until the server takes writes."""

        async def seen() -> bool:
            try:
                await self._server.ask("CREATE TEMPORARY TABLE written (number integer)")
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                return False
            return True

        await until(seen, "a PostgreSQL that takes writes")

    async def leader(self) -> str:
        return "postgres"

    async def suffer(self, step: Step, note: Note) -> None:
        """Kill, freeze or restart the server, for the seconds of the step."""
        word = step.kind.partition("-")[0]
        note(f"{word} PostgreSQL for {step.seconds:g} s")
        match step.kind:
            case Kind.FREEZE_MASTER:
                self._server.pause()
            case Kind.RESTART:
                await asyncio.to_thread(self._server.stop)
            case _:
                self._server.kill()
        await asyncio.sleep(step.seconds)
        if step.kind is Kind.FREEZE_MASTER:
            self._server.resume()
        else:
            await asyncio.to_thread(self._server.restart)

    async def fail_over(self) -> None:
        """There is no other server."""
        raise NotImplementedError

    def close(self) -> None:
        self._server.__exit__(None, None, None)
