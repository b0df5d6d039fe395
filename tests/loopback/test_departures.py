"""A node that leaves ends before its forwarded messages have arrived: nothing of it comes behind
later messages, and its senders get reports of unacknowledged messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.ids import NodeId
from shardbus.node import shutdown
from shardbus.node.node import Node
from shardbus.transport.session import Session
from shardbus.wire.batch import Control
from tests.loopback.nodes import Nodes
from tests.ports import free_port
from tests.waiting import turns, until


class Application:
    """The messages that entities got, on all nodes."""

    def __init__(self) -> None:
        bus = self.bus = ShardBus("leaving")
        self.handled: list[int] = []
        app = self

        @bus.entity("line", shards=4)
        class Line(Entity):
            @handler
            def put(self, number: int) -> None:
                app.handled.append(number)

            @handler
            def where(self) -> str:
                return self.context.node

        self.line = Line


def inbound(node: Node, tag: NodeId) -> Session:
    """The session that this process has opened to the node."""
    return node.endpoint.incoming.by_name[
        f"client#{tag.uid:016x}" if tag.host == "client" else str(tag)
    ].session


class Wall:
    """Delay or drop the frames from one node to another, on both connections between them."""

    def __init__(self, at: Node, of: Node) -> None:
        self.frames: list[tuple[bytes, bytes, bytes]] = []
        self._at, self._of, self._take = at, of, at.endpoint.incoming._on_frame
        self._session = inbound(at, of.me)

    def rise(self) -> None:
        self._at.endpoint.incoming._on_frame = self._on_frame  # type: ignore[method-assign]
        [link] = [link for link in self._at.endpoint._outgoing.values() if link.node == self._of.me]
        link._on_frame = lambda head, body: None  # type: ignore[method-assign]
        link._start_probing = lambda: None  # type: ignore[method-assign]

    def _on_frame(self, identity: bytes, head: bytes, body: bytes) -> None:
        session = self._at.endpoint.incoming._by_identity.get(identity)
        if session is not None and session.session is self._session:
            self.frames.append((identity, head, body))
        else:
            self._take(identity, head, body)

    def fall(self) -> None:
        for frame in self.frames:
            self._take(*frame)


class Leaving:
    """The older home leaves with a message for an entity that another node has by then. Its
    forwarded messages are held up from then on, and once it is `held`, its time is over."""

    def __init__(self, nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes, self.app = nodes, Application()
        self.hold_up: Callable[[], object]
        self.held: Callable[[], object]
        wait_until = shutdown._until

        async def wait(node: Node, *rest: Any) -> None:
            if node.membership.stopped.done():
                others = self.stays, self.third
                await until(lambda: not any(n.is_member(node.me) for n in others), "that it left")
                self.hold_up()
                inbound(node, self.sender).resume()
                await until(self.held, "what is passed on")
            else:
                await wait_until(node, *rest)

        monkeypatch.setattr(shutdown, "_until", wait)

    async def start(self, *, by_node: bool) -> None:
        """A client sends, or a node that hosts nothing."""
        app = self.app
        quick = {"begin_handoff_timeout": 0.2, "retry_interval": 0.2, "role": "home"}
        self.stays = await self.nodes.start(app.bus, roles=("home",), **quick)
        self.leaver = await self.nodes.start(app.bus, roles=("home",), **quick)
        third = self.third = await self.nodes.start(app.bus, **quick)
        await self.nodes.agree(3)
        self.client = await self.nodes.client(self.stays)
        self.sender = third.me
        self.refused: Callable[[], dict[str, int]] = lambda: {
            reason: n for (_, reason), n in third.records.refused.counts.items()
        }
        self.tell: Callable[[int], Any]
        homes = {name: await self._home(name) for name in map(str, range(40))}
        here, there = (self._at(homes, node) for node in (self.stays, self.leaver))
        if by_node:
            self.tell = lambda number: third.ref(app.line, there).put.tell(number)
        else:
            self.tell = lambda number: self.client.tell("line", there, "put", number)
            [self.sender] = self.leaver.dispatcher.clients
            self.refused = lambda: self.client.refused_messages
        await self.tell(0)
        await until(lambda: self.handled == [0], "the first")
        await self.leaver.ref(app.line, here).where()  # it has a link there
        self.theirs = inbound(self.stays, self.leaver.me)

    async def _home(self, entity: str) -> str:
        return await self.client.ref(self.app.line, entity).where()

    def _at(self, homes: dict[str, str], node: Node) -> str:
        return next(name for name, home in homes.items() if home == str(node.me))

    async def leave(self) -> None:
        """The message comes to the leaver when the shard has gone."""
        inbound(self.leaver, self.sender).pause()
        await self.tell(1)
        await self.nodes.leave(self.leaver)

    @property
    def handled(self) -> list[int]:
        return self.app.handled


@pytest.mark.parametrize("by_node", [False, True])
async def test_messages_held_at_a_home_without_room_precede_later_ones(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, by_node: bool
) -> None:
    world = Leaving(nodes, monkeypatch)
    await world.start(by_node=by_node)
    wall = Wall(world.stays, world.leaver)
    world.hold_up = world.theirs.pause

    def held() -> bool:
        if there := world.theirs.inbox._held_bytes > 0:
            wall.rise()  # the leaver's own goodbye is not heard
        return there

    world.held = held
    await world.leave()
    await world.tell(2)
    await until(lambda: len(world.handled) == 3, "both")
    assert world.handled == [0, 1, 2]


@pytest.mark.parametrize("by_node", [False, True])
async def test_messages_that_arrive_after_the_notice_are_refused_and_reported(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, by_node: bool
) -> None:
    world = Leaving(nodes, monkeypatch)
    await world.start(by_node=by_node)
    wall = Wall(world.stays, world.leaver)
    world.hold_up = wall.rise
    world.held = lambda: any(b"put" in body for _, _, body in wall.frames)
    await world.leave()
    await world.tell(2)
    await until(lambda: world.handled == [0, 2], "the later one")
    wall.fall()
    await turns()
    await world.tell(3)
    await until(lambda: 3 in world.handled, "the last one")
    assert world.handled == [0, 2, 3]
    assert world.stays.endpoint.dropped_frames["no_session"] >= 1
    await until(lambda: world.refused() == {"unconfirmed": 1}, "the count")


async def test_a_notice_about_a_member_is_ignored(nodes: Nodes) -> None:
    app = Application()
    first, second = await nodes.cluster(app.bus, 2)
    client = await nodes.client(first)
    homes = {await client.ref(app.line, name).where() for name in map(str, range(40))}
    assert len(homes) == 2
    before = first.endpoint.sessions()
    client._endpoint.departures.announce(second.me)
    await until(lambda: first.endpoint.dropped_frames == {"early_notice": 1}, "the refusal")
    assert first.endpoint.sessions() == before


async def test_a_client_that_closes_its_session_to_a_leaving_node_sends_no_notice(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node still passes on others' messages."""
    world = Leaving(nodes, monkeypatch)
    await world.start(by_node=True)
    await until(lambda: world.client.contact == world.stays.me, "a contact that stays")
    there = [s for s in world.client._endpoint.sessions() if s.tag == world.leaver.me]
    assert there
    world.hold_up = world.leaver.endpoint.announce_leaving
    world.held = lambda: len(world.handled) == 2 and not shutdown._busy(world.leaver)
    await world.leave()
    await world.tell(2)
    await until(lambda: len(world.handled) == 3, "both")
    assert world.handled == [0, 1, 2]
    assert world.refused() == {}
    assert all(session.closed_idle for session in there)
    assert world.client._endpoint.departures._ended == {}


async def test_a_new_session_begins_with_the_notice(nodes: Nodes) -> None:
    first, second = await nodes.cluster(Application().bus, 2)
    endpoint = (await nodes.client(first))._endpoint
    endpoint.departures.announce(NodeId("127.0.0.1", free_port(), 7))
    session = endpoint.session_to(second.me.address, second.me)
    [said] = session.unacknowledged()
    assert isinstance(said, Control)
    assert said.tag == "Goodbye"
