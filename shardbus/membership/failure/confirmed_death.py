"""Confirmed death: proof that a member's process is gone.

When the connection to a member drops, a node opens a fresh TCP connection to the address of the
member's ROUTER, which a node keeps bound as long as it lives. *Refused* means that the operating
system answers and no process listens: this incarnation is gone. An answer by a process with another
uid means the same. Any other outcome proves nothing, and the probe is repeated with growing pauses,
because the sockets of a dying process do not all close in the same instant. Probing ends when the
member answers a heartbeat, answers a probe after the pauses have grown, or is no longer a member.

A Join with the address of a member that no observer flags also makes this node probe that member
(`admission`).

A firewall that rejects looks like a death, from both sides. So the leader acts on a death only once
every node of its side has found the same (`downing`): a wall between some of them and the member
leaves one that still reaches it. Before it acts it **sweeps**: it probes all other members too. The
wall shows in the answers, and the strategy then sees the whole split at once, not one member after
the other. Members without a clear answer are doubtful, and count as cut off.

Source: docs/architecture.md; B.42, N.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec

from shardbus.ids import NodeId

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
"""Seconds between two probes of a member: the first pause, doubled up to the longest."""
ANSWER_WITHIN = 2.0
"""Seconds. A probe without a result by then counts as UNKNOWN. The shell gives a probe one
second."""


class ProbeOutcome(Enum):
    """The result of a fresh connection to a member's address."""

    REFUSED = "refused"
    OPEN = "open"
    UNKNOWN = "unknown"
    ALIVE = "alive"
    """The probed incarnation answers."""
    OTHER = "other"
    """Another incarnation answers at that address."""

    @property
    def proves_death(self) -> bool:
        """True if the probed incarnation is gone."""
        return self in (ProbeOutcome.REFUSED, ProbeOutcome.OTHER)


class SuspectedDeath(msgspec.Struct):
    """A member that may be gone. `sent_at` is None between two probes."""

    since: float
    next_at: float
    pause: float = FIRST_PAUSE
    sent_at: float | None = None


class DeathWatch:
    """Decides when to probe which member."""

    def __init__(self) -> None:
        self.suspects: dict[NodeId, SuspectedDeath] = {}

    def deadline(self) -> float | None:
        """Return when `tick` is due."""
        times = [
            d.next_at if d.sent_at is None else d.sent_at + ANSWER_WITHIN
            for d in self.suspects.values()
        ]
        return min(times, default=None)

    def suspect(self, node: NodeId, now: float) -> None:
        """Probe the member with the next `tick`: its connection dropped, or another process joins
        at its address."""
        suspect = self.suspects.setdefault(node, SuspectedDeath(now, now))
        suspect.since = suspect.next_at = now

    def on_alive(self, node: NodeId, asked_at: float) -> None:
        """Stop probing the member: it answered a heartbeat that was sent at that time."""
        suspect = self.suspects.get(node)
        if suspect is not None and asked_at >= suspect.since:
            del self.suspects[node]

    def on_result(self, node: NodeId, outcome: ProbeOutcome, now: float) -> None:
        """Record a probe's outcome."""
        suspect = self.suspects.get(node)
        if suspect is None:
            return
        lives = outcome is ProbeOutcome.ALIVE and suspect.pause == LONGEST_PAUSE
        if lives or outcome.proves_death:
            del self.suspects[node]
        else:
            suspect.sent_at = None
            suspect.next_at = now + suspect.pause
            suspect.pause = min(2 * suspect.pause, LONGEST_PAUSE)

    def keep(self, nodes: Iterable[NodeId]) -> None:
        """Stop probing all members but these."""
        kept = frozenset(nodes)
        self.suspects = {node: suspect for node, suspect in self.suspects.items() if node in kept}

    def tick(self, now: float) -> list[NodeId]:
        """Return the members to probe now."""
        due = []
        for node, suspect in self.suspects.items():
            if suspect.sent_at is not None and now >= suspect.sent_at + ANSWER_WITHIN:
                suspect.sent_at, suspect.next_at = None, now
            if suspect.sent_at is None and now >= suspect.next_at:
                suspect.sent_at = now
                due.append(node)
        return due


class Sweep(msgspec.Struct):
    """The leader's probes of all other members. None: no answer yet."""

    answers: dict[NodeId, ProbeOutcome | None]

    def on_result(self, node: NodeId, outcome: ProbeOutcome) -> None:
        """Record a probe's outcome."""
        if node in self.answers:
            self.answers[node] = outcome

    def doubtful(self) -> tuple[NodeId, ...]:
        """Return the members without a clear answer."""
        return tuple(n for n, a in self.answers.items() if a in (None, ProbeOutcome.UNKNOWN))
