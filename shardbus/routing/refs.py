"""References: what a sender holds to reach one entity.

`ref.add(2)` asks the handler `add`, `ref.add.tell(1)` tells it. For type checkers a reference is an
object of the entity's class, whose handlers are `Call`s; at run time it is a `Ref` that makes each
call once and keeps it, so that a loop over one reference pays for no look-up.

Source: docs/how-to/send.md; B.48, B.140.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from shardbus.errors import BufferFull, ConfigError, ShardBusError
from shardbus.routing.pending_message import PendingMessage
from shardbus.routing.router import Router, ShardRoute
from shardbus.transport.asks import Key
from shardbus.wire.schema import Decode, Method, decode_value, encode_value, method_of, pack_value

if TYPE_CHECKING:
    import asyncio

START = "$start"
"""Names no handler: what asks for it only wants the entity to run [StartEntity]."""
NO_ARGUMENTS = encode_value(())

UNPACKABLE = (TypeError, ValueError, OverflowError, RecursionError)
ASK_TIMEOUT_MS = 5000
"""For an answer inside a node, unless the sender says otherwise."""
TIMEOUT_MAX_S = 3.1536e8
"""Ten years, as for a setting."""

RESERVED = frozenset(
    {"tell", "ask", "entity_id", "entity_type", "within", "tell_nowait", "start_entity"}
)
"""Names that a reference itself has; no handler may be called so."""


class Call:
    """One handler of one entity, ready to be asked or told."""

    __slots__ = ("_counts", "_decode", "_id", "_key", "_method", "_route", "_router", "_timeout_ms")

    def __init__(
        self, router: Router, entity_id: str, route: ShardRoute, method: Method, timeout_ms: int
    ) -> None:
        self._router, self._id, self._route, self._method = router, entity_id, route, method
        self._timeout_ms, self._decode = timeout_ms, method.decode_result
        self._key = router.key(method.name)
        self._counts = method.counts

    def _pack(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The arguments as bytes; what does not fit the signature is named by the slow way."""
        if not kwargs and len(args) in self._counts:
            try:
                return pack_value(args)
            except UNPACKABLE:
                pass
        return self._method.encode(args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        """Ask; the future is the handler's answer.

        Raises:
            TypeError: the arguments do not fit the handler. SchemaError: one cannot travel.
        """
        return self._router.ask(
            self._key, self._id, self._pack(args, kwargs), self._timeout_ms, self._decode
        )

    def tell(self, *args: Any, **kwargs: Any) -> Any:
        """Send without an answer; awaiting it waits only while the send buffer is full.

        Raises:
            BufferFull: too much waits already, for the shard's home or, without one, for any.
        """
        if kwargs or len(args) not in self._counts:
            payload = self._method.encode(args, kwargs)
        else:
            try:
                payload = pack_value(args)
            except UNPACKABLE:
                payload = self._method.encode(args, kwargs)
        out = self._route.out
        if out is None:
            return self._router.deliver(
                PendingMessage(self._key, self._route.shard, self._id, payload)
            )
        out.tell(self._key, self._id, payload)
        return self._router.done if out.writable else out.until_room

    def tell_nowait(self, *args: Any, **kwargs: Any) -> None:
        """Send, or raise BufferFull where `tell` would wait."""
        out = self._route.out
        if out is not None and not out.writable:
            raise BufferFull(f"the send buffer to {out.name} is full")
        self.tell(*args, **kwargs)


class Ref:
    """One entity. Its attributes are its handlers."""

    def __init__(self, router: Router, entity_id: str, timeout_ms: int) -> None:
        self._router, self.entity_id, self._timeout_ms = router, entity_id, timeout_ms
        self._route = router.route_of(entity_id)

    @property
    def entity_type(self) -> str:
        """The type's name."""
        return self._router.interface.name

    def __getattr__(self, name: str) -> Call:
        method = self._router.interface.methods.get(name)
        if method is None:
            raise AttributeError(f"entity type {self.entity_type!r} has no handler {name!r}")
        call = Call(self._router, self.entity_id, self._route, method, self._timeout_ms)
        setattr(self, name, call)  # writing to __dict__ would make a dict for each reference
        return call

    def __repr__(self) -> str:
        return f"<ref {self.entity_type} {self.entity_id!r}>"

    def within(self, timeout: float) -> Ref:
        """The same entity with another deadline for asks, in seconds."""
        return Ref(self._router, self.entity_id, milliseconds(timeout))

    def start_entity(self) -> asyncio.Future[Any]:
        """Start it without a message; done when it runs."""
        return start_entity(self._router, self.entity_id, self._timeout_ms)

    def tell(self, message: object) -> Any:
        """Send a message to `receive`."""
        return self._router.send(self.entity_id, message)

    def ask(self, message: object) -> asyncio.Future[Any]:
        """Ask `receive`."""
        return ask(self._router, self.entity_id, message, (), self._timeout_ms)


def milliseconds(timeout: float) -> int:
    """The seconds of a deadline, as messages carry them; none are left below 0.

    Raises:
        ConfigError: no number, or too many.
    """
    with contextlib.suppress(TypeError):
        if timeout <= TIMEOUT_MAX_S:
            return int(max(timeout, 0) * 1000)
    raise ConfigError(
        f"a timeout is a number of seconds up to {TIMEOUT_MAX_S:g}, not {timeout!r:.60}"
    )


def ask(
    router: Router, entity_id: str, message: object, args: tuple[Any, ...], timeout_ms: int
) -> asyncio.Future[Any]:
    """Ask by names: `message` for `receive`, or with `args` the name of a handler."""
    if args:
        if not isinstance(message, str):
            raise ConfigError(f"a handler is named by a string, not by {type(message).__name__}")
        return call(router, entity_id, message, args, timeout_ms)
    key = router.key(method_of(message))
    return router.ask(key, entity_id, encode_value(message), timeout_ms, decode_value)


def attempt(
    router: Router, entity_id: str, message: object, timeout_ms: int
) -> asyncio.Future[Any]:
    """Ask `receive`; what stands in the way of sending is told by the future, too."""
    try:
        return ask(router, entity_id, message, (), timeout_ms)
    except ShardBusError as error:
        future = router.done.get_loop().create_future()
        future.set_exception(error)
        return future


def call(
    router: Router, entity_id: str, handler: str, args: tuple[Any, ...], timeout_ms: int
) -> asyncio.Future[Any]:
    """Ask a handler by its name."""
    key, payload, decode = named(router, handler, args)
    return router.ask(key, entity_id, payload, timeout_ms, decode)


def named(router: Router, handler: str, args: tuple[Any, ...]) -> tuple[Key, bytes, Decode]:
    """A message for a handler that is named: its method, its bytes, and how to read the answer."""
    known = router.interface.methods.get(handler)
    decode = known.decode_result if known is not None else decode_value
    return router.key(handler), encode_value(args), decode


def start_entity(router: Router, entity_id: str, timeout_ms: int) -> asyncio.Future[Any]:
    """Start it, if it does not run; done when it does. A remembered one is on its list then."""
    return router.ask(router.key(START), entity_id, NO_ARGUMENTS, timeout_ms, decode_value)


def pack(router: Router, message: object, args: tuple[Any, ...]) -> tuple[Key, bytes]:
    """The method and the bytes of a message by names."""
    if not args:
        return router.key(method_of(message)), encode_value(message)
    if not isinstance(message, str):
        raise ConfigError(f"a handler is named by a string, not by {type(message).__name__}")
    return router.key(message), encode_value(args)
