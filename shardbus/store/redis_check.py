"""Check, when the store starts, that a Redis server will not lose data.

A server that may evict keys, or that keeps nothing on disk, is refused; the error names the setting
of the server. A server that hides its settings (a managed service that forbids INFO or CONFIG) is
accepted with a warning.

Source: N.7.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

from shardbus.errors import ConfigError, StoreUnavailable
from shardbus.store.redis_link import RedisClient

OLDEST = (6, 0)
FIRST_WITH_WAITAOF = (7, 2)

log = logging.getLogger("shardbus.store")


async def check_server(client: RedisClient, shown: str, durability: str, within: float) -> bool:
    """Check the server within `within` seconds. Returns True if each write must wait for a sync of
    the server's log.

    Raises:
        ConfigError: the server is unfit, or refuses the user; the message names the setting.
        StoreUnavailable: the server does not answer, or is a replica.
    """
    try:
        async with asyncio.timeout(within):
            await client.execute_command("EVAL", "return 1", 0)
            answer = await _ask(client, "INFO")
            save = _value(await _ask(client, "CONFIG GET", "save"))
            appendfsync = _value(await _ask(client, "CONFIG GET", "appendfsync"))
    except (AuthenticationError, NoPermissionError) as error:
        raise ConfigError(
            f"store.url: {shown} refuses this user: {error}",
            hint="check user and password; the user needs the keys shardbus:* and +@scripting",
        ) from None
    except Exception as error:  # The client library's errors have no common root.
        cause = str(error) or f"no answer within {within:g} s"
        raise StoreUnavailable(f"{shown} cannot be reached: {cause}") from None
    for info in _servers(answer):
        judge(info, save, appendfsync, shown, durability)
    if answer is None:
        log.warning("%s hides its settings: it may evict keys, or keep nothing on disk", shown)
    return durability == "fsync" and appendfsync != "always"


def judge(
    info: dict[str, Any], save: str | None, appendfsync: str | None, shown: str, durability: str
) -> None:
    """Check the settings of one server. `save` and `appendfsync` are None if the server hides them.

    Raises:
        ConfigError: the server is unfit.
        StoreUnavailable: the server is a replica.
    """
    version = _version(str(info.get("redis_version", "")))
    if version and version < OLDEST:
        raise ConfigError(
            f"store.url: {shown} is Redis {info['redis_version']}, shardbus needs 6.0 or later"
        )
    if info.get("role") == "slave":
        raise StoreUnavailable(f"{shown} is a replica", hint="name the master, or its Sentinels")
    policy = str(info.get("maxmemory_policy", ""))
    if policy.startswith("allkeys"):
        raise ConfigError(
            f"store.url: {shown} may evict stored data: its maxmemory-policy is {policy}",
            hint="set maxmemory-policy to noeviction",
        )
    if durability == "cache" or "aof_enabled" not in info:
        return
    appends = bool(int(info["aof_enabled"]))
    waits = version >= FIRST_WITH_WAITAOF and appendfsync != "no"
    syncs = appends and (waits or appendfsync == "always")
    if durability == "fsync" and not syncs:
        raise ConfigError(
            f"store.url: {shown} cannot sync each write",
            hint="set appendonly to yes and appendfsync to always (or to everysec, from Redis 7.2)",
        )
    if not appends and save == "":
        raise ConfigError(
            f"store.url: {shown} keeps nothing on disk: appendonly is no and save is empty",
            hint="set appendonly to yes, or accept the loss with ?durability=cache",
        )
    if not appends:
        log.warning(
            "%s keeps only snapshots: a crash loses newer writes; set appendonly to yes", shown
        )


async def _ask(client: RedisClient, *command: str) -> Any:
    try:
        return await client.execute_command(*command)
    except ResponseError:
        return None


def _servers(answer: Any) -> list[dict[str, Any]]:
    """Return the INFO of each server: one, or all servers of a cluster."""
    if not answer:
        return []
    nested = [value for value in answer.values() if isinstance(value, dict) and "role" in value]
    return nested or [answer]


def _value(answer: Any) -> str | None:
    """Return the value in the answer to CONFIG GET of one setting: a mapping, a list, or empty."""
    if not answer:
        return None
    values = list(answer.values()) if isinstance(answer, dict) else answer[1::2]
    value = values[0]
    if isinstance(value, dict):
        return _value(value)
    return value.decode() if isinstance(value, bytes) else str(value)


def _version(text: str) -> tuple[int, ...]:
    parts = text.split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()
