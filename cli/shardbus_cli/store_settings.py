"""The settings of the commands about a store inside the cluster.

Source: docs/reference/cli.md.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardbus_cli import node_flags
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.node_http import NodeHttp

if TYPE_CHECKING:
    from shardbus.config.settings import Settings
    from shardbus.ids import Address
    from shardbus.replica.run import ReplicaOptions
    from shardbus.transport.zmq.network import ZmqNetwork

Port = Annotated[str | None, typer.Option(metavar="PORT", help="Port of the replica (store.port).")]
DiskPath = Annotated[
    str | None, typer.Option(metavar="DIR", help="Directory of its disk (store.path).")
]
ANSWER_S = 2.0
"""Seconds for the replicas to answer."""


def replica_settings(
    file: Path | None,
    host: str | None,
    port: str | None,
    path: str | None,
    store: str | None,
    assignments: list[str] | None,
) -> Settings:
    """Return the settings of one replica."""
    from shardbus.config.loading import load, nested_at
    from shardbus_cli.config import layers_of

    flags = node_flags.layers({"--host": host, "--store": store})
    options = {"store.port": port, "store.path": path}
    flags += [(f"--{key[6:]}", nested_at(key, value)) for key, value in options.items() if value]
    return load(layers_of(file, flags, assignments))


def replica_options(settings: Settings, cluster: str) -> ReplicaOptions:
    """Return how the replica of these settings runs."""
    from shardbus.config.replicas import (
        URL,
        default_path,
        is_in_memory,
        is_replicated,
        replica_plan,
    )
    from shardbus.replica.run import ReplicaOptions
    from shardbus.replica.server import RingPart

    if not is_replicated(settings.store.url):
        raise CommandFailure(
            f"store.url is not {URL}, so it has no replicas",
            "name them, as in --store cluster://10.0.0.1:7357,10.0.0.2:7357,10.0.0.3:7357",
            code=ExitCode.USAGE,
        )
    plan = replica_plan(settings)
    if plan.me is None:
        raise CommandFailure(
            f"this process is at port {plan.port}, and is none of the replicas {plan.url}",
            "set --port, and --host or node.advertise, to the address of one of them",
            code=ExitCode.USAGE,
        )
    store, node = settings.store, settings.node
    return ReplicaOptions(
        cluster=cluster,
        me=plan.me,
        peers=plan.peers,
        host=node.host,
        port=plan.port,
        path=Path(store.path) if store.path else default_path(cluster, plan.port),
        memory=store.memory,
        log_bytes=store.log_bytes,
        part=RingPart(settings.cluster.new_cluster, node.zone, store.replicas, store.repair_after),
        repair=store.repair_interval,
        security=settings.security,
        in_memory=is_in_memory(store.url),
    )


def store_settings(
    file: Path | None, store: str | None, assignments: list[str] | None, node: str
) -> Settings:
    """Return the settings of a command. If they name no replicas, and no seeds beside which these
    are, those of the node at this URL count."""
    from shardbus.config.loading import load
    from shardbus.config.replicas import is_replicated, replicas_of
    from shardbus_cli.config import layers_of

    settings = load(layers_of(file, node_flags.layers({"--store": store}), assignments))
    url = settings.store.url
    if settings.node.seeds or (url and not is_replicated(url)) or (url and replicas_of(url)):
        return settings
    url = _store_at(node)
    return replace(settings, store=replace(settings.store, url=url)) if url else settings


def _store_at(node: str) -> str:
    """Return the URL of the store of the node; empty if it does not answer.

    Raises:
        CommandFailure: its store has no replicas.
    """
    from shardbus.config.replicas import is_replicated

    try:
        url = str(NodeHttp(node).read("v1", "store")["url"])
    except (CommandFailure, KeyError):
        return ""
    if not is_replicated(url):
        raise CommandFailure(
            f"the store of {node} is {url}, which has no replicas", code=ExitCode.REFUSED
        )
    return url


def peers_of(settings: Settings) -> tuple[Address, ...]:
    """Return the addresses in store.url, else those by the seeds. The ring may have others."""
    from shardbus.config.replicas import is_replicated, replica_plan, replicas_of

    url = settings.store.url
    return (is_replicated(url) and replicas_of(url)) or replica_plan(settings).peers


def network_of(settings: Settings) -> ZmqNetwork:
    """Return a network with the keys of the settings."""
    from shardbus.transport.zmq.curve import Keyring
    from shardbus.transport.zmq.network import ZmqNetwork

    security = settings.security
    return ZmqNetwork(Keyring.at(security.secret, security.keys, security.allowed))
