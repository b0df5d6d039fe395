"""Pages about faults of the cluster, and the reports in which they are found."""

from __future__ import annotations

import asyncio
from functools import partial

from msgspec.structs import asdict

from shardbus.admin.administration import Administration
from shardbus.admin.diagnosis import Picture
from shardbus.admin.pages.checkup import checkup
from shardbus.admin.pages.cluster import cluster, gossip, member_row
from shardbus.admin.pages.events import slow
from shardbus.admin.pages.health import readiness
from shardbus.admin.pages.outboxes import waiting_outboxes
from shardbus.admin.pages.shards import shard_row
from shardbus.http.page import Json, page

FRESH_S = 0.8
STORE_WITHIN_S = 3.5
"""For the store to answer a checkup."""


@page("GET", "/v1/findings")
async def findings(admin: Administration) -> Json:
    """The present and coming faults of the cluster, the nodes that were lost, and the last failures
    of handlers, for `shardbus doctor`, `shardbus top` and `/ui`.

    `node`, `cluster`, `healthy`, `members`, `types`, `shards` (how many were examined); `findings`,
    faults first, each with `check` ([their names](cli.md#doctor)), `level` (`fault` or `warning`),
    `of` (`members`, `cluster`, `store`, or a type), `subjects`, `what` (it completes a sentence
    that begins with the subjects), `advice`, and `confirmed`: false if it may be a difference
    between two moments, until it has been found for 4 s; `lost`, the last one first, each with
    `node`, `at`, `by` (the member that declared it dead, or null if it is gone too), `why` and
    `shards` (type to how many shards were `freed` and how many of these are `homed` again);
    `failures`, the last one first, each with `type`, `method` (`on_start` is any part of a start),
    `node`, `count` (since the node has started) and `last`: three exceptions, newest first, with
    `at`, `entity`, `error` (the class), `text` and `stack`, which is written once a second for a
    method, else empty. A node keeps the last 20 nodes that were lost, and shows methods that failed
    in the last ten minutes. Shared for 0.8 s.
    """
    return await admin.shared("findings", FRESH_S, partial(_examine, admin))


async def _examine(admin: Administration) -> Json:
    """Read the pages that the findings are made from, and examine them."""
    node, view = admin.node, admin.node.view
    (facts, reports, slow_handlers, outboxes), losses, tables = await asyncio.gather(
        asyncio.gather(cluster(admin), checkup(admin), slow(admin), waiting_outboxes(admin)),
        node.rpc.ask_all("losses"),
        asyncio.gather(*map(admin.table, admin.tables)),
    )
    rows = [member_row(admin, m, None, None, view) for m in view.members] if view else []
    picture = Picture(
        ready={name: asdict(check) for name, check in readiness(admin).items()},
        cluster=facts,
        nodes={"nodes": rows},
        gossip=await gossip(admin) if node.membership.runner is not None else {},
        checkup=reports,
        slow=slow_handlers,
        outboxes=outboxes,
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
