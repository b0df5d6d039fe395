"""`journal show`, `journal export` and `journal import`: the events of one entity, from the store.

`show` and `export` read, so they may run beside nodes. `import` refuses while nodes run.

Source: docs/how-to/event-sourcing.md.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from shardbus_cli import output, parameters
from shardbus_cli.app_and_cluster import NamedCluster
from shardbus_cli.data import opened, refuse_if_running
from shardbus_cli.exit_codes import CommandFailure, ExitCode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from shardbus.app import ShardBus
    from shardbus.store.journal_protocol import JournalStore
    from shardbus.store.protocol import StateStore

app = typer.Typer(help="The events of event-sourced entities.", no_args_is_help=True)

T = TypeVar("T")
SHOWN = 100
"""Characters of an event in a list."""
Type = Annotated[str, typer.Argument(metavar="TYPE", help="Name of the entity type.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the entity.")]


@app.command()
def show(
    kind: Type,
    entity_id: Id,
    store: parameters.StoreUrl,
    after: Annotated[int, typer.Option(min=0, help="Only events after this number.")] = 0,
    limit: parameters.Limit = 100,
    cluster: parameters.ClusterName = None,
    app: parameters.AppOfCluster = None,
    node: parameters.NodeUrl = parameters.NODE_URL,
    as_json: parameters.Json = False,
) -> None:
    """List the stored events of one entity."""
    from shardbus.store.journal_transfer import shown_event

    named = NamedCluster(cluster, app, node, by_app=True)

    async def read(
        states: StateStore, journals: JournalStore
    ) -> tuple[list[dict[str, object]], int]:
        shard = await _shard_of(states, named.bus, kind, entity_id)
        rows: list[dict[str, object]] = []
        page = await journals.read(kind, shard, entity_id, after, limit)
        while page.entries and len(rows) < limit:
            numbers = enumerate(page.entries, page.first)
            rows += [{"number": number, **shown_event(entry)} for number, entry in numbers]
            page = await journals.read(kind, shard, entity_id, page.end, limit - len(rows))
        return rows, page.last

    rows, last = with_journals(store, named.name, read)
    if not last:
        raise CommandFailure(f"{kind} {entity_id!r} has no journal", code=ExitCode.REFUSED)
    if as_json:
        output.data(json.dumps({"type": kind, "id": entity_id, "events": rows, "last": last}))
        return
    for row in rows:
        row["value"] = json.dumps(row.get("value", row.get("raw")), ensure_ascii=False)[:SHOWN]
        if isinstance(numbers := row.get("delivery"), list):
            row["delivery"] = " ".join(map(str, numbers[:-1]))
    columns = ("number", "event", "version", "value", "delivery")
    output.table(columns if any("delivery" in row for row in rows) else columns[:-1], rows)
    if rows and rows[-1]["number"] != last:
        output.note(f"there are more, up to {last}: --after {rows[-1]['number']}")


@app.command()
def export(
    kind: Type,
    entity_id: Id,
    store: parameters.StoreUrl,
    cluster: parameters.ClusterName = None,
    app: parameters.AppOfCluster = None,
    node: parameters.NodeUrl = parameters.NODE_URL,
) -> None:
    """Print the journal of one entity as lines of JSON, with its snapshot."""
    from shardbus.store.journal_transfer import journal_lines

    named = NamedCluster(cluster, app, node, by_app=True)

    async def lines(states: StateStore, journals: JournalStore) -> int:
        shard = await _shard_of(states, named.bus, kind, entity_id)
        made: AsyncIterator[str] = journal_lines(states, journals, kind, shard, entity_id)
        count = 0
        async for line in made:
            output.data(line)
            count += 1
        return count

    output.note(output.counted(with_journals(store, named.name, lines), "line"))


@app.command("import")
def import_(
    store: parameters.StoreUrl,
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="Lines of an export; - is standard input.")
    ] = "-",
    cluster: parameters.ClusterName = None,
    app: parameters.AppOfCluster = None,
    node: parameters.NodeUrl = parameters.NODE_URL,
) -> None:
    """Write the journal of one entity, which has none in this store. No node may run."""
    from shardbus.store.journal_transfer import import_journal

    named = NamedCluster(cluster, app, node, by_app=True)
    bus, name = named.bus, named.stopped()

    async def write(states: StateStore, journals: JournalStore) -> tuple[str, str, int]:
        await refuse_if_running(states, name, bus.types if bus is not None else ())
        with nullcontext(sys.stdin.buffer) if file == "-" else open(file, "rb") as text:  # noqa: ASYNC230
            lines = text.read().splitlines()
        shard = ""
        if bus is not None and lines:
            head = json.loads(lines[0])
            declared = bus.types.get(str(head.get("type")))
            if declared is not None:
                shard = _shard(bus, declared.name, str(head.get("id")))
        return await import_journal(states, journals, lines, shard)

    try:
        kind, entity_id, count = with_journals(store, name, write, creates=True)
    except (OSError, ValueError) as error:
        raise CommandFailure(f"{file}: {error}", code=ExitCode.USAGE) from None
    output.note(f"{kind} {entity_id!r}: {output.counted(count, 'event')}")


def with_journals(
    url: str,
    cluster: str,
    step: Callable[[StateStore, JournalStore], Awaitable[T]],
    *,
    creates: bool = False,
) -> T:
    """Return the result of a step with a store that has journals. `creates` as in `opened`."""
    import asyncio

    from shardbus.store.journal_protocol import journals_of

    async def run() -> T:
        async with opened(url, cluster, creates=creates) as states:
            journals = journals_of(states)
            if journals is None:
                raise CommandFailure("this store has no journals", code=ExitCode.USAGE)
            return await step(states, journals)

    return asyncio.run(run())


def _shard(bus: ShardBus, kind: str, entity_id: str) -> str:
    from shardbus.routing.paths import shard_function_of

    return shard_function_of(bus.types[kind].interface)(entity_id)


async def _shard_of(store: StateStore, bus: ShardBus | None, kind: str, entity_id: str) -> str:
    """Return the shard of an entity: by the application, else by the stored table of its type."""
    from shardbus.store.placement import shard_function

    if bus is not None and kind in bus.types:
        return _shard(bus, kind, entity_id)
    table = await store.load_table(kind)
    function = None if table is None else shard_function(table.layout)
    if function is None:
        raise CommandFailure(
            f"the shard of {kind} {entity_id!r} is not known",
            "name the application by --app",
            code=ExitCode.USAGE,
        )
    return function(entity_id)
