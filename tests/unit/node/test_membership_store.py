"""The calls of membership to the store, and a node's report of another cluster that writes it."""

from __future__ import annotations

import asyncio

import pytest

from shardbus.errors import StoreUnavailable
from shardbus.ids import Address, NodeId
from shardbus.membership import events as ev
from shardbus.membership.claim_record import ClaimRecord
from shardbus.membership.founding import FOUNDING, owner_of
from shardbus.membership.member import Member
from shardbus.membership.view import (
    FoundingWaits,
    MembershipView,
    OtherCluster,
    OtherClustersChanged,
    RivalCluster,
)
from shardbus.node.membership_store import ANNOUNCED_WITHIN_S, MembershipStore
from shardbus.store import node_registry
from shardbus.store.memory import MemoryData, MemoryStore
from tests.virtual_time import virtual

ME, PEER = NodeId("10.0.0.1", 7355, 1), NodeId("10.0.0.2", 7355, 2)
THERE, ELSEWHERE = Address("10.9.9.9", 7355), Address("10.9.9.8", 7355)
RECORD = ClaimRecord(5, 3, 1, (THERE,))


class Stage:
    """The requests of one node over a store in memory."""

    def __init__(self, *, epochs: dict[str, int] | None = None) -> None:
        self.data = MemoryData()
        self.store = MemoryStore(self.data)
        self.posted: list[ev.Event] = []
        members = (Member(ME, 7356), Member(PEER, 7356))
        self.view = MembershipView(ME, members, epochs=epochs or {})
        self.requests = MembershipStore(self.store, self.posted.append, lambda: self.view)

    async def perform(self, *requests: ev.AcquireLease | ev.ReadClaim | ev.WriteClaim) -> None:
        for request in requests:
            self.requests.perform(request)
            await asyncio.sleep(0.1)


@virtual
async def test_a_lease_is_answered_with_its_counter() -> None:
    stage = Stage()
    await stage.store.start()
    await stage.perform(ev.AcquireLease("a", "me", 9.0), ev.AcquireLease("a", "you", 9.0))
    assert stage.posted == [ev.LeaseResult("a", True, 1), ev.LeaseResult("a", False)]


@virtual
async def test_a_store_that_does_not_answer_is_an_answer_too() -> None:
    stage = Stage()
    await stage.perform(ev.AcquireLease(FOUNDING, "me", 9.0), ev.ReadClaim())
    stage.requests.perform(ev.WriteClaim(RECORD))
    stage.requests.perform(ev.FreeClaim(RECORD))
    await asyncio.sleep(0.1)
    assert stage.posted == [ev.LeaseResult(FOUNDING, None), ev.ClaimRead(None, answered=False)]


@virtual
async def test_the_record_is_written_and_read() -> None:
    stage = Stage()
    await stage.store.start()
    await stage.perform(ev.WriteClaim(RECORD), ev.ReadClaim())
    assert stage.posted == [ev.ClaimRead(RECORD)]


@virtual
async def test_the_claim_is_released_with_the_last_node() -> None:
    stage = Stage()
    await stage.store.start()
    await stage.requests.release()
    await stage.perform(ev.AcquireLease(FOUNDING, owner_of(1), 3600.0))
    await stage.requests.release()
    assert await stage.store.acquire_lease(FOUNDING, owner_of(2), 9.0) is not None


@virtual
async def test_an_epoch_that_no_member_announces_has_the_nodes_of_the_store_asked() -> None:
    stage = Stage(epochs={"cart": 4})
    await stage.store.start()
    for address in (ME.address, PEER.address, THERE):
        await node_registry.register(stage.store, address)
    stage.requests.epoch_met("cart", 5)
    await asyncio.sleep(ANNOUNCED_WITHIN_S + 0.1)
    assert stage.posted == [ev.CheckClaim(), ev.SuspectNodes((THERE,))]
    assert stage.requests.suspects == {THERE}


@virtual
async def test_an_epoch_that_a_member_announces_soon_is_nothing_strange() -> None:
    stage = Stage(epochs={"cart": 4})
    await stage.store.start()
    stage.requests.epoch_met("cart", 5)
    stage.view = MembershipView(ME, stage.view.members, epochs={"cart": 5})
    await asyncio.sleep(ANNOUNCED_WITHIN_S + 0.1)
    assert stage.posted == []


@virtual
async def test_a_registry_out_of_reach_still_has_the_claim_checked() -> None:
    class NoRegistry(MemoryStore):
        async def page_remembered(self, *args: object) -> tuple[list[str], str | None]:
            raise StoreUnavailable("no answer")

    posted: list[ev.Event] = []
    store = NoRegistry()
    await store.start()
    requests = MembershipStore(store, posted.append, lambda: MembershipView(ME))
    requests.epoch_met("cart", 5)
    await asyncio.sleep(ANNOUNCED_WITHIN_S + 0.1)
    assert posted == [ev.CheckClaim()]


@pytest.mark.parametrize(
    ("notices", "rival"),
    [
        ([], ""),
        ([RivalCluster((THERE,))], f"another cluster writes this store: {THERE}"),
        ([RivalCluster()], "another cluster writes this store: its addresses are not known"),
        ([RivalCluster((THERE,)), RivalCluster((THERE,), gone=True)], ""),
        ([OtherClustersChanged((OtherCluster(THERE, PEER),))], ""),
        (
            [OtherClustersChanged((OtherCluster(ELSEWHERE, PEER, "", True),))],
            f"another cluster writes this store: {ELSEWHERE}",
        ),
        (
            [
                RivalCluster((THERE,)),
                OtherClustersChanged((OtherCluster(ELSEWHERE, PEER, "", True),)),
            ],
            f"another cluster writes this store: {THERE}, {ELSEWHERE}",
        ),
    ],
)
def test_what_operators_read_about_a_rival(notices: list[object], rival: str) -> None:
    requests = Stage().requests
    for notice in notices:
        requests.on_notice(notice)
    assert requests.rival == rival


def test_the_reason_to_wait_is_kept_for_the_pages() -> None:
    requests = Stage().requests
    requests.on_notice(FoundingWaits("waits for the claim"))
    assert requests.waits_for == "waits for the claim"
