"""Whether a replica serves: founding, disk life and ring together. Reports arrive at once."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
from msgspec.structs import replace

from shardbus.ids import Address
from shardbus.replica.standing import ReplicaState, Standing
from shardbus.replication.disk_life import GRACE_S, SILENT_S, DiskVerdict
from shardbus.replication.founding import Founding
from shardbus.replication.moves import AskDisk, PlaceRecord, RingDisk
from shardbus.replication.ring import (
    AdoptRing,
    ReplicaRing,
    RingMember,
    first_ring,
    next_ring,
    renewed_ring,
)
from shardbus.replication.ring_repair import GivesWay, RepairWaits
from shardbus.replication.values import PARTITIONS
from shardbus.wire.disk_frames import DiskState
from shardbus.wire.replica_frames import ReportBody

PEERS = tuple(Address("10.0.0.1", 7000 + n) for n in range(3))
FOUR = (*PEERS, Address("10.0.0.1", 7003))
AFTER = 60.0
OTHERS = first_ring((RingMember(77), RingMember(78)), 2)


class Replica:
    """A replica whose turns are stored at once. `log` has its disk's content."""

    def __init__(self, number: int, disk: int, peers: tuple[Address, ...] = PEERS) -> None:
        self.number, self.disk, self.runs, self.peers = number, disk, 0, peers
        self.log = (DiskState(), RingDisk(disk).place)
        self.now = 0.0
        self.start()

    def start(self) -> None:
        """Start from the disk's content, in a new process."""
        state, place = self.log
        self.stored, self.runs = state, self.runs + 1
        rows = RingDisk(self.disk)
        if place.ring.number:
            rows.replay(place)
        founding = Founding(
            self.peers[self.number], self.peers, self.disk, state.ring, state.founded, members=3
        )
        self.standing = Standing(founding, rows, state, 100 * self.number + self.runs)
        self.standing.advance(0.0)
        self.store()

    def store(self) -> None:
        self.stored = self.standing.state
        self.log = self.stored, self.standing.place.place
        self.standing.tick(self.now, self.stored)

    @property
    def serves(self) -> bool:
        return self.standing.serves(self.stored)

    @property
    def waits_for(self) -> str:
        return self.standing.waits_for(self.stored)


class Trio:
    """Three replicas, and spares. `reports` lets all that are up report to each other."""

    def __init__(self, peers: tuple[Address, ...] = PEERS) -> None:
        self.all = [Replica(n, n + 1, peers) for n in range(len(peers))]
        self.now = 0.0
        self.reports(times=4)

    def reports(self, *, without: tuple[int, ...] = (), times: int = 2) -> None:
        up = [replica for replica in self.all if replica.number not in without]
        for replica in up:
            for number in without:
                replica.standing.on_silent(FOUR[number])
        for _ in range(times):
            for sender in up:
                sender.standing.tick(self.now, sender.stored)
                for other in up:
                    if other is not sender:
                        self._report(sender, other)

    def _report(self, sender: Replica, other: Replica) -> None:
        sender.now = other.now = self.now
        report = sender.standing.report(sender.stored, None, self.now)
        verdict, asks = other.standing.on_report(report, other.stored, self.now)
        other.store()
        back = other.standing.report(other.stored, verdict, self.now)
        _, more = sender.standing.on_report(back, sender.stored, self.now)
        sender.store()
        self.carry(other, asks)
        self.carry(sender, more)

    def carry(self, asker: Replica, asks: list[AskDisk]) -> None:
        """Let requests between disks be answered."""
        queue = list(asks)
        while queue:
            disk, request = queue.pop()
            target = next((replica for replica in self.all if replica.disk == disk), None)
            if target is None:
                continue
            if isinstance(request, AdoptRing):
                self.carry(target, target.standing.adopt(request.ring, self.now))
                target.store()
                continue
            answer = target.standing.place.show(request, self.now)
            queue += asker.standing.place.take(disk, answer, self.now)
            asker.store()

    def restart(self, number: int) -> Replica:
        for other in self.all:
            other.standing.on_silent(FOUR[number])
        self.all[number].start()
        return self.all[number]


def test_three_replicas_serve_once_they_are_founded() -> None:
    trio = Trio()
    assert [replica.serves for replica in trio.all] == [True] * 3
    assert trio.all[0].standing.replica_state(trio.all[0].stored) is ReplicaState.FOUNDED


def test_a_restarted_replica_waits_until_all_others_accept_its_run() -> None:
    trio = Trio()
    again = trio.restart(2)
    assert not again.serves
    assert again.standing.replica_state(again.stored) is ReplicaState.WAITING
    assert "it has not accepted this run" in again.waits_for
    trio.reports()
    assert (again.serves, again.waits_for) == (True, "")


def test_after_a_while_a_majority_accepts() -> None:
    trio = Trio()
    again = trio.restart(2)
    trio.reports(without=(0,))
    assert not again.serves
    assert again.waits_for == "10.0.0.1:7000: it has not accepted this run of the disk yet"
    trio.now = GRACE_S + 1
    trio.reports(without=(0,))
    assert again.serves


def test_a_set_back_disk_is_refused_and_then_given_up() -> None:
    trio = Trio()
    older = trio.all[2].log
    trio.restart(2)
    trio.reports()
    trio.all[2].log = older
    again = trio.restart(2)
    trio.reports()
    assert not again.serves
    assert "it knows a later state of this disk" in again.waits_for
    assert again.standing.is_lost(trio.now) == ""
    trio.now = GRACE_S + 1
    assert "set back" in again.standing.is_lost(trio.now)


def test_a_set_back_disk_does_not_reach_the_count_that_others_know() -> None:
    trio = Trio()
    older = trio.all[2].log
    for _ in range(3):
        assert trio.all[2].standing.count()
        trio.all[2].store()
        trio.reports()
    trio.all[2].log = older
    again = trio.restart(2)
    for _ in range(100):  # the others do not vote without it: one of them is away
        trio.now += GRACE_S
        assert not again.standing.count()
        again.store()
        trio.reports(without=(0,))
        assert not again.serves
    assert "10.0.0.1:7001: it knows a later state of this disk" in again.waits_for


def test_a_majority_accepts_a_disk_that_counts_often() -> None:
    trio = Trio()
    again = trio.restart(2)
    while not again.serves:
        trio.now += GRACE_S / 2
        assert trio.now < 4 * GRACE_S
        again.standing.count()
        again.store()
        trio.reports(without=(0,))


def test_a_blank_disk_comes_in_by_a_ring_and_serves_once_it_has_merged() -> None:
    trio = Trio()
    blank = trio.all[2] = Replica(2, 9)
    trio.reports()
    assert blank.standing.founding.stands_beside_a_store
    assert blank.standing.replica_state(blank.stored) is ReplicaState.BLANK
    ring = trio.all[0].standing.ring
    later = next_ring(ring, (*ring.members[:2], RingMember(9, "", str(PEERS[2]))))
    asks = blank.standing.adopt(later, 0.0)
    blank.store()
    assert not blank.serves
    assert blank.standing.replica_state(blank.stored) is ReplicaState.MERGING
    assert "the rows of 256 of 256 partitions, from 10.0.0.1:7000" in blank.waits_for
    trio.carry(blank, asks)
    trio.reports()
    assert [replica.standing.ring.number for replica in trio.all] == [2, 2, 2], "reports spread it"
    assert not blank.serves, "a disk of the former ring that is gone owes nothing"
    trio.carry(blank, blank.standing.place.tick(100.0))
    assert [replica.serves for replica in trio.all] == [True] * 3


def test_a_disk_that_a_ring_leaves_out_is_given_up() -> None:
    trio = Trio()
    ring = trio.all[0].standing.ring
    later = next_ring(ring, ring.members[:2])
    for replica in trio.all:
        trio.carry(replica, replica.standing.adopt(later, 0.0))
        replica.store()
    assert [replica.serves for replica in trio.all] == [True, True, False]
    assert "does not have this disk" in trio.all[2].standing.is_lost(0.0)
    assert trio.all[0].standing.is_lost(0.0) == ""


def test_rings_of_another_store_change_nothing() -> None:
    trio = Trio()
    foreign = next_ring(OTHERS, OTHERS.members)
    assert trio.all[0].standing.adopt(foreign, 0.0) == []
    assert trio.all[0].standing.ring.number == 1
    blank = Replica(2, 9)
    blank.standing.adopt(foreign, 0.0)
    assert blank.standing.ring.number == 0


def founded_alone(replica: Replica, rings: list[ReplicaRing], store: int) -> None:
    """Found the store anew on this replica."""
    replica.disk += 10
    ring = renewed_ring(rings, RingMember(replica.disk), store)
    every = frozenset(range(PARTITIONS))
    replica.log = DiskState(0, ring, True), PlaceRecord(ring, every, every, every)
    replica.start()


def test_a_store_that_is_founded_anew_twice_does_not_serve() -> None:
    trio = Trio()
    rings = [trio.all[0].standing.ring]
    founded_alone(trio.all[0], rings, rings[0].store)
    trio.reports(without=(1, 2))
    assert trio.all[0].serves
    trio.reports(without=(1,))
    assert trio.all[0].serves
    assert trio.all[2].standing.is_left_out, "a disk that was lost"
    for store in (rings[0].store, 99):
        founded_alone(trio.all[1], rings, store)
        trio.reports(without=(2,))
        assert not trio.all[0].serves
        assert not trio.all[1].serves
        assert "10.0.0.1:7001 is of another store" in trio.all[0].waits_for
    trio.reports(without=(1, 2))
    assert trio.all[0].serves, "one of both was stopped"


def test_a_start_counts_beyond_what_the_disk_has_shown() -> None:
    rows = RingDisk(1)
    for stored, counter in ((DiskState(3, counter=9), 10), (DiskState(7), 8)):
        founding = Founding(PEERS[0], PEERS, 1)
        assert Standing(founding, rows, stored, 1).counter == counter


def pass_time(them: Trio, seconds: float, *, without: tuple[int, ...] = ()) -> None:
    for _ in range(int(seconds)):
        them.now += 1.0
        them.reports(without=without, times=1)


def decisions(them: Trio, *numbers: int) -> list[object]:
    """What these replicas decide about a member that is away."""
    replicas = [them.all[number] for number in numbers]
    return [each.standing.repair(them.now, each.stored, AFTER) for each in replicas]


def test_a_replica_that_no_ring_has_is_a_spare() -> None:
    them = Trio(FOUR)
    spare = them.all[3]
    assert [replica.serves for replica in them.all] == [True] * 3 + [False]
    assert spare.standing.replica_state(spare.stored) is ReplicaState.SPARE
    assert f"as a spare: shardbus store add {FOUR[3]} (it is not in ring 1)" in spare.waits_for
    wiped = them.all[2] = Replica(2, 9, FOUR)
    them.reports(times=3)
    assert wiped.standing.replica_state(wiped.stored) is ReplicaState.BLANK
    assert not wiped.standing.is_spare, "the ring has its address"


def test_a_member_that_is_away_for_long_gives_way_to_the_spare() -> None:
    them = Trio(FOUR)
    pass_time(them, 5)
    pass_time(them, AFTER - 1, without=(2,))
    assert decisions(them, 0, 1) == [None, None]
    pass_time(them, 1, without=(2,))
    decision, *others = decisions(them, 0, 1, 3)
    assert isinstance(decision, GivesWay)
    assert (decision.lost.disk, decision.spare.address) == (3, str(FOUR[3]))
    assert others == [None, None], "the first one that serves decides"
    pass_time(them, 2, without=(2, 3))
    [waits] = decisions(them, 0)
    assert isinstance(waits, RepairWaits)
    assert waits.for_ == "a spare"
    pass_time(them, 2)
    assert decisions(them, 0, 1) == [None, None], "it has come back"


def test_a_member_that_another_one_sees_does_not_give_way() -> None:
    them = Trio(FOUR)
    for _ in range(int(AFTER) + 9):
        pass_time(them, 1, without=(2,))
        them._report(them.all[2], them.all[1])
    [waits] = decisions(them, 0)
    assert isinstance(waits, RepairWaits)
    assert waits.for_ == f"{FOUR[1]}, which saw it less than 60 s ago"


def test_a_restart_and_a_sleep_begin_the_time_anew() -> None:
    them = Trio(FOUR)
    pass_time(them, AFTER, without=(2,))
    them.restart(0)
    pass_time(them, 9, without=(2,))
    assert decisions(them, 0, 1) == [None, None]
    pass_time(them, AFTER, without=(2,))
    assert isinstance(decisions(them, 0)[0], GivesWay)
    them.now += 3600.0  # all machines sleep
    pass_time(them, 3, without=(2,))
    assert decisions(them, 0, 1) == [None, None]


def dispensable(them: Trio) -> list[int]:
    """The replicas that may end."""
    return [each.number for each in them.all if each.standing.is_dispensable(them.now)]


def test_a_replica_that_leaves_may_end_once_a_majority_knows_it_and_serves() -> None:
    them = Trio(FOUR)
    leaver = them.all[1]
    leaver.standing.leaves = True
    assert dispensable(them) == [], "the others have not heard of it"
    them.reports(times=1)
    assert dispensable(them) == [1]
    them.now += SILENT_S + 1.0
    assert dispensable(them) == [], "the others may stand still"
    them.reports(without=(2,), times=1)
    assert dispensable(them) == [], "a spare has no rows"


def test_a_replica_that_leaves_waits_for_one_that_starts() -> None:
    them = Trio()
    again = them.restart(2)
    them.all[1].standing.leaves = True
    for other in (again, them.all[0], again, them.all[0]):
        them._report(other, them.all[1])
    assert (again.serves, dispensable(them)) == (False, [])
    them.reports(times=2)
    assert (again.serves, dispensable(them)) == (True, [1])


def test_a_replica_of_an_earlier_release_counts() -> None:
    them = Trio()
    leaver = them.all[0]
    leaver.standing.leaves = True
    for other in them.all[1:]:
        report = other.standing.report(other.stored, None, them.now)
        assert report.leaving == ()
        leaver.standing.on_report(replace(report, leaving=None), leaver.stored, them.now)
    assert dispensable(them) == [0]


class Leaving:
    """Three replicas of which some leave. Reports take their time, each link keeps their order, and
    the end of a process is the last news on its links."""

    def __init__(self, seed: int) -> None:
        self.dice, self.them = Random(seed), Trio()
        self.to_leave = self.dice.sample(range(3), self.dice.choice((2, 3)))
        pairs = ((a, b) for a in range(3) for b in range(3) if a != b)
        self.links: dict[tuple[int, int], list[ReportBody | None]] = {pair: [] for pair in pairs}
        self.ended: list[int] = []

    def step(self) -> None:
        """Do something that may come next."""
        moves = [partial(self.arrive, *link) for link, bodies in self.links.items() if bodies]
        if len(moves) < 5:
            moves += [partial(self.report, number) for number in range(3)]
        if self.to_leave:
            moves.append(self.leave)
        self.dice.choice(moves)()
        for number in self.dice.sample(range(3), 2):
            self.look(number)

    def settle(self) -> None:
        """Let everything arrive, and all report again."""
        for _ in range(4):
            for number in range(3):
                self.report(number)
            while any(self.links.values()):
                self.arrive(*next(link for link, bodies in self.links.items() if bodies))
            for number in range(3):
                self.look(number)

    def leave(self) -> None:
        number = self.to_leave.pop()
        self.them.all[number].standing.leaves = True
        self.report(number)

    def report(self, number: int) -> None:
        self.send(number, [other for other in range(3) if other != number], None)

    def send(self, number: int, receivers: list[int], verdict: DiskVerdict | None) -> None:
        replica = self.them.all[number]
        if number not in self.ended:
            body = replica.standing.report(replica.stored, verdict, self.them.now)
            for receiver in receivers:
                self.links[number, receiver].append(body)

    def arrive(self, sender: int, receiver: int) -> None:
        body, replica = self.links[sender, receiver].pop(0), self.them.all[receiver]
        if receiver in self.ended:
            return
        if body is None:
            replica.standing.on_silent(PEERS[sender])
            return
        verdict, _ = replica.standing.on_report(body, replica.stored, self.them.now)
        replica.store()
        if not body.answers:
            self.send(receiver, [sender], verdict)

    def look(self, number: int) -> None:
        """End a replica that leaves and may end."""
        standing = self.them.all[number].standing
        gone = number in self.ended
        if standing.leaves and not gone and standing.is_dispensable(self.them.now):
            self.ended.append(number)
            for link, bodies in self.links.items():
                if link[0] == number:
                    bodies.append(None)


@pytest.mark.parametrize("seed", range(300))
def test_of_replicas_that_leave_at_the_same_time_one_ends(seed: int) -> None:
    leaving = Leaving(seed)
    for _ in range(40):
        leaving.step()
    while leaving.to_leave:
        leaving.leave()
    leaving.settle()
    assert len(leaving.ended) == 1
