"""A member of the cluster and its life cycle.

    joining ──> weakly_up ──> up ──> leaving ──> exiting ──> removed
       └──────────────────────^ │        ^
                                v        │
             preparing_for_shutdown ──> ready_for_shutdown ──> (the process ends)

    and from each of them: down ──> removed

The lower path is for a whole cluster that stops. No member is removed on it, because none stays. A
member that is not Up yet takes it too, and each member on it may still leave.

`TRANSITIONS` is the drawing as data. Every status change goes through `Member.moved`, which refuses
a step that is not in the table. A status also has a rank, its place in the drawing. Two views of
one member merge to the status of higher rank, so a status never goes back.

Two orders of members: by address (the node id itself), which picks the leader, and by age, which
picks the oldest. Both are computed from gossip alone, so every node finds the same answer.

Source: S1.47-S1.55, S1.64, B.12, B.22, B.152.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from shardbus.errors import LocalProtocolError
from shardbus.ids import Address, NodeId
from shardbus.membership.known_types import has_announced, may_have


class Status(Enum):
    """A member's place in its life cycle."""

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
        """The place in the order of merging. Of two views of one member, the higher rank is the
        later one."""
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
"""Members in these statuses host shards and coordinators. Only Up members get new ones."""

STOPPING = (Status.PREPARING_FOR_SHUTDOWN, Status.READY_FOR_SHUTDOWN)
"""The statuses of members while the whole cluster stops."""

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
"""Preference as leader by status, the lowest first. Address order decides among equals."""


VITALS = "vitals"
"""Replies to heartbeats say how busy a node is."""
VOTERS = "voters"
"""The nodes of the store's replicas vote about a split (`downing.electorate`)."""
FEATURES: tuple[str, ...] = (VITALS, VOTERS)
"""The parts of the protocol that this build speaks and a neighbouring one may not. A node sends
nothing to a member that the member's build cannot read: docs/upgrading.md."""
REPLICA = "replica:"
"""The beginning of the feature by which a member announces the address of its node's replica."""


class Service(Enum):
    """Whether an operator lets a member take new work. It lasts for one incarnation."""

    OPEN = "open"
    CORDONED = "cordoned"
    """The member keeps its shards and gets no others."""
    DRAINING = "draining"
    """The member gives its shards away and gets no others."""


@dataclass(frozen=True, slots=True)
class Member:
    """One incarnation of a node, as the cluster sees it. Only status, up number and service
    change."""

    node: NodeId
    gossip_port: int
    http: str = ""
    """Address of its HTTP interface, `host:port`; empty if there is none."""
    roles: tuple[str, ...] = ()
    version: str = ""
    """The application's version, as the user names it."""
    status: Status = Status.JOINING
    up_number: int = 0
    """The order in which members came Up, from 1; 0 before that."""
    service: Service = Service.OPEN
    service_version: int = 0
    """Number of changes of `service`."""
    yields: int = 0
    """Number of times the member gave up its place in the order of age and became the youngest."""
    zone: str = ""
    """Where it runs, as the operator names it; empty if that is not known."""
    features: tuple[str, ...] = FEATURES
    """The parts of the protocol that its build speaks, beyond the parts that every build speaks."""
    gossip_host: str = ""
    """The host of its gossip port, if that is another one than the node's."""

    @property
    def gossip_address(self) -> Address:
        """Where others receive its gossip."""
        return Address(self.gossip_host or self.node.host, self.gossip_port)

    @property
    def replica(self) -> str:
        """The address of its node's replica of the store, as it announces it; "" without one."""
        return next((f.removeprefix(REPLICA) for f in self.features if f.startswith(REPLICA)), "")

    def moved(self, status: Status, up_number: int | None = None) -> Member:
        """Return this member in its next status.

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
        """Merge two views of the same incarnation: the higher status, the service with the higher
        version, the up number of the view with more yields; with equal yields, the lower up number
        that is set."""
        if other is self or other == self:
            return self
        status = max(self.status, other.status, key=RANKS.__getitem__)
        yields = max(self.yields, other.yields)
        numbers = [m.up_number for m in (self, other) if m.up_number and m.yields == yields]
        later = max(self, other, key=lambda m: (m.service_version, m.service.value))
        return replace(
            self,
            status=status,
            up_number=min(numbers, default=0),
            service=later.service,
            service_version=later.service_version,
            yields=yields,
        )

    def serving(self, service: Service) -> Member:
        """Return this member with that service; the same object if it has it."""
        if self.service is service:
            return self
        return replace(self, service=service, service_version=self.service_version + 1)

    def yielding(self, up_number: int) -> Member:
        """Return this member with a new place in the order of age."""
        return replace(self, up_number=up_number, yields=self.yields + 1)

    def has_role(self, role: str) -> bool:
        """True if the member has the role, or if `role` is empty."""
        return not role or role in self.roles

    def may_have_type(self, entity_type: str) -> bool:
        """True unless the member has announced its entity types, and this is none of them."""
        return may_have(self.features, entity_type)

    def announces(self, entity_type: str) -> bool:
        """True if the member has announced this entity type, or one whose code is the same."""
        return has_announced(self.features, entity_type)


def age_order(member: Member) -> tuple[int, NodeId]:
    """Sort key, oldest first. Only members that have been Up have an age."""
    return (member.up_number, member.node)


def leader_order(member: Member) -> tuple[int, NodeId]:
    """Sort key, the preferred leader first."""
    return (LEADING[member.status], member.node)
