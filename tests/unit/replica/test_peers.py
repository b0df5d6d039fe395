"""The connections of a replica to the others: every short history, beside a plain model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from shardbus.ids import Address
from shardbus.replica.peers import ReplicaPeers
from shardbus.wire.replica_frames import ReplicaFrame
from tests.virtual_time import virtual

ME, A, B = Address("me", 1), Address("a", 1), Address("b", 1)
OTHERS = {"a": A, "b": B}
MARK = b"m" * 8


class Link:
    """A connection that is up and down as the test says."""

    def __init__(self, on_up: Callable[[], None], on_down: Callable[[], None]) -> None:
        self.on_up, self.on_down = on_up, on_down
        self.frames = 0
        self.closed = False

    def send(self, header: bytes, body: bytes) -> bool:
        assert not self.closed
        self.frames += 1
        return True

    def close(self) -> None:
        self.closed = True


class World:
    """The connections of one replica, and the model: which it has, and which are up."""

    def __init__(self) -> None:
        self.links: dict[Address, Link] = {}
        self.up: set[Address] = set()
        self.gone: list[Address] = []
        self.peers = ReplicaPeers(
            MARK, ME,
            report=lambda: b"", waits_for=str, on_frame=lambda kind, body: None,
            on_up=lambda: None, on_down=self.gone.append,
            on_tick=lambda: None, on_drop=lambda reason: None,
        )  # fmt: skip
        self.network: Any = SimpleNamespace(connect=self._connect)

    def _connect(self, peer: Address, on_frame: Any, *calls: Callable[[], None]) -> Link:
        assert peer not in self.links, "two connections to one replica"
        self.links[peer] = Link(*calls)
        return self.links[peer]

    def connect_to(self, peers: Iterable[Address]) -> None:
        before, self.gone[:] = dict(self.links), []
        for peer in before.keys() - set(peers):
            del self.links[peer]
        self.peers.connect_to(peers)
        assert self.links.keys() == set(peers) - {ME}
        ended = {peer for peer, link in before.items() if link.closed}
        assert ended == set(self.gone) == before.keys() - set(peers)
        self.up -= ended

    def step(self, event: str) -> None:
        what, _, name = event.partition(" ")
        if what == "connect":
            self.connect_to([ME, *(OTHERS[each] for each in name)])
        elif (link := self.links.get(OTHERS[name])) is not None:
            {"up": self.up.add, "down": self.up.discard}[what](OTHERS[name])
            {"up": link.on_up, "down": link.on_down}[what]()
        self.check()

    def check(self) -> None:
        frames = {peer: link.frames for peer, link in self.links.items()}
        self.peers.report_to_all()
        reported = {peer for peer, link in self.links.items() if link.frames > frames[peer]}
        assert reported == self.up
        for peer in OTHERS.values():
            assert self.peers.send(peer, ReplicaFrame.REPORT, b"") is (peer in self.up)


EVENTS = ("connect a", "connect b", "connect ab", "up a", "up b", "down a")


def histories(length: int) -> Iterator[tuple[str, ...]]:
    return product(EVENTS, repeat=length)


@pytest.mark.parametrize("first", EVENTS[:3])
@virtual
async def test_those_in_reach_are_the_connected_that_are_up(first: str) -> None:
    for history in histories(4):
        world = World()
        world.peers.start(world.network, [ME])
        for event in (first, *history):
            world.step(event)
        world.peers.close()
        assert all(link.closed for link in world.links.values())
