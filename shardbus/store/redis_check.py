"""Check that a Redis server will not lose data, and that its user has the permissions that the
store needs.

At the start, a server that may evict keys, or that keeps nothing on disk, is refused; the error
names the setting of the server. A server that hides its settings (a managed service that forbids
INFO or CONFIG) is accepted with a warning. So is one that takes no writes at the moment, because
its data can be read; the first write then fails with the cause.

Settings change while the server runs, and a failover brings another server. So the check of the
settings is repeated every `REPEAT_S`. A fault found then does not stop a node that runs; the log
and `shardbus doctor` name it.

Redis 7 and 8 check the rights of the user `default` again when they read their append-only file: a
script's writes, which stand there as a transaction, are left out if that user lacks a right,
although the server had acknowledged them (`findings/redis_leaves_scripts_out.sh`). So such a server
is unfit. Only a user with the right `acl|dryrun` can see it; Valkey is not concerned.

Source: N.7.
"""

from __future__ import annotations

import asyncio
from typing import Any

from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

from shardbus.errors import ConfigError, StoreUnavailable
from shardbus.store.redis_errors import LACKS, trouble_of
from shardbus.store.redis_link import RedisClient
from shardbus.store.redis_scripts import ACCESS

OLDEST = (6, 0)
FIRST_WITH_WAITAOF = (7, 2)
REPEAT_S = 30.0
WRITES = (("HSET", 2), ("HDEL", 1), ("ZADD", 2), ("ZREM", 1), ("DEL", 0))
"""Commands that scripts write with, and how many arguments follow the key."""


async def check_server(
    client: RedisClient, key: str, shown: str, durability: str, within: float
) -> tuple[bool, list[str]]:
    """Check the settings of the server within `within` seconds. `key`: any that is written. Returns
    whether each write must wait for a sync of the server's log, and warnings.

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
            denied = await _denied_to_default(client, key)
    except (AuthenticationError, NoPermissionError) as error:
        raise _refused(shown, error) from None
    except Exception as error:  # The client library's errors have no common root.
        if LACKS in trouble_of(error).what:
            raise _refused(shown, error) from None
        cause = str(error).rstrip(".") or f"no answer within {within:g} s"
        hint = trouble_of(error).hint
        if "closed by server" in cause:
            hint += ", and name the server itself if a proxy that lacks its commands is between"
        raise StoreUnavailable(f"{shown} cannot be reached: {cause}", hint=hint) from None
    warnings = []
    for info in _servers(answer):
        warnings += judge(info, save, appendfsync, shown, durability, denied)
    if answer is None:
        warnings.append(f"{shown} hides its settings: it may evict keys, or keep nothing on disk")
    return durability == "fsync" and appendfsync != "always", warnings


async def check_access(client: RedisClient, prefix: str, shown: str, within: float) -> None:
    """Check that the server has every command of the scripts, and that the user may run them on the
    keys under `prefix`.

    Raises:
        ConfigError: the server lacks a command, or refuses the user a command or a key.
    """
    keys = (f"{prefix}:{{access}}:hash", f"{prefix}:{{access}}:set")
    try:
        async with asyncio.timeout(within):
            await client.execute_command("EVAL", ACCESS.source, len(keys), *keys)
    except Exception as error:  # The client library's errors have no common root.
        what = trouble_of(error).what
        if "NOPERM" in what or LACKS in what:
            raise _refused(shown, error) from None


def _refused(shown: str, error: Exception) -> ConfigError:
    trouble = trouble_of(error)
    return ConfigError(f"store.url: {shown} {trouble.what}", hint=trouble.hint)


def judge(
    info: dict[str, Any],
    save: str | None,
    appendfsync: str | None,
    shown: str,
    durability: str,
    denied: str = "",
) -> list[str]:
    """Check the settings of one server, and return warnings. `save` and `appendfsync` are None if
    the server hides them. `denied`: a command that the user `default` may not run, if known.

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
        return []
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
    if appends and denied and "valkey_version" not in info:
        raise ConfigError(
            f"store.url: {shown} leaves out writes of scripts when it starts again: its user "
            f"'default' may not run {denied}, and it reads its append-only file as that user",
            hint="ACL SETUSER default ~* &* +@all; the user may stay off",
        )
    if appends:
        return []
    return [f"{shown} keeps only snapshots: a crash loses newer writes; set appendonly to yes"]


async def _denied_to_default(client: RedisClient, key: str) -> str:
    """Return a command of the scripts that the user `default` may not run on `key`;
    empty if there is none, or if this user may not look."""
    for command, values in WRITES:
        arguments = (command, key, *["1"] * values)
        answer = await _ask(client, "ACL DRYRUN", "default", *arguments)
        if answer is None:
            return ""
        if answer not in (True, b"OK", "OK"):
            return command
    return ""


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
