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
            return [to_json(one) for one in value]
        case dict():
            marked = len(value) == 1 and next(iter(value)) in MARKS
            if marked or not all(isinstance(key, str) for key in value):
                return {"$map": [[to_json(key), to_json(one)] for key, one in value.items()]}
            return {key: to_json(one) for key, one in value.items()}
        case _:
            raise ValueError(f"a {type(value).__name__} is no plain value")


def from_json(value: Any, path: str = "$") -> Any:
    """Return the plain value that JSON stands for.

    Raises:
        ValueError: a mark has no such value; the text has its path.
    """
    if isinstance(value, list):
        return [from_json(one, f"{path}[{n}]") for n, one in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and (mark := next(iter(value))) in MARKS:
        try:
            return _marked(mark, value[mark], path)
        except (ValueError, TypeError, binascii.Error, msgspec.MsgspecError) as error:
            raise ValueError(f"at {path}: {mark}: {error}") from None
    return {key: from_json(one, f"{path}.{key}") for key, one in value.items()}


def _marked(mark: str, given: Any, path: str) -> Any:
    match mark, given:
        case "$bytes", str():
            return base64.b64decode(given, validate=True)
        case "$time", str():
            return msgspec.convert(given, datetime)
        case "$float", "nan" | "inf" | "-inf":
            return float(given)
        case "$ext", [int() as code, str() as data]:
            return msgspec.msgpack.Ext(code, base64.b64decode(data, validate=True))
        case "$map", list():
            pairs = [from_json(pair, f"{path}[{n}]") for n, pair in enumerate(given)]
            return dict(pairs)
    raise ValueError(f"{given!r:.40} is no such value")
