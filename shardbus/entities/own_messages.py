"""Messages of the node itself to an entity of its type: a due reminder, events to handle, an
operator's order. Such a message calls a function of the node with the entity, in its turn among the
entity's other messages.

Source: docs/how-to/reminders.md; docs/how-to/event-sourcing.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from shardbus.entities.activation import Activation, Message, Shard
from shardbus.entities.entity_type import EntityType, Invoker, StopReason
from shardbus.entities.gate import SuspensionGate
from shardbus.errors import AskTimeout, Refused
from shardbus.transport.drop_reports import Origin

T = TypeVar("T")

ORDER_S = 4.0
"""Seconds for an operator's order."""


class WorkHost(Protocol):
    """The host of an entity type, as the node's own work with its entities calls it: reminders,
    projections and durable mailboxes."""

    name: str
    kind: EntityType
    node_name: str
    loop: asyncio.AbstractEventLoop
    wall_clock: Callable[[], float]
    shards: dict[str, Shard]
    gate: SuspensionGate
    counts: Any
    deliveries: Any
    runner: Any
    saver: Any
    stopper: Any
    draining: Any
    ref: Callable[[Any, str], Any]

    def find(self, entity_id: str, shard: str) -> Activation | None: ...
    def activate(self, hosted: Shard, entity_id: str, cause: str = ...) -> Activation: ...
    def end(self, activation: Activation, reason: StopReason) -> None: ...
    def maybe_down(self, hosted: Shard) -> None: ...
    def traced(self, invoker: Invoker, trace: str, *, is_ask: bool) -> Invoker: ...


def send_own(
    host: WorkHost, activation: Activation, name: str, act: Callable[[Any], Awaitable[None]]
) -> None:
    """Send an entity the message that calls `act` with it. `name`: of the message; no handler has
    it."""

    async def run(entity: Any, message: None) -> None:
        await act(entity)

    invoker = Invoker(name, run, True, {}, lambda payload: None)
    host.stopper.receive_own(activation, Message(invoker, b"", None, Origin.OWN, 0))


def has_own(host: WorkHost, activation: Activation, name: str) -> bool:
    """True if a message of this name is on its way to the entity, or being handled."""
    handled = host.runner.handling(activation)
    if handled is not None and handled[0].name == name:
        return True
    return any(message.invoker.name == name for message in activation.mailbox or ())


async def order(
    host: WorkHost,
    shard: str,
    key: str,
    name: str,
    act: Callable[[Activation, Any], Awaitable[T]],
) -> T:
    """Let an entity do something for an operator, and return the result. The entity starts if it is
    not in memory.

    Raises:
        Refused: the shard is not here, or moves; or `act` raises it.
        AskTimeout: the entity has not come to it; it may be done later.
    """
    hosted = host.shards.get(shard)
    if hosted is None or hosted.stopping is not None or host.gate.close_if_due():
        text = f"shard {shard!r:.100} of {host.name} moves or waits now"
        raise Refused(text, hint="try again")
    done: asyncio.Future[T] = host.loop.create_future()

    async def run(entity: Any) -> None:
        try:
            result = await act(activation, entity)
        except Refused as error:
            if not done.done():
                done.set_exception(error)
        else:
            if not done.done():
                done.set_result(result)

    activation = host.find(key, shard) or host.activate(hosted, key, "operator")
    send_own(host, activation, name, run)
    try:
        async with asyncio.timeout(ORDER_S):
            return await done
    except TimeoutError:
        text = f"{host.name} {key!r:.100} has not come to it within {ORDER_S:g} s"
        raise AskTimeout(text) from None
