"""The life of a disk: whether it still has everything that it ever stored.

A disk that was wiped, set back to an older copy, or copied to another machine must not vote: it has
forgotten promises and values that others rely on. So each disk has a random id and a count. The
count grows with each start and, while the disk votes, with each `repair_interval`; the other disks
of the ring write down the highest counter that each disk has shown them, and with it the run of its
process, a random number. A disk shows id, counter and run to the others, and votes only while they
accept it: all of them, or, after `GRACE_S`, a majority of the ring with itself, and none refuses
it. A majority alone is not enough at once: of three disks one may know the counter, and the other
one accept the disk.

| a disk shows | the other disk | |
|---|---|---|
| a higher counter, the same run | accepts it | it goes on |
| a higher counter, another run | accepts it, once the former run is silent | it started again |
| the same counter, the same run | accepts it | the answer was lost |
| a counter that is not higher, another run | refuses it | it is set back, or a copy |
| a lower counter, the same run | accepts it, and keeps the higher one | it came late |

A run is silent `SILENT_S` seconds after it was last seen, or when its connection has closed. While
two runs of one id are seen, both are refused, because neither has all that the other has.

A refused disk does not vote. It is given up (`DiskLife.is_lost`) once a majority of the ring votes
without it, so that nothing is lost with it: its process draws a new id, so that it is blank, and
comes into the next ring in place of the former one. Until then it waits, because an operator may
have set back all disks at once, or may put the right one back. Not noticed is a disk that is
set back to a copy made since its counter last grew, and one whose counter only disks know that are
away for `GRACE_S`: that is a second failure at the same time.

Source: docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from shardbus.replication.ring import majority

SILENT_S = 3.0
"""Seconds without a sign of a run after which another run of its disk may follow."""
GRACE_S = 2.5 * SILENT_S
"""Seconds after which a majority suffices, and a refusal is final."""


class DiskShown(NamedTuple):
    """A disk shows its id, counter and run. The counter is synced before it is shown."""

    disk: int
    counter: int
    run: int


class DiskKnown(NamedTuple):
    """A line of a disk's log: another disk has shown this counter in this run."""

    disk: int
    counter: int
    run: int


class DiskVerdict(NamedTuple):
    """The answer of another disk, `judge`, to a disk that showed this counter in this run. `votes`:
    the judge votes itself."""

    judge: int
    counter: int
    run: int
    accepts: bool
    votes: bool


class DiskRegistry:
    """One disk's record of the others' counters and runs. The disk syncs `disks` before an answer
    leaves."""

    __slots__ = ("_disks", "_seen_at", "_twice")

    def __init__(self, disks: Iterable[DiskKnown] = ()) -> None:
        self._disks = {each.disk: each for each in disks}
        self._seen_at: dict[tuple[int, int], float] = {}
        """By disk and run: when it was last seen."""
        self._twice: dict[int, float] = {}
        """Disks of which two runs were seen, and when the last of them was."""

    def answer(self, shown: DiskShown, now: float) -> bool:
        """Return True if the disk may vote, as far as this one knows."""
        disk, counter, run = shown
        stored = self._disks.get(disk, DiskKnown(disk, 0, run))
        alive = [
            other
            for (each, other), seen in self._seen_at.items()
            if each == disk and other != run and now - seen < SILENT_S
        ]
        self._seen_at = {
            each: seen for each, seen in self._seen_at.items() if now - seen < SILENT_S
        }
        self._seen_at[disk, run] = now
        if alive:
            self._twice[disk] = now
        if now - self._twice.get(disk, -SILENT_S) < SILENT_S:
            return False
        if run != stored.run and counter <= stored.counter:
            return False
        if counter > stored.counter or run != stored.run:
            self._disks[disk] = DiskKnown(disk, max(counter, stored.counter), run)
        return True

    def closed(self, disk: int, run: int) -> None:
        """The connection of this run has closed: it is silent from now on."""
        self._seen_at.pop((disk, run), None)

    def keep(self, disks: Collection[int]) -> None:
        """Forget all disks but these, the members of a new ring."""
        self._disks = {disk: entry for disk, entry in self._disks.items() if disk in disks}
        self._twice = {disk: at for disk, at in self._twice.items() if disk in disks}

    @property
    def disks(self) -> tuple[DiskKnown, ...]:
        """The lines that must be in the log."""
        return tuple(self._disks.values())


def is_accepted(
    disk: int, members: Iterable[int], answers: Mapping[int, bool], *, waited: bool
) -> bool | None:
    """Judge the answers of the ring's other members to a disk: True if it votes, False if it is
    given up, None while that is open. `answers`: by disk. `waited`: it has shown itself for
    `GRACE_S`."""
    others = [member for member in members if member != disk]
    accepted = sum(answers.get(member) is True for member in others)
    refused = any(answers.get(member) is False for member in others)
    if refused:
        return False if waited else None
    if accepted == len(others):
        return True
    return True if waited and accepted + 1 >= majority(len(others) + 1) else None


class DiskLife:
    """Decides whether this run of a disk votes, by the other disks' answers to its counter.

    Args:
        disk: the id of this disk.
        run: a random number, of this process.
    """

    __slots__ = ("_answers", "_counter", "_since", "disk", "run", "votes")

    def __init__(self, disk: int, run: int) -> None:
        self.disk, self.run = disk, run
        self.votes = False
        """The others have accepted this run, and none has refused it since."""
        self._counter, self._since = 0, 0.0
        self._answers: dict[int, DiskVerdict] = {}

    def show(self, counter: int, now: float) -> None:
        """The disk shows this counter from now on, if it is another one: it is judged anew."""
        if counter != self._counter:
            self._counter, self._since = counter, now
            self._answers = {}

    def on_verdict(self, verdict: DiskVerdict, members: Collection[int], now: float) -> None:
        """Take the answer of another disk. One to another counter or run changes nothing."""
        if (verdict.counter, verdict.run) == (self._counter, self.run):
            self._answers[verdict.judge] = verdict
            self.judge(members, now)

    def judge(self, members: Collection[int], now: float) -> None:
        """Decide whether the disk votes. `members`: the disks of its ring."""
        match self._accepted(members, now):
            case True:
                self.votes = True
            case _ if self.refusing(members):
                self.votes = False
            case _:
                pass

    def _accepted(self, members: Iterable[int], now: float) -> bool | None:
        answers = {judge: verdict.accepts for judge, verdict in self._answers.items()}
        waited = now - self._since >= GRACE_S
        return is_accepted(self.disk, members, answers, waited=waited)

    def refusing(self, members: Iterable[int]) -> list[int]:
        """Return the disks of the ring that refuse this one."""
        verdicts = (self._answers.get(member) for member in members)
        return [verdict.judge for verdict in verdicts if verdict and not verdict.accepts]

    def silent(self, members: Iterable[int]) -> list[int]:
        """Return the other disks of the ring that have not answered yet."""
        return [disk for disk in members if disk != self.disk and disk not in self._answers]

    def is_lost(self, members: Collection[int], now: float) -> bool:
        """True if the disk is given up: it was refused, and a majority of its ring votes without
        it."""
        if self._accepted(members, now) is not False:
            return False
        voters = sum(self._answers[member].votes for member in members if member in self._answers)
        return voters >= majority(len(members))
