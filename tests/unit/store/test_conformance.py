"""The suite for state stores, run against memory, SQLite, and Redis's own Lua in fakeredis."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import fakeredis
import pytest

from shardbus.errors import StaleFence, StoreUnavailable
from shardbus.store.memory import MemoryData, MemoryStore
from shardbus.store.protocol import Save, StateStore
from shardbus.store.redis import RedisStore
from shardbus.store.sqlite import SqliteStore
from tests.unit.store.store_suite import (
    HUGE,
    LONG_S,
    NASTY_IDS,
    A,
    StoreFactory,
    TablesAndLeases,
    remembered,
    save,
)


class StoreConformance(TablesAndLeases):
    """The whole suite; see `store_suite` for the fixtures it asks for."""

    # Entities' state

    async def test_state_comes_back_as_it_was_saved(
        self, store: StateStore, other: StateStore
    ) -> None:
        assert await store.load_state("counter", "a", 1) is None
        for op_id, data in enumerate((b"", b"\x00\xff\r\n", bytes(range(256)) * 4096), start=1):
            assert await store.save_states([save("a", 1, data, op_id)]) == [None]
            assert await other.load_state("counter", "a", 1) == data
        assert await store.load_state("other", "a", 1) is None

    async def test_a_load_locks_the_predecessor_out(
        self, store: StateStore, other: StateStore
    ) -> None:
        await store.save_states([save("a", 7, b"old", 1)])
        assert await other.load_state("counter", "a", 8) == b"old"
        [refused] = await store.save_states([save("a", 7, b"late", 2)])
        assert isinstance(refused, StaleFence)
        assert (refused.entity_id, refused.fence, refused.stored) == ("a", 7, 8)
        with pytest.raises(StaleFence):
            await store.load_state("counter", "a", 7)
        assert await other.load_state("counter", "a", 8) == b"old"

    async def test_a_load_of_nothing_locks_the_predecessor_out_too(self, store: StateStore) -> None:
        assert await store.load_state("counter", "a", HUGE) is None
        [refused] = await store.save_states([save("a", HUGE - 1, b"late", 1)])
        assert isinstance(refused, StaleFence)
        assert refused.stored == HUGE
        assert await store.save_states([save("a", HUGE, b"new", 2)]) == [None]

    async def test_fences_are_compared_as_numbers(self, store: StateStore) -> None:
        await store.load_state("counter", "a", 9)
        assert await store.save_states([save("a", 10, b"ten", 1)]) == [None]
        [refused] = await store.save_states([save("a", 9, b"nine", 2)])
        assert isinstance(refused, StaleFence)
        assert await store.load_state("counter", "a", 2**53 + 1) == b"ten"
        [refused] = await store.save_states([save("a", 2**53, b"late", 3)])
        assert isinstance(refused, StaleFence)

    async def test_a_save_whose_answer_was_lost_is_applied_once(self, store: StateStore) -> None:
        for _ in range(2):
            assert await store.save_states([save("a", 1, b"one", HUGE)]) == [None]
        assert await store.save_states([save("a", 1, b"two", HUGE)]) == [None]
        assert await store.load_state("counter", "a", 2) == b"one"
        assert await store.save_states([save("a", 1, b"one", HUGE)]) == [None]
        assert await store.load_state("counter", "a", 2) == b"one"

    async def test_a_cleared_state_keeps_its_fence(self, store: StateStore) -> None:
        assert await store.save_states([save("a", 5, b"x", 1), save("a", 5, None, 2)]) == [
            None,
            None,
        ]
        [refused] = await store.save_states([save("a", 4, b"late", 3)])
        assert isinstance(refused, StaleFence)
        assert await store.load_state("counter", "a", 5) is None

    async def test_saves_of_one_call_are_judged_one_by_one(self, store: StateStore) -> None:
        await store.load_state("counter", "b", 9)
        answers = await store.save_states(
            [save("a", 1, b"a", 1), save("b", 8, b"b", 2), Save("other", "c", 1, b"c", 3)]
        )
        assert [answer is None for answer in answers] == [True, False, True]
        assert await store.load_state("other", "c", 1) == b"c"
        assert await store.save_states([]) == []

    async def test_five_thousand_saves_in_one_call(self, store: StateStore) -> None:
        saves = [save(f"e-{n}", 1, b"%d" % n, n) for n in range(1, 5001)]
        assert await store.save_states(saves) == [None] * 5000
        for n in (1, 128, 129, 2500, 5000):
            assert await store.load_state("counter", f"e-{n}", 1) == b"%d" % n

    # Remembered entities

    async def test_remembered_entities_are_kept_per_shard(
        self, store: StateStore, other: StateStore
    ) -> None:
        await store.add_remembered("counter", "7", ["a", "b", "c"], 1)
        await store.add_remembered("counter", "7", ["c", "d", "a"], 1)
        await store.remove_remembered("counter", "7", ["b", "nobody"], 1)
        await store.add_remembered("counter", "8", ["x"], 1)
        await store.add_remembered("other", "7", ["y"], 1)
        assert await remembered(other, "7") == {"a", "c", "d"}
        assert await remembered(other, "9") == set()

    async def test_an_old_home_cannot_change_what_is_remembered(
        self, store: StateStore, other: StateStore
    ) -> None:
        await store.add_remembered("counter", "7", ["a"], HUGE - 1)
        await other.add_remembered("counter", "7", [], HUGE)
        for change in (store.add_remembered, store.remove_remembered):
            with pytest.raises(StaleFence) as refused:
                await change("counter", "7", ["a", "b"], HUGE - 1)
            assert (refused.value.entity_id, refused.value.stored) == ("7", HUGE)
        assert await remembered(other) == {"a"}

    async def test_pages_hold_what_is_there_throughout(
        self, store: StateStore, other: StateStore
    ) -> None:
        staying = [f"stay-{n:03}" for n in range(120)]
        going = [f"go-{n:03}" for n in range(60)] + [f"zz-{n:03}" for n in range(60)]
        await store.add_remembered("counter", "7", staying + going, 1)
        found: list[str] = []
        cursor, turn = None, 0
        while turn == 0 or cursor is not None:
            page, cursor = await store.page_remembered("counter", "7", cursor, 20)
            assert len(page) <= 40
            found += page
            await other.remove_remembered("counter", "7", going[turn * 10 : turn * 10 + 10], 1)
            await other.add_remembered("counter", "7", [f"new-{turn:03}", f"{turn:03}"], 1)
            turn += 1
        assert set(staying) <= set(found)

    async def test_shards_with_remembered_entities_are_found(
        self, store: StateStore, other: StateStore
    ) -> None:
        assert await store.remembered_shards("counter") == []
        for shard in ("7", "ü :{}", "12"):
            await store.add_remembered("counter", shard, ["a"], 1)
        await store.add_remembered("another", "8", ["a"], 1)
        assert set(await other.remembered_shards("counter")) == {"7", "ü :{}", "12"}

    @pytest.mark.parametrize("limit", [1, 3, 4, 5, 12])
    async def test_pages_end(self, store: StateStore, limit: int) -> None:
        ids = {f"e-{n}" for n in range(12)}
        await store.add_remembered("counter", "7", sorted(ids), 1)
        assert await remembered(store, limit=limit) == ids

    # Names, races, cancellation, the end

    async def test_ids_are_values(self, store: StateStore) -> None:
        for number, name in enumerate(NASTY_IDS, start=1):
            await store.claim_epoch(name, number, "crc32/100")
            await store.write_homes(name, number, dict.fromkeys(NASTY_IDS, (A, number)), number)
            await store.add_remembered("counter", name, NASTY_IDS[:number], number)
            assert await store.acquire_lease(name, name, 60.0) is not None
        saves = [
            save(name, 1, name.encode(), number) for number, name in enumerate(NASTY_IDS, start=1)
        ]
        assert await store.save_states(saves) == [None] * len(saves)
        for number, name in enumerate(NASTY_IDS, start=1):
            table = await store.load_table(name)
            assert table is not None
            assert dict(table.homes) == dict.fromkeys(NASTY_IDS, (A, number))
            for limit in (1, 100):
                assert await remembered(store, name, limit) == set(NASTY_IDS[:number])
            assert await store.load_state("counter", name, 1) == name.encode()
            assert await store.acquire_lease(name, "another", 60.0) is None

    async def test_two_stores_that_race_write_one_history(
        self, store: StateStore, other: StateStore
    ) -> None:
        async def activation(by: StateStore, fence: int) -> int:
            try:
                data = await by.load_state("counter", "a", fence)
                for step in range(3):
                    op_id = fence * 10 + step
                    [refused] = await by.save_states([save("a", fence, b"%d" % fence, op_id)])
                    if refused is not None:
                        raise refused
                return 0 if data is None else int(data)
            except StaleFence:
                return -1

        await asyncio.gather(*(activation((store, other)[n % 2], n) for n in range(1, 31)))
        assert await store.load_state("counter", "a", 30) == b"30"

    async def test_a_cancelled_call_never_mixes_answers(self, store: StateStore) -> None:
        dice = random.Random(7)
        await store.save_states([save(f"e-{n}", 1, b"%d" % n, n) for n in range(1, 101)])

        async def load(n: int) -> None:
            assert await store.load_state("counter", f"e-{n}", 1) == b"%d" % n

        for _ in range(60):
            tasks = [asyncio.create_task(load(dice.randint(1, 100))) for _ in range(5)]
            for _ in range(dice.randint(0, 4)):
                await asyncio.sleep(0)
            for task in dice.sample(tasks, 3):
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                assert outcome is None or isinstance(outcome, asyncio.CancelledError)
        await load(42)

    async def test_a_closed_store_is_unavailable(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        with pytest.raises(StoreUnavailable):
            await store.load_table("counter")
        await store.start()
        await store.claim_epoch("counter", 1, "crc32/100")
        await store.close()
        await store.close()
        with pytest.raises(StoreUnavailable):
            await store.load_table("counter")
        await store.start()
        await store.load_table("counter")
        await store.close()


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += seconds


class TestStores(StoreConformance):
    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def pass_time(self, clock: FakeClock) -> Callable[[float], None]:
        return clock.move

    @pytest.fixture(params=["memory", "sqlite", "fakeredis"])
    def store_factory(
        self, request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock
    ) -> StoreFactory:
        match request.param:
            case "memory":
                data = MemoryData()
                return lambda: MemoryStore(data, clock=clock)
            case "sqlite":
                path = tmp_path / "new" / "bus.db"
                return lambda: SqliteStore(
                    path, cluster="shop", timeout=LONG_S, full_sync=False, clock=clock
                )
            case _:
                server = fakeredis.FakeServer()
                return lambda: RedisStore(
                    "redis://fake",
                    timeout=LONG_S,
                    connect=lambda: fakeredis.FakeAsyncRedis(server=server),
                )
