"""Finds members that answer heartbeats, but acknowledge nothing on their session.

A session between two live processes resends unacknowledged batches without end. If nothing is
acknowledged for `cluster.quarantine_after` while membership reports the member as reachable, one of
the two processes is defective and must restart. The downing strategy decides which. A member that
reports a lack of room is not defective.

This node may be the defective one, and use only one of its links. So after half of that time it
sends something to a few other members (`untested`). Members that acknowledge nothing of that either
are accused in the same moment: the graph of links then shows at whose end the fault is.

Time counts by checks, not by the clock: each check adds the time since the one before, at most one
second. So a node whose own loop stood still does not accuse other nodes.

Source: docs/architecture.md; S1.25.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from shardbus.ids import NodeId
from shardbus.transport.session import Session

STEP_MAX_S = 1.0
TEST_PART = 0.5
"""The part of `after` at which other links are tested."""
TESTED_PART = 0.25
"""The part of `after` without an acknowledgement after which a tested member is accused too."""
TESTS_MAX = 9
"""Members that are tested."""


class StalledSession(msgspec.Struct):
    """A session on which nothing is acknowledged, and the `seconds` since the last progress."""

    sign: tuple[int, int]
    """The counts that progress changes: the acknowledgements, and the reports of a lack of room."""
    seconds: float = 0.0


class StalledPeers:
    """Finds stalled members in repeated checks. `after`: seconds; 0 finds none."""

    def __init__(self, after: float) -> None:
        self._after = after
        self._stalls: dict[Session, StalledSession] = {}
        self._checked_at: float | None = None
        self._tested = False

    def check(
        self, sessions: Iterable[Session], reachable: Collection[NodeId], now: float
    ) -> list[NodeId]:
        """The members to quarantine. Only sessions with `reachable` members count."""
        passed = 0.0 if self._checked_at is None else min(now - self._checked_at, STEP_MAX_S)
        self._checked_at = now
        if not self._after:
            return []
        stalled = [s for s in sessions if s.link.outstanding and s.tag in reachable]
        before, self._stalls = self._stalls, {}
        nodes = []
        for session in stalled:
            stall, sign = (
                before.get(session),
                (session.link.window.acked, session.link.held_reports),
            )
            if stall is None or stall.sign != sign:
                stall = StalledSession(sign)
            else:
                stall.seconds += passed
            self._stalls[session] = stall
            if stall.seconds >= self._after:
                nodes.append(session.tag)
        if nodes:
            tested = TESTED_PART * self._after
            nodes += [s.tag for s, stall in self._stalls.items() if stall.seconds >= tested]
        return list(dict.fromkeys(nodes))

    def untested(self, reachable: Collection[NodeId]) -> list[NodeId]:
        """Return the members to send something to: others than the stalled ones, once per stall."""
        suspect = TEST_PART * self._after
        stalled = {s.tag for s, stall in self._stalls.items() if stall.seconds >= suspect}
        if self._tested or not stalled:
            self._tested = bool(stalled)
            return []
        self._tested = True
        waiting = {session.tag for session in self._stalls}
        return sorted(node for node in reachable if node not in waiting)[:TESTS_MAX]
