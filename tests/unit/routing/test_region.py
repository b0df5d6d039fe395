"""Regions by name, extractors, and shard functions that all nodes must share."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

from shardbus import Envelope, Region, ShardBus, StartEntity
from shardbus.errors import ConfigError, Unhandled
from shardbus.ids import NodeId
from shardbus.node.subscriptions import Subscriptions
from shardbus.routing.refs import START
from shardbus.routing.region import UnsteadyShard
from shardbus.wire.schema import Interface
from tests.unit.declaring import Counter, Hit, Letter, by_message, declared

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bus() -> ShardBus:
    return ShardBus("shop")


def by_length(entity_id: str) -> str:
    return str(len(entity_id))


def test_a_shard_function_is_named_in_the_layout(bus: ShardBus) -> None:
    kind = declared(bus, Counter, shards=9, extract_shard_id=by_length)
    assert kind.interface.shard_of is not None
    assert kind.interface.shard_of("abc") == "3"
    assert re.fullmatch(r"by_length:[0-9a-f]{8}/9", kind.interface.layout)


def layout(bus: ShardBus, function: Any) -> str:
    return declared(ShardBus("shop"), Counter, extract_shard_id=function).interface.layout


def test_S2_20_shard_functions_are_the_same_if_they_do_the_same(bus: ShardBus) -> None:
    def by_number(entity_id: str) -> str:
        return str(int(entity_id) % 7)

    first = layout(bus, by_number)

    def by_number(entity_id: str) -> str:  # type: ignore[no-redef]
        return str(int(entity_id) % 7)

    by_number.__module__ = "__main__"
    assert layout(bus, by_number) == first

    def by_number(entity_id: str) -> str:  # type: ignore[no-redef]
        return str(int(entity_id) % 8)

    assert layout(bus, by_number) != first
    assert layout(bus, partial(by_length)).startswith("partial:")


def test_S2_20_a_shard_function_that_differs_between_processes_is_seen() -> None:
    source = """
from shardbus import Entity, ShardBus
bus = ShardBus("shop")
@bus.entity("page", extract_shard_id=lambda entity_id: str(hash(entity_id) % 100))
class Page(Entity):
    def receive(self, message): ...
print(bus.types["page"].interface.layout)
"""
    layouts = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", source]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, text=True, capture_output=True, check=True
        )
        layouts.add(done.stdout)
    assert len(layouts) == 2


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda message: message.page, "failed for the id 'p1': AttributeError.*not the message"),
        (len, "gave 2; a shard id is a str"),
        (lambda entity_id: "", "a shard id must have 1 to 256 bytes"),
    ],
)
def test_S0_4_a_shard_function_that_errs_is_told_to_who_sends(
    bus: ShardBus, function: Any, said: str
) -> None:
    kind = declared(bus, Counter, extract_shard_id=function)
    assert kind.interface.shard_of is not None
    with pytest.raises(ConfigError, match=said):
        kind.interface.shard_of("p1")


def test_a_shard_function_that_gives_another_shard_each_time_is_refused(bus: ShardBus) -> None:
    numbers = count()
    with pytest.raises(UnsteadyShard, match="gave '0' and then '1' for the id '0'"):
        declared(bus, Counter, extract_shard_id=lambda entity_id: str(next(numbers)))


def test_a_shard_function_that_is_unsteady_for_one_id_fails_its_sender_only(bus: ShardBus) -> None:
    numbers = count()

    def function(entity_id: str) -> str:
        return str(next(numbers)) if entity_id == "odd" else "1"

    shard_of = declared(bus, Counter, extract_shard_id=function).interface.shard_of
    assert shard_of is not None
    with pytest.raises(ConfigError, match="for the id 'odd'; a shard id depends on the entity id"):
        shard_of("odd")
    assert shard_of("p1") == "1"


class Sent:
    """Stands for a router, and for the node's part of the type that owns it."""

    def __init__(self) -> None:
        self.sender: Any = self
        self.interface = Interface("counter", 10, "crc32/10")
        self.messages: list[tuple[str, object]] = []
        self.drops: list[str] = []

    def key(self, method: str) -> tuple[str, str]:
        return ("counter", method)

    def send(self, entity_id: str, message: object) -> None:
        self.messages.append((entity_id, message))

    def tell(self, key: tuple[str, str], entity_id: str, payload: bytes) -> None:
        self.messages.append((entity_id, key[1]))

    def ask(
        self, key: tuple[str, str], entity_id: str, payload: bytes, timeout_ms: int, decode: Any
    ) -> object:
        self.messages.append((entity_id, key[1]))
        return timeout_ms

    def dropped(self, reason: str) -> None:
        self.drops.append(reason)


class FakeNode:
    """A node with nothing but one type."""

    def __init__(self, name: str) -> None:
        self.me = NodeId("n", 1, 1)
        self.subscriptions = Subscriptions(self.me)
        self.regions = {name: Sent()}

    def ref(self, kind: Any, entity_id: str) -> Any:
        raise NotImplementedError

    def write_meta(self, name: str, data: bytes) -> None:
        raise NotImplementedError


def region_of(bus: ShardBus, extract: Any = by_message) -> tuple[Region, Sent]:
    bus.entity("counter", extract_entity_id=extract)(Counter)
    region = bus.region("counter")
    bus.attach(FakeNode("counter"))
    return region, cast("Sent", bus._running().regions["counter"])


def test_S2_12_a_region_finds_the_entity_and_unwraps_what_it_is_in(bus: ShardBus) -> None:
    region, sent = region_of(bus)
    region.tell(Hit("p1"))
    region.tell(Letter(7, "hello"))
    assert cast("Any", region.ask(Hit("p2"), timeout=0.25)) == 250
    assert cast("Any", region.ask(Letter(8, "again"))) == 5000
    assert sent.messages == [("p1", Hit("p1")), ("7", "hello"), ("p2", ":Hit"), ("8", "")]
    assert sent.drops == []


def test_S4_3_envelopes_and_starts_need_no_extractor(bus: ShardBus) -> None:
    region, sent = region_of(bus, None)
    region.tell(Envelope("p1", Hit("x")))
    region.tell(StartEntity("p2"))
    region.ask(Envelope("p3", 1))
    region.ask(StartEntity("p4"))
    assert sent.messages == [("p1", Hit("x")), ("p2", START), ("p3", ""), ("p4", START)]


@pytest.mark.parametrize("way", ["tell", "ask"])
@pytest.mark.parametrize(
    ("extract", "why"),
    [(by_message, "no such dict$"), (lambda m: m.page, "no such dict: AttributeError: .*'page'")],
)
def test_S4_4_what_the_extractor_does_not_know_is_told_and_counted(
    bus: ShardBus, way: str, extract: Any, why: str
) -> None:
    region, sent = region_of(bus, extract)
    with pytest.raises(Unhandled, match=f"extract_entity_id of 'counter' knows {why}") as said:
        getattr(region, way)({})
    assert said.value.definite
    assert sent.drops == ["unhandled"]
    assert sent.messages == []


@pytest.mark.parametrize("extracted", [7, ("a", 1, 2), (7, "message"), ""])
def test_what_an_extractor_gives_must_be_an_id(bus: ShardBus, extracted: object) -> None:
    region, sent = region_of(bus, lambda message: extracted)
    with pytest.raises(ConfigError, match=r"an entity id (of 'counter' is a str|must have)"):
        region.tell(Hit("p"))
    assert sent.messages == []


def test_a_region_needs_a_type_and_its_extractor(bus: ShardBus) -> None:
    with pytest.raises(ConfigError, match="no entity type 'counter'"):
        bus.region("counter")
    region, _ = region_of(bus, None)
    with pytest.raises(ConfigError, match=r"has no extract_entity_id; .*Envelope"):
        region.tell(Hit("p"))
    with pytest.raises(ConfigError, match="an entity id of 'counter' is a str, not 7"):
        region.tell(Envelope(cast("str", 7), 1))
