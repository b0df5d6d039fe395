"""The rows that a node writes again when the store's server is another one than before.

The problem: a server that took over, was restored from an older copy, or came back empty may have
lost the last writes that the store acknowledged. Among them are fences. Then nothing in the store
keeps a former owner from a save: one that stood still, for example, and continues with a save.

So each node, as soon as its store meets another server, raises the fence of every entity that it
has in memory, and lists its remembered entities once more. A former owner is refused again from
then on, as it would be if nothing had been lost. An entity's state in memory is not written: the
next save does that.

    owner A, fence 10            owner B, fence 11                     store
    stands still                 loads                                 fence 11
                                                                       another server: fence 10
                                 meets it, raises its fences           fence 11
    continues, saves                                                   refused

Until B has met the new server, a save of A can be accepted. A node that stood still for so long
that its entities started elsewhere handles nothing before membership confirms that it still
belongs, and repeats no save that it had begun.

Source: docs/guarantees.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from shardbus.backoff import doubling
from shardbus.entities.activation import Activation
from shardbus.entities.supervision import StateLoader
from shardbus.errors import StaleFence, StoreError
from shardbus.guarded_log import GuardedLog

log = GuardedLog("shardbus.entity")

AT_ONCE = 256
"""Entities whose fences are raised together: one round trip of most stores."""
PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 5.0
"""Between two attempts at a store that does not answer."""


async def raise_fences(
    entity_type: str, states: StateLoader, activations: Sequence[Activation]
) -> int:
    """Raise the stored fences of these activations. Returns the number of those that have a later
    activation elsewhere; their next save is refused."""
    stale = 0
    for first in range(0, len(activations), AT_ONCE):
        left = list(activations[first : first + AT_ONCE])
        attempts = 0
        while left:
            outcomes = await asyncio.gather(
                *(states.load(entity_type, a.shard.shard, a.key, a.shard.fence) for a in left),
                return_exceptions=True,
            )
            stale += sum(isinstance(outcome, StaleFence) for outcome in outcomes)
            failed = [a for a, o in zip(left, outcomes, strict=True) if _failed(o)]
            left = [a for a in failed if a.entity is not None]
            if left:
                attempts += 1
                await asyncio.sleep(doubling(PAUSE_MIN_S, PAUSE_MAX_S, attempts))
    return stale


def _failed(outcome: object) -> bool:
    if isinstance(outcome, BaseException) and not isinstance(outcome, StoreError):
        raise outcome
    return isinstance(outcome, StoreError) and not isinstance(outcome, StaleFence)
