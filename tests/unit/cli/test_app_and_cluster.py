"""The application and the cluster of a command: each command takes each way to name them, and all
agree which way wins."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from shardbus.admin.diagnosis import Picture
from shardbus_cli.app_and_cluster import APP_VARIABLE, CLUSTER_VARIABLE, app_or_project
from shardbus_cli.commands import command_line
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from tests.unit.cli.cli_kit import Shell

STORE = ("--store", "sqlite:///x.db")
TAKES_APP = {
    "node start": (),
    "dev": (),
    "check": (),
    "state check": STORE,
    "data migrate": STORE,
}
"""Commands with an argument APP, and their other needs."""
BY_NODE = {
    "state list": ("counter", *STORE),
    "state show": ("counter", "a", *STORE),
    "data show": ("counter", *STORE),
    "data remove": ("counter", *STORE),
    "data repair": ("counter", *STORE),
    "outbox list": STORE,
    "outbox show": ("orders", *STORE),
    "doctor": ("counter", *STORE),
}
"""Commands about a cluster."""
BY_APP = {
    "state check": STORE,
    "state set": ("counter", "a", "{}", *STORE),
    "state remove": ("counter", "a", *STORE),
    "state export": ("counter", *STORE),
    "state import": STORE,
    "journal show": ("account", "a", *STORE),
    "journal export": ("account", "a", *STORE),
    "journal import": STORE,
    "data migrate": STORE,
}
"""Those that work by the application."""
OF_REPLICAS = {
    *("store add", "store remove", "store serve", "store status"),
    *("store verify", "store backup", "store restore", "store recover"),
}
"""Those that find the replicas of `cluster://`, and open no store."""
STOPPED = {
    *("data remove", "data repair", "data migrate"),
    *("state set", "state remove", "state import"),
    "journal import",
}
"""Those that no node of the cluster may run beside."""


def leaves(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each command that runs, with its words."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
    for name, subcommand in (inner or {}).items():
        yield from leaves(subcommand, f"{path} {name}".strip())


LEAVES = dict(leaves(typer.main.get_command(command_line())))


def having(option: str) -> set[str]:
    """The commands that have an option, or an argument of that name."""
    return {
        path
        for path, command in LEAVES.items()
        for parameter in command.params
        if option in (*parameter.opts, getattr(parameter, "metavar", None))
    }


def test_each_command_with_an_application_or_a_cluster_is_in_these_tables() -> None:
    assert having("[APP]") == set(TAKES_APP)
    assert having("--cluster") == {*BY_NODE, *BY_APP, *OF_REPLICAS}
    assert having("--app") == {*TAKES_APP, *BY_NODE, *BY_APP, *OF_REPLICAS}


class Types(dict[str, Any]):
    """Any type, on request."""

    def get(self, name: str, default: object = None) -> Any:
        states = SimpleNamespace(of_plain=lambda value: b"")
        return SimpleNamespace(states=states, events=None, projection=None, merged=None)


class Used:
    """The resources that commands have used: the applications that they would load, and the
    clusters whose store they would open. Nothing is loaded or opened."""

    def __init__(self) -> None:
        self.app: str | None = None
        self.cluster: str | None = None

    def load(self, app: str) -> Any:
        self.app = app
        return SimpleNamespace(name=f"of {app}", types=Types())

    def open(self, url: str, *, cluster: str, **seconds: float) -> Any:
        self.cluster = cluster
        raise CommandFailure("opened")


class Place:
    """A folder with ways to name things."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = folder, monkeypatch
        self.used = Used()
        self.running: str | None = None

    def set(self, variable: str, value: str) -> list[str]:
        self._monkeypatch.setenv(variable, value)
        return []

    def project(self, key: str, value: str) -> list[str]:
        file = self._folder / "pyproject.toml"
        before = file.read_text() if file.exists() else "[tool.shardbus]\n"
        file.write_text(f'{before}{key} = "{value}"\n')
        return []

    def run_node(self, name: str) -> list[str]:
        self.running = name
        return []

    def examined(self, *_: object) -> dict[str, Any]:
        if self.running is None:
            raise CommandFailure("no node", code=ExitCode.UNREACHABLE)
        return {"cluster": self.running, "findings": []}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place(tmp_path, monkeypatch)

    async def run_dev(nodes: object, folder: object, options: Any) -> int:
        place.used.app = app_or_project(options.app)  # as its nodes do
        return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO()))
    monkeypatch.setattr("shardbus_cli.app_loader.load_app", place.used.load)
    monkeypatch.setattr("shardbus_cli.dev.runner.run_dev", run_dev)
    monkeypatch.setattr("shardbus_cli.dev.layout.check_free", lambda nodes: None)
    monkeypatch.setattr("shardbus_cli.dev.layout.DevFolder.open", lambda folder, fresh: None)
    monkeypatch.setattr("shardbus.store.opening.open_store", place.used.open)
    monkeypatch.setattr("shardbus_cli.app_and_cluster.running_cluster", lambda url: place.running)
    monkeypatch.setattr("shardbus_cli.doctor.examine", place.examined)
    monkeypatch.setattr("shardbus_cli.doctor.look", lambda *_: Picture(cluster={}))
    return place


def app_used(shell: Shell, place: Place, command: str, *words: str) -> str | None:
    """The application that a command uses."""
    place.used.app = None
    shell(*command.split(), *words, *TAKES_APP[command])
    return place.used.app


@pytest.mark.parametrize("command", TAKES_APP)
def test_each_command_takes_its_application_by_each_way(
    shell: Shell, place: Place, command: str
) -> None:
    place.project("app", "by.project:bus")
    assert app_used(shell, place, command) == "by.project:bus"
    place.set(APP_VARIABLE, "by.variable:bus")
    assert app_used(shell, place, command) == "by.variable:bus"
    assert app_used(shell, place, command, "--app", "by.option:bus") == "by.option:bus"
    assert app_used(shell, place, command, "by.place:bus") == "by.place:bus"
    assert app_used(shell, place, command, "same:bus", "--app", "same:bus") == "same:bus"
    assert app_used(shell, place, command, "one:bus", "--app", "two:bus") is None
    assert "APP is 'one:bus' and --app is 'two:bus'; leave one of them out" in shell.err


def cluster_used(shell: Shell, place: Place, command: str, *words: str) -> str | None:
    """The cluster whose store a command opens."""
    place.used.cluster = None
    shell(*command.split(), *(BY_NODE | BY_APP)[command], *words)
    return place.used.cluster


def ways(place: Place, *, by_app: bool) -> list[tuple[str, Any]]:
    """Each way to name the cluster, the weakest first, and the name that it gives."""
    node = ("a node", lambda: place.run_node("a node"))
    project = [
        ("of by.project:bus", lambda: place.project("app", "by.project:bus")),
        ("by project", lambda: place.project("cluster", "by project")),
    ]
    named = [
        ("of by.variable:bus", lambda: place.set(APP_VARIABLE, "by.variable:bus")),
        ("of by.option:bus", lambda: ["--app", "by.option:bus"]),
        ("by variable", lambda: place.set(CLUSTER_VARIABLE, "by variable")),
        ("by option", lambda: ["--cluster", "by option"]),
    ]
    return [node, *project, *named] if by_app else [*project, node, *named]


@pytest.mark.parametrize("command", {**BY_NODE, **BY_APP})
def test_each_command_finds_its_cluster_by_each_way(
    shell: Shell, place: Place, command: str
) -> None:
    words: list[str] = []
    for name, use in ways(place, by_app=command in BY_APP):
        words += use()
        if command == "state check" and name == "a node":
            continue  # it needs an application
        cluster = cluster_used(shell, place, command, *words)
        if name == "a node" and command in STOPPED:
            assert (cluster, "cluster 'a node' runs" in shell.err) == (None, True)
        else:
            assert cluster == name, shell.err


@pytest.mark.parametrize("command", {**BY_NODE, **BY_APP})
def test_without_a_name_the_ways_are_named(shell: Shell, place: Place, command: str) -> None:
    assert cluster_used(shell, place, command) is None
    if command == "doctor":
        assert "no node" in shell.err
    elif command == "state check":
        assert f"{APP_VARIABLE} is not set, and there is no pyproject.toml" in shell.err
    else:
        assert "the name of the cluster is unknown; give --cluster NAME or --app APP" in shell.err


def test_a_key_of_the_project_that_does_not_exist_gets_a_suggestion(
    shell: Shell, place: Place
) -> None:
    place.project("ap", "app:bus")
    assert shell("check") == ExitCode.APP
    assert "[tool.shardbus] has no 'ap'; did you mean app?" in shell.err


def test_an_empty_variable_names_nothing(shell: Shell, place: Place) -> None:
    place.project("app", "by.project:bus")
    place.set(APP_VARIABLE, "")
    assert app_used(shell, place, "check") == "by.project:bus"
