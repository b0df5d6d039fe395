"""Shards that somebody asked to stop, until they have.

A shard at home is handed off to nowhere, one on the move goes nowhere in the end, one that is being
started is stopped once it has started. One that runs nowhere has stopped. What is sent to a stopped
shard starts it again; that it had stopped is said all the same.

Source: B.63; T.SU16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shardbus.sharding.coordinator.handoff import HandoffPurpose
from shardbus.sharding.coordinator.ledger import Ledger
from shardbus.sharding.coordinator.moves import Moves
from shardbus.sharding.messages import Home


class PendingStops:
    """Which are still to stop, and which have since the last `take`."""

    __slots__ = ("_asked", "_done", "_ledger", "_moves")

    def __init__(self, ledger: Ledger, moves: Moves) -> None:
        self._ledger, self._moves = ledger, moves
        self._asked: dict[str, None] = {}
        self._done: list[str] = []

    @property
    def asked(self) -> tuple[str, ...]:
        """Which are still to stop."""
        return tuple(self._asked)

    def ask(self, shards: Iterable[str]) -> None:
        """These shall stop."""
        self._asked.update(dict.fromkeys(shards))

    def freed(self, shard: str) -> bool:
        """The shard runs nowhere now. True if it was to stop."""
        if shard not in self._asked:
            return False
        del self._asked[shard]
        self._done.append(shard)
        return True

    def pursue(
        self, settled: Callable[[str], Home | None], stop: Callable[[str], None], *, sure: bool
    ) -> None:
        """Let everything stop that can: `stop` begins it for one that is at home. `sure`: nobody
        can host what the table does not know."""
        for shard in list(self._asked):
            handoff = self._moves.handoffs.get(shard)
            if handoff is not None:
                handoff.purpose, handoff.target = HandoffPurpose.STOP, None
            elif settled(shard) is not None:
                stop(shard)
            elif sure and self._ledger.is_nowhere(shard):
                self.freed(shard)

    def take(self) -> tuple[str, ...]:
        """Those that have stopped since."""
        done, self._done = tuple(self._done), []
        return done
