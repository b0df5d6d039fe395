"""Whether members flap: their links fail and work again, so that no picture of a split lasts.

Flapping is that the members that would be left without bad links (`links.lasting`) have changed
more than `TOLERATED_CHANGES` times since the split began, and that one of them came back. Members
that only become unreachable one after the other are no flapping, and neither are more observers of
the same members, nor flags that come and go at one member, or go with it. The count begins anew
when a member goes, or a picture has lasted.

Source: docs/downing.md; B.39.
"""

from __future__ import annotations

from shardbus.ids import NodeId
from shardbus.membership.downing.links import lasting
from shardbus.membership.gossip import ON_THE_WAY_OUT, Gossip

TOLERATED_CHANGES = 2
"""Changes of the members that would be left in a split that is still considered stable."""


class Flapping:
    """Follows the copies of one node. `since`: since when no picture has lasted; None if one has,
    or there is no split."""

    def __init__(self, me: NodeId) -> None:
        self._me = me
        self.since: float | None = None
        self._changes = 0
        self._came_back = False
        self._present: frozenset[NodeId] = frozenset()
        """The members that are not on their way out."""
        self._lasting: frozenset[NodeId] = frozenset()
        """Of these, the members that would be left without bad links."""

    def flaps_since(self) -> float | None:
        """Return since when members flap; None if they do not."""
        return self.since if self._came_back and self._changes > TOLERATED_CHANGES else None

    def end(self) -> None:
        """Forget the count."""
        self.since = None

    def follow(self, gossip: Gossip, *, split: bool, lasted: bool, now: float) -> None:
        """Count the change to this copy. `split`: members are cut off, or must go; `lasted`: the
        picture before has lasted."""
        before, members = self._lasting, gossip.members.items()
        present = frozenset(n for n, m in members if m.status not in ON_THE_WAY_OUT)
        among = [flag for flag in gossip.records() if flag[0] in present and flag[1] in present]
        gone, back = self._present - present, self._present
        self._present, self._lasting = present, lasting(self._me, present, among)
        back &= self._lasting - before
        if not split:
            self.since = None
        elif self.since is None or lasted or gone:
            self.since, self._changes, self._came_back = now, 1, False
        elif back or before & present - self._lasting:
            self._changes += 1
            self._came_back |= bool(back)
