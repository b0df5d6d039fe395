"""How one ring takes over from the one before, and how disks repair each other.

A disk is in ring n, and answers requests of ring n only. To each partition that it holds belong
three facts:

    voting    it answers requests on the partition's keys
    merged    it has merged the rows of a majority of the partition's disks in ring n-1
    source    it voted in ring n-1: others may merge from it

Adopting ring n+1 decides them anew:

    the partition keeps its disks      all three stay; a source is one that votes
    this disk held it, and votes       voting; not merged; source
    this disk is new to it             not voting, not merged; no source
    this disk has skipped a ring       not voting, not merged; no source, in every partition

A disk that is not merged merges from the sources of ring n-1; with a majority of them, itself
included if it is one, it is merged, and votes. So before ring n+2 a majority of the disks of ring
n+1 has every value that was chosen in ring n.

    (a) ring n decides ring n+1, once: a register that is written once (`ring_key`)
    (b) a disk merges only from disks that have stored ring n+1: they accept nothing in ring n any
        more. So with a majority of them ring n is sealed
    (c) a disk that is new to a partition answers nothing before it has merged
    (d) ring n+2 waits until a majority of each partition's disks has merged (`unmerged`)

**Merging.** A disk compares the digests of 16 buckets with another disk's, and takes the rows of
the buckets that differ. In each partition it takes rows from one disk at a time: afterwards the
digests of the next disk differ in little. Rows merge in any order and number. A row below the
disk's own promise is taken, too, but not as an accepted one: a read does not count it (`proposer`).

**Repair** is the same without the counting: a disk compares itself with each other disk of its
partitions when `repair` is called, at reconnects and now and then.

**Tombstones.** A repair shows, too, which buckets all disks of a partition have in common: their
tombstones of replicated values go (`data_rows`). A partition of one disk loses them at
each repair, once it is merged: rows of the former disks may have what was removed.

**The driver** calls `answer` for calls of store objects, `show` for requests of other disks, `take`
for the answers of other disks, and `tick` at `deadline()`; the last two return AskDisk effects, to
be sent to other disks. It syncs the records of `take_records` before any answer or effect leaves,
as in `registers`. Answers may be lost; `tick` asks again. The driver keeps `away`, and calls `tick`
when a disk comes into reach. A bucket may come in parts, in their order: all but the last have
`complete` False.

Source: docs/architecture.md; Lamport, Malkhi and Zhou, "Reconfiguring a state machine".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple, assert_never

from shardbus.backoff import doubling
from shardbus.replication import ring as rings
from shardbus.replication.messages import (
    DataRequest,
    KeyRequest,
    ListChanges,
    Record,
    Row,
    ScanBucket,
)
from shardbus.replication.registers import Registers
from shardbus.replication.values import (
    BUCKETS_EACH,
    PARTITIONS,
    length_of,
    node_key,
    partition_of,
)

ASK_AGAIN_S, ASK_AGAIN_MOST_S = 0.5, 8.0
"""Seconds after which a disk that did not answer is asked again, at first and at most."""
ASKED_MAX = 16
"""Comparisons under way at a time, each of one partition with one disk."""


def ring_key(number: int) -> str:
    """Return the key of the register that decides the ring of this number."""
    return node_key(f"ring/{number}")


def partition_asked(request: KeyRequest | DataRequest | ScanBucket) -> int:
    """Return the partition that a request is about."""
    if isinstance(request, ScanBucket):
        return request.bucket // BUCKETS_EACH
    return partition_of(request.key)


# -- records ---------------------------------------------------------------------------------------


class PlaceRecord(NamedTuple):
    """A line of a disk's log: its ring, and its facts about each partition, from now on."""

    ring: rings.ReplicaRing
    voting: frozenset[int]
    merged: frozenset[int]
    sources: frozenset[int]


class MergedRecord(NamedTuple):
    """A line of a disk's log: a partition was merged in the ring of this number."""

    ring: int
    partition: int


DiskRecord = Record | PlaceRecord | MergedRecord


# -- between disks ---------------------------------------------------------------------------------


class ShowDigests(NamedTuple):
    """Show the digests of a partition. Answer: PartitionDigests."""

    ring: int
    partition: int


class ShowBucket(NamedTuple):
    """Show the rows of a bucket. Answer: BucketContent."""

    ring: int
    bucket: int


class PartitionDigests(NamedTuple):
    """The digests of a partition's buckets. `source`: the disk voted in the ring before."""

    disk: int
    ring: int
    partition: int
    source: bool
    digests: tuple[int, ...]


class BucketContent(NamedTuple):
    """The rows of a bucket, each with its key and its age. `complete` False: more follow."""

    disk: int
    ring: int
    bucket: int
    rows: tuple[tuple[str, Row, float], ...]
    complete: bool = True


class DiskStatus(NamedTuple):
    """A disk's ring, and the partitions that it votes for and that it has merged."""

    disk: int
    ring: rings.ReplicaRing
    voting: frozenset[int]
    merged: frozenset[int]


DiskRequest = ShowDigests | ShowBucket
DiskAnswer = PartitionDigests | BucketContent | rings.RingIs | rings.RingWanted | rings.NotVoting


class AskDisk(NamedTuple):
    """Send this to the other disk."""

    disk: int
    request: DiskRequest | rings.AdoptRing


class _Comparison:
    """The rows that one other disk still owes for one partition. `buckets` None: its digests."""

    __slots__ = ("again_at", "asks", "buckets", "source")

    def __init__(self) -> None:
        self.buckets: set[int] | None = None
        self.source = False
        self.again_at = 0.0
        self.asks = 0
        """Requests in a row without an answer."""


class RingDisk:
    """One disk: its rows, and its place in the ring."""

    __slots__ = (
        "_agreed",
        "_compared",
        "_comparisons",
        "_partitions", "_records",
        "away",
        "counts",
        "disk",
        "merged",
        "registers",
        "ring",
        "sources",
        "voting",
    )  # fmt: skip

    def __init__(self, disk: int, partitions: Sequence[int] = range(PARTITIONS)) -> None:
        self.disk = disk
        self._partitions = partitions
        """All of them, but in simulations that have keys in few."""
        self.ring = rings.NO_RING
        self.registers = Registers(disk)
        self.voting: set[int] = set()
        self.merged: set[int] = set()
        self.sources: set[int] = set()
        self._records: list[PlaceRecord | MergedRecord] = []
        self._comparisons: dict[tuple[int, int], _Comparison] = {}
        """By partition and disk."""
        self._compared: dict[int, set[int]] = {}
        """The sources that a partition is merged from, so far."""
        self._agreed: dict[int, tuple[int, set[int]]] = {}
        """Of a bucket with tombstones: its digest, and the disks that have shown the same."""
        self.away: set[int] = set()
        """Disks that are out of reach, as the driver knows: nothing is asked of them."""
        self.counts: Counter[str] = Counter()
        """Partitions that were compared with another disk, buckets that differed, newer rows that
        came, their bytes, and comparisons that another disk did not answer."""

    # -- for the driver

    def answer(self, call: rings.StoreCall, now: float) -> rings.StoreReply:
        """Answer a call of a store object."""
        return rings.StoreReply(call.number, self.disk, self.ring.number, self._answer(call, now))

    def _answer(self, call: rings.StoreCall, now: float) -> rings.ReplicaAnswer:
        if call.ring < self.ring.number:
            return rings.RingIs(self.ring)
        if call.ring > self.ring.number:
            return rings.RingWanted(self.ring.number)
        request = call.request
        if isinstance(request, ListChanges):
            return self.registers.handle(request, now)
        if partition_asked(request) not in self.voting:
            return rings.NotVoting()
        return self.registers.handle(request, now)

    def show(self, request: DiskRequest, now: float) -> DiskAnswer:
        """Answer another disk."""
        if request.ring < self.ring.number:
            return rings.RingIs(self.ring)
        if request.ring > self.ring.number:
            return rings.RingWanted(self.ring.number)
        match request:
            case ShowDigests(ring, partition):
                source = partition in self.sources
                if not source and partition not in self.voting:
                    return rings.NotVoting()
                first = partition * BUCKETS_EACH
                digests = tuple(self.registers.digests[first : first + BUCKETS_EACH])
                return PartitionDigests(self.disk, ring, partition, source, digests)
            case ShowBucket(ring, bucket):
                partition = bucket // BUCKETS_EACH
                if partition not in self.sources and partition not in self.voting:
                    return rings.NotVoting()
                return BucketContent(self.disk, ring, bucket, self.registers.content(bucket, now))
            case _:
                assert_never(request)

    @property
    def status(self) -> DiskStatus:
        """The disk's place in its ring."""
        return DiskStatus(self.disk, self.ring, frozenset(self.voting), frozenset(self.merged))

    def adopt(self, ring: rings.ReplicaRing, now: float) -> list[AskDisk]:
        """Go over to a newer ring. An older one changes nothing."""
        if ring.number <= self.ring.number:
            return []
        self._adopt(ring)
        self._records.append(self.place)
        return self.tick(now)

    def repair(self, now: float) -> list[AskDisk]:
        """Compare with every other disk of the partitions that this one votes for."""
        places = rings.places_of(self.ring)
        for bucket in list(self.registers.data.tombstones):
            partition = bucket // BUCKETS_EACH
            if partition in self.merged and places[partition] == (self.disk,):
                self.registers.remove_tombstones(bucket)
        for partition in self.voting:
            for disk in places[partition]:
                if disk != self.disk:
                    self._comparisons.setdefault((partition, disk), _Comparison())
        return self.tick(now)

    def take(self, sender: int, answer: DiskAnswer, now: float) -> list[AskDisk]:
        """Take the answer of the disk that was asked."""
        match answer:
            case rings.RingIs(ring):
                return self.adopt(ring, now)
            case rings.RingWanted(number) if number < self.ring.number:
                return [AskDisk(sender, rings.AdoptRing(self.ring))]
            case PartitionDigests(disk, number, partition, source, digests):
                comparison = self._comparisons.get((partition, disk))
                if comparison is None or number != self.ring.number:
                    return []
                first = partition * BUCKETS_EACH
                mine = self.registers.digests[first : first + BUCKETS_EACH]
                pairs = enumerate(zip(mine, digests, strict=True), first)
                comparison.buckets = {bucket for bucket, (a, b) in pairs if a != b}
                comparison.source, comparison.again_at, comparison.asks = source, 0.0, 0
                self.counts["compared"] += 1
                self.counts["differed"] += len(comparison.buckets)
                self._agree(partition, disk, comparison.buckets)
                self._settle(partition, disk, comparison)
                return self.tick(now)
            case BucketContent():
                return self._take_bucket(answer, now)
            case _:
                return []

    def _take_bucket(self, content: BucketContent, now: float) -> list[AskDisk]:
        partition = content.bucket // BUCKETS_EACH
        comparison = self._comparisons.get((partition, content.disk))
        if comparison is None or content.ring != self.ring.number or not comparison.buckets:
            return []
        settled = partition in self.merged
        for key, row, age in content.rows:
            if self.registers.merge(key, row, now, age, settled=settled):
                self.counts["rows"] += 1
                self.counts["bytes"] += len(key) + length_of(row.value)
        comparison.asks, comparison.again_at = 1, now + ASK_AGAIN_S
        if not content.complete:
            return []
        comparison.buckets.discard(content.bucket)
        self._settle(partition, content.disk, comparison)
        return self.tick(now)

    @property
    def behind(self) -> int:
        """The buckets of which other disks have rows that this one still lacks, as far as it
        knows."""
        return len({b for c in self._comparisons.values() for b in c.buckets or ()})

    @property
    def comparing(self) -> bool:
        """True while a comparison with another disk is under way, or waits."""
        return bool(self._comparisons)

    @property
    def missing_sources(self) -> frozenset[int]:
        """The disks from which partitions are still to be merged."""
        return frozenset(disk for part, disk in self._comparisons if part in self._compared)

    def deadline(self) -> float | None:
        """Return when to call `tick`, None for never."""
        return min((c.again_at for c in self._comparisons.values() if c.again_at), default=None)

    def tick(self, now: float) -> list[AskDisk]:
        """Request the missing digests and rows, and repeat requests without an answer. A repair
        that another disk does not answer is left to the next one."""
        effects: list[AskDisk] = []
        number = self.ring.number
        under_way = [(part, c) for (part, _), c in self._comparisons.items() if c.again_at > now]
        open_asks = len(under_way)
        fetching = {part for part, c in under_way if c.buckets and c.asks <= 1}
        for (partition, disk), comparison in list(self._comparisons.items()):
            if comparison.again_at > now:
                continue
            if disk in self.away:
                comparison.buckets, comparison.again_at = None, 0.0
                continue
            if comparison.again_at and partition not in self._compared:
                del self._comparisons[partition, disk]
                self.counts["unanswered"] += 1
            elif partition in fetching:
                comparison.buckets, comparison.again_at = None, 0.0
            elif open_asks >= ASKED_MAX:
                comparison.again_at = 0.0
            else:
                open_asks += 1
                comparison.asks += 1
                pause = doubling(ASK_AGAIN_S, ASK_AGAIN_MOST_S, comparison.asks)
                comparison.again_at = now + pause
                if comparison.buckets:
                    fetching.add(partition)
                effects += [
                    AskDisk(disk, request) for request in _requests(comparison, number, partition)
                ]
        return effects

    def take_records(self) -> list[DiskRecord]:
        """Return the changes since the last call, for the log."""
        records: list[DiskRecord] = [*self.registers.take_records(), *self._records]
        self._records = []
        return records

    def replay(self, record: DiskRecord) -> None:
        """Take a record of the disk's own log."""
        match record:
            case PlaceRecord(ring, voting, merged, sources):
                self.ring = ring
                self.voting, self.merged, self.sources = set(voting), set(merged), set(sources)
                self._forget_values()
                self._begin()
            case MergedRecord(number, partition):
                if number == self.ring.number:
                    self._is_merged(partition)
            case _:
                self.registers.replay(record)

    def identify(self, disk: int) -> None:
        """Set the id of the disk, once its log is read."""
        self.disk = self.registers.data.disk = disk
        if self.ring is not rings.NO_RING:
            self._begin()

    @property
    def place(self) -> PlaceRecord:
        """The disk's place in the ring, for a log that begins anew."""
        facts = (frozenset(each) for each in (self.voting, self.merged, self.sources))
        return PlaceRecord(self.ring, *facts)

    def check(self) -> None:
        """Audit the whole state. For tests."""
        self.registers.check()
        held = {p for p, disks in enumerate(rings.places_of(self.ring)) if self.disk in disks}
        assert self.voting <= held
        assert self.merged <= self.voting
        assert {partition for partition, _ in self._comparisons} <= set(range(PARTITIONS))
        assert all(disk != self.disk for _, disk in self._comparisons)

    # -- rings

    def _adopt(self, ring: rings.ReplicaRing) -> None:
        former = self.ring
        follows = ring.number == former.number + 1
        founded = former is rings.NO_RING and ring.number == 1
        before, after = rings.places_of(former), rings.places_of(ring)
        voting, merged, sources = set[int](), set[int](), set[int]()
        for partition in self._partitions:
            holds = self.disk in after[partition]
            if founded and holds:
                voting.add(partition)
                merged.add(partition)
            elif follows and partition in self.voting:
                sources.add(partition)
                if holds:
                    voting.add(partition)
                same = set(before[partition]) == set(after[partition])
                if holds and same and partition in self.merged:
                    merged.add(partition)
        self.ring = ring
        self.voting, self.merged, self.sources = voting, merged, sources
        self._forget_values()
        self._begin()

    def _forget_values(self) -> None:
        """Drop replicated values of partitions in which this disk has no part: when it comes back
        to one, it may have values whose tombstones are gone."""
        for partition in self._partitions:
            if partition not in self.voting and partition not in self.sources:
                first = partition * BUCKETS_EACH
                self.registers.forget_values(range(first, first + BUCKETS_EACH))

    def _begin(self) -> None:
        """Merge the partitions that are not merged, from the former disks."""
        self._compared, self._comparisons, self._agreed = {}, {}, {}
        before, after = rings.places_of(self.ring.former), rings.places_of(self.ring)
        for partition in self._partitions:
            if self.disk not in after[partition] or partition in self.merged:
                continue
            self._compared[partition] = {self.disk} if partition in self.sources else set()
            for disk in before[partition]:
                if disk != self.disk:
                    self._comparisons[partition, disk] = _Comparison()
            self._count(partition)

    def _agree(self, partition: int, disk: int, differing: set[int]) -> None:
        """Note the buckets of which another disk has shown the digest that they have here, and
        remove the tombstones of those that all disks agree on."""
        if partition not in self.merged:
            return
        others = set(rings.places_of(self.ring)[partition]) - {self.disk}
        first = partition * BUCKETS_EACH
        for bucket in range(first, first + BUCKETS_EACH):
            if bucket in differing or bucket not in self.registers.data.tombstones:
                self._agreed.pop(bucket, None)
                continue
            digest = self.registers.digests[bucket]
            former, disks = self._agreed.get(bucket, (digest, set[int]()))
            disks = {*disks, disk} if former == digest else {disk}
            self._agreed[bucket] = digest, disks
            if disks >= others:
                del self._agreed[bucket]
                self.registers.remove_tombstones(bucket)

    def _settle(self, partition: int, disk: int, comparison: _Comparison) -> None:
        """End a comparison that has all rows."""
        if comparison.buckets:
            return
        del self._comparisons[partition, disk]
        if comparison.source and partition in self._compared:
            self._compared[partition].add(disk)
            self._count(partition)

    def _count(self, partition: int) -> None:
        former = rings.places_of(self.ring.former)[partition]
        if len(self._compared[partition]) >= rings.majority(len(former)):
            self._is_merged(partition)
            self._records.append(MergedRecord(self.ring.number, partition))

    def _is_merged(self, partition: int) -> None:
        self.merged.add(partition)
        self.voting.add(partition)
        self._compared.pop(partition, None)
        for disk in rings.places_of(self.ring.former)[partition]:
            self._comparisons.pop((partition, disk), None)


def _requests(comparison: _Comparison, ring: int, partition: int) -> list[DiskRequest]:
    if comparison.buckets is None:
        return [ShowDigests(ring, partition)]
    return [ShowBucket(ring, bucket) for bucket in sorted(comparison.buckets)]


# -- for who changes the ring ----------------------------------------------------------------------


def unmerged(
    ring: rings.ReplicaRing,
    statuses: Collection[DiskStatus],
    partitions: Sequence[int] = range(PARTITIONS),
) -> list[int]:
    """Return the partitions of which no majority has merged in this ring: the next ring waits."""
    merged = {status.disk: status.merged for status in statuses if status.ring == ring}
    missing = []
    for partition in partitions:
        disks = rings.places_of(ring)[partition]
        if sum(partition in merged.get(disk, ()) for disk in disks) < rings.majority(len(disks)):
            missing.append(partition)
    return missing
