"""Changes the ring of a store inside the cluster: an operator, for one step.

    look      every replica shows the place of its disk; the newest ring counts
    help      while no majority has merged in that ring, it is sent to all its disks, and to the
              disks of the ring before
    decide    the members of the next ring come from `Step`; one register decides it (`moves`)
    wait      until a majority of the new ring has merged, and the disk that came in votes

Any number of operators may work at a time, and each may stop at any moment: the next one goes on
from the places that the disks show. A replica is one, too, for its own blank disk
(`replica.joining`).

Source: docs/architecture.md; S2.32.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping
from random import Random
from types import MappingProxyType
from typing import NamedTuple, Protocol

from shardbus.errors import StoreError
from shardbus.ids import Address
from shardbus.replication.functions import decide_once
from shardbus.replication.moves import ring_key, unmerged
from shardbus.replication.proposer import (
    ChangeValue,
    Completed,
    Effect,
    Finished,
    Outcome,
    Proposer,
    RingFound,
    SendCall,
)
from shardbus.replication.ring import (
    NO_RING,
    AdoptRing,
    ReplicaRing,
    RingMember,
    StoreCall,
    StoreReply,
    grown_ring,
    lost_member,
    majority,
    ring_of,
    ring_value,
)
from shardbus.replication.ring_repair import GivesWay
from shardbus.store.replica_links import ReplicaLinks
from shardbus.transport.network import Network

LOOK_S = 0.1
"""Between two looks at the replicas."""
LOOKS_MAX_S = 1.0
DECIDE_S = 2.0
SESSION_BITS = 63


class RingRefused(StoreError):
    """The ring cannot be changed like this. Nothing changed."""


class RingView(NamedTuple):
    """The newest ring, and the disks that answer: their addresses, and their zones."""

    ring: ReplicaRing
    addresses: Mapping[int, Address]
    zones: Mapping[int, str] = MappingProxyType({})

    def disk_at(self, address: Address) -> int | None:
        """Return the disk at an address, None if no replica answers there."""
        return next((disk for disk, at in self.addresses.items() if at == address), None)


class Step(Protocol):
    """Decides the members of the next ring; None while that is open, with the reason.

    Raises:
        RingRefused: it can never be done.
    """

    def __call__(self, view: RingView, /) -> tuple[RingMember, ...] | str: ...


def placed(view: RingView, members: Iterable[RingMember]) -> tuple[RingMember, ...]:
    """Return the members with the addresses at which their disks answer now, and their zones."""
    return tuple(
        member._replace(
            address=str(view.addresses.get(member.disk, member.address)),
            zone=view.zones.get(member.disk, member.zone),
        )
        for member in members
    )


def adding(address: Address) -> Step:
    """Return the step that takes the disk at an address in, in place of the lost one there."""

    def step(view: RingView) -> tuple[RingMember, ...] | str:
        disk = view.disk_at(address)
        if disk is None:
            return f"{address}: it is out of reach"
        if disk in view.ring.disks:
            return view.ring.members
        return _with(view, disk, address)

    return step


def replacing(address: Address, disk: int) -> Step:
    """Return the step that takes this blank disk in, if the ring has a lost one at its address."""

    def step(view: RingView) -> tuple[RingMember, ...] | str:
        if disk in view.ring.disks:
            return view.ring.members
        if lost_member(view.ring, str(address), _texts(view)) is None:
            number = view.ring.number
            return f"an operator: shardbus store add {address} (it is not in ring {number})"
        return _with(view, disk, address)

    return step


def _with(view: RingView, disk: int, address: Address) -> tuple[RingMember, ...]:
    lost = lost_member(view.ring, str(address), _texts(view))
    kept = [member for member in view.ring.members if member != lost]
    return placed(view, [*kept, RingMember(disk, lost.zone if lost else "", str(address))])


def giving_way(repair: GivesWay) -> Step:
    """Return the step in which a member gives way to a spare, in the ring for which that was
    decided. In a later one it changes nothing."""

    def step(view: RingView) -> tuple[RingMember, ...] | str:
        lost, spare = repair.lost, repair.spare
        if view.ring.number != repair.ring:
            return view.ring.members
        if lost.disk in view.addresses:
            raise RingRefused(f"{view.addresses[lost.disk]} answers again")
        if spare.disk not in view.addresses:
            return f"{spare.address}: it is out of reach"
        kept = [member for member in view.ring.members if member.disk != lost.disk]
        return placed(view, [*kept, spare])

    return step


def removing(address: Address) -> Step:
    """Return the step that takes the disk of an address out, there or not.

    It refuses an address that the ring has no disk of, unless this step, or a step before that was
    interrupted, has taken it out."""
    removed = False

    def step(view: RingView) -> tuple[RingMember, ...] | str:
        nonlocal removed
        disk = view.disk_at(address)
        kept = [
            member
            for member in placed(view, view.ring.members)
            if member.disk != disk and member.address != str(address)
        ]
        if not kept:
            raise RingRefused(f"{address} has the last disk of the store")
        if len(kept) < len(view.ring.members):
            removed = True
            return tuple(kept)
        if not removed and str(address) not in {m.address for m in view.ring.before}:
            names = ", ".join(m.address or f"{m.disk:016x}" for m in view.ring.members)
            raise RingRefused(
                f"ring {view.ring.number} has no disk at {address}", hint=f"it has {names}"
            )
        return view.ring.members

    return step


def _texts(view: RingView) -> dict[int, str]:
    return {disk: str(address) for disk, address in view.addresses.items()}


class RingOperator:
    """One change of a ring. Belongs to one event loop.

    Args:
        on_progress: called with a reason for which the operator waits, once it does so for longer
            than a look at the replicas.
    """

    def __init__(
        self,
        cluster: str,
        addresses: Iterable[Address],
        network: Network,
        on_progress: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._links = ReplicaLinks(
            cluster, tuple(addresses), network, self._on_replies, self._look_now
        )
        self._on_progress = on_progress
        self._proposer: Proposer | None = None
        self._decided: asyncio.Future[Outcome] | None = None
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._progress, self._reported = "", ""
        self.zones: frozenset[str] = frozenset()
        """The zones of the replicas that answered last."""

    async def change(self, step: Step, within: float) -> ReplicaRing:
        """Change the ring until `step` leaves it as it is, and a majority has merged in it.

        Raises:
            RingRefused: it cannot be changed like this.
            StoreError: it was not done within `within` seconds; the text names the reason. It may
                be done later.
        """
        self._links.open(self._loop)
        try:
            async with asyncio.timeout(within):
                while (ring := await self._turn(step)) is None:
                    pass
                return ring
        except TimeoutError:
            raise StoreError(
                f"the ring was not changed within {within:g} s: it waits for {self._progress}"
            ) from None
        finally:
            self._links.close()

    async def _turn(self, step: Step) -> ReplicaRing | None:
        """Make one turn. Returns the ring once it is as it must be."""
        view = await self._look()
        if not view.ring.members:
            self._waits("a replica of the store")
            return None
        members = step(view)
        if isinstance(members, str):
            self._waits(members)
            return None
        open_partitions = self._unmerged(view.ring)
        done = {m.disk for m in members} == view.ring.disks
        if done and not open_partitions and self._all_vote(view):
            return view.ring
        if open_partitions or done:
            self._push(view.ring)
            self._waits(self._missing(view.ring))
            return None
        try:
            after = grown_ring(view.ring, members)
        except ValueError as error:
            raise RingRefused(str(error)) from None
        await self._decide(view.ring, after)
        return None

    def _waits(self, why: str) -> None:
        if why == self._progress != self._reported:
            self._reported = why
            self._on_progress(why)
        self._progress = why

    # ---- look

    def _look_now(self) -> None:
        self._changed.set()

    async def _look(self) -> RingView:
        """Return the newest ring, and the disks of the replicas that answer in time."""
        links = self._links
        links.show()
        until = self._loop.time() + LOOKS_MAX_S
        await asyncio.sleep(LOOK_S)
        while self._loop.time() < until:
            if all(link.shown is not None for link in links.links.values()):
                break
            self._changed.clear()
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._changed.wait()
            except TimeoutError:
                continue
        shown = {link.address: link.shown for link in links.links.values() if link.shown}
        addresses = {replica.status.disk: address for address, replica in shown.items()}
        zones = {replica.status.disk: replica.zone for replica in shown.values()}
        self.zones = frozenset(zones.values())
        rings = [replica.status.ring for replica in shown.values()]
        ring = max([links.ring, *rings], key=lambda ring: ring.number, default=NO_RING)
        links.take_ring(ring)
        return RingView(ring, addresses, zones)

    def _unmerged(self, ring: ReplicaRing) -> int:
        """Return how many partitions no majority has merged in this ring."""
        links = self._links.links.values()
        statuses = [link.shown.status for link in links if link.shown and link.shown.votes]
        return len(unmerged(ring, statuses))

    def _missing(self, ring: ReplicaRing) -> str:
        """Name the disks of a ring for which its change waits."""
        links = self._links.links.values()
        votes = {link.disk for link in links if link.shown and link.shown.votes}
        away = [m.address or f"disk {m.disk:016x}" for m in ring.members if m.disk not in votes]
        if len(votes & ring.disks) < majority(len(ring.members)):
            return f"a majority of the disks of ring {ring.number}: without {', '.join(away)}"
        behind = f" ({', '.join(away)} do not answer)" if away else ""
        return f"the disks of ring {ring.number} to merge{behind}"

    def _all_vote(self, view: RingView) -> bool:
        """True if each disk of the ring that answers serves under it."""
        links = [link for link in self._links.links.values() if link.shown]
        mine = [link.shown for link in links if link.shown and link.disk in view.ring.disks]
        return all(replica.status.ring == view.ring and not replica.waits_for for replica in mine)

    def _push(self, ring: ReplicaRing) -> None:
        self._links.adopt(ring, ring.disks | ring.former.disks)

    # ---- decide

    async def _decide(self, ring: ReplicaRing, after: ReplicaRing) -> None:
        """Have the disks of a ring decide the next one, which may be another operator's."""
        self._proposer = Proposer(secrets.randbits(SESSION_BITS), ring, Random())
        self._decided = self._loop.create_future()
        work = ChangeValue(0, decide_once(ring_value(after)))
        now = self._loop.time()
        key = ring_key(after.number)
        self._carry_out(self._proposer.submit(0, key, work, now, DECIDE_S))
        while not self._decided.done():
            due = self._proposer.deadline() or self._loop.time() + LOOK_S
            pause = max(due - self._loop.time(), 0.0)
            await asyncio.wait({self._decided}, timeout=pause)
            if not self._decided.done():
                self._carry_out(self._proposer.tick(self._loop.time()))
        outcome, self._proposer = self._decided.result(), None
        if isinstance(outcome, Completed):
            decided = ring_of(outcome.result)
            self._links.take_ring(decided)
            self._push(decided)
        else:
            self._waits(self._missing(ring))

    def _on_replies(self, replies: list[StoreReply]) -> None:
        for reply in replies:
            if self._proposer is not None:
                self._carry_out(self._proposer.handle(reply, self._loop.time()))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendCall(disk, StoreCall() as call):
                    self._links.send(disk, call)
                case SendCall(disk, AdoptRing(ring)):
                    self._links.adopt(ring, {disk})
                case Finished(_, outcome):
                    if self._decided is not None and not self._decided.done():
                        self._decided.set_result(outcome)
                case RingFound():
                    pass
