"""A real Redis in trouble, under real nodes whose entities save all the time.

For each trouble: asks fail with the cause and what to do, and so say the log and `doctor`; the
nodes stay up and ready; a node that starts ends in time with one line; once the trouble is over all
entities save again by themselves, and the store has every acknowledged save.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.nodes import NodeProcess, Processes
from tests.process.stores.saving import Savers, judge, stored_totals
from tests.process.stores.shims import CLOCK_AHEAD, Shim, no_compiler
from tests.process.stores.troubles import TROUBLES, Lab, Trouble
from tests.redis_server import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.long

QUICK_STORE = ("sharding.entity_restart_backoff=500ms",)


@pytest.fixture
def server(tmp_path: Path, trouble: Trouble) -> Iterator[Lab]:
    clock = None
    if trouble.name == "clock ahead":
        if no_compiler():
            pytest.skip("needs a C compiler, for a server whose clock can be set")
        clock = Shim(tmp_path / "shim", "clock", CLOCK_AHEAD)
    environment = clock.environment if clock else {}
    options = ("--enable-protected-configs", "yes")
    with RedisServer(tmp_path / "redis", *options, **environment) as redis_server:
        lab = Lab(redis_server, clock)
        lab.prepare()
        yield lab


@pytest.fixture
def store(server: Lab) -> str:
    return server.url


async def doctor(lab: Processes, node: NodeProcess) -> str:
    """Return what `doctor` says."""
    command = lab.run("doctor", "--wait", "0", "--node", f"http://127.0.0.1:{node.http_port}")
    await command.ended()
    return command.out.read_text()


async def names_it(lab: Processes, node: NodeProcess, trouble: Trouble) -> bool:
    said = await doctor(lab, node)
    return re.search(f"{trouble.finding}: .*{trouble.says}", said) is not None


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


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.name)
async def test_no_acknowledged_save_is_lost(lab: Processes, server: Lab, trouble: Trouble) -> None:
    nodes = await lab.cluster(2, settings=QUICK_STORE)
    async with lab.client(*nodes) as client, Savers(client) as savers:
        await asyncio.to_thread(trouble.begin, server)
        if trouble.hurts:
            await savers.suffer(f"failures while {trouble.name}")
        if trouble.finding:
            await until(lambda: names_it(lab, nodes[0], trouble), "the doctor")
        assert await asyncio.to_thread(lambda: all(node.get("/readyz") for node in nodes))
        await starts_in_trouble(lab, trouble)
        await asyncio.to_thread(trouble.end, server)
        await savers.proceed(f"saves after {trouble.name}")
    if trouble.hurts:
        assert re.search(trouble.says, savers.errors) is not None, savers.errors
    logs = "".join(node.err.read_text() for node in nodes)
    assert re.search(f"the store .*{trouble.says}" if trouble.hurts else trouble.says, logs)
    assert "Traceback" not in logs
    for node in nodes:
        assert await node.terminate() == 0
    stored = await stored_totals(server.url, list(savers.ledgers))
    assert judge(savers, stored) == []
