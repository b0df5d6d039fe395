"""What goes into the `Cluster` machine, and what comes out of it.

Source: docs/architecture.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardbus.ids import Address, NodeId
from shardbus.membership.failure.confirmed_death import ProbeOutcome
from shardbus.membership.member import Member, Service
from shardbus.membership.messages import ControlMessage, PublishedMessage
from shardbus.membership.view import DomainEvent, MembershipView

# -- in ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinSelf:
    """Found a cluster of one."""


@dataclass(frozen=True, slots=True)
class JoinSeeds:
    """Join through one of these nodes. Only the first of them may found a cluster. None at all is
    JoinSelf."""

    seeds: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class PubSubReceived:
    """A message came over PUB/SUB. `waited`: at most so many seconds in this process before it was
    handled."""

    sender: NodeId
    message: PublishedMessage
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class ControlReceived:
    """A message came over ROUTER/DEALER."""

    sender: NodeId
    message: ControlMessage


@dataclass(frozen=True, slots=True)
class PeerListening:
    """A node with this uid has subscribed: what is published to it from now on can arrive."""

    uid: int


@dataclass(frozen=True, slots=True)
class PeerDisconnected:
    """The TCP connection to the node's publisher dropped."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a Probe showed."""

    node: NodeId
    outcome: ProbeOutcome


@dataclass(frozen=True, slots=True)
class Leave:
    """The member shall leave. For this node itself: it hosts nothing any more."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Down:
    """The member is declared dead."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Remove:
    """The member is declared dead and removed on the spot, whether or not the cluster can agree on
    it. If it lives, it learns that it is out."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Quarantine:
    """What must arrive at that member does not, though it answers heartbeats."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class SetService:
    """The member shall take new work, or none, or give away what it has."""

    node: NodeId
    service: Service


@dataclass(frozen=True, slots=True)
class PrepareForShutdown:
    """The whole cluster shall stop."""


@dataclass(frozen=True, slots=True)
class YieldSeniority:
    """Make this node the youngest member: its application cannot coordinate anything now."""


@dataclass(frozen=True, slots=True)
class LeaseResult:
    """The answer to AcquireLease. None: the store could not be reached."""

    name: str
    granted: bool | None


@dataclass(frozen=True, slots=True)
class RecordEpoch:
    """A coordinator of this type works under this epoch."""

    entity_type: str
    epoch: int


@dataclass(frozen=True, slots=True)
class SetMeta:
    """The application writes bytes that every node shall see."""

    name: str
    data: bytes


Event = (
    JoinSelf
    | JoinSeeds
    | PubSubReceived
    | ControlReceived
    | PeerListening
    | PeerDisconnected
    | ProbeResult
    | Leave
    | Down
    | Remove
    | Quarantine
    | SetService
    | PrepareForShutdown
    | YieldSeniority
    | LeaseResult
    | RecordEpoch
    | SetMeta
)

# -- out -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish with the receiver's uid as topic. May be lost."""

    to: NodeId
    message: PublishedMessage


@dataclass(frozen=True, slots=True)
class SendControl:
    """Send by the link to the node, or to whoever is at the address."""

    to: Address | NodeId
    message: ControlMessage


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Connect to this member's publisher."""

    member: Member


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Disconnect from this node's publisher."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Probe:
    """Open a fresh connection to the node's address and report how that went, within a second."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class ViewChanged:
    """The picture of the cluster changed."""

    view: MembershipView


@dataclass(frozen=True, slots=True)
class Notice:
    """Something happened that applications and operators may want to know."""

    event: DomainEvent


@dataclass(frozen=True, slots=True)
class AcquireLease:
    """Take this lease in the state store and answer LeaseResult."""

    name: str
    owner: str
    ttl: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """This node's membership is over: `left`, `downed`, or `join failed: ...`. Nothing comes after
    it."""

    reason: str


@dataclass(frozen=True, slots=True)
class CommandRefused:
    """What was asked for is not possible."""

    reason: str


@dataclass(frozen=True, slots=True)
class MessageDropped:
    """A message had no effect; `reason` is one of a few fixed words, fit for a metric's label."""

    sender: NodeId
    reason: str


Effect = (
    Publish
    | SendControl
    | Subscribe
    | Unsubscribe
    | Probe
    | ViewChanged
    | Notice
    | AcquireLease
    | Stopped
    | CommandRefused
    | MessageDropped
)
