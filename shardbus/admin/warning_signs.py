"""Find coming troubles of a cluster in its pages. Pure, as `diagnosis` is.

    hot shard     one shard gets a large part of its type's messages, and its node is under pressure
    hot entity    the same, and most of the messages are for one entity of that shard
    backlog       messages wait in mailboxes, or saves for the store
    late          reminders are due and have not fired, a projection is behind, the first message
                  of a durable mailbox has failed for long
    aside         items of work queues were set aside
    limits        file descriptors are nearly used up
    lag           the timers of a loop are late on average, though not at this moment
    skew          clocks, and the protocols of the members' builds
    slow          a handler was reported as slow a short while ago
    failing       a handler, a start or an answer has failed a short while ago
    poison        a delivery was given up a short while ago, since its handler failed each time
    outbox        messages of an outbox have waited for long
    dropped       messages were dropped in the last minute

A part of the messages alone is no fault: a type may have one busy entity all its life. So a shard
is hot only if its node is busy, its loop lags, or messages wait for its entities.

A page may be missing or come from another version, so no field of it is relied upon.

Source: docs/how-to/operate.md; N.9.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from shardbus.admin import diagnosis
from shardbus.entities.failures import ON_START
from shardbus.quantities import counted

Row = Mapping[str, Any]

LAG_S = 0.5
"""By which timers are late on average."""
DESCRIPTORS = 0.8
"""The part of the limit that is in use."""
SAVES_WAIT_S = 1.0
REMINDERS_LATE_S = 30.0
"""For which the first reminder has been due."""
PROJECTION_LAG_S = 60.0
"""For which a projection has not handled an event."""
MAILBOX_STUCK_S = 60.0
"""For which the first message of a durable mailbox has waited that has failed."""
POISON_S = 600.0
"""Since a delivery was given up."""
OUTBOX_STUCK_S = 60.0
"""For which the first message of an outbox has waited."""
OUTBOXES_NAMED = 10
"""Outboxes that are findings of their own, those that have waited longest."""
MAILBOX = 1000
"""Messages that wait for one entity; half of its limit, if that is lower."""
MAILBOXES = 10_000
"""Messages that wait for all entities of a type on one node."""
HOT_MESSAGES = 100
"""Messages of a type in the last half minute, about, below which no shard is hot."""
HOT_PART, HOT_TIMES, HOT_MOST = 0.25, 3, 0.9
"""A hot shard has this part of its type's messages, and as many times its equal part. A type of few
shards needs no more than the last one."""
HOT_ENTITY = 0.5
"""The part of a hot shard's messages that a hot entity has."""
BUSY = 0.5
"""Processor time of the loop, as a part of the time that passed, from which a node is busy."""
EXPLAINED = ("rejected", "failed", "start_failed")
"""Reasons of drops that are no findings."""
HOT_WAITING = 100
"""Messages that wait for an entity of a hot shard."""


def warning_signs(picture: diagnosis.Picture) -> list[diagnosis.Finding]:
    """Return everything that will hurt soon in this picture."""
    types = {kind: None for row in picture.answers.values() for kind in row.get("types", {})}
    return [
        *_members(picture),
        *_protocols(picture),
        *_slow(picture),
        *_dropped(picture),
        *_outboxes(picture),
        *(finding for kind in types for finding in _failing(picture, kind)),
        *(finding for kind in types for finding in _poison(picture, kind)),
        *(finding for kind in types for finding in _backlog(picture, kind)),
        *(finding for kind in types for finding in _hot(picture, kind)),
    ]


# -- members -------------------------------------------------------------------------------------


def _members(picture: diagnosis.Picture) -> Iterator[diagnosis.Finding]:
    for node, row in picture.answers.items():
        lag = _lag(row)
        settled = picture.status(node)[1] >= diagnosis.START_S
        if settled and lag > LAG_S and row.get("lag", 0.0) <= diagnosis.LATE_S:
            what = f"has timers that are {lag:.1f} s late on average"
            yield diagnosis.Finding("lagging", diagnosis.MEMBERS, node, what)
        used, limit = row.get("descriptors") or (0, 0)
        if limit and used > DESCRIPTORS * limit:
            what = f"uses {used} of {limit} file descriptors"
            yield diagnosis.Finding("descriptors", diagnosis.MEMBERS, node, what)
        waiting, seconds = row.get("saves") or (0, 0.0)
        if seconds > SAVES_WAIT_S:
            what = f"has {counted(waiting, 'save')} waiting, the oldest for {seconds:.1f} s"
            yield diagnosis.Finding("saves-waiting", diagnosis.STORE, node, what)
        for kind, (count, late) in (row.get("reminders") or {}).items():
            if late > REMINDERS_LATE_S:
                entities = counted(count, "entity", "entities")
                what = f"has {entities} whose reminders are due, the first for {late:.0f} s"
                yield diagnosis.Finding("reminders-late", str(kind), node, what)
        for kind, (_, _, aside, *_) in (row.get("queues") or {}).items():
            what = f"has {counted(aside, 'item')} that were set aside, for their work failed"
            yield diagnosis.Finding("queue-aside", str(kind), node, what)
        for kind, (stopped, lag) in (row.get("projections") or {}).items():
            if stopped:
                entities = counted(int(stopped), "entity", "entities")
                what = f"stands at an event of {entities}, which failed too often"
                yield diagnosis.Finding("projection-stopped", str(kind), node, what)
            elif lag > PROJECTION_LAG_S:
                what = f"has not handled events for {lag:.0f} s"
                yield diagnosis.Finding("projection-behind", str(kind), node, what)
        for kind, (count, entity_id, age) in (row.get("mailboxes_stuck") or {}).items():
            if age > MAILBOX_STUCK_S:
                what = f"has {counted(count, 'durable mailbox', 'durable mailboxes')} whose first"
                what += f" message has failed; that of {entity_id!r:.60} has waited for {age:.0f} s"
                yield diagnosis.Finding("mailbox-stuck", str(kind), node, what)
        off = row.get("store_clock")
        if off is not None and abs(off) > diagnosis.CLOCK_S:
            what = f"has a clock that is {abs(off):.0f} s {'behind' if off > 0 else 'ahead of'} it"
            yield diagnosis.Finding("store-clock", diagnosis.STORE, node, what)


def _dropped(picture: diagnosis.Picture) -> Iterator[diagnosis.Finding]:
    """Yield why messages were dropped in the last minute, of all nodes together. A rejection is an
    answer of the application, and failures are findings of their own."""
    dropped: Counter[tuple[str, str]] = Counter()
    for row in picture.answers.values():
        for kind, reason, count in row.get("dropped") or ():
            dropped[str(kind), str(reason)] += count
    for (kind, reason), count in dropped.items():
        if reason not in EXPLAINED:
            what = f"is why {counted(count, 'message')} got no handler in a minute"
            yield diagnosis.Finding("dropped", kind, reason, what)


def _outboxes(picture: diagnosis.Picture) -> Iterator[diagnosis.Finding]:
    """Yield the outboxes whose first message waits. The rows begin with the one that has waited
    longest."""
    for row in picture.outboxes.get("outboxes", ())[:OUTBOXES_NAMED]:
        age = float(row.get("age", 0.0))
        if age <= OUTBOX_STUCK_S:
            continue
        messages = counted(row["pending"], "message")
        receiver = f"{row['type']} {row['id']!r:.100}"
        holder = f"open in {row['producer']}" if row.get("open") else "which no process has open"
        what = f"has {messages}, the first for {age:.0f} s, to {receiver}; {holder}"
        yield diagnosis.Finding("outbox-stuck", diagnosis.CLUSTER, str(row["name"]), what)


def _lag(row: Row) -> float:
    return float((row.get("vitals") or {}).get("lag", 0.0))


def _protocols(picture: diagnosis.Picture) -> Iterator[diagnosis.Finding]:
    """Compare the protocols of the members' builds. A build that does not report its protocol is
    not compared."""
    spoken = {
        node: tuple(row["protocol"]) for node, row in picture.answers.items() if row.get("protocol")
    }
    usual = Counter(spoken.values()).most_common(1)
    for node, spoke in spoken.items():
        if spoke != usual[0][0]:
            (oldest, newest), (low, high) = spoke, usual[0][0]
            what = f"speaks protocols {oldest} to {newest}, most speak {low} to {high}"
            yield diagnosis.Finding("protocol", diagnosis.MEMBERS, node, what)
    features = {node: set(picture.answers[node].get("features") or ()) for node in spoken}
    all_features = set().union(*features.values())
    for node, has in features.items():
        if lacks := ", ".join(sorted(all_features - has)):
            yield diagnosis.Finding(
                "protocol", diagnosis.MEMBERS, node, f"lacks what others speak: {lacks}"
            )


def _slow(picture: diagnosis.Picture) -> Iterator[diagnosis.Finding]:
    """Yield the last report of each type on each node, if it is recent."""
    now = (picture.checkup.get("time") or {}).get("answered")
    seen: set[tuple[str, str]] = set()
    for report in picture.slow.get("handlers", ()):  # the newest first
        key = str(report.get("type")), str(report.get("node"))
        if now is None or key in seen or now - _seconds(report.get("at")) > diagnosis.RECENT_S:
            continue
        seen.add(key)
        yield diagnosis.Finding(
            "slow-handler", key[0], key[1], f"has a slow handler: {report.get('text')}"
        )


def _seconds(moment: object) -> float:
    try:
        return datetime.fromisoformat(str(moment)).timestamp()
    except ValueError:
        return 0.0


# -- one entity type -----------------------------------------------------------------------------


def _rows(picture: diagnosis.Picture, kind: str) -> dict[str, Row]:
    return {node: row.get("types", {}).get(kind) or {} for node, row in picture.answers.items()}


def _failing(picture: diagnosis.Picture, kind: str) -> Iterator[diagnosis.Finding]:
    """Yield the methods that failed in the last minute, of all nodes together, and the entities
    that did not start."""
    latest: dict[str, tuple[float, str]] = {}
    counts: Counter[str] = Counter()
    for node, row in _rows(picture, kind).items():
        for entity_id, (age, times, error) in (row.get("failed_starts") or {}).items():
            if age < diagnosis.RECENT_S:
                tries = "once" if times == 1 else counted(times, "time")
                what = f"has not started on {node}, tried {tries}: {error}"
                yield diagnosis.Finding("failing-start", kind, entity_id, what)
        for failing in row.get("failing") or ():
            method, last = str(failing["method"]), failing["last"]
            counts[method] += failing["count"]
            age, entity_id, error, text, _ = last[-1]
            if age < min(diagnosis.RECENT_S, latest.get(method, (diagnosis.RECENT_S,))[0]):
                about = f"{error}: {text}" if text else error
                latest[method] = age, f"{about} (of {entity_id!r:.100} on {node})"
    for method, (_, what) in latest.items():
        if method != ON_START:
            times = f"{counts[method]} failure{'' if counts[method] == 1 else 's'}"
            yield diagnosis.Finding(
                "failing-handler", kind, method, f"has {times}, the last one {what}"
            )


def _poison(picture: diagnosis.Picture, kind: str) -> Iterator[diagnosis.Finding]:
    """Yield the entities to which a delivery was given up lately, each with the last one."""
    latest: dict[str, tuple[float, str]] = {}
    for node, row in _rows(picture, kind).items():
        for age, entity_id, method, producer in row.get("poison") or ():
            if age < min(POISON_S, latest.get(entity_id, (POISON_S,))[0]):
                what = f"has skipped a delivery to {method} on {node}, from {producer}: its"
                latest[entity_id] = age, f"{what} handler failed each time"
    for entity_id, (_, what) in latest.items():
        yield diagnosis.Finding("poison", kind, entity_id, what)


def _backlog(picture: diagnosis.Picture, kind: str) -> Iterator[diagnosis.Finding]:
    for node, row in _rows(picture, kind).items():
        boxes = row.get("mailboxes") or {}
        limit, named = boxes.get("limit", 0), False
        for entity_id, _, waiting in boxes.get("fullest", ()):
            if waiting >= min(MAILBOX, limit / 2):
                named = True
                what = f"has {counted(waiting, 'message')} waiting on {node}, of {limit} at most"
                yield diagnosis.Finding("backlog", kind, entity_id, what)
        if named:
            continue
        if boxes.get("paused"):
            what = f"lets {counted(boxes['paused'], 'sender')} wait for room in its mailboxes"
            yield diagnosis.Finding("backlog", kind, node, what)
        elif boxes.get("waiting", 0) >= MAILBOXES:
            what = f"has {counted(boxes['waiting'], 'message')} waiting"
            yield diagnosis.Finding("backlog", kind, node, what)


def _hot(picture: diagnosis.Picture, kind: str) -> Iterator[diagnosis.Finding]:
    rows = _rows(picture, kind)
    total = sum(_messages(row) for row in rows.values())
    shards = sum(len(row.get("shards") or ()) for row in rows.values())
    if total < HOT_MESSAGES or shards < 2:
        return
    least = min(HOT_MOST, max(HOT_PART, HOT_TIMES / shards))
    for node, row in rows.items():
        here = sum(map(_messages, picture.answers[node].get("types", {}).values()))
        for shard, part in (row.get("hot") or {}).get("shards", ()):
            messages = part * _messages(row)
            if messages < least * total or messages < HOT_PART * here:
                continue
            if pressure := _pressure(picture.answers[node], row, shard):
                entity = _hot_entity(row, shard, part)
                what = f"gets {messages / total:.0%} of the messages on {node}, {pressure}"
                if entity is None:
                    yield diagnosis.Finding("hot-shard", kind, shard, what)
                else:
                    yield diagnosis.Finding("hot-entity", kind, entity, f"of shard {shard} {what}")


def _messages(row: Row) -> float:
    return float((row.get("hot") or {}).get("messages", 0.0))


def _pressure(answer: Row, row: Row, shard: str) -> str:
    """Return why the load of a shard hurts; empty if it does not."""
    busy = float((answer.get("vitals") or {}).get("busy", 0.0))
    for _, of, waiting in (row.get("mailboxes") or {}).get("fullest", ()):
        if of == shard and waiting >= HOT_WAITING:
            messages = counted(waiting, "message waits", "messages wait")
            return f"where {messages} for one of its entities"
    if busy >= BUSY:
        return f"which is {busy:.0%} busy"
    lag = _lag(answer)
    return f"whose timers are {lag:.1f} s late" if lag > LAG_S else ""


def _hot_entity(row: Row, shard: str, part: float) -> str | None:
    """Return the entity that gets most of a shard's messages, None if there is none."""
    for of, entity_id, its_part in row["hot"].get("entities", ()):
        if of == shard and its_part >= HOT_ENTITY * part:
            return str(entity_id)
    return None
