"""The calls of one turn share frames, and nothing else: one that has no bytes fails alone."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from shardbus.ids import Address
from shardbus.replication.messages import ReadRow
from shardbus.replication.proposer import Proposer, ReadValue, SendCall
from shardbus.replication.ring import NO_RING, RingMember, StoreCall, first_ring
from shardbus.store.replica_links import ReplicaLinks
from shardbus.wire.replica_frames import decode_call

ADDRESSES = (Address("a", 1), Address("b", 1))


class Sent:
    """A network whose connections keep the bodies of what they send."""

    def __init__(self) -> None:
        self.bodies: list[list[bytes]] = []

    def open(self, loop: asyncio.AbstractEventLoop) -> None: ...
    def close(self) -> None: ...

    def connect(self, *arguments: object) -> Any:
        bodies: list[bytes] = []
        self.bodies.append(bodies)

        class Connection:
            def send(self, head: bytes, body: bytes) -> bool:
                bodies.append(body)
                return True

            def close(self) -> None: ...

        return Connection()


def ignore(*arguments: object) -> None: ...


async def links_of(network: Any) -> ReplicaLinks:
    """Links to replicas that serve, each with the disk of its place; nothing was sent yet."""
    links = ReplicaLinks("shop", ADDRESSES, network, ignore, ignore)
    links.open(asyncio.get_running_loop())
    for disk, link in enumerate(links.links.values()):
        link.up = True
        links._on_welcome(link, disk, NO_RING, "")
    for sent in network.bodies:
        sent.clear()
    return links


async def test_a_call_to_several_disks_is_made_into_bytes_once() -> None:
    network = Sent()
    links = await links_of(network)
    ring = first_ring(tuple(RingMember(disk) for disk in range(len(ADDRESSES))), 2)
    for effect in Proposer(1, ring, Random(0)).submit(1, "l1", ReadValue(), 0.0, 1.0):
        assert isinstance(effect, SendCall)
        assert isinstance(effect.call, StoreCall)
        assert links.send(effect.disk, effect.call)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    [[first], [second]] = network.bodies
    assert first is second
    links.close()


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_call_that_has_no_bytes_fails_no_other(place: int) -> None:
    network = Sent()
    links = await links_of(network)
    keys = ["one", "two"]
    keys.insert(place, "half\ud800")
    for number, key in enumerate(keys):
        for disk in range(len(ADDRESSES)):
            assert links.send(disk, StoreCall(number, 0, ReadRow(key)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    arrived = [(number, ReadRow(key)) for number, key in enumerate(keys) if number != place]
    for sent in network.bodies:
        assert [call for body in sent for call in decode_call(body)] == arrived
    assert links.dropped == len(ADDRESSES)
    links.send(0, StoreCall(9, 0, ReadRow("half\udc00")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(network.bodies[0]) == 1, "a frame of no call is not sent"
    links.close()


async def test_the_voters_are_where_their_disks_answer() -> None:
    """The ring has the addresses of its making, and a disk may have moved."""
    links = await links_of(Sent())
    members = (RingMember(0, "", "z:1"), RingMember(1), RingMember(2, "", "c:1"), RingMember(3))
    ring = first_ring(members, 7)._replace(number=5)
    assert links.voters == (0, ())
    links.take_ring(ring)
    assert links.voters == (5, ("", "a:1", "b:1", "c:1"))
    links.close()
