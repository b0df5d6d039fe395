"""The link of a session: its frames, whatever becomes of the connection under them.

    OPENING ──opened──> OPEN ──suspended──> BROKEN ──opened──> OPEN
       └────────────────> any of them ──end──> ENDED

    state      batches of the outbox      frames that arrive
    OPENING    are numbered, and wait     none
    OPEN       leave within the window    are accepted in order
    BROKEN     are numbered, and wait     none
    ENDED      are refused                none

`NEXT` is this table of steps. Numbers, acknowledgements and resends are the window's (`window`),
large batches are cut and joined by `fragments`; the link adds the timers that they lack. A NAK
requests a resend, and a connection that took no frame is tried again after `BLOCKED_S`.
Acknowledgements ride in the header of the next frame, or go by themselves after a few batches or
`ACK_DELAY_S`. They never delay data.

Source: docs/architecture.md; S0.35, S0.36.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum

from shardbus.transport.fragments import LARGE_WEIGHT, FragmentAssembly, FragmentQueue
from shardbus.transport.full_entities import Target
from shardbus.transport.window import Window
from shardbus.wire.batch import FrameType, Run, encode_batch

NUMBERED = frozenset({FrameType.DATA, FrameType.PART, FrameType.LAST_PART})
"""Frames that must arrive, each once and in order."""
SESSION_FRAMES = NUMBERED | {FrameType.ACK, FrameType.NAK, FrameType.HELD}
ACK_DELAY_S = 0.025
BLOCKED_S = 0.01
"""Pause before the next attempt to send on a connection that took no more frames."""


class LinkState(Enum):
    """Whether frames can travel."""

    OPENING = "opening"
    OPEN = "open"
    BROKEN = "broken"
    ENDED = "ended"


NEXT = {
    LinkState.OPENING: {LinkState.OPEN, LinkState.BROKEN, LinkState.ENDED},
    LinkState.OPEN: {LinkState.OPEN, LinkState.BROKEN, LinkState.ENDED},
    LinkState.BROKEN: {LinkState.OPEN, LinkState.BROKEN, LinkState.ENDED},
    LinkState.ENDED: set[LinkState](),
}
"""The states that may follow each state."""


class SessionLink:
    """The frames of one session. `name` is the other process. Calls `on_room` when the window,
    after having been full, takes more."""

    __slots__ = (
        "_ack_armed", "_drain_waiters", "_fragments", "_loop", "_on_room", "_open_waiters",
        "_retry_armed", "assembly", "held_reports", "name", "peer_lost_data", "state", "window",
    )  # fmt: skip
    local = False

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        window: Window,
        on_room: Callable[[], None],
    ) -> None:
        self.name, self.window, self.state = name, window, LinkState.OPENING
        self.held_reports = 0
        """How many times the other side has reported that it lives, and has no room."""
        self.peer_lost_data = False
        """The other side lacks batches that it had acknowledged, so the session cannot go on."""
        self._loop, self._on_room = loop, on_room
        self._fragments = FragmentQueue(window)
        self.assembly = FragmentAssembly()
        """Joins the parts of the batch that arrives."""
        self._ack_armed = self._retry_armed = False
        self._open_waiters: list[asyncio.Future[None]] = []
        self._drain_waiters: list[tuple[int, asyncio.Future[None]]] = []

    # ---- the connection

    def _step(self, state: LinkState) -> bool:
        """Take a step of the table. Returns False if the link has ended."""
        if state not in NEXT[self.state]:
            return False
        self.state, self.window.open = state, state is LinkState.OPEN
        return True

    def opened(self, ack: int, rewrite: Callable[[bytes], bytes] | None) -> None:
        """The handshake is done (again): the peer has everything up to `ack`; send the rest, each
        batch as `rewrite` leaves it."""
        if not self._step(LinkState.OPEN):
            return
        window = self.window
        window.blocked = False
        wake(self._open_waiters)
        self._on_ack(ack)
        if rewrite is not None:
            window.rewrite(rewrite)
        window.resend()
        self._retry_later()

    def suspend(self) -> None:
        """The connection broke: keep everything until the link is `opened` again."""
        self._step(LinkState.BROKEN)

    def end(self) -> tuple[list[bytes], list[bytes]]:
        """End the link. Returns the batches that may or may not have arrived, and those that were
        never handed to the connection."""
        self._step(LinkState.ENDED)
        self.assembly.clear()
        sent = self.window.sent
        numbered, queued = self._fragments.clear()
        rows = sorted(self.window.clear() + numbered)
        lost = [body for seq, body in rows if seq <= sent]
        fresh = [body for seq, body in rows if seq > sent] + queued
        wake(self._open_waiters)
        wake([future for _, future in self._drain_waiters])
        self._drain_waiters.clear()
        return lost, fresh

    # ---- sending

    def put(self, runs: list[Run], weight: int) -> bool:
        """Number a batch and send it once the window has room. Returns True if there is room for
        more."""
        window = self.window
        if weight > LARGE_WEIGHT or (self._fragments.active and self._fragments.busy):
            self._fragments.put(runs, weight)
        else:
            window.put(encode_batch(runs))
        if window.blocked:
            self._retry_later()
        return window.writable

    def number_all(self) -> None:
        """Number the parts of every batch now, because a caller waits until they arrive."""
        self._fragments.number_all()

    def has_room(self, weight: int) -> bool:
        """True if the window takes more, whatever the open batch weighs."""
        return self.window.writable

    @property
    def idle(self) -> bool:
        """True if a message can leave now and every earlier one is acknowledged."""
        window = self.window
        return window.open and not (window.outstanding or window.unnumbered)

    @property
    def outstanding(self) -> int:
        """Bytes that were sent or wait to be sent, without an acknowledgement."""
        return self.window.outstanding + self.window.unnumbered

    @property
    def unsent(self) -> int:
        """Bytes that wait to be sent, or sent again."""
        return self.window.unsent

    def rewrite_unsent(self, change: Callable[[bytes], bytes | None]) -> None:
        """Replace the body of batches that were never handed over by `change(body)`, from the
        newest on, until that is None."""
        queue = self._fragments if self._fragments.busy else self.window
        queue.rewrite_unsent(change)

    @property
    def bodies(self) -> list[bytes]:
        """Bodies of unacknowledged batches, sent or not."""
        return self.window.bodies + self._fragments.bodies

    def leave(self, leaves: Callable[[Target], bool]) -> None:
        """Do nothing: the Flush that follows hands out the rests at the other end."""

    def _retry_later(self) -> None:
        """Schedule another attempt to send, until the connection takes frames again."""
        if self.window.blocked and not self._retry_armed and self.state is not LinkState.ENDED:
            self._retry_armed = True
            self._loop.call_later(BLOCKED_S, self._unblock)

    def _unblock(self) -> None:
        self._retry_armed = self.window.blocked = False
        if self.state is not LinkState.ENDED:
            self.window.pump()
            self._retry_later()

    # ---- waiting

    @property
    def open(self) -> bool:
        """True if the handshake is done and the link has not ended."""
        return self.state is LinkState.OPEN

    def opening(self) -> asyncio.Future[None]:
        """Return a future that is done when the link is open, or ended."""
        return self._future(self.window.open, self._open_waiters)

    def acknowledged(self) -> asyncio.Future[None]:
        """Return a future that is done when every numbered batch is acknowledged, or the link has
        ended."""
        waiting: list[asyncio.Future[None]] = []
        future = self._future(self.window.outstanding == 0, waiting)
        if waiting:
            self._drain_waiters.append((self.window.last, future))
        return future

    def when_taken(self, call: Callable[[], None]) -> None:
        """Call once the other side has acknowledged everything sent so far."""
        self.acknowledged().add_done_callback(lambda _: call())

    def _future(self, done: bool, waiting: list[asyncio.Future[None]]) -> asyncio.Future[None]:
        return until(self._loop, done or self.state is LinkState.ENDED, waiting)

    # ---- frames that arrive

    def accept(self, seq: int, ack: int) -> bool:
        """A numbered frame arrived. Returns True if it is the next one."""
        self._on_ack(ack)
        if not self.window.accept(seq):
            return False
        if self.window.owes_ack and not self._ack_armed:
            self._acknowledge_soon()
        return True

    def on_numbers(self, kind: int, seq: int, ack: int) -> None:
        """An ACK, NAK or HELD frame arrived; `seq` is the last batch that the peer has sent."""
        if kind == FrameType.NAK and ack < self.window.acked:
            self.peer_lost_data = True
            return
        self._on_ack(ack)
        if kind == FrameType.HELD:
            self.held_reports += 1
        if kind == FrameType.NAK:
            self.window.resend()
            self._retry_later()
        elif self.window.missing(seq):
            self.window.acknowledge(FrameType.NAK)

    def _on_ack(self, ack: int) -> None:
        window = self.window
        has_room = window.on_ack(ack)
        if self._fragments.active:
            self._fragments.on_ack(window.acked)
        if has_room:
            self._on_room()
        if window.blocked:
            self._retry_later()
        while self._drain_waiters and self._drain_waiters[0][0] <= window.acked:
            wake([self._drain_waiters.pop(0)[1]])

    # ---- acknowledging

    def send_numbers(self, kind: FrameType) -> None:
        """Send the numbers of the last batches, so that the peer sees that this process lives, and
        both sides find the missing ones."""
        if self.open:
            self.window.acknowledge(kind)

    def _acknowledge_soon(self) -> None:
        self._ack_armed = True
        self._loop.call_later(ACK_DELAY_S, self.acknowledge)

    def acknowledge(self) -> None:
        """Acknowledge the received batches; try again later if the connection has no room, because
        nothing else would repeat it."""
        self._ack_armed = False
        if self.window.owes_ack and self.state is not LinkState.ENDED:
            self.window.acknowledge()
            if self.window.owes_ack:
                self._acknowledge_soon()


def until(
    loop: asyncio.AbstractEventLoop, done: bool, waiting: list[asyncio.Future[None]]
) -> asyncio.Future[None]:
    """Return a future that is `done`, or that waits in the list."""
    future = loop.create_future()
    if done:
        future.set_result(None)
    else:
        waiting.append(future)
    return future


def wake(futures: list[asyncio.Future[None]]) -> None:
    """Complete the futures and empty the list."""
    for future in futures:
        if not future.done():
            future.set_result(None)
    futures.clear()
