"""For how long membership has been as it is: a state that is normal for a moment is a fault if it
lasts.

Source: docs/reference/cli.md.
"""

from __future__ import annotations

from shardbus.ids import NodeId
from shardbus.membership.member import Status
from shardbus.membership.view import MembershipView


class ViewAges:
    """Times of the loop since which members have their status, are unreachable, and the members
    agree or disagree. `began`: when this node began to listen."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.unreachable: dict[NodeId, float] = {}
        self.converged_since = began
        self._converged = False
        self._statuses: dict[NodeId, tuple[Status, float]] = {}

    def on_view(self, view: MembershipView, now: float) -> None:
        """Note a new view."""
        self.unreachable = {node: self.unreachable.get(node, now) for node in view.unreachable}
        before = self._statuses
        self._statuses = {
            member.node: prior
            if (prior := before.get(member.node)) and prior[0] is member.status
            else (member.status, now)
            for member in view.members
        }
        if view.converged != self._converged:
            self._converged, self.converged_since = view.converged, now

    def status_since(self, node: NodeId) -> float:
        """Return since when a member has its status; a node that is none, since this one began."""
        return self._statuses.get(node, (None, self.began))[1]

    def status_for(self, node: NodeId, now: float) -> float:
        """Return the seconds for which a member has had its status, as pages show them."""
        return round(now - self.status_since(node), 3)
