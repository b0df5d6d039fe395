"""The moves of one plan that have not begun.

A plan of thousands of moves is carried out a few at a time, and every turn of the coordinator asks
which of them may begin. So they wait in a queue for each pair of source and target, and a turn
looks at the heads of the queues only: its cost depends on the moves that begin, and not on the
waiting ones.

Source: S2.28, B.66.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable
from heapq import heappop, heappush

from shardbus.ids import NodeId
from shardbus.sharding.allocation.strategies import Move

_Entry = tuple[int, Move]
_Pair = tuple[NodeId, NodeId]


class MovePlan:
    """Moves in the order of a plan, the most useful first."""

    __slots__ = ("_entries", "_queues")

    def __init__(self, moves: Iterable[Move] = ()) -> None:
        self._entries: dict[str, _Entry] = {}
        """By shard. An entry of a queue that is not here any more does not count."""
        self._queues: dict[_Pair, deque[_Entry]] = {}
        for position, move in enumerate(moves):
            entry = self._entries[move.shard] = (position, move)
            self._queues.setdefault((move.source, move.target), deque()).append(entry)

    def __len__(self) -> int:
        return len(self._entries)

    def discard(self, shard: str) -> None:
        """Remove the move of a shard, if there is one."""
        self._entries.pop(shard, None)

    def take(
        self,
        targets: Collection[NodeId],
        under_way: Iterable[Move],
        bound: int,
        most: int | None,
    ) -> list[Move]:
        """Take out the moves that may begin now, at most `most`, so that no source and no target
        has more than `bound` of them and of those `under_way`. Moves to other nodes than `targets`
        are removed."""
        leaving: Counter[NodeId] = Counter()
        coming: Counter[NodeId] = Counter()
        for move in under_way:
            leaving[move.source] += 1
            coming[move.target] += 1
        heads: list[tuple[int, _Pair]] = []
        for pair in list(self._queues):
            if pair[1] not in targets:
                for _, move in self._queues.pop(pair):
                    self._entries.pop(move.shard, None)
            else:
                self._put_head(pair, heads)
        taken: list[Move] = []
        while heads and len(taken) != most:
            pair = heappop(heads)[1]
            if max(leaving[pair[0]], coming[pair[1]]) < bound:
                move = self._queues[pair].popleft()[1]
                del self._entries[move.shard]
                leaving[move.source] += 1
                coming[move.target] += 1
                taken.append(move)
                self._put_head(pair, heads)
        return taken

    def _put_head(self, pair: _Pair, heads: list[tuple[int, _Pair]]) -> None:
        """Add the first entry of a queue that still counts to `heads`; forget an empty queue."""
        queue = self._queues[pair]
        while queue and self._entries.get(queue[0][1].shard) is not queue[0]:
            queue.popleft()
        if queue:
            heappush(heads, (queue[0][0], pair))
        else:
            del self._queues[pair]
