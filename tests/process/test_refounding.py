"""The first seed was downed while its store was away, and every other node was killed and started
again meanwhile: no member is left that could take it in, so it founds the cluster anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.nodes import Processes
from tests.process.test_rejoin import REJOINS, uid
from tests.process.test_replicas import Trio
from tests.redis_server import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.long


@pytest.fixture(params=["cluster", "redis"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer | None]:
    """The Redis of the nodes; None if they keep their store themselves."""
    if request.param == "cluster":
        yield None
        return
    with RedisServer(tmp_path / "redis") as redis:
        yield redis


@pytest.fixture
def store(server: RedisServer | None) -> str:
    return "cluster://" if server is None else server.url()


async def test_S3_42_the_first_seed_founds_anew_when_its_store_is_back(
    lab: Processes, server: RedisServer | None
) -> None:
    trio = Trio(lab)
    trio.begin(settings=REJOINS)
    await trio.agree()
    first = trio.nodes[0]
    before = uid(first)
    async with lab.client(*trio.running) as client:
        assert await client.call("account", "a", "add", 5) == 5
    if server is not None:
        server.kill()
    for number in (1, 2):
        trio.nodes[number].kill()
    downed = "this node was downed, and rejoins through "
    await until(lambda: downed in first.err.read_text(), "the first seed downed")
    if server is not None:
        server.restart()
    trio.begin(1, 2, settings=REJOINS)
    await trio.agree()
    assert first.running
    assert uid(first) != before
    async with lab.client(*trio.running) as client:
        assert await client.call("account", "a", "get") == 5
