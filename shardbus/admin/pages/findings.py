"""Pages about faults of the cluster, and the reports in which they are found."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from functools import partial
from typing import Any

from shardbus.admin.administration import Administration
from shardbus.admin.diagnosis import Picture
from shardbus.admin.pages.cluster import cluster, gossip, member_row
from shardbus.admin.pages.events import slow
from shardbus.admin.pages.health import readiness
from shardbus.admin.pages.shards import shard_row
from shardbus.errors import ShardBusError, StoreError, StoreUnavailable
from shardbus.http.page import Json, page
from shardbus.sharding.intents import split_intents

FRESH_S = 0.8
STORE_WITHIN_S = 3.5
"""For the store to answer a checkup."""


@page("GET", "/v1/findings")
async def findings(admin: Administration) -> Json:
    """What is wrong with the cluster, or soon will be, and what it has lost."""
    return await admin.shared("findings", FRESH_S, partial(_examine, admin))


async def _examine(admin: Administration) -> Json:
    """Read the pages that the findings are made from, and examine them."""
    node, view = admin.node, admin.node.view
    (facts, reports, slow_handlers), losses, tables = await asyncio.gather(
        asyncio.gather(cluster(admin), checkup(admin), slow(admin)),
        node.rpc.ask_all("losses"),
        asyncio.gather(*map(admin.table, admin.tables)),
    )
    rows = [member_row(admin, m, None, None, view) for m in view.members] if view else []
    picture = Picture(
        ready={name: asdict(check) for name, check in readiness(admin).items()},
        cluster=facts,
        nodes={"nodes": rows},
        gossip=await gossip(admin) if node.watching is not None else {},
        checkup=reports,
        slow=slow_handlers,
        shards={
            name: {
                "epoch": table["epoch"],
                "complete": table["complete"],
                "shards": [shard_row(*row) for row in table["shards"]],
            }
            for name, table in zip(admin.tables, tables, strict=True)
        },
    )
    return await admin.examination.examine(picture, losses)


@page("GET", "/v1/checkup")
async def checkup(admin: Administration) -> Json:
    """The state of every member and of the store, for the doctor to compare."""
    node, began = admin.node, time.time()
    members = node.rpc.members()
    answers, store = await asyncio.gather(node.rpc.ask_all("checkup"), _stored(admin))
    if not members:  # before it is a member, a node knows itself alone
        members, answers = [node.me], {node.me: await node.rpc.ask(node.me, "checkup")}
    rows = [{"node": str(m), "answered": m in answers, **answers.get(m, {})} for m in members]
    return {
        "node": str(node.me),
        "time": {"asked": began, "answered": time.time()},
        "members": rows,
        "store": store,
    }


async def _stored(admin: Administration) -> dict[str, Any]:
    """Whether this node's store answers, and a summary of each table in it."""
    tables: dict[str, Any] = {}
    try:
        async with asyncio.timeout(STORE_WITHIN_S):
            for name in admin.tables:
                tables[name] = await _stored_table(admin, name)
    except (ShardBusError, TimeoutError) as e:
        error = str(e) or f"no answer within {STORE_WITHIN_S:g} s"
        return {"answers": False, "error": error, "tables": tables}
    return {"answers": True, "error": "", "tables": tables}


async def _stored_table(admin: Administration, name: str) -> dict[str, Any] | None:
    """A summary of a stored table, or why it cannot be read."""
    try:
        table = await admin.node.store.load_table(name)
    except StoreUnavailable:
        raise
    except StoreError as e:
        return {"damaged": e.message}
    if table is None:
        return None
    dropped = list(table.dropped)
    homes, _ = split_intents(table.homes)
    return {"epoch": table.epoch, "shards": len(homes), "dropped": dropped}
