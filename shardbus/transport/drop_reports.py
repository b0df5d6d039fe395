"""Reports of dropped tells: tells that a session acknowledged and that no handler got.

A tell has no answer, so the process that drops one counts it, and reports the counts to the sender
in bulk: for each session, how many there were by type and reason, at most one message a second.

    a tell arrives by a session ──> in place of a correlation id it gets the session's *mark*, a
                                    negative number, which stays with it in mailbox, stash, buffer
    it is dropped ────────────────> counted for that mark (`DropTallies`)
    once a second ────────────────> a control message `Refusals` to the process at the other end
    that process ─────────────────> counts it, and logs a line now and then (`RefusedTells`)

So reports cost nothing per message. A process that does not request reports in HELLO gets none, and
neither does a session that has ended.

A tell that another node has forwarded came by that node's session, and has with it the mark of the
session by which that node got it (`Relayed.via`). Here each such sender has a mark of its own, and
the report gives the other node's marks back with the counts. That node does not count these tells
as its own: it passes the counts on in its next report to the session of that mark. If that has
ended, or ends before, the node counts them after all. A node of a build without such marks counts
all of them.

Source: docs/guarantees.md; B.107; I4; S3.67, S3.71.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from enum import IntEnum
from itertools import count

from shardbus.transport.asks import CoarseClock
from shardbus.transport.session import Session
from shardbus.wire.control import Refusals, encode_control


class Origin(IntEnum):
    """Stands in place of a correlation id in a message that expects no answer. The numbers below
    UNREPORTED are the marks of sessions that get reports."""

    OWN = -1
    """The entity's own timers or its node sent the message."""
    UNREPORTED = -2
    """A tell whose sender gets no report."""


def is_session_mark(number: int) -> bool:
    """True if the number is the mark of a session that gets reports of dropped tells."""
    return number < -2


EVERY_TICKS = CoarseClock.ticks(1.0)
"""Interval of reports."""
LOG_EVERY_S = 10.0
KEYS_MAX = 1000
"""Pairs of type and reason that are counted apart, on either side: a sender may name types that
do not exist, and a report may have any reasons."""
SENDERS_MAX = 1000
"""Senders behind one session whose forwarded tells are reported apart; beyond that, the first one
is forgotten."""
OTHER = ("", "other")
WORD = re.compile(r"[a-z][a-z_]{0,39}")

Reason = tuple[str, str]
"""Entity type and why."""
Relay = Callable[[int, str, str, int], bool]
"""Passes on a number of drops, of a type and for a reason, to the session of a mark. False if there
is none."""


class DropTally:
    """Drops of the tells that came by one session, since the last report."""

    __slots__ = ("counts", "forwarded", "marks", "relayed", "reported_at", "session")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.counts: dict[Reason, int] = {}
        self.forwarded: dict[tuple[Reason, int], int] = {}
        """The counts of tells that the other end had forwarded, by its mark of their sender."""
        self.relayed: dict[Reason, int] = {}
        """The counts of tells that another node has dropped, to which this one had forwarded."""
        self.marks: dict[int, int] = {}
        """By the other end's mark of a sender: the mark here."""
        self.reported_at = -EVERY_TICKS


class DropTallies:
    """The receiving side: counts drops by the session that the tells came by, and reports them.
    `untold` takes the counts of forwarded tells whose senders have ended before the report."""

    def __init__(self, untold: Callable[[Refusals], object] = lambda _: None) -> None:
        self._untold = untold
        self._marks = count(Origin.UNREPORTED - 1, -1)
        self.own_mark = next(self._marks)
        """The mark of the process's session with itself, which gets no reports."""
        self._tallies: dict[int, DropTally] = {}
        self.prompt = False
        """Report at every tick: this node leaves, and its sessions may end before a second has
        passed."""
        self.somebody_leaves = False
        """Report at every tick: another member leaves, which may have sent the tells that this node
        drops, by itself or through a third one."""
        self._origins: dict[int, tuple[int, int]] = {}
        """By the mark of a sender behind a session: the session's mark, and the other end's."""

    def mark(self, session: Session) -> int:
        """Give a session the mark of the tells that come by it. Called once per session."""
        if session.wants_drop_reports and session.lost is None:
            session.mark = next(self._marks)
            self._tallies[session.mark] = DropTally(session)
        else:
            session.mark = Origin.UNREPORTED
        return session.mark

    def mark_forwarded(self, session: Session, via: int) -> int:
        """Return the mark of a tell that the other end forwards. `via`: its own mark of the tell's
        sender."""
        mark = session.mark or self.mark(session)
        tally = self._tallies.get(mark)
        if tally is None or not is_session_mark(via):
            return mark
        forwarded = tally.marks.get(via)
        if forwarded is None:
            if len(tally.marks) >= SENDERS_MAX:
                del self._origins[tally.marks.pop(next(iter(tally.marks)))]
            forwarded = tally.marks[via] = next(self._marks)
            self._origins[forwarded] = mark, via
        return forwarded

    def sender_of(self, mark: int) -> str:
        """Return the name of the process at the other end of the session by which a tell with this
        mark came; empty if that is not known, or the session has ended."""
        tally = self._tallies.get(self._origins.get(mark, (mark, 0))[0])
        return "" if tally is None else tally.session.name

    def drop(self, mark: int, entity_type: str, reason: str, count: int) -> None:
        """Count dropped tells that came by the session, or from the sender, with this mark."""
        mark, via = self._origins.get(mark, (mark, 0))
        tally = self._tallies.get(mark)
        if tally is None:
            return
        key = (entity_type, reason)
        if key not in tally.counts and len(tally.counts) >= KEYS_MAX:
            key = OTHER
        tally.counts[key] = tally.counts.get(key, 0) + count
        row = (key, via)
        if via and (row in tally.forwarded or len(tally.forwarded) < KEYS_MAX):
            tally.forwarded[row] = tally.forwarded.get(row, 0) + count

    def relay(self, mark: int, entity_type: str, reason: str, count: int) -> bool:
        """Count tells that this node has forwarded and another one has dropped, for the session
        that they came by. Returns False if that has ended."""
        tally = self._tallies.get(self._origins.get(mark, (mark, 0))[0])
        if tally is None or tally.session.lost is not None:
            return False
        self.drop(mark, entity_type, reason, count)
        key = (entity_type, reason)
        if key in tally.relayed or len(tally.relayed) < KEYS_MAX:
            tally.relayed[key] = tally.relayed.get(key, 0) + count
        return True

    def report(self, tick: int, *, last: bool = False) -> None:
        """Send the counts of every session without a report within the last second; with `last`,
        of every session."""
        every = 1 if self.prompt or self.somebody_leaves else EVERY_TICKS
        for mark, tally in list(self._tallies.items()):
            if tally.session.lost is not None:
                del self._tallies[mark]
                for sender in tally.marks.values():
                    del self._origins[sender]
                if tally.relayed:
                    self._untold(Refusals(tuple((*key, n) for key, n in tally.relayed.items())))
            elif tally.counts and (last or tick - tally.reported_at >= every):
                rows = tuple((*key, count) for key, count in tally.counts.items())
                forwarded = tuple((*key, n, via) for (key, via), n in tally.forwarded.items())
                tally.session.outbox.control(encode_control("", Refusals(rows, forwarded)))
                tally.counts, tally.forwarded, tally.relayed = {}, {}, {}
                tally.reported_at = tick


class RefusedTells:
    """The sending side: counts of this process's tells that other processes dropped.

    `types`: the types that are counted by name, which become labels of metrics; None for any. A
    reason that is no plain word counts as `other`."""

    __slots__ = ("_logged_at", "_new", "_types", "counts")

    def __init__(self, types: Container[str] | None = None) -> None:
        self._types = types
        self.counts: dict[Reason, int] = {}
        """By type and reason."""
        self._new: dict[tuple[str, str, str], int] = {}
        self._logged_at = float("-inf")

    def record(self, name: str, refusals: Refusals, relay: Relay | None = None) -> None:
        """Count a report of the process with that name, without those that `relay` passes on to
        the senders of tells that this process has forwarded."""
        relayed: dict[Reason, int] = {}
        for entity_type, reason, dropped, via in refusals.forwarded if relay is not None else ():
            if relay is not None and relay(via, entity_type, reason, dropped):
                key = (entity_type, reason)
                relayed[key] = relayed.get(key, 0) + dropped
        for entity_type, reason, all_dropped in refusals.counts:
            dropped = all_dropped - relayed.get((entity_type, reason), 0)
            if dropped <= 0:
                continue
            is_known = self._types is None or entity_type in self._types
            key = (entity_type if is_known else "", reason if WORD.fullmatch(reason) else OTHER[1])
            if key not in self.counts and len(self.counts) >= KEYS_MAX:
                key = OTHER
            self.counts[key] = self.counts.get(key, 0) + dropped
            row = (name, key[0], key[1])
            if row in self._new or len(self._new) < KEYS_MAX:
                self._new[row] = self._new.get(row, 0) + dropped

    def log_line(self, now: float) -> str:
        """Return a log line of the reports since the last line; "" if there are none, or the last
        line is less than `LOG_EVERY_S` old."""
        if not self._new or now - self._logged_at < LOG_EVERY_S:
            return ""
        new, self._new, self._logged_at = self._new, {}, now
        parts = [f"{name} dropped {n} of {kind!r}: {why}" for (name, kind, why), n in new.items()]
        return "tells that no handler received: " + "; ".join(parts)
