"""How a blank disk comes into the ring by itself, in place of the lost disk of its address.

A replica whose disk was wiped, replaced, damaged or given up is BLANK beside a founded store. The
ring still has the former disk, at this address. A majority of the ring decides the next one, in
which the blank disk has its place; so a store that lost a majority of its disks never goes on by
itself. The disk votes once it has merged from a majority (`moves`). A replica at another address is
a spare: an operator adds it.

Source: docs/how-to/keep-state.md; S2.32.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from shardbus.errors import ConfigError, StoreError
from shardbus.guarded_log import GuardedLog
from shardbus.ids import Address
from shardbus.store.ring_change import RingOperator, replacing
from shardbus.task_set import watch
from shardbus.transport.network import Network

log = GuardedLog("shardbus.store")

WITHIN_S = 30.0
"""Seconds of one try; the next one begins at once."""


class Joining:
    """The tries of one replica. `network` makes the network of one try."""

    def __init__(self, cluster: str, network: Callable[[], Network]) -> None:
        self._cluster, self._network = cluster, network
        self._task: asyncio.Task[None] | None = None
        self.progress = ""
        """Why the try waits."""

    def begin(self, me: Address, disk: int, addresses: Iterable[Address]) -> None:
        """Try, unless a try is under way."""
        if self._task is None or self._task.done():
            tried = self._try(me, disk, tuple(addresses))
            self._task = watch(asyncio.get_running_loop().create_task(tried))

    def close(self) -> None:
        """End the try."""
        if self._task is not None:
            self._task.cancel()

    async def _try(self, me: Address, disk: int, addresses: tuple[Address, ...]) -> None:
        try:
            operator = RingOperator(self._cluster, addresses, self._network(), self._waits)
            ring = await operator.change(replacing(me, disk), WITHIN_S)
        except (StoreError, ConfigError) as error:
            log.warning("the replica %s has a blank disk, and is not in the ring: %s", me, error)
        else:
            log.info("the replica %s has its blank disk in ring %d", me, ring.number)

    def _waits(self, why: str) -> None:
        self.progress = why
