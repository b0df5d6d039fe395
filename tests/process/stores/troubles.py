"""Troubles of a store's server while nodes use it: their beginnings, their ends, and the nodes'
reports. The troubles of a Redis."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import redis

from shardbus_cli.exit_codes import ExitCode
from tests.process.nodes import NodeProcess, Processes
from tests.process.stores.saving import Savers, judge, stored_totals
from tests.process.stores.shims import Shim
from tests.redis_server import RedisServer
from tests.waiting import until

USER, PASSWORD, NEXT_PASSWORD = "bus", "hush", "hush-hush"
QUICK_STORE = ("sharding.entity_restart_backoff=500ms", "store.timeout=2s")
STARTS = 5
RULES = ("~shardbus:*", "+@scripting", "+@hash", "+@sortedset", "+del", "+time", "+info", "+scan")


@dataclass(frozen=True)
class Trouble:
    """`says`: the words of asks, the log and `doctor`. `code`: how a node that starts meanwhile
    ends, None if it starts. `hurts`: saves fail while it lasts. `finding`: the finding of
    `doctor`."""

    name: str
    begin: Callable[[Any], None]
    end: Callable[[Any], None]
    says: str
    code: int | None = 4
    hurts: bool = True
    finding: str = "store-errors"


async def doctor(lab: Processes, node: NodeProcess) -> str:
    """Return the output of `doctor`."""
    command = lab.run("doctor", "--wait", "0", "--node", f"http://127.0.0.1:{node.http_port}")
    await command.ended()
    return command.out.read_text()


async def names_it(lab: Processes, node: NodeProcess, trouble: Trouble) -> bool:
    said = await doctor(lab, node)
    return re.search(f"{trouble.finding}: .*{trouble.says}", said) is not None


async def started(lab: Processes) -> NodeProcess:
    """Start a node, and start it anew, as systemd does, if a busy server did not answer in time."""
    for _ in range(STARTS):
        node = lab.begin(settings=QUICK_STORE)
        await until(lambda node=node: says_ready(node) or not node.running, "a start or an end")
        if node.running:
            return node
        assert await node.ended() == ExitCode.UNREACHABLE, node.err.read_text()
    raise AssertionError(f"no node of {STARTS} has started: {node.err.read_text()}")


def says_ready(node: NodeProcess) -> bool:
    return "ready: " in node.out.read_text()


async def starts_in_trouble(lab: Processes, trouble: Trouble) -> None:
    """Start a node. It joins, or ends with one line that says why."""
    if trouble.code is None:
        node = await lab.start(settings=QUICK_STORE)
        assert await node.terminate() == 0
        return
    node = lab.begin(settings=QUICK_STORE)
    assert await node.ended() == trouble.code
    [line] = [line for line in node.err.read_text().splitlines() if "error: " in line]
    assert "; " in line, "it says what to do"


async def suffer_and_recover(lab: Processes, server: Any, trouble: Trouble) -> None:
    """Run nodes whose entities save all the time through a trouble of `server`, and judge the
    store's content at the end."""
    nodes = [await started(lab), await started(lab)]
    await lab.agree(*nodes)
    async with lab.client(*nodes) as client, Savers(client) as savers:
        await asyncio.to_thread(trouble.begin, server)
        if trouble.hurts:
            await savers.suffer(f"failures while {trouble.name}")
            await until(lambda: re.search(trouble.says, savers.errors), "asks that name the cause")
        if trouble.finding:
            await until(lambda: names_it(lab, nodes[0], trouble), "the doctor")
        assert await asyncio.to_thread(lambda: all(node.get("/readyz") for node in nodes))
        await starts_in_trouble(lab, trouble)
        await asyncio.to_thread(trouble.end, server)
        await savers.proceed(f"saves after {trouble.name}")
    for node in nodes:
        assert await node.terminate() == 0
    logs = "".join(node.err.read_text() for node in nodes)
    assert re.search(f"the store .*{trouble.says}" if trouble.hurts else trouble.says, logs)
    assert "Traceback" not in logs
    stored = await stored_totals(server.url, list(savers.ledgers))
    assert judge(savers, stored) == []


@dataclass
class Lab:
    """The server of one test, and a user of ours. `clock` sets the server's clock ahead."""

    server: RedisServer
    clock: Shim | None = None

    @property
    def url(self) -> str:
        return self.server.url().replace("://", f"://{USER}:{PASSWORD}@")

    def prepare(self) -> None:
        with self.admin() as admin:
            admin.execute_command("ACL", "SETUSER", USER, "on", f">{PASSWORD}", *RULES)

    @contextlib.contextmanager
    def admin(self) -> Iterator[redis.Redis]:
        with self.server.client() as client:
            yield client

    def config(self, **values: str) -> None:
        with self.admin() as admin:
            for name, value in values.items():
                admin.config_set(name.replace("_", "-"), value)

    def user(self, *rules: str) -> None:
        """Change our user's rights, and end its connections."""
        with self.admin() as admin:
            admin.execute_command("ACL", "SETUSER", USER, *rules)
            with contextlib.suppress(redis.ResponseError):
                admin.execute_command("CLIENT", "KILL", "USER", USER)

    def clock_ahead(self, ahead: bool) -> None:
        assert self.clock is not None
        (self.clock.on if ahead else self.clock.off)()


def _restart(lab: Lab) -> None:
    lab.server.restart()
    lab.prepare()  # Users are in no append-only log.


def _cannot_snapshot(lab: Lab) -> None:
    lab.config(save="3600 1", dir="/proc")
    with lab.admin() as admin:
        with contextlib.suppress(redis.ResponseError):
            admin.bgsave()
        while admin.info("persistence")["rdb_last_bgsave_status"] == "ok":
            pass


def _replica(lab: Lab, of: tuple[str, ...]) -> None:
    with lab.admin() as admin:
        admin.execute_command("REPLICAOF", *of)


TROUBLES = (
    Trouble("killed", lambda lab: lab.server.kill(), _restart, r"does not respond.*check the"),
    Trouble(
        "frozen",
        lambda lab: lab.server.pause(),
        lambda lab: lab.server.resume(),
        r"does not respond.*check the server",
    ),
    Trouble(
        "full",
        lambda lab: lab.config(maxmemory="1"),
        lambda lab: lab.config(maxmemory="0"),
        r"is full: its maxmemory is reached \(OOM\); raise maxmemory",
    ),
    Trouble(
        "replica",
        lambda lab: _replica(lab, ("127.0.0.1", "1")),
        lambda lab: _replica(lab, ("NO", "ONE")),
        r"is a replica.*name the master, or its Sentinels",
    ),
    Trouble(
        "too few replicas",
        lambda lab: lab.config(min_replicas_to_write="1"),
        lambda lab: lab.config(min_replicas_to_write="0"),
        r"has too few replicas to take writes \(NOREPLICAS\); start its replicas",
    ),
    Trouble(
        "no snapshot",
        _cannot_snapshot,
        lambda lab: lab.config(save=""),
        r"cannot write to its disk, and takes no writes \(MISCONF\); mend or free",
    ),
    Trouble(
        "no script",
        lambda lab: lab.user("-evalsha", "-eval"),
        lambda lab: lab.user("+evalsha", "+eval"),
        r"refuses this user.*the user needs ~shardbus",
        code=1,
    ),
    Trouble(
        "other keys",
        lambda lab: lab.user("resetkeys", "~other:*"),
        lambda lab: lab.user("~shardbus:*"),
        r"refuses this user.*the user needs ~shardbus",
        code=1,
    ),
    Trouble(
        "no writes",
        lambda lab: lab.user("-hset"),
        lambda lab: lab.user("+hset"),
        r"refuses this user.*the user needs ~shardbus",
        code=1,
    ),
    Trouble(
        "password rotated",
        lambda lab: lab.user(f"<{PASSWORD}", f">{NEXT_PASSWORD}"),
        lambda lab: lab.user(f">{PASSWORD}"),
        r"refuses this user.*password",
        code=1,
    ),
    Trouble(
        "policy changed",
        lambda lab: lab.config(maxmemory_policy="allkeys-lru"),
        lambda lab: lab.config(maxmemory_policy="noeviction"),
        r"may evict stored data: its maxmemory-policy is allkeys-lru; set maxmemory-policy to",
        code=1,
        hurts=False,
        finding="store-unfit",
    ),
    Trouble(
        "clock ahead",
        lambda lab: lab.clock_ahead(True),
        lambda lab: lab.clock_ahead(False),
        "",
        code=None,
        hurts=False,
        finding="",
    ),
)
