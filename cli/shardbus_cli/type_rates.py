"""The work of a cluster's entity types, from the counters in its overview. Pure.

Counters grow since the start of each node. Two overviews give the work in between; one alone gives
the work since the start.

Source: docs/reference/http.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Overview = Mapping[str, Any]


def type_rates(before: Overview | None, after: Overview) -> dict[str, dict[str, object]]:
    """Return by type: messages a second, failures and drops since the start, and the latencies of
    handlers and of waits since the overview before, or since the start if there is none. A node
    that was not there before adds nothing to a difference."""
    bounds = list(after.get("latency_bounds") or ())
    then = {row["node"]: row for row in (before or {}).get("nodes", ()) if row.get("answered")}
    seconds = float(after.get("at", 0)) - float((before or {}).get("at", 0))
    rows: dict[str, dict[str, object]] = {}
    for name in (row["type"] for row in after.get("types", ())):
        received = failures = 0
        handled, waited = [0] * (len(bounds) + 1), [0] * (len(bounds) + 1)
        for node in after.get("nodes", ()):
            now = (node.get("types") or {}).get(name) or {}
            failures += now.get("failures", 0)
            if before is not None and node["node"] not in then:
                continue
            old = (then.get(node["node"], {}).get("types") or {}).get(name) or {}
            received += max(0, now.get("received", 0) - old.get("received", 0))
            _add(handled, now.get("handled") or (), old.get("handled") or ())
            _add(waited, now.get("waited") or (), old.get("waited") or ())
        rows[name] = {
            "msg/s": round(received / seconds) if before is not None and seconds > 0 else "",
            "failed": failures,
            "dropped": _dropped(after, name),
            "p50": quantile(handled, bounds, 0.5),
            "p99": quantile(handled, bounds, 0.99),
            "wait p99": quantile(waited, bounds, 0.99),
        }
    return rows


def _add(counts: list[int], now: Sequence[int], old: Sequence[int]) -> None:
    for at, count in enumerate(now[: len(counts)]):
        counts[at] += max(0, count - (old[at] if at < len(old) else 0))


def _dropped(overview: Overview, name: str) -> int:
    rows = (row for node in overview.get("nodes", ()) for row in node.get("dropped") or ())
    return sum(count for kind, _, count in rows if kind == name)


def quantile(counts: Sequence[int], bounds: Sequence[float], part: float) -> str:
    """Return the bound that this part of the counted values do not exceed, as text; empty without a
    value."""
    rank, below = part * sum(counts), 0
    for count, bound in zip(counts, bounds, strict=False):
        below += count
        if count and below >= rank:
            return f"{1000 * bound:g} ms" if bound < 1 else f"{bound:g} s"
    return f"> {bounds[-1]:g} s" if bounds and sum(counts) else ""
