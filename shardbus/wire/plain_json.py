"""Plain values of MessagePack as JSON, without a loss: the output of `state show`, the input of
`state set`, and the states of an export.

    bytes                     {"$bytes": "base64"}
    a timestamp               {"$time": "2026-01-02T03:04:05.000006Z"}
    another extension         {"$ext": [code, "base64"]}
    not a finite number       {"$float": "nan"}
    a map with other keys     {"$map": [[key, value], ...]}, also for one whose only key begins
                              with $

Everything else is the same in both. A value that is not the same after both ways, as a number in
single precision, is the caller's to notice.

**Answers** that a command prints are for reading (`shown_json`): bytes are Base64 and times are
text, as other programs write them, and only an extension, and a map with keys that JSON cannot have
as text, such as tuples, have their marks.

Source: docs/how-to/keep-state.md.
"""

from __future__ import annotations

import base64
import binascii
import math
from datetime import datetime
from typing import Any

import msgspec

MARKS = ("$bytes", "$time", "$ext", "$float", "$map")


def to_json(value: Any) -> Any:
    """Return a plain value in the types of JSON."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"$float": repr(value)}
        case bytes():
            return {"$bytes": base64.b64encode(value).decode()}
        case datetime():
            return {"$time": msgspec.to_builtins(value)}
        case msgspec.msgpack.Ext():
            return {"$ext": [value.code, base64.b64encode(value.data).decode()]}
        case list() | tuple():
            return [to_json(inner) for inner in value]
        case dict():
            marked = len(value) == 1 and next(iter(value)) in MARKS
            if marked or not all(isinstance(key, str) for key in value):
                return {"$map": [[to_json(key), to_json(inner)] for key, inner in value.items()]}
            return {key: to_json(inner) for key, inner in value.items()}
        case _:
            raise ValueError(f"a {type(value).__name__} is no plain value")


def content_to_json(content: Any) -> Any:
    """Return the content of a replicated value of any kind: sets are lists."""
    match content:
        case frozenset():
            return sorted(map(to_json, content), key=repr)
        case dict() if any(isinstance(each, frozenset) for each in content.values()):
            return {name: content_to_json(each) for name, each in content.items()}
        case _:
            return to_json(content)


def from_json(value: Any, path: str = "$") -> Any:
    """Return the plain value that JSON stands for.

    Raises:
        ValueError: a mark has no such value; the text has its path.
    """
    if isinstance(value, list):
        return [from_json(inner, f"{path}[{n}]") for n, inner in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and (mark := next(iter(value))) in MARKS:
        try:
            return _marked(mark, value[mark], path)
        except (ValueError, TypeError, binascii.Error, msgspec.MsgspecError) as error:
            raise ValueError(f"at {path}: {mark}: {error}") from None
    return {key: from_json(inner, f"{path}.{key}") for key, inner in value.items()}


def _key(value: Any) -> Any:
    """Return a key of a map as it was: a list in JSON was a tuple."""
    return tuple(_key(inner) for inner in value) if isinstance(value, list) else value


def shown_json(value: Any) -> str:
    """Return a value as JSON on one line, for reading."""
    return msgspec.json.encode(_shown(value)).decode()


def _shown(value: Any) -> Any:
    match value:
        case msgspec.msgpack.Ext():
            return to_json(value)
        case list() | tuple():
            return [_shown(inner) for inner in value]
        case dict():
            if all(_is_text_in_json(key) for key in value):
                return {key: _shown(inner) for key, inner in value.items()}
            return {"$map": [[_shown(key), _shown(inner)] for key, inner in value.items()]}
        case _:
            return value


def _is_text_in_json(key: object) -> bool:
    return isinstance(key, str | int | float | bytes | datetime) and not isinstance(key, bool)


def _marked(mark: str, value: Any, path: str) -> Any:
    match mark, value:
        case "$bytes", str():
            return base64.b64decode(value, validate=True)
        case "$time", str():
            return msgspec.convert(value, datetime)
        case "$float", "nan" | "inf" | "-inf":
            return float(value)
        case "$ext", [int() as code, str() as data]:
            return msgspec.msgpack.Ext(code, base64.b64decode(data, validate=True))
        case "$map", list():
            pairs = [from_json(pair, f"{path}[{n}]") for n, pair in enumerate(value)]
            return {_key(key): inner for key, inner in pairs}
    raise ValueError(f"{value!r:.40} is no such value")
