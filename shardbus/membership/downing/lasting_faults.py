"""The members at fault by the splits that a node sees one after the other, without momentary ones.

The problem: each new version makes every member that has not seen it yet look cut off, if a flag is
on it. Then another one seems to be at fault for a bad link, or the one at fault seems to be none.
Neither may begin a wait anew, nor end a refusal of consent.

    it is cut off, and no link to it works       at fault
    it is cut off for a moment                   not yet
    it has been cut off for longer               at fault
    it must go for bad links of its side         at fault if it had to when the picture was new
                                                 (`picture`); otherwise it is blamed, and once that
                                                 has lasted for a moment, the picture is new
    it was at fault a moment ago                 at fault

The fault of a member lasts, whether it is cut off or must go for bad links: one that was cut off
and is heard again waits for no longer than one that was there all the time, and no less.

Source: docs/downing.md; S1.31.
"""

from __future__ import annotations

from collections.abc import Container

from shardbus.ids import NodeId
from shardbus.membership.downing.split import Split

MOMENT_S = 1.0
"""Seconds within which the members of one side surely see a new version."""


class LastingFaults:
    """Follows the splits of one node."""

    def __init__(self) -> None:
        self.cut_since: dict[NodeId, float] = {}
        """Since when each member is cut off that is so now."""
        self.bad_since: dict[NodeId, float] = {}
        """Since when each member is cut off or must go, moments apart."""
        self.blamed_since: dict[NodeId, float] = {}
        """Since when each member must go that had not to when the picture was new."""
        self.were_broken: set[NodeId] = set()
        """The members that had to go for bad links at some time since the picture was new."""
        self._at_fault: dict[NodeId, float] = {}
        """The members at fault, and until when each of them was."""

    def follow(self, before: Split, split: Split, group: Container[NodeId], now: float) -> None:
        """Take the next split. `group`: the members that the node has working links with."""
        lately = self.lately(before, now)
        self.cut_since = {node: self.cut_since.get(node, now) for node in split.cut}
        bad = (*split.cut, *split.broken, *lately)
        self.bad_since = {node: self.bad_since.get(node, now) for node in bad}
        self._at_fault = lately | self._cut_for_good(split, group, now)
        self.were_broken |= {*split.broken}
        newly = [node for node in split.broken if node not in self._at_fault]
        self.blamed_since = {node: self.blamed_since.get(node, now) for node in newly}

    def begin(self, split: Split, group: Container[NodeId], now: float) -> None:
        """Begin with this split: the picture is new."""
        self.were_broken, self.blamed_since = {*split.broken}, {}
        broken = dict.fromkeys(split.broken, now)
        self._at_fault = self._cut_for_good(split, group, now) | broken

    def newest(self, split: Split) -> float:
        """Return since when all members that are at fault by this split are so; 0 without one."""
        bad = (self.bad_since.get(node, 0.0) for node in split.broken)
        return max((*bad, *self.cut_since.values(), *self.blamed_since.values()), default=0.0)

    def renewed(self, changed_at: float, now: float) -> bool:
        """True if a blamed member makes the picture new, that changed at that time."""
        fresh = changed_at + MOMENT_S
        return any(now >= at + MOMENT_S or at < fresh for at in self.blamed_since.values())

    def in_both(self, split: Split) -> set[NodeId]:
        """Return the members at fault that are cut off or must go by this split."""
        return self._at_fault.keys() & {*split.cut, *split.broken}

    def lately(self, split: Split, now: float) -> dict[NodeId, float]:
        """Return the members at fault by this split, or a moment ago; and until when."""
        lasting = [n for n in split.cut if self.cut_since.get(n, now) <= now - MOMENT_S]
        until = self._at_fault | dict.fromkeys((*self.in_both(split), *lasting), now)
        return {node: at for node, at in until.items() if now <= at + MOMENT_S}

    def _cut_for_good(
        self, split: Split, group: Container[NodeId], now: float
    ) -> dict[NodeId, float]:
        moment = now - MOMENT_S
        return {
            node: now
            for node in split.cut
            if node not in group or self.cut_since.get(node, now) <= moment
        }
