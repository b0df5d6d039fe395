"""Fixtures that several folders share. Nothing starts before a test uses it."""

from __future__ import annotations

import gc
import itertools
import logging
import signal
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from _pytest.outcomes import Skipped
from _pytest.pathlib import import_path
from hypothesis import HealthCheck, settings

from tests import postgres_server as postgres
from tests.postgres_server import PostgresServer
from tests.redis_server import RedisServer

SUITES = ("shardbus.testing.store_suite", "shardbus.testing.allocation_suite")
pytest.register_assert_rewrite("tests.unit.store.store_suite", *SUITES)

UNTIMED: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("default", **UNTIMED, derandomize=True)
settings.register_profile("quick", **UNTIMED, derandomize=True, max_examples=20)
settings.register_profile("wild", **UNTIMED, max_examples=2_000)
"""The same examples in every run, and no clock. `make test` runs with the profile `quick`,
`make test-long` with `default`; `--hypothesis-profile=wild` searches for other examples."""
settings.load_profile("default")

DATABASES = 16
GC_THRESHOLD = 10_000
LONG_TIMEOUT_S = 1800
"""Ends a long test that hangs. The limit for all others is in pyproject.toml."""


class FailuresAtOnce:
    """Names each failed test at once: a run that is ended from outside has no summary."""

    def __init__(self, plugins: pytest.PytestPluginManager) -> None:
        self._plugins = plugins

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._plugins.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = str(crash.message if crash else report.longrepr).partition("\n")[0]
            terminal.write_line(f"\nFAILED ({report.when}) {report.nodeid}: {why}")


def pytest_configure(config: pytest.Config) -> None:
    """Restore SIGINT: a background job of a shell ignores it, and tests' processes inherit that."""
    config.pluginmanager.register(FailuresAtOnce(config.pluginmanager))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _import_from_own_place(config: pytest.Config) -> None:
    """Import all tests, each worker from another place in their order: it takes long to compile a
    test, and each worker finds compiled what another one has imported before."""
    worker = getattr(config, "workerinput", None)
    if worker is None or config.args_source is not config.ArgsSource.TESTPATHS:
        return
    files = sorted((config.rootpath / "tests").rglob("test_*.py"))
    own = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for file in files[own:] + files[:own]:
        with warnings.catch_warnings(action="ignore"), suppress(Exception, Skipped):
            import_path(
                file, mode="importlib", root=config.rootpath, consider_namespace_packages=False
            )


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Keep the modules and the tests out of all later collections of garbage: they stay until the
    end, and each search through them would take half a second. Simulations and syntax trees grow to
    100,000 objects, so search less often, too."""
    gc.disable()
    _import_from_own_place(session.config)
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)


def pytest_sessionfinish() -> None:
    """Let one last collection meet everything: those of pytest and of the interpreter's end would
    search through it again."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _mixed_place(item: pytest.Item) -> int:
    """Return a number by which the files are mixed; 0 for the tests that read all of the code."""
    module = getattr(item, "module", None)
    return 0 if hasattr(module, "nodes_of") else crc32(item.location[0].encode())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give long tests their own limit against hangs. Mix the files for the workers: each begins
    with a row of tests, and those that wait stand together in their folders."""
    if hasattr(config, "workerinput"):
        items.sort(key=_mixed_place)
    for item in items:
        if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print how much tests/explore has visited."""
    reports = [r for key in ("passed", "failed") for r in terminalreporter.stats.get(key, ())]
    visited = [text for r in reports for name, text in r.user_properties if name == "explored"]
    if visited:
        terminalreporter.section("explored")
        for text in sorted(visited):
            terminalreporter.line(text)


@pytest.fixture
def own_log() -> Iterator[None]:
    """Let a test configure logging, as commands that start a node do."""
    root, shardbus = logging.getLogger(), logging.getLogger("shardbus")
    handlers, level = root.handlers[:], shardbus.level
    yield
    root.handlers[:] = handlers
    shardbus.setLevel(level)
    logging.captureWarnings(False)


@pytest.fixture
def own_garbage() -> None:
    """Let a test collect only its own garbage: garbage of other tests may warn."""
    gc.freeze()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One Redis server for the whole session. A test that kills or pauses one starts its own."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def _redis_databases() -> Iterator[int]:
    return itertools.cycle(range(DATABASES))


@pytest.fixture
def redis_url(redis_server: RedisServer, _redis_databases: Iterator[int]) -> str:
    """The URL of an empty database of the session's server."""
    db = next(_redis_databases)
    with redis_server.client(db) as client:
        client.flushdb()
    return redis_server.url(db)


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis server that this test may kill, pause and restart."""
    with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL server for the whole session, which syncs nothing. A test that kills or pauses
    one starts its own."""
    if reason := postgres.missing():
        pytest.skip(reason)
    with PostgresServer("fsync=off") as server:
        yield server


@pytest.fixture(scope="session")
def _postgres_schemas() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, _postgres_schemas: Iterator[int]) -> str:
    """The URL of a schema that the session's server does not have."""
    schema = f"test_{next(_postgres_schemas)}"
    return postgres_server.url(schema=schema, durability="cache", connections="2")


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server that this test may kill, pause and restart."""
    if reason := postgres.missing():
        pytest.skip(reason)
    with PostgresServer() as server:
        yield server
