"""PostgreSQL URLs, and connections to the server among theirs that takes writes.

The hosts are tried in turn, beginning with the last one found. A standby is passed over, so a URL
that names all servers of a replicated database follows a failover.

A pooler, such as PgBouncer, may lead each transaction to another connection of the server. A
prepared statement that a client knows by name is then unknown there, or is another client's. So
each new connection finds out whether a pooler stands between: the server process that answers then
differs from the one named in the greeting. Behind a pooler, statements have no names, and each is
prepared again, in the transaction that runs it. That is right in every mode of a pooler, and costs
a round trip more. `CREATE` is one message, and its lock ends with it; nothing else leaves anything
behind in a session.

Every step has a deadline well below the length of a lease. With `sslmode=verify-full` the
certificate and the host name of the server are checked; the default `prefer` is libpq's, and keeps
no secret from an attacker who can change packets.

Source: docs/reference/settings.md.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Protocol
from urllib.parse import unquote

import asyncpg  # type: ignore[import-untyped]
import msgspec

from shardbus.errors import ConfigError
from shardbus.ids import Address
from shardbus.store import postgres_statements as sql
from shardbus.store.postgres_errors import READ_ONLY, STANDBY, ServerTrouble, trouble_of
from shardbus.store.trouble import Trouble
from shardbus.store.urls import check_durability, mask_url, split_options

DURABILITIES = ("disk", "cache")
SSL_MODES = ("disable", "prefer", "require", "verify-ca", "verify-full")
OPTIONS = (
    "durability", "schema", "connections", "target_session_attrs",
    "sslmode", "sslrootcert", "sslcert", "sslkey",
)  # fmt: skip
PORT = 5432
CONNECTIONS, CONNECTIONS_MAX = 4, 64
STATEMENTS_KEPT = 50
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class PostgresConnection(Protocol):
    """The methods of an asyncpg connection that the store uses."""

    async def fetch(self, query: str, *args: Any) -> list[Any]: ...
    async def fetchrow(self, query: str, *args: Any) -> Any: ...
    async def execute(self, query: str, *args: Any) -> str: ...
    async def close(self) -> None: ...
    def terminate(self) -> None: ...
    def is_closed(self) -> bool: ...
    def get_server_pid(self) -> int: ...


class FoundServer(msgspec.Struct, frozen=True):
    """A connection to the server that takes writes. `identity` names the server, and changes when
    it restarts and when another one takes over."""

    connection: PostgresConnection
    identity: str


class PostgresUrl(msgspec.Struct, frozen=True):
    """The parts of a PostgreSQL URL."""

    hosts: tuple[Address, ...]
    database: str | None
    username: str | None
    password: str | None
    schema: str
    connections: int
    durability: str
    options: dict[str, str]

    @classmethod
    def parse(cls, url: str) -> PostgresUrl:
        """Read `postgresql://[user[:password]@]host[:port][,host...][/db][?option=value&...]`.

        Raises:
            ConfigError: the URL is not of that form, or an option is unknown or wrong.
        """
        base, options = split_options(url, OPTIONS)
        user_info, _, place = base.partition("://")[2].rpartition("@")
        username, _, password = user_info.partition(":")
        netloc, _, database = place.partition("/")
        durability = check_durability(options.pop("durability", "disk"), DURABILITIES)
        schema = options.pop("schema", "shardbus")
        connections = options.pop("connections", str(CONNECTIONS))
        problem = _problem(netloc, schema, connections, options)
        if problem:
            raise ConfigError(f"store.url: {mask_url(url)!r} {problem}")
        try:
            hosts = tuple(_address(host) for host in netloc.split(","))
        except ConfigError:  # its text may hold a part of the password
            raise ConfigError(
                f"store.url: {mask_url(url)!r} names no valid host",
                hint="write host:port, and percent-encode the password",
            ) from None
        return cls(
            hosts,
            unquote(database) or None,
            unquote(username) or None,
            unquote(password) or None,
            schema,
            int(connections),
            durability,
            options,
        )

    def connector(self, timeout: float) -> Callable[[], Awaitable[FoundServer]]:
        """Return a function that connects to the server that takes writes. A host has half of
        `timeout`, in seconds, to answer; of several, each has a quarter. Its errors are asyncpg's,
        and `ServerTrouble`.

        Raises:
            ConfigError: a file with certificates cannot be read.
        """
        settings: dict[str, Any] = {
            "user": self.username,
            "password": self.password,
            "database": self.database,
            "ssl": self._tls(),
            "server_settings": {"application_name": "shardbus"},
        }
        return _Hosts(self.hosts, settings, timeout / min(4, 2 * len(self.hosts))).connect

    def _tls(self) -> Any:
        """Return the argument `ssl` of asyncpg."""
        mode = self.options.get("sslmode", "prefer")
        if mode == "disable":
            return False
        if mode == "prefer":
            return mode
        try:
            context = ssl.create_default_context(cafile=self.options.get("sslrootcert"))
            if "sslcert" in self.options:
                context.load_cert_chain(self.options["sslcert"], self.options.get("sslkey"))
        except OSError as error:  # as ssl.SSLError is
            raise ConfigError(
                f"store.url: the certificates of the PostgreSQL URL cannot be read: {error}",
                hint="check sslrootcert, sslcert and sslkey",
            ) from None
        context.check_hostname = mode == "verify-full"
        if mode == "require":
            context.verify_mode = ssl.CERT_NONE
        return context


class _Hosts:
    """Finds the server that takes writes among `hosts`."""

    def __init__(self, hosts: tuple[Address, ...], settings: dict[str, Any], within: float) -> None:
        self._hosts, self._settings, self._within = hosts, settings, within
        self._first = 0
        """The host that is tried first: the last one that was of use, or one not tried yet."""
        self._pooled: set[Address] = set()
        """The hosts that were met as poolers, and are taken for such from then on."""

    async def connect(self) -> FoundServer:
        failed: list[tuple[Address, Trouble]] = []
        begins = self._first
        for step in range(len(self._hosts)):
            place = (begins + step) % len(self._hosts)
            self._first = place
            host = self._hosts[place]
            try:
                async with asyncio.timeout(self._within):
                    return await self._reach(host)
            except Exception as error:  # The client library's errors have no common root.
                self._first = (place + 1) % len(self._hosts)
                if len(self._hosts) == 1:
                    raise
                failed.append((host, trouble_of(error)))
        for _, trouble in failed:
            if not trouble.again:
                raise ServerTrouble(trouble)
        causes = ", ".join(f"{host} {trouble.what}" for host, trouble in failed)
        hint = "check the servers and the network, or promote a standby"
        raise ServerTrouble(Trouble(f"has no server that takes writes: {causes}", hint, again=True))

    async def _reach(self, host: Address) -> FoundServer:
        connection = await self._open(host)
        try:
            row = await connection.fetchrow(sql.SERVER)
            if row["standby"]:
                raise ServerTrouble(STANDBY)
            if row["read_only"]:
                raise ServerTrouble(READ_ONLY)
        except BaseException:
            connection.terminate()
            raise
        return FoundServer(connection, row["server"])

    async def _open(self, host: Address) -> PostgresConnection:
        """Return a connection that keeps prepared statements unless a pooler is between."""
        connection = await self._connect(host)
        try:
            pooled = await _is_pooled(connection)
        except BaseException:
            connection.terminate()
            raise
        if not pooled or host in self._pooled:
            return connection
        connection.terminate()
        self._pooled.add(host)
        return await self._connect(host)

    async def _connect(self, host: Address) -> PostgresConnection:
        kept = 0 if host in self._pooled else STATEMENTS_KEPT
        connection: PostgresConnection = await asyncpg.connect(
            host=host.host, port=host.port, statement_cache_size=kept, **self._settings
        )
        return connection


async def _is_pooled(connection: PostgresConnection) -> bool:
    """True if a pooler is between. Asks without a prepared statement, which would stay behind in
    the pooler's connection; the status of the answer has the number of rows."""
    status = await connection.execute(sql.SERVER_PROCESS % connection.get_server_pid())
    return status == "SELECT 0"


def _problem(netloc: str, schema: str, connections: str, options: dict[str, str]) -> str:
    if not netloc:
        return "names no host"
    if not _SCHEMA.fullmatch(schema):
        return "has a schema that is no name: use a-z, 0-9 and _, at most 63"
    if not (connections.isascii() and connections.isdigit() and len(connections) < 4):
        return "has connections that are no number"
    if not 1 <= int(connections) <= CONNECTIONS_MAX:
        return f"has connections outside of 1 to {CONNECTIONS_MAX}"
    if options.get("target_session_attrs", "read-write") not in ("read-write", "primary"):
        return "has target_session_attrs other than read-write: a node must write"
    if options.get("sslmode", "prefer") not in SSL_MODES:
        return f"has an sslmode that is none of {', '.join(SSL_MODES)}"
    return ""


def _address(host: str) -> Address:
    bare = host.endswith("]") or ":" not in host
    return Address.parse(f"{host}:{PORT}" if bare else host)
