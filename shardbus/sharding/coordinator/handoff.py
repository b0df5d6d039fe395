"""The hand-off of one shard: how it leaves its home without a message lost or overtaken.

    ──────> BEGIN ─────────────────────> STOPPING ─────────────────────> FREED
              │   all acked, or deadline   │   ^    stopped, or owner gone  ^
              │                            └───┘                            │
              │                      deadline: ask again                    │
              └─────────────────────────────────────────────────────────────┘
                              stopped, or owner gone

The messages of a move, from a home A to a home B:

    coordinator   BeginHandOff ─────────> every region and proxy
    each of them  Flush ────────────────> A                    behind everything it sent there
    A             echo of the Flush ────> each of them
    each of them  BeginHandOffAck ──────> coordinator          messages for the shard wait there now
    coordinator   HandOff ──────────────> A
    A             ShardStopped ─────────> coordinator          after the last entity has stopped
    coordinator   writes the new home to the store, and only then
                  HostShard ────────────> B
                  ShardHomes ───────────> every region and proxy, which send waiting messages to B

- BEGIN: the coordinator has sent BeginHandOff to every region and proxy. Each buffers messages for
  the shard, flushes its session to the old home and acknowledges. A region that terminates counts
  as acknowledged. The coordinator does not wait for a region that is late: its later messages are
  forwarded by the old home, and its own Flush behind it keeps the order. But the shard does not
  move *to* a late region, which may still wait for its echo.
- STOPPING: the coordinator has sent HandOff to the owner. The deadline is another one than BEGIN's,
  so a slow acknowledgement cannot use up the time to stop. When it passes, the coordinator asks the
  owner again and notes the delay. It gives the shard to no other region while the owner lives and
  has not sent ShardStopped.
- FREED: no entity of the shard runs. The coordinator writes the new home to the store, and only
  then sends HostShard and ShardHomes.

ShardStopped is accepted in every phase, requested or not. `TRANSITIONS` is the diagram as data.

Source: S0.21-S0.25, S2.28, S2.66.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec

from shardbus.ids import NodeId
from shardbus.sharding.messages import Home
from shardbus.transitions import following


class HandoffPhase(Enum):
    """The phase of a hand-off."""

    BEGIN = "begin"
    STOPPING = "stopping"
    FREED = "freed"


class HandoffTrigger(Enum):
    """The triggers of a hand-off's next phase."""

    ALL_ACKED = "all acked"
    DEADLINE = "deadline"
    STOPPED = "stopped"
    OWNER_GONE = "owner gone"


TRANSITIONS: dict[tuple[HandoffPhase, HandoffTrigger], HandoffPhase] = {
    (HandoffPhase.BEGIN, HandoffTrigger.ALL_ACKED): HandoffPhase.STOPPING,
    (HandoffPhase.BEGIN, HandoffTrigger.DEADLINE): HandoffPhase.STOPPING,
    (HandoffPhase.BEGIN, HandoffTrigger.STOPPED): HandoffPhase.FREED,
    (HandoffPhase.BEGIN, HandoffTrigger.OWNER_GONE): HandoffPhase.FREED,
    (HandoffPhase.STOPPING, HandoffTrigger.DEADLINE): HandoffPhase.STOPPING,
    (HandoffPhase.STOPPING, HandoffTrigger.STOPPED): HandoffPhase.FREED,
    (HandoffPhase.STOPPING, HandoffTrigger.OWNER_GONE): HandoffPhase.FREED,
}


class HandoffPurpose(Enum):
    """Why a shard leaves, which decides where it goes."""

    REBALANCE = "rebalance"
    """To the planned target."""
    DRAIN = "drain"
    """To any region that may take it, or nowhere if there is none."""
    STOP = "stop"
    """Nowhere, until a message for it comes."""


class Handoff(msgspec.Struct):
    """The hand-off of one shard. `target` is the node a rebalance moves it to."""

    home: Home
    purpose: HandoffPurpose
    target: NodeId | None
    unacked: dict[NodeId, None]
    """Nodes that have not acknowledged. Those left when BEGIN ends are the late ones."""
    phase: HandoffPhase = HandoffPhase.BEGIN
    overdue: int = msgspec.field(default=0)
    """How often the owner was asked again."""
    begun: float = msgspec.field(default=0.0)

    @classmethod
    def begin(
        cls,
        home: Home,
        purpose: HandoffPurpose,
        target: NodeId | None,
        nodes: Iterable[NodeId],
        now: float = 0.0,
    ) -> Handoff:
        """Create a hand-off that waits for an acknowledgement of each of `nodes`."""
        return cls(home, purpose, target, dict.fromkeys(nodes), begun=now)

    def advance(self, trigger: HandoffTrigger) -> HandoffPhase:
        """Go to the next phase and return it.

        Raises:
            LocalProtocolError: the diagram has no such arrow. Nothing changed.
        """
        machine = f"hand-off of shard {self.home.shard!r}"
        after = following(TRANSITIONS, self.phase, trigger, machine)
        if (self.phase, trigger) == (HandoffPhase.STOPPING, HandoffTrigger.DEADLINE):
            self.overdue += 1
        self.phase = after
        return after

    def on_ack(self, node: NodeId) -> bool:
        """Record that `node` has acknowledged or is gone. True if BEGIN waits for no other."""
        waited = node in self.unacked
        self.unacked.pop(node, None)
        return waited and not self.unacked and self.phase is HandoffPhase.BEGIN
