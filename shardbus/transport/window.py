"""The window of a session: batches sent and not acknowledged, and the number of the last one
received.

    put ──> waiting ──room in the window, link open──> unacked ──ack──> acknowledged
                ^──────── resend: the connection was made again, or the receiver reported a gap

Batches are numbered from 1. The receiver accepts them in order, drops duplicates and reports gaps.
The sender keeps unacknowledged batches; while more than a window of bytes or batches is
outstanding, it is not `writable`. At most two windows are in flight: messages that do not wait for
room, such as control messages, still get through behind a full window.

While the receiver is `holding`, a batch that has *arrived* is not yet *received*: it is
acknowledged once it is `handled`.

The window has no clock and no socket: `transmit(kind, seq, ack, body)` hands one frame to the
connection and returns True if the connection took it. Batches that were never handed over can be
returned to the sender.

Source: docs/architecture.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from shardbus.wire.batch import FrameType

WINDOW_BYTES = 4 * 1024 * 1024
WINDOW_BATCHES = 512
AHEAD_BYTES, AHEAD_BATCHES = 2 * WINDOW_BYTES, 2 * WINDOW_BATCHES
ACK_EVERY = 8

Transmit = Callable[[int, int, int, bytes], bool]


class Window:
    """Both directions of one session: numbers, acknowledgements and resends."""

    __slots__ = (
        "_seq", "_to_ack", "_transmit", "_unacked", "_waiting", "acked", "arrived", "blocked",
        "duplicates", "holding", "in_flight", "open", "outstanding", "received", "sent",
        "unnumbered", "writable",
    )  # fmt: skip

    def __init__(self, transmit: Transmit) -> None:
        self._transmit = transmit
        self.open = False
        """The handshake is done."""
        self.blocked = False
        """The connection had no room; the owner resets this and calls `pump`."""
        self.writable = True
        self.outstanding = 0
        """Bytes that wait or are not acknowledged."""
        self.unnumbered = 0
        """Bytes of large batches without a number yet. They count as sent (`fragments`)."""
        self.in_flight = 0
        """Bytes handed to the connection and not acknowledged."""
        self.arrived = 0
        """Number of the last batch accepted."""
        self.holding = False
        """An accepted batch must be `handled` before it counts as received."""
        self.received = 0
        """Number of the last batch that may be acknowledged."""
        self.acked = 0
        """Number of the last own batch that the other side has acknowledged."""
        self.duplicates = 0
        self.sent = 0
        """Number of the last own batch that was handed to the connection."""
        self._seq = 0
        self._to_ack = 0
        self._waiting: deque[tuple[int, bytes, FrameType]] = deque()
        self._unacked: deque[tuple[int, bytes, FrameType]] = deque()

    @property
    def last(self) -> int:
        """Number of the last batch put in."""
        return self._seq

    @property
    def batches(self) -> int:
        """Batches that wait or are not acknowledged."""
        return len(self._waiting) + len(self._unacked)

    # ---- sending

    def put(self, body: bytes, kind: FrameType = FrameType.DATA) -> int:
        """Number a batch, or a part of one, and send it if there is room. Returns the number."""
        self._seq += 1
        self._waiting.append((self._seq, body, kind))
        self.outstanding += len(body)
        self.pump()
        self.update_writable()
        return self._seq

    def update_writable(self) -> None:
        """Clear `writable` if a window of bytes or batches is outstanding."""
        batches = len(self._waiting) + len(self._unacked)
        if self.outstanding + self.unnumbered > WINDOW_BYTES or batches >= WINDOW_BATCHES:
            self.writable = False

    def pump(self) -> None:
        """Hand waiting batches to the connection, up to two windows in flight."""
        waiting, unacked = self._waiting, self._unacked
        while waiting and self.open and not self.blocked:
            if len(unacked) >= AHEAD_BATCHES or self.in_flight >= AHEAD_BYTES:
                return
            seq, body, kind = waiting[0]
            if not self._transmit(kind, seq, self.received, body):
                self.blocked = True
                return
            self._to_ack = 0
            if seq > self.sent:
                self.sent = seq
            self.in_flight += len(body)
            unacked.append(waiting.popleft())

    def resend(self) -> None:
        """Send every unacknowledged batch again."""
        self._waiting.extendleft(reversed(self._unacked))
        self._unacked.clear()
        self.in_flight = 0
        self.pump()

    def rewrite(self, change: Callable[[bytes], bytes]) -> None:
        """Replace the body of every unacknowledged batch by `change(body)`, before a resend."""
        for queue in (self._unacked, self._waiting):
            for at, (seq, body, kind) in enumerate(queue):
                if kind is FrameType.DATA:
                    queue[at] = (seq, change(body), kind)
        self.outstanding = sum(len(body) for _, body, _ in (*self._unacked, *self._waiting))

    @property
    def unsent(self) -> int:
        """Bytes that wait to be sent, or sent again."""
        return self.outstanding - self.in_flight + self.unnumbered

    def rewrite_unsent(self, change: Callable[[bytes], bytes | None]) -> None:
        """Replace the body of batches that were never handed over by `change(body)`, from the
        newest on, until that is None or a part of a large batch stands there."""
        waiting = self._waiting
        for at in range(len(waiting) - 1, -1, -1):
            seq, body, kind = waiting[at]
            if seq <= self.sent or kind is not FrameType.DATA or (new := change(body)) is None:
                return
            waiting[at] = (seq, new, kind)
            self.outstanding += len(new) - len(body)

    def on_ack(self, ack: int) -> bool:
        """The other side has everything up to `ack`. Returns True if there is room again."""
        unacked = self._unacked
        if not unacked or unacked[0][0] > ack or ack > self.sent:
            return False  # nothing new, or more than was sent
        while unacked and unacked[0][0] <= ack:
            seq, body, _ = unacked.popleft()
            self.acked = seq
            self.outstanding -= len(body)
            self.in_flight -= len(body)
        if self._waiting:
            self.pump()
        if self.writable:
            return False
        outstanding = self.outstanding + self.unnumbered
        self.writable = outstanding <= WINDOW_BYTES // 2 and self.batches <= WINDOW_BATCHES // 2
        return self.writable

    # ---- receiving

    def accept(self, seq: int) -> bool:
        """Return True if the batch is the next one. Acknowledge a duplicate again; report a gap."""
        if seq == self.arrived + 1:
            self.arrived = seq
            if not self.holding:
                self.handled(seq)
            return True
        if seq <= self.arrived:
            self.duplicates += 1
            self.acknowledge()
        else:
            self.acknowledge(FrameType.NAK)
        return False

    def handled(self, seq: int) -> None:
        """Count an accepted batch as received."""
        self.received = seq
        self._to_ack += 1
        if self._to_ack >= ACK_EVERY:
            self.acknowledge()

    @property
    def owes_ack(self) -> bool:
        """True if a received batch is not acknowledged yet."""
        return self._to_ack > 0

    def acknowledge(self, kind: FrameType = FrameType.ACK) -> None:
        """Send the numbers of the last batch received and of the last one sent, so that the other
        side can find a gap."""
        if self._transmit(kind, self.sent, self.received, b""):
            self._to_ack = 0

    def missing(self, seq: int) -> bool:
        """Whether the other side has sent something that never came."""
        return seq > self.arrived

    # ---- the end

    @property
    def bodies(self) -> list[bytes]:
        """Bodies of unacknowledged batches, in order, without parts."""
        return [
            body for _, body, kind in (*self._unacked, *self._waiting) if kind is FrameType.DATA
        ]

    def clear(self) -> list[tuple[int, bytes]]:
        """Forget the unacknowledged batches and return them in order, each with its number, without
        parts. Those up to `sent` may or may not have arrived."""
        rows = (*self._unacked, *self._waiting)
        left = [(seq, body) for seq, body, kind in rows if kind is FrameType.DATA]
        self._waiting.clear()
        self._unacked.clear()
        self.outstanding = self.in_flight = 0
        self.writable = True
        return left
