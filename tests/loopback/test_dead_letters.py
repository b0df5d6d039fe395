"""Dropped messages of real nodes are kept, listed over HTTP, and sent again, each once."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import httpx
import pytest

from shardbus import AsyncClient, Entity, Rejection, RequestError, ShardBus, handler
from shardbus.admin.administration import Administration
from shardbus.admin.page_table import bound
from shardbus.config.settings import HttpSettings
from shardbus.http.app import create_app
from shardbus.node.node import Node
from tests.loopback.nodes import Nodes
from tests.waiting import until

TOKEN = "an operator's own token"
heard: list[Any] = []
failing: set[str] = set()


class Refusal(Rejection):
    pass


def application(**options: Any) -> tuple[ShardBus, Any]:
    heard.clear()
    failing.clear()
    bus = ShardBus("shop")

    @bus.entity("line", shards=6, **options)
    class Line(Entity):
        @handler
        def add(self, n: int) -> int:
            if "add" in failing:
                raise ValueError("not today")
            heard.append((self.context.entity_id, n))
            return n

        @handler
        async def later(self, n: int) -> None:
            await asyncio.sleep(0)
            self.add(n)

        @handler
        def no(self, n: int) -> None:
            raise Refusal("no")

        @handler
        async def wait(self) -> None:
            while "wait" in failing:
                await asyncio.sleep(0.005)

        async def receive(self, message: object) -> object:
            return self.unhandled(message)

    return bus, Line


def operator(node: Node, token: str = TOKEN) -> httpx.AsyncClient:
    settings = HttpSettings(write=True, token=TOKEN, reader_token="a reader's own token")
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=create_app(bound(Administration(node)), settings)),
        base_url="http://127.0.0.1",
        headers={"authorization": f"Bearer {token}"},
    )


def letters(*nodes: Node) -> Counter[tuple[str, str]]:
    """The letters that the nodes have, by reason and method."""
    return Counter(
        (letter.reason, letter.method) for node in nodes for letter in node.records.letters
    )


def dropped(*nodes: Node) -> Counter[str]:
    total: Counter[str] = Counter()
    for node in nodes:
        total.update(node.regions["line"].host.counts.dropped)
    return total


async def drop_some(client: AsyncClient, *nodes: Node) -> None:
    """Have the nodes drop messages for each reason that an entity has."""
    failing.add("add")
    await client.cast("line", "a", "add", 1)
    await client.cast("line", "b", "later", 2)
    await client.cast("line", "c", "no", 3)
    await client.cast("line", "d", "add", "no number")
    await client.cast("line", "e", "gone", 5)
    await client.tell("line", "f", {"any": "message"})
    with pytest.raises(RequestError):
        await client.call("line", "g", "add", "no number")
    await until(lambda: sum(dropped(*nodes).values()) == 7, "the drops")


async def test_every_drop_of_an_entity_is_a_letter_and_none_has_its_body_by_default(
    nodes: Nodes,
) -> None:
    bus, _ = application()
    pair = await nodes.cluster(bus, 2)
    client = await nodes.client()
    await drop_some(client, *pair)
    by_reason = letters(*pair)
    assert Counter(reason for reason, _ in by_reason.elements()) == dropped(*pair)
    assert dropped(*pair) == {"failed": 2, "rejected": 1, "schema": 2, "unhandled": 2}
    async with operator(pair[1]) as http:
        page = (await http.get("/v1/dead-letters")).json()
        assert len(page["letters"]) == 7
        assert page["silent"] == []
        assert page["more"] is False
        assert {letter["kept"] for letter in page["letters"]} == {False}
        ages = [letter["at"] for letter in page["letters"]]
        assert ages == sorted(ages, reverse=True)
        letter = next(letter for letter in page["letters"] if letter["entity"] == "a")
        assert (letter["type"], letter["reason"], letter["method"]) == ("line", "failed", "add")
        assert letter["bytes"] > 0
        assert letter["sender"] == client._endpoint.name
        tells = {letter["entity"] for letter in page["letters"] if not letter["answered"]}
        assert tells == set("abcdef")
        few = (await http.get("/v1/dead-letters?type=line&reason=schema&since=600")).json()
        assert sorted(letter["entity"] for letter in few["letters"]) == ["d", "g"]
        first = (await http.get("/v1/dead-letters?limit=2")).json()
        assert first["letters"] == page["letters"][:2]
        assert first["more"] is True
        refused = await http.post("/v1/dead-letters/replay?type=line")
        assert refused.status_code == 409
        assert "body was not kept" in refused.json()["error"]["message"]
    assert letters(*pair) == by_reason


async def test_an_operator_sends_letters_again_each_once(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    bus, _ = application(dead_letter_payloads="1KiB")
    pair = await nodes.cluster(bus, 2)
    client = await nodes.client()
    await drop_some(client, *pair)
    failing.clear()
    async with operator(pair[0]) as http:
        dry = (await http.post("/v1/dead-letters/replay?reason=failed&dry_run=true")).json()
        assert {letter["entity"] for letter in dry["letters"]} == {"a", "b"}
        assert dry["sent"] == 0
        assert heard == []
        with caplog.at_level(logging.WARNING, "shardbus.node"):
            done = (await http.post("/v1/dead-letters/replay?reason=failed")).json()
        assert (done["sent"], done["failed"], done["more"]) == (2, [], False)
        await until(lambda: sorted(heard) == [("a", 1), ("b", 2)], "both")
        again = (await http.post("/v1/dead-letters/replay?reason=failed")).json()
        assert (again["sent"], again["letters"]) == (0, [])
        gone = await http.post(f"/v1/dead-letters/replay?id={dry['letters'][0]['id']}")
        assert gone.status_code == 409
        assert "is not kept any more" in gone.json()["error"]["message"]
    assert len(heard) == 2
    assert "by operator at 127.0.0.1" in caplog.text
    assert sum(node.records.notes.get(("line", "letters_replayed"), 0) for node in pair) >= 1


async def test_a_filter_leaves_out_what_was_answered_and_a_name_does_not(nodes: Nodes) -> None:
    bus, _ = application(dead_letter_payloads="1KiB")
    node = await nodes.start(bus)
    client = await nodes.client()
    await drop_some(client, node)
    async with operator(node) as http:
        some = (await http.post("/v1/dead-letters/replay?reason=schema&dry_run=true")).json()
        assert [letter["entity"] for letter in some["letters"]] == ["d"]
        query = "reason=schema&answered=true&dry_run=true"
        both = (await http.post(f"/v1/dead-letters/replay?{query}")).json()
        assert [letter["entity"] for letter in both["letters"]] == ["d", "g"]
        ask_id = both["letters"][1]["id"]
        done = (await http.post(f"/v1/dead-letters/replay?id={ask_id}")).json()
        assert done["sent"] == 1
        await until(lambda: dropped(node)["schema"] == 3, "the drop of the replayed message")
    assert letters(node)["schema", "add"] == 2, "the replayed one has left, and is dropped again"
    assert [letter.sender for letter in node.records.letters][-1] == str(node.me)


async def test_a_replay_is_bounded_and_takes_the_oldest(nodes: Nodes) -> None:
    bus, _ = application(dead_letters=5, dead_letter_payloads="1KiB")
    node = await nodes.start(bus)
    client = await nodes.client()
    failing.add("add")
    for n in range(8):
        await client.cast("line", "a", "add", n)
    await until(lambda: dropped(node)["failed"] == 8, "the drops")
    failing.clear()
    async with operator(node) as http:
        done = (await http.post("/v1/dead-letters/replay?type=line&limit=2")).json()
        assert (done["sent"], done["more"]) == (2, True)
        await until(lambda: heard == [("a", 3), ("a", 4)], "the oldest that were kept")
        done = (await http.post("/v1/dead-letters/replay?type=line")).json()
        assert (done["sent"], done["more"]) == (3, False)
        await until(lambda: [n for _, n in heard] == [3, 4, 5, 6, 7], "the others, in order")
    assert not list(node.records.letters)


async def test_a_full_mailbox_drops_into_the_ring(nodes: Nodes) -> None:
    bus, _ = application(mailbox=2, mailbox_patience=0, dead_letter_payloads="1KiB")
    node = await nodes.start(bus)
    client = await nodes.client()
    failing.add("wait")
    await client.cast("line", "a", "wait")
    await until(lambda: bool(node.regions["line"].host.runner.running_handlers.tasks), "it waits")
    for n in range(5):
        await client.cast("line", "a", "add", n)
    await until(lambda: dropped(node)["mailbox_full"] == 3, "the drops")
    failing.clear()
    await until(lambda: len(heard) == 2, "those that had room")
    async with operator(node) as http:
        done = (await http.post("/v1/dead-letters/replay?reason=mailbox_full")).json()
    assert done["sent"] == 3
    await until(lambda: [n for _, n in heard] == [0, 1, 2, 3, 4], "every message once")


async def test_only_an_operator_replays_and_a_reader_lists(nodes: Nodes) -> None:
    bus, _ = application()
    node = await nodes.start(bus)
    async with operator(node, "a reader's own token") as http:
        assert (await http.get("/v1/dead-letters")).status_code == 200
        assert (await http.post("/v1/dead-letters/replay?type=line")).status_code == 403
    async with operator(node, "another") as http:
        assert (await http.get("/v1/dead-letters")).status_code == 401
    async with operator(node) as http:
        for bad, status in (
            ("", 400),
            ("type=nothing", 404),
            ("id=1", 400),
            ("id=0000000000000000-1", 409),
            (f"id={node.me.uid:016x}-1", 409),
            ("type=line&dry_run=1", 400),
            ("type=line&limit=0", 400),
            ("type=line&since=x", 400),
        ):
            answer = await http.post(f"/v1/dead-letters/replay?{bad}")
            assert answer.status_code == status, (bad, answer.text)
            assert "\n" not in answer.json()["error"]["message"]


async def test_messages_of_an_unknown_type_are_listed_and_never_replayed(nodes: Nodes) -> None:
    bus, _ = application(dead_letter_payloads="1KiB")
    node = await nodes.start(bus)
    client = await nodes.client()
    session = client._endpoint.session_to(node.me.address, node.me)
    session.outbox.tell(("ghost", "add"), "x\x1b[31m", b"\x91\x01")
    await until(lambda: bool(letters(node)), "the letter")
    async with operator(node) as http:
        page = (await http.get("/v1/dead-letters?type=ghost")).json()
        assert [(letter["reason"], letter["entity"]) for letter in page["letters"]] == [
            ("unknown_type", "x\x1b[31m")
        ]
        refused = await http.post(f"/v1/dead-letters/replay?id={page['letters'][0]['id']}")
        assert refused.status_code == 409
