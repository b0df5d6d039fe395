"""The durable mailbox of an entity: messages are stored before they are handled. A pure machine.

    tell, delivery ──> arrived ──append──> stored: its sender is confirmed ──> handled ──> trimmed
    ask            ──> behind the messages that came before it ──────────────> handled

A stored message is a *delivery* (`numbers`) in a journal of the entity's own. A tell gets its
number from the home that takes it. The entity handles it as any delivery: the number is stored by
the same save as the effect (`record`). So a journal that is read again, by this home or the next,
repeats no effect, and the store needs nothing but append, read and trim. There is no second place
that says how far the entity has come; the numbers in the journal serve for trimming only.

**One store operation at a time** for a mailbox (`StoreStep`). Messages that arrive meanwhile are
the next append. The end of the journal is known, or not:

    event                          the end of the journal
    a fresh mailbox                taken for 0: most entities have no journal
    the append meets another end   unknown: open, read the rest, append behind it
    no answer of an append         unknown: it may be there
    opened, read to its end        known

An append that fails refuses the deliveries in it, whose producers send them again; tells, which
have no producer that would, stay and are appended again after a pause. One that was stored all the
same is recognized by its number when the journal is read.

**Order.** Deliveries of a producer are taken in order: as in `record`, one whose predecessor is
missing is a gap. This row is in memory only: a new home has none, and then the producer's first
unconfirmed delivery comes first in any case. A repeated delivery is appended again, if the row was
lost, and the entity finds it done. Messages are handled in the order of the journal, one at a time.
An ask waits until the messages ahead of it are handed over, but not for the next attempt of a
message that has failed, and not for a store that does not answer.

**Failures.** A message whose handler fails is handled again after a pause that doubles, and others
wait behind it. After `attempts` it is poison: the entity marks its number as done without handling
it (SKIP), and it is given up. With `skips_poison` false it is tried for ever, until an operator
skips it. Failures of the store, or of the start of the entity, do not count.

**Moves.** A shard that stops hands nothing over any more. Messages that are not stored go to its
next home, the others are in the journal. An append under way is waited for, and handled messages
are trimmed first, so that the next home reads only the rest.

**Bounds.** `messages` and `size` for those that are stored or about to be, the handled ones before
their trim included. A delivery beyond them is refused, and its producer sends it again: so a row of
`record` is used by at most `messages` later deliveries before its own is trimmed, and is not
forgotten before that. A tell beyond them is taken if its sender holds back the next ones
(`entities.mailboxes`): all tells of a home have one row.

Source: docs/how-to/deliver.md; S3.77.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Annotated, Any

import msgspec

from shardbus.bounds import Uid
from shardbus.deliveries.numbers import UNREADABLE, DeliveryNumber, ProducerName

ROWS_MAX = 1000
"""Producers whose last number a mailbox keeps in memory; then the oldest is forgotten."""
APPEND_BYTES = 1024 * 1024
"""Bytes of messages after which an append is full."""
APPEND_MAX = 500
"""Messages of an append."""
QUIET_LOOKS = 30
"""Looks, about a second apart, without a message after which a mailbox is removed. Sooner would
cost an entity with few messages more writes than the messages."""
TRIM_PARTS = 4
"""Handled messages are trimmed when they are one of these parts of the bound."""


class DurableLimits(msgspec.Struct, frozen=True):
    """Pauses in seconds."""

    messages: int = 1000
    size: int = 4 * 1024 * 1024
    retry: float = 0.2
    retry_max: float = 30.0
    attempts: int = 10
    skips_poison: bool = True
    trims_soon: bool = False
    """Trim at each look: the entity keeps no record that outlives its node."""

    def pause(self, times: int) -> float:
        """Return the pause after that many failures in a row."""
        return min(self.retry * 2.0 ** min(times - 1, 30), self.retry_max)


class StoredMail(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A message as the journal has it. `at`: milliseconds since 1970; `method`: with the mark of a
    delivery; `number`: the delivery, with its arguments."""

    at: Uid
    method: Annotated[str, msgspec.Meta(max_length=300)]
    number: DeliveryNumber
    trace: Annotated[str, msgspec.Meta(max_length=400)] = ""

    @property
    def producer(self) -> ProducerName:
        """Return the name of the process that numbered it."""
        return self.number.producer


write_mail = msgspec.msgpack.Encoder().encode
_read_mail = msgspec.msgpack.Decoder(StoredMail).decode


def read_mail(entry: bytes) -> StoredMail:
    """Decode an entry of a mailbox.

    Raises:
        ValueError: it is none.
    """
    try:
        return _read_mail(entry)
    except UNREADABLE as error:
        raise ValueError(f"not a message of a mailbox: {error}") from None


class Mail(msgspec.Struct, eq=False):
    """A message in a mailbox."""

    messages: list[Any]
    """The message as it arrived, and copies of it that came before it was stored. Empty if it was
    read from the journal."""
    stored: StoredMail | None = None
    """None for one that only passes by in its order, and for one that cannot be read."""
    producer_waits: bool = False
    """A producer waits for the confirmation."""
    data: bytes = b""
    place: int = 0
    """Its number in the journal; 0 while it is not there."""
    failures: int = 0
    error: str = ""
    """The last failure."""
    skips: bool = False
    """It is given up: its number is marked as done."""
    operator: bool = False
    """An operator has given it up."""

    @property
    def passes(self) -> bool:
        """True if it is handed over without being stored."""
        return self.stored is None and not self.place


class StoreStep(Enum):
    """The store operation under way."""

    NONE = "none"
    OPEN = "open"
    APPEND = "append"
    TRIM = "trim"


class HandOutcome(Enum):
    """The outcome of a message that was handed to the entity."""

    DONE = "done"
    REPEATED = "repeated"
    """It was done before."""
    FAILED = "failed"
    """Its handler raised, or this node's release has no such handler."""
    NOT_READY = "not_ready"
    """The store or the entity failed, or the entity stopped before."""
    REFUSED = "refused"
    """No handler can take it."""


class Acceptance(Enum):
    """How a mailbox treats a message that arrives."""

    TAKEN = "taken"
    WAITS = "waits"
    """A copy of it waits for the store: this one does, too."""
    REPEATED = "repeated"
    GAP = "gap"
    STALE = "stale"
    FULL = "full"


# ---- effects


class OpenJournal(msgspec.Struct, frozen=True):
    """Open the journal and read a page after this number; with `reads` only read it."""

    after: int
    reads: bool = False


class AppendMail(msgspec.Struct, frozen=True):
    """Append these messages after this number."""

    after: int
    group: tuple[Mail, ...]


class TrimJournal(msgspec.Struct, frozen=True):
    """Remove the messages up to this number. `forget`: the journal, too, if it is empty then."""

    upto: int
    forget: bool


class Confirm(msgspec.Struct, frozen=True):
    """The store has this message."""

    mail: Mail


class Refuse(msgspec.Struct, frozen=True):
    """This delivery is not in the store, or maybe not."""

    mail: Mail
    error: BaseException


class Hand(msgspec.Struct, frozen=True):
    """Let the entity handle this message, or mark it as done if it `skips`."""

    mail: Mail


class PassBy(msgspec.Struct, frozen=True):
    """Hand a message to the entity that is not stored."""

    mail: Mail


class GiveUp(msgspec.Struct, frozen=True):
    """This message is not handled any more."""

    mail: Mail
    reason: str


class Quiet(msgspec.Struct, frozen=True):
    """Nothing is left, neither here nor in the store."""


Effect = OpenJournal | AppendMail | TrimJournal | Confirm | Refuse | Hand | PassBy | GiveUp | Quiet


class DurableMailbox:
    """The mailbox of one entity at its home. Times are by the shell's clock, in seconds.
    `is_fresh`: nothing speaks for a journal that is there."""

    def __init__(self, limits: DurableLimits, *, is_fresh: bool) -> None:
        self.limits = limits
        self.arrived: deque[Mail] = deque()
        """Not stored, in order."""
        self.queue: deque[Mail] = deque()
        """Stored, in order, and asks between them."""
        self.in_hand: Mail | None = None
        self.last = self.handled = self.trimmed = 0
        """Numbers in the journal: of the last message, of the last one that was handled, and of the
        last one that is removed."""
        self.step = StoreStep.NONE
        self.waiting = self.size = 0
        """Messages that are stored or about to be and not handled, and their bytes."""
        self.pauses = 0
        """Failures in a row of the message at the front."""
        self.resumes_at: float | None = None
        """While the message at the front waits for its next attempt."""
        self.appends_at: float | None = None
        """While the store has failed."""
        self.stopping = False
        self._is_known = is_fresh
        """The end of the journal is `last`."""
        self._group: tuple[Mail, ...] = ()
        """The messages of the append under way."""
        self._rows: dict[str, tuple[int, int]] = {}
        """By producer: era and number of its last delivery that was taken."""
        self._store_failures = 0
        self._looks = 0
        """Looks since something has arrived, or was handled."""
        self._trim_failed = False

    # ---- arrivals

    def accept(self, number: DeliveryNumber, message: Any, size: int) -> Acceptance:
        """Return how to treat a delivery; TAKEN: follow with `arrives`."""
        row = self._rows.get(number.producer)
        if row is not None:
            era, seq = row
            if number.era < era:
                return Acceptance.STALE
            if number.seq <= seq:
                return self._repeats(number, message)
            if number.before > seq:
                return Acceptance.GAP
        elif number.before:
            return Acceptance.GAP
        if not self.has_room(size):
            return Acceptance.FULL
        self._rows.pop(number.producer, None)
        self._rows[number.producer] = (number.era, number.seq)
        if len(self._rows) > ROWS_MAX:
            del self._rows[next(iter(self._rows))]
        return Acceptance.TAKEN

    def taken_of(self, producer: str) -> int:
        """Return the number of the last delivery of a producer that was taken; 0 for none."""
        return self._rows.get(producer, (0, 0))[1]

    def _repeats(self, number: DeliveryNumber, message: Any) -> Acceptance:
        for mail in (*self._group, *self.arrived):
            stored = mail.stored
            if stored is not None and _same(stored.number, number):
                mail.messages.append(message)
                mail.producer_waits = True
                return Acceptance.WAITS
        return Acceptance.REPEATED

    def has_room(self, size: int) -> bool:
        """True if a message of this size may be taken."""
        limits = self.limits
        unhandled = self.waiting + max(self.handled - self.trimmed, 0)
        return unhandled < limits.messages and self.size + size <= max(limits.size, size)

    @property
    def has_much_room(self) -> bool:
        """True if a quarter of the room is free."""
        limits = self.limits
        unhandled = self.waiting + max(self.handled - self.trimmed, 0)
        return 4 * unhandled <= 3 * limits.messages and 4 * self.size <= 3 * limits.size

    @property
    def in_front(self) -> Mail | None:
        """Return the message that the next ones wait for; None if there is none."""
        if self.in_hand is not None:
            return self.in_hand
        return next((mails[0] for mails in (self.queue, self._group, self.arrived) if mails), None)

    def arrives(self, mail: Mail) -> list[Effect]:
        """Take a message."""
        self._looks = 0
        effects: list[Effect] = []
        if mail.stored is not None:
            self.waiting += 1
            self.size += len(mail.data)
        elif not self.arrived and not self._group and (self.resumes_at or not self.queue):
            effects.append(PassBy(mail))
            return effects
        self.arrived.append(mail)
        self._go(effects)
        return effects

    @property
    def is_unread(self) -> bool:
        """True if the journal may have messages that are not here."""
        return not self._is_known

    @property
    def is_empty(self) -> bool:
        """True if no message is here."""
        return not (self.arrived or self.queue or self._group or self.in_hand)

    # ---- the store

    def on_opened(
        self, first: int, page: list[tuple[StoredMail | None, bytes]], last: int
    ) -> list[Effect]:
        """Take a page of the journal, which begins with the number `first`, and its last number.
        None in the place of a message: it cannot be read."""
        effects: list[Effect] = []
        if last < self.last:  # the store has lost what it had
            self.last = self.handled = self.trimmed = last
            for mail in (*self.queue, *([self.in_hand] if self.in_hand else ())):
                mail.place = 0
        elif first > self.last + 1:  # those before are handled and removed
            self.last = self.handled = self.trimmed = first - 1
        for place, (stored, data) in enumerate(page, first):
            self.last = place
            mail = self._known_as(stored)
            if mail is None:
                mail = Mail([], stored, data=data)
                self.waiting += 1
                self.size += len(data)
            mail.place = place
            effects.append(Confirm(mail))
            self.queue.append(mail)
        if self.last < last and page:
            effects.append(OpenJournal(self.last, reads=True))
            return effects
        self.last, self.step, self._is_known = last, StoreStep.NONE, True
        self._store_answers()
        self._go(effects)
        return effects

    def _known_as(self, stored: StoredMail | None) -> Mail | None:
        """Return a message that waits for the store and is there already, which waits no more."""
        for mail in self.arrived:
            if stored and mail.stored and _same(mail.stored.number, stored.number):
                self.arrived.remove(mail)
                return mail
        return None

    def on_open_failed(self, now: float) -> list[Effect]:
        """Try again after a pause: the store does not answer."""
        effects: list[Effect] = []
        self.step = StoreStep.NONE
        self._store_fails(now, effects)
        return effects

    def on_appended(self) -> list[Effect]:
        """Confirm the messages of the append, and hand them over."""
        effects: list[Effect] = []
        self.step = StoreStep.NONE
        group, self._group = self._group, ()
        for mail in group:
            if mail.stored is not None:
                self.last += 1
                mail.place = self.last
                effects.append(Confirm(mail))
            self.queue.append(mail)
        self._store_answers()
        self._go(effects)
        return effects

    def on_conflict(self) -> list[Effect]:
        """Open the journal, which has another end, and append again."""
        effects: list[Effect] = []
        self._take_back()
        self._is_known = False
        self._go(effects)
        return effects

    def on_append_failed(self, error: BaseException, now: float, *, definite: bool) -> list[Effect]:
        """Refuse the deliveries of an append without an answer; keep its tells for the next one."""
        effects: list[Effect] = []
        self._take_back()
        self._is_known = self._is_known and definite
        for mail in [mail for mail in self.arrived if mail.producer_waits]:
            self.arrived.remove(mail)
            self._leaves(mail)
            assert mail.stored is not None
            self._rows.pop(mail.stored.producer, None)
            effects.append(Refuse(mail, error))
        self._store_fails(now, effects)
        return effects

    def _take_back(self) -> None:
        self.step = StoreStep.NONE
        self.arrived.extendleft(reversed(self._group))
        self._group = ()

    def _store_answers(self) -> None:
        self._store_failures, self.appends_at = 0, None

    def _store_fails(self, now: float, effects: list[Effect]) -> None:
        """Pause the store's operations. Asks do not wait for them."""
        self._store_failures += 1
        self.appends_at = now + self.limits.pause(self._store_failures)
        passing = [mail for mail in self.arrived if mail.stored is None]
        for mail in passing:
            self.arrived.remove(mail)
        self.queue.extend(passing)
        self._go(effects)

    def on_trimmed(self, upto: int, *, forgotten: bool) -> list[Effect]:
        """Note that the journal is trimmed."""
        effects: list[Effect] = []
        self.step = StoreStep.NONE
        self.trimmed = max(self.trimmed, upto)
        if forgotten and self.last == upto:
            self.last = self.handled = self.trimmed = 0
            if self.is_empty:
                effects.append(Quiet())
                return effects
        self._go(effects)
        return effects

    def on_trim_failed(self, *, forgets: bool) -> list[Effect]:
        """Try again at a later look. If the journal may be gone, its end is unknown."""
        effects: list[Effect] = []
        self.step, self._trim_failed = StoreStep.NONE, True
        self._is_known = self._is_known and not forgets
        self._go(effects)
        return effects

    def doubt(self) -> list[Effect]:
        """Open the journal before the next append: the store may have lost something."""
        effects: list[Effect] = []
        self._is_known = False
        self._go(effects)
        return effects

    # ---- handling

    def on_outcome(
        self, mail: Mail, outcome: HandOutcome, now: float, error: str = ""
    ) -> list[Effect]:
        """Act on the outcome of a message that was handed over."""
        effects: list[Effect] = []
        if self.in_hand is not mail:
            return effects
        self.in_hand, self._looks = None, 0
        match outcome:
            case HandOutcome.DONE | HandOutcome.REPEATED:
                if mail.skips and outcome is HandOutcome.DONE:
                    effects.append(GiveUp(mail, "skipped" if mail.operator else "poison"))
                self._ends(mail)
            case HandOutcome.REFUSED:
                mail.error = error
                effects.append(GiveUp(mail, "skipped" if mail.operator else "refused"))
                self._ends(mail)
            case HandOutcome.FAILED | HandOutcome.NOT_READY:
                self._fails(mail, outcome, now, error)
        self._go(effects)
        return effects

    def _ends(self, mail: Mail) -> None:
        self.handled = max(self.handled, mail.place)
        self._leaves(mail)
        self.pauses = 0

    def _leaves(self, mail: Mail) -> None:
        self.waiting -= 1
        self.size -= len(mail.data)

    def _fails(self, mail: Mail, outcome: HandOutcome, now: float, error: str) -> None:
        """Let a message wait for its next attempt."""
        limits = self.limits
        self.pauses += 1
        pause = limits.pause(self.pauses)
        mail.error = error
        if outcome is HandOutcome.FAILED and not mail.skips:
            mail.failures += 1
            if mail.failures >= limits.attempts:
                mail.skips = limits.skips_poison
                pause = 0.0 if mail.skips else limits.retry_max
        self.queue.appendleft(mail)
        self.resumes_at = now + pause if pause else None

    @property
    def failing(self) -> Mail | None:
        """Return the message at the front that waits for its next attempt."""
        return self.queue[0] if self.resumes_at is not None and self.queue else None

    def retry(self) -> list[Effect]:
        """Try the message at the front again now."""
        effects: list[Effect] = []
        self.resumes_at = self.appends_at = None
        self._go(effects)
        return effects

    def skip(self, place: int) -> bool:
        """Give up the message with this number, if it is the first and is not being handled.
        `retry` begins it. Returns False if it is not."""
        front = next((mail for mail in self.queue if not mail.passes), None)
        if self.in_hand is not None or front is None or front.place != place:
            return False
        front.skips = front.operator = True
        return True

    # ---- time

    def deadline(self) -> float | None:
        """Return when to call `tick`; None for never."""
        if self.resumes_at is None or self.appends_at is None:
            return self.appends_at if self.resumes_at is None else self.resumes_at
        return min(self.resumes_at, self.appends_at)

    def tick(self, now: float) -> list[Effect]:
        """End pauses."""
        effects: list[Effect] = []
        if self.resumes_at is not None and self.resumes_at <= now:
            self.resumes_at = None
        if self.appends_at is not None and self.appends_at <= now:
            self.appends_at = None
        self._go(effects)
        return effects

    def look(self) -> list[Effect]:
        """Trim, and end the mailbox if nothing has come for `QUIET_LOOKS`. Called about once a
        second."""
        effects: list[Effect] = []
        self._looks += 1
        self._trim_failed = False
        if self.step is not StoreStep.NONE or not self._is_known or self.stopping:
            self._go(effects)
        elif self._looks > QUIET_LOOKS and self.is_empty:
            if self.last:
                self._trim(effects, forget=True)
            else:
                effects.append(Quiet())
        elif self.limits.trims_soon and self.handled > self.trimmed:
            self._trim(effects)
        return effects

    # ---- the end

    def stop(self) -> list[Effect]:
        """Hand nothing over any more: the shard stops. Trim handled messages."""
        effects: list[Effect] = []
        self.stopping = True
        self._go(effects)
        return effects

    @property
    def is_settled(self) -> bool:
        """True if no store operation is under way, and nothing is being handled."""
        return self.step is StoreStep.NONE and self.in_hand is None

    @property
    def unstored(self) -> int:
        """Messages that are neither stored nor handed over."""
        mails = (*self._group, *self.arrived, *self.queue)
        return sum(len(mail.messages) for mail in mails)

    def mails(self) -> list[Mail]:
        """Return the messages that are stored, or about to be, and not handled, in order."""
        first = [] if self.in_hand is None else [self.in_hand]
        mails = (*first, *self.queue, *self._group, *self.arrived)
        return [mail for mail in mails if not mail.passes]

    def leave(self) -> list[Any]:
        """Return the messages that are not stored, in order, which are here no more. Those of an
        append under way stay: its outcome is theirs."""
        passing = [mail for mail in self.queue if mail.passes]
        left = [*passing, *self.arrived]
        gone = [mail for mail in (*self.queue, *self.arrived) if not mail.passes]
        self.waiting -= len(gone)
        self.size -= sum(len(mail.data) for mail in gone)
        self.arrived.clear()
        self.queue.clear()
        return [message for mail in left for message in mail.messages]

    # ---- steps

    def _go(self, effects: list[Effect]) -> None:
        self._store(effects)
        self._hand_over(effects)

    def _store(self, effects: list[Effect]) -> None:
        """Begin the next store operation, if none is under way."""
        if self.step is not StoreStep.NONE or self.appends_at is not None:
            return
        if self.stopping:
            if self.handled > self.trimmed and not self._trim_failed and self._is_known:
                self._trim(effects)
        elif not self._is_known:
            self.step = StoreStep.OPEN
            effects.append(OpenJournal(self.last))
        elif self.arrived and any(mail.stored is not None for mail in self.arrived):
            self._append(effects)
        else:
            self.queue.extend(self.arrived)
            self.arrived.clear()
            due = self.limits.messages // TRIM_PARTS
            if self.handled - self.trimmed >= max(due, 1) and not self._trim_failed:
                self._trim(effects)

    def _append(self, effects: list[Effect]) -> None:
        group, size = list[Mail](), 0
        while self.arrived and len(group) < APPEND_MAX and size < APPEND_BYTES:
            mail = self.arrived.popleft()
            group.append(mail)
            size += len(mail.data)
        self._group, self.step = tuple(group), StoreStep.APPEND
        stored = tuple([mail for mail in group if mail.stored is not None])
        effects.append(AppendMail(self.last, stored))

    def _trim(self, effects: list[Effect], *, forget: bool = False) -> None:
        self.step = StoreStep.TRIM
        effects.append(TrimJournal(self.last if forget else self.handled, forget))

    def _hand_over(self, effects: list[Effect]) -> None:
        """Hand over the first message, and the asks ahead of the next one. Asks do not wait for the
        next attempt of a message that has failed."""
        queue = self.queue
        if self.stopping:
            return
        if self.resumes_at is not None:
            for mail in [mail for mail in queue if mail.passes]:
                queue.remove(mail)
                effects.append(PassBy(mail))
            return
        while queue:
            if queue[0].passes:
                effects.append(PassBy(queue.popleft()))
            elif self.in_hand is None:
                self.in_hand = queue.popleft()
                effects.append(Hand(self.in_hand))
            else:
                return

    def check(self) -> None:
        """Audit the whole state."""
        mails = [*self.arrived, *self.queue, *self._group]
        waiting = [mail for mail in mails if not mail.passes]
        if self.in_hand is not None:
            waiting.append(self.in_hand)
        assert len(waiting) == self.waiting, "the number of waiting messages"
        assert sum(len(mail.data) for mail in waiting) == self.size, "their size"
        places = [mail.place for mail in self.queue if mail.place]
        assert places == sorted(places), "out of order"
        assert all(not mail.place for mail in self.arrived), "a stored message that is not stored"
        assert bool(self._group) == (self.step is StoreStep.APPEND)
        assert self.trimmed <= max(self.handled, self.trimmed) <= max(self.last, self.trimmed)


def _same(number: DeliveryNumber, other: DeliveryNumber) -> bool:
    """True if two numbers are of the same delivery."""
    return (number.producer, number.era, number.seq) == (other.producer, other.era, other.seq)
