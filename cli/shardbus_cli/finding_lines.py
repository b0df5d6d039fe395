"""Findings and lost nodes of `/v1/findings` as lines of text.

Source: docs/reference/cli.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardbus_cli import output


def finding_line(group: Mapping[str, Any], most: int) -> str:
    """Return a group of findings in one line, which names at most `most` subjects."""
    subjects = group["subjects"]
    more = len(subjects) - most
    shown = ", ".join(subjects[:most]) + (f" and {more} more" if more > 0 else "")
    return output.safe(f"{group['check']}: {group['of']} {shown} {group['what']}")


def lost_line(row: Mapping[str, Any]) -> str:
    """Return the facts about a lost node in one line."""
    by = f" by {row['by']}: {row['why']}" if row.get("by") else ""
    moved = "".join(
        f"; {counts['homed']} of its {output.counted(counts['freed'], 'shard')} of {kind}"
        f" {'has' if counts['homed'] == 1 else 'have'} a home again"
        for kind, counts in (row.get("shards") or {}).items()
    )
    return output.safe(f"lost: {row['node']} at {row['at']}, declared dead{by}{moved}")
