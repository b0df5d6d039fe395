"""Predecessors: the older nodes in the order of age, and which of them may still run an instance.

Membership shows which members are older, leaving or dead. A leaving node also announces it by
messages (TakeOverFromMe, HandOverDone), which count before the view shows it. A status never goes
back, so an announcement stays true.

An older node is *awaited* as long as its instance may run and it can still announce the end:

    a member that leaves          until HandOverDone
    a node that has left          until HandOverDone, since its process outlives its membership a
                                  little; but not once a higher epoch is known than when it began to
                                  leave, because another node has then taken over from it; nor after
                                  `silence_timeout`
    proved dead, or downed        not at all
    silent for too long           no longer

Members without the entity type take no part, as those without the role: by their announcement, or
by their answer (`TypeMissing`). Neither changes while a member lives, so two nodes disagree on it
at most until both have the answer; meanwhile the one without it starts nothing.

With a `removal_margin`, no instance starts within that margin after an older node was downed
without proof of death, so that its instance has time to stop. The margin counts from when this node
first saw it unreachable or Down, because the node that downed it may have waited as long already.

Source: B.97, B.22, B.34.
"""

from __future__ import annotations

from heapq import nsmallest

import msgspec

from shardbus.ids import NodeId
from shardbus.membership.member import WORKING, Member, Status, age_order
from shardbus.membership.singleton import messages as ho
from shardbus.membership.view import MembershipView

WAY_OUT = (Status.LEAVING, Status.EXITING)


class Departure(msgspec.Struct):
    """A node on its way out. `epoch`: the highest that was known when it began to leave."""

    member: Member
    epoch: int
    gone_at: float | None = None
    """When it left the view."""


class Predecessors:
    """One node's view of the order of age. Arguments as for `Singleton`."""

    def __init__(
        self, name: str, me: NodeId, role: str, removal_margin: float, silence_timeout: float
    ) -> None:
        self.view = MembershipView(me)
        self.epoch = 0
        """The highest epoch known."""
        self._name, self._me, self._role, self._margin = name, me, role, removal_margin
        self._silence_timeout = silence_timeout
        self._announced: dict[NodeId, bool] = {}
        """The nodes that announced their leaving; True if they also announced that their instance
        has stopped."""
        self._departures: dict[NodeId, Departure] = {}
        self._silent: dict[NodeId, None] = {}
        self._without: dict[NodeId, None] = {}
        """The nodes that have answered that they do not have the type."""
        self._lost: dict[NodeId, tuple[Member, float]] = {}
        """The nodes that were cut off or downed without proof of death, and since when."""

    # Events.

    def on_view(self, view: MembershipView, now: float) -> None:
        """Apply a new view of membership."""
        before, self.view = self.view, view
        self.epoch = max(self.epoch, view.epochs.get(self._name, 0))
        members = {m.node: m for m in view.members}
        for member in filter(self._takes_part, view.members):
            self._on_member(member, now)
        for member in filter(self._takes_part, before.members):
            if member.node not in members:
                self._on_gone(member, before, now)
        for gathered in (self._announced, self._without):
            for node in [node for node in gathered if node not in members]:
                del gathered[node]

    def on_type_missing(self, node: NodeId) -> None:
        """Leave this node out from now on."""
        self._without[node] = None
        self._departures.pop(node, None)

    def on_message(self, sender: NodeId, message: ho.Message) -> bool:
        """Apply the message's announcement. False if its sender has no part in this singleton."""
        departure = self._departures.get(sender)
        member = departure.member if departure is not None else self.view.member(sender)
        if member is None or not self._takes_part(member):
            return False
        self.epoch = max(self.epoch, message.epoch)
        if departure is not None:
            departure.epoch = max(departure.epoch, message.epoch)
        if isinstance(message, ho.TakeOverFromMe):
            self._announced.setdefault(sender, False)
        elif isinstance(message, ho.HandOverDone):
            self._announced[sender] = True
            self._departures.pop(sender, None)
        return True

    def expire(self, now: float) -> None:
        """Drop nodes that left longer than `silence_timeout` ago: they send nothing more."""
        for node, departure in list(self._departures.items()):
            if departure.gone_at is not None and now >= departure.gone_at + self._silence_timeout:
                del self._departures[node]

    def time_out(self) -> None:
        """Stop awaiting the nodes that have not answered by now."""
        self._silent.update(dict.fromkeys(self.awaited()))

    def begin_anew(self) -> None:
        """Await those again that were silent: the next wait is another one."""
        self._silent.clear()

    def _on_member(self, member: Member, now: float) -> None:
        node, down = member.node, member.status is Status.DOWN
        if down:
            self._departures.pop(node, None)
        elif member.status in WAY_OUT:
            self._departures.setdefault(node, Departure(member, self.epoch))
        if not (down or node in self.view.unreachable) or node in self.view.terminated:
            self._lost.pop(node, None)
        elif self._margin:
            self._lost.setdefault(node, (member, now))

    def _on_gone(self, member: Member, before: MembershipView, now: float) -> None:
        """Record that a member is no longer in the view: it has left, or was downed."""
        node = member.node
        left = member.status is not Status.DOWN and node not in before.unreachable
        if left and not self._announced.get(node, False):
            departure = self._departures.setdefault(node, Departure(member, self.epoch))
            departure.gone_at = now
        else:
            self._departures.pop(node, None)
        if not left and self._margin and node not in before.terminated:
            self._lost.setdefault(node, (member, now))

    # Queries.

    @property
    def timed_out(self) -> bool:
        """True if an older node was silent for too long."""
        return bool(self._silent)

    def successor(self) -> NodeId | None:
        """Return the oldest member that does not leave, by the view and by its own
        announcements."""
        return next(iter(self.successors(1)), None)

    def successors(self, count: int) -> list[NodeId]:
        """Return the oldest members that do not leave, by age, at most `count`."""
        up = [
            m
            for m in self.view.members
            if m.status in WORKING
            and m.has_role(self._role)
            and self.may_have_type(m)
            and m.node not in self._announced
        ]
        return [m.node for m in nsmallest(count, up, key=age_order)]

    def awaited(self) -> list[NodeId]:
        """Return the nodes that must end before this node may start."""
        members = [
            m.node
            for m in self.view.members
            if self._is_older(m)
            and m.status in (*WAY_OUT, *WORKING)
            and not self._announced.get(m.node, False)
            and m.node not in self.view.terminated
        ]
        gone = [
            node
            for node, departure in self._departures.items()
            if departure.gone_at is not None
            and self._is_older(departure.member)
            and self.epoch <= departure.epoch
        ]
        return [node for node in (*members, *gone) if node not in self._silent]

    def held_until(self) -> float | None:
        """Return when the margin after an older node's downing ends."""
        ends = [
            since + self._margin
            for node, (member, since) in self._lost.items()
            if self._is_older(member) and not self._is_there(node)
        ]
        return max(ends, default=None)

    def _is_there(self, node: NodeId) -> bool:
        member = self.view.member(node)
        return member is not None and member.status is not Status.DOWN

    def _is_older(self, member: Member) -> bool:
        mine = self.view.member(self._me)
        if mine is None or not self._takes_part(member):
            return False
        return age_order(member) < age_order(mine)

    def may_have_type(self, member: Member) -> bool:
        """True unless the member is known not to have the entity type."""
        return member.node not in self._without and member.may_have_type(self._name)

    def _takes_part(self, member: Member) -> bool:
        return bool(member.up_number) and member.has_role(self._role) and self.may_have_type(member)
