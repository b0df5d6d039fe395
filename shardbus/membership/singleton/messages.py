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

import msgspec

from shardbus.bounds import Epoch
from shardbus.ids import NodeId
from shardbus.membership.view import MembershipView

# Between nodes.


class HandOverToMe(msgspec.Struct, frozen=True):
    """Ask the leaving oldest to stop its instance: the sender is next. Answered by
    HandOverInProgress, then by HandOverDone."""

    epoch: Epoch


class HandOverInProgress(msgspec.Struct, frozen=True):
    """The sender's instance is finishing its work."""

    epoch: Epoch


class HandOverDone(msgspec.Struct, frozen=True):
    """The sender runs no instance, and will run none again."""

    epoch: Epoch


class TakeOverFromMe(msgspec.Struct, frozen=True):
    """The sender leaves and the receiver is next, in case the receiver's view lags. Answered by
    HandOverToMe."""

    epoch: Epoch


Message = HandOverToMe | HandOverInProgress | HandOverDone | TakeOverFromMe
MESSAGES: tuple[type[Message], ...] = (
    HandOverToMe, HandOverInProgress, HandOverDone, TakeOverFromMe,
)  # fmt: skip

# Into the machine.


class MembershipSeen(msgspec.Struct, frozen=True):
    """Membership has a new view. `preparing`: the whole cluster is about to stop, so nothing is
    handed over."""

    view: MembershipView
    preparing: bool = False


class HandOverReceived(msgspec.Struct, frozen=True):
    """A message arrived. `sender` is the transport's peer."""

    sender: NodeId
    message: Message


class TypeMissing(msgspec.Struct, frozen=True):
    """This node has answered that it does not have the entity type, so it takes no part. Members
    that announce their types need not answer."""

    node: NodeId


class InstanceStarted(msgspec.Struct, frozen=True):
    """The instance works under this epoch."""

    epoch: int


class InstanceStopped(msgspec.Struct, frozen=True):
    """The instance has ended: after RetireInstance, or because another instance has a higher
    epoch."""


class MembershipEnded(msgspec.Struct, frozen=True):
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


class SendHandOver(msgspec.Struct, frozen=True):
    """Send this message to that node."""

    to: NodeId
    message: Message


class PrepareInstance(msgspec.Struct, frozen=True):
    """Prepare an instance, up to its claim of an epoch. StartInstance or HaltInstance follows."""


class StartInstance(msgspec.Struct, frozen=True):
    """Claim an epoch above this one and work. Answered by InstanceStarted, and by InstanceStopped
    if the instance ends by itself."""

    epoch: int


class RetireInstance(msgspec.Struct, frozen=True):
    """Finish the present write, accept nothing new, stop. Answered by InstanceStopped."""


class HaltInstance(msgspec.Struct, frozen=True):
    """Stop the instance at once, whether prepared or working."""


class SingletonStateChanged(msgspec.Struct, frozen=True):
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
