"""What a session has received, and when its receiver gets it.

    batch ── room ────> receiver, at once
          └─ no room ─> held ── room again ──> receiver, a batch in each turn of the loop

A receiver that has no room pauses the session, and what comes then is held, in its order. It counts
as received by the connection and is not acknowledged: so the sender's window fills, and whoever
awaits a `tell` there waits. That is how a slow entity slows its senders. The window bounds what is
held; a sender that ignores it, or code of this very process that does not await, gets no more than
`HELD_BYTES_MAX` held: the oldest is handed out then, `forced`, and the receiver drops what it has
no room for.

Answers and the machines' messages are never held. They take no room, others may wait for them to
make some, and no promise of order ties them to entities' messages: what does, a Flush, is held with
them. On the loopback messages that were relayed pass as well, since what comes from elsewhere must
not overtake them.

The deadline of an ask goes on while it is held; one that is over is handed out with no time left.

Source: docs/architecture.md; B.108, B.156.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from shardbus.errors import RemoteProtocolError
from shardbus.transport.asks import Asks, CoarseClock
from shardbus.transport.log_limiter import log
from shardbus.transport.window import WINDOW_BYTES, Window
from shardbus.wire.batch import (
    BODY_BYTES_MAX,
    AskRun,
    Control,
    Fail,
    Flush,
    Relayed,
    ReplyRun,
    Run,
    TellRun,
    decode_batch,
)

if TYPE_CHECKING:
    from shardbus.transport.receiver import Receiver
    from shardbus.transport.session import Session

HELD_BYTES_MAX = 2 * WINDOW_BYTES + BODY_BYTES_MAX
"""What a sender may have on its way, and one message more."""
HELD_WEIGHT = 256
"""What a batch that is held weighs besides its bytes."""
URGENT = (ReplyRun, Fail, Control)


class HeldBatch(NamedTuple):
    """A batch that waits. `seq` 0: of this process itself."""

    seq: int
    batch: bytes | list[Run]
    size: int
    tick: int
    """When it came."""


class Inbox:
    """See the module. `on_free` is called when nothing is held any more."""

    __slots__ = (
        "_asks",
        "_clock",
        "_held",
        "_held_bytes",
        "_loop",
        "_on_free",
        "_pauses",
        "_receiver",
        "_session",
        "_urgent",
        "_window",
        "forced",
    )

    def __init__(
        self,
        session: Session,
        receiver: Receiver,
        window: Window,
        asks: Asks,
        loop: asyncio.AbstractEventLoop,
        clock: CoarseClock,
        on_free: Callable[[], None],
        *,
        relayed_pass: bool = False,
    ) -> None:
        self.forced = False
        """What is handed out now is not held back again: the receiver drops it if need be."""
        self._session, self._receiver, self._window = session, receiver, window
        self._asks, self._loop, self._clock, self._on_free = asks, loop, clock, on_free
        self._urgent = (*URGENT, Relayed) if relayed_pass else URGENT
        self._pauses = 0
        self._held: deque[HeldBatch] = deque()
        self._held_bytes = 0

    @property
    def holding(self) -> bool:
        """What comes now waits."""
        return self._pauses > 0 or bool(self._held)

    # ---- the receiver's room

    def pause(self) -> None:
        """The receiver has no room. As often as this is called, `resume` will be."""
        self._pauses += 1
        self._window.holding = True

    def resume(self) -> None:
        """It has room again."""
        self._pauses -= 1
        self._go_on()

    def _go_on(self) -> None:
        if self._pauses:
            return
        if self._held:
            self._loop.call_soon(self._release)
        else:
            self._window.holding = False
            self._on_free()

    def _release(self) -> None:
        """Hand out one batch; others that wait for the same room have their turn in between."""
        if self._pauses == 0 and self._held:
            self._hand_out_first()
            self._go_on()

    def let_go(self) -> None:
        """The session ends: what is held goes out, before anything by a new session can come."""
        self._pauses = 0
        while self._held:
            self._force()

    def discard(self) -> None:
        """This process ends: nobody handles what is held, and its sender learns that."""
        self._pauses = 0
        self._held.clear()

    def _force(self) -> None:
        self.forced = True
        try:
            self._hand_out_first()
        finally:
            self.forced = False

    # ---- what comes

    def take(self, seq: int, body: bytes) -> None:
        """A batch has come, the next in order.

        Raises:
            RemoteProtocolError: it cannot be read. It counts as handled.
        """
        if not self.holding:
            self.hand_out(decode_batch(body))
            return
        try:
            runs = decode_batch(body)
        except RemoteProtocolError:
            self._keep(HeldBatch(seq, b"", 0, 0))
            raise
        waits = self._pass_urgent(runs)
        self._keep(HeldBatch(seq, body if waits else b"", len(body), self._clock.tick))

    def take_part(self, seq: int) -> None:
        """A part of a batch has come; it counts as handled in its turn."""
        if self.holding:
            self._keep(HeldBatch(seq, b"", 0, 0))

    def take_runs(self, runs: list[Run], size: int) -> None:
        """The same for messages of this process to itself."""
        if not self.holding:
            self.hand_out(runs)
        elif waiting := self._pass_urgent(runs):
            self._keep(HeldBatch(0, waiting, size, self._clock.tick))

    def _pass_urgent(self, runs: list[Run]) -> list[Run]:
        """Hand out what never waits; the rest."""
        self.hand_out([run for run in runs if isinstance(run, self._urgent)])
        return [run for run in runs if not isinstance(run, self._urgent)]

    def _keep(self, held: HeldBatch) -> None:
        self._held.append(held)
        self._held_bytes += held.size + HELD_WEIGHT
        while self._held_bytes > HELD_BYTES_MAX:
            self._force()

    def _hand_out_first(self) -> None:
        seq, batch, size, tick = self._held.popleft()
        self._held_bytes -= size + HELD_WEIGHT
        if seq:
            self._window.handled(seq)
        runs = batch if isinstance(batch, list) else decode_batch(batch) if batch else []
        waited_ms = (self._clock.tick - tick) * CoarseClock.TICK_MS
        for run in runs:
            if isinstance(run, AskRun):
                run.timeout_ms = max(0, run.timeout_ms - waited_ms)
        self.hand_out([run for run in runs if not isinstance(run, self._urgent)])

    def hand_out(self, runs: list[Run]) -> None:
        """Give the receiver what is for it. One that fails on a run gets the others."""
        receiver, session = self._receiver, self._session
        for run in runs:
            try:
                match run:
                    case TellRun():
                        receiver.on_tells(session, run)
                    case AskRun():
                        receiver.on_asks(session, run)
                    case ReplyRun():
                        self._asks.on_replies(run)
                    case Fail():
                        self._asks.on_fail(run)
                    case Relayed():
                        receiver.on_relayed(session, run)
                    case Control():
                        receiver.on_control(session, run)
                    case Flush():
                        receiver.on_flush(session, run)
            except RemoteProtocolError as e:
                log.warning("dropped a run from %s: %s", session.name, e)
            except Exception:
                log.exception("failed on a %s from %s", type(run).__name__, session.name)
