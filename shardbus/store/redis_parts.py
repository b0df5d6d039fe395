"""How a batch of writes is cut into scripts, and the meaning for each of a failure of some.

A script has each key once, so that its answers can be distinguished, and is bounded in number and
bytes, so that the server goes on with others in between.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from shardbus.store.batches import BatchEnded, Begin, failures, written
from shardbus.store.redis_packing import Value

CHUNK_WRITES = 128
CHUNK_BYTES = 512 * 1024


def rounds(keys: Sequence[Value]) -> Iterator[Sequence[int]]:
    """Yield the places of keys in order, in rounds that have each key once."""
    if len(set(keys)) == len(keys):
        if keys:
            yield range(len(keys))
        return
    seen: set[Value] = set()
    first = 0
    for i, key in enumerate(keys):
        if key in seen:
            yield range(first, i)
            first, seen = i, set()
        seen.add(key)
    yield range(first, len(keys))


def begin_parts(
    parts: Sequence[Sequence[int]],
    send: Callable[[Sequence[int]], asyncio.Future[Any]],
    note: Callable[[Any, Sequence[int], list[Any]], None],
    ended: BatchEnded,
) -> list[asyncio.Future[Any]]:
    """Begin a batch of calls, some of them in each script. `send` sends the calls at these places,
    and `note` takes the reply to them, and the answers. A script that fails gives its error to each
    of its calls. Returns the futures of the replies."""
    answers: list[Any] = [None] * sum(map(len, parts))
    left = len(parts)

    def on_reply(part: Sequence[int], reply: asyncio.Future[Any]) -> None:
        nonlocal left
        if reply.cancelled():
            return
        try:
            note(reply.result(), part, answers)
        except Exception as error:
            for i, failure in zip(part, failures(error, len(part)), strict=True):
                answers[i] = failure
        left -= 1
        if not left:
            ended(answers)

    replies = [send(part) for part in parts]
    for part, reply in zip(parts, replies, strict=True):
        reply.add_done_callback(partial(on_reply, part))
    return replies


async def in_rounds(begin: Begin, writes: Sequence[Any], keys: Sequence[Value]) -> list[Any]:
    """Return the outcomes of writes to these keys, of which a batch has each once."""
    outcomes: list[Any] = []
    for places in rounds(keys):
        outcomes += await written(begin, [writes[i] for i in places])
    return outcomes


def parts_of(groups: Iterable[Hashable], sizes: Sequence[int]) -> list[Sequence[int]]:
    """Return the places of writes, one part for each script: writes of one group each. `sizes`:
    their bytes."""
    parts: dict[Hashable, list[int]] = defaultdict(list)
    for i, group in enumerate(groups):
        parts[group].append(i)
    return [part for group in parts.values() for part in cut(group, sizes)]


def cut(places: Sequence[int], sizes: Sequence[int]) -> Iterator[Sequence[int]]:
    """Cut these places into parts for one script each. `sizes`: the bytes of each write, by its
    place."""
    first = size = 0
    for n, i in enumerate(places):
        if n - first == CHUNK_WRITES or size >= CHUNK_BYTES:
            yield places[first:n]
            first, size = n, 0
        size += sizes[i]
    yield places[first:]
