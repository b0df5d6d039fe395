"""Confirmed death: is that process really gone?

When the connection to a member drops, a fresh TCP connection is opened to the address of its
ROUTER, which a node keeps bound as long as it lives. *Refused* means that the operating system
there answers and that nobody listens: this incarnation is gone. The same holds when a process with
another uid answers. Anything else does not prove its death, and the probe is repeated with growing
pauses, since the sockets of a dying process do not all close in the same instant: until the member
answers a heartbeat, or a probe after the pauses have grown, or is no member any more.

A Join in the name of an address that has a member which nobody flags is a reason to probe that
member too (`admission`).

A firewall that rejects looks the same as a death, from both sides. So the leader acts on a death
only once everybody on its side has found the same (`downing`): a wall between some of us and that
member leaves one who still reaches it. And before it acts it **sweeps**: it probes everybody else
too. A wall shows in the answers, and the strategy then sees the whole split at once instead of one
member after the other. Members that did not answer clearly are doubtful: they count as cut off.

Source: docs/architecture.md; B.42, N.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from shardbus.ids import NodeId

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
ANSWER_WITHIN = 2.0
"""A probe without a result by then counts as answered with UNKNOWN. The shell gives it one
second."""


class ProbeOutcome(Enum):
    """What a fresh connection to a member's address showed."""

    REFUSED = "refused"
    OPEN = "open"
    UNKNOWN = "unknown"
    ALIVE = "alive"
    """That incarnation answers."""
    OTHER = "other"
    """Another incarnation answers there."""

    @property
    def proves_death(self) -> bool:
        """True if the probed incarnation is gone."""
        return self in (ProbeOutcome.REFUSED, ProbeOutcome.OTHER)


@dataclass(slots=True)
class SuspectedDeath:
    """A member that may be gone. `sent_at` is None between two probes."""

    since: float
    next_at: float
    pause: float = FIRST_PAUSE
    sent_at: float | None = None


class DeathWatch:
    """Decides when to probe whom."""

    def __init__(self) -> None:
        self.doubts: dict[NodeId, SuspectedDeath] = {}

    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        times = [
            d.next_at if d.sent_at is None else d.sent_at + ANSWER_WITHIN
            for d in self.doubts.values()
        ]
        return min(times, default=None)

    def doubt(self, node: NodeId, now: float) -> None:
        """The connection to the member dropped, or another has come in its name; `tick` will probe
        it at once."""
        doubt = self.doubts.setdefault(node, SuspectedDeath(now, now))
        doubt.since = doubt.next_at = now

    def on_alive(self, node: NodeId, asked_at: float) -> None:
        """The member answered a question that was asked at that time."""
        doubt = self.doubts.get(node)
        if doubt is not None and asked_at >= doubt.since:
            del self.doubts[node]

    def on_result(self, node: NodeId, outcome: ProbeOutcome, now: float) -> None:
        """A probe ended."""
        doubt = self.doubts.get(node)
        if doubt is None:
            return
        lives = outcome is ProbeOutcome.ALIVE and doubt.pause == LONGEST_PAUSE
        if lives or outcome.proves_death:
            del self.doubts[node]
        else:
            doubt.sent_at = None
            doubt.next_at = now + doubt.pause
            doubt.pause = min(2 * doubt.pause, LONGEST_PAUSE)

    def keep(self, nodes: Iterable[NodeId]) -> None:
        """Forget doubts about all but these."""
        kept = frozenset(nodes)
        self.doubts = {node: doubt for node, doubt in self.doubts.items() if node in kept}

    def tick(self, now: float) -> list[NodeId]:
        """Whom to probe now."""
        due = []
        for node, doubt in self.doubts.items():
            if doubt.sent_at is not None and now >= doubt.sent_at + ANSWER_WITHIN:
                doubt.sent_at, doubt.next_at = None, now
            if doubt.sent_at is None and now >= doubt.next_at:
                doubt.sent_at = now
                due.append(node)
        return due


@dataclass(slots=True)
class Sweep:
    """The leader's look at everybody. None: no answer yet."""

    answers: dict[NodeId, ProbeOutcome | None]

    def on_result(self, node: NodeId, outcome: ProbeOutcome) -> None:
        """A probe ended."""
        if node in self.answers:
            self.answers[node] = outcome

    def doubtful(self) -> tuple[NodeId, ...]:
        """Who gave no clear answer, so far or at all."""
        return tuple(n for n, a in self.answers.items() if a in (None, ProbeOutcome.UNKNOWN))
