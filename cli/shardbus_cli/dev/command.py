"""`shardbus dev`: its options, and the checks before a process starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.parameters import App, AppOption, Assignments, ConfigFile

NODES = 3
PORT, HTTP_PORT = 7355, 8558
DEMO = "shardbus_cli.template.app:bus"


def dev(
    application: App = None,
    app: AppOption = None,
    nodes: Annotated[int, typer.Option(min=1, max=16, help="How many nodes.")] = NODES,
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart the nodes when a source file changes.")
    ] = False,
    demo: Annotated[
        bool, typer.Option("--demo", help="Run an application that comes with shardbus.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Remove the stored state of earlier runs first.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of node 1; the others are 10 apart.")
    ] = PORT,
    http_port: Annotated[
        int, typer.Option(min=1, max=65535, help="HTTP port of node 1; the others are 10 apart.")
    ] = HTTP_PORT,
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="URL", help="A store instead of .shardbus/state.db."),
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option("--log-level", metavar="LEVEL", help="Of the nodes. [default: warning]"),
    ] = None,
    file: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Run a cluster on this machine, in one terminal, until Ctrl-C: several nodes over an embedded
    store. The state is kept in .shardbus of the current directory."""
    import asyncio

    from shardbus_cli.app_and_cluster import app_named, app_or_project
    from shardbus_cli.dev.layout import FOLDER, STATE, DevFolder, check_free, places
    from shardbus_cli.dev.runner import DevOptions, run_dev

    if demo and (application or app):
        raise CommandFailure(
            "--demo runs an application of its own", "leave out APP or --demo", code=ExitCode.USAGE
        )
    if store is not None and store.startswith("memory:") and nodes > 1:
        raise CommandFailure(
            f"--store {store} is private to a process", "add --nodes 1", code=ExitCode.USAGE
        )
    if not demo:
        app_or_project(application, app)  # an error is reported here, once
    layout = places(nodes, port, http_port)
    folder = DevFolder(Path.cwd())
    folder.open(fresh=fresh)
    check_free(layout)
    sets = [*(assignments or ()), *([f"log.level={log_level}"] if log_level else [])]
    options = DevOptions(
        app=DEMO if demo else app_named(application, app),
        store=store or folder.store,
        shown_store=store or f"{FOLDER}/{STATE}",
        file=file,
        sets=tuple(sets),
        reload=reload,
    )
    raise SystemExit(asyncio.run(run_dev(layout, folder, options)))
