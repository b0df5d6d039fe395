"""Nodes for process tests. Their logs are shown when a test fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.nodes import Processes


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    report = yield
    lab = getattr(item, "funcargs", {}).get("lab")
    if report.when == "call" and report.failed and lab is not None:
        report.sections.append(("nodes", lab.logs()))
    return report


@pytest.fixture(params=["sqlite", "redis"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that several processes can share."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return str(request.getfixturevalue("redis_url"))


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def lab(tmp_path: Path, store: str) -> Iterator[Processes]:
    lab = Processes(tmp_path, store)
    yield lab
    lab.close()
