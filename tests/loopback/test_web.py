"""A web application that is a client, one that is a node, both started several times, as by tests,
and the chat."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from examples import chat
from shardbus import AsyncClient, ConfigError
from shardbus.errors import LocalProtocolError
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
    for block in blocks("docs/how-to/web.md"):
        if block.language == "python" and "await bus.run" not in block.text:
            exec(compile(block.text, block.place, "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


def client_of(options: dict[str, object]) -> AsyncClient:
    """A client of the node with these settings."""
    address = f"tcp://127.0.0.1:{options['node.port']}"
    return AsyncClient(address, cluster="shop", timeout=PATIENCE_S, connect_timeout=PATIENCE_S)


def test_the_applications_of_the_page_serve_requests() -> None:
    """The client and the node are in one application here, so that one test starts them."""
    names, node = page(), settings()
    both, bus = names["app"], names["bus"]
    both.router.lifespan_context = lifespan(lambda: bus.run(node), lambda: client_of(node))
    with TestClient(both) as web:
        assert web.post("/articles/pen/orders?amount=2").json() == {"left": 1}
        refused = web.post("/articles/pen/orders?amount=2")
        assert refused.status_code == 409
        assert refused.json()["error"]["fields"] == {"left": 1}
        assert web.post("/articles/pen/orders?amount=x").status_code == 422
    names["test_an_order_is_taken"]()
    node = names["web"]
    node.router.lifespan_context = lifespan(lambda: bus.run(settings()))
    for amount in (1, 2, 3):
        with TestClient(node) as web:
            left = web.post(f"/articles/pen/orders?amount={amount}").json()
            assert left == {"left": 3 - amount}


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_an_application_is_started_as_often_as_its_tests_want(loop: str) -> None:
    names, node = page(), settings()
    app, bus = names["app"], names["bus"]
    app.router.lifespan_context = lifespan(lambda: bus.run(node), lambda: client_of(node))
    for _ in range(4):
        with TestClient(app, backend_options={"use_uvloop": loop == "uvloop"}) as web:
            assert web.post("/articles/pen/orders?amount=2").json() == {"left": 1}


def test_a_second_start_with_the_same_node_or_client_is_refused_with_what_to_give() -> None:
    bus, node = page()["bus"], settings()
    app = Starlette(lifespan=lifespan(bus.run(node), client_of(node)))
    with TestClient(app):
        pass
    with pytest.raises(ConfigError, match=r"once; .* lifespan\(lambda: bus.run"), TestClient(app):
        pass
    app = Starlette(lifespan=lifespan(lambda: bus.run(node), client := client_of(node)))
    with TestClient(app):
        assert app.state.shardbus_client is client
    again = pytest.raises(LocalProtocolError, match=r"once; .* lifespan\(lambda: AsyncClient")
    with again, TestClient(app):
        pass


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
