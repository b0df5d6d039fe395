"""Journals of a state store: rows of entries that only grow at their end.

A journal has a kind, a shard that says where it is placed, and a name that is unique in its kind.
Its entries are bytes, numbered from 1. Its *head* has the fence, the last number, and the number up
to which it is trimmed. Events of an entity, messages of an outbox and mailboxes are such rows.

A store has journals as an ability of its own (`HasJournals`); a store without it is complete, and
a feature that needs journals refuses to start with it. The rules are the same as for states
(`protocol`):

- **Fenced.** An append, an opening and a trim carry a fence. The store compares it with the head's
  in the same atomic step, refuses a lower one, and keeps a higher one. `open` raises it before it
  reads, so an earlier activation cannot append behind the entries that the next one has read.
- **In sequence.** An append names the number that it comes after. A head with another last number
  refuses it. So two writers under one fence cannot interleave, and none overwrites.
- **Idempotent.** An append carries an operation id. The head keeps the last one that was applied,
  and answers a repeat without a second write. The entries of one append are written together.
- **Ordered.** An opening comes after every append of the same store object whose call has ended
  before: `open` returns the entries of such an append, or it is never applied.

**Trimming** removes entries and keeps the head, so numbers and fence go on. With `forget`, the head
goes too once no entry is left, and nothing remains of the journal: the next append comes after 0,
and no fence keeps an earlier writer out. That is for rows whose entries say themselves whether they
were seen before.

Source: docs/how-to/own-store.md; B.106, S2.74.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from shardbus.errors import StoreError
from shardbus.store.protocol import StateStore

PAGE_BYTES = 1024 * 1024
"""Bytes of entries after which a page ends."""
TRIM_STEP = 10_000
"""Entries that are removed in one step, at most."""

NamePage = tuple[list[tuple[str, str]], str | None]
"""Journals, each a shard and a name, and the cursor of the next page, None at the end."""


class Append(NamedTuple):
    """One append to one journal: at least one entry. The first fields, and the operation id, have
    the places that they have in a `Save`."""

    kind: str
    """The name of an entity type, or one of shardbus's own, which begins with $."""
    shard: str
    name: str
    fence: int
    entries: tuple[bytes, ...]
    op_id: int
    """Unique per append, 63 bits."""
    after: int
    """The number of the last entry before these; 0 for a new journal."""

    @property
    def last(self) -> int:
        """Return the number of the last of these entries."""
        return self.after + len(self.entries)

    @property
    def size(self) -> int:
        """Return the bytes of the entries."""
        return sum(map(len, self.entries))


class JournalPage(NamedTuple):
    """Entries that follow each other. `first` is the number of the first one; without entries it is
    the number at which a later page begins. `last` is the last number of the journal, 0 if there is
    none."""

    first: int
    entries: list[bytes]
    last: int

    @property
    def end(self) -> int:
        """Return the number after which the next page begins."""
        return self.first + len(self.entries) - 1


class JournalStore(Protocol):
    """The journals of a store. Each method raises StoreUnavailable if the store does not answer."""

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        """Append to many journals in one round trip. Each append is atomic by itself. The answers
        are in the order of `appends`: None for one that was applied, now or earlier under this
        operation id; StaleFence for one with a lower fence; JournalConflict for one that comes
        after another number than the last; StoreError for one whose head is unreadable. These
        changed nothing. A store of several servers answers StoreUnavailable for one whose server
        alone did not answer."""
        ...

    async def open(
        self, kind: str, shard: str, name: str, fence: int, after: int, limit: int
    ) -> JournalPage:
        """Raise the stored fence to `fence`, and return the entries after a number as `read` does.

        Raises:
            StaleFence: the stored fence is higher. Nothing changed.
        """
        ...

    async def read(self, kind: str, shard: str, name: str, after: int, limit: int) -> JournalPage:
        """Return at most `limit` entries after this number, none with 0. A page ends early once
        it has `PAGE_BYTES`; it has at least one entry unless none follows. It begins later than
        `after` if the journal is trimmed. Writes nothing.

        Raises:
            StoreError: an entry is missing.
        """
        ...

    async def trim(
        self, kind: str, shard: str, name: str, fence: int, upto: int, forget: bool = False
    ) -> None:
        """Remove the entries up to this number. With `forget`, remove the head too if no entry is
        left. A journal that is not there stays so.

        Raises:
            StaleFence: the stored fence is higher. Nothing was removed.
        """

    async def page(self, kind: str, cursor: str | None, limit: int) -> NamePage:
        """Return about `limit` journals of a kind after the cursor, each with shard and name, and
        the next cursor, None at the end. A page may be empty before the end. A journal that exists
        all the time is in at least one page; pages may repeat one."""
        ...


@runtime_checkable
class HasJournals(Protocol):
    """A `StateStore` with journals."""

    @property
    def journals(self) -> JournalStore:
        """Return the journals of the store."""
        ...


def journals_of(store: StateStore) -> JournalStore | None:
    """Return the journals of a store, None if it has none."""
    return store.journals if isinstance(store, HasJournals) else None


def page_of(
    kind: str,
    name: str,
    first: int,
    rows: Sequence[tuple[int, bytes | None]],
    last: int,
    limit: int,
) -> JournalPage:
    """Return a page of at most `limit` rows, each with number and entry.

    Raises:
        StoreError: an entry is missing.
    """
    numbers = [number for number, entry in rows if entry is not None]
    least = 1 if limit and first <= last else 0
    expected = range(first, first + max(least, len(rows)))
    if numbers != list(expected):
        missing = min(set(expected) - set(numbers), default=first)
        raise StoreError(
            f"entry {missing} of the journal {kind!r} {name!r:.100} is missing",
            hint="restore the store from a copy",
        )
    return JournalPage(first, [entry for _, entry in rows if entry is not None], last)
