"""What a node knows of one shard that lives on it, apart from its list of remembered entities.

Who may come in follows what the region machine says (`hosting`). Entities are here only while the
shard does not let everything in; those of an open one are on the hot path.

Source: S0.5, S2.22-S2.24, S2.60; C.17.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardbus.entities.entity_type import StopReason
from shardbus.transport.session import Session

if TYPE_CHECKING:
    from shardbus.entities.context import Context


class Shard:
    """One shard that this node hosts."""

    __slots__ = (
        "activations",
        "arrivals",
        "fence",
        "live",
        "returning",
        "shard",
        "stopping",
        "via",
    )

    def __init__(self, shard: str, fence: int) -> None:
        self.shard, self.fence = shard, fence
        self.arrivals = False
        """What comes over links is let in; with `via`, only from that node."""
        self.via: object | None = None
        self.activations: dict[str, Context] = {}
        """Its entities, while they are not in `active`."""
        self.live = 0
        self.returning: set[str] = set()
        """Remembered ones that stopped, and start again after a while."""
        self.stopping: StopReason | None = None
        """Why it stops, once it does."""

    @property
    def open(self) -> bool:
        """Everything is let in."""
        return self.arrivals and self.via is None

    def lets_in(self, session: Session, local: bool) -> bool:
        """Whether a message that came by this session (`local`: from this node itself) is for
        us."""
        if local:
            return self.stopping is None
        return self.arrivals and (self.via is None or self.via == session.tag)
