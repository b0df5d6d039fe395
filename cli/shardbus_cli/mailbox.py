"""`mailbox`: the messages of durable mailboxes that are not handled.

`--retry` and `--skip` need the operator's token.

Source: docs/how-to/deliver.md.
"""

from __future__ import annotations

from typing import Annotated

import typer

from shardbus_cli import output
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.node_http import NodeHttp
from shardbus_cli.parameters import NODE_URL, AsJson, Limit, NodeUrl

LISTED = 100
MESSAGE = ("number", "method", "producer", "bytes", "taken", "attempts", "error")
FIGURES = ("waiting", "stuck", "stored", "recovered", "handled", "failed", "given_up")


def mailbox(
    entity_type: Annotated[str, typer.Argument(metavar="TYPE", help="Name of the entity type.")],
    entity_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Id of an entity; default: all.")
    ] = None,
    retry: Annotated[
        bool, typer.Option("--retry", help="Handle failed messages again at once.")
    ] = False,
    skip: Annotated[
        int | None,
        typer.Option("--skip", metavar="NUMBER", min=1, help="Give up the first message for ever."),
    ] = None,
    limit: Limit = LISTED,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """Show the messages of a durable mailbox, or the mailboxes of a type that are stuck."""
    if skip is not None and (entity_id is None or retry):
        raise CommandFailure("--skip needs an entity, and no --retry", code=ExitCode.USAGE)
    http, path = NodeHttp(node), ("v1", "mailboxes", entity_type)
    if skip is not None:
        answer = http.post(*path, "skip", id=entity_id, number=skip)
        if not answer.printed(as_json):
            output.note(f"message {skip} is given up")
        return
    if retry:
        answer = http.post(*path, "retry", id=entity_id)
        if not answer.printed(as_json):
            output.note(f"{answer['retried']} retried")
        return
    answer = http.read(*path, *([] if entity_id is None else [entity_id]), limit=limit)
    if answer.printed(as_json):
        return
    if entity_id is not None:
        output.table(MESSAGE, answer["messages"])
        output.note(f"{answer['waiting']} waiting, at {answer['node']}")
        return
    output.table(("node", *FIGURES), answer["nodes"])
    if answer["stuck"]:
        output.table(("id", "node", *MESSAGE), answer["stuck"])
    answer.check_silent()
