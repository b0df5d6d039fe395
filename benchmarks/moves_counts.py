"""Count the effects on callers and entities from their records.

Three kinds of rows. Times are nanoseconds of one clock, and the number of a tell is when it was
sent.

    told      (entity, number)                 the sender's tells
    asked     (entity, sent, answered)         its asks; answered 0: the ask failed
    handled   (entity, number, handled)        the hosts' records, one list for each process

Of each entity its tells are handled once and in the order of their numbers. A tell in no list is
lost; a tell that occurs twice is duplicated; a tell that was handled after a later one is
reordered. A *gap* is the longest time between two answers of one entity: where each is asked every
200 ms, that is the gap of a healthy one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

Told = tuple[int, int]
Asked = tuple[int, int, int]
Handled = tuple[int, int, int]


class Tally(NamedTuple):
    """Hold the outcome of the tells."""

    lost: list[Told]
    duplicated: int
    reordered: int


def tally(tells: Iterable[Told], handled: Iterable[Handled]) -> Tally:
    """Compare the sent tells with the handled ones. Only sent numbers count, because the hosts'
    lists go further back."""
    sent = set(tells)
    times: Counter[Told] = Counter()
    latest: dict[int, int] = {}
    reordered = 0
    for entity, number, _ in sorted(handled, key=lambda row: row[2]):
        if (entity, number) not in sent:
            continue
        times[entity, number] += 1
        reordered += number < latest.get(entity, 0)
        latest[entity] = max(number, latest.get(entity, 0))
    return Tally(sorted(sent - times.keys()), times.total() - len(times), reordered)


def homes(handled: Mapping[str, Iterable[Handled]], at: int) -> dict[int, str]:
    """Return where each entity lived at a time: in the process that had last handled something for
    it."""
    last: dict[int, tuple[int, str]] = {}
    for process, rows in handled.items():
        for entity, _, when in rows:
            if when <= at:
                last[entity] = max(last.get(entity, (0, "")), (when, process))
    return {entity: process for entity, (_, process) in last.items()}


def gaps(asks: Iterable[Asked], at: int) -> dict[int, float]:
    """Map each entity to its longest gap that ended after `at`, in seconds; infinite for one whose
    last ask failed. Entities that were not asked after `at` are left out."""
    answers: defaultdict[int, list[int]] = defaultdict(list)
    last: dict[int, tuple[int, int]] = {}
    for entity, sent, answered in asks:
        if answered:
            answers[entity].append(answered)
        last[entity] = max(last.get(entity, (0, 0)), (sent, answered))
    longest = {}
    for entity, (sent, answered) in last.items():
        if sent > at:
            between = [b - a for a, b in pairwise(sorted(answers[entity])) if b > at]
            longest[entity] = max(between, default=0) / 1e9 if answered else float("inf")
    return longest


def waits(asks: Iterable[Asked], since: int, until: int) -> list[float]:
    """Return the seconds from sending to answer, of the asks that were sent in between and
    answered."""
    return [(c - b) / 1e9 for _, b, c in asks if c and since <= b <= until]


def failed(asks: Iterable[Asked]) -> int:
    """Return the number of asks without an answer."""
    return sum(not answered for _, _, answered in asks)


def of(entities: Collection[int], rows: Iterable[Asked]) -> list[Asked]:
    """Keep only the asks to these entities."""
    return [row for row in rows if row[0] in entities]


def one_per_shard(shards: int, shard_of: Callable[[int], str]) -> Sequence[int]:
    """Return the first entity of each shard, by shard. In the order of their numbers, the shards of
    the first entities would be the oldest of the table, and those are moved last."""
    by_shard: dict[str, int] = {}
    number = 0
    while len(by_shard) < shards:
        by_shard.setdefault(shard_of(number), number)
        number += 1
    return [by_shard[shard] for shard in sorted(by_shard)]
