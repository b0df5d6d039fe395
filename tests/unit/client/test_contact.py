"""The contact of a client: which nodes are tried, which one is chosen, and the effect of a
refusal."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from shardbus.client.contact import CONTACT_WAIT_S, RETRY_MAX_S, RETRY_S, Contact
from shardbus.errors import NodeLost, Refused
from shardbus.ids import Address, NodeId
from shardbus.transport.endpoint_events import EndpointEvents
from tests.unit.client.client_kit import A, B, C, FakeEndpoint, World
from tests.virtual_time import virtual


class Seeker:
    """A contact, with the choices that it has made."""

    def __init__(self, world: World, *contacts: NodeId, seed: int = 1) -> None:
        receiver: Any = self
        self.endpoint: Any = FakeEndpoint(
            world, "shop", "client", 7, receiver, events=EndpointEvents(), send_buffer_limit=None
        )
        self.endpoint.start()
        self.chosen: list[NodeId] = []
        addresses = [node.address for node in contacts]
        self.contact = Contact(self.endpoint, addresses, Random(seed), self.chosen.append)

    def on_control(self, session: object, control: object) -> None: ...

    async def seek(self) -> list[NodeId]:
        self.contact.seek()
        await self.contact.until_found()
        return self.chosen


@virtual
async def test_a_node_that_answers_is_chosen_and_reported() -> None:
    seeker = Seeker(World(A), A)
    assert await seeker.seek() == [A]
    assert seeker.contact.session is seeker.endpoint.sessions()[0]


@virtual
async def test_a_silent_node_is_given_up_after_three_seconds() -> None:
    world = World(A, B)
    world.up = {B.address}
    for seed in range(8):
        world.tried = []
        seeker = Seeker(world, A, B, seed=seed)
        began = asyncio.get_running_loop().time()
        assert await seeker.seek() == [B]
        waited = asyncio.get_running_loop().time() - began
        assert round(waited, 2) == (CONTACT_WAIT_S if world.tried[0] == A.address else 0.0)


@virtual
async def test_without_an_answer_every_address_is_tried_again() -> None:
    world = World(A)
    world.up = set()
    seeker = Seeker(world, A)
    seeker.contact.seek()
    await asyncio.sleep(CONTACT_WAIT_S + RETRY_S / 4)
    seeker.endpoint.open_sessions.clear()
    world.up = {A.address}
    await seeker.contact.until_found()
    assert world.tried == [A.address, A.address]


@virtual
async def test_a_cluster_that_is_away_is_tried_about_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, tries = asyncio.get_running_loop(), []

    async def refused(contact: Contact, address: Address) -> None:
        tries.append(loop.time())

    monkeypatch.setattr(Contact, "_opens", refused)
    seeker = Seeker(World(A), A)
    seeker.contact.seek()
    await asyncio.sleep(600.0)
    seeker.contact.close()
    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert pauses[0] <= 1.5 * RETRY_S
    assert max(pauses) <= 1.5 * RETRY_MAX_S
    assert 500 < len(tries) < 700
    assert len({round(pause, 3) for pause in pauses}) > 100  # clients do not come all at once


@virtual
async def test_a_member_that_leaves_is_not_tried() -> None:
    for seed in range(8):
        world = World(A, B)
        seeker = Seeker(world, C, A, seed=seed)
        seeker.contact.members, seeker.contact.leaving = (A, B), {A}
        assert await seeker.seek() == [B]
        assert A.address not in world.tried


@virtual
async def test_a_node_that_leaves_is_tried_if_there_is_no_other() -> None:
    seeker = Seeker(World(A), A)
    seeker.contact.leaving = {A}
    assert await seeker.seek() == [A]


@virtual
async def test_an_open_session_is_preferred_unless_its_node_leaves() -> None:
    world = World(A, B)
    seeker = Seeker(world, B)
    for node in (A, B):
        seeker.endpoint.session_to(node.address)
    await asyncio.sleep(0.01)
    seeker.contact.leaving = {A}
    assert await seeker.seek() == [B]
    seeker.contact.leaving = set()
    assert await seeker.seek() == [B, A]


@virtual
async def test_a_refusal_ends_the_search_with_its_reason() -> None:
    world = World(A)
    world.up = set()
    seeker = Seeker(world, A)
    seeker.contact.seek()
    seeker.contact.on_refused("the cluster is named mart")
    await seeker.contact.until_found()
    assert seeker.chosen == []
    assert isinstance(seeker.contact.error, Refused)
    assert str(seeker.contact.error) == "the cluster is named mart"


@virtual
async def test_a_node_without_room_is_asked_again_later_and_names_itself_meanwhile() -> None:
    world = World(A)
    world.up = set()
    seeker = Seeker(world, A)
    seeker.contact.seek()
    seeker.contact.on_busy("no file descriptor left")
    assert str(seeker.contact.error).endswith("answers at 10.0.0.1:7355: no file descriptor left")
    await asyncio.sleep(CONTACT_WAIT_S + RETRY_MAX_S / 2 - 0.01)
    seeker.endpoint.open_sessions.clear()
    world.up = {A.address}
    assert world.tried == [A.address]
    await asyncio.sleep(RETRY_MAX_S)
    assert seeker.chosen == [A]
    assert seeker.contact.busy == ""


@virtual
async def test_a_refusal_is_ignored_once_there_is_a_contact() -> None:
    seeker = Seeker(World(A), A)
    await seeker.seek()
    seeker.contact.on_refused("the cluster is named mart")
    assert seeker.contact.refused == ""
    with pytest.raises(NodeLost, match=r"no node of cluster 'shop' answers at 10\.0\.0\.1:7355"):
        raise seeker.contact.error


@virtual
async def test_a_closed_contact_seeks_no_more() -> None:
    world = World(A)
    world.up = set()
    seeker = Seeker(world, A)
    seeker.contact.seek()
    await asyncio.sleep(0)
    seeker.contact.close()
    world.up = {A.address}
    world.tried = []
    await asyncio.sleep(10 * CONTACT_WAIT_S)
    seeker.contact.seek()
    await asyncio.sleep(CONTACT_WAIT_S)
    assert (seeker.chosen, world.tried) == ([], [])
