"""Defects to be planted into whole nodes: each function makes one mistake, for as long as the patch
lasts. Some were once made here.
"""

from __future__ import annotations

from typing import Any

import pytest

from shardbus.client.regions import ClientRegions
from shardbus.entities.activation import MOVES, Activation, Shard
from shardbus.entities.host import Host
from shardbus.entities.remembering import RememberedEntities
from shardbus.entities.stopping import Stopper
from shardbus.errors import StaleEpoch
from shardbus.node import shutdown
from shardbus.node.node import Node
from shardbus.sharding import events
from shardbus.sharding.coordinator import coordinator
from shardbus.sharding.coordinator.ledger import Ledger, PendingWrite
from shardbus.sharding.region.registration import Registration
from shardbus.sharding.region.route import Route, RouteState
from shardbus.sharding.region.routing import Routing
from shardbus.store import memory
from shardbus.store.protocol import StoredTable
from shardbus.transport import fragments
from shardbus.transport import link as session_link
from shardbus.transport.endpoint import Endpoint
from shardbus.transport.fragments import FragmentQueue
from shardbus.transport.link import SessionLink
from shardbus.transport.window import Window
from tests.records import replace

Patch = pytest.MonkeyPatch


def a_home_is_left_without_a_flush(patch: Patch) -> None:
    def careless(self: Routing, route: Route, *args: object) -> None:
        self._close(route)

    patch.setattr(Routing, "_flush", careless)


def a_lost_flush_counts_as_echoed(patch: Patch) -> None:
    from shardbus.routing import router

    def gullible(self: router._FlushWaiter, error: Exception) -> None:
        self._router.handle(events.FlushDone(self._shard, self._flush_id))

    patch.setattr(router._FlushWaiter, "fail", gullible)


def what_waits_is_dropped_when_a_home_is_known(patch: Patch) -> None:
    opens = Routing._open

    def forgetful(self: Routing, route: Route) -> None:
        self._buffers.remove(route.waiting)
        route.waiting = []
        opens(self, route)

    patch.setattr(Routing, "_open", forgetful)


def homes_are_told_before_they_are_stored(patch: Patch) -> None:
    persist = coordinator.Coordinator._persist

    def eager(self: coordinator.Coordinator, writing: PendingWrite) -> None:
        persist(self, writing)
        if writing.homes:
            self._on_persisted(writing.op_id, 0.0)

    patch.setattr(coordinator.Coordinator, "_persist", eager)


def a_shard_is_down_before_its_entities_are(patch: Patch) -> None:
    stop_shards = Host.stop_shards

    def hasty(self: Host, shards: list[str], reason: Any, patience: Any = None) -> None:
        stop_shards(self, shards, reason, patience)
        for shard in shards:
            if shard in self.shards:
                self._on_down(shard)

    patch.setattr(Host, "stop_shards", hasty)


def duplicates_are_taken(patch: Patch) -> None:
    take = Window.accept

    def greedy(self: Window, seq: int) -> bool:
        return take(self, seq) or seq <= self.received

    patch.setattr(Window, "accept", greedy)


def nothing_is_sent_again(patch: Patch) -> None:
    def lazy(self: Window) -> None:
        self._unacked.clear()
        self.pump()

    patch.setattr(Window, "resend", lazy)


def a_load_does_not_raise_the_fence(patch: Patch) -> None:
    async def open_door(
        self: memory.MemoryStore, entity_type: str, shard: str, entity_id: str, fence: int
    ) -> bytes | None:
        state = self._data().states.get((entity_type, entity_id))
        return None if state is None else state.data

    def saves(states: Any, save: Any) -> None:
        state = states.setdefault((save.entity_type, save.entity_id), memory._State(save.fence))
        state.data = save.data

    patch.setattr(memory.MemoryStore, "load_state", open_door)
    patch.setattr(memory, "_save", saves)


def an_entity_starts_before_it_is_remembered(patch: Patch) -> None:
    def knows(self: RememberedEntities, hosted: Shard, entity_id: str) -> bool:
        return True

    patch.setattr(RememberedEntities, "knows", knows)


def a_handoff_is_forgotten_like_a_passivation(patch: Patch) -> None:
    gone = Host._gone

    def forgets(self: Host, activation: Activation) -> None:
        if self.remembered is not None and activation.shard in self.remembered._lists:
            self.remembered.forget(activation.shard, activation.entity_id)
        gone(self, activation)

    patch.setattr(Host, "_gone", forgets)


def an_unreachable_node_is_taken_for_dead(patch: Patch) -> None:
    handle = coordinator.Coordinator.handle

    def rash(self: coordinator.Coordinator, event: Any, now: float) -> Any:
        if isinstance(event, events.MembersChanged) and event.unsettled:
            event = replace(event, live=tuple(n for n in event.live if n == event.live[0]))
        return handle(self, event, now)

    patch.setattr(coordinator.Coordinator, "handle", rash)


def a_link_to_a_former_process_is_closed_and_nobody_told(patch: Patch) -> None:
    find = Endpoint._find

    def replaces(self: Endpoint, address: Any, node: Any) -> Any:
        for key, link in list(self._outgoing.items()):
            if link.address == address and node and link.node and link.node != node:
                link.close()
                del self._outgoing[key]
        return find(self, address, node)

    patch.setattr(Endpoint, "_find", replaces)


def what_comes_back_goes_behind_what_waits(patch: Patch) -> None:
    gone = Routing.on_node_gone

    def late(self: Routing, node: Any, returned: Any, now: float) -> None:
        gone(self, node, (), now)
        for shard, envelope in returned:
            self.deliver(events.Deliver(shard, envelope), now)

    patch.setattr(Routing, "on_node_gone", late)


def a_downed_node_goes_on_leaving(patch: Patch) -> None:
    async def stubborn(node: Node, progress: Any) -> bool:
        return await shutdown._go_through(node, progress)

    from shardbus.simulation.nodes import world

    patch.setattr(world, "leave", stubborn)


def a_full_socket_is_tried_once(patch: Patch) -> None:
    def unblock(self: SessionLink) -> None:
        self.window.blocked = False
        self.window.pump()

    patch.setattr(SessionLink, "_unblock", unblock)


def whoever_refuses_once_is_dead_for_ever(patch: Patch) -> None:
    patch.setattr(Routing, "on_node_back", lambda self, node: None)
    patch.setattr(ClientRegions, "retry_refused", lambda self, members: None)


def an_epoch_is_granted_again(patch: Patch) -> None:
    sound = memory.MemoryStore.claim_epoch

    async def gullible(
        self: memory.MemoryStore, entity_type: str, epoch: int, layout: str
    ) -> StoredTable:
        if (table := self._data().tables.get(entity_type)) is None:
            return await sound(self, entity_type, epoch, layout)
        table.claimer = self
        return await sound(self, entity_type, table.epoch, layout)

    patch.setattr(memory.MemoryStore, "claim_epoch", gullible)


def an_old_coordinator_is_obeyed(patch: Patch) -> None:
    def obeys(self: Registration, sender: Any, epoch: int) -> str:
        self.epoch = max(self.epoch, epoch)
        return ""

    patch.setattr(Registration, "refusal", obeys)
    patch.setattr(memory.MemoryStore, "write_homes", _unguarded_write, raising=True)


async def _unguarded_write(
    self: memory.MemoryStore, entity_type: str, epoch: int, homes: Any, op_id: int
) -> None:
    table = self._data().tables.get(entity_type)
    if table is None:
        raise StaleEpoch(entity_type, epoch, 0)
    for shard, home in homes.items():
        if home is None:
            table.homes.pop(shard, None)
        else:
            table.homes[shard] = home


def a_report_of_an_older_home_wins(patch: Patch) -> None:
    reconcile = Ledger.reconcile

    def confused(self: Ledger, node: Any, hosted: Any) -> Any:
        reports = reconcile(self, node, hosted)
        reports.missing.clear()
        return reports

    patch.setattr(Ledger, "reconcile", confused)


def a_home_told_while_the_shard_stops_is_kept(patch: Patch) -> None:
    from shardbus.sharding.region.region import HostedState, ShardRegion

    down = ShardRegion._on_down

    def keeps(self: ShardRegion, shard: str, *what: Any) -> None:
        hosted = self._hosted.get(shard)
        route = self.routing._route(shard)
        next_home = route.next_home
        down(self, shard, *what)
        stopping = hosted is not None and hosted.state is HostedState.STOPPING
        if stopping and next_home is not None and route.state is RouteState.UNKNOWN:
            route.next_home = next_home

    patch.setattr(ShardRegion, "_on_down", keeps)


def messages_of_a_starting_entity_are_dropped_at_a_handoff(patch: Patch) -> None:
    finish = Stopper.finish

    def forgetful(self: Stopper, activation: Activation) -> None:
        if activation.entity is None and activation.stopping in MOVES:
            activation.mailbox = None
        finish(self, activation)

    patch.setattr(Stopper, "finish", forgetful)


def a_message_passes_a_large_one_for_the_same_entity(patch: Patch) -> None:
    """Every other batch is a large one there."""
    for module in (fragments, session_link):
        patch.setattr(module, "LARGE_WEIGHT", 400)
    patch.setattr(fragments, "PART_BYTES", 60)
    patch.setattr(fragments, "PARTS_AHEAD", 2)
    patch.setattr(FragmentQueue, "_may_pass", lambda self, runs: True)
