"""No request makes a page fail: an answer, or an error of the caller with its reason."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette

from shardbus.config.settings import HttpSettings
from shardbus.errors import ConfigError
from shardbus.http.app import create_app
from shardbus.http.request_input import DEPTH_MAX, read_json
from shardbus_cli.workers.http_front import create_front
from tests.malformed_requests import (
    BODIES,
    PageAnswer,
    PageRequest,
    answer_to,
    changed,
    pages,
    unreached,
)
from tests.unit.cli.workers.front_kit import Unit
from tests.unit.http.http_kit import FakeNode

TOKEN = "t" * 16
BEARER = (b"authorization", f"Bearer {TOKEN}".encode())
ALLOWED = HttpSettings(write=True, token=TOKEN)
PAGES = pages(b"counter", b"page-7", b"127.0.0.1:7355")
FRONT = [*PAGES, PageRequest("GET", b"/v1/workers"), PageRequest("POST", b"/v1/nodes/self/leave")]
PROBES = (b"/readyz", b"/startupz")


def node_app() -> Starlette:
    node = FakeNode()
    node.more.set()
    return create_app(node.pages, ALLOWED)


def ask(app: Starlette, request: PageRequest) -> PageAnswer:
    return asyncio.run(answer_to(app, request, BEARER))


def check(request: PageRequest, answer: PageAnswer) -> None:
    """Check that it is an answer, or an error of the caller that says why."""
    assert answer.status < 500 or request.path in PROBES, (request, answer)
    if answer.status >= 400 and request.path not in PROBES:
        assert set(answer.error) >= {"code", "message", "hint"}, (request, answer)
        assert answer.error["message"]


def test_each_page_is_tried() -> None:
    assert unreached(node_app(), PAGES) == []
    assert unreached(create_front(Unit(), ALLOWED), FRONT) == []


@pytest.mark.parametrize("request_", PAGES, ids=lambda r: f"{r.method} {r.path.decode()}")
def test_the_valid_request_of_each_page_is_answered(request_: PageRequest) -> None:
    answer = ask(node_app(), request_)
    assert answer.status == 200, answer


@given(st.sampled_from(PAGES), st.integers(0, 2**32), st.integers(1, 3))
@settings(max_examples=400, deadline=None)
def test_no_request_makes_a_page_of_a_node_fail(page: PageRequest, seed: int, times: int) -> None:
    random, request = Random(seed), page
    for _ in range(times):
        request = changed(request, random)
    check(request, ask(node_app(), request))


@given(st.sampled_from(FRONT), st.integers(0, 2**32), st.integers(1, 3))
@settings(max_examples=200, deadline=None)
def test_no_request_makes_the_front_of_workers_fail(
    page: PageRequest, seed: int, times: int
) -> None:
    """Without a worker, the front answers 503 where it would forward."""
    random, request = Random(seed), page
    for _ in range(times):
        request = changed(request, random)
    answer = ask(create_front(Unit(), ALLOWED), request)
    if answer.status == 503 and request.path not in PROBES:
        assert answer.error["code"] == "unavailable"
    else:
        check(request, answer)


@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_no_bytes_make_a_page_fail(path: bytes, query: bytes, body: bytes) -> None:
    request = PageRequest("POST", b"/v1/state/counter/" + path, query, body)
    check(request, ask(node_app(), request))


@pytest.mark.parametrize("app", [node_app, lambda: create_front(Unit(), ALLOWED)])
@pytest.mark.parametrize(
    ("path", "query", "text"),
    [
        (b"/v1/where/counter/a%20%ff", b"", "the path is not UTF-8: 0xff at byte 22"),
        (b"/v1/where/%C3%A9/%c3/x", b"", "the path is not UTF-8: 0xc3 at byte 17"),
        (b"/v1/where/counter/\xff", b"", "the path is not UTF-8: 0xff at byte 18"),
        (b"/v1/where/counter/%ed%a0%80", b"", "the path is not UTF-8: 0xed at byte 18"),
        (b"/nothing/%ff", b"", "the path is not UTF-8: 0xff at byte 9"),
        (b"/v1/entities/counter", b"prefix=%41%80", "the query is not UTF-8: 0x80 at byte 10"),
        (b"/v1/entities/counter", b"prefix=%C3%A9%00", "a control character, 0x0, at byte 13"),
    ],
)
def test_the_place_of_a_byte_that_is_no_text_is_named(app, path, query, text) -> None:
    answer = ask(app(), PageRequest("GET", path, query))
    assert answer.status == 400
    assert text in answer.error["message"].replace("0x00", "0x0")


REASONS = {
    b"": "Expecting value: line 1 column 1",
    b'"\xff"': "the body is not UTF-8: 0xff at byte 1",
    b'{"a": "\\ud800"}': "half of a surrogate pair, \\ud800, at character 7",
    b'"\\ud83d\\ude00\\udc00"': "half of a surrogate pair, \\udc00, at character 13",
    b'"\\ud800\\\\udc00"': "half of a surrogate pair, \\ud800, at character 1",
    b"[1, NaN]": "NaN is no number",
    b"[-Infinity]": "-Infinity is no number",
    b"1e999": "1e999, which is too large",
    b"18446744073709551616": "which has no 64 bits",
    b'[{"a": 1, "b": 2, "a": 3}]': "the key 'a' twice",
    b'["]]", ' + b"[" * (DEPTH_MAX + 5): f"levels, at character {6 + DEPTH_MAX}",
    b"[1,\n2,]": "line 2 column",
}


@pytest.mark.parametrize("body", REASONS)
def test_the_reason_of_a_malformed_body_is_named(body: bytes) -> None:
    with pytest.raises(ConfigError) as caught:
        read_json(body)
    assert REASONS[body] in caught.value.message
    assert caught.value.hint
    answer = ask(node_app(), PageRequest("POST", b"/v1/state/counter/a", b"", body))
    assert (answer.status, answer.error["message"]) == (400, caught.value.message)


def test_a_large_body_is_read_in_the_same_way() -> None:
    body = b'["' + b"x" * 2**17 + b'", NaN]'
    answer = ask(node_app(), PageRequest("POST", b"/v1/state/counter/a", b"", body))
    assert (answer.status, answer.error["message"]) == (
        400,
        "the body is no JSON: NaN is no number",
    )


def test_what_is_json_is_read() -> None:
    text = '["\\ud83d\\ude00", "\\\\ud800", "\\u00e9", 18446744073709551615, -9223372036854775808]'
    assert read_json(text.encode()) == ["😀", "\\ud800", "é", 2**64 - 1, -(2**63)]
    deep = b"[" * DEPTH_MAX + b"]" * DEPTH_MAX
    assert read_json(deep) is not None
    assert read_json(b'["' + b"[" * 500 + b'\\"["]') == ["[" * 500 + '"[']
    assert len(BODIES) == len(set(BODIES))
