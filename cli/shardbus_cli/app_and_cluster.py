"""The application and the cluster that a command is about: one way to name them for all commands.

    the application    1. APP, or `--app APP`, which are the same
                       2. the variable SHARDBUS_APP
                       3. `app` of [tool.shardbus] in pyproject.toml
    the cluster        1. `--cluster NAME`
                       2. the variable SHARDBUS_CLUSTER
                       3. the application, if 1 or 2 above name it
                       4. the node that answers at --node or SHARDBUS_NODE_URL
                       5. `cluster` of [tool.shardbus] in pyproject.toml
                       6. the application of pyproject.toml

The first that names it wins, and nothing is asked or loaded that is not needed for the answer. A
command that works by the application (`by_app`) takes 5 and 6 before 4.

Source: docs/reference/cli.md.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING

from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.node_http import NodeHttp
from shardbus_cli.project_file import PROJECT, TABLE, project_file

if TYPE_CHECKING:
    from shardbus import ShardBus

APP_VARIABLE = "SHARDBUS_APP"
CLUSTER_VARIABLE = "SHARDBUS_CLUSTER"


def app_named(app: str | None, option: str | None = None) -> str | None:
    """Return the application that the command line or the environment names; None if neither does.

    Raises:
        CommandFailure: APP and `--app` name two applications.
    """
    if None not in (app, option) and app != option:
        raise CommandFailure(
            f"APP is {app!r} and --app is {option!r}", "leave one of them out", code=ExitCode.USAGE
        )
    named = option if app is None else app
    return named if named is not None else os.environ.get(APP_VARIABLE) or None


def app_or_none(app: str | None, option: str | None = None) -> str | None:
    """Return the application, as `load_app` takes it; None if nothing names one.

    Raises:
        CommandFailure: two are named, or `pyproject.toml` cannot be read.
    """
    named = app_named(app, option)
    if named is not None:
        return named
    project = project_file()
    return project.importable_app() if project is not None and project.app else None


def app_or_project(app: str | None, option: str | None = None) -> str:
    """Return the application, as `load_app` takes it.

    Raises:
        CommandFailure: nothing names one, two are named, or `pyproject.toml` cannot be read.
    """
    target = app_or_none(app, option)
    if target is not None:
        return target
    project = project_file()
    if project is None:
        where = f"there is no {PROJECT} here or above"
        hint = f"name one, as in `shardbus check app:bus`, or add {PROJECT} with {TABLE}"
    else:
        where, hint = f"{str(project.path)!r} names none", f"add {TABLE} to it"
    raise CommandFailure(
        f"no APP is given, {APP_VARIABLE} is not set, and {where}", hint, code=ExitCode.APP
    )


class NamedCluster:
    """The cluster of a command. `by_app`: the command works by the application, so the project
    names the cluster before a node does."""

    def __init__(
        self, cluster: str | None, app: str | None, node: str, *, by_app: bool = False
    ) -> None:
        self._cluster = cluster or os.environ.get(CLUSTER_VARIABLE)
        self._app, self._node = app_named(app), node
        self._by_app = by_app

    @cached_property
    def running(self) -> str | None:
        """The cluster of the node that answers; None if none does."""
        return running_cluster(self._node)

    @cached_property
    def bus(self) -> ShardBus | None:
        """The application; None if nothing names one.

        Raises:
            CommandFailure: it cannot be loaded.
        """
        app = app_or_none(self._app)
        if app is None:
            return None
        from shardbus_cli.app_loader import load_app

        return load_app(app)

    @cached_property
    def name_or_none(self) -> str | None:
        """The cluster's name; None if nothing names it."""
        if self._cluster:
            return self._cluster
        if self._app is None:
            if not self._by_app and self.running is not None:
                return self.running
            project = project_file()
            if project is not None and project.cluster:
                return project.cluster
        return self.running if self.bus is None else self.bus.name

    @property
    def name(self) -> str:
        """The cluster's name.

        Raises:
            CommandFailure: nothing names it, or the application cannot be loaded.
        """
        if self.name_or_none is None:
            raise CommandFailure(
                "the name of the cluster is unknown",
                f"give --cluster NAME or --app APP, or run this beside a {PROJECT} with {TABLE}",
                code=ExitCode.USAGE,
            )
        return self.name_or_none

    def mistaken_type(self, kind: str) -> str:
        """Return a note that the application has no such entity type, with a similar one; "" if it
        has it, or if there is no application to look into. A store may have states of types that
        the application has no more, so this is a note and no error."""
        from shardbus.config.options import closest

        try:
            bus = self.bus
        except CommandFailure:
            return ""
        if bus is None or kind in bus.types:
            return ""
        near = closest(kind, list(bus.types))
        hint = f"did you mean {near}?" if near else f"there is {', '.join(bus.types) or 'none'}"
        return f"cluster {bus.name!r} has no entity type {kind!r}; {hint}"

    def stopped(self) -> str:
        """Return the cluster's name, if no node of it answers.

        Raises:
            CommandFailure: one does, or nothing names the cluster.
        """
        if self.name == self.running:
            raise runs(self.name, self._node)
        return self.name


def runs(name: str, where: str) -> CommandFailure:
    """Return the failure of a command that needs a stopped cluster."""
    return CommandFailure(
        f"cluster {name!r} runs: a node answers at {where}", "stop all nodes", code=ExitCode.REFUSED
    )


def running_cluster(url: str) -> str | None:
    """Return the cluster name of the node that answers at the URL, None if none answers."""
    try:
        return str(NodeHttp(url).read("v1", "cluster").get("cluster"))
    except CommandFailure as failure:
        if failure.code is ExitCode.USAGE:
            raise
        return None
