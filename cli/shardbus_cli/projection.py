"""`projection list`, `show`, `retry`, `skip` and `rewind`: the read sides of events.

`retry`, `skip` and `rewind` need the operator's token.

Source: docs/how-to/event-sourcing.md.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from shardbus_cli import output
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.node_http import NodeHttp
from shardbus_cli.parameters import NODE_URL, AsJson, EntityId, Limit, NodeUrl

app = typer.Typer(help="The read sides of event-sourced entities.", no_args_is_help=True)

LISTED = 100
FIGURES = ("behind", "lag", "stopped", "scanning", "handled", "failed", "missing")
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the projection.")]
Source = Annotated[
    str | None, typer.Argument(metavar="[ID]", help="Id of an entity of the type; default: all.")
]


@app.command("list")
def list_(node: NodeUrl = NODE_URL, as_json: AsJson = False) -> None:
    """List the projections, and how far they are behind."""
    answer = NodeHttp(node).read("v1", "projections")
    if answer.printed(as_json):
        return
    output.table(("name", "of", "shards", *FIGURES), answer["projections"])
    _say_silent(answer)


@app.command()
def show(
    name: Name,
    entity_id: Source = None,
    limit: Limit = LISTED,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """Show a projection on each node and where it fails, or its place in one journal."""
    http = NodeHttp(node)
    if entity_id is not None:
        answer = http.read("v1", "projections", name, entity_id)
        if not answer.printed(as_json):
            columns = ("id", "node", "state", "handled", "last", "behind", "number", "error")
            output.table(columns, [answer])
        return
    answer = http.read("v1", "projections", name, limit=limit)
    if answer.printed(as_json):
        return
    output.table(("node", "shards", *FIGURES), answer["nodes"])
    if answer["failing"]:
        output.table(("id", "node", "state", "number", "attempts", "error"), answer["failing"])
    _say_silent(answer)


@app.command()
def retry(
    name: Name, entity_id: Source = None, node: NodeUrl = NODE_URL, as_json: AsJson = False
) -> None:
    """Try failed events again at once: of one entity, or of all."""
    answer = NodeHttp(node).post("v1", "projections", name, "retry", id=entity_id)
    if answer.printed(as_json):
        return
    output.note(f"{answer['retried']} retried")
    _say_silent(answer)


@app.command()
def skip(
    name: Name,
    entity_id: EntityId,
    number: Annotated[
        int, typer.Argument(metavar="NUMBER", min=1, help="Number of its next event.")
    ],
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """Skip an event for ever: the next one of an entity."""
    path = ("v1", "projections", name, "skip")
    if not NodeHttp(node).post(*path, id=entity_id, number=number).printed(as_json):
        output.note(f"event {number} of {entity_id!r} is passed over")


@app.command()
def rewind(
    name: Name,
    entity_id: Source = None,
    every: Annotated[bool, typer.Option("--all", help="The events of every entity.")] = False,
    missing: Annotated[
        bool, typer.Option("--missing", help="Also where the first events are removed.")
    ] = False,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """Handle events anew, from the first one on, with an empty state."""
    if every is (entity_id is not None):
        raise CommandFailure("name one entity, or --all", code=ExitCode.USAGE)
    http, after = NodeHttp(node), ""
    rewound: list[str] = []
    refused: list[dict[str, Any]] = []
    while True:
        query = {"missing": str(missing).lower(), "id": entity_id, "after": after or None}
        answer = http.post("v1", "projections", name, "rewind", **query)
        rewound += answer["rewound"]
        refused += answer["refused"]
        after = answer["next"] or ""
        if not after:
            break
    if as_json:
        output.data(json.dumps({"name": name, "rewound": rewound, "refused": refused}))
    else:
        output.note(f"{len(rewound)} rewound")
        for row in refused:
            output.note(f"{row['id']}: {row['error']}")
    if refused:
        raise typer.Exit(ExitCode.REFUSED)


def _say_silent(answer: dict[str, Any]) -> None:
    if answer["silent"]:
        output.note(f"no answer from {', '.join(answer['silent'])}")
