"""Brings the troubles of a run into its world.

While messages do not pass, this also plays the part of `node.stalled_peers`, which is off in these
runs: the nodes that get no acknowledgement, and reach the other one by gossip, accuse it after a
time, again and again. All of them do so within a few seconds, as nodes do that send to all others:
a single accusation would leave open which end is at fault.

Not here: the kinds of troubles (`troubles`), the invariants (`fairness`).

Source: docs/simulation.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from shardbus.membership import events as ev
from shardbus.membership.reachability import Flag
from shardbus.simulation.membership.network import UnfairWall
from shardbus.simulation.membership.process import Process
from shardbus.simulation.membership.troubles import ACCUSATIONS, ACCUSED_WITHIN_S, NodeTrouble
from shardbus.simulation.membership.world import World

STALLED_S = (4.0, 14.0)
"""Seconds, drawn from this range, after which nodes accuse others that acknowledge nothing."""
BREAKING = 0.3
"""The part of connections that a wall breaks if it does not reject."""


@dataclass(eq=False, repr=False)
class UnfairFaults:
    """Brings these troubles into the world. `restart` kills the process at a name and starts the
    next one there. `happen` runs an action unless the faults are over."""

    world: World
    troubles: tuple[NodeTrouble, ...]
    _dice: Random
    _restart: Callable[[str], object]
    _happen: Callable[[Callable[[], object]], None]

    def begin(self) -> None:
        """Schedule the troubles."""
        for trouble in self.troubles:
            self._later(trouble.begins, lambda t=trouble: self._start(t))  # type: ignore[misc]

    def heal(self) -> None:
        """End them all. The walls are removed with all others."""
        for trouble in self.troubles:
            self._end(trouble)

    def _later(self, delay: float, action: Callable[[], object]) -> None:
        self.world.later(delay, lambda: self._happen(action))

    def _start(self, trouble: NodeTrouble) -> None:
        world, until = self.world, self.world.now + trouble.lasts
        world.trace.mark(world.now, trouble.culprit, str(trouble))
        wall = trouble.wall()
        if wall is not None:
            self._raise(wall, trouble, until)
        if trouble.kind in ACCUSATIONS:
            self._accuse_all(trouble)
        self._stall(trouble, until)
        if trouble.kind == "slow":
            world.slow_down(trouble.culprit, trouble.factor)
        elif trouble.kind == "no-store":
            world.lose_store(trouble.culprit)
        for _ in range(trouble.restarts):
            wait = self._dice.uniform(0.0, trouble.lasts)
            self._later(wait, lambda: self._restart(trouble.culprit))
        self._later(trouble.lasts, lambda: self._end(trouble))

    def _end(self, trouble: NodeTrouble) -> None:
        if trouble.kind == "slow":
            self.world.slow_down(trouble.culprit, 1.0)
        elif trouble.kind == "no-store":
            self.world.lose_store(trouble.culprit, lost=False)

    # -- walls ---------------------------------------------------------------------------------

    def _raise(self, wall: UnfairWall, trouble: NodeTrouble, until: float) -> None:
        """Raise the wall. A flapping one falls and rises again."""
        world = self.world
        left = until - world.now
        if left <= 0.0:
            return
        world.wall_up(wall, BREAKING)
        stands = min(left, trouble.flaps_s or left)

        def fall() -> None:
            world.trace.mark(world.now, trouble.culprit, f"is no more {trouble.kind}")
            world.wall_down(wall)
            if trouble.flaps_s:
                self._later(trouble.flaps_s, lambda: self._raise(wall, trouble, until))

        self._later(stands, fall)

    # -- accusations ---------------------------------------------------------------------------

    def _stall(self, trouble: NodeTrouble, until: float) -> None:
        """Let the nodes accuse others from which they get no acknowledgement, all or none of them
        before the trouble ends."""
        wait = self._dice.uniform(*STALLED_S)
        if not trouble.accusers() or self.world.now + wait + ACCUSED_WITHIN_S >= until:
            return

        def look() -> None:
            self._accuse_all(trouble)
            self._stall(trouble, until)

        self._later(wait, look)

    def _accuse_all(self, trouble: NodeTrouble) -> None:
        for accuser, accused in trouble.accusers():
            wait = self._dice.uniform(0.0, ACCUSED_WITHIN_S)
            by, other = self.world.nodes.get(accuser), self.world.nodes.get(accused)
            if by is not None and by.member and other is not None:
                self._later(wait, lambda a=by, b=other: self._accuse(a, b))  # type: ignore[misc]

    def _accuse(self, by: Process, other: Process) -> None:
        """Let a process accuse another one, if it reaches that itself. Neither has joined since
        the messages did not pass: then it would accuse a part of the others only."""
        if not by.running or not by.member:
            return
        gossip = by.machine.gossip
        reached = gossip.reachability.flag(by.id, other.id) is Flag.REACHABLE
        if other.id not in gossip.members or not reached:
            return
        self.world.trace.mark(self.world.now, by.name, f"quarantines {other.name}")
        self.world.deliver(by, ev.Quarantine(other.id))
