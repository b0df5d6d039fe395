"""Nodes for process tests. Their logs are shown when a test fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.markers import long_only
from tests.process.namespaces import Network, missing
from tests.process.nodes import Processes
from tests.process.served_replicas import Served
from tests.process.terminal import Terminal


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    report = yield
    arguments = getattr(item, "funcargs", {})
    lab = arguments.get("lab") or arguments.get("walled") or arguments.get("pair")
    if report.when == "call" and report.failed and lab is not None:
        report.sections.append(("nodes", lab.logs()))
    return report


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Replicas that end with the test."""
    served = Served(tmp_path)
    yield served
    for port in list(served.processes):
        served.kill(port)


@pytest.fixture(params=["sqlite", *long_only("redis", "postgres")])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that several processes can share."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def lab(tmp_path: Path, store: str) -> Iterator[Processes]:
    lab = Processes(tmp_path, store)
    yield lab
    lab.close()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """Where the sessions of a page are run."""
    opened = Terminal(tmp_path)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def _no_namespaces() -> str:
    return missing()


@pytest.fixture
def network(_no_namespaces: str) -> Iterator[Network]:
    """Machines of their own."""
    if _no_namespaces:
        pytest.skip(_no_namespaces)
    network = Network()
    yield network
    network.close()


@pytest.fixture
def walled(tmp_path: Path, store: str, network: Network) -> Iterator[Processes]:
    """Nodes on machines of their own, between which walls can stand."""
    lab = Processes(tmp_path, store, network)
    yield lab
    lab.close()
