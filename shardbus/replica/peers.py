"""The connections between the replicas of a store, and the reports that they carry.

Each replica connects to every other one that its settings or the ring name. It reports its disk, as
it has stored it: when the connection is up, when that changes, and at intervals. A report is
answered by one, with the verdict for the disk. So each knows which others are in reach, and
`Standing` decides whether it serves.

Source: docs/architecture.md; S2.75.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from shardbus.errors import ConfigError
from shardbus.guarded_log import GuardedLog
from shardbus.ids import Address
from shardbus.transport.network import Connection, Network
from shardbus.wire.replica_frames import ReplicaFrame, decode_head, encode_head

log = GuardedLog("shardbus.store")

REPORT_S, FOUNDED_REPORT_S = 0.5, 1.0
"""Between two reports, before this replica serves and after. Less than `disk_life.SILENT_S`."""
WAIT_LOG_S = 10.0
PEERS_MAX = 32
"""Connections to other replicas."""


class ReplicaPeers:
    """The connections of one replica to the others.

    Args:
        mark: the mark of the cluster in heads.
        report: returns the report of this disk.
        waits_for: returns for which others this replica waits, empty if it serves.
        on_frame: takes the kind and the body of a frame of another replica.
        on_up, on_down: called when another replica comes into reach, or goes.
        on_tick: called before each report.
        on_drop: called with the reason when a frame is dropped.
    """

    def __init__(
        self,
        mark: bytes,
        me: Address,
        report: Callable[[], bytes],
        waits_for: Callable[[], str],
        on_frame: Callable[[ReplicaFrame, bytes], None],
        on_up: Callable[[], None],
        on_down: Callable[[Address], None],
        on_tick: Callable[[], None],
        on_drop: Callable[[str], None],
    ) -> None:
        self._mark, self.me, self._report, self._waits_for = mark, me, report, waits_for
        self._on_frame_of, self._on_up_of, self._on_down_of = on_frame, on_up, on_down
        self._on_tick, self._on_drop = on_tick, on_drop
        self._links: dict[Address, Connection] = {}
        self._up: set[Address] = set()
        """Other replicas that are in reach."""
        self._timer: asyncio.TimerHandle | None = None
        self._waited_since = 0.0
        self._network: Network
        self._loop: asyncio.AbstractEventLoop

    def start(self, network: Network, addresses: Iterable[Address]) -> None:
        """Connect to the others."""
        self._loop, self._network = asyncio.get_running_loop(), network
        self._waited_since = self._loop.time()
        self.connect_to(addresses)
        self._tick()

    def connect_to(self, addresses: Iterable[Address]) -> None:
        """Connect to these, too, and end connections to others."""
        peers = [address for address in dict.fromkeys(addresses) if address != self.me]
        for peer in self._links.keys() - set(peers):
            self._links.pop(peer).close()
            self._on_down(peer)
        for peer in peers[:PEERS_MAX]:
            if peer not in self._links:
                self._links[peer] = self._network.connect(
                    peer,
                    self._on_frame,
                    partial(self._on_up, peer),
                    partial(self._on_down, peer),
                )

    def close(self) -> None:
        """Close the connections."""
        if self._timer is not None:
            self._timer.cancel()
        for link in self._links.values():
            link.close()

    def report_to_all(self) -> None:
        """Report to each of the others."""
        for peer in self._up:
            self.send(peer, ReplicaFrame.REPORT, self._report())

    def send(self, peer: Address, kind: ReplicaFrame, body: bytes) -> bool:
        """Send a frame. Returns False if the other replica is out of reach."""
        link = self._links.get(peer)
        if link is None or peer not in self._up:
            return False
        sent = link.send(encode_head(kind, self._mark), body)
        if not sent:
            self._on_drop("replica does not read")
        return sent

    def _on_frame(self, parts: list[bytes]) -> None:
        """An answer of another replica has come."""
        head = decode_head(parts[0]) if len(parts) == 2 else None
        if head is None or head.cluster != self._mark:
            self._on_drop("unexpected")
            return
        try:
            self._on_frame_of(head.kind, parts[1])
        except (msgspec.MsgspecError, ConfigError):
            self._on_drop("malformed")

    def _on_up(self, peer: Address) -> None:
        self._up.add(peer)
        self.send(peer, ReplicaFrame.REPORT, self._report())
        self._on_up_of()

    def _on_down(self, peer: Address) -> None:
        self._up.discard(peer)
        self._on_down_of(peer)

    def _tick(self) -> None:
        """Report, and log the replicas for which this one waits."""
        now = self._loop.time()
        self._on_tick()
        self.report_to_all()
        why = self._waits_for()
        if not why:
            self._waited_since = now
        elif now - self._waited_since >= WAIT_LOG_S:
            self._waited_since = now
            log.warning("the replica %s waits for %s", self.me, why)
        self._timer = self._loop.call_later(REPORT_S if why else FOUNDED_REPORT_S, self._tick)
