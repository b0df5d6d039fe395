"""The invariants of membership, checked after every event that a machine has handled.

    I6    an epoch never goes back, in any copy
    I8    states only grow; one version has one content, except at a node that receives its own
          removal; the merge of any two states is commutative, associative, idempotent, and contains
          both
    I12   a waiting machine has a deadline, in the future and not far away
    sides no two running nodes have removed each other: of a split at most one side survives
    place no running node may handle messages while another one that may has it Down: that one may
          have started its entities; unless a wall rejects, which looks like a death, or an
          operator has downed it
    seen  a node that is in `seen` has the version
    rows  only the observer changes its row
    names at most one incarnation at an address is not Down, if there never was a wall
    ages  no two members came up under the same number; one that has made itself the youngest may
          share the number of one that came up meanwhile, and their ids order them
    acts  a leader acts only on a version that every voter has, and makes the first Up when enough
          have joined
    weak  no member is WeaklyUp where that is switched off
    calm  a member is downed by others only when it has had a bad link for a time, or nothing has
          changed for that time, and after the margin, except members whose processes are gone
    dead  a terminated member is dead; a rejecting wall excuses the flag
    claim of the clusters that were founded by the store's claim one is left: a founder that is
          alone without a valid claim admits no node, and does not count
    wires a node subscribes to exactly the members that it sees
    audit the machine's own invariants
    kept  (I10) in a run without faults that isolate, no working node is downed

I9 and the rest of I10 concern the time after the faults: see `run`.

The checks see more than any machine can: `seen` and `rows` compare a copy with its subject's
machine, dead or alive.

Source: docs/simulation.md.
"""

from __future__ import annotations

from random import Random

from shardbus.errors import LocalProtocolError
from shardbus.ids import Address, NodeId
from shardbus.membership.downing.split import Decision, DowningOutcome
from shardbus.membership.founding import FOUNDING
from shardbus.membership.gossip import ON_THE_WAY_OUT, STARTING, VOTING, Gossip
from shardbus.membership.member import Status
from shardbus.membership.reachability import Flag, ObserverRow
from shardbus.membership.vector_clock import Order
from shardbus.membership.view import DowningDecided, MembershipView
from shardbus.simulation.membership.process import Process
from shardbus.simulation.membership.world import World

LONGEST_WAIT = 12.0
"""Seconds. No deadline of membership is further away."""
ACTS = (Status.UP, Status.EXITING)
HOSTS = (Status.UP, Status.PREPARING_FOR_SHUTDOWN, Status.LEAVING)
LAWS_EVERY = 40
"""The laws of merging are tried once in this number of changes of a state."""
TWINS_S = 3.0
"""Seconds for which two incarnations at one address may be members: a Join may be accepted too
late."""


class Violation(Exception):
    """A broken rule. It ends the run."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule
        self.detail = detail


def content(gossip: Gossip) -> tuple[object, ...]:
    """Return the contents that two copies of one version must share."""
    return (
        dict(gossip.members),
        gossip.reachability,
        gossip.clock.counters,
        gossip.tombstones.keys(),
        gossip.epochs,
        gossip.meta,
    )


def version(gossip: Gossip) -> tuple[object, ...]:
    """Return the name of a version."""
    counters = gossip.clock.counters
    return (tuple(sorted(counters.items())), tuple(sorted(gossip.tombstones)))


class Checks:
    """The invariants, and the facts that they must remember. `gentle`: no working node may be
    downed."""

    def __init__(self, world: World, *, gentle: bool = False) -> None:
        self.world = world
        self.gentle = gentle
        self._dice = Random("laws")
        self._changes = 0
        self._last: dict[NodeId, Gossip] = {}
        self._contents: dict[tuple[object, ...], tuple[object, ...]] = {}
        self._known_acts: dict[tuple[NodeId, Status], None] = {}
        self._views: dict[NodeId, MembershipView] = {}
        self._calm_since: dict[NodeId, float] = {}
        self._bad_since: dict[NodeId, dict[NodeId, float]] = {}
        """Since when each end of a bad link has one, by each process's copy."""
        self._judged: dict[NodeId, int] = {}
        self._shared_addresses: dict[NodeId, dict[Address, float]] = {}
        self._downed: dict[NodeId, dict[NodeId, None]] = {}
        """Each member that some node has Down, with these nodes."""
        self._by_decision: dict[NodeId, None] = {}
        """The members that were downed by a side that stays, and not by an operator. Of a side that
        goes as a whole, a node that has just joined may be left (docs/downing.md)."""

    def after(self, process: Process) -> None:
        """Check the process after an event.

        Raises:
            Violation: a rule is broken.
        """
        self._deadline(process)
        self._calm(process)
        if self.gentle and process.stopped == "downed":
            raise Violation("I10", f"{process.id} is downed, though nothing isolated it")
        gossip = process.machine.gossip
        before = self._last.get(process.id)
        if gossip is not before:
            for node in gossip.down():
                self._downed.setdefault(node, {})[process.id] = None
        self._places()
        if gossip is before:
            return
        self._last[process.id] = gossip
        self._audit(process)
        seen = before.seen if before is not None and before.clock is gossip.clock else frozenset()
        self._check_seen(process, gossip, gossip.seen - seen)
        if before is not None and before.clock is gossip.clock:
            return
        self._changes += 1
        if before is not None:
            self._never_back(process, before, gossip)
            self._acts(process, before, gossip)
        self._named(process, gossip)
        self._rows(process, gossip)
        self._addresses_and_ages(process, gossip)
        self._sides(process, gossip)
        if FOUNDING in gossip.epochs:
            self._claims()
        if self._changes % LAWS_EVERY == 0:
            others = [p.machine.gossip for p in self.world.by_id.values()]
            self._laws(gossip, self._dice.choice(others), self._dice.choice(others))

    def _claims(self) -> None:
        """At most one cluster is left of those that the store's claim founded."""
        if self.world.leases.twice:
            return
        clusters: dict[int, NodeId] = {}
        for process in self.world.running():
            machine, now = process.machine, process.clock(self.world.now)
            number = machine.gossip.epochs.get(FOUNDING, 0)
            if number and (len(machine.gossip.members) > 1 or machine.has_claim(now)):
                clusters[number] = process.id
        if len(clusters) > 1:
            raise Violation("claim", f"{' and '.join(map(str, clusters.values()))} are in two")

    # -- one machine ---------------------------------------------------------------------------

    def _deadline(self, process: Process) -> None:
        due = process.due
        if due is None:
            if process.running and (process.member or process.seeds):
                raise Violation("I12", f"{process.id} waits for nothing")
            return
        wait = due - process.clock(self.world.now)
        if wait > LONGEST_WAIT:
            raise Violation("I12", f"{process.id} looks again in {wait:.1f} s only")
        if process.ticked and wait <= 0.0:
            raise Violation("I12", f"{process.id} asks for a time that has passed")

    def _calm(self, process: Process) -> None:
        """Judge decisions by the view before them: the decision itself changes the view."""
        judged = self._judged.get(process.id, 0)
        if len(process.notices) > judged:
            self._judged[process.id] = len(process.notices)
            for notice in process.notices[judged:]:
                if isinstance(notice, DowningDecided):
                    if notice.decision.outcome is DowningOutcome.DOWN_OTHERS:
                        self._by_decision.update(dict.fromkeys(notice.decision.down))
                    self._decided(process, notice.decision)
        view, shown = process.machine.view, self._views.get(process.id)
        if view is not shown:
            self._views[process.id] = view
            now = process.clock(self.world.now)
            if shown is None or shown.unreachable != view.unreachable:
                self._calm_since[process.id] = now
            ends = {end for record in process.machine.gossip.records() for end in record[:2]}
            bad = self._bad_since.get(process.id, {})
            self._bad_since[process.id] = {node: bad.get(node, now) for node in ends}
            self._wires(process, view)

    def _wires(self, process: Process, view: MembershipView) -> None:
        others = {m.node for m in view.members if m.node != process.id} | process.machine.tried
        if wrong := others ^ process.subscriptions.keys():
            raise Violation("wires", f"{process.id} and {min(wrong)}: listens or sees, not both")

    def _decided(self, process: Process, decision: Decision) -> None:
        split, settings = decision.split, self.world.settings.downing
        others = decision.outcome is DowningOutcome.DOWN_OTHERS
        if not others or set(decision.down) <= set(split.gone) or settings.unsafe_auto_down_after:
            return
        needed = settings.stable_after + (settings.down_removal_margin if split.cut else 0.0)
        calm, bad = self._calm_since[process.id], self._bad_since[process.id]
        for node in decision.down:
            waited = process.clock(self.world.now) - min(calm, bad.get(node, calm))
            if waited < needed - 1e-6:
                late = f"{waited:.1f} s of {needed:g} s"
                raise Violation("calm", f"{process.id} downs {node} after {late}")

    def _audit(self, process: Process) -> None:
        try:
            process.machine.check()
        except LocalProtocolError as broken:
            raise Violation("audit", str(broken)) from broken

    def _never_back(self, process: Process, before: Gossip, after: Gossip) -> None:
        for entity_type, epoch in before.epochs.items():
            if after.epochs.get(entity_type, 0) < epoch:
                raise Violation("I6", f"{process.id}: the epoch of {entity_type} went back")
        for node, member in before.members.items():
            now = after.members.get(node)
            if now is None and node not in after.tombstones:
                raise Violation("I8", f"{process.id} has lost {node} without a tombstone")
            if now is not None and now.status.rank < member.status.rank:
                raise Violation("I8", f"{process.id}: the status of {node} went back")
        for name, written in before.meta.items():
            if name not in after.meta or after.meta[name] < written:
                raise Violation("I8", f"{process.id}: what is written under {name} went back")
        older = before.clock.without(after.tombstones).compare(after.clock)
        if older not in (Order.SAME, Order.BEFORE):
            raise Violation("I8", f"{process.id}: the clock went back")
        if not before.tombstones.keys() <= after.tombstones.keys():
            keep = self.world.settings.prune_tombstones_after
            lost = [
                node
                for node in before.tombstones.keys() - after.tombstones.keys()
                if process.clock(self.world.now) - before.tombstones[node] < keep - 1.0
            ]
            if lost:
                raise Violation("I8", f"{process.id} has forgotten that {min(lost)} was removed")

    # -- one copy against the world ------------------------------------------------------------

    def _named(self, process: Process, gossip: Gossip) -> None:
        if process.id in gossip.tombstones:
            return
        named = self._contents.setdefault(version(gossip), content(gossip))
        if named != content(gossip):
            raise Violation(
                "I8", f"{process.id}: two contents of one version, {named} and {gossip}"
            )

    def _check_seen(self, process: Process, gossip: Gossip, news: frozenset[NodeId]) -> None:
        for node in sorted(news):
            other = self.world.by_id[node].machine.gossip
            if other is gossip or not other.members:
                continue
            order = gossip.clock.without(other.tombstones).compare(other.clock)
            if order not in (Order.SAME, Order.BEFORE):
                raise Violation("seen", f"{process.id} believes that {node} has its version")

    def _rows(self, process: Process, gossip: Gossip) -> None:
        for observer, row in gossip.reachability.rows.items():
            source = self.world.by_id[observer].machine.gossip
            original = source.reachability.rows.get(observer, ObserverRow(0, {}))
            if observer not in source.members or row.version < original.version:
                continue
            flags = {s: f for s, f in row.flags.items() if s not in source.tombstones}
            said = {s: f for s, f in original.flags.items() if s not in gossip.tombstones}
            if row.version > original.version or flags != said:
                raise Violation("rows", f"{process.id} has words of {observer} that it never said")
            self._dead(observer, row)

    def _dead(self, observer: NodeId, row: ObserverRow) -> None:
        for subject, flag in row.flags.items():
            alive = self.world.by_id[subject].running
            if flag is Flag.TERMINATED and alive and not self.world.network.rejected:
                raise Violation(
                    "dead", f"{observer} flags {subject}, which is alive, as terminated"
                )

    def _acts(self, process: Process, before: Gossip, after: Gossip) -> None:
        """Judge the first copy in the world that shows a leader's act: it is the leader's. A member
        that is removed without having been on its way out was removed by force, which needs no
        convergence."""
        shown = [(node, m.status) for node, m in after.members.items() if m.status in ACTS]
        shown += [(node, Status.REMOVED) for node in after.tombstones]
        new = [act for act in shown if act not in self._known_acts]
        forced = [
            (node, Status.REMOVED)
            for node, member in before.members.items()
            if node in after.tombstones and member.status not in ON_THE_WAY_OUT
        ]
        if all(act in forced for act in new):
            self._known_acts.update(dict.fromkeys(new))
            return
        founded = any(status is Status.UP for _, status in self._known_acts)
        founds = not founded and any(status is Status.UP for _, status in new)
        self._known_acts.update(dict.fromkeys(new))
        if founds and len(after.members) < self.world.settings.min_members:
            raise Violation("acts", f"{process.id} does not wait for enough members")
        theirs = after.clock.without((process.id,)).merge(before.clock)
        started = any(m.status in VOTING and m.up_number for m in before.members.values())
        voting = VOTING if started else (*STARTING, *VOTING)
        for node, member in before.members.items():
            if member.status not in voting or node not in after.members:
                continue
            if after.members[node].status not in VOTING or node == process.id:
                continue
            copy = self.world.by_id[node].machine.gossip
            order = theirs.without({**after.tombstones, **copy.tombstones}).compare(copy.clock)
            if order not in (Order.SAME, Order.BEFORE):
                raise Violation("acts", f"{process.id} leads on what {node} has not seen")

    def _addresses_and_ages(self, process: Process, gossip: Gossip) -> None:
        weakly = self.world.settings.allow_weakly_up_members
        addresses: dict[Address, NodeId] = {}
        ages: dict[int, NodeId] = {}
        shared: list[Address] = []
        for node, member in gossip.members.items():
            if member.status is Status.DOWN:
                continue
            if member.status is Status.WEAKLY_UP and not weakly:
                raise Violation("weak", f"{process.id} sees {node} weakly up")
            if addresses.setdefault(node.address, node) != node:
                shared.append(node.address)
            if member.yields:
                continue
            if member.up_number and ages.setdefault(member.up_number, node) != node:
                other = ages[member.up_number]
                raise Violation("ages", f"{process.id}: {other} and {node} came up at once")
        self._names(process, shared)

    def _names(self, process: Process, shared: list[Address]) -> None:
        before, now = self._shared_addresses.get(process.id, {}), self.world.now
        since = self._shared_addresses[process.id] = {
            address: before.get(address, now) for address in shared
        }
        late = [address for address, at in since.items() if now - at > TWINS_S]
        if late and not self.world.network.parted:
            raise Violation("names", f"{process.id} still sees two incarnations at {late[0]}")

    def _sides(self, process: Process, gossip: Gossip) -> None:
        unsafe = self.world.settings.downing.unsafe_auto_down_after
        if not process.running or self.world.leases.twice or unsafe:
            return
        for node in gossip.tombstones:
            other = self.world.by_id[node]
            if other.running and process.id in other.machine.gossip.tombstones:
                raise Violation("sides", f"{process.id} and {node} have removed each other")

    def _places(self) -> None:
        """Check that a downed node and the nodes that have it Down do not handle messages at the
        same time."""
        if (
            self.world.network.rejected
            or self.world.leases.twice
            or not self.world.settings.suspends
        ):
            return
        for downed, by in self._downed.items():
            if downed in self._by_decision and self._handles(downed):
                for other in by:
                    if self._handles(other):
                        raise Violation("place", f"{downed} handles messages; {other} has it Down")

    def _handles(self, node: NodeId) -> bool:
        process = self.world.by_id[node]
        hosting = process.machine.view.status in HOSTS
        now = process.clock(self.world.now)
        return process.running and hosting and now < process.confirmed_until

    # -- the laws of merging -------------------------------------------------------------------

    def _laws(self, a: Gossip, b: Gossip, c: Gossip) -> None:
        laws = {
            "commutative": a.merge(b) == b.merge(a),
            "associative": a.merge(b).merge(c) == a.merge(b.merge(c)),
            "idempotent": a.merge(a) == a and a.merge(b).merge(b) == a.merge(b),
            "monotone": all(_contains(a.merge(b), part) for part in (a, b)),
        }
        broken = [law for law, holds in laws.items() if not holds]
        if broken:
            raise Violation("I8", f"merge is not {', '.join(broken)}: {a}, {b}, {c}")


def _contains(whole: Gossip, part: Gossip) -> bool:
    order = part.clock.without(whole.tombstones).compare(whole.clock)
    return order in (Order.SAME, Order.BEFORE) and part.tombstones.keys() <= whole.tombstones.keys()
