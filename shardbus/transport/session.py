"""A session: one conversation with one other process, in both directions, over one connection.

ZeroMQ's `send` is not delivery: what its buffers hold when a connection breaks is gone, silently.
So each direction numbers its batches, acknowledges and resends (`window`), and every ask has
exactly one outcome (`asks`). `outbox` makes batches of messages; here they are sent, and `intake`
hands out what arrives, once the receiver has room for it.

An open batch leaves at the end of the loop iteration that began it, or when it is full, so that a
busy sender pays for one frame per hundreds of messages. Two do not wait for that end: an ask that
finds nothing under way, and what a batch that came was answered. An acknowledgement rides in the
header of whatever goes out next, or goes by itself after a few batches or 25 ms; it never delays
data.

An ask is answered on the session it came by. When the other process dies, what was not acknowledged
is lost, at most once, and counted; what was never sent is given back to be sent another way.

Source: docs/architecture.md; S0.35, S0.36.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from shardbus.errors import NodeLost, RequestError
from shardbus.transport.asks import Asks, CoarseClock, Unsent, refuse
from shardbus.transport.fork_guard import guard
from shardbus.transport.fragments import LARGE_WEIGHT, FragmentAssembly, FragmentQueue
from shardbus.transport.inbox import Inbox
from shardbus.transport.outbox import SessionOutbox
from shardbus.transport.receiver import Receiver
from shardbus.transport.room import RoomWaiter, wake
from shardbus.transport.send_buffer import SendBufferLimit
from shardbus.transport.undelivered import still_wanted, take_back, tells
from shardbus.transport.window import Transmit, Window
from shardbus.wire.batch import FrameType, Run, decode_batch, encode_batch

NUMBERED = frozenset({FrameType.DATA, FrameType.PART, FrameType.LAST_PART})
"""Frames that must arrive, each once and in order."""
SESSION_KINDS = NUMBERED | {FrameType.ACK, FrameType.NAK, FrameType.HELD}
ACK_DELAY_S = 0.025
BLOCKED_S = 0.01


class Session(SessionOutbox):
    """See the module. `transmit(kind, seq, ack, body)` hands one frame to ZeroMQ and says whether
    it took it."""

    __slots__ = (
        "__weakref__",
        "_ack_armed",
        "_assembly",
        "_drained",
        "_inbox",
        "_lane",
        "_late",
        "_looking",
        "_opening",
        "_room",
        "_transmit",
        "_window",
        "gone",
        "listens",
        "lost",
        "mark",
        "parted",
        "tag",
        "told_to_wait",
        "torn",
        "unconfirmed",
        "until_room",
    )

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        clock: CoarseClock,
        receiver: Receiver,
        transmit: Transmit,
        send_buffer_limit: SendBufferLimit | None = None,
    ) -> None:
        super().__init__(name, loop, Asks(clock), send_buffer_limit)
        guard(self)
        self.until_room = RoomWaiter(self)
        """What a tell without room returns."""
        self.tag: Any = None
        """For the owner: who this is to it."""
        self.listens, self.mark = False, 0
        """For the owner: whether the other process wants to hear of tells that are dropped, and how
        tells that come by this session are marked for that."""
        self.lost: RequestError | None = None
        self.unconfirmed: dict[str, int] = {}
        """For a lost session: tells, by type, of which nobody knows whether they arrived."""
        self.gone = True
        """For a lost session: the other process has ended, or left. If not, it may still live."""
        self.parted = False
        """For a lost session: we have left, with nothing under way; the other process may live."""
        self.told_to_wait = 0
        """How often the other side has said that it lives, and has no room."""
        self.torn = False
        """The other side lacks what it had acknowledged: this cannot go on."""
        self._transmit = transmit
        self._window = Window(transmit)
        self._lane, self._assembly = FragmentQueue(self._window), FragmentAssembly()
        self._inbox = self._make_intake(receiver, clock)
        self._ack_armed = self._looking = False
        self._late = False
        """Some asks that may have to be sent again are over."""
        self._opening: list[asyncio.Future[None]] = []
        self._room: list[asyncio.Future[None]] = []
        self._drained: list[tuple[int, asyncio.Future[None]]] = []

    def _make_intake(self, receiver: Receiver, clock: CoarseClock) -> Inbox:
        free = self._acknowledge_late
        return Inbox(self, receiver, self._window, self._asks, self._loop, clock, free)

    def flush(self) -> None:
        """Send the open batch now."""
        runs, weight = self._runs, self._weight
        if not runs:
            return
        self._reset_batch()
        if self.lost is not None:
            self._asks.abandon(self.lost)
            return
        window = self._window
        if weight > LARGE_WEIGHT or self._lane.busy:
            self._lane.put(runs, weight)
        else:
            window.put(encode_batch(runs))
        self.writable = window.writable
        if window.blocked:
            self._look_for_room()

    @property
    def _idle(self) -> bool:
        return self.open and not self.outstanding

    def _look_for_room(self) -> None:
        """The connection took no more: try again soon, for as long as it takes nothing."""
        if self._window.blocked and not self._looking and self.lost is None:
            self._looking = True
            self._loop.call_later(BLOCKED_S, self._unblock)

    def _unblock(self) -> None:
        self._looking = self._window.blocked = False
        if self.lost is None:
            self._window.pump()
            self._look_for_room()

    # ---- waiting

    @property
    def open(self) -> bool:
        """The handshake is done and the session is not lost."""
        return self._window.open and self.lost is None

    @property
    def received(self) -> int:
        """The last batch that was taken."""
        return self._window.received

    @property
    def acked(self) -> int:
        """The last of our batches that the other side has taken."""
        return self._window.acked

    @property
    def duplicates(self) -> int:
        """Batches that came more than once."""
        return self._window.duplicates

    @property
    def outstanding(self) -> int:
        return self._window.outstanding + self._window.aside

    @property
    def unflushed(self) -> bool:
        """Something is in the open batch."""
        return bool(self._runs)

    @property
    def waiting_asks(self) -> int:
        """Asks without an outcome."""
        return len(self._asks.entries)

    def opening(self) -> asyncio.Future[None]:
        """Done when the session is open, or lost."""
        return self._future(self._window.open, self._opening)

    def room(self) -> asyncio.Future[None]:
        """Done when the session is writable, or lost."""
        return self._future(self.writable, self._room)

    def drained(self) -> asyncio.Future[None]:
        """Done when everything sent so far is acknowledged, or the session is lost."""
        self.flush()
        self._lane.rush()
        waiting: list[asyncio.Future[None]] = []
        future = self._future(self._window.outstanding == 0, waiting)
        if waiting:
            self._drained.append((self._window.last, future))
        return future

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
        wake(self._opening)
        self._on_ack(ack)
        if self._late:
            self._late = False
            self._window.rewrite(lambda body: still_wanted(body, self._asks))
        self._window.resend()
        self._look_for_room()

    def suspend(self) -> None:
        """The connection broke: keep everything until it is `opened` again."""
        self._window.open = False

    def on_frame(self, kind: int, seq: int, ack: int, body: bytes) -> None:
        """A frame of one of the `SESSION_KINDS` arrived. Raises as `on_data`."""
        if kind == FrameType.DATA:
            self.on_data(seq, ack, body)
        elif kind in NUMBERED:
            self._on_part(seq, ack, body, last=kind == FrameType.LAST_PART)
        else:
            self.on_ack(kind, seq, ack)

    def on_data(self, seq: int, ack: int, body: bytes) -> None:
        """A DATA frame arrived.

        Raises:
            RemoteProtocolError: its body does not fit. It counts as received, so that it cannot
                block the rest.
        """
        self._on_ack(ack)
        window = self._window
        if not window.take(seq):
            return
        if window.owes_ack and not self._ack_armed:
            self._acknowledge_soon()
        self._take(seq, body)

    def _take(self, seq: int, body: bytes) -> None:
        """A batch is complete. What it makes the receiver answer leaves when all of it is handed
        out, and does not wait for the end of the turn."""
        due, self._scheduled = self._scheduled, True
        try:
            self._inbox.take(seq, body)
        finally:
            self._scheduled = due
            if self._runs:
                self.flush()

    def _on_part(self, seq: int, ack: int, part: bytes, *, last: bool) -> None:
        """A part of a large batch arrived."""
        self._on_ack(ack)
        if self._window.take(seq):
            self._assembly.add(part)
            if last:
                self._take(seq, self._assembly.take())
            else:
                self._inbox.take_part(seq)
            self._acknowledge_late()  # the next part waits for it

    def on_ack(self, kind: int, seq: int, ack: int) -> None:
        """An ACK, NAK or HELD frame arrived; `seq` is the last one that the peer has sent."""
        if kind == FrameType.NAK and ack < self._window.acked:
            self.torn = True
            return
        self._on_ack(ack)
        if kind == FrameType.HELD:
            self.told_to_wait += 1
        if kind == FrameType.NAK:
            self._window.resend()
            self._look_for_room()
        elif self._window.missing(seq):
            self._window.acknowledge(FrameType.NAK)

    def keep_alive(self) -> None:
        """Tell the peer where we are, so that it hears from us and both find what is missing."""
        if self.open:
            self._window.acknowledge(FrameType.HELD if self._inbox.holding else FrameType.ACK)

    # ---- the receiver's room

    @property
    def forced(self) -> bool:
        """What the receiver is given now cannot be held back: it drops what it has no room for."""
        return self._inbox.forced

    def pause(self) -> None:
        """The receiver has no room: hold what comes for it, until `resume`."""
        self._inbox.pause()

    def resume(self) -> None:
        """It has room again."""
        if self.lost is None:
            self._inbox.resume()

    def _acknowledge_soon(self) -> None:
        self._ack_armed = True
        self._loop.call_later(ACK_DELAY_S, self._acknowledge_late)

    def _acknowledge_late(self) -> None:
        """What finds no room is said again later: nobody else would say it."""
        self._ack_armed = False
        if self._window.owes_ack and self.lost is None:
            self._window.acknowledge()
            if self._window.owes_ack:
                self._acknowledge_soon()

    def _on_ack(self, ack: int) -> None:
        window = self._window
        roomy = window.on_ack(ack)
        if self._lane.active:
            self._lane.on_ack(window.acked)
        if roomy:
            self.writable = True
            wake(self._room)
        if window.blocked:
            self._look_for_room()
        while self._drained and self._drained[0][0] <= window.acked:
            wake([self._drained.pop(0)[1]])

    # ---- deadlines and the end

    def expire(self) -> int:
        """Fail the asks whose deadline has passed; says how many there were."""
        late = self._asks.expire(self.name)
        self._late = self._late or late > 0
        return late

    def unacknowledged(self) -> Iterator[Run]:
        """What was sent, or is to be, and nobody has said that he has it."""
        for body in self._window.bodies + self._lane.bodies:
            yield from decode_batch(body)
        yield from self._runs

    def close(self, error: RequestError) -> list[Unsent]:
        """The other process is gone, or we leave it: everybody who waits gets `error`, but for
        messages that were never handed to ZeroMQ. Those are returned, in order, to be sent another
        way."""
        if self.lost is not None:
            return []
        self._inbox.let_go()
        self.lost, sent = error, self._window.sent
        numbered, queued = self._lane.give_up()
        rows = sorted(self._window.give_up() + numbered)
        lost = [body for seq, body in rows if seq <= sent]
        fresh = [body for seq, body in rows if seq > sent] + queued
        self.unconfirmed = tells([run for body in lost for run in decode_batch(body)])
        runs = [run for body in fresh for run in decode_batch(body)] + self._runs
        unsent = take_back(runs, self._asks)
        self._reset_batch()
        self.writable = True
        self._asks.abandon(error)
        wake(self._opening)
        wake(self._room)
        wake([future for _, future in self._drained])
        self._drained.clear()
        return unsent

    def finish(self) -> None:
        """Send what is open, and say goodbye. What is not acknowledged yet, in either direction, is
        lost, and our tells count as `unconfirmed`: wait for `drained` first."""
        self.flush()
        self._lane.rush()
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
