"""The messages of membership.

Requests to join travel on a connection that the joining node opened; the answers come back on it.

    way                 message         answer
    ROUTER, to a seed   InitJoin        InitAck, InitNack (not a member yet), JoinRefused; none
                                        from a member on its way out
    ROUTER, to a member Trial           TrialResult, more than one
    ROUTER, to a member Join            Welcome, InitNack, JoinRefused
    PUB, to one node    Heartbeat       HeartbeatReply
    PUB, to one node    GossipStatus    GossipState if the receiver has more, GossipStatus if less
    PUB, to one node    GossipState     GossipState or GossipSeen, if that is new to the sender
    PUB, to one node    GossipSeen      as GossipStatus, but none if the versions are equal

Messages over PUB may be lost without harm: gossip and heartbeats repeat.

Source: S1.23, S1.34, S1.40-S1.44, B.1-B.3.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shardbus.ids import Address, NodeId
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Member
from shardbus.membership.vector_clock import VectorClock
from shardbus.membership.vitals import Vitals

PROTOCOL = 9
"""Version of these messages and of their meaning. It grows when older nodes cannot take part."""
OLDEST_PROTOCOL = 9
"""The lowest version that this build speaks with. Nodes whose ranges do not meet refuse each other;
docs/upgrading.md says how long a version stays in the range."""

NAME_MAX = 256
SETTING_NAME_MAX = 512
"""Characters. A setting of an entity type contains the type's name, which may have `NAME_MAX`."""
SETTINGS_MAX = 20_000
"""Settings in a greeting: four for each of some thousand types, and the cluster's."""
TEXT_MAX = 4096
"""Characters, at most, of a setting's value and of a reason."""


class Greeting(msgspec.Struct, frozen=True):
    """The facts on which both sides of a join must agree."""

    cluster: str
    protocol: int
    settings: Mapping[str, str]
    """Settings that must be equal on all nodes, by name, as text. A name that only one side has is
    not compared."""
    oldest: int = 0
    """The lowest protocol that the node speaks; 0 is `protocol` itself, as in builds before 9."""
    gossip: Address | None = None
    """Where others receive the node's gossip. A node that names it takes part in trials; earlier
    builds name none."""

    @property
    def lowest(self) -> int:
        """The lowest protocol that the node speaks."""
        return self.oldest or self.protocol


class InitJoin(msgspec.Struct, frozen=True):
    """Ask a seed whether it admits the sender."""

    greeting: Greeting


class InitAck(msgspec.Struct, frozen=True):
    """The seed admits the sender of InitJoin, which now sends Join with this cookie. It proves that
    the sender receives messages."""

    greeting: Greeting
    cookie: int = 0


class InitNack(msgspec.Struct, frozen=True):
    """The seed is not a member yet. As the answer to a Join, also: the member is on its way out."""


class Trial(msgspec.Struct, frozen=True):
    """Ask a member to find out whether it reaches the sender (`trials`). The cookie is the one in
    the member's InitAck."""

    member: Member
    cookie: int = 0


class TrialResult(msgspec.Struct, frozen=True):
    """A member's findings. Each text says why a way to the receiver does not work, and is empty if
    it does. `others`: the places of other members that can try the receiver."""

    messages: str
    gossip: str
    others: tuple[Address, ...] = ()


class Join(msgspec.Struct, frozen=True):
    """Ask a member to admit the sender. The cookie is the one in the member's InitAck."""

    greeting: Greeting
    member: Member
    cookie: int = 0


class JoinRefused(msgspec.Struct, frozen=True):
    """The sender can never be admitted. `reason` names the differences, with both values, in at
    most `TEXT_MAX` characters."""

    reason: str


class Welcome(msgspec.Struct, frozen=True):
    """The sender of Join is admitted. `gossip` is the state with it. Tombstones carry ages."""

    gossip: Gossip


class Heartbeat(msgspec.Struct, frozen=True):
    """Ask for a sign of life. `sent_at` is the sender's clock, and only the sender reads it. `lag`:
    seconds by which the sender's timers have been late lately."""

    sequence: int
    sent_at: float
    lag: float = 0.0


class HeartbeatReply(msgspec.Struct, frozen=True):
    """A sign of life. The first two numbers are the heartbeat's. `lag` is the replying node's.
    `consent`: the replying node counts the receiver as one of its side (`suspension`). `vitals`:
    how busy the replying node is, if it has measured it."""

    sequence: int
    sent_at: float
    lag: float = 0.0
    consent: bool = False
    vitals: Vitals | None = None


class GossipStatus(msgspec.Struct, frozen=True):
    """The sender's version, and the number of nodes that have seen it, by the sender's view."""

    clock: VectorClock
    seen: int


class GossipSeen(msgspec.Struct, frozen=True):
    """The sender has this version now. The leader notices convergence by it, without full
    states."""

    clock: VectorClock


class GossipState(msgspec.Struct, frozen=True):
    """The sender's copy of the state. `to` must be the receiver. Tombstones carry ages."""

    to: NodeId
    gossip: Gossip


ControlMessage = InitJoin | InitAck | InitNack | Trial | TrialResult | Join | JoinRefused | Welcome
PublishedMessage = Heartbeat | HeartbeatReply | GossipStatus | GossipSeen | GossipState
Message = ControlMessage | PublishedMessage
