"""The application's own database: balances in SQLite, read and written in worker threads.

An entity reads its balance once, when it starts, and writes every change. Both calls carry the
*fence* of the shard's allocation, a number that only grows. A read raises the stored fence, and a
call with a lower fence is refused. So a node that was paused while its accounts moved can write
nothing.
"""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

TABLE = """CREATE TABLE IF NOT EXISTS balance (
    account TEXT PRIMARY KEY, fence INTEGER, cents INTEGER,
    CONSTRAINT "an account is never in debt" CHECK (cents >= 0))"""
READ = """INSERT INTO balance VALUES (:account, :fence, 0)
    ON CONFLICT (account) DO UPDATE SET fence = :fence WHERE fence <= :fence RETURNING cents"""
WRITE = """UPDATE balance SET cents = :cents
    WHERE account = :account AND fence = :fence RETURNING cents"""


class Outdated(Exception):
    """A newer activation of the account has read the balance."""


class Repository:
    """Balances in cents. Each call opens its own connection, so that threads share nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def read(self, account: str, fence: int) -> int:
        """Return the balance. From then on only this fence, or a higher one, may write.

        Raises:
            Outdated: a higher fence has read the balance.
        """
        return await asyncio.to_thread(self._run, READ, account, fence, 0)

    async def write(self, account: str, fence: int, cents: int) -> int:
        """Set the balance and return it.

        Raises:
            Outdated: a higher fence has read the balance. sqlite3.Error: nothing was written.
        """
        return await asyncio.to_thread(self._run, WRITE, account, fence, cents)

    def _run(self, statement: str, account: str, fence: int, cents: int) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        values = {"account": account, "fence": fence, "cents": cents}
        connection = sqlite3.connect(self._path)
        try:
            with connection:
                connection.execute(TABLE)
                row = connection.execute(statement, values).fetchone()
        finally:
            connection.close()
        if row is None:
            raise Outdated(f"{account} was read under a fence above {fence}")
        return int(row[0])
