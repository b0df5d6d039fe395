"""The parts of shardbus: the locked packages, their licences, and the bill of materials.

    python -m tests.supply.materials                    # writes docs/reference/licences.md
    python -m tests.supply.materials --bill FILE.json   # or: make bill

`requirements.lock` names each package with its version and the hashes of its files; `make lock`
writes it. The licence of a package comes from its own metadata, in the short form of SPDX. The
bill is CycloneDX: the packages that a node needs to run, with licences and hashes.
"""

from __future__ import annotations

import argparse
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement

from shardbus.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements.lock"
DOCS_LOCK = ROOT / "requirements-docs.lock"
"""The packages that only `make docs` installs, into an environment of its own."""
PAGE = ROOT / "docs" / "reference" / "licences.md"

_LOCKED = re.compile(r"(?P<name>[\w.-]+)==(?P<version>[^ ;\\]+)( ; (?P<marker>.*?))? \\")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")

PYTHONS = ("3.11.2", "3.11.7", "3.12.1", "3.13.0", "3.14.0")
"""Releases that a marker may tell apart."""

SHORT = {
    "MIT License": "MIT",
    "MIT style": "MIT",
    "ISC License": "ISC",
    "BSD License": "BSD-3-Clause",
    "Apache": "Apache-2.0",
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
ELSEWHERE = {
    "async-timeout": "Apache-2.0",
    "cffi": "MIT",
    "colorama": "BSD-3-Clause",
    "editables": "MIT",
    "hatchling": "MIT",
    "pycparser": "BSD-3-Clause",
    "tomlkit": "MIT",
    "trove-classifiers": "Apache-2.0",
    "win32-setctime": "MIT",
}
"""Licences of packages that only another platform, an older Python or the build installs."""

PERMISSIVE = {"MIT", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "ISC", "PSF-2.0"}
TOOLS = PERMISSIVE | {"MPL-2.0", "ZPL-2.1", "0BSD", "Zlib", "CC0-1.0"}
"""Licences allowed for packages that only develop and test, and are not distributed with
shardbus."""

IN_ITS_FILES = {"axe-playwright-python": "MIT AND MPL-2.0"}
"""Packages whose metadata names no licence: the licences of the files that they bring."""

HEAD = """# Licences

The packages of `requirements.lock`, with the licences that their metadata names.
[Dependencies](../dependencies.md) has the reason for each. `tests/supply/test_supply.py` allows

- what a node needs to run: {run}
- tools that are not distributed with shardbus: these and MPL-2.0

This page is generated: `make docs-generated`.
"""


@dataclass(frozen=True)
class Package:
    """A locked package."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    licence: str
    to_run: bool
    """A node needs it. The others develop, test and build."""


def packages() -> list[Package]:
    """Return the locked packages, by name."""
    run = set(_needed("shardbus"))
    blocks = re.split(r"\n(?=\S)", LOCK.read_text(encoding="utf-8"))
    all_packages = []
    for block in blocks:
        head = _LOCKED.match(block)
        if head is None:
            continue
        name = head["name"].lower()
        all_packages.append(
            Package(
                name,
                head["version"],
                head["marker"] or "",
                tuple(_HASH.findall(block)),
                licence_of(name),
                name in run,
            )
        )
    return all_packages


def _needed(name: str) -> Iterator[str]:
    """Yield the packages that another needs to run, directly or not, without its extras."""
    names: set[str] = set()
    search = [name]
    while search:
        for text in _requires(search.pop()):
            requirement = Requirement(text)
            if not _applies(requirement.marker):
                continue
            needed = re.sub(r"[-_.]+", "-", requirement.name).lower()
            if needed not in names:
                names.add(needed)
                search.append(needed)
                yield needed


def _requires(name: str) -> list[str]:
    """Return the requirements of a package; nothing of one that this Python does not need."""
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []


def _applies(marker: Marker | None) -> bool:
    """True if a requirement applies on one of the Pythons that may run a node, so that the page and
    the bill are the same on each."""
    return marker is None or any(
        marker.evaluate(
            {"extra": "", "python_version": full[: full.rindex(".")], "python_full_version": full}
        )
        for full in PYTHONS
    )


def licence_of(name: str) -> str:
    """Return the licence of a package in the short form.

    Raises:
        LookupError: the package names none, or is not known here.
    """
    try:
        about: Any = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return ELSEWHERE[name]
    if expression := about.get("License-Expression"):
        return str(expression)
    text = (about.get("License") or "").partition("\n")[0].strip()
    classes = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or ()]
    for text_of in (text, *classes):
        if text_of in SHORT or text_of in TOOLS:
            return SHORT.get(text_of, text_of)
    if name in IN_ITS_FILES:
        return IN_ITS_FILES[name]
    raise LookupError(f"{name} names no licence that is known")


def terms(licence: str) -> set[str]:
    """Return the licences in an expression."""
    return set(re.split(r" (?:AND|OR) ", licence))


def page() -> str:
    """Return the text of the page."""
    lines = [HEAD.format(run=", ".join(sorted(PERMISSIVE)))]
    for title, to_run in (("To run", True), ("To develop, test and build", False)):
        lines += [f"## {title}\n", "| package | version | licence | only |", "|---|---|---|---|"]
        for package in packages():
            if package.to_run is to_run:
                only = f"`{package.marker}`" if package.marker else ""
                lines.append(
                    f"| `{package.name}` | {package.version} | {package.licence} | {only} |"
                )
        lines.append("")
    return "\n".join(lines)


def bill() -> dict[str, Any]:
    """Return the bill of materials of the packages that a node needs to run. It depends on nothing
    but the lock and the metadata, so that it can be compared."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    run = [package for package in packages() if package.to_run]
    me = f"pkg:pypi/shardbus@{VERSION}"
    refs = [f"pkg:pypi/{package.name}@{package.version}" for package in run]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": me,
                "name": "shardbus",
                "version": VERSION,
                "purl": me,
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": [
            {
                "type": "library",
                "bom-ref": ref,
                "name": package.name,
                "version": package.version,
                "purl": ref,
                "licenses": [{"expression": package.licence}],
                "properties": [{"name": "lock:sha256", "value": value} for value in package.hashes],
            }
            for package, ref in zip(run, refs, strict=True)
        ],
        "dependencies": [{"ref": me, "dependsOn": refs}],
    }


def main() -> None:
    """Write the page, or the bill."""
    parser = argparse.ArgumentParser(prog="python -m tests.supply.materials")
    parser.add_argument("--bill", type=Path, help="write the bill of materials there instead")
    chosen = parser.parse_args()
    if chosen.bill is None:
        PAGE.write_text(page(), encoding="utf-8")
        return
    chosen.bill.parent.mkdir(parents=True, exist_ok=True)
    chosen.bill.write_text(json.dumps(bill(), indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{chosen.bill}: {len(bill()['components'])} components")


if __name__ == "__main__":
    main()
