"""The server inside the loop: its port, its certificate, and its end."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from shardbus.config.settings import HttpSettings
from shardbus.errors import ConfigError
from shardbus.http.app import create_app
from shardbus.http.server import Server, serve
from shardbus_cli.main import run
from tests.certificates import self_signed
from tests.unit.http.http_kit import (
    HERE,
    READER,
    FakeNode,
    with_tokens,
)
from tests.waiting import PATIENCE_S


def asker(server: Server) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=PATIENCE_S)


async def test_the_server_listens_when_start_returns_and_stops(node):
    server = serve(create_app(node.pages, HttpSettings()), "127.0.0.1", 0)
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    await server.start()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    async with asker(server) as client:
        answer = await client.get("/v1/where/a%2Fb/c%23d")
    assert answer.json() == {"asked": ["where", "a/b", "c#d"]}
    assert "server" not in answer.headers
    await server.stop()
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("127.0.0.1", server.port)


async def test_the_log_of_a_uvicorn_that_serves_the_application_stays(node, caplog):
    """A node may be embedded in an application under uvicorn, whose log is the application's."""
    host, access = logging.getLogger("uvicorn.error"), logging.getLogger("uvicorn.access")
    handler = logging.NullHandler()
    access.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO):
            server = serve(create_app(node.pages, HttpSettings()), "127.0.0.1", 0)
            await server.start()
            host.info("Application startup complete.")
            async with asker(server) as client:
                assert (await client.get("/livez")).status_code == 200
            await server.stop()
        assert (access.handlers, access.propagate) == ([handler], True)
        assert (host.level, access.level) == (logging.NOTSET, logging.NOTSET)
    finally:
        access.removeHandler(handler)
    uvicorns = [record for record in caplog.records if record.name.startswith("uvicorn")]
    assert [record.getMessage() for record in uvicorns] == ["Application startup complete."]


async def test_no_part_of_an_answer_waits_for_the_acknowledgement_of_another(node, monkeypatch):
    """On a connection that stays open it would come 40 ms late."""
    accepted: list[socket.socket] = []
    accept = socket.socket.accept

    def noted(listener: socket.socket) -> Any:
        connection = accept(listener)
        accepted.append(connection[0])
        return connection

    monkeypatch.setattr(socket.socket, "accept", noted)
    server = serve(create_app(node.pages, HttpSettings()), "127.0.0.1", 0)
    await server.start()
    async with asker(server) as client:
        await client.get("/v1/where/counter/7")
        [connection] = accepted
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    await server.stop()


async def test_a_request_that_the_end_cuts_off_is_answered(node, monkeypatch, caplog):
    """Without this uvicorn logs a traceback, and the asker gets an error without a reason."""
    arrived = asyncio.Event()

    async def stand_still(*lookup: object) -> Any:
        arrived.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(node, "answer", stand_still)
    monkeypatch.setattr("shardbus.http.server.SHUTDOWN_GRACE_S", 0)
    server = serve(create_app(node.pages, HttpSettings()), "127.0.0.1", 0)
    await server.start()
    async with asker(server) as client:
        lookup = asyncio.ensure_future(client.get("/v1/where/counter/7"))
        await arrived.wait()
        await server.stop()
        answer = await lookup
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "ending")
    assert "cut off a request for /v1/where/counter/7" in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_taken_port_is_one_sentence(node):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = serve(create_app(node.pages, HttpSettings()), "127.0.0.1", port)
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}: it is taken; .*--http-port"):
            await server.start()
        await server.stop()


async def test_an_address_of_another_machine_is_one_sentence(node):
    server = serve(create_app(node.pages, HttpSettings()), "192.0.2.1", 0)
    with pytest.raises(ConfigError, match="no interface of this machine"):
        await server.start()


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    return self_signed(tmp_path)


@pytest.fixture
def url(files: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A node with HTTPS, on a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    app = create_app(FakeNode().pages, with_tokens(HERE, operator=True, reader=True))
    server: Server = serve(app, HERE, 0, files)
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(PATIENCE_S)
    address = f"https://{HERE}:{server.port}"
    monkeypatch.setenv("SHARDBUS_NODE_URL", address)
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", READER)
    monkeypatch.setenv("SHARDBUS_NODE_CACERT", "")
    yield address
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(PATIENCE_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(PATIENCE_S)
    loop.close()


def test_commands_speak_https_and_trust_only_what_they_are_given(
    url: str, files: tuple[str, str], tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["nodes", "--json"]) == 4
    assert "is not trusted" in capsys.readouterr().err
    assert run(["--cacert", files[0], "nodes", "--json"]) == 0
    other, _ = self_signed(tmp_path, "other")
    assert run(["--cacert", other, "nodes", "--json"]) == 4
    monkeypatch.setenv("SHARDBUS_NODE_CACERT", files[0])
    assert run(["nodes", "--json"]) == 0
    monkeypatch.delenv("SHARDBUS_NODE_TOKEN")
    capsys.readouterr()
    assert run(["nodes", "--json"]) == 6
    assert "need a bearer token" in capsys.readouterr().err
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", READER)
    assert run(["node", "leave"]) == 6
    assert "a reader may not write" in capsys.readouterr().err
    monkeypatch.setenv("SHARDBUS_NODE_CACERT", str(tmp_path / "none"))
    assert run(["nodes"]) == 2
    assert run(["nodes", "--node", url.replace("https", "http")]) == 4


def test_plain_http_and_old_tls_get_no_answer(url: str, files: tuple[str, str]) -> None:
    with pytest.raises(httpx.HTTPError):
        httpx.get(url.replace("https", "http") + "/livez")
    old = ssl.create_default_context(cafile=files[0])
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(httpx.HTTPError):
        httpx.get(url + "/livez", verify=old)
    good = ssl.create_default_context(cafile=files[0])
    assert httpx.get(url + "/livez", verify=good, timeout=PATIENCE_S).status_code == 200


async def test_files_that_are_no_certificate_are_one_error(
    tmp_path: Path, files: tuple[str, str]
) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    _, other = self_signed(tmp_path, "other")
    for cert, key in ((str(wrong), files[1]), ("none", files[1]), (files[0], other)):
        with pytest.raises(ConfigError, match="HTTPS cannot use"):
            await serve(create_app(FakeNode().pages, HttpSettings()), HERE, 0, (cert, key)).start()
