"""Pages that explain a home: why it is there, and why its messages take long."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import asdict

from shardbus.admin.administration import Administration, moment, text_of
from shardbus.admin.entity_watch import of_plain, to_plain, watch
from shardbus.admin.pages.entities import where
from shardbus.admin.questions import question
from shardbus.admin.shard_control import check_shard
from shardbus.admin.slowness import EntityPlace, causes
from shardbus.errors import RequestError, Unhandled
from shardbus.http.page import EntityId, EntityType, Json, ShardId, page
from shardbus.routing.instance_routes import wire_id
from shardbus.sharding.instances import INSTANCE_MARK
from shardbus.sharding.messages import Home
from shardbus.shells.region import RegionShell


@page("GET", "/v1/explain/{type}/{id}")
async def explain(admin: Administration, type: EntityType, id: EntityId) -> Json:
    """Why it is slow, why it lives there, how its shard moved there, and the waiting messages.

    The same and `layout`, `fence`, `coordinator`, `epoch`, `why`, `suspended` (why its home handles
    no message, or null), `buffered` (`messages` and `bytes` of the whole type on this node),
    `history` of its shard. `causes` says [why it is slow](../how-to/slow.md), the likeliest cause
    first: each has `cause` (a name), `text` with its figures, `remedy`, and `seconds`, its cost for
    a message that arrives now, or null if it stops all of them. `figures` has its home's
    measurements, or null without an answer.
    """
    region = admin.region(type)
    answer = await where(admin, type, id)
    machine = region.router.region
    shard = str(answer["shard"])
    home = machine.home_of(shard)
    suspended, figures, of_shard = await asyncio.gather(
        _of_home(admin, home, "suspension"),
        _of_home(admin, home, "figures", type, shard, _key(answer)),
        admin.ask_coordinator("shard", type, shard),
    )
    messages, size = machine.buffered
    state = str((of_shard or {}).get("state", ""))
    place = _entity_place(admin, region, shard, state, suspended)
    seen = of_plain(figures) if figures else None
    answer |= {
        "layout": region.entity_type.interface.layout,
        "fence": home.fence if home is not None else None,
        "coordinator": text_of(region.coordinator),
        "epoch": machine.epoch,
        "why": _why(admin, region, shard, home, suspended),
        "suspended": suspended or None,
        "buffered": {"messages": messages, "bytes": size},
        "causes": [asdict(cause) for cause in causes(place, seen)],
        "figures": to_plain(seen) if seen is not None else None,
        "history": _changes(of_shard),
    }
    return answer


def _why(
    admin: Administration, region: RegionShell, shard: str, home: Home | None, suspended: str | None
) -> str:
    """Where the messages for a shard go."""
    if home is None:
        return "no home is known here; the coordinator is asked while messages wait"
    if suspended is None:
        return f"its home {home.node} does not answer; messages wait until it does or is removed"
    if suspended:
        place = "this node" if home.node == admin.node.me else str(home.node)
        return f"its home is {place}, which is {suspended}; messages wait for their entities"
    if _moves(region, shard):
        return "messages wait here: the shard is on the move"
    return "the home is known, messages go there directly"


def _moves(region: RegionShell, shard: str) -> bool:
    """True if messages for a shard wait here until it has moved."""
    route = region.router.routes.get(shard)
    return route is not None and route.out is None


def _key(answer: Json) -> str:
    """The id under which an entity's messages arrive: with the number of its instance, if it has
    one."""
    entity_id, instance = str(answer["id"]), answer.get("instance")
    if not isinstance(instance, int) or INSTANCE_MARK in entity_id:
        return entity_id
    return wire_id(entity_id, instance)


def _entity_place(
    admin: Administration, region: RegionShell, shard: str, state: str, suspended: str | None
) -> EntityPlace:
    node, home = admin.node, region.router.region.home_of(shard)
    at = home.node if home is not None else None
    since = node.members.ages.unreachable.get(at) if at is not None else None
    phis = node.membership.runner.overview.phis if node.membership.runner is not None else {}
    downing = node.settings.cluster.downing
    return EntityPlace(
        home=str(at) if at is not None else "",
        shard=shard,
        shard_state=state,
        moving=home is not None and _moves(region, shard),
        suspended=suspended,
        unreachable_for=node.loop.time() - since if since is not None else None,
        phi=phis.get(at) if at is not None else None,
        waiting=region.router.region.buffered[0],
        missing="" if region.coordinator is not None else _no_coordinator(admin, region.table),
        decision=f"`{downing.strategy}` decides once membership has been stable for "
        f"{downing.stable_after:g} s",
    )


def _no_coordinator(admin: Administration, region: RegionShell) -> str:
    why = admin.node.singletons[region.name].why_no_member(region.coordinator_role)
    return why or "none is known here"


async def _of_home(
    admin: Administration, home: Home | None, question: str, *arguments: object
) -> Any:
    """The answer of an entity's home; empty if it is of an older release, which does not have the
    question, or there is no home. None without an answer."""
    if home is None:
        return ""
    of = str(arguments[0]) if arguments else ""
    try:
        return await admin.node.rpc.ask(home.node, question, *arguments, of=of)
    except Unhandled:
        return ""
    except RequestError:
        return None


@page("GET", "/v1/explain/{type}?shard")
async def explain_shard(admin: Administration, type: EntityType, shard: ShardId) -> Json:
    """Where a shard is, and how it moved there.

    `type`, `shard`, `node`, `state`, `fence`, `coordinator`, `epoch`, `history`: the last eight
    changes that its coordinator has seen, oldest first, or null if the coordinator does not answer.
    Each has `at`, `from`, `to` (nodes, or null), `epoch`, `fence`, `seconds` (the duration of the
    move) and `why`: `asked` (a message arrived for it), `rebalance`, `drain` (its node leaves, is
    drained, or did not start it), `stop` (by an operator), `node_gone`, `proxy` (its node hosts
    nothing any more), `ended` (by itself, for example without its lease), `reported` (its region
    had it, the table did not). A new coordinator begins with an empty history.
    """
    region = admin.region(type)
    check_shard(region, shard)
    answer = await admin.ask_coordinator("shard", type, shard)
    of_shard = answer or {}
    if answer is None and (home := region.router.region.home_of(shard)) is not None:
        of_shard = {"node": str(home.node), "fence": home.fence}
    return {
        "type": type,
        "shard": shard,
        "node": of_shard.get("node"),
        "state": of_shard.get("state", "unknown"),
        "fence": of_shard.get("fence"),
        "coordinator": text_of(region.coordinator),
        "epoch": of_shard.get("epoch", region.router.region.epoch),
        "history": _changes(answer),
    }


def _changes(answer: Mapping[str, Any] | None) -> list[Json] | None:
    """The changes of a shard, oldest first; None without an answer of the coordinator."""
    if answer is None:
        return None
    now = datetime.now(UTC)
    return [
        {
            "at": moment(age, now),
            "from": source,
            "to": target,
            "why": why,
            "epoch": epoch,
            "fence": fence or None,
            "seconds": round(seconds, 3),
        }
        for age, source, target, why, epoch, fence, seconds in answer["changes"]
    ]


# ---- answers of this node


@question("figures")
async def answer_figures(
    admin: Administration, name: str, shard: str, entity_id: str
) -> dict[str, Any]:
    """This node's figures about an entity that lives here, and about itself."""
    region = admin.region(name)
    return to_plain(await watch(admin.node, region, shard, entity_id))


@question("shard")
def answer_shard(admin: Administration, name: str, shard: str) -> dict[str, Any] | None:
    """The home of a shard and its changes, each with its age in seconds."""
    coordinator = admin.ruling(name)
    if coordinator is None:
        return None
    home, now = coordinator.table.homes.get(shard), admin.node.loop.time()
    changes = []
    for c in coordinator.history.of(shard):
        ends = (node and str(node) for node in (c.source, c.target))
        changes.append([now - c.at, *ends, c.why, c.epoch, c.fence, c.seconds])
    return {
        "epoch": coordinator.epoch,
        "node": str(home.node) if home is not None else None,
        "fence": home.fence if home is not None else None,
        "state": coordinator.state_of(shard),
        "changes": changes,
    }
