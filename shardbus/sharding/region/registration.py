"""How a region registers with its coordinator, and whose commands it obeys.

The shell reports where the coordinator is. The region registers there, first at short intervals,
then every `retry_interval` seconds, until RegisterAck. An epoch above the one it registered under
means that there is a new coordinator, perhaps on the same node: the region registers again.

A Register may wait at the coordinator's node, and count under the next epoch. Shards that the
region has begun to host since are in no table then if the store has lost its data. So the first
RegisterAck of an epoch is followed by another Register if the last one had other shards, and each
further one (several Registers get several) if the last one lacked a shard that a former coordinator
granted. So is the arrival of a shard that a former coordinator has moved here.

A region obeys the sender of the highest epoch seen. That is the first sender under the epoch, or
the node that the shell reports as the coordinator's, in case a store that lost its data gave one
epoch twice. A client, which registers nowhere, obeys any node; fences sort the homes that it
receives.

Source: S2.62, B.56; docs/architecture.md.
"""

from __future__ import annotations

from shardbus.backoff import doubling
from shardbus.bounds import EPOCH_SHIFT
from shardbus.ids import NodeId
from shardbus.sharding.messages import Home

FIRST_RETRY_S = 0.1
"""Seconds before the second attempt; the interval doubles up to the setting."""

REFUSED_PATIENCE = 5.0
"""A refused region registers again after this many retry intervals: the next coordinator may accept
it."""


class Registration:
    """The registration of one region. `registers` is False for a client."""

    __slots__ = (
        "_obeyed", "_registered_epoch", "_registers", "_retry", "_tries", "coordinator", "due",
        "epoch", "is_registered", "reported",
    )  # fmt: skip

    def __init__(self, registers: bool, retry_interval: float) -> None:
        self.coordinator: NodeId | None = None
        self.epoch = 0
        """The highest epoch seen."""
        self.due: float | None = None
        """When Register must be sent."""
        self.is_registered = False
        self.reported: tuple[Home, ...] = ()
        """The shards that the last Register had."""
        self._obeyed: NodeId | None = None
        """The sender of the highest epoch."""
        self._registers = registers
        self._registered_epoch = 0
        self._retry = retry_interval
        self._tries = 0

    def set_coordinator(self, node: NodeId | None, now: float) -> None:
        """Register with the coordinator on that node; None if no node has it."""
        self.coordinator = node
        self.register_again(now)

    def register_again(self, now: float) -> None:
        """Begin to register, at once if the coordinator's node is known."""
        self.is_registered = False
        self._tries = 0
        self.due = now if self._registers and self.coordinator is not None else None

    def on_epoch(self, epoch: int, now: float) -> None:
        """Register again if this epoch is above the one registered under."""
        if self.is_registered and epoch > self._registered_epoch:
            self.register_again(now)

    def refusal(self, sender: NodeId, epoch: int) -> str:
        """Return why the sender must not be obeyed under this epoch; empty if it must be."""
        if not self._registers:
            self.epoch = max(self.epoch, epoch)
            return ""
        if epoch < self.epoch:
            return f"epoch {epoch} of {sender} is over: this is epoch {self.epoch}"
        if epoch == self.epoch and sender not in (self._obeyed, self.coordinator):
            return f"epoch {epoch} is {self._obeyed}'s, not {sender}'s"
        self.epoch, self._obeyed = epoch, sender
        return ""

    def on_registered(self, hosted: tuple[Home, ...], now: float) -> None:
        """Stop registering: RegisterAck came. `hosted`: the shards here now."""
        outdated = hosted != self.reported and (
            self.epoch > self._registered_epoch or self._lacks_former(hosted)
        )
        self.is_registered = True
        self._registered_epoch = self.epoch
        self.due, self._tries = now if outdated else None, 0

    def _lacks_former(self, hosted: tuple[Home, ...]) -> bool:
        """True if the last Register lacks a shard here that a former coordinator granted."""
        new = set(hosted).difference(self.reported)
        return any(home.fence >> EPOCH_SHIFT < self.epoch for home in new)

    def on_arrival(self, home: Home, now: float) -> None:
        """Register again if a former coordinator has moved this shard here: this one may not have
        the move."""
        if self.is_registered and home.fence >> EPOCH_SHIFT < self._registered_epoch:
            self.due, self._tries = now, 0

    def on_refused(self, now: float) -> None:
        """Register again later: RegisterRefused came."""
        self.is_registered = False
        self.due = now + REFUSED_PATIENCE * self._retry

    def take_due(self, now: float) -> bool:
        """True if Register must be sent now; sets when it is due next."""
        if self.due is None or now < self.due:
            return False
        self.due = now + doubling(FIRST_RETRY_S, self._retry, self._tries + 1)
        self._tries += 1
        return True
