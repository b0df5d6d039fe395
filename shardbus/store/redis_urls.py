"""Redis URLs and the clients for them: one server, the master that Sentinels name, or a Redis
Cluster.

Timeouts are explicit and the client library's own retries are off, because its defaults last longer
than a lease. With TLS, the certificate and the host name of the server are always checked.

Source: docs/reference/settings.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import msgspec
from redis.asyncio import RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from shardbus.errors import ConfigError
from shardbus.ids import Address
from shardbus.store.redis_client import LinkRedis
from shardbus.store.redis_link import RedisClient
from shardbus.store.redis_sentinels import SentinelClient, Sentinels
from shardbus.store.urls import check_durability, mask_url, split_options

DURABILITIES = ("disk", "cache", "fsync")
TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
SENTINEL_OPTIONS = ("master", "sentinel_username", "sentinel_password")
PORTS = {"redis": 6379, "redis+cluster": 6379, "redis+sentinel": 26379}


class RedisUrl(msgspec.Struct, frozen=True):
    """The parts of a Redis URL. `kind` is its scheme without the `s` of TLS."""

    kind: str
    tls: bool
    hosts: tuple[Address, ...]
    db: int
    username: str | None
    password: str | None
    options: dict[str, str]
    durability: str
    replicas: int
    """Replicas that must have a write before it is answered."""

    @classmethod
    def parse(cls, url: str) -> RedisUrl:
        """Read `scheme://[user[:password]@]host[:port][,host[:port]...][/db][?option=value&...]`.

        Raises:
            ConfigError: the URL is not of that form, or an option is unknown or misplaced.
        """
        scheme, _, rest = url.partition("://")
        kind = scheme.replace("rediss", "redis", 1)
        tls = scheme != kind
        allowed = ("durability", "replicas", *(TLS_OPTIONS if tls else ()))
        allowed += SENTINEL_OPTIONS if kind == "redis+sentinel" else ()
        base, options = split_options(url, allowed)
        rest = base.partition("://")[2]
        user_info, _, place = rest.rpartition("@")
        username, _, password = user_info.partition(":")
        netloc, _, db = place.partition("/")
        durability = check_durability(options.pop("durability", "disk"), DURABILITIES)
        replicas = options.pop("replicas", "0")
        problem = _problem(kind, netloc, db, options, replicas)
        if problem:
            raise ConfigError(f"store.url: {mask_url(url)!r} {problem}")
        try:
            hosts = tuple(_address(host, PORTS[kind]) for host in netloc.split(","))
        except ConfigError:  # its text may hold a part of the password
            raise ConfigError(
                f"store.url: {mask_url(url)!r} names no valid host",
                hint="write host:port, and percent-encode the password",
            ) from None
        return cls(
            kind,
            tls,
            hosts,
            int(db or 0),
            unquote(username) or None,
            unquote(password) or None,
            options,
            durability,
            int(replicas),
        )

    def connector(self, timeout: float) -> Callable[[], RedisClient]:
        """Return a function that creates a client. Each client connects at its first command, and
        then finds the current master."""
        shared, settings = self._shared(timeout), self._settings(timeout)
        match self.kind:
            case "redis+cluster":
                return lambda: self._cluster(settings)
            case "redis+sentinel":
                return lambda: self._by_sentinels(shared, settings)
            case _:
                host = self.hosts[0]
                return lambda: LinkRedis(
                    host=host.host, port=host.port, db=self.db, retry=_no_retry(), **settings
                )

    def _shared(self, timeout: float) -> dict[str, Any]:
        """Return the arguments that clients of servers and of Sentinels have in common."""
        shared: dict[str, Any] = {
            "socket_timeout": timeout / 2,
            "socket_connect_timeout": timeout / 4,
            "protocol": 2,
        }
        if self.tls:
            shared |= {"ssl": True, "ssl_cert_reqs": "required", "ssl_check_hostname": True}
            shared |= {name: self.options[name] for name in TLS_OPTIONS if name in self.options}
        return shared

    def _settings(self, timeout: float) -> dict[str, Any]:
        """Return the arguments of clients of servers. A call to a server has the deadline of its
        caller and no other one, which would cost a task for each batch of commands."""
        login = {"username": self.username, "password": self.password}
        return {**self._shared(timeout), **login, "socket_timeout": None}

    def node_connector(self, timeout: float) -> Callable[[Address], RedisClient]:
        """Return a function that creates a client of one node of a cluster."""
        settings = self._settings(timeout)
        return lambda node: LinkRedis(host=node.host, port=node.port, retry=_no_retry(), **settings)

    def _by_sentinels(self, shared: dict[str, Any], settings: dict[str, Any]) -> RedisClient:
        login = {
            "username": self.options.get("sentinel_username"),
            "password": self.options.get("sentinel_password"),
        }
        sentinels = Sentinels(  # type: ignore[no-untyped-call]
            [(host.host, host.port) for host in self.hosts],
            sentinel_kwargs={**shared, **login, "retry": _no_retry()},
        )
        return SentinelClient(
            sentinels, self.options["master"], db=self.db, retry=_no_retry(), **settings
        )

    def _cluster(self, settings: dict[str, Any]) -> RedisClient:
        nodes = [ClusterNode(host.host, host.port) for host in self.hosts]
        return RedisCluster(
            startup_nodes=nodes, retry=_no_retry(), require_full_coverage=False, **settings
        )


def _no_retry() -> Retry:
    return Retry(NoBackoff(), 0)


def _problem(kind: str, netloc: str, db: str, options: dict[str, str], replicas: str) -> str:
    if not netloc:
        return "names no host"
    if kind == "redis" and "," in netloc:
        return "names several hosts: write redis+sentinel:// or redis+cluster://"
    if kind == "redis+sentinel" and not options.get("master"):
        return "does not name the master: add ?master=<name>"
    if not (replicas.isascii() and replicas.isdigit() and len(replicas) == 1):
        return "must have a number of replicas from 0 to 9"
    if db and not (db.isascii() and db.isdigit()):
        return "must end in the number of a database"
    if kind == "redis+cluster" and db not in ("", "0"):
        return "names a database: a Redis Cluster has only 0"
    return ""


def _address(host: str, port: int) -> Address:
    bare = host.endswith("]") or ":" not in host
    return Address.parse(f"{host}:{port}" if bare else host)
