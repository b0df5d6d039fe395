"""Declaring entities: what is refused, what types are called, and what type checkers know."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shardbus import Directive, Entity, ShardBus, handler
from shardbus.errors import ConfigError, LocalProtocolError
from shardbus.ids import NodeId
from shardbus.runtime.entity_type import EntityType
from shardbus.runtime.observers import Observers
from shardbus.transport.refs import START

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
    with pytest.raises(ConfigError, match="Opaque is no dataclass"):
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


def test_an_unknown_directive_is_a_wrong_declaration(bus: ShardBus) -> None:
    with pytest.raises(ConfigError, match="ignore"):
        bus.entity("counter", supervision={ValueError: "ignore"})(Counter)


# Shards and regions


def by_length(entity_id: str) -> str:
    return str(len(entity_id))


def test_a_shard_function_is_named_in_the_layout(bus: ShardBus) -> None:
    kind = declared(bus, Counter, shards=9, extract_shard_id=by_length)
    assert kind.interface.shard_of is by_length
    assert kind.interface.layout == f"{__name__}.by_length/9"


class FakeRef:
    def __init__(self) -> None:
        self.sent: list[object] = []

    def tell(self, message: object) -> None:
        self.sent.append(message)

    async def ask(self, message: object) -> object:
        self.sent.append(message)
        return "answer"


class FakeNode:
    """A node with nothing but references."""

    def __init__(self, refs: dict[tuple[Any, str], FakeRef]) -> None:
        self.me = NodeId("n", 1, 1)
        self.observers = Observers(self.me)
        self._refs = refs

    def ref(self, kind: Any, entity_id: str) -> FakeRef:
        return self._refs.setdefault((kind, entity_id), FakeRef())

    def write_meta(self, name: str, data: bytes) -> None:
        raise NotImplementedError


def test_a_region_finds_the_entity_by_the_message(bus: ShardBus) -> None:
    bus.entity("counter", extract_entity_id=lambda hit: hit.page)(Counter)
    refs: dict[tuple[Any, str], FakeRef] = {}
    bus.attach(FakeNode(refs))
    bus.region("counter").tell(Hit("p1"))
    assert asyncio.run(bus.region("counter").ask(Hit("p2"))) == "answer"
    assert {key[1]: ref.sent for key, ref in refs.items()} == {"p1": [Hit("p1")], "p2": [Hit("p2")]}
    assert {key[0] for key in refs} == {Counter}


def test_a_region_needs_a_type_and_its_extractor(bus: ShardBus) -> None:
    with pytest.raises(ConfigError, match="no entity type 'counter'"):
        bus.region("counter")
    bus.entity("counter")(Counter)
    with pytest.raises(ConfigError, match="has no extract_entity_id"):
        bus.region("counter").tell(Hit("p"))


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
