"""`plan`, `rebalance` and `limit`: what would move, letting it move, and how many entities a node
may keep in memory."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shardbus_cli import output
from shardbus_cli.exits import Code, Failure
from shardbus_cli.node_http import NodeHttp
from shardbus_cli.parameters import NODE_URL, AsJson, EntityType, NodeUrl


def plan(
    entity_type: EntityType,
    add: Annotated[int, typer.Option(min=0, max=1000, help="So many nodes more.")] = 0,
    remove: Annotated[
        list[str] | None, typer.Option(metavar="NODE", help="Without this node; may be repeated.")
    ] = None,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """Say which shards would move if nodes came or went. Changes nothing."""
    _plan(node, entity_type, as_json, add=add, remove=remove or None)


def rebalance(
    entity_type: EntityType,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would move.")] = False,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """Look at the balance of a type now instead of at its next interval."""
    if dry_run:
        _plan(node, entity_type, as_json)
        return
    asked = NodeHttp(node)
    text = asked.post("v1", "rebalance", entity_type)
    if as_json:
        output.data(text)
    else:
        output.facts(asked.parse(text))


def limit(
    entity_type: EntityType,
    most: Annotated[
        str | None, typer.Argument(metavar="[N|off]", help="The limit from now on; none to show.")
    ] = None,
    on: Annotated[
        str | None, typer.Option(metavar="NODE", help="Only on this node; `self` is the asked one.")
    ] = None,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """Show or set how many entities of a type may be in memory on a node. A node that starts again
    begins with its settings; exit code 4 if one did not answer."""
    asked = NodeHttp(node)
    if most is None:
        text = asked.get("v1", "limit", entity_type)
    else:
        text = asked.post("v1", "limit", entity_type, limit="0" if most == "off" else most, node=on)
    answer = asked.parse(text)
    if as_json:
        output.data(text)
    else:
        output.table(("node", "limit", "entities", "evicted"), answer["nodes"])
    if silent := answer["silent"]:
        raise Failure("no answer from " + ", ".join(silent), code=Code.UNREACHABLE)


def _plan(url: str, entity_type: str, as_json: bool, **query: object) -> None:
    asked = NodeHttp(url)
    text = asked.get("v1", "plan", entity_type, **query)
    answer: dict[str, Any] = asked.parse(text)
    if as_json:
        output.data(text)
        return
    output.table(("node", "before", "after"), [_named(row) for row in answer["nodes"]])
    moves, plans = len(answer["moves"]), answer["rounds"]
    shards = "1 shard" if moves == 1 else f"{moves} shards"
    output.note(f"{shards} would move, in {'one plan' if plans == 1 else f'{plans} plans'}")
    if not answer["settled"]:
        output.note("the strategy does not come to rest")


def _named(row: dict[str, Any]) -> dict[str, Any]:
    """A node that is only thought of has a name and no address."""
    node = str(row["node"])
    return {**row, "node": node.split(":")[0]} if node.startswith("new-") else row
