"""How far a node may trust its own judgement of others.

The problem: most false alarms come from the observer. A process that is starved of its processor
hears nobody, and calls everybody dead; and a node that is starved itself looks dead, though it will
answer in a moment. So a node judges itself first. All it keeps is two numbers, both in seconds:

    lag     how late its own timers have come lately, at most
    blame   what else speaks against it: most of those it watches fell silent at once, or a node
            that it had called unreachable answers, and says that it was awake all the time

                        lag                     blame
    a timer came late   at least so late        the same
    silent together     the same                half a unit more, up to one unit
    a false alarm       the same                one unit more
    a good beat         less by FORGIVEN        less by FORGIVEN

A unit is the acceptable pause. Their sum is the *patience* that the node adds to the pause of each
of its detectors. The lag is also told to others with every heartbeat and reply: «starved, not
dead». They add it to the pause that they accept from this node.

All that is bounded: together, `STRETCH_MAX` times the acceptable pause is accepted at most. And a
node that has left `unanswered_max` heartbeats in a row unanswered is unreachable whatever anybody
says of himself: a starved observer counts its own beats, not seconds.

Nobody is made slower by this in good health: both numbers are then 0.

Source: B.8, B.25, N.12, C.25, C.27; Dadgar, Phillips, Currey, «Lifeguard: local health awareness
for more accurate failure detection», 2018.
"""

from __future__ import annotations

from shardbus.config.settings import FailureDetectorSettings

STRETCH_MAX = 4.0
"""By what the acceptable pause is multiplied at most."""
FORGIVEN = 0.1
"""Seconds of lag, and of blame, that each second of good beats takes away."""
STEP_TOGETHER = 0.5
LATE_FROM = 0.25
"""Part of a heartbeat interval from which a timer counts as late."""


class LocalHealth:
    """One node's judgement of itself. Times in seconds."""

    def __init__(self, settings: FailureDetectorSettings) -> None:
        self.settings = settings
        self.lag = 0.0
        self.blame = 0.0

    @property
    def on(self) -> bool:
        """Whether it may be asked for."""
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
        """What this node's own state adds to the pause of each of its detectors."""
        return min(self.lag + self.blame, self.patience_max)

    @property
    def unanswered_max(self) -> int:
        """So many heartbeats in a row without an answer prove silence by themselves."""
        interval = self.settings.heartbeat_interval
        return max(4, round(STRETCH_MAX * (self.unit + interval) / interval))

    def patience_with(self, lag: float) -> float:
        """What is added for a node that tells of such a lag."""
        return min(self.patience + max(0.0, lag), self.patience_max)

    def counts(self, late: float) -> bool:
        """True if a timer that came so late says something about this node."""
        return self.on and late >= LATE_FROM * self.settings.heartbeat_interval

    def on_late(self, seconds: float) -> None:
        """This node's timer came late."""
        if self.counts(seconds):
            self.lag = max(self.lag, min(seconds, self.patience_max))

    def on_silent_together(self) -> None:
        """Most of those that this node watches fell silent at once."""
        if self.blame < self.unit:
            self.blame = min(self.blame + STEP_TOGETHER * self.unit, self.unit)

    def on_false_alarm(self) -> None:
        """A node that was called unreachable here was not, and was not starved either."""
        self.blame = min(self.blame + self.unit, self.patience_max)

    def on_good_beat(self) -> None:
        """A heartbeat went out in time, and most of the last ones were answered."""
        less = FORGIVEN * self.settings.heartbeat_interval
        self.lag = max(0.0, self.lag - less)
        self.blame = max(0.0, self.blame - less)
