"""The state store of a simulated cluster, with its failures.

Behind it is the real store in memory, with its fences and epochs. Between it and a process there is
latency: a request takes time, is carried out when it arrives, whatever has become of its sender,
and the answer takes time again. A load or a save that arrives after a later one of the same process
is refused, and its sender sends it again if it still waits. The server may be slow or out of reach,
may fail before or after it did its work, may lose everything, and may return to an earlier state.
Then each process meets another server: with its next answer, or within `PROBE_S`, as the real
stores notice it.

`lied` is True once it lost or restored data: its earlier answers do not hold any more. Until then,
each access that it grants to a former home of an entity's state is reported to `on_stale`, and so
is each home of a shard under a fence below that of an earlier one. Each epoch that it grants is
reported to `on_claimed`.

Source: docs/simulation.md; N.7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from copy import deepcopy
from functools import wraps
from itertools import count
from random import Random
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from shardbus.errors import StoreError, StoreUnavailable
from shardbus.ids import NodeId
from shardbus.replication.versions import DataValue
from shardbus.simulation.nodes.journals import APPENDED, SimJournals
from shardbus.simulation.nodes.values import SimValues, ValueDisk
from shardbus.simulation.timeline import Timeline
from shardbus.simulation.virtual_loop import VirtualLoop
from shardbus.store.memory import MemoryData, MemoryStore
from shardbus.store.protocol import NewHomes, Save, StoredTable, StoreMethod

P = ParamSpec("P")
T = TypeVar("T")

LATENCY_S = (0.0003, 0.008)
"""Seconds of one way, usually."""
TIMEOUT_S = 2.0
"""Seconds for which a process waits for an answer."""
PROBE_S = 2.0
"""Seconds within which a process without calls notices another server."""


class StoreServer:
    """The server that all processes share. Its attributes may be changed at any time."""

    def __init__(self, timeline: Timeline, rng: Random) -> None:
        self.timeline, self.rng = timeline, rng
        self.data = MemoryData()
        self.up = True
        self.away: set[str] = set()
        """The names of nodes that have lost the way to it."""
        self.failing = 0.0
        """The part of requests that fail, half of them after the work."""
        self.slow_s = 0.0
        """The longest latency beyond the usual."""
        self.lied = False
        self.on_stale: Callable[[str], object] = lambda _: None
        self.on_claimed: Callable[[str, int, NodeId], object] = lambda *_: None
        self.on_expired: Callable[[str, str], object] = lambda entity_type, entity_id: None
        """Called with each entity whose state has expired."""
        self.on_appended: Callable[[str, str, int], object] = lambda kind, name, fence: None
        """Called with each journal that has new entries, and the fence of their append."""
        self.saves: dict[int, None] = {}
        """Operation ids of the saves that were done: a repeated one does nothing, and is not
        counted."""
        self.values = ValueDisk()
        self.generation = 0
        """Grows with each loss: the server counts as another one."""
        self.fences_written: dict[tuple[str, str], int] = {}
        """By type and shard: the highest fence of a home that was ever written."""
        self.clients: list[SimStore] = []
        self._snapshot: MemoryData | None = None
        self._value_rows: dict[str, DataValue] = {}
        self._fences: dict[tuple[str, str], int] = {}

    def calm(self) -> None:
        """Answer all requests from now on, quickly and correctly."""
        self.up, self.failing, self.slow_s = True, 0.0, 0.0
        self.away.clear()

    def forget(self) -> None:
        """Lose everything."""
        self._replace(MemoryData())
        self.values.replace({})

    def snapshot(self) -> None:
        """Keep the state that `roll_back` returns to."""
        self._snapshot = deepcopy(self.data)
        self._value_rows = dict(self.values.rows)

    def roll_back(self) -> None:
        """Return to the state that was kept."""
        if self._snapshot is not None:
            self._replace(deepcopy(self._snapshot))
            self.values.replace(self._value_rows)

    def _replace(self, data: MemoryData) -> None:
        self.lied = True
        self._fences.clear()
        held = self.data
        held.tables, held.states = data.tables, data.states
        held.remembered, held.leases = data.remembered, data.leases
        held.journals = data.journals
        self.generation += 1
        for client in self.clients:
            self.timeline.later(self.rng.uniform(0.0, PROBE_S), client.probe)

    def record_access(self, what: str, entity_type: str, entity_id: str, fence: int) -> None:
        """Record that a state was loaded or saved under this fence. Report it if a higher fence had
        access."""
        key = (entity_type, entity_id)
        highest = self._fences.get(key, 0)
        if fence < highest:
            self.on_stale(f"{key} is {what} under fence {fence:x} after {highest:x}")
        self._fences[key] = max(fence, highest)

    def record_journal(self, what: str, kind: str, name: str, fence: int) -> None:
        """Record that a journal was opened or appended to, as `record_access`."""
        key = (f"journal {kind}", name)
        highest = self._fences.get(key, 0)
        if fence < highest:
            self.on_stale(f"{key} is {what} under fence {fence:x} after {highest:x}")
        self._fences[key] = max(fence, highest)
        if what == APPENDED:
            self.on_appended(kind, name, fence)

    def record_value(self, name: str) -> None:
        """Record that a replicated value was written."""

    def record_homes(self, entity_type: str, homes: NewHomes) -> None:
        """Record that these homes were written. Report a fence below that of an earlier home."""
        for row, home in homes.items():
            if home is not None:
                key, fence = (entity_type, row), home[1]
                highest = self.fences_written.get(key, 0)
                if fence < highest and not self.lied:
                    self.on_stale(f"{key} has its home under fence {fence:x} after {highest:x}")
                self.fences_written[key] = max(fence, highest)

    def latency(self) -> float:
        """Draw how long a request or an answer takes."""
        slow = self.rng.uniform(0.0, self.slow_s) if self.slow_s else 0.0
        return self.rng.uniform(*LATENCY_S) + slow

    def reached_by(self, name: str) -> bool:
        """True if a request of this node arrives."""
        return self.up and name not in self.away

    def draw_failure(self, by: str) -> tuple[bool, bool]:
        """Draw whether the next request of this node is lost, and whether its answer is."""
        if not self.reached_by(by):
            return True, True
        if self.failing and self.rng.random() < self.failing:
            return (True, True) if self.rng.random() < 0.5 else (False, True)
        return False, False


def run_at_once(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("the store in memory waits for something")


def _asks(
    step: Callable[Concatenate[MemoryStore, P], Coroutine[Any, Any, T]],
) -> StoreMethod[P, T]:
    """Return the method of a client that lets the server do this, with copies of the caller's
    lists."""
    run: Callable[..., Coroutine[Any, Any, T]] = step

    @wraps(step)
    async def method(self: SimStore, /, *args: P.args, **named: P.kwargs) -> T:
        copies = [each.copy() if isinstance(each, list) else each for each in args]
        return await self._ask(lambda: run(self._store, *copies, **named))

    return cast("StoreMethod[P, T]", method)


class SimStore:
    """One process's client: a `StateStore`. `node`: the node that claims epochs."""

    def __init__(self, server: StoreServer, loop: VirtualLoop, node: Callable[[], NodeId]) -> None:
        self._server, self._loop, self._node = server, loop, node
        self._store = MemoryStore(server.data, clock=lambda: server.timeline.now)
        self._generation = server.generation
        self.on_new_server: Callable[[], None] = lambda: None
        self._numbers = count(1)
        """Of loads and saves, in the order in which they are sent."""
        self._executed: dict[tuple[str, str], int] = {}
        """By entity, the last number that the server has carried out."""
        self.values = SimValues(server.values, self._ask, server.record_value)
        self.journals = SimJournals(
            self._store.journals, self._ask, self._order_of, server.record_journal
        )
        server.clients.append(self)

    @property
    def value_counts(self) -> Mapping[tuple[str, str], int]:
        """The requests of replicated values that have ended."""
        return self.values.counts

    @property
    def value_conflicts(self) -> Mapping[str, int]:
        """None are noted."""
        return {}

    async def start(self) -> None:
        await self._store.start()

    async def close(self) -> None:
        if self in self._server.clients:
            self._server.clients.remove(self)
        await self._store.close()

    def probe(self) -> None:
        """Let the process ask which server there is, once it runs. A server that is away is asked
        again later."""
        if self._server.reached_by(self._node().host):
            self._loop.call_soon(self._meet, self._server.generation)
        else:
            self._server.timeline.later(PROBE_S, self.probe)

    def _meet(self, generation: int) -> None:
        """Report a server that is another one than before."""
        if generation > self._generation:
            self._generation = generation
            self.on_new_server()

    async def identity(self, known: str = "") -> str:
        """Answer at once: all processes have this server, and no seed draws anything here."""
        return known or "simulated"

    async def _ask(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        server, loop = self._server, self._loop
        answer: asyncio.Future[T] = loop.create_future()
        lost, unanswered = server.draw_failure(self._node().host)

        def on_answered(result: T | Exception, generation: int) -> None:
            self._meet(generation)
            if answer.done():
                return
            if isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        def carry_out() -> None:
            result: T | Exception
            try:
                result = run_at_once(work())
            except Exception as refused:
                result = refused
            if not unanswered:
                latency, by = server.latency(), server.generation
                server.timeline.later(latency, lambda: loop.call_soon(on_answered, result, by))

        if not lost:
            server.timeline.later(server.latency(), carry_out)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await answer
        except TimeoutError:
            raise StoreUnavailable("the store does not answer") from None

    load_table = _asks(MemoryStore.load_table)

    async def claim_epoch(self, entity_type: str, epoch: int, layout: str) -> StoredTable:
        node = self._node()

        async def claim() -> StoredTable:
            table = await self._store.claim_epoch(entity_type, epoch, layout)
            self._server.on_claimed(entity_type, table.epoch, node)
            return table

        return await self._ask(claim)

    async def write_homes(self, entity_type: str, epoch: int, homes: NewHomes, op_id: int) -> None:
        written = dict(homes)

        async def write() -> None:
            await self._store.write_homes(entity_type, epoch, written, op_id)
            self._server.record_homes(entity_type, written)

        await self._ask(write)

    remove_table = _asks(MemoryStore.remove_table)

    async def load_state(
        self, entity_type: str, shard: str, entity_id: str, fence: int
    ) -> bytes | None:
        number = next(self._numbers)

        async def load() -> bytes | None:
            self._pass([(entity_type, entity_id)], number)
            data = await self._store.load_state(entity_type, shard, entity_id, fence)
            self._server.record_access("loaded", entity_type, entity_id, fence)
            return data

        return await self._ask(load)

    def _pass(self, entities: Sequence[tuple[str, str]], number: int) -> None:
        """Note that the server carries out a load or a save of these entities.

        Raises:
            StoreUnavailable: it has carried out a later one. Nothing was written.
        """
        if any(self._executed.get(entity, 0) > number for entity in entities):
            raise StoreUnavailable("late", definite=True)
        self._executed.update(dict.fromkeys(entities, number))

    def _order_of(self, journals: Sequence[tuple[str, str]]) -> Callable[[], None]:
        """Return the function to call when the server carries out a request of these journals that
        is sent now; it raises as `_pass` does."""
        number = next(self._numbers)
        return lambda: self._pass([(f"journal {kind}", name) for kind, name in journals], number)

    async def save_states(self, saves: Sequence[Save]) -> list[StoreError | None]:
        batch, number = list(saves), next(self._numbers)

        async def save() -> list[StoreError | None]:
            self._pass([(row.entity_type, row.entity_id) for row in batch], number)
            results = await self._store.save_states(batch)
            for row, refused in zip(batch, results, strict=True):
                if refused is None and row.op_id not in self._server.saves:
                    self._server.saves[row.op_id] = None
                    self._server.record_access("saved", row.entity_type, row.entity_id, row.fence)
            return results

        return await self._ask(save)

    page_stored = _asks(MemoryStore.page_stored)
    read_states = _asks(MemoryStore.read_states)

    async def expire_states(
        self, entity_type: str, entity_ids: Sequence[str], now: float, since: float
    ) -> list[str]:
        ids = list(entity_ids)

        async def expire() -> list[str]:
            removed = await self._store.expire_states(entity_type, ids, now, since)
            for entity_id in removed:
                self._server.on_expired(entity_type, entity_id)
            return removed

        return await self._ask(expire)

    add_remembered = _asks(MemoryStore.add_remembered)
    remove_remembered = _asks(MemoryStore.remove_remembered)
    page_remembered = _asks(MemoryStore.page_remembered)
    remembered_shards = _asks(MemoryStore.remembered_shards)
    load_reminders = _asks(MemoryStore.load_reminders)
    page_due = _asks(MemoryStore.page_due)
    due_shards = _asks(MemoryStore.due_shards)
    acquire_lease = _asks(MemoryStore.acquire_lease)
    renew_lease = _asks(MemoryStore.renew_lease)
    release_lease = _asks(MemoryStore.release_lease)
