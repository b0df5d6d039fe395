"""PostgreSQL URLs: their parts, the server that is found, refusals."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from shardbus.errors import ConfigError
from shardbus.ids import Address
from shardbus.store import postgres_urls
from shardbus.store.opening import open_store
from shardbus.store.postgres import PostgresStore
from shardbus.store.postgres_errors import ServerTrouble
from shardbus.store.postgres_urls import PostgresUrl


def test_the_parts_of_a_url() -> None:
    url = PostgresUrl.parse(
        "postgresql://bus:p%40ss%2Fword@a:1,[::1]:2,c/shop%20db?schema=carts&connections=9"
        "&sslmode=verify-full&target_session_attrs=read-write&durability=cache"
    )
    assert url.hosts == (Address("a", 1), Address("::1", 2), Address("c", 5432))
    assert (url.username, url.password, url.database) == ("bus", "p@ss/word", "shop db")
    assert (url.schema, url.connections, url.durability) == ("carts", 9, "cache")
    plain = PostgresUrl.parse("postgres://h")
    assert (plain.hosts, plain.database, plain.username, plain.password) == (
        (Address("h", 5432),), None, None, None,
    )  # fmt: skip
    assert (plain.schema, plain.connections, plain.durability) == ("shardbus", 4, "disk")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://", "names no host"),
        ("postgresql:///db", "names no host"),
        ("postgresql://h:port/db", "names no valid host"),
        ("postgresql://h/db?retry=1", "known are durability"),
        ("postgresql://h/db?durability=fsync", "disk, cache"),
        ("postgresql://h/db?schema=Carts", "no name"),
        ('postgresql://h/db?schema=a"b', "no name"),
        ("postgresql://h/db?connections=0", "1 to 64"),
        ("postgresql://h/db?connections=many", "no number"),
        ("postgresql://h/db?target_session_attrs=any", "a node must write"),
        ("postgresql://h/db?sslmode=allow", "disable, prefer, require"),
        ("postgresql://h/db?sslmode=verify-ca&sslrootcert=no.pem", "cannot be read"),
        ("postgresql://bus:hush@h/db?schema=1", "bus:\\*\\*\\*@h"),
    ],
)
def test_a_wrong_postgresql_url_is_refused_in_words(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        open_store(url, cluster="shop")
    assert "hush" not in str(refused.value)


def test_both_schemes_open_the_store() -> None:
    for scheme in ("postgresql", "postgres"):
        assert isinstance(open_store(f"{scheme}://h/db", cluster="shop"), PostgresStore)


@pytest.mark.parametrize(
    ("mode", "checks", "names"),
    [
        ("require", ssl.CERT_NONE, False),
        ("verify-ca", ssl.CERT_REQUIRED, False),
        ("verify-full", ssl.CERT_REQUIRED, True),
    ],
)
def test_certificates_and_names_are_checked_as_asked(
    mode: str, checks: ssl.VerifyMode, names: bool
) -> None:
    context = PostgresUrl.parse(f"postgresql://h/db?sslmode={mode}")._tls()
    assert (context.verify_mode, context.check_hostname) == (checks, names)
    assert PostgresUrl.parse("postgresql://h/db")._tls() == "prefer"
    assert PostgresUrl.parse("postgresql://h/db?sslmode=disable")._tls() is False


class Connection:
    """The result of `connect`: a server in some state."""

    def __init__(self, host: str, standby: bool, read_only: bool, pooled: bool = False) -> None:
        self.host, self.terminated, self.pooled = host, False, pooled
        self._row = {"standby": standby, "read_only": read_only, "server": host}

    async def fetchrow(self, query: str) -> Any:
        return self._row

    async def execute(self, query: str) -> str:
        assert query.endswith("pg_backend_pid() = 7")
        return f"SELECT {int(not self.pooled)}"

    def get_server_pid(self) -> int:
        return 7

    def terminate(self) -> None:
        self.terminated = True


class Servers:
    """The state of each host: `writes`, `standby`, `read-only`, `away`, `refuses` or `pooled`."""

    def __init__(self, **states: str) -> None:
        self.states = states
        self.hosts: list[str] = []
        self.settings: dict[str, Any] = {}
        self.made: list[Connection] = []

    async def connect(self, *, host: str, port: int, **settings: Any) -> Connection:
        self.hosts.append(host)
        self.settings = settings
        state = self.states[host]
        if state == "away":
            raise ConnectionRefusedError(111, "refused")
        if state == "refuses":
            raise asyncpg.InvalidPasswordError("no")
        self.made.append(
            Connection(host, state == "standby", state == "read-only", state == "pooled")
        )
        return self.made[-1]


async def found(servers: Servers, connect: Any) -> str:
    servers.hosts.clear()
    return str((await connect()).connection.host)


async def test_the_server_that_takes_writes_is_found_and_asked_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers = Servers(a="away", b="standby", c="writes", d="read-only")
    monkeypatch.setattr(postgres_urls.asyncpg, "connect", servers.connect)
    connect = PostgresUrl.parse("postgresql://bus:hush@a,b,c,d/db").connector(2.0)
    assert await found(servers, connect) == "c"
    assert servers.hosts == ["a", "b", "c"]
    assert (servers.settings["user"], servers.settings["password"]) == ("bus", "hush")
    assert await found(servers, connect) == "c"
    assert servers.hosts == ["c"]
    servers.states |= {"b": "writes", "c": "away"}
    assert await found(servers, connect) == "b"
    assert servers.hosts == ["c", "d", "a", "b"]


async def test_why_no_server_is_of_use_is_told_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = Servers(a="away", b="standby", c="read-only")
    monkeypatch.setattr(postgres_urls.asyncpg, "connect", servers.connect)
    connect = PostgresUrl.parse("postgresql://a,b,c/db").connector(2.0)
    with pytest.raises(ServerTrouble) as failed:
        await connect()
    assert failed.value.trouble.again
    for text in ("a:5432 does not respond", "b:5432 is a standby", "c:5432 takes no writes"):
        assert text in failed.value.trouble.what
    servers.states["b"] = "refuses"
    with pytest.raises(ServerTrouble, match="refuses this user"):
        await connect()


async def test_a_connection_to_a_standby_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Connection] = []

    async def connect(**settings: Any) -> Connection:
        made.append(Connection("a", True, False))
        return made[-1]

    monkeypatch.setattr(postgres_urls.asyncpg, "connect", connect)
    with pytest.raises(ServerTrouble, match="standby"):
        await PostgresUrl.parse("postgresql://a/db").connector(2.0)()
    assert [connection.terminated for connection in made] == [True]


async def test_statements_are_kept_at_a_server_and_not_behind_a_pooler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another connection of the pooler does not know them, or knows others by their names."""
    servers = Servers(a="writes")
    monkeypatch.setattr(postgres_urls.asyncpg, "connect", servers.connect)
    connect = PostgresUrl.parse("postgresql://a/db").connector(2.0)
    await connect()
    assert servers.settings["statement_cache_size"] > 0
    servers.states["a"] = "pooled"
    connection: Any = (await connect()).connection
    assert servers.settings["statement_cache_size"] == 0
    assert [link.terminated for link in servers.made] == [False, True, False]
    assert connection is servers.made[-1]
    connection = (await connect()).connection
    assert servers.settings["statement_cache_size"] == 0
    assert len(servers.made) == 4, "it is known now"


def test_files_of_certificates_are_read_when_the_store_is_opened(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(ConfigError, match="check sslrootcert"):
        open_store(f"postgresql://h/db?sslmode=require&sslrootcert={tmp_path}/ca.pem", cluster="c")
