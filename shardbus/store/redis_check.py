"""Is this Redis fit to hold what must not be lost? Asked once, when the store starts.

A server that may evict our keys, or keeps nothing on disk, is refused with the setting's name. One
that does not tell (a managed service that forbids INFO or CONFIG) is taken, with a warning.

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
    """Look at the server, `within` seconds. Returns whether each write must wait for a sync.

    Raises:
        ConfigError: the server is unfit, or does not let us in; the message names the setting.
        StoreUnavailable: it does not answer, or is a replica.
    """
    try:
        async with asyncio.timeout(within):
            await client.execute_command("EVAL", "return 1", 0)
            told = await _ask(client, "INFO")
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
    for info in _servers(told):
        judge(info, save, appendfsync, shown, durability)
    if told is None:
        log.warning("%s does not tell whether it may evict keys, or keeps a log", shown)
    return durability == "fsync" and appendfsync != "always"


def judge(
    info: dict[str, Any], save: str | None, appendfsync: str | None, shown: str, durability: str
) -> None:
    """Judge one server by what it told. `save` and `appendfsync` are None where it did not.

    Raises:
        ConfigError: it is unfit.
        StoreUnavailable: it is a replica.
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
            f"store.url: {shown} may evict what is stored: its maxmemory-policy is {policy}",
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
            hint="set appendonly to yes and appendfsync to always (from Redis 7.2 on, or everysec)",
        )
    if not appends and save == "":
        raise ConfigError(
            f"store.url: {shown} keeps nothing on disk: appendonly is no and save is empty",
            hint="set appendonly to yes, or accept the loss with ?durability=cache",
        )
    if not appends:
        log.warning(
            "%s keeps snapshots only: a crash takes what is newer; set appendonly to yes", shown
        )


async def _ask(client: RedisClient, *command: str) -> Any:
    try:
        return await client.execute_command(*command)
    except ResponseError:
        return None


def _servers(told: Any) -> list[dict[str, Any]]:
    """INFO as one answer, or as one for each server of a cluster."""
    if not told:
        return []
    nested = [value for value in told.values() if isinstance(value, dict) and "role" in value]
    return nested or [told]


def _value(answer: Any) -> str | None:
    """The value of a CONFIG GET that asked for one setting: a mapping, a list, or nothing."""
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
