"""The application's own database: balances in SQLite, read and written in worker threads.

An entity reads once, when it starts, and writes every change. Both carry the *fence* of its shard's
stay at its home, a number that only grows: reading raises the stored fence, and what comes with a
lower one is refused. So a node that was paused, and wakes up when its accounts live elsewhere, can
write nothing.
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
    """Another activation of the account has read it since."""


class Repository:
    """Balances in cents. Threads share nothing: each call has a connection of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def read(self, account: str, fence: int) -> int:
        """The balance; from now on only this fence, or a higher one, may write.

        Raises:
            Outdated: a higher fence has read it.
        """
        return await asyncio.to_thread(self._run, READ, account, fence, 0)

    async def write(self, account: str, fence: int, cents: int) -> int:
        """Set the balance, and return it.

        Raises:
            Outdated: a higher fence has read it. sqlite3.Error: it is not written.
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
