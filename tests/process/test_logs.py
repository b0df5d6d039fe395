"""A node whose standard error nobody reads, and the fields of its lines."""

from __future__ import annotations

import json
import os
import threading

from tests.process.nodes import Processes
from tests.waiting import until


def parsed(line: str) -> dict[str, object]:
    """Read a line; the progress of a node that leaves is no JSON."""
    return json.loads(line) if line.startswith("{") else {"message": line}


LINES = 8000
"""8 MB: the room of a pipe, and twice the bound behind it."""


async def test_B62_a_node_whose_log_nobody_reads_answers_and_tells_later_what_it_left_out(
    lab: Processes,
) -> None:
    """The reader begins when the test has seen the node go on."""
    read_end, write_end = os.pipe()
    # A busy machine would have the node warn of the handler that speaks: one line more.
    unwarned = ("cluster.app_block_warning=1h",)
    node = lab.begin("--log-format", "json", stderr=write_end, settings=unwarned)
    os.close(write_end)
    await until(node.ready, "the ready line")
    async with lab.client(node) as client:
        await client.call("page", "page-1", "speak", LINES)
        for n in range(1, 50):
            assert await client.call("page", "page-2", "hit", 1, n) == n
        assert (await node.page("/livez"))["status"] == "ok"
        rows: list[dict[str, object]] = []

        def read() -> None:
            with os.fdopen(read_end, errors="replace") as lines:
                rows.extend(parsed(line) for line in lines)

        reader = threading.Thread(target=read)
        reader.start()
        await until(lambda: any(r.get("event") == "log_lines_dropped" for r in rows), "the count")
    ended = await node.terminate()
    reader.join()
    assert ended == 0, [row for row in rows if "xxx" not in str(row)][-5:]
    dropped = sum(int(str(r["count"])) for r in rows if r.get("event") == "log_lines_dropped")
    assert dropped > 0
    long_rows = [row for row in rows if "xxx" in str(row["message"])]
    assert len(long_rows) + dropped == LINES
    assert {(row["entity_type"], row["entity_id"]) for row in long_rows} == {("page", "page-1")}
    assert all(row["shard"] and isinstance(row["fence"], int) for row in long_rows)
