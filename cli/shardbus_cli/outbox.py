"""`outbox list`, `show`, `retry` and `drop`: the outboxes of clients, and their messages.

A node answers, or with `--store` the store itself, as while no node runs. Delivering messages and
giving them up need a node and the operator's token; `drop` does nothing without `--yes`.

Source: docs/how-to/deliver.md.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardbus_cli import output
from shardbus_cli.app_and_cluster import NamedCluster
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.journal import with_journals
from shardbus_cli.node_http import NodeHttp, NodePage
from shardbus_cli.parameters import NODE_URL, AppOfCluster, AsJson, ClusterName, NodeUrl

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shardbus.store.journal_protocol import JournalStore
    from shardbus.store.outboxes import StoredOutboxes
    from shardbus.store.protocol import StateStore

app = typer.Typer(help="The outboxes of clients, and their end.", no_args_is_help=True)

LISTED = 100
MAY_BE_OPEN = ": an outbox may be open through them"
COLUMNS = ("name", "pending", "age", "type", "id", "method", "open", "producer")
MESSAGES = ("number", "taken", "type", "id", "method", "bytes")
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the outbox.")]
Limit = Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="At most this many.")]
FromStore = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="URL", help="Read the store, and no node; as redis://host:6379/0."
    ),
]


@app.command("list")
def list_(
    limit: Limit = LISTED,
    store: FromStore = None,
    cluster: ClusterName = None,
    app: AppOfCluster = None,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """List the outboxes that are open or have messages, the one with the oldest message first; exit
    code 4 if a node did not answer."""
    if store is None:
        answer = NodeHttp(node).read("v1", "outboxes", limit=limit)
    else:
        answer = _read(store, NamedCluster(cluster, app, node).name, _list_of(limit))
    if not answer.printed(as_json):
        output.table(COLUMNS, answer["outboxes"])
        if answer["more"]:
            output.note(f"there are more: --limit {min(10 * limit, 1000)}")
    answer.check_silent(MAY_BE_OPEN)


@app.command()
def show(
    name: Name,
    limit: Limit = LISTED,
    after: Annotated[int, typer.Option(min=0, help="Only messages after this number.")] = 0,
    store: FromStore = None,
    cluster: ClusterName = None,
    app: AppOfCluster = None,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """Show one outbox and its messages, without their arguments."""
    if store is None:
        answer = NodeHttp(node).read("v1", "outboxes", name, limit=limit, after=after or None)
    else:
        answer = _read(store, NamedCluster(cluster, app, node).name, _page(name, after, limit))
    if not answer.printed(as_json):
        output.table(MESSAGES, answer["messages"])
        output.note(_summary(answer))
        if answer["messages"] and len(answer["messages"]) < answer["pending"]:
            output.note(f"there may be more: --after {answer['messages'][-1]['number']}")
    answer.check_silent(MAY_BE_OPEN)


@app.command()
def retry(name: Name, node: NodeUrl = NODE_URL, as_json: AsJson = False) -> None:
    """Let a node deliver the messages of an outbox that no process has open; exit code 1 if some
    are left."""
    answer = NodeHttp(node).post("v1", "outboxes", name, "retry")
    if not answer.printed(as_json):
        output.note(f"{output.counted(answer['confirmed'], 'message')} confirmed")
        for reason, count in answer["failed"].items():
            output.note(f"{count} given up, {reason}: `shardbus dead-letters list` has them")
    if left := answer["left"]:
        text = output.counted(left, "message is left", "messages are left")
        raise CommandFailure(text, "repeat it; `shardbus doctor` shows what fails")


@app.command()
def drop(
    name: Name,
    number: Annotated[
        int | None,
        typer.Argument(metavar="[NUMBER]", min=1, help="Of one message; default: all."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it. Without it, only show what would be given up.")
    ] = False,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """Give up the messages of an outbox that no process has open, or one of them: they are never
    delivered."""
    http = NodeHttp(node)
    if not yes:
        after, limit = (number - 1, 1) if number else (0, LISTED)
        answer = http.read("v1", "outboxes", name, limit=limit, after=after or None)
        rows = [row for row in answer["messages"] if number in (None, row["number"])]
        if number and not rows:
            raise CommandFailure(f"{name!r} has no message {number}", code=ExitCode.REFUSED)
        if answer.printed(as_json):
            return
        output.table(MESSAGES, rows)
        count = len(rows) if number else answer["pending"]
        output.note(f"{count} would be given up: repeat with --yes")
        return
    answer = http.delete("v1", "outboxes", name, number=number)
    if not answer.printed(as_json):
        dropped = output.counted(answer["dropped"], "message")
        output.note(f"{dropped} given up, {answer['left']} left")


def _summary(answer: dict[str, Any]) -> str:
    """Return a sentence about one outbox."""
    messages = output.counted(answer["pending"], "message")
    if answer["open"] is None:
        return f"{messages}; opened last by {answer['producer']}, {answer['opened']}"
    if answer["open"]:
        return f"{messages}; open in {answer['producer']} since {answer['opened']}"
    return f"{messages}; not open; opened last by {answer['producer']}, {answer['opened']}"


def _list_of(limit: int) -> Callable[[StoredOutboxes], Awaitable[dict[str, Any]]]:
    from shardbus.admin.pages.outboxes import outbox_row

    async def read(outboxes: StoredOutboxes) -> dict[str, Any]:
        rows, more = await outboxes.summaries()
        shown = [outbox_row(row, time.time(), None) for row in rows[:limit]]
        return {"outboxes": shown, "more": more or len(rows) > limit, "silent": []}

    return read


def _page(
    name: str, after: int, limit: int
) -> Callable[[StoredOutboxes], Awaitable[dict[str, Any]]]:
    from shardbus.admin.pages.outboxes import message_rows, outbox_row

    async def read(outboxes: StoredOutboxes) -> dict[str, Any]:
        summary, messages = await outboxes.messages(name, after, limit)
        row = outbox_row(summary, time.time(), None)
        return {**row, "messages": message_rows(messages), "silent": []}

    return read


def _read(
    url: str, cluster: str, step: Callable[[StoredOutboxes], Awaitable[dict[str, Any]]]
) -> NodePage:
    """Return the answer of a step on the outboxes of the store."""
    from shardbus.store.outboxes import StoredOutboxes

    async def read(store: StateStore, journals: JournalStore) -> dict[str, Any]:
        return await step(StoredOutboxes(store, journals, time.time))

    answer = with_journals(url, cluster, read)
    return NodePage(answer, json.dumps(answer))
