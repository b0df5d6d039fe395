"""The planted defects of `tests/mutants/*.toml`: one table for each.

    [[mutant]]
    id = "area-the-fault"          # unique, kebab-case
    behaviour = "The behaviour in question, in one sentence."
    file = "shardbus/wire/batch.py"
    before = '''the snippet to replace; it stands exactly once in the file'''
    after = '''its replacement'''
    tests = ["tests/unit/wire/test_batch.py::test_name", "tests/unit/wire/test_batch.py"]

A mutant is **stale** if it cannot be planted any more: the code has changed, and so must the entry.
"""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "mutants"
KEYS = {"id", "behaviour", "file", "before", "after", "tests"}
ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted defect. `tests` are arguments of pytest; one of them must fail."""

    id: str
    behaviour: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    def plant(self, source: str) -> str:
        """Return the source with the defect in it.

        Raises:
            ValueError: the snippet does not stand exactly once in the source.
        """
        if (count := source.count(self.before)) != 1:
            raise ValueError(f"the snippet stands {count} times in {self.file}")
        return source.replace(self.before, self.after)


def load(folder: Path = FOLDER) -> list[Mutant]:
    """Return the mutants of all files, in the order of the files.

    Raises:
        ValueError: an entry has a key too many or too few, or an id stands twice.
    """
    by_id: dict[str, Mutant] = {}
    for path in sorted(folder.glob("*.toml")):
        for row in tomllib.loads(path.read_text(encoding="utf-8")).get("mutant", []):
            if row.keys() != KEYS:
                raise ValueError(f"{path.name}: {row.get('id')} has the keys {sorted(row)}")
            mutant = Mutant(**{**row, "tests": tuple(row["tests"])})
            if mutant.id in by_id:
                raise ValueError(f"{path.name}: the id {mutant.id} stands twice")
            by_id[mutant.id] = mutant
    return list(by_id.values())


def problems(mutant: Mutant, root: Path = ROOT) -> list[str]:
    """Return why this mutant cannot be planted and sought, one sentence for each reason."""
    complaints = []
    if not ID.fullmatch(mutant.id):
        complaints.append("the id is not in kebab-case")
    if mutant.before == mutant.after:
        complaints.append("nothing changes")
    path = root / mutant.file
    if not path.is_file():
        complaints.append(f"there is no {mutant.file}")
    else:
        try:
            planted = mutant.plant(path.read_text(encoding="utf-8"))
            if path.suffix == ".py":
                ast.parse(planted)
        except (ValueError, SyntaxError) as e:
            complaints.append(str(e))
    if not mutant.tests:
        complaints.append("no test is named")
    return complaints + [
        f"there is no test {test}" for test in mutant.tests if not exists(test, root)
    ]


def exists(test: str, root: Path = ROOT) -> bool:
    """True if the file of a test is there, and the class and function that the name gives."""
    name, *inner = test.partition("[")[0].split("::")
    return (root / name).exists() and all(part in names(root / name) for part in inner)


@cache
def names(path: Path) -> frozenset[str]:
    """Return the names of all functions and classes of a file."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))
