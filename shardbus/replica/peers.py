"""The reports between the replicas of a store.

Each replica connects to each other one, and reports what its disk has stored of itself: when the
connection is up, when that changes, and at intervals. A report is answered by one. So each knows
which others are in reach, and `Founding` decides whether it serves.

Source: docs/architecture.md; S2.75.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec

from shardbus.errors import ConfigError
from shardbus.guarded_log import GuardedLog
from shardbus.ids import Address
from shardbus.replication.founding import DiskReport, Founding
from shardbus.replication.ring import majority
from shardbus.transport.network import Connection, Network
from shardbus.wire.replica_frames import (
    DiskState,
    ReplicaFrame,
    ReportBody,
    decode_head,
    decode_report,
    encode_head,
    encode_report,
)

log = GuardedLog("shardbus.store")

REPORT_S, FOUNDED_REPORT_S = 0.5, 5.0
WAIT_LOG_S = 10.0


class ReplicaPeers:
    """The connections of one replica to the others.

    Args:
        mark: the mark of the cluster in heads.
        founding: decides; a report may change it.
        stored: returns what the disk has stored of itself.
        on_change: called when the disk must store the state of `founding`.
        on_drop: called with the reason when a frame is dropped.
    """

    def __init__(
        self,
        mark: bytes,
        founding: Founding,
        stored: Callable[[], DiskState],
        on_change: Callable[[], None],
        on_drop: Callable[[str], None],
    ) -> None:
        self._mark, self._founding, self._stored = mark, founding, stored
        self._on_change, self._on_drop = on_change, on_drop
        self.me, self.addresses = founding.me, tuple(founding.peers)
        self._links: dict[Address, Connection] = {}
        self._up: set[Address] = set()
        """Other replicas that are in reach."""
        self._timer: asyncio.TimerHandle | None = None
        self._waited_since = 0.0
        self._loop: asyncio.AbstractEventLoop

    def start(self, network: Network) -> None:
        """Connect to the others."""
        self._loop = asyncio.get_running_loop()
        self._waited_since = self._loop.time()
        for peer in self.addresses:
            if peer != self.me:
                self._links[peer] = network.connect(
                    peer,
                    self._on_frame,
                    partial(self._on_up, peer),
                    partial(self._on_down, peer),
                )
        self._tick()

    def close(self) -> None:
        """Close the connections."""
        if self._timer is not None:
            self._timer.cancel()
        for link in self._links.values():
            link.close()

    @property
    def suffice(self) -> bool:
        """True if the others in reach are a majority without this one."""
        return len(self._up) >= majority(len(self.addresses))

    @property
    def serves(self) -> bool:
        """True if the store is founded, and no other replica has a copy of this disk."""
        return self._stored().founded and not self._founding.is_copied

    @property
    def waits_for(self) -> str:
        """The replicas for which this one waits, and why; empty if it serves."""
        if self.serves:
            return ""
        reasons = self._founding.waits_for
        if not reasons:
            return "the first replica to found the store"
        return "; ".join(f"{peer}: {reason}" for peer, reason in reasons.items())

    def on_report(self, body: bytes) -> bool:
        """Take a report. Returns True if it needs an answer.

        Raises:
            msgspec.MsgspecError, ConfigError: it is none.
        """
        report = decode_report(body)
        made = DiskReport(report.disk, report.ring, report.founded, report.peers)
        if self._founding.on_report(Address.parse(report.sender), made):
            self._on_change()
        return not report.answers

    def report(self, *, answers: bool) -> bytes:
        """Return the report of what this disk has stored of itself."""
        peers, stored = tuple(map(str, self.addresses)), self._stored()
        disk = self._founding.disk
        return encode_report(
            ReportBody(str(self.me), disk, stored.ring, stored.founded, peers, answers)
        )

    def report_to_all(self) -> None:
        """Report to each of the others."""
        for peer in self._links:
            self._report_to(peer)

    def _report_to(self, peer: Address) -> None:
        if (link := self._links.get(peer)) is not None:
            head = encode_head(ReplicaFrame.REPORT, self._mark)
            if not link.send(head, self.report(answers=False)):
                self._on_drop("replica does not read")

    def _on_frame(self, parts: list[bytes]) -> None:
        """The answer to a report has come."""
        head = decode_head(parts[0]) if len(parts) == 2 else None
        if head is None or head.cluster != self._mark or head.kind is not ReplicaFrame.REPORT:
            self._on_drop("unexpected")
            return
        try:
            self.on_report(parts[1])
        except (msgspec.MsgspecError, ConfigError):
            self._on_drop("malformed")

    def _on_up(self, peer: Address) -> None:
        self._up.add(peer)
        self._report_to(peer)

    def _on_down(self, peer: Address) -> None:
        self._up.discard(peer)
        self._founding.on_silent(peer)

    def _tick(self) -> None:
        """Report, and log the replicas for which this one waits."""
        now = self._loop.time()
        self.report_to_all()
        if self.serves:
            self._waited_since = now
        elif now - self._waited_since >= WAIT_LOG_S:
            self._waited_since = now
            log.warning("the replica %s waits for %s", self.me, self.waits_for)
        pause = FOUNDED_REPORT_S if self.serves else REPORT_S
        self._timer = self._loop.call_later(pause, self._tick)
