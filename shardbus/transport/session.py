"""A session: one conversation with one other process, in both directions, over one ZeroMQ
connection.

ZeroMQ's `send` is not delivery: what its buffers hold when a connection breaks is gone, silently.
So each direction numbers its batches. The receiver takes them in order, drops those it has had, and
acknowledges cumulatively, in the header of whatever it sends next or by itself after a few batches
or 25 ms. The sender keeps what is not acknowledged, sends it again after the connection was made
anew (or when the receiver names a gap), and stops being `writable` while more than a window of
bytes is outstanding: that is the backpressure which `await tell` feels.

    tell, ask, reply ──> open batch ──flush──> waiting ──window, open──> unacked ──ack──> gone
                                                              ^──── resend after HELLO/WELCOME or NAK

An open batch leaves at the end of the loop iteration that began it, or when it is full, so that a
lone message waits for nobody and a busy sender pays for one frame per hundreds of messages. The
acknowledgement timer never delays data.

An ask is answered on the session it came by, under its correlation id. Whoever waits gets exactly
one outcome: the answer, the error that the other side names, AskTimeout at the deadline, or
NodeLost when the session is lost.

When the other process dies, what was not acknowledged is lost: at most once. It is counted.

Source: DESIGN section 7; S0.35, S0.36; RELIABILITY sections 0.1 and 2.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from shardbus import errors
from shardbus.errors import (
    AskTimeout,
    EntityFailed,
    MessageTooLarge,
    NodeLost,
    RemoteProtocolError,
    RequestError,
)
from shardbus.wire.batch import (
    PAYLOAD_BYTES_MAX,
    AskRun,
    Control,
    Fail,
    Flush,
    Kind,
    Relayed,
    ReplyRun,
    Run,
    TellRun,
    decode_batch,
    encode_batch,
)
from shardbus.wire.schema import Decode

log = logging.getLogger("shardbus.link")

BATCH_WEIGHT_MAX = 64 * 1024
ENVELOPE_WEIGHT = 192
"""What an envelope weighs besides its payload: a batch is full at 64 KiB or some 340 small
envelopes."""
WINDOW_BYTES = 4 * 1024 * 1024
WINDOW_BATCHES = 512
ACK_EVERY = 8
ACK_DELAY_S = 0.025

Key = tuple[str, str]
"""(entity type, method). Callers keep one object per pair: runs are told apart by identity."""


class Waiter(Protocol):
    """Somebody who waits for an answer but is not a future: a relayed ask, a flush."""

    def resolve(self, payload: bytes) -> None: ...
    def fail(self, error: RequestError) -> None: ...


class Receiver(Protocol):
    """Who handles what arrives."""

    def on_tells(self, session: Session, run: TellRun) -> None: ...
    def on_asks(self, session: Session, run: AskRun) -> None: ...
    def on_relayed(self, session: Session, message: Relayed) -> None: ...
    def on_control(self, session: Session, control: Control) -> None: ...
    def on_flush(self, session: Session, flush: Flush) -> None: ...


class Unsent(NamedTuple):
    """A message that a lost session gives back. `entry` is who waits: waiter, decode, deadline
    tick."""

    key: Key
    shard: str
    entity_id: str
    payload: bytes
    hops: int
    entry: tuple[Any, Decode | None, int] | None


class Clock:
    """A coarse clock for deadlines, in ticks of `TICK_MS`; whoever owns the sessions moves it
    on."""

    __slots__ = ("tick",)
    TICK_MS = 50

    def __init__(self) -> None:
        self.tick = 0

    def after(self, timeout_ms: int) -> int:
        """The tick at which `timeout_ms` from now have surely passed."""
        return self.tick + timeout_ms // self.TICK_MS + 2


def failure(error: str, text: str, detail: str) -> RequestError:
    """The error that a Fail names."""
    if error == "EntityFailed":
        return EntityFailed(detail, text)
    cls = getattr(errors, error, None)
    if isinstance(cls, type) and issubclass(cls, RequestError):
        return cls(text)
    return EntityFailed(error, text)


class Session:
    """See the module. `transmit(kind, seq, ack, body)` hands one frame to ZeroMQ and says whether
    it took it."""

    __slots__ = (
        "__weakref__",
        "_ack_armed",
        "_add_ask_corr",
        "_add_ask_id",
        "_add_ask_payload",
        "_add_reply",
        "_add_reply_corr",
        "_add_tell_id",
        "_add_tell_payload",
        "_ask_key",
        "_ask_timeout_ms",
        "_blocked",
        "_clock",
        "_corr",
        "_drained",
        "_handshaken",
        "_in_flight",
        "_loop",
        "_opening",
        "_pending",
        "_received",
        "_receiver",
        "_replies",
        "_room",
        "_runs",
        "_scheduled",
        "_sent",
        "_seq",
        "_tell_key",
        "_to_ack",
        "_transmit",
        "_unacked",
        "_waiting",
        "_weight",
        "duplicates",
        "lost",
        "lost_batches",
        "name",
        "tag",
        "writable",
    )

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        receiver: Receiver,
        transmit: Callable[[int, int, int, bytes], bool],
    ) -> None:
        self.name = name
        self.tag: Any = None
        """For the owner: who this is to it."""
        self.lost: RequestError | None = None
        self.writable = True
        self.duplicates = 0
        self.lost_batches = 0
        self._loop, self._clock, self._receiver, self._transmit = loop, clock, receiver, transmit
        self._handshaken = False
        self._blocked = False
        self._seq = 0
        self._sent = 0
        self._received = 0
        self._to_ack = 0
        self._ack_armed = False
        self._corr = 0
        self._pending: dict[int, tuple[Any, Decode | None, int]] = {}
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._unacked: deque[tuple[int, bytes]] = deque()
        self._in_flight = 0
        self._opening: list[asyncio.Future[None]] = []
        self._room: list[asyncio.Future[None]] = []
        self._drained: list[tuple[int, asyncio.Future[None]]] = []
        self._scheduled = False
        self._runs: list[Run] = []
        self._weight = 0
        self._tell_key: Key | None = None
        self._ask_key: Key | None = None
        self._ask_timeout_ms = 0
        self._replies: ReplyRun | None = None
        self._add_tell_id: Callable[[str], None]
        self._add_tell_payload: Callable[[bytes], None]
        self._add_ask_id: Callable[[str], None]
        self._add_ask_payload: Callable[[bytes], None]
        self._add_ask_corr: Callable[[int], None]
        self._add_reply_corr: Callable[[int], None]
        self._add_reply: Callable[[bytes], None]

    # ---- sending

    def tell(self, key: Key, entity_id: str, payload: bytes) -> None:
        """Add a message to the open batch."""
        if key is not self._tell_key:
            self._open_tells(key)
        self._add_tell_id(entity_id)
        self._add_tell_payload(payload)
        self._weight += len(payload) + ENVELOPE_WEIGHT
        if self._weight > BATCH_WEIGHT_MAX:
            self._full()

    def ask(
        self,
        key: Key,
        entity_id: str,
        payload: bytes,
        timeout_ms: int,
        waiter: Any,
        decode: Decode | None,
    ) -> None:
        """Add a message and remember who waits: a future with the function that reads its answer,
        or a Waiter."""
        if key is not self._ask_key or timeout_ms != self._ask_timeout_ms:
            self._open_asks(key, timeout_ms)
        self._corr = corr = self._corr + 1
        self._pending[corr] = (waiter, decode, self._clock.after(timeout_ms))
        self._add_ask_id(entity_id)
        self._add_ask_payload(payload)
        self._add_ask_corr(corr)
        self._weight += len(payload) + ENVELOPE_WEIGHT
        if self._weight > BATCH_WEIGHT_MAX:
            self._full()

    def reply(self, corr: int, payload: bytes) -> None:
        """Answer an ask that came by this session."""
        if self._replies is None:
            self._open_replies()
        self._add_reply_corr(corr)
        self._add_reply(payload)
        self._weight += len(payload) + ENVELOPE_WEIGHT
        if self._weight > BATCH_WEIGHT_MAX:
            self._full()

    def fail(self, corr: int, error: Exception) -> None:
        """Answer an ask with an error."""
        if isinstance(error, EntityFailed):
            self._put(Fail(corr, "EntityFailed", error.message, error.type), len(error.message))
        else:
            text = error.message if isinstance(error, RequestError) else str(error)
            self._put(Fail(corr, type(error).__name__, text, ""), len(text))

    def relay(
        self,
        key: Key,
        shard: str,
        entity_id: str,
        payload: bytes,
        hops: int,
        timeout_ms: int,
        waiter: Waiter | None,
    ) -> None:
        """Pass on a message that came from elsewhere."""
        corr = self._expect(waiter, timeout_ms)
        self._put(
            Relayed(key[0], shard, entity_id, key[1], payload, corr, timeout_ms, hops), len(payload)
        )

    def flush_shard(
        self, entity_type: str, shard: str, hops: int, timeout_ms: int, waiter: Waiter
    ) -> None:
        """Ask for an echo once everything sent so far for the shard has arrived at its home."""
        corr = self._expect(waiter, timeout_ms)
        self._put(Flush(entity_type, shard, corr, timeout_ms, hops), 0)

    def control(self, control: Control) -> None:
        """Send a message of the machines."""
        self._put(control, len(control.body))

    def _expect(self, waiter: Waiter | None, timeout_ms: int) -> int:
        if waiter is None:
            return 0
        self._corr += 1
        self._pending[self._corr] = (waiter, None, self._clock.after(timeout_ms))
        return self._corr

    def _put(self, run: Run, size: int) -> None:
        self._tell_key = self._ask_key = None
        self._runs.append(run)
        self._schedule()
        self._weight += size + ENVELOPE_WEIGHT
        if self._weight > BATCH_WEIGHT_MAX:
            self._spill()

    def _open_tells(self, key: Key) -> None:
        run = TellRun(key[0], key[1], [], [])
        self._runs.append(run)
        self._add_tell_id, self._add_tell_payload = run.ids.append, run.payloads.append
        self._tell_key, self._ask_key = key, None
        self._schedule()

    def _open_asks(self, key: Key, timeout_ms: int) -> None:
        run = AskRun(key[0], key[1], timeout_ms, [], [], [])
        self._runs.append(run)
        self._add_ask_id, self._add_ask_payload = run.ids.append, run.payloads.append
        self._add_ask_corr = run.corrs.append
        self._ask_key, self._ask_timeout_ms, self._tell_key = key, timeout_ms, None
        self._schedule()

    def _open_replies(self) -> None:
        self._replies = run = ReplyRun([], [])
        self._runs.append(run)
        self._add_reply_corr, self._add_reply = run.corrs.append, run.payloads.append
        self._schedule()

    def _full(self) -> None:
        """The open batch is over its weight: send it, unless its last message alone is more than a
        message may be."""
        run = self._runs[-1]
        if isinstance(run, TellRun | AskRun) and len(run.payloads[-1]) > PAYLOAD_BYTES_MAX:
            size = len(run.payloads.pop())
            run.ids.pop()
            if isinstance(run, AskRun):
                self._pending.pop(run.corrs.pop())
            self._weight -= size + ENVELOPE_WEIGHT
            raise MessageTooLarge(f"a message of {size} bytes, at most {PAYLOAD_BYTES_MAX}")
        self._spill()

    def _spill(self) -> None:
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
        self._weight = 0
        self._tell_key = self._ask_key = self._replies = None

    def flush(self) -> None:
        """Send the open batch now."""
        runs = self._runs
        if not runs:
            return
        self._reset_batch()
        if self.lost is not None:
            self._abandon(self.lost)
            return
        body = encode_batch(runs)
        self._seq += 1
        self._waiting.append((self._seq, body))
        self._in_flight += len(body)
        self._pump()
        if (
            self._in_flight > WINDOW_BYTES
            or len(self._waiting) + len(self._unacked) >= WINDOW_BATCHES
        ):
            self.writable = False

    def _pump(self) -> None:
        """Hand to ZeroMQ what the window has room for."""
        waiting, unacked = self._waiting, self._unacked
        while waiting and self._handshaken and not self._blocked and len(unacked) < WINDOW_BATCHES:
            seq, body = waiting[0]
            if not self._transmit(Kind.DATA, seq, self._received, body):
                self._blocked = True
                self._loop.call_later(0.01, self._unblock)
                return
            self._to_ack = 0
            self._sent = max(self._sent, seq)
            unacked.append(waiting.popleft())

    def _unblock(self) -> None:
        self._blocked = False
        if self.lost is None:
            self._pump()

    # ---- waiting

    def opening(self) -> asyncio.Future[None]:
        """Done when the session is open, or lost."""
        future = self._loop.create_future()
        if self._handshaken or self.lost is not None:
            future.set_result(None)
        else:
            self._opening.append(future)
        return future

    def room(self) -> asyncio.Future[None]:
        """Done when the session is writable, or lost."""
        future = self._loop.create_future()
        if self.writable or self.lost is not None:
            future.set_result(None)
        else:
            self._room.append(future)
        return future

    def drained(self) -> asyncio.Future[None]:
        """Done when everything sent so far is acknowledged, or the session is lost."""
        self.flush()
        future = self._loop.create_future()
        if self._in_flight == 0 or self.lost is not None:
            future.set_result(None)
        else:
            self._drained.append((self._seq, future))
        return future

    @property
    def received(self) -> int:
        """The last batch that was taken."""
        return self._received

    @property
    def open(self) -> bool:
        """The handshake is done and the session is not lost."""
        return self._handshaken and self.lost is None

    @property
    def outstanding(self) -> int:
        """Bytes that were sent or wait to be sent, without an acknowledgement."""
        return self._in_flight

    @property
    def unflushed(self) -> bool:
        """Something is in the open batch."""
        return bool(self._runs)

    @property
    def waiting_asks(self) -> int:
        """Asks without an outcome."""
        return len(self._pending)

    # ---- receiving

    def opened(self, ack: int) -> None:
        """The handshake is done (again): the peer has everything up to `ack`; send the rest once
        more."""
        self._handshaken = True
        _wake(self._opening)
        self._on_ack(ack)
        self._resend()

    def _resend(self) -> None:
        self._waiting.extendleft(reversed(self._unacked))
        self._unacked.clear()
        self._pump()

    def on_data(self, seq: int, ack: int, body: bytes) -> None:
        """A DATA frame arrived.

        Raises:
            RemoteProtocolError: its body does not fit. It counts as received, so that it cannot
        block the rest."""
        self._on_ack(ack)
        if seq != self._received + 1:
            if seq <= self._received:
                self.duplicates += 1
                self._send_ack(Kind.ACK)
            else:
                self._send_ack(Kind.NAK)
            return
        self._received = seq
        self._to_ack += 1
        if self._to_ack >= ACK_EVERY:
            self._send_ack(Kind.ACK)
        elif not self._ack_armed:
            self._ack_armed = True
            self._loop.call_later(ACK_DELAY_S, self._ack_late)
        self._dispatch(decode_batch(body))

    def on_ack(self, kind: int, seq: int, ack: int) -> None:
        """An ACK or NAK frame arrived; `seq` is the last one that the peer has sent."""
        self._on_ack(ack)
        if kind == Kind.NAK:
            self._resend()
        if seq > self._received:
            self._send_ack(Kind.NAK)

    def keep_alive(self) -> None:
        """Tell the peer where we are, so that it hears from us and both find what is missing."""
        if self._handshaken and self.lost is None:
            self._send_ack(Kind.ACK)

    def _send_ack(self, kind: Kind) -> None:
        if self._transmit(kind, self._sent, self._received, b""):
            self._to_ack = 0

    def _ack_late(self) -> None:
        self._ack_armed = False
        if self._to_ack and self.lost is None:
            self._send_ack(Kind.ACK)

    def _on_ack(self, ack: int) -> None:
        unacked = self._unacked
        if not unacked or unacked[0][0] > ack:
            return
        while unacked and unacked[0][0] <= ack:
            self._in_flight -= len(unacked.popleft()[1])
        self._pump()
        if (
            not self.writable
            and self._in_flight <= WINDOW_BYTES // 2
            and len(unacked) <= WINDOW_BATCHES // 2
        ):
            self.writable = True
            _wake(self._room)
        while self._drained and self._drained[0][0] <= ack:
            _wake([self._drained.pop(0)[1]])

    def _dispatch(self, runs: list[Run]) -> None:
        receiver = self._receiver
        for run in runs:
            try:
                match run:
                    case TellRun():
                        receiver.on_tells(self, run)
                    case AskRun():
                        receiver.on_asks(self, run)
                    case ReplyRun():
                        self._on_replies(run)
                    case Fail():
                        self._on_fail(run)
                    case Relayed():
                        receiver.on_relayed(self, run)
                    case Control():
                        receiver.on_control(self, run)
                    case Flush():
                        receiver.on_flush(self, run)
            except RemoteProtocolError as e:
                log.warning("dropped a run from %s: %s", self.name, e)
            except Exception:
                log.exception("failed on a %s from %s", type(run).__name__, self.name)

    def _on_replies(self, run: ReplyRun) -> None:
        pop = self._pending.pop
        for corr, payload in zip(run.corrs, run.payloads, strict=True):
            entry = pop(corr, None)
            if entry is None:
                continue
            waiter, decode, _ = entry
            if decode is None:
                waiter.resolve(payload)
            elif not waiter.done():
                try:
                    waiter.set_result(decode(payload))
                except (
                    ValueError
                ) as e:  # msgspec's errors, and those of a message class's own checks
                    waiter.set_exception(errors.SchemaError(f"the answer does not fit: {e}"))

    def _on_fail(self, fail: Fail) -> None:
        entry = self._pending.pop(fail.corr, None)
        if entry is not None:
            _fail(entry, failure(fail.error, fail.text, fail.detail))

    # ---- deadlines and the end

    def expire(self) -> int:
        """Fail the asks whose deadline has passed; says how many there were."""
        now = self._clock.tick
        late = [corr for corr, entry in self._pending.items() if entry[2] <= now]
        for corr in late:
            _fail(self._pending.pop(corr), AskTimeout(f"no answer from {self.name} in time"))
        return len(late)

    def close(self, error: RequestError) -> list[Unsent]:
        """The other process is gone, or we leave it: everybody who waits gets `error`, but for
        messages that were never handed to ZeroMQ. Those are returned, in order, to be sent another
        way."""
        if self.lost is not None:
            return []
        self.lost = error
        runs = (
            [run for _, body in self._waiting for run in decode_batch(body)]
            if self._fresh()
            else []
        )
        unsent = self._take_back(runs + self._runs)
        self.lost_batches = len(self._unacked) + (0 if self._fresh() else len(self._waiting))
        self._waiting.clear()
        self._unacked.clear()
        self._in_flight = 0
        self._reset_batch()
        self.writable = True
        self._abandon(error)
        _wake(self._opening)
        _wake(self._room)
        _wake([future for _, future in self._drained])
        self._drained.clear()
        return unsent

    def _fresh(self) -> bool:
        """Nothing that waits was ever sent: after a break, what waits may be a resend."""
        return not self._waiting or self._waiting[0][0] > self._sent

    def _take_back(self, runs: list[Run]) -> list[Unsent]:
        unsent: list[Unsent] = []
        take = self._pending.pop
        for run in runs:
            match run:
                case TellRun():
                    key = (run.type, run.method)
                    unsent += [
                        Unsent(key, "", i, p, 0, None)
                        for i, p in zip(run.ids, run.payloads, strict=True)
                    ]
                case AskRun():
                    key = (run.type, run.method)
                    rows = zip(run.ids, run.payloads, run.corrs, strict=True)
                    unsent += [
                        Unsent(key, "", i, p, 0, take(c)) for i, p, c in rows if c in self._pending
                    ]
                case Relayed():
                    key = (run.type, run.method)
                    entry = take(run.corr, None)
                    if entry is not None or not run.corr:
                        unsent.append(Unsent(key, run.shard, run.id, run.payload, run.hops, entry))
                case _:
                    pass  # replies and machines' messages meant this very process
        return unsent

    def _abandon(self, error: RequestError) -> None:
        pending, self._pending = self._pending, {}
        for entry in pending.values():
            _fail(entry, error)

    def finish(self) -> None:
        """Send what is open, and say goodbye. What is not acknowledged yet may be lost: wait for
        `drained` first."""
        self.flush()
        if self._handshaken and self.lost is None:
            self._transmit(Kind.BYE, self._seq, self._received, b"")
        self.close(NodeLost(f"the link to {self.name} is closed"))


def _fail(entry: tuple[Any, Decode | None, int], error: RequestError) -> None:
    waiter, decode, _ = entry
    if decode is None:
        waiter.fail(error)
    elif not waiter.done():
        waiter.set_exception(error)


def _wake(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
    futures.clear()


class Loopback(Session):
    """A session of a process with itself: what is flushed is received at once, by the same
    rules."""

    __slots__ = ()

    def __init__(
        self, name: str, loop: asyncio.AbstractEventLoop, clock: Clock, receiver: Receiver
    ) -> None:
        super().__init__(name, loop, clock, receiver, lambda kind, seq, ack, body: True)

    def flush(self) -> None:
        runs = self._runs
        if runs:
            self._reset_batch()
            self.writable = True
            _wake(self._room)
            self._dispatch(runs)

    def _spill(self) -> None:
        """Never deliver inside a sender's call: the entity that sends may be the one that
        receives."""
        self.writable = self._weight < WINDOW_BYTES
