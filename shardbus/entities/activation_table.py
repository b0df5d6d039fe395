"""The activations of one entity type on one node: on the hot path, or in a shard that moves.

`active` holds the activations of every open shard, one that admits all messages; it is the hot
path's one look-up. The activations of a shard that moves are kept in the shard itself, where only
the slow path finds them, after the region machine has decided about the message.

Shards move one after the other, and a node may have a million entities: to look through all of them
for each shard would take seconds. So the first shard that moves makes an index of `active` by
shard, which stays up to date while it is kept, for `INDEX_S`. Where nothing moves there is none.

Source: S0.9, S0.23.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain, islice

from shardbus.entities.activation import Activation, Shard
from shardbus.task_set import TaskSet

Index = defaultdict[Shard, list[Activation]]
"""By shard, the activations that are active, and some that were."""

INDEX_S = 10.0
"""Seconds for which an index is kept."""


class ActivationTable:
    """The activations of these shards, which the host adds and removes."""

    __slots__ = ("_index", "_loop", "_shards", "active", "timers")

    def __init__(self, loop: asyncio.AbstractEventLoop, shards: dict[str, Shard]) -> None:
        self._loop, self._shards = loop, shards
        self.timers = TaskSet()
        """The timers of the host, which end with the node."""
        self.active: dict[str, Activation] = {}
        """By entity id; always this dictionary."""
        self._index: Index | None = None

    def add(self, activation: Activation) -> None:
        """Let messages find an activation that has started."""
        hosted = activation.shard
        if hosted.open:
            self.active[activation.key] = activation
            if self._index is not None:
                self._index[hosted].append(activation)
        else:
            hosted.activations[activation.key] = activation

    def remove(self, activation: Activation) -> bool:
        """Let messages find it no more. Returns False if they did not before."""
        for there in (self.active, activation.shard.activations):
            if there.get(activation.key) is activation:
                del there[activation.key]
                return True
        return False

    def open(self, hosted: Shard) -> None:
        """Move the activations of a shard to the hot path."""
        self.active.update(hosted.activations)
        if self._index is not None:
            self._index[hosted].extend(hosted.activations.values())
        hosted.activations = {}

    def close(self, shards: list[Shard]) -> None:
        """Move the activations of these shards from the hot path into the shards."""
        index = self._index if self._index is not None else self._make_index()
        active = self.active
        for hosted in shards:
            for activation in index.pop(hosted, ()):
                if active.get(activation.key) is activation:
                    hosted.activations[activation.key] = activation
                    del active[activation.key]

    def _make_index(self) -> Index:
        index: Index = defaultdict(list)
        for activation in self.active.values():
            index[activation.shard].append(activation)
        self._index = index
        self.timers.call_later(self._loop, INDEX_S, self._forget_index)
        return index

    def _forget_index(self) -> None:
        self._index = None

    def end(self) -> None:
        """Cancel the timers of the host and of all entities: the process ends."""
        self.timers.cancel()
        for activation in self:
            if activation.extras is not None:
                activation.extras.cancel_timers()

    def __iter__(self) -> Iterator[Activation]:
        """Iterate over the activations in memory, of open shards and of those that move."""
        moving = (list(hosted.activations.values()) for hosted in self._shards.values())
        return chain(list(self.active.values()), *moving)

    def walk(self, size: int) -> Iterator[list[tuple[str, str]]]:
        """Yield the entities in memory (id, shard), each once, in parts of at most `size`. Those
        that start or stop meanwhile may be missing."""
        everything = iter(self)
        while part := [(a.key, a.shard.shard) for a in islice(everything, size)]:
            yield part

    def ids_by_shard(self) -> dict[str, list[str]]:
        """Return the ids of the entities in memory, by shard. Costs one pass over all of them."""
        by_shard = {shard: list(hosted.activations) for shard, hosted in self._shards.items()}
        for entity_id, activation in self.active.items():
            by_shard.setdefault(activation.shard.shard, []).append(entity_id)
        return by_shard
