"""The world: processes, the network between them, and a shell around each machine.

It is the shell that a node has around its `ClusterMembership` machine, with virtual time instead of
timers and a simulated network instead of sockets. Every message is encoded and decoded on its way.
A process receives messages of another only if it has subscribed to it. The port of a dead process
refuses connections, unless its whole machine is gone. A paused process does nothing, and events
wait for it.

What a run adds is called by `Hooks`.

Not here: which faults happen (`faults`), the invariants (`checks`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import assert_never

from shardbus.config.settings import ClusterSettings
from shardbus.ids import Address, NodeId
from shardbus.membership import events as ev
from shardbus.membership import messages as msg
from shardbus.membership.claim_record import ClaimRecord
from shardbus.membership.cluster import ClusterMembership
from shardbus.membership.failure.confirmed_death import ProbeOutcome
from shardbus.membership.founding import FOUNDING, owner_of
from shardbus.membership.member import FEATURES, REPLICA, Member, Status
from shardbus.simulation.membership.leases import SimLeases
from shardbus.simulation.membership.network import Channel, SimPubSub, Wall
from shardbus.simulation.membership.process import Process
from shardbus.simulation.timeline import ProcessClock, Timeline
from shardbus.simulation.trace import Trace
from shardbus.transport.permissions import JOIN_REQUESTS
from shardbus.wire.gossip import decode, encode

PORT, GOSSIP_PORT, REPLICA_PORT = 7355, 7356, 7357
BEGINNING = 100.0
PROBE_WITHIN = 1.0
EVENT_S = 0.0001
"""Seconds that a process needs for an event. They matter where it is slow."""
RECONNECT = 1.0
"""Seconds between two attempts to connect to a publisher behind a wall."""

APPLICATION_EFFECTS = (ev.ViewChanged, ev.Notice, ev.Stopped, ev.CommandRefused)
"""The effects that a process's application receives."""

REQUESTS = tuple(kind.__name__ for kind in JOIN_REQUESTS)
"""Messages over a connection of their sender. The others answer them, over that connection."""
PUBLISHED = (msg.Heartbeat, msg.HeartbeatReply, msg.GossipStatus, msg.GossipSeen, msg.GossipState)


def place_of(name: str) -> str:
    """Return the address of the replica of the node with this name."""
    return f"{name}:{REPLICA_PORT}"


def address_of(name: str) -> Address:
    """Return the address of the node with this name."""
    return Address(name, PORT)


@dataclass(slots=True)
class Hooks:
    """The functions of a run that the world calls with a process."""

    on_step: Callable[[Process], object] = lambda _: None
    """After each event that its machine has handled."""
    on_lease_request: Callable[[Process], object] = lambda _: None
    """When it requests a lease."""
    on_added: Callable[[Process], object] = lambda _: None
    """When its machine has been made."""
    on_stopped: Callable[[Process], object] = lambda _: None
    """When its machine has stopped."""


class World(Timeline):
    """All processes, the network and the store. `nodes` holds the latest process of each name,
    `by_id` all of them."""

    def __init__(self, seed: int | str, settings: ClusterSettings | None = None) -> None:
        super().__init__(BEGINNING)
        self.rng = Random(seed)
        self.settings = settings or ClusterSettings()
        self.network = SimPubSub(self.rng)
        self.leases = SimLeases(self.rng)
        self.trace = Trace()
        self.events = 0
        self.stops_within_s = 0.05
        """Seconds, at most, that a process needs to stop its work."""
        self.nodes: dict[str, Process] = {}
        self.by_id: dict[NodeId, Process] = {}
        self.hooks = Hooks()

    # -- processes -----------------------------------------------------------------------------

    def add(
        self,
        name: str,
        *,
        cluster: str = "test",
        fingerprint: dict[str, str] | None = None,
        roles: tuple[str, ...] = (),
        settings: ClusterSettings | None = None,
        rate: float = 1.0,
        replica: bool = False,
    ) -> Process:
        """Start a process at this name's address; a former one there must be dead. `replica`: its
        node has a replica of the store."""
        features = (*FEATURES, REPLICA + place_of(name)) if replica else FEATURES
        node = NodeId(name, PORT, self.rng.getrandbits(64))
        member = Member(node, GOSSIP_PORT, roles=roles, features=features)
        clock = ProcessClock(rate)
        return self.admit(member, cluster, settings or self.settings, fingerprint or {}, clock)

    def admit(
        self,
        member: Member,
        cluster: str,
        settings: ClusterSettings,
        fingerprint: Mapping[str, str],
        clock: ProcessClock,
    ) -> Process:
        """Start a process with a machine for this member, and these clocks."""
        name = member.node.host
        former = self.nodes.get(name)
        assert former is None or not former.alive, f"{name} still runs"
        rng = Random(self.rng.getrandbits(32))
        machine = ClusterMembership(member, cluster, settings, fingerprint, rng, name.encode())
        process = Process(name, machine, clock)
        self.nodes[name] = self.by_id[member.node] = process
        self.hooks.on_added(process)
        return process

    def enter(self, process: Process, *seeds: str, founds: bool = True, founder: str = "") -> None:
        """Let the process join by these seeds; without any it founds a cluster. `founds` False: it
        rejoins. `founder`: the node that may found anew."""
        addresses = tuple(address_of(seed) for seed in seeds)
        first = address_of(founder) if founder else None
        joins = ev.JoinSeeds(addresses, founds, claims=self.leases.claims, founder=first)
        self.deliver(process, joins if seeds or self.leases.claims else ev.JoinSelf())

    def discover(self, process: Process) -> None:
        """Let the process join by the members registered in the store, and register itself."""
        process.discovers = True
        self.deliver(process, ev.JoinSeeds((), discovers=True))
        self._look(process)

    def _look(self, process: Process) -> None:
        """One look-up of contacts, and the next ones."""
        if not process.running or self.nodes[process.name] is not process:
            return
        settings = process.machine.settings
        if self.leases.reached_by(process.name) and self.now >= process.paused_until:
            beats = self.leases.beats
            beats[process.name] = self.now
            alive = [name for name, at in beats.items() if self.now - at < settings.founding_claim]
            if not process.member:
                event = ev.ContactsFound(tuple(address_of(name) for name in sorted(alive)))
                self.later(self.leases.delay(), lambda: self.deliver(process, event))
        self.later(settings.discovery_interval, lambda: self._look(process))

    def leave(self, process: Process) -> None:
        """Let the process leave gracefully, as SIGTERM does."""
        process.leaving = True
        self.deliver(process, ev.Leave(process.id))

    def names(self) -> list[str]:
        """Return the names that a wall may separate."""
        return list(self.nodes)

    def running(self) -> list[Process]:
        """Return the processes whose machines work."""
        return [p for p in self.nodes.values() if p.running]

    def picture(self) -> str:
        """Describe the view of every process."""
        lines = [f"at {self.now:.3f}"]
        return "\n".join(lines + [f"  {p.picture()}" for p in self.by_id.values()])

    # -- faults --------------------------------------------------------------------------------

    def kill(self, name: str, *, silent: bool = False) -> None:
        """Kill the process. `silent`: its whole machine dies, so that nothing refuses a
        connection."""
        process = self.nodes[name]
        process.alive = False
        process.listening = silent
        if not silent:
            self._drop_connections(process)

    def wall_up(self, wall: Wall, breaking: float = 0.0) -> None:
        """Raise the wall. A rejecting one breaks all connections through it, another one the part
        `breaking`."""
        self.network.walls.append(wall)
        self.network.parted = True
        self.network.rejected = self.network.rejected or wall.rejecting
        for process in self.nodes.values():
            for other in list(process.subscriptions):
                through = wall.severs(process.name, other.host, Channel.GOSSIP)
                if through and (wall.rejecting or (breaking and self.rng.random() < breaking)):
                    soon = self.rng.uniform(0.0, 1.0)
                    self.later(soon, lambda p=process, o=other: self._disconnected(p, o))  # type: ignore[misc]

    def wall_down(self, wall: Wall) -> None:
        """Remove the wall."""
        if wall in self.network.walls:
            self.network.walls.remove(wall)

    def pause(self, name: str, seconds: float) -> None:
        """Pause the process, as SIGSTOP does: events wait until it continues."""
        process = self.nodes[name]
        process.paused_until = max(process.paused_until, self.now + seconds)

    def slow_down(self, name: str, factor: float) -> None:
        """Let the process at this name need that much longer for everything; 1 is as usual."""
        process = self.nodes[name]
        process.slow, process.busy_until = factor, min(process.busy_until, self.now)

    def lose_store(self, name: str, *, lost: bool = True) -> None:
        """Let this name alone lose the way to the store, or find it again."""
        (self.leases.away.add if lost else self.leases.away.discard)(name)

    # -- the shell -----------------------------------------------------------------------------

    def deliver(self, process: Process, event: ev.Event) -> None:
        """Deliver an event to the machine."""
        if not process.running:
            return
        if self.now < process.paused_until:
            self.later(process.paused_until - self.now, lambda: self.deliver(process, event))
            return
        if self.now < process.busy_until:
            self.at(process.busy_until, lambda: self.deliver(process, event))
            return
        if isinstance(event, ev.PubSubReceived):
            event = ev.PubSubReceived(event.sender, event.message, process.lag(self.now))
        elif isinstance(event, ev.JoinSeeds):
            process.seeds = event.seeds
        process.ticked = False
        self._apply(process, process.machine.handle(event, process.clock(self.now)))

    def _tick(self, process: Process, at: float) -> None:
        if process.tick_at != at or not process.alive:
            return
        process.tick_at = None
        if self.now < process.paused_until:
            self._arm(process, process.paused_until)
            return
        if self.now < process.busy_until:
            self._arm(process, process.busy_until)
            return
        local = process.clock(self.now)
        due = process.machine.deadline()
        if due is not None and due / process.clocks.rate <= self.now:
            local = process.clock_at_least(due)
        process.ticked = True
        self._apply(process, process.machine.tick(local))

    def _arm(self, process: Process, at: float | None) -> None:
        if at is None or (process.tick_at is not None and process.tick_at <= at):
            return
        process.tick_at = at
        self.later(max(0.0, at - self.now), lambda: self._tick(process, at))

    def _apply(self, process: Process, effects: list[ev.Effect]) -> None:
        self.events += 1
        if process.slow > 1.0:
            process.busy_until = self.now + EVENT_S * process.slow
        for effect in effects:
            self._perform(process, effect)
        due = process.due = process.machine.deadline()
        self.hooks.on_step(process)
        process.due_at = None if due is None else due / process.clocks.rate
        self._arm(process, process.due_at)

    def _perform(self, process: Process, effect: ev.Effect) -> None:
        data = b""
        match effect:
            case ev.Publish(to, message):
                data = encode(message)
                self._publish(process, to, type(message).__name__, data)
            case ev.SendControl(target, control):
                data = encode(control)
                self._send(process, target, type(control).__name__, data)
            case ev.Subscribe(member):
                process.subscriptions[member.node] = None
                self._soon(lambda: self._connect(process, member.node))
            case ev.Unsubscribe(other):
                process.subscriptions.pop(other, None)
            case ev.Probe(other):
                self._soon(lambda: self._probe(process, other))
            case ev.AcquireLease(name, owner, ttl):
                self.trace.mark(self.now, process.name, f"asks for {name}")
                self._soon(lambda: self._acquire(process, name, owner, ttl))
                self.hooks.on_lease_request(process)
            case ev.ReadClaim():
                self._soon(lambda: self._read_claim(process))
            case ev.WriteClaim(record):
                self._soon(lambda: self._write_claim(record))
            case ev.FreeClaim(record):
                self._soon(lambda: self._free_claim(record))
            case ev.Stopped(reason):
                process.stopped = reason
                self.trace.mark(self.now, process.name, f"stopped: {reason}")
                self.hooks.on_stopped(process)
                if process.notify is None:
                    self._soon(lambda: self._exit(process))
            case ev.CommandRefused(reason):
                process.refused.append(reason)
            case ev.Notice(event):
                process.notices.append(event)
                self.trace.mark(self.now, process.name, type(event).__name__)
            case ev.ViewChanged(view):
                ready = view.status is Status.READY_FOR_SHUTDOWN and view.converged
                if ready and process.notify is None:
                    self.later(self.stops_within_s * self.rng.random(), lambda: self._end(process))
            case ev.HandlingConfirmed(until):
                process.confirmed_until = until
                process.on_confirmed(until)
            case ev.MessageDropped():
                pass
            case _:
                assert_never(effect)
        self.trace.hashed(self.now, process.name, type(effect).__name__, data)
        if process.notify is not None and isinstance(effect, APPLICATION_EFFECTS):
            process.notify(effect)

    def _soon(self, action: Callable[[], None]) -> None:
        self.later(self.network.delay(), action)

    # -- the network ---------------------------------------------------------------------------

    def _publish(self, process: Process, to: NodeId, what: str, data: bytes) -> None:
        copies = self.network.copies()
        for delay in copies:
            self.later(delay, lambda: self._arrive(process, to, what, data))
        if not copies:
            self.trace.arrow(self.now, process.name, to.host, what, "lost")

    def _arrive(self, process: Process, to: NodeId, what: str, data: bytes) -> None:
        target = self.by_id.get(to)
        if target is None or not target.running:
            fate = "no process there"
        elif self.network.walled(process.name, target.name, Channel.GOSSIP, target.name):
            fate = "wall"
        elif process.id not in target.subscriptions:
            fate = "not subscribed"
        else:
            fate = ""
        self.trace.arrow(self.now, process.name, to.host, what, fate)
        if target is None or fate:
            return
        message = decode(data)
        assert isinstance(message, PUBLISHED)
        self.deliver(target, ev.PubSubReceived(process.id, message))

    def _send(self, process: Process, to: Address | NodeId, what: str, data: bytes) -> None:
        def arrive() -> None:
            target = self.nodes.get(to.host)
            if target is None or not target.running or to not in (target.id, target.id.address):
                fate = "no process there"
            else:
                opener = process.name if what in REQUESTS else target.name
                cut_off = self.network.walled(process.name, target.name, opener=opener)
                fate = "wall" if cut_off else ""
            self.trace.arrow(self.now, process.name, to.host, what, fate)
            if target is None or fate:
                return
            message = decode(data)
            assert not isinstance(message, PUBLISHED)
            self.deliver(target, ev.ControlReceived(process.id, message))

        self._soon(arrive)

    def _connect(self, process: Process, other: NodeId) -> None:
        """Connect the subscription to a publisher, repeatedly until it stands."""
        target = self.by_id.get(other)
        if target is None or not process.alive or other not in process.subscriptions:
            return
        if self.network.severed(process.name, target.name, Channel.GOSSIP):
            self.later(RECONNECT, lambda: self._connect(process, other))
        else:
            self.deliver(target, ev.PeerListening(process.id.uid))

    def _probe(self, process: Process, other: NodeId) -> None:
        target = self.nodes.get(other.host)
        if self.network.rejects(process.name, other.host, Channel.PROBES):
            outcome = ProbeOutcome.REFUSED
        elif target is None or self.network.severed(process.name, other.host, Channel.PROBES):
            outcome = ProbeOutcome.UNKNOWN
        elif not target.listening:
            outcome = ProbeOutcome.REFUSED
        elif not target.alive:
            outcome = ProbeOutcome.UNKNOWN
        elif target.paused_until > self.now:
            outcome = ProbeOutcome.OPEN
        else:
            outcome = ProbeOutcome.ALIVE if target.id == other else ProbeOutcome.OTHER
        self.trace.mark(self.now, process.name, f"probed {other.host}: {outcome.value}")
        delay = PROBE_WITHIN if outcome is ProbeOutcome.UNKNOWN else 0.0
        self.later(delay, lambda: self.deliver(process, ev.ProbeResult(other, outcome)))

    def _acquire(self, process: Process, name: str, owner: str, ttl: float) -> None:
        granted = self.leases.acquire(name, owner, ttl, self.now, by=process.name)
        answer = ev.LeaseResult(name, granted)
        self.later(self.leases.delay(), lambda: self.deliver(process, answer))

    def _read_claim(self, process: Process) -> None:
        answers = self.leases.answers(process.name)
        read = ev.ClaimRead(self.leases.record if answers else None, answers)
        self.later(self.leases.delay(), lambda: self.deliver(process, read))

    def _write_claim(self, record: ClaimRecord) -> None:
        if self.leases.answers():
            self.leases.record = record

    def _free_claim(self, record: ClaimRecord) -> None:
        if self.leases.answers():
            self.trace.mark(self.now, "store", f"the claim of cluster {record.number} is freed")
            self.leases.free(FOUNDING, owner_of(record.number))

    def _exit(self, process: Process) -> None:
        process.alive = process.listening = False
        self._drop_connections(process)

    def _end(self, process: Process) -> None:
        """End a process whose work has stopped because the whole cluster stops."""
        self.deliver(process, ev.Leave(process.id))

    def _drop_connections(self, process: Process) -> None:
        for other in self.nodes.values():
            if process.id in other.subscriptions and not self.network.walled(
                process.name, other.name, Channel.GOSSIP, other.name
            ):
                self._soon(lambda o=other: self._disconnected(o, process.id))  # type: ignore[misc]

    def _disconnected(self, process: Process, other: NodeId) -> None:
        self.deliver(process, ev.PeerDisconnected(other))
        self._soon(lambda: self._connect(process, other))
