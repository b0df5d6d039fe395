"""`top`: watch the states, the load, the errors and the latencies of the nodes and the types, over
the HTTP of any node, and the findings of `doctor`.

On a terminal the picture is drawn anew every two seconds until Ctrl-C; elsewhere one picture is
printed. If the node does not answer, the other nodes of the last picture are asked instead. `frame`
makes the picture from the pages and is pure.

Source: docs/reference/cli.md; docs/reference/http.md.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardbus_cli import output
from shardbus_cli.any_node import AnyNode
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.finding_lines import finding_line, lost_line
from shardbus_cli.node_http import NodeHttp
from shardbus_cli.parameters import NODE_URL, NodeUrl, duration
from shardbus_cli.show import HOTTEST_COLUMNS, busy_cells
from shardbus_cli.type_rates import type_rates

if TYPE_CHECKING:
    from collections.abc import Iterator

EVERY_S, EVERY_LEAST_S = 2.0, 0.2
HOTTEST = 5
ENTER, LEAVE, HOME, CLEAR_LINE, CLEAR_REST = (
    "\x1b[?1049h\x1b[?25l",
    "\x1b[?25h\x1b[?1049l",
    "\x1b[H",
    "\x1b[K",
    "\x1b[J",
)
Pages = dict[str, Any]
NODE_COLUMNS = (
    "node", "status", "busy", "lag ms", "rss MiB", "msg/s", "mailbox", "shards", "entities",
    "state MiB", "is",
)  # fmt: skip
TYPE_COLUMNS = (
    "type", "shards", "entities", "msg/s", "p50", "p99", "wait p99", "failed", "dropped",
    "state MiB", "coordinator",
)  # fmt: skip
FINDINGS, SUBJECTS, LOST = 5, 3, 1
"""Findings, subjects of each, and lost nodes that a picture has."""


def top(
    every: Annotated[
        float, duration("Between two pictures: 2s, 500ms.", EVERY_S, EVERY_LEAST_S)
    ] = EVERY_S,
    count: Annotated[
        int | None,
        typer.Option(min=1, help="Pictures; until Ctrl-C on a terminal, else 1, by default."),
    ] = None,
    node: NodeUrl = NODE_URL,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per picture.")
    ] = False,
) -> None:
    """Watch states, load, errors and latencies of nodes and types, until Ctrl-C."""
    draws = sys.stdout.isatty() and not as_json
    left = count if count is not None or draws else 1
    watched = Watched(node)
    with _screen(draws):
        while True:
            _show(watched, draws=draws, as_json=as_json)
            if left is not None:
                left -= 1
                if not left:
                    return
            time.sleep(every)


class Watched:
    """The cluster that is watched."""

    def __init__(self, url: str) -> None:
        self._nodes = AnyNode(url)
        self.before: Pages | None = None
        """The overview of the last picture."""

    @property
    def url(self) -> str:
        """The node that answered last."""
        return self._nodes.url

    def pages(self) -> Pages:
        """Return the pages of the node, or of the first other one that answers.

        Raises:
            CommandFailure: no node answers; it is the failure of the node asked first.
        """
        return self._nodes.read(self._read)

    def _read(self, http: NodeHttp) -> Pages:
        pages: Pages = {
            name: http.read("v1", name) for name in ("cluster", "nodes", "types", "load")
        }
        for name in ("overview", "findings"):
            try:
                pages[name] = http.read("v1", name)
            except CommandFailure as failure:
                if failure.code is not ExitCode.FAILED:
                    raise
                pages[name] = {}  # a node of an earlier release has no such page
        self._nodes.learn(http, pages["nodes"])
        return pages


def frame(pages: Mapping[str, Any], url: str, clock: str, before: Pages | None = None) -> list[str]:
    """Return the lines of one picture. `before`: the overview of the picture before."""
    cluster, members = pages["cluster"], pages["nodes"].get("nodes", ())
    busy = {row["node"]: row for row in pages["load"].get("nodes", ())}
    up = sum(row.get("status") == "up" and bool(row.get("reachable", True)) for row in members)
    name = output.safe(cluster.get("cluster"))
    head = f"cluster {name}   {up} of {output.counted(len(members), 'node')} up   {clock}   {url}"
    rows = [_node_row(row, busy.get(row["node"], {})) for row in members]
    lines = [head, *_attention(pages.get("findings") or {}), ""]
    lines += [*output.table_lines(NODE_COLUMNS, rows), ""]
    rates = type_rates(before, pages.get("overview") or {})
    lines += output.table_lines(TYPE_COLUMNS, _type_rows(pages, members, rates))
    hottest = pages["load"].get("hottest", ())[:HOTTEST]
    if hottest:
        lines += ["", *output.table_lines(HOTTEST_COLUMNS, hottest)]
    return lines


def _attention(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield the confirmed findings, the gravest first, and the node that was lost last."""
    groups = [group for group in answer.get("findings", ()) if group.get("confirmed")]
    for group in groups[:FINDINGS]:
        yield f"{group['level']}: {finding_line(group, SUBJECTS)}"
    if len(groups) > FINDINGS:
        other = output.counted(len(groups) - FINDINGS, "other finding")
        yield f"and {other}: see `shardbus doctor`"
    yield from map(lost_line, answer.get("lost", ())[:LOST])


def _node_row(row: Mapping[str, Any], busy: Mapping[str, Any]) -> dict[str, object]:
    reachable = row.get("reachable", True)
    marks = [mark for mark in ("leader", "oldest") if row.get(mark)]
    marks += [word for word in (row.get("service"),) if word not in (None, "open")]
    marks += ["suspended"] if row.get("suspended") else []
    marks += [] if row.get("answered", True) or not reachable else ["silent"]
    return (busy_cells(busy) if busy else {}) | {
        "node": row["node"],
        "status": row.get("status") if reachable else "unreachable",
        "shards": sum((row.get("shards") or {}).values()),
        "entities": sum((row.get("entities") or {}).values()),
        "state MiB": _mebibytes((row.get("state_bytes") or {}).values()),
        "is": marks,
    }


def _mebibytes(sizes: Iterable[int]) -> str:
    """Return the sum as a table shows it; empty for nodes or types without state."""
    numbers = list(sizes)
    return f"{sum(numbers) / 2**20:.1f}" if numbers else ""


def _type_rows(
    pages: Mapping[str, Any],
    members: Sequence[Mapping[str, Any]],
    rates: Mapping[str, Mapping[str, object]],
) -> list[Pages]:
    """Return the types with their shards, entities, errors and latencies on all nodes."""
    coordinators = pages["cluster"].get("coordinators") or {}
    names = [row["type"] for row in pages["types"].get("types", ())]
    return [
        {
            **rates.get(name, {}),
            "type": name,
            "shards": sum((row.get("shards") or {}).get(name, 0) for row in members),
            "entities": sum((row.get("entities") or {}).get(name, 0) for row in members),
            "state MiB": _mebibytes(
                sizes[name] for row in members if name in (sizes := row.get("state_bytes") or {})
            ),
            "coordinator": (coordinators.get(name) or {}).get("node"),
        }
        for name in names
    ]


def _show(watched: Watched, *, draws: bool, as_json: bool) -> None:
    """Print one picture. On a terminal a node that does not answer is a line of it."""
    try:
        pages = watched.pages()
    except CommandFailure as failure:
        if not draws:
            raise
        _draw([str(failure)])
        return
    if as_json:
        output.data(output.as_json(pages))
        sys.stdout.flush()
        return
    lines = frame(pages, watched.url, time.strftime("%H:%M:%S"), watched.before)
    watched.before = pages["overview"] or None
    if draws:
        _draw(lines)
    else:
        output.data("\n".join(lines))


def _draw(lines: Sequence[str]) -> None:
    """Draw over the last picture. Lines are cut at the edge of the terminal."""
    from shutil import get_terminal_size

    size = get_terminal_size()
    shown = (f"{line[: size.columns]}{CLEAR_LINE}" for line in lines[: size.lines - 1])
    sys.stdout.write(HOME + "\r\n".join(shown) + CLEAR_REST)
    sys.stdout.flush()


@contextmanager
def _screen(draws: bool) -> Iterator[None]:
    """Draw on a screen of its own, and give the old one back."""
    if not draws:
        yield
        return
    sys.stdout.write(ENTER)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()
