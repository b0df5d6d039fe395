"""The pytest plugin of shardbus: fixtures with a cluster and a client in virtual time.

    @pytest.mark.shardbus(nodes=2, settings={"cluster.downing.strategy": "keep-oldest"})
    async def test_a_counter_survives(shardbus_cluster, shardbus_client):
        counter = shardbus_client.ref(Counter, "page-7")
        await counter.add(2)
        await shardbus_cluster.kill(shardbus_cluster.where(Counter, "page-7"))
        assert await counter.total() == 2

    shardbus_bus      the application: `app` of `[tool.shardbus]` in pyproject.toml; a project may
                      override it in its conftest.py
    shardbus_cluster  a `TestCluster` of three nodes; the arguments of the mark `shardbus` are as
                      for `TestCluster`
    shardbus_client   its client

An async test that uses one of them runs in virtual time itself, any other one in a loop of asyncio,
so `async def test_...` needs no mark and no setting. A test of a cluster runs so also where
`pytest-asyncio` would run it, by a mark or in mode `auto`: there its time would be real, and the
cluster's would stand still. Any other test that another plugin runs is left to it, and so is one
with the mark of anyio or trio. A failure shows the seed and the last events; `--shardbus-seed`
chooses another seed.

pytest imports this module in every run, so it stands outside of the package `shardbus`, and imports
that only for a test that needs it.

Source: docs/how-to/test-entities.md.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import chdir
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from shardbus import AsyncClient, ShardBus
    from shardbus.testing import TestCluster

MARK = "shardbus"
OTHER_LOOPS = ("anyio", "trio")
"""Marks of tests that may need another loop than one of asyncio."""
RUNNERS = ("asyncio", *OTHER_LOOPS)
"""Marks of tests that other plugins run."""
UNSET = 'The configuration option "asyncio_default_fixture_loop_scope" is unset'
"""How a warning of pytest-asyncio begins, which each run without that option gives."""
SUITES = ("shardbus.testing.store_suite", "shardbus.testing.allocation_suite")

_cluster = pytest.StashKey["TestCluster"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--shardbus-seed`."""
    parser.getgroup("shardbus").addoption(
        "--shardbus-seed",
        type=int,
        default=0,
        metavar="N",
        help="the seed of shardbus_cluster, if its mark names none (0)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register the mark, and the assertions of the suites. Silence the warning that pytest-asyncio,
    which comes with the extra `testing`, gives in a project that does not use it."""
    warnings.filterwarnings("ignore", UNSET)
    arguments = "nodes=3, seed=0, settings=..., fakes=..."
    config.addinivalue_line("markers", f"{MARK}({arguments}): arguments of shardbus_cluster")
    pytest.register_assert_rewrite(*SUITES)


@pytest.fixture(scope="session")
def shardbus_bus(pytestconfig: pytest.Config) -> ShardBus:
    """Return the application: of SHARDBUS_APP, or `app` of `[tool.shardbus]` in pyproject.toml."""
    from shardbus_cli.app_and_cluster import app_or_project
    from shardbus_cli.app_loader import load_app
    from shardbus_cli.exit_codes import CommandFailure

    try:
        with chdir(pytestconfig.rootpath):
            return load_app(app_or_project(None))
    except CommandFailure as failed:
        return pytest.fail(f"{failed}; or write a fixture shardbus_bus in conftest.py", False)


@pytest.fixture
def shardbus_cluster(
    request: pytest.FixtureRequest, shardbus_bus: ShardBus
) -> Iterator[TestCluster]:
    """Return a cluster of whole nodes in virtual time, for one test."""
    from shardbus.testing import TestCluster

    mark = request.node.get_closest_marker(MARK)
    options = {"seed": request.config.getoption("--shardbus-seed"), **(mark.kwargs if mark else {})}
    with TestCluster(shardbus_bus, *(mark.args if mark else ()), **options) as cluster:
        request.node.stash[_cluster] = cluster
        yield cluster


@pytest.fixture
def shardbus_client(shardbus_cluster: TestCluster) -> AsyncClient:
    """Return a client of the cluster."""
    return shardbus_cluster.client()


def _async_test(item: pytest.Function) -> Callable[..., Any] | None:
    """Return the async function of a test, also behind the wrapper of pytest-asyncio."""
    test = item.obj
    if item.get_closest_marker("asyncio") and not inspect.iscoroutinefunction(test):
        test = getattr(test, "__wrapped__", test)
    return test if inspect.iscoroutinefunction(test) else None


@pytest.hookimpl(specname="pytest_pyfunc_call", wrapper=True, tryfirst=True)
def pytest_pyfunc_call_in_virtual_time(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Let an async test of a cluster run in the cluster's time, whichever plugin calls it."""
    cluster, test = pyfuncitem.stash.get(_cluster, None), _async_test(pyfuncitem)
    if cluster is None or test is None or any(map(pyfuncitem.get_closest_marker, OTHER_LOOPS)):
        return (yield)

    def run(**arguments: Any) -> None:
        cluster.run(test(**arguments))

    called, pyfuncitem.obj = pyfuncitem.obj, run
    try:
        return (yield)
    finally:
        pyfuncitem.obj = called


def _in_a_loop(test: Callable[..., Any]) -> Callable[..., None]:
    """Return a plain function that runs the async one in a loop of its own."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test without a cluster that no other plugin runs, of a project that has imported
    shardbus, in a loop of its own; each example of hypothesis in another one."""
    if "shardbus" not in sys.modules or any(map(pyfuncitem.get_closest_marker, RUNNERS)):
        return None
    handle = getattr(pyfuncitem.obj, "hypothesis", None)
    example = getattr(handle, "inner_test", None)
    if handle is not None and inspect.iscoroutinefunction(example):
        handle.inner_test = _in_a_loop(example)
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, pytest.TestReport]:
    """Show the seed and the last events of a test that fails."""
    report: pytest.TestReport = yield
    cluster = item.stash.get(_cluster, None)
    if report.failed and cluster is not None:
        report.sections.append(("shardbus", cluster.note()))
    return report
