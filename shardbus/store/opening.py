"""Open the store that a URL names.

| URL | store |
|---|---|
| `memory://` | in this process, gone with it |
| `sqlite:///relative.db`, `sqlite:////absolute.db` | a file; `?durability=cache` syncs less |
| `redis://[user:password@]host[:port][/db]`, `rediss://` with TLS | one server |
| `redis+sentinel://host:port,host:port[/db]?master=name` | the master that the sentinels name |
| `redis+cluster://host:port,host:port` | a Redis Cluster, found through any of these nodes |
| `postgresql://[user[:password]@]host[:port][,host...][/db]` | PostgreSQL, the server that writes |
| `cluster://host:port,host:port,...` | the replicas of the cluster's nodes; `?durability=memory` |

`rediss+sentinel` and `rediss+cluster` use TLS. Any other scheme is looked up in the entry point
group `shardbus.stores`; an entry is a callable `(url, *, cluster, timeout) -> StateStore`. The
module of a store and its client library are imported only when a URL needs them.

Source: docs/architecture.md; docs/reference/settings.md; N.23.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from math import inf
from urllib.parse import quote

from shardbus.config.replicas import SCHEME, is_in_memory, replicas_of
from shardbus.config.settings import SecuritySettings
from shardbus.error_text import described
from shardbus.errors import ConfigError
from shardbus.store import urls
from shardbus.store.guarded import GuardedStore
from shardbus.store.memory import MemoryStore
from shardbus.store.protocol import StateStore
from shardbus.tasks.interrupts import raise_interrupt

ENTRY_POINTS = "shardbus.stores"
DURABILITIES = ("disk", "cache")


def open_store(
    url: str,
    *,
    cluster: str,
    timeout: float = 2.0,
    guard: bool = False,
    security: SecuritySettings | None = None,
    start_within: float = inf,
) -> StateStore:
    """Return the store that `url` names, not started yet. `timeout` bounds each of its calls, in
    seconds. With `guard`, as a node needs it, a plug-in is called in a thread, with a deadline
    (`guarded`). `security`: the files of the keys with which replicas are reached. `start_within`:
    seconds for which the start waits for a majority of replicas.

    Raises:
        ConfigError: the scheme is unknown, or the URL is wrong.
    """
    scheme, mark, _ = url.partition("://")
    if not mark:
        raise ConfigError(f"store.url: {urls.mask_url(url)!r} is not a URL", hint=_hint())
    if timeout <= 0:
        raise ConfigError(f"store.timeout must be above 0, not {timeout:g}")
    if scheme == "memory":
        if url != "memory://":
            raise ConfigError(
                f"store.url: memory:// stands alone, not as in {urls.mask_url(url)!r}"
            )
        return MemoryStore()
    if scheme == "sqlite":
        return _open_sqlite(url, cluster, timeout)
    if scheme in urls.REDIS_SCHEMES:
        return _open_redis(url, cluster, timeout)
    if scheme in urls.POSTGRES_SCHEMES:
        return _open_postgres(url, cluster, timeout)
    if scheme == SCHEME:
        security = security or SecuritySettings()
        return _open_replicated(url, cluster, timeout, security, start_within)
    store = _open_other(scheme, url, cluster, timeout)
    return GuardedStore(store, urls.mask_url(url), timeout) if guard else store


def _open_sqlite(url: str, cluster: str, timeout: float) -> StateStore:
    from shardbus.store.sqlite import SqliteStore

    base, options = urls.split_options(url, ("durability",))
    path = base.removeprefix("sqlite:///")
    if path == base:
        raise ConfigError(
            f"store.url: {urls.mask_url(url)!r} names a host",
            hint="write sqlite:///relative.db or sqlite:////absolute.db",
        )
    if path in ("", ":memory:"):
        raise ConfigError(
            f"store.url: {urls.mask_url(url)!r} names no file",
            hint="for a store in memory write memory://",
        )
    durability = urls.check_durability(options.get("durability", "disk"), DURABILITIES)
    return SqliteStore(path, cluster=cluster, timeout=timeout, full_sync=durability == "disk")


def _open_redis(url: str, cluster: str, timeout: float) -> StateStore:
    try:
        from shardbus.store.redis import RedisStore
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"store.url: {urls.mask_url(url)!r} needs the package {error.name!r}",
            hint="pip install redis",
        ) from None
    return RedisStore(url, f"shardbus:{quote(cluster, safe='')}", timeout=timeout)


def _open_postgres(url: str, cluster: str, timeout: float) -> StateStore:
    try:
        from shardbus.store.postgres import PostgresStore
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"store.url: {urls.mask_url(url)!r} needs the package {error.name!r}",
            hint="pip install 'shardbus[postgres]'",
        ) from None
    return PostgresStore(url, cluster, timeout=timeout)


def _open_replicated(
    url: str, cluster: str, timeout: float, security: SecuritySettings, start_within: float
) -> StateStore:
    from shardbus.store.replicated import ReplicatedStore
    from shardbus.transport.zmq.curve import Keyring
    from shardbus.transport.zmq.network import ZmqNetwork

    is_in_memory(url)
    addresses = replicas_of(url)
    if not addresses:
        raise ConfigError(
            "store.url: cluster:// names no replica",
            hint="a node takes them from node.seeds, and runs its own; elsewhere write"
            " cluster://host:port,...",
        )

    def network() -> ZmqNetwork:
        return ZmqNetwork(Keyring.at(security.secret, security.keys, security.allowed))

    return ReplicatedStore(
        url, cluster, addresses, network, timeout=timeout, start_within=start_within
    )


def _open_other(scheme: str, url: str, cluster: str, timeout: float) -> StateStore:
    entry = next(iter(entry_points(group=ENTRY_POINTS, name=scheme)), None)
    if entry is None:
        shown = urls.mask_url(url)
        raise ConfigError(f"store.url: no store is known by the scheme of {shown!r}", hint=_hint())
    try:
        opener: Callable[..., StateStore] = entry.load()
    except BaseException as error:
        raise_interrupt(error)
        raise ConfigError(
            f"store.url: the plugin {entry.value!r} for {scheme!r} cannot be loaded:"
            f" {described(error, 500)}"
        ) from error
    try:
        return opener(url, cluster=cluster, timeout=timeout)
    except ConfigError:
        raise
    except BaseException as error:
        raise_interrupt(error)
        raise ConfigError(
            f"store.url: the plugin {entry.value!r} for {scheme!r} cannot open"
            f" {urls.mask_url(url)!r}: {described(error, 500)}"
        ) from error


def _hint() -> str:
    plugged = sorted({entry.name for entry in entry_points(group=ENTRY_POINTS)})
    schemes = ("memory", "sqlite", *urls.REDIS_SCHEMES, *urls.POSTGRES_SCHEMES, SCHEME, *plugged)
    return f"known schemes are {', '.join(schemes)}"
