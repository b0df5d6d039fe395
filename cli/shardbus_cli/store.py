"""`store serve`, `status`, `add` and `remove`: the replicas of `cluster://`.

The commands about their disks are in `store_disks`.

A node starts its replica by itself (`shardbus.replica.child`). Alone, `store serve` runs one
without a node: a witness, which makes three of two nodes.

Source: docs/how-to/keep-state.md; docs/reference/cli.md; S2.32.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardbus_cli import node_flags, output, store_disks
from shardbus_cli.app_and_cluster import NamedCluster
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.parameters import (
    NODE_URL,
    AppOfCluster,
    Assignments,
    ClusterName,
    ConfigFile,
    Json,
    NodeUrl,
    duration,
)
from shardbus_cli.store_settings import (
    ANSWER_S,
    DiskPath,
    Port,
    network_of,
    peers_of,
    replica_options,
    replica_settings,
    store_settings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardbus.config.settings import Settings
    from shardbus.ids import Address
    from shardbus.replica.server import ReplicaServer
    from shardbus.replication.ring import ReplicaRing
    from shardbus.store.ring_change import Step

COLUMNS = (
    "address", "zone", "state", "disk", "ring", "rows", "memory", "log", "starts", "repaired",
    "waits for",
)  # fmt: skip
CHANGE_S = 60.0

app = typer.Typer(help="The replicas of a store inside the cluster.", no_args_is_help=True)

for _command in (store_disks.verify, store_disks.backup, store_disks.restore, store_disks.recover):
    app.command()(_command)


@app.command()
def serve(
    cluster: ClusterName = None,
    app: AppOfCluster = None,
    file: ConfigFile = None,
    host: node_flags.Host = None,
    port: Port = None,
    path: DiskPath = None,
    store: node_flags.Store = None,
    assignments: Assignments = None,
    leash_fd: Annotated[int | None, typer.Option("--leash-fd", hidden=True)] = None,
) -> None:
    """Run one replica until SIGTERM or Ctrl-C. A node runs its own by itself."""
    from shardbus.config.validation import check_exposure
    from shardbus.errors import ConfigError
    from shardbus.node.supervisor_link import SupervisorLink
    from shardbus.replica.run import run_replica
    from shardbus_cli.line_writer import Console
    from shardbus_cli.logs import configure

    leash = SupervisorLink(leash_fd) if leash_fd is not None else None
    if leash is not None:
        leash.hold()
    settings = replica_settings(file, host, port, path, store, assignments)
    check_exposure(settings)
    options = replica_options(settings, NamedCluster(cluster, app, NODE_URL).name)
    configure(settings.log.level, settings.log.format, node=f"replica {options.me}")
    console = Console()

    def on_start(server: ReplicaServer) -> None:
        if leash is None:
            place = "memory" if options.in_memory else options.path
            console.note(f"shardbus: the replica {options.me} listens, in {place}")
        else:
            leash.report("listens", replica=str(options.me))

    def stops(stop: Callable[[bool], None]) -> None:
        if leash is not None:
            leash.attach(_Stopped(stop))

    try:
        code = run_replica(options, on_start, stops)
    except ConfigError as refused:
        raise CommandFailure(refused.message, refused.hint, code=ExitCode.FAILED) from refused
    finally:
        console.flush()
    raise SystemExit(code)


class _Stopped:
    """A replica at the end of its node's link. `close` is the word of a node that has left: the
    replica stays while others need it. The end of the link stops it at once."""

    def __init__(self, stop: Callable[[bool], None]) -> None:
        self._stop = stop

    def close(self) -> None:
        self._stop(True)

    def leave(self) -> None:
        self._stop(False)

    def stop(self) -> None:
        self._stop(False)


@app.command()
def status(
    cluster: ClusterName = None,
    app: AppOfCluster = None,
    file: ConfigFile = None,
    store: node_flags.Store = None,
    assignments: Assignments = None,
    node: NodeUrl = NODE_URL,
    as_json: Json = False,
) -> None:
    """Show the replicas: whether each serves, its ring, rows, log, and why it waits."""
    import asyncio

    settings = store_settings(file, store, assignments, node)
    name = NamedCluster(cluster, app, node).name
    replicas = asyncio.run(_ask(settings, name, peers_of(settings)))
    if as_json:
        output.data(json.dumps({"cluster": name, "replicas": list(replicas.values())}))
    else:
        output.table(COLUMNS, [_row(facts) for facts in replicas.values()])
    if not _has_majority(replicas):
        raise typer.Exit(ExitCode.UNHEALTHY)


def _has_majority(replicas: Mapping[Address, Mapping[str, Any]]) -> bool:
    """True if a majority of the newest ring serves in it."""
    ring = max(int(facts.get("ring", 0)) for facts in replicas.values())
    mine = [facts for facts in replicas.values() if facts.get("ring") == ring]
    serving = sum(facts["state"] == "founded" for facts in mine)
    members = max((len(facts.get("members", replicas)) for facts in mine), default=0)
    return bool(2 * serving > members)


Replica = Annotated[str, typer.Argument(metavar="ADDRESS", help="HOST:PORT of the replica.")]
Wait = Annotated[float, duration("Longest wait for the change: 30, 5m.", CHANGE_S)]


@app.command()
def add(
    address: Replica,
    cluster: ClusterName = None,
    app: AppOfCluster = None,
    file: ConfigFile = None,
    store: node_flags.Store = None,
    assignments: Assignments = None,
    node: NodeUrl = NODE_URL,
    wait: Wait = CHANGE_S,
) -> None:
    """Take a running replica with a blank disk into the store, and wait until it has all rows.
    Repeating it changes nothing."""
    from shardbus.store.ring_change import adding

    settings = store_settings(file, store, assignments, node)
    _change(settings, NamedCluster(cluster, app, node).name, address, adding, wait)


@app.command()
def remove(
    address: Replica,
    cluster: ClusterName = None,
    app: AppOfCluster = None,
    file: ConfigFile = None,
    store: node_flags.Store = None,
    assignments: Assignments = None,
    node: NodeUrl = NODE_URL,
    wait: Wait = CHANGE_S,
) -> None:
    """Take a replica out of the store, whether it runs or not. The others keep all rows."""
    from shardbus.store.ring_change import removing

    settings = store_settings(file, store, assignments, node)
    _change(settings, NamedCluster(cluster, app, node).name, address, removing, wait)


def _change(
    settings: Settings,
    cluster: str,
    address: str,
    step: Callable[[Address], Step],
    wait: float,
) -> None:
    """Change the ring by a step, and print its number and its members."""
    import asyncio

    from shardbus.errors import ConfigError, StoreError
    from shardbus.ids import Address
    from shardbus.replication.ring import zones_left
    from shardbus.store.ring_change import RingOperator

    async def change(replica: Address) -> tuple[ReplicaRing, list[str]]:
        addresses = dict.fromkeys((*peers_of(settings), replica))
        operator = RingOperator(cluster, addresses, network_of(settings), _waits)
        ring = await operator.change(step(replica), wait)
        return ring, zones_left([member.zone for member in ring.members], operator.zones)

    try:
        ring, left = asyncio.run(change(Address.parse(address)))
    except ConfigError as refused:
        raise CommandFailure(refused.message, refused.hint, code=ExitCode.USAGE) from refused
    except StoreError as refused:
        raise CommandFailure(refused.message, refused.hint, code=ExitCode.FAILED) from refused
    members = ",".join(member.address for member in ring.members)
    output.note(f"ring {ring.number}: cluster://{members}")
    if left:
        output.note(f"two of these are in one zone, and none is in {', '.join(left)}")


def _waits(why: str) -> None:
    output.note(f"it waits for {why}")


async def _ask(
    settings: Settings, cluster: str, peers: tuple[Address, ...]
) -> dict[Address, dict[str, Any]]:
    """Return the facts of these replicas, and of those that the newest ring has besides."""
    from shardbus.ids import Address
    from shardbus.store.replica_status import ask_replicas

    replicas = await ask_replicas(network_of(settings), cluster, peers, ANSWER_S)
    newest = max(replicas.values(), key=lambda facts: int(facts.get("ring", 0)))
    members = [Address.parse(name) for name in newest.get("members", ()) if ":" in name]
    others = [address for address in members if address not in replicas]
    if others:
        replicas |= await ask_replicas(network_of(settings), cluster, others, ANSWER_S)
    return replicas


def _row(facts: Mapping[str, Any]) -> dict[str, object]:
    return {
        "address": facts["address"],
        "zone": facts.get("zone", ""),
        "state": facts["state"],
        "disk": facts.get("disk", ""),
        "ring": facts.get("ring", ""),
        "rows": facts.get("rows", ""),
        "memory": facts.get("memory", ""),
        "log": facts.get("log_bytes", ""),
        "starts": facts.get("starts", ""),
        "repaired": facts.get("repairs", {}).get("rows", 0) if "repairs" in facts else "",
        "waits for": facts.get("waits_for") or facts.get("repair", ""),
    }
