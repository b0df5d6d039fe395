"""A host without a node: entities of a class, messages to them, and what becomes of both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from shardbus.app import ShardBus
from shardbus.config.settings import ShardingSettings
from shardbus.entities.activation import Activation
from shardbus.entities.entity_type import StopReason
from shardbus.entities.host import Host
from shardbus.entities.runner import read_ahead
from shardbus.errors import StaleFence
from shardbus.store.memory import MemoryData, MemoryStore
from shardbus.wire.schema import decode_value, encode_value, method_of
from tests.waiting import until


class Keeper:
    """State in memory, under fences; a test may fail the next calls, or hold them back."""

    def __init__(self) -> None:
        self.states: dict[str, tuple[int, bytes | None]] = {}
        self.fail_loads: list[Exception] = []
        self.fail_saves: list[Exception] = []
        self.loads = 0

    async def load(self, entity_type: str, entity_id: str, fence: int) -> bytes | None:
        await asyncio.sleep(0)
        self.loads += 1
        if self.fail_loads:
            raise self.fail_loads.pop(0)
        return self._checked(entity_type, entity_id, fence)

    async def save(self, entity_type: str, entity_id: str, fence: int, data: bytes | None) -> None:
        await asyncio.sleep(0)
        if self.fail_saves:
            raise self.fail_saves.pop(0)
        self._checked(entity_type, entity_id, fence)
        self.states[entity_id] = (fence, data)

    def _checked(self, entity_type: str, entity_id: str, fence: int) -> bytes | None:
        stored, data = self.states.get(entity_id, (fence, None))
        if stored > fence:
            raise StaleFence(entity_type, entity_id, fence, stored)
        self.states[entity_id] = (fence, data)
        return data


class Asker:
    """The session by which asks come in: answers and failures find their futures."""

    name = "tester"
    lost = None

    def __init__(self) -> None:
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        self.tag = "tester"

    def expect(self) -> tuple[int, asyncio.Future[Any]]:
        corr = len(self.waiting) + 1
        future = self.waiting[corr] = asyncio.get_running_loop().create_future()
        return corr, future

    def reply(self, corr: int, payload: bytes) -> None:
        self.waiting[corr].set_result(decode_value(payload))

    def fail(self, corr: int, error: Exception) -> None:
        self.waiting[corr].set_exception(error)


class Bench:
    """One shard of one class, open to messages. `down` lists the shards reported as stopped."""

    SHARD = "0"

    def __init__(self, bus: ShardBus, store: Any = None, **settings: Any) -> None:
        [(name, kind)] = bus.types.items()
        loop = asyncio.get_running_loop()
        self.keeper, self.asker, self.down = Keeper(), Asker(), list[str]()
        self.kind = kind
        chosen = ShardingSettings().for_type(name, {**kind.declared, **settings})
        ref: Callable[[Any, str], Any] = lambda cls, entity_id: (cls, entity_id)  # noqa: E731
        self.store = store or MemoryStore(MemoryData())
        self.store._open = True
        self.host = Host(
            kind,
            chosen,
            "n1",
            loop,
            self.keeper,
            ref,
            self.down.append,
            self.store,
            lambda entity_id: self.SHARD,
            lambda entity_id: asyncio.sleep(0),
        )
        self.host.start_shard(self.SHARD, 7)
        self.host.set_arrivals(self.SHARD, True, None)

    # ---- sending

    def ask(
        self, entity_id: str, method: str, *args: Any, ticks: int = 10_000
    ) -> asyncio.Future[Any]:
        """Ask a handler, as a run of one message that came by a link."""
        corr, future = self.asker.expect()
        self._deliver(method, [(entity_id, encode_value(args), corr)], self.asker, ticks)
        return future

    def ask_message(self, entity_id: str, message: object) -> asyncio.Future[Any]:
        """Ask `receive`."""
        corr, future = self.asker.expect()
        rows = [(entity_id, encode_value(message), corr)]
        self._deliver(method_of(message), rows, self.asker, 10_000)
        return future

    def tell(self, entity_id: str, method: str, *args: Any) -> None:
        """Tell a handler."""
        self._deliver(method, [(entity_id, encode_value(args), 0)], None, 0)

    def tell_many(self, method: str, *rows: tuple[str, tuple[Any, ...]]) -> None:
        """Tell a handler of several entities in one run."""
        run = [(entity_id, encode_value(args), 0) for entity_id, args in rows]
        self._deliver(method, run, None, 0)

    def send_raw(self, entity_id: str, method: str, payload: bytes) -> asyncio.Future[Any]:
        """Ask with bytes that need not fit."""
        corr, future = self.asker.expect()
        self._deliver(method, [(entity_id, payload, corr)], self.asker, 10_000)
        return future

    def _deliver(
        self, method: str, rows: list[tuple[str, bytes, int]], asker: Any, ticks: int
    ) -> None:
        host, invoker = self.host, self.kind.invokers[method]
        deadline = host.runner.tick + ticks

        def arrive(entity_id: str, payload: bytes, corr: int) -> Activation | None:
            hosted = host.shards[self.SHARD]
            return hosted.activations.get(entity_id) or host.activate(hosted, entity_id)

        ahead = read_ahead(invoker, [payload for _, payload, _ in rows])
        host.runner.deliver(host.active.get, arrive, invoker, asker, rows, deadline, (), ahead)

    # ---- looking

    @property
    def dropped(self) -> dict[str, int]:
        return self.host.counts.dropped

    def activation(self, entity_id: str) -> Activation | None:
        return self.host.find(entity_id, self.SHARD)

    def entity(self, entity_id: str) -> Any:
        activation = self.activation(entity_id)
        return None if activation is None else activation.entity

    # ---- time and the end

    def pass_ticks(self, ticks: int) -> None:
        """Coarse time goes on; the sweep looks for idle entities."""
        self.host.runner.advance(self.host.runner.tick + ticks)
        for sweep in self.host.sweeps().values():
            sweep(self.host.runner.tick)

    def stop(self, reason: StopReason = StopReason.HANDOFF) -> None:
        self.host.stop_shards([self.SHARD], reason)

    async def stopped(self) -> None:
        await until(lambda: self.down == [self.SHARD], "the shard's end")
