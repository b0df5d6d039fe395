"""The region of a type, for senders: it finds the entity of a message.

The type's `extract_entity_id` returns the entity id of a message, or the id and a replacement that
the entity receives, so that an envelope is unwrapped on the sender's side. It returns None for a
message that it does not know.

    region.tell(Get(7))                        the id is in the message
    region.tell(CounterEnvelope(7, Add(1)))    the extractor unwraps it
    region.tell(Envelope("7", Add(1)))         every region knows this class
    region.tell(StartEntity("7"))              only start the entity

The shard is a function of the id alone. So an id has one shard for all messages, a client can
compute it, and nothing needs to be extracted from a `StartEntity`.

Source: S0.3, S0.4, S2.8, S2.12-S2.15, S2.20, S2.22, S4.3, S4.4, S4.40.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol
from zlib import crc32

from shardbus.error_text import described, shown, type_name
from shardbus.errors import ConfigError, Unhandled
from shardbus.ids import check_id
from shardbus.routing.refs import NO_ARGUMENTS, START, ask, milliseconds, start_entity
from shardbus.routing.router import Sender
from shardbus.routing.sent import awaited
from shardbus.tasks.interrupts import raise_interrupt
from shardbus.wire.schema import Interface

SAMPLES = (
    *map(str, range(40)),
    *("a", "b", "z", "page-7", "N14228", "ada@example.org", "tenant/7", "7:8", "2024-01-31", "ü"),
    *("123456789", "550e8400-e29b-41d4-a716-446655440000"),
)
"""Entity ids of usual forms, by which `layout_of` tells shard functions apart."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message and the id of the entity that receives it."""

    entity_id: str
    message: object


@dataclass(frozen=True, slots=True)
class StartEntity:
    """Start this entity without a message. A remembered entity keeps running from then on."""

    entity_id: str


class Owner(Protocol):
    """The owner of the senders to a type: a node's region, or a client's."""

    @property
    def sender(self) -> Sender: ...

    def dropped(self, reason: str) -> None: ...


class Region:
    """Sends messages of one type. `owner` is called for each message, because a region may exist
    before there is a node."""

    def __init__(self, interface: Interface, owner: Callable[[], Owner], timeout_ms: int) -> None:
        self._interface, self._owner, self._timeout_ms = interface, owner, timeout_ms

    @awaited
    def tell(self, message: object) -> Any:
        """Send to the entity that the message names. Returns an awaitable that waits while the send
        buffer is full.

        Raises:
            Unhandled: the extractor does not know the message, which is counted as dropped.
            ConfigError: there is no extractor, or it returned no id. Otherwise as `Ref.tell`.
        """
        owner = self._owner()
        if isinstance(message, StartEntity):
            sender = owner.sender
            return sender.tell(sender.key(START), self._checked(message.entity_id), NO_ARGUMENTS)
        entity_id, received = self._addressed(owner, message)
        return owner.sender.send(entity_id, received)

    @awaited
    def ask(self, message: object, timeout: float | None = None) -> asyncio.Future[Any]:
        """Ask the entity that the message names, for at most `timeout` seconds. Raises as `tell`,
        and as `Ref.ask`."""
        owner = self._owner()
        timeout_ms = self._timeout_ms if timeout is None else milliseconds(timeout)
        if isinstance(message, StartEntity):
            entity_id = self._checked(message.entity_id)
            answer: asyncio.Future[Any] = start_entity(owner.sender, entity_id, timeout_ms)
        else:
            entity_id, received = self._addressed(owner, message)
            answer = ask(owner.sender, entity_id, received, (), timeout_ms)
        return answer

    def _addressed(self, owner: Owner, message: object) -> tuple[str, object]:
        """Return the entity id, and the message that the entity receives."""
        if isinstance(message, Envelope):
            return self._checked(message.entity_id), message.message
        extract = self._interface.extract_entity_id
        if extract is None:
            raise ConfigError(
                f"entity type {self._interface.name!r} has no extract_entity_id",
                hint="declare one, or send Envelope(entity_id, message)",
            )
        answer: Any = None
        try:
            answer = extract(message)
        except Exception as e:
            raise self._unknown(owner, message, f": {described(e)}") from e
        except BaseException:  # the sender gets it
            owner.dropped("unhandled")
            raise
        if answer is None:
            raise self._unknown(owner, message)
        if isinstance(answer, tuple) and len(answer) == 2:
            return self._checked(answer[0]), answer[1]
        return self._checked(answer), message

    def _unknown(self, owner: Owner, message: object, why: str = "") -> Unhandled:
        owner.dropped("unhandled")
        name, kind = self._interface.name, type_name(message)
        return Unhandled(f"extract_entity_id of {name!r} knows no such {kind}{why}")

    def _checked(self, entity_id: object) -> str:
        if not isinstance(entity_id, str):
            raise ConfigError(
                f"an entity id of {self._interface.name!r} is a str, not {shown(entity_id, 60)}"
            )
        return check_id("an entity id", entity_id)


class UnsteadyShard(ConfigError):
    """A shard function has returned two shards for one id. An entity would run in both."""


def shard_function(name: str, extract: Callable[[str], object]) -> Callable[[str], str]:
    """Return a type's own `extract_shard_id` with checks: if it raises, returns no shard id, or
    another one when it is called again, only the sender of that message gets an error.

    It is called in the event loop, for an id whose route is not known. A thread would cost each of
    these messages more than the function.

    Raises:
        ConfigError: (in the function that is returned) there is no shard for the id.
    """

    def shard_of(entity_id: str) -> str:
        try:
            shard: Any = extract(entity_id)
            again = extract(entity_id)
        except BaseException as e:  # of the sender's message, in the node that it has come to
            raise_interrupt(e)
            raise ConfigError(
                f"extract_shard_id of {name!r} failed for the id {entity_id!r}: {described(e)}",
                hint="it gets the entity id, not the message",
            ) from e
        if not issubclass(type(shard), str):
            raise ConfigError(
                f"extract_shard_id of {name!r} gave {shown(shard, 60)}", hint="a shard id is a str"
            )
        if str.__eq__(shard, again) is not True:
            raise UnsteadyShard(
                f"extract_shard_id of {name!r} gave {shown(shard, 60)} and then {shown(again, 60)}"
                f" for the id {entity_id!r}",
                hint="a shard id depends on the entity id alone",
            )
        return check_id("a shard id", str.__str__(shard))

    return shard_of


def layout_of(shard_of: Callable[[str], str], extract: Callable[..., object], shards: int) -> str:
    """Return the layout name of a type's own shard function, by which nodes, clients and the store
    compare it: its name, and a checksum of its results for some ids.

    The module is left out, because the same file may be a script in one process and a module in
    another. A function whose results differ between processes, as any that uses `hash()`, has
    another checksum in each, and is refused.

    Raises:
        UnsteadyShard: the results differ between two calls.
    """
    results = []
    for sample in SAMPLES:
        try:
            results.append(shard_of(sample))
        except UnsteadyShard:
            raise
        except ConfigError:
            results.append("")
    name = getattr(extract, "__qualname__", type(extract).__qualname__).rpartition(".")[2]
    return f"{name}:{crc32(repr(results).encode()):08x}/{shards}"
