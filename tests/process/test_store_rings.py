"""Disks of a store inside the cluster, as an operator handles them: real replicas by the CLI."""

from __future__ import annotations

import asyncio
import json
import shutil

import pytest

from tests.ports import free_port
from tests.process.served_replicas import KEYS, Load, Served
from tests.waiting import until

pytestmark = pytest.mark.long


async def test_disks_are_wiped_added_and_removed_under_load_and_nothing_is_lost(
    served: Served,
) -> None:
    for port in served.ports:
        served.start(port)
    await served.serving()
    store = served.store()
    await store.start()
    load = Load(store)
    loading = asyncio.create_task(load.run())
    await until(lambda: len(load.acked) == KEYS, "the first saves")
    first, second, third = served.ports

    served.kill(third)
    shutil.rmtree(served.folder / str(third))
    served.start(third)
    await served.serving()
    code, text = await served.ask("status", "--json")
    rows = json.loads(text.splitlines()[0])["replicas"]
    assert (code, [row["ring"] for row in rows]) == (0, [2, 2, 2])

    fourth = free_port()
    served.ports.append(fourth)
    served.start(fourth)

    async def waits() -> bool:
        return (
            f"shardbus store add 127.0.0.1:{fourth}" in (await served.status())[fourth]["waits_for"]
        )

    await until(waits, "the blank replica's wait")
    adding = asyncio.create_task(served.ask("add", f"127.0.0.1:{fourth}"))
    served.kill(second)
    served.start(second)
    code, text = await adding
    assert (code, text.splitlines()[-1].split(":")[0]) == (0, "ring 3"), text
    code, text = await served.ask("remove", f"127.0.0.1:{first}")
    assert code == 0, text
    served.kill(first)
    await until(lambda: load.acked.get("e-1", 0) == load.sent["e-1"], "a save in the last ring")
    load.ended = True
    await loading
    await load.check(store)
    await store.close()

    served.ports.remove(first)
    for port in served.ports:
        served.kill(port)
    for port in served.ports:
        served.start(port)
    await served.serving()
    again = served.store()
    await again.start()
    await load.check(again)
    await again.close()
