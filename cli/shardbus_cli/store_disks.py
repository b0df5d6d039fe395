"""`store verify`, `backup`, `restore` and `recover`: the disks of a store inside the cluster.

Source: docs/how-to/keep-state.md; docs/how-to/back-up.md; docs/reference/cli.md.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardbus_cli import node_flags, output, parameters, store_settings
from shardbus_cli.app_and_cluster import NamedCluster
from shardbus_cli.exit_codes import CommandFailure, ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardbus.config.settings import Settings
    from shardbus.replica.disk_copies import DiskCopy
    from shardbus.replica.run import ReplicaOptions
    from shardbus.replication.refounding import Difference, Remains
    from shardbus.replication.registers import Registers

WAIT_S = 60.0
COLUMNS = ("address", "disk", "segments", "bytes", "behind", "findings")
SESSION_BITS = 63
NAMED_MAX = 20
"""Differences that are named; the others are counted."""

Wait = Annotated[float, parameters.duration("Longest wait for the replicas: 30, 5m.", WAIT_S)]


# -- verify


def verify(
    path: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="A disk of a replica that is stopped. Repeat it."),
    ] = None,
    cluster: parameters.ClusterName = None,
    app: parameters.AppOfCluster = None,
    file: parameters.ConfigFile = None,
    store: node_flags.Store = None,
    assignments: parameters.Assignments = None,
    node: parameters.NodeUrl = parameters.NODE_URL,
    wait: Wait = WAIT_S,
    as_json: parameters.Json = False,
) -> None:
    """Compare the rows of all replicas, and have each read its log. Nothing is changed.

    With --path, read disks of stopped replicas instead. Exit code 5 if a log is damaged, a replica
    does not answer, or rows differ and stay so."""
    if path:
        with _failing():
            facts = _verified_stopped(path)
    else:
        import asyncio

        settings = store_settings.store_settings(file, store, assignments, node)
        name = NamedCluster(cluster, app, node).name
        facts = asyncio.run(_verified(settings, name, wait))
    if as_json:
        output.data(json.dumps(facts))
    else:
        _print_report(facts)
    if facts["differences"] or any(row["findings"] for row in facts["replicas"]):
        raise typer.Exit(ExitCode.UNHEALTHY)


async def _verified(settings: Settings, cluster: str, wait: float) -> dict[str, Any]:
    from shardbus.ids import Address
    from shardbus.store.replica_status import ask_replicas
    from shardbus.store.ring_reading import RingReader
    from shardbus.wire.replica_frames import ReplicaFrame

    reader = RingReader(
        cluster, store_settings.peers_of(settings), store_settings.network_of(settings), wait
    )
    try:
        ring = await reader.open()
        differences, compared = await reader.compare()
        names = {member.disk: reader.address_of(member.disk) for member in ring.members}
    finally:
        reader.close()
    addresses = [Address.parse(name) for name in names.values() if ":" in name]
    network = store_settings.network_of(settings)
    answers = await ask_replicas(network, cluster, addresses, wait, ReplicaFrame.CHECK)
    logs = {str(address): facts for address, facts in answers.items()}
    replicas = []
    for disk, name in names.items():
        log = logs.get(name, {})
        findings = list(log.get("spoiled", ()))
        if disk not in compared or "segments" not in log:
            findings.append(log.get("waits_for") or "it does not answer")
        size = log.get("segments"), log.get("bytes")
        replicas.append(_row(name, disk, size, differences, disk, findings))
    return {"ring": ring.number, "replicas": replicas, "differences": _shown(differences, names)}


def _verified_stopped(paths: Sequence[Path]) -> dict[str, Any]:
    from shardbus.replica.disk_copies import read_disk
    from shardbus.replication.refounding import differences

    copies = [read_disk(path) for path in paths]
    names = {number: str(copy.path) for number, copy in enumerate(copies)}
    differing = list(differences({number: copy.registers for number, copy in enumerate(copies)}))
    replicas = [
        _row(
            names[number], copy.place.disk, (copy.segments, copy.bytes), differing, number,
            copy.findings,
        )
        for number, copy in enumerate(copies)
    ]  # fmt: skip
    ring = max(copy.ring.number for copy in copies)
    return {"ring": ring, "replicas": replicas, "differences": _shown(differing, names)}


def _row(
    name: str,
    disk: int,
    size: tuple[int | None, int | None],
    differences: Sequence[Difference],
    number: int,
    findings: list[str],
) -> dict[str, Any]:
    behind = sum(difference.disk == number for difference in differences)
    return {
        "address": name,
        "disk": f"{disk:016x}",
        "segments": size[0],
        "bytes": size[1],
        "behind": behind,
        "findings": findings,
    }


def _shown(differences: Sequence[Difference], names: dict[int, str]) -> list[dict[str, str]]:
    from shardbus.replication.refounding import shown_key

    return [
        {
            "key": shown_key(each.key),
            "replica": names[each.disk],
            "what": "has another value than" if each.contradicts else "has an older row than",
            "other": names[each.newer],
        }
        for each in differences
    ]


def _print_report(facts: dict[str, Any]) -> None:
    rows = [row | {"findings": "; ".join(row["findings"])} for row in facts["replicas"]]
    output.table(COLUMNS, rows)
    differences = facts["differences"]
    for diff in differences[:NAMED_MAX]:
        output.note(f"{diff['key']}: {diff['replica']} {diff['what']} {diff['other']}")
    if len(differences) > NAMED_MAX:
        output.note(f"and {len(differences) - NAMED_MAX} more")


# -- backup


def backup(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write, a new one.")],
    cluster: parameters.ClusterName = None,
    app: parameters.AppOfCluster = None,
    file: parameters.ConfigFile = None,
    store: node_flags.Store = None,
    assignments: parameters.Assignments = None,
    node: parameters.NodeUrl = parameters.NODE_URL,
    wait: Wait = WAIT_S,
) -> None:
    """Write all rows of a running store to one file. It has every save that was acknowledged
    before."""
    import asyncio

    settings = store_settings.store_settings(file, store, assignments, node)
    name = NamedCluster(cluster, app, node).name
    with _failing():
        rows, ring = asyncio.run(_backed_up(settings, name, target, wait))
    output.note(f"{output.counted(rows, 'row')} of ring {ring} in {target}")


async def _backed_up(
    settings: Settings, cluster: str, target: Path, wait: float
) -> tuple[int, int]:
    from shardbus.replica.backup_file import BackupWriter
    from shardbus.store.ring_reading import RingReader

    with BackupWriter(target) as writer:
        reader = RingReader(
            cluster, store_settings.peers_of(settings), store_settings.network_of(settings), wait
        )
        try:
            await reader.open()
            async for registers in reader.copy():
                writer.add(registers)
            writer.complete(reader.ring)
        finally:
            reader.close()
    return writer.rows, reader.ring.number


# -- restore and recover


def restore(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="A file of `store backup`.")],
    cluster: parameters.ClusterName = None,
    app: parameters.AppOfCluster = None,
    file: parameters.ConfigFile = None,
    host: node_flags.Host = None,
    port: store_settings.Port = None,
    path: store_settings.DiskPath = None,
    store: node_flags.Store = None,
    assignments: parameters.Assignments = None,
    node: parameters.NodeUrl = parameters.NODE_URL,
) -> None:
    """Found the store anew from a backup, on this replica alone, which must have no disk. Start it,
    then add the others.

    No node may run: one that does refuses the restored store."""
    import secrets

    from shardbus.replica.backup_file import read_backup
    from shardbus.replica.disk_copies import has_log
    from shardbus.replication.refounding import rename
    from shardbus.store.protocol import new_identity

    settings = store_settings.replica_settings(file, host, port, path, store, assignments)
    options = store_settings.replica_options(settings, NamedCluster(cluster, app, node).name)
    _need_disk(options)
    if has_log(options.path):
        raise CommandFailure(
            f"{str(options.path)!r} has a disk of a replica already",
            "move it away, or name another directory by --path",
            code=ExitCode.REFUSED,
        )
    with _failing():
        copy = read_backup(source)
        rename(copy.registers, new_identity(), secrets.randbits(SESSION_BITS))
        _found_anew(options, copy.registers, [copy], secrets.randbits(SESSION_BITS) | 1)


def recover(
    path: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR",
            help="A disk that is left (default: store.path). Repeat it to merge several.",
        ),
    ] = None,
    into: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Directory of the new disk (default: the first --path)."),
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Go on without what the lost disks alone had."),
    ] = False,
    cluster: parameters.ClusterName = None,
    app: parameters.AppOfCluster = None,
    file: parameters.ConfigFile = None,
    host: node_flags.Host = None,
    port: store_settings.Port = None,
    store: node_flags.Store = None,
    assignments: parameters.Assignments = None,
    node: parameters.NodeUrl = parameters.NODE_URL,
) -> None:
    """Found the store anew from the disks that are left, if a majority is lost for good.

    The replica of these settings goes on alone. Start it, then add the others.

    Without --accept-loss, say what may be lost, and change nothing."""
    import asyncio

    from shardbus.replica.disk_copies import read_disk
    from shardbus.replication.refounding import merge_rows, remains
    from shardbus.replication.registers import Registers

    target = into or (path[0] if path else None)
    settings = store_settings.replica_settings(file, host, port, target, store, assignments)
    name = NamedCluster(cluster, app, node).name
    options = store_settings.replica_options(settings, name)
    _need_disk(options)
    with _failing():
        copies = [read_disk(each) for each in map(Path, path or [str(options.path)])]
        spoiled = {copy.place.disk for copy in copies if copy.findings}
        left = remains([copy.place for copy in copies], spoiled)
    for copy in copies:
        for finding in copy.findings:
            output.note(f"{copy.path}: {finding}")
    _refuse_beside(asyncio.run(_serving(settings, name, left)))
    if not left.suffices and not accept_loss:
        raise CommandFailure(_loss(left), "--accept-loss goes on", code=ExitCode.REFUSED)
    rows = Registers()
    merge_rows(rows, [copy.registers for copy in copies])
    with _failing():
        _found_anew(options, rows, copies, left.ring.store)


def _need_disk(options: ReplicaOptions) -> None:
    if options.in_memory:
        raise CommandFailure(
            "with durability=memory replicas have no disks", "see store.url", code=ExitCode.USAGE
        )


def _loss(left: Remains) -> str:
    names = ", ".join(sorted(lost.address or f"disk {lost.disk:016x}" for lost in left.lost))
    disks = output.counted(len(left.ring.members), "disk")
    return (
        f"of ring {left.ring.number} with {disks} these are no majority: it may have"
        f" acknowledged saves that only the lost ones had: {names}"
    )


async def _serving(settings: Settings, cluster: str, left: Remains) -> list[str]:
    """Return the replicas of the store that serve.

    Raises:
        CommandFailure: one runs without an answer to this command, so it may serve.
    """
    from shardbus.ids import Address
    from shardbus.store.replica_status import ask_replicas

    named = [Address.parse(member.address) for member in left.ring.members if member.address]
    addresses = list(dict.fromkeys((*store_settings.peers_of(settings), *named)))
    replicas = await ask_replicas(
        store_settings.network_of(settings), cluster, addresses, store_settings.ANSWER_S
    )
    for address, facts in replicas.items():
        if facts["state"] in ("refused", "silent"):
            is_denied = facts["state"] == "refused"
            why = f"refuses this command: {facts['waits_for']}" if is_denied else "does not answer"
            raise CommandFailure(
                f"the replica {address} runs, and {why}",
                "give this command the settings of the replica, with its cluster and secret",
                code=ExitCode.REFUSED,
            )
    return [str(address) for address, facts in replicas.items() if facts["state"] == "founded"]


def _refuse_beside(serving: Sequence[str]) -> None:
    if serving:
        raise CommandFailure(
            f"a majority is there: {', '.join(serving)} serves",
            "a lost disk comes back as a blank one: start its replica with an empty directory",
            code=ExitCode.REFUSED,
        )


def _found_anew(
    options: ReplicaOptions, rows: Registers, copies: Sequence[DiskCopy], store: int
) -> None:
    """Write the disk of these settings, and print the operator's next steps."""
    import secrets

    from shardbus.replica.disk_copies import write_alone
    from shardbus.replication.refounding import reopen_reminders, skip_epochs
    from shardbus.replication.ring import renewed_ring

    epochs = skip_epochs(rows, secrets.randbits(SESSION_BITS))
    reopen_reminders(rows, secrets.randbits(SESSION_BITS))
    rings = [copy.ring for copy in copies]
    ring, aside = write_alone(
        options.path, options.log_bytes, rows, options.me,
        lambda alone: renewed_ring(rings, alone, store),
    )  # fmt: skip
    output.note(f"{output.counted(len(rows.rows), 'row')} in {options.path}: ring {ring.number}")
    for entity_type, epoch in sorted(epochs.items()):
        output.note(f"{entity_type}: the next coordinator has an epoch above {epoch}")
    if aside is not None:
        output.note(f"the former log is in {aside}")
    output.note(f"start the replica {options.me}, and the others with empty directories")
    for peer in options.peers:
        if peer != options.me:
            output.note(f"then: shardbus store add {peer}")


@contextmanager
def _failing() -> Iterator[None]:
    """Report the error of a file or a directory as the command's failure."""
    from shardbus.errors import ConfigError

    try:
        yield
    except ConfigError as refused:
        raise CommandFailure(refused.message, refused.hint) from refused
    except ValueError as refused:
        raise CommandFailure(str(refused)) from refused
