"""`cordon`, `uncordon` and `drain`: stop a member from taking shards. It stays a member."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from shardbus_cli import output
from shardbus_cli.exit_codes import ExitCode
from shardbus_cli.node_http import NodeHttp
from shardbus_cli.parameters import NODE_URL, AsJson, EntityType, NodeUrl, duration

DRAIN_S = 60.0
POLL_S = 0.5

Member = Annotated[
    str, typer.Argument(metavar="NODE", help="host:port#uid or host:port; `self` is the asked one.")
]


def cordon(member: Member, node: NodeUrl = NODE_URL, as_json: AsJson = False) -> None:
    """Give a node no new shards. It keeps its shards."""
    _show(_post(node, member, "cordon"), as_json)


def uncordon(member: Member, node: NodeUrl = NODE_URL, as_json: AsJson = False) -> None:
    """Let a node take shards again after cordon or drain."""
    _show(_post(node, member, "uncordon"), as_json)


def drain(
    member: Member,
    timeout: Annotated[
        float, duration("Longest wait until it is empty: 30, 30s; 0 does not wait.", DRAIN_S)
    ] = DRAIN_S,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """Move all shards off a node and give it no new ones; exit code 7 if it is not empty in
    time."""
    answer = _post(node, member, "drain")
    left = _shards(node, str(answer["node"]))
    _wait_until_empty(node, {**answer, "shards": sum(left.values())}, timeout, as_json)


def shutdown_region(
    entity_type: EntityType,
    member: Annotated[
        str, typer.Argument(metavar="[NODE]", help="The asked node by default.")
    ] = "self",
    timeout: Annotated[
        float, duration("Longest wait until it hosts none: 30, 30s; 0 does not wait.", DRAIN_S)
    ] = DRAIN_S,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """Move all shards of one type off a node, which hosts that type no more until it restarts;
    exit code 7 if it still hosts some after the timeout."""
    answer = NodeHttp(node).post("v1", "nodes", member, "shutdown-region", type=entity_type)
    _wait_until_empty(node, answer, timeout, as_json, entity_type)


def _wait_until_empty(
    url: str,
    answer: dict[str, Any],
    timeout: float,
    as_json: bool,
    entity_type: str | None = None,
) -> None:
    """Wait until the node of `answer` hosts no shards (of a type), then print the answer. Exit with
    code 7 if shards are left after `timeout` seconds, unless that is 0."""
    left, printed, deadline = int(answer["shards"]), "", time.monotonic() + timeout
    types: dict[str, int] = {}
    while left and time.monotonic() < deadline:
        types = _shards(url, str(answer["node"]), entity_type)
        left = sum(types.values())
        line = ", ".join(f"{count} of {name}" for name, count in types.items())
        if left and line != printed:
            printed = line
            output.note(f"{output.counted(left, 'shard')} left: {line}")
        if left:
            time.sleep(POLL_S)
    _show({**answer, "shards": left}, as_json)
    if left and timeout:
        for name in types:
            output.note(
                f"`shardbus shards {name}` names the shard, `shardbus explain {name} --shard S` "
                "what it waits for"
            )
        raise typer.Exit(ExitCode.DRAIN_DEADLINE)


def _post(url: str, member: str, action: str) -> dict[str, Any]:
    return NodeHttp(url).post("v1", "nodes", member, action)


def _shards(url: str, node: str, entity_type: str | None = None) -> dict[str, int]:
    """Return how many shards the node hosts, by type: of one type, or of all that have some."""
    rows = NodeHttp(url).read("v1", "nodes").get("nodes", ())
    return {
        name: count
        for row in rows
        if row["node"] == node
        for name, count in row["shards"].items()
        if count and entity_type in (None, name)
    }


def _show(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.data(output.as_json(answer))
    else:
        output.facts(answer)
