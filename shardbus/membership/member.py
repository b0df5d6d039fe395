"""A member of the cluster, and the way of its life.

    joining ──> weakly_up ──> up ──> leaving ──> exiting ──> removed
       └──────────────────────^ │        ^
                                v        │
             preparing_for_shutdown ──> ready_for_shutdown ──> (the process ends)

    and from every one of them: down ──> removed

The lower way is that of a whole cluster which stops: nobody is removed, since nobody stays. A
member that has not come up takes it too, and any member on it may still leave.

`TRANSITIONS` is that drawing as data; whatever changes a status goes through `Member.moved`, which
refuses what the table does not have. Statuses also have a rank, their order in the drawing, so that
two views of one member merge to the later status: a status never goes back.

Orders: by address (the node id itself), which picks the leader; by age, which picks the oldest;
both are computed from gossiped facts alone, so that every node finds the same answer.

Source: S1.47-S1.55, S1.64, B.12, B.22, B.152; T.U4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from shardbus.errors import LocalProtocolError
from shardbus.ids import NodeId


class Status(Enum):
    """Where a member is in its life."""

    JOINING = "joining"
    WEAKLY_UP = "weakly_up"
    UP = "up"
    PREPARING_FOR_SHUTDOWN = "preparing_for_shutdown"
    READY_FOR_SHUTDOWN = "ready_for_shutdown"
    LEAVING = "leaving"
    EXITING = "exiting"
    DOWN = "down"
    REMOVED = "removed"

    @property
    def rank(self) -> int:
        """The place in the order of merging: of two views of one member the higher rank is the
        later truth."""
        return RANKS[self]


RANKS: Mapping[Status, int] = {status: rank for rank, status in enumerate(Status)}

TRANSITIONS: Mapping[Status, tuple[Status, ...]] = {
    Status.JOINING: (
        Status.WEAKLY_UP,
        Status.UP,
        Status.PREPARING_FOR_SHUTDOWN,
        Status.LEAVING,
        Status.DOWN,
    ),
    Status.WEAKLY_UP: (
        Status.UP,
        Status.PREPARING_FOR_SHUTDOWN,
        Status.LEAVING,
        Status.DOWN,
    ),
    Status.UP: (Status.PREPARING_FOR_SHUTDOWN, Status.LEAVING, Status.DOWN),
    Status.PREPARING_FOR_SHUTDOWN: (Status.READY_FOR_SHUTDOWN, Status.LEAVING, Status.DOWN),
    Status.READY_FOR_SHUTDOWN: (Status.LEAVING, Status.DOWN),
    Status.LEAVING: (Status.EXITING, Status.DOWN),
    Status.EXITING: (Status.DOWN, Status.REMOVED),
    Status.DOWN: (Status.REMOVED,),
    Status.REMOVED: (),
}

WORKING = (Status.UP, Status.PREPARING_FOR_SHUTDOWN, Status.READY_FOR_SHUTDOWN)
"""Members in these host shards and coordinators, and new ones are given to those that are Up."""

STOPPING = (Status.PREPARING_FOR_SHUTDOWN, Status.READY_FOR_SHUTDOWN)
"""The whole cluster stops."""

LEADING: Mapping[Status, int] = {
    Status.UP: 0,
    Status.PREPARING_FOR_SHUTDOWN: 0,
    Status.READY_FOR_SHUTDOWN: 0,
    Status.LEAVING: 0,
    Status.WEAKLY_UP: 1,
    Status.JOINING: 2,
    Status.EXITING: 3,
    Status.DOWN: 4,
    Status.REMOVED: 5,
}
"""Who is preferred as leader; address order decides among equals."""


class Service(Enum):
    """Whether an operator lets a member take new work. It lasts for one incarnation."""

    OPEN = "open"
    CORDONED = "cordoned"
    """It keeps its shards and gets no other."""
    DRAINING = "draining"
    """It shall host nothing: its shards move away, and it gets no other."""


@dataclass(frozen=True, slots=True)
class Member:
    """One incarnation of a node as the cluster knows it. All but `status`, `up_number` and the
    service is fixed for its life."""

    node: NodeId
    gossip_port: int
    http: str = ""
    """Where its HTTP interface listens, `host:port`, or empty."""
    roles: tuple[str, ...] = ()
    version: str = ""
    """The application's version, as the user names it."""
    status: Status = Status.JOINING
    up_number: int = 0
    """The order in which members came up, 1 for the first; 0 while it never was up."""
    service: Service = Service.OPEN
    service_version: int = 0
    """How often `service` was changed."""
    yields: int = 0
    """How often the member gave up its place in the order of age and went to its end."""

    def moved(self, status: Status, up_number: int | None = None) -> Member:
        """This member in its next status.

        Raises:
            LocalProtocolError: the table has no such transition.
        """
        if status not in TRANSITIONS[self.status]:
            raise LocalProtocolError(
                f"{self.node} cannot go from {self.status.value} to {status.value}"
            )
        return replace(
            self, status=status, up_number=self.up_number if up_number is None else up_number
        )

    def merge(self, other: Member) -> Member:
        """Return the later of two views of the same incarnation: the higher status, the service
        that changed more often, the up number of the view with more yields; with equal yields,
        the lower up number that is set."""
        if other is self or other == self:
            return self
        status = max(self.status, other.status, key=RANKS.__getitem__)
        yields = max(self.yields, other.yields)
        numbers = [m.up_number for m in (self, other) if m.up_number and m.yields == yields]
        later = max(self, other, key=_service_order)
        return replace(
            self,
            status=status,
            up_number=min(numbers, default=0),
            service=later.service,
            service_version=later.service_version,
            yields=yields,
        )

    def serving(self, service: Service) -> Member:
        """This member with that service; the same object if it has it."""
        if self.service is service:
            return self
        return replace(self, service=service, service_version=self.service_version + 1)

    def yielding(self, up_number: int) -> Member:
        """Return this member with a new place in the order of age."""
        return replace(self, up_number=up_number, yields=self.yields + 1)

    def has_role(self, role: str) -> bool:
        """True if it has the role, or if no role is asked for."""
        return not role or role in self.roles


def _service_order(member: Member) -> tuple[int, str]:
    return (member.service_version, member.service.value)


def age_order(member: Member) -> tuple[int, NodeId]:
    """Sort key, oldest first. Only members that have been up have an age."""
    return (member.up_number, member.node)


def leader_order(member: Member) -> tuple[int, NodeId]:
    """Sort key, the one to lead first."""
    return (LEADING[member.status], member.node)
