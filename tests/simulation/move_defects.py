"""Defects of moves to be planted into whole nodes: each function makes one mistake, for as long as
the patch lasts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from shardbus.ids import NodeId
from shardbus.sharding import messages as msg
from shardbus.sharding.coordinator.coordinator import Coordinator
from shardbus.sharding.coordinator.direct_moves import DirectMove, DirectMoves, DirectPhase
from shardbus.sharding.coordinator.table_versions import TableVersions
from shardbus.sharding.events import Send
from shardbus.sharding.messages import CarriedEntity, Home, ShardMove
from shardbus.sharding.region.incoming_moves import IncomingMoves
from shardbus.sharding.region.outgoing_moves import OutgoingMoves
from shardbus.sharding.region.route import BufferedMessage, RouteBuffers
from shardbus.sharding.table import ShardHomeAllocated, ShardHomeDeallocated, TableEvent

Patch = pytest.MonkeyPatch


def a_new_home_starts_before_the_old_one_has_stopped(patch: Patch) -> None:
    prepare = IncomingMoves.prepare

    def hasty(self: IncomingMoves, move: ShardMove, *more: Any) -> None:
        prepare(self, move, *more)
        self._go(self._moves[move.new.shard])

    patch.setattr(IncomingMoves, "prepare", hasty)


def a_new_home_keeps_no_direct_message(patch: Patch) -> None:
    prepare = IncomingMoves.prepare

    def open_door(self: IncomingMoves, move: ShardMove, *more: Any) -> None:
        prepare(self, move, *more)
        self._moves[move.new.shard].gates.clear()

    patch.setattr(IncomingMoves, "prepare", open_door)


def what_a_mode_drops_is_not_counted(patch: Patch) -> None:
    patch.setattr(OutgoingMoves, "_reject", lambda self, shard, messages: None)


def acknowledgements_are_lost_and_awaited_for_ever(patch: Patch) -> None:
    def silent(self: OutgoingMoves, sender: NodeId, move: ShardMove) -> None:
        held_move = self._moves.get(move.old.shard)
        if held_move is not None and held_move.move == move:
            self._count(held_move, sender)

    def patient(self: IncomingMoves, now: float) -> None:
        for shard in self._timers.due(now):
            held_move = self._moves[shard]
            if not held_move.switched:
                again = msg.MovePrepared((held_move.move,), carries=True)
                self._out.append(Send(held_move.move.old.node, again))
            self._timers.set(shard, now + self._retry)

    patch.setattr(OutgoingMoves, "on_ack", silent)
    patch.setattr(IncomingMoves, "tick", patient)


def what_is_carried_is_what_was_carried_first(patch: Patch) -> None:
    first: dict[tuple[str, str], CarriedEntity] = {}
    take = IncomingMoves.on_carried

    def stale(self: IncomingMoves, move: ShardMove, entities: tuple[CarriedEntity, ...]) -> None:
        kept = (first.setdefault((entity.kind, entity.id), entity) for entity in entities)
        take(self, move, tuple(kept))

    patch.setattr(IncomingMoves, "on_carried", stale)


def homes_travel_by_gossip_before_they_are_stored(patch: Patch) -> None:
    def eager(self: Coordinator, versions: TableVersions, now: float) -> None:
        table, writing = self.table, self._ledger.writing
        homes = writing.homes if writing is not None else {}
        events: list[TableEvent] = [ShardHomeDeallocated(s) for s in homes if s in table.homes]
        events += [
            ShardHomeAllocated(home)
            for home in homes.values()
            if home is not None and home.node in table.regions
        ]
        table = table.updated_all(events)
        nodes = self._registry.registered
        state = versions.update(table, nodes, self._changes(), table.homes.get, now)
        if state is not None:
            self._effects.append(Send(self._me, state))

    patch.setattr(Coordinator, "_publish", eager)


def a_region_keeps_any_number_of_messages(patch: Patch) -> None:
    def endless(self: RouteBuffers, message: BufferedMessage) -> bool:
        self.messages += 1
        self.bytes += message.size
        return True

    patch.setattr(RouteBuffers, "add", endless)


def a_shard_whose_old_home_died_after_its_report_waits_for_switch(patch: Patch) -> None:
    gone = DirectMoves.on_nodes_gone

    def patient(
        self: DirectMoves, dead: Mapping[NodeId, None]
    ) -> tuple[list[DirectMove], list[Home]]:
        settling = {
            shard: move
            for shard, move in self.moves.items()
            if move.phase is DirectPhase.SETTLING and move.move.new.node not in dead
        }
        for shard in settling:
            del self.moves[shard]
        ended = gone(self, dead)
        self.moves |= settling
        return ended

    patch.setattr(DirectMoves, "on_nodes_gone", patient)
