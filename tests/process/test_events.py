"""`events --follow` beside real nodes: it survives the node that it asks, and ends by Ctrl-C."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from tests.process.nodes import Processes
from tests.waiting import until


@pytest.mark.long
async def test_N21_events_are_followed_beyond_the_death_of_the_asked_node(lab: Processes) -> None:
    first, second = await lab.cluster(2)
    words = ("events", "--follow", "--json", "--every", "200ms")
    url = f"http://127.0.0.1:{first.http_port}"
    follower = lab.run(*words, "--node", url)

    def rows() -> list[dict[str, Any]]:
        """Its lines; the last may not be complete yet."""
        return [json.loads(line) for line in follower.out.read_text().split("\n")[:-1]]

    def told(event: str, about: str) -> bool:
        return any(r["event"] == event and (r["node"] or "").startswith(about) for r in rows())

    await until(lambda: told("MemberUp", second.address), "the events before")
    first.kill()
    await until(lambda: told("UnreachableMember", first.address), "what the other node has seen")
    said = follower.err.read_text()
    assert f"{url} does not answer: asking http://127.0.0.1:{second.http_port}" in said
    keys = [(row["seen_by"], row["number"]) for row in rows()]
    assert len(keys) == len(set(keys)), "an event came twice"
    follower.signal(signal.SIGINT)
    assert await follower.ended() == 0
    assert "Traceback" not in follower.err.read_text()
