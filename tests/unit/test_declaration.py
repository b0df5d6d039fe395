"""The declaration of an entity type: handlers, messages, state, settings, and refusals."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import attrs
import pytest

from shardbus import Directive, Entity, EventSourced, Instances, ShardBus, event, handler
from shardbus.data import Counter as Count
from shardbus.errors import ConfigError, EntityFailed
from shardbus.routing.refs import START
from shardbus.testing import EntityProbe
from tests.unit.declaring import Anything, Counter, Hit, Ledger, NoDefault, Opaque, declared


@pytest.fixture
def bus() -> ShardBus:
    return ShardBus("shop")


def test_a_type_is_called_like_its_class_unless_it_says_otherwise(bus: ShardBus) -> None:
    assert declared(bus, type("Counter", (Counter,), {})).name == "counter"
    bus.entity(name="page views")(type("Other", (Counter,), {}))
    assert list(bus.types) == ["counter", "page views"]


@pytest.mark.parametrize("name", ["tell", "ask", "entity_id", "within", "tell_nowait", "_hidden"])
def test_a_handler_cannot_have_the_name_of_something_else(bus: ShardBus, name: str) -> None:
    def function(self: Any) -> None: ...

    cls = type("Bad", (Entity,), {name: handler(function)})
    with pytest.raises(ConfigError, match=f"Bad: a handler cannot be called '{name}'"):
        bus.entity()(cls)


def test_the_decorator_needs_no_parentheses(bus: ShardBus) -> None:
    @bus.entity
    class Bare(Counter): ...

    assert bus.types["bare"].cls is Bare


@pytest.mark.parametrize("parentheses", [False, True])
def test_the_decorator_stands_over_a_class_of_entities(bus: ShardBus, parentheses: bool) -> None:
    def function() -> None: ...

    class NoEntity: ...

    decorate: Any = bus.entity() if parentheses else bus.entity
    with pytest.raises(ConfigError, match=r"over function, which is no class; write it over class"):
        decorate(function)
    with pytest.raises(ConfigError, match=r"NoEntity must be a subclass of .*NoEntity\(Entity\)"):
        decorate(NoEntity)
    assert bus.types == {}


@pytest.mark.parametrize("freeze", [dataclass(frozen=True), attrs.frozen])
def test_a_frozen_class_is_refused(bus: ShardBus, freeze: Any) -> None:
    class Order(Entity): ...

    frozen, entity = freeze(Order), bus.entity("order")
    with pytest.raises(ConfigError, match=r"Order is frozen: .* declare the class of its state"):
        entity(frozen)


@pytest.mark.parametrize(
    ("wrong", "right"), [("remeber", "remember"), ("mesages", "messages"), ("nam", "name")]
)
def test_an_unknown_argument_gets_a_suggestion(bus: ShardBus, wrong: str, right: str) -> None:
    options: dict[str, Any] = {wrong: True}
    with pytest.raises(ConfigError, match=f"unknown argument '{wrong}'.*did you mean {right}"):
        declared(bus, Counter, "counter", **options)


def test_settings_are_declared_by_their_names(bus: ShardBus) -> None:
    kind = declared(bus, Counter, shards=7, remember=True, passivate_after=5, mailbox=3)
    assert (kind.interface.shards, kind.interface.layout) == (7, "crc32/7")
    assert kind.declared == {"shards": 7, "remember": True, "passivate_after": 5, "mailbox": 3}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"shard": 3}, "did you mean shards"),
        ({"shards": 0}, "shards"),
        ({"shards": "many"}, "shards"),
        ({"entity_recovery_strategy": "never"}, "entity_recovery_strategy"),
    ],
)
def test_wrong_settings_are_refused(bus: ShardBus, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        bus.entity("counter", **options)(Counter)
    assert bus.types == {}


def test_handlers_are_inherited_and_replaced(bus: ShardBus) -> None:
    class Doubling(Counter):
        @handler
        def add(self, amount: int = 1) -> int:
            return 2 * amount

        @handler
        async def reset(self) -> None: ...

        @handler(thread=True)
        def blocking(self) -> None: ...

    kind = declared(bus, Doubling)
    assert set(kind.invokers) == {"add", "reset", "blocking", START}
    assert {name: i.is_async for name, i in kind.invokers.items() if name != START} == {
        "add": False,
        "reset": True,
        "blocking": True,
    }
    assert kind.invokers["add"].function(Doubling(), 2) == 4


@pytest.mark.parametrize(
    ("annotation", "path"), [("Opaque", "handler put: thing"), ("list[Opaque]", r"thing\[\.\.\.\]")]
)
def test_an_argument_that_cannot_travel_is_refused(
    bus: ShardBus, annotation: str, path: str
) -> None:
    def put(self: Any, thing: object) -> None: ...

    put.__annotations__["thing"] = annotation
    with pytest.raises(ConfigError, match=path):
        bus.entity()(type("Bad", (Entity,), {"put": handler(put)}))


def test_messages_come_from_the_annotation_the_declaration_and_the_bus(bus: ShardBus) -> None:
    @bus.message
    @dataclass
    class Registered:
        x: int

    class Listens(Entity):
        async def receive(self, message: Hit | str) -> None: ...

    kind = declared(bus, Listens, messages=[Ledger])
    assert set(kind.invokers) == {"", ":Hit", ":Ledger", ":Registered", START}
    assert set(declared(ShardBus("other"), Counter).invokers) == {"add", START}


class WithState(Anything):
    state: Ledger


class Broken(Entity):
    state: NoDefault


class Unfit(Entity):
    state: Opaque


def test_state_is_a_message_with_defaults(bus: ShardBus) -> None:
    kind = declared(bus, WithState)
    assert kind.states is not None
    assert kind.states.cls is Ledger
    assert not kind.plain
    assert declared(ShardBus("other"), Counter).plain
    with pytest.raises(ConfigError, match=r"Broken\.state: every field needs a default"):
        bus.entity()(Broken)
    with pytest.raises(ConfigError, match=r"Unfit\.state cannot be a message type"):
        bus.entity()(Unfit)


def test_a_class_with_hooks_is_known_to_have_them(bus: ShardBus) -> None:
    class Hooked(Counter):
        async def on_start(self) -> None: ...

        async def on_stop(self, reason: object) -> None: ...

    kind = declared(bus, Hooked)
    assert (kind.starts, kind.stops, kind.plain) == (True, True, False)
    other = declared(ShardBus("other"), Counter)
    assert (other.starts, other.stops, other.plain) == (False, False, True)


@pytest.mark.parametrize(
    ("given", "error", "expected"),
    [
        (None, ValueError(), Directive.RESTART),
        ({ValueError: "resume"}, ValueError(), Directive.RESUME),
        ({ValueError: "resume"}, KeyError(), Directive.RESTART),
        ({LookupError: Directive.STOP}, KeyError(), Directive.STOP),
        ({Exception: "stop", ValueError: "resume"}, UnicodeError(), Directive.RESUME),
        (lambda e: Directive.STOP, ValueError(), Directive.STOP),
    ],
)
def test_supervision(bus: ShardBus, given: Any, error: Exception, expected: Directive) -> None:
    assert declared(bus, Counter, supervision=given).supervision(error) is expected


def plain(bus: ShardBus, **said: Any) -> None:
    @bus.entity(**said)
    class Plain(Entity):
        async def receive(self, message: object) -> None: ...


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"supervision": {"ValueError": "stop"}}, "'ValueError' is no class of exceptions"),
        ({"supervision": {int: "stop"}}, "is no class of exceptions"),
        ({"supervision": "stop"}, "'stop' is no mapping and no function"),
        ({"supervision": ["stop"]}, "no mapping and no function"),
        ({"name": 5}, "an entity type must be a str, not int"),
        ({"messages": ["Note"]}, "messages has 'Note', which is no class"),
        ({"extract_entity_id": 3}, "extract_entity_id is 3, which cannot be called"),
        ({"extract_shard_id": 3}, "extract_shard_id is 3, which cannot be called"),
        ({"extract_shard_id": lambda i, m: "1"}, "called with one argument: missing"),
        ({"extract_entity_id": lambda: "1"}, "called with one argument: too many"),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_declared(
    bus: ShardBus, said: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        plain(bus, **said)


def test_functions_that_say_nothing_of_their_arguments_are_taken(bus: ShardBus) -> None:
    plain(bus, extract_shard_id=str, extract_entity_id=getattr)


def test_an_unknown_directive_is_a_wrong_declaration(bus: ShardBus) -> None:
    with pytest.raises(ConfigError, match="ignore"):
        bus.entity("counter", supervision={ValueError: "ignore"})(Counter)


def test_instances_and_a_router_are_part_of_the_interface(bus: ShardBus) -> None:
    kind = declared(bus, Counter, instances=3)
    assert kind.interface.instances == Instances(exact=3)
    assert (kind.interface.router, kind.interface.layout) == ("nearest", "crc32/100~N")
    bus.entity("other", instances=1)(type("Other", (Counter,), {}))
    assert bus.types["other"].interface.instances is None


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"instances": 0}, "'counter': instances is 0, not 1 to 1000"),
        ({"instances": 3, "router": "neerest"}, "'counter': there is no router 'neerest'"),
        ({"router": "all"}, "'counter': router needs instances"),
        ({"instances": 3, "remember": True}, "'counter': remember with instances"),
    ],
)
def test_wrong_instances_are_refused_in_one_line(
    bus: ShardBus, given: dict[str, Any], error: str
) -> None:
    with pytest.raises(ConfigError, match=error) as caught:
        declared(bus, type("Counter", (Counter,), {}), **given)
    assert "\n" not in str(caught.value)


class Kept(Anything):
    state: Ledger


class Merged(Kept):
    @staticmethod
    def merge(first: Ledger, other: Ledger) -> Ledger:
        return first


class Counted(Anything):
    state: Count


def test_state_with_instances_needs_a_function_that_merges(bus: ShardBus) -> None:
    with pytest.raises(ConfigError, match="each instance would overwrite the others"):
        declared(bus, Kept, instances=3)
    assert declared(bus, Kept, instances=Instances(most=1)).states is not None
    bus.entity("merged", instances=3, state_version=2)(Merged)
    kind = bus.types["merged"]
    assert (kind.states, kind.has_state, kind.plain) == (None, True, False)
    assert kind.merged is not None
    assert kind.merged.codec is not None
    bus.migrate(Merged, 1)(lambda former: former)
    assert list(kind.merged.codec.migrations) == [1]


def test_state_of_a_kind_of_values_needs_instances(bus: ShardBus) -> None:
    with pytest.raises(ConfigError, match="replicated counter, and the type has no instances"):
        declared(bus, Counted)
    with pytest.raises(ConfigError, match="which has no state_version"):
        declared(bus, Counted, instances=3, state_version=2)
    kind = declared(bus, Counted, instances=3)
    assert (kind.states, kind.has_state) == (None, True)
    assert kind.merged is not None
    with pytest.raises(ConfigError, match="has no state"):
        bus.migrate(Counted, 1)


async def late(first: Ledger, other: Ledger) -> Ledger:
    return first


@pytest.mark.parametrize(
    ("merge", "options", "error"),
    [
        (lambda self, first, other: first, {}, "'counter': merge is called with two states"),
        (late, {}, "'counter': merge is async"),
        (max, {"state_ttl": "1h"}, "'counter': state_ttl is not for states that instances share"),
        (max, {"handoff": "ordered"}, "'counter': handoff ordered with instances"),
        (max, {"durable_mailbox": True}, "'counter': durable_mailbox with instances"),
    ],
)
def test_states_that_cannot_be_shared_are_refused_in_one_line(
    bus: ShardBus, merge: Any, options: dict[str, Any], error: str
) -> None:
    kind = type("Counter", (Kept,), {"merge": staticmethod(merge)})
    with pytest.raises(ConfigError, match=error) as caught:
        declared(bus, kind, instances=3, **options)
    assert "\n" not in str(caught.value)


def test_an_event_sourced_class_has_no_instances(bus: ShardBus) -> None:
    class Account(EventSourced):
        state: Ledger

        @event
        def on_hit(self, happened: Hit) -> None: ...

        @staticmethod
        def merge(first: Ledger, other: Ledger) -> Ledger:
            return first

        @handler
        def total(self) -> int:
            return self.state.total

    with pytest.raises(ConfigError, match="an event-sourced class cannot have instances"):
        declared(bus, Account, instances=3)


def test_a_save_of_an_entity_without_a_state_says_so() -> None:
    bus = ShardBus("shop")

    @bus.entity
    class Plain(Entity):
        @handler
        async def keep(self) -> None:
            await self.save()

    with (
        EntityProbe(Plain, "a") as probe,
        pytest.raises(EntityFailed, match="Plain declares no state, so there is nothing to save"),
    ):
        probe.run(probe.ref.keep())
