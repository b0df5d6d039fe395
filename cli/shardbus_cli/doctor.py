"""`doctor`: find the present and coming faults of a cluster, and their remedies.

The node that is asked examines the cluster (`/v1/findings`); this command prints its answer. It
asks twice, a few seconds apart, and reports findings of both times, because some findings are only
passing states. If the first examination finds nothing, it is the last.

Source: N.6.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardbus.admin.diagnosis import (
    ADVICE,
    CLUSTER,
    MEMBERS,
    STORE,
    Finding,
    Picture,
    findings,
    stored,
)
from shardbus.admin.examination import grouped
from shardbus.admin.warning_signs import warning_signs
from shardbus_cli import output
from shardbus_cli.app_and_cluster import NamedCluster
from shardbus_cli.data import opened
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.finding_lines import finding_line, lost_line
from shardbus_cli.node_http import NodeHttp
from shardbus_cli.parameters import NODE_URL, AppOfCluster, ClusterName, Json, NodeUrl, duration

if TYPE_CHECKING:
    from shardbus.store.protocol import StoredTable

SUBJECTS_SHOWN = 5
WAIT_S = 5.0
Wait = Annotated[float, duration("Between the two examinations: 2, 2s; 0 is only one.", WAIT_S)]
Tables = dict[str, "StoredTable | None"]
Answer = dict[str, Any]
GENERAL = (MEMBERS, CLUSTER, STORE)
PRINTED = ("check", "level", "of", "subjects", "what", "advice")


def doctor(
    types: Annotated[
        list[str] | None, typer.Argument(metavar="[TYPE]...", help="Only these entity types.")
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", metavar="URL", help="Also examine the stored tables.")
    ] = None,
    cluster: ClusterName = None,
    app: AppOfCluster = None,
    wait: Wait = WAIT_S,
    node: NodeUrl = NODE_URL,
    as_json: Json = False,
) -> None:
    """Report what is wrong with the cluster and what to do; exit code 5 if anything is."""
    http = NodeHttp(node)
    named = NamedCluster(cluster, app, node)
    answer: Answer = {}
    silent: CommandFailure | None = None
    try:
        answer = examine(http, types)
        named.running = str(answer.get("cluster"))
    except CommandFailure as failure:
        named.running = None
        if failure.code is ExitCode.USAGE or not (store and types and named.name_or_none):
            raise
        silent = failure
    faults = _all(answer, http, types or [], store, named)
    if faults and answer and wait:
        time.sleep(wait)
        before = {finding.key for finding in faults}
        answer = examine(http, types)
        faults = [f for f in _all(answer, http, types or [], store, named) if f.key in before]
    _print(http.url, answer, faults, as_json)
    if silent is not None:
        if not faults:
            output.note(f"the stored tables of {', '.join(types or [])} are sound")
        raise silent
    if faults:
        raise typer.Exit(ExitCode.UNHEALTHY)


def examine(node: NodeHttp, types: list[str] | None) -> Answer:
    """Let a node examine the cluster. Of a node of an earlier release, read the pages and examine
    them here.

    Raises:
        CommandFailure: the node does not answer at all, or has no type of that name.
    """
    if types:
        _check_types(types, [row["type"] for row in node.read("v1", "types").get("types", ())])
    try:
        return node.read("v1", "findings")
    except CommandFailure as failure:
        if failure.code is not ExitCode.FAILED:
            raise
    picture = look(node, types)
    return {
        "cluster": picture.cluster.get("cluster"),
        "members": len(picture.members),
        "types": len(picture.shards),
        "shards": sum(len(page.get("shards", ())) for page in picture.shards.values()),
        "findings": grouped([*findings(picture), *warning_signs(picture)]),
    }


def look(node: NodeHttp, types: list[str] | None) -> Picture:
    """Read the pages of a node.

    Raises:
        CommandFailure: the node does not answer at all.
    """
    picture = Picture(cluster=node.read("v1", "cluster"))

    def page(*path: str) -> dict[str, Any]:
        try:
            return node.read(*path)
        except CommandFailure as failure:
            picture.missing["/" + "/".join(path)] = f"cannot be read: {failure.message}"
            return {}

    picture.ready = node.parse(node.probe("readyz")[1]).get("checks", {})
    picture.nodes, picture.gossip = page("v1", "nodes"), page("v1", "gossip")
    picture.checkup, picture.slow = page("v1", "checkup"), page("v1", "slow")
    rows = page("v1", "types").get("types", ())
    kinds = [str(row["type"]) for row in rows]
    picture.inner = {str(row["type"]) for row in rows if row.get("within")}
    picture.shards = {kind: page("v1", "shards", kind) for kind in types or kinds}
    return picture


def _check_types(types: list[str], kinds: list[str]) -> None:
    from shardbus.config.options import closest

    for kind in types:
        if kind not in kinds:
            near = closest(kind, kinds)
            hint = f"did you mean {near}?" if near else f"there are {', '.join(kinds)}"
            raise CommandFailure(f"there is no entity type {kind!r}", hint)


def _all(
    answer: Answer, node: NodeHttp, types: list[str], url: str | None, named: NamedCluster
) -> list[Finding]:
    """Return the findings of the node and those about the stored tables."""
    import asyncio

    faults = [
        Finding(group["check"], group["of"], subject, group["what"])
        for group in answer.get("findings", ())
        for subject in group["subjects"]
        if not types or group["of"] in types or group["of"] in GENERAL
    ]
    if url is None:
        return faults
    picture = look(node, types) if answer else None
    kinds = types or (list(picture.shards) if picture is not None else [])
    if picture is not None:
        kinds = [kind for kind in kinds if kind not in picture.inner]
    tables, wrong = asyncio.run(_tables(url, named.name, kinds))
    faults += wrong
    for kind, table in tables.items():
        faults += stored(kind, table, picture)
    return list({finding.key: finding for finding in faults}.values())


async def _tables(url: str, cluster: str, types: list[str]) -> tuple[Tables, list[Finding]]:
    """Return the stored tables, and findings about those that cannot be read."""
    from shardbus.errors import ConfigError, StoreError, StoreUnavailable
    from shardbus.store.urls import mask_url

    tables: Tables = {}
    wrong: list[Finding] = []
    try:
        async with opened(url, cluster) as store:
            for kind in types:
                try:
                    tables[kind] = await store.load_table(kind)
                except StoreUnavailable as e:
                    wrong.append(Finding("store-silent", STORE, mask_url(url), f"is silent: {e}"))
                except StoreError as e:
                    wrong.append(Finding("stored-damaged", kind, "table", e.message))
    except StoreError as e:
        return {}, [Finding("store-silent", STORE, mask_url(url), f"does not answer here: {e}")]
    except ConfigError as e:
        return {}, [Finding("store-unfit", STORE, mask_url(url), f"is refused: {e}")]
    return tables, wrong


def _print(url: str, answer: Answer, faults: list[Finding], as_json: bool) -> None:
    # A node of a later release may advise on checks that this command does not have.
    advice = ADVICE | {group["check"]: group["advice"] for group in answer.get("findings", ())}
    groups = grouped(faults, advice)
    lost = answer.get("lost", ())
    if as_json:
        rows = [{name: row[name] for name in PRINTED} for row in groups]
        head = {"node": url, "cluster": answer.get("cluster"), "healthy": not faults}
        output.data(output.as_json({**head, "findings": rows, "lost": lost}))
        return
    for group in groups:
        output.data(finding_line(group, SUBJECTS_SHOWN))
        output.data(output.safe(f"    {group['advice']}"))
    if not groups and answer:
        counts = {what: int(answer.get(f"{what}s", 0)) for what in ("member", "type", "shard")}
        parts = [output.counted(number, what) for what, number in counts.items()]
        output.data(f"healthy: {', '.join(parts)}")
    for row in lost:
        output.data(lost_line(row))
