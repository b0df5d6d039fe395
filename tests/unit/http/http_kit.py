"""A node that answers what a test wants, and a client of its pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import httpx

from shardbus.config.settings import HttpSettings
from shardbus.http.api import Check, Checks, Json
from shardbus.http.app import create_app

ME = "127.0.0.1:7355#00000000000000aa"


class FakeNode:
    """A node that answers what a test wants and remembers what it was asked."""

    cluster_name = "shop"

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.ready = True
        self.failure: Exception | None = None
        self.more = asyncio.Event()

    async def answer(self, *asked: object) -> Json:
        self.asked.append(asked)
        if self.failure:
            raise self.failure
        return {"asked": list(asked)}

    async def cluster(self) -> Json:
        return await self.answer("cluster")

    async def nodes(self) -> Json:
        return await self.answer("nodes")

    async def overview(self) -> Json:
        return await self.answer("overview")

    async def shard_map(self, type: str, known: str) -> Json:
        return await self.answer("shard_map", type, known)

    async def settings(self) -> Json:
        return await self.answer("settings")

    async def dead_letters(self, type: str, reason: str, within: float, limit: int) -> Json:
        self.asked.append(("dead_letters", type, reason, within, limit))
        return {"letters": []}

    async def replay(
        self,
        type: str,
        reason: str,
        within: float,
        names: tuple[str, ...],
        limit: int,
        operator: str,
        *,
        answered: bool,
        dry_run: bool,
    ) -> Json:
        row = ("replay", type, reason, within, names, limit, operator, answered, dry_run)
        self.asked.append(row)
        return {"sent": 0}

    async def findings(self) -> Json:
        return await self.answer("findings")

    async def slow(self) -> Json:
        return await self.answer("slow")

    async def recent_events(self, seconds: float, most: int) -> Json:
        return await self.answer("recent_events", seconds, most)

    async def tasks(self) -> Json:
        return await self.answer("tasks")

    async def log_lines(self) -> Json:
        return await self.answer("log_lines")

    async def types(self) -> Json:
        return await self.answer("types")

    async def shards(self, type: str) -> Json:
        return await self.answer("shards", type)

    async def partitions(self, type: str) -> Json:
        return await self.answer("partitions", type)

    async def where(self, type: str, id: str) -> Json:
        return await self.answer("where", type, id)

    async def entities(
        self, type: str, shard: str | None, prefix: str, limit: int, cursor: str | None
    ) -> Json:
        return await self.answer("entities", type, shard, prefix, limit, cursor)

    async def explain(self, type: str, id: str) -> Json:
        return await self.answer("explain", type, id)

    async def explain_shard(self, type: str, shard: str) -> Json:
        return await self.answer("explain_shard", type, shard)

    async def downing(self) -> Json:
        return await self.answer("downing")

    def liveness(self) -> Checks:
        return {"loop": Check(True, "lag 1 ms")}

    def readiness(self) -> Checks:
        return {"member": Check(True, "up"), "coordinators": Check(self.ready, "counter: none")}

    def metrics(self) -> bytes:
        return b"shardbus_build_info 1.0\n"

    async def leave(self, node: str | None) -> Json:
        return await self.answer("leave", node)

    async def down(self, node: str, *, force: bool) -> Json:
        return await self.answer("down", node, force)

    async def plan(self, type: str, add: int, remove: tuple[str, ...]) -> Json:
        return await self.answer("plan", type, add, list(remove))

    async def places(self, type: str) -> Json:
        return await self.answer("places", type)

    async def place(self, type: str, places: Mapping[str, str]) -> Json:
        return await self.answer("place", type, dict(places))

    async def rebalance(self, type: str, pause: bool | None, moves: int | None) -> Json:
        return await self.answer("rebalance", type, pause, moves)

    async def stop(self, type: str, shards: tuple[str, ...]) -> Json:
        return await self.answer("stop", type, list(shards))

    async def stored(
        self, type: str, shard: str | None, prefix: str, limit: int, cursor: str | None
    ) -> Json:
        return await self.answer("stored", type, shard, prefix, limit, cursor)

    async def state(self, type: str, id: str, operator: str, *, text: bool) -> Json:
        return await self.answer("state", type, id, operator, text)

    async def set_state(
        self, type: str, id: str, state: object, operator: str, revision: str
    ) -> Json:
        return await self.answer("set_state", type, id, state, operator, revision)

    async def remove_state(self, type: str, id: str, operator: str, revision: str) -> Json:
        return await self.answer("remove_state", type, id, operator, revision)

    async def limits(self, type: str) -> Json:
        return await self.answer("limits", type)

    async def set_limit(self, type: str, limit: int, node: str | None) -> Json:
        return await self.answer("set_limit", type, limit, node)

    async def shutdown_region(self, node: str, type: str) -> Json:
        return await self.answer("shutdown_region", node, type)

    async def serve(self, node: str, service: str) -> Json:
        return await self.answer("serve", node, service)

    async def join(self, seeds: tuple[str, ...]) -> Json:
        return await self.answer("join", list(seeds))

    async def reload_keys(self, node: str | None) -> Json:
        return await self.answer("reload_keys", node)

    async def shut_down(self) -> Json:
        return await self.answer("shut_down")

    async def gossip(self) -> Json:
        return await self.answer("gossip")

    async def load(self) -> Json:
        return await self.answer("load")

    async def checkup(self) -> Json:
        return await self.answer("checkup")

    async def events(self) -> AsyncIterator[Json]:
        yield {"event": "snapshot"}
        await self.more.wait()
        yield {"event": "MemberUp"}


def client_of(
    node: FakeNode, settings: HttpSettings | None = None, base_url: str = "http://127.0.0.1:8558"
) -> httpx.AsyncClient:
    app = create_app(node, settings or HttpSettings())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=base_url)


WRITE = HttpSettings(write=True, token="open sesame")


BEARER = {"authorization": "Bearer open sesame"}


HERE, THERE = "127.0.0.1", "0.0.0.0"


OPERATOR, READER = "operator of the tests", "reader of the tests"


def with_tokens(host: str, *, operator: bool, reader: bool) -> HttpSettings:
    return HttpSettings(
        host=host,
        write=operator,
        token=OPERATOR if operator else "",
        reader_token=READER if reader else "",
    )
