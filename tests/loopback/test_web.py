"""A web application that is a client, one that is a node, and the chat."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from starlette.testclient import TestClient

from examples import chat
from shardbus import AsyncClient
from shardbus.integrations.starlette import lifespan
from tests.doc_blocks import blocks
from tests.ports import free_block
from tests.waiting import PATIENCE_S


def settings() -> dict[str, object]:
    port = free_block(3)
    ports = {"node.port": port, "node.gossip_port": port + 1, "http.port": port + 2}
    quick = {"cluster.gossip_interval": 0.1, "cluster.leader_actions_interval": 0.1}
    return {"store.url": "memory://", **ports, **quick}


def page() -> dict[str, Any]:
    """The names of the page's applications."""
    module = ModuleType("page_web")
    for block in blocks("docs/how-to/web.md")[:4]:
        exec(compile(block.text, block.place, "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


def test_the_applications_of_the_page_serve_requests() -> None:
    """The client and the node are in one application here, so that one test starts them."""
    names, own = page(), settings()
    client = AsyncClient(
        f"tcp://127.0.0.1:{own['node.port']}",
        cluster="shop",
        timeout=PATIENCE_S,
        connect_timeout=PATIENCE_S,
    )
    both = names["app"]
    both.router.lifespan_context = lifespan(names["bus"].run(own), client)
    with TestClient(both) as web:
        assert web.post("/articles/pen/orders?amount=2").json() == {"left": 1}
        refused = web.post("/articles/pen/orders?amount=2")
        assert refused.status_code == 409
        assert refused.json()["error"]["fields"] == {"left": 1}
        assert web.post("/articles/pen/orders?amount=x").status_code == 422
    node = names["web"]
    node.router.lifespan_context = lifespan(names["bus"].run(settings()))
    with TestClient(node) as web:
        assert web.post("/articles/pen/orders?amount=3").json() == {"left": 0}


def test_everybody_in_a_room_gets_every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "NEWS_S", 0.01)
    chat.app.router.lifespan_context = lifespan(chat.bus.run(settings()))
    with (
        TestClient(chat.app) as web,
        web.websocket_connect("/rooms/tea") as anna,
        web.websocket_connect("/rooms/tea") as bob,
        web.websocket_connect("/rooms/coffee") as carl,
    ):
        anna.send_json({"from": "anna", "text": "hello"})
        assert bob.receive_text() == "anna: hello" == anna.receive_text()
        bob.send_json({"from": "bob", "text": "tea?"})
        assert anna.receive_text() == "bob: tea?" == bob.receive_text()
        carl.send_json(["no", "line"])
        assert carl.receive_text().startswith("not said: ")
        carl.send_json({"from": "carl", "text": "alone"})
        assert carl.receive_text() == "carl: alone"
