"""The journals of the stores against real servers: the whole suite, then faults that need a server
and a network."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.crc import REDIS_CLUSTER_HASH_SLOTS

from shardbus.errors import JournalConflict, StaleFence, StoreUnavailable
from shardbus.store import postgres_journal_statements as sql
from shardbus.store import redis_journal_scripts as scripts
from shardbus.store.journal_protocol import JournalPage, JournalStore, journals_of
from shardbus.store.journals import Journals
from shardbus.store.opening import open_store
from shardbus.store.postgres import PostgresStore
from shardbus.store.redis import RedisStore
from shardbus.store.redis_keys import slot_of
from shardbus.testing import JournalSuite
from shardbus.testing.journal_suite import append, put, whole
from shardbus.testing.store_suite import StoreFactory, until
from tests.loopback.redis_proxy import RedisProxy
from tests.postgres_server import PostgresServer
from tests.redis_cluster import RedisClusterServers
from tests.redis_server import RedisServer
from tests.unit.entities.scan_suite import ScanSuite
from tests.unit.store.store_suite import LONG_S, SHORT_S, failure, insist

KIND, SHARD = "account", "7"


class TestRedis(JournalSuite, ScanSuite):
    @pytest.fixture(params=["", "?durability=fsync"], ids=["quick", "fsync"])
    def store_factory(self, request: pytest.FixtureRequest, own_redis: RedisServer) -> StoreFactory:
        with own_redis.client() as client:
            client.config_set("appendonly", "yes")
        url = own_redis.url() + request.param
        return lambda: open_store(url, cluster="shop", timeout=LONG_S)


class TestRedisCluster(JournalSuite, ScanSuite):
    @pytest.fixture
    def store_factory(self, empty_cluster: RedisClusterServers) -> StoreFactory:
        return lambda: open_store(empty_cluster.url, cluster="shop", timeout=LONG_S)


class TestPostgres(JournalSuite, ScanSuite):
    @pytest.fixture
    def store_factory(self, postgres_url: str) -> StoreFactory:
        return lambda: open_store(postgres_url, cluster="shop", timeout=LONG_S)


@contextlib.asynccontextmanager
async def opened(url: str, timeout: float = LONG_S) -> AsyncIterator[tuple[Any, JournalStore]]:
    store = open_store(url, cluster="shop", timeout=timeout)
    await (insist(store.start) if timeout == SHORT_S else store.start())
    journals = journals_of(store)
    assert journals is not None
    try:
        yield store, journals
    finally:
        await store.close()


@pytest.fixture
async def hasty(
    proxy: RedisProxy, redis_url: str
) -> AsyncIterator[tuple[RedisStore, JournalStore]]:
    """A store that gives up soon, for tests in which no answer comes."""
    async with opened(proxy.url(redis_url), SHORT_S) as (store, journals):
        await insist(lambda: journals.open(KIND, SHARD, "a", 1, 0, 10))
        yield store, journals


# Faults of a network


async def test_a_step_whose_answer_was_lost_counts_once(proxy: RedisProxy, redis_url: str) -> None:
    async with opened(proxy.url(redis_url)) as (_, journals):
        for step in (
            lambda: journals.open(KIND, SHARD, "a", 1, 0, 10),
            lambda: journals.append([append("a", 0, b"1", b"2")]),
            lambda: journals.append([append("a", 2, b"3")]),
            lambda: journals.trim(KIND, SHARD, "a", 1, 1),
        ):
            before = proxy.connections
            proxy.lose_answers = 1
            answer = await step()
            assert proxy.connections > before
            assert not isinstance(answer, list) or answer == [None]
        assert await journals.read(KIND, SHARD, "a", 0, 10) == JournalPage(2, [b"2", b"3"], 3)


async def test_an_append_that_arrives_after_an_opening_of_its_own_node_is_not_applied(
    proxy: RedisProxy, hasty: tuple[RedisStore, JournalStore]
) -> None:
    _, journals = hasty
    proxy.holding = True
    lost = await asyncio.gather(
        journals.append([append("a", 0, b"late")]),
        journals.append([append("new", 0, b"late")]),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in lost] == [StoreUnavailable] * 2
    proxy.holding = False
    for name in ("a", "new"):
        page = await insist(lambda name=name: journals.open(KIND, SHARD, name, 1, 0, 10))
        assert page.entries == []
    assert proxy.held
    await proxy.release()
    for name in ("a", "new"):
        for _ in range(20):
            page = await insist(lambda name=name: journals.read(KIND, SHARD, name, 0, 10))
            assert page.entries == []
        await insist(lambda name=name: put(journals, name, 0, b"1"))


async def test_a_trim_that_arrives_late_removes_nothing_of_the_next_journal(
    proxy: RedisProxy, hasty: tuple[RedisStore, JournalStore]
) -> None:
    _, journals = hasty
    await insist(lambda: put(journals, "a", 0, b"old"))
    proxy.holding = True
    with pytest.raises(StoreUnavailable):
        await journals.trim(KIND, SHARD, "a", 1, 1, forget=True)
    proxy.holding = False
    await insist(lambda: journals.trim(KIND, SHARD, "a", 1, 1, forget=True))
    await insist(lambda: put(journals, "a", 0, b"new"))
    await proxy.release()
    for _ in range(20):
        assert await insist(lambda: whole(journals, "a")) == [b"new"]


@pytest.fixture(params=["redis", "redis+cluster", "postgresql", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store of each kind."""
    match request.param:
        case "redis":
            return str(request.getfixturevalue("redis_url"))
        case "redis+cluster":
            return str(request.getfixturevalue("empty_cluster").url)
        case "postgresql":
            return str(request.getfixturevalue("postgres_url"))
        case _:
            return f"sqlite:///{tmp_path}/bus.db"


async def test_appends_of_a_node_share_round_trips_and_stay_in_sequence(url: str) -> None:
    async with opened(url) as (store, journals):
        calls = 0
        name = "begin_saves" if hasattr(journals, "begin_saves") else "append"
        real = getattr(journals, name)

        def counted(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            return real(*args)

        setattr(journals, name, counted)
        writer = Journals(store.journals, 7, lane=getattr(store, "lane", None))

        async def write(name: str) -> None:
            for n in range(10):
                await writer.append(KIND, SHARD, name, 1, 2 * n, (b"%d" % n, b"x"))

        await asyncio.gather(*(write(f"e-{n}") for n in range(200)))
        assert calls < 200, calls
        expected = [entry for n in range(10) for entry in (b"%d" % n, b"x")]
        for n in range(200):
            assert (await writer.open(KIND, SHARD, f"e-{n}", 1)).entries == expected


async def test_what_was_acknowledged_is_in_the_journal_once_while_connections_break(
    proxy: RedisProxy, redis_url: str
) -> None:
    dice = random.Random(7)
    acknowledged: dict[str, list[bytes]] = defaultdict(list)
    async with opened(proxy.url(redis_url)) as (store, _):
        writer = Journals(store.journals, 7)

        async def write(name: str, entry: bytes) -> None:
            end = (await writer.open(KIND, SHARD, name, 1, 0, 0)).last
            with contextlib.suppress(StoreUnavailable):
                await writer.append(KIND, SHARD, name, 1, end, (entry,))
                acknowledged[name].append(entry)

        for turn in range(30):
            proxy.lose_answers = int(turn % 3 == 0)
            names = dice.sample([f"e-{n}" for n in range(300)], dice.choice([1, 5, 150, 250]))
            await asyncio.gather(*(write(name, b"%d" % turn) for name in names))
        proxy.lose_answers = 0
        assert acknowledged
        for name, entries in acknowledged.items():
            assert (await writer.read(KIND, SHARD, name)).entries == entries


async def test_an_append_to_one_server_needs_no_task(redis_url: str) -> None:
    async with opened(redis_url) as (store, _):
        writer = Journals(store.journals, 7)
        await writer.append(KIND, SHARD, "a", 1, 0, (b"1",))
        before = asyncio.all_tasks()
        answer = writer.append(KIND, SHARD, "a", 1, 1, (b"2",))
        await asyncio.sleep(0)
        assert asyncio.all_tasks() <= before
        await answer


async def test_what_is_refused_fails_alone(redis_url: str) -> None:
    async with opened(redis_url) as (store, _):
        writer = Journals(store.journals, 7)
        await writer.append(KIND, SHARD, "a", 5, 0, (b"1",))
        outcomes = await asyncio.gather(
            writer.append(KIND, SHARD, "a", 4, 1, (b"2",)),
            writer.append(KIND, SHARD, "b", 4, 1, (b"2",)),
            writer.append(KIND, SHARD, "c", 4, 0, (b"1",)),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [StaleFence, JournalConflict, type(None)]


# Outages


async def test_a_killed_server_is_unavailable_and_keeps_what_it_acknowledged(
    own_redis: RedisServer,
) -> None:
    async with opened(own_redis.url(), SHORT_S) as (_, journals):
        await insist(lambda: put(journals, "a", 0, b"1"))
        own_redis.kill()
        await failure(lambda: journals.append([append("a", 1, b"2")]), "no answer")
        await failure(lambda: journals.read(KIND, SHARD, "a", 0, 10), "no answer")
        own_redis.restart()
        page = await insist(lambda: journals.open(KIND, SHARD, "a", 1, 0, 10))
        assert page.entries[0] == b"1"


async def test_a_user_of_the_access_list_needs_no_further_commands() -> None:
    called = {
        word
        for script in (scripts.APPEND, scripts.OPEN, scripts.READ, scripts.TRIM)
        for word in ("HGET", "HMGET", "HSET", "HDEL", "DEL", "LRANGE", "XADD", "ZADD", "TIME")
        if f"call('{word}'" in script.source
    }
    assert called == {"HGET", "HMGET", "HSET", "HDEL", "DEL"}


# PostgreSQL


@pytest.fixture
async def postgres(
    own_postgres: PostgresServer,
) -> AsyncIterator[tuple[PostgresStore, JournalStore, Any]]:
    async with opened(own_postgres.url(schema="own")) as (store, journals):
        admin = await own_postgres.connect()
        yield store, journals, admin
        admin.terminate()


async def test_a_statement_that_is_executed_late_changes_nothing(
    postgres: tuple[PostgresStore, JournalStore, Any],
) -> None:
    store, journals, admin = postgres

    async def late(statement: Any, *args: Any) -> Any:
        return await admin.fetch(statement.text("own"), store._link.session, 0, "shop", *args)

    await put(journals, "a", 0, b"1")
    await journals.open(KIND, SHARD, "b", 1, 0, 10)
    for name, before in (("a", 1), ("b", 0)):
        columns = ([KIND], [name], [SHARD], [1], [99], [before], [before + 1])
        await late(sql.APPEND, *columns, [1], [before + 1], [b"late"])
    await late(sql.TRIM, KIND, "a", 1, 1, 10)
    await late(sql.FORGET, KIND, "b", 1)
    await late(sql.OPEN, KIND, "a", SHARD, 1)
    assert await whole(journals, "a") == [b"1"]
    assert await whole(journals, "b") == []
    assert (await journals.page(KIND, None, 10))[0] == [(SHARD, "a"), (SHARD, "b")]
    await put(journals, "b", 0, b"1")


async def test_a_database_of_an_earlier_version_gets_the_tables(
    postgres: tuple[PostgresStore, JournalStore, Any], own_postgres: PostgresServer
) -> None:
    store, _, admin = postgres
    await store.add_remembered("counter", "7", ["e"], 1)
    await admin.execute("DROP TABLE own.journal; DROP TABLE own.journal_entry")
    async with opened(own_postgres.url(schema="own")) as (later, journals):
        await put(journals, "a", 0, b"1")
        assert await later.page_remembered("counter", "7", None, 10) == (["e"], None)


async def test_rows_that_an_interrupted_step_has_left_do_not_count(
    postgres: tuple[PostgresStore, JournalStore, Any],
) -> None:
    _, journals, admin = postgres
    await put(journals, "a", 0, b"1")
    await admin.execute(f"INSERT INTO own.journal_entry VALUES ('shop', '{KIND}', 'a', 2, 'left')")
    assert await whole(journals, "a") == [b"1"]
    await put(journals, "a", 1, b"2")
    assert await whole(journals, "a") == [b"1", b"2"]


async def test_a_paused_server_is_unavailable_and_the_append_is_in_doubt(
    own_postgres: PostgresServer,
) -> None:
    url = own_postgres.url(schema="own")
    async with opened(url):
        pass
    async with opened(url, SHORT_S) as (_, journals):
        await insist(lambda: put(journals, "a", 0, b"1"))
        own_postgres.pause()
        try:
            error = await failure(lambda: journals.append([append("a", 1, b"2")]), "no answer")
        finally:
            own_postgres.resume()
        assert not error.definite
        page = await insist(lambda: journals.open(KIND, SHARD, "a", 2, 0, 10))
        await insist(lambda: put(journals, "a", page.last, b"3", fence=2))
        entries = (await insist(lambda: journals.read(KIND, SHARD, "a", 0, 10))).entries
        assert entries == [*page.entries, b"3"]


async def test_slots_move_under_appends_and_no_entry_is_lost_or_twice(
    empty_cluster: RedisClusterServers,
) -> None:
    async with opened(empty_cluster.url) as (store, _):
        writer = Journals(store.journals, 7, lane=store.lane)
        moving = True

        async def write(n: int) -> int:
            end = 0
            while moving or end < 5:
                await writer.append(KIND, str(n % 40), f"e-{n}", 1, end, (b"%d" % (end + 1),))
                end += 1
            return end

        tasks = [asyncio.create_task(write(n)) for n in range(80)]
        moved = 0
        a, b, _ = empty_cluster.masters
        slots = {slot_of(f"shardbus:shop:{{{KIND}/{shard}}}:") for shard in range(40)}
        here = sorted(slot for slot in slots if slot < REDIS_CLUSTER_HASH_SLOTS // 3)[:6]
        for source, target in ((a, b), (b, a)):
            for slot in here:
                moved += await asyncio.to_thread(empty_cluster.move_slot, slot, source, target)
        moving = False
        assert moved > 20
        for n, end in enumerate(await asyncio.gather(*tasks)):
            entries = await whole(store.journals, f"e-{n}", 1000, str(n % 40))
            assert entries == [b"%d" % i for i in range(1, end + 1)]


async def test_the_end_is_reached(redis_url: str) -> None:
    """A save that waits in a group when its store is closed fails."""
    async with opened(redis_url) as (store, _):
        writer = Journals(store.journals, 7)
        await store.close()

        async def fails() -> bool:
            with pytest.raises(StoreUnavailable):
                await writer.append(KIND, SHARD, "a", 1, 0, (b"1",))
            return True

        await until(fails)
