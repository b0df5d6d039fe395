"""`self.context`: the public API of a running entity.

A context belongs to one object of an entity. An activation makes its object anew when a start or a
handler fails, and the former object may go on in tasks that it has created, so each object has a
context of its own:

    first object    FirstContext, the activation itself: an entity takes no more memory for it
    each later one  LaterContext, which has the number of the object

A context is *over* once its object is: the activation makes another object, or has left memory.
Then whatever writes, asks or acts raises StaleActivation, and changes nothing. A context's facts
about its entity stay: ids, shard, node, fence.

Source: docs/how-to/define-entities.md; docs/how-to/keep-state.md; S2.38-S2.42, S4.15-S4.24.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from functools import partial
from math import floor
from typing import Any, Protocol, TypeVar, overload

from shardbus.config.options import checked_seconds
from shardbus.entities.activation import Activation, Extras, LifeState
from shardbus.entities.deferred import DeferredWork
from shardbus.entities.deliveries import EntityDeliveries
from shardbus.entities.entity_type import BEHAVIOUR, EntityType, StopReason, addressed
from shardbus.entities.passivation import Passivator
from shardbus.entities.passivation_settings import idle_timeout
from shardbus.entities.reminding import NO_DATA, Every, Reminding, entry_of
from shardbus.entities.runner import EntityRunner
from shardbus.entities.stopping import Stopper
from shardbus.errors import ConfigError, LocalProtocolError, StaleActivation
from shardbus.reminders.record import Reminder, shown
from shardbus.reminders.rule import Late
from shardbus.routing.paths import child_id
from shardbus.sharding.instances import split_row
from shardbus.tasks.own_loop import check_loop
from shardbus.wire.schema import encode_message

E = TypeVar("E")

INTERVAL_MIN_S = 0.001
"""Seconds, at least, between two messages of a timer that repeats."""
GONE = LifeState.GONE
"""A look-up of a global costs less than one in an enumeration."""


class ContextSaver(Protocol):
    """The `StateSaver`, as a context calls it."""

    def save(
        self, context: Context, data: bytes | None, *, alone: bool = False, clears: bool = False
    ) -> Coroutine[Any, Any, None]: ...


class ContextHost(Protocol):
    """The host of its type and the host's parts, as a context calls them."""

    name: str
    kind: EntityType
    node_name: str
    loop: asyncio.AbstractEventLoop
    outside: contextvars.Context
    ref: Callable[[Any, str], Any]
    runner: EntityRunner
    deferred: DeferredWork
    saver: ContextSaver
    stopper: Stopper
    passivator: Passivator
    wall_clock: Callable[[], float]

    @property
    def deliveries(self) -> EntityDeliveries: ...
    def timer_cause(self) -> str: ...
    def tell_self(
        self,
        activation: Activation,
        method: str,
        payload: bytes,
        cause: str,
        delay: float | None = None,
    ) -> None: ...


class Context:
    """The facts of an entity and the acts that it may request, as `self.context`. Once the
    activation of this object has ended, or has made another object after a failure, everything that
    writes, asks or acts raises StaleActivation."""

    __slots__ = ()

    def __dir__(self) -> list[str]:
        return [name for name in vars(Context) if not name.startswith("_")]

    def _of(self) -> Activation:
        """Return the activation, also if the object is over."""
        raise NotImplementedError

    def _acting(self, what: str) -> Activation:
        """Return the activation, for an act that `what` names.

        Raises:
            StaleActivation: the object is over. LocalProtocolError: the caller is in another
                thread. Nothing has changed.
        """
        raise NotImplementedError

    @property
    def _host(self) -> ContextHost:
        """Return the host of the entities of this type here."""
        host: ContextHost = self._of().shard.host
        return host

    @property
    def entity_id(self) -> str:
        """The entity's id."""
        return self._of().key

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
        return self._of().shard.shard

    @property
    def node(self) -> str:
        """This node, as `host:port#uid`."""
        return self._host.node_name

    @property
    def fence(self) -> int:
        """The number of this shard's allocation; it only grows. A write to another system that
        carries it can be distinguished from a predecessor's."""
        return self._of().shard.fence

    @property
    def sender(self) -> str | None:
        """The routing name of the node or client that asked; None for a tell, and once the
        activation has ended."""
        try:
            message = self._host.runner.handling(self._acting("sender"))
        except StaleActivation:
            return None
        return None if message is None or message[2] is None else message[2].name

    def now(self) -> datetime:
        """Return the date and the time, in UTC: the wall clock of this node. In the test kit it is
        virtual time, which `advance` moves. So a deadline that the state keeps can be tested."""
        return datetime.fromtimestamp(self._host.wall_clock(), UTC)

    @overload
    def ref(self, entity_type: type[E], entity_id: str) -> E: ...
    @overload
    def ref(self, entity_type: str, entity_id: str) -> Any: ...
    def ref(self, entity_type: Any, entity_id: str) -> Any:
        """Return a reference to another entity, typed if its class is given."""
        self._acting("ref")
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
        self._acting("child")
        return self._host.ref(entity_type, child_id(self.entity_id, own_id))

    def _save(self, data: bytes | None, *, clears: bool = False) -> Coroutine[Any, Any, None]:
        """Write these bytes as the entity's state. `Entity.save` calls it. `clears`: it ends the
        reminders, too."""
        return self._host.saver.save(self, data, clears=clears)

    def _deliver(self, target: tuple[str, str], method: str, payload: bytes) -> None:
        """Keep a delivery of this entity with its state. `Entity.deliver` calls it."""
        activation = self._acting("deliver")
        self._host.deliveries.deliver(activation, target, method, payload)

    def passivate(self, stop_message: object = None) -> None:
        """Stop this entity after its current message. Messages that wait for it start a new
        activation.

        With a `stop_message`, the entity first handles the messages that have arrived, then that
        message, and stops when it calls `stop`. Messages that arrive meanwhile wait for the new
        activation, except messages of its own timers and piped work.

        Raises:
            ConfigError: no handler takes the stop message. Nothing has changed.
        """
        activation = self._acting("passivate")
        if stop_message is None:
            self._host.stopper.leave(activation, StopReason.PASSIVATION)
        else:
            self._host.stopper.passivate(activation, stop_message)

    def stop(self) -> None:
        """Stop this entity after its current message. If a stop message requested it, the reason is
        the request's; otherwise it is STOPPED."""
        self._host.stopper.leave(self._acting("stop"), StopReason.STOPPED)

    def schedule_once(self, delay: float, message: object) -> asyncio.TimerHandle:
        """Send `message`, as it is now, to this entity in `delay` seconds: a text that names a
        handler without arguments calls that handler, anything else is for `receive`. The timer
        ends with the activation. `delay`: a number from 0, after the messages that wait, to ten
        years.

        Raises:
            SchemaError: the message cannot be encoded. ConfigError: nothing takes it, or the delay
                is invalid. Nothing was scheduled.
        """
        activation, host = self._acting("schedule_once"), self._host
        delay = checked_seconds("delay", delay)
        (method, payload), cause = self._addressed(message), host.timer_cause()
        extras, key = activation.more(), object()
        tells = partial(host.tell_self, activation, method, payload, cause, delay)
        timer = host.loop.call_later(delay, _fire, extras, key, tells, context=host.outside)
        extras.add_timer(key, timer)
        return timer

    def schedule(self, interval: float, message: object) -> None:
        """Send `message`, as it is now, every `interval` seconds until the activation ends. Moments
        that pass while this node's loop is held up are left out. `interval`: a number from 0.001.
        Otherwise as `schedule_once`."""
        activation, host = self._acting("schedule"), self._host
        interval = checked_seconds("interval", interval, INTERVAL_MIN_S)
        (method, payload), cause = self._addressed(message), host.timer_cause()

        def begin(at: float) -> None:
            timer = host.loop.call_at(at, again, at, context=host.outside)
            activation.more().add_timer(again, timer)

        def again(at: float) -> None:
            # First: the message may end the entity, and this timer with it.
            begin(following(at, interval, host.loop.time()))
            host.tell_self(activation, method, payload, cause)

        begin(host.loop.time() + interval)

    async def remind(
        self,
        name: str,
        *,
        handler: str | None = None,
        at: datetime | None = None,
        after: Every | None = None,
        every: Every | None = None,
        cron: str | None = None,
        tz: str = "UTC",
        late: Late = "once",
        jitter: Every = 0.0,
        data: Any = NO_DATA,
    ) -> None:
        """Call a handler of this entity at a time, though it has left memory, its node has died or
        the cluster was stopped meanwhile. It replaces the reminder of the same name.

        It is stored with the next `save` of this handler, in one write, else before the handler's
        answer leaves. A handler that raises has set nothing that it has not saved.

        Args:
            handler: the handler's name; by default the reminder's.
            at: when it is due. A datetime without a zone is of the wall clock in `tz`.
            after: seconds from now, or a duration as "10m", or a timedelta.
            every: again after this elapsed time, and after that again. At least 1 s.
            cron: five fields: minute, hour, day of the month, month, day of the week, in `tz`.
            tz: a zone as "Europe/Berlin".
            late: which moments fire that have passed because no node was there: "once" for all
                that were missed, "all" each of them, "skip" none that is over 10 s late.
            jitter: each firing is put off by a random part of this time.
            data: the handler's argument; without it the handler gets none.

        Raises:
            ConfigError: an argument is invalid, no handler takes the data, or the store keeps no
                reminders. Nothing was set.
            StoreUnavailable: it may be set.
        """
        activation, host = self._acting("remind"), self._host
        reminding = reminding_of(host)
        entry = entry_of(
            host.kind,
            reminding.now(),
            activation.key,
            name,
            handler=handler,
            at=at,
            after=after,
            every=every,
            cron=cron,
            tz=tz,
            late=late,
            jitter_by=jitter,
            data=data,
        )
        await reminding.change(self, lambda record: record.setting(entry))

    async def forget(self, name: str) -> None:
        """Cancel a reminder, if there is one of this name. Stored as by `remind`."""
        self._acting("forget")
        await reminding_of(self._host).change(self, lambda record: record.without([name]))

    def reminders(self) -> list[Reminder]:
        """Return the reminders of this entity, the first due first.

        Raises:
            StoreUnavailable: they are not known, because a save had no answer.
        """
        reminders = reminding_of(self._host).reminders_of(self._acting("reminders"))
        entries = [] if reminders is None else reminders.record.entries.values()
        return [shown(row) for row in sorted(entries, key=lambda row: (row.due, row.name))]

    @property
    def reminder(self) -> Reminder | None:
        """The reminder that has called the handler which runs; None if none has. Its `delivery` is
        the same each time this due moment is delivered."""
        extras = self._acting("reminder").extras
        reminders = None if extras is None else extras.reminders
        return None if reminders is None or not reminders.firing else shown(reminders.firing)

    def _addressed(self, message: object) -> tuple[str, bytes]:
        """Return the method and the payload of a timer's message. Raises as `schedule_once`."""
        encode_message(message)
        invoker, payload = addressed(self._host.kind.invokers, message)
        return invoker.name, payload

    def stash(self) -> None:
        """Put the message being handled aside. Its asker waits on.

        Raises:
            LocalProtocolError: no message is being handled; or it is a reminder, an event of a
                projection or of a durable mailbox, which comes again if the handler raises.
        """
        self._host.deferred.stash(self._acting("stash"))

    def unstash_all(self) -> None:
        """Handle the stashed messages next, in the order of their arrival."""
        self._host.deferred.unstash_all(self._acting("unstash_all"))

    def pipe_to_self(self, work: Awaitable[object], *, answer: bool = False) -> None:
        """Run this work beside the messages. `receive` gets its outcome, a value or an exception,
        as a message: the very object, not a copy.

        Args:
            work: a coroutine or a future. It is cancelled if this activation ends first.
            answer: the asker of the message being handled gets the result or error of handling the
            outcome, and no answer before.

        Raises:
            LocalProtocolError: there is no `receive`, or no message to answer later; a delivery and
                an ask with a key are answered by their handler.
        """
        try:
            activation = self._acting("pipe_to_self")
            self._host.deferred.begin(activation, work, answer=answer)
        except (StaleActivation, LocalProtocolError):
            if asyncio.iscoroutine(work):
                work.close()
            raise

    def become(self, behaviour: Callable[[Any], object]) -> None:
        """Handle the messages of `receive` by this method, from the next one on. A restart begins
        with `receive` again. Handlers that are called by name do not change.

        Raises:
            LocalProtocolError: it is not this entity's `receive`, nor a method marked `@behaviour`.
        """
        self._acting("become")
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
        activation = self._acting("set_idle_timeout")
        activation.more().idle_timeout = idle_timeout(seconds)
        self._host.passivator.own_idle_timeout(activation)


class FirstContext(Activation, Context):
    """The context of the first object of an activation."""

    __slots__ = ()

    def _of(self) -> Activation:
        return self

    @property
    def _host(self) -> ContextHost:  # as in `Context`, for each save without a call
        host: ContextHost = self.shard.host
        return host

    @property
    def entity_id(self) -> str:
        """The entity's id."""
        return self.key

    def _acting(self, what: str) -> Activation:
        if self.state is GONE or (self.extras is not None and self.extras.objects_ended):
            raise _stale(self, what)
        check_loop(self.shard.host.loop)
        return self

    def context_now(self) -> Context:
        extras = self.extras
        return self if extras is None or not extras.objects_ended else LaterContext(self)


class InstanceContext(FirstContext):
    """The same for an entity of a type with instances."""

    __slots__ = ()

    @property
    def entity_id(self) -> str:
        """The entity's id, the same for all of its instances."""
        return split_row(self.key)[0]

    @property
    def instance(self) -> int:
        """The number of this instance."""
        return split_row(self.key)[1]


class LaterContext(Context):
    """The context of an object that an activation has made after it ended a former one."""

    __slots__ = ("_activation", "_number")

    def __init__(self, activation: FirstContext) -> None:
        self._activation, self._number = activation, activation.objects_ended

    def _of(self) -> Activation:
        return self._activation

    @property
    def entity_id(self) -> str:
        """The entity's id, the same for all of its instances."""
        return self._activation.entity_id

    @property
    def instance(self) -> int:
        """The number of this instance, from 1, of a type with instances; 0 of any other type."""
        return self._activation.instance

    def _acting(self, what: str) -> Activation:
        activation = self._activation
        if activation.state is GONE or activation.objects_ended != self._number:
            raise _stale(self, what)
        check_loop(activation.shard.host.loop)
        return activation


def reminding_of(host: ContextHost) -> Reminding:
    """Return the keeper of a type's reminders. Raises ConfigError if there is none."""
    reminding: Reminding | None = host.runner.reminding
    if reminding is not None:
        return reminding
    if host.kind.reminds:
        raise ConfigError("this store keeps no reminders", hint="see docs/how-to/reminders.md")
    raise ConfigError(
        f"{host.kind.name} is not declared to set reminders",
        hint="write @bus.entity(reminders=True)",
    )


def key_of(context: Context) -> str:
    """Return the id under which the entity's messages arrive: with the instance if it has one."""
    return context._of().key


def _stale(context: Context, what: str) -> StaleActivation:
    return StaleActivation(context.entity_type, key_of(context), context.fence, what)


def _fire(extras: Extras, key: object, tells: Callable[[], None]) -> None:
    """Take a timer out that fires once, and send its message."""
    extras.timers.pop(key, None)
    tells()


def following(at: float, interval: float, now: float) -> float:
    """Return the first moment after `now` of those that follow `at` by whole intervals. So timers
    keep their rate, and those of many entities stay apart after a moment that held all of them
    up."""
    return at + interval * max(floor((now - at) / interval) + 1, 1)
