"""`self.context`: what the runtime keeps for one running entity, and what the entity may ask of it.

Source: docs/how-to/define-entities.md; B.49, S2.38-S2.42, S4.17; B.50.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from shardbus.entities.eager import EagerTask
from shardbus.entities.entity_type import BEHAVIOUR, Invoker, StopReason
from shardbus.entities.passivation import idle_timeout
from shardbus.errors import LocalProtocolError
from shardbus.transport.session import Session
from shardbus.wire.batch import Chain
from shardbus.wire.schema import encode_value, method_of

if TYPE_CHECKING:
    from shardbus.entities.host import Host
    from shardbus.entities.shard import Shard
    from shardbus.entities.stopping import StopRequest


E = TypeVar("E")


OWN = -1
"""Stands for the correlation id in what an entity has from its own timers or from the runtime."""

NOBODY = -2
"""Stands there in a tell of which nobody wants to hear if it is dropped; below it are the marks of
links (`drops`)."""

OUTCOME = "$outcome"
"""Names no handler: a message with what came of an entity's work."""


class Message(NamedTuple):
    """A message that waits for its entity. `session` None: nobody waits for an answer; then
    `deadline` is 0, and `corr` says by which link it came. `chain`: the entities that wait."""

    invoker: Invoker
    payload: bytes
    session: Session | None
    corr: int
    deadline: int
    chain: Chain = ()

    @property
    def own(self) -> bool:
        """It ends with its incarnation: of a timer, of work, a stop message. All others start the
        next one."""
        return self.corr == OWN or self.invoker.name == OUTCOME


AFTER_CURRENT = (StopReason.PASSIVATION, StopReason.STOPPED, StopReason.FAILURE)
"""Such a stop does not wait for the mailbox: what is in it starts a new incarnation."""

Current = tuple[Invoker, bytes, Session | None, int, Chain]
"""A message being handled: as a Message, without its deadline."""


class Context:
    """One running entity as the runtime sees it; one object per entity, so it is small.

    `busy`: starting, waiting in a handler, or stopping; messages queue in the mailbox. Otherwise
    the next message is handled where it arrives."""

    __slots__ = (
        "_host",
        "_shard",
        "busy",
        "entity",
        "entity_id",
        "extras",
        "failed_at",
        "failures",
        "gone",
        "mailbox",
        "stopping",
        "turn",
        "used",
    )

    def __init__(self, host: Host, shard: Shard, entity_id: str) -> None:
        self._host, self._shard = host, shard
        self.entity_id = entity_id
        self.entity: Any = None
        self.busy = False
        self.gone = False
        """It takes nothing any more: it has ended, or wanted to as it started."""
        self.mailbox: deque[Message] | None = None
        self.stopping: StopReason | None = None
        self.used = 0
        self.failures = 0
        self.failed_at = 0
        self.turn: EagerTask | None = None
        """Of a handler, a start or an end that waits."""
        self.extras: Extras | None = None

    @property
    def entity_type(self) -> str:
        return self._host.name

    @property
    def shard_id(self) -> str:
        return self._shard.shard

    @property
    def shard(self) -> Shard:
        """For the runtime."""
        return self._shard

    @property
    def node(self) -> str:
        """This node, `host:port#uid`."""
        return self._host.node_name

    @property
    def fence(self) -> int:
        """The number of this shard's allocation; it only grows. Writes elsewhere that carry it can
        be told from a predecessor's."""
        return self._shard.fence

    @property
    def sender(self) -> str | None:
        """Who asked: the routing name of the node or client, None for a tell."""
        message = self.handling
        return None if message is None or message[2] is None else message[2].name

    @property
    def stop_request(self) -> StopRequest | None:
        """For the runtime: how far it is on its way out, if a stop message was sent to it."""
        return None if self.extras is None else self.extras.stop_request

    @property
    def refusal(self) -> BaseException | None:
        """For the runtime: why its start failed, if it shall not be tried again."""
        return None if self.extras is None else self.extras.refusal

    @property
    def handling(self) -> Current | None:
        """For the runtime: the message being handled."""
        now = self._host.execution
        if now.activation is not self or now.way is None:
            return self.turn.message if self.turn is not None else None
        invoker, session, chain = now.way
        return invoker, now.payload, session, now.corr, chain

    @overload
    def ref(self, entity_type: type[E], entity_id: str) -> E: ...
    @overload
    def ref(self, entity_type: str, entity_id: str) -> Any: ...
    def ref(self, entity_type: Any, entity_id: str) -> Any:
        """A reference to another entity, typed if its class is given."""
        return self._host.ref(entity_type, entity_id)

    async def save(self, data: bytes | None) -> None:
        """For `Entity.save`: write these bytes as the entity's state."""
        await self._host.save(self, data)

    def passivate(self, stop_message: object = None) -> None:
        """Stop this entity after what it is doing; messages that wait for it start a new
        incarnation.

        With a `stop_message` it first handles what has come until now, then that message, and stops
        when it calls `stop`; what comes meanwhile waits for the new incarnation, except from its
        own timers and work.

        Raises:
            ConfigError: no handler takes the stop message. Nothing has changed.
        """
        if stop_message is None:
            self._host.stopper.leave(self, StopReason.PASSIVATION)
        else:
            self._host.stopper.passivate(self, stop_message)

    def stop(self) -> None:
        """Stop this entity after what it is doing. Where a stop message asked for it, that says
        what it counts as; else it counts as stopped by itself."""
        self._host.stopper.leave(self, StopReason.STOPPED)

    def schedule_once(self, delay: float, message: object) -> asyncio.TimerHandle:
        """Send `message`, as it is now, to this entity's `receive` in `delay` seconds, unless it
        has stopped by then.

        Raises:
            SchemaError: it cannot travel. Nothing was scheduled.
        """
        method, payload = method_of(message), encode_value(message)
        return self.more().add_timer(
            self._host.loop.call_later(delay, self._host.tell_self, self, method, payload)
        )

    def schedule(self, interval: float, message: object) -> None:
        """Send `message`, as it is now, every `interval` seconds for as long as the entity runs.

        Raises:
            SchemaError: it cannot travel. Nothing was scheduled.
        """
        method, payload = method_of(message), encode_value(message)

        def begin() -> None:
            self.more().add_timer(self._host.loop.call_later(interval, again))

        def again() -> None:
            begin()  # first: the message may end the entity, and this
            self._host.tell_self(self, method, payload)

        begin()

    def stash(self) -> None:
        """Put the message being handled aside, with whoever waits for its answer.

        Raises:
            LocalProtocolError: no message is being handled.
        """
        self._host.deferred.stash(self)

    def unstash_all(self) -> None:
        """Handle the stashed messages next, in the order in which they came."""
        self._host.deferred.unstash_all(self)

    def pipe_to_self(self, work: Awaitable[object], *, answer: bool = False) -> None:
        """Do this beside the messages; what comes of it, a value or an exception, is the very
        object that `receive` then gets as a message.

        Args:
            work: a coroutine or a future. It is cancelled when this incarnation ends before it.
            answer: whoever waits for the message being handled is answered by what handling the
            outcome returns or raises, and not before.

        Raises:
            LocalProtocolError: there is no `receive`, or no message that could be answered later.
        """
        self._host.deferred.begin(self, work, answer=answer)

    def become(self, behaviour: Callable[[Any], object]) -> None:
        """From the next message on, this method handles what `receive` would; a restart begins
        with `receive` again. Handlers that are called by name stay as they are.

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
        """Passivate this entity after so many idle seconds, or a duration such as "10m", instead of
        its type's; 0 is never.

        Raises:
            ConfigError: no such length of time. Nothing has changed.
        """
        self.more().idle_timeout = idle_timeout(seconds)
        self._host.passivator.own_idle_timeout(self)

    @property
    def idle(self) -> bool:
        """For the runtime: it does nothing, and no work of its own is under way."""
        return not self.busy and not self._host.deferred.works(self)

    @property
    def ends_now(self) -> bool:
        """For the runtime: one that is to stop has nothing left to do before."""
        if self.entity is None or self.stopping in AFTER_CURRENT:
            return True
        stop_request, left = self.stop_request, bool(self.mailbox)
        if stop_request is not None and stop_request.holds:
            left = stop_request.first_own(self.mailbox) is not None
        return not left and not self._host.deferred.works(self)

    def end_incarnation(self) -> None:
        """For the runtime: what this object began is over. Its stash is not."""
        if self.extras is not None:
            self.extras.cancel_timers()
        self._host.deferred.end(self)

    def more(self) -> Extras:
        if self.extras is None:
            self.extras = Extras()
        return self.extras


class Extras:
    """What only some entities need: timers, a stash, an idle timeout of their own, a stop message,
    the end of a start that failed."""

    __slots__ = ("idle_timeout", "refusal", "stash", "stashed", "stop_request", "timers")

    def __init__(self) -> None:
        self.timers: list[asyncio.TimerHandle] = []
        self.stash: list[Message] = []
        self.stashed = False
        """The message being handled was put aside: it has no answer yet."""
        self.idle_timeout: float | None = None
        self.stop_request: StopRequest | None = None
        self.refusal: BaseException | None = None

    def put_aside(self) -> bool:
        """Whether the message just handled was stashed; asked once."""
        stashed, self.stashed = self.stashed, False
        return stashed

    def add_timer(self, timer: asyncio.TimerHandle) -> asyncio.TimerHandle:
        """Keep it, to be cancelled with the entity; spent ones are let go."""
        if len(self.timers) >= 16:
            now = asyncio.get_running_loop().time()
            self.timers = [t for t in self.timers if not t.cancelled() and t.when() > now]
        self.timers.append(timer)
        return timer

    def cancel_timers(self) -> None:
        """The entity stops."""
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()
