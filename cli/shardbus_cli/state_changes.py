"""`state set`, `state remove`, `state export` and `state import`.

`set` and `remove` ask a node, which lets the owner of the entity do it: the node's HTTP needs
`http.write` and the operator's token. With `--store` they write the store themselves, as `import`
does, and refuse that while nodes run. `export` reads, and may run beside nodes.

Source: docs/how-to/keep-state.md.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from shardbus_cli import output
from shardbus_cli.app_and_cluster import NamedCluster
from shardbus_cli.data import opened, refuse_if_running
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.node_http import NodeHttp
from shardbus_cli.parameters import NODE_URL, AppOfCluster, ClusterName, Json, NodeUrl, StoreUrl

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from shardbus.app import ShardBus
    from shardbus.entities.entity_type import EntityType
    from shardbus.store.protocol import ReminderStore, StateStore
    from shardbus.store.transfer import Imported, StoredEntity

BATCH = 500
"""Entities that an import writes at a time, unless they are long."""
BATCH_BYTES = 4 * 1024 * 1024
"""Of lines that an import has read and not written, about."""
REMEMBERED_PAGE = 1000
Type = Annotated[str, typer.Argument(metavar="TYPE", help="Name of the entity type.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the entity.")]
Store = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="URL", help="Write this store; no node may run. Default: ask a node."
    ),
]
Revision = Annotated[
    str | None,
    typer.Option(
        "--revision", metavar="TEXT", help="Only if `state show` still has it; not with --store."
    ),
]


def set_(
    kind: Type,
    entity_id: Id,
    state: Annotated[str, typer.Argument(metavar="JSON", help="The state, as `show` prints it.")],
    store: Store = None,
    revision: Revision = None,
    cluster: ClusterName = None,
    app: AppOfCluster = None,
    node: NodeUrl = NODE_URL,
) -> None:
    """Set the state of one entity, which starts again with it."""
    from shardbus.wire.plain_json import from_json
    from shardbus.wire.schema import encode_value

    try:
        plain = from_json(json.loads(state))
    except ValueError as error:
        raise CommandFailure(f"the state is no JSON: {error}", code=ExitCode.USAGE) from None
    if store is None:
        path = ("v1", "state", kind, entity_id)
        output.data(NodeHttp(node).post_json(state, *path, revision=revision))
        return
    _check_by_node(revision)
    named = NamedCluster(cluster, app, node, by_app=True)
    bus = named.bus
    known = bus.types.get(kind) if bus is not None else None
    _check_settable(kind, known)
    if (app is not None and known is None) or (known is not None and known.states is None):
        raise CommandFailure(f"{kind!r} is no type with state of the application")
    data = encode_value(plain) if known is None else known.states.of_plain(plain)  # type: ignore[union-attr]
    _write_here(store, named, kind, entity_id, data)


def remove(
    kind: Type,
    entity_id: Id,
    store: Store = None,
    revision: Revision = None,
    cluster: ClusterName = None,
    app: AppOfCluster = None,
    node: NodeUrl = NODE_URL,
) -> None:
    """Remove the state of one entity, which starts again without one."""
    if store is None:
        output.data(NodeHttp(node).delete("v1", "state", kind, entity_id, revision=revision).text)
        return
    _check_by_node(revision)
    named = NamedCluster(cluster, app, node, by_app=True)
    _check_settable(kind, named.bus.types.get(kind) if named.bus is not None else None)
    _write_here(store, named, kind, entity_id, None)


def export(
    store: StoreUrl,
    types: Annotated[
        list[str] | None, typer.Argument(metavar="[TYPE]...", help="Names of entity types.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every type with state or reminders of the application.")
    ] = False,
    prefix: Annotated[str, typer.Option(help="Only ids that begin with this.")] = "",
    after: Annotated[
        str | None,
        typer.Option(metavar="PAGE", help="Go on at this page of one type: the last `page` read."),
    ] = None,
    rate: Annotated[int, typer.Option(min=1, help="Entities per second.")] = 100_000,
    cluster: ClusterName = None,
    app: AppOfCluster = None,
    node: NodeUrl = NODE_URL,
) -> None:
    """Print every stored state as a line of JSON, reminders, and entities that are remembered."""
    import asyncio

    named = NamedCluster(cluster, app, node, by_app=True)
    bus = named.bus
    names = list(types or ())
    if every and bus is not None:
        kept = [(name, k.states is not None or k.reminds) for name, k in bus.types.items()]
        names = [name for name, keeps in kept if keeps]
    if not names or (every and (bus is None or types)) or (after is not None and len(names) != 1):
        raise CommandFailure(
            "give TYPE..., or --all with an application; --after is for one type",
            "--app names one, or pyproject.toml",
            code=ExitCode.USAGE,
        )
    name = named.name

    async def print_all() -> int:
        found, count = await opened(store, name), 0
        try:
            for kind in names:
                before = count
                async for line in _lines(found, bus, kind, prefix, after, rate):
                    output.data(line)
                    count += 1
                if count == before and (mistake := named.mistaken_type(kind)):
                    raise CommandFailure(mistake, code=ExitCode.REFUSED)
        finally:
            await found.close()
        return count

    output.note(output.counted(asyncio.run(print_all()), "line"))


def import_(
    store: StoreUrl,
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="Lines of an export; - is standard input.")
    ] = "-",
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace another state that is there.")
    ] = False,
    skip: Annotated[
        bool, typer.Option("--skip-existing", help="Keep another state that is there.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check all, write nothing.")] = False,
    cluster: ClusterName = None,
    app: AppOfCluster = None,
    node: NodeUrl = NODE_URL,
    as_json: Json = False,
) -> None:
    """Write the lines of an export into a store. No node may run. It may be repeated."""
    import asyncio

    from msgspec.structs import asdict

    if replace and skip:
        raise CommandFailure("--replace or --skip-existing, not both", code=ExitCode.USAGE)
    named = NamedCluster(cluster, app, node, by_app=True)
    bus, name = named.bus, named.name if dry_run else named.stopped()
    existing = "replace" if replace else "skip" if skip else "refuse"

    async def write_all() -> Imported:
        found = await opened(store, name, creates=True)
        try:
            if not dry_run:
                await refuse_if_running(found, name, bus.types if bus is not None else ())
            with nullcontext(sys.stdin.buffer) if file == "-" else open(file, "rb") as lines:  # noqa: ASYNC230
                return await _import(found, bus, lines, existing, write=not dry_run)
        finally:
            await found.close()

    try:
        done = asdict(asyncio.run(write_all()))
    except OSError as error:
        raise CommandFailure(f"{file}: {error.strerror}", code=ExitCode.USAGE) from None
    if as_json:
        output.data(json.dumps({"cluster": name, "dry_run": dry_run, **done}))
    else:
        counts = ", ".join(f"{count} {what}" for what, count in done.items())
        output.note(f"{counts}{': nothing was written' if dry_run else ''}")


async def _import(
    store: StateStore, bus: ShardBus | None, lines: Iterable[bytes], existing: str, *, write: bool
) -> Imported:
    from shardbus.errors import ConfigError, StateUnreadable
    from shardbus.store.transfer import Importer, read_line

    finder = ShardFinder(store, bus)
    importer = Importer(store, finder.find, existing=existing, write=write)
    batch: list[tuple[int, StoredEntity]] = []
    size = 0
    strange: dict[str, int] = {}
    """The types that the application lacks, each with its first line."""

    async def put() -> None:
        other = await importer.put([one for _, one in batch])
        if other is not None:
            number = next(n for n, one in batch if one is other)
            raise CommandFailure(
                f"line {number}: {other.entity_type} {other.entity_id!r:.100} has"
                f" {'another state' if other.reminders is None else 'other reminders'}",
                "use --replace or --skip-existing",
                code=ExitCode.REFUSED,
            )
        batch.clear()

    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            one = read_line(line)
            known = bus.types.get(one.entity_type) if bus is not None else None
            if bus is not None and known is None:
                strange.setdefault(one.entity_type, number)
            if one.data is not None and known is not None and known.states is not None:
                known.states.read(one.entity_id, one.data)
            if one.reminders is not None:
                with nullcontext() if not one.shard else suppress(ConfigError):
                    one = one._replace(shard=await finder.learn(one.entity_type, one.entity_id))
            elif not one.shard or (one.data is not None and finder.places):
                one = one._replace(shard=await finder.learn(one.entity_type, one.entity_id))
        except (ConfigError, StateUnreadable) as error:
            raise CommandFailure(f"line {number}: {error}", code=ExitCode.REFUSED) from None
        batch.append((number, one))
        size += len(line)
        if len(batch) == BATCH or size >= BATCH_BYTES:
            await put()
            size = 0
    await put()
    for entity_type, number in strange.items():
        output.note(f"line {number}: the application has no type {entity_type!r:.100}")
    return importer.done


class ShardFinder:
    """Finds the shard of an entity: by the class of an application, or by the stored table."""

    def __init__(self, store: StateStore, bus: ShardBus | None) -> None:
        from shardbus.store.placement import RecordingStore, placing

        self._store, self._bus, self._placing = store, bus, placing(store)
        self._records = store if isinstance(store, RecordingStore) else None
        self._known: dict[str, Callable[[str], str] | None] = {}

    @property
    def places(self) -> bool:
        """True if the store finds a state by its shard, so that the shard must be right."""
        return self._placing is not None

    async def learn(self, entity_type: str, entity_id: str) -> str:
        """Return the shard.

        Raises:
            ConfigError: neither has it, or the stored states are placed by another layout.
        """
        if entity_type not in self._known:
            self._known[entity_type] = await self._function(entity_type)
        function = self._known[entity_type]
        if function is None:
            from shardbus.errors import ConfigError

            raise ConfigError(
                f"the shard of {entity_type} {entity_id!r:.100} is not known", hint="give --app"
            )
        return function(entity_id)

    def find(self, entity_type: str, entity_id: str) -> str:
        """Return the shard of a type passed to `learn` before, empty if it is not known."""
        function = self._known.get(entity_type)
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
            known = shard_function(layout)
            if known is None:
                return None
            function = known
        if self._placing is not None:
            placed = await self._placing.placed(entity_type, layout, function)
            if placed != layout:
                raise StatesElsewhere(entity_type, layout, placed)
        return function


async def _lines(
    store: StateStore,
    bus: ShardBus | None,
    kind: str,
    prefix: str,
    after: str | None,
    rate: int,
) -> AsyncIterator[str]:
    """Yield the lines of one type, at most `rate` per second."""
    import asyncio

    from shardbus.errors import ConfigError
    from shardbus.store.listing import stored_pages
    from shardbus.store.protocol import reminder_store
    from shardbus.store.transfer import StoredEntity, line_of

    finder, began, count = ShardFinder(store, bus), time.monotonic(), 0
    with suppress(ConfigError):  # then the lines have no shard
        await finder.learn(kind, "x")
    async for page in stored_pages(store, kind, prefix, after):
        mark = page.cursor
        for entity_id, data in page.states:
            shard = finder.find(kind, entity_id)
            yield line_of(StoredEntity(kind, entity_id, shard, data), mark)
            mark, count = None, count + 1
        await asyncio.sleep(max(0.0, count / rate - (time.monotonic() - began)))
    if (reminders := reminder_store(store)) is not None:
        async for entity in _reminded(reminders, kind):
            if entity.entity_id.startswith(prefix):
                yield line_of(entity)
    for shard in sorted(await store.remembered_shards(kind)):
        cursor: str | None = None
        while True:
            ids, cursor = await store.page_remembered(kind, shard, cursor, REMEMBERED_PAGE)
            for entity_id in ids:
                if entity_id.startswith(prefix):
                    yield line_of(StoredEntity(kind, entity_id, shard, None))
            if cursor is None:
                break


async def _reminded(store: ReminderStore, kind: str) -> AsyncIterator[StoredEntity]:
    """Yield the reminders of a type's entities, shard by shard."""
    from shardbus.store.protocol import Reminders
    from shardbus.store.transfer import StoredEntity

    for shard in sorted(await store.due_shards(kind)):
        page = await store.page_due(kind, shard, None, REMEMBERED_PAGE)
        while page:
            ids = [entity_id for _, entity_id in page]
            records = await store.load_reminders(kind, shard, ids)
            for (due, entity_id), record in zip(page, records, strict=True):
                if record is not None:
                    yield StoredEntity(kind, entity_id, shard, None, Reminders(due, record, True))
            page = await store.page_due(kind, shard, page[-1], REMEMBERED_PAGE)


def _check_by_node(revision: str | None) -> None:
    if revision is not None:
        raise CommandFailure("--revision is not for --store", code=ExitCode.USAGE)


def _check_settable(kind: str, known: EntityType | None) -> None:
    """Check that a state is not made by events, as far as the application is known.

    Raises:
        CommandFailure: it is.
    """
    if known is not None and (known.events is not None or known.projection is not None):
        hint = "let a handler persist an event, or `shardbus projection rewind`"
        raise CommandFailure(f"the state of {kind} is made by events", hint, code=ExitCode.REFUSED)


def _write_here(
    url: str, named: NamedCluster, kind: str, entity_id: str, data: bytes | None
) -> None:
    """Write one state into the store, unless a node runs. The numbers of its deliveries stay: what
    has taken effect does so no more."""
    import asyncio

    from shardbus.store.transfer import write_states
    from shardbus.wire.stored_state import split_numbered, split_record, with_record

    name, bus = named.stopped(), named.bus

    async def write() -> None:
        store = await opened(url, name)
        try:
            await refuse_if_running(store, name, (kind,))
            [stored] = await store.read_states(kind, [entity_id])
            record, alone = split_record(stored or b"")
            if split_numbered(alone)[0]:
                text = f"the state of {kind} {entity_id!r:.100} is made by events"
                raise CommandFailure(text, "name the application by --app", code=ExitCode.REFUSED)
            shard = await ShardFinder(store, bus).learn(kind, entity_id)
            new = with_record(record, data) if record else data
            await write_states(store, [(kind, shard, entity_id, new)])
        finally:
            await store.close()

    asyncio.run(write())
    change = "removed" if data is None else f"{output.counted(len(data), 'byte')} set"
    output.note(f"{kind} {entity_id!r}: {change}")
