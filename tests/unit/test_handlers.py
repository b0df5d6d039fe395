"""Handlers that cannot work are refused, with the class, the method, and the code to write."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import contextvars
import datetime
import functools
import inspect
import types
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import attrs
import pytest

from shardbus import Entity, EntityFailed, SchemaError, ShardBus, StopReason, behaviour, handler
from shardbus.entities.entity_type import EntityType
from shardbus.errors import ConfigError
from shardbus.testing import EntityProbe
from tests.unit.declaring import Ledger

S = TypeVar("S")
T = TypeVar("T")


def declare(cls: type, **options: Any) -> EntityType:
    bus = ShardBus("shop")
    bus.entity("counter", **options)(cls)
    return bus.types["counter"]


def refusal(cls: type, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        declare(cls, **options)
    assert caught.value.hint, "the hint says what to write"
    return f"{caught.value.message} | {caught.value.hint}"


class Named(Entity):
    limit = 3

    @handler
    def add(self) -> None: ...

    def total(self) -> None: ...

    @behaviour
    def closed(self, message: object) -> None: ...

    def receive(self, message: object) -> None: ...


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("total", "Named.total has no @handler: write it over def total"),
        ("limit", "Named.limit is no method: write a handler that returns it"),
        ("save", "a reference has handlers only: use self.save within one"),
        ("context", "a reference has handlers only: use self.context within one"),
        ("receive", "messages reach Named.receive by ref.ask(message) and ref.tell(message)"),
        ("closed", "messages reach Named.closed by ref.ask(message) and ref.tell(message)"),
    ],
)
def test_a_name_that_is_no_handler_has_a_hint(name: str, hint: str) -> None:
    hints = declare(Named).interface.no_handlers
    assert hints[name] == hint
    assert "add" not in hints


class WithoutHandler(Entity):
    state: Ledger

    def total(self) -> int:
        return self.state.total


@pytest.mark.parametrize(
    ("cls", "method"),
    [(WithoutHandler, "def total(self, ...)"), (type("Empty", (Entity,), {}), "a method")],
)
def test_a_class_that_no_message_reaches_is_refused(cls: type, method: str) -> None:
    assert refusal(cls) == (
        f"{cls.__name__} has no handler and no receive, so no message reaches it"
        f" | write @handler over {method}, or def receive(self, message)"
    )


def test_a_class_that_works_once_it_starts_needs_no_handler() -> None:
    class Worker(Entity):
        async def on_start(self) -> None: ...

    assert declare(Worker).starts


def test_what_is_not_there_yet_or_cannot_be_made_says_what_to_write() -> None:
    class Arguments(Entity):
        def __init__(self, size: int) -> None: ...

        @handler
        def add(self) -> None: ...

    class Stream(Entity):
        @handler
        async def ticks(self) -> AsyncIterator[int]:
            yield 1

    assert "self.context.entity_id" in refusal(Arguments)
    assert "returns one value, such as a list" in refusal(Stream)


def passing(function: Callable[..., Any]) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return wrapper


def bare(function: Any) -> Any:
    def wrapper(self: Any) -> Any:
        return function(self)

    return wrapper


class Called:
    """A decorator that is an object without `__name__` and without `__get__`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, entity: Any, amount: int = 1) -> Any:
        return self.function(entity, amount)


class AsyncCalled(Called):
    async def __call__(self, entity: Any, amount: int = 1) -> Any:
        return self.function(entity, amount)


class Base(Entity):
    @handler
    def act(self, amount: int = 1) -> str:
        return f"base {amount}"


# ---- hidden and replaced


def test_a_decorator_over_handler_is_refused_whatever_it_is() -> None:
    def static() -> type:
        class Hidden(Entity):
            @staticmethod
            @handler
            def act(self: Any) -> None: ...

        return Hidden

    def cached() -> type:
        class Hidden(Entity):
            @functools.cached_property
            @handler
            def act(self) -> None: ...

        return Hidden

    def wrapped() -> type:
        class Hidden(Entity):
            @passing
            @handler
            async def act(self) -> None: ...

        return Hidden

    def unwrapped() -> type:
        class Hidden(Entity):
            @bare
            @handler
            def act(self) -> None: ...

        return Hidden

    def an_object() -> type:
        class Hidden(Entity):
            @Called
            @handler(thread=True)
            def act(self) -> None: ...

        return Hidden

    refusals = {make.__name__: refusal(make()) for make in (static, cached, wrapped, unwrapped)}
    refusals["an_object"] = refusal(an_object())
    for text in refusals.values():
        assert text.startswith("Hidden.act: @")
        assert "stands over @handler and hides it" in text
    assert "@passing stands" in refusals["wrapped"]
    assert "over @passing" in refusals["wrapped"]
    assert "@bare stands" in refusals["unwrapped"]
    assert "write @handler over def act(self, ...)" in refusals["static"]


def test_a_handler_hidden_in_a_base_is_refused_unless_it_is_written_anew() -> None:
    class Hides(Entity):
        @passing
        @handler
        def act(self) -> None: ...

    class Inherits(Hides):
        pass

    class Mends(Hides):
        @handler
        def act(self) -> None: ...

    assert "Hides.act: @passing" in refusal(Inherits)
    assert list(declare(Mends).interface.methods) == ["act"]


def test_two_handlers_of_one_name_are_refused() -> None:
    class Twice(Entity):
        @handler
        def act(self) -> None: ...

        @handler
        def act(self, amount: int) -> None: ...  # noqa: F811

    assert "Twice.act: two handlers of one name (lines" in refusal(Twice)


def test_a_later_def_in_place_of_a_handler_is_refused() -> None:
    class Later(Entity):
        @handler
        def act(self) -> None: ...

        def act(self) -> None: ...  # noqa: F811

    assert "Later.act: a second def act (line" in refusal(Later)


def test_a_handler_that_is_no_attribute_is_refused() -> None:
    class Lost(Entity):
        table = {"act": handler(lambda self: 1)}  # noqa: RUF012

    assert "Lost.<lambda>: @handler was given a function that is no attribute" in refusal(Lost)


def test_handler_twice_is_refused() -> None:
    class Double(Entity):
        @handler
        @handler
        def act(self) -> None: ...

    assert "Double.act has @handler twice" in refusal(Double)


def test_a_decorator_of_the_application_may_contain_handler() -> None:
    def timed_handler(function: Any) -> Any:
        return handler(passing(function))

    class Timed(Entity):
        @timed_handler
        async def act(self) -> None: ...

    class Hidden(Entity):
        @passing
        @timed_handler
        async def act(self) -> None: ...

    assert list(declare(Timed).interface.methods) == ["act"]
    assert "Hidden.act: @passing stands over @handler" in refusal(Hidden)


def test_classes_made_in_other_ways_have_their_handlers() -> None:
    def act(self: Any) -> None: ...

    def made() -> type:
        return type("Made", (Entity,), {"act": handler(act)})

    class Outer:
        inner = made()  # `handler` is called while another class body runs

    assert list(declare(Outer.inner).interface.methods) == ["act"]
    assert list(declare(made()).interface.methods) == ["act"]


# ---- overridden


def override(value: object) -> type:
    return type("Sub", (Base,), {"act": value})


@pytest.mark.parametrize(
    "value",
    [
        lambda self: 1,
        passing(lambda self: 1),
        property(lambda self: 1),
        staticmethod(lambda: 1),
        classmethod(lambda cls: 1),
        functools.partialmethod(lambda self, n: n, 1),
        functools.cached_property(lambda self: 1),
    ],
)
def test_an_override_without_handler_is_refused(value: object) -> None:
    text = refusal(override(value))
    assert "Sub.act overrides the handler Base.act without @handler" in text
    assert "write @handler over def act(self, ...) in Sub, or rename it" in text


@pytest.mark.parametrize("value", [None, 7, "text", ["list"]])
def test_an_attribute_in_place_of_a_handler_is_refused(value: object) -> None:
    assert f"Sub.act = {value!r} hides the handler Base.act" in refusal(override(value))


def test_the_override_is_found_below_and_beside() -> None:
    class Middle(Base):
        def act(self, amount: int = 1) -> str:
            return "middle"

    class Leaf(Middle):
        pass

    class Mixin:
        def act(self) -> str:
            return "mixin"

    class Beside(Mixin, Base):
        pass

    class Acts(Protocol):
        def act(self, amount: int = 1) -> str: ...

    class Promises(Acts, Base):
        pass

    assert "Leaf: Middle.act overrides the handler Base.act" in refusal(Leaf)
    assert "put Base before Mixin among the bases" in refusal(Beside)
    assert "Promises: Acts.act overrides the handler Base.act" in refusal(Promises)


def test_the_order_of_bases_decides_between_handlers_as_in_python() -> None:
    class Other(Entity):
        @handler
        def act(self) -> str:
            return "other"

    class Mixin:
        @handler
        def act(self) -> str:
            return "mixin"

        def helper(self) -> str:
            return "plain"

    class Acts(Protocol):
        def act(self, amount: int = 1) -> str: ...

    both = type("Both", (Other, Base), {})
    mixed = type("Mixed", (Mixin, Base), {})
    last = type("Last", (Base, Mixin), {})
    promised = type("Promised", (Base, Acts), {})
    for cls, expected in (
        (both, "other"),
        (mixed, "mixin"),
        (last, "base 1"),
        (promised, "base 1"),
    ):
        assert declare(cls).invokers["act"].function(None, *[1][: expected == "base 1"]) == expected


def test_a_protocol_has_its_handlers_and_no_other_member() -> None:
    @runtime_checkable
    class Acts(Protocol):
        @handler
        def act(self) -> str: ...

    class Double:
        def act(self) -> str:
            return "double"

    class Real(Entity, Acts):
        @handler
        def act(self) -> str:
            return "real"

    assert isinstance(Double(), Acts)
    assert list(declare(Real).interface.methods) == ["act"]


def test_a_handler_has_any_number_of_names() -> None:
    class Aliased(Entity):
        @handler
        def add(self, amount: int = 1) -> int:
            return amount

        put = add

    assert set(declare(Aliased).interface.methods) == {"add", "put"}
    again = type("Again", (Aliased,), {"push": Aliased.add})
    assert set(declare(again).interface.methods) == {"add", "put", "push"}


# ---- attributes that are no methods


def generator(self: Any) -> Iterator[int]:
    yield 1


async def async_generator(self: Any) -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (generator, "Bad.act has a yield"),
        (async_generator, "Bad.act has a yield"),
        (contextlib.contextmanager(generator), "Bad.act is a context manager"),
        (contextlib.asynccontextmanager(async_generator), "Bad.act is a context manager"),
        (staticmethod(lambda: 1), "Bad.act is a staticmethod"),
        (classmethod(lambda cls: 1), "Bad.act is a classmethod"),
        (property(lambda self: 1), "Bad.act is a property"),
        (functools.partial(lambda n, self: n, 1), "Bad.act is a partial"),
        (functools.partialmethod(lambda self, n: n, 1), "Bad.act is a partialmethod"),
        (dict, "Bad.act is a class"),
        ("act", "Bad.act is a str"),
        (lambda: 1, "Bad.act has no parameter for the entity"),
        (lambda *, self: 1, "Bad.act has no parameter for the entity"),
        (lambda self, *rest: 1, r"Bad.act has *rest"),
        (lambda self, **rest: 1, r"Bad.act has **rest"),
        (lambda self, *, key=1: 1, "Bad.act has key=1"),
    ],
)
def test_what_cannot_be_called_with_an_entity_is_no_handler(value: Any, text: str) -> None:
    assert text in refusal(type("Bad", (Entity,), {"act": handler(value)}))


@pytest.mark.parametrize("name", ["save", "clear", "on_start", "unhandled", "context", "receive"])
def test_names_of_entities_are_no_handlers(name: str) -> None:
    cls = type("Bad", (Entity,), {name: handler(lambda self: None)})
    assert f"Bad: a handler cannot be called {name!r}: it is a name of Entity" in refusal(cls)


def test_a_behaviour_is_no_handler() -> None:
    cls = type("Bad", (Entity,), {"act": behaviour(handler(lambda self, message: None))})
    assert "Bad.act has @behaviour and @handler" in refusal(cls)


def test_an_async_handler_runs_in_no_thread() -> None:
    async def act(self: Any) -> None: ...

    cls = type("Bad", (Entity,), {"act": handler(thread=True)(act)})
    assert "handler act of Bad is async: it cannot run in a thread" in refusal(cls)


# ---- hooks, receive, and functions of the declaration


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"receive": generator}, "Bad.receive has a yield"),
        ({"receive": staticmethod(lambda message: 1)}, "Bad.receive is a staticmethod"),
        ({"receive": classmethod(lambda cls, message: 1)}, "Bad.receive is a classmethod"),
        ({"receive": lambda self: 1}, "Bad.receive cannot be called as it must be: too many"),
        ({"receive": 7}, "Bad.receive is a int"),
        ({"on_start": lambda self: 1}, "Bad.on_start is not async"),
        ({"on_start": async_generator}, "Bad.on_start has a yield"),
        ({"on_start": lambda self, more: 1}, "Bad.on_start cannot be called as it must be"),
        ({"on_stop": async_generator}, "Bad.on_stop has a yield"),
        ({"on_stop": lambda self: 1}, "Bad.on_stop cannot be called as it must be"),
        ({"__init__": lambda self, name: None}, "Bad.__init__ cannot be called as it must be"),
        ({"__init__": async_generator}, "Bad.__init__ has a yield"),
        ({"__new__": lambda cls, name: None}, "Bad.__new__ cannot be called as it must be"),
    ],
)
def test_hooks_that_cannot_be_called_are_refused(attributes: dict[str, Any], text: str) -> None:
    assert text in refusal(type("Bad", (Entity,), attributes))


def test_an_async_constructor_is_refused() -> None:
    async def init(self: Any) -> None: ...

    assert "Bad.__init__ is async" in refusal(type("Bad", (Entity,), {"__init__": init}))


def test_an_abstract_class_is_refused() -> None:
    class Abstract(Entity, abc.ABC):
        @handler
        @abc.abstractmethod
        def act(self) -> str: ...

    class Other(Entity, abc.ABC):
        @abc.abstractmethod
        @handler
        def act(self) -> str: ...

    class Whole(Abstract):
        @handler
        def act(self) -> str:
            return "done"

    for cls in (Abstract, Other):
        assert "is abstract: it has no act" in refusal(cls)
    assert list(declare(Whole).interface.methods) == ["act"]


@pytest.mark.parametrize("option", ["supervision", "extract_entity_id", "extract_shard_id"])
def test_functions_of_the_declaration_are_not_async(option: str) -> None:
    async def function(value: Any) -> Any: ...

    for function_ in (function, passing(function)):
        assert "is async: it would not be awaited" in refusal(Base, **{option: function_})


# ---- valid handlers


async def ask_act(cls: type, *args: Any) -> Any:
    async with EntityProbe(cls, "a") as probe:
        return await probe.ask("act", *args)


async def later(self: Any, amount: int = 1) -> str:
    await asyncio.sleep(0)
    return f"done {amount}"


@contextlib.contextmanager
def span() -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    "function",
    [
        later,
        span()(lambda self, amount=1: f"done {amount}"),
        span()(later),
        passing(later),
        passing(passing(later)),
        Called(later),
        AsyncCalled(lambda self, amount: f"done {amount}"),
        functools.lru_cache(lambda self, amount=1: f"done {amount}"),
        lambda self, amount=1: later(self, amount),
        lambda self, amount=1: asyncio.ensure_future(later(self, amount)),
        types.coroutine(lambda self, amount=1: (yield from later(self, amount).__await__())),
    ],
)
async def test_an_answer_comes_however_the_handler_is_written(function: Any) -> None:
    cls = type("Good", (Entity,), {"act": handler(function)})
    assert await ask_act(cls) == "done 1"
    assert await ask_act(cls, 2) == "done 2"


async def test_a_handler_is_a_plain_method_inside_its_entity() -> None:
    class Good(Entity):
        act = handler(Called(lambda self, amount: f"{type(self).__name__} {amount}"))

        @handler
        def twice(self) -> str:
            return f"{self.act(1)}, {self.act(2)}"

    async with EntityProbe(Good, "a") as probe:
        assert await probe.ask("twice") == "Good 1, Good 2"


class Binding:
    """A decorator that gives the function to callers of a bound method only, as cachetools does."""

    def __init__(self, function: Any) -> None:
        self.function = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any) -> Any:
        raise TypeError("this is no method of an object")

    def __get__(self, instance: object, owner: type) -> Any:
        return types.MethodType(self.function, instance)


@pytest.mark.parametrize("thread", [False, True])
async def test_a_decorated_handler_is_called_as_python_calls_a_method(thread: bool) -> None:
    @handler(thread=thread)
    @Binding
    def act(self: Any, amount: int = 1) -> str:
        return f"{type(self).__name__} {amount}"

    async with EntityProbe(type("Good", (Entity,), {"act": act}), "a") as probe:
        assert await probe.ask("act", 2) == "Good 2"


async def test_an_async_handler_may_be_bound_by_its_decorator() -> None:
    @handler
    @Binding
    async def act(self: Any) -> str:
        return type(self).__name__

    async with EntityProbe(type("Good", (Entity,), {"act": act}), "a") as probe:
        assert await probe.ask("act") == "Good"


@dataclass
class Order:
    pieces: int = 0


class Repository(Entity, Generic[S, T]):
    """A base with a state and values of types that its subclasses name."""

    state: S

    @handler
    async def put(self, state: S) -> S:
        self.state = state
        await self.save()
        return self.state

    @handler
    def first(self, values: list[T] | None = None) -> dict[str, T]:
        return {"first": values[0]} if values else {}


class Orders(Repository[Order, datetime.date]): ...


class OrdersWith(Repository["Order", T], Generic[T]):
    """Hands its own variable, which is the same one, to another parameter."""

    @handler
    def name(self, value: T) -> T:
        return value


class OrdersWithTexts(OrdersWith[str]): ...


async def test_the_types_of_a_generic_base_are_those_that_a_subclass_gives() -> None:
    today = datetime.date(2026, 1, 1)
    async with EntityProbe(Orders, "a") as probe:
        orders: Any = probe.ref
        assert await orders.put(Order(3)) == Order(3)
        assert probe.saved == Order(3)
        assert await orders.first([today]) == {"first": today}
        for wrong in ([3], [Order()], ["x"]):
            with pytest.raises(SchemaError):
                await orders.first(wrong)
    async with EntityProbe(OrdersWithTexts, "a") as probe:
        texts: Any = probe.ref
        assert await texts.put(Order(4)) == Order(4)
        assert await texts.first(["x"]) == {"first": "x"}
        assert await texts.name("x") == "x"
        for wrong in (3, 1.5):
            with pytest.raises(SchemaError):
                await texts.first([wrong])
            with pytest.raises(SchemaError):
                await texts.name(wrong)


async def test_the_parameters_of_a_generic_base_are_known_to_its_annotations() -> None:
    """`class Shelf[Item](Entity)`: only the body of the class knows the name."""
    variable: Any = TypeVar("Item")  # type: ignore[misc]

    class Shelf(Entity, Generic[variable]):
        __type_params__ = (variable,)
        state: "Item"  # type: ignore[name-defined]  # noqa: F821, UP037

        @handler
        async def put(self, state: "Item") -> "list[Item]":  # type: ignore[name-defined]  # noqa: F821, UP037
            self.state = state
            await self.save()
            return [self.state]

    class OrderShelf(Shelf[Order]): ...

    async with EntityProbe(OrderShelf, "a") as probe:
        orders: Any = probe.ref
        assert await orders.put(Order(3)) == [Order(3)]
        assert probe.saved == Order(3)


class Compiled:
    """A method as Cython compiles it: it has the attributes of a function, and another class."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.__name__, self.__qualname__ = function.__name__, function.__qualname__
        self.__globals__, self.__annotations__ = function.__globals__, function.__annotations__
        self.__signature__ = inspect.signature(function)

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __get__(self, instance: object, owner: type) -> Any:
        return types.MethodType(self.function, instance)


def test_an_annotation_that_is_evaluated_late_and_unknown_is_refused() -> None:
    """As Python evaluates them from 3.14 on, for an import under `TYPE_CHECKING`."""

    class Late(Compiled):
        @property
        def __signature__(self) -> Any:
            raise NameError("name 'Decimal' is not defined")

        @__signature__.setter
        def __signature__(self, signature: Any) -> None: ...

    def act(self: Any, price: int) -> None: ...

    with pytest.raises(ConfigError, match="cannot be read: name 'Decimal'") as refused:
        ShardBus("shop").entity("bad")(type("Bad", (Entity,), {"act": handler(Late(act))}))
    assert refused.value.hint == "import what it names, not only for type checkers"


async def test_the_annotations_of_a_compiled_handler_count() -> None:
    @handler
    @Compiled
    def act(self: Any, deadline: datetime.date) -> datetime.date:
        return deadline

    async with EntityProbe(type("Good", (Entity,), {"act": act}), "a") as probe:
        ref: Any = probe.ref
        today = datetime.date(2026, 1, 1)
        assert await ref.act(today) == today
        with pytest.raises(SchemaError):
            await ref.act(3)


async def test_a_class_that_is_made_anew_may_call_super() -> None:
    """`attrs.define`, and dataclasses with slots from Python 3.14 on, copy a class, and set the
    copy in the closures of its methods."""

    class Base(Entity):
        def title(self) -> str:
            return "base"

    @attrs.define
    class Good(Base):
        count: int = 0

        @handler
        def title_of(self) -> str:
            self.count += 1
            return f"{super().title()} {self.count}"

    async with EntityProbe(Good, "a") as probe:
        assert await probe.ref.title_of() == "base 1"
    assert inspect.unwrap(vars(Good)["title_of"]).__name__ == "title_of"


async def test_hooks_may_stand_under_decorators() -> None:
    ended: list[StopReason] = []

    class Good(Base):
        @passing
        async def on_start(self) -> None:
            self.started = True

        @passing
        async def on_stop(self, reason: StopReason) -> None:
            ended.append(reason)

        @handler
        def stop(self) -> bool:
            self.context.stop()
            return self.started

    async with EntityProbe(Good, "a") as probe:
        assert await probe.ask("stop")
        await probe.advance(1)
    assert ended == [StopReason.STOPPED]


# ---- annotations


class Untold(Entity):
    """Annotations that only a type checker can read."""

    state: Ledger
    session: Unknown  # noqa: F821

    @handler
    def total(self) -> int:
        return self.state.total


def test_only_the_annotation_of_the_state_is_read() -> None:
    states = declare(Untold).states
    assert states is not None
    assert states.cls is Ledger


def test_an_annotation_that_cannot_be_read_is_refused() -> None:
    def act(self: Any, amount: Unknown) -> None: ...  # noqa: F821

    cls = type("Bad", (Entity,), {"act": handler(act)})
    with pytest.raises(ConfigError, match=r"Bad: .*an annotation is not known.*Unknown"):
        declare(cls)
    lost = type("Lost", (Entity,), {"__annotations__": {"state": "Unknown"}})
    with pytest.raises(ConfigError, match=r"Lost: an annotation cannot be read.*Unknown"):
        declare(lost)


class Circle(Entity):
    """Asks itself, in a way that no `async` shows."""

    async def _later(self) -> str:
        return await self.context.ref(Circle, self.context.entity_id).asks_in_a_coroutine()

    @handler
    def asks_in_a_coroutine(self) -> Any:
        return self._later()

    @handler
    def returns_the_ask(self) -> Any:
        return self.context.ref(Circle, self.context.entity_id).returns_the_ask()


@pytest.mark.parametrize("method", ["asks_in_a_coroutine", "returns_the_ask"])
async def test_a_cycle_of_asks_is_noticed_however_the_handler_waits(method: str) -> None:
    async with EntityProbe(Circle, "a") as probe:
        with pytest.raises(EntityFailed, match="ReentrancyError"):
            await probe.ask(method)


async def test_work_that_is_left_has_the_context_of_its_handler() -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")

    class Knows(Entity):
        async def _later(self) -> str:
            before = user.get()
            await asyncio.sleep(0)
            return f"{before} {user.get()}"

        @handler
        def act(self, name: str) -> Any:
            if name:
                user.set(name)
            return self._later()

    async with EntityProbe(Knows, "a") as probe:
        assert await probe.ask("act", "bob") == "bob bob"
        assert await probe.ask("act", "") == "nobody nobody"
