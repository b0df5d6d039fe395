"""Plain values as JSON: nothing is lost, and the error of another value has its path."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from math import nan
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.wire.plain_json import from_json, shown_json, to_json
from shardbus.wire.schema import decode_value, encode_value

scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.just(nan)
    | st.floats(allow_nan=False)
    | st.binary() | st.datetimes(timezones=st.just(UTC), min_value=datetime(1970, 1, 1))
)  # fmt: skip
names = st.text() | st.integers(-9, 9) | st.sampled_from(["$bytes", "$map", "$time"])
keys = names | st.booleans() | st.tuples(names, st.tuples(names)) | st.tuples()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_every_plain_value_survives_json(value: Any) -> None:
    stored = encode_value(decode_value(encode_value(value)))
    again = from_json(json.loads(json.dumps(to_json(decode_value(stored)))))
    assert encode_value(again) == stored


@given(values)
def test_every_plain_value_is_shown_as_json(value: Any) -> None:
    plain = decode_value(encode_value(value))
    assert "\n" not in shown_json(plain)
    json.loads(shown_json(plain))


def test_an_answer_has_marks_only_where_json_has_no_form_of_it() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    ext = msgspec.msgpack.Ext(5, b"x")
    value = {"b": b"\x00\xff", at: {7: nan}, "e": [ext], "t": {(1, b"x"): {True: ext}}}
    assert json.loads(shown_json(value)) == {
        "b": "AP8=",
        "2026-01-02T03:04:05.000006Z": {"7": None},
        "e": [{"$ext": [5, "eA=="]}],
        "t": {"$map": [[[1, "eA=="], {"$map": [[True, {"$ext": [5, "eA=="]}]]}]]},
    }


def test_the_marks() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    value = {"b": b"\x00\xff", "t": at, "m": {1: "x"}, "f": float("inf"), "p": {"$bytes": "x"}}
    assert to_json(value) == {
        "b": {"$bytes": "AP8="},
        "t": {"$time": "2026-01-02T03:04:05.000006Z"},
        "m": {"$map": [[1, "x"]]},
        "f": {"$float": "inf"},
        "p": {"$map": [["$bytes", "x"]]},
    }
    ext = msgspec.msgpack.Ext(5, b"x")
    assert encode_value(from_json(to_json(ext))) == encode_value(ext)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"a": [{"$bytes": "!"}]}, r"at \$\.a\[0\]: \$bytes"),
        ({"a": {"$time": "soon"}}, r"at \$\.a: \$time"),
        ({"$map": [[1]]}, r"at \$: \$map"),
        ({"$float": 7}, r"at \$: \$float: 7 is no such value"),
    ],
)
def test_a_mark_without_such_a_value_is_named_with_its_path(value: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        from_json(value)
