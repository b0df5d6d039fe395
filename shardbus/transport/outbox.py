"""The messages that a session sends: the open batch, and messages for entities without room at the
other end.

    tell, ask, reply, control ──> open batch ──flush──> way (`link`, `loopback`)
              └─ its entity is held ──> queue of the entity ──room again──┘

    the open run is   key that opens no other run    lists
    of tells          `_tell_key`                    ids, payloads
    of asks           `_ask_key` with `_chain`       ids, payloads, corrs
    none              none                           not looked at

**The open batch.** Neighbouring messages that share type and method form one run. Adding a message
to the open run costs two list appends; this is the whole cost of a message whose home is known. The
batch leaves at the end of the loop iteration that began it, or when it is full, so a busy sender
pays for one frame per hundreds of messages. Two things leave without waiting for that end: an ask
that finds nothing under way, because its sender may be the only one; and the answers to a received
batch. After such an ask the next messages wait for the end of the iteration again, so of many asks
one travels by itself. A message may be refused for lack of room only where it would open a run
(`send_buffer`).

**Held entities.** A receiver without room for one entity reports it (`full_entities`), and the
outbox holds back messages for that entity (`held_entities`). Meanwhile no run stays open, so that
each message comes by `_open_tells` or `_open_asks`, where its entity is looked up.

Source: docs/architecture.md; B.108; N.15, N.16.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from shardbus.errors import BufferFull, EntityFailed, MessageTooLarge, RequestError
from shardbus.tasks.own_loop import check_loop
from shardbus.transport.asks import Asks, Key, Waiter, fail_of, refuse
from shardbus.transport.full_entities import Target
from shardbus.transport.held_entities import TAKE_BACK_MIN, HeldEntities, take_back
from shardbus.transport.link import SessionLink, until, wake
from shardbus.transport.loopback import Loopback
from shardbus.transport.run_queue import RUN_MESSAGES_MAX, EntityRun
from shardbus.transport.send_buffer import SendBufferLimit
from shardbus.transport.sent_messages import BatchDeparture
from shardbus.wire.batch import (
    PAYLOAD_BYTES_MAX,
    AskRun,
    Chain,
    Control,
    Flush,
    Hold,
    Relayed,
    ReplyRun,
    Run,
    TellRun,
)
from shardbus.wire.schema import Decode

BATCH_WEIGHT_MAX = 128 * 1024
ENVELOPE_WEIGHT = 192
"""Weight of an envelope besides its payload: a batch is full at 128 KiB or some 500 small messages.
With half of that, ZeroMQ's threads take twice the time for each message."""
ASK_WEIGHT = 1024
"""Weight of an ask or an answer besides its payload. It is higher because a caller waits: in
batches of some 120, many asks travel in several batches, and both sides work at the same time
instead of taking turns."""


Way = SessionLink | Loopback
"""Where batches go. One that is `local` receives them inside `put`, so none may leave inside a
sender's call."""


class RoomWaiter:
    """The result of a tell without room: awaitable until the session is writable, or lost.

    A sender that does not await it costs nothing: the future is made on await."""

    __slots__ = ("_outbox",)

    def __init__(self, outbox: SessionOutbox) -> None:
        self._outbox = outbox

    def __await__(self) -> Generator[object, None, None]:
        return self._outbox.room().__await__()


class HoldWaiter:
    """The result of a tell to a held entity: awaitable until the entity is held no more, or the
    session is lost."""

    __slots__ = ("_outbox", "_target")

    def __init__(self, outbox: SessionOutbox, target: Target) -> None:
        self._outbox, self._target = outbox, target

    def __await__(self) -> Generator[object, None, None]:
        return self._outbox.room_for(self._target).__await__()


class SessionOutbox:
    """The messages that one session sends. A route names it, so that a message touches no other
    object."""

    __slots__ = (
        "__weakref__", "_ask_deadline", "_ask_key", "_ask_timeout_ms", "_asks", "_chain", "_corrs",
        "_departure", "_ids", "_limit", "_loop", "_payloads", "_reply_corrs", "_reply_payloads",
        "_room_waiters", "_send_buffer_limit", "_tell_key", "_way", "_weight", "held", "lost",
        "runs", "scheduled", "until_room", "writable",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        asks: Asks,
        way: Way,
        send_buffer_limit: SendBufferLimit,
        departure: BatchDeparture,
    ) -> None:
        self._loop, self._asks, self._way = loop, asks, way
        self._send_buffer_limit, self._departure = send_buffer_limit, departure
        self.writable = True
        """The last message has left room for more. A sender that finds none awaits `until_room`,
        at once: while entities are held, each message sets both."""
        self.until_room: Awaitable[None] = RoomWaiter(self)
        """Result of a tell without room."""
        self.held: HeldEntities | None = None
        """Entities that the other side has no room for; None if there are none."""
        self.lost: RequestError | None = None
        """Why the session has ended."""
        self.scheduled = False
        """The open batch will be flushed without a further call."""
        self._room_waiters: list[asyncio.Future[None]] = []
        self._tell_key: Key | None = None
        self._ask_key: Key | None = None
        self._chain: Chain = ()
        """The chain of callers that the messages of the open run of asks share."""
        self._ask_timeout_ms = self._ask_deadline = 0
        self._ids: list[str] = []
        self._payloads: list[bytes] = []
        self._corrs: list[int] | None = None
        """Of the open run; None in a run of tells."""
        self._reply_corrs: list[int] | None = None
        """Of the run of answers; None if the batch has none."""
        self._reply_payloads: list[bytes] = []
        self.runs: list[Run] = []
        """The open batch."""
        self._weight, self._limit = 0, BATCH_WEIGHT_MAX

    @property
    def name(self) -> str:
        """Name of the other process."""
        return self._way.name

    # ---- adding messages to the open batch

    def tell(self, key: Key, entity_id: str, payload: bytes, accepted: bool = False) -> None:
        """Add a message to the open batch.

        Args:
            accepted: this process has accepted it before, so it is never refused.

        Raises:
            BufferFull: the session holds as much as it may.
            MessageTooLarge: the payload is over the limit.
        """
        if key is not self._tell_key and not self._open_tells(key, entity_id, payload, accepted):
            return
        self._ids.append(entity_id)
        self._payloads.append(payload)
        self._weight = weight = self._weight + len(payload) + ENVELOPE_WEIGHT
        if weight > self._limit:
            self._full()

    def ask(
        self,
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        waiter: Any,
        decode: Decode | None,
        chain: Chain = (),
        since: float | None = None,
    ) -> None:
        """Add a message and register its caller: a future with the function that decodes its
        answer, or a Waiter. If the session holds as much as it may, the caller gets BufferFull.

        Args:
            chain: the entities that wait, if a handler asks. It passes the same object with each
                of its asks, so that they share a run.
            since: when an accepted message began to wait here, 0 if it did not; it is never
                refused. None: it has not been accepted yet.

        Raises:
            MessageTooLarge: the payload is over the limit.
        """
        if (
            key is not self._ask_key
            or chain is not self._chain
            or timeout_ms != self._ask_timeout_ms
        ) and not self._open_asks(
            key, entity_id, payload, timeout_ms, waiter, decode, chain, since
        ):
            return
        asks = self._asks
        corr = asks.corr = asks.corr + 1
        # In a chain the time may have gone on since its first ask: a handler computes in between.
        deadline = asks.deadline(timeout_ms) if chain else self._ask_deadline
        asks.entries[corr] = (waiter, decode, deadline)
        if since:
            self._departure.delayed[corr] = since
        self._ids.append(entity_id)
        self._payloads.append(payload)
        self._corrs.append(corr)  # type: ignore[union-attr]  # a run of asks is open
        self._weight = weight = self._weight + len(payload) + ASK_WEIGHT
        if weight > self._limit:
            self._full()

    def reply(self, corr: int, payload: bytes) -> EntityFailed | None:
        """Answer an ask that came by this session. Returns the error that it gets instead if the
        answer is too large."""
        corrs = self._reply_corrs
        if corrs is None:
            corrs = self._open_replies()
        corrs.append(corr)
        self._reply_payloads.append(payload)
        self._weight = weight = self._weight + len(payload) + ASK_WEIGHT
        if weight > BATCH_WEIGHT_MAX:
            return self._full_of_replies(corrs)
        return None

    def fail(self, corr: int, error: Exception, *, begun: bool = False) -> None:
        """Answer an ask with an error. `begun`: a handler has begun with the message."""
        fail = fail_of(corr, error, begun=begun)
        self._put(fail, len(fail.text) + len(fail.detail) + len(fail.fields))

    def relay(
        self,
        key: Key,
        shard: str,
        entity_id: str,
        payload: bytes,
        hops: int,
        timeout_ms: int,
        waiter: Waiter | None,
        chain: Chain = (),
        via: int = 0,
        trace: str = "",
    ) -> None:
        """Pass on a message that came from elsewhere. `via`: the mark of the session it came by,
        for a tell."""
        corr = self._asks.expect(waiter, None, timeout_ms) if waiter is not None else 0
        run = Relayed(
            key[0], shard, entity_id, key[1], payload, corr, timeout_ms, hops, chain, via, trace
        )
        self._put(run, len(payload))

    def traced(
        self,
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        waiter: Any,
        decode: Decode | None,
        chain: Chain,
        since: float,
        trace: str,
    ) -> None:
        """Send a message with its trace context, in a run of its own; a tell if the waiter is None.
        `since`: when it began to wait, 0 if it did not. Its sender has called `admit`."""
        waits = None if waiter is None else (waiter, decode, timeout_ms)
        if self._note_hold((key[0], entity_id)):
            self._queue(key, entity_id, payload, waits, chain, trace, accepted=True)
            return
        run = self._run_of_one(key, entity_id, payload, waits, chain, trace)
        if isinstance(run, AskRun):
            self._departure.begin_asks()
            if since:
                self._departure.delayed[run.corrs[0]] = since
        self._put(run, len(payload) + len(chain) * ENVELOPE_WEIGHT)

    def flush_shard(
        self, entity_type: str, shard: str, hops: int, timeout_ms: int, waiter: Waiter
    ) -> None:
        """Request an echo once everything sent so far for the shard has arrived at its home."""
        corr = self._asks.expect(waiter, None, timeout_ms)
        self._put(Flush(entity_type, shard, corr, timeout_ms, hops), 0)

    def control(self, control: Control) -> None:
        """Send a message of the state machines."""
        self._put(control, len(control.body))

    def report_full(self, target: Target, *, begins: bool) -> None:
        """Report to the other side whether to hold back messages for an entity of this process."""
        entity_type, entity_id = target
        last = self.runs[-1] if self.runs else None
        if (
            isinstance(last, Hold)
            and (last.type, last.begins) == (entity_type, begins)
            and len(last.ids) < RUN_MESSAGES_MAX
        ):
            last.ids.append(entity_id)
            return
        self._put(Hold(entity_type, [entity_id], begins), len(entity_id))

    # ---- the open batch

    def _put(self, run: Run, size: int) -> None:
        self._tell_key = self._ask_key = None
        self.runs.append(run)
        self._schedule()
        self._weight += size + ENVELOPE_WEIGHT
        if self._weight > BATCH_WEIGHT_MAX:
            self._send_full()

    def _open_tells(self, key: Key, entity_id: str, payload: bytes, accepted: bool) -> bool:
        """Open a run of tells. Returns False if the message waits for its held entity instead."""
        check_loop(self._loop)
        held = self.held is not None
        if held and self._note_hold((key[0], entity_id)):
            self._queue(key, entity_id, payload, accepted=accepted)
            return False
        if not accepted and not self.writable and self.is_full:
            raise self._refusal(key)
        run = self.runs[-1] if held and self.runs else None
        if not isinstance(run, TellRun) or (run.type, run.method) != key or run.trace:
            run = TellRun(key[0], key[1], [], [])
            self.runs.append(run)
            self._schedule()
        self._ids, self._payloads, self._corrs = run.ids, run.payloads, None
        self._tell_key, self._ask_key = None if held else key, None
        return True

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
        """Open a run of asks. Returns False if the message waits for its held entity instead, or
        its caller has got BufferFull."""
        check_loop(self._loop)
        held = self.held is not None
        if held and self._note_hold((key[0], entity_id)):
            waits = waiter, decode, timeout_ms
            self._queue(key, entity_id, payload, waits, chain, accepted=since is not None)
            return False
        if since is None and not self.writable and self.is_full:
            refuse((waiter, decode, 0), self._refusal(key))
            return False
        run = self.runs[-1] if held and self.runs else None
        if not isinstance(run, AskRun) or not _shares(run, key, timeout_ms, chain):
            if self._way.idle and not self.runs:
                self._limit = 0  # full with its first message
            else:
                self._schedule()
            run = AskRun(key[0], key[1], timeout_ms, [], [], [], chain)
            self.runs.append(run)
            self._weight += len(chain) * ENVELOPE_WEIGHT
            self._departure.begin_asks()
        self._ids, self._payloads, self._corrs = run.ids, run.payloads, run.corrs
        self._ask_key, self._chain, self._tell_key = None if held else key, chain, None
        self._ask_timeout_ms, self._ask_deadline = timeout_ms, self._asks.deadline(timeout_ms)
        return True

    def _open_replies(self) -> list[int]:
        run = ReplyRun([], [])
        self.runs.append(run)
        self._reply_corrs, self._reply_payloads = run.corrs, run.payloads
        self._schedule()
        return run.corrs

    def _full(self) -> None:
        """Send the open batch, which is over its weight.

        Raises:
            MessageTooLarge: the last message alone exceeds the limit of one message. It is taken
                out of the batch.
        """
        if len(self._payloads[-1]) > PAYLOAD_BYTES_MAX:
            size = len(self._payloads.pop())
            self._ids.pop()
            if self._corrs is not None:
                self._asks.take(self._corrs.pop())
            self._weight -= size
            self._schedule()
            raise too_large(size)
        self._send_full()

    def _full_of_replies(self, corrs: list[int]) -> EntityFailed | None:
        """Send the open batch. A last answer that is too large is replaced by an error, which is
        returned, because its caller waits."""
        if len(self._reply_payloads[-1]) > PAYLOAD_BYTES_MAX:
            corr, size = corrs.pop(), len(self._reply_payloads.pop())
            self._weight -= size
            text = f"the answer has {size} bytes, at most {PAYLOAD_BYTES_MAX}"
            error = EntityFailed("MessageTooLarge", text)
            self.fail(corr, error)
            return error
        self._send_full()
        return None

    def _send_full(self) -> None:
        """Send the open batch, which is full. One that would be received inside this sender's call
        stays until the end of the loop iteration."""
        if not self._way.local:
            self.flush()
            return
        self.writable = self._way.has_room(self._weight)
        if self.writable:
            self._limit = self._weight + BATCH_WEIGHT_MAX  # until the next look
        elif self.is_full:
            self._tell_key = self._ask_key = None  # the next message has to open a run

    def _schedule(self) -> None:
        if not self.scheduled:
            self.scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def _flush_scheduled(self) -> None:
        self.scheduled = False
        self.flush()

    def flush(self) -> None:
        """Send the open batch now."""
        runs, weight = self.runs, self._weight
        if not runs:
            return
        if len(runs) > 1 or runs[0].__class__ is not ReplyRun:  # answers alone are not counted
            self._departure.leave(runs, self._asks.entries)
        self._reset_batch()
        if self.lost is not None:
            self._asks.abandon(self.lost)
            return
        self.writable = self._way.put(runs, weight)

    def _reset_batch(self) -> None:
        self.runs = []
        self._weight, self._limit = 0, BATCH_WEIGHT_MAX
        self._tell_key = self._ask_key = self._reply_corrs = None

    # ---- room

    def admit(self, key: Key, entity_id: str) -> None:
        """Raise BufferFull, and count the message, if the session holds as much as it may, of all
        entities or of this one."""
        if not self._admits((key[0], entity_id)):
            raise self._refusal(key)

    def _admits(self, target: Target) -> bool:
        held = self.held
        if held is not None and target in held:
            return not (held.refuses(target, self._send_buffer_limit.bytes) or self.is_full)
        return self.writable or self._way.has_room(self._weight) or not self.is_full

    def _refusal(self, key: Key) -> BufferFull:
        return self._send_buffer_limit.refusal(key[0], self._way.name)

    @property
    def is_full(self) -> bool:
        """True if the session holds more than the send buffer's limit."""
        queued = 0 if self.held is None else self.held.weight
        return self._weight + self._way.outstanding + queued > self._send_buffer_limit.bytes

    @property
    def unflushed(self) -> bool:
        """True if messages wait that have no number: in the open batch, or for held entities."""
        return bool(self.runs) or (self.held is not None and self.held.weight > 0)

    def on_room(self) -> None:
        """The way has room again."""
        self.writable = True
        wake(self._room_waiters)

    def room(self) -> asyncio.Future[None]:
        """Return a future that is done when the session is writable, or lost."""
        done = self.lost is not None or self._way.has_room(self._weight)
        return until(self._loop, done, self._room_waiters)

    def has_room_for(self, target: Target) -> bool:
        """True if a tell to this entity would not wait."""
        if self.held is None:
            return self.writable
        return self._way.has_room(self._weight) and target not in self.held

    def room_for(self, target: Target) -> asyncio.Future[None]:
        """Return a future that is done when an entity is held no more, or the session is lost."""
        waiting = None if self.held is None else self.held.waiters(target)
        return until(self._loop, waiting is None, [] if waiting is None else waiting)

    # ---- held entities

    def _note_hold(self, target: Target) -> bool:
        """Return True if the entity is held; otherwise note for the sender of this message that no
        held entity makes it wait."""
        if self.held is None:
            return False
        if target in self.held:
            return True
        self._mark_room()
        return False

    def _mark_room(self) -> None:
        self.writable, self.until_room = self._way.has_room(self._weight), RoomWaiter(self)

    def _run_of_one(
        self,
        key: Key,
        entity_id: str,
        payload: bytes,
        waits: tuple[Any, Decode | None, int] | None,
        chain: Chain,
        trace: str,
    ) -> EntityRun:
        """Return a run of one message. `waits`, of an ask: its caller, decoder and timeout."""
        if waits is None:
            return TellRun(key[0], key[1], [entity_id], [payload], trace)
        corrs = [self._asks.expect(*waits)]
        return AskRun(key[0], key[1], waits[2], [entity_id], [payload], corrs, chain, trace)

    def _queue(
        self,
        key: Key,
        entity_id: str,
        payload: bytes,
        waits: tuple[Any, Decode | None, int] | None = None,
        chain: Chain = (),
        trace: str = "",
        *,
        accepted: bool,
    ) -> None:
        """Append a message to the queue of a held entity. The caller of an ask gets BufferFull.

        Raises:
            BufferFull: it is a tell, and the queue has as much as it may. MessageTooLarge.
        """
        held, target = self.held, (key[0], entity_id)
        assert held is not None
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise too_large(len(payload))
        if not accepted and not self._admits(target):
            if waits is None:
                raise self._refusal(key)
            refuse((waits[0], waits[1], 0), self._refusal(key))
            return
        run = self._run_of_one(key, entity_id, payload, waits, chain, trace)
        held.put(target, run, self._asks.tick)
        if waits is None:
            self.writable, self.until_room = False, HoldWaiter(self, target)

    def on_hold(self, hold: Hold) -> None:
        """The other side has no room for entities, or has room again."""
        targets = [(hold.type, entity_id) for entity_id in hold.ids]
        if hold.begins:
            held = self.held = self.held or HeldEntities()
            for target in targets:
                held.hold(target)
            self._tell_key = self._ask_key = None
            self._take_back([target for target in targets if held.empty(target)])
            return
        for target in targets:
            if self.held is not None:
                self.held.drain(target)
                self._drain(target)

    def _take_back(self, targets: list[Target]) -> None:
        """Queue messages for entities that are held now and that have not left, if there are
        many."""
        held, taken = self.held, list[list[EntityRun]]()
        if held is None or self._way.unsent <= TAKE_BACK_MIN:
            return
        self.flush()
        backs = frozenset(targets)

        def change(body: bytes) -> bytes | None:
            parts = take_back(body, backs)
            if parts is None:
                return None
            taken.append(parts[1])
            return parts[0]

        self._way.rewrite_unsent(change)
        for runs in reversed(taken):
            for run in runs:
                held.put((run.type, run.ids[0]), run, self._asks.tick)

    def _drain(self, target: Target) -> None:
        """Send the next portion of the messages for an entity that has room again."""
        held = self.held
        if held is None:
            return
        self._put_queued(held.portion(target, self._asks.tick))
        waiting = held.drained(target)
        if waiting is None:
            if not self._way.local:
                self.flush()
            self._way.when_taken(lambda: self._go_on(target))
            return
        wake(waiting)
        if not held:
            self.held = None
            self._mark_room()

    def _go_on(self, target: Target) -> None:
        if self.held is not None and self.held.drains(target):
            self._drain(target)

    def _put_queued(self, runs: list[EntityRun]) -> None:
        """Send messages that have waited for their entities, without the asks that are over."""
        for run in runs:
            weight = ENVELOPE_WEIGHT
            if isinstance(run, AskRun):
                if not keep_waiting(run, self._asks):
                    continue
                self._departure.begin_asks()
                weight = ASK_WEIGHT
            self._put(run, sum(map(len, run.payloads)) + len(run.ids) * weight)
        if self.held is not None:
            wake(self.held.take_leave_waiters())

    def leave(self, leaves: Callable[[Target], bool]) -> None:
        """Send the messages of held entities that will be reached by another session from now on:
        the next message on this one says that everything has been sent."""
        self._way.leave(leaves)
        if self.held is not None:
            self._put_queued(self.held.leave(leaves, self._asks.tick))

    # ---- the end

    def unnumbered(self) -> list[Run]:
        """Return the messages without a number: the open batch, then the queues of held
        entities."""
        return self.runs if self.held is None else [*self.runs, *self.held.runs]

    def end(self, error: RequestError) -> list[Run]:
        """End the outbox, wake its waiters, and return the messages without a number. Messages
        added from now on fail with this error."""
        runs, held = self.unnumbered(), self.held
        self.lost, self.held = error, None
        self._reset_batch()
        self.writable, self.until_room = True, RoomWaiter(self)
        wake(self._room_waiters)
        if held is not None:
            wake(held.all_waiters())
        return runs


def _shares(run: AskRun, key: Key, timeout_ms: int, chain: Chain) -> bool:
    """True if an ask belongs into this run."""
    shared = (*key, timeout_ms, chain, "")
    return (run.type, run.method, run.timeout_ms, run.chain, run.trace) == shared


def keep_waiting(run: AskRun, asks: Asks) -> bool:
    """Leave in a run the asks that wait for their outcome. Returns False if there is none."""
    places = [n for n, corr in enumerate(run.corrs) if corr in asks.entries]
    run.ids, run.payloads = [run.ids[n] for n in places], [run.payloads[n] for n in places]
    run.corrs = [run.corrs[n] for n in places]
    return bool(places)


def too_large(size: int) -> MessageTooLarge:
    """Return the error for a message over the limit."""
    return MessageTooLarge(f"a message of {size} bytes, at most {PAYLOAD_BYTES_MAX}")
