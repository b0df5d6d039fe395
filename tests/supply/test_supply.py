"""The lock, the licences, the bill of materials, the audit, and that a wheel can be rebuilt."""

from __future__ import annotations

import datetime
import hashlib
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.supply import audit, materials
from tests.supply.materials import DOCS_LOCK, LOCK, PAGE, PERMISSIVE, ROOT, TOOLS, packages, terms

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BUILD_LIMIT_S = 300.0


# The lock


def test_every_locked_package_has_hashes_and_no_other_source() -> None:
    assert all(package.hashes for package in packages())
    lines = [line for line in LOCK.read_text(encoding="utf-8").splitlines() if "==" in line]
    assert len(lines) == len(packages())


@pytest.mark.parametrize("lock", [LOCK, DOCS_LOCK], ids=["all", "docs"])
def test_a_lock_names_hashes_only(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    assert not re.search(r"://|^-", text, re.MULTILINE), "a source beside the hashes"
    blocks = re.split(r"\n(?=\S)", text)
    assert all("--hash=sha256:" in block for block in blocks)


def test_the_lock_of_the_site_fits_what_its_group_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    text = DOCS_LOCK.read_text(encoding="utf-8")
    locked = dict(re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE))
    for line in project["dependency-groups"]["docs"]:
        requirement = Requirement(line)
        assert requirement.specifier.contains(Version(locked[requirement.name]))


@pytest.mark.parametrize("extra", [None, "dev", "examples", "guests", "test"])
def test_the_lock_fits_what_the_project_declares(extra: str | None) -> None:
    """After a change of pyproject.toml: make lock."""
    locked = {package.name: Version(package.version) for package in packages()}
    declared = PROJECT["dependencies"] if extra is None else PROJECT["optional-dependencies"][extra]
    for text in declared:
        requirement = Requirement(text)
        version = locked[requirement.name.lower()]
        assert requirement.specifier.contains(version), f"{text} is locked at {version}"


# Licences and the bill


def test_licences_are_allowed() -> None:
    refused = {
        package.name: package.licence
        for package in packages()
        if not terms(package.licence) <= (PERMISSIVE if package.to_run else TOOLS)
    }
    assert refused == {}


def test_the_page_of_licences_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == materials.page(), "make docs-generated"


def test_the_bill_names_what_a_node_needs_and_nothing_else() -> None:
    bill = materials.bill()
    names = {component["name"] for component in bill["components"]}
    assert {Requirement(text).name for text in PROJECT["dependencies"]} <= names
    assert not names & {"pytest", "mypy", "ruff", "hypothesis", "atheris"}
    assert all(component["properties"] for component in bill["components"])
    assert bill == materials.bill()


# The audit


def test_every_exception_has_a_reason_and_an_end(tmp_path: Path) -> None:
    for exception in audit.accepted():
        assert isinstance(exception.until, datetime.date)
    path = tmp_path / "exceptions.toml"
    path.write_text('[[exception]]\nid = "X-1"\nreason = "no"\nuntil = 2027-01-01\n')
    with pytest.raises(ValueError, match="X-1 has no reason"):
        audit.accepted(path)


def test_an_exception_that_has_run_out_does_not_count() -> None:
    until = datetime.date(2027, 1, 31)
    exceptions = [audit.Accepted("X-1", "a reason of some length", until)]
    assert "--ignore-vuln=X-1" in audit.command(until, exceptions)
    assert "--ignore-vuln=X-1" not in audit.command(until + datetime.timedelta(days=1), exceptions)


@pytest.mark.parametrize(
    ("code", "said", "exit_code"),
    [
        (0, "No known vulnerabilities found", 0),
        (1, "Found 1 known vulnerability in 1 package", 1),
        (1, "requests.exceptions.ConnectionError: Max retries exceeded", 3),
        (0, "typer  Dependency not found on PyPI and could not be audited: typer (0.29.2)", 3),
        (2, "usage: pip-audit", 1),
    ],
)
def test_data_out_of_reach_is_not_taken_for_no_finding(
    code: int, said: str, exit_code: int
) -> None:
    assert audit.verdict(code, said) == exit_code


# The wheel


@pytest.mark.long
def test_a_wheel_can_be_built_again_byte_by_byte(tmp_path: Path) -> None:
    """From two copies of the tree, in two folders, at two times."""
    digests = []
    for number in (1, 2):
        tree, out = tmp_path / f"tree{number}", tmp_path / f"out{number}"
        tracked = ("shardbus", "cli", "pyproject.toml", "README.md", "LICENSE")
        tree.mkdir()
        listed = subprocess.run(
            ["git", "-C", str(ROOT), "ls-files", "-z", *tracked],
            capture_output=True,
            text=True,
            check=True,
            timeout=BUILD_LIMIT_S,
        )
        for name in filter(None, listed.stdout.split("\0")):
            target = tree / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
            os.utime(target, (1_700_000_000 + number, 1_700_000_000 + number))
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(out), "."],
            cwd=tree,
            env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000"},
            check=True,
            timeout=BUILD_LIMIT_S,
        )
        [wheel] = out.glob("*.whl")
        with zipfile.ZipFile(wheel) as parts:
            names = parts.namelist()
        assert "shardbus/py.typed" in names
        assert not [name for name in names if name.startswith("tests/") or name.endswith(".pyc")]
        digests.append(hashlib.sha256(wheel.read_bytes()).hexdigest())
    assert digests[0] == digests[1]
