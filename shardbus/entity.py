"""The classes and marks that an application uses: `Entity`, `handler` and `behaviour`.

Source: docs/how-to/define-entities.md; S2.9, S4.15-S4.25.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType, MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

from shardbus.entities.context import Context
from shardbus.entities.entity_type import BEHAVIOUR, StopReason, layers, may_wait
from shardbus.entities.merged_state import MergedState
from shardbus.errors import ConfigError, LocalProtocolError, Unhandled
from shardbus.routing.refs import Call
from shardbus.routing.sent import awaited
from shardbus.wire.stored_state import StateCodec

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
S = TypeVar("S")
F = TypeVar("F", bound=Callable[..., Any])


OneInstance = Literal["nearest", "round-robin", "random", "least-busy"]
"""The routers that choose one instance and take no option."""

BEHAVIOUR_MARK = "__shardbus_behaviour__"
CALLERS_MAX = 10
"""Decorators of an application that call each other, and the last one `handler`."""
HANDLERS = "__shardbus_handlers__"
"""Key, in the namespace of a class, of the handlers that were made in its body."""

Thread = bool | ThreadPoolExecutor
"""False: on the event loop. True: in a worker thread of the loop. An executor: in its threads."""


class Called(Protocol[P, R_co]):
    """A handler as an attribute of a reference, for type checkers. Type checkers see a reference as
    an object of the entity's class, and the blocking client's as the class itself: a descriptor
    distinguishes the two."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R_co]:
        """Ask the entity. The answer is the handler's result."""
        ...

    def tell(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[None]:
        """Send a message without an answer."""
        ...

    def tell_nowait(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Send a message without an answer. Raise BufferFull instead of waiting."""

    def deliver(
        self, *args: Any, within: float | str | None = None, **kwargs: Any
    ) -> Awaitable[None]:
        """Deliver a message: it is sent until it is confirmed, and takes effect once."""
        ...

    def deliver_nowait(
        self, *args: Any, within: float | str | None = None, **kwargs: Any
    ) -> Awaitable[None]:
        """Deliver a message. Raise BufferFull instead of waiting for room."""
        ...

    def ask(self, *args: Any, key: str | None = None, **kwargs: Any) -> Awaitable[R_co]:
        """Ask the entity. With a key the handler runs once for this key."""
        ...


def _of_reference(verb: str) -> Callable[..., Any]:
    """Return a verb of a handler, which its references have, and the class only for code that reads
    it, as `unittest.mock.create_autospec` does."""

    def refuse(self: Handler[Any, Any], *args: Any, **kwargs: Any) -> Any:
        raise LocalProtocolError(
            f"{self.__name__}.{verb} is a verb of a reference, and this is the class",
            hint=f"take a reference: client.ref(Class, id).{self.__name__}.{verb}(...)",
        )

    refuse.__name__ = verb
    return refuse if verb == "tell_nowait" else awaited(refuse)


@awaited
class Handler(Generic[P, R]):
    """A method that references can call. Inside its own entity it is the plain method. For type
    checkers it is also the attribute of a blocking client's reference. A mock that is made by its
    class has the verbs of a reference, and returns awaitables as that does."""

    def __init__(self, function: Callable[..., Any], *, thread: Thread) -> None:
        self.function = function
        self.thread = thread
        self.__doc__ = getattr(function, "__doc__", None)
        self.__name__: str = getattr(function, "__name__", type(function).__name__)
        self.__isabstractmethod__: bool = getattr(function, "__isabstractmethod__", False)
        # A decorator that makes the class anew, as `attrs.define` does for slots, sets its new
        # class in the closures of its methods, which `super()` reads.
        self.__wrapped__ = function
        self.__closure__ = getattr(function, "__closure__", None)

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
            """Ask the entity, and return the handler's result."""
            ...

        def tell(self, *args: P.args, **kwargs: P.kwargs) -> None:
            """Send a message without an answer."""

        def tell_nowait(self, *args: P.args, **kwargs: P.kwargs) -> None:
            """Send a message without an answer. Raise BufferFull instead of waiting."""

        def deliver(self, *args: Any, within: float | str | None = None, **kwargs: Any) -> None:
            """Deliver a message: it is sent until it is confirmed, and takes effect once."""

        def deliver_nowait(
            self, *args: Any, within: float | str | None = None, **kwargs: Any
        ) -> None:
            """Deliver a message. Raise BufferFull instead of waiting for room."""

        def ask(self, *args: Any, key: str | None = None, **kwargs: Any) -> R:
            """Ask the entity. With a key the handler runs once for this key."""
            ...

    else:

        def __call__(self, *args, **kwargs):
            """Call the method of an entity, as `Base.add(self, 2)` does in a subclass."""
            return self.function(*args, **kwargs)

        tell, tell_nowait, ask = map(_of_reference, ("tell", "tell_nowait", "ask"))
        deliver, deliver_nowait = map(_of_reference, ("deliver", "deliver_nowait"))

    def __set_name__(self, owner: type, name: str) -> None:
        """Pass the name on to a decorator that has made the function, and take the note of the
        handlers from a protocol, of which it would be a member."""
        if Protocol in owner.__bases__ and HANDLERS in vars(owner):
            delattr(owner, HANDLERS)
        name_it = getattr(self.function, "__set_name__", None)
        if name_it is not None:
            name_it(owner, name)

    @overload
    def __get__(self, instance: None, owner: type) -> Handler[P, R]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Called[P, R]: ...
    def __get__(self, instance: object | None, owner: type) -> Any:
        if instance is None:
            return self
        bind = getattr(self.function, "__get__", None)
        return MethodType(self.function, instance) if bind is None else bind(instance, owner)


class ByRouter(Protocol[T_co]):
    """The method `to` of a reference, for type checkers."""

    @overload
    def __call__(self, policy: Literal["all"]) -> Any: ...
    @overload
    def __call__(self, policy: Literal["hash"], *, key: str | int | None = None) -> T_co: ...
    @overload
    def __call__(self, policy: Literal["first"], *, after: float | None = None) -> T_co: ...
    @overload
    def __call__(self, policy: OneInstance) -> T_co: ...
    def __call__(self, policy: str, **options: object) -> Any:
        """Return a reference to the same entity by another router."""


class Routed:
    """Makes `to` of a reference and of a blocking one, for type checkers."""

    @overload
    def __get__(self, instance: None, owner: type[T]) -> ByRouter[type[T]]: ...
    @overload
    def __get__(self, instance: T, owner: type[T]) -> ByRouter[T]: ...
    def __get__(self, instance: object, owner: type) -> Any: ...


@overload
def handler(function: Callable[Concatenate[S, P], Awaitable[R]]) -> Handler[P, R]: ...
@overload
def handler(function: Callable[Concatenate[S, P], R]) -> Handler[P, R]: ...
@overload
def handler(
    *, thread: Thread = False
) -> Callable[[Callable[Concatenate[S, P], R]], Handler[P, R]]: ...
def handler(function: Callable[..., Any] | None = None, *, thread: Thread = False) -> Any:
    """Make a method a handler, sync or async. A sync handler runs on the event loop and must not
    block. `@handler(thread=True)` runs a blocking one in a worker thread, still one message at a
    time, and `@handler(thread=pool)` in a thread of the application's own pool [S2.90]."""
    if function is not None:
        return _noted(Handler(function, thread=False))
    return lambda f: _noted(Handler(f, thread=thread))


def _noted(made: Handler[Any, Any]) -> Handler[Any, Any]:
    """Note a handler in the class body that makes it. A decorator or a later `def` may put
    something else in its place, and the declaration of the class must notice that."""
    body = _class_body(inspect.currentframe(), made.function)
    if body is not None:
        body.setdefault(HANDLERS, []).append(made)
    return made


def _class_body(frame: FrameType | None, function: object) -> dict[str, Any] | None:
    """Return the namespace of the class body that has called `handler`, itself or through a
    decorator of the application; None if it was called from elsewhere."""
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    inner = layers(function)[-1] if callable(function) else function
    place = getattr(inner, "__qualname__", "").rpartition(".")[0]
    for depth in range(CALLERS_MAX):
        if frame is None:
            break
        if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # a class body, or a module
            names = frame.f_locals
            qualname = names.get("__qualname__") if names is not frame.f_globals else None
            return names if qualname and (not depth or qualname == place) else None
        frame = frame.f_back
    return None


def handlers_in(cls: type) -> Sequence[Handler[Any, Any]]:
    """Return the handlers that were made in the body of a class."""
    made: Sequence[Handler[Any, Any]] = vars(cls).get(HANDLERS, ())
    return made


def behaviour(method: F) -> F:
    """Mark a method `method(self, message)` as a behaviour: after a call of
    `self.context.become(self.method)` it handles messages in place of `receive` [S4.24]. An entity
    begins with `receive`; `receive = loading` in the class makes it begin with `loading`."""
    setattr(method, BEHAVIOUR_MARK, True)
    return method


def behaviours_of(cls: type) -> list[Callable[..., Any]]:
    """Return the behaviours of a class, the nearest of each name."""
    nearest: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        nearest.update(vars(base))
    return [method for method in nearest.values() if hasattr(method, BEHAVIOUR_MARK)]


def current_behaviour(
    receive: Callable[..., Any], behaviours: list[Callable[..., Any]]
) -> Callable[[Any, Any], Any]:
    """Return a function that calls the entity's current behaviour; async if any behaviour is."""

    def handle(entity: Any, message: Any) -> Any:
        return vars(entity).get(BEHAVIOUR, receive)(entity, message)

    async def handle_async(entity: Any, message: Any) -> Any:
        answer = vars(entity).get(BEHAVIOUR, receive)(entity, message)
        return await answer if inspect.isawaitable(answer) else answer

    waits = any(may_wait(method) for method in (receive, *behaviours))
    return handle_async if waits else handle


class Entity:
    """The base of entity classes. An entity handles one message at a time, `await` included.

    `context` is set before `__init__` runs, and belongs to this very object: once the entity has
    ended, or has started again as another object, it refuses to act (`StaleActivation`). If a class
    declares `state: SomeMessage`, the state is loaded before `on_start`."""

    context: Context

    if TYPE_CHECKING:
        to = Routed()

    async def on_start(self) -> None:
        """Prepare for messages. Called before the first one; messages wait until it returns. If it
        raises, the type's supervision decides whether it is tried again."""

    async def on_stop(self, reason: StopReason) -> None:
        """Release the resources of the entity. Called after the last message."""

    def dehydrate(self) -> bytes:
        """Return the content of this entity's memory, for its next activation at another node.
        Called after `on_stop`, if its type is declared with `carry=True` and its shard moves
        [S3.80]. `self.state` is carried by itself."""
        return b""

    def rehydrate(self, data: bytes) -> None:
        """Take the result of `dehydrate` at the old home. Called before `on_start`, after
        `self.state` is set; not called if nothing was carried. If it raises, the entity starts
        without it, from the store."""

    def save(self) -> Coroutine[Any, Any, None]:
        """Write `self.state`. Returns when the store has it. In a type whose instances share a
        state, `self.state` then has the others' saves, too.

        Raises:
            SchemaError: its class would not read the state as it is; the text has the field's path.
                The stored state stays as it was.
            StaleFence: the entity has a newer activation elsewhere; this one stops.
            StaleActivation: this activation has ended on its own node, or has started again after a
                failure. Nothing was written, and its successor is not affected.
            StoreUnavailable: the stored value is the old one or the new one. Unless the handler
                catches this, the entity starts again with the stored value.
            StateUnreadable: states that instances have saved at the same time do not merge.
                Nothing is lost: all of them stay.
        """
        codec: StateCodec | MergedState = self.__shardbus_states__  # type: ignore[attr-defined]
        return self.context._save(codec.write(self.state))  # type: ignore[attr-defined]

    def clear(self) -> Coroutine[Any, Any, None]:
        """Remove the stored state, and the reminders in the same write. Raises as `save` does."""
        return self.context._save(None, clears=True)

    def deliver(self, call: Any, /, *args: Any, **kwargs: Any) -> None:
        """Deliver a message to another entity, as in `self.deliver(ref.add, 2)`. Once a save of
        this entity has stored it with the state, it is sent until the other one has handled it, and
        takes effect once. Neither the end of a process nor a move loses it. A handler that fails
        before it saves delivers nothing.

        Raises:
            ConfigError: the class has no `state`, or the call is no handler of a reference.
            BufferFull: too many deliveries of this entity wait. SchemaError, MessageTooLarge: the
                arguments cannot be sent. Nothing is delivered then.
        """
        if not isinstance(call, Call):
            raise ConfigError(
                f"deliver takes a handler of a reference, not {type(call).__name__}",
                hint="as in self.deliver(self.context.ref(Account, other).credit, 30)",
            )
        self.context._deliver(*call.as_delivery(args, kwargs))

    def unhandled(self, message: object) -> NoReturn:
        """Decline the message: it is counted, and its asker gets Unhandled, which is not definite,
        because this handler has begun.

        Raises:
            Unhandled: always.
        """
        kind = type(message).__name__
        error = Unhandled(f"{self.context.entity_type} takes no such {kind}")
        error.definite, error.declined = False, True
        raise error
