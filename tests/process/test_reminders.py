"""Reminders of real nodes: one is killed, then all of them; the operator's list and
cancellation."""

from __future__ import annotations

import asyncio
import json
from functools import partial

import pytest

from tests.process.nodes import Processes
from tests.process.reminding_app import Chime
from tests.waiting import until

APP = "tests.process.reminding_app:bus"
TOKEN = "sesame-sesame-16"
SETTINGS = ("http.write=true", f"http.token={TOKEN}")


@pytest.fixture
def store(redis_url: str) -> str:
    return redis_url


def rung(lab: Processes) -> dict[str, list[tuple[str, str]]]:
    """Return by entity the delivery and the process of each firing."""
    file, lines = lab.folder / "rung", dict[str, list[tuple[str, str]]]()
    for line in file.read_text().splitlines() if file.exists() else ():
        entity_id, delivery, process = line.split()
        lines.setdefault(entity_id, []).append((delivery, process))
    return lines


@pytest.mark.long
async def test_they_fire_once_on_another_node_and_after_a_restart_of_all(lab: Processes) -> None:
    first, second = await lab.cluster(2, app=APP, settings=SETTINGS)
    ids = [f"a{n}" for n in range(30)]
    async with lab.client() as client:
        for entity_id in ids:
            await client.call("alarm", entity_id, "set", 4.0)
    second.kill()
    await until(lambda: len(rung(lab)) == len(ids), "each reminder to fire")
    assert {len(times) for times in rung(lab).values()} == {1}

    later = [f"b{n}" for n in range(30)]
    async with lab.client() as client:
        for entity_id in later:
            await client.call("alarm", entity_id, "set", 2.0)
        await client.call("alarm", "far", "set", 86_400.0)
    first.kill()
    [third, _] = await lab.cluster(2, app=APP, settings=SETTINGS)
    await until(lambda: set(later) <= set(rung(lab)), "each reminder to fire after the restart")
    await asyncio.sleep(0)
    assert {len(times) for times in rung(lab).values()} == {1}

    url = f"http://127.0.0.1:{third.http_port}"
    listed = lab.run("reminders", "list", "alarm", "--node", url, "--json")
    assert await listed.ended() == 0
    answer = json.loads(listed.out.read_text())
    assert [row["id"] for row in answer["reminders"]] == ["far"]
    shown = lab.run("reminders", "show", "alarm", "far", "--node", url)
    assert await shown.ended() == 0
    assert "ring" in shown.out.read_text()
    command = ("reminders", "cancel", "alarm", "far", "--node", url)
    refused = lab.run(*command)
    assert await refused.ended() != 0
    cancelled = lab.run(*command, SHARDBUS_NODE_TOKEN=TOKEN)
    assert await cancelled.ended() == 0, cancelled.err.read_text()
    assert "1 cancelled: ring" in cancelled.err.read_text() + cancelled.out.read_text()
    assert await third.page("/v1/reminders/alarm") == {
        "type": "alarm",
        "reminders": [],
        "more": False,
    }
    metrics = await asyncio.to_thread(third.read, "/metrics")
    assert metrics is not None
    assert 'shardbus_reminders_fired_total{entity_type="alarm"}' in metrics
    for node in lab.live:
        assert await node.accounts()


async def test_each_firing_has_its_event_once_though_nodes_are_killed(lab: Processes) -> None:
    """The journal has the firing beside the event, and no firing is lost or called again."""
    nodes = await lab.cluster(3, app=APP, settings=SETTINGS)
    chimes = [f"c{n}" for n in range(40)]
    async with lab.client() as client:
        await asyncio.gather(*(client.call("chime", chime, "begin") for chime in chimes))

        async def numbers() -> list[list[int]]:
            calls = [client.call("chime", chime, "numbers") for chime in chimes]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            return [answer if isinstance(answer, list) else [] for answer in answers]

        async def is_past(least: int) -> bool:
            return max(map(len, await numbers())) > least

        for node, least in ((nodes[1], 2), (nodes[2], 4)):
            await until(partial(is_past, least), "some chimes to ring")
            node.kill()
        times = list(range(Chime.TIMES + 1))

        async def all_have_rung() -> bool:
            return await numbers() == [times] * len(chimes)

        await until(all_have_rung, "each chime to ring each time, once")
