"""Pages about durable mailboxes: stored messages that are not handled, and an operator's orders.

Each node answers for the mailboxes of its shards. Orders go to the home of the entity.

Source: docs/how-to/deliver.md; S3.77.
"""

from __future__ import annotations

from typing import Annotated, Any

from shardbus.admin.administration import Administration, moment_of
from shardbus.admin.questions import question, refusing
from shardbus.deliveries.durable_mailbox import Mail
from shardbus.entities.durable_mailboxes import DurableMailboxes
from shardbus.errors import ConfigError
from shardbus.http.page import (
    PAGE_DEFAULT,
    EntityId,
    EntityType,
    Json,
    Number,
    Operator,
    PageSize,
    page,
)
from shardbus.sharding.events import Note

MailNumber = Annotated[int, Number(1, 10**9 - 1)]


@page("GET", "/v1/mailboxes/{type}")
async def mailboxes(
    admin: Administration, type: EntityType, limit: PageSize = PAGE_DEFAULT
) -> Json:
    """The durable mailboxes of a type on each node, and those whose first message has failed, the
    oldest first.

    `type`, `nodes` (each with `node`, `waiting`: messages that are not handled, `stuck`: mailboxes
    whose first message waits for its next attempt, and since its start: `stored`, `recovered` from
    the store, `handled`, `repeated`, `failed` attempts, `given_up`), `stuck` (each with `id`,
    `node` and the fields of a message), `silent` (members that did not answer).
    """
    _check(admin, type)
    answers, silent = await admin.ask_all("mailboxes", type, limit, of=type)
    stuck = [
        {"node": str(node), **row} for node, answer in answers.items() for row in answer["stuck"]
    ]
    stuck.sort(key=lambda row: (row["taken"] or "", row["id"]))
    nodes = [{"node": str(node), **answer["row"]} for node, answer in answers.items()]
    nodes.sort(key=lambda row: str(row["node"]))
    return {"type": type, "nodes": nodes, "stuck": stuck[:limit], "silent": silent}


@page("GET", "/v1/mailboxes/{type}/{id}")
async def mailbox(
    admin: Administration, type: EntityType, id: EntityId, limit: PageSize = PAGE_DEFAULT
) -> Json:
    """The messages in the durable mailbox of an entity that are not handled, in order, without
    their arguments.

    `type`, `id`, `node`, `waiting` (how many), `messages` (each with `number` in the store or 0
    while it is not there, `method`, `producer`, `bytes`, `taken`: when it arrived, `attempts` that
    failed, `error` of the last one).
    """
    _check(admin, type)
    answer, _, home = await admin.ask_home("mailbox", type, id, limit)
    return {"type": type, "id": id, "node": home, **answer}


@page("POST", "/v1/mailboxes/{type}/retry")
async def retry_mailboxes(
    admin: Administration, type: EntityType, operator: Operator, id: EntityId = ""
) -> Json:
    """Handle the messages now that wait for their next attempt; with `id`, of one entity.

    `type`, `retried` (how many), `silent`.
    """
    _check(admin, type)
    answers, silent = await admin.ask_all("mailbox_retry", type, id, operator, of=type)
    return {"type": type, "retried": sum(answers.values()), "silent": silent}


@page("POST", "/v1/mailboxes/{type}/skip")
async def skip_mail(
    admin: Administration, type: EntityType, operator: Operator, id: EntityId, number: MailNumber
) -> Json:
    """Give up the first message of an entity, which must have this number. Its home keeps it as a
    dead letter, with the reason `skipped`.

    `type`, `id`, `node`, `skipped`. 409 if the first message has another number, or is being
    handled.
    """
    _check(admin, type)
    _, _, home = await admin.ask_home("mailbox_skip", type, id, number, operator)
    return {"type": type, "id": id, "node": home, "skipped": number}


def _check(admin: Administration, type: str) -> None:
    if not admin.region(type).entity_type.durable_mailbox:
        raise ConfigError(f"{type!r} has no durable mailboxes", hint="declare durable_mailbox=True")


# ---- answers of this node


@question("mailboxes")
def answer_mailboxes(admin: Administration, name: str, limit: int) -> dict[str, Any]:
    """The durable mailboxes of this node."""
    boxes = _mailboxes(admin, name)
    stuck = [{"id": key, **mail_row(mail)} for key, mail in boxes.stuck(limit)]
    return {"row": boxes.figures(), "stuck": stuck}


@question("mailbox")
@refusing
async def answer_mailbox(admin: Administration, name: str, shard: str, key: str, limit: int) -> Any:
    """The messages of an entity whose shard is here."""
    mails = _mailboxes(admin, name).mails(key)
    rows = [mail_row(mail) for mail in mails[:limit]]
    return {"waiting": len(mails), "messages": rows}


@question("mailbox_retry")
def answer_mailbox_retry(admin: Administration, name: str, key: str, operator: str) -> int:
    """How many mailboxes of this node try again."""
    retried = _mailboxes(admin, name).retry(key)
    if retried:
        admin.node.note(name, Note("mailbox_retried", f"{retried} mailboxes, by {operator:.100}"))
    return retried


@question("mailbox_skip")
@refusing
async def answer_mailbox_skip(
    admin: Administration, name: str, shard: str, key: str, number: int, operator: str
) -> Any:
    """Give up the first message of an entity whose shard is here."""
    _mailboxes(admin, name).skip(key, number)
    text = f"message {number} of {key!r:.100}, by {operator:.100}"
    admin.node.note(name, Note("mail_skipped", text, entity_id=key))
    return {"skipped": number}


def _mailboxes(admin: Administration, name: str) -> DurableMailboxes:
    boxes = admin.region(name).host.deliveries.mailboxes
    if boxes is None:
        raise ConfigError(f"{name!r} has no durable mailboxes")
    return boxes


def mail_row(mail: Mail) -> Json:
    """Return a message as a page shows it."""
    stored = mail.stored
    return {
        "number": mail.place,
        "method": "" if stored is None else stored.method[1:],
        "producer": "" if stored is None else stored.producer,
        "bytes": len(mail.data) if stored is None else len(stored.number.arguments),
        "taken": None if stored is None else moment_of(stored.at),
        "attempts": mail.failures,
        "error": mail.error,
    }
