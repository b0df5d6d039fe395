"""The output of make on a machine where a package is missing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_ENSUREPIP = f"""\
#!/bin/sh
case "$2" in *ensurepip*) exit 1;; esac
exec {sys.executable} "$@"
"""


def make(folder: Path, *arguments: str) -> tuple[int, str]:
    for name in ("Makefile", "pyproject.toml", "requirements.lock", "requirements-docs.lock"):
        shutil.copy(ROOT / name, folder)
    done = subprocess.run(
        ["make", *arguments],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("target", ["demo", "test", "dist", "wheels", "docs"])
def test_make_names_the_package_that_has_venv(tmp_path: Path, target: str) -> None:
    python = tmp_path / "python3.13"
    python.write_text(WITHOUT_ENSUREPIP)
    python.chmod(0o755)
    code, said = make(tmp_path, target, f"PYTHON={python}")
    assert code == 2
    assert "on Debian and Ubuntu: apt install python3.13-venv\n" in said, said
    assert not (tmp_path / ".venv").exists()


def test_make_names_the_packages_of_a_machine_without_python(tmp_path: Path) -> None:
    code, said = make(tmp_path, "test", "PYTHON=")
    assert code == 2
    assert "no Python 3.11 or later" in said
    assert "apt install python3 python3-venv\n" in said
