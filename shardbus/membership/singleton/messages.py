"""Messages between singleton machines, and the machine's events and effects.

    the next oldest   HandOverToMe ──────────> the leaving oldest   repeated until HandOverDone
    the leaving one   HandOverInProgress ────> the next oldest      its instance is finishing
    the leaving one   HandOverDone ──────────> the next oldest ones its instance has stopped
    the leaving one   TakeOverFromMe ────────> the next oldest      repeated until HandOverToMe

The names are Akka's. Each message carries the highest epoch that its sender has, so that the next
instance starts above it even if gossip and store do not have that epoch yet.

Source: B.97.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardbus.bounds import Epoch
from shardbus.ids import NodeId
from shardbus.membership.view import MembershipView

# Between nodes.


@dataclass(frozen=True, slots=True)
class HandOverToMe:
    """Ask the leaving oldest to stop its instance: the sender is next. Answered by
    HandOverInProgress, then by HandOverDone."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class HandOverInProgress:
    """The sender's instance is finishing its work."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class HandOverDone:
    """The sender runs no instance, and will run none again."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class TakeOverFromMe:
    """The sender leaves and the receiver is next, in case the receiver's view lags. Answered by
    HandOverToMe."""

    epoch: Epoch


Message = HandOverToMe | HandOverInProgress | HandOverDone | TakeOverFromMe
MESSAGES: tuple[type[Message], ...] = (
    HandOverToMe, HandOverInProgress, HandOverDone, TakeOverFromMe,
)  # fmt: skip

# Into the machine.


@dataclass(frozen=True, slots=True)
class MembershipSeen:
    """Membership has a new view. `preparing`: the whole cluster is about to stop, so nothing is
    handed over."""

    view: MembershipView
    preparing: bool = False


@dataclass(frozen=True, slots=True)
class HandOverReceived:
    """A message arrived. `sender` is the transport's peer."""

    sender: NodeId
    message: Message


@dataclass(frozen=True, slots=True)
class TypeMissing:
    """This node has answered that it does not have the entity type, so it takes no part. Members
    that announce their types need not answer."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class InstanceStarted:
    """The instance works under this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class InstanceStopped:
    """The instance has ended: after RetireInstance, or because another instance has a higher
    epoch."""


@dataclass(frozen=True, slots=True)
class MembershipEnded:
    """This node's membership has ended. `gracefully` False: the node was downed, and others have
    taken over."""

    gracefully: bool


Event = (
    MembershipSeen
    | HandOverReceived
    | TypeMissing
    | InstanceStarted
    | InstanceStopped
    | MembershipEnded
)

# Out of the machine.


@dataclass(frozen=True, slots=True)
class SendHandOver:
    """Send this message to that node."""

    to: NodeId
    message: Message


@dataclass(frozen=True, slots=True)
class PrepareInstance:
    """Prepare an instance, up to its claim of an epoch. StartInstance or HaltInstance follows."""


@dataclass(frozen=True, slots=True)
class StartInstance:
    """Claim an epoch above this one and work. Answered by InstanceStarted, and by InstanceStopped
    if the instance ends by itself."""

    epoch: int


@dataclass(frozen=True, slots=True)
class RetireInstance:
    """Finish the present write, accept nothing new, stop. Answered by InstanceStopped."""


@dataclass(frozen=True, slots=True)
class HaltInstance:
    """Stop the instance at once, whether prepared or working."""


@dataclass(frozen=True, slots=True)
class SingletonStateChanged:
    """The machine entered another state. For logs and metrics."""

    before: str
    after: str
    why: str


Effect = (
    SendHandOver
    | PrepareInstance
    | StartInstance
    | RetireInstance
    | HaltInstance
    | SingletonStateChanged
)
