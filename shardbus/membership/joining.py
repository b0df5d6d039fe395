"""Joining, as the one who joins lives it.

    contacting ──InitAck──> joining ──Welcome──> (member)
        ^                      │
        └──── no Welcome ──────┘

- InitJoin goes to every seed and is repeated until one acknowledges; Join goes to the first that
  does.
- Only the first seed of the list may found a cluster, and only when no other seed is in one: every
  other seed said so, or none acknowledged within `seed_node_timeout`. Otherwise two islands could
  arise at a cold start. A member on its way out is in a cluster still, though it takes nobody in:
  it does not answer an InitJoin. Nor does it count as in none that it answers a Join by InitNack,
  for it had acknowledged: then the seeds are asked anew.
- Both sides compare greetings: cluster name, protocol version, settings that must be equal. A
  refusal names both values and ends the attempt: waiting would not mend it. Of many differences it
  names the first few, and of long texts their beginnings: what does not fit the wire never comes.
- A Join without an answer is repeated, and after `retry_unsuccessful_join_after` the seeds are
  asked anew.
- With `shutdown_after_unsuccessful_join` set, a node that is no member by then gives up visibly.

Source: S1.6, S1.32, S1.33, S3.11, B.1-B.3; T.U10, T.U12, T.U13.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from shardbus.config.settings import ClusterSettings
from shardbus.ids import Address, NodeId
from shardbus.membership.events import SendControl
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Member
from shardbus.membership.messages import Greeting, InitJoin, Join

ASK_AGAIN_AFTER = 0.5
"""Seconds between two InitJoins, or Joins, to the same node."""
DIFFERENCES_NAMED = 5
NAME_SHOWN, VALUE_SHOWN = 300, 160
"""What a refusal says, so that it never has more than `TEXT_MAX` characters."""


def disagreement(mine: Greeting, theirs: Greeting) -> str:
    """Why the two sides cannot be in one cluster, with both values; empty if they can."""
    if mine.cluster != theirs.cluster:
        return f"cluster name {_shown(theirs.cluster)} is not {_shown(mine.cluster)}"
    if mine.protocol != theirs.protocol:
        return f"membership protocol {theirs.protocol} is not {mine.protocol}"
    different = [
        (name, theirs.settings[name], value)
        for name, value in sorted(mine.settings.items())
        if theirs.settings.get(name, value) != value
    ]
    named = [
        f"setting {_cut(name, NAME_SHOWN)} is {_shown(one)} on one side "
        f"and {_shown(other)} on the other"
        for name, one, other in different[:DIFFERENCES_NAMED]
    ]
    if len(different) > len(named):
        named.append(f"and {len(different) - len(named)} more")
    return "; ".join(named)


def _shown(value: str) -> str:
    return _cut(repr(value), VALUE_SHOWN)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


class JoinPhase(Enum):
    """Where the attempt stands."""

    CONTACTING = auto()
    JOINING = auto()


class JoinStep(Enum):
    """What the cluster machine must do besides sending."""

    NONE = auto()
    FOUND_CLUSTER = auto()
    ENTER = auto()
    """Become a member, with the progress's gossip as the state."""
    TAKE_IN = auto()
    """Somebody else became one: the progress's gossip is the new state."""
    GIVE_UP = auto()
    """Stop: the cluster refuses this node, for the progress's reason."""
    FIND_NOBODY = auto()
    """Stop: no seed has taken this node in, in all the time that it was to try."""
    DROP = auto()
    """The message meant nothing, for the progress's reason."""


@dataclass(frozen=True, slots=True)
class JoinProgress:
    """The result of a step of joining."""

    send: tuple[SendControl, ...] = ()
    step: JoinStep = JoinStep.NONE
    reason: str = ""
    gossip: Gossip | None = None
    doubted: NodeId | None = None
    """A member that must be probed first."""


class Joiner:
    """One node's attempt to join by seeds."""

    def __init__(
        self, me: Member, greeting: Greeting, seeds: Sequence[Address], settings: ClusterSettings
    ) -> None:
        self.me = me
        self.greeting = greeting
        self.settings = settings
        self.others = [seed for seed in dict.fromkeys(seeds) if seed != me.node.address]
        self.first = bool(seeds) and seeds[0] == me.node.address
        self.phase = JoinPhase.CONTACTING
        self.target: NodeId | None = None
        self.nacked: dict[Address, None] = {}
        self.acked: dict[Address, NodeId] = {}
        self._began_at = 0.0
        self._phase_at = 0.0
        self._ask_at = 0.0

    def start(self, now: float) -> JoinProgress:
        """Contact the seeds."""
        self._began_at = now
        self._contact(now)
        return self.tick(now)

    def deadline(self) -> float:
        """When `tick` has something to do."""
        return min([self._ask_at, *(at for at, _ in self._limits())])

    def tick(self, now: float) -> JoinProgress:
        """Do what is due."""
        for at, step in self._limits():
            if now >= at and step is not JoinStep.NONE:
                return JoinProgress((), step, self._why_not(now))
            if now >= at:
                self._contact(now)
        if now < self._ask_at:
            return JoinProgress()
        self._ask_at = now + ASK_AGAIN_AFTER
        if self.phase is JoinPhase.JOINING and self.target is not None:
            return JoinProgress((SendControl(self.target, Join(self.greeting, self.me)),))
        if not self.others:
            return JoinProgress((), JoinStep.FOUND_CLUSTER if self.first else JoinStep.NONE)
        return JoinProgress(
            tuple(SendControl(seed, InitJoin(self.greeting)) for seed in self.others)
        )

    def on_ack(self, sender: NodeId, greeting: Greeting, now: float) -> JoinProgress:
        """A seed would take us: the first that says so gets the Join."""
        if why := disagreement(self.greeting, greeting):
            return JoinProgress((), JoinStep.GIVE_UP, why)
        self.acked[sender.address] = sender
        if self.phase is JoinPhase.JOINING:
            return JoinProgress()
        self.phase, self.target = JoinPhase.JOINING, sender
        self._phase_at = self._ask_at = now
        return self.tick(now)

    def on_nack(self, sender: NodeId, now: float) -> JoinProgress:
        """A seed is no member itself. If that is true of all, the first may found the cluster."""
        if self.phase is JoinPhase.JOINING and sender == self.target:
            self._contact(now)
        if self.acked.get(sender.address) != sender:
            self.nacked[sender.address] = None
        everyone = all(seed in self.nacked for seed in self.others)
        if self.first and self.phase is JoinPhase.CONTACTING and everyone:
            return JoinProgress((), JoinStep.FOUND_CLUSTER)
        return JoinProgress()

    def _contact(self, now: float) -> None:
        self.phase, self.target = JoinPhase.CONTACTING, None
        self.nacked = {}
        self._phase_at = self._ask_at = now

    def _limits(self) -> list[tuple[float, JoinStep]]:
        limits = []
        if self.settings.shutdown_after_unsuccessful_join:
            at = self._began_at + self.settings.shutdown_after_unsuccessful_join
            limits.append((at, JoinStep.FIND_NOBODY))
        if self.phase is JoinPhase.JOINING:
            at = self._phase_at + self.settings.retry_unsuccessful_join_after
            limits.append((at, JoinStep.NONE))
        elif self.first:
            at = self._phase_at + self.settings.seed_node_timeout
            limits.append((at, JoinStep.FOUND_CLUSTER))
        return limits

    def _why_not(self, now: float) -> str:
        tried = ", ".join(map(str, self.others)) or "none"
        return f"no seed took this node in within {now - self._began_at:.0f} s; tried {tried}"
