"""`values list`, `values get`, `values put`, `values remove` and `values ring`: replicated values.

A node reads and writes them: its HTTP needs the operator's token, and `http.write` for changes.

Source: docs/how-to/replicated-values.md.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from shardbus_cli import output
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.node_http import NodeHttp
from shardbus_cli.parameters import NODE_URL, AsJson, Limit, NodeUrl

app = typer.Typer(help="Replicated values of the cluster.", no_args_is_help=True)

LISTED = 100
Key = Annotated[str, typer.Argument(metavar="KEY", help="Key of the value.")]
Read = Annotated[
    str | None,
    typer.Option("--r", metavar="R", help="Replicas to read: 1 to 9, majority, majority+1 or all."),
]
Write = Annotated[
    str | None,
    typer.Option(
        "--w", metavar="W", help="Replicas that must have it: 1 to 9, majority, majority+1 or all."
    ),
]


@app.command("list")
def list_(
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Only keys that begin with this.")
    ] = "",
    limit: Limit = LISTED,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """List the keys that have a value."""
    answer = NodeHttp(node).read("v1", "values", prefix=prefix or None, limit=limit)
    if answer.printed(as_json):
        return
    for row in answer["values"]:
        output.data(row["key"])
    if answer["more"]:
        output.note(f"there are more: --limit {10 * limit}")


@app.command()
def get(key: Key, r: Read = None, node: NodeUrl = NODE_URL, as_json: AsJson = False) -> None:
    """Print one value as JSON. Exit code 1 if there is none."""
    answer = NodeHttp(node).read("v1", "values", key, r=r)
    if answer.printed(as_json):
        return
    if answer["kind"] is None:
        raise CommandFailure(f"{key!r} has no value")
    output.data(json.dumps(answer["value"], ensure_ascii=False))
    if answer["conflicts"]:
        others = json.dumps(answer["conflicts"], ensure_ascii=False)
        output.note(f"put at the same time: {others}")


@app.command()
def put(
    key: Key,
    value: Annotated[str, typer.Argument(metavar="JSON", help="The value, as `get` prints it.")],
    w: Write = None,
    node: NodeUrl = NODE_URL,
) -> None:
    """Put a value in place of the one that is there."""
    try:
        json.loads(value)
    except ValueError as error:
        raise CommandFailure(f"the value is no JSON: {error}", code=ExitCode.USAGE) from None
    output.data(NodeHttp(node).post_json(value, "v1", "values", key, w=w))


@app.command()
def remove(key: Key, w: Write = None, node: NodeUrl = NODE_URL) -> None:
    """Delete a value, whatever its kind."""
    output.data(NodeHttp(node).delete("v1", "values", key, w=w).text)


@app.command()
def ring(key: Key, node: NodeUrl = NODE_URL, as_json: AsJson = False) -> None:
    """List the replicas that hold a key."""
    replicas = NodeHttp(node).read("v1", "values", key)["replicas"]
    if as_json:
        output.data(json.dumps(replicas))
        return
    for replica in replicas:
        output.data(replica)
