"""The clients of a region: they know homes from it, because they register nowhere.

A client asks any node's region for homes (GetShardHome). From then on it watches that region: at
the end of each turn it gets the homes that are new, and the number of instances when that changes.
A shard without a known home is answered with Wait, and watched, so that its home follows.

Source: S0.6, S2.24; B.130.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shardbus.ids import NodeId
from shardbus.sharding import events as ev
from shardbus.sharding import messages as msg
from shardbus.sharding.region.registration import Registration
from shardbus.sharding.region.requested_homes import ASKED
from shardbus.sharding.region.routing import Routing
from shardbus.sharding.region.table_gossip import TableGossip


@dataclass(slots=True, eq=False, repr=False)
class Watchers:
    """The clients that have asked the region on `me`. Effects are appended to `out`."""

    _me: NodeId | None
    _registration: Registration
    _routing: Routing
    _table_gossip: TableGossip
    _out: list[ev.RegionEffect]
    _nodes: dict[NodeId, None] = field(default_factory=dict)

    def forget(self, node: NodeId) -> None:
        """Send nothing more to a client that is gone."""
        self._nodes.pop(node, None)

    def on_request(self, sender: NodeId, shards: tuple[str, ...], now: float) -> None:
        """Answer a client with the homes known, and report later ones to it."""
        if sender != self._me and sender not in self._nodes:
            self._nodes[sender] = None
            self._send_count(sender)
            if self._table_gossip.state is not None:
                shards = tuple(dict.fromkeys((*shards, *self._routing.known_shards())))
        epoch, home_of = self._registration.epoch, self._routing.home_of
        homes = {shard: home for shard in shards if (home := home_of(shard)) is not None}
        if homes:
            self._out.append(ev.Send(sender, msg.ShardHomes(epoch, tuple(homes.values()))))
        unknown: dict[str, list[str]] = {}
        for shard in shards:
            if shard not in homes:
                why = self._routing.requests.why_waiting(shard) or ASKED
                unknown.setdefault(why, []).append(shard)
                self._routing.watch(shard, now)
        for why, waiting in unknown.items():
            self._out.append(ev.Send(sender, msg.Wait(epoch, tuple(waiting), why)))

    def inform(self) -> None:
        """Report new homes. A move in a mode without an order is reported as such: a client needs
        no Flush for it."""
        moved, self._routing.unordered = self._routing.unordered, {}
        homes, self._routing.new_homes = self._routing.new_homes, {}
        epoch = self._registration.epoch
        news: list[msg.Message] = [
            msg.HomesMoved(epoch, mode, tuple(moves.values())) for mode, moves in moved.items()
        ]
        if homes:
            news.append(msg.ShardHomes(epoch, tuple(homes.values())))
        self._out += (ev.Send(node, message) for node in self._nodes for message in news)

    def send_count(self) -> None:
        """Send the number of instances, which has changed, to every client."""
        for node in self._nodes:
            self._send_count(node)

    def _send_count(self, node: NodeId) -> None:
        """Send the number of instances to a client, if it is known."""
        if count := self._routing.instances:
            self._out.append(ev.Send(node, msg.InstanceCount(self._registration.epoch, count)))
