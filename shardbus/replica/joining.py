"""The changes of the ring that replicas make by themselves.

**A blank disk** comes in, in place of the lost disk of its address: the disk of a replica that was
wiped, replaced, damaged or given up is BLANK beside a founded store. The ring still has the former
disk, at this address. A majority of the ring decides the next one, in which the blank disk has its
place; so a store that lost a majority of its disks never goes on by itself. The disk votes once it
has merged from a majority (`moves`). A replica at another address is a spare.

**A spare** comes in, in place of a member that is away for long: a replica of the ring makes that
change, as `ring_repair` decides. An operator may add a spare at any time.

Source: docs/how-to/keep-state.md; S2.32.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable

from shardbus.errors import ConfigError, StoreError
from shardbus.guarded_log import GuardedLog
from shardbus.ids import Address
from shardbus.replication.ring_repair import GivesWay, RepairWaits
from shardbus.store.ring_change import RingOperator, giving_way, replacing
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
        self._is_spare = False
        self.progress = ""
        """Why the try waits."""
        self.repairs = ""
        """The wait of a repair of the ring, with the member that is to give way."""

    def begin(self, me: Address, disk: int, addresses: Iterable[Address]) -> None:
        """Try to bring this blank disk in, unless a try is under way."""
        if self._task is None or self._task.done():
            self._start(self._try(me, disk, tuple(addresses)))

    def repair(self, repair: GivesWay | RepairWaits | None, addresses: Iterable[Address]) -> None:
        """Let a member give way to a spare, unless a try is under way, or log why it stays."""
        if self._task is not None and not self._task.done():
            return
        before, self.repairs = self.repairs, ""
        match repair:
            case GivesWay():
                self._start(self._replace(repair, tuple(addresses)))
            case RepairWaits(lost, why):
                self.repairs = f"{why}, to replace {lost.address}"
                if self.repairs != before:
                    log.warning(
                        "the replica %s is away, and its replacement waits for %s",
                        lost.address, why,
                    )  # fmt: skip
            case None:
                return

    def note_spare(self, me: Address) -> None:
        """Log that this replica is a spare, once."""
        if not self._is_spare:
            self._is_spare = True
            log.info("the replica %s is a spare: it has no rows until a ring has it", me)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        self._task = watch(asyncio.get_running_loop().create_task(work))

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

    async def _replace(self, repair: GivesWay, addresses: tuple[Address, ...]) -> None:
        lost, spare = repair.lost.address, repair.spare.address
        log.warning("the replica %s is away for long: the spare %s takes its place", lost, spare)
        self.repairs = f"the spare {spare}, to replace {lost}"
        try:
            operator = RingOperator(self._cluster, addresses, self._network(), self._waits)
            ring = await operator.change(giving_way(repair), WITHIN_S)
        except (StoreError, ConfigError) as error:
            log.warning("the replica %s has not given way to the spare %s: %s", lost, spare, error)
        else:
            names = ", ".join(member.address for member in ring.members)
            log.warning("ring %d of the store has the replicas %s", ring.number, names)

    def _waits(self, why: str) -> None:
        self.progress = why
