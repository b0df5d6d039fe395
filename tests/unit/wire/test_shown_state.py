"""A stored state for people: bounded, never an error, and a text from which nothing is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardbus.wire.schema import encode_value
from shardbus.wire.shown_state import as_text, shown
from shardbus.wire.stored_state import NO_STATE, compressed, joined, revision_of


def test_a_state_has_its_version_size_revision_and_value() -> None:
    data = joined(3, encode_value({"items": {"tea": 2}}))
    revision = revision_of(data)
    expected = {"version": 3, "bytes": len(data), "revision": revision}
    assert shown(data) == {**expected, "state": {"items": {"tea": 2}}}


def test_what_is_not_stored_has_a_revision_too() -> None:
    none = {"version": None, "bytes": 0, "revision": NO_STATE}
    assert shown(None) == {**none, "state": None}
    assert as_text(shown(None)) == {**none, "text": None}


def test_another_state_has_another_revision() -> None:
    revisions = {revision_of(None), revision_of(b"\x80"), revision_of(b"\x81"), revision_of(b"")}
    assert len(revisions) == 4


@pytest.mark.parametrize("value", [2**63 - 1, 1.0, -0.0, 1e300, "\u202e\u2028\0é", {"a": [None]}])
def test_the_text_of_a_state_is_the_same_value(value: Any) -> None:
    row = as_text(shown(encode_value({"v": value})))
    assert "state" not in row
    read = json.loads(row["text"])["v"]
    assert repr(read) == repr(value)


def test_a_long_value_is_left_out_however_short_it_is_stored() -> None:
    value = encode_value({"v": "x" * 5000})
    for data in (value, compressed(value)):
        row = shown(data, 4096)
        assert row["state"] is None
        assert "at most 4096 are shown" in row["unreadable"]
        assert as_text(row)["text"] is None
    assert shown(compressed(value), 6000)["state"] == {"v": "x" * 5000}


@pytest.mark.parametrize(
    "data", [b"\xc1", b"\xc1\xff\xff\x07", b"\x91" * 100_000, b"\x91" * 900 + b"\x01", b"\x81"]
)
def test_what_cannot_be_read_is_said_on_one_line(data: bytes) -> None:
    row = shown(data)
    assert row["state"] is None
    assert row["unreadable"]
    assert "\n" not in row["unreadable"]
