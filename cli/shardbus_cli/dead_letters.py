"""`dead-letters list` and `dead-letters replay`: messages that no handler received, of all nodes.

A replay needs the operator's token, and sends nothing without `--yes`.

Source: docs/how-to/operate.md.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shardbus_cli import output
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.node_http import NodeHttp
from shardbus_cli.parameters import NODE_URL, AsJson, NodeUrl, duration

app = typer.Typer(help="Messages that no handler received, and their replay.", no_args_is_help=True)

COLUMNS = ("id", "at", "type", "entity", "method", "reason", "sender", "bytes", "trace")
LISTED, LETTERS_MAX = 100, 1000
FAILED_SHOWN = 20
MISSING = ", whose letters are missing"

Kind = Annotated[str, typer.Option("--type", metavar="TYPE", help="Only of this entity type.")]
Reason = Annotated[str, typer.Option(metavar="REASON", help="Only those dropped for this reason.")]
Since = Annotated[float, duration("Only those dropped that long ago, or later; 0 is all.", 0)]
Limit = Annotated[int, typer.Option(metavar="N", min=1, max=LETTERS_MAX, help="At most this many.")]


@app.command("list")
def list_(
    kind: Kind = "",
    reason: Reason = "",
    since: Since = 0.0,
    limit: Limit = LISTED,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """List the last dropped messages of every node, newest first; exit code 4 if one did not
    answer."""
    query = _filter(kind, reason, since)
    answer = NodeHttp(node).read("v1", "dead-letters", **query, limit=limit)
    if not answer.printed(as_json):
        _table(answer["letters"])
        if answer["more"]:
            output.note(f"there are more: --limit {min(10 * limit, LETTERS_MAX)}, or --since")
    answer.check_silent(MISSING)


@app.command()
def replay(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Ids that `list` shows.")
    ] = None,
    kind: Kind = "",
    reason: Reason = "",
    since: Since = 0.0,
    limit: Limit = LISTED,
    answered: Annotated[
        bool,
        typer.Option(
            "--answered", help="Also those whose senders got an error, and may have sent again."
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Send them. Without it, only show which ones.")
    ] = False,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """Send dropped messages again, each at most once: by id, or the oldest that the options admit.
    Exit code 1 if one of them was not sent."""
    filters = _filter(kind, reason, since)
    if bool(ids) == any(value is not None for value in filters.values()):
        raise CommandFailure(
            "name letters by their ids, or choose by --type, --reason or --since",
            "`shardbus dead-letters list` shows them",
            code=ExitCode.USAGE,
        )
    answer = NodeHttp(node).post(
        "v1",
        "dead-letters",
        "replay",
        **filters,
        id=ids or None,
        limit=limit,
        answered="true" if answered else None,
        dry_run=None if yes else "true",
    )
    if not answer.printed(as_json):
        _report(answer)
    if answer["failed"]:
        failed = len(answer["failed"])
        raise CommandFailure(output.counted(failed, "letter was not sent", "letters were not sent"))
    answer.check_silent(MISSING)


def _filter(kind: str, reason: str, since: float) -> dict[str, Any]:
    from math import ceil

    return {"type": kind or None, "reason": reason or None, "since": ceil(since) or None}


def _table(letters: list[dict[str, Any]]) -> None:
    trace = any(letter["trace"] for letter in letters)
    output.table(COLUMNS if trace else COLUMNS[:-1], letters)


def _report(answer: dict[str, Any]) -> None:
    """Print the letters that were, or would be, sent."""
    if answer["dry_run"]:
        _table(answer["letters"])
        output.note(f"{len(answer['letters'])} would be sent: repeat with --yes")
    else:
        output.note(f"{answer['sent']} sent")
        for failure in answer["failed"][:FAILED_SHOWN]:
            output.note(f"{failure['id']}: {failure['why']}")
    if answer["without_body"]:
        output.note(f"{answer['without_body']} left out: their bodies were not kept")
    if answer["more"]:
        output.note("there are more: repeat it, or raise --limit")
