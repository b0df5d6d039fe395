"""Pages about past events: events, slow handlers, dropped messages."""

from __future__ import annotations

from datetime import UTC, datetime
from operator import itemgetter
from typing import Annotated, Any

from shardbus.admin.administration import Administration, moment
from shardbus.admin.questions import question
from shardbus.http.page import (
    PAGE_MAX,
    Events,
    Json,
    Number,
    page,
)
from shardbus.membership.view import MembershipView
from shardbus.node.event_log import fact, picture

SINCE_MAX, EVENTS_MAX = 999_999_999, 1000
Seconds = Annotated[float, Number(0, SINCE_MAX)]


@page("GET", "/v1/events")
async def events(admin: Administration) -> Events:
    """The events of the cluster, as server-sent events; the first is a snapshot; at most 20
    listeners.

    Each `data:` line is an object with `event`. The first is `snapshot`, with `leader`, `converged`
    and `members`; others have `node` and `text`. A listener that is too slow gets another
    `snapshot` instead of the events that it missed. A comment comes every 15 s without an event.
    """
    subscription = admin.node.subscriptions.subscribe()
    try:
        async for event in subscription:
            yield picture(event) if isinstance(event, MembershipView) else fact(event)
    finally:
        subscription.close()


@page("GET", "/v1/events/recent")
async def recent_events(
    admin: Administration,
    within: Annotated[float, Number(1, SINCE_MAX)] = float(SINCE_MAX),
    limit: Annotated[int, Number(1, PAGE_MAX)] = PAGE_MAX,
) -> Json:
    """The last events of every node, in order of time. `within` is in seconds.

    `time` and `events`, oldest first, each with `at`, `seen_by` (the node), `number` (it grows with
    each event of that node), `event`, `type` (empty for events of membership), `node` (that it
    concerns, or null), `text`; `silent`. Times are by the clock of the node that answers.
    """
    members = admin.node.rpc.members() or [admin.node.me]
    answers = await admin.node.rpc.ask_all("recent_events", within, limit)
    now = datetime.now(UTC)
    names = ("age", "number", "event", "type", "node", "text")
    rows = [
        {"seen_by": str(node), **dict(zip(names, row, strict=True))}
        for node, seen in answers.items()
        for row in seen
    ]
    rows.sort(key=lambda row: (-row["age"], row["seen_by"], row["number"]))
    return {
        "time": now.isoformat(),
        "events": [{"at": moment(row.pop("age"), now), **row} for row in rows[-limit:]],
        "silent": [str(n) for n in members if n not in answers],
    }


@page("GET", "/v1/slow")
async def slow(admin: Administration) -> Json:
    """The last reports of slow handlers, of every node.

    `handlers`, newest first, 20 of a node, each with `at`, `node`, `type`, `how`, `text`; `silent`.
    """
    answers, silent = await admin.ask_all("slow_reports")
    now = datetime.now(UTC)
    rows = [
        {"age": age, "node": str(node), "type": type, "how": how, "text": text}
        for node, reports in answers.items()
        for age, type, how, text in reports
    ]
    rows.sort(key=itemgetter("age"))
    handlers = [{"at": moment(row.pop("age"), now), **row} for row in rows]
    return {"handlers": handlers, "silent": silent}


# ---- answers of this node


@question("slow_reports")
def answer_slow_reports(admin: Administration) -> list[list[Any]]:
    """The last slow handlers here, oldest first: seconds since the report, the entity type,
    `waited` or `blocked`, and the report."""
    now = admin.node.loop.time()
    return [[now - r.at, r.entity_type, r.how, r.text] for r in admin.node.records.slow.reports()]


@question("recent_events")
def answer_recent_events(admin: Administration, seconds: float, most: int) -> list[list[Any]]:
    """The last events here, oldest first, none older than that: age, number, name, entity type,
    node, text."""
    return admin.node.records.events.within(seconds, min(most, EVENTS_MAX))
