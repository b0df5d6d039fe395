"""An operator changes the state of an entity through its owner: over HTTP, on real nodes."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from shardbus import Entity, ShardBus, StateUnreadable, StopReason, handler
from shardbus.admin.administration import Administration
from shardbus.admin.page_table import bound
from shardbus.config.settings import HttpSettings
from shardbus.http.app import create_app
from shardbus.ids import shard_of
from shardbus.node.node import Node
from shardbus.store.protocol import Save
from shardbus.wire.schema import decode_value, encode_value
from shardbus.wire.stored_state import NO_STATE
from tests.loopback.nodes import Nodes
from tests.waiting import until

SHARDS = 10
TOKEN = "an operator's own token"
heard: list[tuple[str, Any]] = []


@dataclass
class CartState:
    items: dict[str, int] = field(default_factory=dict)
    note: bytes = b""


def application(**options: Any) -> tuple[ShardBus, Any]:
    bus = ShardBus("shop")

    @bus.entity("cart", shards=SHARDS, state_limit="10KiB", **options)
    class Cart(Entity):
        state: CartState

        async def on_start(self) -> None:
            heard.append(("start", dict(self.state.items)))

        async def on_stop(self, reason: StopReason) -> None:
            heard.append(("stop", dict(self.state.items)))
            await self.save()

        @handler
        async def add(self, item: str) -> int:
            self.state.items[item] = self.state.items.get(item, 0) + 1
            await self.save()
            return self.state.items[item]

        @handler
        async def wait(self, gate: str) -> None:
            while ("gate", gate) not in heard:
                await asyncio.sleep(0.01)

        @handler
        def show(self) -> dict[str, int]:
            return self.state.items

    heard.clear()
    return bus, Cart


def operator(node: Node) -> httpx.AsyncClient:
    pages = create_app(bound(Administration(node)), HttpSettings(write=True, token=TOKEN))
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=pages),
        base_url="http://127.0.0.1",
        headers={"authorization": f"Bearer {TOKEN}"},
    )


def stored(nodes: Nodes, entity_id: str) -> Any:
    row = nodes.data.states.get(("cart", entity_id))
    return None if row is None or row.data is None else decode_value(row.data)


async def test_a_running_entity_saves_the_state_and_starts_again(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    bus, cart = application()
    first, second = await nodes.cluster(bus, 2)
    client = await nodes.client()
    for n in range(6):
        await client.ref(cart, f"c{n}").add("tea")
    heard.clear()
    async with operator(first) as http:
        for n in range(6):  # some live on the other node
            with caplog.at_level(logging.WARNING, "shardbus.node"):
                answer = await http.post(f"/v1/state/cart/c{n}", json={"items": {"milk": n}})
            assert answer.status_code == 200, answer.text
            assert answer.json()["node"] in (str(first.me), str(second.me))
            assert stored(nodes, f"c{n}")["items"] == {"milk": n}
    await until(lambda: len(heard) >= 6, "the starts")
    assert [what for what, _ in heard] == ["start"] * 6, "on_stop does not run"
    for n in range(6):
        assert await client.ref(cart, f"c{n}").show() == {"milk": n}
        assert await client.ref(cart, f"c{n}").add("milk") == n + 1
    assert "state set of 'c3'" in caplog.text
    assert "by operator at 127.0.0.1" in caplog.text
    notes = [node.records.notes.get(("cart", "state_set"), 0) for node in (first, second)]
    assert sum(notes) == 6
    assert all(notes)


async def test_the_change_waits_for_the_handler_and_what_waits_follows(nodes: Nodes) -> None:
    bus, cart = application()
    node = await nodes.start(bus)
    client = await nodes.client()
    await client.ref(cart, "c").add("tea")
    waiting = asyncio.ensure_future(client.ref(cart, "c").wait("open"))
    await until(lambda: bool(node.regions["cart"].host.active["c"].busy), "a busy entity")
    async with operator(node) as http:
        changed = asyncio.ensure_future(http.post("/v1/state/cart/c", json={"items": {"a": 1}}))
        await until(lambda: bool(node.regions["cart"].host.active["c"].mailbox), "the change")
        later = asyncio.ensure_future(client.ref(cart, "c").add("a"))
        await until(lambda: len(node.regions["cart"].host.active["c"].mailbox or ()) == 2, "both")
        heard.append(("gate", "open"))
        assert (await changed).status_code == 200
        await waiting
        assert await later == 2


async def test_an_entity_that_does_not_run_is_changed_without_a_start(nodes: Nodes) -> None:
    bus, cart = application()
    node = await nodes.start(bus)
    client = await nodes.client()
    await client.ref(cart, "warm").add("tea")
    bad = Save("cart", shard_of("bad", SHARDS), "bad", 0, encode_value({"items": 7}), 1)
    assert await node.store.save_states([bad]) == [None]
    with pytest.raises(StateUnreadable):
        await client.ref(cart, "bad").show()
    async with operator(node) as http:
        for entity_id in ("bad", "new"):
            answer = await http.post(f"/v1/state/cart/{entity_id}", json={"items": {"tea": 3}})
            assert answer.status_code == 200, answer.text
    assert "bad" not in node.regions["cart"].host.active
    assert await client.ref(cart, "bad").show() == {"tea": 3}
    assert await client.ref(cart, "new").add("tea") == 4


async def test_a_state_is_removed(nodes: Nodes) -> None:
    bus, cart = application()
    node = await nodes.start(bus)
    client = await nodes.client()
    for entity_id in ("runs", "rests"):
        await client.ref(cart, entity_id).add("tea")
    node.regions["cart"].host.active["rests"]._host.stopper.leave(
        node.regions["cart"].host.active["rests"], StopReason.STOPPED
    )
    await until(lambda: "rests" not in node.regions["cart"].host.active, "an entity at rest")
    async with operator(node) as http:
        for entity_id in ("runs", "rests"):
            answer = await http.delete(f"/v1/state/cart/{entity_id}")
            assert answer.json()["removed"] is True
            assert stored(nodes, entity_id) is None
        for query in ("", "?keep_messages=true"):
            answer = await http.delete(f"/v1/state/cart/nosuch{query}")
            assert answer.status_code == 200
            assert answer.json()["removed"] is False
    assert await client.ref(cart, "runs").show() == {}
    assert await client.ref(cart, "rests").show() == {}


async def test_a_remembered_entity_goes_on(nodes: Nodes) -> None:
    bus, cart = application(remember=True)
    node = await nodes.start(bus)
    client = await nodes.client()
    await client.ref(cart, "c").add("tea")
    async with operator(node) as http:
        for entity_id in ("c", "new"):
            answer = await http.post(f"/v1/state/cart/{entity_id}", json={"items": {"a": 1}})
            assert answer.status_code == 200, answer.text
    await until(lambda: sorted(nodes.remembered("cart")) == ["c", "new"], "both on the list")
    await until(lambda: heard.count(("start", {"a": 1})) == 2, "both started")


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        ({"items": {"tea": "x"}}, 400, "Expected `int`, got `str` - at `$.items[...]`"),
        ({"items": {}, "owner": 7}, 400, "has no field $.owner"),
        ({"note": {"$bytes": "!"}}, 400, "at $.note: $bytes"),
        ({"items": {"x" * 20_000: 1}}, 409, "has 20"),
        ("nonsense", 400, "the body is no JSON"),
    ],
)
async def test_what_does_not_fit_is_refused_on_one_line(
    nodes: Nodes, body: Any, status: int, why: str
) -> None:
    bus, cart = application()
    node = await nodes.start(bus)
    client = await nodes.client()
    await client.ref(cart, "c").add("tea")
    content = "nonsense" if body == "nonsense" else json.dumps(body)
    async with operator(node) as http:
        answer = await http.post("/v1/state/cart/c", content=content)
    assert answer.status_code == status
    message = answer.json()["error"]["message"]
    assert why in message
    assert "\n" not in message
    assert await client.ref(cart, "c").show() == {"tea": 1}


async def test_only_an_operator_changes_states(nodes: Nodes) -> None:
    bus, cart = application()
    node = await nodes.start(bus)
    client = await nodes.client()
    await client.ref(cart, "c").add("tea")
    async with operator(node) as http:
        http.headers["authorization"] = "Bearer another token"
        assert (await http.post("/v1/state/cart/c", json={})).status_code == 403
        assert (await http.delete("/v1/state/cart/c")).status_code == 403
        page = (await http.get("/v1/stored/cart?limit=5")).json()
    assert page == {
        "type": "cart",
        "stored": [{"id": "c", "shard": shard_of("c", SHARDS)}],
        "next": None,
    }
    assert await client.ref(cart, "c").show() == {"tea": 1}


async def test_B149_a_stored_state_is_read_and_the_reader_is_named(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    bus, cart = application()
    node = await nodes.start(bus)
    client = await nodes.client()
    await client.ref(cart, "c").add("tea")
    async with operator(node) as http:
        with caplog.at_level(logging.INFO, "shardbus.node"):
            page = (await http.get("/v1/state/cart/c")).json()
        text = (await http.get("/v1/state/cart/c?text=true")).json()
        none = (await http.get("/v1/state/cart/new")).json()
        http.headers["authorization"] = "Bearer another token"
        assert (await http.get("/v1/state/cart/c")).status_code == 403
    assert page["state"] == {"items": {"tea": 1}, "note": {"$bytes": ""}}
    assert (page["shard"], page["version"]) == (shard_of("c", SHARDS), 1)
    assert json.loads(text["text"]) == page["state"]
    assert text["revision"] == page["revision"]
    assert (none["bytes"], none["state"], none["revision"]) == (0, None, NO_STATE)
    assert "state read of 'c': by operator at 127.0.0.1" in caplog.text


async def test_B149_a_change_replaces_only_the_state_that_was_read(nodes: Nodes) -> None:
    bus, cart = application()
    nodes_ = await nodes.cluster(bus, 2)
    client = await nodes.client()
    for n in range(6):
        await client.ref(cart, f"c{n}").add("tea")
    heard.clear()
    async with operator(nodes_[0]) as http:
        for n in range(6):  # some live on the other node
            path = f"/v1/state/cart/c{n}"
            read = (await http.get(path)).json()["revision"]
            assert await client.ref(cart, f"c{n}").add("tea") == 2
            for method in ("POST", "DELETE"):
                body = json.dumps({"items": {}}) if method == "POST" else None
                refused = await http.request(method, f"{path}?revision={read}", content=body)
                assert refused.status_code == 409
                assert refused.json()["error"]["code"] == "state_changed"
            assert stored(nodes, f"c{n}")["items"] == {"tea": 2}
            assert heard == [], "an entity goes on as it was"
            now = (await http.get(path)).json()["revision"]
            set_ = await http.post(f"{path}?revision={now}", json={"items": {"milk": n}})
            assert set_.status_code == 200, set_.text
            heard.clear()
    for n in range(6):
        assert await client.ref(cart, f"c{n}").add("milk") == n + 1


async def test_B149_an_entity_at_rest_is_compared_under_the_fence_of_its_home(
    nodes: Nodes,
) -> None:
    bus, cart = application()
    node = await nodes.start(bus)
    client = await nodes.client()
    shard = shard_of("rests", SHARDS)
    new = next(f"n{n}" for n in range(1000) if shard_of(f"n{n}", SHARDS) == shard)
    await client.ref(cart, "rests").add("tea")
    host = node.regions["cart"].host
    host.active["rests"]._host.stopper.leave(host.active["rests"], StopReason.STOPPED)
    await until(lambda: "rests" not in host.active, "an entity at rest")
    async with operator(node) as http:
        for entity_id in ("rests", new):
            path = f"/v1/state/cart/{entity_id}"
            for wrong in (NO_STATE if entity_id == "rests" else "7f", "7f"):
                refused = await http.post(f"{path}?revision={wrong}", json={})
                assert refused.status_code == 409, refused.text
            assert entity_id not in host.active
            read = (await http.get(path)).json()["revision"]
            set_ = await http.post(f"{path}?revision={read}", json={"items": {"tea": 3}})
            assert set_.status_code == 200, set_.text
            assert await client.ref(cart, entity_id).show() == {"tea": 3}
    late = Save("cart", shard, "rests", host.shards[shard].fence - 1, encode_value({}), 2)
    [refused] = await node.store.save_states([late])
    assert refused is not None, "an earlier home saves nothing in between"
