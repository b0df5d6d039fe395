"""A host without a node: entities of a class, messages to them, and their notes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from shardbus import Entity, handler
from shardbus.app import ShardBus
from shardbus.config.settings import ShardingSettings
from shardbus.entities.activation import Activation, Message
from shardbus.entities.entity_type import StopReason
from shardbus.entities.eviction import CompositePolicy, EvictionPolicy
from shardbus.entities.gate import SuspensionGate
from shardbus.entities.host import Host
from shardbus.entities.runs import RunHandler, read_ahead
from shardbus.errors import StaleFence
from shardbus.store.memory import MemoryData, MemoryStore
from shardbus.transport.asks import fail_of, failure
from shardbus.transport.drop_reports import Origin
from shardbus.wire.schema import decode_value, encode_value, form_of
from tests.waiting import until


class Log:
    """The notes of entities, their waits, and the errors that they raise next."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.stopped: list[tuple[str, StopReason]] = []
        self.gate = asyncio.Event()
        """Closed; handlers wait for it. The gates of starts and ends are open."""
        self.work = asyncio.Event()
        self.start_gate, self.end_gate = asyncio.Event(), asyncio.Event()
        self.start_gate.set()
        self.end_gate.set()
        self.fail: list[Exception] = []
        self.failing: set[str] = set()
        """Ids whose constructor raises."""

    @property
    def gone(self) -> str:
        """The ids of the entities that stopped, in order."""
        return " ".join(entity_id for entity_id, _ in self.stopped)

    def maybe_fail(self) -> None:
        """Raise the next error, if there is one."""
        if self.fail:
            raise self.fail.pop(0)


class LogEntity(Entity):
    """An entity that notes its messages, and waits where its log says."""

    log: Log

    @handler
    def hit(self, n: int) -> int:
        self.log.rows.append(n)
        return n

    @handler
    async def slow(self, n: int) -> int:
        await self.log.gate.wait()
        return self.hit(n)

    @handler
    def bad(self) -> None:
        raise ValueError


class ListStore(MemoryStore):
    """Memory whose reads and writes of lists can be held back, and can fail."""

    def __init__(self, data: MemoryData) -> None:
        super().__init__(data)
        self.gate, self.pages = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.pages.set()
        self.failures: list[Exception] = []
        self.writes: list[tuple[str, tuple[str, ...]]] = []
        self.read = False
        """A page was read, though it may not have arrived."""

    async def _pass(self, what: str, ids: Sequence[str]) -> None:
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        if ids:
            self.writes.append((what, tuple(ids)))

    async def add_remembered(
        self, entity_type: str, shard: str, entity_ids: Sequence[str], fence: int
    ) -> None:
        await self._pass("add", entity_ids)
        await super().add_remembered(entity_type, shard, entity_ids, fence)

    async def remove_remembered(
        self, entity_type: str, shard: str, entity_ids: Sequence[str], fence: int
    ) -> None:
        await self._pass("remove", entity_ids)
        await super().remove_remembered(entity_type, shard, entity_ids, fence)

    async def page_remembered(
        self, entity_type: str, shard: str, cursor: str | None, limit: int
    ) -> tuple[list[str], str | None]:
        await self._pass("read", ())
        ids, cursor = await super().page_remembered(entity_type, shard, cursor, limit)
        self.read = True
        await self.pages.wait()
        return list(ids), cursor

    def ids(self) -> list[str]:
        """The ids on all lists."""
        return [i for entry in self._data().remembered.values() for i in entry.entity_ids]


class PolicyMemory:
    """Ids in memory under a policy that gets every notice at once."""

    def __init__(self, policy: EvictionPolicy, limit: int) -> None:
        self.policy, self.limit = policy, limit
        self.ids: set[str] = set()
        self.gone: list[str] = []
        self.hits = self.now = 0

    def use(self, *entity_ids: str) -> None:
        """One message for each."""
        for entity_id in entity_ids:
            self.now += 1
            hit = entity_id in self.ids
            self.hits += hit
            if hit:
                self.policy.used(entity_id, self.now)
            else:
                self.ids.add(entity_id)
                self.policy.started(entity_id, self.now)
            while len(self.policy) > self.limit:
                victim = self.policy.victim()
                assert victim is not None
                self.policy.stopped(victim)
                self.ids.remove(victim)
                self.gone.append(victim)
            if isinstance(self.policy, CompositePolicy):
                self.policy.measure(1, not hit)


class Keeper:
    """State in memory, under fences; a test may fail the next calls."""

    def __init__(self) -> None:
        self.states: dict[str, tuple[int, bytes | None]] = {}
        self.fail_loads: list[Exception] = []
        self.fail_saves: list[Exception] = []
        self.journals: Any = None
        self.loads = 0
        self.refused: list[str] = []

    async def load(self, entity_type: str, shard: str, entity_id: str, fence: int) -> bytes | None:
        await asyncio.sleep(0)
        self.loads += 1
        if self.fail_loads:
            raise self.fail_loads.pop(0)
        return self._checked(entity_type, entity_id, fence)

    async def save(
        self, entity_type: str, shard: str, entity_id: str, fence: int, data: bytes | None
    ) -> None:
        await asyncio.sleep(0)
        if self.fail_saves:
            raise self.fail_saves.pop(0)
        self._checked(entity_type, entity_id, fence)
        self.states[entity_id] = (fence, data)

    def refuse_unsent(self, entity_type: str, shard: str, entity_id: str) -> None:
        """Note whose saves are refused."""
        self.refused.append(entity_id)

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
        self.outbox = self

    def expect(self) -> tuple[int, asyncio.Future[Any]]:
        corr = len(self.waiting) + 1
        future = self.waiting[corr] = asyncio.get_running_loop().create_future()
        return corr, future

    def reply(self, corr: int, payload: bytes) -> None:
        self.waiting[corr].set_result(decode_value(payload))

    def fail(self, corr: int, error: Exception, *, begun: bool = False) -> None:
        self.waiting[corr].set_exception(failure(fail_of(corr, error, begun=begun)))


class Bench:
    """One shard of one class, open to messages. `down` lists the shards reported as stopped. Its
    host is closed at the end of the test."""

    SHARD = "0"
    made: ClassVar[list[Bench]] = []

    def __init__(
        self, bus: ShardBus, store: Any = None, keeper: Any = None, **settings: Any
    ) -> None:
        [(name, kind)] = bus.types.items()
        loop = asyncio.get_running_loop()
        self.keeper, self.asker, self.down = keeper or Keeper(), Asker(), list[str]()
        self.kind = kind
        self.now = 0.0
        """The time of the gate's clock."""
        self.passed_on = 0
        """Messages that the test has taken for the next home."""
        self.gate = SuspensionGate(lambda: self.now)
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
            self.gate,
        )
        self.runs = RunHandler(self.host.runner)
        self.host.start_shard(self.SHARD, 7)
        self.host.set_arrivals(self.SHARD, True, None)
        self.made.append(self)

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
        self._deliver(form_of(message).method, rows, self.asker, 10_000)
        return future

    def tell(self, entity_id: str, method: str, *args: Any) -> None:
        """Tell a handler."""
        self._deliver(method, [(entity_id, encode_value(args), Origin.UNREPORTED)], None, 0)

    def tell_many(self, method: str, *rows: tuple[str, tuple[Any, ...]]) -> None:
        """Tell a handler of several entities in one run."""
        run = [(entity_id, encode_value(args), Origin.UNREPORTED) for entity_id, args in rows]
        self._deliver(method, run, None, 0)

    def ask_many(
        self, method: str, *rows: tuple[str, tuple[Any, ...]]
    ) -> list[asyncio.Future[Any]]:
        """Ask a handler of several entities in one run."""
        asks = [self.asker.expect() for _ in rows]
        run = [
            (i, encode_value(args), corr) for (i, args), (corr, _) in zip(rows, asks, strict=True)
        ]
        self._deliver(method, run, self.asker, 10_000)
        return [future for _, future in asks]

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
        ids, payloads, corrs = zip(*rows, strict=True)
        find, deliver = host.active.get, self.runs.deliver
        host.counts.accepted += len(ids)
        deliver(find, arrive, invoker, asker, ids, payloads, corrs, deadline, (), ahead)

    # ---- state

    @property
    def missing(self) -> int:
        """How many messages arrived and have no fate (`shells.message_account`)."""
        counts, at_work = self.host.counts, self.host.runner.at_work
        delivered = counts.begun - counts.undone - at_work
        known = delivered + self.host.waiting + sum(counts.dropped.values())
        return counts.accepted + counts.own_dropped - known - self.passed_on

    def take_unhandled(self) -> list[tuple[str, Message]]:
        """Take the messages that go on to the next home of the shard."""
        unhandled = self.host.draining.take_unhandled(self.SHARD)
        self.passed_on += len(unhandled)
        return unhandled

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
        """Advance the coarse time, and do the work of each second."""
        self.host.runner.advance(self.host.runner.tick + ticks)
        for sweep in self.host.sweeps().values():
            sweep(self.host.runner.tick)

    def stop(self, reason: StopReason = StopReason.HANDOFF) -> None:
        self.host.stop_shards([self.SHARD], reason)

    async def stopped(self) -> None:
        await until(lambda: self.down == [self.SHARD], "the shard's end")
