"""Redis URLs: their parts, the options of the client, refusals; and how a server
is judged."""

from __future__ import annotations

import re
from typing import Any

import pytest
from redis.asyncio import Redis

from shardbus.errors import ConfigError, StoreUnavailable
from shardbus.ids import Address
from shardbus.store import redis_journal_scripts, redis_scripts
from shardbus.store.opening import open_store
from shardbus.store.redis import RedisStore
from shardbus.store.redis_check import judge
from shardbus.store.redis_urls import RedisUrl


def test_the_parts_of_a_url() -> None:
    url = RedisUrl.parse(
        "rediss+sentinel://bus:p%40ss%2Fword@a:1,[::1]:2,c/3?master=m&sentinel_password=s"
    )
    assert (url.kind, url.tls, url.db) == ("redis+sentinel", True, 3)
    assert url.hosts == (Address("a", 1), Address("::1", 2), Address("c", 26379))
    assert (url.username, url.password) == ("bus", "p@ss/word")
    assert url.options == {"master": "m", "sentinel_password": "s"}
    assert url.durability == "disk"
    plain = RedisUrl.parse("redis://h?durability=cache")
    assert (plain.hosts, plain.db, plain.username, plain.password, plain.durability) == (
        (Address("h", 6379),), 0, None, None, "cache",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://", "names no host"),
        ("redis:///0", "names no host"),
        ("redis://h/x", "number of a database"),
        ("redis://h:port", "names no valid host"),
        ("redis://a,b", "redis\\+sentinel"),
        ("redis://h?retry=1", "known are durability"),
        ("redis://h?ssl_ca_certs=x", "'ssl_ca_certs'"),
        ("rediss://h?ssl_cert_reqs=none", "'ssl_cert_reqs'"),
        ("redis://h?durability=no", "disk, cache, fsync"),
        ("redis+sentinel://h", "does not name the master"),
        ("redis+cluster://h/1", "has only 0"),
        ("redis+cluster://h?replicas=all", "a number of replicas"),
        ("redis://h?replicas=-1", "a number of replicas"),
        ("redis://bus:hush@h/x", "bus:\\*\\*\\*@h"),
    ],
)
def test_a_wrong_redis_url_is_refused_in_words(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        open_store(url, cluster="shop")
    assert "hush" not in str(refused.value)


def test_the_client_has_limits_and_no_retries_of_its_own_and_checks_certificates() -> None:
    client = RedisUrl.parse("rediss://bus:hush@h:7/2?ssl_ca_certs=ca.pem").connector(2.0)()
    assert isinstance(client, Redis)
    options: dict[str, Any] = client.connection_pool.connection_kwargs
    assert (options["host"], options["port"], options["db"]) == ("h", 7, 2)
    assert (options["username"], options["password"]) == ("bus", "hush")
    assert (options["socket_timeout"], options["socket_connect_timeout"]) == (None, 0.5)
    assert options["retry"]._retries == 0  # `get_retries` came with version 6 of the client
    assert (options["ssl_cert_reqs"], options["ssl_check_hostname"]) == ("required", True)
    assert options["ssl_ca_certs"] == "ca.pem"


@pytest.mark.parametrize(
    "url",
    ["redis://h", "rediss+sentinel://h?master=m", "redis+cluster://h,i", "rediss+cluster://h"],
)
def test_every_scheme_opens_a_redis_store(url: str) -> None:
    assert isinstance(open_store(url, cluster="shop"), RedisStore)


FIT = {
    "redis_version": "7.4.1",
    "role": "master",
    "maxmemory_policy": "noeviction",
    "aof_enabled": 1,
}


@pytest.mark.parametrize("durability", ["disk", "cache", "fsync"])
def test_a_fit_server_is_taken(durability: str) -> None:
    judge(FIT, "", "everysec", "redis://h", durability)


@pytest.mark.parametrize(
    ("change", "durability", "says"),
    [
        ({"redis_version": "5.0.14"}, "disk", "6.0 or later"),
        ({"maxmemory_policy": "allkeys-lfu"}, "cache", "noeviction"),
        ({"aof_enabled": 0}, "disk", "appendonly"),
        ({"aof_enabled": 0}, "fsync", "cannot sync"),
        ({"redis_version": "7.0.15"}, "fsync", "cannot sync"),
    ],
)
def test_an_unfit_server_is_refused(change: dict[str, Any], durability: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        judge({**FIT, **change}, "", "everysec", "redis://h", durability)


def test_a_server_that_reads_its_log_as_a_user_without_rights_is_refused() -> None:
    with pytest.raises(ConfigError, match="may not run ZADD"):
        judge(FIT, "", "always", "redis://h", "disk", "ZADD")
    judge(FIT, "", "always", "redis://h", "cache", "ZADD")
    judge({**FIT, "valkey_version": "9.1.2"}, "", "always", "redis://h", "disk", "ZADD")


def test_a_replica_is_not_a_fault_of_the_settings() -> None:
    with pytest.raises(StoreUnavailable, match="replica"):
        judge({**FIT, "role": "slave"}, "", "everysec", "redis://h", "disk")


def test_a_server_that_hides_its_settings_is_accepted() -> None:
    judge({"redis_version": "7.4.1", "role": "master"}, None, None, "redis://h", "disk")
    judge({**FIT, "aof_enabled": 0}, None, None, "redis://h", "disk")


def test_a_client_by_way_of_sentinels_has_every_method_that_the_store_uses() -> None:
    client = RedisUrl.parse("redis+sentinel://h?master=m").connector(1.0)()
    for name in ("pipeline", "execute_command", "scan", "info", "aclose"):
        assert callable(getattr(client, name))


def test_the_check_of_the_rights_runs_every_command_of_the_scripts() -> None:
    """And each is in the rights that the pages name."""
    called = re.compile(r"redis\.p?call\('(\w+)'").findall
    scripts = [
        value.source
        for module in (redis_scripts, redis_journal_scripts)
        for value in vars(module).values()
        if isinstance(value, redis_scripts.Script)
    ]
    used = {command for source in scripts for command in called(source)} - {"INFO"}
    assert len(scripts) > 30
    assert used == set(called(redis_scripts.ACCESS.source))
    assert all(command[0] in "HZ" or command in ("DEL", "TIME") for command in used)
