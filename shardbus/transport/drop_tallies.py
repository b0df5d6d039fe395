"""Tells that nobody handles, although their link has acknowledged them: what their senders hear.

A tell has no answer, so whoever drops one counts it. Its sender is told in bulk: for each link, how
many there were, by type and reason, in one message a second at most.

    a tell comes by a link ──> in place of a correlation id it gets the link's *mark*, a negative
                               number, which goes with it into mailbox, stash and buffer
    it is dropped ───────────> counted for that mark
    once a second ───────────> a control message `Refusals` to the process at the other end

So a message costs nothing for it. Whoever does not say in HELLO that it listens is not told, nor is
one whose session has ended. A message that another node has passed on came by that node's link: it
is told, and not who had sent the message first.

Source: docs/guarantees.md; B.107; I4.
"""

from __future__ import annotations

from itertools import count

from shardbus.entities.context import NOBODY
from shardbus.transport.session import Session
from shardbus.wire.control import Refusals, encode_control

EVERY_TICKS = 20
"""A second, in ticks of 50 ms."""

Reason = tuple[str, str]
"""Entity type and why."""


class DropTally:
    """One that tells came by, and what its other end has not been told yet."""

    __slots__ = ("counts", "session", "told_at")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.counts: dict[Reason, int] = {}
        self.told_at = -EVERY_TICKS


class DropTallies:
    """See the module."""

    def __init__(self) -> None:
        self._marks = count(NOBODY - 1, -1)
        self._links: dict[int, DropTally] = {}
        self._looked_at = 0

    def mark(self, session: Session) -> int:
        """The number of the link by which a tell comes. A session is asked for it once."""
        if session.listens and session.lost is None:
            session.mark = next(self._marks)
            self._links[session.mark] = DropTally(session)
        else:
            session.mark = NOBODY
        return session.mark

    def drop(self, mark: int, entity_type: str, reason: str, count: int) -> None:
        """Tells that came by that link are dropped."""
        link = self._links.get(mark)
        if link is not None:
            key = (entity_type, reason)
            link.counts[key] = link.counts.get(key, 0) + count

    def report(self, tick: int, *, last: bool = False) -> None:
        """Tell whoever has not been told within the last second; the `last` time, everybody."""
        for mark, link in list(self._links.items()):
            if link.session.lost is not None:
                del self._links[mark]
            elif link.counts and (last or tick - link.told_at >= EVERY_TICKS):
                rows = tuple((*key, count) for key, count in link.counts.items())
                link.session.control(encode_control("", Refusals(rows)))
                link.counts, link.told_at = {}, tick
