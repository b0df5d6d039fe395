"""Interpreters beside a process find its modules."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from shardbus.replica import interpreter as module
from shardbus.replica.interpreter import interpreter


@pytest.mark.parametrize("place", ["only here", 'with "quotes" and \\'])
def test_it_finds_modules_that_only_this_process_has_on_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    folder = tmp_path / place
    folder.mkdir()
    (folder / "packed.py").write_text("print('found')")
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder), None])
    monkeypatch.setattr(sysconfig, "get_path", lambda name: "/elsewhere")
    done = subprocess.run(
        interpreter("import packed"), check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout == "found\n"


def test_an_installed_package_needs_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    site = str(Path(module.__file__).parents[2])
    monkeypatch.setattr(sysconfig, "get_path", lambda name: site)
    assert interpreter("pass") == [sys.executable, "-c", "pass"]
