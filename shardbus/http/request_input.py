"""The input of clients, as text and as JSON. Anything malformed is refused with its place.

    path and query    percent-encoded UTF-8 without control characters; checked for every page
                      before it runs, so that no page gets text with replacement characters
    body              JSON in UTF-8: no key twice, no NaN, no number that a double or 64 bits cannot
                      hold, no lone surrogate, at most `DEPTH_MAX` levels

Source: RFC 3986, RFC 8259; docs/reference/http.md.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any, NoReturn
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Receive, Scope, Send

from shardbus.errors import ConfigError
from shardbus.http.errors import error
from shardbus.wire.nesting import NESTING_MAX

DEPTH_MAX = NESTING_MAX + 2
"""Levels of lists and objects in a body: a state's levels, whose innermost may be an object that
stands for a value that JSON lacks (`plain_json`). The owner of the state checks it exactly."""
INT_LOW, INT_HIGH = -(2**63), 2**64 - 1
UTF8_HINT = "send UTF-8; percent-encode what is not ASCII"
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
BRACKET = re.compile(r"[\[\]{}]")


class TargetCheck:
    """ASGI middleware: refuses a request whose path or query is no text."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self.app
        if scope["type"] == "http":
            raw = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogateescape")
            path = bytes(raw).partition(b"?")[0]
            try:
                _check_text("path", path)
                _check_text("query", scope["query_string"])
            except ConfigError as e:
                answer = error(400, "bad_request", e.message, e.hint)
        await answer(scope, receive, send)


def _check_text(what: str, sent: bytes) -> None:
    """Check that percent-encoded bytes are UTF-8 text.

    Raises:
        ConfigError: they are not; the text has the place in `sent`.
    """
    data = unquote_to_bytes(sent)
    try:
        text = data.decode()
    except UnicodeDecodeError as e:
        raise _not_utf8(what, data[e.start], _place(sent, e.start)) from None
    if control := CONTROL.search(text):
        at = _place(sent, len(text[: control.start()].encode()))
        text = f"the {what} has a control character, {ord(control[0]):#04x}, at byte {at}"
        raise ConfigError(text, hint="ids and names have none")


def _place(sent: bytes, decoded: int) -> int:
    """Return where in percent-encoded bytes a decoded one begins."""
    parts = re.finditer(rb"%[0-9a-fA-F]{2}|.", sent, re.DOTALL)
    return next(part.start() for n, part in enumerate(parts) if n == decoded)


def _not_utf8(what: str, byte: int, at: int) -> ConfigError:
    return ConfigError(f"the {what} is not UTF-8: {byte:#04x} at byte {at}", hint=UTF8_HINT)


def read_json(body: bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ConfigError: it is none; the text has the place.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as e:
        raise _not_utf8("body", body[e.start], e.start) from None
    _check_depth(text)
    try:
        value = json.loads(
            text,
            object_pairs_hook=_distinct,
            parse_constant=_no_constant,
            parse_int=_integer,
            parse_float=_float,
        )
    except json.JSONDecodeError as e:
        where = f"line {e.lineno} column {e.colno}"
        raise ConfigError(f"the body is no JSON: {e.msg}: {where}", hint="send JSON") from None
    _check_surrogates(text)
    return value


def _check_surrogates(text: str) -> None:
    """Check that each half of a surrogate pair in a JSON text has the other half."""
    high = -1
    """Where a first half ends."""
    for escape in ESCAPE.finditer(text):
        code = int(escape[1], 16) if escape[1] else 0
        if high >= 0 or 0xDC00 <= code < 0xE000:
            if high != escape.start() or not 0xDC00 <= code < 0xE000:
                raise _half(text, escape.start() if high < 0 else high - 6)
            high = -1
        elif 0xD800 <= code < 0xDC00:
            high = escape.end()
    if high >= 0:
        raise _half(text, high - 6)


def _half(text: str, at: int) -> ConfigError:
    return ConfigError(
        f"the body has half of a surrogate pair, {text[at : at + 6]}, at character {at}",
        hint="send the character itself, in UTF-8",
    )


def _check_depth(text: str) -> None:
    """Check the levels of a JSON text. Most have too few brackets to need it."""
    if text.count("[") + text.count("{") <= DEPTH_MAX:
        return
    depth = 0
    for bracket in BRACKET.finditer(STRING.sub(_blank, text)):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > DEPTH_MAX:
            raise ConfigError(
                f"the body has more than {DEPTH_MAX} levels, at character {bracket.start()}",
                hint="put fewer lists and objects into each other",
            )


def _blank(string: re.Match[str]) -> str:
    return " " * len(string[0])


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ConfigError(f"the body has the key {twice[:80]!a} twice", hint="keep one of them")
    return fields


def _no_constant(name: str) -> NoReturn:
    raise ConfigError(f"the body is no JSON: {name} is no number", hint='write {"$float": "nan"}')


def _integer(digits: str) -> int:
    value = int(digits) if len(digits) <= len(str(INT_LOW)) else INT_HIGH + 1
    if INT_LOW <= value <= INT_HIGH:
        return value
    raise ConfigError(f"the body has {digits[:40]}, which has no 64 bits", hint="send it as text")


def _float(digits: str) -> float:
    value = float(digits)
    if math.isfinite(value):
        return value
    raise ConfigError(f"the body has {digits[:40]}, which is too large", hint="send it as text")
