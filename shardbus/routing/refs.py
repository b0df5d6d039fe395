"""References: a sender uses one to reach one entity.

`ref.add(2)` asks the handler `add`; `ref.add.tell(1)` sends without an answer. For type checkers a
reference is an object of the entity's class, whose handlers are `Call`s. At run time it is a `Ref`
that creates each `Call` once and keeps it, so that a loop over one reference needs no look-up.

References are values: two are equal if they send to the same entity by the same sender, whatever
their deadlines, and a copy of one is that reference. They cannot be pickled, because the sender
belongs to its process.

Source: docs/how-to/send.md; B.48, B.140.
"""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar, NoReturn, Self, SupportsIndex

from shardbus.config.options import TEN_YEARS, Option, ValueType, parse
from shardbus.deliveries.numbers import KEY_MAX
from shardbus.errors import ConfigError
from shardbus.ids import check_text
from shardbus.routing.instance_policies import choice_of
from shardbus.routing.instance_sender import Picked
from shardbus.routing.router import Messages, Sender
from shardbus.routing.sent import awaited, copied
from shardbus.routing.traced_sending import TracedSender
from shardbus.tasks.interrupts import raise_signalled
from shardbus.transport.asks import Key
from shardbus.wire.missing_handlers import no_attribute
from shardbus.wire.schema import (
    Decode,
    Interface,
    Method,
    decode_value,
    encode_arguments,
    encode_value,
    form_of,
)

START = "$start"
"""The method of StartEntity; no handler has this name. It only makes the entity run."""
NO_ARGUMENTS = encode_value(())

UNPACKABLE = BaseException
"""A class of the application's may raise anything where it is encoded. Encoding again names it. An
exception of a signal, as of a time limit, goes on."""
ASK_TIMEOUT_MS = 5000
"""The default deadline of an ask inside a node."""
TIMEOUT_MAX_S = 3.1536e8
"""Ten years, as for settings."""

DURATION = Option(ValueType.SECONDS, "for which a delivery is tried", "s", 0.001, TEN_YEARS, True)

RESERVED = frozenset(
    {"tell", "ask", "entity_id", "entity_type", "within", "to", "tell_nowait", "start_entity"}
)
"""Attributes of a reference itself; no handler may have one of these names."""


class OfOneProcess:
    """Belongs to its client or node: a copy of it, deep or not, is the object itself, and it cannot
    be pickled."""

    __slots__ = ()
    _instead: ClassVar[str] = "make one in each process"
    """What to do instead of pickling."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be pickled: it belongs to its client or node; {self._instead}"
        )


class Addressed(OfOneProcess):
    """Compares by its target and its sender, which `_address` returns."""

    __slots__ = ()
    _instead = "send the type and the id, and make a reference there"

    def _address(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._address() == other._address()

    def __hash__(self) -> int:
        return hash(self._address())


class Call(Addressed):
    """One handler of one entity: call it to ask, or use `tell`. `route` leads there without the
    sender, if it has a session."""

    __slots__ = (
        "_count",
        "_id",
        "_key",
        "_method",
        "_packed",
        "_route",
        "_sender",
        "_timeout_ms",
    )

    def __init__(
        self, sender: Sender, entity_id: str, route: Any, method: Method, timeout_ms: int
    ) -> None:
        self._sender, self._id, self._route, self._method = sender, entity_id, route, method
        self._timeout_ms = timeout_ms
        self._key = sender.key(method.name)
        self._count, self._packed = method.count, method.pack

    def _address(self) -> tuple[Any, ...]:
        return *self._sender.address, self._id, self._method.name

    def __repr__(self) -> str:
        return f"<ref {self._key[0]} {self._id!r} {self._method.name}>"

    def _pack(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return the arguments as bytes. The slow path names an argument that does not fit."""
        if not kwargs and (len(args) == self._count or len(args) in self._method.counts):
            try:
                packed = self._packed  # calling the attribute takes longer
                return packed(args)
            except UNPACKABLE as error:
                raise_signalled(error)
        return self._method.encode(args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Ask. Returns a future of the handler's answer; by `all`, of a dict of node to reply or
        error. A reference of a thread blocks, and returns the answer.

        Raises:
            TypeError: the arguments do not fit the handler. SchemaError: one cannot be serialized.
        """
        if kwargs or (len(args) != self._count and len(args) not in self._method.counts):
            payload = self._method.encode(args, kwargs)
        else:
            try:
                packed = self._packed  # calling the attribute takes longer
                payload = packed(args)
            except UNPACKABLE as error:
                raise_signalled(error)
                payload = self._method.encode(args, kwargs)
        return self._sender.ask(
            self._key, self._id, payload, self._timeout_ms, self._method.decode_result
        )

    def tell(self, *args: Any, **kwargs: Any) -> Any:
        """Send without an answer. Returns an awaitable that waits while the send buffer is full; a
        reference of a thread blocks.

        Raises:
            BufferFull: the buffer for shards without a home is full, or the send buffer is.
        """
        if kwargs or (len(args) != self._count and len(args) not in self._method.counts):
            payload = self._method.encode(args, kwargs)
        else:
            try:
                packed = self._packed
                payload = packed(args)
            except UNPACKABLE as error:
                raise_signalled(error)
                payload = self._method.encode(args, kwargs)
        out = self._route.out
        if out is None:
            return self._sender.tell(self._key, self._id, payload)
        out.tell(self._key, self._id, payload)
        return self._sender.done if out.writable else out.until_room

    def tell_nowait(self, *args: Any, **kwargs: Any) -> None:
        """Send at once, or raise BufferFull if `tell` would wait."""
        self._sender.tell_nowait(self._key, self._id, self._pack(args, kwargs))

    def deliver(self, *args: Any, within: float | str | None = None, **kwargs: Any) -> Any:
        """Deliver: send it until the entity confirms that it has handled it, and let it take effect
        once. Returns a future that ends with the confirmation; a reference of a thread blocks.

        `within` is for how long, in seconds or as a duration such as "1h"; 0 is for ever.

        Raises:
            BufferFull: too many deliveries of this process wait. DeliveryFailed: it is given up.
            SchemaError, UnknownEntityType, MessageTooLarge: it cannot be handled. Rejection: the
            handler has refused it.
        """
        sender, payload = self._sender, self._pack(args, kwargs)
        seconds = None if within is None else self._within(within, args)
        return sender.deliverer.deliver(sender, self._id, self._method.name, payload, seconds)

    def deliver_nowait(self, *args: Any, within: float | str | None = None, **kwargs: Any) -> Any:
        """Deliver as `deliver` does, or raise BufferFull if it would wait for room in the window of
        unconfirmed deliveries. A reference of a thread does not wait for the confirmation."""
        sender, payload = self._sender, self._pack(args, kwargs)
        seconds = None if within is None else self._within(within, args)
        return sender.deliverer.deliver(
            sender, self._id, self._method.name, payload, seconds, waits=False
        )

    def _within(self, within: float | str, args: tuple[Any, ...]) -> float:
        self._check_own("within", args)
        return duration(within)

    def _check_own(self, name: str, args: tuple[Any, ...]) -> None:
        """Raise TypeError if an argument of this call may be meant for the handler, which has a
        parameter of that name."""
        method = self._method
        if any(parameter.name == name for parameter in method.parameters[len(args) :]):
            raise TypeError(
                f"{method.name} has a parameter {name}, too: give that by its place, before {name}="
            )

    def as_delivery(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[str, str], str, bytes]:
        """Return the receiver, the method and the arguments of a delivery, for an entity that keeps
        it. Raises as `deliver`."""
        payload, sender = self._pack(args, kwargs), self._sender
        _ = sender.deliverer  # a type that takes no deliveries says so
        return (sender.interface.name, self._id), self._method.name, payload

    def ask(self, *args: Any, key: str | None = None, **kwargs: Any) -> Any:
        """Ask, as a call does. With `key` the handler runs once for this key, however often it is
        asked: the entity keeps the result with its state for a day, and the ask is repeated until
        its deadline while no answer comes."""
        if key is None:
            return self(*args, **kwargs)
        self._check_own("key", args)
        sender, payload, method = self._sender, self._pack(args, kwargs), self._method
        return sender.deliverer.ask_once(
            sender,
            self._id,
            method.name,
            payload,
            check_key(key),
            self._timeout_ms,
            method.decode_result,
        )


@awaited
class LoopCall(Call):
    """A handler of an entity, for code in the loop: each verb returns an awaitable. Libraries take
    it, and its verbs, for coroutine functions, and call them in the loop, not in a thread."""

    __slots__ = ()

    __call__ = awaited(copied(Call.__call__))
    tell = awaited(copied(Call.tell))
    deliver = awaited(copied(Call.deliver))
    deliver_nowait = awaited(copied(Call.deliver_nowait))
    ask = awaited(copied(Call.ask))


class PickedCall(LoopCall):
    """A handler of an entity with instances, by a router that stays with the instance that it has
    picked. It requests another one when the version of the rows has changed: one comparison per
    message."""

    __slots__ = ()

    @awaited
    def tell(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs or (len(args) != self._count and len(args) not in self._method.counts):
            payload = self._method.encode(args, kwargs)
        else:
            try:
                packed = self._packed
                payload = packed(args)
            except UNPACKABLE as error:
                raise_signalled(error)
                payload = self._method.encode(args, kwargs)
        picked = self._route
        if picked.version != picked.rows.version:
            picked.renew()
        out = picked.route.out
        if out is None:
            return self._sender.tell(self._key, self._id, payload)
        out.tell(self._key, picked.wire, payload)
        return self._sender.done if out.writable else out.until_room


class TracedCall(LoopCall):
    """A handler in a process with tracing. A message that is not traced goes past its sender;
    `routing.tracing` says why that is written out here."""

    __slots__ = ()
    _sender: TracedSender

    @awaited
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        sender, payload, decode = self._sender, self._pack(args, kwargs), self._method.decode_result
        tracer = sender.tracer
        current = tracer.current
        left = tracer.countdown = tracer.countdown - 1
        if left > 0 and current() is tracer.plain:
            return sender.ask_untraced(self._key, self._id, payload, self._timeout_ms, decode)
        tracer.countdown = left + 1  # the sender counts it
        return sender.ask(self._key, self._id, payload, self._timeout_ms, decode)

    @awaited
    def tell(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs or (len(args) != self._count and len(args) not in self._method.counts):
            payload = self._method.encode(args, kwargs)
        else:
            try:
                packed = self._packed
                payload = packed(args)
            except UNPACKABLE as error:
                raise_signalled(error)
                payload = self._method.encode(args, kwargs)
        sender, out = self._sender, self._route.out
        tracer = sender.tracer
        current = tracer.current
        left = tracer.countdown = tracer.countdown - 1
        if out is not None and left > 0 and current() is tracer.plain:
            out.tell(self._key, self._id, payload)
            return sender.done if out.writable else out.until_room
        tracer.countdown = left + 1  # the sender counts it
        return sender.tell(self._key, self._id, payload)


class Ref(Addressed):
    """A reference to one entity. Its attributes are the entity's handlers. The sender decides
    whether a verb returns an awaitable or, in a thread, the outcome."""

    _calls: ClassVar[type[Call]] = LoopCall

    def __init__(
        self,
        sender: Sender,
        entity_id: str,
        timeout_ms: int,
        interface: Interface | None = None,
    ) -> None:
        self._sender, self.entity_id, self._timeout_ms = sender, entity_id, timeout_ms
        self._interface = interface or sender.interface
        """The interface of the class by which it was made; other modules may have other classes."""
        self._route = sender.route_for(entity_id)

    @property
    def entity_type(self) -> str:
        """Return the type's name."""
        return self._sender.interface.name

    def _address(self) -> tuple[Any, ...]:
        return *self._sender.address, self.entity_id

    def __dir__(self) -> list[str]:
        return [*self._interface.methods, "to"]

    def __getattr__(self, name: str) -> Call:
        if name.startswith("_"):  # no handler; also of a reference that was not made by its class
            raise AttributeError(name)
        method = self._interface.methods.get(name)
        if method is None:
            raise no_attribute(self._interface, name)
        sender, route = self._sender, self._route
        kind = self._calls
        if isinstance(sender, TracedSender):
            kind = TracedCall
        elif isinstance(route, Picked):
            kind = PickedCall
        call = kind(sender, self.entity_id, route, method, self._timeout_ms)
        setattr(self, name, call)  # an access to __dict__ would create a dict for each reference
        return call

    def __repr__(self) -> str:
        return f"<ref {self.entity_type} {self.entity_id!r}>"

    def within(self, timeout: float) -> Ref:
        """Return a reference to the same entity with another deadline for asks, in seconds."""
        return type(self)(self._sender, self.entity_id, milliseconds(timeout), self._interface)

    def to(self, policy: str, *, key: object = None, after: object = None) -> Ref:
        """Return a reference to the same entity by another router, of a type with instances.

        Raises:
            ConfigError: the type has none, or there is no such router.
        """
        sender = self._sender.by(choice_of(policy, key, after))
        return type(self)(sender, self.entity_id, self._timeout_ms, self._interface)

    def start_entity(self) -> Any:
        """Start the entity without a message, or by `all` each of its instances. Returns a future
        that is done when it runs."""
        return start_entity(self._sender, self.entity_id, self._timeout_ms)

    def tell(self, message: object) -> Any:
        """Send a message to `receive`."""
        return self._sender.send(self.entity_id, message)

    def ask(self, message: object) -> Any:
        """Ask `receive`."""
        return ask(self._sender, self.entity_id, message, (), self._timeout_ms)


class ThreadRef(Ref):
    """A reference for threads, whose verbs return the outcome itself: libraries call them in any
    thread."""

    _calls = Call


def duration(value: float | str) -> float:
    """Return a length of time in seconds, given so or as a text such as "1h".

    Raises:
        ConfigError: it is none.
    """
    return float(parse(DURATION, value))


def check_key(key: object) -> str:
    """Return the key of an ask.

    Raises:
        ConfigError: it is no text of 1 to `KEY_MAX` characters that UTF-8 can encode.
    """
    if isinstance(key, str) and 0 < len(key) <= KEY_MAX:
        return check_text("a key", key)
    raise ConfigError(f"a key is a text of 1 to {KEY_MAX} characters, not {key!r:.60}")


def milliseconds(timeout: float) -> int:
    """Return a deadline in whole milliseconds, as messages carry it; 0 if it is negative.

    Raises:
        ConfigError: it is no number, or over ten years.
    """
    with contextlib.suppress(TypeError):
        if timeout <= TIMEOUT_MAX_S:
            return int(max(timeout, 0) * 1000)
    raise ConfigError(
        f"a timeout is a number of seconds up to {TIMEOUT_MAX_S:g}, not {timeout!r:.60}"
    )


def ask(
    router: Messages, entity_id: str, message: object, args: tuple[Any, ...], timeout_ms: int
) -> Any:
    """Ask `receive` with `message`. With `args`, and if the type is known to have no `receive`, ask
    the handler that `message` names."""
    if args or message.__class__ is str:
        key, payload, decode = question(router, message, args)
        return router.ask(key, entity_id, payload, timeout_ms, decode)
    form = form_of(message)
    key, payload = router.key(form.method), form.encode(message)
    return router.ask(key, entity_id, payload, timeout_ms, decode_value)


def call(
    router: Messages, entity_id: str, handler: str, args: tuple[Any, ...], timeout_ms: int
) -> Any:
    """Ask a handler by its name."""
    key, payload, decode = named(router, handler, args)
    return router.ask(key, entity_id, payload, timeout_ms, decode)


def named(router: Messages, handler: str, args: tuple[Any, ...]) -> tuple[Key, bytes, Decode]:
    """Return key, payload and decoder of the answer for a handler that is named by a string."""
    declared = router.interface.methods.get(handler)
    decode = declared.decode_result if declared is not None else decode_value
    return router.key(handler), arguments(router, handler, args), decode


def arguments(router: Messages, handler: str, args: tuple[Any, ...]) -> bytes:
    """Encode the arguments of a handler that is named by a string: by its annotations, if the
    sender knows them."""
    declared = router.interface.methods.get(handler)
    return encode_arguments(args) if declared is None else declared.encode_positional(args)


def question(router: Messages, message: object, args: tuple[Any, ...]) -> tuple[Key, bytes, Decode]:
    """Return key, payload and decoder of the answer for an ask, as `ask` describes it."""
    interface = router.interface
    if isinstance(message, str):
        if args or (message in interface.methods and not interface.messages):
            return named(router, message, args)
    elif args:
        raise ConfigError(f"a handler is named by a string, not by {type(message).__name__}")
    form = form_of(message)
    return router.key(form.method), form.encode(message), decode_value


def tell(router: Messages, entity_id: str, message: object, args: tuple[Any, ...]) -> Any:
    """Tell a message to `receive`, or with `args` to the handler that it names."""
    key, payload = pack(router, message, args)
    return router.tell(key, entity_id, payload)


def cast(router: Messages, entity_id: str, handler: str, args: tuple[Any, ...]) -> Any:
    """Tell a handler by its name."""
    return router.tell(router.key(handler), entity_id, arguments(router, handler, args))


def start_entity(router: Messages, entity_id: str, timeout_ms: int) -> Any:
    """Start an entity. The future is done when it runs and, if its type remembers entities, when
    the store remembers it."""
    return router.ask(router.key(START), entity_id, NO_ARGUMENTS, timeout_ms, decode_value)


def pack(router: Messages, message: object, args: tuple[Any, ...]) -> tuple[Key, bytes]:
    """Return key and payload of a message for `receive`, or with `args` for a named handler."""
    if isinstance(message, str) and args:
        return router.key(message), arguments(router, message, args)
    method, payload = method_and_payload(message, args)
    return router.key(method), payload


def method_and_payload(message: object, args: tuple[Any, ...]) -> tuple[str, bytes]:
    """Return the method, and the payload, of a message as `pack` describes it."""
    if not args:
        form = form_of(message)
        return form.method, form.encode(message)
    if not isinstance(message, str):
        raise ConfigError(f"a handler is named by a string, not by {type(message).__name__}")
    return message, encode_arguments(args)
