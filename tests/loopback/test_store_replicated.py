"""The suite for state stores on real replicas: three, with one away, on disks and in memory, and
five with two away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from shardbus.testing.store_suite import StoreFactory, StoreSuite
from tests.markers import long_only, soak_only
from tests.replicas import Replicas


class TestReplicated(StoreSuite):
    @pytest_asyncio.fixture(
        params=[(3, 1), *long_only((3, 1, "memory")), *soak_only((5, 2), (3, 0))], ids=str
    )
    async def store_factory(
        self, request: pytest.FixtureRequest, tmp_path: Path
    ) -> AsyncIterator[StoreFactory]:
        count, away, *more = request.param
        memory = bool(more)
        replicas = Replicas(tmp_path, count)
        replicas.in_memory = memory
        replicas.start()
        await replicas.serving()
        replicas.stop(*range(away)) if away else None
        yield replicas.store
        replicas.stop()
