"""The rules of unfair links: the effects that a few nodes in trouble may have on the others.

The **healthy** nodes have no trouble: every link between two of them works all the time, and they
are more than half of all. The **culprits** have one (`troubles`).

    stays      no healthy node is downed
    goes       a culprit whose gossip with all others has failed for `GOES_WITHIN_S`, or that has
               been accused or has accused that long ago, which has not been taken back, is a member
               no more
    only       of a pair with a broken link at most one end is downed
    suspended  no healthy node is suspended for longer than `SUSPENDED_MAX_S`; where the store
               decides every split, for longer than `UNDECIDED_MAX_S` without another trouble, or
               a culprit that comes back
    joins      no process becomes Up by a gossip that fails between it and all others

Under `down-all` every loss downs all nodes, and only `joins` holds. Under `keep-oldest` the oldest
node is healthy. With `rejoins`, a process that was downed comes back, and may be downed again: then
`only` does not hold.

Source: docs/simulation.md; S1.14, S1.25, B.40.
"""

from __future__ import annotations

from collections.abc import Container

from shardbus.ids import NodeId
from shardbus.membership.events import DOWNED, KEPT_DOWN
from shardbus.membership.member import Status
from shardbus.membership.reachability import Flag
from shardbus.simulation.membership import troubles
from shardbus.simulation.membership.checks import HOSTS, Violation
from shardbus.simulation.membership.network import Channel
from shardbus.simulation.membership.options import Options
from shardbus.simulation.membership.process import Process
from shardbus.simulation.membership.world import World

SUSPENDED_MAX_S = 1.0
"""Seconds, at most, for which a node that can take part is suspended at a time."""
UNDECIDED_MAX_S = 20.0
"""The same where no side is sure to stay before it has a lease."""
GOES_WITHIN_S = 30.0
"""Seconds within which a node that cannot take part is downed. The longest way there: its silence
is noticed, the picture settles, and the node that should go by itself does not."""
LOOKS_S = 0.5
"""Seconds between two looks for processes that should not be Up."""


Records = frozenset[tuple[NodeId, NodeId, Flag]]
"""Observers and subjects with the flags between them."""


class Fairness:
    """Judges a run with these options. Call `begin` before the run, and `after` after each event of
    a process."""

    def __init__(self, world: World, options: Options) -> None:
        self._world = world
        self._troubles = options.troubles
        self._excused = options.excused
        self._judges = bool(options.troubles) and options.strategy != "down-all"
        self._undecided = options.strategy == "lease-majority"
        self._bound = UNDECIDED_MAX_S if self._undecided else SUSPENDED_MAX_S
        self._begun_at = 0.0
        """When the last trouble began, or a node with one came back."""
        self._culprits: set[NodeId] = set()
        self._keeps_ends = not options.rejoins
        self._suspended_since: dict[NodeId, float] = {}
        self.longest_s = 0.0
        """The longest suspension of a healthy node so far."""

    def begin(self) -> None:
        """Schedule the judgements at certain times."""
        for trouble in self._troubles:
            self._world.later(trouble.begins, lambda t=trouble: self._watch(t))  # type: ignore[misc]

    def is_healthy(self, name: str) -> bool:
        """True if the node has no trouble."""
        return name not in self._excused

    def after(self, process: Process) -> None:
        """Judge a process after an event.

        Raises:
            Violation: a rule is broken.
        """
        if not self._judges:
            return
        if not self.is_healthy(process.name):
            if process.id not in self._culprits:
                self._culprits.add(process.id)
                self._begun_at = self._world.now
            self._ends(process)
            return
        if process.stopped in (DOWNED, KEPT_DOWN):
            raise Violation("stays", f"{process.id} is downed, and every link of it works")
        self._suspension(process)

    def _suspension(self, process: Process) -> None:
        now = self._world.now
        hosting = process.running and process.machine.view.status in HOSTS
        if not hosting or process.clock(now) < process.confirmed_until:
            self._suspended_since.pop(process.id, None)
            return
        since = self._suspended_since.setdefault(process.id, now)
        lasts = now - since
        self.longest_s = max(self.longest_s, lasts)
        if now - (max(since, self._begun_at) if self._undecided else since) > self._bound:
            raise Violation("suspended", f"{process.id} has been suspended for {lasts:.1f} s")

    def _ends(self, process: Process) -> None:
        """Judge pairs: at most one end goes."""
        if process.stopped != DOWNED or not self._keeps_ends:
            return
        for trouble in self._troubles:
            ends = (trouble.culprit, *trouble.others)
            if not trouble.pair or process.name not in ends:
                continue
            gone = [name for name in ends if self._world.nodes[name].stopped == DOWNED]
            if len(gone) > 1:
                raise Violation("only", f"{' and '.join(gone)} are downed for one link")

    # -- at certain times ----------------------------------------------------------------------

    def _watch(self, trouble: troubles.NodeTrouble) -> None:
        """Judge the culprit of a trouble that begins now."""
        world, fails = self._world, self._fails_for_all(trouble)
        self._begun_at = world.now
        before = frozenset(world.by_id)
        culprit = world.nodes.get(trouble.culprit)
        judged = trouble.kind in troubles.ACCUSATIONS or (
            fails and trouble.lasts > GOES_WITHIN_S and not trouble.flaps_s
        )
        if self._judges and judged and not trouble.pair and culprit and culprit.member:
            if trouble.kind in troubles.ACCUSATIONS:
                spread = troubles.ACCUSED_WITHIN_S + troubles.SPREAD_S
                world.later(spread, lambda: self._is_accused(culprit, trouble, frozenset()))
            else:
                world.later(GOES_WITHIN_S, lambda: self._has_gone(culprit, trouble))
        if fails and not trouble.flaps_s:
            until = world.now + trouble.lasts
            world.later(LOOKS_S, lambda: self._look(trouble, until, before))

    def _fails_for_all(self, trouble: troubles.NodeTrouble) -> bool:
        """True if the culprit's gossip with all other nodes fails."""
        others = {name for name in self._world.nodes if name != trouble.culprit}
        gossip = Channel.GOSSIP.value in trouble.channels
        return trouble.kind in troubles.WALLS and gossip and others <= set(trouble.others)

    def _has_gone(self, culprit: Process, trouble: troubles.NodeTrouble) -> None:
        if culprit.running and self._member_at(culprit):
            raise Violation("goes", f"{culprit.id} is still a member: {trouble}")

    def _is_accused(self, culprit: Process, trouble: troubles.NodeTrouble, before: Records) -> None:
        """Judge the culprit if it has had the same accusations for `GOES_WITHIN_S`. A slow one is
        late with them."""
        records = {r for p in self._member_at(culprit) for r in p.machine.gossip.records()}
        stand = frozenset(r for r in records if culprit.id in r[:2] and r[2] is Flag.QUARANTINED)
        if stand and stand == before:
            self._has_gone(culprit, trouble)
        elif culprit.running:
            self._world.later(GOES_WITHIN_S, lambda: self._is_accused(culprit, trouble, stand))

    def _member_at(self, culprit: Process) -> list[Process]:
        """Return the healthy processes with the culprit as a member that is not Down."""
        by = [p for p in self._healthy() if p.machine.view.member(culprit.id) is not None]
        return [p for p in by if p.machine.gossip.members[culprit.id].status is not Status.DOWN]

    def _look(self, trouble: troubles.NodeTrouble, until: float, before: Container[NodeId]) -> None:
        """Judge, again and again, that no later process of the culprit is Up."""
        world = self._world
        if world.now >= until or not any(trouble.wall() == wall for wall in world.network.walls):
            return
        for process in self._healthy():
            for member in process.machine.view.members:
                new = member.node.host == trouble.culprit and member.node not in before
                if new and member.status is Status.UP:
                    raise Violation("joins", f"{process.id} sees {member.node} Up: {trouble}")
        world.later(LOOKS_S, lambda: self._look(trouble, until, before))

    def _healthy(self) -> list[Process]:
        return [p for p in self._world.running() if p.member and self.is_healthy(p.name)]
