"""Who stays after a split: the picture of it, the strategies, and when to act on them.

A strategy of a user's imports `Outcome` and `Split` from here (docs/downing.md).
"""

from shardbus.membership.downing.split import DowningOutcome as Outcome
from shardbus.membership.downing.split import Split

__all__ = ["Outcome", "Split"]
