"""`events`: the past events of the cluster, and with `--follow` the new ones, in order of time.

Each node keeps its last events; one node asks all and sorts them by its own clock, so the clocks of
the others do not matter. The command asks that node again and again, and prints new events: an
event is identified by the node that has seen it and its number there. Events younger than `HOLD_S`
are held back, because a member's answer may still bring something older.

If no node answers, the command asks again, `RETRIES` times at most, with growing pauses. Once one
answers, it requests everything since the last answer, so that it misses only events that the nodes
keep no longer.

`NewEvents` chooses the events to print and is pure.

Source: docs/reference/cli.md; N.21.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import count
from math import ceil
from typing import Annotated, Any

import msgspec
import typer

from shardbus_cli import output
from shardbus_cli.any_node import AnyNode
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.node_http import NodeHttp
from shardbus_cli.parameters import NODE_URL, NodeUrl, duration

EVERY_S, EVERY_LEAST_S = 1.0, 0.2
HOLD_S = 1.0
OVERLAP_S = 10.0
"""Seconds of events that are requested once more, because their node may not have answered
before."""
LAST, LAST_MOST = 50, 1000
LEARN_EVERY = 10
"""Looks between two in which the other nodes are looked up."""
RETRIES, PAUSE_S, PAUSE_MOST_S = 10, 0.5, 5.0
REPEAT_S = 30.0
"""Within which the same event of membership, seen by another node, is not printed once more."""
Row = Mapping[str, Any]


class EventFilter(msgspec.Struct, frozen=True):
    """Which events are printed. An empty field admits all."""

    names: frozenset[str] = frozenset()
    entity_type: str = ""
    seen_by: str = ""
    """A node, as `host:port` or `host:port#uid`."""

    def takes(self, row: Row) -> bool:
        """True if the filter lets the event through."""
        seen_by = str(row.get("seen_by"))
        return (
            (not self.names or str(row.get("event")).lower() in self.names)
            and (not self.entity_type or row.get("type") == self.entity_type)
            and (not self.seen_by or self.seen_by in (seen_by, seen_by.partition("#")[0]))
        )


class NewEvents:
    """The new events of each answer. `every`: repetitions by another node, too."""

    def __init__(self, selection: EventFilter, *, every: bool) -> None:
        self._selection, self._every = selection, every
        self._numbers: dict[str, int] = {}
        """The last event of each node that was taken."""
        self._reported_at: dict[tuple[object, ...], float] = {}

    def take(self, answer: Mapping[str, Any], *, hold: bool) -> list[Row]:
        """Return the new events of an answer, oldest first. With `hold`, those that are too young
        come with a later answer."""
        now = _seconds(answer.get("time"))
        fresh: list[Row] = []
        for row in answer.get("events", ()):
            at, node = _seconds(row.get("at")), str(row.get("seen_by"))
            if row["number"] <= self._numbers.get(node, 0) or (hold and now - at < HOLD_S):
                continue
            self._numbers[node] = row["number"]
            if self._selection.takes(row) and self._is_news(row, at):
                fresh.append(row)
        self._reported_at = {
            key: at for key, at in self._reported_at.items() if now - at < REPEAT_S
        }
        return fresh

    def _is_news(self, row: Row, at: float) -> bool:
        """True unless it is an event of membership that another node has reported."""
        if self._every or self._selection.seen_by or row.get("type"):
            return True
        key = row.get("event"), row.get("node"), row.get("text")
        before = self._reported_at.get(key)
        self._reported_at[key] = at
        return before is None or at - before >= REPEAT_S


def _seconds(moment: object) -> float:
    try:
        return datetime.fromisoformat(str(moment)).timestamp()
    except ValueError:
        return 0.0


def events(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what happens, until Ctrl-C.")
    ] = False,
    names: Annotated[
        list[str] | None,
        typer.Option("--event", metavar="NAME", help="Only this event; may be repeated."),
    ] = None,
    entity_type: Annotated[
        str, typer.Option("--type", metavar="TYPE", help="Only events of this entity type.")
    ] = "",
    only: Annotated[
        str, typer.Option("--only", metavar="NODE", help="Only what this node has seen.")
    ] = "",
    last: Annotated[int, typer.Option(min=0, max=LAST_MOST, help="Events to begin with.")] = LAST,
    every: Annotated[
        float, duration("Between two looks: 1s, 500ms.", EVERY_S, EVERY_LEAST_S)
    ] = EVERY_S,
    node: NodeUrl = NODE_URL,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per event, of each node.")
    ] = False,
) -> None:
    """Print the last events of the cluster, in order of time; with --follow go on."""
    selection = EventFilter(frozenset(name.lower() for name in names or ()), entity_type, only)
    new = NewEvents(selection, every=as_json)
    nodes = AnyNode(node)
    try:
        answer = nodes.read(lambda http: _read(nodes, http, None))
        rows = new.take(answer, hold=follow)
        _print(rows[-last:] if last else [], as_json=as_json)
        if silent := answer.get("silent"):
            output.note(f"no answer from {', '.join(silent)}, whose events are missing")
        if follow:
            _follow(nodes, new, every, as_json=as_json)
    except KeyboardInterrupt:
        return
    except BrokenPipeError:  # its reader has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _follow(nodes: AnyNode, new: NewEvents, every: float, *, as_json: bool) -> None:
    """Print new events, again and again.

    Raises:
        CommandFailure: no node has answered `RETRIES` times.
    """
    since = time.monotonic()
    for look in count(1):
        time.sleep(every)
        asked_at = time.monotonic()
        answer = _read_again(nodes, since, learn=not look % LEARN_EVERY)
        since = asked_at
        _print(new.take(answer, hold=True), as_json=as_json)


def _read_again(nodes: AnyNode, since: float, *, learn: bool) -> dict[str, Any]:
    """Return the events since then, from the first node that answers."""
    url, pause = nodes.url, PAUSE_S
    for left in range(RETRIES, -1, -1):
        within = ceil(time.monotonic() - since + OVERLAP_S)
        try:
            answer = nodes.read(lambda http: _read(nodes, http, within, learn=learn))  # noqa: B023
        except CommandFailure as failure:
            if failure.code is not ExitCode.UNREACHABLE or not left:
                raise
            output.note(f"{failure.message}; asking again, {output.counted(left, 'time')} at most")
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_MOST_S)
            continue
        if nodes.url != url:
            output.note(f"{url} does not answer: asking {nodes.url}")
        return answer
    raise AssertionError  # the last attempt returns or raises


def _read(
    nodes: AnyNode, http: NodeHttp, within: int | None, *, learn: bool = True
) -> dict[str, Any]:
    answer = http.read("v1", "events", "recent", limit=LAST_MOST, within=within)
    if learn:
        nodes.learn(http, http.read("v1", "nodes"))
    return answer


def _print(rows: Iterable[Row], *, as_json: bool) -> None:
    for row in rows:
        output.data(output.as_json(row) if as_json else line_of(row))
    sys.stdout.flush()


def line_of(row: Row) -> str:
    """Return an event as one line: the time, the node that has seen it, the event, the text."""
    at = str(row.get("at")).replace("+00:00", "Z")
    about = f"{row['type']}: " if row.get("type") else ""
    return output.escape(
        f"{at}  {row.get('seen_by')}  {row.get('event')}  {about}{row.get('text')}"
    )
