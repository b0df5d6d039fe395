"""The journals of the store inside the cluster, on real replicas."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from shardbus.testing.journal_suite import JournalSuite
from shardbus.testing.store_suite import StoreFactory
from tests.markers import soak_only
from tests.replicas import Replicas
from tests.unit.entities.scan_suite import ScanSuite


class TestReplicatedJournals(JournalSuite, ScanSuite):
    @pytest_asyncio.fixture(params=[(3, 1), *soak_only((5, 2))], ids=str)
    async def store_factory(
        self, request: pytest.FixtureRequest, tmp_path: Path
    ) -> AsyncIterator[StoreFactory]:
        count, away = request.param
        replicas = Replicas(tmp_path, count)
        replicas.start()
        await replicas.serving()
        replicas.stop(*range(away))
        yield replicas.store
        replicas.stop()
