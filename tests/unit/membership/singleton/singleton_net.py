"""The network of machines, with the singleton machines on it.

Membership is a history of pictures, the truth; each node walks along it in its own time, so views
lag and differ, but never go back. Messages take time, and in rough worlds are lost or arrive in
another order. An instance claims an epoch in a store before it rules, and retires in its own time.

Always: machines that wait have deadlines, every epoch is claimed once, and no instance is begun
where another one is. In the end, exactly one rules: on the oldest that stays, under the highest
epoch. In *gentle* worlds, where nothing is lost and nobody is downed alive, never two at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random

from shardbus.ids import NodeId
from shardbus.membership.member import Member, Status
from shardbus.membership.singleton import messages as ho
from shardbus.membership.singleton.singleton import Singleton, SingletonState
from shardbus.membership.view import MembershipView
from tests.machines import DeadlineTimer, FaultyStore, MachineNetwork
from tests.records import replace


@dataclass(frozen=True)
class Nature:
    """How rough a world is. Times in seconds."""

    loss: float = 0.0
    delay: tuple[float, float] = (0.0005, 0.02)
    lag: tuple[float, float] = (0.001, 0.3)
    claim: tuple[float, float] = (0.001, 0.02)
    retire: tuple[float, float] = (0.0, 0.2)
    stage: tuple[float, float] = (1.0, 2.0)
    """Between leaving, exiting and removed."""
    proof: float = 1.0
    """How often a dead node is proved dead before it is downed."""
    margin: float = 0.0
    leaves_before_it_is_known: bool = True
    """Whether a node may leave before everybody knows of its epoch."""


GENTLE = Nature()
"""Nothing is lost, and nobody is downed alive."""

HASTY = Nature(
    lag=(0.001, 0.05), stage=(0.001, 0.05), retire=(0.0, 0.5), leaves_before_it_is_known=False
)
"""Membership removes a leaving node before its instance can have finished. An epoch that is claimed
just before its claimant leaves would look like a successor's epoch."""

ROUGH = Nature(
    loss=0.3,
    delay=(0.001, 1.5),
    lag=(0.001, 3.0),
    claim=(0.001, 1.0),
    retire=(0.0, 4.0),
    stage=(0.01, 2.0),
    proof=0.5,
)


class Work(Enum):
    """The actions of an instance."""

    READY = "ready"
    CLAIMING = "claiming"
    RULING = "ruling"
    RETIRING = "retiring"


@dataclass
class Instance:
    """One instance on one node."""

    work: Work
    epoch: int = 0
    since: float = 0.0


@dataclass(frozen=True)
class Picture:
    """Membership at one time."""

    members: tuple[Member, ...] = ()
    terminated: tuple[NodeId, ...] = ()
    unreachable: tuple[NodeId, ...] = ()
    epoch: int = 0
    preparing: bool = False


class Node:
    """A process with a machine and at most one instance."""

    def __init__(self, net: Net, me: NodeId, name: str) -> None:
        self.net, self.me, self.name = net, me, name
        self.machine = Singleton("t", me, removal_margin=net.nature.margin)
        self.alive = True
        self.instance: Instance | None = None
        self.at = 0
        """How far it is in the history."""
        self.retires_in: float | None = None
        self._timer = DeadlineTimer(net, self._deadline, self._tick)

    def into(self, event: ho.Event) -> None:
        if self.alive:
            self.net.trace(self, event)
            self.perform(self.machine.handle(event, self.net.now))

    def perform(self, effects: list[ho.Effect]) -> None:
        for effect in effects:
            self.net.trace(self, effect)
            match effect:
                case ho.SendHandOver(to, message):
                    self.net.send(self, to, message)
                case ho.PrepareInstance():
                    self._new(Work.READY)
                case ho.StartInstance(epoch):
                    if self.instance is None or self.instance.work is not Work.READY:
                        self._new(Work.READY)
                    assert self.instance is not None
                    self.instance.work = Work.CLAIMING
                    self.net.claim(self, self.instance, epoch)
                case ho.RetireInstance():
                    self._retire()
                case ho.HaltInstance():
                    self.instance = None
                case ho.SingletonStateChanged():
                    pass
        self.machine.check()
        self.net.check()
        self._timer.arm()

    def _new(self, work: Work) -> None:
        assert self.instance is None, f"{self.name} begins a second instance"
        self.instance = Instance(work, since=self.net.now)

    def _retire(self) -> None:
        instance = self.instance
        if instance is None or instance.work is not Work.RULING:
            self.instance = None
            self.net.soon(lambda: self.into(ho.InstanceStopped()))
            return
        instance.work = Work.RETIRING

        def retired() -> None:
            if self.instance is instance and self.alive:
                self.instance = None
                self.net.ended_at = self.net.now
                self.into(ho.InstanceStopped())

        drawn = self.net.dice.uniform(*self.net.nature.retire)
        self.net.at(self.net.now + (self.retires_in or drawn), retired)

    def deposed(self) -> None:
        """The store or a peer refused it."""
        self.instance = None
        self.into(ho.InstanceStopped())

    def _deadline(self) -> float | None:
        return self.machine.deadline() if self.alive else None

    def _tick(self) -> None:
        self.perform(self.machine.tick(self.net.now))


class Net(MachineNetwork):
    """The world of one seed."""

    def __init__(self, seed: int, nature: Nature = GENTLE) -> None:
        super().__init__(Random(seed), delay_s=nature.delay, loss=nature.loss, ordered=False)
        self.seed, self.nature = seed, nature
        self.store = FaultyStore(self)
        self.nodes: dict[NodeId, Node] = {}
        self.history = [Picture()]
        self.epoch = 0
        self.claims: dict[int, str] = {}
        self.ended_at: float | None = None
        self.gaps: list[float] = []

    # Messages and the store.

    def send(self, source: Node, to: NodeId, message: ho.Message) -> None:
        """A message on its way; in rough worlds it may be lost, or overtaken."""

        def deliver() -> None:
            node = self.nodes.get(to)
            if node is not None:
                node.into(ho.HandOverReceived(source.me, message))

        if not self.transmit(source.me, to, deliver):
            self.lost(source, to, message)

    def lost(self, source: Node, to: NodeId, message: ho.Message) -> None:
        """A message did not arrive."""

    def claim(self, node: Node, instance: Instance, floor: int) -> None:
        """The instance asks the store for an epoch above `floor`."""
        delay = self.dice.uniform(*self.nature.claim) / 2

        def work() -> int:
            self.epoch = epoch = max(self.epoch, floor) + 1
            assert epoch not in self.claims
            self.claims[epoch] = node.name
            self._guard()
            return epoch

        def answer(epoch: int | None) -> None:
            if epoch is not None:
                self._claimed(node, instance, epoch)

        self.store.call(work, answer, delay)

    def _claimed(self, node: Node, instance: Instance, epoch: int) -> None:
        if node.instance is not instance or not node.alive:
            return
        instance.work, instance.epoch, instance.since = Work.RULING, epoch, self.now
        if self.ended_at is not None:
            self.gaps.append(self.now - self.ended_at)
            self.ended_at = None
        self.trace(node, epoch)
        node.into(ho.InstanceStarted(epoch))
        self.show(replace(self.history[-1], epoch=max(epoch, self.history[-1].epoch)))
        self._guard()

    def _guard(self) -> None:
        """The store refuses the next write of every instance under a lower epoch."""
        for node in self.nodes.values():
            instance = node.instance
            if instance is not None and 0 < instance.epoch < self.epoch:
                delay = self.dice.uniform(*self.nature.lag)
                self.at(self.now + delay, lambda n=node, i=instance: self._refuse(n, i))  # type: ignore[misc]

    def _refuse(self, node: Node, instance: Instance) -> None:
        if node.instance is instance and node.alive:
            node.deposed()

    # Membership.

    def show(self, picture: Picture) -> None:
        """A new picture, which every node sees in its own time."""
        self.history.append(picture)
        index = len(self.history) - 1
        for node in self.nodes.values():
            self.at(self.now + self.lag_of(node), lambda n=node: self.see(n, index))  # type: ignore[misc]

    def lag_of(self, node: Node) -> float:
        """How long the next picture takes to get there."""
        return self.dice.uniform(*self.nature.lag)

    def see(self, node: Node, index: int) -> None:
        """The node's view reaches this picture; a side that is cut off receives nothing."""
        if index <= node.at or not node.alive or self.walls.get(node.me, 0):
            return
        node.at = index
        picture = self.history[index]
        view = MembershipView(
            node.me,
            picture.members,
            (*picture.unreachable, *picture.terminated),
            picture.terminated,
            epochs={"t": picture.epoch} if picture.epoch else {},
        )
        node.into(ho.MembershipSeen(view, picture.preparing))

    def change(self, node: Node, status: Status | None, **news: object) -> None:
        """The member is in this status from now on; None: it is removed."""
        before = self.history[-1]
        members = []
        for member in before.members:
            if member.node != node.me:
                members.append(member)
            elif status is not None:
                members.append(replace(member, status=status))
        self.show(replace(before, members=tuple(members), **news))  # type: ignore[arg-type]

    def status(self, node: Node) -> Status | None:
        """The truth about a member."""
        return next((m.status for m in self.history[-1].members if m.node == node.me), None)

    def join(self, name: str = "", *, at: NodeId | None = None) -> Node:
        """A node comes up, the youngest; `at`: where another one was."""
        number = len(self.nodes) + 1
        me = NodeId(at.host, at.port, number) if at is not None else NodeId("n", number, number)
        node = self.nodes[me] = Node(self, me, name or f"n{number}")
        member = Member(me, 1, status=Status.UP, up_number=number)
        before = self.history[-1]
        self.show(replace(before, members=tuple(sorted((*before.members, member), key=by_node))))
        return node

    def leave(self, node: Node) -> None:
        """The member leaves, exits, is removed, and its process lingers until nothing waits."""
        fresh = node.instance is not None and self.now < node.instance.since + 0.2
        if self.status(node) is not Status.UP:
            return
        if fresh and not self.nature.leaves_before_it_is_known:
            return
        self.change(node, Status.LEAVING)
        self.soon(lambda: self.see(node, len(self.history) - 1))
        first, second = (self.dice.uniform(*self.nature.stage) for _ in range(2))

        def exits() -> None:
            if self.status(node) is Status.LEAVING:
                self.change(node, Status.EXITING)
                self.at(self.now + second, removed)

        def removed() -> None:
            if self.status(node) is Status.EXITING:
                self.change(node, None)
                self.at(self.now + self.dice.uniform(*self.nature.lag), left)

        def left() -> None:
            node.into(ho.MembershipEnded(True))
            self.at(self.now + 10, lambda: self.end(node))

        self.at(self.now + first, exits)

    def end(self, node: Node) -> None:
        """The process is gone; whatever ran in it, too."""
        node.alive, node.instance = False, None

    def crash(self, node: Node) -> None:
        """The process dies; the others find out, prove it or not, down it and remove it."""
        if node.instance is not None:
            self.ended_at = None
        self.end(node)
        self._lose(node, self.dice.random() < self.nature.proof)

    def down(self, node: Node) -> None:
        """The member is declared Down while it lives; it hears of it like everybody."""
        if self.status(node) is not None:
            self.ended_at = None
            self.change(node, Status.DOWN)
            lag = self.dice.uniform(*self.nature.lag)
            self.at(self.now + lag, lambda: self.membership_ended(node))
            self.at(self.now + lag + 1, lambda: self.change(node, None))

    def membership_ended(self, node: Node) -> None:
        """The node receives from its own membership that it was downed."""
        node.into(ho.MembershipEnded(False))
        assert node.instance is None, f"{node.name} has an instance after it was downed"

    def split(self, nodes: list[Node], seconds: float) -> None:
        """These nodes are cut off. The rest downs them; they find out by themselves, later."""
        for node in nodes:
            self.walls[node.me] = 1
            self._lose(node, False)
            self.at(self.now + seconds, lambda n=node: self.membership_ended(n))  # type: ignore[misc]
            self.at(self.now + seconds + 1, lambda n=node: self.end(n))  # type: ignore[misc]

    def _lose(self, node: Node, proved: bool) -> None:
        def marked() -> None:
            before = self.history[-1]
            which = "terminated" if proved else "unreachable"
            self.change(node, self.status(node), **{which: (*getattr(before, which), node.me)})
            self.at(self.now + self.dice.uniform(0.1, 1), downed)

        def downed() -> None:
            self.change(node, Status.DOWN)
            self.at(self.now + self.dice.uniform(0.1, 2), removed)

        def removed() -> None:
            before = self.history[-1]
            flags = {
                which: tuple(n for n in getattr(before, which) if n != node.me)
                for which in ("terminated", "unreachable")
            }
            self.change(node, None, **flags)

        self.at(self.now + self.dice.uniform(0.1, 1), marked)

    def prepare_shutdown(self) -> None:
        """The whole cluster is about to stop."""
        self.show(replace(self.history[-1], preparing=True))

    # The laws.

    def active(self) -> list[Node]:
        """Where an instance may act."""
        return [
            node
            for node in self.nodes.values()
            if node.alive and node.instance is not None and node.instance.work is not Work.READY
        ]

    def check(self) -> None:
        if self.nature.loss == 0 and self.nature.proof == 1 and not self.walls:
            names = [node.name for node in self.active()]
            assert len(names) <= 1, f"at {self.now:.3f} two act: {names}"

    def check_quiet(self) -> None:
        """Exactly one rules: the oldest that stays, under the highest epoch."""
        up = [m for m in self.history[-1].members if m.status is Status.UP]
        oldest = min(up, key=lambda m: m.up_number, default=None)
        rulers = [node for node in self.active() if node.instance.work is Work.RULING]  # type: ignore[union-attr]
        names = [node.name for node in self.active()]
        expected = [] if oldest is None else [self.nodes[oldest.node].name]
        assert names == expected, f"in the end {names} act, not {expected}"
        assert [r.instance.epoch for r in rulers] == [self.epoch] * len(expected)  # type: ignore[union-attr]
        for node in self.nodes.values():
            resting = node.machine.state in (
                SingletonState.YOUNGER,
                SingletonState.OLDEST,
                SingletonState.ENDED,
            )
            assert resting or not node.alive, f"{node.name} is {node.machine.state.value}"

    def trace(self, node: Node, what: object) -> None:
        """Something goes into a machine or comes out."""


def by_node(member: Member) -> NodeId:
    """Address order."""
    return member.node
