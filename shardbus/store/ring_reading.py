"""Reads all that the disks of a store hold, beside nodes that write: for `verify` and `backup`.

    copy      for each partition, digests of a majority of its disks; a bucket in which they agree
              comes from one of them, any other one from each of them, and the rows merge
    compare   digests of all disks; rows of the buckets in which they differ, twice

Every save that was acknowledged before a copy began is on a majority of disks, so on one of those
whose rows are read. Answers under two rings never count together: a partition begins anew in a
later ring.

**A difference that stays.** A write comes to the disks one after the other, so two looks at once
always differ under load. A disk misses a row if it has the same older one at the second look,
`LOOK_AGAIN_S` after the first, at which another disk had a newer one.

Source: docs/how-to/back-up.md; docs/reference/cli.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from shardbus.errors import StoreUnavailable
from shardbus.ids import Address
from shardbus.replication import moves
from shardbus.replication.messages import EMPTY, Row
from shardbus.replication.refounding import Difference, row_differences
from shardbus.replication.registers import Registers
from shardbus.replication.ring import ReplicaRing, RingIs, majority, places_of
from shardbus.replication.values import BUCKETS_EACH, PARTITIONS
from shardbus.store.replica_links import ReplicaLinks
from shardbus.transport.network import Network

AT_ONCE = 8
"""Partitions that are read at a time."""
ASK_AGAIN_S, TRY_S = 1.0, 10.0
"""Until a request is sent again, and until a partition begins anew."""
LOOK_AGAIN_S = 2.0

RETRY_S, OTHERS_S = 0.1, 2.0

BucketRows = dict[str, Row]
_Key = tuple[int, str, int, int]
"""A disk, the kind of a request, its ring, and its partition or bucket."""


class _RingMoved(Exception):
    """The store has a later ring."""


def buckets_to_read(
    partition: int, digests: Mapping[int, tuple[int, ...]]
) -> list[tuple[int, tuple[int, ...]]]:
    """Return the buckets of a partition that have rows, each with the disks to read it from, given
    the digests of a majority of disks."""
    disks, buckets = tuple(digests), list[tuple[int, tuple[int, ...]]]()
    for place, marks in enumerate(zip(*digests.values(), strict=True)):
        if any(marks):
            alike = len(set(marks)) == 1
            buckets.append((partition * BUCKETS_EACH + place, disks[:1] if alike else disks))
    return buckets


def lasting(before: Mapping[int, BucketRows], after: Mapping[int, BucketRows]) -> list[Difference]:
    """Return the differences of the first look that the second one has still."""
    lasts = list[Difference]()
    keys = set[str]().union(*before.values())
    for key in sorted(keys):
        rows = {disk: rows.get(key, EMPTY) for disk, rows in before.items()}
        for difference in row_differences(key, rows):
            then = after.get(difference.disk, {}).get(key, EMPTY)
            if difference.disk in after and then.ballot == rows[difference.disk].ballot:
                lasts.append(difference)
    return lasts


class RingReader:
    """Reads the disks of one store. Belongs to one event loop.

    Args:
        within: seconds without progress after which it gives up.
    """

    def __init__(
        self, cluster: str, addresses: Iterable[Address], network: Network, within: float
    ) -> None:
        self._within = within
        self._loop, self._changed = asyncio.get_running_loop(), asyncio.Event()
        self._awaited: dict[_Key, asyncio.Future[None]] = {}
        self._parts: dict[_Key, list[moves.DiskAnswer]] = {}
        self._links = ReplicaLinks(
            cluster,
            tuple(addresses),
            network,
            lambda replies: None,
            self._changed.set,
            self._on_rows,
        )

    async def open(self) -> ReplicaRing:
        """Connect. Returns the ring, once a majority of its disks serves.

        Raises:
            StoreUnavailable: none does in time.
        """
        self._links.open(self._loop)
        try:
            async with asyncio.timeout(self._within):
                while not self.ring.members or self._serving() < majority(len(self.ring.members)):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            troubles = self._links.troubles or "no replica answers"
            raise self._unavailable(f"no majority of the replicas serves: {troubles}") from None
        self._links.take_ring(self._links.ring)
        return self.ring

    def close(self) -> None:
        """Close the connections."""
        self._links.close()

    @property
    def ring(self) -> ReplicaRing:
        """The newest ring."""
        return self._links.ring

    def _serving(self) -> int:
        return self._links.serving(self.ring)

    def address_of(self, disk: int) -> str:
        """Return where a disk answers, or answered when its ring was made."""
        for link in self._links.links.values():
            if link.disk == disk:
                return str(link.address)
        return next((m.address for m in self.ring.members if m.disk == disk), f"disk {disk:016x}")

    def _unavailable(self, why: str) -> StoreUnavailable:
        return StoreUnavailable(why, definite=True)

    # ---- copy

    async def copy(self) -> AsyncIterator[Registers]:
        """Yield the rows of each partition, as the module says.

        Raises:
            StoreUnavailable: too few replicas have answered for `within` seconds.
        """
        pending, done = set[asyncio.Task[Registers]](), set[asyncio.Task[Registers]]()
        left = iter(range(PARTITIONS))
        try:
            while True:
                for partition in left:
                    pending.add(self._loop.create_task(self._copied(partition)))
                    if len(pending) >= AT_ONCE:
                        break
                if not pending:
                    return
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield task.result()
        finally:
            await _end(pending | done)

    async def _copied(self, partition: int) -> Registers:
        """Copy a partition, anew if a disk is silent or the ring moves."""
        until = self._loop.time() + self._within
        while True:
            try:
                async with asyncio.timeout(TRY_S):
                    return await self._copy_partition(partition)
            except (_RingMoved, TimeoutError):
                if self._loop.time() > until:
                    troubles = self._links.troubles or "they do not answer"
                    raise self._unavailable(
                        f"partition {partition} was not read from a majority of its disks within"
                        f" {self._within:g} s: {troubles}"
                    ) from None
                await asyncio.sleep(RETRY_S)

    async def _copy_partition(self, partition: int) -> Registers:
        ring = self.ring
        disks = places_of(ring)[partition]
        serving = [disk for disk in disks if self._serves(disk)]
        digests = await self._digests(ring, partition, serving, majority(len(disks)))
        registers = Registers()
        for bucket, sources in buckets_to_read(partition, digests):
            for disk in sources:
                for key, row in (await self._bucket(ring, disk, bucket)).items():
                    registers.merge(key, row, 0.0)
        return registers

    # ---- compare

    async def compare(self) -> tuple[list[Difference], frozenset[int]]:
        """Return the differences that stay, and the disks that were compared.

        Raises:
            StoreUnavailable: a replica that served has not answered in time, or the ring changes.
        """
        ring = self.ring
        await self._others(ring)
        disks = [disk for disk in ring.disks if self._serves(disk)]
        at_once = asyncio.Semaphore(AT_ONCE)

        async def differing(partition: int) -> list[tuple[int, list[int]]]:
            here = [disk for disk in places_of(ring)[partition] if disk in disks]
            async with at_once:
                digests = await self._digests(ring, partition, here, len(here))
            buckets = buckets_to_read(partition, digests)
            return [(bucket, here) for bucket, sources in buckets if len(sources) > 1]

        try:
            async with asyncio.timeout(self._within):
                parts = await asyncio.gather(*map(differing, range(PARTITIONS)))
                buckets = [each for part in parts for each in part]
                before = [await self._rows(ring, bucket, here) for bucket, here in buckets]
                if not before:
                    return [], frozenset(disks)
                await asyncio.sleep(LOOK_AGAIN_S)
                after = [await self._rows(ring, bucket, here) for bucket, here in buckets]
        except TimeoutError:
            raise self._unavailable(
                f"the replicas were not compared within {self._within:g} s"
            ) from None
        except _RingMoved:
            raise self._unavailable("the ring has changed meanwhile; try again") from None
        pairs = zip(before, after, strict=True)
        return [difference for pair in pairs for difference in lasting(*pair)], frozenset(disks)

    async def _others(self, ring: ReplicaRing) -> None:
        """Wait a moment for the disks beyond a majority."""
        until = self._loop.time() + OTHERS_S
        while self._serving() < len(ring.members) and self._loop.time() < until:
            await asyncio.sleep(RETRY_S)

    async def _rows(
        self, ring: ReplicaRing, bucket: int, disks: Sequence[int]
    ) -> dict[int, BucketRows]:
        return {disk: await self._bucket(ring, disk, bucket) for disk in disks}

    # ---- requests

    def _serves(self, disk: int) -> bool:
        return any(link.serves and link.disk == disk for link in self._links.links.values())

    async def _digests(
        self, ring: ReplicaRing, partition: int, disks: Sequence[int], needed: int
    ) -> dict[int, tuple[int, ...]]:
        """Return the digests of `needed` of these disks, of those that answer first."""
        request = moves.ShowDigests(ring.number, partition)
        disk_of = {self._loop.create_task(self._ask(ring, disk, request)): disk for disk in disks}
        digests, pending = dict[int, tuple[int, ...]](), set(disk_of)
        try:
            while pending and len(digests) < needed:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    for answer in task.result():
                        if isinstance(answer, moves.PartitionDigests) and len(digests) < needed:
                            digests[disk_of[task]] = answer.digests
        finally:
            await _end(disk_of)
        if len(digests) < needed:
            raise TimeoutError
        return digests

    async def _bucket(self, ring: ReplicaRing, disk: int, bucket: int) -> BucketRows:
        """Return the rows of a bucket on a disk."""
        answers = await self._ask(ring, disk, moves.ShowBucket(ring.number, bucket))
        contents = [answer for answer in answers if isinstance(answer, moves.BucketContent)]
        return {key: row for content in contents for key, row, _ in content.rows}

    async def _ask(
        self, ring: ReplicaRing, disk: int, request: moves.ShowDigests | moves.ShowBucket
    ) -> list[moves.DiskAnswer]:
        """Send a request until it is answered, and return the answer: a bucket may have several
        parts."""
        key = _key(disk, request)
        future: asyncio.Future[None] = self._loop.create_future()
        self._awaited[key], self._parts[key] = future, []
        try:
            while not future.done():
                if self.ring.number != ring.number:
                    raise _RingMoved
                self._links.ask(disk, request)
                await asyncio.wait({future}, timeout=ASK_AGAIN_S)
            future.result()
            return self._parts[key]
        finally:
            del self._awaited[key]
            self._parts.pop(key, None)

    def _on_rows(self, disk: int, answer: moves.DiskAnswer) -> None:
        match answer:
            case moves.PartitionDigests(_, number, partition):
                self._take(_key(disk, moves.ShowDigests(number, partition)), answer, complete=True)
            case moves.BucketContent(_, number, bucket, _, complete):
                self._take(_key(disk, moves.ShowBucket(number, bucket)), answer, complete=complete)
            case RingIs(ring):
                self._links.take_ring(ring)
            case _:
                return

    def _take(self, key: _Key, answer: moves.DiskAnswer, *, complete: bool) -> None:
        future = self._awaited.get(key)
        if future is None or future.done():
            return
        self._parts[key].append(answer)
        if complete:
            future.set_result(None)


async def _end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _key(disk: int, request: moves.ShowDigests | moves.ShowBucket) -> _Key:
    match request:
        case moves.ShowDigests(ring, partition):
            return disk, "digests", ring, partition
        case moves.ShowBucket(ring, bucket):
            return disk, "bucket", ring, bucket
