"""Measure how long the shards of a killed node are away, as a client sees it.

From the kill on, one entity of each shard is asked repeatedly until it answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from zlib import crc32

from examples.flights.app import Aircraft, bus
from shardbus import AsyncClient, RequestError

ANSWER_WITHIN_S, BETWEEN_S, GIVE_UP_S = 0.5, 0.01, 60.0


def one_per_shard(tailnums: Iterable[str]) -> dict[str, str]:
    """Return one aircraft for each shard."""
    shards = bus.types["aircraft"].interface.shards
    return {str(crc32(tailnum.encode()) % shards): tailnum for tailnum in tailnums}


async def until_answered(
    client: AsyncClient, killed_at: float, aircraft: Mapping[str, str]
) -> dict[str, float]:
    """Return, for each shard, the seconds from the kill until its aircraft answered.

    Raises:
        TimeoutError: a shard did not come back.
    """
    async with asyncio.timeout(GIVE_UP_S):
        waits = await asyncio.gather(
            *(_until_answered(client, tailnum, killed_at) for tailnum in aircraft.values())
        )
    return dict(zip(aircraft, waits, strict=True))


async def _until_answered(client: AsyncClient, tailnum: str, killed_at: float) -> float:
    while True:
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                await client.ref(Aircraft, tailnum).summary()
            return asyncio.get_running_loop().time() - killed_at
        except (RequestError, TimeoutError):
            await asyncio.sleep(BETWEEN_S)


def percentile(values: Iterable[float], part: float) -> float:
    """Return the value below which a share `part` of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
