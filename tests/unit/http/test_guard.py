"""Access to the pages: who reads, who writes, and which names and origins are answered."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from shardbus.config.settings import HttpSettings
from shardbus.errors import ConfigError
from shardbus.http.app import create_app
from shardbus.http.guard import PROBES, bearer
from shardbus.http.guard import with_tokens as with_tokens_of_files
from tests.records import replace
from tests.unit.http.http_kit import (
    BEARER,
    HERE,
    OPERATOR,
    READER,
    THERE,
    WRITE,
    FakeNode,
    client_of,
    with_tokens,
)


@pytest.mark.parametrize(
    ("settings", "headers"),
    [
        (HttpSettings(), BEARER),
        (HttpSettings(write=True), {"authorization": "Bearer "}),
        (HttpSettings(token="open sesame"), BEARER),
        (WRITE, {}),
        (WRITE, {"authorization": "Bearer open"}),
        (WRITE, {"authorization": "Bearer open sesame2"}),
        (WRITE, {"authorization": "Basic open sesame"}),
        (WRITE, {"authorization": b"Bearer \xff"}),
    ],
)
async def test_a_write_without_permission_is_forbidden(node, settings, headers):
    async with client_of(node, settings) as client:
        answer = await client.post("/v1/nodes/self/leave", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    assert "open sesame" not in answer.text
    assert node.requests == []


@pytest.mark.parametrize(
    ("bound", "host", "status"),
    [
        ("127.0.0.1", "http://127.0.0.1:8558", 200),
        ("127.0.0.1", "http://localhost:1", 200),
        ("localhost", "http://[::1]:8558", 200),
        ("127.0.0.1", "http://evil.example:8558", 403),
        ("::1", "http://127.0.0.1.evil.example", 403),
        ("127.0.0.1", "http://192.168.0.1", 403),
        ("0.0.0.0", "http://evil.example:8558", 403),
        ("0.0.0.0", "http://10.0.0.7:8558", 200),
        ("0.0.0.0", "http://[fd00::7]:8558", 200),
        ("0.0.0.0", "http://localhost:8558", 200),
        ("0.0.0.0", "http://NODE1.shop:8558", 200),
        ("0.0.0.0", "http://node1.shop.:8558", 200),
        ("0.0.0.0", "http://node1.shop.evil.example", 403),
        ("0.0.0.0", "http://proxy.example", 200),
        ("127.0.0.1", "http://proxy.example", 200),
        ("127.0.0.1", "http://node1.shop", 403),
        ("inside.shop", "http://inside.shop:1", 200),
    ],
)
@pytest.mark.parametrize("page", ["/livez", "/v1/nodes"])
async def test_only_own_names_are_answered(node, bound, host, status, page):
    """Another name belongs to a web page, rebound to this node's address."""
    settings = HttpSettings(host=bound, allowed_hosts=("proxy.example",))
    transport = httpx.ASGITransport(create_app(node.pages, settings, "node1.shop:7355"))
    async with httpx.AsyncClient(transport=transport, base_url=host) as client:
        answer = await client.get(page)
    assert answer.status_code == status
    if status == 403:
        assert answer.json()["error"]["code"] == "foreign_host"
        assert "http.allowed_hosts" in answer.json()["error"]["hint"]
        assert node.requests == []


@pytest.mark.parametrize(
    ("bound", "allowed", "token", "status"),
    [
        (THERE, (), OPERATOR, 200),
        (THERE, (), READER, 200),
        (THERE, (), "wrong", 403),
        (HERE, (), OPERATOR, 403),
        (THERE, ("*",), READER, 200),
        (THERE, ("*",), "wrong", 401),
        (HERE, ("*",), READER, 200),
    ],
)
async def test_off_the_loopback_a_known_token_is_answered_under_any_name(
    bound: str, allowed: tuple[str, ...], token: str, status: int
) -> None:
    """A rebound page does not know it."""
    of = replace(with_tokens(bound, operator=True, reader=True), allowed_hosts=allowed)
    transport = httpx.ASGITransport(create_app(FakeNode().pages, of))
    headers = sent(token)
    async with httpx.AsyncClient(transport=transport, base_url="http://any.example") as client:
        assert (await client.get("/v1/nodes", headers=headers)).status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "Cross-Site"}, 403),
        ({"origin": "http://127.0.0.1:8558"}, 200),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://evil.example", "sec-fetch-site": "same-origin"}, 403),
    ],
)
async def test_requests_of_other_origins_pages_are_refused(node, headers, status):
    base = "http://127.0.0.1:8558"
    async with client_of(node, HttpSettings(), base_url=base) as client:
        answer = await client.get("/v1/entities/counter", headers=headers)
        assert answer.status_code == status
    if status == 403:
        assert answer.json()["error"]["code"] == "cross_site"
        assert node.requests == []


PAGES = (
    "/metrics",
    "/v1/cluster",
    "/v1/nodes",
    "/v1/gossip",
    "/v1/checkup",
    "/v1/none",
    "/v1/overview",
    "/uix",
)


def sent(token: str | None) -> dict[str, str]:
    return {} if token is None else {"authorization": f"Bearer {token}"}


async def status(of: HttpSettings, method: str, path: str, token: str | None) -> int:
    transport = httpx.ASGITransport(create_app(FakeNode().pages, of), raise_app_exceptions=False)
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
    of = with_tokens(host, operator=operator, reader=reader)
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
    of = with_tokens(host, operator=True, reader=True)
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
    assert bearer(header, with_tokens(HERE, operator=True, reader=True)) == role


def test_an_empty_token_is_no_token() -> None:
    assert bearer("Bearer ", HttpSettings()) is None
    assert bearer("Bearer", HttpSettings()) is None


async def test_two_authorizations_are_none() -> None:
    of = with_tokens(THERE, operator=True, reader=True)
    transport = httpx.ASGITransport(create_app(FakeNode().pages, of))
    headers = [("authorization", f"Bearer {READER}"), ("authorization", "Bearer x")]
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.get("/v1/nodes", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("short", 0o600, "can be guessed"),
        ("", 0o600, "can be guessed"),
        (READER, 0o644, "other users"),
        ("x" * 5000, 0o600, "too large"),
    ],
)
def test_a_file_without_a_good_token_is_refused(
    tmp_path: Path, text: str, mode: int, why: str
) -> None:
    file = tmp_path / "reader.token"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(ConfigError, match=why) as failed:
        with_tokens_of_files(HttpSettings(reader_token_file=str(file)))
    assert READER not in str(failed.value)


def test_one_token_for_both_roles_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "one.token"
    file.write_text(OPERATOR)
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="every reader may write"):
        with_tokens_of_files(HttpSettings(token=OPERATOR, reader_token_file=str(file)))
