"""No message ends a process, and no exit code of a handler a unit: real nodes by the command."""

from __future__ import annotations

import signal

import pytest

from shardbus import EntityFailed, RequestError
from tests.process.nodes import Processes
from tests.process.test_workers import start, starts
from tests.waiting import until

APP = "tests.process.ending:bus"


async def test_no_handler_ends_a_node(lab: Processes) -> None:
    node = await lab.start(app=APP)
    async with lab.client(node) as client:
        process = await client.call("job", "a", "hit")
        for method, args in (
            ("exits", (2,)),
            ("interrupts", ()),
            ("exits_in_a_thread", (2,)),
            ("exits_in_a_group", (2,)),
        ):
            with pytest.raises(EntityFailed):
                await client.call("job", "b", method, *args)
            assert await client.call("job", "b", "hit") == process
        for method, args in (("leaves_a_task", (2,)), ("stops_the_loop", ())):
            for _ in range(3):
                await client.call("job", "c", method, *args)
                assert await client.call("job", "c", "hit") == process
    assert await node.accounts()
    assert await node.terminate() == 0
    assert "has stopped the loop" in lab.logs()


@pytest.mark.long
@pytest.mark.parametrize("code", [0, 2])
async def test_no_exit_code_of_a_handler_ends_a_unit(lab: Processes, code: int) -> None:
    unit = await start(lab, app=APP)
    async with lab.client(unit, timeout=5.0) as client:
        for n in range(3):
            with pytest.raises(RequestError):
                await client.call("job", f"job-{n}", "dies", code)
        await until(lambda: sum(starts(unit, n) for n in range(3)) > 3, "a restart")
        await until(unit.ready, "the unit")
    unit.signal(signal.SIGTERM)
    assert await unit.ended() == 0
