"""`config show` and `check`: the settings and checks of a node, without starting it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardbus_cli import node_flags, output
from shardbus_cli.exit_codes import ExitCode
from shardbus_cli.parameters import App, AppOption, Assignments, ConfigFile, Json

if TYPE_CHECKING:
    from shardbus import ShardBus
    from shardbus.config.loading import Layer
    from shardbus.config.settings import Settings
    from shardbus.wire.schema import Interface

app = typer.Typer(help="The settings of a node.", no_args_is_help=True)

NO_TYPES = "none: this node would host nothing"
START_S = 5.0
"""Seconds for the replicas of `cluster://` to serve: they may start with the nodes, later."""


def layers_of(file: Path | None, flags: list[Layer], assignments: list[str] | None) -> list[Layer]:
    """Return the layers of file, environment and command line; a later one wins.

    Raises:
        ConfigError: the file cannot be read, a variable is unknown, or an assignment has no value.
    """
    from shardbus.config.loading import from_assignments, from_environment

    from_file = [(str(file), read_file(file))] if file else []
    return [*from_file, *from_environment(os.environ), *flags, *from_assignments(assignments or [])]


def read_file(file: Path) -> dict[str, Any]:
    """Return the settings in a TOML file.

    Raises:
        ConfigError: the file cannot be read, or is not TOML.
    """
    import tomllib

    from shardbus.errors import ConfigError

    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {str(file)!r}", hint="check --config") from None
    except OSError:
        raise ConfigError(
            f"{str(file)!r} cannot be read", hint="check its owner and mode"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as wrong:
        reason = str(wrong).splitlines()[0]
        raise ConfigError(f"{str(file)!r} is not TOML: {reason}", hint="see configs/") from None


def settings_for(layers: list[Layer], bus: ShardBus) -> Settings:
    """Return the settings of a node that runs this application.

    Raises:
        ConfigError: a setting is invalid, or is for a type that the application does not have.
    """
    from shardbus.config.loading import for_types, load

    return load(for_types(layers, bus.types))


def described(interface: Interface) -> str:
    """Return the name of a type, with its instances and its router if it has any."""
    instances = interface.instances
    if instances is None:
        return interface.name
    count = instances.exact or f"1 to {instances.most}"
    return f"{interface.name} (instances: {count}, router: {interface.router})"


def checks_of(bus: ShardBus, settings: Settings) -> dict[str, Callable[[], str]]:
    """Return the checks before a node starts, by name. A check returns its finding, or raises
    ConfigError."""
    from shardbus.config.validation import check_exposure
    from shardbus.entities.type_settings import settings_by_type
    from shardbus.node.downing_log import check_downing
    from shardbus.transport.zmq.curve import Keyring

    def types() -> str:
        kinds = settings_by_type(bus.types, settings)
        return ", ".join(described(bus.types[name].interface) for name in kinds) or NO_TYPES

    def downing() -> str:
        check_downing(settings.cluster.downing, bus.types)
        return settings.cluster.downing.strategy

    def exposure() -> str:
        check_exposure(settings)
        return f"node on {settings.node.host}, HTTP on {settings.http.host}"

    def keys() -> str:
        keyring = Keyring.at(
            settings.security.secret, settings.security.keys, settings.security.allowed
        )
        if keyring is None:
            return "none"
        allowed = keyring.identities
        count = "" if allowed is None else f", {output.counted(len(allowed), 'key')} allowed"
        return f"secret {keyring.newest.fingerprint}{count}"

    return {"types": types, "downing": downing, "exposure": exposure, "keys": keys}


@app.command()
def show(
    file: ConfigFile = None,
    assignments: Assignments = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say who set each value.")] = False,
    as_json: Json = False,
) -> None:
    """Show every setting as a node started here would have it."""
    from shardbus.admin.setting_rows import rows_of
    from shardbus.config.loading import load, origins

    layers = layers_of(file, [], assignments)
    settings = load(layers)
    table = rows_of(settings, origins(layers))
    values = {row["setting"]: row["value"] for row in table}
    places = {row["setting"]: row["origin"] for row in table}
    if as_json:
        answer: dict[str, Any] = {"settings": values}
        if origin:
            answer["origins"] = places
        output.data(json.dumps(answer))
        return
    rows = [
        {"setting": key, "value": json.dumps(value), "origin": places[key]}
        for key, value in values.items()
    ]
    output.table(("setting", "value", "origin") if origin else ("setting", "value"), rows)


def check(
    application: App = None,
    app: AppOption = None,
    file: ConfigFile = None,
    store: node_flags.Store = None,
    assignments: Assignments = None,
    as_json: Json = False,
) -> None:
    """Check application, settings and store as a node does at its start. Starts nothing."""
    import asyncio

    from shardbus_cli.app_and_cluster import app_or_project
    from shardbus_cli.app_loader import load_app

    bus = load_app(app_or_project(application, app))
    flags = node_flags.layers({"--store": store})
    settings = settings_for(layers_of(file, flags, assignments), bus)
    checks = asyncio.run(_checks(bus, settings))
    good = all(row["ok"] for row in checks.values())
    if as_json:
        output.data(json.dumps({"status": "ok" if good else "failed", "checks": checks}))
    else:
        output.checks(checks)
    if not good:
        raise typer.Exit(ExitCode.UNHEALTHY)


async def _checks(bus: ShardBus, settings: Settings) -> dict[str, dict[str, Any]]:
    from shardbus.config.replicas import is_replicated
    from shardbus.errors import ShardBusError, StoreUnavailable
    from shardbus.node.stored_layouts import check_layouts
    from shardbus.store.opening import open_store
    from shardbus.store.urls import default_url, mask_url

    url = settings.store.url or default_url(bus.name)

    async def store() -> str:
        timeout = settings.store.timeout
        keys = settings.security
        opened = open_store(
            url, cluster=bus.name, timeout=timeout, start_within=START_S, security=keys
        )
        try:
            await opened.start()
            await check_layouts(opened, bus.types)
        except StoreUnavailable as silent:
            if not is_replicated(url):
                raise
            return f"{silent}: its tables are not checked"  # its replicas start with the nodes
        finally:
            await opened.close()
        return mask_url(url)

    checks: dict[str, dict[str, Any]] = {"app": {"ok": True, "detail": f"cluster {bus.name}"}}
    for name, look in checks_of(bus, settings).items():
        try:
            checks[name] = {"ok": True, "detail": look()}
        except ShardBusError as failed:
            checks[name] = {"ok": False, "detail": str(failed)}
    try:
        checks["store"] = {"ok": True, "detail": await store()}
    except ShardBusError as failed:
        checks["store"] = {"ok": False, "detail": str(failed)}
    return checks
