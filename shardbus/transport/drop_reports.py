"""What a sender hears of its tells that were acknowledged and then dropped: counts by type and
reason, and now and then a line for the log.

Source: docs/guarantees.md; B.107; I4.
"""

from __future__ import annotations

from shardbus.wire.control import Refusals

LOG_EVERY_S = 10.0
KEYS_MAX = 1000
"""So many pairs of type and reason are told apart."""
OTHER = ("", "other")


class RefusedTells:
    """See the module."""

    __slots__ = ("_new", "_said_at", "counts")

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        """Tells of this process, by type and reason."""
        self._new: dict[tuple[str, str, str], int] = {}
        self._said_at = float("-inf")

    def hear(self, name: str, refusals: Refusals) -> None:
        """The process of that name has dropped some."""
        for entity_type, reason, count in refusals.counts:
            key = (entity_type, reason)
            if key not in self.counts and len(self.counts) >= KEYS_MAX:
                key = OTHER
            self.counts[key] = self.counts.get(key, 0) + count
            row = (name, key[0], key[1])
            if row in self._new or len(self._new) < KEYS_MAX:
                self._new[row] = self._new.get(row, 0) + count

    def line(self, now: float) -> str:
        """What was heard since the last line, if there is any and the last was a while ago."""
        if not self._new or now - self._said_at < LOG_EVERY_S:
            return ""
        new, self._new, self._said_at = self._new, {}, now
        parts = [f"{name} dropped {n} of {kind!r}: {why}" for (name, kind, why), n in new.items()]
        return "tells that nobody handled: " + "; ".join(parts)
