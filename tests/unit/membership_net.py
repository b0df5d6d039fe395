"""A network of `Cluster` machines on a virtual clock: one seed, one history.

Messages take a few milliseconds, may be lost, and cross walls not at all. A killed node's port
refuses connections, a silent one's (a black hole) answers nothing. A wall drops what crosses it, a
rejecting wall refuses it as if nobody were there. Every message goes through the codec, and every
machine is audited after every step."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from shardbus.ids import Address, NodeId
from shardbus.membership import events as ev
from shardbus.membership.cluster import Cluster
from shardbus.membership.confirm import ProbeOutcome
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Member, Status
from shardbus.membership.view import view_of
from shardbus.settings import ClusterSettings
from shardbus.wire.gossip import decode, encode


@dataclass
class Node:
    """One machine and what the world knows of it."""

    name: str
    machine: Cluster
    alive: bool = True
    listening: bool = True
    stopped: str = ""
    refused: list[str] = field(default_factory=list)
    notices: list[object] = field(default_factory=list)
    subscriptions: dict[NodeId, None] = field(default_factory=dict)
    tick_at: float | None = None
    paused_until: float = 0.0

    @property
    def id(self) -> NodeId:
        return self.machine.me

    @property
    def view(self) -> list[tuple[str, str]]:
        """(name of host, status) of every member this node sees."""
        return [(m.node.host, m.status.value) for m in self.machine.view.members]


class Net:
    """The world. `loss` is the part of published messages that vanish."""

    def __init__(
        self, seed: int, settings: ClusterSettings | None = None, *, loss: float = 0.0
    ) -> None:
        self.rng = random.Random(seed)
        self.settings = settings or ClusterSettings()
        self.loss = loss
        self.now = 100.0
        self.nodes: dict[str, Node] = {}
        self.retired: list[Node] = []
        self.by_id: dict[NodeId, Node] = {}
        self.side: dict[str, int] = {}
        self.cut_links: list[set[str]] = []
        self.rejecting = False
        self.store_up = True
        self.leases: dict[str, tuple[str, float]] = {}
        self.trace: list[str] = []
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    # -- the cast ------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        *,
        cluster: str = "test",
        fingerprint: dict[str, str] | None = None,
        roles: tuple[str, ...] = (),
        settings: ClusterSettings | None = None,
    ) -> Node:
        """A new process at this name's address; a former one there must be dead."""
        old = self.nodes.get(name)
        if old is not None:
            assert not old.alive, f"{name} still runs"
            self.retired.append(old)
        node_id = NodeId(name, 7355, self.rng.getrandbits(64))
        machine = Cluster(
            Member(node_id, 7356, roles=roles),
            cluster,
            settings or self.settings,
            fingerprint or {},
            random.Random(self.rng.getrandbits(32)),
        )
        node = Node(name, machine)
        self.nodes[name] = self.by_id[node_id] = node
        return node

    def join(self, name: str, *seeds: str, **options: object) -> Node:
        """Add a node and let it join by these seeds; without any it founds a cluster."""
        node = self.add(name, **options)  # type: ignore[arg-type]
        addresses = tuple(Address(seed, 7355) for seed in seeds)
        self.give(node, ev.JoinSeeds(addresses) if seeds else ev.JoinSelf())
        return node

    def start(self, n: int, **options: object) -> list[Node]:
        """A cluster of n nodes, all Up."""
        names = [f"n{i:02}" for i in range(1, n + 1)]
        nodes = [self.join(names[0], **options)]
        nodes += [self.join(name, names[0], **options) for name in names[1:]]
        self.until(lambda: self.agreed(names), 30)
        return nodes

    # -- faults --------------------------------------------------------------------------------

    def kill(self, name: str, *, silent: bool = False) -> None:
        """SIGKILL; `silent`: the whole machine, so that nothing refuses a connection."""
        node = self.nodes[name]
        node.alive = False
        node.listening = silent
        if not silent:
            self._drop_connections(node)

    def partition(self, *sides: Iterable[str], rejecting: bool = False) -> None:
        """Nothing crosses from one side to another."""
        self.side = {name: i for i, side in enumerate(sides) for name in side}
        self.rejecting = rejecting
        if rejecting:
            for a in self.nodes.values():
                for b in list(a.subscriptions):
                    if self.walled(a.name, b.host):
                        self.later(
                            self.rng.uniform(0, 1.0), lambda a=a, b=b: self._disconnected(a, b)
                        )

    def heal(self) -> None:
        """No walls any more."""
        self.side = {}
        self.cut_links = []
        self.rejecting = False

    def walled(self, a: str, b: str) -> bool:
        """True if nothing gets from a to b."""
        if {a, b} in self.cut_links:
            return True
        return self.side.get(a, -1) != self.side.get(b, -1) and bool(self.side)

    def pause(self, name: str, seconds: float) -> None:
        """SIGSTOP: events wait until the node continues."""
        self.nodes[name].paused_until = self.now + seconds

    # -- time ----------------------------------------------------------------------------------

    def later(self, delay: float, action: Callable[[], None]) -> None:
        """Do it at that time."""
        heapq.heappush(self._queue, (self.now + delay, next(self._order), action))

    def run(self, seconds: float) -> None:
        """Let so much time pass."""
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            self.step()
        self.now = end

    def until(self, condition: Callable[[], bool], limit: float) -> float:
        """Let time pass until the condition holds; returns how long that took."""
        began = self.now
        while not condition():
            assert self._queue, "nothing will ever happen again"
            assert self.now - began <= limit, f"not within {limit} s:\n{self.picture()}"
            self.step()
        return self.now - began

    def step(self) -> None:
        """The next thing that happens."""
        at, _, action = heapq.heappop(self._queue)
        self.now = max(self.now, at)
        action()

    # -- questions -----------------------------------------------------------------------------

    def running(self) -> list[Node]:
        return [n for n in self.nodes.values() if n.alive and not n.stopped]

    def agreed(self, names: Sequence[str], status: Status = Status.UP) -> bool:
        """Exactly these nodes run, and each sees exactly these, all in that status."""
        wanted = [(name, status.value) for name in sorted(names)]
        running = self.running()
        return sorted(n.name for n in running) == sorted(names) and all(
            node.view == wanted for node in running
        )

    def picture(self) -> str:
        lines = [f"at {self.now:.3f}"]
        for node in [*self.nodes.values(), *self.retired]:
            view = node.machine.view
            flags = ",".join(n.host for n in view.unreachable)
            state = node.stopped or ("running" if node.alive else "killed")
            waiting = ",".join(n.host for n in node.machine.gossip.waiting_for())
            lines.append(
                f"  {node.id} {state}: {node.view} unreachable [{flags}] waiting for [{waiting}]"
            )
        return "\n".join(lines)

    # -- the wires -----------------------------------------------------------------------------

    def give(self, node: Node, event: ev.Event) -> None:
        """An event reaches the machine."""
        if not node.alive or node.stopped:
            return
        if self.now < node.paused_until:
            self.later(node.paused_until - self.now, lambda: self.give(node, event))
            return
        self._apply(node, node.machine.handle(event, self.now))

    def _tick(self, node: Node, at: float) -> None:
        if node.tick_at != at or not node.alive:
            return
        node.tick_at = None
        if self.now < node.paused_until:
            self._arm(node, node.paused_until)
            return
        self._apply(node, node.machine.tick(self.now))
        deadline = node.machine.deadline()
        assert deadline is None or deadline > self.now, "the machine asks for time that has passed"

    def _arm(self, node: Node, at: float | None) -> None:
        if at is None or (node.tick_at is not None and node.tick_at <= at):
            return
        node.tick_at = at
        self.later(max(0.0, at - self.now), lambda: self._tick(node, at))

    def _apply(self, node: Node, effects: list[ev.Effect]) -> None:
        node.machine.check()
        for effect in effects:
            self._effect(node, effect)
        self._arm(node, node.machine.deadline())

    def _effect(self, node: Node, effect: ev.Effect) -> None:
        match effect:
            case ev.Publish(to, message) | ev.SendControl(to, message):
                said = f"to {to} {encode(message).hex()}"
            case _:
                said = str(effect)
        self.trace.append(f"{self.now:.6f} {node.id} {type(effect).__name__} {said}")
        match effect:
            case ev.Publish(to, message):
                self._publish(node, to, encode(message))
            case ev.SendControl(to, message):
                self._control(node, to, encode(message))
            case ev.Subscribe(member):
                node.subscriptions[member.node] = None
                self.later(self._delay(), lambda: self._listening(node, member.node))
            case ev.Unsubscribe(other):
                node.subscriptions.pop(other, None)
            case ev.Probe(other):
                self.later(self._delay(), lambda: self._probe(node, other))
            case ev.AcquireLease(name, owner, ttl):
                self.later(self._delay(), lambda: self._lease(node, name, owner, ttl))
            case ev.Stopped(reason):
                node.stopped = reason
                self.later(self._delay(), lambda: self._exit(node))
            case ev.Refused(reason):
                node.refused.append(reason)
            case ev.Notice(event):
                node.notices.append(event)
            case ev.ViewChanged(view):
                assert view == view_of(node.machine.gossip, node.id)
            case ev.Dropped():
                pass

    def _delay(self) -> float:
        return self.rng.uniform(0.0005, 0.005)

    def _publish(self, node: Node, to: NodeId, data: bytes) -> None:
        if self.rng.random() >= self.loss:
            self.later(self._delay(), lambda: self._arrive(node, to, data))

    def _arrive(self, node: Node, to: NodeId, data: bytes) -> None:
        target = self.by_id.get(to)
        if target is None or self.walled(node.name, target.name):
            return
        if node.id in target.subscriptions or node.id not in target.machine.gossip.members:
            message = decode(data)
            self.give(target, ev.Received(node.id, message))  # type: ignore[arg-type]

    def _control(self, node: Node, to: Address | NodeId, data: bytes) -> None:
        address = to.address if isinstance(to, NodeId) else to

        def arrive() -> None:
            target = self.nodes.get(address.host)
            if target is None or self.walled(node.name, target.name):
                return
            if isinstance(to, NodeId) and target.id != to:
                return
            message = decode(data)
            self.give(target, ev.ControlReceived(node.id, message))  # type: ignore[arg-type]

        self.later(self._delay(), arrive)

    def _listening(self, node: Node, other: NodeId) -> None:
        target = self.by_id.get(other)
        if target and node.alive and other in node.subscriptions:
            if self.walled(node.name, target.name):
                self.later(1.0, lambda: self._listening(node, other))
            else:
                self.give(target, ev.PeerListening(node.id.uid))

    def _probe(self, node: Node, other: NodeId) -> None:
        target = self.nodes.get(other.host)
        if target is None or (self.walled(node.name, other.host) and not self.rejecting):
            outcome = ProbeOutcome.UNKNOWN
        elif self.walled(node.name, other.host) or not target.listening:
            outcome = ProbeOutcome.REFUSED
        elif target.id != other:
            outcome = ProbeOutcome.OTHER
        else:
            outcome = ProbeOutcome.OPEN if target.alive else ProbeOutcome.UNKNOWN
        delay = 1.0 if outcome is ProbeOutcome.UNKNOWN else 0.0
        self.later(delay, lambda: self.give(node, ev.ProbeResult(other, outcome)))

    def _lease(self, node: Node, name: str, owner: str, ttl: float) -> None:
        granted: bool | None = None
        if self.store_up:
            holder, until = self.leases.get(name, ("", 0.0))
            granted = holder in ("", owner) or self.now >= until
            if granted:
                self.leases[name] = (owner, self.now + ttl)
        self.give(node, ev.LeaseResult(name, granted))

    def _exit(self, node: Node) -> None:
        node.alive = node.listening = False
        self._drop_connections(node)

    def _drop_connections(self, node: Node) -> None:
        for other in list(self.nodes.values()):
            if node.id in other.subscriptions and not self.walled(other.name, node.name):
                self.later(self._delay(), lambda other=other: self._disconnected(other, node.id))

    def _disconnected(self, node: Node, other: NodeId) -> None:
        self.give(node, ev.PeerDisconnected(other))


def content(gossip: Gossip) -> tuple[object, ...]:
    """What two copies of one version must have in common."""
    return (
        dict(gossip.members),
        gossip.reachability,
        gossip.clock.counters,
        gossip.tombstones.keys(),
        gossip.epochs,
    )
