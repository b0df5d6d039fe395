"""A real PostgreSQL in trouble, under real nodes whose entities save all the time.

For each trouble: asks fail with the cause and advice, as do the log and `doctor`; the
nodes stay up and ready; a node that starts ends in time with one line; once the trouble is over all
entities save again by themselves, and the store has every acknowledged save.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests import postgres_server
from tests.postgres_server import PostgresServer
from tests.process.nodes import NodeProcess, Processes
from tests.process.stores.saving import Savers, judge, stored_totals
from tests.process.stores.troubles import QUICK_STORE, Trouble, suffer_and_recover
from tests.waiting import until

pytestmark = pytest.mark.long

USER, PASSWORD = "bus", "hush"
NOTICED = "the store has another server"
CUT = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{USER}'"


@dataclass
class PostgresLab:
    """The server of one test, and a user of ours who owns the schema."""

    server: PostgresServer

    @property
    def url(self) -> str:
        return self.server.url(f"{USER}:{PASSWORD}")

    def prepare(self) -> None:
        self.server.run(
            f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'",
            f"CREATE SCHEMA shardbus AUTHORIZATION {USER}",
        )

    def role(self, change: str) -> None:
        """Change our user, and end its connections."""
        self.server.run(f"ALTER ROLE {USER} {change}", CUT)

    def set(self, **settings: str) -> None:
        asyncio.run(self.server.set(**settings))

    def may_write(self, may: bool) -> None:
        word, to = ("GRANT", "TO") if may else ("REVOKE", "FROM")
        self.server.run(f"{word} INSERT, UPDATE ON ALL TABLES IN SCHEMA shardbus {to} {USER}")


TROUBLES = (
    Trouble(
        "killed",
        lambda lab: lab.server.kill(),
        lambda lab: lab.server.restart(),
        r"does not respond.*check the server",
    ),
    Trouble(
        "frozen",
        lambda lab: lab.server.pause(),
        lambda lab: lab.server.resume(),
        r"does not respond.*check the server",
    ),
    Trouble(
        "read only",
        lambda lab: lab.role("SET default_transaction_read_only = on"),
        lambda lab: lab.role("RESET default_transaction_read_only"),
        r"takes no writes: default_transaction_read_only is on \(25006\); turn it off",
    ),
    Trouble(
        "no rights",
        lambda lab: lab.may_write(False),
        lambda lab: lab.may_write(True),
        r"refuses this user \(42501\).*the user needs USAGE",
        code=1,
    ),
    Trouble(
        "password rotated",
        lambda lab: lab.role("PASSWORD 'other'"),
        lambda lab: lab.role(f"PASSWORD '{PASSWORD}'"),
        r"refuses this user or its password \(28P01, 28000\); give store.url",
        code=1,
    ),
    Trouble(
        "too many connections",
        lambda lab: lab.role("CONNECTION LIMIT 0"),
        lambda lab: lab.role("CONNECTION LIMIT -1"),
        r"has too many connections \(53300\); raise max_connections",
    ),
    Trouble(
        "commits without a sync",
        lambda lab: lab.set(synchronous_commit="off"),
        lambda lab: lab.set(synchronous_commit=""),
        r"may lose acknowledged writes in a crash: its synchronous_commit is off; set synchron",
        code=1,
        hurts=False,
        finding="store-unfit",
    ),
)


@pytest.fixture
def server(own_postgres: PostgresServer) -> PostgresLab:
    lab = PostgresLab(own_postgres)
    lab.prepare()
    return lab


class Replicated:
    """A primary, and a standby that confirms each commit before it is answered."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.primary = stack.enter_context(PostgresServer())
        self.standby = stack.enter_context(PostgresServer(copy_of=self.primary))
        asyncio.run(self.primary.set(synchronous_standby_names="*"))

    @property
    def url(self) -> str:
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        return self.primary.url().replace(f"127.0.0.1:{self.primary.port}", hosts)


@pytest.fixture
def replicated() -> Iterator[Replicated]:
    if reason := postgres_server.missing():
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        yield Replicated(stack)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> str:
    name = "replicated" if "replicated" in request.fixturenames else "server"
    return str(request.getfixturevalue(name).url)


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.name)
async def test_no_acknowledged_save_is_lost(
    lab: Processes, server: PostgresLab, trouble: Trouble
) -> None:
    await suffer_and_recover(lab, server, trouble)


def noticed(*nodes: NodeProcess) -> bool:
    return all(NOTICED in node.err.read_text() for node in nodes)


async def test_nothing_is_lost_by_a_failover_with_synchronous_replication_and_a_killed_node(
    lab: Processes, replicated: Replicated
) -> None:
    nodes = await lab.cluster(3, settings=QUICK_STORE)
    async with lab.client(*nodes) as client, Savers(client) as savers:
        for _ in range(3):
            await replicated.primary.ask(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'shardbus'"
            )
            await savers.proceed("saves over new connections")
        await asyncio.to_thread(replicated.primary.kill)
        await replicated.standby.promote()
        await savers.proceed("saves at the new primary")
        await until(lambda: noticed(*nodes), "the new server in the logs")
        nodes[2].signal(signal.SIGKILL)
        await nodes[2].ended()
        await savers.proceed("saves after a takeover", 10)
    for node in nodes[:2]:
        assert await node.terminate() == 0
        assert "Traceback" not in node.err.read_text()
    stored = await stored_totals(replicated.url, list(savers.ledgers))
    assert judge(savers, stored) == []
