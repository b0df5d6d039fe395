"""Who may read and who may write over HTTP, and HTTPS."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from shardbus.config.settings import HttpSettings, SecuritySettings, Settings
from shardbus.config.validation import check, check_exposure
from shardbus.errors import ConfigError
from shardbus.http.app import create_app
from shardbus.http.guard import PROBES, bearer
from shardbus.http.server import Server, serve
from shardbus_cli.main import run
from tests.certificates import self_signed
from tests.unit.http.test_http import FakeNode

HERE, THERE = "127.0.0.1", "0.0.0.0"
OPERATOR, READER = "operator of the tests", "reader of the tests"
PAGES = ("/metrics", "/v1/cluster", "/v1/nodes", "/v1/gossip", "/v1/checkup", "/v1/none", "/ui")


def settings(host: str, *, operator: bool, reader: bool) -> HttpSettings:
    return HttpSettings(
        host=host,
        write=operator,
        token=OPERATOR if operator else "",
        reader_token=READER if reader else "",
    )


def sent(token: str | None) -> dict[str, str]:
    return {} if token is None else {"authorization": f"Bearer {token}"}


async def status(of: HttpSettings, method: str, path: str, token: str | None) -> int:
    transport = httpx.ASGITransport(create_app(FakeNode(), of), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return (await client.request(method, path, headers=sent(token))).status_code


@pytest.mark.parametrize(
    ("host", "operator", "reader", "closed"),
    [
        (HERE, False, False, False),
        (HERE, True, False, False),
        (HERE, False, True, True),
        (HERE, True, True, True),
        (THERE, False, False, False),  # only with security.insecure
        (THERE, True, False, True),
        (THERE, False, True, True),
        (THERE, True, True, True),
    ],
)
async def test_who_reads_needs_a_token(
    host: str, operator: bool, reader: bool, closed: bool
) -> None:
    of = settings(host, operator=operator, reader=reader)
    for path in PROBES:
        assert await status(of, "GET", path, None) in (200, 503), path
    good = [OPERATOR] * operator + [READER] * reader
    for path in PAGES:
        for token in (None, "", "wrong", OPERATOR + "s", READER[:-1]):
            refused = await status(of, "GET", path, token) == 401
            assert refused == closed, (path, token)
        for token in good:
            assert await status(of, "GET", path, token) != 401, (path, token)


@pytest.mark.parametrize("host", [HERE, THERE])
async def test_only_an_operator_writes(host: str) -> None:
    of = settings(host, operator=True, reader=True)
    leave = "/v1/nodes/self/leave"
    assert await status(of, "POST", leave, OPERATOR) == 200
    assert await status(of, "POST", leave, READER) == 403
    assert await status(of, "POST", leave, "wrong") in (401, 403)
    assert await status(of, "POST", leave, None) in (401, 403)
    assert await status(HttpSettings(reader_token=READER), "POST", leave, READER) == 403


@pytest.mark.parametrize(
    ("header", "role"),
    [
        (f"Bearer {OPERATOR}", "operator"),
        (f"bearer  {READER} ", "reader"),
        (f"Basic {OPERATOR}", None),
        (OPERATOR, None),
        ("Bearer", None),
        ("Bearer \xff", None),
        ("", None),
    ],
)
def test_the_role_of_a_header(header: str, role: str | None) -> None:
    assert bearer(header, settings(HERE, operator=True, reader=True)) == role


def test_an_empty_token_is_no_token() -> None:
    assert bearer("Bearer ", HttpSettings()) is None
    assert bearer("Bearer", HttpSettings()) is None


async def test_two_authorizations_are_none() -> None:
    of = settings(THERE, operator=True, reader=True)
    transport = httpx.ASGITransport(create_app(FakeNode(), of))
    headers = [("authorization", f"Bearer {READER}"), ("authorization", "Bearer x")]
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.get("/v1/nodes", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


def test_off_the_loopback_http_needs_a_token_or_the_word_insecure() -> None:
    for of in (settings(THERE, operator=True, reader=False), HttpSettings(host=THERE, token="t")):
        check_exposure(Settings(http=of))
    check_exposure(Settings(http=settings(THERE, operator=False, reader=True)))
    open_ = HttpSettings(host=THERE)
    check_exposure(Settings(http=open_, security=SecuritySettings(insecure=True)))
    with pytest.raises(ConfigError, match=r"outside the loopback.*http\.reader_token"):
        check_exposure(Settings(http=open_))


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (HttpSettings(tls_cert="c"), "only one of"),
        (HttpSettings(tls_key="k"), "only one of"),
        (HttpSettings(token="t" * 15), "http.token has 15 characters, at least 16"),
        (HttpSettings(reader_token="t" * 15), "http.reader_token has 15 characters"),
        (HttpSettings(token="t" * 16, reader_token="t" * 16), "every reader may write"),
    ],
)
def test_settings_that_contradict_each_other(of: HttpSettings, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check(Settings(http=of))


# HTTPS


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    return self_signed(tmp_path)


@pytest.fixture
def url(files: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A node with HTTPS, on a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    app = create_app(FakeNode(), settings(HERE, operator=True, reader=True))
    server: Server = serve(app, HERE, 0, files)
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
    address = f"https://{HERE}:{server.port}"
    monkeypatch.setenv("SHARDBUS_NODE_URL", address)
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", READER)
    monkeypatch.setenv("SHARDBUS_NODE_CACERT", "")
    yield address
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
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
    assert httpx.get(url + "/livez", verify=good).status_code == 200


async def test_files_that_are_no_certificate_are_one_error(
    tmp_path: Path, files: tuple[str, str]
) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    _, other = self_signed(tmp_path, "other")
    for cert, key in ((str(wrong), files[1]), ("none", files[1]), (files[0], other)):
        with pytest.raises(ConfigError, match="HTTPS cannot use"):
            await serve(create_app(FakeNode(), HttpSettings()), HERE, 0, (cert, key)).start()
