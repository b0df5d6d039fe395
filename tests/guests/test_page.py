"""The page docs/how-to/libraries.md: its versions are locked ones, and its tests exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/how-to/libraries.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([\w-]+)` \| ([\d.]+) \| .* \| `(tests/[\w/.]+)` \|$", re.MULTILINE)
ROWS = ROW.findall(PAGE)


def test_versions_are_those_of_the_lock() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    locked = set(re.findall(r"^([\w-]+)==([\w.]+)", text, re.MULTILINE))
    assert len(ROWS) >= 24
    assert {(name, version) for name, version, _ in ROWS} <= locked
    assert set(re.findall(r"`([\w-]+)` (\d+\.[\d.]*\d)", PAGE)) <= locked


def test_every_library_is_imported_by_the_test_of_its_row() -> None:
    modules = {
        "opentelemetry-api": "opentelemetry",
        "sentry-sdk": "sentry_sdk",
        "fastapi": "TestClient",
        "uvloop": "loops",
    }
    for name, _, path in ROWS:
        assert modules.get(name, name) in (ROOT / path).read_text(encoding="utf-8"), (name, path)


def test_every_test_of_this_folder_is_on_the_page() -> None:
    names = {path.name for path in Path(__file__).parent.glob("test_*.py")} - {Path(__file__).name}
    assert names == set(re.findall(r"tests/guests/(test_\w+\.py)", PAGE))
