"""The PostgreSQL store against a real server: the whole suite, then faults that need a server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from shardbus.errors import ConfigError, StaleEpoch, StaleFence, StoreUnavailable
from shardbus.ids import NodeId
from shardbus.store import postgres_statements as sql
from shardbus.store.opening import open_store
from shardbus.store.postgres import PostgresStore
from shardbus.store.postgres_statements import Statement
from shardbus.store.protocol import StateStore, on_new_server, problems_of
from shardbus.testing.store_suite import StoreFactory, remembered, save, until
from tests import postgres_server
from tests.postgres_server import PostgresServer
from tests.process.stores.shims import DISK_FULL, Shim, no_compiler
from tests.unit.store.store_suite import LONG_S, SHORT_S, failure, insist
from tests.unit.store.test_conformance import StoreConformance
from tests.waiting import PATIENCE_S

A, B = NodeId("10.0.0.1", 7355, 1), NodeId("10.0.0.2", 7355, 2)


class TestPostgres(StoreConformance):
    @pytest.fixture
    def store_factory(self, postgres_url: str) -> StoreFactory:
        return lambda: open_store(postgres_url, cluster="shop", timeout=LONG_S)


@pytest.fixture(scope="module")
def _server() -> Iterator[PostgresServer]:
    if reason := postgres_server.missing():
        pytest.skip(reason)
    with PostgresServer("max_connections=25") as server:
        yield server


@pytest.fixture(scope="module")
def _schemas() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture
def server(_server: PostgresServer) -> PostgresServer:
    """A server that the test may stop; it syncs each write."""
    if not _server.running:
        _server.restart()
    return _server


@pytest.fixture
def schema(_schemas: Iterator[int]) -> str:
    return f"own_{next(_schemas)}"


@pytest.fixture
def url(server: PostgresServer, schema: str) -> str:
    return server.url(schema=schema)


@contextlib.asynccontextmanager
async def opened(url: str, timeout: float = LONG_S) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url, "shop", timeout=timeout)
    await (insist(store.start) if timeout == SHORT_S else store.start())
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    async with opened(url) as store:
        yield store


@pytest.fixture
async def hasty(url: str) -> AsyncIterator[PostgresStore]:
    """A store that gives up soon, for tests in which the server does not answer."""
    async with opened(url):
        pass  # creates the tables, which takes its time on a busy machine
    async with opened(url, SHORT_S) as store:
        yield store


@pytest.fixture
async def admin(server: PostgresServer) -> AsyncIterator[Any]:
    connection = await server.connect()
    yield connection
    connection.terminate()


async def some_wait(admin: Any, count: int = 1) -> None:
    """Wait until so many statements of stores wait for a lock."""
    text = """SELECT count(*) FROM pg_stat_activity
      WHERE wait_event_type = 'Lock' AND application_name = 'shardbus'"""

    async def waiting() -> bool:
        await admin.execute("SELECT pg_stat_clear_snapshot()")  # kept for a transaction otherwise
        return bool(await admin.fetchval(text) >= count)

    await until(waiting)


async def late(admin: Any, store: PostgresStore, statement: Statement, *args: Any) -> Any:
    """Execute a statement as if `store` had sent it before all others."""
    text = statement.text(store._schema)
    return await admin.fetch(text, store._link.session, 0, *args)


# Atomic steps


async def test_batches_in_opposite_orders_wait_for_each_other_and_never_deadlock(
    store: PostgresStore, url: str, schema: str, admin: Any
) -> None:
    """A lock in the middle makes both wait there. Without an order one would hold `a` and wait for
    `z`, the other the reverse."""
    names = ["a", "m", "z"]
    await store.save_states([save(name, 1, b"0", n) for n, name in enumerate(names, 1)])
    before = await admin.fetchval("SELECT sum(deadlocks) FROM pg_stat_database")
    async with opened(url) as other:
        async with admin.transaction():
            await admin.execute(f"UPDATE {schema}.entity SET seq = seq WHERE id = 'm'")
            first = [save(name, 1, b"1", 10 + n) for n, name in enumerate(names)]
            second = [save(name, 1, b"2", 20 + n) for n, name in enumerate(reversed(names))]
            both = [
                asyncio.create_task(store.save_states(first)),
                asyncio.create_task(other.save_states(second)),
            ]
            await some_wait(admin, 2)
        assert await asyncio.gather(*both) == [[None] * 3] * 2
    outcomes = {await store.load_state("counter", "7", name, 1) for name in names}
    assert outcomes in ({b"1"}, {b"2"})
    assert await admin.fetchval("SELECT sum(deadlocks) FROM pg_stat_database") == before


async def test_loads_in_opposite_orders_never_deadlock(
    store: PostgresStore, url: str, schema: str, admin: Any
) -> None:
    names = ["a", "m", "z"]
    await store.save_states([save(name, 1, b"0", n) for n, name in enumerate(names, 1)])
    async with opened(url) as other:
        async with admin.transaction():
            await admin.execute(f"UPDATE {schema}.entity SET seq = seq WHERE id = 'm'")
            both = [
                asyncio.gather(*(client.load_state("counter", "7", name, 2) for name in order))
                for client, order in ((store, names), (other, names[::-1]))
            ]
            await some_wait(admin, 2)
        assert await asyncio.gather(*both) == [[b"0"] * 3] * 2


async def test_a_fence_is_compared_with_the_newest_one_when_the_row_is_free(
    store: PostgresStore, schema: str, admin: Any
) -> None:
    """The snapshot of the waiting statements still shows the lower fence."""
    await store.save_states([save("a", 7, b"old", 1), save("b", 7, b"old", 2)])
    await store.add_remembered("counter", "7", ["x"], 7)
    async with admin.transaction():
        for table in ("entity", "shard_fence"):
            await admin.execute(f"UPDATE {schema}.{table} SET fence = 9, session = 0")
        calls: list[Any] = [
            asyncio.ensure_future(call)
            for call in (
                store.save_states([save("a", 8, b"late", 3)]),
                store.load_state("counter", "7", "b", 8),
                store.add_remembered("counter", "7", ["y"], 8),
                store.remove_remembered("counter", "7", ["x"], 8),
            )
        ]
        await some_wait(admin, 4)
    [refused], *others = await asyncio.gather(*calls, return_exceptions=True)
    for error in (refused, *others):
        assert isinstance(error, StaleFence)
        assert error.stored == 9
    assert await store.load_state("counter", "7", "a", 9) == b"old"
    assert await remembered(store) == {"x"}


async def test_homes_are_refused_that_waited_while_another_claimed(
    store: PostgresStore, schema: str, admin: Any
) -> None:
    await store.claim_epoch("counter", 1, "crc32/100")
    async with admin.transaction():
        await admin.execute(
            f"UPDATE {schema}.shard_table SET epoch = 2, claimer = 5, version = version + 1"
        )
        homes = asyncio.create_task(store.write_homes("counter", 1, {"7": (A, 1)}, 1))
        claim = asyncio.create_task(store.claim_epoch("counter", 2, "crc32/100"))
        await some_wait(admin, 2)
    for call in (homes, claim):
        with pytest.raises(StaleEpoch) as refused:
            await call
        assert refused.value.stored == 2
    table = await store.load_table("counter")
    assert table is not None
    assert dict(table.homes) == {}


async def test_many_writers_of_the_same_rows_agree(store: PostgresStore, url: str) -> None:
    """Every batch is written or refused as a whole row by row, and the highest fence wins."""
    names = [f"e-{n}" for n in range(40)]
    async with opened(url) as other:

        async def batch(number: int) -> None:
            order = names if number % 2 else names[::-1]
            fence = 1 + number % 5
            op = number * 1000
            saves = [save(name, fence, b"%d" % fence, op + n) for n, name in enumerate(order)]
            await (store if number % 3 else other).save_states(saves)

        await asyncio.gather(*(batch(number) for number in range(40)))
    assert {await store.load_state("counter", "7", name, 5) for name in names} == {b"5"}


# Late statements of the same sender


async def test_a_late_save_does_not_overwrite_a_newer_one_of_its_sender(
    store: PostgresStore, admin: Any
) -> None:
    await store.save_states([save("a", 1, b"new", 2)])
    args = ("shop", ["counter"], ["a"], [1], [1], [b"late"])
    await late(admin, store, sql.SAVE_STATES, *args)
    assert await store.load_state("counter", "7", "a", 1) == b"new"
    assert await store.save_states([save("a", 1, b"newer", 3)]) == [None]


async def test_a_late_save_does_not_change_what_a_later_load_has_read(
    store: PostgresStore, admin: Any
) -> None:
    await store.save_states([save("a", 1, b"old", 1)])
    assert await store.load_state("counter", "7", "a", 1) == b"old"
    args = ("shop", ["counter"], ["a"], [1], [2], [b"late"])
    await late(admin, store, sql.SAVE_STATES, *args)
    assert await store.load_state("counter", "7", "a", 1) == b"old"


async def test_a_late_addition_or_removal_changes_no_list(store: PostgresStore, admin: Any) -> None:
    await store.add_remembered("counter", "7", ["a"], 1)
    await store.remove_remembered("counter", "7", ["b"], 1)
    await late(admin, store, sql.REMEMBER, "shop", "counter", "7", 1, ["b"])
    assert await late(admin, store, sql.SIGN_LIST, "shop", "counter", "7", 1) == []
    forget = sql.FORGET.text(store._schema)
    await admin.fetch(forget, "shop", "counter", "7", 1, store._link.session, 0, ["a"])
    assert await remembered(store) == {"a"}


async def test_late_homes_are_not_written(store: PostgresStore, admin: Any) -> None:
    await store.claim_epoch("counter", 1, "crc32/100")
    await store.write_homes("counter", 1, {"7": (A, 1)}, 1)
    args = ("shop", "counter", 1, 2, ["7"], [str(B)], [2])
    [row] = await late(admin, store, sql.WRITE_HOMES, *args)
    assert row["written"] == 0
    table = await store.load_table("counter")
    assert table is not None
    assert dict(table.homes) == {"7": (A, 1)}


async def test_a_statement_that_finds_itself_late_is_sent_again(
    store: PostgresStore, schema: str, admin: Any
) -> None:
    """As when the statements of one sender overtake each other on two connections."""
    await store.save_states([save("a", 1, b"old", 1)])
    await store.add_remembered("counter", "7", ["x"], 1)
    await store.claim_epoch("counter", 1, "crc32/100")
    ahead = store._link._sequence + 3
    for table in ("entity", "shard_fence", "shard_table"):
        await admin.execute(f"UPDATE {schema}.{table} SET seq = {ahead}")
    assert await store.save_states([save("a", 1, b"new", 2)]) == [None]
    await store.add_remembered("counter", "7", ["y"], 1)
    await store.write_homes("counter", 1, {"7": (A, 1)}, 1)
    assert await store.load_state("counter", "7", "a", 1) == b"new"
    assert await remembered(store) == {"x", "y"}


# Leases


async def test_a_lease_whose_end_is_too_far_ahead_is_moved_near(
    store: PostgresStore, schema: str, admin: Any
) -> None:
    assert await store.acquire_lease("sbr", "a", 60.0) is not None
    await admin.execute(f"UPDATE {schema}.lease SET expires = expires + 3600000")
    assert await store.acquire_lease("sbr", "b", 60.0) is None
    text = f"SELECT expires / 1000.0 - extract(epoch FROM now()) FROM {schema}.lease"
    assert 0 <= await admin.fetchval(text) <= 60.5
    assert await admin.fetchval(f"SELECT owner FROM {schema}.lease") == "a"


# Servers that end, stand still, or are others


@pytest.mark.long
async def test_a_killed_server_is_unavailable_and_used_again_when_it_is_back(
    server: PostgresServer, hasty: PostgresStore
) -> None:
    await insist(lambda: hasty.claim_epoch("counter", 1, "crc32/100"))
    await insist(lambda: hasty.write_homes("counter", 1, {"7": (A, 1)}, 1))
    await asyncio.to_thread(server.kill)

    async def named() -> bool:
        with pytest.raises(StoreUnavailable, match=r"no answer within 1 s: ") as error:
            await hasty.load_state("counter", "7", "a", 1)
        return "Connect call failed" in str(error.value)

    await until(named)
    await asyncio.to_thread(server.restart)
    table = await insist(lambda: hasty.load_table("counter"))
    assert table is not None
    assert dict(table.homes) == {"7": (A, 1)}


@pytest.mark.long
async def test_a_call_outlives_a_short_absence(
    server: PostgresServer, store: PostgresStore
) -> None:
    await store.load_state("counter", "7", "a", 1)
    await asyncio.to_thread(server.kill)
    call = asyncio.create_task(store.claim_epoch("counter", 1, "crc32/100"))
    await asyncio.sleep(0)
    await asyncio.to_thread(server.restart)
    assert (await call).epoch == 1


async def test_a_stopped_server_is_unavailable_in_time(
    server: PostgresServer, url: str, hasty: PostgresStore
) -> None:
    await insist(lambda: hasty.load_state("counter", "7", "a", 1))
    server.pause()
    try:
        calls: list[Any] = [hasty.load_state("counter", "7", f"e-{n}", 1) for n in range(500)]
        calls += [hasty.save_states([save("a", 1, b"new", 2)])]
        calls += [PostgresStore(url, "shop", timeout=0.5).start()]
        async with asyncio.timeout(PATIENCE_S):
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
    finally:
        server.resume()
    assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
    assert not outcomes[-2].definite
    await insist(lambda: hasty.load_table("counter"))


async def test_connections_that_are_cut_are_opened_again(store: PostgresStore, admin: Any) -> None:
    for number in range(1, 6):
        saves = (store.save_states([save(f"e-{n}", 1, b"x", number * 100 + n)]) for n in range(9))
        calls = asyncio.gather(*saves)
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'shardbus'"
        )
        assert await calls == [[None]] * 9


async def test_another_server_is_noticed_and_the_same_one_is_not(
    server: PostgresServer, store: PostgresStore, admin: Any
) -> None:
    """A new connection to the same server has lost nothing; a restarted server may have."""
    met: list[str] = []
    on_new_server(store, lambda: met.append("another"))
    await store.load_state("counter", "7", "a", 1)
    await admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'shardbus'"
    )
    await store._probe()
    assert met == []
    await asyncio.to_thread(server.restart)
    await store._probe()
    assert met == ["another"]


@pytest.mark.long
async def test_lost_tables_are_noticed_and_created_anew(
    store: PostgresStore, schema: str, admin: Any
) -> None:
    met: list[str] = []
    on_new_server(store, lambda: met.append("emptied"))
    await store.save_states([save("a", 1, b"x", 1)])
    for statement in (f"DROP SCHEMA {schema} CASCADE", f"DROP TABLE {schema}.entity"):
        await admin.execute(statement)
        assert await store.save_states([save("a", 1, b"again", len(met) + 2)]) == [None]
        assert await store.load_state("counter", "7", "a", 1) == b"again"
        assert met
        met.clear()
        await store._probe()
        met.clear()
    await admin.execute(f"DELETE FROM {schema}.store")
    await store._probe()
    assert met == ["emptied"]


@pytest.mark.long
async def test_a_standby_is_passed_over_and_followed_when_it_is_promoted(
    server: PostgresServer, schema: str
) -> None:
    """And writes that the primary had not sent to it are lost, which the store reports."""
    standby = PostgresServer(copy_of=server)
    await asyncio.to_thread(standby.__enter__)
    try:
        for port in (standby.port, 1):
            wrong = server.url(schema=schema).replace(f":{server.port}/", f":{port}/")
            with pytest.raises(StoreUnavailable, match=r"standby and read only|does not respond"):
                await PostgresStore(wrong, "shop", timeout=LONG_S).start()
        hosts = f"127.0.0.1:1,127.0.0.1:{standby.port},127.0.0.1:{server.port}"
        url = server.url(schema=schema).replace(f"127.0.0.1:{server.port}", hosts)
        async with opened(url) as store:
            met: list[str] = []
            on_new_server(store, lambda: met.append("another"))
            await store.save_states([save("a", 1, b"sent", 1)])

            async def has_it() -> bool:
                try:
                    rows = await standby.ask(f"SELECT data FROM {schema}.entity WHERE id = 'a'")
                except asyncpg.UndefinedTableError:
                    return False  # it has not come that far
                return bool(rows)

            await until(has_it)
            await asyncio.to_thread(server.kill)
            await standby.promote()
            assert await store.load_state("counter", "7", "a", 2) == b"sent"
            assert met == ["another"]
            assert await store.save_states([save("a", 2, b"new", 2)]) == [None]
    finally:
        await asyncio.to_thread(standby.__exit__, None, None, None)


# Unfit servers and users


@pytest.mark.parametrize("setting", ["synchronous_commit", "full_page_writes"])
@pytest.mark.long
async def test_a_server_that_may_lose_writes_is_refused_and_later_named(
    server: PostgresServer, url: str, setting: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = PostgresStore(url, "shop", timeout=LONG_S, check_every=0.05)
    await store.start()

    async def unfit() -> bool:
        return any(f"its {setting} is off" in text for text in problems_of(store))

    async def fit() -> bool:
        return not problems_of(store)

    with caplog.at_level(logging.INFO):
        await server.set(**{setting: "off"})
        try:
            await until(unfit)
            with pytest.raises(ConfigError, match=f"set {setting} to on, or .*durability=cache"):
                await PostgresStore(url, "shop", timeout=LONG_S).start()
            async with opened(f"{url}&durability=cache"):
                pass
        finally:
            await server.set(**{setting: ""})
        await until(fit)
    assert len([line for line in caplog.messages if f"set {setting} to on" in line]) == 1
    assert caplog.messages[-1].endswith("are in order again")
    await store.close()


async def test_tables_that_a_crash_empties_are_refused(
    store: PostgresStore, url: str, schema: str, admin: Any
) -> None:
    await admin.execute(f"ALTER TABLE {schema}.entity SET UNLOGGED")
    with pytest.raises(ConfigError, match=r"loses these tables in a crash: entity; ALTER TABLE"):
        await PostgresStore(url, "shop", timeout=LONG_S).start()


async def role(admin: Any, name: str, password: str = "hush") -> None:
    await admin.execute(f"DROP ROLE IF EXISTS {name}")
    await admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")


async def test_a_user_who_may_not_create_gets_the_statement_that_lets_them(
    server: PostgresServer, schema: str, admin: Any
) -> None:
    await role(admin, "creator")
    url = server.url("creator:hush", schema=schema)
    with pytest.raises(ConfigError, match="refuses to create the tables") as refused:
        await PostgresStore(url, "shop", timeout=LONG_S).start()
    assert "hush" not in str(refused.value)
    statement = str(refused.value).partition("run as the owner of the database: ")[2]
    assert statement == f"CREATE SCHEMA {schema} AUTHORIZATION creator"
    await admin.execute(statement)
    async with opened(url) as store:
        assert await store.save_states([save("a", 1, b"x", 1)]) == [None]


async def test_a_user_who_may_not_write_is_refused_with_the_remedy(
    server: PostgresServer, store: PostgresStore, schema: str, admin: Any
) -> None:
    await role(admin, "reader")
    url = server.url("reader:hush", schema=schema)
    for _ in range(2):
        with pytest.raises(ConfigError, match="refuses this user") as refused:
            await PostgresStore(url, "shop", timeout=LONG_S).start()
        statements = str(refused.value).partition("run as the owner: ")[2].split("; ")
        assert len(statements) == 2
        await admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO reader")
    for statement in statements:
        await admin.execute(statement)
    async with opened(url) as other:
        assert await other.save_states([save("a", 1, b"x", 1)]) == [None]
        await admin.execute(f"REVOKE INSERT ON {schema}.entity FROM reader")
        with pytest.raises(StoreUnavailable, match=r"refuses this user.*entity") as revoked:
            await other.save_states([save("a", 1, b"y", 2)])
        assert revoked.value.definite


async def test_a_user_who_may_not_create_is_named_once_in_an_error_of_a_call(
    server: PostgresServer, schema: str, admin: Any
) -> None:
    await role(admin, "evicted")
    url = server.url("evicted:hush", schema=schema)
    await admin.execute(f"CREATE SCHEMA {schema} AUTHORIZATION evicted")
    async with opened(url) as store:
        await admin.execute(f"DROP SCHEMA {schema} CASCADE")
        with pytest.raises(StoreUnavailable, match="refuses to create the tables") as refused:
            await store.save_states([save("a", 1, b"x", 1)])
    assert str(refused.value).count("postgresql://") == 1


async def test_rows_that_the_server_hides_are_refused(
    server: PostgresServer, store: PostgresStore, schema: str, admin: Any
) -> None:
    await role(admin, "tenant")
    await admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO tenant")
    await admin.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO tenant")
    url = server.url("tenant:hush", schema=schema)
    async with opened(url) as other:
        assert await other.save_states([save("a", 1, b"x", 1)]) == [None]
        for table in ("entity", "journal_entry", "version"):
            await admin.execute(f"ALTER TABLE {schema}.{table} ENABLE ROW LEVEL SECURITY")
        with pytest.raises(StoreUnavailable, match=r"row-level security.*BYPASSRLS") as refused:
            await other.save_states([save("a", 1, b"y", 2)])
        assert refused.value.definite
    hidden = "hides rows of entity, journal_entry, version"
    with pytest.raises(ConfigError, match=f"{hidden}.*BYPASSRLS"):
        await PostgresStore(url, "shop", timeout=LONG_S).start()
    assert await store.save_states([save("a", 2, b"y", 2)]) == [None]  # A superuser sees all rows.


async def test_a_wrong_password_and_a_missing_database_are_named_at_once(
    server: PostgresServer, admin: Any
) -> None:
    await role(admin, "known")
    for url, says in (
        (server.url("known:wrong"), "refuses this user or its password"),
        (server.url("nobody:wrong"), "refuses this user or its password"),
        (server.url().replace("/postgres", "/nothing"), "has no such database"),
    ):
        with pytest.raises(ConfigError, match=says) as refused:
            await PostgresStore(url, "shop", timeout=LONG_S).start()
        assert "wrong" not in str(refused.value)


@pytest.mark.long
async def test_too_many_connections_are_named(server: PostgresServer, hasty: PostgresStore) -> None:
    await insist(lambda: hasty.load_state("counter", "7", "a", 1))
    await server.ask(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'shardbus'"
    )
    others = []
    with contextlib.suppress(asyncpg.TooManyConnectionsError):
        while True:
            others.append(await server.connect())
    says = r"too many connections .*; raise max_connections"
    await failure(lambda: hasty.load_state("counter", "7", "a", 1), says)
    for other in others:
        await other.close()
    assert await insist(lambda: hasty.load_state("counter", "7", "a", 1)) is None


@pytest.mark.long
async def test_a_server_that_takes_no_writes_is_named_and_used_again(
    server: PostgresServer, hasty: PostgresStore, admin: Any
) -> None:
    await insist(lambda: hasty.load_state("counter", "7", "a", 1))
    await server.set(default_transaction_read_only="on")
    try:

        async def named() -> bool:
            try:
                await hasty.save_states([save("a", 1, b"x", 1)])
            except StoreUnavailable as error:
                return "default_transaction_read_only is on" in str(error)
            return False

        await until(named)
    finally:
        await admin.execute("SET default_transaction_read_only = off")
        await admin.execute("ALTER SYSTEM RESET default_transaction_read_only")
        await admin.execute("SELECT pg_reload_conf()")
    await insist(lambda: hasty.save_states([save("a", 1, b"x", 1)]))


@pytest.mark.skipif(no_compiler(), reason="needs a C compiler, for a disk that can be full")
async def test_a_full_disk_is_named_at_once_and_the_old_state_stays() -> None:
    if reason := postgres_server.missing():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory() as folder:  # The server runs as another user.
        Path(folder).chmod(0o755)
        shim = Shim(Path(folder), "disk", DISK_FULL)
        server = PostgresServer(**shim.environment)
        await asyncio.to_thread(server.__enter__)
        try:
            async with opened(server.url()) as store:
                assert await store.save_states([save("a", 1, b"old", 1)]) == [None]
                shim.on()
                big = random.Random(7).randbytes(1_000_000)
                with pytest.raises(StoreUnavailable, match=r"has a full disk .*; free") as refused:
                    await store.save_states([save("a", 1, big, 2)])
                assert refused.value.definite
                shim.off()
                assert await store.load_state("counter", "7", "a", 1) == b"old"
                assert await store.save_states([save("a", 1, big, 3)]) == [None]
        finally:
            await asyncio.to_thread(server.__exit__, None, None, None)


async def test_tables_of_a_newer_shardbus_are_refused(
    store: PostgresStore, url: str, schema: str, admin: Any
) -> None:
    await admin.execute(f"INSERT INTO {schema}.version VALUES (99)")
    with pytest.raises(
        ConfigError, match="has tables of format 99, this shardbus knows 1; upgrade"
    ):
        await PostgresStore(url, "shop", timeout=LONG_S).start()


async def test_first_starts_at_the_same_time_create_the_tables_once(url: str) -> None:
    stores = [PostgresStore(f"{url}&connections=1", "shop", timeout=LONG_S) for _ in range(6)]
    await asyncio.gather(*(store.start() for store in stores))
    assert len({await store.identity() for store in stores}) == 1
    await asyncio.gather(*(store.close() for store in stores))


async def test_two_clusters_share_a_schema(store: PostgresStore, url: str) -> None:
    other = open_store(url, cluster="{shop}:x", timeout=LONG_S)
    await other.start()
    await store.claim_epoch("counter", 5, "crc32/100")
    await store.save_states([save("a", 5, b"shop", 1)])
    assert await store.acquire_lease("sbr", "a", 60.0) is not None
    assert await other.load_table("counter") is None
    assert await other.load_state("counter", "7", "a", 1) is None
    assert await other.acquire_lease("sbr", "b", 60.0) is not None
    assert await other.identity() != await store.identity()
    await other.close()


async def test_no_task_or_socket_is_left_behind(server: PostgresServer, hasty: StateStore) -> None:
    await insist(lambda: hasty.load_state("counter", "7", "a", 1))
    server.pause()
    try:
        with pytest.raises(StoreUnavailable):
            await hasty.load_state("counter", "7", "a", 1)
        await hasty.close()
    finally:
        server.resume()

    async def alone() -> bool:
        return asyncio.all_tasks() == {asyncio.current_task()}

    await until(alone)
