"""The messages that a session has received, and when its receiver gets them.

    batch ── room ────> receiver, at once
          └─ no room ─> held ── room again ──> receiver, a batch in each turn of the loop

A receiver without room for one entity lists it (`fill`), and only the messages for this entity wait
(`full_entities`). That is how a slow entity slows its senders.

A receiver that has no room at all, or whose peer cannot hold back single entities, pauses the
session, and the inbox holds the messages that arrive, in order. Held batches count as arrived and
are not acknowledged, so the sender's window fills, and a sender that awaits its `tell` waits. The
window bounds the held messages. For a sender that ignores the window, or code of this process that
does not await, the inbox holds at most `HELD_BYTES_MAX`; beyond that it hands out the oldest batch,
`forced`, and the receiver drops the messages that find no room.

Answers and control messages are never held. They take no room, others may wait for them to make
some, and no promise of order ties them to messages for entities. A Flush and a MoveAck are tied to
them, so they are held with them. On the loopback relayed messages pass as well, because messages
from elsewhere must not overtake them.

A batch of more than `SLICE_MESSAGES` messages is handed out in slices, one in each turn of the
loop, because its messages may cost the receiver much more than they cost the sender. A sender of
this build makes no such batch.

The deadline of an ask runs on while the ask is held. An ask whose deadline has passed is handed out
with no time left.

Source: docs/architecture.md; B.108, B.156.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from shardbus.errors import RemoteProtocolError
from shardbus.tasks.interrupts import raise_interrupt
from shardbus.transport.asks import Asks, CoarseClock
from shardbus.transport.full_entities import RESTS_WEIGHT_MAX, FullEntities, Target
from shardbus.transport.log_limiter import log
from shardbus.transport.window import WINDOW_BYTES, Window
from shardbus.wire.batch import (
    BODY_BYTES_MAX,
    AskRun,
    Control,
    Fail,
    Flush,
    Hold,
    Relayed,
    ReplyRun,
    Run,
    TellRun,
    decode_batch,
)

HELD_BYTES_MAX = 2 * WINDOW_BYTES + BODY_BYTES_MAX
"""A sender may have this much under way, and one message more."""
HELD_WEIGHT = 256
"""Weight of a held batch besides its bytes."""
SLICE_MESSAGES = 1024
"""Messages, at most, that are handed out in one turn of the loop."""
SLICE_BYTES = 2048
"""A shorter batch has fewer messages than a slice: a message takes two bytes and more."""
URGENT = (ReplyRun, Fail, Control, Hold)
BEHIND_MESSAGES = frozenset({"MoveAck"})
"""Control messages that say that everything sent before them has arrived."""


class Peer(Protocol):
    """The other process, as the inbox sees it."""

    @property
    def name(self) -> str: ...


P = TypeVar("P", bound=Peer)
PeerT = TypeVar("PeerT", bound=Peer, contravariant=True)


class Receiver(Protocol[PeerT]):
    """Handles the messages that a session hands out, run by run, in the order of sending. Each call
    names the peer that sent the run, so that the receiver can answer it."""

    def on_tells(self, session: PeerT, run: TellRun, /) -> None: ...
    def on_asks(self, session: PeerT, run: AskRun, /) -> None: ...
    def on_relayed(self, session: PeerT, message: Relayed, /) -> None: ...
    def on_control(self, session: PeerT, control: Control, /) -> None: ...
    def on_flush(self, session: PeerT, flush: Flush, /) -> None: ...


class HeldBatch(NamedTuple):
    """A batch that waits. `seq` is 0 for messages of this process to itself."""

    seq: int
    batch: bytes | list[Run]
    size: int
    tick: int
    """When it arrived."""


class Inbox(Generic[P]):
    """Received batches of one session. Calls `on_free` when it holds nothing any more."""

    __slots__ = (
        "_asks", "_clock", "_full", "_held", "_held_bytes", "_loop", "_on_free", "_on_hold",
        "_pauses", "_peer", "_receiver", "_rests_pause", "_urgent", "_window", "forced", "owed",
    )  # fmt: skip

    def __init__(
        self,
        peer: P,
        receiver: Receiver[P],
        window: Window,
        asks: Asks,
        loop: asyncio.AbstractEventLoop,
        clock: CoarseClock,
        on_free: Callable[[], None],
        on_hold: Callable[[Hold], None],
        *,
        relayed_pass: bool = False,
    ) -> None:
        self.forced = False
        """Messages handed out now are not held back again: the receiver takes or drops them."""
        self.owed = False
        """Messages handed out now were acknowledged: the receiver takes them over the bound in
        messages."""
        self._full, self._on_hold = FullEntities(), on_hold
        self._rests_pause = False
        """The rests of full entities are over their bound, so the session is paused."""
        self._peer, self._receiver, self._window = peer, receiver, window
        self._asks, self._loop, self._clock, self._on_free = asks, loop, clock, on_free
        self._urgent: tuple[type[Any], ...] = (*URGENT, Relayed) if relayed_pass else URGENT
        self._pauses = 0
        self._held: deque[HeldBatch] = deque()
        self._held_bytes = 0

    @property
    def holding(self) -> bool:
        """True if messages that arrive now are held."""
        return self._pauses > 0 or bool(self._held)

    @property
    def is_clear(self) -> bool:
        """True if everything that has arrived was handed out."""
        return not (self._pauses or self._held or self._full.entities)

    # ---- the receiver's room

    def pause(self) -> None:
        """The receiver has no room. It calls `resume` once for each call of this."""
        self._pauses += 1
        self._window.holding = True

    def resume(self) -> None:
        """The receiver has room again."""
        self._pauses -= 1
        self._release_soon()

    def fill(self, target: Target) -> bool:
        """The receiver has no room for an entity: withhold its messages. It calls `release` once it
        has. Returns True if the sender must get a report."""
        return self._full.add(target)

    def release(self, target: Target) -> bool:
        """The receiver has room for an entity again: hand out its rest until it is full again.
        Returns True if nothing is left, so that the sender may go on."""
        for run in self._full.released(target, self._clock.tick):
            self._pass(run)
        self._watch_rests()
        return target not in self._full

    def unlist(self, leaves: Callable[[Target], bool]) -> None:
        """Hand out the rests of these entities, room or not, and withhold nothing for them until
        they are full again."""
        for run in self._full.unlist(leaves, self._clock.tick):
            self._pass(run)
        self._watch_rests()

    def _hand_out_rests(self) -> None:
        """Hand out the rests of all full entities, room or not."""
        for run in self._full.all_rests(self._clock.tick):
            self._pass(run)
        self._watch_rests()

    def _watch_rests(self) -> None:
        """Pause the session while the rests are over their bound."""
        weight = self._full.weight
        if not self._rests_pause and weight > RESTS_WEIGHT_MAX:
            self._rests_pause = True
            self.pause()
        elif self._rests_pause and weight <= RESTS_WEIGHT_MAX // 2:
            self._rests_pause = False
            self.resume()

    def _release_soon(self) -> None:
        if self._pauses:
            return
        if self._held:
            self._loop.call_soon(self._release)
        else:
            self._window.holding = False
            self._on_free()

    def _release(self) -> None:
        """Hand out one batch. Other sessions that wait for the same room get their turn between."""
        if self._pauses == 0 and self._held:
            self._hand_out_first()
            self._release_soon()

    def release_all(self) -> None:
        """Hand out everything that is held, because the session ends: it goes before anything that
        a new session of the same peer can bring."""
        self._pauses, self._rests_pause = 0, False
        self._force_rests()
        self._full.clear()
        while self._held:
            self._force()
        self._window.holding = False

    def _force_rests(self) -> None:
        self.forced = self.owed = True
        try:
            for run in self._full.all_rests(self._clock.tick):
                self._pass(run)
        finally:
            self.forced = self.owed = False

    def discard(self) -> None:
        """Drop everything that is held, because this process ends. It was not acknowledged, so its
        sender knows."""
        self._pauses, self._rests_pause = 0, False
        self._held.clear()
        self._held_bytes = 0
        self._full.clear()
        self._window.holding = False

    def _force(self) -> None:
        if self._full.entities:
            self._force_rests()  # they are older
        self.forced = True
        try:
            self._hand_out_first()
        finally:
            self.forced = False

    # ---- arrivals

    def receive(self, seq: int, body: bytes) -> None:
        """Take the next batch in order: hand it out, or hold it.

        Raises:
            RemoteProtocolError: the batch does not fit the schema. It counts as handled.
        """
        if not self.holding:
            runs = decode_batch(body)
            if len(body) > SLICE_BYTES and (rest := cut(runs, SLICE_MESSAGES)):
                self._window.holding = True
                self._hold(HeldBatch(0, self._pass_urgent(rest), len(body), self._clock.tick))
                self._release_soon()
            self.hand_out(runs)
            return
        try:
            runs = decode_batch(body)
        except RemoteProtocolError:
            self._hold(HeldBatch(seq, b"", 0, 0))
            raise
        waits = self._pass_urgent(runs)
        self._hold(HeldBatch(seq, body if waits else b"", len(body), self._clock.tick))

    def receive_part(self, seq: int) -> None:
        """Take a part of a batch; it counts as handled in its turn."""
        if self.holding:
            self._hold(HeldBatch(seq, b"", 0, 0))

    def receive_runs(self, runs: list[Run], size: int) -> None:
        """Take messages of this process to itself."""
        if not self.holding:
            self.hand_out(runs)
        elif waiting := self._pass_urgent(runs):
            self._hold(HeldBatch(0, waiting, size, self._clock.tick))

    def _pass_urgent(self, runs: list[Run]) -> list[Run]:
        """Hand out the runs that are never held; return the others."""
        self.hand_out([run for run in runs if self._is_urgent(run)])
        return [run for run in runs if not self._is_urgent(run)]

    def _is_urgent(self, run: Run) -> bool:
        """True if the run passes messages that are held."""
        if isinstance(run, Control):
            return run.tag not in BEHIND_MESSAGES
        return isinstance(run, self._urgent)

    def _hold(self, held: HeldBatch) -> None:
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
        runs = [run for run in runs if not self._is_urgent(run)]
        if size > SLICE_BYTES and (rest := cut(runs, SLICE_MESSAGES)):
            self._held.appendleft(HeldBatch(0, rest, size, self._clock.tick))
            self._held_bytes += size + HELD_WEIGHT
        self.hand_out(runs)

    def hand_out(self, runs: list[Run]) -> None:
        """Pass runs to the receiver, answers to the asks, without the messages for full
        entities."""
        full = self._full.entities
        for run in runs:
            if full:
                self._pass_or_withhold(run)
            else:
                self._pass(run)

    def _pass_or_withhold(self, run: Run) -> None:
        """Pass a run to the receiver while entities are full."""
        if isinstance(run, TellRun | AskRun) and not self.forced:
            rest = self._full.withhold(run, self._clock.tick)
            if rest is not None:
                self._pass(rest)
            self._watch_rests()
            return
        if isinstance(run, Flush) or (isinstance(run, Control) and run.tag in BEHIND_MESSAGES):
            self._hand_out_rests()
        self._pass(run)

    def _pass(self, run: Run) -> None:
        """Pass a run to the receiver or the asks. One that fails does not stop the others."""
        receiver, peer = self._receiver, self._peer
        try:
            match run:
                case TellRun():
                    receiver.on_tells(peer, run)
                case AskRun():
                    receiver.on_asks(peer, run)
                case ReplyRun():
                    self._asks.on_replies(run)
                case Fail():
                    self._asks.on_fail(run)
                case Relayed():
                    receiver.on_relayed(peer, run)
                case Control():
                    receiver.on_control(peer, run)
                case Flush():
                    receiver.on_flush(peer, run)
                case Hold():
                    self._on_hold(run)
        except RemoteProtocolError as e:
            log.warning("dropped a run from %s: %s", peer.name, e)
        except BaseException as e:
            raise_interrupt(e)
            log.exception("failed on a %s from %s", type(run).__name__, peer.name)


def cut(runs: list[Run], most: int) -> list[Run]:
    """Leave the first `most` messages in `runs`; return the runs of the others, in order."""
    room = most
    for at, run in enumerate(runs):
        count = len(run.payloads) if isinstance(run, TellRun | AskRun | ReplyRun) else 1
        if count <= room:
            room -= count
            continue
        rest = runs[at:]
        del runs[at:]
        if room and isinstance(run, TellRun | AskRun):
            rest[0] = _after(run, room)
            runs.append(run)
        return rest
    return []


def _after(run: TellRun | AskRun, at: int) -> TellRun | AskRun:
    """Cut a run: leave its first `at` messages, return a run of the others."""
    ids, payloads = run.ids[at:], run.payloads[at:]
    del run.ids[at:], run.payloads[at:]
    if isinstance(run, TellRun):
        return TellRun(run.type, run.method, ids, payloads, run.trace)
    corrs = run.corrs[at:]
    del run.corrs[at:]
    chain, trace = run.chain, run.trace
    return AskRun(run.type, run.method, run.timeout_ms, ids, payloads, corrs, chain, trace)
