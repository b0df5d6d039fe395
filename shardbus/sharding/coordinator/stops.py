"""Shards that an operator stops, until they have stopped.

A shard at home is handed off to nowhere. One that moves goes nowhere in the end. One that starts is
stopped once it has started. One that runs nowhere has stopped already. A message for a stopped
shard starts it again; it is reported as stopped all the same.

Source: B.63.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shardbus.sharding.coordinator.handoff import HandoffPurpose
from shardbus.sharding.coordinator.ledger import Ledger
from shardbus.sharding.coordinator.moves import Moves
from shardbus.sharding.messages import Home


class PendingStops:
    """The shards that must still stop, and those that have stopped and are not reported yet."""

    __slots__ = ("_ledger", "_moves", "_pending", "_stopped")

    def __init__(self, ledger: Ledger, moves: Moves) -> None:
        self._ledger, self._moves = ledger, moves
        self._pending: dict[str, None] = {}
        self._stopped: list[str] = []

    @property
    def shards(self) -> tuple[str, ...]:
        """The shards that must still stop."""
        return tuple(self._pending)

    def add(self, shards: Iterable[str]) -> None:
        """Stop these shards."""
        self._pending.update(dict.fromkeys(shards))

    def on_freed(self, shard: str) -> bool:
        """Record that the shard runs nowhere. True if it had to stop."""
        if shard not in self._pending:
            return False
        del self._pending[shard]
        self._stopped.append(shard)
        return True

    def advance(
        self, settled: Callable[[str], Home | None], stop: Callable[[str], None], *, complete: bool
    ) -> None:
        """Stop every pending shard that can be stopped now.

        Args:
            settled: returns the home of a shard that neither moves nor is being written.
            stop: begins the hand-off of a shard that is at home.
            complete: every live region has registered, so a shard that is not in the table runs
                nowhere.
        """
        for shard in list(self._pending):
            handoff = self._moves.handoffs.get(shard)
            if handoff is not None:
                handoff.purpose, handoff.target = HandoffPurpose.STOP, None
            elif settled(shard) is not None:
                stop(shard)
            elif complete and self._ledger.is_nowhere(shard):
                self.on_freed(shard)

    def take_stopped(self) -> tuple[str, ...]:
        """Return those that have stopped since the last call."""
        stopped, self._stopped = tuple(self._stopped), []
        return stopped
