"""Finds members that answer heartbeats, but do not get what a link must bring them.

A link between two live processes sends again what is not acknowledged, for ever. If nothing at all
arrives for `cluster.quarantine_after` while membership says that the member is reachable, one of
the two is broken in a way that no waiting mends: it must start anew. Which of the two goes is for
the downing strategy to say. A member that says it has no room is not broken.

Only looks count, not the clock: a look adds what has passed since the one before, and at most one
second. So a node whose own loop stood still does not accuse others.

Source: S1.25; docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from shardbus.ids import NodeId
from shardbus.transport.session import Session

LONGEST_LOOK_S = 1.0


@dataclass(slots=True)
class StalledSession:
    """A session on which nothing is acknowledged. `seconds`: for so long."""

    sign: tuple[int, int]
    """What would change if something got through: acknowledgements, and pleas to wait."""
    seconds: float = 0.0


class StalledPeers:
    """Look at the sessions every now and then. `after`: seconds; 0 finds nobody."""

    def __init__(self, after: float) -> None:
        self._after = after
        self._stalls: dict[Session, StalledSession] = {}
        self._looked_at: float | None = None

    def check(
        self, sessions: Iterable[Session], reachable: Collection[NodeId], now: float
    ) -> list[NodeId]:
        """Whom to quarantine. Sessions with others than the `reachable` members do not count."""
        passed = 0.0 if self._looked_at is None else min(now - self._looked_at, LONGEST_LOOK_S)
        self._looked_at = now
        if not self._after:
            return []
        stalled = [s for s in sessions if s.outstanding and s.tag in reachable]
        before, self._stalls = self._stalls, {}
        found = []
        for session in stalled:
            stall, sign = before.get(session), (session.acked, session.held_reports)
            if stall is None or stall.sign != sign:
                stall = StalledSession(sign)
            else:
                stall.seconds += passed
            self._stalls[session] = stall
            if stall.seconds >= self._after:
                found.append(session.tag)
        return list(dict.fromkeys(found))
