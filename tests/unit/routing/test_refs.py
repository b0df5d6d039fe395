"""References as values: equality, copies, and refused pickling."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
from dataclasses import asdict, dataclass
from typing import Any

import pytest

from shardbus import ConfigError, Entity, SchemaError, ShardBus, handler
from shardbus.client.thread_bridge import ThreadBridge, ThreadSender
from shardbus.config.settings import ShardingSettings
from shardbus.routing.instance_policies import Choice
from shardbus.routing.instance_sender import SENDERS_MAX, InstanceSender, sender_of
from shardbus.routing.refs import Call, LoopCall, PickedCall, Ref, ThreadRef, TracedCall, check_key
from shardbus.routing.region import Region
from shardbus.routing.router import LoopSender, Router
from shardbus.sharding.region.region import ShardRegion
from shardbus.transport.asks import CoarseClock
from shardbus.wire.schema import Interface

bus = ShardBus("shop")


@bus.entity("counter", shards=4)
class Counter(Entity):
    @handler
    def add(self, amount: int = 1) -> int:
        return amount

    @handler
    def copy(self) -> None: ...


@bus.entity("quote", shards=4, instances=3)
class Quote(Entity):
    @handler
    def add(self, amount: int = 1) -> int:
        return amount

    @handler
    def copy(self) -> None: ...


def sender_to(kind: Any) -> LoopSender:
    """Senders to a type; each is another sender."""
    interface: Interface = kind.__shardbus_interface__
    region = ShardRegion(interface.name, None, interface.layout, ShardingSettings())
    loop, owner = asyncio.get_running_loop(), object()
    router = Router(interface, region, owner, loop, CoarseClock())  # type: ignore[arg-type]
    return sender_of(router)


class Maker:
    """Makes references of one client."""

    def __init__(self, form: str) -> None:
        self.form = form
        self.sender = sender_to(Quote if form == "instances" else Counter)
        self.other = sender_to(Quote if form == "instances" else Counter)
        self.bridge = ThreadBridge(asyncio.get_running_loop(), 5.0)

    def __call__(self, entity_id: str, sender: LoopSender | None = None, timeout: int = 1) -> Any:
        sender = sender or self.sender
        if self.form == "blocking":
            return ThreadRef(ThreadSender(self.bridge, sender), entity_id, timeout)
        return Ref(sender, entity_id, timeout)


@pytest.fixture(params=["plain", "instances", "blocking"])
async def make(request: pytest.FixtureRequest) -> Maker:
    return Maker(request.param)


async def test_references_to_one_entity_by_one_sender_are_equal(make: Maker) -> None:
    ref, same = make("a"), make("a", timeout=9)
    assert ref == same == ref.within(3)
    assert hash(ref) == hash(same)
    assert ref != make("b")
    assert ref != make("a", make.other)
    assert ref != "a"
    assert {ref: 1}[same] == 1
    assert len({ref, same, make("b")}) == 2
    assert [make("b"), ref].index(same) == 1


async def test_handlers_of_equal_references_are_equal(make: Maker) -> None:
    ref, same = make("a"), make("a")
    assert ref.add == same.add
    assert len({ref.add, same.add, ref.copy, make("b").add}) == 3
    assert ref.add != make("a", make.other).add


async def test_a_copy_of_a_reference_is_that_reference(make: Maker) -> None:
    @dataclass
    class Order:
        of: Any
        handler: Any

    ref = make("a")
    for copied in (copy.copy(ref), copy.deepcopy(ref), copy.deepcopy([ref])[0]):
        assert copied == ref
        assert copied.add == ref.add
    assert copy.deepcopy(ref.add) == copy.copy(ref.add) == ref.add
    assert asdict(Order(ref, ref.add)) == {"of": ref, "handler": ref.add}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
async def test_pickle_refuses_references_and_says_why(make: Maker, protocol: int) -> None:
    ref = make("a")
    for value in (ref, ref.add, {"ref": ref}):
        with pytest.raises(TypeError, match="belongs to its client or node"):
            pickle.dumps(value, protocol)


async def test_a_reference_cannot_be_sent_and_the_error_names_it(make: Maker) -> None:
    ref = make("a")
    for value in (ref, ref.add, [ref.copy]):
        with pytest.raises(SchemaError, match=r"a ((Thread)?Ref|(Loop|Picked)?Call) cannot travel"):
            ref.add.tell(value)


async def test_a_reference_shows_type_and_id(make: Maker) -> None:
    kind = "quote" if make.form == "instances" else "counter"
    assert repr(make("a")) == f"<ref {kind} 'a'>"
    assert repr(make("a").add) == f"<ref {kind} 'a' add>"


async def test_a_handler_named_like_a_method_of_other_objects_is_a_handler(make: Maker) -> None:
    ref = make("a")
    assert "copy" in repr(ref.copy)
    assert copy.copy(ref) == ref


async def test_a_reference_has_no_other_private_attributes(make: Maker) -> None:
    """Also one that is not complete, as tools make it: that must not recurse."""
    ref = make("a")
    for value in (ref, type(ref).__new__(type(ref))):
        for name in ("_no", "__setstate__", "__fspath__"):
            assert not hasattr(value, name)
    with pytest.raises(AttributeError, match="has no handler 'no'"):
        _ = ref.no


async def test_a_reference_lists_its_handlers(make: Maker) -> None:
    ref = make("a")
    assert dir(ref) == ["add", "copy", "to"]
    _ = ref.add
    assert dir(ref) == ["add", "copy", "to"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ad", "did you mean add?"),
        ("save", "a reference has handlers only: use self.save within one"),
        ("quickly", "it has add, copy"),
    ],
)
async def test_an_attribute_that_is_no_handler_gets_a_hint(
    make: Maker, name: str, hint: str
) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(make("a"), name)
    assert str(caught.value).endswith(f"has no handler {name!r}; {hint}")


async def test_references_by_one_choice_are_equal_however_many_there_are() -> None:
    ref: Any = Maker("instances")("a")
    assert ref.to("all") == ref.to("all")
    assert ref.to("all") != ref.to("nearest")
    assert ref == ref.to("nearest")  # as declared
    assert ref.to("hash", key=1) == ref.to("hash", key="1")
    assert ref.to("hash", key=1) != ref.to("hash", key=2)
    for number in range(SENDERS_MAX):
        ref.to("hash", key=number + 10)
    assert isinstance(ref._sender, InstanceSender)
    late = Choice("hash", "late")
    assert ref._sender.by(late) is not ref._sender.by(late)
    assert ref.to("hash", key="late") == ref.to("hash", key="late")


@pytest.mark.parametrize("name", ["__eq__", "__call__", "__getattr__", "_router", "within", "tell"])
def test_a_handler_cannot_hide_what_a_reference_has(name: str) -> None:
    body = {name: handler(lambda self: None), "__annotations__": {}}
    with pytest.raises(ConfigError, match=f"a handler cannot be called '{name}'"):
        ShardBus("other").entity("odd")(type("Odd", (Entity,), body))


@pytest.mark.parametrize("key", ["", "k" * 201, "a\ud800", 7, None, b"a"])
def test_a_key_of_an_ask_that_cannot_be_sent_is_refused(key: Any) -> None:
    with pytest.raises(ConfigError, match="a key"):
        check_key(key)


def test_a_key_of_a_class_of_texts_is_a_plain_one() -> None:
    key = check_key(type("Key", (str,), {})("order-é"))
    assert (type(key), key) == (str, "order-é")


@bus.entity("door", shards=4)
class Door(Entity):
    """Has parameters with the names of arguments of a call."""

    @handler
    def lock(self, key: str = "", within: float = 0.0) -> str:
        return key


async def test_an_argument_that_may_be_meant_for_the_handler_is_refused() -> None:
    lock = Ref(sender_to(Door), "front", 1000).lock
    with pytest.raises(TypeError, match="lock has a parameter key, too"):
        lock.ask(key="a")
    with pytest.raises(TypeError, match="lock has a parameter within, too"):
        lock.deliver("a", within=3)
    with pytest.raises(TypeError, match="lock has a parameter within, too"):
        lock.deliver_nowait("a", within="3s")
    with pytest.raises(AttributeError, match="deliverer"):  # it would be sent
        lock.ask("a", key="k")


def taken_for_a_coroutine_function(function: Any) -> bool:
    marks = inspect if hasattr(inspect, "markcoroutinefunction") else asyncio  # Python 3.11
    return bool(marks.iscoroutinefunction(function))


@pytest.mark.parametrize("verb", ["__call__", "tell", "deliver", "deliver_nowait", "ask"])
async def test_libraries_call_the_verbs_of_the_loop_in_the_loop(make: Maker, verb: str) -> None:
    """A web framework or a scheduler runs a function that it takes for a plain one in a thread,
    where only a blocking reference may be used."""
    ref, in_loop = make("a"), make.form != "blocking"
    for add in (ref.add, ref.within(3).add):
        assert taken_for_a_coroutine_function(add) == in_loop
        assert taken_for_a_coroutine_function(getattr(add, verb)) == in_loop
        assert not taken_for_a_coroutine_function(add.tell_nowait)


@pytest.mark.parametrize("kind", [LoopCall, PickedCall, TracedCall])
@pytest.mark.parametrize("verb", ["__call__", "tell", "deliver", "deliver_nowait", "ask"])
def test_each_kind_of_call_in_the_loop_is_marked(kind: type[Call], verb: str) -> None:
    assert taken_for_a_coroutine_function(getattr(kind, verb))
    assert not taken_for_a_coroutine_function(getattr(Call, verb))


@pytest.mark.parametrize("verb", ["tell", "ask"])
def test_libraries_call_the_verbs_of_a_region_in_the_loop(verb: str) -> None:
    assert taken_for_a_coroutine_function(getattr(Region, verb))
