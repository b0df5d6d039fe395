"""The store of a test cluster: a test may read it, write it, and break it.

    store.state(Counter, "page-7")      the stored state, as the type's; None if there is none
    store.put(Counter, "page-7", ...)   store a state before the entity starts
    store.next_save(Counter, "page-7")  await the moment between the next save and its answer
    store.stop(), store.start()         no request is answered; all are again
    store.fail(0.3), store.slow(1.0)    requests fail, or take long
    store.lose()                        everything is gone, as after a restart without a disk

Behind it is the simulator's store, whose rules are the same as every store's.
"""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

from shardbus.config.options import checked_seconds
from shardbus.entities.entity_type import EntityType
from shardbus.entities.merged_rows import copy_of
from shardbus.entities.merged_state import MergedState, StateCopy
from shardbus.errors import UnknownEntityType
from shardbus.ids import check_id
from shardbus.replication.values import SEPARATOR, state_name
from shardbus.replication.versions import NOTHING
from shardbus.routing.paths import shard_function_of
from shardbus.simulation.membership.world import World
from shardbus.simulation.nodes.stores import StoreServer, run_at_once
from shardbus.store.memory import MemoryStore
from shardbus.store.protocol import Save
from shardbus.testing.virtual_time import Pending, VirtualTime
from shardbus.wire.schema import encode_value


class WatchedStore(StoreServer):
    """The server of a test cluster's store. It records each access, and reports saves."""

    def __init__(self, world: World, rng: Random) -> None:
        super().__init__(world, rng)
        self.world = world
        self.saved: dict[tuple[str, str], int] = {}
        """The number of saves of each entity."""
        self._expected: dict[tuple[str, str], list[asyncio.Future[None]]] = {}

    def record_access(self, what: str, entity_type: str, entity_id: str, fence: int) -> None:
        super().record_access(what, entity_type, entity_id, fence)
        if what == "saved":
            self._note_save(entity_type, entity_id)
        else:
            self._mark(entity_type, entity_id, what)

    def _mark(self, entity_type: str, entity_id: str, what: str) -> None:
        self.world.trace.mark(self.world.now, "store", f"{entity_type} {entity_id!r} is {what}")

    def _note_save(self, entity_type: str, entity_id: str) -> None:
        self._mark(entity_type, entity_id, "saved")
        key = (entity_type, entity_id)
        self.saved[key] = self.saved.get(key, 0) + 1
        for future in self._expected.pop(key, ()):
            if not future.done():
                future.set_result(None)

    def record_value(self, name: str) -> None:
        entity_type, mark, entity_id = name.partition(SEPARATOR)
        if mark:
            self._note_save(entity_type, entity_id)

    def expect(self, key: tuple[str, str], future: asyncio.Future[None]) -> None:
        """Complete the future at the entity's next save."""
        self._expected.setdefault(key, []).append(future)


class ClusterStore:
    """The store of a test cluster."""

    def __init__(
        self, server: WatchedStore, time: VirtualTime, types: dict[str, EntityType]
    ) -> None:
        self._server, self._time, self._types = server, time, types

    # ---- reading and writing

    def state(self, kind: type | str, entity_id: str) -> Any:
        """Return the stored state of an entity, None if there is none."""
        declared = self._type(kind)
        if declared.merged is not None:
            value = self._server.values.rows.get(state_name(declared.name, entity_id), NOTHING)
            return copy_of(declared.merged, entity_id, value).entity.state if value.dots else None
        row = self._server.data.states.get((declared.name, entity_id))
        if row is None or row.data is None:
            return None
        return row.data if declared.states is None else declared.states.read(entity_id, row.data)

    def put(self, kind: type | str, entity_id: str, state: object) -> None:
        """Store a state, as if an earlier activation had saved it. An activation that runs keeps
        its own, and its next save replaces this one; instances that share a state merge it."""
        declared, server = self._type(kind), self._server
        key = (declared.name, check_id("an entity id", entity_id))
        if declared.merged is not None:
            self._put_merged(declared.merged, state_name(*key), state)
            return
        shard = shard_function_of(declared.interface)(entity_id)
        row = server.data.states.get(key)
        fence = 0 if row is None else row.fence
        data = encode_value(state) if declared.states is None else declared.states.write(state)
        save = Save(declared.name, shard, entity_id, fence, data, server.rng.getrandbits(63))
        store = MemoryStore(server.data)
        run_at_once(store.start())
        run_at_once(store.save_states([save]))

    def _put_merged(self, form: MergedState, name: str, state: Any) -> None:
        """Put a state that instances share in the place of the one that is there."""
        values = self._server.values
        copy = StateCopy(SimpleNamespace(state=state))
        copy.value = values.rows.get(name, NOTHING)
        data = form.write(state)
        change = form.outgoing(copy, data, data).change
        if change is not None:
            values.write(name, change._replace(seen=copy.value.clock))

    def saves(self, kind: type | str, entity_id: str) -> int:
        """Return how many saves of an entity the store has taken."""
        return self._server.saved.get((self._type(kind).name, entity_id), 0)

    def next_save(self, kind: type | str, entity_id: str) -> Pending[None]:
        """Return an awaitable of the next save from now on. It is done when the store has the new
        state, and before the node gets the answer."""
        with self._time.entered():
            future: asyncio.Future[None] = self._time.loop.create_future()
        self._server.expect((self._type(kind).name, entity_id), future)
        return Pending(self._time, future)

    # ---- breaking

    def stop(self) -> None:
        """Answer no request from now on, as a server that is away. Stored data stays."""
        self._mark("stops")
        self._server.up = False

    def start(self) -> None:
        """Answer all requests from now on, at the usual speed."""
        self._mark("works")
        self._server.calm()

    def fail(self, part: float) -> None:
        """Let this part of the requests fail, from 0 to 1; half of them after the work is done."""
        self._mark(f"fails {part:g} of the requests")
        self._server.failing = part

    def slow(self, seconds: float) -> None:
        """Let each request and each answer take up to that much longer."""
        seconds = checked_seconds("slow", seconds)
        self._mark(f"is slow, up to {seconds:g} s")
        self._server.slow_s = seconds

    def lose(self) -> None:
        """Lose everything, as a server that restarts without a disk."""
        self._mark("loses everything")
        self._server.forget()

    def _mark(self, what: str) -> None:
        world = self._server.world
        world.trace.mark(world.now, "store", what)

    def _type(self, kind: type | str) -> EntityType:
        return type_of(self._types, kind)


def type_of(types: dict[str, EntityType], kind: type | str) -> EntityType:
    """Return an entity type by its class or its name.

    Raises:
        UnknownEntityType: the application has no such type.
    """
    interface = getattr(kind, "__shardbus_interface__", None)
    name = kind if isinstance(kind, str) else getattr(interface, "name", None)
    if name not in types:
        raise UnknownEntityType(f"the test cluster has no entity type {kind!r}")
    return types[name]
