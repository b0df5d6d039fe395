"""The schema of the SQLite store, and one method for each step of the store protocol.

Every step runs inside a transaction that its caller began, on a connection in autocommit mode, and
checks before it writes. Rows carry the number of their cluster, so that several clusters may share
a file. Fences, epochs and operation ids have 63 bits, as many as an SQLite integer holds.

The end of a lease is stored as a time of the machine's clock. That clock may be set back, or start
again with the machine. A node that requests a lease whose end is further ahead than the length of
the lease therefore moves the end to that length from now.

Source: docs/architecture.md; N.6.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from shardbus.errors import ConfigError, LayoutDiffers, StaleEpoch, StaleFence, StoreError
from shardbus.store.protocol import Due, IdPage, Lease, NewHomes, Reminders, Save, StoredTable
from shardbus.store.repair import RawFence, RawTable
from shardbus.store.rows import epoch_of, fence_of, table_of

APPLICATION_ID = 0x73686264
SCHEMA_VERSION = 1

SCHEMA = (
    "CREATE TABLE cluster (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    """CREATE TABLE shard_table (cluster INTEGER, type TEXT, epoch INTEGER NOT NULL,
       layout TEXT NOT NULL, claimer TEXT NOT NULL, op_id INTEGER,
       PRIMARY KEY (cluster, type)) WITHOUT ROWID""",
    """CREATE TABLE home (cluster INTEGER, type TEXT, shard TEXT, node TEXT NOT NULL,
       fence INTEGER NOT NULL, PRIMARY KEY (cluster, type, shard)) WITHOUT ROWID""",
    """CREATE TABLE entity (cluster INTEGER, type TEXT, id TEXT, fence INTEGER NOT NULL,
       op_id INTEGER, data BLOB, PRIMARY KEY (cluster, type, id))""",
    """CREATE TABLE shard_fence (cluster INTEGER, type TEXT, shard TEXT, fence INTEGER NOT NULL,
       PRIMARY KEY (cluster, type, shard)) WITHOUT ROWID""",
    """CREATE TABLE remembered (cluster INTEGER, type TEXT, shard TEXT, id TEXT,
       PRIMARY KEY (cluster, type, shard, id)) WITHOUT ROWID""",
    """CREATE TABLE lease (cluster INTEGER, name TEXT, owner TEXT, counter INTEGER NOT NULL,
       expires REAL NOT NULL, ttl REAL NOT NULL, PRIMARY KEY (cluster, name)) WITHOUT ROWID""",
)

IDENTITY = "CREATE TABLE IF NOT EXISTS identity (cluster INTEGER PRIMARY KEY, text TEXT NOT NULL)"
IDLE = """CREATE TABLE IF NOT EXISTS idle (entity INTEGER PRIMARY KEY, fence INTEGER NOT NULL,
 op_id INTEGER, since REAL NOT NULL)"""
"""By the row number of an entity: its fence and operation when it was found idle. A row is void
once one of them has changed, so only a load under the same fence must remove it.

`IDENTITY`, `IDLE`, `JOURNALS` and `REMINDER` are not in `SCHEMA`: files of an earlier version get
them when they are opened, and an earlier version can still use them."""
JOURNALS = (
    """CREATE TABLE IF NOT EXISTS journal (cluster INTEGER, kind TEXT, name TEXT,
       shard TEXT NOT NULL, fence INTEGER NOT NULL, op_id INTEGER, last INTEGER NOT NULL,
       trimmed INTEGER NOT NULL, PRIMARY KEY (cluster, kind, name)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS journal_entry (cluster INTEGER, kind TEXT, name TEXT,
       number INTEGER, data BLOB NOT NULL, PRIMARY KEY (cluster, kind, name, number))""",
)
"""Heads and entries; see `sqlite_journals`."""
REMINDER = (
    """CREATE TABLE IF NOT EXISTS reminder (cluster INTEGER, type TEXT, id TEXT,
       shard TEXT NOT NULL, due INTEGER NOT NULL, record BLOB NOT NULL,
       PRIMARY KEY (cluster, type, id)) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS reminder_due ON reminder (cluster, type, shard, due, id)",
)
"""The reminders of each entity that has some, and when the earliest is due."""

TABLE = "SELECT epoch, layout, claimer, op_id FROM shard_table WHERE cluster = ? AND type = ?"
ANY_HOME = "SELECT 1 FROM home WHERE cluster = ? AND type = ?"
REMEMBERED_SHARDS = """SELECT shard FROM shard_fence f WHERE cluster = ? AND type = ? AND EXISTS
 (SELECT 1 FROM remembered r WHERE r.cluster = f.cluster AND r.type = f.type AND r.shard = f.shard)
 ORDER BY shard"""
HOMES = "SELECT shard, node, fence FROM home WHERE cluster = ? AND type = ?"
FENCES = """SELECT rowid, id, fence FROM entity WHERE cluster = ? AND type = ? AND rowid > ?
 ORDER BY rowid LIMIT ?"""
STORED = """SELECT id, data IS NOT NULL FROM entity WHERE cluster = ? AND type = ? AND id {above} ?
 ORDER BY id LIMIT ?"""
IDLE_ENTITY = """SELECT e.rowid, e.fence, e.op_id, i.since FROM entity e LEFT JOIN idle i
 ON i.entity = e.rowid AND i.fence = e.fence AND i.op_id IS e.op_id
 WHERE e.cluster = ? AND e.type = ? AND e.id = ? AND e.data IS NOT NULL"""
STATE = "SELECT data FROM entity WHERE cluster = ? AND type = ? AND id = ?"
RECORD = "SELECT record FROM reminder WHERE cluster = ? AND type = ? AND id = ?"
PAGE_DUE = """SELECT due, id FROM reminder WHERE cluster = ? AND type = ? AND shard = ?
 AND (due, id) > (?, ?) ORDER BY due, id LIMIT ?"""
DUE_SHARDS = """WITH RECURSIVE next(shard) AS (
 SELECT min(shard) FROM reminder WHERE cluster = ?1 AND type = ?2 UNION ALL
 SELECT (SELECT min(shard) FROM reminder WHERE cluster = ?1 AND type = ?2 AND shard > next.shard)
 FROM next WHERE shard IS NOT NULL) SELECT shard FROM next WHERE shard IS NOT NULL"""
"""Looks once into the index for each shard, and not at every reminder."""
SHARD_FENCE = "SELECT fence FROM shard_fence WHERE cluster = ? AND type = ? AND shard = ?"
SHARD_FENCES = "SELECT shard, fence FROM shard_fence WHERE cluster = ? AND type = ?"
LEASE = "SELECT owner, counter, expires, ttl FROM lease WHERE cluster = ? AND name = ?"


def prepare(db: sqlite3.Connection, path: str) -> None:
    """Create the tables that the file does not have.

    Raises:
        ConfigError: the file belongs to another program, or to a newer shardbus. Nothing was
        written.
    """
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != APPLICATION_ID:
        raise ConfigError(f"store.url: {path} is the database of another program")
    if version > SCHEMA_VERSION:
        raise ConfigError(
            f"store.url: {path} has format {version}, this shardbus knows {SCHEMA_VERSION}",
            hint="upgrade shardbus, or name another file",
        )
    if not tables:
        for statement in SCHEMA:
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    for statement in (IDENTITY, IDLE, *JOURNALS, *REMINDER):
        db.execute(statement)


class Steps(msgspec.Struct, frozen=True):
    """The steps of one cluster. `cluster` is its number in the file; `claimer` names the store
    object that asks."""

    db: sqlite3.Connection
    cluster: int
    claimer: str

    @classmethod
    def of(cls, db: sqlite3.Connection, cluster: str, claimer: str) -> Steps:
        """Return the steps for the cluster of that name; assign a number if it has none."""
        db.execute("INSERT OR IGNORE INTO cluster (name) VALUES (?)", (cluster,))
        (number,) = db.execute("SELECT number FROM cluster WHERE name = ?", (cluster,)).fetchone()
        return cls(db, number, claimer)

    def identity(self, known: str, fresh: str) -> str:
        put = "REPLACE" if known else "INSERT OR IGNORE"
        self.db.execute(f"{put} INTO identity VALUES (?, ?)", (self.cluster, known or fresh))
        (text,) = self.db.execute(
            "SELECT text FROM identity WHERE cluster = ?", (self.cluster,)
        ).fetchone()
        return str(text)

    def load_table(self, entity_type: str) -> StoredTable | None:
        row = self._row(TABLE, entity_type)
        if row is None:
            return None
        rows = self.db.execute(HOMES, (self.cluster, entity_type))
        epoch, layout, _, _ = row
        return table_of(entity_type, epoch, layout, rows)

    def claim_epoch(self, entity_type: str, epoch: int, layout: str) -> StoredTable:
        row = self._row(TABLE, entity_type)
        if row is None or row[:3] != (epoch, layout, self.claimer):
            if row is not None:
                self._check_claim(entity_type, epoch, layout, row[0], row[1])
            self.db.execute(
                "INSERT INTO shard_table (cluster, type, epoch, layout, claimer)"
                " VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET epoch = excluded.epoch,"
                " layout = excluded.layout, claimer = excluded.claimer",
                (self.cluster, entity_type, epoch, layout, self.claimer),
            )
        table = self.load_table(entity_type)
        assert table is not None
        return table

    def _check_claim(
        self, entity_type: str, epoch: int, layout: str, epoch_there: object, stored_layout: str
    ) -> None:
        stored_epoch = epoch_of(entity_type, epoch_there)
        if stored_epoch >= epoch:
            raise StaleEpoch(entity_type, epoch, stored_epoch)
        if stored_layout != layout and self._row(ANY_HOME, entity_type) is not None:
            raise LayoutDiffers(entity_type, layout, stored_layout)

    def write_homes(self, entity_type: str, epoch: int, homes: NewHomes, op_id: int) -> None:
        stored, _, claimer, applied = self._row(TABLE, entity_type) or (0, "", "", None)
        if applied == op_id:
            return
        if stored != epoch or claimer != self.claimer:
            raise StaleEpoch(entity_type, epoch, epoch_of(entity_type, stored))
        key = (self.cluster, entity_type)
        self.db.executemany(
            "DELETE FROM home WHERE cluster = ? AND type = ? AND shard = ?",
            [(*key, shard) for shard, home in homes.items() if home is None],
        )
        self.db.executemany(
            "REPLACE INTO home (cluster, type, shard, node, fence) VALUES (?, ?, ?, ?, ?)",
            [(*key, shard, str(home[0]), home[1]) for shard, home in homes.items() if home],
        )
        self.db.execute(
            "UPDATE shard_table SET op_id = ? WHERE cluster = ? AND type = ?", (op_id, *key)
        )

    def remove_table(self, entity_type: str) -> bool:
        key = (self.cluster, entity_type)
        gone = self.db.execute("DELETE FROM home WHERE cluster = ? AND type = ?", key)
        return gone.rowcount > 0

    def load_state(self, entity_type: str, shard: str, entity_id: str, fence: int) -> bytes | None:
        key = (self.cluster, entity_type, entity_id)
        row = self.db.execute(
            "SELECT fence, data, rowid FROM entity WHERE cluster = ? AND type = ? AND id = ?", key
        ).fetchone()
        if row is None:
            self.db.execute(
                "INSERT INTO entity (cluster, type, id, fence) VALUES (?, ?, ?, ?)", (*key, fence)
            )
            return None
        stored = fence_of(entity_type, entity_id, row[0])
        data: bytes | None = row[1]
        if stored > fence:
            raise StaleFence(entity_type, entity_id, fence, stored)
        if stored < fence:
            self.db.execute(
                "UPDATE entity SET fence = ? WHERE cluster = ? AND type = ? AND id = ?",
                (fence, *key),
            )
        self.db.execute("DELETE FROM idle WHERE entity = ?", (row[2],))
        return data

    def save_states(self, saves: Sequence[Save]) -> list[StoreError | None]:
        return [self._save(save) for save in saves]

    def _save(self, save: Save) -> StoreError | None:
        key = (self.cluster, save.entity_type, save.entity_id)
        row = self.db.execute(
            "SELECT fence, op_id FROM entity WHERE cluster = ? AND type = ? AND id = ?", key
        ).fetchone()
        if row is not None and row[1] == save.op_id:
            return None
        try:
            stored = 0 if row is None else fence_of(save.entity_type, save.entity_id, row[0])
        except StoreError as damaged:
            return damaged
        if stored > save.fence:
            return StaleFence(save.entity_type, save.entity_id, save.fence, stored)
        reminders = save.reminders
        if reminders is not None:
            shard_row = self.db.execute(SHARD_FENCE, (*key[:2], save.shard)).fetchone()
            if shard_row is not None and shard_row[0] > save.fence:
                return StaleFence(save.entity_type, save.entity_id, save.fence, shard_row[0])
            self._put_reminders(save, reminders)
        alone = reminders is not None and reminders.alone
        self.db.execute(
            "INSERT INTO entity (cluster, type, id, fence, op_id, data) VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET fence = excluded.fence, op_id = excluded.op_id,"
            " data = CASE WHEN ? THEN data ELSE excluded.data END",
            (*key, save.fence, save.op_id, None if alone else save.data, alone),
        )
        return None

    def _put_reminders(self, save: Save, reminders: Reminders) -> None:
        key = (self.cluster, save.entity_type, save.entity_id)
        if reminders.due and reminders.record is not None:
            self.db.execute(
                "REPLACE INTO reminder (cluster, type, id, shard, due, record)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (*key, save.shard, reminders.due, reminders.record),
            )
        else:
            self.db.execute("DELETE FROM reminder WHERE cluster = ? AND type = ? AND id = ?", key)

    def load_reminders(
        self, entity_type: str, shard: str, entity_ids: Sequence[str]
    ) -> list[bytes | None]:
        records: list[bytes | None] = []
        for entity_id in entity_ids:
            row = self.db.execute(RECORD, (self.cluster, entity_type, entity_id)).fetchone()
            records.append(None if row is None else row[0])
        return records

    def page_due(self, entity_type: str, shard: str, after: Due | None, limit: int) -> list[Due]:
        due, entity_id = after or (0, "")
        key = (self.cluster, entity_type, shard, due, entity_id, limit)
        return self.db.execute(PAGE_DUE, key).fetchall()

    def due_shards(self, entity_type: str) -> list[str]:
        return [shard for (shard,) in self.db.execute(DUE_SHARDS, (self.cluster, entity_type))]

    def page_stored(self, entity_type: str, prefix: str, cursor: str | None, limit: int) -> IdPage:
        """As the protocol says. The cursor is the last id that was looked at."""
        above, after = (">=", prefix) if cursor is None else (">", cursor)
        key = (self.cluster, entity_type, after, limit)
        rows = self.db.execute(STORED.format(above=above), key).fetchall()
        page = [entity_id for entity_id, stored in rows if stored and entity_id.startswith(prefix)]
        ended = len(rows) < limit or not rows[-1][0].startswith(prefix)
        return page, None if ended else rows[-1][0]

    def read_states(self, entity_type: str, entity_ids: Sequence[str]) -> list[bytes | None]:
        states: list[bytes | None] = []
        for entity_id in entity_ids:
            row = self.db.execute(STATE, (self.cluster, entity_type, entity_id)).fetchone()
            states.append(None if row is None else row[0])
        return states

    def expire_states(
        self, entity_type: str, entity_ids: Sequence[str], now: float, since: float
    ) -> list[str]:
        removed = []
        for entity_id in entity_ids:
            key = (self.cluster, entity_type, entity_id)
            row = self.db.execute(IDLE_ENTITY, key).fetchone()
            if row is None:
                continue
            number, fence, op_id, recorded = row
            began = now if recorded is None else min(now, recorded)
            if began <= since:
                self.db.execute("UPDATE entity SET data = NULL WHERE rowid = ?", (number,))
                self.db.execute("DELETE FROM idle WHERE entity = ?", (number,))
                removed.append(entity_id)
            elif began != recorded:
                self.db.execute(
                    "REPLACE INTO idle VALUES (?, ?, ?, ?)", (number, fence, op_id, began)
                )
        return removed

    def add_remembered(
        self, entity_type: str, shard: str, entity_ids: Sequence[str], fence: int
    ) -> None:
        self._raise_shard_fence(entity_type, shard, fence)
        self.db.executemany(
            "INSERT OR IGNORE INTO remembered (cluster, type, shard, id) VALUES (?, ?, ?, ?)",
            self._rows(entity_type, shard, entity_ids),
        )

    def remove_remembered(
        self, entity_type: str, shard: str, entity_ids: Sequence[str], fence: int
    ) -> None:
        self._raise_shard_fence(entity_type, shard, fence)
        self.db.executemany(
            "DELETE FROM remembered WHERE cluster = ? AND type = ? AND shard = ? AND id = ?",
            self._rows(entity_type, shard, entity_ids),
        )

    def page_remembered(
        self, entity_type: str, shard: str, cursor: str | None, limit: int
    ) -> IdPage:
        rows = self.db.execute(
            "SELECT id FROM remembered WHERE cluster = ? AND type = ? AND shard = ? AND id > ?"
            " ORDER BY id LIMIT ?",
            (self.cluster, entity_type, shard, cursor or "", limit),
        )
        page = [entity_id for (entity_id,) in rows]
        return page, page[-1] if len(page) == limit else None

    def remembered_shards(self, entity_type: str) -> list[str]:
        rows = self.db.execute(REMEMBERED_SHARDS, (self.cluster, entity_type))
        return [shard for (shard,) in rows]

    def acquire_lease(self, name: str, owner: str, ttl: float, now: float) -> Lease | None:
        row = self._row(LEASE, name)
        held_by, counter, expires, length = row or (None, 0, now, 0.0)
        if held_by is None or expires <= now:
            counter += 1
        elif held_by != owner:
            if expires > now + length:
                self._write_lease(name, held_by, counter, now + length, length)
            return None
        self._write_lease(name, owner, counter, now + ttl, ttl)
        return Lease(name, owner, counter)

    def renew_lease(self, lease: Lease, ttl: float, now: float) -> bool:
        row = self._row(LEASE, lease.name)
        if row is None or row[:2] != (lease.owner, lease.counter) or row[2] <= now:
            return False
        self._write_lease(lease.name, lease.owner, lease.counter, now + ttl, ttl)
        return True

    def release_lease(self, lease: Lease) -> None:
        self.db.execute(
            "UPDATE lease SET owner = NULL"
            " WHERE cluster = ? AND name = ? AND owner = ? AND counter = ?",
            (self.cluster, lease.name, lease.owner, lease.counter),
        )

    # Repair

    def raw_table(self, entity_type: str) -> RawTable | None:
        row = self._row(TABLE, entity_type)
        key = (self.cluster, entity_type)
        homes = self.db.execute(HOMES, key).fetchall()
        return None if row is None else RawTable(row[0], row[1], tuple(homes))

    def raw_fences(self, entity_type: str, after: int, limit: int) -> list[RawFence]:
        """Return fences of entities whose row number is higher than `after`."""
        rows = self.db.execute(FENCES, (self.cluster, entity_type, after, limit))
        return [RawFence(f"entity {name!r:.60}", row, fence) for row, name, fence in rows]

    def raw_shard_fences(self, entity_type: str) -> list[RawFence]:
        rows = self.db.execute(SHARD_FENCES, (self.cluster, entity_type))
        return [RawFence(f"list of shard {shard!r:.60}", shard, fence) for shard, fence in rows]

    def mend_table(self, entity_type: str, epoch: int, layout: str, gone: Sequence[object]) -> None:
        key = (self.cluster, entity_type)
        self.db.execute(
            "UPDATE shard_table SET epoch = ?, layout = ?, claimer = '', op_id = NULL"
            " WHERE cluster = ? AND type = ?",
            (epoch, layout, *key),
        )
        self.db.executemany(
            "DELETE FROM home WHERE cluster = ? AND type = ? AND shard IS ?",
            [(*key, shard) for shard in gone],
        )

    def mend_fences(self, entity_type: str, fences: Sequence[RawFence], fence: int) -> None:
        self.db.executemany(
            "UPDATE entity SET fence = ?, op_id = NULL WHERE rowid = ?",
            [(fence, row) for _, row, _ in fences if isinstance(row, int)],
        )
        self.db.executemany(
            "UPDATE shard_fence SET fence = ? WHERE cluster = ? AND type = ? AND shard IS ?",
            [(fence, self.cluster, entity_type, s) for _, s, _ in fences if not isinstance(s, int)],
        )

    def _row(self, select: str, name: str) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self.db.execute(select, (self.cluster, name)).fetchone()
        return row

    def _rows(
        self, entity_type: str, shard: str, entity_ids: Sequence[str]
    ) -> Iterable[tuple[int, str, str, str]]:
        return [(self.cluster, entity_type, shard, entity_id) for entity_id in entity_ids]

    def _raise_shard_fence(self, entity_type: str, shard: str, fence: int) -> None:
        key = (self.cluster, entity_type, shard)
        row = self.db.execute(
            "SELECT fence FROM shard_fence WHERE cluster = ? AND type = ? AND shard = ?", key
        ).fetchone()
        stored = -1 if row is None else fence_of(entity_type, shard, row[0])
        if stored > fence:
            raise StaleFence(entity_type, shard, fence, stored)
        if stored < fence:
            self.db.execute(
                "REPLACE INTO shard_fence (cluster, type, shard, fence) VALUES (?, ?, ?, ?)",
                (*key, fence),
            )

    def _write_lease(self, name: str, owner: str, counter: int, expires: float, ttl: float) -> None:
        self.db.execute(
            "REPLACE INTO lease (cluster, name, owner, counter, expires, ttl)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (self.cluster, name, owner, counter, expires, ttl),
        )
