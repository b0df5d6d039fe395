"""One shard leaves its home: the part of a rebalance that keeps order.

    ──────> BEGIN ─────────────────────> STOPPING ─────────────────────> FREED
              │   all acked, or deadline   │   ^    stopped, or owner gone  ^
              │                            └───┘                            │
              │                      deadline: ask again                    │
              └─────────────────────────────────────────────────────────────┘
                              stopped, or owner gone

- BEGIN: every region and proxy was sent BeginHandOff. Each buffers what is for the shard, flushes
  its link to the old home and acknowledges. A region that terminates has acknowledged. One that is
  late is not waited for: what it still sends is forwarded by the old home, and its own Flush behind
  it keeps the order. But the shard does not move *to* a late region, which may still await its
  echo.
- STOPPING: the owner was sent HandOff. Its deadline is another one than that of BEGIN, so a slow
  ack cannot use up the time to stop. When it passes, the owner is asked again and the delay is
  noted; the shard is not given to anybody while its owner lives and has not said that it stopped.
- FREED: no entity of the shard runs. The coordinator persists the new home, and only then tells.

ShardStopped counts in every phase, asked for or not. `TRANSITIONS` is the drawing as data.

Source: S0.21-S0.25, S2.28, S2.66; C.1-C.6.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from shardbus.errors import LocalProtocolError
from shardbus.ids import NodeId
from shardbus.sharding.messages import Home


class HandoffPhase(Enum):
    """How far a handoff is."""

    BEGIN = "begin"
    STOPPING = "stopping"
    FREED = "freed"


class HandoffTrigger(Enum):
    """What moves a handoff on."""

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
    """Why a shard leaves, which says what happens to it afterwards."""

    REBALANCE = "rebalance"
    """It goes to the planned target."""
    DRAIN = "drain"
    """It goes to whoever may take it, or nowhere if nobody may."""
    STOP = "stop"
    """It goes nowhere until somebody sends to it."""


@dataclass(slots=True)
class Handoff:
    """The handoff of one shard. `target` is where a rebalance wants it."""

    home: Home
    purpose: HandoffPurpose
    target: NodeId | None
    waiting: dict[NodeId, None]
    """Who has not acknowledged; those left when BEGIN ends are the late ones."""
    phase: HandoffPhase = HandoffPhase.BEGIN
    overdue: int = field(default=0)
    """How often the owner had to be asked again."""
    begun: float = field(default=0.0)

    @classmethod
    def begin(
        cls,
        home: Home,
        purpose: HandoffPurpose,
        target: NodeId | None,
        told: Iterable[NodeId],
        now: float = 0.0,
    ) -> Handoff:
        """A handoff of which everybody in `told` is being told."""
        return cls(home, purpose, target, dict.fromkeys(told), begun=now)

    def cue(self, cue: HandoffTrigger) -> HandoffPhase:
        """Move on and return the phase that this leads to.

        Raises:
            LocalProtocolError: the drawing has no such arrow. Nothing changed.
        """
        after = TRANSITIONS.get((self.phase, cue))
        if after is None:
            raise LocalProtocolError(
                f"handoff of shard {self.home.shard!r}: {cue.value!r} in phase {self.phase.value!r}"
            )
        if (self.phase, cue) == (HandoffPhase.STOPPING, HandoffTrigger.DEADLINE):
            self.overdue += 1
        self.phase = after
        return after

    def on_ack(self, node: NodeId) -> bool:
        """`node` has acknowledged or is gone. True if this was the last one BEGIN waited for."""
        waited = node in self.waiting
        self.waiting.pop(node, None)
        return waited and not self.waiting and self.phase is HandoffPhase.BEGIN
