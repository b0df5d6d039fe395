"""The ring: which disks hold which keys, as one numbered value.

The members of a ring are disks, each with a random id for its life and the zone of its machine. A
key's hash selects one of 256 partitions. Each partition has `copies` disks, chosen by rendezvous:
each disk has a score for the partition, and the highest scores win, disks of other zones first.
With no more members than copies every disk holds all. The disks of partition 0 are the **voters**.

    number     counts the changes; the founders store ring 1
    members    the disks that hold something, in the order of their ids, each with the address of
               its replica when the ring was made: a hint, because a disk may move
    before     the members of ring `number - 1`, empty for ring 1
    store      a number of the store: it comes of the founders' disks, and a restore draws another

A change adds, removes or replaces one disk, and at most one disk in each partition (`step_error`).
A disk of another zone may change the order of zones in a partition: then add it first, and remove
the former one in the next ring.
How a ring takes over from the one before is in `moves`.

**Eras.** A ring that an operator founds anew, after a majority was lost or from a backup, begins
the next `RINGS_OF_ERA` numbers (`renewed_ring`): disks that are gone may have decided rings that no
other one has. A disk of the same store that comes back takes that ring for a later one, and is left
out. Rings of two stores never follow each other.

Source: docs/architecture.md; Thaler and Ravishankar, "Using name-based mappings to increase hit
rates" (rendezvous hashing).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from shardbus.replication.messages import Answer, Request
from shardbus.replication.values import PARTITIONS, partition_of

MASK = 2**64 - 1
MEMBERS_MAX = 7
"""Disks of a ring in which each holds all."""
RINGS_OF_ERA = 2**20
RINGS_MAX = 2**32 - RINGS_OF_ERA
"""A frame has the number of a ring in 32 bits."""
RINGS_KEPT = 16
"""Rings whose places are kept."""


class RingMember(NamedTuple):
    """A disk of a ring."""

    disk: int
    """A random number of 63 bits, drawn when the disk was blank."""
    zone: str = ""
    """Disks of one zone fail together; "" is a zone, too."""
    address: str = ""
    """Where its replica listened when the ring was made; "" in rings of former versions."""


class ReplicaRing(NamedTuple):
    """The disks of a store. See the module for the fields."""

    number: int
    copies: int
    members: tuple[RingMember, ...]
    before: tuple[RingMember, ...] = ()
    store: int = 0
    """0 in rings of former versions."""

    @property
    def disks(self) -> frozenset[int]:
        """The ids of the members."""
        return frozenset(member.disk for member in self.members)

    @property
    def voters(self) -> tuple[int, ...]:
        """The disks of partition 0."""
        return places_of(self)[0]

    def disks_of(self, key: str) -> tuple[int, ...]:
        """Return the disks that hold a key."""
        return places_of(self)[partition_of(key)]

    @property
    def former(self) -> ReplicaRing:
        """The ring before this one, without the one before that."""
        return ReplicaRing(self.number - 1, self.copies, self.before, store=self.store)

    @property
    def era(self) -> int:
        """How often the store was founded anew."""
        return self.number // RINGS_OF_ERA


NO_RING = ReplicaRing(0, 0, ())
"""The ring of a blank disk."""


def majority(count: int) -> int:
    """Return how many of `count` disks are a majority: 1, 2, 2, 3, 3, 4, 4 for 1 to 7."""
    return count // 2 + 1


@lru_cache(maxsize=RINGS_KEPT)
def places_of(ring: ReplicaRing) -> tuple[tuple[int, ...], ...]:
    """Return the disks of each partition, best score first."""
    if len(ring.members) <= ring.copies:
        return (tuple(member.disk for member in ring.members),) * PARTITIONS
    return tuple(_disks(ring, partition) for partition in range(PARTITIONS))


def _disks(ring: ReplicaRing, partition: int) -> tuple[int, ...]:
    ranked = sorted(ring.members, key=lambda member: _score(member.disk, partition), reverse=True)
    chosen: list[int] = []
    zones: set[str] = set()
    for member in ranked:
        if member.zone not in zones and len(chosen) < ring.copies:
            zones.add(member.zone)
            chosen.append(member.disk)
    others = [member.disk for member in ranked if member.disk not in chosen]
    return tuple(chosen + others[: ring.copies - len(chosen)])


def _score(disk: int, partition: int) -> tuple[int, int]:
    mixed = (disk + (partition + 1) * 0x9E3779B97F4A7C15) & MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & MASK
    return mixed ^ mixed >> 31, disk


def next_by_zone(
    members: Collection[RingMember], candidates: Iterable[RingMember]
) -> RingMember | None:
    """Return the candidate to take in beside these members, None if there is none: of a zone with
    the fewest members, and of these the lowest address."""
    in_zone = Counter(member.zone for member in members)
    return min(candidates, key=lambda m: (in_zone[m.zone], m.address, m.disk), default=None)


def zones_left(members: Sequence[str], zones: Iterable[str]) -> list[str]:
    """Return the zones without a member, though two members share a zone. `members`: the zone of
    each; "" is none that is missed."""
    shared = len(set(members)) < len(members)
    return sorted(set(zones) - {*members, ""}) if shared else []


def founders(
    first: RingMember, candidates: Iterable[RingMember], count: int
) -> tuple[RingMember, ...]:
    """Return the `count` disks of ring 1, `first` among them, in as many zones as there are."""
    chosen, left = [first], set(candidates) - {first}
    while len(chosen) < count:
        member = next_by_zone(chosen, left)
        if member is None:
            break
        chosen.append(member)
        left.discard(member)
    return tuple(chosen)


def first_ring(members: tuple[RingMember, ...], copies: int) -> ReplicaRing:
    """Return ring 1 of a new store."""
    store = 0
    for member in sorted(members):
        store = _score(store ^ member.disk, 0)[0]
    return ReplicaRing(1, copies, tuple(sorted(members)), store=store >> 1)


def renewed_ring(rings: Collection[ReplicaRing], member: RingMember, store: int) -> ReplicaRing:
    """Return the ring of one disk that an operator founds anew. `rings`: as the disks that are left
    have them, or the backup. `store`: the number of the store, the same as in these rings if its
    disks may come back.

    Raises:
        ValueError: no number is left.
    """
    newest = max(rings, key=lambda ring: ring.number)
    number = (newest.era + 1) * RINGS_OF_ERA
    if number >= RINGS_MAX:
        raise ValueError(f"ring {newest.number} cannot be followed by an era")
    before = newest.members if store == newest.store else ()
    return ReplicaRing(number, 1, (member,), before, store)


def next_ring(ring: ReplicaRing, members: tuple[RingMember, ...]) -> ReplicaRing:
    """Return the ring that follows `ring` with these members.

    Raises:
        ValueError: the step is too large; the text says why.
    """
    members = tuple(sorted(members))
    after = ReplicaRing(ring.number + 1, ring.copies, members, ring.members, ring.store)
    wrong = step_error(ring, after)
    if wrong:
        raise ValueError(wrong)
    return after


def grown_ring(ring: ReplicaRing, members: tuple[RingMember, ...]) -> ReplicaRing:
    """Return the next ring, in which each of these members holds all, as in the ring before.

    Raises:
        ValueError: the step is too large; the text says why.
    """
    if len(ring.members) > ring.copies:
        raise ValueError("the disks of the ring do not hold all")
    if len(members) > MEMBERS_MAX:
        raise ValueError(
            f"{len(members)} disks are more than {MEMBERS_MAX}, and each would hold all"
        )
    return next_ring(ring._replace(copies=max(ring.copies, len(members))), members)


def lost_member(ring: ReplicaRing, address: str, seen: Mapping[int, str]) -> RingMember | None:
    """Return the member whose disk a blank disk at this address replaces, None if there is none.
    `seen`: the addresses at which disks answer now, by disk.

    It is the member that the ring has at the address, if its disk answers nowhere. A ring of a
    former version has no addresses: then it is the only member that answers nowhere."""
    silent = [member for member in ring.members if member.disk not in seen]
    there = [member for member in silent if member.address == address]
    if there:
        return there[0]
    return silent[0] if len(silent) == 1 and not silent[0].address else None


def is_related(ring: ReplicaRing, other: ReplicaRing) -> bool:
    """True if two rings may be of one store: by its number, or, in rings of former versions, by a
    disk that they have in common, the members before included."""
    if ring.store and other.store:
        return not is_other_store(ring, other)
    return not (ring.disks | ring.former.disks).isdisjoint(other.disks | other.former.disks)


def is_other_store(ring: ReplicaRing, other: ReplicaRing) -> bool:
    """True if two rings are of two stores for sure. NO_RING is of any."""
    return bool(ring.store and other.store) and ring.store != other.store


def step_error(ring: ReplicaRing, after: ReplicaRing) -> str:
    """Return why `after` cannot follow `ring`, "" if it can."""
    added, removed = after.disks - ring.disks, ring.disks - after.disks
    if len(added) > 1 or len(removed) > 1:
        return f"{len(added)} disks are added and {len(removed)} removed: at most one of each"
    if not after.members:
        return "no disk is left"
    for partition, (now, then) in enumerate(zip(places_of(ring), places_of(after), strict=True)):
        if len(set(now) - set(then)) > 1 or len(set(then) - set(now)) > 1:
            return f"partition {partition} would change more than one disk"
    return ""


def ring_value(ring: ReplicaRing) -> tuple[object, ...]:
    """Return the ring as the value of a register."""
    members = tuple(tuple(member) for member in ring.members)
    before = tuple(tuple(member) for member in ring.before)
    return ring.number, ring.copies, members, before, ring.store


def ring_of(value: object) -> ReplicaRing:
    """Return the ring that a register has.

    Raises:
        ValueError: the value is no ring.
    """
    match value:
        case (int(number), int(copies), [*members], [*before], *rest):
            store = rest[0] if rest and isinstance(rest[0], int) else 0
            return ReplicaRing(number, copies, _members(members), _members(before), store)
        case _:
            raise ValueError(f"{value!r:.80} is no ring")


def _members(value: Sequence[object]) -> tuple[RingMember, ...]:
    members = []
    for member in value:
        match member:
            case (int(disk), str(zone), *rest):
                address = rest[0] if rest and isinstance(rest[0], str) else ""
                members.append(RingMember(disk, zone, address))
            case _:
                raise ValueError(f"{member!r:.80} is no member of a ring")
    return tuple(members)


# -- between store objects and replicas ------------------------------------------------------------


class StoreCall(NamedTuple):
    """A request, made under the ring of this number."""

    number: int
    """Of the call, for the reply. A call that is repeated keeps it."""
    ring: int
    request: Request


class StoreReply(NamedTuple):
    """The answer of a disk to the call of this number, under the ring of this number."""

    number: int
    disk: int
    ring: int
    answer: ReplicaAnswer


class RingIs(NamedTuple):
    """Not done: the disk has a newer ring, this one. The caller takes it."""

    ring: ReplicaRing


class RingWanted(NamedTuple):
    """Not done: the disk has the older ring of this number. The caller sends AdoptRing."""

    number: int


class NotVoting(NamedTuple):
    """Not done: the disk does not answer for this key. It is no disk of the key's partition, or
    has not merged yet."""


ReplicaAnswer = Answer | RingIs | RingWanted | NotVoting


class AdoptRing(NamedTuple):
    """Store this ring if it is newer. A store object sends it to a disk that answers RingWanted."""

    ring: ReplicaRing
