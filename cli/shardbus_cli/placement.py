"""`plan`, `rebalance`, `place` and `stop`: show planned moves, and move, place or stop shards."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from shardbus_cli import output
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.node_http import NodeHttp
from shardbus_cli.parameters import NODE_URL, AsJson, EntityType, NodeUrl, duration

STOP_S = 60.0


def plan(
    entity_type: EntityType,
    add: Annotated[int, typer.Option(min=0, max=1000, help="Number of added nodes.")] = 0,
    remove: Annotated[
        list[str] | None, typer.Option(metavar="NODE", help="Without this node; may be repeated.")
    ] = None,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """Show which shards would move if nodes were added or removed. Changes nothing."""
    _plan(node, entity_type, as_json, add=add, remove=remove or None)


def rebalance(
    entity_type: EntityType,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would move.")] = False,
    pause: Annotated[
        bool | None,
        typer.Option("--pause/--resume", help="Stop moving shards for balance, or resume."),
    ] = None,
    moves: Annotated[
        int | None,
        typer.Option(min=0, help="Shards in motion at a time; 0: as in the settings."),
    ] = None,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """Rebalance a type now instead of at its next interval; or set whether and how fast its shards
    move for balance."""
    if dry_run:
        if pause is not None or moves is not None:
            raise CommandFailure(
                "--dry-run changes nothing", "leave out one of them", code=ExitCode.USAGE
            )
        _plan(node, entity_type, as_json)
        return
    paused = None if pause is None else str(pause).lower()
    answer = NodeHttp(node).post("v1", "rebalance", entity_type, pause=paused, moves=moves)
    if not answer.printed(as_json):
        output.facts(answer)


def stop(
    entity_type: EntityType,
    shards: Annotated[list[str], typer.Argument(metavar="SHARD...", help="Ids of the shards.")],
    timeout: Annotated[
        float, duration("Longest wait until they have stopped: 30, 30s.", STOP_S)
    ] = STOP_S,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """Stop shards of a type; a shard starts again with the next message to it. Exit code 7 if one
    has not stopped in time."""
    http = NodeHttp(node)
    deadline = time.monotonic() + timeout
    stopped: list[str] = []
    stopping = shards
    while stopping:
        answer = http.post("v1", "stop", entity_type, shard=stopping)
        stopped += answer["stopped"]
        stopping = answer["stopping"]
        if time.monotonic() >= deadline:
            break
        if stopping:
            left = output.counted(len(stopping), "shard is", "shards are")
            output.note(f"{left} still stopping")
    facts = {"type": entity_type, "stopped": stopped, "stopping": stopping}
    if as_json:
        output.data(output.as_json(facts))
    else:
        output.facts(facts)
    if stopping:
        raise typer.Exit(ExitCode.DRAIN_DEADLINE)


def place(
    entity_type: EntityType,
    places: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SHARD=NODE]...", help="NODE is host:port; `SHARD=` removes a place."
        ),
    ] = None,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """Set the nodes where shards must live, until `SHARD=` takes a place away; without places, show
    them."""
    for text in places or ():
        _check_place(text)
    http = NodeHttp(node)
    path = ("v1", "places", entity_type)
    answer = http.post(*path, set=places) if places else http.read(*path)
    if not answer.printed(as_json):
        output.table(("shard", "place", "node"), answer.get("places", ()))


def _check_place(text: str) -> None:
    from shardbus.errors import ConfigError
    from shardbus.ids import Address

    hint = "write SHARD=HOST:PORT, or SHARD= to remove its place"
    shard, sign, place = text.rpartition("=")
    if not sign or not shard:
        raise CommandFailure(f"{text!r} is no place of a shard", hint, code=ExitCode.USAGE)
    try:
        if place:
            Address.parse(place.partition("#")[0])
    except ConfigError as wrong:
        raise CommandFailure(f"{text!r}: {wrong.message}", hint, code=ExitCode.USAGE) from None


def _plan(url: str, entity_type: str, as_json: bool, **query: object) -> None:
    answer = NodeHttp(url).read("v1", "plan", entity_type, **query)
    if answer.printed(as_json):
        return
    output.table(("node", "before", "after"), [_named(row) for row in answer["nodes"]])
    moves, plans = len(answer["moves"]), answer["rounds"]
    rounds = {0: "", 1: ", in one plan"}.get(plans, f", in {output.counted(plans, 'plan')}")
    output.note(f"{output.counted(moves, 'shard')} would move{rounds}")
    if not answer["settled"]:
        output.note("the strategy does not settle")
    note_held(answer)


def note_held(answer: dict[str, Any]) -> None:
    """Print why no shard moves for balance, if that is so."""
    if held := answer.get("held"):
        output.note(f"nothing moves for balance: {held}")


def _named(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with the name of a hypothetical node, which has no address."""
    node = str(row["node"])
    return {**row, "node": node.split(":")[0]} if node.startswith("new-") else row
