"""`doctor`: find what is wrong with a cluster, or soon will be, and what to do about it.

The command examines the cluster twice, a few seconds apart, and reports what it found both times,
because some findings are only passing states. If the first examination finds nothing, it is the
last.

Source: N.6.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardbus_cli import output
from shardbus_cli.data import opened
from shardbus_cli.diagnosis import ADVICE, STORE, Finding, Picture, findings, stored
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.node_http import NodeHttp
from shardbus_cli.parameters import NODE_URL, NodeUrl, duration
from shardbus_cli.warning_signs import warning_signs

if TYPE_CHECKING:
    from shardbus.store.protocol import StoredTable

SUBJECTS_SHOWN = 5
WAIT_S = 5.0
Wait = Annotated[float, duration("Between the two examinations: 2, 2s; 0 is only one.", WAIT_S)]
Tables = dict[str, "StoredTable | None"]


def doctor(
    types: Annotated[
        list[str] | None, typer.Argument(metavar="[TYPE]...", help="Only these entity types.")
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", metavar="URL", help="Also examine the stored tables.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="NAME", help="For --store, if no node answers."),
    ] = None,
    wait: Wait = WAIT_S,
    node: NodeUrl = NODE_URL,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Report what is wrong with the cluster and what to do; exit code 5 if anything is."""
    asked = NodeHttp(node)
    picture: Picture | None = None
    silent: CommandFailure | None = None
    try:
        picture = look(asked, types)
    except CommandFailure as failure:
        if failure.code is ExitCode.USAGE or not (store and cluster and types):
            raise
        silent = failure
    found = _all(picture, types or [], store, cluster)
    if found and picture is not None and wait:
        time.sleep(wait)
        before = {finding.key for finding in found}
        picture = look(asked, types)
        found = [f for f in _all(picture, types or [], store, cluster) if f.key in before]
    _print(asked.url, picture, found, as_json)
    if silent is not None:
        raise silent
    if found:
        raise typer.Exit(ExitCode.UNHEALTHY)


def look(node: NodeHttp, types: list[str] | None) -> Picture:
    """Read the pages of a node.

    Raises:
        CommandFailure: the node does not answer at all, or knows no type of that name.
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
    known = [str(row["type"]) for row in page("v1", "types").get("types", ())]
    for kind in types or () if known else ():
        _check_type(kind, known)
    picture.shards = {kind: page("v1", "shards", kind) for kind in types or known}
    return picture


def _check_type(kind: str, known: list[str]) -> None:
    from shardbus.config.options import closest

    if kind not in known:
        near = closest(kind, known)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(known)}"
        raise CommandFailure(f"there is no entity type {kind!r}", hint)


def _all(
    picture: Picture | None, types: list[str], url: str | None, cluster: str | None
) -> list[Finding]:
    import asyncio

    found = [*findings(picture), *warning_signs(picture)] if picture is not None else []
    if url is None:
        return found
    name = cluster or str(picture.cluster.get("cluster")) if picture is not None else cluster
    known = types or (list(picture.shards) if picture is not None else [])
    tables, wrong = asyncio.run(_tables(url, name or "", known))
    found += wrong
    for kind, table in tables.items():
        found += stored(kind, table, picture)
    return list({finding.key: finding for finding in found}.values())


async def _tables(url: str, cluster: str, types: list[str]) -> tuple[Tables, list[Finding]]:
    """Return the stored tables, and findings about those that cannot be read."""
    from shardbus.errors import ConfigError, StoreError, StoreUnavailable
    from shardbus.store.urls import mask_url

    tables: Tables = {}
    wrong: list[Finding] = []
    try:
        store = await opened(url, cluster)
    except StoreError as e:
        return {}, [Finding("store-silent", STORE, mask_url(url), f"does not answer here: {e}")]
    except ConfigError as e:
        return {}, [Finding("store-unfit", STORE, mask_url(url), f"is refused: {e}")]
    try:
        for kind in types:
            try:
                tables[kind] = await store.load_table(kind)
            except StoreUnavailable as e:
                wrong.append(Finding("store-silent", STORE, mask_url(url), f"is silent: {e}"))
            except StoreError as e:
                wrong.append(Finding("stored-damaged", kind, "table", e.message))
    finally:
        await store.close()
    return tables, wrong


def _print(url: str, picture: Picture | None, found: list[Finding], as_json: bool) -> None:
    groups = _grouped(found)
    name = picture.cluster.get("cluster") if picture is not None else None
    if as_json:
        answer = {"node": url, "cluster": name, "healthy": not found, "findings": groups}
        output.data(output.as_json(answer))
        return
    for group in groups:
        subjects = group["subjects"]
        shown = ", ".join(subjects[:SUBJECTS_SHOWN])
        more = len(subjects) - SUBJECTS_SHOWN
        rest = f" and {more} more" if more > 0 else ""
        line = f"{group['check']}: {group['of']} {shown}{rest} {group['what']}"
        output.data(output.safe(line))
        output.data(f"    {group['advice']}")
    if not groups and picture is not None:
        shards = sum(len(page.get("shards", ())) for page in picture.shards.values())
        counts = {"member": len(picture.members), "type": len(picture.shards), "shard": shards}
        parts = [f"{n} {what}{'' if n == 1 else 's'}" for what, n in counts.items()]
        output.data(f"healthy: {', '.join(parts)}")


def _grouped(found: list[Finding]) -> list[dict[str, Any]]:
    """Return the findings, with those that differ only in their subject as one."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for one in found:
        groups.setdefault((one.check, one.of, one.what), []).append(one.subject)
    return [
        {"check": check, "of": of, "subjects": names, "what": what, "advice": ADVICE[check]}
        for (check, of, what), names in groups.items()
    ]
