"""Mailboxes without room, and the senders that wait for some.

A mailbox is full at `mailbox` messages; and all mailboxes of a type on a node together hold about
`mailbox_bytes`. Whoever asks is refused then, with MailboxFull. A tell has nobody to tell, so
instead of dropping it

    a run of tells meets a full mailbox ──> what the run brings is still let in
                                            its session is paused: what comes behind is held and
                                            not acknowledged, and the sender's `await tell` waits
    a quarter of the room is free again ──> the session goes on

So a mailbox exceeds its bound by one batch for each session at most (that of the node with itself
has up to 4 MiB), and a slow entity slows its senders down to its own pace.

**A bound on waiting.** Senders wait for who goes on, not for who stands still: if a full mailbox
gives out nothing for `mailbox_patience`, its entity is *stuck*, and messages for it are dropped and
counted as ever, until it has room again. Two entities that wait for room at each other, directly or
through others, end so as well: one of their messages is the price, not the cluster. Nothing else
waits behind a paused session but entities' messages (`transport.intake`).

Nobody is told when a message leaves a mailbox, for that would cost something at each. Somebody
looks instead, every few milliseconds while somebody waits. Bytes are counted as messages are
queued, and when the count comes to the bound, what is really there, by the first and the last
message of each mailbox.

Source: docs/guarantees.md; B.107, B.156; S2.47.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from shardbus.config.settings import ShardingSettings
from shardbus.entities.context import Context, Message
from shardbus.transport.session import Session

MESSAGE_BYTES = 192
"""What a message in a mailbox takes besides its payload."""
LOOK_MIN_S, LOOK_MAX_S = 0.001, 0.05
STEP_MAX_S = 0.25
"""No more than this counts between two looks: a loop that stood still accuses nobody."""


@dataclass(slots=True)
class BlockedSender:
    """A session that waits for these mailboxes, and perhaps for all of them together."""

    activations: dict[Context, None] = field(default_factory=dict)
    all: bool = False


@dataclass(slots=True)
class MailboxProgress:
    """What stood first in a mailbox at the last look, and for how long it has."""

    first: Message | None = None
    seconds: float = 0.0


class MailboxLimits:
    """See the module; one per type and node. Without patience nobody waits."""

    def __init__(self, settings: ShardingSettings, loop: asyncio.AbstractEventLoop) -> None:
        self.soft = False
        """The messages that come now may exceed the bounds: who sends them will be paused."""
        self.met = False
        """Some of them did."""
        self.room = settings.mailbox_bytes
        """Bytes that may surely be queued yet, over all mailboxes."""
        self.pauses = 0
        """How often a session had to wait."""
        self._bytes, self._messages = settings.mailbox_bytes, settings.mailbox
        self._patience = settings.mailbox_patience
        self._loop = loop
        self._activations: dict[Context, None] = {}
        """Who may have a mailbox."""
        self._full: dict[Context, None] = {}
        self._waits: dict[Session, BlockedSender] = {}
        self._progress: dict[Context, MailboxProgress] = {}
        """Of mailboxes that somebody waits for."""
        self._stuck: dict[Context, None] = {}
        self._over = False
        """All mailboxes together are full."""
        self._over_stuck = False
        self._most_room = 0
        self._still_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._pause_s = LOOK_MIN_S
        self._looked_at = 0.0

    # ---- while messages come

    def arrives(self, soft: bool) -> None:
        """A run of tells follows; `soft`: from one who can be paused."""
        self.soft = soft and self._patience > 0

    def has_mailbox(self, activation: Context) -> None:
        """It has one from now on."""
        self._activations[activation] = None

    def mailbox_of(self, activation: Context) -> deque[Message]:
        """Its mailbox, made if it has none."""
        if activation.mailbox is None:
            activation.mailbox = deque()
            self.has_mailbox(activation)
        return activation.mailbox

    def admits(self, activation: Context, message: Message) -> bool:
        """Whether a message that finds no room is queued all the same."""
        mailbox = activation.mailbox
        if mailbox is not None and len(mailbox) >= self._messages:
            if not self.soft or message.session is not None or activation in self._stuck:
                return False
            self._full[activation] = None
            self.met = True
            return True
        if not self._over:
            self._count()
            if self.room > 0:
                return True
            self._over, self._most_room, self._still_s = True, self.room, 0.0
            self._look_later()
        if message.session is not None or (self.soft and self._over_stuck):
            return False
        self.met = self.met or self.soft
        return True

    def pause(self, session: Session) -> None:
        """The run that exceeded a bound came by this session."""
        self.met = False
        wait = self._waits.get(session)
        if wait is None:
            wait = self._waits[session] = BlockedSender()
            self.pauses += 1
            session.pause()
        wait.activations |= self._full
        wait.all = wait.all or self._over
        for activation in self._full:
            self._progress.setdefault(activation, MailboxProgress())
        self._full = {}
        self._pause_s = LOOK_MIN_S
        self._look_later()

    # ---- looking

    def _look_later(self) -> None:
        if self._timer is None:
            self._looked_at = self._loop.time()
            self._timer = self._loop.call_later(self._pause_s, self._look)

    def _look(self) -> None:
        """Who has room again, and who stands still?"""
        self._timer = None
        now = self._loop.time()
        passed = min(now - self._looked_at, STEP_MAX_S)
        if self._over:
            self._look_at_all(passed)
        for activation in [
            activation for activation in self._progress if self._is_done(activation, passed)
        ]:
            del self._progress[activation]
        for activation in [activation for activation in self._stuck if self._has_room(activation)]:
            del self._stuck[activation]
        self._pause_s = min(2 * self._pause_s, LOOK_MAX_S)
        for session, wait in list(self._waits.items()):
            wait.activations = {
                activation: None for activation in wait.activations if activation in self._progress
            }
            wait.all = wait.all and self._over and not self._over_stuck
            if session.lost is not None or not (wait.activations or wait.all):
                del self._waits[session]
                self._pause_s = LOOK_MIN_S
                session.resume()
        if self._waits or self._stuck or self._over:
            self._look_later()

    def _has_room(self, activation: Context) -> bool:
        mailbox = activation.mailbox
        return not mailbox or len(mailbox) <= self._messages * 3 // 4

    def _is_done(self, activation: Context, passed: float) -> bool:
        """Nobody needs to wait for it any more: it has room, or it is stuck."""
        mailbox, progress = activation.mailbox, self._progress[activation]
        if not mailbox or self._has_room(activation):
            return True
        if mailbox[0] is not progress.first:
            progress.first, progress.seconds = mailbox[0], 0.0
            return False
        progress.seconds += passed
        if progress.seconds < self._patience:
            return False
        self._stuck[activation] = None
        return True

    def _look_at_all(self, passed: float) -> None:
        self._count()
        if self.room >= self._bytes // 4:
            self._over = self._over_stuck = False
        elif self.room > self._most_room:
            self._most_room, self._still_s = self.room, 0.0
        else:
            self._still_s += passed
            self._over_stuck = self._over_stuck or self._still_s >= self._patience

    def _count(self) -> None:
        """Find out what is in all mailboxes."""
        taken, activations = 0, dict[Context, None]()
        for activation in self._activations:
            mailbox = activation.mailbox
            if mailbox is not None:
                activations[activation] = (
                    None  # an empty one too: it is there for as long as its entity is busy
                )
            if mailbox:
                size = (len(mailbox[0].payload) + len(mailbox[-1].payload)) // 2
                taken += len(mailbox) * (size + MESSAGE_BYTES)
        self._activations, self.room = activations, self._bytes - taken

    def sweep(self) -> None:
        """Called about once a second: forget who has no mailbox any more."""
        if self._activations:
            self._count()

    def stop(self) -> None:
        """The node ends."""
        if self._timer is not None:
            self._timer.cancel()
