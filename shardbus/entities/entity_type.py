"""What a node knows of one entity type: the class, its handlers, and what the class declares about
itself.

`app.py` builds it from the decorators once; everything here is read-only afterwards.

Source: S2.7, S2.27, S2.37, S2.57; STYLE (options declared once).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Any

from shardbus.config.settings import NodeSettings
from shardbus.errors import ConfigError
from shardbus.routing.refs import NO_ARGUMENTS
from shardbus.sharding.allocation.strategies import AllocationStrategy
from shardbus.wire.instances import ReadAll
from shardbus.wire.schema import Decode, Interface, encode_value, method_of

BEHAVIOUR = "current behaviour"
"""Key, in an entity's own attributes, of the method that it became; absent: `receive`."""

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
    """What becomes of an entity whose handler raised."""

    RESUME = "resume"
    RESTART = "restart"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Invoker:
    """One method, ready to run. A handler's arguments are an array, read by the decoder of its
    length; `receive` gets one message, read by `one`."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    decoders: Mapping[int, Decode]
    one: Decode | None = None
    single: Decode | None = None
    """The only decoder, of a handler that always has one argument."""
    read_all: ReadAll | None = None
    """Reads what many messages bring, where that is quicker than one by one."""


@dataclass(frozen=True, slots=True)
class EntityType:
    """See the module."""

    cls: type
    interface: Interface
    invokers: Mapping[str, Invoker]
    declared: Mapping[str, object]
    """Sharding settings that the class sets, by name."""
    starts: bool
    """The class has an `on_start` of its own."""
    stops: bool
    """The class has an `on_stop` of its own."""
    state_class: type | None = None
    read_state: Decode | None = None
    supervision: Callable[[Exception], Directive] = lambda error: Directive.RESTART
    strategy: AllocationStrategy | None = None
    """None: the one that the settings name."""
    behaviours: frozenset[Callable[..., Any]] = frozenset()
    """Methods that may stand in for `receive`, itself among them; none if the class has no other
    than that."""
    proxy: bool = False
    """This process hosts nothing of it."""
    stop_message: tuple[Invoker, bytes] | None = None
    """What an entity gets when the runtime wants it to stop, ready to be handled; None: it is just
    stopped."""

    @property
    def name(self) -> str:
        return self.interface.name

    def hosted_by(self, role: str, node: NodeSettings) -> bool:
        """Whether a node of these settings hosts the type, which asks for that role."""
        told = self.proxy or self.name in node.proxies or EVERY_TYPE in node.proxies
        return not told and (not role or role in node.roles)

    @property
    def plain(self) -> bool:
        """Starting such an entity needs no waiting: no state to load, no `on_start`."""
        return not self.starts and self.state_class is None


def addressed(invokers: Mapping[str, Invoker], message: object) -> tuple[Invoker, bytes]:
    """A message of an entity's own, ready to be handled: a text that names a handler without
    parameters is for that handler, everything else for `receive`.

    Raises:
        ConfigError: no handler takes it.
    """
    named = invokers.get(message) if isinstance(message, str) and message else None
    if named is not None and NO_ARGUMENTS[0] in named.decoders:
        return named, NO_ARGUMENTS
    try:
        payload = encode_value(message)
        invoker = invokers.get(method_of(message)) or invokers.get("")
        if invoker is not None and invoker.one is not None:
            invoker.one(payload)
            return invoker, payload
        why = "there is no receive"
    except Exception as e:
        why = str(e)
    raise ConfigError(f"no handler takes {message!r}"[:150] + f": {why}"[:150])


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine."""
    return inspect.iscoroutinefunction(function)


def in_thread(function: Callable[..., Any], pool: ThreadPoolExecutor | None) -> Callable[..., Any]:
    """A blocking handler as a coroutine function that runs it in a worker thread: of that pool, or
    of the loop's own."""

    async def call(entity: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(pool, function, entity, *args)

    return call
