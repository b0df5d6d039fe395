"""One process of the world: a `ClusterMembership` machine, and the world's facts about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from shardbus.ids import Address, NodeId
from shardbus.membership.cluster import ClusterMembership
from shardbus.membership.events import Effect, Event
from shardbus.membership.view import DomainEvent
from shardbus.simulation.timeline import ProcessClock


@dataclass(eq=False, slots=True)
class Process:
    """One incarnation of a node. `clocks`: its clocks."""

    name: str
    machine: ClusterMembership
    clocks: ProcessClock = field(default_factory=ProcessClock)
    seeds: tuple[Address, ...] = ()
    discovers: bool = False
    """It finds others by the store."""
    alive: bool = True
    listening: bool = True
    """True if its address refuses no connection. After a crash of the process alone it does."""
    stopped: str = ""
    leaving: bool = False
    refused: list[str] = field(default_factory=list)
    notices: list[DomainEvent] = field(default_factory=list)
    subscriptions: dict[NodeId, None] = field(default_factory=dict)
    tick_at: float | None = None
    due: float | None = None
    """When its machine is due, by its own clock."""
    due_at: float | None = None
    """The same in the world's time: when its timer should have fired, paused or not."""
    notify: Callable[[Effect], None] | None = None
    """The application in it, which receives effects and decides when the process ends. None: no
    application."""
    confirmed_until: float = inf
    """Its entities may handle messages before this time of its own clock."""
    on_confirmed: Callable[[float], object] = lambda until: None
    """Receives each change of that."""
    ticked: bool = False
    """True if the last event was its timer."""
    paused_until: float = 0.0
    held: list[Event] | None = None
    """The events that wait until a paused process is released; None if it is not held."""
    slow: float = 1.0
    """The factor by which it needs longer for everything."""
    busy_until: float = 0.0
    """When a slow process has handled its last event."""
    _read: float = 0.0

    @property
    def id(self) -> NodeId:
        """Its node id."""
        return self.machine.me

    @property
    def running(self) -> bool:
        """True while its machine works."""
        return self.alive and not self.stopped

    @property
    def member(self) -> bool:
        """True while it takes part in a cluster."""
        return self.running and bool(self.machine.view.members)

    @property
    def view(self) -> list[tuple[str, str]]:
        """Return (name of host, status) of each member that this node sees."""
        return [(m.node.host, m.status.value) for m in self.machine.view.members]

    def clock(self, now: float) -> float:
        """Return the time of its own clock, which never goes back."""
        self._read = max(self._read, self.clocks.boot_time(now))
        return self._read

    def clock_at_least(self, local: float) -> float:
        """Return the time of its own clock when a timer set for that local time has fired:
        conversion may round."""
        self._read = max(self._read, local)
        return self._read

    def lag(self, now: float) -> float:
        """Return by how much its timer is late. No message has waited here for longer."""
        return 0.0 if self.due_at is None else max(0.0, now - self.due_at)

    def picture(self) -> str:
        """Describe its state and its view in one line."""
        flags = ",".join(n.host for n in self.machine.view.unreachable)
        state = self.stopped or ("running" if self.alive else "killed")
        waiting = ",".join(n.host for n in self.machine.gossip.waiting_for())
        return f"{self.id} {state}: {self.view} unreachable [{flags}] waiting for [{waiting}]"
