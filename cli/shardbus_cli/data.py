"""`data show`, `data remove`, `data repair` and `data migrate`: the stored data of a stopped
cluster.

After the table of a type is removed, the next start allocates its shards anew, as a change of the
number of shards requires. A repair puts right rows that no node can have written (`store.repair`);
with `--dry-run` it only reports, and may run beside nodes. Otherwise both are refused while nodes
run, because they would go on with the former data. `data migrate` moves states to the places where
this release and the application look for them (`store.migration`). A node runs if its HTTP answers
for this cluster, or if a process listens at an address in the store: of a home in these tables, or
in the node registry, which has every node from its start to its end.

Source: S2.53, S2.54; N.6.
"""

from __future__ import annotations

import json
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardbus_cli import output, parameters
from shardbus_cli.app_and_cluster import NamedCluster, app_named, runs
from shardbus_cli.exit_codes import CommandFailure, ExitCode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from shardbus import ShardBus
    from shardbus.ids import Address
    from shardbus.store.migration import Declared, Migration
    from shardbus.store.protocol import StateStore, StoredTable

app = typer.Typer(help="Shard tables in the state store.", no_args_is_help=True)

CONNECT_TIMEOUT_S = 1.0
CALL_TIMEOUT_S = 10.0
"""Seconds for one call to the store: nothing else waits for it."""
PROGRESS_S = 1.0
"""Seconds between two lines of progress."""
PROBES_MAX = 100
Types = Annotated[list[str], typer.Argument(metavar="TYPE...", help="Names of entity types.")]


@app.command()
def show(
    types: Types,
    store: parameters.StoreUrl,
    cluster: parameters.ClusterName = None,
    app: parameters.AppOfCluster = None,
    node: parameters.NodeUrl = parameters.NODE_URL,
    as_json: parameters.Json = False,
) -> None:
    """Show the stored shard tables of some types."""
    import asyncio

    name = NamedCluster(cluster, app, node).name
    tables = asyncio.run(_load(store, name, types))
    answer = {"cluster": name, "types": [_described(kind, tables[kind]) for kind in types]}
    if as_json:
        output.data(json.dumps(answer))
    else:
        output.table(("type", "epoch", "layout", "shards", "nodes"), answer["types"])  # type: ignore[arg-type]


@app.command()
def remove(
    types: Types,
    store: parameters.StoreUrl,
    cluster: parameters.ClusterName = None,
    app: parameters.AppOfCluster = None,
    node: parameters.NodeUrl = parameters.NODE_URL,
) -> None:
    """Remove the stored shard tables of some types. The cluster must be stopped."""
    import asyncio

    name = NamedCluster(cluster, app, node).stopped()
    for kind, removed in asyncio.run(_remove(store, name, types)).items():
        output.note(f"{kind}: {'removed' if removed else 'nothing was stored'}")


@app.command()
def repair(
    types: Types,
    store: parameters.StoreUrl,
    cluster: parameters.ClusterName = None,
    app: parameters.AppOfCluster = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report, write nothing; exit code 5 if it would.")
    ] = False,
    node: parameters.NodeUrl = parameters.NODE_URL,
    as_json: parameters.Json = False,
) -> None:
    """Repair epochs, fences and rows that no node can have written. The cluster must be stopped."""
    import asyncio

    named = NamedCluster(cluster, app, node)
    name = named.name if dry_run else named.stopped()
    damage = asyncio.run(_repair(store, name, types, write=not dry_run))
    if as_json:
        output.data(json.dumps({"cluster": name, "written": not dry_run, "found": damage}))
    for kind, lines in {} if as_json else damage.items():
        for line in lines or ["nothing is wrong"]:
            output.data(output.safe(f"{kind}: {line}"))
    if dry_run and any(damage.values()):
        raise typer.Exit(ExitCode.UNHEALTHY)


@app.command()
def migrate(
    store: parameters.StoreUrl,
    application: parameters.App = None,
    app: parameters.AppOption = None,
    cluster: parameters.ClusterName = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count, write nothing; exit code 5 if it would.")
    ] = False,
    node: parameters.NodeUrl = parameters.NODE_URL,
    as_json: parameters.Json = False,
) -> None:
    """Move stored states to where this release, or APP, looks for them. The cluster must be
    stopped."""
    import asyncio

    named = NamedCluster(cluster, app_named(application, app), node, by_app=True)
    declared = {} if named.bus is None else _declared(named.bus)
    name = named.name if dry_run else named.stopped()
    report = asyncio.run(_migrate(store, name, declared, write=not dry_run))
    if as_json:
        output.data(json.dumps({"cluster": name, "written": not dry_run, **report}))
    else:
        for line in report["lines"]:
            output.data(output.safe(line))
    if dry_run and not report["done"]:
        raise typer.Exit(ExitCode.UNHEALTHY)


def _addresses(tables: Iterable[StoredTable | None]) -> set[Address]:
    homes = [home for table in tables if table for home, _ in table.homes.values()]
    return {home.address for home in homes}


async def _listening(addresses: Iterable[Address]) -> list[Address]:
    """Return the addresses at which a process listens."""
    import asyncio

    from shardbus.transport.name_resolver import NameResolver
    from shardbus.transport.tcp_probe import open_probe

    resolver = NameResolver()
    resolver.open(asyncio.get_running_loop())
    at_once = asyncio.Semaphore(PROBES_MAX)

    async def listens(address: Address) -> bool:
        try:
            async with at_once, asyncio.timeout(CONNECT_TIMEOUT_S):
                host = await resolver.resolve(address.host, CONNECT_TIMEOUT_S)
                connection = await open_probe(host, address.port)
        except (OSError, TimeoutError):
            return False
        connection.close()
        return True

    peers = sorted(addresses)
    answers = await asyncio.gather(*(listens(address) for address in peers))
    return [address for address, answered in zip(peers, answers, strict=True) if answered]


def _described(kind: str, table: StoredTable | None) -> dict[str, Any]:
    if table is None:
        return {"type": kind, "epoch": None, "layout": None, "shards": 0, "nodes": []}
    from shardbus.sharding.intents import split_intents

    homes, _ = split_intents(table.homes)
    nodes = sorted({str(home) for home, _ in table.homes.values()})
    return {
        "type": kind,
        "epoch": table.epoch,
        "layout": table.layout,
        "shards": len(homes),
        "nodes": nodes,
    }


async def _load(url: str, cluster: str, types: list[str]) -> dict[str, StoredTable | None]:
    async with opened(url, cluster) as store:
        return {kind: await store.load_table(kind) for kind in types}


async def _remove(url: str, cluster: str, types: list[str]) -> dict[str, bool]:
    """Remove the tables, unless a node runs. Registered nodes that do not run are unregistered."""
    from shardbus.store import node_registry

    async with opened(url, cluster) as store:
        nodes = await refuse_if_running(store, cluster, types)
        removed = {kind: await store.remove_table(kind) for kind in types}
        await node_registry.remove(store, nodes)
        return removed


async def refuse_if_running(
    store: StateStore, cluster: str, types: Iterable[str]
) -> frozenset[Address]:
    """Return the registered nodes, none of which runs.

    Raises:
        CommandFailure: one runs, or a process listens where the tables of these types have a home.
    """
    from shardbus.store import node_registry

    nodes = await node_registry.registered(store)
    homes = _addresses([await store.load_table(kind) for kind in types])
    for address in await _listening(nodes | homes):
        raise runs(cluster, str(address))
    return frozenset(nodes)


async def _repair(url: str, cluster: str, types: list[str], *, write: bool) -> dict[str, list[str]]:
    """Return the faults of each type, one line each; repair them with `write`, unless a node
    runs."""
    from shardbus.store import node_registry
    from shardbus.store.repair import repair as repair_type
    from shardbus.store.repair import repairable

    async with opened(url, cluster) as store:
        raw = repairable(store)
        if write:
            addresses = await node_registry.registered(store)
            for kind in types:
                table = await raw.raw_table(kind)
                addresses |= table.addresses if table is not None else set()
            for address in await _listening(addresses):
                raise runs(cluster, str(address))
        return {kind: (await repair_type(raw, kind, write=write)).lines() for kind in types}


def _declared(bus: ShardBus) -> dict[str, Declared]:
    """Return the layouts of an application's types that have a state."""
    from shardbus.routing.paths import place_function_of
    from shardbus.store.migration import Declared

    interfaces = {name: kind.interface for name, kind in bus.types.items() if kind.states}
    return {
        name: Declared(interface.layout, place_function_of(interface))
        for name, interface in interfaces.items()
    }


async def _migrate(
    url: str, cluster: str, declared: dict[str, Declared], *, write: bool
) -> dict[str, Any]:
    """Move states to their places, or count those in the wrong one, unless a node runs."""
    from shardbus.ids import Address
    from shardbus.store import node_registry
    from shardbus.store.migration import migratable
    from shardbus.store.opening import open_store

    store = open_store(url, cluster=cluster, **opening(url))
    check_file(url)
    moving = migratable(store)
    if moving is None:
        line = "this store finds states whatever their shards are: nothing is to be moved"
        return {"done": True, "moved": 0, "lists": 0, "types": {}, "lines": [line]}
    moving.accept_older()
    await store.start()
    try:
        migration = await moving.survey(declared)
        if write:
            addresses = await node_registry.registered(store)
            addresses |= {Address.parse(text) for text in await moving.older_nodes()}
            addresses |= _addresses([await store.load_table(kind) for kind in migration.types])
            for address in await _listening(addresses):
                raise runs(cluster, str(address))
        done = migration.is_done
        if write and not done:
            migration = await moving.migrate(declared, _Progress())
        return _described_migration(migration, done=done, write=write)
    finally:
        await store.close()


class _Progress:
    """Prints how far a migration is, every `PROGRESS_S`."""

    def __init__(self) -> None:
        self._printed_at = time.monotonic()

    def __call__(self, moved: int, total: int) -> None:
        now = time.monotonic()
        if now - self._printed_at >= PROGRESS_S:
            self._printed_at = now
            output.note(f"{moved} of {total} moved")


def _described_migration(migration: Migration, *, done: bool, write: bool) -> dict[str, Any]:
    types = {
        name: {
            "entities": states.entities,
            "misplaced": states.misplaced,
            "lists": states.lists,
            "from": states.was,
            "to": states.layout,
        }
        for name, states in sorted(migration.types.items())
    }
    lines = [
        f"{name}: {states.misplaced} of {output.counted(states.entities, 'state')} and"
        f" {output.counted(states.lists, 'list')}"
        f" {'are moved' if write else 'would move'} to the places of {states.layout!r}"
        for name, states in sorted(migration.types.items())
        if states.misplaced or states.lists
    ]
    if done:
        lines.append("everything is in its place")
    elif write:
        moved = output.counted(migration.moved, "state")
        lists = output.counted(migration.lists, "list")
        lines.append(f"{moved} and {lists} moved")
    counts = {"moved": migration.moved, "lists": migration.lists}
    return {"done": done, **counts, "types": types, "lines": lines}


@asynccontextmanager
async def opened(url: str, cluster: str, *, creates: bool = False) -> AsyncIterator[StateStore]:
    """Yield the store of a cluster, started. `creates`: a file that is not there is made.

    Raises:
        CommandFailure: there is no such file.
    """
    from shardbus.store.opening import open_store

    store = open_store(url, cluster=cluster, **opening(url))
    if not creates:
        check_file(url)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


def opening(url: str) -> dict[str, Any]:
    """Return how a command opens a store: within bounded times, and, as replicas of `cluster://`
    require it, by the keys that the environment names."""
    import os

    from shardbus.config.loading import from_environment, load
    from shardbus.config.replicas import is_replicated

    options: dict[str, Any] = {"timeout": CALL_TIMEOUT_S, "start_within": CALL_TIMEOUT_S}
    if is_replicated(url):
        options["security"] = load(list(from_environment(os.environ))).security
    return options


def check_file(url: str) -> None:
    """Check that the file of an SQLite store is there: opening it would make an empty one.

    Raises:
        CommandFailure: it is not.
    """
    path = url.partition("?")[0].removeprefix("sqlite:///")
    if url.startswith("sqlite:///") and path and not Path(path).exists():
        raise CommandFailure(
            f"there is no file {path!r}", "correct --store", code=ExitCode.UNREACHABLE
        )
