"""A bus: its name, its types and messages, and the calls that need a running node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from shardbus import Entity, Rejection, ShardBus, handler
from shardbus.errors import ConfigError, LocalProtocolError
from tests.unit.declaring import Counter, Hit, Opaque, by_message


@pytest.fixture
def bus() -> ShardBus:
    return ShardBus("shop")


@pytest.mark.parametrize("name", ["x" * 257, "a\nb", "a\0", "\ud800"])
def test_names_that_are_no_ids_are_refused(bus: ShardBus, name: str) -> None:
    with pytest.raises(ConfigError):
        bus.entity(name)(Counter)
    with pytest.raises(ConfigError, match="cluster name"):
        ShardBus(name)
    assert bus.types == {}


def test_a_cluster_has_a_name() -> None:
    with pytest.raises(ConfigError, match="a cluster name must have 1 to 256 bytes"):
        ShardBus("")


def test_two_types_of_one_name_are_refused(bus: ShardBus) -> None:
    bus.entity("counter")(Counter)
    with pytest.raises(ConfigError, match="two entity types called 'counter'"):
        bus.entity("counter")(type("Again", (Counter,), {}))


def test_a_class_that_is_no_entity_is_refused(bus: ShardBus) -> None:
    with pytest.raises(ConfigError, match="Opaque must be a subclass"):
        bus.entity()(Opaque)


def test_a_message_that_is_none_is_refused(bus: ShardBus) -> None:
    with pytest.raises(ConfigError, match="Opaque is not a dataclass"):
        bus.message(Opaque)

    @dataclass
    class Holds:
        inner: Opaque

    Holds.__annotations__["inner"] = Opaque
    with pytest.raises(ConfigError, match=r"message Holds\.inner cannot"):
        bus.message(Holds)


def test_a_rejection_is_checked_and_no_message(bus: ShardBus) -> None:
    @bus.message
    @dataclass
    class Left(Rejection):
        since: float

    @bus.entity("page")
    class Page(Entity):
        async def receive(self, message: object) -> None: ...

    assert ":Left" not in bus.types["page"].interface.messages
    with pytest.raises(ConfigError, match="Spoken is not a dataclass"):

        @bus.message
        class Spoken(Rejection): ...


@dataclass
class Gone(Exception):
    since: float


@dataclass
class Holder:
    inner: list[Gone]


@pytest.mark.parametrize("where", ["parameter", "result", "field"])
def test_an_exception_is_no_message(bus: ShardBus, where: str) -> None:
    """Its decoded form would have no arguments, and printing it would end the process."""

    def takes(self: Any, gone: Any) -> Any: ...

    expected = {"parameter": {"gone": Gone}, "result": {"return": Gone}, "field": {"gone": Holder}}
    takes.__annotations__ = expected[where]
    with pytest.raises(ConfigError, match="Gone is an exception; raise it"):
        bus.entity("page")(type("Page", (Entity,), {"takes": handler(takes)}))


def test_S2_8_a_region_is_looked_up_before_there_is_a_node(bus: ShardBus) -> None:
    bus.entity("counter", extract_entity_id=by_message)(Counter)
    region = bus.region(Counter)
    with pytest.raises(LocalProtocolError, match="no node of 'shop' runs in this process"):
        region.tell(Hit("p"))


def test_a_ref_needs_a_node_in_this_process(bus: ShardBus) -> None:
    with pytest.raises(LocalProtocolError, match="no node of 'shop' runs in this process"):
        bus.ref(Counter, "p")
