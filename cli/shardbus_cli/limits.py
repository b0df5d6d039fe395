"""`limit`: the number of entities of a type that a node may keep in memory."""

from __future__ import annotations

from typing import Annotated

import typer

from shardbus_cli import output
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.node_http import NodeHttp
from shardbus_cli.parameters import NODE_URL, AsJson, EntityType, NodeUrl

DIGITS_MAX = 9
"""The limit of the nodes' HTTP."""


def limit(
    entity_type: EntityType,
    most: Annotated[
        str | None,
        typer.Argument(metavar="[N|off]", help="The new limit; without it, show the limits."),
    ] = None,
    on: Annotated[
        str | None, typer.Option(metavar="NODE", help="Only on this node; `self` is the asked one.")
    ] = None,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """Show or set the number of entities of a type in memory per node. A restarted node uses its
    settings again; exit code 4 if a node did not answer."""
    http = NodeHttp(node)
    if most is None:
        answer = http.read("v1", "limit", entity_type)
    else:
        answer = http.post("v1", "limit", entity_type, limit=_number(most), node=on)
    if not answer.printed(as_json):
        output.table(("node", "limit", "entities", "evicted"), answer["nodes"])
    answer.check_silent()


def _number(text: str) -> int:
    if text == "off":
        return 0
    if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX:
        return int(text)
    hint = f"write a number of at most {DIGITS_MAX} digits, or off"
    raise CommandFailure(f"{text!r} is no limit", hint, code=ExitCode.USAGE)
