"""PostgreSQL behind a PgBouncer: each of its modes, and nodes that save while it, or the server
behind it, is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from shardbus.store.opening import open_store
from shardbus.store.protocol import StateStore
from shardbus.testing.store_suite import save
from tests import pgbouncer, postgres_server
from tests.pgbouncer import PgBouncer
from tests.postgres_server import PostgresServer
from tests.process.nodes import Processes
from tests.process.stores.saving import Savers, judge, stored_totals
from tests.process.stores.test_postgres import noticed
from tests.process.stores.troubles import QUICK_STORE
from tests.unit.store.store_suite import LONG_S
from tests.waiting import until

pytestmark = pytest.mark.long

USER, PASSWORD = "bus", "hush"
Pooler = Callable[[str], AbstractContextManager[PgBouncer]]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    if reason := postgres_server.missing() or pgbouncer.missing():
        pytest.skip(reason)
    with PostgresServer() as server:
        server.run(
            f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'",
            f"GRANT CREATE ON DATABASE postgres TO {USER}",
        )
        yield server


@pytest.fixture
def pooler(server: PostgresServer) -> Pooler:
    return lambda mode: PgBouncer(
        server, mode, user=USER, password=PASSWORD, size=8 if mode == "session" else 3
    )


async def uses_everything(store: StateStore, text: bytes) -> None:
    """Make each call, many at a time."""
    names = [f"e-{n}" for n in range(60)]
    for turn in range(4):
        saves = [
            store.save_states([save(name, 1, text + name.encode(), 100 * turn + n)])
            for n, name in enumerate(names, 1)
        ]
        assert await asyncio.gather(*saves) == [[None]] * 60
        loads = [store.load_state("counter", "7", name, 1) for name in names]
        assert await asyncio.gather(*loads) == [text + name.encode() for name in names]
        lists = [store.add_remembered("counter", str(n), [f"{turn}"], 1) for n in range(10)]
        await asyncio.gather(*lists)
        leases = [store.acquire_lease(f"l-{n}", f"{turn}", 3600.0) for n in range(10)]
        assert [lease is not None for lease in await asyncio.gather(*leases)] == [turn == 0] * 10
    await store.claim_epoch("counter", 1, "crc32/100")
    pages = [store.page_remembered("counter", str(n), None, 9) for n in range(10)]
    assert await asyncio.gather(*pages) == [(["0", "1", "2", "3"], None)] * 10


@pytest.mark.parametrize("mode", ["session", "transaction", "statement"])
async def test_stores_that_share_the_connections_of_a_pooler_do_not_mix_their_statements(
    server: PostgresServer, pooler: Pooler, mode: str
) -> None:
    """The same statements for other tables: with names, one store would run the other's
    statements."""
    with pooler(mode) as front:
        stores = [
            open_store(
                f"{front.url}?schema={mode}_{name}&connections=3", cluster="shop", timeout=LONG_S
            )
            for name in "ab"
        ]
        await asyncio.gather(*(store.start() for store in stores))
        await asyncio.gather(*map(uses_everything, stores, (b"a", b"b")))
        left = await server.ask("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
        assert left[0]["count"] == 0, "nothing stays locked in a connection that others use"
        for store in stores:
            await store.close()


@pytest.fixture
def transactions(pooler: Pooler) -> Iterator[PgBouncer]:
    with pooler("transaction") as front:
        yield front


@pytest.fixture
def store(transactions: PgBouncer) -> str:
    return transactions.url


async def test_no_acknowledged_save_is_lost_if_the_pooler_or_the_server_behind_it_is_killed(
    lab: Processes, server: PostgresServer, transactions: PgBouncer
) -> None:
    nodes = await lab.cluster(2, settings=QUICK_STORE)
    async with lab.client(*nodes) as client, Savers(client) as savers:
        transactions.restart()
        await savers.proceed("saves by way of the pooler again")
        assert not any(map(noticed, nodes)), "it is the same server"
        server.restart()
        await savers.proceed("saves at the server again")
        await until(lambda: noticed(*nodes), "the new server in the logs")
    for node in nodes:
        assert await node.terminate() == 0
        assert "Traceback" not in node.err.read_text()
    stored = await stored_totals(server.url(f"{USER}:{PASSWORD}"), list(savers.ledgers))
    assert judge(savers, stored) == []
