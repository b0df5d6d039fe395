"""What a node says about its own state, so that others can compare: the page of `shardbus doctor`.

Each node answers the question `checkup` with what it alone knows: which shards run in it, whom it
takes for the coordinators, how late its loop is, its clock, and the settings in which it differs
from the defaults. The node that is asked over HTTP collects the answers and asks the store for the
tables. Nothing is judged here.

Source: C.12, N.6; docs/reference/http.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from shardbus.admin.metrics import VERSION
from shardbus.config.settings import ShardingSettings
from shardbus.errors import ShardBusError
from shardbus.http.api import Json
from shardbus.store.urls import default_url, mask_url

if TYPE_CHECKING:
    from shardbus.node.node import Node

STORE_WITHIN_S = 3.5
COMPARED = ("cluster", "sharding")
"""Sections in which the nodes of a cluster should agree."""


def own(node: Node) -> dict[str, Any]:
    """This node's answer."""
    types = {}
    for name, kind in node.kinds.items():
        region = kind.router.region
        types[name] = {
            "coordinator": str(kind.coordinator) if kind.coordinator is not None else None,
            "epoch": region.epoch,
            "registered": region.registered,
            "buffered": region.buffered[0],
            "layout": kind.kind.interface.layout,
            "shards": {shard: hosted.fence for shard, hosted in kind.host.shards.items()},
        }
    url = node.settings.store.url or default_url(node.cluster_name)
    return {
        "build": VERSION,
        "version": node.settings.node.version,
        "time": time.time(),
        "lag": node.lag,
        "store": mask_url(url),
        "store_silent_ago": node.states.silent_ago,
        "settings": dict(_changed(node)),
        "types": types,
    }


async def collect(node: Node) -> Json:
    """Every member's answer, and the store's."""
    began = time.time()
    answers, store = await asyncio.gather(node.rpc.ask_all("checkup"), _stored(node))
    view = node.view
    members = [m.node for m in view.members] if view is not None else [node.me]
    rows = [{"node": str(m), "answered": m in answers, **answers.get(m, {})} for m in members]
    return {
        "node": str(node.me),
        "time": {"asked": began, "answered": time.time()},
        "members": rows,
        "store": store,
    }


async def _stored(node: Node) -> dict[str, Any]:
    """Whether this node's store answers, and the head of each table."""
    tables: dict[str, Any] = {}
    try:
        async with asyncio.timeout(STORE_WITHIN_S):
            for name in node.kinds:
                table = await node.store.load_table(name)
                tables[name] = table and {
                    "epoch": table.epoch,
                    "shards": len(table.homes),
                    "dropped": list(table.dropped),
                }
    except (ShardBusError, TimeoutError) as e:
        error = str(e) or f"no answer within {STORE_WITHIN_S:g} s"
        return {"answers": False, "error": error, "tables": tables}
    return {"answers": True, "error": "", "tables": tables}


def _changed(node: Node) -> Iterator[tuple[str, str]]:
    """The settings that are not at their defaults, as texts."""
    settings = node.settings
    for section in COMPARED:
        value = getattr(settings, section)
        yield from _differences(section, value, type(value)())
    for name, kind in node.kinds.items():
        yield from _differences(f"sharding.types.{name}", kind.settings, ShardingSettings())


def _differences(key: str, value: Any, default: Any) -> Iterator[tuple[str, str]]:
    for field in fields(value):
        here, usual = getattr(value, field.name), getattr(default, field.name)
        if is_dataclass(here):
            yield from _differences(f"{key}.{field.name}", here, usual)
        elif here != usual and field.name != "types":
            yield f"{key}.{field.name}", str(here)
