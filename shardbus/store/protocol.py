"""The interface of a state store, and the rules that an implementation must follow.

Three rules make a store safe to retry and safe to share:

- **Fenced.** A table is written under an epoch, an entity's state under a fence; both are numbers
  that only grow. The store compares them in the same atomic step as the write, and refuses an older
  number. *Loading* an entity's state raises its fence, so that an earlier activation cannot write
  between the load and the first save of the next one.
- **Idempotent.** A write carries an operation id. A client without an answer sends the write again;
  the store remembers the last operation applied and does not apply it twice.
- **Ordered.** A load comes after every save of the same store object whose call has ended before,
  whether it was answered, failed or was cancelled: the load returns such a save, or the save is
  never applied, even if the server executes it later. So an activation that starts on the same
  node, under the same fence, has the state that stays.

An implementation turns the failures of its client library into `StoreUnavailable`, always within
`timeout` seconds.

Source: docs/architecture.md; S0.32, S2.29.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CoroutineType
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar, runtime_checkable

from shardbus.errors import StoreError
from shardbus.ids import NodeId

P = ParamSpec("P")
T = TypeVar("T")

NewHomes = Mapping[str, tuple[NodeId, int] | None]
"""New homes of shards, each a node and a fence. None: the shard has no home any more."""
IdPage = tuple[list[str], str | None]
"""Ids, and the cursor of the next page, None at the end."""
StoreMethod = Callable[Concatenate[Any, P], "CoroutineType[Any, Any, T]"]
"""An `async def` method of a store, as pyright declares it; to mypy it returns a `Coroutine`."""


@dataclass(frozen=True, slots=True)
class StoredTable:
    """The stored shard table of one entity type. `layout` names the shard function, as in
    `crc32/100`."""

    epoch: int
    layout: str
    homes: Mapping[str, tuple[NodeId, int]]
    """The node and the fence of each shard that has a home."""
    dropped: tuple[str, ...] = ()
    """Stored rows that are invalid, each with the reason; see `store.rows`."""


class Reminders(NamedTuple):
    """The reminders of one entity, as a save writes them in the same atomic step."""

    due: int
    """When the earliest is due, in milliseconds since 1970 (UTC); 0 if there is none."""
    record: bytes | None
    """All of them; None if there is none."""
    alone: bool = False
    """The save writes the reminders only: the state stays as it is, whatever `data` is."""


class Save(NamedTuple):
    """One write of one entity's state. `data` None removes the state and keeps the fence."""

    entity_type: str
    shard: str
    """The entity's shard. A store may place the state by it, so all loads and saves of an entity
    name the same one."""
    entity_id: str
    fence: int
    data: bytes | None
    op_id: int
    """Unique per write, 63 bits."""
    reminders: Reminders | None = None
    """None: they stay as they are. Only a `ReminderStore` is given others."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A granted lease. `counter` grows with each change of owner, so that the owner can use it as a
    fence elsewhere."""

    name: str
    owner: str
    counter: int


class StateStore(Protocol):
    """A durable place for shard tables, entity state, remembered entities and leases."""

    async def start(self) -> None:
        """Connect, create missing structures, and refuse a server that may lose or evict data.

        Raises:
            StoreUnavailable: the server cannot be reached.
            ConfigError: the server is unfit; the message names its setting.
        """

    async def close(self) -> None:
        """Close the connection. Never raises."""

    async def identity(self, known: str = "") -> str:
        """Return the text that names this store, and no other one. The first call writes a random
        one, in one atomic step. With `known`, write that text instead: a node that finds that the
        store has lost its data writes the name again under which it knows the store.

        Nodes compare it when they join, because two stores of one kind may have one URL, as two
        files on two machines have."""
        ...

    async def load_table(self, entity_type: str) -> StoredTable | None:
        """Return the table, None if none was ever claimed. Invalid rows are left out and named in
        `dropped`.

        Raises:
            StoreError: the epoch or the layout is unreadable.
        """

    async def claim_epoch(self, entity_type: str, epoch: int, layout: str) -> StoredTable:
        """Become the writer of the table under `epoch`; the table keeps its homes. Returns the
        table, as `load_table` does.

        A repeated claim of the stored epoch with the same layout by the same store object answers
        as the first one.

        Raises:
            StaleEpoch: the stored epoch is not lower.
            ConfigError: the stored layout differs and the table is not empty; both are named.
        """
        ...

    async def write_homes(self, entity_type: str, epoch: int, homes: NewHomes, op_id: int) -> None:
        """Set the homes of these shards (None: no home) in one atomic step.

        Raises:
            StaleEpoch: the stored epoch differs, or another store object has claimed it, because
                the store had lost the claim of this one. Nothing was written.
        """

    async def remove_table(self, entity_type: str) -> bool:
        """Remove every home. Only for a cluster that is stopped. Returns True if there was a home.

        The epoch stays: fences are drawn above it, and the stored fences of entities must not be
        ahead of the next cluster's.
        """
        ...

    async def load_state(
        self, entity_type: str, shard: str, entity_id: str, fence: int
    ) -> bytes | None:
        """Return the state of this entity of the shard, None if there is none; raise the stored
        fence to `fence` in the same atomic step. No save of this entity that this store object was
        given up on before is applied afterwards.

        Raises:
            StaleFence: the stored fence is higher. Nothing changed.
        """

    async def save_states(self, saves: Sequence[Save]) -> list[StoreError | None]:
        """Write the states of many entities in one round trip. Each write is atomic by itself. The
        answers are in the order of `saves`: None for a write that was applied (now, or earlier
        under this operation id), StaleFence for one that was refused, StoreError for one whose
        stored fence is unreadable. The last two changed nothing. A store of several servers
        answers StoreUnavailable for one whose server alone did not answer."""
        ...

    async def page_stored(
        self, entity_type: str, prefix: str, cursor: str | None, limit: int
    ) -> IdPage:
        """Return about `limit` ids, after `cursor`, of entities that have a state and whose ids
        begin with `prefix`, and the next cursor, None at the end. A page may be empty before the
        end. An entity that has a state all the time is in at least one page; pages may repeat an
        entity. A cursor is valid for every store object with the same data.

        Raises:
            StoreError: the cursor is of another server, so the list must begin anew.
        """
        ...

    async def read_states(self, entity_type: str, entity_ids: Sequence[str]) -> list[bytes | None]:
        """Return the states of these entities, None for one without. Writes nothing and raises no
        fence, unlike `load_state`."""
        ...

    async def expire_states(
        self, entity_type: str, entity_ids: Sequence[str], now: float, since: float
    ) -> list[str]:
        """Remove the state of each of these entities that is idle since `since` or longer. Returns
        the ids of the entities whose states it removed; their fences stay.

        An entity is idle from the `now` of the first call that names it after its last load or
        save, which the store keeps until it is loaded or saved again. It is compared in the same
        atomic step as the state is removed. If it is later than `now`, because a clock was set
        back, `now` is kept instead. Times are in seconds; only this method compares them."""
        ...

    async def add_remembered(
        self, entity_type: str, shard: str, entity_ids: Sequence[str], fence: int
    ) -> None:
        """Remember these entities as running in the shard. An empty list only raises the shard's
        fence; a new home does that before it reads.

        Raises:
            StaleFence: the shard's stored fence is higher (`entity_id` is then the shard). Nothing
                was written.
        """

    async def remove_remembered(
        self, entity_type: str, shard: str, entity_ids: Sequence[str], fence: int
    ) -> None:
        """Forget these entities of the shard. Raises as `add_remembered`."""

    async def page_remembered(
        self, entity_type: str, shard: str, cursor: str | None, limit: int
    ) -> IdPage:
        """Return about `limit` remembered entities after `cursor`, and the next cursor, None at the
        end. An entity that is remembered all the time is in at least one page; pages may repeat an
        entity."""
        ...

    async def remembered_shards(self, entity_type: str) -> list[str]:
        """Return every shard that has remembered entities, and perhaps others."""
        ...

    async def acquire_lease(self, name: str, owner: str, ttl: float) -> Lease | None:
        """Return the lease for `ttl` seconds if it is free, has run out, or is `owner`'s already;
        None while another owner holds it."""

    async def renew_lease(self, lease: Lease, ttl: float) -> bool:
        """Extend the lease to `ttl` seconds from now. Returns False if it is lost."""
        ...

    async def release_lease(self, lease: Lease) -> None:
        """Free the lease if it is still held under this counter."""


Due = tuple[int, str]
"""When the earliest reminder of an entity is due, in milliseconds since 1970, and its id."""


@runtime_checkable
class ReminderStore(Protocol):
    """A store that keeps reminders, too: the record of each entity, and an index of each shard by
    time.

    A save with `reminders` writes both in its atomic step. It is refused (StaleFence) also if its
    fence is lower than the shard's, which a home raises by `add_remembered` before it saves or
    reads reminders. So it reads an index that no earlier home changes any more."""

    async def load_reminders(
        self, entity_type: str, shard: str, entity_ids: Sequence[str]
    ) -> list[bytes | None]:
        """Return the records of these entities, None for one without."""
        ...

    async def page_due(
        self, entity_type: str, shard: str, after: Due | None, limit: int
    ) -> list[Due]:
        """Return the first `limit` entries of the shard's index after `after`, in order: by time,
        then by the bytes of the id. Fewer than `limit` means that there are no more."""
        ...

    async def due_shards(self, entity_type: str) -> list[str]:
        """Return every shard whose index has entries, and perhaps others."""
        ...


def reminder_store(store: object) -> ReminderStore | None:
    """Return the store as one that keeps reminders, None if it does not."""
    return store if isinstance(store, ReminderStore) else None


def new_identity() -> str:
    """Return a random text of 64 bits that can name a store."""
    return secrets.token_hex(8)


# ---- abilities that some stores have besides


@runtime_checkable
class HasKeys(Protocol):
    """A store whose servers let processes in by the keys of the cluster."""

    def rekey(self) -> None:
        """Let the servers read the file of their keys again, as far as they can be reached."""
        ...


@runtime_checkable
class MeetsServers(Protocol):
    """A store whose server may become another one, which may have lost writes that the former one
    had acknowledged, or may lose its data."""

    on_new_server: Callable[[], None]
    """Called in the store's event loop when that has happened."""


@runtime_checkable
class ComparesClocks(Protocol):
    """A store whose server has a clock."""

    clock_offset: float | None
    """By how many seconds that clock is ahead of this machine's, as seen last; None before."""


@runtime_checkable
class WatchesSettings(Protocol):
    """A store that watches the settings of its server."""

    @property
    def problems(self) -> tuple[str, ...]:
        """The settings that are unfit now, each with the remedy."""
        ...


@runtime_checkable
class HasLanes(Protocol):
    """A store of several servers, which answer each at its own time."""

    lane: Callable[[str, str], int] | None
    """Returns the number of the server of an entity type's shard; None if there is one server."""


def on_new_server(store: StateStore, call: Callable[[], None]) -> None:
    """Have `call` called whenever the store meets another server (`MeetsServers`)."""
    if isinstance(store, MeetsServers):
        store.on_new_server = call


def clock_offset_of(store: StateStore) -> float | None:
    """Return the `clock_offset` of the store, None if it has no clock of its own."""
    return store.clock_offset if isinstance(store, ComparesClocks) else None


def problems_of(store: StateStore) -> tuple[str, ...]:
    """Return the `problems` of the store, none if it does not look for them."""
    return store.problems if isinstance(store, WatchesSettings) else ()


@runtime_checkable
class HasReplicas(Protocol):
    """A store inside the cluster."""

    @property
    def replicas(self) -> tuple[dict[str, object], ...]:
        """Each replica as this process reaches it: `address`, `serves`, `disk` (its id, or None),
        `why` it does not serve, `member`, False if the ring of the store has none there, `spare`,
        True if it waits to come into the ring, its `zone`, and `repairs`: numbers of its repairs
        from other replicas, empty if it has not answered."""
        ...


@runtime_checkable
class HasVoters(Protocol):
    """A store inside the cluster, whose replicas vote about a split of the cluster."""

    @property
    def voters(self) -> tuple[int, tuple[str, ...]] | None:
        """The number of the ring, and the address of each replica that votes, "" if that is not
        known. None before the start."""
        ...


@runtime_checkable
class CountsValues(Protocol):
    """A store with replicated values."""

    @property
    def value_counts(self) -> Mapping[tuple[str, str], int]:
        """The requests that have ended: `get` or `write`, with `done`, `refused`, `failed`, or `in
        doubt`."""
        ...

    @property
    def value_conflicts(self) -> Mapping[str, int]:
        """Keys that had many values put at the same time when this process last read or wrote them,
        each with their number."""
        ...


def value_counts_of(store: StateStore) -> Mapping[tuple[str, str], int]:
    """Return the `value_counts` of the store, none if it has no replicated values."""
    return store.value_counts if isinstance(store, CountsValues) else {}


def value_conflicts_of(store: StateStore) -> Mapping[str, int]:
    """Return the `value_conflicts` of the store, none if it has no replicated values."""
    return store.value_conflicts if isinstance(store, CountsValues) else {}


def voters_of(store: StateStore) -> tuple[int, tuple[str, ...]] | None:
    """Return the `voters` of the store, None if it is not inside the cluster."""
    return store.voters if isinstance(store, HasVoters) else None


def replicas_of(store: StateStore) -> tuple[dict[str, object], ...]:
    """Return the `replicas` of the store, none if it is not inside the cluster."""
    return store.replicas if isinstance(store, HasReplicas) else ()
