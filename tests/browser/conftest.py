"""One headless Chromium for all tests of a process, and a window for each test.

A window fails its test for anything on the console and for anything that the page's policy refuses.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from shardbus.config.settings import HttpSettings
from tests.browser.synthetic import Fleet, Served
from tests.browser.windows import Windows
from tests.process.nodes import Processes
from tests.waiting import PATIENCE_S

playwright = pytest.importorskip("playwright.async_api")

Serve = Callable[..., Awaitable[Served]]
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Any]:
    """A browser that is installed on this machine; a test is skipped without one."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with playwright.async_playwright() as driver:
        running = await driver.chromium.launch(
            executable_path=program, args=root, timeout=PATIENCE_S * 1000
        )
        yield running
        await running.close()


@pytest_asyncio.fixture(loop_scope="session")
async def serve() -> AsyncIterator[Serve]:
    """Serves fleets; their nodes end after the windows of the test."""
    running: list[Served] = []

    async def begin(fleet: Fleet, settings: HttpSettings | None = None) -> Served:
        served = Served(fleet, settings)
        await served.server.start()
        running.append(served)
        return served

    yield begin
    for served in running:
        await served.server.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def fleet(serve: Serve) -> Served:
    """A synthetic cluster of three nodes, behind the real HTTP of a node."""
    return await serve(Fleet(nodes=3, shards=24))


@pytest_asyncio.fixture(loop_scope="session")
async def windows(browser: Any, serve: Serve, lab: Processes) -> AsyncIterator[Windows]:
    """Windows of this test. At its end none has an error on its console."""
    opened = Windows(browser)
    yield opened
    await opened.close()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Processes]:
    lab = Processes(tmp_path, f"sqlite:///{tmp_path}/store.db")
    yield lab
    lab.close()
