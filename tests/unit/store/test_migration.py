"""States that an earlier release, or another shard function, has left elsewhere are moved to their
places; the move may end anywhere, and the next one goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import fakeredis
import pytest

from shardbus.errors import ConfigError, StaleFence, StoreError
from shardbus.ids import shard_of
from shardbus.store import redis_migration
from shardbus.store.journal_protocol import Append
from shardbus.store.memory import MemoryStore
from shardbus.store.migration import Declared, migratable
from shardbus.store.placement import placing, shard_function
from shardbus.store.protocol import Reminders, Save
from shardbus.store.redis import RedisStore
from tests.unit.store.store_suite import LONG_S

PREFIX = "shardbus:shop"
SIGN = b"a" * 10 + b"0" * 15
NAMES = [f"c-{n}" for n in range(60)] + ["a:b{}", "x/y", "é*"]
LISTED = [f"m-{n:04}" for n in range(230)]


def version_1(client: Any) -> Any:
    """Write the rows of the first layout of the keys."""

    async def write() -> None:
        from shardbus.store.redis_keys import quoted

        await client.hset(f"{PREFIX}:probe", "mark", "0123")
        table = {"epoch": f"{3:019}", "layout": "crc32/40", "claimer": "x", "sign": "x"}
        await client.hset(f"{PREFIX}:{{cart}}:table", mapping=table)
        for n, name in enumerate(NAMES):
            key = f"{PREFIX}:{{cart}}:entity:{quoted(name)}"
            v = f"{(3 << 32) + n:019}".encode() + SIGN + b"f" * 16
            await client.hset(key, mapping={"v": v, "data": name.encode()})
        await client.hset(
            f"{PREFIX}:{{cart}}:entity:gone", mapping={"v": f"{9:019}".encode() + SIGN}
        )
        v = f"{(3 << 32) + 7:019}".encode() + SIGN
        await client.hset(f"{PREFIX}:{{meter}}:shards", mapping={"7": v, "8/ü": v})
        await client.zadd(f"{PREFIX}:{{meter}}:remembered:7", dict.fromkeys(LISTED, 0))
        await client.hset(f"{PREFIX}:{{%24nodes}}:shards", "all", f"{1:019}".encode() + SIGN)
        await client.zadd(f"{PREFIX}:{{%24nodes}}:remembered:all", {"10.0.0.1:7355": 0})
        overrides = {"v": f"{3:019}".encode() + SIGN, "data": b"o"}
        await client.hset(f"{PREFIX}:{{%24directions}}:entity:cart", mapping=overrides)

    return write()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> fakeredis.FakeServer:
    """Return a server, for moves in small slices."""
    monkeypatch.setattr(redis_migration, "SLICE", 25)
    monkeypatch.setattr(redis_migration, "LIST_PAGE", 100)
    return fakeredis.FakeServer()


def open_redis(server: fakeredis.FakeServer) -> RedisStore:
    return RedisStore(
        "redis://fake",
        PREFIX,
        timeout=LONG_S,
        connect=lambda: fakeredis.FakeAsyncRedis(server=server),
    )


async def older(server: fakeredis.FakeServer) -> RedisStore:
    store = open_redis(server)
    store.accept_older()
    await store.start()
    return store


def ignore(moved: int, total: int) -> None:
    pass


async def everything_is_there(store: RedisStore, shards: int = 40) -> None:
    for n, name in enumerate(NAMES):
        with pytest.raises(StaleFence):
            await store.load_state("cart", shard_of(name, shards), name, (3 << 32) + n - 1)
        data = await store.load_state("cart", shard_of(name, shards), name, (3 << 32) + n)
        assert data == name.encode()
    ids, cursor = list[str](), None
    while not ids or cursor is not None:
        page, cursor = await store.page_remembered("meter", "7", cursor, 500)
        ids += page
    assert ids == LISTED
    assert set(await store.remembered_shards("meter")) == {"7", "8/ü"}
    with pytest.raises(StaleFence):
        await store.add_remembered("meter", "8/ü", [], 3 << 32)
    assert await store.page_remembered("$nodes", "all", None, 9) == (["10.0.0.1:7355"], None)
    assert await store.load_state("$directions", "all", "cart", 3) == b"o"


async def no_old_key(server: fakeredis.FakeServer) -> None:
    client = fakeredis.FakeAsyncRedis(server=server)
    keys = [key async for key in client.scan_iter("*")]
    assert [key for key in keys if b"}:entity:" in key and b"/" not in key.split(b"}")[0]] == []
    assert [key for key in keys if b"}:shards" in key or b"}:remembered:" in key] == []


async def test_a_node_refuses_the_keys_of_an_earlier_release(server: fakeredis.FakeServer) -> None:
    await version_1(fakeredis.FakeAsyncRedis(server=server))
    with pytest.raises(ConfigError) as refused:
        await open_redis(server).start()
    assert "`shardbus data migrate --store URL`" in refused.value.hint
    assert "\n" not in str(refused.value)


async def test_a_node_refuses_the_keys_of_a_later_release(server: fakeredis.FakeServer) -> None:
    client = fakeredis.FakeAsyncRedis(server=server)
    await client.hset(f"{PREFIX}:probe", mapping={"keys": "3", "mark": "0123"})
    with pytest.raises(ConfigError, match="version 3, this release has 2"):
        await open_redis(server).start()


async def test_a_new_store_has_the_keys_of_this_release(server: fakeredis.FakeServer) -> None:
    for _ in range(2):
        store = open_redis(server)
        await store.start()
        await store.close()
    assert await fakeredis.FakeAsyncRedis(server=server).hget(f"{PREFIX}:probe", "keys") == b"2"


async def test_states_and_lists_are_moved_with_their_fences(server: fakeredis.FakeServer) -> None:
    await version_1(fakeredis.FakeAsyncRedis(server=server))
    store = await older(server)
    assert await store.older_nodes() == ["10.0.0.1:7355"]
    counted = await store.survey({})
    assert not counted.is_done
    assert (counted.types["cart"].entities, counted.types["cart"].misplaced) == (64, 64)
    assert (counted.types["meter"].lists, counted.types["$nodes"].lists) == (2, 1)
    reports: list[tuple[int, int]] = []
    counts = await store.migrate({}, lambda moved, total: reports.append((moved, total)))
    assert (counts.moved, counts.lists) == (65, 3)
    assert reports[-1] == (68, 68)
    assert (await store.survey({})).is_done
    await store.close()
    again = open_redis(server)
    await again.start()
    await everything_is_there(again)
    await no_old_key(server)
    assert await again.placed("cart", "crc32/40") == "crc32/40"
    await again.close()


class Cut(Exception):
    """The process of a migration ends."""


async def test_a_migration_may_end_at_any_step(server: fakeredis.FakeServer) -> None:
    """It is cut after 1 call to the store, then after 2, and so on, until it comes to its end."""
    await version_1(fakeredis.FakeAsyncRedis(server=server))
    calls, ended = 1, False
    while not ended:
        store = await older(server)
        left, call, each = calls, store.call, store.call_each

        def spend() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Cut

        async def cut(script: Any, keys: Sequence[str], *args: Any, call: Any = call) -> Any:
            spend()
            return await call(script, keys, *args)

        async def cut_each(script: Any, keys: Sequence[str], each: Any = each) -> Any:
            spend()
            return await each(script, keys)

        store.call, store.call_each = cut, cut_each  # type: ignore[method-assign, assignment]
        try:
            await store.migrate({}, ignore)
            ended = True
        except Cut:
            with pytest.raises(ConfigError, match="earlier release"):
                await open_redis(server).start()
        await store.close()
        calls += 1 if calls < 40 else 20
    assert calls > 20
    store = open_redis(server)
    await store.start()
    await everything_is_there(store)
    await no_old_key(server)
    await store.close()


async def filled(server: fakeredis.FakeServer, shards: int) -> RedisStore:
    store = open_redis(server)
    await store.start()
    await store.claim_epoch("cart", 3, f"crc32/{shards}")
    assert await store.placed("cart", f"crc32/{shards}") == f"crc32/{shards}"
    saves = [
        Save("cart", shard_of(name, shards), name, (3 << 32) + n, name.encode(), n + 1)
        for n, name in enumerate(NAMES)
    ]
    assert set(await store.save_states(saves)) == {None}
    return store


async def test_states_of_another_layout_are_refused_until_they_are_moved(
    server: fakeredis.FakeServer,
) -> None:
    store = await filled(server, 40)
    assert await store.placed("cart", "crc32/80") == "crc32/40", "it stays as it was"
    declared = {"cart": Declared("crc32/80", lambda name: shard_of(name, 80))}
    counts = await store.migrate(declared, ignore)
    assert counts.moved > 20
    assert await store.placed("cart", "crc32/40") == "crc32/80"
    for name in NAMES:
        assert await store.load_state("cart", shard_of(name, 80), name, 9 << 32) == name.encode()
    assert (await store.survey(declared)).is_done
    await store.close()


async def test_reminders_move_with_the_states_of_their_entities(
    server: fakeredis.FakeServer,
) -> None:
    """So does an entity that has reminders alone; the index of its new shard has it."""
    store = open_redis(server)
    await store.start()
    former, present = shard_function("crc32/4"), shard_function("crc32/6")
    assert former is not None
    assert present is not None
    await store.placed("cart", "crc32/4", former)
    for n, name in enumerate(NAMES):
        record = Reminders(1000 + n, b"record of %d" % n, alone=n % 2 == 0)
        await store.add_remembered("cart", former(name), (), 7)
        [refused] = await store.save_states(
            [Save("cart", former(name), name, 7, None if n % 2 == 0 else b"s", n, record)]
        )
        assert refused is None
    moving = migratable(store)
    assert moving is not None
    await moving.migrate({"cart": Declared("crc32/6", present)}, ignore)
    entries = []
    for shard in await store.due_shards("cart"):
        page = await store.page_due("cart", shard, None, 1000)
        entries += page
        assert all(present(entity_id) == shard for _, entity_id in page)
    assert sorted(entries) == [(1000 + n, name) for n, name in enumerate(NAMES)]
    for n, name in enumerate(NAMES):
        [record] = await store.load_reminders("cart", present(name), [name])
        assert record == b"record of %d" % n
    await store.close()


@pytest.mark.long
async def test_journals_move_with_the_states_of_their_entities(
    server: fakeredis.FakeServer,
) -> None:
    store = await filled(server, 40)
    entries = {
        name: tuple(b"%d" % n for n in range(place % 7 * 400 + 1))
        for place, name in enumerate(NAMES)
    }
    appends = [
        Append("cart", shard_of(name, 40), name, 3 << 32, rows, n, 0)
        for n, (name, rows) in enumerate(entries.items(), 1)
    ]
    assert set(await store.journals.append(appends)) == {None}
    declared = {"cart": Declared("crc32/80", lambda name: shard_of(name, 80))}
    await store.migrate(declared, ignore)
    for name, rows in entries.items():
        page = await store.journals.open("cart", shard_of(name, 80), name, 9 << 32, 0, 10_000)
        assert page.entries == list(rows)
        if shard_of(name, 40) != shard_of(name, 80):
            old = await store.journals.read("cart", shard_of(name, 40), name, 0, 1)
            assert old.last == 0
    assert (await store.survey(declared)).is_done
    await store.close()


async def test_states_without_a_record_are_refused_if_they_are_elsewhere(
    server: fakeredis.FakeServer,
) -> None:
    """As a tool may have written them."""
    store = open_redis(server)
    await store.start()
    await store.save_states([Save("cart", shard_of("a", 40), "a", 1, b"a", 1)])
    assert await store.placement("cart") == ""
    assert await store.placed("cart", "crc32/80") == "unknown"
    assert await store.placed("cart", "crc32/40") == "crc32/40"
    assert await store.placed("cart", "crc32/80") == "crc32/40"
    await store.close()


async def test_no_layout_fits_while_a_move_is_unfinished(server: fakeredis.FakeServer) -> None:
    store = await filled(server, 40)
    call = store.call

    async def cut(script: Any, keys: Sequence[str], *args: Any) -> Any:
        if len(args) > 1 and args[1] == b"v":
            raise Cut
        return await call(script, keys, *args)

    store.call = cut  # type: ignore[method-assign]
    declared = {"cart": Declared("crc32/80", lambda name: shard_of(name, 80))}
    with pytest.raises(Cut):
        await store.migrate(declared, ignore)
    for layout in ("crc32/40", "crc32/80", "crc32/7"):
        assert await store.placed("cart", layout) == "on the way to crc32/80"
    store.call = call  # type: ignore[method-assign]
    assert (await store.migrate({}, ignore)).moved > 20, "the record says where to"
    assert await store.placed("cart", "crc32/80") == "crc32/80"
    await store.close()


async def test_a_type_without_states_takes_any_layout(server: fakeredis.FakeServer) -> None:
    store = open_redis(server)
    await store.start()
    assert await store.placed("cart", "crc32/40") == "crc32/40"
    assert await store.placed("cart", "crc32/80") == "crc32/80"
    await store.close()


async def test_a_shard_function_that_is_not_known_is_asked_of_the_application(
    server: fakeredis.FakeServer,
) -> None:
    client = fakeredis.FakeAsyncRedis(server=server)
    await version_1(client)
    await client.hset(f"{PREFIX}:{{cart}}:table", "layout", "by_region:0badcafe/9")
    store = await older(server)
    with pytest.raises(StoreError) as refused:
        await store.migrate({}, ignore)
    assert "'cart'" in str(refused.value)
    assert "data migrate APP" in str(refused.value)
    declared = {"cart": Declared("by_region:0badcafe/9", lambda name: name[0])}
    assert (await store.migrate(declared, ignore)).moved == 65
    assert await store.load_state("cart", "c", "c-7", 9 << 32) == b"c-7"
    await store.close()


def test_a_layout_names_its_function() -> None:
    plain = shard_function("crc32/40")
    rows = shard_function("crc32/40~N")
    within = shard_function("crc32/40 within order within shop")
    assert plain is not None
    assert rows is not None
    assert within is not None
    assert plain("c-7") == shard_of("c-7", 40)
    assert rows("c-7~3") == f"{shard_of('c-7', 40)}~3"
    assert within("s/o/i") == shard_of("s", 40)
    for layout in (
        "by_region:0badcafe/9",
        "crc32/",
        "crc32/0",
        "unknown",
        "",
        "on the way to crc32/4",
    ):
        assert shard_function(layout) is None


async def test_stores_without_places_have_nothing_to_move() -> None:
    assert migratable(MemoryStore()) is None
    assert placing(MemoryStore()) is None
