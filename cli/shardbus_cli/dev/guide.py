"""The output of `shardbus dev`: the addresses of the nodes, and commands to try next. Pure.

The commands are complete: they work as they stand, in another terminal in the same directory.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from shardbus_cli import output
from shardbus_cli.dev.layout import FOLDER, TOKEN, NodePlace
from shardbus_cli.output import aligned

if TYPE_CHECKING:
    from shardbus.wire.schema import Interface, Method

URL_BY_DEFAULT = "http://127.0.0.1:8558"
ID = "a-1"
VALUES = {"int": "2", "float": "1.5", "str": '"text"', "bool": "true"}
"""A JSON value for a parameter of a handler, by the name of its type."""


def example_of(types: Mapping[str, Interface]) -> list[str]:
    """Return the arguments of `shardbus ask` for a call that one of the types takes; an empty list
    if there is none whose arguments are plain."""
    for name, kind in types.items():
        if kind.within is not None:
            continue
        for method in kind.methods.values():
            values = _values(method)
            if values is not None:
                return [name, ID, method.name, *values]
    return []


def _values(method: Method) -> list[str] | None:
    values: list[str] = []
    for parameter in method.parameters:
        annotation = parameter.annotation  # a text, if the module postpones annotations
        value = VALUES.get(getattr(annotation, "__name__", annotation))
        if value is None:
            return values if parameter.default is not parameter.empty else None
        values.append(value)
    return values


def banner(
    cluster: str,
    nodes: Sequence[NodePlace],
    pids: Mapping[int, int],
    store: str,
    example: Sequence[str],
    *,
    reloads: bool,
) -> str:
    """Return the text for the first time that all nodes are ready."""
    kept = f"{store} ({'kept; --fresh removes it' if FOLDER in store else 'kept'})"
    rows = [("NODE", "ADDRESS", "HTTP", "PROCESS")]
    rows += [(str(n.number), n.address, n.url, str(pids.get(n.number, "-"))) for n in nodes]
    table = [f"  {line}" for line in aligned(rows)]
    running = output.counted(len(nodes), "node")
    lines = [f"ready: {running} in cluster {cluster!r}", f"state: {kept}"]
    lines += [f"page:  {nodes[0].url}/ui", "", *table, ""]
    lines += ["Try in another terminal:", *(f"  {line}" for line in _next(nodes, pids, example))]
    ending = "A change of a source file restarts the nodes. " if reloads else ""
    return "\n".join([*lines, "", f"{ending}Ctrl-C ends them.", ""])


def ways_to_other_shards(kind: str, cluster: str, store: str) -> str:
    """Return the remedy if the stored table of a type is for other shards than it declares now.
    `store` is the URL."""
    options = ["--store", store, "--cluster", cluster]
    removal = f"`{shlex.join(['shardbus', 'data', 'remove', kind, *options])}`, which keeps states"
    fresh = ", or `shardbus dev --fresh`, which keeps nothing" if FOLDER in store else ""
    return f"declare the stored layout again, or run {removal}{fresh}"


def _next(nodes: Sequence[NodePlace], pids: Mapping[int, int], example: Sequence[str]) -> list[str]:
    """Return commands to try."""
    first, last = nodes[0], nodes[-1]
    lines = []
    if first.url != URL_BY_DEFAULT:
        lines.append(f"export SHARDBUS_NODE_URL={first.url}")
    if example:
        kind, entity, *_ = example
        lines.append(shlex.join(["shardbus", "ask", *example]))
        lines.append(shlex.join(["shardbus", "where", kind, entity]))
    lines += ["shardbus nodes", "shardbus top"]
    if len(nodes) > 1 and last.number in pids:
        token = f"SHARDBUS_NODE_TOKEN_FILE={FOLDER}/{TOKEN}"
        lines.append(f"{token} shardbus drain {last.address}")
        lines.append(f"kill -9 {pids[last.number]}    # node {last.number}, which comes back")
    return lines


def reloaded(names: Sequence[str], seconds: float) -> str:
    """Return the line for a reload."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    what = f"{names[0]}{more} changed: " if names else ""
    return f"{what}the nodes run the new code after {seconds:.1f} s"
