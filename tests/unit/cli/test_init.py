"""`init`: the files of a project."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from pathlib import Path

import pytest

from shardbus.config.settings import Settings
from shardbus_cli import init, node
from shardbus_cli.exit_codes import ExitCode
from shardbus_cli.main import run

FILES = {
    ".dockerignore", ".gitignore", "Dockerfile", "README.md", "app.py", "compose.yaml",
    "pyproject.toml", "test_app.py", "web.py",
}  # fmt: skip


@pytest.fixture
def project(shell, tmp_path: Path) -> Path:
    assert shell("init", str(tmp_path / "My Shop")) == ExitCode.OK
    return tmp_path / "My Shop"


def test_a_project_has_its_files_and_its_name(project: Path) -> None:
    assert {file.name for file in project.iterdir()} == FILES
    assert 'ShardBus("my-shop")' in (project / "app.py").read_text()
    assert not [file for file in project.iterdir() if re.search(r"\bdemo\b", file.read_text())]
    for file in project.glob("*.py"):
        ast.parse(file.read_text())
    table = tomllib.loads((project / "pyproject.toml").read_text())
    assert table["tool"]["shardbus"] == {"app": "app:bus"}


def test_the_readme_names_files_that_exist(project: Path) -> None:
    named = re.findall(r"`([\w.]+\.(?:py|toml|yaml))`", (project / "README.md").read_text())
    assert named
    assert set(named) <= FILES


def test_the_nodes_of_its_compose_file_are_ones_that_shardbus_starts(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Settings] = []

    def start(bus: object, settings: Settings, *_: object) -> int:
        started.append(settings)
        return 0

    monkeypatch.setattr(node, "_run", start)
    monkeypatch.setattr("sys.path", [str(project)])
    monkeypatch.chdir(project)
    text = (project / "compose.yaml").read_text()
    for name, value in re.findall(r"^    (SHARDBUS_\w+): (.+)$", text, re.MULTILINE):
        monkeypatch.setenv(name, value.strip('"'))
    for line in re.findall(r'^    command: (\["shardbus".+\])$', text, re.MULTILINE):
        assert run(json.loads(line)[1:]) == 0
    assert [settings.node.advertise for settings in started] == ["node1", "node2", "node3"]
    assert {settings.store.url for settings in started} == {"redis://redis:6379/0"}


def test_a_directory_with_files_is_left_as_it_is(shell, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    assert shell("init", str(tmp_path)) == ExitCode.REFUSED
    assert "is not empty; name a new directory" in shell.err
    assert [file.name for file in tmp_path.iterdir()] == ["notes"]
    assert shell("init", str(tmp_path / "notes" / "x")) == ExitCode.FAILED
    assert "cannot be written" in shell.err


@pytest.mark.parametrize(
    ("directory", "name"),
    [("shop", "shop"), ("My_Shop 2", "my-shop-2"), ("--", "demo"), ("ü", "demo")],
)
def test_the_cluster_has_the_name_of_the_directory(directory: str, name: str) -> None:
    assert init.cluster_name(directory) == name
