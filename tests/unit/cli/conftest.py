"""Fixtures of the commands: a node, its URL, a shell, and a folder of applications."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from shardbus.admin.page_table import PAGES
from shardbus.config.settings import HttpSettings
from shardbus.http.app import create_app
from shardbus.http.server import Server, serve
from tests.ports import free_port
from tests.unit.cli.cli_kit import FakeNode, Shell


@pytest.fixture(autouse=True)
def _own_log(own_log: None) -> None:
    """Commands that start a node configure logging: on a stream that is closed after the test."""


@pytest.fixture(autouse=True)
def _no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of the developer's may listen at the default address."""
    monkeypatch.setenv("SHARDBUS_NODE_URL", f"http://127.0.0.1:{free_port()}")


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


def strict(app: ASGIApp) -> ASGIApp:
    """An application that fails if a command sends a parameter that no such page declares."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            sent = parse_qs(scope["query_string"].decode(), keep_blank_values=True)
            pages = [page for page in PAGES if scope["path"].startswith(page.prefix)]
            declared = {parameter.name for page in pages for parameter in page.parameters}
            assert set(sent) <= {*declared, "verbose"}, (scope["path"], sent)
        await app(scope, receive, send)

    return checked


@pytest.fixture
def url(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The node's HTTP, run by a loop of its own as a node would."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    settings = HttpSettings(write=True, token="sesame")
    server: Server = serve(strict(create_app(node.pages, settings)), "127.0.0.1", 0)
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
    address = f"http://127.0.0.1:{server.port}"
    monkeypatch.setenv("SHARDBUS_NODE_URL", address)
    monkeypatch.delenv("SHARDBUS_NODE_TOKEN", raising=False)
    yield address
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def apps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "good_app.py").write_text(
        "from shardbus import ShardBus\nbus = ShardBus('shop')\nport = 3\n"
    )
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
