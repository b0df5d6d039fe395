"""Local health: how far a node may trust its own judgement of others.

The problem: most false alarms come from the observer. A process that lacks CPU time receives
nothing, and would declare all others dead. A node that lacks CPU time looks dead to others, though
it will answer in a moment. So a node rates itself first. It keeps two numbers, both in seconds:

    lag     how late its own timers have been lately, at most
    blame   other evidence against it: most of the nodes it watches fell silent at once, or a node
            that it flagged unreachable answers, and was not late itself

                        lag                       blame
    a timer was late    at least that lateness    the same
    silent together     the same                  half a unit more, up to one unit
    a false alarm       the same                  one unit more
    a good beat         less by FORGIVEN          less by FORGIVEN

A unit is the acceptable pause. The sum of both numbers is the *patience* that the node adds to the
pause of each of its detectors. Each heartbeat and reply also carries the lag: «starved, not dead».
The receiver adds it to the pause that it accepts from this node.

All of this is bounded: together, the accepted pause is at most `STRETCH_MAX` times the acceptable
pause. A node that has left `unanswered_max` heartbeats in a row unanswered is unreachable in any
case: a starved observer counts its own beats, not seconds.

A healthy node is not slowed: both numbers are then 0.

Source: B.8, B.25, N.12; Dadgar, Phillips, Currey, «Lifeguard: local health awareness for more
accurate failure detection», 2018.
"""

from __future__ import annotations

from shardbus.config.settings import FailureDetectorSettings

STRETCH_MAX = 4.0
"""The accepted pause is at most this many times the acceptable pause."""
FORGIVEN = 0.1
"""Seconds of lag, and of blame, that each second of good beats takes away."""
STEP_TOGETHER = 0.5
"""Units of blame for a simultaneous silence."""
LATE_FROM = 0.25
"""The part of a heartbeat interval from which a timer counts as late."""


class LocalHealth:
    """One node's rating of itself. Times in seconds."""

    def __init__(self, settings: FailureDetectorSettings) -> None:
        self.settings = settings
        self.lag = 0.0
        self.blame = 0.0

    @property
    def on(self) -> bool:
        """True if the setting `self_health` is on."""
        return self.settings.self_health

    @property
    def unit(self) -> float:
        """The acceptable pause, or a heartbeat interval if that is longer."""
        return max(self.settings.acceptable_heartbeat_pause, self.settings.heartbeat_interval)

    @property
    def patience_max(self) -> float:
        """The most that is added to the acceptable pause of any detector."""
        return (STRETCH_MAX - 1.0) * self.unit if self.on else 0.0

    @property
    def patience(self) -> float:
        """The addition of this node's own state to the pause of each of its detectors."""
        return min(self.lag + self.blame, self.patience_max)

    @property
    def unanswered_max(self) -> int:
        """The number of unanswered heartbeats in a row that prove silence by themselves."""
        interval = self.settings.heartbeat_interval
        return max(4, round(STRETCH_MAX * (self.unit + interval) / interval))

    def patience_with(self, lag: float) -> float:
        """Return the addition for a node that reports such a lag."""
        return min(self.patience + max(0.0, lag), self.patience_max)

    def counts(self, late: float) -> bool:
        """True if a timer that late is evidence about this node."""
        return self.on and late >= LATE_FROM * self.settings.heartbeat_interval

    def on_late(self, seconds: float) -> None:
        """Record that this node's timer was late."""
        if self.counts(seconds):
            self.lag = max(self.lag, min(seconds, self.patience_max))

    def on_silent_together(self) -> None:
        """Record that most of the watched nodes fell silent at once."""
        if self.blame < self.unit:
            self.blame = min(self.blame + STEP_TOGETHER * self.unit, self.unit)

    def on_false_alarm(self) -> None:
        """Record that a node flagged here was alive, and not starved either."""
        self.blame = min(self.blame + self.unit, self.patience_max)

    def on_good_beat(self) -> None:
        """Record that a heartbeat was sent in time, and most of the last ones were answered."""
        less = FORGIVEN * self.settings.heartbeat_interval
        self.lag = max(0.0, self.lag - less)
        self.blame = max(0.0, self.blame - less)
