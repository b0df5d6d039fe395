"""Limits of mailboxes, and back pressure on the senders of tells.

A mailbox is full at `mailbox` messages, and all mailboxes of a type on a node together at about
`mailbox_bytes`. An ask that finds no room is refused with MailboxFull. A tell has no answer, so
instead of dropping it the node slows its sender down:

    a run of tells finds a mailbox full ──> the rest of the run is still queued; the sender holds
                                            back messages for this entity, and its `await tell` to
                                            this entity waits (`transport.full_entities`)
    a quarter of the room is free again ──> the sender goes on

So a mailbox exceeds its bound by at most one batch for each session (the node's session with itself
has up to 4 MiB), and a slow entity slows its senders down to its own pace, and no others.

**Bytes.** Over three quarters of `mailbox_bytes`, a mailbox is full as well if it holds more than
its share of the last quarter, which all mailboxes that are not empty have in equal parts. So
entities with much in their mailboxes wait before they take the room of the others. Over
`mailbox_bytes` every mailbox of the type is full, and the whole session of a sender is paused:
nothing that arrives is handed out or acknowledged. So is, at any full mailbox, the session of a
peer that cannot hold back single entities.

**Owed messages** have no sender that could wait: messages that another node forwards, and messages
that were acknowledged in a session that has ended. They are taken over the bound in messages, until
the mailboxes hold twice `mailbox_bytes`.

**A bound on waiting.** Senders wait for an entity that goes on, not for one that stands still: if
no message leaves a full mailbox for `mailbox_patience`, its entity is *stuck*, and messages for it
are dropped and counted until it has room again. Two entities that wait for room in each other's
mailbox, directly or through others, end so as well: the price is one of their messages, not the
cluster. While the node is suspended no entity stands still: its messages wait for the node. Only
messages of entities wait behind a paused session (`transport.inbox`).

**Durable mailboxes** (`entities.durable_mailboxes`) have bounds of their own, and store what
arrives in front of the entity. Tells that find one full slow their sender down by the same holds.
Such an entity stands still if the first message in its mailbox stays the same.

A message that leaves a mailbox notifies nothing, since that would cost something for each. Instead
a timer checks the mailboxes every 1 to 50 ms while a session waits. Bytes are estimated as messages
are queued. When the estimate reaches three quarters of the bound, the mailboxes are measured, by
the first and the last message of each.

Source: docs/guarantees.md; B.107, B.156, S2.47.
"""

from __future__ import annotations

import asyncio
from collections import deque
from heapq import nlargest
from operator import itemgetter
from typing import Protocol

import msgspec

from shardbus.config.settings import ShardingSettings
from shardbus.entities.activation import Activation, Message
from shardbus.entities.gate import SuspensionGate
from shardbus.transport.session import Session

MESSAGE_BYTES = 192
"""Bytes that a message in a mailbox takes besides its payload."""
CHECK_MIN_S, CHECK_MAX_S = 0.001, 0.05
"""Bounds of the time between two checks."""
STEP_MAX_S = 0.25
"""The most that counts between two checks: after a pause of the loop no entity is stuck."""


class BlockedSender(msgspec.Struct):
    """The room that a session waits for: in these mailboxes, or (`all`) in all together. `paused`:
    all of the session waits, and not only the messages for these entities."""

    activations: dict[Activation, None] = msgspec.field(default_factory=dict)
    all: bool = False
    paused: bool = False


class MailboxProgress(msgspec.Struct):
    """The first message of a mailbox at the last check, and for how long it has been first."""

    first: object = None
    seconds: float = 0.0


class Standstill(msgspec.Struct):
    """The most room that all mailboxes together had since they are full, and for how long."""

    room: int = 0
    seconds: float = 0.0


class StoredRoom(Protocol):
    """The room of the durable mailboxes of a type."""

    def has_much_room(self, activation: Activation) -> bool:
        """True if a quarter of an entity's room is free."""
        ...

    def progress_of(self, activation: Activation) -> object:
        """Return a value that is another one once a message has left."""
        ...


def size_of(mailbox: deque[Message]) -> int:
    """Estimate the bytes of a mailbox that is not empty, by its first and its last message."""
    size = (len(mailbox[0].payload) + len(mailbox[-1].payload)) // 2
    return len(mailbox) * (size + MESSAGE_BYTES)


class MailboxLimits:
    """The limits of one type on one node. Without patience, no sender waits."""

    def __init__(
        self,
        settings: ShardingSettings,
        loop: asyncio.AbstractEventLoop,
        gate: SuspensionGate | None = None,
        entity_type: str = "",
    ) -> None:
        self._gate = gate or SuspensionGate()
        self._type = entity_type
        self.soft = False
        """The current run may exceed the bounds: its session waits afterwards."""
        self.owed = False
        """The current run may exceed the bounds, up to another one, and no session waits."""
        self.met = False
        """A message of the current run has exceeded a bound."""
        self._bytes, self._messages = settings.mailbox_bytes, settings.mailbox
        self.room = self._bytes - self._spare
        """Bytes that may be queued before the mailboxes are measured again, or while they are
        `tight`, the bytes left when they were measured, without those queued since."""
        self.pauses = 0
        """How often a session had to wait."""
        self.stored: StoredRoom | None = None
        """The durable mailboxes of the type; None if it has none."""
        self._patience = settings.mailbox_patience
        self._loop = loop
        self._activations: dict[Activation, None] = {}
        """Entities that may have a mailbox."""
        self._full: dict[Activation, None] = {}
        self._waits: dict[Session, BlockedSender] = {}
        self._progress: dict[Activation, MailboxProgress] = {}
        """Of mailboxes that a session waits for."""
        self._stuck: dict[Activation, None] = {}
        self._tight = False
        """Only the spare quarter of the bytes is left."""
        self._share = self._spare
        """Bytes that one mailbox may hold while they are tight."""
        self._over = False
        """All mailboxes together are full."""
        self._over_stuck = False
        """They are full and stand still: tells are dropped."""
        self._over_since = Standstill()
        self._timer: asyncio.TimerHandle | None = None
        self._interval_s = CHECK_MIN_S
        self._checked_at = 0.0

    @property
    def _spare(self) -> int:
        """Bytes for arrivals while the mailboxes are `tight`."""
        return self._bytes // 4

    @property
    def waiting(self) -> int:
        """Messages that wait in mailboxes now. Costs a pass over the entities with a mailbox."""
        return sum(len(activation.mailbox or ()) for activation in self._activations)

    @property
    def paused(self) -> int:
        """Sessions that wait for room now, with some of their messages or all."""
        return len(self._waits)

    def with_messages(self) -> list[Activation]:
        """Return the entities in whose mailboxes messages wait. Costs the same pass."""
        return [activation for activation in self._activations if activation.mailbox]

    def fullest(self, most: int) -> list[tuple[str, str, int]]:
        """Return up to `most` entities with the longest mailboxes: the id, the shard, and how many
        messages wait. Costs the same pass."""
        filled = (a for a in self._activations if a.mailbox)
        rows = ((a.key, a.shard.shard, len(a.mailbox or ())) for a in filled)
        return nlargest(most, rows, key=itemgetter(2))

    @property
    def waiting_of_others(self) -> int:
        """Messages in mailboxes that their entities have not sent themselves. Costs a pass over the
        messages."""
        mailboxes = (activation.mailbox or () for activation in self._activations)
        return sum(not message.ends_with_activation for mailbox in mailboxes for message in mailbox)

    def waiting_by_shard(self) -> dict[str, int]:
        """Return how many messages wait for the entities of each shard. Costs the same pass."""
        counts: dict[str, int] = {}
        for activation in self._activations:
            if activation.mailbox:
                shard = activation.shard.shard
                counts[shard] = counts.get(shard, 0) + len(activation.mailbox)
        return counts

    # ---- while messages arrive

    def arrives(self, soft: bool, owed: bool = False) -> None:
        """Note that a run of tells follows; `soft`: its session can wait. `owed`: it cannot, and
        the run was acknowledged before."""
        self.soft, self.owed = soft and self._patience > 0, owed

    def handed_out(self) -> None:
        """Note that the run is over."""
        self.soft = self.owed = False

    def has_mailbox(self, activation: Activation) -> None:
        """Note that an entity has a mailbox now."""
        self._activations[activation] = None

    def mailbox_of(self, activation: Activation) -> deque[Message]:
        """Return the mailbox of an entity, made if there is none."""
        if activation.mailbox is None:
            activation.mailbox = deque()
            self.has_mailbox(activation)
        return activation.mailbox

    def admits(self, activation: Activation, message: Message) -> bool:
        """Decide about a message that finds no room. Returns True if it is queued all the same."""
        mailbox = activation.mailbox
        if mailbox is not None and len(mailbox) >= self._messages:
            return self._exceeds(activation, message)
        if not self._tight or (not self._over and self._is_over):
            self._measure()
        if self._over:
            if message.session is not None or (self.soft and self._over_stuck):
                return False
            self.met = self.met or self.soft
            return not self.owed or self._takes_owed
        if self._tight and mailbox and size_of(mailbox) > self._share:
            return self._exceeds(activation, message)
        return True

    def _exceeds(self, activation: Activation, message: Message) -> bool:
        """Decide about a message for a full mailbox."""
        if message.session is not None or activation in self._stuck:
            return False
        if self.owed:
            return self._takes_owed
        if not self.soft:
            return False
        self._full[activation] = None
        self.met = True
        return True

    def exceeds_stored(self, activation: Activation, *, fits: bool) -> bool:
        """Return True if a tell is stored though its durable mailbox is full: its sender holds back
        the next ones, or cannot. `fits`: there is memory for it."""
        if not fits or activation in self._stuck or not (self.soft or self.owed):
            return False
        if self.soft:
            self._full[activation] = None
            self.met = True
        return True

    @property
    def _is_over(self) -> bool:
        return self.room <= -self._spare

    @property
    def _takes_owed(self) -> bool:
        return self.room > -self._spare - self._bytes

    def _measure(self) -> None:
        """Measure the mailboxes, and check them from now on if there is little room."""
        self._count()
        if self._is_over:
            self._over, self._over_since = True, Standstill(self.room)
        if self._tight:
            self._check_later()

    def pause(self, session: Session) -> None:
        """Let the session wait by which a run came that exceeded a bound."""
        self.met = False
        wait = self._waits.get(session)
        if wait is None:
            wait = self._waits[session] = BlockedSender()
            self.pauses += 1
        apart, full = session.holds_entities, self._full
        self._full = {}
        for activation in full:
            if apart and activation not in wait.activations:
                session.hold((self._type, activation.key))
            self._progress.setdefault(activation, MailboxProgress())
        wait.activations |= full
        wait.all = wait.all or self._over
        if not wait.paused and (wait.all or not apart):
            wait.paused = True
            session.pause()
        self._interval_s = CHECK_MIN_S
        self._check_later()

    # ---- checks

    def _check_later(self) -> None:
        if self._timer is None:
            self._checked_at = self._loop.time()
            self._timer = self._loop.call_later(self._interval_s, self._check)

    def _check(self) -> None:
        """Resume sessions whose mailboxes have room again; mark those that stand still as stuck."""
        self._timer = None
        now = self._loop.time()
        passed = 0.0 if self._gate.closed else min(now - self._checked_at, STEP_MAX_S)
        if self._tight:
            self._check_all(passed)
        for activation in [a for a in self._progress if self._is_done(a, passed)]:
            del self._progress[activation]
        for activation in [a for a in self._stuck if self._has_room(a)]:
            del self._stuck[activation]
        self._interval_s = min(2 * self._interval_s, CHECK_MAX_S)
        for session, done, resumes in [self._settle(*row) for row in list(self._waits.items())]:
            for activation in done:
                session.release((self._type, activation.key))
            if resumes:
                session.resume()
        if self._waits or self._stuck or self._tight:
            self._check_later()

    def _settle(
        self, session: Session, wait: BlockedSender
    ) -> tuple[Session, list[Activation], bool]:
        """Return the entities for which a session waits no more, and whether all of it resumes."""
        done = [a for a in wait.activations if a not in self._progress]
        for activation in done:
            del wait.activations[activation]
        wait.all = wait.all and self._over and not self._over_stuck
        apart, lost = session.holds_entities, session.lost is not None
        resumes = wait.paused and (lost or not (wait.all or (wait.activations and not apart)))
        wait.paused = wait.paused and not resumes
        if lost or not (wait.activations or wait.all):
            del self._waits[session]
        if done or resumes:
            self._interval_s = CHECK_MIN_S
        return session, done if apart else [], resumes

    def _has_room(self, activation: Activation) -> bool:
        if self.stored is not None and not self.stored.has_much_room(activation):
            return False
        mailbox = activation.mailbox
        if not mailbox:
            return True
        if len(mailbox) > self._messages * 3 // 4:
            return False
        return not self._tight or size_of(mailbox) <= self._share * 3 // 4

    def _is_done(self, activation: Activation, passed: float) -> bool:
        """True if no session needs to wait for a mailbox: it has room, or its entity is stuck."""
        mailbox, progress = activation.mailbox, self._progress[activation]
        if self._has_room(activation):
            return True
        first: object = mailbox[0] if mailbox else None
        if self.stored is not None:
            first = self.stored.progress_of(activation)
        if first is not progress.first:
            progress.first, progress.seconds = first, 0.0
            return False
        progress.seconds += passed
        if progress.seconds < self._patience:
            return False
        self._stuck[activation] = None
        return True

    def _check_all(self, passed: float) -> None:
        self._count()
        if not self._over:
            return
        if not self._tight:
            self._over = self._over_stuck = False
        elif self.room > self._over_since.room:
            self._over_since = Standstill(self.room)
        else:
            self._over_since.seconds += passed
            self._over_stuck = self._over_stuck or self._over_since.seconds >= self._patience

    def _count(self) -> None:
        """Measure the contents of all mailboxes."""
        taken, filled, activations = 0, 0, dict[Activation, None]()
        for activation in self._activations:
            mailbox = activation.mailbox
            if mailbox is not None:
                activations[activation] = None  # even if empty: it stays while its entity is busy
            if mailbox:
                filled += 1
                taken += size_of(mailbox)
        self._activations, self.room = activations, self._bytes - self._spare - taken
        self._tight, self._share = self.room < 0, self._spare // max(filled, 1)

    def sweep(self) -> None:
        """Forget entities without a mailbox. Called about once a second."""
        if self._activations:
            self._count()

    def stop(self) -> None:
        """Cancel the timer: the node ends."""
        if self._timer is not None:
            self._timer.cancel()
