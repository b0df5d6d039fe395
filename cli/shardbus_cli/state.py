"""`state list`, `state show` and `state check`: the saved states of entities, read from the store,
or by a node. Nothing is written, so they may run beside nodes. `state_changes` has the commands
that write.

`state check` reads every stored state by the classes of an application, as its nodes would: run it
with the new version before it is rolled out. Exit code 5 if one cannot be read.

Source: docs/how-to/keep-state.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer

from shardbus_cli import output, parameters, state_changes
from shardbus_cli.app_and_cluster import NamedCluster, app_named, app_or_project
from shardbus_cli.data import opened
from shardbus_cli.dev.layout import DevFolder
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.node_http import NodeHttp

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shardbus.app import ShardBus
    from shardbus.entities import entity_type
    from shardbus.store.protocol import StateStore
    from shardbus.wire.stored_events import EventCodec
    from shardbus.wire.stored_state import StateCodec

app = typer.Typer(help="The stored states of entities.", no_args_is_help=True)
app.command("set")(state_changes.set_)
app.command()(state_changes.remove)
app.command()(state_changes.export)
app.command("import")(state_changes.import_)

T = TypeVar("T")
LISTED = 100
NAMED_MAX = 20
"""States that a check names; it counts the others."""
PAGE = 1000
"""Journals, and events of one, that are read at once."""
SHOWN = 80
"""Characters of a state in a list."""


@app.command("list")
def list_(
    kind: parameters.EntityType,
    store: parameters.MaybeStore = None,
    shard: Annotated[str, typer.Option(help="Only this shard; not with --store.")] = "",
    prefix: Annotated[str, typer.Option(help="Only ids that begin with this.")] = "",
    limit: parameters.Limit = LISTED,
    cursor: Annotated[
        str | None, typer.Option(help="Go on at this page; not with --store.")
    ] = None,
    cluster: parameters.ClusterName = None,
    app: parameters.AppOfCluster = None,
    node: parameters.NodeUrl = parameters.NODE_URL,
    as_json: parameters.Json = False,
) -> None:
    """List entities that have a stored state, in the order of the store: of a node the ids, with
    --store the states, too."""
    named = NamedCluster(cluster, app, node)
    if store is None:
        store = _stopped(named, node)
    if store is None:
        _list_by_node(node, kind, as_json, shard=shard, prefix=prefix, limit=limit, cursor=cursor)
        return
    if shard or cursor:
        raise CommandFailure(
            "--shard and --cursor are not for --store",
            "a node has them: leave out --store and SHARDBUS_STORE__URL",
            code=ExitCode.USAGE,
        )

    from shardbus.store.listing import stored_pages

    async def first(opened: StateStore) -> list[tuple[str, bytes]]:
        states: dict[str, bytes] = {}
        async for page in stored_pages(opened, kind, prefix):
            states |= dict(page.states)
            if len(states) > limit:
                break
        return list(states.items())[: limit + 1]

    stored = _with_store(store, named.name, first)
    rows = [_row(entity_id, data) for entity_id, data in stored[:limit]]
    if as_json:
        output.data(json.dumps({"type": kind, "states": rows, "more": len(stored) > limit}))
        return
    for row in rows:
        row["state"] = json.dumps(row["state"], ensure_ascii=False)[:SHOWN]
    output.table(("id", "version", "bytes", "state"), rows)
    if not rows and (mistake := named.mistaken_type(kind)):
        output.note(mistake)
    if len(stored) > limit:
        output.note(f"there are more: --limit {10 * limit}, or --prefix")


@app.command()
def show(
    kind: parameters.EntityType,
    entity_id: parameters.EntityId,
    store: parameters.MaybeStore = None,
    cluster: parameters.ClusterName = None,
    app: parameters.AppOfCluster = None,
    node: parameters.NodeUrl = parameters.NODE_URL,
) -> None:
    """Show the stored state of one entity, as JSON; through a node with the operator's token."""
    named = NamedCluster(cluster, app, node)
    if store is None:
        store = _stopped(named, node)
    if store is None:
        answer = NodeHttp(node).read("v1", "state", kind, entity_id)
        if not answer["bytes"]:
            raise _no_state(kind, entity_id)
        output.data(answer.text)
        return

    async def read(opened: StateStore) -> bytes | None:
        [data] = await opened.read_states(kind, [entity_id])
        if data is None:
            await _refuse_shared(opened, kind, entity_id)
        return data

    data = _with_store(store, named.name, read)
    if data is None:
        raise _no_state(kind, entity_id, named.mistaken_type(kind))
    output.data(json.dumps(_row(entity_id, data)))


async def _refuse_shared(store: StateStore, kind: str, entity_id: str) -> None:
    """Refuse to show a state that instances share: only an application merges it."""
    import time

    from shardbus.config.settings import DataSettings
    from shardbus.store.protocol import CountsValues
    from shardbus.store.state_values import StateValues

    if isinstance(store, CountsValues):
        values = StateValues(kind, store, DataSettings(), time.time)
        if (await values.read(entity_id)).dots:
            raise CommandFailure(
                f"the instances of {kind} {entity_id!r} share their state: a node shows it",
                "leave out --store",
            )


def _no_state(kind: str, entity_id: str, hint: str = "") -> CommandFailure:
    return CommandFailure(f"{kind} {entity_id!r} has no stored state", hint, code=ExitCode.REFUSED)


@app.command()
def check(
    store: parameters.StoreUrl,
    application: parameters.App = None,
    app: parameters.AppOption = None,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="Only this type; may be repeated."),
    ] = None,
    cluster: parameters.ClusterName = None,
    as_json: parameters.Json = False,
) -> None:
    """Read every stored state and event by the classes of an application; exit code 5 if one cannot
    be."""
    app_or_project(application, app)  # an error says that one is needed
    named = NamedCluster(cluster, app_named(application, app), parameters.NODE_URL, by_app=True)
    bus, name_of_cluster = cast("ShardBus", named.bus), named.name
    chosen = {name: kind for name, kind in bus.types.items() if kind.has_state}
    for name in types or ():
        if name not in chosen:
            why = "has no state" if name in bus.types else "is no type of the application"
            raise CommandFailure(f"{name!r} {why}", code=ExitCode.USAGE)
    chosen = {name: kind for name, kind in chosen.items() if not types or name in types}

    async def read(listed: StateStore) -> dict[str, dict[str, Any]]:
        by_type: dict[str, dict[str, Any]] = {}
        for name, kind in chosen.items():
            check = _checked if kind.merged is None else _checked_merged
            by_type[name] = await check(listed, kind)
            if kind.events is not None:
                await _check_events(listed, kind.events, by_type[name])
        return by_type

    by_type = _with_store(store, name_of_cluster, read)
    if as_json:
        output.data(json.dumps({"cluster": name_of_cluster, "types": by_type}))
    else:
        for name, counts in by_type.items():
            versions = ", ".join(f"{n} of version {v}" for v, n in counts["versions"].items())
            states = output.counted(counts["read"], "state")
            output.data(f"{name}: {states} read{', ' if versions else ''}{versions}")
            if "events" in counts:
                output.data(f"{name}: {output.counted(counts['events'], 'event')} read")
            for line in counts["unreadable"]:
                output.data(output.safe(f"{name}: {line}"))
            if counts["failed"] > len(counts["unreadable"]):
                output.data(f"{name}: and {counts['failed'] - len(counts['unreadable'])} more")
    if any(row["failed"] for row in by_type.values()):
        raise typer.Exit(ExitCode.UNHEALTHY)


async def _checked(listed: StateStore, kind: entity_type.EntityType) -> dict[str, Any]:
    """Return how many states of a type can be read, and the first that cannot."""
    from shardbus.errors import StateUnreadable
    from shardbus.store.listing import stored_pages
    from shardbus.wire.stored_state import split

    states: StateCodec = kind.states  # type: ignore[assignment]
    read, failed, versions = 0, 0, dict[int, int]()
    named: list[str] = []
    async for page in stored_pages(listed, kind.name):
        for entity_id, data in page.states:
            try:
                states.read(entity_id, data)
            except StateUnreadable as error:
                failed += 1
                named += [str(error)] if len(named) < NAMED_MAX else []
                continue
            read += 1
            version = split(data)[0]
            versions[version] = versions.get(version, 0) + 1
    ordered = dict(sorted(versions.items()))
    return {"read": read, "failed": failed, "versions": ordered, "unreadable": named}


async def _check_events(listed: StateStore, events: EventCodec, result: dict[str, Any]) -> None:
    """Read the events of a type, and add their number and the first that cannot be read of each
    entity to the result of `_checked`."""
    from shardbus.errors import StateUnreadable
    from shardbus.store.journal_protocol import journals_of

    kind, journals, cursor = events.entity_type, journals_of(listed), None
    result["events"] = 0
    while journals is not None:
        places, cursor = await journals.page(kind, cursor, PAGE)
        for shard, entity_id in places:
            page = await journals.read(kind, shard, entity_id, 0, PAGE)
            try:
                while page.entries:
                    for number, entry in enumerate(page.entries, page.first):
                        events.read(entity_id, number, entry, events.classes)
                        result["events"] += 1
                    page = await journals.read(kind, shard, entity_id, page.end, PAGE)
            except StateUnreadable as error:
                result["failed"] += 1
                result["unreadable"] += [str(error)][: NAMED_MAX - len(result["unreadable"])]
        if cursor is None:
            return


async def _checked_merged(listed: StateStore, kind: entity_type.EntityType) -> dict[str, Any]:
    """As `_checked`, for a type whose instances share their states: they are merged, too.

    Raises:
        ConfigError: the store has no such states.
    """
    import time

    from shardbus.config.settings import DataSettings
    from shardbus.entities.merged_rows import row_of
    from shardbus.store.state_values import StateValues

    form, values = kind.merged, StateValues(kind.name, listed, DataSettings(), time.time)
    assert form is not None
    read, failed, versions = 0, 0, dict[int, int]()
    named: list[str] = []
    for entity_id in await values.ids():
        row = row_of(form, entity_id, await values.read(entity_id), None)
        if "unreadable" in row:
            failed += 1
            named += [row["unreadable"]] if len(named) < NAMED_MAX else []
        else:
            read += 1
            versions[row["version"]] = versions.get(row["version"], 0) + 1
    return {"read": read, "failed": failed, "versions": versions, "unreadable": named}


def _row(entity_id: str, data: bytes) -> dict[str, Any]:
    """Return a stored state for people: its value as JSON."""
    from shardbus.wire.shown_state import shown

    return {"id": entity_id, **shown(data)}


def _list_by_node(
    node: str, kind: str, as_json: bool, *, limit: int, cursor: str | None, **query: str
) -> None:
    """Print about `limit` ids as a node lists them. Its pages may be shorter, and empty."""
    set_ones: dict[str, Any] = {key: value or None for key, value in query.items()}
    http, rows = NodeHttp(node), list[Any]()
    answer = http.read("v1", "stored", kind, **set_ones, limit=limit, cursor=cursor)
    rows += answer["stored"]
    while len(rows) < limit and answer["next"] is not None:
        left, place = limit - len(rows), answer["next"]
        answer = http.read("v1", "stored", kind, **set_ones, limit=left, cursor=place)
        rows += answer["stored"]
    if as_json:
        output.data(output.as_json({**answer, "stored": rows}))
        return
    output.table(("id", "shard"), rows)
    if answer["next"] is not None:
        output.note(f"there are more: --cursor '{answer['next']}'")


def _with_store(url: str, cluster: str, read: Callable[[StateStore], Awaitable[T]]) -> T:
    """Return the result of reading the store."""
    import asyncio

    async def run() -> T:
        async with opened(url, cluster) as store:
            return await read(store)

    return asyncio.run(run())


def _stopped(named: NamedCluster, node: str) -> str | None:
    """Return the store of a project's cluster that does not run here; None if a node is to be
    asked: one that was named, or one that answers."""
    from shardbus.store.urls import default_url

    if node != parameters.NODE_URL or named.running is not None or named.name_or_none is None:
        return None
    urls = (DevFolder(Path.cwd()).store, default_url(named.name))
    stores = [url for url in urls if Path(url.removeprefix("sqlite:///")).is_file()]
    if len(stores) > 1:
        raise CommandFailure(
            f"no node answers at {node}, and there are two stores",
            f"name one: --store {stores[0]}, of `shardbus dev`, or --store {stores[1]}",
            code=ExitCode.USAGE,
        )
    for url in stores:
        output.note(f"no node answers at {node}: this is read from {url}")
        return url
    return None
