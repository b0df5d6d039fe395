"""How a region finds its coordinator and whom it obeys.

The shell says where the coordinator is; the region registers there, first at short intervals, then
every `retry_interval`, until RegisterAck. An epoch above the one it registered under means that a
new coordinator rules, perhaps on the same node: it registers again.

Commands count from the sender of the highest epoch seen: the first one under that epoch, or the
node that the shell says the coordinator is on, should a forgetful store have given one epoch twice.
A client, which no coordinator knows, believes any node; fences sort what it hears.

Source: S2.62; B.56; C.36; docs/architecture.md.
"""

from __future__ import annotations

from shardbus.ids import NodeId

FIRST_RETRY = 0.1
REFUSED_PATIENCE = 5.0
"""A refused region tries again, this many retry intervals apart: the next coordinator may take
it."""


class Registration:
    """The standing of one region with its coordinator."""

    __slots__ = (
        "_clerk", "_enrolled", "_registered_epoch", "_retry", "_tries", "coordinator", "due",
        "epoch", "is_registered",
    )  # fmt: skip

    def __init__(self, enrolled: bool, retry_interval: float) -> None:
        self.coordinator: NodeId | None = None
        self.epoch = 0
        """The highest epoch seen."""
        self.due: float | None = None
        """When Register is to be sent."""
        self.is_registered = False
        self._clerk: NodeId | None = None
        self._enrolled = enrolled
        self._registered_epoch = 0
        self._retry = retry_interval
        self._tries = 0

    def coordinator_at(self, node: NodeId | None, now: float) -> None:
        """The coordinator is there, or nowhere."""
        self.coordinator = node
        self._start_over(now)

    def see(self, epoch: int, now: float) -> None:
        """Gossip knows of this epoch."""
        if self.is_registered and epoch > self._registered_epoch:
            self._start_over(now)

    def obeys(self, sender: NodeId, epoch: int) -> str:
        """Why the sender may not command under this epoch; empty if it may."""
        if not self._enrolled:
            self.epoch = max(self.epoch, epoch)
            return ""
        if epoch < self.epoch:
            return f"epoch {epoch} of {sender} is over: this is epoch {self.epoch}"
        if epoch == self.epoch and sender not in (self._clerk, self.coordinator):
            return f"epoch {epoch} is {self._clerk}'s, not {sender}'s"
        self.epoch, self._clerk = epoch, sender
        return ""

    def registered(self) -> None:
        """RegisterAck came."""
        self.is_registered = True
        self._registered_epoch = self.epoch
        self.due = None

    def refused(self, now: float) -> None:
        """RegisterRefused came."""
        self.is_registered = False
        self.due = now + REFUSED_PATIENCE * self._retry

    def take_due(self, now: float) -> bool:
        """Whether Register is to be sent now; the next time is set."""
        if self.due is None or now < self.due:
            return False
        self.due = now + min(self._retry, FIRST_RETRY * 2.0 ** min(self._tries, 30))
        self._tries += 1
        return True

    def _start_over(self, now: float) -> None:
        self.is_registered = False
        self._tries = 0
        self.due = now if self._enrolled and self.coordinator is not None else None
