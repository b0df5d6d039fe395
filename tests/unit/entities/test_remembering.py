"""Remembered entities: the list in the store is ahead of the memory, and the entities of the list
run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shardbus import ShardBus, StopReason, handler
from shardbus.entities import remembering
from shardbus.errors import StaleFence, StoreUnavailable, Unhandled
from shardbus.store.memory import MemoryData, MemoryStore
from tests.unit.entities.entity_kit import Bench, ListStore, Log, LogEntity
from tests.waiting import turns, until


class Page(LogEntity):
    async def on_stop(self, reason: StopReason) -> None:
        self.log.rows.append((self.context.entity_id, reason))

    @handler
    def passivate(self) -> None:
        self.context.passivate()

    @handler
    def stop(self) -> None:
        self.context.stop()

    @handler
    def fail(self) -> None:
        raise ValueError


async def bench(data: MemoryData | None = None, **settings: Any) -> tuple[Bench, ListStore]:
    store = ListStore(data or MemoryData())
    await store.start()
    bus = ShardBus("test")
    Page.log = Log()
    bus.entity("page", remember=True, supervision={ValueError: "stop"})(Page)
    made = Bench(bus, store, **settings)
    await until(lambda: _read(made), "the list to be read")
    return made, store


def _read(made: Bench) -> bool:
    memory = made.host.remembered
    assert memory is not None
    return not memory._tasks


async def test_B90_an_entity_starts_only_after_the_store_has_it() -> None:
    made, store = await bench()
    store.gate.clear()
    answer = made.ask("a", "hit", 1)
    await turns(20)
    assert not answer.done()
    assert made.entity("a") is None
    assert store.ids() == []
    store.gate.set()
    assert await answer == 1
    assert store.ids() == ["a"]


async def test_messages_that_wait_for_the_store_keep_their_order() -> None:
    made, store = await bench()
    store.gate.clear()
    answers = [made.ask("a", "hit", n) for n in range(10)]
    store.gate.set()
    assert await asyncio.gather(*answers) == list(range(10))
    assert Page.log.rows == list(range(10))
    assert store.writes == [("add", ("a",))]


async def test_B91_TSU10_changes_during_a_write_go_with_the_next() -> None:
    made, store = await bench()
    first = made.ask("a", "hit", 1)
    await until(lambda: not store.gate.is_set() or store.writes, "the first write")
    store.gate.clear()
    more = [made.ask(f"b{n}", "hit", n) for n in range(50)]
    await turns(20)
    last = [made.ask(f"c{n}", "hit", n) for n in range(50)]
    store.gate.set()
    await asyncio.gather(first, *more, *last)
    assert [len(ids) for _, ids in store.writes] in ([1, 50, 50], [1, 100])


async def test_the_store_fails_for_a_while_and_nothing_is_lost() -> None:
    made, store = await bench()
    store.failures = [StoreUnavailable("away")]
    assert await made.ask("a", "hit", 1) == 1
    assert store.ids() == ["a"]


async def test_a_store_that_stays_away_is_asked_with_growing_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, store = await bench(shard_failure_backoff=0.15)
    loop, pauses = asyncio.get_running_loop(), []
    later = loop.call_later

    def spy(delay: float, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        pauses.append(delay)
        return later(0.0, *args, **kwargs)

    monkeypatch.setattr(loop, "call_later", spy)
    store.failures = [StoreUnavailable("away")] * 4
    assert await made.ask("a", "hit", 1) == 1
    assert [pause for pause in pauses if pause in (0.1, 0.15, 0.2)] == [0.1, 0.15, 0.15, 0.15]


async def test_C14_TSU7_only_passivation_is_forgetting() -> None:
    made, store = await bench(entity_restart_backoff=0.01)
    for name in ("gone", "stops", "fails", "stays"):
        await made.ask(name, "hit", 1)
    await made.ask("gone", "passivate")
    await made.ask("stops", "stop")
    with pytest.raises(Exception, match="ValueError"):
        await made.ask("fails", "fail")
    await turns(50)
    assert store.ids() == ["fails", "stays", "stops"]
    await until(lambda: made.entity("stops") and made.entity("fails"), "both to come back")
    assert made.entity("gone") is None
    assert made.host.counts.started["remembered"] == 2


async def test_S2_69_an_entity_that_stopped_otherwise_returns_after_the_backoff_of_the_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, _ = await bench(entity_restart_backoff=7.5)
    loop, pauses = asyncio.get_running_loop(), []
    later = loop.call_later

    def spy(delay: float, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        pauses.append(delay)
        return later(0.0, *args, **kwargs)

    await made.ask("a", "hit", 1)
    monkeypatch.setattr(loop, "call_later", spy)
    await made.ask("a", "stop")
    await until(lambda: made.entity("a") is not None, "it to come back")
    assert 7.5 in pauses


async def test_an_entity_that_gets_a_message_while_it_passivates_is_not_forgotten() -> None:
    made, store = await bench()
    await made.ask("a", "hit", 1)
    made.tell_many("passivate", ("a", ()))
    assert await made.ask("a", "hit", 2) == 2
    await turns(20)
    assert made.entity("a") is not None
    assert store.ids() == ["a"]


async def test_an_entity_that_gets_a_message_while_forgotten_is_listed_again() -> None:
    made, store = await bench()
    await made.ask("a", "hit", 1)
    store.gate.clear()
    made.tell("a", "passivate")
    await turns(20)
    answer = made.ask("a", "hit", 2)
    await turns(20)
    assert not answer.done()
    store.gate.set()
    assert await answer == 2
    assert [what for what, _ in store.writes] == ["add", "remove", "add"]
    assert store.ids() == ["a"]


async def test_S2_60_the_next_home_starts_them_without_a_message() -> None:
    data = MemoryData()
    made, _ = await bench(data)
    names = [f"e{n}" for n in range(2500)]
    await asyncio.gather(*(made.ask(name, "hit", 1) for name in names))
    made.stop()
    await made.stopped()
    again, store = await bench(data)
    await until(lambda: again.host.entities == len(names), "everybody")
    assert again.host.counts.started == {"remembered": len(names)}
    assert len(store.ids()) == len(names)
    assert store.writes == []


async def test_a_move_forgets_no_entity() -> None:
    made, store = await bench()
    await made.ask("a", "hit", 1)
    made.stop(StopReason.HANDOFF)
    await made.stopped()
    assert Page.log.rows[-1] == ("a", StopReason.HANDOFF)
    assert store.ids() == ["a"]


async def test_a_stopping_shard_first_handles_messages_that_wait_for_the_store() -> None:
    made, store = await bench()
    store.gate.clear()
    answers = [made.ask("a", "hit", n) for n in range(3)]
    await turns(10)
    made.stop()
    await turns(10)
    assert made.down == []
    store.gate.set()
    assert await asyncio.gather(*answers) == [0, 1, 2]
    await made.stopped()
    assert Page.log.rows == [0, 1, 2, ("a", StopReason.HANDOFF)]
    assert store.ids() == ["a"]


async def test_a_shard_is_not_given_away_before_its_last_write_has_ended() -> None:
    made, store = await bench()
    await made.ask("a", "hit", 1)
    store.gate.clear()
    made.tell("a", "passivate")
    await turns(20)
    made.stop()
    await turns(20)
    assert made.down == []
    store.gate.set()
    await made.stopped()
    assert store.ids() == []


async def test_a_store_that_does_not_return_keeps_no_shard_for_ever() -> None:
    made, store = await bench(handoff_timeout=1.0)
    store.gate.clear()
    answer = made.ask("a", "hit", 1)
    await turns(10)
    made.stop()
    await made.stopped()
    with pytest.raises(Unhandled):
        await answer


async def test_N1_a_former_home_writes_nothing_and_its_waiting_messages_are_refused() -> None:
    made, store = await bench()
    await MemoryStore.add_remembered(store, "page", Bench.SHARD, (), 8)
    answer = made.ask("a", "hit", 1)
    await turns(20)
    assert not answer.done()
    assert store.ids() == []
    made.stop()
    await made.stopped()
    with pytest.raises(Unhandled):
        await answer
    assert made.dropped == {"stopped": 1}


async def test_the_fence_is_raised_before_the_list_is_read() -> None:
    data = MemoryData()
    made, store = await bench(data)
    with pytest.raises(StaleFence):
        await MemoryStore.add_remembered(store, "page", Bench.SHARD, ("late",), 6)
    assert made.host.remembered is not None


async def test_S4_37_remembered_entities_are_not_passivated_by_idling() -> None:
    made, _ = await bench(passivate_after=1.0)
    await made.ask("a", "hit", 1)
    made.pass_ticks(10_000)
    await turns(20)
    assert made.entity("a") is not None


@pytest.mark.parametrize(("strategy", "number"), [("all", 5), ("constant", 400), ("adaptive", 5)])
async def test_S2_77_TSU11_every_strategy_starts_all_remembered_entities(
    strategy: str, number: int
) -> None:
    data = MemoryData()
    made, _ = await bench(data)
    names = [f"e{n}" for n in range(1200)]
    await asyncio.gather(*(made.ask(name, "hit", 1) for name in names))
    again, _ = await bench(
        data,
        entity_recovery_strategy=strategy,
        entity_recovery_constant_rate_number_of_entities=number,
        entity_recovery_constant_rate_frequency=0.001,
    )
    await until(lambda: again.host.entities == len(names), "everybody")
    assert again.host.waiting_starts == 0


@pytest.mark.parametrize("turn", [3600.0, 0.0], ids=["in one turn", "in many turns"])
async def test_S2_78_TSU11_the_constant_strategy_starts_a_number_at_a_time(
    turn: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembering, "TURN_S", turn)
    data = MemoryData()
    made, _ = await bench(data)
    await asyncio.gather(*(made.ask(f"e{n}", "hit", 1) for n in range(20)))
    again, _ = await bench(
        data,
        entity_recovery_strategy="constant",
        entity_recovery_constant_rate_number_of_entities=3,
        entity_recovery_constant_rate_frequency=3600.0,
    )
    await until(lambda: again.host.entities, "the first few")
    await turns(50)
    assert (again.host.entities, again.host.waiting_starts) == (3, 17)
    wait = again.host.remembered.recovery._due - asyncio.get_running_loop().time()
    assert 3000.0 < wait <= 3600.0
    assert await again.ask("e19", "hit", 7) == 7
    assert again.host.entities == 4
