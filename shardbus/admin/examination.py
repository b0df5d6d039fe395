"""The findings about the cluster, as the page, `/v1/findings`, `doctor` and `top` show them.

    pages of this node ──> Picture ──> `diagnosis`, `warning_signs` ──> findings
                                                                          │
    the same finding in the examinations of the last seconds ──────────> confirmed

A finding that may be a difference between two moments (`PASSING`) is confirmed once it has been
found for `CONFIRM_S` without a break; every other one is confirmed at once.

Beside the findings stand the nodes that were lost, which is no fault of the cluster any more, and
the last exceptions of failing methods.

Source: docs/reference/http.md; N.6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from shardbus.admin.diagnosis import ADVICE, PASSING, Finding, Picture, findings
from shardbus.admin.warning_signs import warning_signs
from shardbus.http.page import Json
from shardbus.ids import NodeId

CONFIRM_S = 4.0
BREAK_S = 20.0
"""Seconds between two examinations after which the time in between is unknown."""
ORDER = {"fault": 0, "warning": 1}
Key = tuple[str, str, str]
Losses = Mapping[NodeId, Iterable[Any]]
"""The answers of the members to `losses`."""


class Examination:
    """Examines the cluster for readers. `now` is a monotonic clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since: dict[Key, float] = {}
        """When each finding of the last examination was found first."""
        self._at = float("-inf")

    async def examine(self, picture: Picture, losses: Losses) -> Json:
        """Return the answer of `/v1/findings`, by the pages and the answers to `losses`."""
        judged = await asyncio.to_thread(_judged, picture)  # many shards take some milliseconds
        now = self._now()
        before = self._since if now - self._at <= BREAK_S else {}
        self._at = now
        self._since = {finding.key: before.get(finding.key, now) for finding in judged}
        return {
            "node": picture.cluster.get("self"),
            "cluster": picture.cluster.get("cluster"),
            "healthy": not judged,
            "members": len(picture.members),
            "types": len(picture.shards),
            "shards": sum(len(page.get("shards", ())) for page in picture.shards.values()),
            "findings": grouped(judged, ADVICE, self._is_confirmed),
            "lost": lost_nodes(losses),
            "failures": failures(picture),
        }

    def _is_confirmed(self, finding: Finding) -> bool:
        return finding.check not in PASSING or self._at - self._since[finding.key] >= CONFIRM_S


def _judged(picture: Picture) -> list[Finding]:
    unique = dict.fromkeys((*findings(picture), *warning_signs(picture)))
    return sorted(unique, key=lambda finding: ORDER[finding.level])


def grouped(
    judged: Iterable[Finding],
    advice: Mapping[str, str] = ADVICE,
    is_confirmed: Callable[[Finding], bool] = lambda finding: True,
) -> list[dict[str, Any]]:
    """Return the findings, with those that differ only in their subject as one."""
    groups: dict[tuple[str, str, str, bool], dict[str, Any]] = {}
    for finding in judged:
        confirmed = is_confirmed(finding)
        group = groups.setdefault(
            (finding.check, finding.of, finding.what, confirmed),
            {
                "check": finding.check,
                "level": finding.level,
                "of": finding.of,
                "subjects": [],
                "what": finding.what,
                "advice": advice.get(finding.check, ""),
                "confirmed": confirmed,
            },
        )
        group["subjects"].append(finding.subject)
    return list(groups.values())


def _moment(age: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=age)).isoformat(timespec="milliseconds")


def lost_nodes(losses: Losses) -> list[Json]:
    """Return the nodes that any member has seen lost, the last one first: when, who has decided and
    why, and by type how many shards lost their home and how many have one again."""
    rows: dict[str, dict[str, Any]] = {}
    for member, answer in losses.items():
        for node, age, why, shards in answer:
            row = rows.setdefault(node, {"age": age, "by": None, "why": "", "shards": {}})
            row["age"] = max(row["age"], age)
            if why:
                row["by"], row["why"] = str(member), why
            row["shards"] |= {name: {"freed": n, "homed": m} for name, (n, m) in shards.items()}
    ordered = sorted(rows.items(), key=lambda item: item[1]["age"])
    return [{"node": node, "at": _moment(row.pop("age")), **row} for node, row in ordered]


def failures(picture: Picture) -> list[Json]:
    """Return the methods that failed lately, by node, with their last exceptions, newest first."""
    rows: list[dict[str, Any]] = [
        {
            "age": failing["last"][-1][0],
            "type": kind,
            "method": failing["method"],
            "node": node,
            "count": failing["count"],
            "last": [
                {"at": _moment(age), "entity": entity, "error": error, "text": text, "stack": stack}
                for age, entity, error, text, stack in reversed(failing["last"])
            ],
        }
        for node, answer in picture.answers.items()
        for kind, row in answer.get("types", {}).items()
        for failing in row.get("failing") or ()
    ]
    rows.sort(key=lambda row: row.pop("age"))
    return list(rows)
