"""Real workers and a real queue under kills: each acknowledged item is worked, none is worked after
its confirmation, and what a killed worker had goes to another."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from pathlib import Path

import pytest

from tests.process.nodes import NodeProcess, Processes
from tests.process.queue_app import WORKER, Jobs
from tests.waiting import PATIENCE_S, until

APP = "tests.process.queue_app:bus"


class Worker:
    """A worker process, and the items that it has written down."""

    def __init__(self, lab: Processes, number: int) -> None:
        self.record: Path = lab.folder / f"worker-{number}"
        command = [str(self.record), *[f"tcp://{node.address}" for node in lab.live]]
        self.process = NodeProcess(lab.folder, f"w{number}", command, program=WORKER)

    def rows(self, word: str) -> list[tuple[str, int]]:
        if not self.record.exists():
            return []
        rows = [line.split() for line in self.record.read_text().splitlines()]
        return [(row[1], int(row[2])) for row in rows if len(row) == 3 and row[0] == word]


async def home_of(lab: Processes) -> NodeProcess:
    page = await lab.live[-1].page("/v1/where/jobs/a")
    return next(node for node in lab.live if page["node"].startswith(f"{node.address}#"))


@pytest.mark.long
@pytest.mark.parametrize(("kind", "rounds"), [("sqlite", 1), ("redis", 2)])
async def test_each_item_is_worked_and_none_after_its_confirmation(
    lab: Processes, kind: str, rounds: int, request: pytest.FixtureRequest
) -> None:
    if kind == "redis":
        lab.store = request.getfixturevalue("redis_url")
    await lab.cluster(3, app=APP)
    workers = [Worker(lab, n) for n in range(2)]
    put: list[str] = []
    try:
        async with lab.client() as client:
            queue = client.queue(Jobs, "a")

            async def produce() -> None:
                for n in range(150 * rounds):
                    await queue.put(f"job-{n}", timeout=PATIENCE_S)
                    put.append(f"job-{n}")

            producing = asyncio.ensure_future(produce())

            async def until_put(count: int) -> None:
                await until(lambda: len(put) >= count, f"{count} items")

            for turn in range(rounds):
                await until_put(150 * turn + 40)
                (await home_of(lab)).kill()
                await lab.start(app=APP)
                await until_put(150 * turn + 80)
                workers[-2].process.kill()
                workers.append(Worker(lab, len(workers)))
            await producing
            ref = client.ref(Jobs, "a")

            async def all_confirmed() -> bool:
                return bool((await ref.show(0))["confirmed"] >= len(put))

            await until(all_confirmed, "every confirmation")
            shown = await ref.show()
            assert (shown["confirmed"], shown["items"]) == (len(put), [])
            home = await home_of(lab)
            command = lab.run(
                "queue",
                "show",
                "jobs",
                "a",
                "--json",
                "--node",
                f"http://127.0.0.1:{home.http_port}",
            )
            assert await command.ended() == 0, command.err.read_text()
            assert json.loads(command.out.read_text())["confirmed"] == len(put)
    finally:
        for worker in workers:
            worker.process.kill()
    began: dict[str, list[int]] = defaultdict(list)
    done: dict[str, int] = {}
    for worker in workers:
        for job, at in worker.rows("begins"):
            began[job].append(at)
        for job, at in worker.rows("done"):
            done[job] = min(at, done.get(job, at))
    assert set(began) == set(put)
    late = [job for job, at in done.items() if max(began[job]) > at]
    assert late == [], "an item was worked after its confirmation"
    assert len(put) - len(done) <= rounds, "only a killed worker may miss its own last line"
