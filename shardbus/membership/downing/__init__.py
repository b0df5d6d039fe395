"""The downing of unreachable members: `split` counts the sides, `strategies` decides which side
stays, `resolver` decides when and by which node (with `split_lease`, `flapping`, `picture` and
`lasting_faults`), `auto_down` downs by timeout alone.

A strategy of a user's imports `Outcome` and `Split` from here (docs/downing.md).
"""

from shardbus.membership.downing.split import DowningOutcome as Outcome
from shardbus.membership.downing.split import Split

__all__ = ["Outcome", "Split"]
