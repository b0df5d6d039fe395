"""The servers of a Redis store: are they fit, and still the same?

It is one server, the master that Sentinels name, or the masters of a cluster. At the start their
settings are checked, and the permissions of the user (`redis_check`). Then a probe calls them at
intervals (`server_watch`). It notices

    another server         by its run id; a proxy may keep the connection when it changes the server
    another master         by its Sentinels; the former one may take writes (`redis_sentinels`)
    a server without keys  by the mark that each probe leaves; FLUSHALL does not restart a server

and calls `on_new_server` of the session, because writes may be lost. The probe of one server reads
its clock, too: masters of a cluster have a clock each.

Source: N.1, N.7.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Sequence

from redis.exceptions import RedisError

from shardbus.errors import ConfigError, StoreUnavailable
from shardbus.guarded_log import GuardedLog
from shardbus.ids import Address
from shardbus.store import redis_link
from shardbus.store import redis_scripts as scripts
from shardbus.store.clock import machine_clock
from shardbus.store.redis_check import check_access, check_server
from shardbus.store.redis_cluster import ClusterLink, ClusterMap
from shardbus.store.redis_keys import RedisKeys
from shardbus.store.redis_sentinels import SentinelClient
from shardbus.store.server_clock import ServerClock, clock_offset
from shardbus.store.server_watch import PROBE_S

log = GuardedLog("shardbus.store")


class RedisServers:
    """The server to which `connect` makes a client, or the masters in `cluster`. `durability`: as
    `check_server` takes it; `timeout` bounds the check of a server, in seconds. `guide`: a client
    that asks the Sentinels, if there are some, and keeps the connections to them."""

    def __init__(
        self,
        links: Sequence[redis_link.RedisLink | ClusterLink],
        session: redis_link.RedisSession,
        keys: RedisKeys,
        connect: Callable[[], redis_link.RedisClient],
        cluster: ClusterMap | None,
        durability: str,
        timeout: float,
        guide: redis_link.RedisClient | None = None,
    ) -> None:
        self._links, self._session, self._keys = links, session, keys
        self._link = links[0]
        self.connect, self._map, self._shown = connect, cluster, session.shown
        self._durability, self._timeout = durability, timeout
        self._guide = guide
        self._marks: dict[str, bytes] = {}
        """The text that each key of a probe had last."""
        self.clock = ServerClock(2 * PROBE_S) if cluster is None else None
        self.clock_offset: float | None = None

    async def check(self, prefix: str) -> bool:
        """Check the settings of all servers, and that the user may use keys under `prefix`. Returns
        whether each write must wait for a sync of a server's log.

        Raises:
            ConfigError: a server is unfit, or refuses the user.
            StoreUnavailable: a server does not answer.
        """
        fsync = False
        await self._find_masters()
        for connect, shown in self._masters():
            client = connect()
            try:
                syncs, warnings = await self._check(client, shown)
            finally:
                await _close(client)
            fsync = fsync or syncs
            for warning in warnings:
                log.warning("%s", warning)
        client = self.connect()
        try:
            await check_access(client, prefix, self._shown, self._timeout)
        finally:
            await _close(client)
        return fsync

    async def _check(self, client: redis_link.RedisClient, shown: str) -> tuple[bool, list[str]]:
        key = self._keys.probe
        return await check_server(client, key, shown, self._durability, self._timeout)

    def _masters(self) -> list[tuple[Callable[[], redis_link.RedisClient], str]]:
        """Return how to connect to each master, and its name for people."""
        slots = self._map
        if slots is None:
            return [(self.connect, self._shown)]
        masters = sorted(slots.masters)
        return [
            (lambda at=at: slots.connect(at), f"{at} of {self._shown}")  # type: ignore[misc]
            for at in masters
        ]

    async def _find_masters(self) -> None:
        """Request the map of a cluster.

        Raises:
            ConfigError: no node answers this user, or none is of a cluster.
            StoreUnavailable: no node answers.
        """
        if self._map is None:
            return
        try:
            await self._map.refresh()
        except StoreUnavailable:
            trouble = self._map.trouble
            if trouble.again:
                raise
            raise ConfigError(
                f"store.url: {self._shown} {trouble.what}", hint=trouble.hint
            ) from None

    async def probe(self) -> None:
        """Call the servers, and notice whether one has been replaced, or has lost all keys."""
        await self._follow_sentinels()
        mark = secrets.token_hex(8)
        asked_at, began = machine_clock(), time.time()
        key = self._keys.probe
        stored, run_id, server_ms = await self._link.call(scripts.PROBE, (key,), mark)
        server = int(server_ms) / 1000
        self.clock_offset = clock_offset(server, began, time.time())
        if self.clock is not None:
            self.clock.observe(server, asked_at)
        lost = self._marked(key, stored)
        if self._map is not None and isinstance(self._link, ClusterLink):
            await self._map.refresh()
            await asyncio.gather(
                *(self._probe_master(self._link, at) for at in self._map.masters),
                return_exceptions=True,
            )
        elif run_id and not lost:
            self._session.meet(run_id.decode())

    async def _follow_sentinels(self) -> None:
        """End the links to a server that is not the master any more that the Sentinels name. Does
        nothing without Sentinels, or if they name none."""
        if not isinstance(self._guide, SentinelClient):
            return
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(self._timeout):
                place = await self._guide.find_master()
                links = [link for link in self._links if isinstance(link, redis_link.RedisLink)]
                if any(link.place not in (None, place) for link in links):
                    await self._leave_former(links)

    async def _leave_former(self, links: list[redis_link.RedisLink]) -> None:
        """End the links to another server than the present master. An address may be one of two
        that it has, so run ids are compared."""
        client = self.connect()
        try:
            run_id, masters = await redis_link.run_id_of(client), await redis_link.is_master(client)
        finally:
            await _close(client)
        if run_id and masters:
            for link in links:
                link.leave(run_id)

    async def close(self) -> None:
        """Close the connections to the Sentinels."""
        if self._guide is not None:
            await _close(self._guide)

    async def _probe_master(self, link: ClusterLink, master: Address) -> None:
        """Notice whether a master of a cluster is another server, or has lost all keys."""
        assert self._map is not None
        key, text = self._map.mark(master), secrets.token_hex(8)
        stored, run_id, _ = await link.call_at(master, scripts.PROBE, (key,), text)
        if not self._marked(key, stored) and run_id:
            self._session.meet(run_id.decode(), master)

    def _marked(self, key: str, stored: bytes) -> bool:
        """Keep the mark of a probe. Returns True if the keys were lost since the last one."""
        before, self._marks[key] = self._marks.get(key), stored
        if before is None or before == stored:
            return False
        self._session.on_new_server()
        return True

    async def find_problems(self) -> tuple[str, ...]:
        """Return the faults in the servers' settings."""
        problems: tuple[str, ...] = ()
        for connect, shown in self._masters():
            client = connect()
            try:
                await self._check(client, shown)
            except ConfigError as error:
                problems += (str(error),)
            except StoreUnavailable:
                if self._map is None:
                    raise
            finally:
                await _close(client)
        return problems


async def _close(client: redis_link.RedisClient) -> None:
    with contextlib.suppress(Exception):
        await client.aclose()
