"""A session: the link between two processes, in both directions, over one connection.

    tell, ask, reply, control ──> open batch ──flush──> window ──> frames
    frames ──> window ──> inbox ──> receiver
                               └──> asks: one outcome each

ZeroMQ's `send` is not delivery: when a connection breaks, ZeroMQ silently drops what its buffers
hold. So each direction numbers its batches, acknowledges and resends them (`window`), and every ask
has exactly one outcome (`asks`). The inbox passes what arrives to the receiver as soon as the
receiver has room for it (`inbox`).

**The open batch.** Neighbouring messages that share type and method form one run. Adding a message
to the open run costs two list appends; this is the whole cost of a message whose home is known. The
batch leaves at the end of the loop iteration that began it, or when it is full, so a busy sender
pays for one frame per hundreds of messages. Two things leave without waiting for that end: an ask
that finds nothing under way, because its sender may be the only one; and what a received batch was
answered. After such an ask the next messages wait for the end of the iteration again, so of many
asks one travels by itself. A message may be refused for lack of room only where it would open a run
(`send_buffer`).

**Acknowledgements** ride in the header of the next frame, or go by themselves after a few batches
or 25 ms. They never delay data.

An ask is answered on the session it came by. When the other process dies, unacknowledged messages
are lost (at most once) and counted; messages that were never sent are returned, to be sent another
way. When only the connection breaks, batches are sent again without the asks that have expired
meanwhile, so that no handler works for a caller that gave up.

**Full entities.** A receiver without room for one entity says so (`full_entities`), and this side
holds back what is for that entity (`held_entities`). Meanwhile no run stays open, so that each
message takes the way by `_tell_past_holds` or `_ask_past_holds`, and is looked at.

Source: docs/architecture.md; S0.35, S0.36; B.108; N.15, N.16.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from shardbus.errors import EntityFailed, MessageTooLarge, NodeLost, RequestError
from shardbus.transport.asks import Asks, CoarseClock, Key, Unsent, Waiter, fail_of, refuse
from shardbus.transport.fork_guard import guard
from shardbus.transport.fragments import LARGE_WEIGHT, FragmentAssembly, FragmentQueue
from shardbus.transport.full_entities import Target
from shardbus.transport.held_entities import TAKE_BACK_MIN, HeldEntities, take_back
from shardbus.transport.inbox import Inbox, Receiver
from shardbus.transport.log_limiter import log
from shardbus.transport.permissions import NODE, RUNS
from shardbus.transport.run_queue import RUN_MESSAGES_MAX
from shardbus.transport.send_buffer import SendBufferLimit
from shardbus.transport.sent_messages import SentMessages
from shardbus.transport.window import Transmit, Window
from shardbus.wire.batch import (
    ENTITY_HOLDS,
    PAYLOAD_BYTES_MAX,
    AskRun,
    Chain,
    Control,
    Flush,
    FrameType,
    Hold,
    Relayed,
    ReplyRun,
    Run,
    TellRun,
    decode_batch,
    encode_batch,
)
from shardbus.wire.schema import Decode

NUMBERED = frozenset({FrameType.DATA, FrameType.PART, FrameType.LAST_PART})
"""Frames that must arrive, each once and in order."""
SESSION_FRAMES = NUMBERED | {FrameType.ACK, FrameType.NAK, FrameType.HELD}
ACK_DELAY_S = 0.025
BLOCKED_S = 0.01
"""Pause before the next attempt to send on a connection that took no more frames."""
BATCH_WEIGHT_MAX = 128 * 1024
ENVELOPE_WEIGHT = 192
"""Weight of an envelope besides its payload: a batch is full at 128 KiB or some 500 small messages.
With half of that, ZeroMQ's threads take twice the time for each message."""
ASK_WEIGHT = 1024
"""Weight of an ask or an answer besides its payload. It is higher because a caller waits: in
batches of some 120, many asks travel in several batches, and both sides work at the same time
instead of taking turns."""


class RoomWaiter:
    """The result of a tell without room: awaitable until the session is writable, or lost.

    A sender that does not await it costs nothing: the future is made on await."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    def __await__(self) -> Generator[object, None, None]:
        return self._session.room().__await__()


class HoldWaiter:
    """The result of a tell to a held entity: awaitable until the entity is held no more, or the
    session is lost."""

    __slots__ = ("_session", "_target")

    def __init__(self, session: Session, target: Target) -> None:
        self._session, self._target = session, target

    def __await__(self) -> Generator[object, None, None]:
        return self._session.room_for(self._target).__await__()


class Session:
    """One session. `transmit(kind, seq, ack, body)` hands one frame to the connection and returns
    True if the connection took it."""

    __slots__ = (
        "__weakref__",
        "_ack_armed",
        "_ask_corrs",
        "_ask_deadline",
        "_ask_ids",
        "_ask_key",
        "_ask_payloads",
        "_ask_timeout_ms",
        "_asked_since",
        "_asks",
        "_asks_expired",
        "_assembly",
        "_chained_key",
        "_delayed",
        "_drain_waiters",
        "_expect",
        "_fragments",
        "_held",
        "_hold_waiters",
        "_inbox",
        "_leave_waiters",
        "_limit",
        "_loop",
        "_open_waiters",
        "_replies",
        "_reply_corrs",
        "_reply_payloads",
        "_retry_armed",
        "_room",
        "_room_waiters",
        "_runs",
        "_scheduled",
        "_send_buffer_limit",
        "_sent",
        "_tell_ids",
        "_tell_key",
        "_tell_payloads",
        "_transmit",
        "_weight",
        "_window",
        "closed_idle",
        "features",
        "held_reports",
        "lost",
        "mark",
        "name",
        "peer_ended",
        "peer_lost_data",
        "permissions",
        "tag",
        "unconfirmed",
        "unconfirmed_runs",
        "until_room",
        "wants_drop_reports",
        "writable",
    )

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        clock: CoarseClock,
        receiver: Receiver[Session],
        transmit: Transmit,
        send_buffer_limit: SendBufferLimit | None = None,
        sent: SentMessages | None = None,
    ) -> None:
        guard(self)
        self.name = name
        """Name of the other process."""
        self.writable = True
        """The last message has left room for more. A sender that finds none awaits `until_room`,
        at once: while entities are held, each message sets both."""
        self._room = RoomWaiter(self)
        self.until_room: RoomWaiter | HoldWaiter = self._room
        """Result of a tell without room."""
        self._held: HeldEntities | None = None
        """Entities that the other side has no room for; None if there are none."""
        self._hold_waiters: dict[Target, list[asyncio.Future[None]]] = {}
        self._leave_waiters: list[tuple[dict[Target, int], asyncio.Future[None]]] = []
        """Wait until messages have left the queues of held entities."""
        self.tag: Any = None
        """Set by the owner: which peer this is to the owner."""
        self.permissions = NODE
        """Set by the owner: what the other process may send."""
        self.features: frozenset[str] = frozenset()
        """Set by the owner: what the other process has said that it speaks (`wire.batch`); nothing
        before it has greeted."""
        self.wants_drop_reports, self.mark = False, 0
        """Set by the owner: True if the other process wants reports of dropped tells; and the
        number that stands for this session in tells that arrive by it (`drop_reports`)."""
        self.lost: RequestError | None = None
        self.unconfirmed: dict[str, int] = {}
        """In a lost session: tells, by type, that may or may not have arrived."""
        self.unconfirmed_runs: list[Run] = []
        """The runs that have them, until the loss is settled."""
        self.peer_ended = True
        """In a lost session: the other process has ended, or left. If False, it may still live."""
        self.closed_idle = False
        """In a lost session: this process closed it with nothing under way; the other process may
        live."""
        self.held_reports = 0
        """How many times the other side has reported that it lives, and has no room."""
        self.peer_lost_data = False
        """The other side lacks what it had acknowledged, so the session cannot go on."""
        self._sent = sent or SentMessages()
        self._init_outbox(loop, Asks(clock), send_buffer_limit)
        self._transmit = transmit
        self._window = Window(transmit)
        self._fragments, self._assembly = FragmentQueue(self._window), FragmentAssembly()
        self._inbox = self._make_inbox(receiver, clock)
        self._ack_armed = self._retry_armed = False
        self._asks_expired = False
        """Some asks have expired that stand in batches to be sent again."""
        self._open_waiters: list[asyncio.Future[None]] = []
        self._room_waiters: list[asyncio.Future[None]] = []
        self._drain_waiters: list[tuple[int, asyncio.Future[None]]] = []

    def _init_outbox(
        self,
        loop: asyncio.AbstractEventLoop,
        asks: Asks,
        send_buffer_limit: SendBufferLimit | None,
    ) -> None:
        self._send_buffer_limit = send_buffer_limit or SendBufferLimit()
        self._loop, self._asks = loop, asks
        self._expect = asks.expect
        self._scheduled = False
        self._runs: list[Run] = []
        self._weight, self._limit = 0, BATCH_WEIGHT_MAX
        self._tell_key: Key | None = None
        self._ask_key: Key | Chain | None = None
        """What the messages of the open run of asks share: their key, or the chain of callers."""
        self._chained_key: Key | None = None
        self._asked_since = 0.0
        """When the open batch got its first ask; 0 if it has none."""
        self._delayed: dict[int, float] = {}
        """When asks of the open batch began to wait for a home."""
        self._ask_timeout_ms = self._ask_deadline = 0
        self._replies: ReplyRun | None = None
        self._tell_ids: list[str]
        self._tell_payloads: list[bytes]
        self._ask_ids: list[str]
        self._ask_payloads: list[bytes]
        self._ask_corrs: list[int]
        self._reply_corrs: list[int]
        self._reply_payloads: list[bytes]

    def _make_inbox(self, receiver: Receiver[Session], clock: CoarseClock) -> Inbox[Session]:
        free, hold = self._acknowledge_late, self._on_hold
        return Inbox(self, receiver, self._window, self._asks, self._loop, clock, free, hold)

    # ---- adding messages to the open batch

    def tell(self, key: Key, entity_id: str, payload: bytes) -> None:
        """Add a message to the open batch.

        Raises:
            BufferFull: the session holds as much as it may.
        """
        if key is not self._tell_key:
            if self._held is not None:
                self._tell_past_holds(key, entity_id, payload)
                return
            if not self.writable and self.is_full:
                raise self._send_buffer_limit.refusal(key[0], self.name)
            self._open_tells(key)
        self._tell_ids.append(entity_id)
        self._tell_payloads.append(payload)
        self._weight = weight = self._weight + len(payload) + ENVELOPE_WEIGHT
        if weight > BATCH_WEIGHT_MAX:
            self._full()

    def admit(self, key: Key, entity_id: str) -> None:
        """Raise BufferFull, and count the message, if the session holds as much as it may, of all
        entities or of this one."""
        held, target = self._held, (key[0], entity_id)
        full = held is not None and target in held and held.refuses(target, self._buffer_bytes)
        if full or (not self.writable and self.is_full):
            raise self._send_buffer_limit.refusal(key[0], self.name)

    def tell_accepted(self, key: Key, entity_id: str, payload: bytes) -> None:
        """`tell` a message that this process has accepted before: it is never refused."""
        if self._held is not None:
            self._tell_past_holds(key, entity_id, payload, accepted=True)
            return
        if key is not self._tell_key:
            self._open_tells(key)
        self.tell(key, entity_id, payload)

    def ask(
        self,
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        waiter: Any,
        decode: Decode | None,
    ) -> None:
        """Add a message and register its caller: a future with the function that decodes its
        answer, or a Waiter. If the session holds as much as it may, the caller gets BufferFull."""
        if key is not self._ask_key or timeout_ms != self._ask_timeout_ms:
            if self._held is not None:
                self._ask_past_holds(key, entity_id, payload, timeout_ms, waiter, decode)
                return
            if not self.writable and self.is_full:
                refuse((waiter, decode, 0), self._send_buffer_limit.refusal(key[0], self.name))
                return
            self._open_asks(key, timeout_ms)
        asks = self._asks
        corr = asks.corr = asks.corr + 1
        asks.entries[corr] = (waiter, decode, self._ask_deadline)
        self._ask_ids.append(entity_id)
        self._ask_payloads.append(payload)
        self._ask_corrs.append(corr)
        self._weight = weight = self._weight + len(payload) + ASK_WEIGHT
        if weight > self._limit:
            self._full()

    def ask_in_chain(
        self,
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        waiter: Any,
        decode: Decode | None,
        chain: Chain,
    ) -> None:
        """`ask` from inside an entity. `chain`, never empty, names the entities that wait. A
        handler passes the same object with each of its asks, so that they share a run."""
        if (
            chain is not self._ask_key
            or key is not self._chained_key
            or timeout_ms != self._ask_timeout_ms
        ):
            if self._held is not None:
                self._ask_past_holds(key, entity_id, payload, timeout_ms, waiter, decode, chain)
                return
            if not self.writable and self.is_full:
                refuse((waiter, decode, 0), self._send_buffer_limit.refusal(key[0], self.name))
                return
            self._open_asks(key, timeout_ms, chain)
            self._ask_key, self._chained_key = chain, key
        self._ask_ids.append(entity_id)
        self._ask_payloads.append(payload)
        self._ask_corrs.append(self._expect(waiter, decode, timeout_ms))
        self._weight += len(payload) + ASK_WEIGHT
        if self._weight > self._limit:
            self._full()

    def ask_accepted(
        self,
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        waiter: Any,
        decode: Decode | None,
        chain: Chain,
        since: float,
    ) -> None:
        """`ask`, or `ask_in_chain`, for a message that has waited here since then: it is never
        refused."""
        if self._held is not None:
            self._ask_past_holds(
                key, entity_id, payload, timeout_ms, waiter, decode, chain, since, accepted=True
            )
            return
        shared = chain or key
        known = shared is self._ask_key and (not chain or key is self._chained_key)
        if not known or timeout_ms != self._ask_timeout_ms:
            self._open_asks(key, timeout_ms, chain)
            self._ask_key, self._chained_key = shared, key
        self._delayed[self._asks.corr + 1] = since
        if chain:
            self.ask_in_chain(key, entity_id, payload, timeout_ms, waiter, decode, chain)
        else:
            self.ask(key, entity_id, payload, timeout_ms, waiter, decode)

    def reply(self, corr: int, payload: bytes) -> EntityFailed | None:
        """Answer an ask that came by this session. Returns the error that it gets instead if the
        answer is too large."""
        if self._replies is None:
            self._open_replies()
        self._reply_corrs.append(corr)
        self._reply_payloads.append(payload)
        self._weight += len(payload) + ASK_WEIGHT
        if self._weight > BATCH_WEIGHT_MAX:
            return self._full_of_replies()
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
        corr = self._expect(waiter, None, timeout_ms) if waiter is not None else 0
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
        if self._held is not None:
            target = (key[0], entity_id)
            if target in self._held:
                self._queue_traced(target, key, payload, timeout_ms, waiter, decode, chain, trace)
                return
            self._mark_room()
        if waiter is None:
            self._put(TellRun(key[0], key[1], [entity_id], [payload], trace), len(payload))
            return
        corr = self._expect(waiter, decode, timeout_ms)
        self._asked_since = self._asked_since or self._loop.time()
        if since:
            self._delayed[corr] = since
        ids, payloads, corrs = [entity_id], [payload], [corr]
        run = AskRun(key[0], key[1], timeout_ms, ids, payloads, corrs, chain, trace)
        self._put(run, len(payload) + len(chain) * ENVELOPE_WEIGHT)

    # ---- while entities are held

    def _tell_past_holds(
        self, key: Key, entity_id: str, payload: bytes, *, accepted: bool = False
    ) -> None:
        """`tell` while entities are held: queue the message if its entity is."""
        held, target = self._held, (key[0], entity_id)
        assert held is not None
        if target in held:
            self._queue(target, TellRun(key[0], key[1], [entity_id], [payload]), accepted)
            self.writable, self.until_room = False, HoldWaiter(self, target)
            return
        run = self._runs[-1] if self._runs else None
        if not isinstance(run, TellRun) or (run.type, run.method) != key or run.trace:
            if not accepted and not self._has_room and self.is_full:
                raise self._send_buffer_limit.refusal(key[0], self.name)
            self._open_tells(key)
            self._tell_key, run = None, self._runs[-1]
            assert isinstance(run, TellRun)
        run.ids.append(entity_id)
        run.payloads.append(payload)
        self._weight += len(payload) + ENVELOPE_WEIGHT
        if self._weight > BATCH_WEIGHT_MAX:
            self._full()
        self._mark_room()

    def _ask_past_holds(
        self,
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        waiter: Any,
        decode: Decode | None,
        chain: Chain = (),
        since: float = 0.0,
        *,
        accepted: bool = False,
    ) -> None:
        """`ask` while entities are held: queue the message if its entity is."""
        held, target = self._held, (key[0], entity_id)
        assert held is not None
        if target in held:
            self._queue_ask(target, key, payload, timeout_ms, waiter, decode, chain, "", accepted)
            return
        run = self._runs[-1] if self._runs else None
        shared = (key[0], key[1], timeout_ms, chain, "")
        if (
            not isinstance(run, AskRun)
            or (run.type, run.method, run.timeout_ms, run.chain, run.trace) != shared
        ):
            if not accepted and not self._has_room and self.is_full:
                refuse((waiter, decode, 0), self._send_buffer_limit.refusal(key[0], self.name))
                return
            self._open_asks(key, timeout_ms, chain)
            self._ask_key, run = None, self._runs[-1]
            assert isinstance(run, AskRun)
        corr = self._expect(waiter, decode, timeout_ms)
        if since:
            self._delayed[corr] = since
        run.ids.append(entity_id)
        run.payloads.append(payload)
        run.corrs.append(corr)
        self._weight += len(payload) + ASK_WEIGHT
        if self._weight > self._limit:
            self._full()

    def _queue_ask(
        self,
        target: Target,
        key: Key,
        payload: bytes,
        timeout_ms: int,
        waiter: Any,
        decode: Decode | None,
        chain: Chain,
        trace: str,
        accepted: bool,
    ) -> None:
        assert self._held is not None
        if not accepted and (self._held.refuses(target, self._buffer_bytes) or self.is_full):
            refuse((waiter, decode, 0), self._send_buffer_limit.refusal(key[0], self.name))
            return
        corr = self._expect(waiter, decode, timeout_ms)
        ids, payloads = [target[1]], [payload]
        run = AskRun(key[0], key[1], timeout_ms, ids, payloads, [corr], chain, trace)
        self._queue(target, run, accepted=True)

    def _queue_traced(
        self,
        target: Target,
        key: Key,
        payload: bytes,
        timeout_ms: int,
        waiter: Any,
        decode: Decode | None,
        chain: Chain,
        trace: str,
    ) -> None:
        """Queue a traced message for a held entity. Its sender has called `admit`, or it was
        accepted before."""
        if waiter is not None:
            self._queue_ask(target, key, payload, timeout_ms, waiter, decode, chain, trace, True)
            return
        self._queue(target, TellRun(key[0], key[1], [target[1]], [payload], trace), accepted=True)
        self.writable, self.until_room = False, HoldWaiter(self, target)

    def _queue(self, target: Target, run: TellRun | AskRun, accepted: bool) -> None:
        """Append a message to the queue of a held entity.

        Raises:
            BufferFull: the queue has as much as it may. MessageTooLarge.
        """
        held = self._held
        assert held is not None
        if len(run.payloads[0]) > PAYLOAD_BYTES_MAX:
            raise too_large(len(run.payloads[0]))
        if not accepted and (held.refuses(target, self._buffer_bytes) or self.is_full):
            raise self._send_buffer_limit.refusal(target[0], self.name)
        held.put(target, run, self._asks.tick)

    @property
    def _buffer_bytes(self) -> int:
        return self._send_buffer_limit.bytes

    @property
    def _has_room(self) -> bool:
        """True if the session itself has room, whatever entities are held."""
        return self._window.writable

    def _mark_room(self) -> None:
        """Note for the sender of the last message that no held entity makes it wait."""
        self.writable, self.until_room = self._has_room, self._room

    def _on_hold(self, hold: Hold) -> None:
        """The other side has no room for entities, or has room again."""
        if Hold not in RUNS[self.permissions.role]:
            log.warning("dropped a Hold: %s may not send it", self.name)
            return
        targets = [(hold.type, entity_id) for entity_id in hold.ids]
        if hold.begins:
            held = self._held = self._held or HeldEntities()
            for target in targets:
                held.hold(target)
            self._tell_key = self._ask_key = None
            self._take_back([target for target in targets if held.empty(target)])
            return
        for target in targets:
            if self._held is not None:
                self._held.drain(target)
                self._drain(target)

    def _take_back(self, targets: list[Target]) -> None:
        """Queue messages for entities that are held now and that have not left, if there are
        many."""
        held, taken = self._held, list[list[TellRun | AskRun]]()
        if held is None or self._window.unsent <= TAKE_BACK_MIN:
            return
        self.flush()

        def change(body: bytes) -> bytes | None:
            found = take_back(body, wanted)
            if found is None:
                return None
            taken.append(found[1])
            return found[0]

        wanted = frozenset(targets)
        if self._fragments.busy:
            self._fragments.rewrite_unsent(change)
        else:
            self._window.rewrite_unsent(change)
        for runs in reversed(taken):
            for run in runs:
                held.put((run.type, run.ids[0]), run, self._asks.tick)

    def _drain(self, target: Target) -> None:
        """Send the next portion of what waits for an entity that has room again."""
        held = self._held
        if self.lost is not None or held is None:
            return
        self._put_queued(held.portion(target, self._asks.tick))
        if not held.drained(target):
            self._when_taken(lambda: self._go_on(target))
            return
        wake(self._hold_waiters.pop(target, []))
        if not held:
            self._held = None
            self._mark_room()

    def _go_on(self, target: Target) -> None:
        if self._held is not None and self._held.drains(target):
            self._drain(target)

    def _put_queued(self, runs: list[TellRun | AskRun]) -> None:
        """Send messages that have waited for their entities, without the asks that are over."""
        entries = self._asks.entries
        for run in runs:
            weight = ENVELOPE_WEIGHT
            if isinstance(run, AskRun):
                at = [n for n, corr in enumerate(run.corrs) if corr in entries]
                if not at:
                    continue
                run.ids, run.payloads = [run.ids[n] for n in at], [run.payloads[n] for n in at]
                run.corrs = [run.corrs[n] for n in at]
                self._asked_since = self._asked_since or self._loop.time()
                weight = ASK_WEIGHT
            self._put(run, sum(map(len, run.payloads)) + len(run.ids) * weight)
        if self._leave_waiters:
            self._check_left()

    def _when_taken(self, call: Callable[[], None]) -> None:
        """Call once the other side has acknowledged everything sent so far."""
        self.flush()
        self._acknowledged().add_done_callback(lambda _: call())

    @property
    def held_any(self) -> bool:
        """True if the other side has no room for some entity."""
        return self._held is not None

    def leave(self, leaves: Callable[[Target], bool]) -> None:
        """Send what waits for held entities that will be reached by another session from now on:
        what follows on this one says that everything has been sent."""
        if self._held is not None:
            self._put_queued(self._held.leave(leaves, self._asks.tick))

    def has_room_for(self, target: Target) -> bool:
        """True if a tell to this entity would not wait."""
        held = self._held
        return self.writable if held is None else self._has_room and target not in held

    def room_for(self, target: Target) -> asyncio.Future[None]:
        """Return a future that is done when an entity is held no more, or the session is lost."""
        held = self._held is not None and target in self._held
        waiting = self._hold_waiters.setdefault(target, []) if held else []
        return self._future(not held, waiting)

    def flush_shard(
        self, entity_type: str, shard: str, hops: int, timeout_ms: int, waiter: Waiter
    ) -> None:
        """Request an echo once everything sent so far for the shard has arrived at its home."""
        corr = self._expect(waiter, None, timeout_ms)
        self._put(Flush(entity_type, shard, corr, timeout_ms, hops), 0)

    def control(self, control: Control) -> None:
        """Send a message of the state machines."""
        self._put(control, len(control.body))

    def _put(self, run: Run, size: int) -> None:
        self._tell_key = self._ask_key = None
        self._runs.append(run)
        self._schedule()
        self._weight += size + ENVELOPE_WEIGHT
        if self._weight > BATCH_WEIGHT_MAX:
            self._send_full()

    def _open_tells(self, key: Key) -> None:
        run = TellRun(key[0], key[1], [], [])
        self._runs.append(run)
        self._tell_ids, self._tell_payloads = run.ids, run.payloads
        self._tell_key, self._ask_key = key, None
        self._schedule()

    def _open_asks(self, key: Key, timeout_ms: int, chain: Chain = ()) -> None:
        if self._idle and not self._runs:
            self._limit = 0  # full with its first message
        else:
            self._schedule()
        run = AskRun(key[0], key[1], timeout_ms, [], [], [], chain)
        self._runs.append(run)
        self._weight += len(chain) * ENVELOPE_WEIGHT
        self._ask_ids, self._ask_payloads = run.ids, run.payloads
        self._ask_corrs = run.corrs
        self._ask_key, self._ask_timeout_ms, self._tell_key = key, timeout_ms, None
        self._ask_deadline = self._asks.deadline(timeout_ms)
        if not self._asked_since:
            self._asked_since = self._loop.time()

    def _open_replies(self) -> None:
        self._replies = run = ReplyRun([], [])
        self._runs.append(run)
        self._reply_corrs, self._reply_payloads = run.corrs, run.payloads
        self._schedule()

    def _full(self) -> None:
        """Send the open batch, which is over its weight.

        Raises:
            MessageTooLarge: the last message alone exceeds the limit of one message. It is taken
                out of the batch.
        """
        run = self._runs[-1]
        if isinstance(run, TellRun | AskRun) and len(run.payloads[-1]) > PAYLOAD_BYTES_MAX:
            size = len(run.payloads.pop())
            run.ids.pop()
            if isinstance(run, AskRun):
                self._asks.take(run.corrs.pop())
            self._weight -= size
            self._schedule()
            raise too_large(size)
        self._send_full()

    def _full_of_replies(self) -> EntityFailed | None:
        """Send the open batch. A last answer that is too large is replaced by an error, which is
        returned, because its caller waits."""
        run = self._replies
        if run is not None and len(run.payloads[-1]) > PAYLOAD_BYTES_MAX:
            corr, size = run.corrs.pop(), len(run.payloads.pop())
            self._weight -= size
            text = f"the answer has {size} bytes, at most {PAYLOAD_BYTES_MAX}"
            error = EntityFailed("MessageTooLarge", text)
            self.fail(corr, error)
            return error
        self._send_full()
        return None

    def _send_full(self) -> None:
        self.flush()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def _flush_scheduled(self) -> None:
        self._scheduled = False
        self.flush()

    def _reset_batch(self) -> None:
        self._runs = []
        self._weight, self._limit = 0, BATCH_WEIGHT_MAX
        self._tell_key = self._ask_key = self._replies = None
        self._asked_since = 0.0
        if self._delayed:
            self._delayed = {}

    @property
    def is_full(self) -> bool:
        """True if the session holds more than the send buffer's limit."""
        queued = 0 if self._held is None else self._held.weight
        return self._weight + self.outstanding + queued > self._send_buffer_limit.bytes

    # ---- sending

    def flush(self) -> None:
        """Send the open batch now."""
        runs, weight = self._runs, self._weight
        if not runs:
            return
        if len(runs) > 1 or runs[0].__class__ is not ReplyRun:  # answers alone are not counted
            self._sent.leave(runs, self._asks.entries, self._asked_since, self._delayed, self._loop)
        self._reset_batch()
        if self.lost is not None:
            self._asks.abandon(self.lost)
            return
        window = self._window
        if weight > LARGE_WEIGHT or (self._fragments.active and self._fragments.busy):
            self._fragments.put(runs, weight)
        else:
            window.put(encode_batch(runs))
        self.writable = window.writable
        if window.blocked:
            self._retry_later()

    @property
    def _idle(self) -> bool:
        """True if a message can leave now and every earlier one is acknowledged."""
        return self.open and not self.outstanding

    def _retry_later(self) -> None:
        """Schedule another attempt to send, until the connection takes frames again."""
        if self._window.blocked and not self._retry_armed and self.lost is None:
            self._retry_armed = True
            self._loop.call_later(BLOCKED_S, self._unblock)

    def _unblock(self) -> None:
        self._retry_armed = self._window.blocked = False
        if self.lost is None:
            self._window.pump()
            self._retry_later()

    # ---- state, and waiting for it

    @property
    def open(self) -> bool:
        """True if the handshake is done and the session is not lost."""
        return self._window.open and self.lost is None

    @property
    def received(self) -> int:
        """Number of the last batch that this side acknowledges."""
        return self._window.received

    @property
    def numbered(self) -> int:
        """Number of the last own batch."""
        return self._window.last

    @property
    def acked(self) -> int:
        """Number of the last own batch that the other side has acknowledged."""
        return self._window.acked

    @property
    def duplicates(self) -> int:
        """Batches that arrived more than once."""
        return self._window.duplicates

    @property
    def outstanding(self) -> int:
        """Bytes that were sent or wait to be sent, without an acknowledgement."""
        return self._window.outstanding + self._window.unnumbered

    @property
    def unflushed(self) -> bool:
        """True if messages wait that have no number: in the open batch, or for held entities."""
        return bool(self._runs) or (self._held is not None and self._held.weight > 0)

    @property
    def waiting_asks(self) -> int:
        """Asks without an outcome."""
        return len(self._asks.entries)

    def opening(self) -> asyncio.Future[None]:
        """Return a future that is done when the session is open, or lost."""
        return self._future(self._window.open, self._open_waiters)

    def room(self) -> asyncio.Future[None]:
        """Return a future that is done when the session is writable, or lost."""
        return self._future(self._has_room, self._room_waiters)

    def drained(self) -> asyncio.Future[None]:
        """Return a future that is done when everything sent so far is acknowledged, or the session
        is lost."""
        self.flush()
        self._fragments.number_all()
        held = self._held
        if held is None or not (marks := held.marks()):
            return self._acknowledged()
        waiting: list[asyncio.Future[None]] = []
        drained, left = self._loop.create_future(), self._future(False, waiting)
        if waiting:
            self._leave_waiters.append((marks, left))
        left.add_done_callback(
            lambda _: self.drained().add_done_callback(lambda _: wake([drained]))
        )
        return drained

    def _acknowledged(self) -> asyncio.Future[None]:
        """Return a future that is done when every numbered batch is acknowledged, or the session is
        lost."""
        waiting: list[asyncio.Future[None]] = []
        future = self._future(self._window.outstanding == 0, waiting)
        if waiting:
            self._drain_waiters.append((self._window.last, future))
        return future

    def _check_left(self) -> None:
        """Wake those whose messages have left the queues of held entities."""
        held, waiting = self._held, self._leave_waiters
        self._leave_waiters = []
        for marks, future in waiting:
            if held is None or held.passed(marks):
                wake([future])
            else:
                self._leave_waiters.append((marks, future))

    def _future(self, done: bool, waiting: list[asyncio.Future[None]]) -> asyncio.Future[None]:
        future = self._loop.create_future()
        if done or self.lost is not None:
            future.set_result(None)
        else:
            waiting.append(future)
        return future

    # ---- receiving

    def opened(self, ack: int) -> None:
        """The handshake is done (again): the peer has everything up to `ack`; send the rest."""
        self._window.open, self._window.blocked = True, False
        wake(self._open_waiters)
        self._on_ack(ack)
        if self._asks_expired:
            self._asks_expired = False
            self._window.rewrite(lambda body: without_expired(body, self._asks))
        self._window.resend()
        self._retry_later()

    def suspend(self) -> None:
        """The connection broke: keep everything until the session is `opened` again."""
        self._window.open = False

    def on_frame(self, kind: int, seq: int, ack: int, body: bytes) -> None:
        """A frame of one of the `SESSION_FRAMES` arrived. Raises as `on_data`."""
        if kind == FrameType.DATA:
            self.on_data(seq, ack, body)
        elif kind in NUMBERED:
            self._on_part(seq, ack, body, last=kind == FrameType.LAST_PART)
        else:
            self.on_ack(kind, seq, ack)

    def on_data(self, seq: int, ack: int, body: bytes) -> None:
        """A DATA frame arrived.

        Raises:
            RemoteProtocolError: the body does not fit the schema. The frame counts as received, so
                that it cannot block the rest.
        """
        self._on_ack(ack)
        window = self._window
        if not window.accept(seq):
            return
        if window.owes_ack and not self._ack_armed:
            self._acknowledge_soon()
        self._receive(seq, body)

    def _receive(self, seq: int, body: bytes) -> None:
        """Pass a complete batch to the inbox. Answers that the receiver gives meanwhile leave when
        the whole batch is handled, without waiting for the end of the loop iteration."""
        due, self._scheduled = self._scheduled, True
        try:
            self._inbox.receive(seq, body)
        finally:
            self._scheduled = due
            if self._runs:
                self.flush()

    def _on_part(self, seq: int, ack: int, part: bytes, *, last: bool) -> None:
        """A part of a large batch arrived."""
        self._on_ack(ack)
        if self._window.accept(seq):
            self._assembly.add(part)
            if last:
                self._receive(seq, self._assembly.take())
            else:
                self._inbox.receive_part(seq)
            self._acknowledge_late()  # the sender holds the next part back until then

    def on_ack(self, kind: int, seq: int, ack: int) -> None:
        """An ACK, NAK or HELD frame arrived; `seq` is the last batch that the peer has sent."""
        if kind == FrameType.NAK and ack < self._window.acked:
            self.peer_lost_data = True
            return
        self._on_ack(ack)
        if kind == FrameType.HELD:
            self.held_reports += 1
        if kind == FrameType.NAK:
            self._window.resend()
            self._retry_later()
        elif self._window.missing(seq):
            self._window.acknowledge(FrameType.NAK)

    def keep_alive(self) -> None:
        """Send the numbers of the last batches, so that the peer knows that this process lives, and
        both sides find what is missing."""
        if self.open:
            self._window.acknowledge(FrameType.HELD if self._inbox.holding else FrameType.ACK)

    def request_missing(self) -> None:
        """Ask the peer to send again what this side has not received."""
        if self.open:
            self._window.acknowledge(FrameType.NAK)

    def _acknowledge_soon(self) -> None:
        self._ack_armed = True
        self._loop.call_later(ACK_DELAY_S, self._acknowledge_late)

    def _acknowledge_late(self) -> None:
        """Acknowledge what is received; try again later if the connection has no room, because
        nothing else would repeat it."""
        self._ack_armed = False
        if self._window.owes_ack and self.lost is None:
            self._window.acknowledge()
            if self._window.owes_ack:
                self._acknowledge_soon()

    def _on_ack(self, ack: int) -> None:
        window = self._window
        has_room = window.on_ack(ack)
        if self._fragments.active:
            self._fragments.on_ack(window.acked)
        if has_room:
            self.writable = True
            wake(self._room_waiters)
        if window.blocked:
            self._retry_later()
        while self._drain_waiters and self._drain_waiters[0][0] <= window.acked:
            wake([self._drain_waiters.pop(0)[1]])

    # ---- the receiver's room

    @property
    def forced(self) -> bool:
        """True if the receiver must take, or drop, what it is given now: it cannot be held back."""
        return self._inbox.forced

    @property
    def owed(self) -> bool:
        """True if what the receiver is given now was acknowledged: it takes it over the bound in
        messages."""
        return self._inbox.owed

    @property
    def holds_entities(self) -> bool:
        """True if the other side can hold back what is for single entities."""
        return ENTITY_HOLDS in self.features

    def hold(self, target: Target) -> None:
        """The receiver has no room for an entity: withhold what arrives for it, until `release`."""
        if self.lost is None and self._inbox.fill(target):
            self._say(target, begins=True)

    def release(self, target: Target) -> None:
        """The receiver has room for an entity again."""
        if self.lost is None and self._inbox.release(target):
            self._say(target, begins=False)

    def _say(self, target: Target, *, begins: bool) -> None:
        """Tell the other side whether to hold back what is for an entity."""
        entity_type, entity_id = target
        last = self._runs[-1] if self._runs else None
        if (
            isinstance(last, Hold)
            and (last.type, last.begins) == (entity_type, begins)
            and len(last.ids) < RUN_MESSAGES_MAX
        ):
            last.ids.append(entity_id)
            return
        self._put(Hold(entity_type, [entity_id], begins), len(entity_id))

    def pause(self) -> None:
        """The receiver has no room: hold what arrives for it, until `resume`."""
        self._inbox.pause()

    def resume(self) -> None:
        """The receiver has room again."""
        if self.lost is None:
            self._inbox.resume()

    # ---- deadlines and the end

    def expire(self) -> int:
        """Fail the asks whose deadline has passed; return their number."""
        expired = self._asks.expire(self.name)
        self._asks_expired = self._asks_expired or expired > 0
        return expired

    def unacknowledged(self) -> Iterator[Run]:
        """Iterate over the runs that the other side has not acknowledged, sent or not."""
        for body in self._window.bodies + self._fragments.bodies:
            yield from decode_batch(body)
        yield from self._runs
        if self._held is not None:
            yield from self._held.runs

    def close(self, error: RequestError) -> list[Unsent]:
        """End the session: the other process is gone, or this one leaves it. Every waiting caller
        gets `error`, except for messages that were never handed to the connection. Those are
        returned in order, to be sent another way."""
        if self.lost is not None:
            return []
        self._inbox.release_all()
        self.lost, sent = error, self._window.sent
        numbered, queued = self._fragments.clear()
        rows = sorted(self._window.clear() + numbered)
        lost = [body for seq, body in rows if seq <= sent]
        fresh = [body for seq, body in rows if seq > sent] + queued
        self.unconfirmed_runs = [run for body in lost for run in decode_batch(body)]
        self.unconfirmed = _tells_by_type(self.unconfirmed_runs)
        runs = [run for body in fresh for run in decode_batch(body)] + self._runs
        if self._held is not None:
            runs += self._held.runs
            self._held = None
        unsent = _unsent_messages(runs, self._asks)
        self._reset_batch()
        self.writable, self.until_room = True, self._room
        self._asks.abandon(error)
        for waiting in (*self._hold_waiters.values(), [f for _, f in self._leave_waiters]):
            wake(waiting)
        self._hold_waiters, self._leave_waiters = {}, []
        wake(self._open_waiters)
        wake(self._room_waiters)
        wake([future for _, future in self._drain_waiters])
        self._drain_waiters.clear()
        return unsent

    def finish(self) -> None:
        """Send the open batch, then BYE. What is not acknowledged yet, in either direction, is
        lost, and own tells count as `unconfirmed`: await `drained` first."""
        self.flush()
        self._fragments.number_all()
        self._inbox.discard()
        if self.open:
            self._transmit(FrameType.BYE, self._window.last, self._window.received, b"")
        error = NodeLost(f"the link to {self.name} is closed")
        for message in self.close(error):
            if message.waiting is None:
                name = message.key[0]
                self.unconfirmed[name] = self.unconfirmed.get(name, 0) + 1
            else:
                refuse(message.waiting, error)


def wake(futures: list[asyncio.Future[None]]) -> None:
    """Complete the futures and empty the list."""
    for future in futures:
        if not future.done():
            future.set_result(None)
    futures.clear()


def too_large(size: int) -> MessageTooLarge:
    """Return the error for a message over the limit."""
    return MessageTooLarge(f"a message of {size} bytes, at most {PAYLOAD_BYTES_MAX}")


def without_expired(body: bytes, asks: Asks) -> bytes:
    """Return a batch without the asks that have had their outcome."""
    wanted, kept = asks.entries, list[Run]()
    for run in decode_batch(body):
        if isinstance(run, AskRun):
            at = [n for n, corr in enumerate(run.corrs) if corr in wanted]
            run.ids, run.payloads = [run.ids[n] for n in at], [run.payloads[n] for n in at]
            run.corrs = [run.corrs[n] for n in at]
            if not at:
                continue
        elif isinstance(run, Relayed) and run.corr and run.corr not in wanted:
            continue
        kept.append(run)
    return encode_batch(kept)


def tells_by_mark(runs: Iterable[Run]) -> dict[tuple[str, int], int]:
    """Count tells by type and by the mark of the session that they came by; 0 for own tells."""
    counts: Counter[tuple[str, int]] = Counter()
    for run in runs:
        if isinstance(run, TellRun):
            counts[run.type, 0] += len(run.ids)
        elif isinstance(run, Relayed) and not run.corr:
            counts[run.type, run.via] += 1
    return counts


def _tells_by_type(runs: Iterable[Run]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for (entity_type, _), count in tells_by_mark(runs).items():
        counts[entity_type] += count
    return dict(counts)


def _unsent_messages(runs: list[Run], asks: Asks) -> list[Unsent]:
    """Return the messages of runs that were never sent, in order, each with its waiting caller.
    A message whose caller waits no more is left out."""
    unsent: list[Unsent] = []
    take = asks.take
    for run in runs:
        match run:
            case TellRun():
                key = (run.type, run.method)
                rows = zip(run.ids, run.payloads, strict=True)
                trace = run.trace
                unsent += [Unsent(key, "", i, p, 0, None, (), 0, trace) for i, p in rows]
            case AskRun():
                key = (run.type, run.method)
                asked = zip(run.ids, run.payloads, run.corrs, strict=True)
                found = [(i, p, take(corr)) for i, p, corr in asked]
                unsent += [
                    Unsent(key, "", i, p, 0, w, run.chain, 0, run.trace)
                    for i, p, w in found
                    if w is not None
                ]
            case Relayed():
                key = (run.type, run.method)
                waiting = take(run.corr)
                if waiting is not None or not run.corr:
                    shard, hops, via, trace = run.shard, run.hops, run.via, run.trace
                    chain = run.chain
                    unsent.append(
                        Unsent(key, shard, run.id, run.payload, hops, waiting, chain, via, trace)
                    )
            case _:
                pass  # replies and control messages are for this very process
    return unsent
