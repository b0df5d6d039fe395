"""Where regions and proxies make themselves known to a coordinator.

A registration waits until membership shows its node, and while a write is under way, for it may
change what is to be written. Then it is compared with the table: what both know counts as started,
what only the region hosts is adopted, what the region should host is announced to it once more, and
of two homes of one shard the one with the lower fence is told to stop. Who disagrees about the
layout is refused, with both values.

Source: S0.6, S2.23, S2.24, S2.67; C.3; N.1; docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Callable

from shardbus.ids import NodeId
from shardbus.sharding.coordinator.ledger import Ledger
from shardbus.sharding.coordinator.moves import Moves
from shardbus.sharding.coordinator.outbox import HomeMessage, Outbox
from shardbus.sharding.coordinator.registry import Registry
from shardbus.sharding.coordinator.starts import PendingStarts
from shardbus.sharding.events import CoordinatorEffect, Note, Send
from shardbus.sharding.messages import Home, Register, RegisterRefused


class Registrar:
    """Takes registrations. `settled` says the home of a shard that is neither moved nor written."""

    __slots__ = (
        "_layout", "_ledger", "_moves", "_outbox", "_registry", "_settled", "_starts", "notes",
    )  # fmt: skip

    def __init__(
        self,
        layout: str,
        registry: Registry,
        ledger: Ledger,
        moves: Moves,
        starts: PendingStarts,
        outbox: Outbox,
        settled: Callable[[str], Home | None],
    ) -> None:
        self.notes: list[CoordinatorEffect] = []
        """What is to be said beside the outbox."""
        self._layout, self._registry, self._ledger = layout, registry, ledger
        self._moves, self._starts, self._outbox = moves, starts, outbox
        self._settled = settled

    def take(self, epoch: int, now: float) -> bool:
        """Take every registration that can be taken now. True if somebody is new, or another
        than before."""
        if self._ledger.writing is not None or not self._registry.known:
            return False
        news = False
        for register in self._registry.take_early():
            news = self._take(register, epoch, now) or news
        return news

    def forget(self, shard: str) -> None:
        """Nobody waits for the shard to start or to move any more."""
        self._starts.started(shard)
        self._moves.forget(shard)

    def _take(self, register: Register, epoch: int, now: float) -> bool:
        node = register.node
        if register.layout != self._layout:
            reason = f"the table is of layout {self._layout}, {node} has {register.layout}"
            self.notes += [
                Send(node, RegisterRefused(epoch, reason)),
                Note("register_refused", reason),
            ]
            return False
        news = self._registry.register(node, proxy=register.proxy)
        if register.proxy:
            for shard in self._ledger.table.shards_at(node):
                self.forget(shard)
        self._ledger.add(node, now, proxy=register.proxy)
        if not register.proxy:
            self._reconcile(node, register.hosted, now)
        known = [home for home in self._ledger.homes() if home.shard not in self._moves.handoffs]
        self._outbox.add(node, HomeMessage.REGISTER_ACK, known)
        return news

    def _reconcile(self, node: NodeId, hosted: tuple[Home, ...], now: float) -> None:
        """Compare what the region hosts with the table; the ledger decides who is right."""
        found = self._ledger.reconcile(node, hosted)
        for home in found.adopted:
            self.notes.append(Note("adopted", f"shard {home.shard} at {node}"))
            self.forget(home.shard)
        for home in found.confirmed:
            self._starts.started(home.shard)
        for home in found.losers:
            self._outbox.add(home.node, HomeMessage.HANDOFF, (home,))
        for home in found.missing:
            if self._settled(home.shard) == home:
                self._starts.host(home, now)
