"""Messages that stay on their node: handled where their sender awaits them.

A message to an entity of the same node needs no batch. Where its sender awaits it, the entity's
handler may run at once, as a coroutine that the sender had called. So the last message stays at
hand, in front of the open batch:

    message ──> at hand ──its sender awaits it──> handled there (`DirectWay`)
                   └── anything else is sent, the turn of the loop ends, or `DirectWay` declines
                                       └──> open batch ──> the loopback, as every message

- **Never inside a sender's call.** Between its awaits no code of the sender is interrupted. An
  await may always let others run.
- **Order.** A message is at hand only while the open batch is empty, and enters it before anything
  else. So it is younger than all that this process has sent to itself, and older than all that
  follows.
- **The loop goes on.** The await of an answer that is there does not let the loop run. One turn of
  the loop has `DIRECT_MAX` such asks, in `TURN_S` after the first of them. The caller of each later
  one gets its answer after a turn of the loop. A handler that is itself called so, and whose caller
  pays for that turn, may have twice as many. Direct messages nest no deeper than `DEPTH_MAX`.
- **A crowd takes batches**, in which each of many messages costs less. One turn has at most
  `TELLS_MAX` direct tells, and none after a turn with more tells. After a turn in which `CROWD`
  asks had to wait for the next one, that has no direct asks.

A tell needs no future: the sender awaits the message itself, once, in place of room for it.

Answers to the futures of this process take no batch either, whichever way the ask came, unless
reading them runs code of the application's: that runs in a callback of the loop, outside of any
entity. Errors go by the batch.

Which messages are direct is decided in `shells.direct_messages`.

Source: docs/architecture.md; B.108.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from types import BuiltinMethodType
from typing import Any, Protocol
from weakref import WeakSet

from shardbus.errors import EntityFailed, RequestError
from shardbus.tasks.answers import ANSWERS, WatchedAnswer, answers_of, is_watched
from shardbus.tasks.eager import FirstSteps
from shardbus.tasks.interrupts import raise_interrupt
from shardbus.tasks.own_loop import check_loop
from shardbus.transport.asks import Asks, Key, refuse_answer
from shardbus.transport.full_entities import Target
from shardbus.transport.inbox import Inbox
from shardbus.transport.loopback import Loopback
from shardbus.transport.outbox import SessionOutbox
from shardbus.transport.send_buffer import SendBufferLimit
from shardbus.transport.sent_messages import BatchDeparture
from shardbus.wire.batch import PAYLOAD_BYTES_MAX, AskRun, Chain, Run, TellRun
from shardbus.wire.schema import Decode, decode_any, decode_value

DIRECT_MAX = 256
"""Direct asks in one turn of the loop whose callers go on at once."""
TELLS_MAX = 4
"""Direct tells in one turn of the loop. A batch of one tell costs as much as four of these, and
each further one in it a third of one."""
TURN_S = 0.002
"""Seconds after the first direct ask of a turn in which more may follow."""
CROWD = 16
"""Asks of one turn that wait for the next one, after which that has no direct ones."""
DEPTH_MAX = 12
"""Direct asks that are handled inside one another."""


future_await: Callable[[asyncio.Future[Any]], Generator[Any, None, Any]] = asyncio.Future.__await__


class AskingRun(Protocol):
    """The run of a handler that asks. Its asks carry `chain`."""

    @property
    def chain(self) -> Chain: ...
    def note_ask(self, target: Target, answer: asyncio.Future[Any]) -> None: ...


class DirectAsk(asyncio.Future[Any]):
    """The answer of an ask to this process, and the ask itself until its caller awaits it."""

    __slots__ = ("corr", "decode", "direct", "entity_id", "key", "payload", "run", "timeout_ms")
    direct: DirectTurn
    key: Key
    entity_id: str
    payload: bytes
    timeout_ms: int
    decode: Decode
    run: AskingRun | None
    corr: int
    """The correlation id, once an entity gets it."""

    def __await__(self) -> Generator[Any, None, Any]:
        direct = self.direct
        if direct.at_hand is self:
            direct.ways[self.key[0]].take(self)
            left = direct.turn_left
            if left <= 0 and (not direct.depth or left < -DIRECT_MAX) and self.done():
                return _after_a_turn(self)
        return future_await(self)

    __iter__ = __await__

    @property
    def chain(self) -> Chain:
        """The entities that wait for the answer."""
        return () if self.run is None else self.run.chain

    def take(self, encode: Callable[[Any], bytes], value: Any) -> bool:
        """Take the answer of a handler that has ended. Returns False if it must go the long way:
        reading it runs code of the application's, or it cannot be sent, as is found out there."""
        decode = self.decode
        if type(decode) is not BuiltinMethodType and decode not in PLAIN:
            return False
        try:
            payload = encode(value)
            if len(payload) > PAYLOAD_BYTES_MAX:
                return False
            self.set_result(decode(payload))
        except BaseException as e:
            raise_interrupt(e)
            return False
        return True

    def wait(self) -> None:
        """Register the ask, whose outcome comes later."""
        asks, run = self.direct.asks, self.run
        if run is not None:
            run.note_ask((self.key[0], self.entity_id), self)
        asks.entries[self.corr] = (self, self.decode, asks.deadline(self.timeout_ms))


def _after_a_turn(ask: DirectAsk) -> Generator[Any, None, Any]:
    """Return the answer after a turn of the loop."""
    yield
    return ask.result()


class WatchedDirectAsk(WatchedAnswer, DirectAsk):
    """The same, with the line that asked."""


class DirectTell:
    """A tell to this process, until its sender awaits it; the sender awaits it in place of room."""

    __slots__ = ("corr", "entity_id", "key", "outbox", "payload")
    timeout_ms = 1
    """It does not expire."""
    run: AskingRun | None = None
    chain: Chain = ()

    def __init__(self, outbox: LocalOutbox, key: Key, entity_id: str, payload: bytes) -> None:
        self.outbox, self.key, self.entity_id, self.payload = outbox, key, entity_id, payload
        self.corr = 0
        """The mark of this process's session, once an entity gets it."""

    def __await__(self) -> Generator[Any, None, None]:
        outbox = self.outbox
        direct = outbox.direct
        if direct.at_hand is self:
            direct.ways[self.key[0]].take(self)
        if outbox.writable:
            return NOTHING  # type: ignore[no-any-return]
        return outbox.room_for((self.key[0], self.entity_id)).__await__()

    def take(self, encode: Callable[[Any], bytes], value: Any) -> bool:
        """Drop the handler's result."""
        return True

    def wait(self) -> None:
        """Do nothing: no answer comes later."""


NOTHING: Any = iter(())
"""What an await of a message gives that was handled: there is nothing to wait for."""

DirectMessage = DirectAsk | DirectTell


class DirectWay(Protocol):
    """Hands the messages of one entity type to their entities."""

    def take(self, message: DirectMessage, /) -> None:
        """Handle the message at hand in the await of its sender, or put it into the batch."""
        ...


class DirectTurn:
    """The direct messages of this turn of the loop."""

    __slots__ = (
        "asks", "at_hand", "crowd", "depth", "inbox", "make", "make_plain", "room_waiter", "stack",
        "tells_left", "tells_most", "turn_ends", "turn_left", "ways",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, asks: Asks, inbox: Inbox[Any]) -> None:
        self.asks, self.inbox = asks, inbox
        self.stack = FirstSteps()
        """The first steps of this node's handlers that are on the stack."""
        self.make, self.make_plain = direct_asks_of(loop), answers_of(loop)
        """They make the future of an ask that may be direct, and of any other."""
        self.room_waiter: Awaitable[None]
        """What a sender awaits for room, while no tell is at hand."""
        self.ways: dict[str, DirectWay] = {}
        """By entity type."""
        self.at_hand: DirectMessage | None = None
        """The last message, while nothing has followed it and its sender has not awaited it."""
        self.depth = 0
        """Direct messages that are being handled, each inside the one before."""
        self.tells_most = self.tells_left = TELLS_MAX
        """Direct tells that this turn may have, and may still have."""
        self.crowd = False
        """The turn before had many asks: this one has no direct ones."""
        self.turn_left, self.turn_ends = DIRECT_MAX, 0.0
        """Direct asks of this turn whose callers may still go on at once, below 0 the number of
        those that may not; and until when, by the clock of the gate, 0 before the first."""


class LocalOutbox(SessionOutbox):
    """The messages that a process sends to itself."""

    __slots__ = ("direct",)

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        asks: Asks,
        loopback: Loopback,
        send_buffer_limit: SendBufferLimit,
        departure: BatchDeparture,
    ) -> None:
        super().__init__(loop, asks, loopback, send_buffer_limit, departure)
        self.direct = DirectTurn(loop, asks, loopback.inbox)
        self.direct.room_waiter = self.until_room

    # ---- asks

    def future_ask(
        self,
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        decode: Decode,
        run: AskingRun | None = None,
    ) -> asyncio.Future[Any]:
        """Ask. `run`: of the handler that asks. Returns the future of the answer, a direct one if
        nothing is in front of it. Tasks wait for a plain future of asyncio in less time.

        Raises:
            MessageTooLarge: the payload is over the limit.
        """
        direct = self.direct
        if (
            self.runs
            or direct.at_hand is not None
            or direct.crowd
            or not self.writable
            or len(payload) > PAYLOAD_BYTES_MAX
        ):
            future = direct.make_plain()
            chain = () if run is None else run.chain
            try:
                self.ask(key, entity_id, payload, timeout_ms, future, decode, chain)
            except BaseException:
                future.cancel()  # no caller gets it, so none awaits it
                raise
            if run is not None:
                run.note_ask((key[0], entity_id), future)
            return future
        ask = direct.at_hand = direct.make()
        ask.direct, ask.key, ask.entity_id, ask.payload = direct, key, entity_id, payload
        ask.timeout_ms, ask.decode, ask.run = timeout_ms, decode, run
        if not self.scheduled:
            self._schedule()
        return ask

    # ---- the message at hand

    def put_at_hand(self) -> None:
        """Add the message at hand to the open batch."""
        direct = self.direct
        message, direct.at_hand = direct.at_hand, None
        if message is None:
            return
        key, entity_id, payload = message.key, message.entity_id, message.payload
        if isinstance(message, DirectTell):
            self._mark_room()
            self.tell(key, entity_id, payload, True)  # it was admitted when it was told
        else:
            timeout_ms, decode, chain = message.timeout_ms, message.decode, message.chain
            self.ask(key, entity_id, payload, timeout_ms, message, decode, chain)
            if message.run is not None:
                message.run.note_ask((key[0], entity_id), message)

    def took_tell(self) -> None:
        """Note that the entity gets the tell at hand: there is room for the next message."""
        self.writable, self.until_room = True, self.direct.room_waiter

    def has_room_for(self, target: Target) -> bool:
        self.put_at_hand()
        return super().has_room_for(target)

    def _put(self, run: Run, size: int) -> None:
        self.put_at_hand()
        super()._put(run, size)

    def _open_tells(self, key: Key, entity_id: str, payload: bytes, accepted: bool) -> bool:
        direct = self.direct
        if direct.at_hand is not None:
            self.put_at_hand()
        elif (
            direct.tells_left > 0
            and not accepted
            and self.writable
            and not self.runs
            and self.held is None
            and len(payload) <= PAYLOAD_BYTES_MAX
            and self.lost is None
        ):
            check_loop(self._loop)
            tell = direct.at_hand = DirectTell(self, key, entity_id, payload)
            self.writable, self.until_room = False, tell
            if not self.scheduled:
                self._schedule()
            return False
        return super()._open_tells(key, entity_id, payload, accepted)

    def _open_asks(
        self,
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        waiter: Any,
        decode: Decode | None,
        chain: Chain,
        since: float | None,
    ) -> bool:
        self.put_at_hand()
        return super()._open_asks(key, entity_id, payload, timeout_ms, waiter, decode, chain, since)

    def _open_replies(self) -> list[int]:
        self.put_at_hand()
        return super()._open_replies()

    def _flush_scheduled(self) -> None:
        direct = self.direct
        asks = tells = 0
        for run in self.runs:
            if isinstance(run, AskRun):
                asks += len(run.ids)
            elif isinstance(run, TellRun):
                tells += len(run.ids)
        direct.crowd = max(asks, -direct.turn_left) >= CROWD
        tells += direct.tells_most - direct.tells_left
        direct.tells_most = direct.tells_left = TELLS_MAX if tells <= TELLS_MAX else 0
        direct.turn_left, direct.turn_ends = DIRECT_MAX, 0.0
        super()._flush_scheduled()

    def flush(self) -> None:
        self.put_at_hand()
        super().flush()

    def end(self, error: RequestError) -> list[Run]:
        self.put_at_hand()
        return super().end(error)

    @property
    def unflushed(self) -> bool:
        return self.direct.at_hand is not None or super().unflushed

    # ---- answers

    def reply(self, corr: int, payload: bytes) -> EntityFailed | None:
        asks = self._asks
        entry = asks.entries.get(corr)
        if entry is not None and len(payload) <= PAYLOAD_BYTES_MAX:
            waiter, decode, _ = entry
            if decode is not None and (type(decode) is BuiltinMethodType or decode in PLAIN):
                del asks.entries[corr]
                if not waiter.done():
                    try:
                        waiter.set_result(decode(payload))
                    except BaseException as e:
                        refuse_answer(waiter, e)
                return None
        return super().reply(corr, payload)


PLAIN = (decode_any, decode_value)
"""Functions that read an answer and run no code of the application's, besides functions of
msgspec."""


def direct_asks_of(loop: asyncio.AbstractEventLoop) -> Callable[[], DirectAsk]:
    """Return a function that makes the future of an ask to this process."""
    if not is_watched(loop):
        return partial(DirectAsk, loop=loop)
    answers: WeakSet[WatchedAnswer] | None = getattr(loop, ANSWERS, None)
    return partial(WatchedDirectAsk, loop, answers)
