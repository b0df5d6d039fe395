"""Commands that show a node's view of the cluster. Each prints one page of the HTTP API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from shardbus_cli import output
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.health import report
from shardbus_cli.node_http import NodeHttp
from shardbus_cli.parameters import NODE_URL, AsJson, EntityId, EntityType, NodeUrl
from shardbus_cli.placement import note_held

HOTTEST_COLUMNS = ("type", "shard", "node", "load", "unit")

cluster_app = typer.Typer(help="The cluster as a whole.", no_args_is_help=True)


def _page(url: str, as_json: bool, *path: str, **query: object) -> dict[str, Any]:
    """Return the page. With --json, print it unchanged and return an empty one."""
    page = NodeHttp(url).read(*path, **query)
    return {} if page.printed(as_json) else page


def _total(counts: object) -> int:
    return sum(counts.values()) if isinstance(counts, Mapping) else 0


@cluster_app.command()
def status(node: NodeUrl = NODE_URL, as_json: AsJson = False) -> None:
    """Show the members of the cluster, its leader, and the coordinator of each type."""
    if answer := _page(node, as_json, "v1", "cluster"):
        coordinators, voters = answer.pop("coordinators", {}), answer.pop("voters", None)
        output.facts(
            {
                **answer,
                "coordinators": [
                    f"{kind} on {row.get('node')} (epoch {row.get('epoch')})"
                    for kind, row in coordinators.items()
                ],
                **({"voters": _voters(voters)} if voters else {}),
            }
        )


def _voters(voters: Mapping[str, Any]) -> list[str]:
    """Return who votes about a split, one line each."""
    if voters.get("count") == "members":
        return [f"members: {voters.get('why')}"]
    lines = [
        f"{row['address']} ({', '.join(row['nodes']) or 'no member'})"
        for row in voters.get("replicas", ())
    ]
    more = voters.get("without_node", 0)
    return [*lines, *([f"{more} without a node"] if more else [])]


@cluster_app.command()
def join(
    seeds: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SEED]...", help="HOST:PORT of members; without one, form a cluster."
        ),
    ] = None,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """Let a node join that was started with `node.join = manual`."""
    _write(node, as_json, "join", seed=seeds or None)


@cluster_app.command()
def shutdown(node: NodeUrl = NODE_URL, as_json: AsJson = False) -> None:
    """Stop the whole cluster: every node ends, and no shard is moved."""
    _write(node, as_json, "shutdown")


def _write(url: str, as_json: bool, action: str, **query: object) -> None:
    page = NodeHttp(url).post("v1", "cluster", action, **query)
    if not page.printed(as_json):
        output.facts(page)


def nodes(node: NodeUrl = NODE_URL, as_json: AsJson = False) -> None:
    """List the members and the shards and entities of each."""
    answer = _page(node, as_json, "v1", "nodes")
    rows = [
        {
            **member,
            "shards": _total(member.get("shards")),
            "entities": _total(member.get("entities")),
            "is": [
                *(mark for mark in ("leader", "oldest") if member.get(mark)),
                *(word for word in (member.get("service"),) if word not in (None, "open")),
                *(("suspended",) if member.get("suspended") else ()),
            ],
        }
        for member in answer.get("nodes", ())
    ]
    if answer:
        zone = ("zone",) if any(row.get("zone") for row in rows) else ()
        columns = (
            "node",
            "status",
            "reachable",
            "roles",
            *zone,
            "shards",
            "entities",
            "version",
            "is",
        )
        output.table(columns, rows)


def types(node: NodeUrl = NODE_URL, as_json: AsJson = False) -> None:
    """List the entity types of the cluster."""
    if answer := _page(node, as_json, "v1", "types"):
        rows = [row for row in answer.get("types", ()) if isinstance(row, dict)]
        names = dict.fromkeys(column for row in rows for column in row) or {"type": None}
        rare = ("instances", "router", "within", "queue")
        unused = [column for column in rare if not any(row.get(column) for row in rows)]
        columns = [column for column in names if column not in unused]
        output.table(columns, rows)


def shards(entity_type: EntityType, node: NodeUrl = NODE_URL, as_json: AsJson = False) -> None:
    """List the shards of a type and where they live."""
    if answer := _page(node, as_json, "v1", "shards", entity_type):
        rows = answer.get("shards", ())
        loads = any(row.get("load") is not None for row in rows)
        columns = ("shard", "node", "state", "fence", "entities", *(("load",) if loads else ()))
        output.table(columns, rows)
        if loads and (unit := answer.get("load_unit")):
            output.note(f"load in {output.safe(unit)}")
        note_held(answer)


def partitions(
    entity_type: EntityType,
    ordinals: Annotated[
        bool, typer.Option("--ordinals", help="Show nodes by their place in the sorted list.")
    ] = False,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """List the nodes that host the instances of each shard of a type."""
    answer = _page(node, as_json, "v1", "partitions", entity_type)
    if not answer:
        return
    names = {str(name): str(at) for at, name in enumerate(answer.get("nodes", ()), 1)}
    if ordinals:
        output.table(("ordinal", "node"), [{"ordinal": at, "node": n} for n, at in names.items()])
    rows = [
        {
            "shard": partition["shard"],
            "nodes": [
                names.get(instance["node"], instance["node"]) if ordinals else instance["node"]
                for instance in partition["instances"]
            ],
        }
        for partition in answer.get("partitions", ())
    ]
    output.table(("shard", "nodes"), rows)
    if gossip := answer.get("gossip"):
        pending = output.counted(len(gossip.get("pending", ())), "change")
        behind = output.counted(len(gossip.get("behind", ())), "node")
        output.note(
            f"table {gossip.get('epoch')}.{gossip.get('version')} by gossip: "
            f"{pending} pending, {behind} not known to have it"
        )


def entities(
    entity_type: EntityType,
    shard: Annotated[str | None, typer.Option(help="Only entities of this shard.")] = None,
    prefix: Annotated[str, typer.Option(help="Only ids with this prefix.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Entities per page.")] = 100,
    cursor: Annotated[str | None, typer.Option(help="Continue after an earlier page.")] = None,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """List the entities in memory, one page at a time; exit code 4 if a node did not answer."""
    query = {"shard": shard, "prefix": prefix or None, "limit": limit, "cursor": cursor}
    answer = NodeHttp(node).read("v1", "entities", entity_type, **query)
    if not answer.printed(as_json):
        rows = answer.get("entities", ())
        several = any("instance" in row for row in rows)
        output.table(("id", *(("instance",) if several else ()), "shard", "node"), rows)
        if answer.get("next"):
            output.note(f"more: --cursor {answer['next']}")
    answer.check_silent(", whose entities are missing")


def load(node: NodeUrl = NODE_URL, as_json: AsJson = False) -> None:
    """Show how busy the nodes are, and the shards with the most load."""
    answer = _page(node, as_json, "v1", "load")
    if not answer:
        return
    columns = ("node", "busy", "lag ms", "rss MiB", "gc", "mailbox", "msg/s", "age s")
    output.table(columns, map(busy_cells, answer.get("nodes", ())))
    if unseen := answer.get("unseen"):
        output.note(f"no answer about: {', '.join(unseen)}")
    if hottest := answer.get("hottest"):
        output.data("")
        output.table(HOTTEST_COLUMNS, hottest)


def busy_cells(row: Mapping[str, Any]) -> dict[str, object]:
    """Return how busy a node is, as the cells of a table."""
    return {
        "node": row["node"],
        "busy": f"{row['busy']:.0%}",
        "lag ms": round(1000 * row["lag"]),
        "rss MiB": round(row["rss"] / 2**20),
        "gc": f"{row['gc']:.1%}",
        "mailbox": round(row["mailbox"]),
        "msg/s": round(row["rate"]),
        "age s": round(row["age"], 1),
    }


def where(
    entity_type: EntityType, entity_id: EntityId, node: NodeUrl = NODE_URL, as_json: AsJson = False
) -> None:
    """Show the shard and the home of an entity."""
    if answer := _page(node, as_json, "v1", "where", entity_type, entity_id):
        instances = answer.pop("instances", ())
        output.facts(answer)
        _list_instances(instances)


def _list_instances(rows: list[dict[str, Any]]) -> None:
    if rows:
        output.data("")
        output.table(("instance", "shard", "node", "state", "running"), rows)


def explain(
    entity_type: Annotated[str, typer.Argument(metavar="TYPE|downing", help="Type, or `downing`.")],
    entity_id: Annotated[str, typer.Argument(metavar="[ID]", help="Id of the entity.")] = "",
    shard: Annotated[
        str | None, typer.Option(help="Explain this shard instead of an entity.")
    ] = None,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """Explain why an entity is slow, the likeliest cause first, where it lives and why; or where a
    shard moved; or how splits were decided."""
    if entity_type == "downing" and not entity_id:
        _explain_downing(_page(node, as_json, "v1", "downing"))
        return
    if bool(entity_id) == (shard is not None):
        hint = "give TYPE and ID, or TYPE --shard S, or `downing`"
        raise CommandFailure("explain needs one subject", hint, code=ExitCode.USAGE)
    what = (entity_type, entity_id) if shard is None else (entity_type,)
    if answer := _page(node, as_json, "v1", "explain", *what, shard=shard):
        history, instances = answer.pop("history", None), answer.pop("instances", ())
        figures = answer.pop("figures", None)
        if "causes" in answer:
            _list_causes(answer.pop("causes"), figures)
        output.facts(answer)
        _list_instances(instances)
        if history:
            output.data("")
            output.table(("at", "from", "to", "why", "epoch", "fence", "seconds"), history)
        elif history is None:
            output.note("its coordinator does not answer, so its history is unknown")
        else:
            output.note("its coordinator has no change of it on record")


def _list_causes(causes: list[dict[str, Any]], figures: dict[str, Any] | None) -> None:
    """Print why an entity is slow, as paragraphs."""
    for number, cause in enumerate(causes, 1):
        name = str(cause["cause"]).replace("_", " ")
        output.data(f"{number}. {output.safe(name)}: {output.safe(cause['text'])}")
        output.data(f"   to do: {output.safe(cause['remedy'])}")
    if not causes and figures is None:
        output.data("Nothing that this node knows is slow; the home has given no figures.")
    elif not causes:
        output.data("Nothing that this node and the home know is slow.")
    output.data("")


def _explain_downing(answer: dict[str, Any]) -> None:
    decisions = answer.pop("decisions", ())
    if answer:
        output.facts(answer)
    for decision in decisions:
        output.facts({"": "", **{name: value for name, value in decision.items() if value}})
    if answer and not decisions:
        output.note("this node has decided nothing")


def health(node: NodeUrl = NODE_URL, as_json: AsJson = False) -> None:
    """Show whether a node is ready for work; exit code 5 if it is not."""
    http = NodeHttp(node)
    ready, text = http.probe("readyz")
    answer = http.parse(text)
    report(text, answer.get("checks", {}), as_json=as_json)
    if not ready:
        raise typer.Exit(ExitCode.UNHEALTHY)
