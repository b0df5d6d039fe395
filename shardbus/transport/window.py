"""The window: what one side of a session has sent and the other has not acknowledged, and what it
got.

    put ──> waiting ──room in the window, link open──> unacked ──ack──> gone
                ^──────── resend: the link was made anew, or the receiver named a gap

Batches are numbered from 1. The receiver takes them in order, drops what it has had and names gaps;
the sender keeps what is not acknowledged and, while more than a window of bytes or batches is
outstanding, is not `writable`. Twice a window is handed on at most: what does not ask whether there
is room, as the machines' messages, still gets through behind a window that is full.

What has *arrived* is not *received* while the receiver is `holding`: it is acknowledged once it is
`handled`.

No clock and no socket in here: `transmit(kind, seq, ack, body)` hands a frame on and says whether
it was taken. What is never handed on can be given back.

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
    """See the module. `on_room` is called when `writable` becomes true again."""

    __slots__ = (
        "_seq",
        "_to_ack",
        "_transmit",
        "_unacked",
        "_waiting",
        "acked",
        "arrived",
        "aside",
        "blocked",
        "duplicates",
        "holding",
        "in_flight",
        "open",
        "outstanding",
        "received",
        "sent",
        "writable",
    )

    def __init__(self, transmit: Transmit) -> None:
        self._transmit = transmit
        self.open = False
        """The handshake is done."""
        self.blocked = False
        """The link had no room; the owner sets it back and pumps."""
        self.writable = True
        self.outstanding = 0
        """Bytes that wait or are not acknowledged."""
        self.aside = 0
        """Bytes that have no number yet, but count as sent."""
        self.in_flight = 0
        """Bytes of those outstanding that were handed on."""
        self.arrived = 0
        """The last batch that was taken."""
        self.holding = False
        """What is taken has to be `handled` before it counts as received."""
        self.received = 0
        """The last batch that may be acknowledged."""
        self.acked = 0
        """The last of ours that the other side has taken."""
        self.duplicates = 0
        self.sent = 0
        """The last of ours that was handed on."""
        self._seq = 0
        self._to_ack = 0
        self._waiting: deque[tuple[int, bytes, FrameType]] = deque()
        self._unacked: deque[tuple[int, bytes, FrameType]] = deque()

    @property
    def last(self) -> int:
        """The number of the last batch put in."""
        return self._seq

    @property
    def batches(self) -> int:
        """Batches that wait or are not acknowledged."""
        return len(self._waiting) + len(self._unacked)

    # ---- sending

    def put(self, body: bytes, kind: FrameType = FrameType.DATA) -> int:
        """Number a batch, or a part of one, and send it, as far as there is room; the number."""
        self._seq += 1
        self._waiting.append((self._seq, body, kind))
        self.outstanding += len(body)
        self.pump()
        self.look()
        return self._seq

    def look(self) -> None:
        """Is that enough for now?"""
        if self.outstanding + self.aside > WINDOW_BYTES or self.batches >= WINDOW_BATCHES:
            self.writable = False

    def pump(self) -> None:
        """Hand on what the window has room for."""
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
        """Send everything that is not acknowledged once more."""
        self._waiting.extendleft(reversed(self._unacked))
        self._unacked.clear()
        self.in_flight = 0
        self.pump()

    def rewrite(self, change: Callable[[bytes], bytes]) -> None:
        """Before they are sent again: change the batches that are not acknowledged."""
        for queue in (self._unacked, self._waiting):
            for at, (seq, body, kind) in enumerate(queue):
                if kind is FrameType.DATA:
                    queue[at] = (seq, change(body), kind)
        self.outstanding = sum(len(body) for _, body, _ in (*self._unacked, *self._waiting))

    def on_ack(self, ack: int) -> bool:
        """The other side has everything up to `ack`; whether there is room again."""
        unacked = self._unacked
        if not unacked or unacked[0][0] > ack or ack > self.sent:
            return False  # nothing new, or not true
        while unacked and unacked[0][0] <= ack:
            seq, body, _ = unacked.popleft()
            self.acked = seq
            self.outstanding -= len(body)
            self.in_flight -= len(body)
        if self._waiting:
            self.pump()
        if self.writable:
            return False
        outstanding = self.outstanding + self.aside
        self.writable = outstanding <= WINDOW_BYTES // 2 and self.batches <= WINDOW_BATCHES // 2
        return self.writable

    # ---- receiving

    def take(self, seq: int) -> bool:
        """Whether a batch is the next one. A duplicate is acknowledged again, a gap is named."""
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
        """A batch that was taken counts as received."""
        self.received = seq
        self._to_ack += 1
        if self._to_ack >= ACK_EVERY:
            self.acknowledge()

    @property
    def owes_ack(self) -> bool:
        """Something was received and not acknowledged yet."""
        return self._to_ack > 0

    def acknowledge(self, kind: FrameType = FrameType.ACK) -> None:
        """Say what was taken, and what was sent last, so that the other side can find a gap."""
        if self._transmit(kind, self.sent, self.received, b""):
            self._to_ack = 0

    def missing(self, seq: int) -> bool:
        """Whether the other side has sent something that never came."""
        return seq > self.arrived

    # ---- the end

    @property
    def bodies(self) -> list[bytes]:
        """Batches that are not acknowledged, in order. Parts are not among them."""
        return [
            body for _, body, kind in (*self._unacked, *self._waiting) if kind is FrameType.DATA
        ]

    def give_up(self) -> list[tuple[int, bytes]]:
        """Batches that are not acknowledged, with their numbers, in order. Those up to `sent` were
        handed on: nobody knows whether they arrived. Parts are not among them."""
        rows = (*self._unacked, *self._waiting)
        left = [(seq, body) for seq, body, kind in rows if kind is FrameType.DATA]
        self._waiting.clear()
        self._unacked.clear()
        self.outstanding = self.in_flight = 0
        self.writable = True
        return left
