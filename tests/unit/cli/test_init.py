"""`init`: the files of a project."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from shardbus.config.settings import Settings
from shardbus_cli import init, node
from shardbus_cli.exit_codes import ExitCode
from shardbus_cli.main import run
from tests.waiting import PATIENCE_S

FILES = {
    ".dockerignore", ".gitignore", "Dockerfile", "README.md", "app.py", "compose.yaml",
    "pyproject.toml", "test_app.py", "web.py", "wheels",
}  # fmt: skip


@pytest.fixture
def project(shell, tmp_path: Path) -> Path:
    assert shell("init", str(tmp_path / "My Shop")) == ExitCode.OK
    return tmp_path / "My Shop"


def test_a_project_has_its_files_and_its_name(project: Path) -> None:
    assert {file.name for file in project.iterdir()} == FILES
    assert 'ShardBus("my-shop")' in (project / "app.py").read_text()
    texts = [file for file in project.iterdir() if file.is_file()]
    assert not [file for file in texts if re.search(r"\bdemo\b", file.read_text())]
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


def test_the_project_has_a_wheel_that_installs_by_its_name(project: Path, tmp_path: Path) -> None:
    [wheel] = (project / "wheels").iterdir()
    assert wheel.name == f"shardbus-{version('shardbus')}-py3-none-any.whl"
    there = tmp_path / "there"
    install = ["install", "--quiet", "--no-deps", "--no-index", "--find-links", wheel.parent]
    subprocess.run(
        [sys.executable, "-m", "pip", *install, "--target", there, "shardbus"],
        check=True,
        timeout=PATIENCE_S,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
    assert (there / "shardbus_cli" / "template" / "files" / "Dockerfile.txt").is_file()
    done = subprocess.run(
        [there / "bin" / "shardbus", "version"],
        env={**os.environ, "PYTHONPATH": str(there)},
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.stdout.strip() == version("shardbus")


def test_the_image_needs_no_file_that_the_project_lacks(project: Path) -> None:
    lines = (project / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1] for line in lines if line.startswith("COPY")]
    assert copied
    assert all((project / name).exists() for name in copied)
    ignored = (project / ".dockerignore").read_text().splitlines()
    assert not set(ignored) & set(copied)


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
