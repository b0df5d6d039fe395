"""The hooks for PyInstaller name each data file, and each module of the command."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

import shardbus
import shardbus_cli
from shardbus_cli.command_table import COMMANDS

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = {"shardbus": shardbus, "shardbus_cli": shardbus_cli}


def hook(package: str) -> dict[str, Any]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    entry = resolve_name(project["entry-points"]["pyinstaller40"]["hook-dirs"])
    [folder] = entry()
    return runpy.run_path(str(Path(folder) / f"hook-{package}.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_each_data_file_is_taken_to_its_place(package: str) -> None:
    file = PACKAGES[package].__file__
    assert file is not None
    root = Path(file).parent
    named: set[Path] = set()
    for given, folder in hook(package)["datas"]:
        source = Path(given)
        files = [each for each in source.rglob("*") if each.is_file()] or [source]
        base = source if source.is_dir() else source.parent
        assert base == root.parent / folder
        named |= set(files)
    kinds = {".py", ".pyc", ".typed"}
    data = {each for each in root.rglob("*") if each.is_file() and each.suffix not in kinds}
    assert data
    assert data <= named


def test_each_module_of_a_command_is_named() -> None:
    modules = {f"shardbus_cli.{place.partition(':')[0]}" for place in COMMANDS.values()}
    assert modules <= set(hook("shardbus_cli")["hiddenimports"])
