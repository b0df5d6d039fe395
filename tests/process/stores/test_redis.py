"""A real Redis in trouble, under real nodes whose entities save all the time.

For each trouble: asks fail with the cause and advice, as do the log and `doctor`; the
nodes stay up and ready; a node that starts ends in time with one line; once the trouble is over all
entities save again by themselves, and the store has every acknowledged save.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.markers import soak_only
from tests.process.nodes import Processes
from tests.process.stores.shims import CLOCK_AHEAD, Shim, no_compiler
from tests.process.stores.troubles import TROUBLES, Lab, Trouble, suffer_and_recover
from tests.redis_server import RedisServer

pytestmark = pytest.mark.long
SEARCHED = ("no script", "other keys")
"""`make test-soak` searches these: the server refuses them as it refuses "no writes"."""


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


@pytest.mark.parametrize(
    "trouble",
    [
        *(trouble for trouble in TROUBLES if trouble.name not in SEARCHED),
        *soak_only(*(trouble for trouble in TROUBLES if trouble.name in SEARCHED)),
    ],
    ids=lambda trouble: trouble.name,
)
async def test_no_acknowledged_save_is_lost(lab: Processes, server: Lab, trouble: Trouble) -> None:
    await suffer_and_recover(lab, server, trouble)
