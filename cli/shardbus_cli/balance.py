"""`plan`, `rebalance` and `place`: what would move, letting it move, and saying where to."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shardbus_cli import output
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


def place(
    entity_type: EntityType,
    places: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SHARD=NODE]...", help="NODE is host:port; `SHARD=` takes a place away."
        ),
    ] = None,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """Say where shards shall live, for types whose strategy is `external`; or where they should."""
    asked = NodeHttp(node)
    path = ("v1", "places", entity_type)
    text = asked.post(*path, set=places) if places else asked.get(*path)
    answer = asked.parse(text)
    if as_json:
        output.data(text)
    else:
        output.table(("shard", "place", "node"), answer.get("places", ()))


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
