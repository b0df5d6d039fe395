"""Questions for homes: every one is answered in its turn, and those told to wait hear the answer.

Regions and proxies hear every new home anyway. Who asks without being registered, a client, is
remembered with the shard until it has a home.

Source: S0.22; C.6; N.5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shardbus.ids import NodeId
from shardbus.sharding.coordinator.outbox import HomeMessage, Outbox
from shardbus.sharding.messages import Home


class HomeRequests:
    """Where questions are asked."""

    __slots__ = ("_askers", "_outbox", "_questions")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._questions: dict[tuple[NodeId, str], None] = {}
        self._askers: dict[str, dict[NodeId, None]] = {}

    def ask(self, asker: NodeId, shards: Iterable[str]) -> None:
        """These are to be answered at the end of the turn."""
        self._questions.update(dict.fromkeys((asker, shard) for shard in shards))

    def shards(self) -> dict[str, None]:
        """What is asked for in this turn."""
        return dict.fromkeys(shard for _, shard in self._questions)

    def answer(
        self,
        home_of: Callable[[str], Home | None],
        why_not: Callable[[str], str],
        is_registered: Callable[[NodeId], bool],
    ) -> list[tuple[NodeId, Home]]:
        """Answer everything. Returns what was answered with a home, and to whom."""
        answered: list[tuple[NodeId, Home]] = []
        for asker, shard in self._questions:
            home = home_of(shard)
            if home is not None:
                self._outbox.add(asker, HomeMessage.SHARD_HOMES, (home,))
                answered.append((asker, home))
                continue
            self._outbox.wait(asker, shard, why_not(shard))
            if not is_registered(asker):
                self._askers.setdefault(shard, {})[asker] = None
        self._questions = {}
        return answered

    def tell(self, homes: Iterable[Home]) -> None:
        """These shards have a home now: tell who waits for them."""
        for home in homes:
            for asker in self._askers.pop(home.shard, ()):
                self._outbox.add(asker, HomeMessage.SHARD_HOMES, (home,))
