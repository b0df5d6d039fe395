"""The rows that the disks of a store owe each other: merging after a ring change, and repair.

`moves` decides which digests and buckets are compared. This is its driver: it sends requests after
the sync, hands in answers, wakes at deadlines, and begins a repair when another replica comes into
reach and every `interval` seconds. So a replica that was away gets the rows that it missed, even if
no store reads them. A repair has passed once every comparison has ended, each by its answers. At
most `moves.ASKED_MAX` comparisons are under way at a time.

Source: docs/architecture.md; S3.85.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from shardbus.replica.turns import DiskTurns
from shardbus.replication.moves import (
    AskDisk,
    RingDisk,
)
from shardbus.replication.ring import AdoptRing, ReplicaRing
from shardbus.wire.disk_frames import (
    decode_disk_answer,
    decode_disk_request,
    encode_disk_answer,
    encode_disk_request,
)
from shardbus.wire.replica_frames import ReplicaFrame, encode_body

SOON_S = 1.0
"""Seconds after which a repair follows a replica that came into reach: others may, too."""


class SendToDisk(Protocol):
    """Sends a frame to a disk. Returns False if it is out of reach."""

    def __call__(self, disk: int, kind: ReplicaFrame, body: bytes) -> bool: ...


class DiskExchange:
    """The requests and answers between one disk and the others.

    Args:
        adopt: takes a ring that another disk has shown.
        may_answer: True while this disk answers others.
        interval: seconds between two repairs.
    """

    def __init__(
        self,
        place: RingDisk,
        turns: DiskTurns,
        send: SendToDisk,
        adopt: Callable[[ReplicaRing], list[AskDisk]],
        may_answer: Callable[[], bool],
        clock: Callable[[], float],
        interval: float,
    ) -> None:
        self._place, self._turns, self._send = place, turns, send
        self._adopt, self._may_answer, self._clock = adopt, may_answer, clock
        self._interval = interval
        self._timer: asyncio.TimerHandle | None = None
        self._repair: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._loop: asyncio.AbstractEventLoop
        self.repairs = 0
        self._passed_at = clock()
        """When the last repair passed; the start before the first one."""
        self._unanswered: int | None = None
        """During a repair: the comparisons that were not answered, before it began."""

    def start(self) -> None:
        """Begin to merge the partitions that are not merged, and to repair."""
        self._loop = asyncio.get_running_loop()
        self.ask(self._place.tick(self._clock()))
        self._repair_in(self._interval)

    def close(self) -> None:
        """Send no further request."""
        for timer in (self._timer, self._repair):
            if timer is not None:
                timer.cancel()

    # ---- requests of this disk

    def ask(self, effects: list[AskDisk]) -> None:
        """Send requests after a sync of the rows and places in memory."""
        self._note_pass()
        if effects:
            self._turns.after_sync(lambda: self._carry_out(effects))
        self._arm()

    def _carry_out(self, effects: list[AskDisk]) -> None:
        for disk, request in effects:
            if isinstance(request, AdoptRing):
                self._send(disk, ReplicaFrame.ADOPT, encode_body(request.ring))
            else:
                self._send(disk, ReplicaFrame.DIGESTS, encode_disk_request(request))

    def on_rows(self, body: bytes) -> None:
        """Take the answer of another disk.

        Raises:
            msgspec.MsgspecError: it is none.
        """
        disk, answer = decode_disk_answer(body)
        effects = self._place.take(disk, answer, self._clock())
        self._turns.soon()
        self.ask(effects)

    def _arm(self) -> None:
        """Wake at the next deadline of the place."""
        due = self._place.deadline()
        if self._timer is not None and (due is None or due != self._due):
            self._timer.cancel()
            self._timer = None
        if due is not None and self._timer is None:
            self._due = due
            self._timer = self._loop.call_later(max(due - self._clock(), 0.0), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.ask(self._place.tick(max(self._clock(), self._due)))

    # ---- repair

    def repair_soon(self) -> None:
        """Compare with the other disks: one of them came into reach."""
        self._repair_in(SOON_S)

    def _repair_in(self, seconds: float) -> None:
        if self._repair is not None:
            self._repair.cancel()
        self._repair = self._loop.call_later(seconds, self._begin_repair)

    def _begin_repair(self) -> None:
        if not self._may_answer():
            self._repair_in(min(SOON_S, self._interval))
            return
        self._repair_in(self._interval)
        if len(self._place.ring.members) > 1:
            self.repairs += 1
            self._unanswered = self._place.counts["unanswered"]
        self.ask(self._place.repair(self._clock()))

    def _note_pass(self) -> None:
        """Note the end of a repair in which every comparison was answered."""
        if self._unanswered is None or self._place.comparing:
            return
        if self._place.counts["unanswered"] == self._unanswered:
            self._passed_at = self._clock()
        self._unanswered = None

    @property
    def facts(self) -> dict[str, float]:
        """The number of repairs that have begun, the counts of comparisons and rows, the seconds
        since a repair has passed, and the interval."""
        age = self._clock() - self._passed_at if len(self._place.ring.members) > 1 else 0.0
        counts = self._place.counts
        return {"begun": self.repairs, **counts, "age": age, "interval": self._interval}

    # ---- requests of other disks

    def on_digests(self, body: bytes, back: Callable[[bytes], bool]) -> bool:
        """Answer another disk after the sync. `back` sends a part, and returns False if it cannot.
        Returns False if this disk answers nothing now.

        Raises:
            msgspec.MsgspecError: it is no request.
        """
        request = decode_disk_request(body)
        if not self._may_answer():
            return False
        answer = self._place.show(request, self._clock())

        def leave() -> None:
            for part in encode_disk_answer(self._place.disk, answer):
                if not back(part):
                    return

        self._turns.after_sync(leave)
        return True

    def on_ring(self, ring: ReplicaRing) -> None:
        """Another process has shown a ring."""
        effects = self._adopt(ring)
        self._turns.soon()
        self.ask(effects)
