"""Declaring entities: what is refused, what types are called, and what type checkers know."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from shardbus import Directive, Entity, Envelope, Region, ShardBus, StartEntity, handler
from shardbus.entities.entity_type import EntityType
from shardbus.errors import ConfigError, LocalProtocolError, Unhandled
from shardbus.ids import NodeId
from shardbus.node.subscriptions import Subscriptions
from shardbus.routing.refs import START

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Hit:
    page: str
    count: int = 1


@dataclass
class Ledger:
    total: int = 0


@dataclass
class NoDefault:
    total: int


class Opaque:
    pass


@pytest.fixture
def bus() -> ShardBus:
    return ShardBus("shop")


def declared(bus: ShardBus, cls: type, *args: Any, **options: Any) -> EntityType:
    bus.entity(*args, **options)(cls)
    return next(iter(bus.types.values()))


class Counter(Entity):
    @handler
    def add(self, amount: int = 1) -> int:
        return amount


# Names


def test_a_type_is_called_like_its_class_unless_it_says_otherwise(bus: ShardBus) -> None:
    assert declared(bus, type("Counter", (Counter,), {})).name == "counter"
    bus.entity(name="page views")(type("Other", (Counter,), {}))
    assert list(bus.types) == ["counter", "page views"]


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


@pytest.mark.parametrize("name", ["tell", "ask", "entity_id", "within", "tell_nowait", "_hidden"])
def test_a_handler_cannot_have_the_name_of_something_else(bus: ShardBus, name: str) -> None:
    def function(self: Any) -> None: ...

    cls = type("Bad", (Entity,), {name: handler(function)})
    with pytest.raises(ConfigError, match=f"Bad: a handler cannot be called '{name}'"):
        bus.entity()(cls)


def test_a_class_that_is_no_entity_is_refused(bus: ShardBus) -> None:
    with pytest.raises(ConfigError, match="Opaque must be a subclass"):
        bus.entity()(Opaque)


# Settings


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


# Handlers, messages, state


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


def test_a_handler_is_a_plain_method_inside_its_entity() -> None:
    class Adds(Counter):
        def twice(self) -> object:
            return self.add(2)

    assert Adds().twice() == 2


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


def test_a_message_that_is_none_is_refused(bus: ShardBus) -> None:
    with pytest.raises(ConfigError, match="Opaque is not a dataclass"):
        bus.message(Opaque)

    @dataclass
    class Holds:
        inner: Opaque

    Holds.__annotations__["inner"] = Opaque
    with pytest.raises(ConfigError, match=r"message Holds\.inner cannot"):
        bus.message(Holds)


class WithState(Entity):
    state: Ledger


class Broken(Entity):
    state: NoDefault


class Unfit(Entity):
    state: Opaque


def test_state_is_a_message_with_defaults(bus: ShardBus) -> None:
    kind = declared(bus, WithState)
    assert kind.state_class is Ledger
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
    ("given", "error", "wanted"),
    [
        (None, ValueError(), Directive.RESTART),
        ({ValueError: "resume"}, ValueError(), Directive.RESUME),
        ({ValueError: "resume"}, KeyError(), Directive.RESTART),
        ({LookupError: Directive.STOP}, KeyError(), Directive.STOP),
        ({Exception: "stop", ValueError: "resume"}, UnicodeError(), Directive.RESUME),
        (lambda e: Directive.STOP, ValueError(), Directive.STOP),
    ],
)
def test_supervision(bus: ShardBus, given: Any, error: Exception, wanted: Directive) -> None:
    assert declared(bus, Counter, supervision=given).supervision(error) is wanted


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


# Shards and regions


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
class Page(Entity): ...
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


class Sent:
    """Stands for a router, and for the node's part of the type that owns it."""

    def __init__(self) -> None:
        self.router: Any = self
        self.messages: list[tuple[str, object]] = []
        self.drops: list[tuple[str, int]] = []

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

    def dropped(self, reason: str, count: int) -> None:
        self.drops.append((reason, count))


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


@dataclass
class Letter:
    to: int
    text: str


def by_message(message: object) -> str | tuple[str, object] | None:
    """Both ways to name an entity; anything else is not known."""
    match message:
        case Hit(page=page):
            return page
        case Letter(to=to, text=text):
            return str(to), text
    return None


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
    assert sent.drops == [("unhandled", 1)]
    assert sent.messages == []


@pytest.mark.parametrize("given", [7, ("a", 1, 2), (7, "message"), ""])
def test_what_an_extractor_gives_must_be_an_id(bus: ShardBus, given: object) -> None:
    region, sent = region_of(bus, lambda message: given)
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


def test_S2_8_a_region_is_looked_up_before_there_is_a_node(bus: ShardBus) -> None:
    bus.entity("counter", extract_entity_id=by_message)(Counter)
    region = bus.region(Counter)
    with pytest.raises(LocalProtocolError, match="no node of 'shop' runs in this process"):
        region.tell(Hit("p"))


def test_a_ref_needs_a_node_in_this_process(bus: ShardBus) -> None:
    with pytest.raises(LocalProtocolError, match="no node of 'shop' runs in this process"):
        bus.ref(Counter, "p")


# Type checkers

TYPED = """
from shardbus import AsyncClient, Client, Entity, ShardBus, handler

bus = ShardBus("shop")


@bus.entity(name="counter")
class Counter(Entity):
    def __init__(self) -> None:
        self.value = 0

    @handler
    def add(self, amount: int = 1) -> int:
        self.value += amount
        return self.value

    @handler
    async def name(self) -> str:
        return "x"

    @handler(thread=True)
    def blocking(self, text: str) -> bytes:
        return text.encode()

    async def inside(self) -> int:
        other = self.context.ref(Counter, "other")
        return await other.add(1)


async def use(client: AsyncClient) -> None:
    ref = client.ref(Counter, "page-7")
    total: int = await ref.add(2)
    name: str = await ref.name()
    raw: bytes = await ref.blocking("x")
    await ref.add.tell(1)
    ref.add.tell_nowait(1)
    own: int = await bus.ref(Counter, "x").add()
"""


def mypy(path: Path, extra: str) -> tuple[int, str]:
    file = path / "typed.py"
    file.write_text(TYPED + extra)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file="]
    command += ["--cache-dir", str(ROOT / ".mypy_cache" / "tests"), str(file)]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_type_checkers_know_handlers(tmp_path: Path) -> None:
    code, said = mypy(tmp_path, "")
    assert (code, said) == (0, "")


def test_type_checkers_refuse_what_does_not_fit(tmp_path: Path) -> None:
    code, said = mypy(
        tmp_path,
        """
async def misuse(client: AsyncClient) -> None:
    ref = client.ref(Counter, "page-7")
    await ref.add("x")
    total: str = await ref.add(2)
    await ref.missing()
    await ref.add.tell("x")
""",
    )
    assert code == 1
    lines = [line for line in said.splitlines() if "error:" in line]
    kinds = [line.rpartition("[")[2] for line in lines]
    assert kinds == ["arg-type]", "assignment]", "attr-defined]", "arg-type]"], said
