"""The messages of membership.

    way                 message         answer
    ROUTER, to a seed   InitJoin        InitAck, InitNack (not a member yet), JoinRefused; none
                                        from a member on its way out
    ROUTER, to a member Join            Welcome, InitNack, JoinRefused
    PUB, to one node    Heartbeat       HeartbeatReply
    PUB, to one node    GossipStatus    GossipState if the receiver knows more, GossipStatus if less
    PUB, to one node    GossipState     GossipState or GossipSeen, where the answer is news
    PUB, to one node    GossipSeen      as GossipStatus, but none if the versions are equal

What goes by PUB may be lost without harm.

Source: S1.23, S1.34, S1.40-S1.44, B.1-B.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardbus.ids import NodeId
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Member
from shardbus.membership.vector_clock import VectorClock

PROTOCOL = 3
"""Version of what membership says and means. Nodes of different versions refuse each other."""

NAME_MAX = 256
SETTING_NAME_MAX = 512
"""A setting of an entity type has the type's name within its own, which may be as long as that."""
SETTINGS_MAX = 20_000
"""Four for each of some thousand types, and those of the cluster."""
TEXT_MAX = 4096
"""The longest value of a setting, and the longest reason, in characters."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """What both sides of a join must agree on."""

    cluster: str
    protocol: int
    settings: Mapping[str, str]
    """Settings that must be equal everywhere, by name, as text. A name that only one side has is
    not compared."""


@dataclass(frozen=True, slots=True)
class InitJoin:
    """May I join through you?"""

    greeting: Greeting


@dataclass(frozen=True, slots=True)
class InitAck:
    """Yes: send Join."""

    greeting: Greeting


@dataclass(frozen=True, slots=True)
class InitNack:
    """Not now: the sender is itself no member yet. As the answer to a Join also: it is on its way
    out."""


@dataclass(frozen=True, slots=True)
class Join:
    """Take me in."""

    greeting: Greeting
    member: Member


@dataclass(frozen=True, slots=True)
class JoinRefused:
    """Never: `reason` names what differs, with both values. It has at most `TEXT_MAX`
    characters."""

    reason: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """You are in: the state of the cluster, with you in it. Tombstones carry ages."""

    gossip: Gossip


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Are you there? `sent_at` is the sender's clock, which only the sender reads again. `lag`: by
    how many seconds the sender's timers have been late lately."""

    sequence: int
    sent_at: float
    lag: float = 0.0


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """I am. The first two numbers are the heartbeat's, the lag is the sender's."""

    sequence: int
    sent_at: float
    lag: float = 0.0


@dataclass(frozen=True, slots=True)
class GossipStatus:
    """The version that I have, and how many nodes I know to have it."""

    clock: VectorClock
    seen: int


@dataclass(frozen=True, slots=True)
class GossipSeen:
    """I have this version now. Makes convergence known to the leader without sending states
    about."""

    clock: VectorClock


@dataclass(frozen=True, slots=True)
class GossipState:
    """My copy. `to` must be the receiver. Tombstones carry ages."""

    to: NodeId
    gossip: Gossip


ControlMessage = InitJoin | InitAck | InitNack | Join | JoinRefused | Welcome
PublishedMessage = Heartbeat | HeartbeatReply | GossipStatus | GossipSeen | GossipState
Message = ControlMessage | PublishedMessage
