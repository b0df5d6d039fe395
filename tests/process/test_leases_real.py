"""Leases of real processes: one that stands still for longer than its lease."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from shardbus.ids import shard_of
from shardbus.store.protocol import Lease
from shardbus.store.sqlite import SqliteStore
from tests.process.app import RECORD, Page
from tests.process.nodes import Processes
from tests.waiting import PATIENCE_S, until

LEASED = ("sharding.use_lease=both", "sharding.lease_ttl=10s", "store.timeout=2s")
NAME = f"shard/page/{shard_of('page-1', 24)}"


def handled(folder: Path) -> dict[int, int]:
    """Sequence number to the activation that handled it."""
    books = b"".join(path.read_bytes() for path in folder.glob("ledger-*"))
    rows = RECORD.iter_unpack(books)
    return {seq: activation for _, _, seq, activation, _ in rows if seq > 0}


@pytest.mark.long
async def test_B59_a_process_that_stood_still_hands_nothing_to_a_shard_whose_lease_is_over(
    lab: Processes,
) -> None:
    """While it stands still a message arrives, and the lease goes to somebody else and back. The
    message finds a new incarnation, for the old one may not go on."""
    node = await lab.start(settings=LEASED)
    other = SqliteStore(lab.store.removeprefix("sqlite:///"), cluster="lab", timeout=60.0)
    await other.start()

    async def take() -> Lease | None:
        return await other.acquire_lease(NAME, "somebody else", 60.0)

    async with lab.client(node, timeout=PATIENCE_S) as client:
        page = client.ref(Page, "page-1")
        assert await page.hit(1, 1) == 1
        assert await take() is None, "it renews its lease"
        node.signal(signal.SIGSTOP)
        late = asyncio.ensure_future(page.hit(1, 2))
        lease = await until(take, "the end of its lease")
        await other.release_lease(lease)
        node.signal(signal.SIGCONT)
        assert await late == 2
    activations = handled(lab.folder)
    assert activations[1] != activations[2]
    await other.close()
    await node.says("lease lost")
    assert await node.terminate() == 0
