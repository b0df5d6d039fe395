"""Undisturbed: healthy nodes answer each other while other nodes are in trouble.

A cluster that cannot converge, because members are unreachable, lets no leader act. The messages of
the application go on. So an ask between two healthy nodes is answered within `ANSWERED_WITHIN_S`,
if its sender has the home of the shard and the shard stays there. A shard that has no home yet, or
moves, may wait for a coordinator in trouble.

A coordinator that alone has lost the store must not keep shards without a home, though it is a
member like all others. Where nodes have lost the store, or are restarted, and have no other
trouble, a shard that a healthy node sends to has a home within `HOMED_WITHIN_S`.

Where the store decides every split, healthy nodes may be suspended until it has: there nothing is
judged.

Source: docs/simulation.md; S1.14.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from shardbus.routing.refs import ASK_TIMEOUT_MS
from shardbus.sharding.messages import Home
from shardbus.sharding.region.region import HostedState
from shardbus.simulation.membership.checks import Violation
from shardbus.simulation.membership.fairness import Fairness
from shardbus.simulation.membership.troubles import NodeTrouble
from shardbus.simulation.nodes.checker import SentMessage
from shardbus.simulation.nodes.world import NodeWorld, SimNode, SimProcess

HOMED_WITHIN_S = 20.0
"""Seconds within which a shard has a home: another coordinator takes over within half of that."""
ANSWERED_WITHIN_S = 3.0
"""Seconds within which a healthy node answers another one: a few ways, and a slow start."""


@dataclass(frozen=True, slots=True)
class WatchedAsk:
    """An ask that must be answered, and the home of its shard when it was sent."""

    message: SentMessage
    sender: SimNode
    shard: str
    home: Home


class Undisturbed:
    """Watches the asks of a run."""

    def __init__(
        self, world: NodeWorld, fairness: Fairness, troubles: tuple[NodeTrouble, ...]
    ) -> None:
        self._world, self._fairness = world, fairness
        self._asks: deque[WatchedAsk] = deque()
        self._homes_come = {trouble.kind for trouble in troubles} <= {"no-store", "restarts"}
        self._homeless: dict[tuple[SimNode, str, str], tuple[float, float]] = {}
        """By healthy sender, type and shard: when it first and last sent an ask there, while it had
        no home for it."""

    def on_ask(self, message: SentMessage, by: SimProcess) -> None:
        """Watch an ask that is sent now, if both ends are healthy and the home is known."""
        if not isinstance(by, SimNode) or not self._fairness.is_healthy(by.name):
            return
        _, entity_type, entity_id = message.line
        shard = by.node.regions[entity_type].router.shard_of(entity_id)
        home = by.node.regions[entity_type].router.region.home_of(shard)
        if home is None and self._homes_come:
            key, now = (by, entity_type, shard), self._world.now
            self._homeless[key] = (self._homeless.get(key, (now, now))[0], now)
        if home is not None and self._fairness.is_healthy(home.node.host):
            ask = WatchedAsk(message, by, shard, home)
            if self._stands(ask):
                self._asks.append(ask)

    def check(self) -> None:
        """Judge the asks that have had their time.

        Raises:
            Violation: one is not answered, or a shard has had no home for too long.
        """
        self._check_homes()
        due = self._world.now - ANSWERED_WITHIN_S
        while self._asks and self._asks[0].message.sent_at <= due:
            ask = self._asks.popleft()
            message = ask.message
            done = message.outcome and (message.handled or message.outcome == "answered")
            if not done and self._stands(ask):
                got = message.outcome or "no answer"
                raise Violation("goes on", f"{message}: {got} from {ask.home.node}, its home")

    def _check_homes(self) -> None:
        now = self._world.now
        for key, (first, last) in list(self._homeless.items()):
            sender, name, shard = key
            router = sender.node.regions[name].router
            served = router.route(shard).out is not None or now - last > ASK_TIMEOUT_MS / 1000
            if sender.ended_at is not None or served:
                del self._homeless[key]
            elif now - first > HOMED_WITHIN_S:
                raise Violation("homes", f"{sender.name} finds no home of shard {shard} of {name}")

    def _stands(self, ask: WatchedAsk) -> bool:
        """True if the sender has that home, and the shard runs there."""
        name = ask.message.line[1]
        home = self._world.sim_nodes.get(ask.home.node.host)
        if ask.sender.ended_at is not None or home is None or home.ended_at is not None:
            return False
        router = ask.sender.node.regions[name].router
        knows = router.route(ask.shard).out is not None
        there = home.node.regions[name].router.region
        runs = there.state_of(ask.shard) is HostedState.RUNNING
        same = ask.home == router.region.home_of(ask.shard) and ask.home in there.hosted
        return knows and runs and same
