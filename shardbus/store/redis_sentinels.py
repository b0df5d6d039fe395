"""The Sentinels of a Redis master, and a client of the master that they name.

In a failover by command (`SENTINEL FAILOVER`) the former master lives on. Sentinel makes it a
replica only seconds later, and until then it acknowledges writes that are lost. So a link asks the
Sentinels at intervals whether its server is still the master (`redis_servers`), and not only when
it connects.

The Sentinels do not switch at the same moment, and one that is cut off never does. Of the first
majority that answers, the one with the newest configuration is right. The one that leads a failover
lists the former master until the end of it, and names the new one at once.

Source: Redis's guidelines for Sentinel clients.
"""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.exceptions import RedisError

from shardbus.store.redis_client import LinkRedis

Place = tuple[str, int]
"""The host and port of a server, as the Sentinels write them."""


class Sentinels(Sentinel):
    """Clients of the Sentinels, which find the master of a name."""

    async def discover_master(self, service_name: str) -> Place:
        """Return the place of the master by the newest configuration that a majority knows.

        Raises:
            MasterNotFoundError: no Sentinel knows one that is up.
        """
        asks = [asyncio.ensure_future(_named(each, service_name)) for each in self.sentinels]
        answers: list[tuple[int, Place | None]] = []
        errors: list[Exception] = []
        try:
            for answer in asyncio.as_completed(asks):
                try:
                    answers.append(await answer)
                except (RedisError, OSError) as error:
                    errors.append(error)
                if len(answers) > len(asks) / 2:
                    break
        finally:
            for task in asks:
                task.cancel()
            await asyncio.gather(*asks, return_exceptions=True)
        newest = max((epoch for epoch, _ in answers), default=0)
        for epoch, place in answers:
            if epoch == newest and place is not None:
                return place
        why = "".join(f": {error}" for error in errors[:1])
        raise MasterNotFoundError(f"No master found for {service_name!r}{why}")


class SentinelClient:
    """A client of the master that `sentinels` name `name`; `settings` are those of the master's
    client. Closing it also closes the connections to the Sentinels."""

    def __init__(self, sentinels: Sentinels, name: str, **settings: Any) -> None:
        self._sentinels, self._name = sentinels, name
        master: Any = sentinels.master_for(name, LinkRedis, **settings)
        self._master: LinkRedis = master
        self.pipeline = master.pipeline
        self.execute_command, self.exchange = master.execute_command, master.exchange
        self.begin, self.rest = master.begin, master.rest
        self.scan, self.info = master.scan, master.info
        self.place, self.hang_up = master.place, master.hang_up

    async def find_master(self) -> Place:
        """Return the place of the master that the Sentinels name now.

        Raises:
            RedisError, OSError: they name none.
        """
        return await self._sentinels.discover_master(self._name)

    async def aclose(self) -> None:
        try:
            await self._master.aclose()
        finally:
            for client in self._sentinels.sentinels:
                await client.aclose()


async def _named(sentinel: Any, name: str) -> tuple[int, Place | None]:
    """Return the number of the configuration that this Sentinel has, and the place of the master:
    None if it names none, or one that is down.

    Raises:
        RedisError, OSError: it does not answer.
    """
    # By name: the methods of some versions of the library fail over arguments of their own.
    state = (await sentinel.execute_command("SENTINEL MASTERS")).get(name)
    named = await sentinel.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", name)
    if state is None or not named:
        return -1, None
    host, port = named
    place = (host.decode() if isinstance(host, bytes) else str(host), int(port))
    was_promoted = place != (state["ip"], state["port"])
    is_down = state["is_sdown"] or state["is_odown"]
    is_up = was_promoted or (state["is_master"] and not is_down)
    return state["config-epoch"], place if is_up else None
