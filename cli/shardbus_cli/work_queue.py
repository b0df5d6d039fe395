"""`queue show`, `retry` and `drop`: the items of a queue of work.

The commands send messages to the queue, as workers do. `drop` does nothing without `--yes`.

Source: docs/how-to/queue-work.md; B.104.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from shardbus_cli import output
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.node_http import NodeHttp
from shardbus_cli.parameters import NODE_URL, AsJson, EntityId, EntityType, NodeUrl, Secret
from shardbus_cli.send import DEFAULT_TIMEOUT_S, Timeout, answer_of, as_text

app = typer.Typer(help="Items of a queue of work, and their end.", no_args_is_help=True)

COLUMNS = ("number", "place", "attempts", "age_s", "left_s", "worker", "error", "bytes", "value")
PLACES = ("ready", "leased", "delayed", "aside")
SHOWN_MAX = 1000

Numbers = Annotated[
    list[int] | None,
    typer.Argument(metavar="[NUMBER]...", help="Of items that were set aside; default: all."),
]


@app.command()
def show(
    entity_type: EntityType,
    entity_id: EntityId,
    place: Annotated[
        Literal["ready", "leased", "delayed", "aside"] | None,
        typer.Option(help="Only items of this place: ready, leased, delayed, aside."),
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=0, max=SHOWN_MAX, help="At most this many items.")
    ] = 100,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    node: NodeUrl = NODE_URL,
    secret: Secret = None,
    as_json: AsJson = False,
) -> None:
    """Show how many items a queue has, and its first ones."""
    _check_queue(node, entity_type)
    values = [limit, place or ""]
    answer = answer_of(node, entity_type, entity_id, "show", values, timeout, secret)
    if as_json:
        output.data(as_text(answer))
        return
    output.table(COLUMNS, answer["items"])
    counts = ", ".join(f"{answer[key]} {key}" for key in PLACES)
    output.note(
        f"{counts}; {answer['confirmed']} confirmed, {answer['dropped']} dropped;"
        f" {output.counted(answer['waiting_pulls'], 'worker waits', 'workers wait')},"
        f" {output.counted(answer['waiting_puts'], 'put waits', 'puts wait')}"
    )


@app.command()
def retry(
    entity_type: EntityType,
    entity_id: EntityId,
    numbers: Numbers = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    node: NodeUrl = NODE_URL,
    secret: Secret = None,
) -> None:
    """Let workers try items again that were set aside."""
    place = (node, entity_type, entity_id)
    chosen = [row["number"] for row in _aside(*place, numbers, timeout, secret)]
    count = answer_of(*place, "retry", [chosen], timeout, secret) if chosen else 0
    output.note(f"{output.counted(count, 'item')} ready again")


@app.command()
def drop(
    entity_type: EntityType,
    entity_id: EntityId,
    numbers: Numbers = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it. Without it, only show the items.")
    ] = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    node: NodeUrl = NODE_URL,
    secret: Secret = None,
) -> None:
    """Remove items that were set aside: they are never worked."""
    place = (node, entity_type, entity_id)
    items = _aside(*place, numbers, timeout, secret)
    if not yes:
        output.table(COLUMNS, items)
        output.note(f"{output.counted(len(items), 'item')} would be removed: repeat with --yes")
        return
    chosen = [row["number"] for row in items]
    count = answer_of(*place, "drop", [chosen], timeout, secret) if chosen else 0
    output.note(f"{output.counted(count, 'item')} removed")


def _check_queue(node: str, entity_type: str) -> None:
    """Check that the entities of a type are queues: others may have handlers of the same names."""
    rows = NodeHttp(node).read("v1", "types").get("types", ())
    if any(row["type"] == entity_type and not row.get("queue", True) for row in rows):
        raise CommandFailure(f"{entity_type!r} is no type of queues", code=ExitCode.REFUSED)


def _aside(
    node: str,
    entity_type: str,
    entity_id: str,
    numbers: list[int] | None,
    timeout: float,
    secret: Any,
) -> list[dict[str, Any]]:
    """Return the items of a queue that were set aside: all of them, or those with these numbers.

    Raises:
        CommandFailure: one of the numbers is not set aside.
    """
    _check_queue(node, entity_type)
    values = [SHOWN_MAX, "aside"]
    answer = answer_of(node, entity_type, entity_id, "show", values, timeout, secret)
    items = {row["number"]: row for row in answer["items"]}
    missing = [number for number in numbers or () if number not in items]
    if missing:
        raise CommandFailure(
            f"item {missing[0]} is not set aside",
            "`shardbus queue show TYPE ID --place aside` has those that are",
            code=ExitCode.REFUSED,
        )
    return [items[number] for number in numbers or items]
