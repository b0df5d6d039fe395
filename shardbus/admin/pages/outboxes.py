"""The outboxes of clients: a node reads and writes them in the store, for their processes and for
operators.

A client has no store. It asks any node, which needs nothing but its store to answer: the lease says
which process has the outbox open, and its counter is the fence of the journal. So a former opener
changes nothing, whatever node it asks.

Source: docs/how-to/deliver.md; B.106.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from secrets import token_hex
from typing import Annotated, Any

from shardbus.admin.administration import Administration, moment_of
from shardbus.admin.questions import question, refusing
from shardbus.client.outbox import ClientOutbox
from shardbus.errors import ConfigError, Refused, StoreError
from shardbus.http.page import PAGE_DEFAULT, Json, Number, Operator, PageSize, Text, page
from shardbus.ids import check_id
from shardbus.quantities import counted
from shardbus.routing.router import LoopSender
from shardbus.sharding.events import Note
from shardbus.store.journal_protocol import journals_of
from shardbus.store.outboxes import OutboxSummary, StoredMessage, StoredOutboxes
from shardbus.transport.permissions import OUTBOX, OUTBOX_TYPE

TTL_MAX = 60.0
RETRY_S, RETRY_PAGES = 3.0, 5
"""For how long, and how many pages of its journal, a node delivers the messages of an outbox: less
than it has for an answer, and no more than a producer takes without waiting."""
EXAMINED = 20
"""Outboxes in which findings are looked for: those that have waited longest."""
FRESH_S = 5.0
WITHIN_S = 3.5
"""For the store to answer an examination."""
DROPPED = "dropped_by_operator"
"""The reason of the dead letters of messages that were given up."""
OutboxName = Annotated[str, Text("the name of an outbox", slashes=True)]
Numbered = Annotated[int, Number(0, 10**9 - 1)]


@page("GET", "/v1/outboxes")
async def outboxes(admin: Administration, limit: PageSize = PAGE_DEFAULT) -> Json:
    """The outboxes of clients that are open or have messages, the one with the oldest message
    first.

    `outboxes`, each with `name`, `producer` (the process that opened it last), `open` (whether a
    process has it open), `opened` (when), `pending` (messages in the store; those behind an
    unconfirmed one may be confirmed), `oldest` (when the first was taken, or null), `age` (the
    seconds since, or 0), `type`, `id` and `method` (the receiver of the first, or null); `more`;
    `silent` (members that did not answer, so that an outbox may be open through them).
    """
    return await _listed(admin, limit)


async def _listed(admin: Administration, limit: int) -> Json:
    if journals_of(admin.node.store) is None:
        return {"outboxes": [], "more": False, "silent": []}
    answers, silent = await admin.ask_all("outbox_openers")
    openers = {str(row[0]) for rows in answers.values() for row in rows}
    rows, more = await _stored(admin).summaries()
    now = admin.node.environment.wall_clock()
    return {
        "outboxes": [outbox_row(row, now, row.name in openers) for row in rows[:limit]],
        "more": more or len(rows) > limit,
        "silent": silent,
    }


async def waiting_outboxes(admin: Administration) -> Json:
    """Return the first rows of `/v1/outboxes` for findings; none if the store does not answer,
    which is a finding of its own. Read once in `FRESH_S`."""

    async def read() -> Json:
        try:
            async with asyncio.timeout(WITHIN_S):
                return await _listed(admin, EXAMINED)
        except (StoreError, TimeoutError):
            return {}

    return await admin.shared("outboxes", FRESH_S, read)


@page("GET", "/v1/outboxes/{name}")
async def outbox(
    admin: Administration, name: OutboxName, limit: PageSize = PAGE_DEFAULT, after: Numbered = 0
) -> Json:
    """One outbox, and its messages in their order, without their arguments.

    As a row of `/v1/outboxes`, and `messages` (each with `number`, `type`, `id`, `method`, `bytes`
    of the arguments, and `taken`: when the outbox took it), after the number `after`.
    """
    answers, silent = await admin.ask_all("outbox_openers")
    summary, messages = await _stored(admin).messages(name, after, limit)
    now = admin.node.environment.wall_clock()
    is_open = any(row[0] == name for rows in answers.values() for row in rows)
    row = outbox_row(summary, now, is_open)
    return {**row, "messages": message_rows(messages), "silent": silent}


@page("DELETE", "/v1/outboxes/{name}")
async def drop_outbox(
    admin: Administration, name: OutboxName, operator: Operator, number: Numbered = 0
) -> Json:
    """Give up the messages of an outbox that no process has open; with `number`, one of them. This
    node keeps up to 1,000 of them as dead letters, with the reason `dropped_by_operator`.

    `name`, `dropped` and `left` (how many). 409 if a process has the outbox open, or it has no such
    message.
    """
    dropped = await _stored(admin).drop(name, number)
    for stored in dropped.first:
        kind, entity_id, method, payload = stored.message
        sender, keep = f"outbox {name}", admin.node.records.letters.undelivered
        keep(kind, DROPPED, entity_id, method, payload, sender, answered=True)  # sent by its id
    if dropped.number:
        text = f"{counted(dropped.number, 'message')} of {name!r:.100}, by {operator:.100}"
        admin.node.note(OUTBOX_TYPE, Note("outbox_dropped", text, dropped.number))
    return {"name": name, "dropped": dropped.number, "left": dropped.left}


@page("POST", "/v1/outboxes/{name}/retry")
async def retry_outbox(admin: Administration, name: OutboxName, operator: Operator) -> Json:
    """Deliver the messages of an outbox that no process has open, at most 5,000 and for up to 3 s,
    as the next process that opens it would. Repeat it while messages are left.

    `name`, `confirmed`, `failed` (reason to how many were given up, which are dead letters of this
    node) and `left`, as `pending` of the others. 409 if a process has the outbox open, or this node
    lacks the type of a message.
    """
    stored = _stored(admin)
    before, _ = await stored.messages(name, 0, 1)

    async def ask(*arguments: Any) -> Any:
        return await answer_outbox(admin, *arguments)

    async def sender_of(type: str) -> LoopSender:
        if type not in admin.node.regions:
            raise LookupError(type)
        return admin.node.regions[type].sender

    owner = f"{admin.node.me}/{token_hex(4)}"
    opened = ClientOutbox(name, owner, ask, sender_of, patience=0.0, pages=RETRY_PAGES)
    opened.counts.keep = admin.node.records.letters.undelivered
    try:
        await opened.__aenter__()
    except LookupError as unknown:
        hint = "ask a node that has it, or give the message up"
        raise Refused(f"this node has no entity type {unknown.args[0]!r}", hint=hint) from None
    try:
        await opened.close(RETRY_S)
    finally:
        opened.abandon()
    failed, (after, _) = dict(opened.failed), await stored.messages(name, 0, 1)
    left = after.pending
    confirmed = max(0, before.pending - left - sum(failed.values()))
    text = f"{name!r:.100}: {counted(confirmed, 'message')} confirmed, by {operator:.100}"
    admin.node.note(OUTBOX_TYPE, Note("outbox_retried", text))
    return {"name": name, "confirmed": confirmed, "failed": failed, "left": left}


@question("outbox_openers")
def answer_openers(admin: Administration) -> list[list[object]]:
    """The outboxes that processes have opened through this node, or renewed here."""
    return admin.openers.rows()


@question(OUTBOX)
@refusing
async def answer_outbox(
    admin: Administration,
    kind: str,
    step: str,
    name: str,
    owner: str,
    number: int,
    fence: int,
    entries: list[bytes],
    op_id: int,
    ttl: float,
) -> Any:
    """Do one step of an outbox for a client: `open`, `renew`, `close`, `read` after an entry,
    `append` after one, `trim` up to one. Errors are returned as refusals."""
    stored = _stored(admin)
    check_id("the name of an outbox", name)
    if kind != OUTBOX_TYPE:
        raise ConfigError(f"{kind!r:.60} is no outbox")
    ttl = min(ttl, TTL_MAX)
    match step:
        case "open":
            granted = await stored.open(name, owner, ttl, fence)
            if granted is not None:
                admin.openers.record_lease(name, owner, ttl)
            return granted
        case "renew":
            renewed = await stored.renew(name, owner, fence, ttl)
            if renewed:
                admin.openers.record_lease(name, owner, ttl)
            return renewed
        case "close":
            admin.openers.forget(name)
            return await stored.close(name, owner, fence, ttl)
        case "read":
            read = await stored.read(name, fence, number)
            return [read.first, read.entries, read.last]
        case "append":
            return await stored.append(name, fence, number, entries, op_id)
        case "trim":
            return await stored.trim(name, fence, number)
        case _:
            raise ConfigError(f"an outbox has no step {step!r:.60}")


def _stored(admin: Administration) -> StoredOutboxes:
    journals = journals_of(admin.node.store)
    if journals is None:
        raise Refused("the store of this cluster has no journals", hint="use another store")
    return StoredOutboxes(admin.node.store, journals, admin.node.environment.wall_clock)


# ---- rows, for the page and for commands that read the store


def outbox_row(row: OutboxSummary, now: float, is_open: bool | None) -> Json:
    """Return an outbox as a page shows it. `now`: seconds since 1970."""
    oldest = row.oldest
    kind, entity_id, method, _ = oldest.message if oldest else (None, None, None, None)
    return {
        "name": row.name,
        "producer": row.register.producer,
        "open": is_open,
        "opened": moment_of(row.register.opened),
        "pending": row.pending,
        "oldest": moment_of(oldest.taken) if oldest else None,
        "age": round(max(0.0, now - oldest.taken / 1000), 3) if oldest else 0.0,
        "type": kind,
        "id": entity_id,
        "method": method,
    }


def message_rows(messages: Iterable[StoredMessage]) -> list[Json]:
    """Return messages as a page shows them."""
    return [
        {
            "number": stored.number,
            "type": stored.message.entity_type,
            "id": stored.message.entity_id,
            "method": stored.message.method,
            "bytes": len(stored.message.payload),
            "taken": moment_of(stored.taken),
        }
        for stored in messages
    ]
