"""The context of an object that is over refuses to act, and its successor is not affected."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from shardbus import Directive, Entity, ShardBus, StopReason, handler
from shardbus.entities.activation import LifeState
from shardbus.entities.context import Context
from shardbus.errors import EntityFailed, StaleActivation, StaleFence, StateChanged, StoreError
from shardbus.sharding.instances import INSTANCE_MARK
from shardbus.store.entity_state import EntityStates
from shardbus.store.memory import MemoryStore
from shardbus.store.protocol import Save
from shardbus.wire.stored_state import revision_of
from tests.laws import left_over
from tests.unit.entities.entity_kit import Bench
from tests.waiting import turns, until


@dataclass
class Stock:
    n: int = 0


class Keeper(Entity):
    """Saves, fails, stops, and keeps each of its objects and contexts."""

    state: Stock
    made: list[Keeper]
    contexts: list[Any]
    failing: list[Exception]
    hold: asyncio.Event
    """A cut-off waits for it: `on_stop` does."""

    def __init__(self) -> None:
        self.made.append(self)
        self.contexts.append(self.context)
        self.heard: list[object] = []

    async def on_start(self) -> None:
        if self.failing:
            raise self.failing.pop(0)

    async def on_stop(self, reason: StopReason) -> None:
        self.heard.append(reason)
        if reason is StopReason.SHUTDOWN:
            await self.hold.wait()
        self.state.n += 100
        await self.save()

    @handler
    async def set(self, n: int) -> int:
        self.state.n = n
        await self.save()
        return n

    @handler
    def read(self) -> int:
        return self.state.n

    @handler
    def fail(self) -> None:
        raise ValueError("a failure")

    @handler
    def leave(self) -> None:
        self.context.passivate()

    @handler
    def stop(self) -> None:
        self.context.stop()

    @handler
    async def wait_for(self, index: int) -> None:
        """Await a save of a former object."""
        await self.made[index].save()

    @handler
    async def stale(self, entity_id: str, fence: int) -> None:
        raise StaleFence("keeper", entity_id, fence, 99)

    def receive(self, message: object) -> object:
        self.heard.append(message)
        return message


class Slow(MemoryStore):
    """A store whose saves wait at a gate."""

    def __init__(self) -> None:
        super().__init__()
        self._open = True
        self.gate = asyncio.Event()
        self.gate.set()
        self.sent: list[bytes | None] = []

    async def save_states(self, saves: Sequence[Save]) -> list[StoreError | None]:
        self.sent += [save.data for save in saves]
        await self.gate.wait()
        return await super().save_states(saves)


def bench(**options: Any) -> tuple[Bench, type[Keeper], Slow]:
    bus, store = ShardBus("test"), Slow()
    made: dict[str, Any] = {"made": [], "contexts": [], "failing": [], "hold": asyncio.Event()}
    cls = type("Kept", (Keeper,), made)
    bus.entity("keeper", **options)(cls)
    return Bench(bus, store, EntityStates(store, 1)), cls, store


async def passivated(b: Bench, cls: type[Keeper]) -> None:
    await b.ask("e", "leave")
    await until(lambda: b.activation("e") is None, "the end")


async def stopped(b: Bench, cls: type[Keeper]) -> None:
    await b.ask("e", "stop")
    await until(lambda: b.activation("e") is None, "the end")


async def failed(b: Bench, cls: type[Keeper]) -> None:
    with pytest.raises(EntityFailed, match="a failure"):
        await b.ask("e", "fail")


async def failed_to_start(b: Bench, cls: type[Keeper]) -> None:
    """The object of the first start is over while the next attempt waits for its backoff."""
    await passivated(b, cls)
    del cls.made[:], cls.contexts[:]
    cls.failing += [OSError("first"), OSError("second")]
    ask = b.ask("e", "read")
    await until(lambda: len(cls.made) == 2 and not cls.failing, "two attempts")
    await until(lambda: b.activation("e").state is LifeState.PAUSING, "a pause")  # type: ignore[union-attr]
    ask.add_done_callback(lambda done: done.exception())


async def cut_off(b: Bench, cls: type[Keeper]) -> None:
    b.host.stop_shards([b.SHARD], StopReason.SHUTDOWN, 0.0)
    await b.stopped()


async def replaced(b: Bench, cls: type[Keeper]) -> None:
    codec = b.kind.states
    assert codec is not None
    await b.host.change_state(b.SHARD, "e", codec.write(Stock(50)))


ENDS = [passivated, stopped, failed, failed_to_start, cut_off, replaced]

ACTS: dict[str, Callable[[Any], Any]] = {
    "_save": lambda context: context._save(b""),
    "ref": lambda context: context.ref("other", "x"),
    "child": lambda context: context.child("other", "x"),
    "passivate": lambda context: context.passivate(),
    "passivate ": lambda context: context.passivate("read"),
    "stop": lambda context: context.stop(),
    "schedule_once": lambda context: context.schedule_once(0.001, "read"),
    "schedule": lambda context: context.schedule(0.001, "read"),
    "stash": lambda context: context.stash(),
    "unstash_all": lambda context: context.unstash_all(),
    "pipe_to_self": lambda context: context.pipe_to_self(asyncio.sleep(0)),
    "become": lambda context: context.become(lambda message: None),
    "set_idle_timeout": lambda context: context.set_idle_timeout(1),
}


async def attempt(act: Callable[[Any], Any], context: Any) -> None:
    """Act, and await the outcome. A coroutine that is never awaited is an error."""
    warnings.simplefilter("error")
    outcome = act(context)
    if outcome is not None:
        await outcome


@pytest.mark.parametrize("end", [None, failed])
async def test_a_context_lists_its_public_api(end: Any) -> None:
    b, cls, _ = bench()
    await b.ask("e", "read")
    if end is not None:
        await end(b, cls)
    await b.ask("e", "read")
    names = dir(cls.made[-1].context)
    assert names == sorted(name for name in vars(Context) if not name.startswith("_"))
    acts = {name.strip() for name in ACTS} - {"_save"}
    tells = {"entity_id", "entity_type", "fence", "instance", "node", "now", "sender", "shard_id"}
    reminders = {"remind", "forget", "reminders", "reminder"}
    assert set(names) == acts | tells | reminders
    for name in names:
        assert getattr(Context, name).__doc__, name


@pytest.mark.parametrize("end", ENDS)
async def test_what_is_over_refuses_to_act_and_still_tells_who_it_is(end: Any) -> None:
    b, cls, store = bench()
    await b.ask("e", "set", 1)
    before = cls.made[0]
    await end(b, cls)
    if end is failed_to_start:
        before = cls.made[0]
    for context in {id(c): c for c in (before.context, cls.contexts[0])}.values():
        identity = context.entity_id, context.entity_type, context.shard_id, context.fence
        assert identity == ("e", "keeper", "0", 7)
        assert (context.node, context.instance, context.sender) == ("n1", 0, None)
        for name, act in ACTS.items():
            with warnings.catch_warnings(), pytest.raises(StaleActivation) as refused:
                await attempt(act, context)
            assert refused.value.what == name.strip(" _")
            assert "of 'keeper' 'e' has ended" in str(refused.value)
    before.state.n = 77
    sent = len(store.sent)
    with pytest.raises(StaleActivation):
        await before.save()
    with pytest.raises(StaleActivation):
        await before.clear()
    assert len(store.sent) == sent


@pytest.mark.parametrize("end", [passivated, stopped, failed, replaced])
async def test_the_successor_acts(end: Any) -> None:
    b, cls, _ = bench()
    await b.ask("e", "set", 1)
    await end(b, cls)
    assert await b.ask("e", "set", 5) == 5
    entity = b.entity("e")
    context = entity.context
    assert (context.entity_id, context.instance, context.shard_id) == ("e", 0, "0")
    assert context.ref("other", "x") == ("other", "x")
    context.schedule_once(0.0, {"any": "message"})
    context.set_idle_timeout("1h")
    assert await b.ask_message("e", "hello") == "hello"
    await until(lambda: {"any": "message"} in entity.heard, "the timer")
    context.pipe_to_self(asyncio.sleep(0, "piped"))
    await until(lambda: "piped" in entity.heard, "the outcome")
    await b.ask("e", "leave")
    await until(lambda: b.activation("e") is None, "the end")
    assert entity.heard[-1] is StopReason.PASSIVATION
    assert await b.ask("e", "read") == 105, "on_stop has saved"


async def test_now_is_the_wall_clock_in_utc() -> None:
    b, cls, _ = bench()
    await b.ask("e", "read")
    b.host.wall_clock = lambda: 1_767_225_600.25
    context = cls.made[0].context
    assert context.now() == datetime(2026, 1, 1, microsecond=250_000, tzinfo=UTC)
    await passivated(b, cls)
    assert context.now().tzinfo is UTC, "what is over may still look at the clock"


async def test_timers_end_with_their_node() -> None:
    """One that repeats would go on for ever in an application that goes on."""
    b, cls, _ = bench()
    await b.ask("e", "set", 1)
    for act in ("schedule", "schedule_once"):
        getattr(cls.made[0].context, act)(3600, "read")
    b.host.close()
    assert left_over(b.host.loop) == []


async def test_each_restart_ends_one_object_more() -> None:
    b, cls, _ = bench()
    for n in range(4):
        assert await b.ask("e", "set", n) == n
        await failed(b, cls)
    assert await b.ask("e", "read") == 3
    for former in cls.made[:-1]:
        with pytest.raises(StaleActivation):
            await former.save()
    await cls.made[-1].save()


async def test_a_save_that_is_called_before_the_end_and_begins_after_it_is_refused() -> None:
    b, cls, store = bench()
    await b.ask("e", "set", 1)
    entity, sent = cls.made[0], len(store.sent)
    entity.state.n = 9
    late = entity.save()
    await failed(b, cls)
    with pytest.raises(StaleActivation):
        await late
    assert (len(store.sent), await b.ask("e", "read")) == (sent, 1)


@pytest.mark.parametrize("end", [passivated, failed, replaced])
async def test_saves_in_line_are_refused_and_those_sent_come_before_the_load(end: Any) -> None:
    b, cls, store = bench()
    await b.ask("e", "set", 1)
    entity = cls.made[0]
    store.gate.clear()
    entity.state.n = 2
    sent = asyncio.ensure_future(entity.save())
    await turns()
    entity.state.n = 3
    in_line = asyncio.ensure_future(entity.save())
    await turns()
    ending = asyncio.ensure_future(end(b, cls))
    await turns(20)
    store.gate.set()
    await ending
    fresh = await b.ask("e", "read")
    await sent
    # A save from `on_stop` is behind the handlers' saves, which were begun before the end.
    assert fresh == {passivated: 103, failed: 2, replaced: 50}[end]
    if end is passivated:
        await in_line
    else:
        with pytest.raises(StaleActivation):
            await in_line
        assert not b.host.counts.stopped, "the refusal has not ended the next object"
    await turns(20)
    await passivated(b, cls)
    assert await b.ask("e", "read") == fresh + 100, "nothing came afterwards"


async def test_a_save_in_line_is_refused_when_its_entity_is_cut_off() -> None:
    b, cls, store = bench()
    await b.ask("e", "set", 1)
    entity = cls.made[0]
    store.gate.clear()
    saves = list[asyncio.Future[None]]()
    for n in (2, 3):
        entity.state.n = n
        saves.append(asyncio.ensure_future(entity.save()))
        await turns()
    await cut_off(b, cls)
    store.gate.set()
    sent, in_line = await asyncio.gather(*saves, return_exceptions=True)
    assert sent is None
    assert isinstance(in_line, StaleActivation)
    codec = b.kind.states
    assert codec is not None
    assert await store.read_states("keeper", ["e"]) == [codec.write(Stock(2))]


async def test_the_last_act_of_an_object_may_save_what_an_operator_has_set() -> None:
    b, cls, store = bench()
    await b.ask("e", "set", 1)
    store.gate.clear()
    change = asyncio.ensure_future(replaced(b, cls))
    await turns(20)
    b.stop()
    await turns()
    store.gate.set()
    await change
    await b.stopped()
    codec = b.kind.states
    assert codec is not None
    assert await store.read_states("keeper", ["e"]) == [codec.write(Stock(150))]
    assert cls.made[0].heard == [StopReason.HANDOFF]


async def test_a_change_with_a_revision_sees_what_a_task_saves_meanwhile() -> None:
    b, cls, store = bench()
    await b.ask("e", "set", 1)
    entity, codec = cls.made[0], b.kind.states
    assert codec is not None
    read = revision_of(codec.write(Stock(1)))
    loads = list[asyncio.Task[None]]()
    load = b.keeper.load

    async def load_and_save(*args: Any) -> bytes | None:
        """A task of the entity saves between the look and the change."""
        data: bytes | None = await load(*args)
        if not loads:
            entity.state.n = 2
            loads.append(asyncio.ensure_future(entity.save()))
            store.gate.clear()
            await turns()
            store.gate.set()
        return data

    b.keeper.load = load_and_save
    with pytest.raises(StateChanged):
        await b.host.change_state(b.SHARD, "e", codec.write(Stock(50)), read)
    await loads[0]
    assert await b.ask("e", "read") == 2, "the save was not undone"


async def test_a_former_save_that_a_handler_awaits_fails_that_handler_alone() -> None:
    b, _, _ = bench(supervision=lambda error: Directive.RESUME)
    await b.ask("e", "set", 1)
    b.host.runner._start_again(b.activation("e"))  # type: ignore[arg-type]
    await until(lambda: b.activation("e").state is LifeState.RUNNING, "the restart")  # type: ignore[union-attr]
    activation, entity = b.activation("e"), b.entity("e")
    with pytest.raises(EntityFailed, match="StaleActivation"):
        await b.ask("e", "wait_for", 0)
    assert b.activation("e") is activation
    assert b.entity("e") is entity, "the supervision of the type has decided"
    assert not b.host.counts.stopped


@pytest.mark.parametrize(
    ("entity_id", "fence", "stops"), [("e", 7, True), ("other", 7, False), ("e", 6, False)]
)
async def test_only_the_refusal_of_its_own_fence_stops_an_entity(
    entity_id: str, fence: int, stops: bool
) -> None:
    b, _, _ = bench()
    await b.ask("e", "set", 1)
    activation = b.activation("e")
    with pytest.raises(EntityFailed, match="StaleFence"):
        await b.ask("e", "stale", entity_id, fence)
    if stops:
        await until(lambda: b.activation("e") is None, "the end")
    else:
        assert b.activation("e") is activation, "it has started again"


async def test_an_instance_keeps_its_number_through_a_restart() -> None:
    bus = ShardBus("test")
    contexts: list[Any] = []

    @bus.entity("copy", instances=2)
    class Copy(Entity):
        def __init__(self) -> None:
            contexts.append(self.context)

        @handler
        def fail(self) -> None:
            raise ValueError

    b = Bench(bus)
    with pytest.raises(EntityFailed):
        await b.ask(f"e{INSTANCE_MARK}2", "fail")
    assert [(c.entity_id, c.instance) for c in contexts] == [("e", 2)] * 2


async def test_the_size_of_a_state_is_forgotten_with_its_activation() -> None:
    b, cls, store = bench()
    await b.ask("e", "set", 1)
    store.gate.clear()
    late = asyncio.ensure_future(cls.made[0].save())
    await turns()
    await cut_off(b, cls)
    store.gate.set()
    await late
    assert b.host.saver.sizes is not None
    assert b.host.saver.sizes.total == 0
