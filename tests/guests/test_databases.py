"""asyncpg, SQLAlchemy with aiosqlite, and redis-py in handlers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest
import redis.asyncio
from redis.asyncio.lock import Lock
from sqlalchemy import select
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from shardbus import AsyncClient, Entity, EntityFailed, ShardBus, StopReason, handler
from tests.guests.nodes import served
from tests.postgres_server import PostgresServer

bus = ShardBus("databases")
# The handlers' connections, made by each test in its own loop.
engines: list[AsyncEngine] = []
sessions: list[async_scoped_session[AsyncSession]] = []
addresses: dict[str, str] = {}


class Base(DeclarativeBase):
    pass


class Row(Base):
    __tablename__ = "rows"
    id: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str]
    amount: Mapped[int] = mapped_column(default=0)


@bus.entity("account", shards=8)
class Account(Entity):
    """Keeps a row by a session that SQLAlchemy scopes by the current task."""

    @handler
    async def open(self) -> str:
        session = sessions[0]
        session.add(Row(id=self.context.entity_id, owner=self.context.entity_id))
        await session.commit()
        await session.remove()
        return self.context.entity_id

    @handler
    async def deposit(self, amount: int) -> int:
        session = sessions[0]
        row = await session.get_one(Row, self.context.entity_id)
        await asyncio.sleep(0)
        row.amount += amount
        await session.flush()
        await asyncio.sleep(0)
        assert {account.id for account in session.new | session.dirty} <= {self.context.entity_id}
        await session.commit()
        total = (await session.get_one(Row, self.context.entity_id)).amount
        await session.remove()
        return total

    @handler
    async def same_session(self) -> list[bool]:
        """One handler has one session, before and after it waits."""
        first = sessions[0]()
        await asyncio.sleep(0)
        second = sessions[0]()
        nothing = first.new or first.dirty or first.in_transaction()
        await sessions[0].remove()
        return [first is second, not nothing]

    @handler
    async def leaves_open(self) -> None:
        """Add a row, and neither commit nor remove the session."""
        sessions[0].add(Row(id=f"stray-{self.context.entity_id}", owner="nobody"))
        await asyncio.sleep(0)

    @handler
    async def twice(self) -> None:
        try:
            await self.open()
        finally:
            await sessions[0].remove()


async def database(path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}/rows.db")
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    engines[:] = [engine]
    maker = async_sessionmaker(engine, expire_on_commit=False)
    sessions[:] = [async_scoped_session(maker, scopefunc=asyncio.current_task)]


async def test_a_session_of_sqlalchemy_belongs_to_one_handler(tmp_path: Path) -> None:
    await database(tmp_path)
    async with served(bus) as client:
        names = [f"a{n}" for n in range(20)]
        assert await asyncio.gather(*(client.ref(Account, n).open() for n in names)) == names
        for _ in range(2):
            for n in range(10):
                assert await client.ref(Account, f"s{n}").same_session() == [True, True]
        for n in range(5):
            await client.ref(Account, f"s{n}").leaves_open()
            assert await client.ref(Account, f"t{n}").same_session() == [True, True]
        with pytest.raises(EntityFailed, match="IntegrityError"):
            await client.ref(Account, "a0").twice()
        deposits = [client.ref(Account, name).deposit(n) for n, name in enumerate(names)]
        assert await asyncio.gather(*deposits) == list(range(20))
    async with AsyncSession(engines[0]) as session:
        rows = (await session.scalars(select(Row).order_by(Row.id))).all()
        assert {row.id: row.amount for row in rows} == {f"a{n}": n for n in range(20)}
    await engines[0].dispose()


@bus.entity("ledger", shards=8)
class Ledger(Entity):
    """Has a pool of asyncpg for each entity."""

    async def on_start(self) -> None:
        self.pool = await asyncpg.create_pool(addresses["postgres"], min_size=1, max_size=2)

    async def on_stop(self, reason: StopReason) -> None:
        await self.pool.close()

    @handler
    async def book(self, amount: int) -> int:
        async with self.pool.acquire() as connection, connection.transaction():
            mine = self.context.entity_id
            await connection.execute("INSERT INTO booked VALUES ($1, $2)", mine, amount)
            total = "SELECT sum(amount) FROM booked WHERE id = $1"
            return int(await connection.fetchval(total, mine))

    @handler
    async def fails(self) -> None:
        async with self.pool.acquire() as connection, connection.transaction():
            await connection.execute("INSERT INTO booked VALUES ($1, 1000)", self.context.entity_id)
            raise ValueError("rolled back")

    @handler
    async def given_up(self) -> str:
        try:
            async with asyncio.timeout(0.05):
                await self.pool.execute("SELECT pg_sleep(60)")
        except TimeoutError:
            return "given up"
        return "done"

    @handler
    async def together(self) -> list[int]:
        return list(await asyncio.gather(*(self.pool.fetchval("SELECT 1") for _ in range(6))))


async def test_a_pool_of_asyncpg_in_an_entity(postgres_server: PostgresServer) -> None:
    addresses["postgres"] = postgres_server.url().partition("?")[0]
    connection = await asyncpg.connect(addresses["postgres"])
    await connection.execute("DROP TABLE IF EXISTS booked")
    await connection.execute("CREATE TABLE booked (id text, amount bigint)")
    async with served(bus) as client:
        ledger = client.ref(Ledger, "a")
        assert await ledger.book(2) == 2
        with pytest.raises(EntityFailed, match="rolled back"):
            await ledger.fails()
        assert await ledger.book(3) == 5
        assert await ledger.given_up() == "given up"
        assert await ledger.together() == [1] * 6
        booked = [client.ref(Ledger, f"b{n}").book(n) for n in range(5)]
        assert await asyncio.gather(*booked) == list(range(5))
    await connection.execute("DROP TABLE booked")
    await connection.close()


@bus.entity("cache", shards=8)
class Cache(Entity):
    async def on_start(self) -> None:
        self.redis = redis.asyncio.from_url(addresses["redis"])

    async def on_stop(self, reason: StopReason) -> None:
        await self.redis.aclose()

    @handler
    async def count(self) -> int:
        async with self.redis.pipeline(transaction=True) as pipe:
            key = f"count:{self.context.entity_id}"
            _, total = await pipe.set(key, 0, nx=True).incr(key).execute()
        return int(total)

    @handler
    async def locked(self) -> bool:
        """redis-py keeps the token of a lock in a context variable of a thread or a task."""
        lock: Lock = self.redis.lock("shared", timeout=60)
        async with lock:
            await asyncio.sleep(0)
            return bool(await lock.owned())

    @handler
    async def heard(self) -> str:
        async with self.redis.pubsub() as channel:
            await channel.subscribe(f"news:{self.context.entity_id}")
            await self.redis.publish(f"news:{self.context.entity_id}", "hello")
            async for message in channel.listen():
                if message["type"] == "message":
                    return str(message["data"].decode())
        return "nothing"


async def use_redis(client: AsyncClient) -> None:
    cache = client.ref(Cache, "a")
    assert [await cache.count() for _ in range(3)] == [1, 2, 3]
    locks = [client.ref(Cache, f"b{n}").locked() for n in range(10)]
    assert await asyncio.gather(*locks) == [True] * 10
    assert await cache.heard() == "hello"


async def test_redis_in_handlers_beside_the_store(redis_url: str) -> None:
    addresses["redis"] = redis_url
    async with served(bus, store__url=redis_url) as client:
        await use_redis(client)
