"""Logs: JSON lines for machines, colours for people, and no forged line in either."""

from __future__ import annotations

import asyncio
import json
import logging
from io import StringIO

from opentelemetry.sdk.trace import TracerProvider

from shardbus import Entity, ShardBus, handler
from shardbus.testing import TestCluster
from shardbus_cli import logs


def logged(form: str, message: str, *, terminal: bool = False) -> str:
    stream = StringIO()
    stream.isatty = lambda: terminal  # type: ignore[method-assign]
    logs.configure("info", form, stream)
    logger = logging.getLogger("shardbus.test")
    logger.debug("unseen")
    try:
        raise ValueError("inner\x1b")
    except ValueError:
        logger.warning(message, exc_info=True, extra={"entity_type": "counter\n"})
    return stream.getvalue()


def test_logs_are_json_lines_off_a_terminal():
    (line,) = logged("auto", "hello\n\x1b[31m").splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["logger"]) == ("warning", "shardbus.test")
    assert (entry["message"], entry["entity_type"]) == ("hello\n\x1b[31m", "counter\n")
    assert "ValueError" in entry["exception"]
    assert "\x1b" not in line


def test_logs_are_pretty_on_a_terminal_and_forge_nothing():
    text = logged("auto", "hello\n\x1b[31m", terminal=True)
    head, *trace = text.splitlines()
    assert "hello\\n\\x1b[31m  entity_type=counter\\n" in head
    assert head.startswith("\x1b[33m")
    assert all("\x1b" not in line for line in trace)


def test_a_line_for_people_says_nothing_twice():
    """Neither the node, whose terminal it is, nor the event with its arguments."""
    stream = StringIO()
    logs.configure("info", "pretty", stream, node="127.0.0.1:7355")
    log = logging.getLogger("shardbus.runtime")
    log.info("coordinator of %r: epoch 7", "cart", extra={"entity_type": "cart", "epoch": 7})
    log.info("began", extra={"entity_type": "cart"})
    logging.getLogger("shardbus.entity").warning("on_stop of %s %r failed", "cart", "a")
    texts = [
        line.partition("shardbus.")[2].partition("  ")[2] for line in stream.getvalue().splitlines()
    ]
    assert texts == [
        "coordinator of 'cart': epoch 7",
        "began  entity_type=cart",
        "on_stop of cart 'a' failed",
    ]


def test_the_last_lines_of_shardbus_are_kept_for_the_page(monkeypatch):
    monkeypatch.setattr(logs, "RECENT", 20)
    logs.configure("info", "json", StringIO(), node="n:1")
    log = logging.getLogger("shardbus.test")
    for n in range(25):
        log.info("line %d", n)
    log.debug("too fine")
    logging.getLogger("shop.secret").warning("of the application")
    log.info("%s", "x" * 10_000)
    lines = logs.recent_lines()
    logging.getLogger().handlers.clear()
    assert logs.recent_lines() == []
    assert len(lines) == 20
    assert json.loads(lines[-2])["message"] == "line 24"
    assert json.loads(lines[-2])["node"] == "n:1"
    assert len(lines[-1]) == logs.RECENT_CHARACTERS
    assert not any("too fine" in line or "of the application" in line for line in lines)


OWN = logging.getLogger("shop.orders")


class Order(Entity):
    """Logs in each way in which a handler may."""

    async def on_start(self) -> None:
        OWN.warning("start")

    @handler
    def plain(self) -> None:
        OWN.warning("plain")
        OWN.warning("of its own", extra={"entity_id": "chosen"})
        logging.getLogger("shardbus.test").warning("of shardbus")

    @handler
    async def waits(self) -> None:
        OWN.warning("first step")
        await asyncio.sleep(0.1)
        OWN.warning("later step")
        await asyncio.gather(self._part())
        await asyncio.to_thread(OWN.warning, "thread")

    async def _part(self) -> None:
        await asyncio.sleep(0.1)
        OWN.warning("gathered")


async def test_B62_lines_of_a_handler_say_of_which_entity_they_are() -> None:
    bus, stream = ShardBus("shop"), StringIO()
    bus.entity("order", shards=10)(Order)
    async with TestCluster(bus, nodes=1, seed=1) as cluster:
        logs.configure("warning", "json", stream)
        OWN.warning("outside")
        order = cluster.client().ref(Order, "o-7")
        await order.plain()
        await order.waits()
    rows = {row["message"]: row for row in map(json.loads, stream.getvalue().splitlines())}
    names = ("entity_type", "entity_id", "shard", "fence")
    for text in ("start", "plain", "first step", "later step", "gathered"):
        entity_type, entity_id, shard, fence = (rows[text].get(name) for name in names)
        assert (entity_type, entity_id) == ("order", "o-7"), text
        assert (shard in map(str, range(10)), fence > 0) == (True, True), text
    assert rows["of its own"]["entity_id"] == "chosen"
    assert rows["of its own"]["entity_type"] == "order"
    for text in ("outside", "thread", "of shardbus"):
        assert not rows[text].keys() & set(names), text


def test_B62_a_line_under_a_span_has_the_trace() -> None:
    stream = StringIO()
    tracer = TracerProvider().get_tracer("test")
    logs.configure("info", "json", stream, node="n:1")
    with tracer.start_as_current_span("handle order.add") as span:
        OWN.warning("traced")
    OWN.warning("not traced")
    traced, plain = map(json.loads, stream.getvalue().splitlines())
    context = span.get_span_context()
    assert int(traced["trace_id"], 16) == context.trace_id
    assert int(traced["span_id"], 16) == context.span_id
    assert not {"trace_id", "span_id"} & plain.keys()
