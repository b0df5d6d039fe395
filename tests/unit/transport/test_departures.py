"""Goodbyes are passed on, ahead of later messages, once; messages under way are counted."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from shardbus.ids import NodeId
from shardbus.routing.pending_message import PendingMessage
from shardbus.transport import departures
from shardbus.transport.asks import CoarseClock
from shardbus.transport.departures import NEWS_S, DepartureNotices
from shardbus.transport.fragments import LARGE_WEIGHT
from shardbus.transport.session import tells_by_mark
from shardbus.wire.batch import Control, Run, decode_batch
from shardbus.wire.control import Goodbye, decode_control
from shardbus.wire.schema import decode_value
from tests.unit.transport.session_pair import Side, pair, quiet
from tests.waiting import until

ME, LEFT, HOME = NodeId("a", 1, 1), NodeId("b", 1, 2), NodeId("c", 1, 3)
ADD = ("counter", "add")


class World:
    """An endpoint with links to some nodes."""

    def __init__(self, *nodes: NodeId) -> None:
        self.now, self.ended = 0.0, list[NodeId]()
        self.sides = [Side(str(node), is_open=False) for node in nodes]
        for side, node in zip(self.sides, nodes, strict=True):
            side.session.tag = node
        loop = SimpleNamespace(time=lambda: self.now)
        endpoint: Any = SimpleNamespace(
            node=ME,
            loop=loop,
            outgoing_sessions=[side.session for side in self.sides],
            end_sessions=lambda node, error: self.ended.append(node),
        )
        self.departures = DepartureNotices(endpoint)

    def said(self, at: int = 0) -> list[NodeId]:
        """The processes whose goodbye a link has passed on, by now."""
        return named(list(self.sides[at].session.unacknowledged()))


def named(runs: list[Run]) -> list[NodeId]:
    controls = [decode_control(run) for run in runs if isinstance(run, Control)]
    return [control.node for control in controls if isinstance(control, Goodbye)]


async def test_a_notice_goes_to_every_peer_but_the_departed() -> None:
    world = World(HOME, LEFT)
    world.departures.announce(LEFT)
    assert [world.said(0), world.said(1)] == [[LEFT], []]
    assert world.ended == []


async def test_a_notice_ends_the_sessions_and_is_forwarded_once() -> None:
    world = World(HOME)
    for _ in range(3):
        world.departures.on_notice(LEFT)
    assert world.said() == [LEFT]
    assert world.ended == [LEFT] * 3
    world.departures.on_notice(ME)
    assert world.said() == [LEFT]
    assert world.ended == [LEFT] * 3


async def test_a_new_session_begins_with_the_recent_notices() -> None:
    world, new, later = World(), Side("new"), Side("later")
    world.departures.announce(LEFT)
    world.now = NEWS_S - 1
    world.departures.announce(HOME)
    world.departures.on_session(new.session)
    world.now = NEWS_S
    world.departures.on_session(later.session)
    assert named([run for batch in new.batches for run in batch]) == [LEFT, HOME]
    assert named([run for batch in later.batches for run in batch]) == [HOME]


async def test_no_message_that_is_sent_behind_it_comes_before_it() -> None:
    """Not even where one large batch holds another up, and later ones may pass both."""
    a, b = pair()
    world = World()
    world.departures.announce(LEFT)
    a.session.outbox.tell(ADD, "large", bytes(2 * LARGE_WEIGHT))
    a.session.outbox.tell(ADD, "large", b"behind it")
    world.departures.on_session(a.session)
    a.session.outbox.tell(ADD, "other", b"")
    await quiet(a, b)
    tags = [row[1] for row in b.taker.got]
    assert tags.index("Goodbye") < tags.index("other")


async def test_only_so_many_are_remembered(monkeypatch: Any) -> None:
    monkeypatch.setattr(departures, "KNOWN_MAX", 10)
    world, new = World(), Side("new")
    nodes = [NodeId("n", 1, uid) for uid in range(30)]
    for node in nodes:
        world.departures.announce(node)
    world.departures.on_session(new.session)
    assert named([run for batch in new.batches for run in batch]) == nodes[-10:]


async def test_unacknowledged_tells_are_counted_by_type_and_mark() -> None:
    a, b = pair()
    clock, answer = CoarseClock(), asyncio.get_running_loop().create_future()
    a.session.outbox.tell(ADD, "acknowledged", b"")
    await quiet(a, b)
    b.session.keep_alive()
    await quiet(a, b)
    a.has_room = False
    a.session.outbox.tell(ADD, "own", b"")
    PendingMessage(ADD, "17", "x", b"", 1, via=-3).send(a.session.outbox, clock)
    a.session.outbox.tell(ADD, "large", bytes(2 * LARGE_WEIGHT))
    a.session.outbox.flush()
    a.session.outbox.tell(ADD, "large", b"in the lane behind it")
    a.session.outbox.flush()
    for via in (-3, -4):
        PendingMessage(ADD, "17", "x", b"", 1, via=via).send(a.session.outbox, clock)
    a.session.outbox.ask(ADD, "x", b"", 1000, answer, decode_value)
    counts = tells_by_mark(a.session.unacknowledged())
    assert counts == {("counter", 0): 3, ("counter", -3): 2, ("counter", -4): 1}
    a.has_room = True
    a.session.link._unblock()
    await quiet(a, b)
    runs = [run for kind, _, _, body in a.frames if kind == 4 for run in decode_batch(body)]
    assert runs
    assert len(b.taker.got) == 1 + sum(counts.values()) + 1  # nothing was taken out


# Notices of clients


class Probed(World):
    """A world in which a probe of the departed node gets the next of these outcomes."""

    def __init__(self, *outcomes: bool | None) -> None:
        super().__init__(HOME)
        self.outcomes, self.probed = list(outcomes), 0
        endpoint: Any = self.departures._endpoint
        endpoint.network = SimpleNamespace(probe=self.probe)
        self.client = Side("client", is_open=True)

    async def probe(self, address: object) -> bool:
        self.probed += 1
        self.now += departures.VERIFY_S / 4
        outcome = self.outcomes.pop(0) if self.outcomes else True
        if outcome is None:
            raise OSError("no route")
        return outcome

    @property
    def held(self) -> bool:
        return self.client.session.inbox.holding


async def test_a_client_is_held_until_the_departed_process_refuses_connections() -> None:
    world = Probed(True, None, False)
    world.departures.verify(world.client.session, LEFT)
    assert world.held
    await until(lambda: not world.held, "the verdict")
    assert (world.ended, world.probed) == ([LEFT], 3)
    assert world.said() == []  # never forwarded


async def test_a_node_that_lives_keeps_its_sessions_whatever_clients_report() -> None:
    world = Probed()
    for _ in range(3):
        world.departures.verify(world.client.session, LEFT)
    await until(lambda: not world.held, "the end of the wait")
    assert (world.ended, world.probed) == ([], 4)
