"""The hot path: a run of messages for one method, handled one by one where they arrived.

Each finds its entity by one look-up in a dict (`arrive` starts one that is not active), its payload
is read by the handler's own decoder, and the handler is called; nothing is made for a message but
its arguments and its answer. An entity that is busy gets it into its mailbox.

Handlers that are coroutine functions are awaited by a coroutine of ours, many in a row, which costs
little more than a call while none of them waits. When one does, our coroutine is that message's
from there on, a task carries it to its end, and a new one takes the rest. A handler that sets a
context variable ends the row as well: what it has set is no other message's business.

Dataclasses are read ahead, a run at once, before the first is handled: that takes less time than
one by one. A message that is put aside instead is read again when its turn comes.

The loop stands here twice, once with `await`. One for both would ask for each message which it is,
and make a coroutine for each run of plain handlers.

Source: S4.15, S4.19; C.30; B.108.
"""

from __future__ import annotations

import asyncio
import contextvars
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

from shardbus.entities.answers import answer
from shardbus.entities.context import Context, Message
from shardbus.entities.eager import EagerRunner
from shardbus.entities.entity_type import Invoker
from shardbus.entities.running_handlers import Way
from shardbus.transport.session import Session
from shardbus.wire.batch import Chain

Find = Callable[[str], Context | None]
Arrive = Callable[[str, bytes, int], Context | None]
"""Starts the entity of a message (entity id, payload, correlation id) that is not active, or, if it
does not belong here, takes the message and returns None."""


AHEAD_MIN, AHEAD_MAX = 8, 1024
"""Shorter runs gain nothing; of longer ones too much would be in memory at once."""


def read_ahead(invoker: Invoker, payloads: list[bytes]) -> list[Any] | None:
    """What the messages of a run bring, the first one last. None: they are read one by one; so are
    those among which is one that cannot be read, which the others shall not suffer from."""
    read_all = invoker.read_all
    if read_all is None or not AHEAD_MIN <= len(payloads) <= AHEAD_MAX:
        return None
    try:
        ahead = read_all(payloads)
    except Exception:
        return None
    ahead.reverse()
    return ahead


class Delivery(ABC):
    """See the module. A subclass says what becomes of what does not end here."""

    def __init__(self) -> None:
        self.activation: Context | None = None
        """The entity that is handling a message at this very moment; below, the message."""
        self.way: Way | None = None
        self.payload = b""
        self.corr = 0
        self.tick = 0
        """Coarse time, in units of 50 ms."""
        self._driver: EagerRunner

    def deliver(
        self,
        find: Find,
        arrive: Arrive,
        invoker: Invoker,
        session: Session | None,
        rows: Iterable[tuple[str, bytes, int]],
        deadline: int,
        chain: Chain = (),
        ahead: list[Any] | None = None,
    ) -> None:
        """Handle a run of messages, as (entity id, payload, correlation id). `ahead`: what
        `read_ahead` has made of them."""
        tick, driver, outer = self.tick, self._driver, self._now()
        self.way = (invoker, session, chain)
        driver.enter()
        try:
            if invoker.is_async:
                self._drive(find, arrive, invoker, session, iter(rows), deadline, chain, ahead)
                return
            function, single, one = invoker.function, invoker.single, invoker.one
            if ahead is not None:
                single = one = None
            for entity_id, payload, corr in rows:
                activation = find(entity_id) or arrive(entity_id, payload, corr)
                if activation is None:
                    if ahead is not None:
                        ahead.pop()
                    continue
                activation.used = tick
                if activation.busy:
                    if ahead is not None:
                        ahead.pop()
                    self.queue(
                        activation, Message(invoker, payload, session, corr, deadline, chain)
                    )
                    continue
                self.activation, self.payload, self.corr = activation, payload, corr
                try:
                    if single is not None:
                        value = function(activation.entity, single(payload)[0])
                    elif one is not None:
                        value = function(activation.entity, one(payload))
                    elif ahead is not None:
                        value = function(activation.entity, ahead.pop())
                    else:
                        value = function(activation.entity, *invoker.decoders[payload[0]](payload))
                except (Exception, asyncio.CancelledError) as e:
                    if self._raised(activation, invoker, payload, e, session, corr):
                        self._look_again(activation)
                    continue
                if session is not None:
                    answer(activation, value, session, corr)
                if activation.stopping is not None or activation.mailbox:
                    self.settle(activation)
        finally:
            driver.leave()
            self.activation, self.way, self.payload, self.corr = outer

    def _drive(
        self,
        find: Find,
        arrive: Arrive,
        invoker: Invoker,
        session: Session | None,
        rows: Iterator[tuple[str, bytes, int]],
        deadline: int,
        chain: Chain,
        ahead: list[Any] | None,
    ) -> None:
        """A run for a coroutine function: one coroutine of ours awaits handler after handler, until
        one waits. Then it is that message's, a task carries it on, and another takes the rest."""
        more = True
        while more:
            context, carried = self._driver.fresh(), list[bool]()
            coroutine = self._await_each(
                find, arrive, invoker, session, rows, deadline, chain, ahead, context, carried
            )
            try:
                waits_for = self._driver.begin(coroutine, context)
            except StopIteration as end:
                more = end.value
            else:
                carried.append(True)
                activation = self.activation
                assert activation is not None
                self._carry_on(activation, coroutine, waits_for, session, self.corr)

    async def _await_each(
        self,
        find: Find,
        arrive: Arrive,
        invoker: Invoker,
        session: Session | None,
        rows: Iterator[tuple[str, bytes, int]],
        deadline: int,
        chain: Chain,
        ahead: list[Any] | None,
        context: contextvars.Context,
        carried: list[bool],
    ) -> Any:
        """Handle the rest of the rows. Returns, once it is `carried` on by a task, what the handler
        that waited has returned; else whether there may be more rows, which need another context:
        what a handler has set in it is no other message's business."""
        function, single, one = invoker.function, invoker.single, invoker.one
        if ahead is not None:
            single = one = None
        tick, untouched = self.tick, self._driver.base
        for entity_id, payload, corr in rows:
            activation = find(entity_id) or arrive(entity_id, payload, corr)
            if activation is None:
                if ahead is not None:
                    ahead.pop()
                continue
            activation.used = tick
            if activation.busy:
                if ahead is not None:
                    ahead.pop()
                self.queue(activation, Message(invoker, payload, session, corr, deadline, chain))
                continue
            self.activation, self.payload, self.corr = activation, payload, corr
            try:
                if one is not None:
                    value = await function(activation.entity, one(payload))
                elif single is not None:
                    value = await function(activation.entity, single(payload)[0])
                elif ahead is not None:
                    value = await function(activation.entity, ahead.pop())
                else:
                    value = await function(
                        activation.entity, *invoker.decoders[payload[0]](payload)
                    )
            except (Exception, asyncio.CancelledError) as e:
                if carried:
                    raise
                if self._raised(activation, invoker, payload, e, session, corr):
                    self._look_again(activation)
            else:
                if carried:
                    return value
                if session is not None:
                    answer(activation, value, session, corr)
                if activation.stopping is not None or activation.mailbox:
                    self.settle(activation)
            if context != untouched:
                return True
        return False

    def _now(self) -> Any:
        return self.activation, self.way, self.payload, self.corr

    @abstractmethod
    def queue(self, activation: Context, message: Message) -> None:
        """Put it into the mailbox."""

    @abstractmethod
    def settle(self, activation: Context) -> None:
        """Go on with its mailbox, stop it, or let it be idle."""

    @abstractmethod
    def _look_again(self, activation: Context) -> None:
        """`settle` if there is a reason to."""

    @abstractmethod
    def _raised(
        self,
        activation: Context,
        invoker: Invoker,
        payload: bytes,
        error: BaseException,
        session: Session | None,
        corr: int,
    ) -> bool:
        """Reading or handling a message raised; whether the entity may go on."""

    @abstractmethod
    def _carry_on(
        self,
        activation: Context,
        coroutine: Coroutine[Any, Any, Any],
        waits_for: Any,
        session: Session | None,
        corr: int,
    ) -> None:
        """Let a task carry the message to its end."""
