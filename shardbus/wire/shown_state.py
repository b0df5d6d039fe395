"""A stored state for people: its version, size and revision, and its value as JSON.

A value that is too long to be shown at once is left out, with the reason; so is one that cannot be
read. The class of the entity is not asked: a state that it cannot read is shown all the same.

Source: docs/how-to/keep-state.md.
"""

from __future__ import annotations

import json
from typing import Any

from shardbus.errors import SchemaError
from shardbus.wire.misfit import Misfit
from shardbus.wire.nesting import check_nesting
from shardbus.wire.plain_json import to_json
from shardbus.wire.schema import decode_value
from shardbus.wire.stored_state import revision_of, split


def shown(data: bytes | None, most: int | None = None) -> dict[str, Any]:
    """Return `version`, `bytes`, `revision` and `state` of a stored value, and `unreadable` with
    the reason if it has a value that is not in `state`. `most` bounds the bytes of the value."""
    row: dict[str, Any] = {
        "version": None,
        "bytes": len(data or b""),
        "revision": revision_of(data),
        "state": None,
    }
    if data is None:
        return row
    try:
        row["version"], value = split(data)
        if most is not None and len(value) > most:
            row["unreadable"] = f"its value has {len(value)} bytes, at most {most} are shown"
        else:
            check_nesting(value)
            row["state"] = to_json(decode_value(value))
    except (Misfit, SchemaError, ValueError, RecursionError) as error:
        row["unreadable"] = str(error)
    return row


def as_text(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with the JSON itself, indented, as `text` in the place of `state`. A browser
    reads numbers with 53 bits only, and writes 1.0 as 1: it must not parse a state that it sends
    back."""
    state = row.pop("state")
    is_readable = row["version"] is not None and "unreadable" not in row
    return {**row, "text": json.dumps(state, ensure_ascii=False, indent=2) if is_readable else None}
