"""The operator's view of handlers, and the operator's messages to entities: over HTTP, on real
nodes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from shardbus import Entity, Rejection, ShardBus, handler
from shardbus.admin import load_history, page_table
from shardbus.admin.administration import Administration
from shardbus.admin.page_table import bound
from shardbus.admin.pages import history as history_page
from shardbus.config.settings import HttpSettings
from shardbus.http.app import create_app
from shardbus.node.node import Node
from tests.loopback.nodes import Nodes
from tests.waiting import until

TOKEN, READER = "an operator's own token", "a reader's own token"
SECRET = "what only the entity may see"


@dataclass
class Item:
    name: str
    count: int = 1


def application() -> ShardBus:
    bus = ShardBus("shop")

    @bus.entity("cart", shards=8)
    class Cart(Entity):
        def __init__(self) -> None:
            self.items: dict[str, int] = {}

        @handler
        def add(self, item: Item, times: int = 1) -> Item:
            self.items[item.name] = self.items.get(item.name, 0) + times * item.count
            return Item(item.name, self.items[item.name])

        @handler
        def total(self) -> int:
            return 2**63 - 1

        @handler
        def pay(self, with_what: str) -> None:
            raise ValueError("no money")

        @handler
        def refuse(self) -> None:
            raise Rejection("not today")

    @bus.entity("note", shards=4)
    class Note(Entity):
        def receive(self, message: Any) -> Any:
            return [message, b"\0"]

    @bus.entity("copy", shards=4, instances=2, router="all")
    class Copy(Entity):
        @handler
        def where(self) -> str:
            return "here"

    return bus


def operator(node: Node, sends: str = TOKEN, /, **settings: Any) -> httpx.AsyncClient:
    http = HttpSettings(**{"write": True, "token": TOKEN, "reader_token": READER, **settings})
    pages = create_app(bound(Administration(node)), http)
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=pages),
        base_url="http://127.0.0.1",
        headers={"authorization": f"Bearer {sends}"},
    )


async def test_typed_arguments_and_answers_travel_as_json(nodes: Nodes) -> None:
    first, _ = await nodes.cluster(application(), 2)
    async with operator(first) as http:
        for n in range(6):  # some live on the other node
            tea = {"name": "tea", "count": 3}
            answer = await http.post(f"/v1/send/cart/c{n}?handler=add", json=[tea, 2])
            assert answer.status_code == 200, answer.text
            assert answer.json()["error"] is None
            assert answer.json()["answer"] == '{\n  "name": "tea",\n  "count": 6\n}'
        by_name = {"times": 2, "item": {"name": "tea"}}
        answer = await http.post("/v1/send/cart/c1?handler=add", json=by_name)
        assert '"count": 8' in answer.json()["answer"]
        answer = await http.post("/v1/send/cart/c1?handler=total", json=[])
        assert answer.json()["answer"] == "9223372036854775807", "no digit is lost"
        answer = await http.post("/v1/send/note/n", json={"any": {"$bytes": "AA=="}})
        assert '"$bytes": "AA=="' in answer.json()["answer"]
        tell = await http.post("/v1/send/cart/c1?handler=add&tell=true", json=[tea])
        assert (tell.json()["answer"], tell.json()["error"]) == (None, None)
        answer = await http.post("/v1/send/copy/x?handler=where", json=[])
        assert answer.json()["answer"].count('"here"') == 2, "every instance has answered"


async def test_what_goes_wrong_is_an_answer_or_a_refusal_before_anything_is_sent(
    nodes: Nodes,
) -> None:
    node = await nodes.start(application())
    async with operator(node) as http:
        failed = (await http.post("/v1/send/cart/c?handler=pay", json=["card"])).json()["error"]
        assert (failed["error"], failed["message"]) == ("EntityFailed", "ValueError: no money")
        refused = (await http.post("/v1/send/cart/c?handler=refuse", json=[])).json()["error"]
        assert (refused["error"], refused["message"]) == ("Rejection", "not today")
        unfit = (await http.post("/v1/send/cart/c?handler=add", json=["tea"])).json()["error"]
        assert unfit["error"] == "SchemaError"
        accepted = node.regions["cart"].host.counts.accepted
        for query, body, said in (
            ("cart/c?handler=ad", [], "did you mean add"),
            ("cart/c?handler=add", [], "missing a required argument: 'item'"),
            ("cart/c?handler=total", [1], "too many positional arguments"),
            ("cart/c?handler=add", {"thing": 1}, "item"),
            ("cart/c?handler=add", 7, "neither a list nor an object"),
            ("cart/c", 7, "has no receive"),
            ("cart/c?handler=total", [{"$float": "x"}], "$float"),
        ):
            answer = await http.post(f"/v1/send/{query}", json=body)
            assert answer.status_code == 400, answer.text
            error = answer.json()["error"]
            assert said in error["message"] + error["hint"]
        assert (await http.post("/v1/send/none/c?handler=x", json=[])).status_code == 404
        assert node.regions["cart"].host.counts.accepted == accepted


async def test_each_message_is_in_the_log_with_its_sender_and_without_its_arguments(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    node = await nodes.start(application())
    with caplog.at_level(logging.DEBUG):
        async with operator(node) as http:
            await http.post("/v1/send/cart/c-7?handler=pay", json=[SECRET])
            await http.post("/v1/send/note/n-1", json=SECRET)
    [paid, noted] = [record for record in caplog.records if "message sent" in record.getMessage()]
    said = "message sent to pay of 'c-7': by operator at 127.0.0.1"
    assert (paid.levelno, paid.getMessage()) == (logging.WARNING, f"cart: {said}")
    assert noted.getMessage() == "note: message sent to receive of 'n-1': by operator at 127.0.0.1"
    assert SECRET not in caplog.text
    assert node.records.notes["cart", "message_sent"] == 1


@pytest.mark.parametrize(
    ("token", "settings", "said"),
    [
        (READER, {}, "a reader may not write"),
        ("wrong", {"reader_token": ""}, "missing or wrong"),
        (TOKEN, {"write": False}, "read-only"),
        ("any", {"token": "", "reader_token": ""}, "read-only"),
    ],
)
async def test_without_the_operators_token_nothing_is_sent(
    nodes: Nodes, token: str, settings: dict[str, Any], said: str
) -> None:
    node = await nodes.start(application())
    async with operator(node, token, **settings) as http:
        answer = await http.post("/v1/send/cart/c?handler=total", json=[])
    assert answer.status_code == 403
    assert said in answer.json()["error"]["message"]
    assert node.regions["cart"].host.counts.accepted == 0
    assert ("cart", "message_sent") not in node.records.notes


async def test_handlers_of_all_nodes_with_their_calls_failures_and_last_exceptions(
    nodes: Nodes,
) -> None:
    first, _ = await nodes.cluster(application(), 2)
    for n in range(12):
        await first.ref("cart", f"c{n}").total()
    async with operator(first) as http:
        for n in range(4):
            await http.post(f"/v1/send/cart/c{n}?handler=pay", json=["card"])
        await http.post("/v1/send/note/n", json="x")
        answer = (await http.get("/v1/handlers?type=cart")).json()
        rates = (await http.get("/v1/shard-rates")).json()["rates"]
    rows = {row["handler"]: row for row in answer["handlers"]}
    assert list(rows) == ["add", "pay", "refuse", "total"]
    assert rows["add"]["parameters"] == "item: Item, times: int = 1"
    assert (rows["add"]["calls"], rows["add"]["p99"], rows["add"]["last"]) == (0, None, [])
    assert (rows["total"]["calls"], rows["total"]["failures"]) == (12, 0)
    assert 0 < rows["total"]["p50"] <= rows["total"]["p99"] < 30
    pay = rows["pay"]
    assert (pay["calls"], pay["failures"], len(pay["last"])) == (4, 4, 3)
    assert "c3" in {failure["entity"] for failure in pay["last"]}, "the newest are kept"
    assert {failure["error"] for failure in pay["last"]} == {"ValueError"}
    assert "in pay" in pay["last"][-1]["stack"] + pay["last"][0]["stack"]
    assert sum(rates["cart"].values()) > 0
    shards = {first.regions["cart"].router.shard_of(f"c{n}") for n in range(12)}
    assert set(rates["cart"]) == shards


async def test_a_page_that_was_just_opened_has_the_hour_of_the_nodes(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (load_history, history_page):
        monkeypatch.setattr(module, "STEP_S", 1)
    first, second = await nodes.cluster(application(), 2)
    for n in range(30):
        await first.ref("cart", f"c{n}").total()
    seen: dict[str, Any] = {}

    async def both_in_one_step() -> bool:
        async with operator(second) as http:
            seen.update((await http.get("/v1/history")).json())
        columns = seen["columns"]
        steps = [dict(zip(columns, row, strict=True)) for row in seen["rows"]]
        return any(step["nodes"] == 2 and step["entities"] == 30 for step in steps)

    await until(both_in_one_step, "a step that both nodes have sampled")
    received = seen["columns"].index("received")
    a_second = sum(row[received] for row in seen["rows"])
    assert a_second < 45, "each message is counted by one node, in steps of about a second"
    assert (seen["step"], seen["silent"]) == (1, [])


async def test_the_hour_of_a_node_that_has_ended_is_shown_by_a_node_that_was_never_asked(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (load_history, history_page, page_table):
        monkeypatch.setattr(module, "STEP_S", 1)
    monkeypatch.setattr(history_page, "FRESH_S", 0.0)  # an answer of the step before is too old
    first, second, third, gone = await nodes.cluster(application(), 4)
    pages = {node: page_table.administer(node) for node in (first, second, third)}
    for n in range(30):
        await first.ref("cart", f"c{n}").total()
    keeper: dict[str, Any] = {}

    async def kept() -> bool:
        keeper.update(await pages[first]["history"]())
        steps = [dict(zip(keeper["columns"], row, strict=True)) for row in keeper["rows"]]
        return sum(step["nodes"] == 4 and step["entities"] == 30 for step in steps) >= 3

    await until(kept, "steps of all nodes, of which each keeper has the first")
    received = keeper["columns"].index("received")
    before = sum(row[received] for row in keeper["rows"])
    await nodes.leave(gone)
    await nodes.agree(3)
    answer = await pages[third]["history"]()
    assert [hour["node"] for hour in answer["ended"]] == [str(gone.me)]
    assert max(row[1] for row in answer["rows"]) == 4, "the steps of the node that has ended"
    assert sum(row[received] for row in answer["rows"]) >= before
