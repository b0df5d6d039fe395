"""What the singleton machine takes in and gives out, and what two of them say to each other.

    the next oldest   HandOverToMe ──────────> the leaving oldest   repeated until HandOverDone
    the leaving one   HandOverInProgress ────> the next oldest      heard; the instance finishes
    the leaving one   HandOverDone ──────────> the next oldest      it has stopped: start yours
    the leaving one   TakeOverFromMe ────────> the next oldest      repeated until HandOverToMe

Akka's names. Each carries the highest epoch that its sender knows, so that whoever starts next
starts above it, even if gossip and store have not heard of it.

Source: B.97; T.G1.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardbus.ids import NodeId
from shardbus.membership.view import MembershipView

# Between nodes.


@dataclass(frozen=True, slots=True)
class HandOverToMe:
    """You are leaving and I am next: stop your instance. Answer: HandOverInProgress, then
    HandOverDone."""

    epoch: int


@dataclass(frozen=True, slots=True)
class HandOverInProgress:
    """My instance is finishing what it had begun."""

    epoch: int


@dataclass(frozen=True, slots=True)
class HandOverDone:
    """I run no instance, and never will again."""

    epoch: int


@dataclass(frozen=True, slots=True)
class TakeOverFromMe:
    """I am leaving and you are next, should your membership not have told you yet. Answer:
    HandOverToMe."""

    epoch: int


Message = HandOverToMe | HandOverInProgress | HandOverDone | TakeOverFromMe
MESSAGES: tuple[type[Message], ...] = (
    HandOverToMe, HandOverInProgress, HandOverDone, TakeOverFromMe,
)  # fmt: skip

# Into the machine.


@dataclass(frozen=True, slots=True)
class MembershipSeen:
    """Membership has a new picture. `preparing`: the whole cluster is about to stop, so nothing is
    handed over."""

    view: MembershipView
    preparing: bool = False


@dataclass(frozen=True, slots=True)
class HandOverReceived:
    """A message arrived. `sender` is the peer that the transport knows."""

    sender: NodeId
    message: Message


@dataclass(frozen=True, slots=True)
class InstanceStarted:
    """The instance rules under this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class InstanceStopped:
    """The instance has ended: as it was asked to (Retire), or because another one rules."""


@dataclass(frozen=True, slots=True)
class MembershipEnded:
    """This node's membership has ended. `gracefully` False: it was downed, others rule already."""

    gracefully: bool


Event = MembershipSeen | HandOverReceived | InstanceStarted | InstanceStopped | MembershipEnded

# Out of the machine.


@dataclass(frozen=True, slots=True)
class SendHandOver:
    """Send this to that node."""

    to: NodeId
    message: Message


@dataclass(frozen=True, slots=True)
class PrepareInstance:
    """Get an instance ready to rule: everything short of the claim. Begin or Halt follows."""


@dataclass(frozen=True, slots=True)
class StartInstance:
    """Rule, above this epoch. Answer: Ruling, and Over if it ends by itself."""

    epoch: int


@dataclass(frozen=True, slots=True)
class RetireInstance:
    """Finish the write under way, take nothing new, stop. Answer: Over."""


@dataclass(frozen=True, slots=True)
class HaltInstance:
    """Stop the instance at once, ready or ruling."""


@dataclass(frozen=True, slots=True)
class SingletonStateChanged:
    """The machine is in another state; for logs and metrics."""

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
