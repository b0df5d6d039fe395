"""`self.context`: the public API of a running entity. `Context` is the activation with the methods
that an entity may call.

Source: docs/how-to/define-entities.md; S2.38-S2.42, S4.15-S4.24.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeVar, overload

from shardbus.entities.activation import Activation
from shardbus.entities.deferred import DeferredWork
from shardbus.entities.entity_type import BEHAVIOUR, EntityType, StopReason, addressed
from shardbus.entities.passivation import Passivator
from shardbus.entities.passivation_settings import idle_timeout
from shardbus.entities.runner import EntityRunner
from shardbus.entities.stopping import Stopper
from shardbus.errors import LocalProtocolError
from shardbus.routing.paths import child_id
from shardbus.sharding.instances import split_row
from shardbus.wire.schema import encode_value, method_of

E = TypeVar("E")


class ContextHost(Protocol):
    """What a context calls: the host of its type, and the parts of that host."""

    name: str
    kind: EntityType
    node_name: str
    loop: asyncio.AbstractEventLoop
    outside: contextvars.Context
    ref: Callable[[Any, str], Any]
    runner: EntityRunner
    deferred: DeferredWork
    stopper: Stopper
    passivator: Passivator

    def save(self, activation: Activation, data: bytes | None) -> Coroutine[Any, Any, None]: ...
    def timer_cause(self) -> str: ...
    def tell_self(
        self,
        activation: Activation,
        method: str,
        payload: bytes,
        cause: str,
        delay: float | None = None,
    ) -> None: ...


class Context(Activation):
    """What an entity knows of itself and may ask for, as `self.context`."""

    __slots__ = ()

    @property
    def _host(self) -> ContextHost:
        """Return what serves the entities of this type here."""
        host: ContextHost = self.shard.host
        return host

    @property
    def entity_id(self) -> str:
        """The entity's id."""
        return self.key

    @property
    def instance(self) -> int:
        """The number of this instance, from 1, of a type with instances; 0 of any other type."""
        return 0

    @property
    def entity_type(self) -> str:
        """The name of the entity's type."""
        return self._host.name

    @property
    def shard_id(self) -> str:
        """The entity's shard."""
        return self.shard.shard

    @property
    def node(self) -> str:
        """This node, as `host:port#uid`."""
        return self._host.node_name

    @property
    def fence(self) -> int:
        """The number of this shard's allocation; it only grows. A write to another system that
        carries it can be distinguished from a predecessor's."""
        return self.shard.fence

    @property
    def sender(self) -> str | None:
        """The routing name of the node or client that asked; None for a tell."""
        message = self._host.runner.handling(self)
        return None if message is None or message[2] is None else message[2].name

    @overload
    def ref(self, entity_type: type[E], entity_id: str) -> E: ...
    @overload
    def ref(self, entity_type: str, entity_id: str) -> Any: ...
    def ref(self, entity_type: Any, entity_id: str) -> Any:
        """Return a reference to another entity, typed if its class is given."""
        return self._host.ref(entity_type, entity_id)

    @overload
    def child(self, entity_type: type[E], own_id: str) -> E: ...
    @overload
    def child(self, entity_type: str, own_id: str) -> Any: ...
    def child(self, entity_type: Any, own_id: str) -> Any:
        """Return a reference to an entity that lives within this one. `own_id` is its id without
        this entity's.

        Raises:
            ConfigError: the id is invalid.
        """
        return self._host.ref(entity_type, child_id(self.entity_id, own_id))

    def save(self, data: bytes | None) -> Coroutine[Any, Any, None]:
        """Write these bytes as the entity's state. `Entity.save` calls it."""
        return self._host.save(self, data)

    def passivate(self, stop_message: object = None) -> None:
        """Stop this entity after its current message. Messages that wait for it start a new
        activation.

        With a `stop_message`, the entity first handles the messages that have arrived, then that
        message, and stops when it calls `stop`. Messages that arrive meanwhile wait for the new
        activation, except those of its own timers and piped work.

        Raises:
            ConfigError: no handler takes the stop message. Nothing has changed.
        """
        if stop_message is None:
            self._host.stopper.leave(self, StopReason.PASSIVATION)
        else:
            self._host.stopper.passivate(self, stop_message)

    def stop(self) -> None:
        """Stop this entity after its current message. If a stop message asked for it, the reason is
        the one of that request; otherwise it is STOPPED."""
        self._host.stopper.leave(self, StopReason.STOPPED)

    def schedule_once(self, delay: float, message: object) -> asyncio.TimerHandle:
        """Send `message`, as it is now, to this entity in `delay` seconds: a text that names a
        handler without arguments calls that handler, anything else is for `receive`. The timer
        ends with the activation.

        Raises:
            SchemaError: the message cannot be encoded. ConfigError: nothing takes it. Nothing was
                scheduled.
        """
        (method, payload), host = self._addressed(message), self._host
        fires = partial(host.tell_self, self, method, payload, host.timer_cause(), delay)
        return self.more().add_timer(host.loop.call_later(delay, fires, context=host.outside))

    def schedule(self, interval: float, message: object) -> None:
        """Send `message`, as it is now, every `interval` seconds until the activation ends.
        Otherwise as `schedule_once`."""
        (method, payload), host = self._addressed(message), self._host
        cause = host.timer_cause()

        def begin() -> None:
            self.more().add_timer(host.loop.call_later(interval, again, context=host.outside))

        def again() -> None:
            begin()  # first: the message may end the entity, and this timer with it
            host.tell_self(self, method, payload, cause)

        begin()

    def _addressed(self, message: object) -> tuple[str, bytes]:
        """Return the method and the payload of a timer's message. Raises as `schedule_once`."""
        method_of(message)
        encode_value(message)
        invoker, payload = addressed(self._host.kind.invokers, message)
        return invoker.name, payload

    def stash(self) -> None:
        """Put the message being handled aside. Its asker waits on.

        Raises:
            LocalProtocolError: no message is being handled.
        """
        self._host.deferred.stash(self)

    def unstash_all(self) -> None:
        """Handle the stashed messages next, in the order of their arrival."""
        self._host.deferred.unstash_all(self)

    def pipe_to_self(self, work: Awaitable[object], *, answer: bool = False) -> None:
        """Run this work beside the messages. `receive` gets its outcome, a value or an exception,
        as a message: the very object, not a copy.

        Args:
            work: a coroutine or a future. It is cancelled if this activation ends first.
            answer: the asker of the message being handled is answered by what handling the outcome
            returns or raises, and not before.

        Raises:
            LocalProtocolError: there is no `receive`, or no message to answer later.
        """
        self._host.deferred.begin(self, work, answer=answer)

    def become(self, behaviour: Callable[[Any], object]) -> None:
        """Handle what `receive` would handle by this method, from the next message on. A restart
        begins with `receive` again. Handlers that are called by name do not change.

        Raises:
            LocalProtocolError: it is not this entity's `receive`, nor a method marked `@behaviour`.
        """
        entity: Any = getattr(behaviour, "__self__", None)
        function = getattr(behaviour, "__func__", None)
        if (
            getattr(entity, "context", None) is not self
            or function not in self._host.kind.behaviours
        ):
            name = getattr(behaviour, "__name__", repr(behaviour))
            raise LocalProtocolError(f"{name} is no behaviour of this {self.entity_type}")
        vars(entity)[BEHAVIOUR] = function

    def set_idle_timeout(self, seconds: float | str) -> None:
        """Passivate this entity after this idle time, in seconds or as a duration such as "10m",
        instead of its type's; 0 is never.

        Raises:
            ConfigError: it is no duration. Nothing has changed.
        """
        self.more().idle_timeout = idle_timeout(seconds)
        self._host.passivator.own_idle_timeout(self)


class InstanceContext(Context):
    """The context of an entity of a type with instances."""

    __slots__ = ()

    @property
    def entity_id(self) -> str:
        """The entity's id, the same for all of its instances."""
        return split_row(self.key)[0]

    @property
    def instance(self) -> int:
        """The number of this instance."""
        return split_row(self.key)[1]
