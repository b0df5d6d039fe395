"""Which files count as source, and when a change of them is reported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardbus_cli.dev import source_files
from shardbus_cli.dev.source_files import SourceFiles, changed, picture
from shardbus_cli.exit_codes import CommandFailure


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x = 1\n")


def test_python_files_and_the_project_file_count(tmp_path: Path) -> None:
    write(
        tmp_path, "app.py", "shop/cart.py", "pyproject.toml", "notes.md", ".hidden/a.py",
        "__pycache__/b.py", "node_modules/c.py", "venv/pyvenv.cfg", "venv/lib/d.py", "own.toml",
    )  # fmt: skip
    files = picture(tmp_path, [tmp_path / "own.toml", tmp_path / "gone.toml"])
    names = sorted(os.path.relpath(name, tmp_path) for name in files)
    assert names == ["app.py", "own.toml", "pyproject.toml", "shop/cart.py"]


def test_a_change_is_reported_once_and_only_when_it_has_come_to_rest(tmp_path: Path) -> None:
    write(tmp_path, "app.py", "b.py")
    watched = SourceFiles(tmp_path, [], lambda names: None)
    watched.start()
    watched.stop()
    assert watched.look() == []
    (tmp_path / "app.py").write_text("x = 22\n")
    write(tmp_path, "c.py")
    assert watched.look() == [], "the editor may still write"
    (tmp_path / "b.py").unlink()
    assert watched.look() == []
    names = [os.path.relpath(name, tmp_path) for name in watched.look()]
    assert names == ["app.py", "b.py", "c.py"]
    assert watched.look() == []


def test_a_change_that_was_undone_is_none(tmp_path: Path) -> None:
    before = {"a": (1, 1, 1)}
    assert changed(before, {"a": (1, 1, 1)}) == []
    assert changed(before, {"a": (1, 2, 1), "b": (1, 1, 1)}) == ["a", "b"]
    assert changed(before, {}) == ["a"]


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "FILES_MAX", 2)
    write(tmp_path, "a.py", "b.py", "c.py")
    with pytest.raises(CommandFailure, match="more than 2 source files"):
        picture(tmp_path)
