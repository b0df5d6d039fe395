"""Who watches whom, and what they see.

All nodes stand in a ring ordered by a hash of their names, the same on every node, in which
neighbours are unrelated to racks and address ranges. Each node sends heartbeats to the next
`monitored_by` nodes of the ring. Unreachable nodes among them are watched in addition to that
number, so that a crash of many does not leave the living unwatched. A node that somebody has begun
to suspect stays watched by that somebody until it answers again, even if the ring has changed.

A heartbeat is a request; its reply feeds the detector. A node that never answers is given a first
heartbeat on credit after `expected_response_after`, from which its silence is measured.

    verdict     a watched node became unreachable, or reachable again
    starved     this node's own timer came late: nobody is judged by the time that this node slept

Source: S1.19-S1.24, S3.15, B.5, B.7-B.9, C.27; T.U7, T.U8.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha1

from shardbus.ids import NodeId
from shardbus.membership.detector import PhiAccrual
from shardbus.membership.messages import Heartbeat, HeartbeatReply
from shardbus.settings import FailureDetectorSettings

REAPS_PER_HEARTBEAT = 4
"""How often per heartbeat interval suspicions are looked at."""


def ring_hash(node: NodeId) -> int:
    """The node's place in the ring: stable across processes and versions."""
    digest = sha1(str(node).encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "big")


def watched(
    me: NodeId, nodes: Iterable[NodeId], unreachable: Iterable[NodeId], monitored_by: int
) -> list[NodeId]:
    """Whom `me` watches: the next nodes of the ring until `monitored_by` reachable ones are among
    them."""
    ring = sorted((ring_hash(node), node) for node in {*nodes, me})
    start = bisect_left(ring, (ring_hash(me), me))
    skip = frozenset(unreachable)
    chosen: list[NodeId] = []
    reachable = 0
    for step in range(1, len(ring)):
        if reachable == monitored_by:
            break
        node = ring[(start + step) % len(ring)][1]
        chosen.append(node)
        reachable += node not in skip
    return chosen


@dataclass(frozen=True, slots=True)
class Verdict:
    """This node's own view of a watched node changed."""

    node: NodeId
    available: bool
    phi: float


@dataclass(slots=True)
class Watch:
    """One watched node. `since`: when its first heartbeat was sent."""

    detector: PhiAccrual
    since: float | None = None
    suspected: bool = False
    slow: float = 0.0
    """The longest interval so far that came near the acceptable pause."""


class Heartbeats:
    """Sends heartbeats, takes replies, gives verdicts."""

    def __init__(self, me: NodeId, settings: FailureDetectorSettings) -> None:
        self.me = me
        self.settings = settings
        self.watches: dict[NodeId, Watch] = {}
        self._sequence = 0
        self._beat_at: float | None = None
        self._reap_at: float | None = None

    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        if self._beat_at is None or self._reap_at is None:
            return None
        return min(self._beat_at, self._reap_at)

    @property
    def notices_within(self) -> float:
        """Seconds in which a watched node that is silent from now on is surely noticed."""
        settings = self.settings
        pause = settings.expected_response_after + settings.acceptable_heartbeat_pause
        return pause + 2 * settings.heartbeat_interval

    def late(self, now: float) -> float:
        """For how long this node has been starved: its own timer is so late, or 0."""
        due = self.deadline()
        late = 0.0 if due is None else now - due
        return late if late >= 2 * self.settings.heartbeat_interval else 0.0

    def start(self, now: float) -> None:
        """Begin to watch; the first heartbeats are due at once."""
        self._beat_at = self._reap_at = now

    def on_members(self, nodes: Sequence[NodeId], unreachable: Sequence[NodeId]) -> None:
        """The cluster consists of these nodes, of which these are unreachable."""
        wanted = watched(self.me, nodes, unreachable, self.settings.monitored_by)
        members = frozenset(nodes)
        kept = [n for n, w in self.watches.items() if w.suspected and n in members]
        self.watches = {
            node: self.watches.get(node) or Watch(self._detector())
            for node in dict.fromkeys([*wanted, *kept])
        }

    def on_reply(self, sender: NodeId, reply: HeartbeatReply, now: float) -> float | None:
        """A reply arrived. Returns the interval since the last one if it is alarmingly long."""
        watch = self.watches.get(sender)
        if watch is None or reply.sent_at > now:
            return None
        interval = watch.detector.heartbeat(now)
        alarming = self.settings.acceptable_heartbeat_pause * 2 / 3
        if interval is not None and 0 < alarming <= interval:
            watch.slow = max(watch.slow, interval)
            return interval
        return None

    def on_sign_of_life(self, sender: NodeId, now: float) -> None:
        """Something else than a reply arrived."""
        if sender in self.watches:
            self.watches[sender].detector.touch(now)

    def tick(self, now: float) -> tuple[list[tuple[NodeId, Heartbeat]], list[Verdict], float]:
        """What is due: heartbeats to send, verdicts that changed, and for how long this node was
        starved."""
        if self._beat_at is None or self._reap_at is None:
            return [], [], 0.0
        interval = self.settings.heartbeat_interval
        starved = self.late(now)
        if starved:
            for watch in self.watches.values():
                watch.detector.credit(starved)
                watch.since = None if watch.since is None else watch.since + starved
        beats: list[tuple[NodeId, Heartbeat]] = []
        if now >= self._beat_at:
            self._beat_at = now + interval
            beats = self._beat(now)
        verdicts: list[Verdict] = []
        if now >= self._reap_at:
            self._reap_at = now + interval / REAPS_PER_HEARTBEAT
            verdicts = self._reap(now)
        return beats, verdicts, starved

    def phis(self, now: float) -> dict[NodeId, float]:
        """The suspicion of every watched node."""
        return {node: watch.detector.phi(now) for node, watch in self.watches.items()}

    def _beat(self, now: float) -> list[tuple[NodeId, Heartbeat]]:
        self._sequence += 1
        for watch in self.watches.values():
            if watch.since is None:
                watch.since = now
        return [(node, Heartbeat(self._sequence, now)) for node in self.watches]

    def _reap(self, now: float) -> list[Verdict]:
        verdicts = []
        for node, watch in self.watches.items():
            detector = watch.detector
            due = watch.since is not None and (
                now - watch.since >= self.settings.expected_response_after
            )
            if not detector.monitoring and due:
                detector.heartbeat(now)
            available = detector.available(now)
            if available is watch.suspected:
                watch.suspected = not available
                verdicts.append(Verdict(node, available, detector.phi(now)))
        return verdicts

    def _detector(self) -> PhiAccrual:
        settings = self.settings
        return PhiAccrual(
            threshold=settings.threshold,
            max_sample_size=settings.max_sample_size,
            min_std_deviation=settings.min_std_deviation,
            acceptable_pause=settings.acceptable_heartbeat_pause,
            first_estimate=settings.heartbeat_interval,
        )
