"""How a batch of writes is cut into scripts, and the meaning for each of a failure of some.

A script has each key once, so that its answers can be distinguished, and is bounded in number and
bytes, so that the server goes on with others in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shardbus.errors import StoreUnavailable
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


def settle(
    parts: Sequence[Sequence[int]], outcomes: Sequence[BaseException | None], answers: list[Any]
) -> None:
    """Give the error of each part that failed to each of its members. If all failed, raise."""
    failed = [outcome for outcome in outcomes if outcome is not None]
    for error in failed:
        if not isinstance(error, StoreUnavailable):
            raise error
    if failed and len(failed) == len(parts):
        definite = all(isinstance(one, StoreUnavailable) and one.definite for one in failed)
        raise again(failed[0], definite)
    for part, outcome in zip(parts, outcomes, strict=True):
        for i in part if outcome is not None else ():
            answers[i] = again(outcome, None)


def again(error: BaseException | None, definite: bool | None) -> StoreUnavailable:
    """Return another error that says the same."""
    assert isinstance(error, StoreUnavailable)
    sure = error.definite if definite is None else definite
    return StoreUnavailable(error.message, hint=error.hint, definite=sure)
