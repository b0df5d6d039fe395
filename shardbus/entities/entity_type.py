"""An entity type as a node knows it: the class, its handlers, and its declarations.

`app` builds it from the decorators once; everything here is read-only afterwards.

Source: S2.7, S2.27, S2.37, S2.57.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import partial, wraps
from types import FunctionType
from typing import Any

import msgspec

from shardbus.config.options import closest
from shardbus.config.settings import NodeSettings
from shardbus.entities.merged_state import MergedState
from shardbus.entities.projected_events import ProjectedEvents
from shardbus.entities.unfinished_work import finishing
from shardbus.error_text import described, is_a, shown, text_of
from shardbus.errors import ConfigError
from shardbus.routing.refs import NO_ARGUMENTS
from shardbus.sharding.allocation.strategies import AllocationStrategy
from shardbus.wire.instances import ReadAll
from shardbus.wire.schema import Decode, Interface, encode_value, form_of
from shardbus.wire.stored_events import EventCodec
from shardbus.wire.stored_state import StateCodec

BEHAVIOUR = "current behaviour"
"""Key, in an entity's own attributes, of its current behaviour; absent: `receive`."""

EVERY_TYPE = "*"
"""Stands for all types in `node.proxies`."""


class StopReason(Enum):
    """Why an entity stops; `on_stop` gets it."""

    HANDOFF = "handoff"
    PASSIVATION = "passivation"
    SHUTDOWN = "shutdown"
    FAILURE = "failure"
    STOPPED = "stopped"


class Directive(Enum):
    """The next step of an entity whose handler raised."""

    RESUME = "resume"
    RESTART = "restart"
    STOP = "stop"


class Invoker(msgspec.Struct, frozen=True):
    """One method, ready to be called. A handler's arguments are an array, decoded by the decoder of
    its length; `receive` gets one message, decoded by `decode_message`."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    decoders: Mapping[int, Decode]
    decode_message: Decode | None = None
    single: Decode | None = None
    """The only decoder of a handler that always has one argument."""
    read_all: ReadAll | None = None
    """Decodes the payloads of a run, where that is faster than one by one."""
    trace: str = ""
    """The trace context of the one message that this invoker is for."""
    returns_values: bool = False
    """No answer of it stands for work that is not done (`unfinished_work`)."""
    encode: Callable[[Any], bytes] = encode_value
    """Encodes an answer, or raises SchemaError."""

    @property
    def never_waits(self) -> bool:
        """True for a plain function that returns a value; another may return an awaitable."""
        return not self.is_async and self.returns_values

    def calling(self, function: Callable[..., Any]) -> Invoker:
        """Return an invoker of the same method that calls this function."""
        return Invoker(
            self.name,
            function,
            self.is_async,
            self.decoders,
            self.decode_message,
            self.single,
            self.read_all,
            self.trace,
            self.returns_values,
            self.encode,
        )


class EntityType(msgspec.Struct, frozen=True):
    """A node's knowledge of one entity type."""

    cls: type
    interface: Interface
    invokers: Mapping[str, Invoker]
    declared: Mapping[str, object]
    """Sharding settings that the class sets, by name."""
    starts: bool
    """The class has an `on_start` of its own."""
    stops: bool
    """The class has an `on_stop` of its own."""
    states: StateCodec | None = None
    """Writes and reads the form in the store; None: the type has no state, or one that merges."""
    merged: MergedState | None = None
    """The state that the instances of an entity have in common; None: there is none."""
    events: EventCodec | None = None
    """Writes and folds events; None: the type is not event-sourced."""
    supervision: Callable[[Exception], Directive] = lambda error: Directive.RESTART
    strategy: AllocationStrategy | None = None
    """None: the strategy that the settings name."""
    behaviours: frozenset[Callable[..., Any]] = frozenset()
    """Methods that `become` takes, `receive` among them; empty if the class has no other."""
    proxy: bool = False
    """This process hosts no entity of the type."""
    stop_message: tuple[Invoker, bytes] | None = None
    """The message by which the node asks an entity to stop, ready to be handled; None: it stops
    without one."""

    carries: bool = False
    """Its entities carry their memory to the next home of their shard."""
    reminds: bool = False
    """Its entities may set reminders."""
    durable_mailbox: bool = False
    """Messages to its entities are stored before they are handled."""
    projection: ProjectedEvents | None = None
    """The events that its entities handle as parts of a projection; None: it is none."""

    @property
    def name(self) -> str:
        return self.interface.name

    def hosted_by(self, role: str, node: NodeSettings) -> bool:
        """True if a node with these settings hosts the type, which requires that role."""
        excluded = self.proxy or self.name in node.proxies or EVERY_TYPE in node.proxies
        return not excluded and (not role or role in node.roles)

    @property
    def has_state(self) -> bool:
        """True if its entities have a state, of their own or with other instances."""
        return self.states is not None or self.merged is not None

    @property
    def codec(self) -> StateCodec | None:
        """Writes and reads the states of a class, whether an entity or its instances have them."""
        return self.states if self.merged is None else self.merged.codec

    @property
    def plain(self) -> bool:
        """True if a start makes the object and does nothing else: there is no state and no
        reminder to load, no `on_start`, and nothing is carried."""
        alone = not self.starts and not self.has_state
        return alone and not self.carries and not self.reminds

    @property
    def is_queue(self) -> bool:
        """True for a class of queues of work (`shardbus.delivery.WorkQueue`)."""
        return getattr(self.cls, "__shardbus_item__", None) is not None


def addressed(invokers: Mapping[str, Invoker], message: object) -> tuple[Invoker, bytes]:
    """Return the invoker and the payload of a message that an entity sends itself. A text that
    names a handler without parameters is for that handler, everything else for `receive`.

    Raises:
        ConfigError: no handler takes it.
    """
    named = invokers.get(message) if isinstance(message, str) and message else None
    if named is not None and NO_ARGUMENTS[0] in named.decoders:
        return named, NO_ARGUMENTS
    hint = ""
    try:
        form = form_of(message)
        payload = form.encode(message)
        invoker = invokers.get(form.method) or invokers.get("")
        if invoker is not None and invoker.decode_message is not None:
            invoker.decode_message(payload)
            return invoker, payload
        why = "there is no receive" if named is None else "that handler needs arguments"
        near = closest(message, invokers) if isinstance(message, str) and named is None else ""
        suggestion = f"did you mean {near}? " if near else ""
        hint = f"{suggestion}name a handler without arguments, or write a receive"
    except Exception as e:
        why = text_of(e)
    raise ConfigError(f"no handler takes {shown(message)}: {why}"[:300], hint=hint)


WRAPPED_MAX = 100
"""Decorators on one method."""


def layers(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Return a callable and the functions under its decorators, outermost first, as far as
    `functools.wraps` shows them."""
    functions = [function]
    while len(functions) < WRAPPED_MAX and (inner := getattr(functions[-1], "__wrapped__", None)):
        functions.append(inner)
    return functions


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """True if a call returns a coroutine."""
    return inspect.iscoroutinefunction(function)


def may_wait(function: Callable[..., Any]) -> bool:
    """True if a call returns a coroutine, or probably does: a decorator that is not async calls an
    async function."""
    called = (call for layer in layers(function) for call in (layer, type(layer).__call__))
    return any(is_coroutine_function(call) or _is_awaitable_generator(call) for call in called)


def _is_awaitable_generator(function: Callable[..., Any]) -> bool:
    """True for a function with `types.coroutine`."""
    code = getattr(function, "__code__", None)
    return code is not None and bool(code.co_flags & inspect.CO_ITERABLE_COROUTINE)


def as_method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a handler as Python calls a method: an object that a decorator
    has made may bind itself to the entity, and take calls in no other way."""
    bind = getattr(function, "__get__", None)
    if isinstance(function, FunctionType) or bind is None:
        return function

    @wraps(function)
    def call(entity: Any, *args: Any) -> Any:
        return bind(entity, type(entity))(*args)

    return call


def awaited(function: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """Return the function that the runner calls for a method, and whether it is a coroutine
    function."""
    if is_coroutine_function(function):
        return function, True
    return (finishing(function), True) if may_wait(function) else (function, False)


def in_thread(function: Callable[..., Any], pool: ThreadPoolExecutor | None) -> Callable[..., Any]:
    """Return a coroutine function that runs a blocking handler in a worker thread: of that pool, or
    of the loop's own."""
    return partial(run_in_thread, pool, function)


async def run_in_thread(
    pool: ThreadPoolExecutor | None, function: Callable[..., Any], entity: Any, *args: Any
) -> Any:
    """Run a blocking handler in a worker thread, in a copy of the context of its message.

    Raises:
        RuntimeError: the handler raised StopIteration, which a coroutine cannot raise. Any other:
            the error of the handler.
    """
    run: Callable[..., Any] = contextvars.copy_context().run
    loop = asyncio.get_running_loop()
    value, error = await loop.run_in_executor(pool, run, _outcome_of, function, entity, *args)
    if error is not None and is_a(error, StopIteration):
        raise RuntimeError(f"the handler raised {described(error)}") from error
    if error is not None:
        raise error
    return value


def _outcome_of(function: Callable[..., Any], *args: Any) -> tuple[Any, BaseException | None]:
    """Return the value and the error of a call. A future of asyncio takes no StopIteration."""
    try:
        return function(*args), None
    except BaseException as e:
        return None, e


EntityTypes = Mapping[str, EntityType]
"""Entity types by their names."""
