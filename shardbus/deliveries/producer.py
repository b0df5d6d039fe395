"""A producer: it sends its deliveries until they are confirmed. A pure machine.

A producer has a line for each entity. The deliveries of a line are sent in order; those in its
window may be under way together, the others wait. The receiver keeps the order (`record`), so that
a line has two states only:

    OPEN     the deliveries of the window have been sent; one that enters it is sent at once
    PAUSED   until `resumes_at`: a delivery has failed, and nothing is sent; then the whole window
             is sent again, in order, in a new round

    outcome of a delivery                            then
    confirmed                                        forgotten; the line's pause is short again
    gap, the first of this round                     a new round at once; after a second gap in a
                                                     row without a confirmation, after a pause
    no answer in `resend`                            a new round at once; the next one has twice the
                                                     time, up to `resend_max`
    definitely not handled, its node lost, the       a new round after a pause of `retry`, which
    store or the entity not ready                    doubles up to `retry_max`
    the handler failed                               as above; after `attempts` it is *poison*
    cannot be handled (definite)                     failed
    stale era                                        failed, and so is everything else
    `until` has passed                               failed; a copy may be under way

An outcome of an earlier round confirms like any other, and is otherwise ignored: the new round has
a copy under way. So one failure of a window of fifty makes one new round, not fifty.

Poison is skipped: the same number is sent again as SKIP, which the receiver marks as done and does
not handle. If its answer is that the number was done before, a copy was applied after all, and the
delivery is confirmed. Else it has definitely failed. With `skips_poison` false it is tried again
instead, with the longest pause, and the deliveries behind it wait.

`before` is the previous number of the line without a confirmation. The pairs (line, number) of one
era are never used again, since numbers only grow.

Most deliveries meet an open line with room, and are confirmed at their first sending. For these
there are two short ways, `send_at_once` and `confirm`, that make no effects. They change the
producer as `offer` and `on_outcome` do, or decline, and change nothing.

Bounds: `window` for a line, `window_all` for the producer, `waiting_max` for all deliveries behind
the windows. A line without deliveries is forgotten, and a pause of it with it.

Source: docs/how-to/deliver.md.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from heapq import heappop, heappush

import msgspec

Target = tuple[str, str]
"""Entity type and id."""
SWEEP_S = 1.0
"""Between two looks for deliveries whose time is over."""


class ProducerLimits(msgspec.Struct, frozen=True):
    """Times in seconds."""

    window: int = 50
    window_all: int = 1000
    waiting_max: int = 10_000
    resend: float = 10.0
    resend_max: float = 30.0
    retry: float = 0.2
    retry_max: float = 30.0
    attempts: int = 10
    skips_poison: bool = True


class SendOutcome(Enum):
    """The outcome of one sending of a delivery."""

    CONFIRMED = "confirmed"
    REPEATED = "repeated"
    GAP = "gap"
    NO_ANSWER = "no_answer"
    NOT_NOW = "not_now"
    FAILED = "failed"
    DEFINITE = "definite"
    STALE = "stale"


class DeliveryEnd(Enum):
    """How a delivery ended."""

    CONFIRMED = "confirmed"
    POISON = "poison"
    EXPIRED = "expired"
    REFUSED = "refused"
    STALE = "stale"
    CLOSED = "closed"
    """The process ends."""


class DeliveryStage(Enum):
    """How far a delivery is."""

    WAITING = "waiting"
    """Behind the window."""
    READY = "ready"
    """In the window, not sent in this round."""
    SENT = "sent"
    SKIPPING = "skipping"
    """In the window, to be skipped, not sent in this round."""
    SKIPPED = "skipped"
    ENDED = "ended"


_SENT, _ENDED = DeliveryStage.SENT, DeliveryStage.ENDED
"""A look-up of a global costs less than one in an enumeration."""
IN_WINDOW = (DeliveryStage.READY, DeliveryStage.SENT, DeliveryStage.SKIPPING, DeliveryStage.SKIPPED)


class DeliveryLine(msgspec.Struct, eq=False):
    """The deliveries to one entity, in order."""

    target: Target
    window: dict[int, Delivery] = {}
    """By number."""
    waiting: deque[Delivery] | tuple[()] = ()
    """Behind the window. A deque once a delivery has waited: most lines never need it."""
    round: int = 1
    resumes_at: float | None = None
    """While the line is PAUSED."""
    pauses: int = 0
    """Pauses in a row without a confirmation."""
    gaps: int = 0
    """Gaps in a row without a confirmation."""

    def numbers(self) -> set[int]:
        """Return the numbers of its deliveries."""
        return {*self.window, *(delivery.seq for delivery in self.waiting)}


class Delivery(msgspec.Struct, eq=False):
    """One delivery. Its shell adds the fields that sending needs, in a subclass."""

    until: float
    seq: int = 0
    line: DeliveryLine = None  # type: ignore[assignment]
    """Set when a producer takes it."""
    stage: DeliveryStage = DeliveryStage.WAITING
    failures: int = 0
    """Failures of its handler."""
    silences: int = 0
    """Sendings in a row without an answer."""
    skipped_from: int = 0
    """The round in which it was first sent as SKIP; 0 if it was not."""
    error: BaseException | None = None
    """The last failure."""


class SendDelivery(msgspec.Struct, frozen=True, eq=False):
    """Send a delivery, and report its outcome with `round`. `skips`: as a SKIP."""

    delivery: Delivery
    before: int
    round: int
    timeout: float
    skips: bool


class DeliveryEnded(msgspec.Struct, frozen=True, eq=False):
    """A delivery has ended. `error`: the last failure, None if it is confirmed."""

    delivery: Delivery
    end: DeliveryEnd
    error: BaseException | None = None


class RoundBegun(msgspec.Struct, frozen=True, eq=False):
    """A line begins a new round, in which that many deliveries are sent again."""

    reason: str
    count: int


Effect = SendDelivery | DeliveryEnded | RoundBegun


class Producer:
    """The deliveries of one producer. Times are by the shell's clock, in seconds."""

    def __init__(self, limits: ProducerLimits, last: int = 0) -> None:
        self.limits = limits
        self.last = last
        """The number of the last delivery."""
        self.lines: dict[Target, DeliveryLine] = {}
        self.window = 0
        """Deliveries in the windows of all lines."""
        self.waiting = 0
        """Deliveries behind the windows."""
        self._held: dict[DeliveryLine, None] = {}
        """Lines with room in their own window that wait for room in the producer's."""
        self._resumes: list[tuple[float, int, DeliveryLine]] = []
        """The pauses of lines, the first to end first."""
        self._pauses = 0
        self._sweeps_at: float | None = None
        """When to look for deliveries whose time is over."""

    @property
    def unconfirmed(self) -> int:
        """Deliveries without an end."""
        return self.window + self.waiting

    def has_room(self, target: Target) -> bool:
        """True if a delivery to this entity would enter the window."""
        line = self.lines.get(target)
        if self.window >= self.limits.window_all:
            return False
        return line is None or not (line.waiting or len(line.window) >= self.limits.window)

    @property
    def is_full(self) -> bool:
        """True if no more deliveries may wait."""
        return self.waiting >= self.limits.waiting_max

    def offer(self, delivery: Delivery, target: Target, now: float, seq: int = 0) -> list[Effect]:
        """Take a delivery. `seq`: the number that it had before, above all others of its line."""
        seq = delivery.seq = seq or self.last + 1
        self.last = max(self.last, seq)
        line = self.lines.get(target)
        if line is None:
            line = self.lines[target] = DeliveryLine(target)
        delivery.line = line
        if not isinstance(line.waiting, deque):
            line.waiting = deque()
        line.waiting.append(delivery)
        self.waiting += 1
        if self._sweeps_at is None:
            self._sweeps_at = now + SWEEP_S
        effects: list[Effect] = []
        self._admit(line, effects)
        return effects

    def send_at_once(self, delivery: Delivery, target: Target) -> int | None:
        """Take a delivery that is to be sent now, in the round of its line, and return its
        `before`. None: it was not taken; `offer` it. Where others wait a window is full."""
        lines, limits = self.lines, self.limits
        if self._sweeps_at is None or self.window >= limits.window_all:
            return None
        line, before = lines.get(target), 0
        if line is None:
            line = lines[target] = DeliveryLine(target)
            window = line.window
        else:
            window = line.window
            if line.resumes_at is not None or len(window) >= limits.window:
                return None
            if window:
                before = next(reversed(window))
        seq = delivery.seq = self.last = self.last + 1
        delivery.line, delivery.stage = line, _SENT
        window[seq] = delivery
        self.window += 1
        return before

    def confirm(self, delivery: Delivery) -> bool:
        """Forget a delivery whose sending was confirmed, and return True: its end is CONFIRMED.
        False: nothing has changed; the outcome is for `on_outcome`."""
        line = delivery.line
        if delivery.stage is not _SENT or delivery.skipped_from or line.waiting or self._held:
            return False
        delivery.stage = _ENDED
        window = line.window
        del window[delivery.seq]
        self.window -= 1
        line.pauses = line.gaps = 0
        if not window:
            del self.lines[line.target]
        return True

    def on_outcome(
        self,
        delivery: Delivery,
        round: int,
        outcome: SendOutcome,
        now: float,
        error: BaseException | None = None,
    ) -> list[Effect]:
        """Act on the outcome of a sending of that round."""
        effects: list[Effect] = []
        line = delivery.line
        if delivery.stage not in IN_WINDOW:
            return effects
        if outcome is SendOutcome.CONFIRMED or outcome is SendOutcome.REPEATED:
            line.pauses = line.gaps = 0
            skipped = delivery.skipped_from and round >= delivery.skipped_from
            if skipped and outcome is SendOutcome.CONFIRMED:
                self._end(delivery, DeliveryEnd.POISON, delivery.error, effects)
            else:
                self._end(delivery, DeliveryEnd.CONFIRMED, None, effects)
        elif outcome is SendOutcome.STALE:
            self._end_all(error, effects)
        elif outcome is SendOutcome.DEFINITE:
            self._end(delivery, DeliveryEnd.REFUSED, error, effects)
        elif round == line.round and line.resumes_at is None:
            self._fail(delivery, outcome, now, error, effects)
        return effects

    def tick(self, now: float) -> list[Effect]:
        """Resume lines, and end deliveries whose time is over."""
        effects: list[Effect] = []
        while self._resumes and self._resumes[0][0] <= now:
            _, _, line = heappop(self._resumes)
            if line.resumes_at is not None and line.resumes_at <= now:
                line.resumes_at = None
                self._again(line, "pause", effects)
        if self._sweeps_at is not None and self._sweeps_at <= now:
            self._sweep(now, effects)
        return effects

    def deadline(self) -> float | None:
        """Return when to call `tick`; None for never."""
        resumes_at = self._resumes[0][0] if self._resumes else None
        if resumes_at is None or self._sweeps_at is None:
            return resumes_at if self._sweeps_at is None else self._sweeps_at
        return min(resumes_at, self._sweeps_at)

    # ---- steps

    def _sweep(self, now: float, effects: list[Effect]) -> None:
        late = [
            delivery
            for line in self.lines.values()
            for delivery in (*line.window.values(), *line.waiting)
            if delivery.until <= now
        ]
        for delivery in late:
            self._end(delivery, DeliveryEnd.EXPIRED, delivery.error, effects)
        self._sweeps_at = now + SWEEP_S if self.lines else None

    def _admit(self, line: DeliveryLine, effects: list[Effect]) -> None:
        """Let deliveries into the window while there is room, and send them if the line is open."""
        limits, waiting = self.limits, line.waiting
        while isinstance(waiting, deque) and waiting and len(line.window) < limits.window:
            if self.window >= limits.window_all:
                self._held[line] = None
                return
            delivery = waiting.popleft()
            before = next(reversed(line.window)) if line.window else 0
            self.waiting -= 1
            self.window += 1
            delivery.stage = DeliveryStage.READY
            line.window[delivery.seq] = delivery
            if line.resumes_at is None:
                self._send(delivery, before, effects)

    def _send(self, delivery: Delivery, before: int, effects: list[Effect]) -> None:
        line, limits = delivery.line, self.limits
        skips = delivery.stage is DeliveryStage.SKIPPING
        delivery.stage = DeliveryStage.SKIPPED if skips else DeliveryStage.SENT
        if skips and not delivery.skipped_from:
            delivery.skipped_from = line.round
        timeout = min(limits.resend * 2**delivery.silences, limits.resend_max)
        effects.append(SendDelivery(delivery, before, line.round, timeout, skips))

    def _end(
        self,
        delivery: Delivery,
        end: DeliveryEnd,
        error: BaseException | None,
        effects: list[Effect],
    ) -> None:
        line = delivery.line
        if delivery.stage is DeliveryStage.WAITING:
            assert isinstance(line.waiting, deque)
            line.waiting.remove(delivery)
            self.waiting -= 1
        else:
            del line.window[delivery.seq]
            self.window -= 1
        delivery.stage = DeliveryStage.ENDED
        effects.append(DeliveryEnded(delivery, end, error))
        if line.waiting:
            self._admit(line, effects)
        elif not line.window:
            self._held.pop(line, None)
            del self.lines[line.target]
        while self._held and self.window < self.limits.window_all:
            held = next(iter(self._held))
            del self._held[held]
            self._admit(held, effects)

    def _end_all(self, error: BaseException | None, effects: list[Effect]) -> None:
        """End every delivery, the last one of each line first: none enters the window."""
        for line in list(self.lines.values()):
            for delivery in (*reversed(line.waiting), *reversed(line.window.values())):
                self._end(delivery, DeliveryEnd.STALE, error, effects)

    def _fail(
        self,
        delivery: Delivery,
        outcome: SendOutcome,
        now: float,
        error: BaseException | None,
        effects: list[Effect],
    ) -> None:
        """Begin a new round of a line, at once or after a pause."""
        line, limits, pause = delivery.line, self.limits, 0.0
        delivery.error = error or delivery.error
        delivery.silences = (
            min(delivery.silences + 1, 30) if outcome is SendOutcome.NO_ANSWER else 0
        )
        if outcome is SendOutcome.GAP:
            line.gaps += 1
            pause = self._pause(line.gaps - 1)
        elif outcome is not SendOutcome.NO_ANSWER:
            line.pauses += 1
            pause = self._pause(line.pauses)
        if outcome is SendOutcome.FAILED and delivery.stage is DeliveryStage.SENT:
            delivery.failures += 1
            if delivery.failures >= limits.attempts:
                pause = 0.0 if limits.skips_poison else limits.retry_max
                delivery.stage = (
                    DeliveryStage.SKIPPING if limits.skips_poison else DeliveryStage.SENT
                )
        line.round += 1
        if not pause:
            self._again(line, outcome.value, effects)
            return
        line.resumes_at = now + pause
        self._pauses += 1
        heappush(self._resumes, (line.resumes_at, self._pauses, line))

    def _pause(self, times: int) -> float:
        """Return the pause after that many failures in a row."""
        if not times:
            return 0.0
        return min(self.limits.retry * 2.0 ** min(times - 1, 30), self.limits.retry_max)

    def _again(self, line: DeliveryLine, reason: str, effects: list[Effect]) -> None:
        """Send the window of a line again, in order."""
        if line.window:
            effects.append(RoundBegun(reason, len(line.window)))
        before = 0
        for delivery in line.window.values():
            if delivery.skipped_from:
                delivery.stage = DeliveryStage.SKIPPING
            self._send(delivery, before, effects)
            before = delivery.seq

    def check(self) -> None:
        """Audit the whole state."""
        window = waiting = 0
        for target, line in self.lines.items():
            assert line.target == target
            assert line.window or line.waiting, "an idle line"
            assert [*line.window] == sorted(line.window), "out of order"
            assert all(delivery.stage in IN_WINDOW for delivery in line.window.values())
            assert all(delivery.stage is DeliveryStage.WAITING for delivery in line.waiting)
            assert len(line.window) <= self.limits.window
            if line.resumes_at is None:
                sent = (DeliveryStage.SENT, DeliveryStage.SKIPPED)
                assert all(delivery.stage in sent for delivery in line.window.values())
            if line.waiting and len(line.window) < self.limits.window:
                assert line in self._held
            window += len(line.window)
            waiting += len(line.waiting)
        assert (window, waiting) == (self.window, self.waiting)
        assert window <= self.limits.window_all
        assert not self._held or window == self.limits.window_all
