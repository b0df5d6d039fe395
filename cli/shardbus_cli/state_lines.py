"""The lines of `state export` and `state import`: the stored data of one type after the other.

    states          with the records of their deliveries, as `raw`
    shared states   of types whose instances share them
    reminders       of each entity that has some
    journals        of event-sourced entities and queues, with their snapshots in place of a state;
                    of durable mailboxes
    lists           of remembered entities, and of those with deliveries or messages that wait

Outboxes belong to no type. Tables, fences and leases are made anew; the replicated values of
`bus.data` have a backup of their own (`store backup`).

Source: docs/how-to/back-up.md; docs/how-to/keep-state.md.
"""

from __future__ import annotations

import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from shardbus_cli import output
from shardbus_cli.exit_codes import CommandFailure, ExitCode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from shardbus.app import ShardBus
    from shardbus.entities.entity_type import EntityType
    from shardbus.store.journal_protocol import JournalStore
    from shardbus.store.journal_transfer import JournalEntry, JournalHead
    from shardbus.store.protocol import ReminderStore, StateStore
    from shardbus.store.shared_states import SharedState
    from shardbus.store.transfer import StoredEntity

BATCH = 500
"""Entities, or entries of a journal, that an import writes at a time, unless they are long."""
BATCH_BYTES = 4 * 1024 * 1024
"""Of lines that an import has read and not written, about."""
PAGE = 1000


class ShardFinder:
    """Finds the shard of an entity: by the class of an application, or by the stored table."""

    def __init__(self, store: StateStore, bus: ShardBus | None) -> None:
        from shardbus.store.placement import RecordingStore, placing

        self._store, self._bus, self._placing = store, bus, placing(store)
        self._records = store if isinstance(store, RecordingStore) else None
        self._shard_functions: dict[str, Callable[[str], str] | None] = {}

    @property
    def places(self) -> bool:
        """True if the store finds a state by its shard, so that the shard must be right."""
        return self._placing is not None

    async def learn(self, entity_type: str, entity_id: str) -> str:
        """Return the shard.

        Raises:
            ConfigError: neither has it, or the stored states are placed by another layout.
        """
        if entity_type not in self._shard_functions:
            self._shard_functions[entity_type] = await self._function(entity_type)
        function = self._shard_functions[entity_type]
        if function is None:
            from shardbus.errors import ConfigError

            raise ConfigError(
                f"the shard of {entity_type} {entity_id!r:.100} is not known", hint="give --app"
            )
        return function(entity_id)

    def find(self, entity_type: str, entity_id: str) -> str:
        """Return the shard of a type passed to `learn` before, empty if it is not known."""
        function = self._shard_functions.get(entity_type)
        return "" if function is None else function(entity_id)

    async def _function(self, entity_type: str) -> Callable[[str], str] | None:
        from shardbus.errors import StatesElsewhere
        from shardbus.routing.paths import place_function_of
        from shardbus.store.placement import shard_function

        if self._bus is not None and entity_type in self._bus.types:
            interface = self._bus.types[entity_type].interface
            layout, function = interface.layout, place_function_of(interface)
        else:
            table = await self._store.load_table(entity_type)
            layout = await self._records.placement(entity_type) if self._records else ""
            layout = layout or (table.layout if table is not None else "")
            parsed = shard_function(layout)
            if parsed is None:
                return None
            function = parsed
        if self._placing is not None:
            placed = await self._placing.placed(entity_type, layout, function)
            if placed != layout:
                raise StatesElsewhere(entity_type, layout, placed)
        return function


async def lines_of_type(
    store: StateStore,
    bus: ShardBus | None,
    kind: str,
    prefix: str,
    after: str | None,
    rate: int,
) -> AsyncIterator[str]:
    """Yield the lines of one type, at most `rate` states per second."""
    import asyncio

    from shardbus.entities import durable_mailboxes, entity_sends
    from shardbus.errors import ConfigError
    from shardbus.store.journal_protocol import journals_of
    from shardbus.store.listing import stored_pages
    from shardbus.store.protocol import reminder_store
    from shardbus.store.shared_states import line_of_shared, shared_states
    from shardbus.store.transfer import StoredEntity, line_of

    finder, began, count = ShardFinder(store, bus), time.monotonic(), 0
    journals = journals_of(store)
    with suppress(ConfigError):  # then the lines have no shard
        await finder.learn(kind, "x")
    async for page in stored_pages(store, kind, prefix, after):
        mark = page.cursor
        for entity_id, data in page.states:
            shard = finder.find(kind, entity_id)
            if not await _is_snapshot(journals, (kind, shard, entity_id), data):
                yield line_of(StoredEntity(kind, entity_id, shard, data), mark)
                mark, count = None, count + 1
        await asyncio.sleep(max(0.0, count / rate - (time.monotonic() - began)))
    async for shared in shared_states(store, kind, prefix):
        yield line_of_shared(shared)
    if (reminders := reminder_store(store)) is not None:
        async for entity in _reminded(reminders, kind):
            if entity.entity_id.startswith(prefix):
                yield line_of(entity)
    for journal in (kind, durable_mailboxes.JOURNAL + kind):
        async for line in _journals(store, journals, journal, prefix):
            yield line
    for name in (kind, kind + entity_sends.LIST, kind + durable_mailboxes.LIST):
        async for line in _listed(store, name, prefix):
            yield line


async def lines_of_outboxes(store: StateStore) -> AsyncIterator[str]:
    """Yield the lines of the outboxes of clients."""
    from shardbus.store.journal_protocol import journals_of
    from shardbus.store.outboxes import LIST, REGISTER_TYPE
    from shardbus.transport.permissions import OUTBOX_TYPE

    for kind in (OUTBOX_TYPE, REGISTER_TYPE):
        async for line in _journals(store, journals_of(store), kind, ""):
            yield line
    async for line in _listed(store, LIST, ""):
        yield line


async def _is_snapshot(
    journals: JournalStore | None, place: tuple[str, str, str], data: bytes
) -> bool:
    """True if a state is of an entity with a journal, whose lines have it."""
    from shardbus.wire.stored_state import split_numbered, split_record

    try:
        number, _ = split_numbered(split_record(data)[1])
    except ValueError:
        return False
    return bool(number and journals is not None and (await journals.read(*place, 0, 0)).last)


async def _journals(
    store: StateStore, journals: JournalStore | None, kind: str, prefix: str
) -> AsyncIterator[str]:
    """Yield the lines of the journals of a kind. The name of a mailbox has its shard in front."""
    from shardbus.store.journal_transfer import journal_lines

    cursor: str | None = None
    while journals is not None:
        places, cursor = await journals.page(kind, cursor, PAGE)
        for shard, name in places:
            if name.removeprefix(f"{shard}/").startswith(prefix):
                async for line in journal_lines(store, journals, kind, shard, name):
                    yield line
        if cursor is None:
            return


async def _listed(store: StateStore, name: str, prefix: str) -> AsyncIterator[str]:
    """Yield the lines of the entities on the lists of this name."""
    from shardbus.store.transfer import StoredEntity, line_of

    for shard in sorted(await store.remembered_shards(name)):
        cursor: str | None = None
        while True:
            ids, cursor = await store.page_remembered(name, shard, cursor, PAGE)
            for entity_id in ids:
                if entity_id.startswith(prefix):
                    yield line_of(StoredEntity(name, entity_id, shard, None))
            if cursor is None:
                break


async def _reminded(store: ReminderStore, kind: str) -> AsyncIterator[StoredEntity]:
    """Yield the reminders of a type's entities, shard by shard."""
    from shardbus.store.protocol import Reminders
    from shardbus.store.transfer import StoredEntity

    for shard in sorted(await store.due_shards(kind)):
        page = await store.page_due(kind, shard, None, PAGE)
        while page:
            ids = [entity_id for _, entity_id in page]
            records = await store.load_reminders(kind, shard, ids)
            for (due, entity_id), record in zip(page, records, strict=True):
                if record is not None:
                    yield StoredEntity(kind, entity_id, shard, None, Reminders(due, record, True))
            page = await store.page_due(kind, shard, page[-1], PAGE)


async def import_lines(
    store: StateStore, bus: ShardBus | None, lines: Iterable[bytes], existing: str, *, write: bool
) -> dict[str, int]:
    """Write the lines of an export. Returns counts.

    Raises:
        CommandFailure: a line is wrong, or other data are there and `existing` is `refuse`.
    """
    from shardbus.errors import ConfigError, StateUnreadable

    importer = LineImporter(store, bus, existing, write=write)
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                await importer.take(number, line)
            except (ConfigError, StateUnreadable) as error:
                raise CommandFailure(f"line {number}: {error}", code=ExitCode.REFUSED) from None
    return await importer.end()


class LineImporter:
    """Writes the lines of an export, in batches. Arguments as for `Importer`."""

    def __init__(
        self, store: StateStore, bus: ShardBus | None, existing: str, *, write: bool
    ) -> None:
        from shardbus.store.journal_protocol import journals_of
        from shardbus.store.journal_transfer import JournalImporter
        from shardbus.store.shared_states import SharedImporter
        from shardbus.store.transfer import Importer

        self._bus, self._finder = bus, ShardFinder(store, bus)
        choices = {"existing": existing, "write": write}
        self._states = Importer(store, self._finder.find, **choices)  # type: ignore[arg-type]
        self._journals = JournalImporter(store, journals_of(store), **choices)  # type: ignore[arg-type]
        self._shared = SharedImporter(store, **choices)  # type: ignore[arg-type]
        self._batch: list[tuple[int, StoredEntity]] = []
        self._entries: list[JournalEntry] = []
        self._size = 0
        self._head_at = 0
        """The line at which the journal began whose entries come."""
        self._strange: dict[str, int] = {}
        """The types that the application lacks, each with its first line."""

    async def take(self, number: int, line: bytes) -> None:
        """Take a line. Raises as `import_lines`, and ConfigError and StateUnreadable."""
        from shardbus.store.journal_transfer import JournalEntry, JournalHead, read_export_line
        from shardbus.store.shared_states import SharedState

        item = read_export_line(line)
        self._size += len(line)
        if isinstance(item, JournalEntry):
            self._entries.append(item)
        elif isinstance(item, JournalHead):
            await self._put()
            await self._begin(number, item)
        elif isinstance(item, SharedState):
            await self._put_shared(number, item)
        else:
            if self._journals.head is not None:
                await self._put()
                await self._journals.end()
            self._batch.append((number, await self._placed(number, item)))
        if len(self._batch) + len(self._entries) >= BATCH or self._size >= BATCH_BYTES:
            await self._put()

    async def end(self) -> dict[str, int]:
        """Write the last batch. Returns counts."""
        from msgspec.structs import asdict

        await self._put()
        await self._journals.end()
        for entity_type, number in self._strange.items():
            output.note(f"line {number}: the application has no type {entity_type!r:.100}")
        done, journals = asdict(self._states.done), self._journals
        done["same"] += journals.same + self._shared.same
        done["skipped"] += journals.skipped + self._shared.skipped
        return {**done, "shared": self._shared.written, "journals": journals.written}

    async def _put_shared(self, number: int, state: SharedState) -> None:
        """Write a state that instances share, once their class has read it."""
        from shardbus.entities.merged_rows import copy_of
        from shardbus.errors import ConfigError
        from shardbus.store.shared_states import value_of

        declared = self._note_type(number, state.entity_type)
        if declared is not None and declared.merged is None:
            raise ConfigError(
                f"the type {state.entity_type} has no state that instances share in the application"
            )
        if declared is not None and declared.merged is not None:
            copy_of(declared.merged, state.entity_id, value_of(state))
        if not await self._shared.put(state):
            name = f"{state.entity_type} {state.entity_id!r:.100}"
            raise self._other(number, f"{name} has another state")

    async def _begin(self, number: int, head: JournalHead) -> None:
        from shardbus.errors import ConfigError

        await self._journals.end()
        self._head_at = number
        if not head.kind.startswith("$"):  # a node finds the mailboxes of another layout
            self._note_type(number, head.kind)
            with suppress(ConfigError):
                head = head._replace(shard=await self._finder.learn(head.kind, head.name))
        if not await self._journals.begin(head):
            raise self._other(number, f"{head.kind} {head.name!r:.100} has another journal")

    async def _placed(self, number: int, row: StoredEntity) -> StoredEntity:
        """Return an entity with its shard, once its class has read its state."""
        from shardbus.errors import ConfigError

        declared = self._note_type(number, row.entity_type)
        if row.data is not None and declared is not None and declared.states is not None:
            declared.states.read(row.entity_id, row.data)
        if row.data is not None and declared is not None and declared.merged is not None:
            raise ConfigError(f"the instances of {row.entity_type} share their states")
        finder = self._finder
        if row.reminders is not None:
            with nullcontext() if not row.shard else suppress(ConfigError):
                row = row._replace(shard=await finder.learn(row.entity_type, row.entity_id))
        elif not row.shard or (row.data is not None and finder.places):
            row = row._replace(shard=await finder.learn(row.entity_type, row.entity_id))
        return row

    def _note_type(self, number: int, entity_type: str) -> EntityType | None:
        """Return a type of the application; note one that it lacks."""
        name = entity_type.partition("!")[0]
        declared = self._bus.types.get(name) if self._bus is not None else None
        if self._bus is not None and declared is None and not name.startswith("$"):
            self._strange.setdefault(name, number)
        return declared

    async def _put(self) -> None:
        """Write the batch."""
        other = await self._states.put([row for _, row in self._batch])
        if other is not None:
            number = next(n for n, row in self._batch if row is other)
            what = "another state" if other.reminders is None else "other reminders"
            name = f"{other.entity_type} {other.entity_id!r:.100}"
            raise self._other(number, f"{name} has {what}")
        self._batch.clear()
        entries, self._entries, self._size = self._entries, [], 0
        if not await self._journals.put(entries):
            raise self._other(self._head_at, "another journal is there, with other entries")

    @staticmethod
    def _other(number: int, text: str) -> CommandFailure:
        hint = "use --replace or --skip-existing"
        return CommandFailure(f"line {number}: {text}", hint, code=ExitCode.REFUSED)
