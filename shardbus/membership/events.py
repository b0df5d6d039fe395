"""Events into the `ClusterMembership` machine, and effects out of it.

Source: docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shardbus.ids import Address, NodeId
from shardbus.membership.claim_record import ClaimRecord
from shardbus.membership.downing.electorate import RingVoters
from shardbus.membership.failure.confirmed_death import ProbeOutcome
from shardbus.membership.member import Member, Service
from shardbus.membership.messages import ControlMessage, PublishedMessage
from shardbus.membership.view import DomainEvent, MembershipView
from shardbus.membership.vitals import Vitals

LEFT = "left"
DOWNED = "downed"
KEPT_DOWN = "downed by an operator"
"""Reasons with which membership ends."""

# -- in ------------------------------------------------------------------------------------------


class JoinSelf(msgspec.Struct, frozen=True):
    """Found a cluster of one."""


class JoinSeeds(msgspec.Struct, frozen=True):
    """Join through one of these nodes. Only the first of them may found a cluster. Without `founds`
    the node rejoins: it gives up after `within` seconds, 0 is never, and founds only if it is the
    `founder`, with `claims`, and once no member lives at any of these addresses.
    `discovers`: ContactsFound reports the nodes, and the holder of the store's claim founds.
    `claims`: without discovery, too, only that holder does. `joins_any`: the node joins whatever
    cluster has the store. An empty list is the same as JoinSelf."""

    seeds: tuple[Address, ...]
    founds: bool = True
    within: float = 0.0
    discovers: bool = False
    claims: bool = False
    joins_any: bool = False
    founder: Address | None = None


class ContactsFound(msgspec.Struct, frozen=True):
    """A look-up has found these addresses of nodes through which to join."""

    contacts: tuple[Address, ...]


class WatchSeeds(msgspec.Struct, frozen=True):
    """Find out, while this node is a member, whether these seeds are in another cluster."""

    seeds: tuple[Address, ...]


class SuspectNodes(msgspec.Struct, frozen=True):
    """Find out at once whether these nodes, which the store names, are in another cluster."""

    nodes: tuple[Address, ...]


class PubSubReceived(msgspec.Struct, frozen=True):
    """A message arrived over PUB/SUB. `waited`: seconds, at most, that it waited in this
    process."""

    sender: NodeId
    message: PublishedMessage
    waited: float = 0.0


class ControlReceived(msgspec.Struct, frozen=True):
    """A message arrived over ROUTER/DEALER. `request_address`: the address at which this node made
    its request, None for a request, and for an answer from the sender's own address."""

    sender: NodeId
    message: ControlMessage
    request_address: Address | None = None

    @property
    def at(self) -> Address:
        """The address that the message is from."""
        return self.request_address or self.sender.address


class PeerListening(msgspec.Struct, frozen=True):
    """A node with this uid has subscribed: messages published to it from now on can arrive."""

    uid: int


class PeerDisconnected(msgspec.Struct, frozen=True):
    """The TCP connection to the node's publisher dropped."""

    node: NodeId


class ProbeResult(msgspec.Struct, frozen=True):
    """A Probe ended with this outcome."""

    node: NodeId
    outcome: ProbeOutcome


class Leave(msgspec.Struct, frozen=True):
    """Make the member leave. For this node itself: it hosts nothing any more."""

    node: NodeId


class Down(msgspec.Struct, frozen=True):
    """Declare the member dead. `for_good`: an operator did, and its process does not rejoin."""

    node: NodeId
    for_good: bool = False


class Remove(msgspec.Struct, frozen=True):
    """Declare the member dead, for good, and remove it at once, whether or not the cluster can
    converge. If it is alive, it receives the state that removes it."""

    node: NodeId


class Quarantine(msgspec.Struct, frozen=True):
    """Messages that must arrive at this member do not, though it answers heartbeats."""

    node: NodeId


class SetService(msgspec.Struct, frozen=True):
    """Let the member take new work, or none, or give its shards away."""

    node: NodeId
    service: Service


class PrepareForShutdown(msgspec.Struct, frozen=True):
    """Stop the whole cluster."""


class YieldSeniority(msgspec.Struct, frozen=True):
    """Make this node the youngest member: its application cannot coordinate anything now."""


class LeaseResult(msgspec.Struct, frozen=True):
    """The answer to AcquireLease. None: the store could not be reached. `counter` is the
    lease's."""

    name: str
    granted: bool | None
    counter: int = 0


class ClaimRead(msgspec.Struct, frozen=True):
    """The answer to ReadClaim. None: there is no record, or the store has not `answered`."""

    record: ClaimRecord | None
    answered: bool = True


class CheckClaim(msgspec.Struct, frozen=True):
    """The store may have lost the claim to the cluster, or another cluster writes it."""


class RecordEpochs(msgspec.Struct, frozen=True):
    """The coordinators of these types work under these epochs."""

    epochs: Mapping[str, int]


class SetMeta(msgspec.Struct, frozen=True):
    """Write bytes of the application under this name, for all nodes."""

    name: str
    data: bytes


class SetVitals(msgspec.Struct, frozen=True):
    """The node has measured how busy it is. Its replies to heartbeats carry it."""

    vitals: Vitals


class SetRing(msgspec.Struct, frozen=True):
    """The node's store, which is inside the cluster, has the ring with these voters."""

    voters: RingVoters


Event = (
    JoinSelf
    | JoinSeeds
    | ContactsFound
    | WatchSeeds
    | SuspectNodes
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
    | ClaimRead
    | CheckClaim
    | RecordEpochs
    | SetMeta
    | SetVitals
    | SetRing
)

# -- out -----------------------------------------------------------------------------------------


class Publish(msgspec.Struct, frozen=True):
    """Publish with the receiver's uid as topic. May be lost."""

    to: NodeId
    message: PublishedMessage


class SendControl(msgspec.Struct, frozen=True):
    """Send over the link to the node, or to the process at the address."""

    to: Address | NodeId
    message: ControlMessage


class Subscribe(msgspec.Struct, frozen=True):
    """Connect to this member's publisher."""

    member: Member


class Unsubscribe(msgspec.Struct, frozen=True):
    """Disconnect from this node's publisher."""

    node: NodeId


class Probe(msgspec.Struct, frozen=True):
    """Open a fresh connection to the node's address, and report the outcome within one second."""

    node: NodeId


class ViewChanged(msgspec.Struct, frozen=True):
    """This node's view of the cluster changed."""

    view: MembershipView


class HandlingConfirmed(msgspec.Struct, frozen=True):
    """The entities of this node may handle messages before this time of its clock; -inf while it is
    suspended, inf while nothing can end it."""

    until: float


class Notice(msgspec.Struct, frozen=True):
    """Report an event to the application and to operators."""

    event: DomainEvent


class AcquireLease(msgspec.Struct, frozen=True):
    """Acquire this lease in the state store, and answer with LeaseResult."""

    name: str
    owner: str
    ttl: float


class ReadClaim(msgspec.Struct, frozen=True):
    """Read the record of the cluster that has the store's claim, and answer with ClaimRead."""


class WriteClaim(msgspec.Struct, frozen=True):
    """Write this record of this node's cluster into the store."""

    record: ClaimRecord


class FreeClaim(msgspec.Struct, frozen=True):
    """Release the claim of this cluster, which has ended. A later claim stays as it is."""

    record: ClaimRecord


class Stopped(msgspec.Struct, frozen=True):
    """This node's membership is over: `LEFT`, `DOWNED`, `KEPT_DOWN`, or `join failed: ...`. No
    effect follows."""

    reason: str


class CommandRefused(msgspec.Struct, frozen=True):
    """A command is refused."""

    reason: str


class MessageDropped(msgspec.Struct, frozen=True):
    """A message had no effect. `reason` is one of a few fixed texts, fit for a metric's label."""

    sender: NodeId
    reason: str


Effect = (
    Publish
    | SendControl
    | Subscribe
    | Unsubscribe
    | Probe
    | ViewChanged
    | HandlingConfirmed
    | Notice
    | AcquireLease
    | ReadClaim
    | WriteClaim
    | FreeClaim
    | Stopped
    | CommandRefused
    | MessageDropped
)
