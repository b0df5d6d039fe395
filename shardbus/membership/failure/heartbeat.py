"""Heartbeats: requests to the watched nodes, their replies, and verdicts.

Each node sends heartbeats to the next nodes of a ring (`ring`). A node that this observer suspects
stays watched by it until it answers again, even if the ring has changed and it is no longer among
the next nodes: otherwise the observer's flag would never be cleared.

A heartbeat is a request, and its reply feeds the detector: it proves that both directions work. A
node that never answers gets a first heartbeat on credit after `expected_response_after`, and its
silence is measured from there. The node's own requests prove nothing: it may send, and receive
nothing. Its gossip ends a silence, because a node gossips with members that it reaches.

    verdict     a watched node became unreachable, or reachable again
    starved     this node's own timer was late: that time does not count as silence of others
    notice      a watched node answered slowly, or reports that it is starved

The accepted silence is extended by a patience: this node's own, plus the lag that the watched node
reported in its last heartbeat or reply (`local_health`). When one is suspected, so are those that
are more than half as long silent, until they reply: a node that hears nothing reports all at once,
so that the others see whose links are bad. A node that leaves `unanswered_max`
heartbeats in a row without a sign of life is unreachable in any case. So is one that answers too
late for long, where the others cannot go on without it (`prompt_within`).

Source: S1.16-S1.24, B.7-B.9, B.25, N.12.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import msgspec

from shardbus.config.settings import FailureDetectorSettings
from shardbus.ids import NodeId
from shardbus.membership.failure.local_health import LocalHealth
from shardbus.membership.failure.phi_accrual import PhiAccrual
from shardbus.membership.failure.ring import watched
from shardbus.membership.messages import Heartbeat, HeartbeatReply
from shardbus.membership.view import NodeStarved, SlowHeartbeat
from shardbus.membership.vitals import Vitals

REAPS_PER_HEARTBEAT = 4
"""Checks for silent nodes per heartbeat interval."""
SILENT_BEATS = 2
"""A node that left this many heartbeats unanswered is silent, though not yet suspected."""


class Verdict(msgspec.Struct, frozen=True):
    """This node's own judgement of a watched node changed."""

    node: NodeId
    available: bool


class WatchedNode(msgspec.Struct):
    """One watched node. `since`: when its first heartbeat was sent. `prompt_at`: when it last
    answered one in time."""

    detector: PhiAccrual
    since: float | None = None
    prompt_at: float = -inf
    suspected: bool = False
    silent: bool = False
    """It was suspected with another one, and has not replied since."""
    answered: int = 0
    """Sequence number of the last heartbeat that was sent when the node gave a sign of life."""
    lag: float = 0.0
    """Seconds by which the node's timers are late, as it reports."""
    starvation_reported: bool = False
    """True if a NodeStarved notice was given for the present lag."""
    vitals: Vitals | None = None
    """The node's vitals, in its last reply."""
    vitals_at: float = 0.0


class Heartbeats:
    """Sends heartbeats, handles replies, returns verdicts. `prompt_within`: seconds within which a
    node must answer a heartbeat, at least now and then."""

    def __init__(
        self, me: NodeId, settings: FailureDetectorSettings, prompt_within: float = inf
    ) -> None:
        self.me = me
        self.settings = settings
        self.prompt_within = prompt_within
        self.watches: dict[NodeId, WatchedNode] = {}
        self.health = LocalHealth(settings)
        self.vitals: Vitals | None = None
        """This node's own, for its replies."""
        self._sequence = 0
        self._false_alarm = 0
        self._beat_at: float | None = None
        self._reap_at: float | None = None

    def deadline(self) -> float | None:
        """Return when `tick` is due."""
        if self._beat_at is None or self._reap_at is None:
            return None
        return min(self._beat_at, self._reap_at)

    @property
    def notices_within(self) -> float:
        """Seconds within which a watched node that falls silent now is surely noticed."""
        settings = self.settings
        pause = settings.expected_response_after + settings.acceptable_heartbeat_pause
        return pause + self.health.patience + 2 * settings.heartbeat_interval

    @property
    def _slow_after(self) -> float:
        """Seconds without a prompt answer after which a node is suspected, though it answers."""
        return self.prompt_within + SILENT_BEATS * self.settings.heartbeat_interval

    def late(self, now: float) -> float:
        """Return for how many seconds this node has been starved: the lateness of its own timer, or
        0."""
        late = self._overdue(now)
        return late if late >= 2 * self.settings.heartbeat_interval else 0.0

    def _overdue(self, now: float) -> float:
        due = self.deadline()
        return 0.0 if due is None else max(0.0, now - due)

    def start(self, now: float) -> None:
        """Start to watch. The first heartbeats are due at once."""
        self._beat_at = self._reap_at = now

    def on_members(self, nodes: Sequence[NodeId], unreachable: Sequence[NodeId]) -> None:
        """Watch this set of nodes, some of which are unreachable. Suspected members stay
        watched."""
        subjects = watched(self.me, nodes, unreachable, self.settings.monitored_by)
        members = frozenset(nodes)
        kept = [n for n, w in self.watches.items() if w.suspected and n in members]
        self.watches = {
            node: self.watches.get(node) or WatchedNode(self._detector(), answered=self._sequence)
            for node in dict.fromkeys([*subjects, *kept])
        }

    def beat(self, now: float) -> Heartbeat:
        """Return a heartbeat for a node that is not watched."""
        return Heartbeat(self._sequence, now, self.health.lag)

    def answer(
        self, beat: Heartbeat, now: float, *, consent: bool = False, vitals: bool = True
    ) -> HeartbeatReply:
        """Return the reply to a heartbeat. It may be sent before this node's own late timer
        fires. `vitals`: the other node's build can read how busy this one is."""
        late = self._overdue(now)
        lag = min(late, self.health.patience_max) if self.health.counts(late) else 0.0
        busy = self.vitals if vitals else None
        return HeartbeatReply(beat.sequence, beat.sent_at, max(lag, self.health.lag), consent, busy)

    def on_beat(self, sender: NodeId, beat: Heartbeat) -> list[NodeStarved]:
        """Record a heartbeat of that node."""
        watch = self.watches.get(sender)
        return self._on_lag(sender, watch, beat.lag) if watch else []

    def on_reply(
        self, sender: NodeId, reply: HeartbeatReply, now: float
    ) -> list[SlowHeartbeat | NodeStarved]:
        """Record a reply. Return notices: an alarmingly long interval since the last reply, a
        starved node."""
        watch = self.watches.get(sender)
        if watch is None or reply.sent_at > now:
            return []
        if watch.suspected and not self.health.counts(reply.lag):
            self._on_false_alarm()
        interval = watch.detector.heartbeat(now)
        if reply.vitals is not None:
            watch.vitals, watch.vitals_at = reply.vitals, now
        watch.answered, watch.silent = self._sequence, False
        if now - reply.sent_at <= self.prompt_within:
            watch.prompt_at = now
        notices: list[SlowHeartbeat | NodeStarved] = [*self._on_lag(sender, watch, reply.lag)]
        alarming = self.settings.acceptable_heartbeat_pause * 2 / 3
        if interval is not None and 0 < alarming <= interval:
            notices.append(SlowHeartbeat(sender, interval))
        return notices

    def on_sign_of_life(self, sender: NodeId, now: float) -> None:
        """Record gossip of that node."""
        watch = self.watches.get(sender)
        if watch is not None:
            watch.detector.touch(now)
            if not watch.suspected:
                watch.answered = self._sequence

    def tick(self, now: float) -> tuple[list[tuple[NodeId, Heartbeat]], list[Verdict], float]:
        """Perform due actions. Return heartbeats to send, verdicts, and for how many seconds this
        node was starved."""
        if self._beat_at is None or self._reap_at is None:
            return [], [], 0.0
        interval = self.settings.heartbeat_interval
        late, starved = self._overdue(now), self.late(now)
        if starved or self.health.counts(late):
            self._credit_silence(late)
        beats: list[tuple[NodeId, Heartbeat]] = []
        if now >= self._beat_at:
            self._beat_at = now + interval
            self._judge_own_health(late)
            beats = self._send_beats(now)
        verdicts: list[Verdict] = []
        if now >= self._reap_at:
            self._reap_at = now + interval / REAPS_PER_HEARTBEAT
            verdicts = self._reap(now)
        return beats, verdicts, starved

    def phis(self, now: float) -> dict[NodeId, float]:
        """Return the suspicion (phi) of each watched node."""
        return {node: watch.detector.phi(now) for node, watch in self.watches.items()}

    def vitals_known(self, now: float) -> dict[NodeId, tuple[Vitals, float]]:
        """Return the vitals of this node and of the nodes that it watches, with their ages in
        seconds."""
        by_node = {
            node: (watch.vitals, now - watch.vitals_at)
            for node, watch in self.watches.items()
            if watch.vitals is not None
        }
        if self.vitals is not None:
            by_node[self.me] = (self.vitals, 0.0)
        return by_node

    def _send_beats(self, now: float) -> list[tuple[NodeId, Heartbeat]]:
        self._sequence += 1
        for watch in self.watches.values():
            if watch.since is None:
                watch.since = now
        beat = self.beat(now)
        return [(node, beat) for node in self.watches]

    def _credit_silence(self, late: float) -> None:
        """Exclude the time in which this node could receive nothing from the silence of others."""
        self.health.on_late(late)
        for watch in self.watches.values():
            watch.detector.credit(late)
            watch.since = None if watch.since is None else watch.since + late
            watch.prompt_at += late

    def _judge_own_health(self, late: float) -> None:
        """Before a beat: rate this node by the replies to the last beats."""
        if not self.health.on or self.health.counts(late):
            return
        trusted = [watch for watch in self.watches.values() if not watch.suspected]
        silent = sum(self._unanswered(watch) >= SILENT_BEATS for watch in trusted)
        if silent > 1 and 2 * silent > len(trusted):
            self.health.on_silent_together()
        else:
            self.health.on_good_beat()

    def _on_false_alarm(self) -> None:
        """Count one fault, however many nodes answer again between two beats."""
        if self.health.on and self._false_alarm != self._sequence:
            self._false_alarm = self._sequence
            self.health.on_false_alarm()

    def _on_lag(self, sender: NodeId, watch: WatchedNode, lag: float) -> list[NodeStarved]:
        watch.lag = lag
        interval = self.settings.heartbeat_interval
        news = lag >= 2 * interval and not watch.starvation_reported
        watch.starvation_reported = news or (watch.starvation_reported and lag >= interval)
        return [NodeStarved(sender, lag)] if news else []

    def _unanswered(self, watch: WatchedNode) -> int:
        """Return the number of heartbeats sent since the last sign of life."""
        return 0 if watch.since is None else self._sequence - watch.answered

    def _reap(self, now: float) -> list[Verdict]:
        verdicts = self._judge(now)
        fell = [self._unanswered(self.watches[v.node]) for v in verdicts if not v.available]
        return verdicts + self._silent_together(min(fell)) if fell else verdicts

    def _silent_together(self, unanswered: int) -> list[Verdict]:
        """Suspect the nodes, too, that are more than half as long silent as one that is suspected
        now: if it is this node that hears nothing, one version shows that to the others."""
        least = max(SILENT_BEATS, unanswered // 2 + 1)
        verdicts = []
        for node, watch in self.watches.items():
            if not watch.suspected and self._unanswered(watch) >= least:
                watch.suspected = watch.silent = True
                verdicts.append(Verdict(node, available=False))
        return verdicts

    def _judge(self, now: float) -> list[Verdict]:
        verdicts = []
        for node, watch in self.watches.items():
            detector = watch.detector
            due = watch.since is not None and (
                now - watch.since >= self.settings.expected_response_after
            )
            if not detector.monitoring and due:
                detector.heartbeat(now)
            detector.patience = self.health.patience_with(watch.lag)
            slow = due and now - max(watch.since or 0.0, watch.prompt_at) > self._slow_after
            silent = slow or watch.silent or self._unanswered_too_long(watch)
            available = detector.available(now) and not silent
            if available is watch.suspected:
                watch.suspected = not available
                verdicts.append(Verdict(node, available))
        return verdicts

    def _unanswered_too_long(self, watch: WatchedNode) -> bool:
        return self.health.on and self._unanswered(watch) >= self.health.unanswered_max

    def _detector(self) -> PhiAccrual:
        settings = self.settings
        return PhiAccrual(
            threshold=settings.threshold,
            max_sample_size=settings.max_sample_size,
            min_std_deviation=settings.min_std_deviation,
            acceptable_pause=settings.acceptable_heartbeat_pause,
            first_estimate=settings.heartbeat_interval,
        )
