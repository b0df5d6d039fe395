"""Who comes before a node in the order of age, and which of them may still run an instance.

Membership says who is older, who leaves and who is dead. A node that leaves says so itself, too
(TakeOverFromMe, HandOverDone), and its word counts before membership brings it: a status never goes
back, so the word stays true.

An older one is *awaited* as long as its instance may run and it can still say that it does not:

    a member that leaves          until it says HandOverDone
    one that has left             the same, for its process outlives its membership a little; but
                                  not once a higher epoch is known than when it began to leave, for
                                  then another one took over from it; nor after SILENCE_S
    proved dead, downed           not at all
    silent for too long           not any more

With a `removal_margin`, nobody starts before the margin after an older one's downing without proof
of death, so that it has the time to stop. The margin counts from when this node first saw it
unreachable or Down: whoever downed it may have waited for as long already.

Source: B.97, B.22, B.34; T.G1, T.G5, T.G9, T.G10.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardbus.ids import NodeId
from shardbus.membership.member import WORKING, Member, Status, age_order
from shardbus.membership.singleton import messages as ho
from shardbus.membership.view import MembershipView

SILENCE_S = 2.0
"""How long an older one is waited for that says nothing at all."""

WAY_OUT = (Status.LEAVING, Status.EXITING)


@dataclass(slots=True)
class Departure:
    """One on its way out. `epoch`: the highest that was known when it began to leave."""

    member: Member
    epoch: int
    gone_at: float | None = None
    """When it left the picture."""


class Predecessors:
    """What one node knows of the order of age. Arguments as of `Singleton`."""

    def __init__(self, name: str, me: NodeId, role: str, removal_margin: float) -> None:
        self.view = MembershipView(me)
        self.epoch = 0
        """The highest known."""
        self._name, self._me, self._role, self._margin = name, me, role, removal_margin
        self._words: dict[NodeId, bool] = {}
        """Who said that it leaves, and whether also that it runs nothing any more."""
        self._departures: dict[NodeId, Departure] = {}
        self._silent: dict[NodeId, None] = {}
        self._lost: dict[NodeId, tuple[Member, float]] = {}
        """Who was cut off or downed without proof of death, and since when."""

    # What happens.

    def look(self, view: MembershipView, now: float) -> None:
        """Membership has a new picture."""
        before, self.view = self.view, view
        self.epoch = max(self.epoch, view.epochs.get(self._name, 0))
        members = {m.node: m for m in view.members}
        for member in filter(self._takes_part, view.members):
            self._look_at(member, now)
        for member in filter(self._takes_part, before.members):
            if member.node not in members:
                self._miss(member, before, now)
        for node in [node for node in self._words if node not in members]:
            del self._words[node]

    def hear(self, sender: NodeId, message: ho.Message) -> bool:
        """What it says about the sender. False: the sender has no part in this."""
        departure = self._departures.get(sender)
        member = departure.member if departure is not None else self.view.member(sender)
        if member is None or not self._takes_part(member):
            return False
        self.epoch = max(self.epoch, message.epoch)
        if departure is not None:
            departure.epoch = max(departure.epoch, message.epoch)
        if isinstance(message, ho.TakeOverFromMe):
            self._words.setdefault(sender, False)
        elif isinstance(message, ho.HandOverDone):
            self._words[sender] = True
            self._departures.pop(sender, None)
        return True

    def forget(self, now: float) -> None:
        """Who left so long ago says nothing any more."""
        for node, departure in list(self._departures.items()):
            if departure.gone_at is not None and now >= departure.gone_at + SILENCE_S:
                del self._departures[node]

    def give_up(self) -> None:
        """Who has not answered by now is not awaited any more."""
        self._silent.update(dict.fromkeys(self.awaited()))

    def _look_at(self, member: Member, now: float) -> None:
        node, down = member.node, member.status is Status.DOWN
        if down:
            self._departures.pop(node, None)
        elif member.status in WAY_OUT:
            self._departures.setdefault(node, Departure(member, self.epoch))
        if not (down or node in self.view.unreachable) or node in self.view.terminated:
            self._lost.pop(node, None)
        elif self._margin:
            self._lost.setdefault(node, (member, now))

    def _miss(self, member: Member, before: MembershipView, now: float) -> None:
        """It is not in the picture any more: it has left, or was downed."""
        node = member.node
        left = member.status is not Status.DOWN and node not in before.unreachable
        if left and not self._words.get(node, False):
            departure = self._departures.setdefault(node, Departure(member, self.epoch))
            departure.gone_at = now
        else:
            self._departures.pop(node, None)
        if not left and self._margin and node not in before.terminated:
            self._lost.setdefault(node, (member, now))

    # What follows.

    @property
    def gave_up(self) -> bool:
        """Somebody was silent for too long."""
        return bool(self._silent)

    def successor(self) -> NodeId | None:
        """The oldest that does not leave, by membership and by its own word."""
        up = [
            m
            for m in self.view.members
            if m.status in WORKING and m.has_role(self._role) and m.node not in self._words
        ]
        return min(up, key=age_order).node if up else None

    def awaited(self) -> list[NodeId]:
        """Those that must end before this node may start."""
        members = [
            m.node
            for m in self.view.members
            if self._is_older(m)
            and m.status in (*WAY_OUT, *WORKING)
            and not self._words.get(m.node, False)
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
        """When the margin after an older one's downing ends."""
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

    def _takes_part(self, member: Member) -> bool:
        return bool(member.up_number) and member.has_role(self._role)
