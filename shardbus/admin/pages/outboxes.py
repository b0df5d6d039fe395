"""The outboxes of clients: journals in the store, which a node reads and writes for them.

A client has no store. It asks any node, which needs nothing but its store to answer: the lease says
which process has the outbox open, and its counter is the fence of the journal. So a former opener
changes nothing, whatever node it asks.

Source: docs/how-to/deliver.md.
"""

from __future__ import annotations

from typing import Any

from shardbus.admin.administration import Administration
from shardbus.admin.questions import question, refusing
from shardbus.errors import ConfigError, Refused
from shardbus.ids import check_id
from shardbus.store.journal_protocol import Append, JournalStore, journals_of
from shardbus.store.protocol import Lease
from shardbus.transport.permissions import OUTBOX, OUTBOX_TYPE

PAGE = 1000
"""Entries that a node returns at a time."""
TTL_MAX = 60.0


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
    journals = _journals(admin)
    check_id("the name of an outbox", name)
    if kind != OUTBOX_TYPE:
        raise ConfigError(f"{kind!r:.60} is no outbox")
    store, lease = admin.node.store, Lease(f"outbox/{name}", owner, fence)
    match step:
        case "open":
            granted = await store.acquire_lease(lease.name, owner, min(ttl, TTL_MAX))
            return None if granted is None else granted.counter
        case "renew":
            return await store.renew_lease(lease, min(ttl, TTL_MAX))
        case "close":
            return await store.release_lease(lease)
        case "read":
            page = await journals.open(OUTBOX_TYPE, name, name, fence, number, PAGE)
            return [page.first, page.entries, page.last]
        case "append":
            append = Append(OUTBOX_TYPE, name, name, fence, tuple(entries), op_id, number)
            (refused,) = await journals.append([append])
            if refused is not None:
                raise refused
            return append.last
        case "trim":
            return await journals.trim(OUTBOX_TYPE, name, name, fence, number)
        case _:
            raise ConfigError(f"an outbox has no step {step!r:.60}")


def _journals(admin: Administration) -> JournalStore:
    journals = journals_of(admin.node.store)
    if journals is None:
        raise Refused("the store of this cluster has no journals", hint="use another store")
    return journals
