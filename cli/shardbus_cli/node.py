"""`node start`, `node leave` and `node down`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from shardbus_cli import node_flags, output, parameters
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.node_http import NodeHttp

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from shardbus import ShardBus
    from shardbus.config.loading import Layer
    from shardbus.config.settings import Settings
    from shardbus.node.supervisor_link import SupervisorLink

app = typer.Typer(help="Start a node, or remove one from the cluster.", no_args_is_help=True)

WORKERS_MAX = 256
Member = Annotated[str, typer.Argument(metavar="NODE", help="host:port#uid or host:port.")]


@app.command()
def start(
    application: parameters.App = None,
    app: parameters.AppOption = None,
    file: parameters.ConfigFile = None,
    host: node_flags.Host = None,
    port: node_flags.Port = None,
    gossip_port: node_flags.GossipPort = None,
    http_port: node_flags.HttpPort = None,
    advertise: node_flags.Advertise = None,
    advertise_gossip: node_flags.AdvertiseGossip = None,
    seeds: node_flags.Seeds = None,
    roles: node_flags.Roles = None,
    proxies: node_flags.Proxies = None,
    store: node_flags.Store = None,
    log_level: node_flags.LogLevel = None,
    log_format: node_flags.LogFormat = None,
    assignments: parameters.Assignments = None,
    ready_fd: Annotated[
        int | None,
        typer.Option(
            "--ready-fd", metavar="FD", help="Descriptor that gets a line when the node is Up."
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=WORKERS_MAX, help="Run N nodes as one unit, on N cores."
        ),
    ] = None,
    leash_fd: Annotated[int | None, typer.Option("--leash-fd", hidden=True)] = None,
    rejoin: Annotated[str, typer.Option("--rejoin", hidden=True)] = "",
    rejoin_turn: Annotated[int, typer.Option("--rejoin-turn", hidden=True)] = 0,
) -> None:
    """Start a node and run it until SIGTERM or Ctrl-C: it leaves; after a second one it stops."""
    from shardbus_cli.app_and_cluster import app_named, app_or_project
    from shardbus_cli.config import layers_of

    named = app_named(application, app)
    leash = _leash(leash_fd)
    _check_writable(ready_fd)
    flags = {
        "--host": host,
        "--port": port,
        "--gossip-port": gossip_port,
        "--http-port": http_port,
        "--advertise": advertise,
        "--advertise-gossip": advertise_gossip,
        "--seed": seeds,
        "--role": roles,
        "--proxy": proxies,
        "--store": store,
        "--log-level": log_level,
        "--log-format": log_format,
    }
    layers = layers_of(file, node_flags.layers(flags), assignments)
    settings = _settings(layers)
    _configure_log(settings)
    if workers:
        arguments = ["node", "start", *([named] if named else []), *node_flags.words(flags)]
        arguments += ["--config", str(file)] if file else []
        arguments += [word for text in assignments or () for word in ("--set", text)]
        raise SystemExit(_run_unit(settings, workers, arguments, ready_fd, named))
    again = (rejoin.split(",") if rejoin else [], rejoin_turn)
    raise SystemExit(_load_and_run(app_or_project(named), layers, ready_fd, leash, *again))


def _configure_log(settings: Settings) -> None:
    from shardbus.ids import Address
    from shardbus_cli.logs import configure

    node = settings.node
    address = str(Address.advertised(node.advertise or node.host, node.port))
    configure(settings.log.level, settings.log.format, node=address)


def _check_writable(ready_fd: int | None) -> None:
    """Check the descriptor of `--ready-fd`.

    Raises:
        CommandFailure: nothing can be written to it.
    """
    import fcntl
    import os

    if ready_fd is None:
        return
    try:
        flags = fcntl.fcntl(ready_fd, fcntl.F_GETFL)
    except (OSError, OverflowError, ValueError):
        why = "this process has no such descriptor"
    else:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            return
        why = "the descriptor is open to read only"
    hint = "let the process that starts the node open it and pass it on, as `3>&1 ... --ready-fd 3`"
    raise CommandFailure(f"--ready-fd {ready_fd}: {why}", hint, code=ExitCode.USAGE)


def _leash(fd: int | None) -> SupervisorLink | None:
    """Watch the supervisor from the start, so that a worker ends with it at any time."""
    if fd is None:
        return None
    from shardbus.node.supervisor_link import SupervisorLink

    leash = SupervisorLink(fd)
    leash.hold()
    return leash


def _run_unit(
    settings: Settings, workers: int, arguments: list[str], ready_fd: int | None, app: str | None
) -> int:
    """Run workers, and beside them the replica of the unit if the store is inside the cluster."""
    from shardbus.config.replicas import is_replicated
    from shardbus_cli.app_and_cluster import app_or_project

    if not is_replicated(settings.store.url):
        return _supervise(settings, workers, arguments, ready_fd)
    words = ["--app", app_or_project(app)]
    settings, beside = _with_replica(settings, words, workers=workers)
    arguments += ["--set", f"store.url={settings.store.url}"]
    with beside:
        return _supervise(settings, workers, arguments, ready_fd)


def _supervise(settings: Settings, workers: int, arguments: list[str], ready_fd: int | None) -> int:
    import asyncio
    import sys

    from shardbus.errors import ConfigError
    from shardbus_cli.line_writer import Console
    from shardbus_cli.workers.plan import plan_of
    from shardbus_cli.workers.unit import run_unit

    form = settings.log.format
    if form == "auto":
        form = "pretty" if sys.stderr.isatty() else "json"
    plan = plan_of(settings, workers, arguments, form)
    console = Console()
    try:
        return asyncio.run(run_unit(plan, settings, console, ready_fd))
    except ConfigError as refused:
        raise CommandFailure(refused.message, refused.hint, code=ExitCode.FAILED) from refused
    finally:
        console.flush()


def _load_and_run(
    app: str,
    layers: list[Layer],
    ready_fd: int | None,
    leash: SupervisorLink | None,
    rejoins_by: list[str],
    turn: int,
) -> int:
    from shardbus.config.loading import for_types, origins
    from shardbus_cli.app_loader import load_app
    from shardbus_cli.config import checks_of, settings_for
    from shardbus_cli.logs import enable_loggers, unblock_handlers

    bus = load_app(app)
    unblock_handlers()
    enable_loggers()
    layers = for_types(layers, bus.types)
    settings = settings_for(layers, bus)
    for look in checks_of(bus, settings).values():
        look()
    return _run(bus, settings, origins(layers), ready_fd, leash, rejoins_by, turn)


def _settings(layers: list[Layer]) -> Settings:
    from shardbus.config.loading import load
    from shardbus.config.validation import check_exposure

    settings = load(layers)
    check_exposure(settings)
    return settings


def _run(
    bus: ShardBus,
    settings: Settings,
    origins: dict[str, str],
    ready_fd: int | None,
    leash: SupervisorLink | None,
    rejoins_by: list[str],
    turn: int,
) -> int:
    """Run the node. A refusal of the system (a port, a directory) is a failure, not wrong usage."""
    from functools import partial

    from shardbus.admin.page_table import administer
    from shardbus.errors import ConfigError
    from shardbus.node.run import run_node
    from shardbus.store.opening import open_store
    from shardbus.store.urls import default_url
    from shardbus_cli.line_writer import Console
    from shardbus_cli.logs import recent_lines
    from shardbus_cli.starting_anew import start_anew

    if not settings.store.url:
        store = replace(settings.store, url=default_url(bus.name))
        settings = replace(settings, store=store)
    settings, beside = _with_replica(settings, ["--cluster", bus.name], leash)
    open_store(settings.store.url, cluster=bus.name)  # an invalid URL is wrong usage
    console = Console()
    try:
        with beside:
            return run_node(
                bus,
                settings,
                partial(administer, origins=origins, log=recent_lines),
                console,
                ready_fd=ready_fd,
                supervisor=leash,
                rejoins_by=rejoins_by,
                turn=turn,
                start_anew=partial(start_anew, console),
            )
    except ConfigError as refused:
        raise CommandFailure(refused.message, refused.hint, code=ExitCode.FAILED) from refused
    finally:
        console.flush()


def _with_replica(
    settings: Settings,
    cluster_words: list[str],
    leash: SupervisorLink | None = None,
    workers: int = 1,
) -> tuple[Settings, AbstractContextManager[None]]:
    """Return the settings with the addresses of all replicas, and the context in which the own one
    runs. A worker has none: its unit has one for all workers."""
    from contextlib import nullcontext

    from shardbus.replica.child import replica_beside, replica_words, with_replicas

    if leash is not None:
        return settings, nullcontext()
    settings, has_own = with_replicas(settings, workers)
    if not has_own:
        return settings, nullcontext()
    return settings, replica_beside(replica_words(settings, cluster_words))


@app.command()
def leave(
    member: Annotated[
        str, typer.Argument(metavar="[NODE]", help="host:port#uid; the asked node by default.")
    ] = "self",
    node: parameters.NodeUrl = parameters.NODE_URL,
    as_json: parameters.AsJson = False,
) -> None:
    """Ask a node to hand off its shards and leave."""
    _act(node, member, "leave", as_json)


@app.command()
def down(
    member: Member,
    force: Annotated[
        bool, typer.Option("--force", help="Remove it at once, without convergence.")
    ] = False,
    node: parameters.NodeUrl = parameters.NODE_URL,
    as_json: parameters.AsJson = False,
) -> None:
    """Declare a node dead. Only for a node whose process has certainly ended."""
    _act(node, member, "down", as_json, force="true" if force else None)


def _act(url: str, member: str, action: str, as_json: bool, **query: object) -> None:
    page = NodeHttp(url).post("v1", "nodes", member, action, **query)
    if not page.printed(as_json):
        output.facts({"node": member, "action": action, **page})
