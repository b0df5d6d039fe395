"""`reminders list`, `reminders show` and `reminders cancel`: the later calls of entities.

A cancellation needs the operator's token.

Source: docs/how-to/reminders.md.
"""

from __future__ import annotations

from typing import Annotated

import typer

from shardbus_cli import output
from shardbus_cli.node_http import NodeHttp
from shardbus_cli.parameters import NODE_URL, AsJson, EntityId, EntityType, Limit, NodeUrl

app = typer.Typer(help="The reminders of entities, and their end.", no_args_is_help=True)

LISTED = 100


@app.command("list")
def list_(
    kind: EntityType,
    limit: Limit = LISTED,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """List the entities that have reminders, those first that are due first."""
    answer = NodeHttp(node).read("v1", "reminders", kind, limit=limit)
    if answer.printed(as_json):
        return
    output.table(("id", "shard", "due", "late"), answer["reminders"])
    if answer["more"]:
        output.note(f"there are more: --limit {10 * limit}")


@app.command()
def show(
    kind: EntityType, entity_id: EntityId, node: NodeUrl = NODE_URL, as_json: AsJson = False
) -> None:
    """Show the reminders of one entity."""
    answer = NodeHttp(node).read("v1", "reminders", kind, entity_id)
    if not answer.printed(as_json):
        columns = ("name", "handler", "due", "number", "every", "cron", "tz", "late")
        output.table(columns, answer["reminders"])


@app.command()
def cancel(
    kind: EntityType,
    entity_id: EntityId,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Of the reminder; default: all.")
    ] = None,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """Cancel the reminders of one entity, or one of them."""
    answer = NodeHttp(node).delete("v1", "reminders", kind, entity_id, name=name)
    if not answer.printed(as_json):
        names = answer["cancelled"]
        output.note(f"{len(names)} cancelled" + (f": {', '.join(names)}" if names else ""))
