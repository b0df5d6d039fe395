"""Judge a split by the records of nodes and producers: the places of handled messages, the losses.
Times are nanoseconds of one clock.

An activation lasts from its first record to its last one. Two activations of one entity *overlap*
if the earlier one has a record after the later one's first. Whether a handler was open at that
moment makes no difference: after the first message of the successor, the former handles none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

PAUSE_S = 1.5
"""A node that handles no message for so long, while it is sent some, has suspended."""


class Row(NamedTuple):
    """A record of a node. `process` is its process id, `end` 1 at the end of a handler."""

    process: int
    entity: int
    producer: int
    seq: int
    activation: int
    end: int
    at: int


class Told(NamedTuple):
    """A message that a producer sent."""

    producer: int
    seq: int
    entity: int


class Overlap(NamedTuple):
    """Two activations of an entity. `seconds`: from the first record of the later to the last of
    the earlier."""

    entity: int
    former: int
    latter: int
    seconds: float


def overlaps(rows: Iterable[Row]) -> list[Overlap]:
    """Return all overlaps of activations, each with the processes of the two."""
    spans: defaultdict[int, dict[int, list[int]]] = defaultdict(dict)
    for row in rows:
        span = spans[row.entity].setdefault(row.activation, [row.at, row.at, row.process])
        span[0], span[1] = min(span[0], row.at), max(span[1], row.at)
    pairs = []
    for entity, activations in spans.items():
        ordered = sorted(activations.values())
        for place, (first, _, process) in enumerate(ordered):
            pairs += [
                Overlap(entity, earlier[2], process, (earlier[1] - first) / 1e9)
                for earlier in ordered[:place]
                if earlier[1] > first
            ]
    return pairs


def homes(rows: Iterable[Row], at: int) -> dict[int, int]:
    """Return the process that last handled a message for each entity before that time."""
    last: dict[int, tuple[int, int]] = {}
    for row in rows:
        if row.at <= at:
            last[row.entity] = max(last.get(row.entity, (0, 0)), (row.at, row.process))
    return {entity: process for entity, (_, process) in last.items()}


def takeovers(rows: Sequence[Row], at: int, survivors: Collection[int]) -> dict[int, float]:
    """Return, for each entity that lived elsewhere, the seconds from `at` until a survivor handles
    a message for it. Entities for which none does are left out."""
    lost = {entity for entity, process in homes(rows, at).items() if process not in survivors}
    times: dict[int, float] = {}
    for row in sorted(rows, key=lambda row: row.at):
        if row.at > at and row.entity in lost and row.process in survivors:
            times.setdefault(row.entity, (row.at - at) / 1e9)
    return times


def pause(rows: Iterable[Row], process: int, at: int, until: int) -> tuple[int, int] | None:
    """Return the first pause of a process that begins between `at` and `until`: its last record
    before it, and its next one; the latter is 0 if there is none. None if it does not pause."""
    times = [at, *sorted(row.at for row in rows if row.process == process and row.at > at)]
    for before, after in pairwise(times):
        if after - before > PAUSE_S * 1e9 and before < until:
            return before, after
    return (times[-1], 0) if until - times[-1] > PAUSE_S * 1e9 else None


def handled(rows: Iterable[Row], process: int, since: int) -> list[float]:
    """Return the seconds from that time to each later record of a process."""
    times = sorted(row.at for row in rows if row.process == process and row.at > since)
    return [(at - since) / 1e9 for at in times]


def missing(tells: Iterable[Told], rows: Iterable[Row]) -> list[Told]:
    """Return the tells that no node handled."""
    seen = {(row.producer, row.seq) for row in rows}
    return [tell for tell in tells if (tell.producer, tell.seq) not in seen]


def handled_by(rows: Iterable[Row], processes: Collection[int]) -> set[int]:
    """Return the entities for which one of these processes handled a message."""
    return {row.entity for row in rows if row.process in processes}


def evidence(rows: Sequence[Row], tells: Sequence[Told], report: object) -> str:
    """Describe the overlaps and the missing messages of one split, a line each."""
    lines = [str(report), *map(str, overlaps(rows))]
    last: defaultdict[int, list[Row]] = defaultdict(list)
    for row in rows:
        last[row.entity].append(row)
    for tell in missing(tells, rows):
        near = [row for row in last[tell.entity] if row.producer == tell.producer]
        before = max((row for row in near if row.seq < tell.seq), default=None, key=_seq)
        after = min((row for row in near if row.seq > tell.seq), default=None, key=_seq)
        lines.append(f"missing {tell}\n   before {before}\n   after  {after}")
    return "\n".join(lines)


def _seq(row: Row) -> int:
    return row.seq


def repeated(rows: Iterable[Row]) -> int:
    """Return the number of messages that were handled more than once."""
    begun = [(row.producer, row.seq) for row in rows if not row.end and row.producer]
    return len(begun) - len(set(begun))
