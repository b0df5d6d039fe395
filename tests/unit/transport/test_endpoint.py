"""Endpoints over a network in memory: sessions that resume, end, and keep their peers informed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from shardbus.errors import NodeLost
from shardbus.ids import Address, NodeId
from shardbus.transport import incoming, outbox
from shardbus.transport.asks import CoarseClock, Unsent
from shardbus.transport.endpoint import KEEP_ALIVE_S, Endpoint
from shardbus.transport.endpoint_events import EndpointEvents
from shardbus.transport.incoming import SILENCE_TICKS
from shardbus.transport.outgoing import REFUSED_S, SILENCE_S
from shardbus.transport.session import Session
from shardbus.wire.batch import FrameType, read_header
from shardbus.wire.schema import decode_value
from tests.unit.transport.memory_network import MemoryLink, MemoryWorld
from tests.unit.transport.session_pair import Taker, anyone
from tests.waiting import turns, until

ADD = ("counter", "add")
ME = NodeId("n1", 7001, 1)


class SlowLoop:
    """The event loop with a clock that stands still until a test changes `pair.now`."""

    def __init__(self, pair: Pair) -> None:
        self._pair, self._loop = pair, asyncio.get_running_loop()

    def time(self) -> float:
        return self._pair.now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


@pytest.fixture(autouse=True)
def any_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A SlowLoop runs its callers, though it is not the loop that runs."""
    monkeypatch.setattr(outbox, "check_loop", lambda loop: None)


class Pair:
    """A node and a client."""

    def __init__(self) -> None:
        self.world, self.now = MemoryWorld(), 1000.0
        self.taker = Taker()
        self.lost: list[tuple[Session, list[Unsent]]] = []
        self.leaving: list[Session] = []
        self.node = Endpoint(
            "shop",
            str(ME),
            ME.uid,
            self.taker,
            authorize=anyone,
            network=self.world.network(),
            node=ME,
        )
        self.client = self.make_client(9)

    def make_client(self, uid: int) -> Endpoint:
        return Endpoint(
            "shop",
            f"client#{uid}",
            uid,
            Taker(),
            authorize=anyone,
            network=self.world.network(),
            events=EndpointEvents(
                lost=lambda session, unsent: self.lost.append((session, unsent)),
                leaving=self.leaving.append,
            ),
        )

    def start(self, endpoint: Endpoint, *listen: object) -> None:
        endpoint.start(*listen)  # type: ignore[arg-type]
        assert endpoint._timer is not None
        endpoint._timer.cancel()
        endpoint.loop = SlowLoop(self)  # type: ignore[assignment]
        endpoint.clock.start(endpoint.loop.time)
        endpoint._kept_alive_at = self.now

    async def open(self, *, probe: bool = False) -> Session:
        self.session = self.client.session_to(ME.address, probe=probe)
        await self.world.quiet()
        assert self.session.link.open
        return self.session

    @property
    def link(self) -> MemoryLink:
        return self.world.links[-1]

    def tick(self, endpoint: Endpoint) -> None:
        endpoint._tick()
        assert endpoint._timer is not None
        endpoint._timer.cancel()

    def sent(self, kind: FrameType) -> int:
        """How many frames of a kind the client has sent."""
        return sum(read_header(head).kind == kind for head, _ in self.link.sent)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = Pair()
    for endpoint, listen in ((pair.node, (ME.host, ME.port)), (pair.client, ())):
        pair.start(endpoint, *listen)
    yield pair
    pair.client.close()
    pair.node.close()


def ask(session: Session) -> asyncio.Future[object]:
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    session.outbox.ask(ADD, "x", b"\x01", 60_000, answer, decode_value)
    return answer


# Sessions that end


async def test_an_idle_session_to_a_leaving_node_is_closed(pair: Pair) -> None:
    session = await pair.open()
    assert not pair.client.close_idle(ME, lambda session: True)
    assert pair.client.close_idle(ME, lambda session: False)
    assert (session.lost is not None, session.closed_idle) == (True, True)
    assert pair.sent(FrameType.BYE) == 1
    await pair.world.quiet()
    assert pair.node.sessions() == []


async def test_a_session_with_a_waiting_ask_stays_open_until_the_answer(pair: Pair) -> None:
    session = await pair.open()
    pair.taker.answers = False
    answer = ask(session)
    await pair.world.quiet()
    [inbound] = pair.node.sessions()
    inbound.keep_alive()
    await pair.world.quiet()
    assert (session.link.outstanding, session.outbox.unflushed, session.waiting_asks) == (
        0,
        False,
        1,
    )
    assert not pair.client.close_idle(ME, lambda session: False)
    assert session.lost is None
    inbound.outbox.reply(1, b"\x01")
    await pair.world.quiet()
    assert answer.result() == 1
    assert pair.client.close_idle(ME, lambda session: False)


async def test_a_session_with_an_unsent_or_unacknowledged_tell_stays_open(pair: Pair) -> None:
    session = await pair.open()
    session.outbox.tell(ADD, "x", b"\x01")
    assert not pair.client.close_idle(ME, lambda session: False)  # in the open batch
    await turns(1)
    assert not pair.client.close_idle(ME, lambda session: False)  # sent
    await pair.world.quiet()
    pair.node.sessions()[0].keep_alive()
    await pair.world.quiet()
    assert pair.client.close_idle(ME, lambda session: False)


async def test_a_forgotten_session_is_lost_and_delivers_nothing_twice(pair: Pair) -> None:
    session = await pair.open()
    session.outbox.tell(ADD, "x", b"\x01")
    await turns(1)
    while pair.link.out:  # the node gets the tell; its acknowledgement is lost
        pair.world.listeners[ME.address].on_frame([pair.link.identity, *pair.link.out.popleft()])
    [inbound] = pair.node.incoming.by_name.values()
    pair.node.incoming.forget(inbound, NodeLost("silent"))
    pair.link.cut()
    pair.link.restore()
    await pair.world.quiet()
    assert pair.taker.got == [("tell", "x", b"\x01")]
    assert [(lost, unsent) for lost, unsent in pair.lost] == [(session, [])]
    assert session.unconfirmed == {"counter": 1}
    assert not session.peer_ended


async def test_a_broken_connection_resumes_the_session(pair: Pair) -> None:
    session = await pair.open()
    session.outbox.tell(ADD, "x", b"\x01")
    await turns(1)
    pair.link.cut()  # the tell is lost
    pair.link.restore()
    await pair.world.quiet()
    assert pair.taker.got == [("tell", "x", b"\x01")]
    assert pair.lost == []


async def test_a_batch_for_a_peer_without_a_connection_waits_until_it_reconnects(
    pair: Pair,
) -> None:
    session = await pair.open()
    pair.taker.answers = False
    answer = ask(session)
    await pair.world.quiet()
    pair.link.up = False  # the node has not noticed yet
    [inbound] = pair.node.sessions()
    inbound.outbox.reply(1, b"\x05")
    inbound.outbox.flush()
    assert inbound.link.window.sent == 0
    pair.link.cut()
    pair.link.restore()
    await pair.world.quiet()
    assert answer.result() == 5


async def test_a_removed_incarnation_gets_no_new_session(pair: Pair) -> None:
    other = NodeId("n2", 7002, 2)
    peer = Endpoint(
        "shop", str(other), 2, Taker(), authorize=anyone, network=pair.world.network(), node=other
    )
    pair.start(peer)
    session = peer.session_to(ME.address, ME)
    await pair.world.quiet()
    assert session.link.open
    pair.node.remove(other, NodeLost("downed"))
    assert pair.node.sessions() == []
    pair.link.cut()
    pair.link.restore()
    await pair.world.quiet()
    assert not session.link.open
    assert pair.node.sessions() == []
    assert pair.node.dropped_frames["removed"] >= 1
    peer.close()


async def test_only_the_last_removed_incarnations_are_remembered(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "REMOVED_MAX", 2)
    nodes = [NodeId("n2", 7002, uid) for uid in (2, 3, 4)]
    for node in nodes:
        pair.node.remove(node, NodeLost("downed"))
    assert list(pair.node.incoming._removed) == [str(node) for node in nodes[1:]]


# Signs of life


async def test_an_idle_session_sends_keep_alives_at_their_interval(pair: Pair) -> None:
    await pair.open()
    pair.tick(pair.client)
    before = pair.sent(FrameType.ACK)
    pair.now += KEEP_ALIVE_S - 0.01
    pair.tick(pair.client)
    assert pair.sent(FrameType.ACK) == before
    pair.now += 0.01
    pair.tick(pair.client)
    assert pair.sent(FrameType.ACK) == before + 1
    pair.tick(pair.client)
    assert pair.sent(FrameType.ACK) == before + 1


async def test_a_keep_alive_finds_a_lost_tail(pair: Pair) -> None:
    """A batch vanished, no connection broke and nothing follows it: only the keep-alive tells."""
    session = await pair.open()
    session.outbox.tell(ADD, "x", b"\x01")
    await turns(1)
    pair.link.out.clear()
    await pair.world.quiet()
    assert pair.taker.got == []
    pair.now += KEEP_ALIVE_S
    pair.tick(pair.client)
    await pair.world.quiet()
    assert pair.taker.got == [("tell", "x", b"\x01")]


async def test_only_a_client_that_is_silent_for_too_long_is_forgotten(pair: Pair) -> None:
    await pair.open()
    tick_s = CoarseClock.TICK_MS / 1000
    pair.now += SILENCE_TICKS * tick_s
    pair.tick(pair.node)
    assert pair.node.clients == 1
    pair.now += KEEP_ALIVE_S
    pair.tick(pair.node)
    assert pair.node.clients == 0


async def test_a_client_with_keep_alives_is_not_forgotten(pair: Pair) -> None:
    await pair.open()
    for _ in range(30):
        pair.now += KEEP_ALIVE_S
        pair.tick(pair.client)
        await pair.world.quiet()
        pair.tick(pair.node)
    assert pair.node.clients == 1
    assert pair.lost == []


# Probes


async def refuse_until_lost(pair: Pair) -> None:
    pair.world.listeners.clear()
    pair.link.cut()
    await turns(3)


async def test_one_refused_probe_does_not_end_a_session_that_was_open(pair: Pair) -> None:
    session = await pair.open(probe=True)
    pair.world.refuses.append(True)
    pair.link.cut()
    await until(lambda: pair.world.probes == 1, "the first probe")
    await turns(3)
    assert session.lost is None


async def test_refused_probes_end_the_session_when_they_last(pair: Pair) -> None:
    session = await pair.open(probe=True)
    await refuse_until_lost(pair)
    assert session.lost is None
    pair.now += REFUSED_S
    await until(lambda: session.lost is not None, "the end")
    assert session.peer_ended
    assert "connection refused" in str(session.lost)


async def test_one_refused_probe_ends_a_session_that_was_never_open(pair: Pair) -> None:
    session = pair.client.session_to(ME.address, probe=True)
    await refuse_until_lost(pair)
    assert session.lost is not None


async def test_silence_ends_a_session_only_after_its_time(pair: Pair) -> None:
    session = await pair.open(probe=True)
    pair.world.refuses.extend([False] * 100)
    pair.link.cut()
    pair.now += SILENCE_S
    pair.tick(pair.client)
    assert session.lost is None
    pair.now += 0.01
    pair.tick(pair.client)
    assert session.lost is not None
    assert not session.peer_ended


async def test_the_silence_of_a_session_that_rested_begins_when_its_connection_breaks(
    pair: Pair,
) -> None:
    """An ask may be under way for longer, and its answer comes once the connection is back."""
    session = await pair.open(probe=True)
    pair.world.refuses.extend([False] * 100)
    pair.taker.answers = False
    answer = ask(session)
    await pair.world.quiet()
    pair.now += 2 * SILENCE_S
    pair.link.cut()
    pair.tick(pair.client)
    assert (session.lost, answer.done()) == (None, False)
    pair.now += SILENCE_S + 0.01
    pair.tick(pair.client)
    assert session.lost is not None
    with pytest.raises(NodeLost):
        await answer


# One node, several names

ALIAS, SERVICE, OTHER = Address("localhost", 7001), Address("shop", 80), NodeId("n2", 7002, 2)


@pytest.fixture
def named(pair: Pair) -> Pair:
    """The node answers at two more addresses."""
    for name in (ALIAS, SERVICE):
        pair.world.listeners[name] = pair.world.listeners[ME.address]
    return pair


async def opened(pair: Pair, address: Address, node: NodeId | None = None) -> Session:
    session = pair.client.session_to(address, node, probe=True)
    await pair.world.quiet()
    return session


async def test_a_session_is_that_of_the_node_by_whatever_name_it_was_dialled(named: Pair) -> None:
    session = await opened(named, ALIAS)
    assert session.name == str(ME)
    assert named.client.session_to(ME.address, ME) is session
    assert named.client.session_to(ME.address) is session
    assert named.client.node_at(ALIAS) == named.client.node_at(ME.address) == ME
    session.outbox.tell(ADD, "x", b"\x01")
    await named.world.quiet()
    assert named.taker.got == [("tell", "x", b"\x01")]
    assert len(named.world.links) == 1


async def test_a_second_name_of_a_node_does_not_end_its_session(named: Pair) -> None:
    session = await opened(named, ME.address, ME)
    other = await opened(named, ALIAS)
    assert (session.link.open, other.link.open, other.closed_idle) == (True, False, True)
    assert named.client.session_to(ALIAS) is session
    assert len(named.node.sessions()) == 1
    session.outbox.tell(ADD, "x", b"\x01")
    await named.world.quiet()
    assert session.lost is None
    assert named.node.dropped_frames == {}


async def test_two_names_dialled_at_once_make_one_session(named: Pair) -> None:
    first, second = (named.client.session_to(address, probe=True) for address in (ALIAS, SERVICE))
    await named.world.quiet()
    assert (first.link.open, second.link.open) == (True, False)
    assert named.client.session_to(SERVICE) is first
    assert len(named.node.sessions()) == 1


async def test_a_name_that_answers_late_takes_nothing_from_the_session_by_address(
    named: Pair,
) -> None:
    """The HELLO by the name is on its way while the session by the address opens."""
    by_name = named.client.session_to(ALIAS, probe=True)
    [late] = named.world.links
    held = [late.out.popleft() for _ in range(len(late.out))]
    session = await opened(named, ME.address, ME)
    late.out.extend(held)
    await named.world.quiet()
    assert (session.link.open, by_name.link.open, by_name.closed_idle) == (True, False, True)
    session.outbox.tell(ADD, "x", b"\x01")
    await named.world.quiet()
    assert named.taker.got == [("tell", "x", b"\x01")]


async def test_answers_to_earlier_questions_do_not_end_a_session(named: Pair) -> None:
    """A node that comes late gets all at once the messages of the meantime."""
    first, second = (
        named.client.session_to(address, probe=True) for address in (ALIAS, OTHER.address)
    )
    early, _ = named.world.links
    held = list(early.out)
    early.out.clear()
    for _ in range(5):
        named.now += 0.5
        named.tick(named.client)
        held += early.out
        early.out.clear()
    early.out.extend(held)
    await named.world.quiet()
    first.outbox.tell(ADD, "x", b"\x01")
    await named.world.quiet()
    assert (first.link.open, second.link.open) == (True, False)
    assert named.taker.got == [("tell", "x", b"\x01")]


async def test_a_name_that_leads_elsewhere_leaves_the_session_with_the_node(named: Pair) -> None:
    """The name of a service stands for any of its nodes."""
    session = await opened(named, SERVICE)
    other = Endpoint(
        "shop", str(OTHER), 2, Taker(), authorize=anyone, network=named.world.network(), node=OTHER
    )
    named.start(other, OTHER.host, OTHER.port)
    named.world.listeners[SERVICE] = named.world.listeners[OTHER.address]
    named.world.links[0].cut()
    session.outbox.tell(ADD, "x", b"\x01")
    named.world.links[0].restore()
    await named.world.quiet()
    assert session.link.open
    assert named.taker.got == [("tell", "x", b"\x01")]
    assert other.sessions() == []
    other.close()


async def test_a_name_that_refuses_leaves_the_session_with_the_node(named: Pair) -> None:
    session = await opened(named, ALIAS)
    del named.world.listeners[ALIAS]
    named.world.links[0].cut()
    while named.world.links[-1].address != ME.address:
        named.now += REFUSED_S
        await asyncio.sleep(0.01)
    await named.world.quiet()
    assert session.link.open


async def test_a_removed_node_has_no_session_by_another_name_either(named: Pair) -> None:
    session = await opened(named, ALIAS)
    named.client.remove(ME, NodeLost("gone"))
    assert session.lost is not None


ENDS: dict[str, Callable[[Endpoint, NodeId], None]] = {
    "it closes": lambda endpoint, peer: endpoint.close(),
    "the peer is gone": lambda endpoint, peer: endpoint.remove(peer, NodeLost("gone")),
    "the peer has left": lambda endpoint, peer: endpoint.end_sessions(peer, NodeLost("left")),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("opener", ["the node", "its peer"])
async def test_an_endpoint_ends_its_sessions_with_a_peer_whoever_has_opened_them(
    pair: Pair, opener: str, end: str
) -> None:
    network = pair.world.network()
    peer = Endpoint("shop", str(OTHER), 2, Taker(), authorize=anyone, network=network, node=OTHER)
    pair.start(peer, OTHER.host, OTHER.port)
    if opener == "the node":
        pair.node.session_to(OTHER.address)
    else:
        peer.session_to(ME.address)
    await pair.world.quiet()
    [session], [others] = pair.node.sessions(), peer.sessions()
    answer = ask(session)
    ENDS[end](pair.node, OTHER)
    assert session.lost is not None
    assert isinstance(answer.exception(), NodeLost)
    assert pair.node.sessions() == []
    if end == "it closes":
        await pair.world.quiet()
        assert others.lost is not None
    peer.close()


# Who answers


async def test_a_late_hello_of_an_earlier_session_is_dropped(pair: Pair) -> None:
    session = await pair.open()
    early = pair.link.sent[0]
    pair.client.end_sessions(ME, NodeLost("again"))
    second = await pair.open()
    assert second is not session
    pair.world.listeners[ME.address].on_frame([b"stray", *early])
    assert pair.node.dropped_frames == {"late_hello": 1}
    assert len(pair.node.sessions()) == 1
    second.outbox.tell(ADD, "x", b"\x01")
    await pair.world.quiet()
    assert pair.taker.got == [("tell", "x", b"\x01")]


async def test_another_incarnation_at_the_address_ends_the_session(pair: Pair) -> None:
    former = NodeId(ME.host, ME.port, 77)
    session = pair.client.session_to(ME.address, former)
    await pair.world.quiet()
    assert session.lost is not None
    assert session.peer_ended


async def test_a_successor_gets_nothing_that_is_sent_to_the_former_incarnation(pair: Pair) -> None:
    """The connection was opened by address, and no process has answered yet."""
    former = NodeId(ME.host, ME.port, 77)
    session = pair.client.session_to(ME.address)
    assert pair.client.session_to(ME.address, former) is session
    session.outbox.tell(ADD, "x", b"\x01")
    await pair.world.quiet()
    assert pair.taker.got == []
    assert session.lost is not None
    assert [len(unsent) for lost, unsent in pair.lost if lost is session] == [1]
    assert (await pair.open()).tag == ME


async def test_every_client_learns_that_the_node_leaves(pair: Pair) -> None:
    session = await pair.open()
    pair.node.announce_leaving()
    await pair.world.quiet()
    assert pair.leaving == [session]
    later = pair.make_client(10)
    pair.start(later)
    second = later.session_to(ME.address)
    await pair.world.quiet()
    assert pair.leaving == [session, second]
    later.close()


async def test_a_leaving_node_waits_for_a_client_that_reconnects_and_for_no_failed_one(
    pair: Pair,
) -> None:
    await pair.open()
    pair.link.cut()
    assert pair.node.clients == 1
    pair.node.announce_leaving()
    pair.now += 0.9
    pair.tick(pair.node)
    assert pair.node.clients == 1, "it may connect again"
    pair.link.restore()
    await pair.world.quiet()
    pair.now += 5.0
    pair.tick(pair.node)
    assert pair.node.clients == 1
    pair.link.cut()
    pair.node.announce_leaving()
    pair.now += 0.5
    pair.tick(pair.node)
    pair.node.announce_leaving()
    pair.now += 0.6
    pair.tick(pair.node)
    assert pair.node.clients == 0, "the second announcement does not begin the wait again"


async def test_expired_asks_are_counted(pair: Pair) -> None:
    session = await pair.open()
    pair.taker.answers = False
    answer = ask(session)
    await pair.world.quiet()
    pair.now += 61
    pair.tick(pair.client)
    assert answer.exception() is not None
    assert pair.client.asks_timed_out == 1


async def test_a_sweep_that_raises_stops_neither_the_owner_nor_the_next_tick(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks: list[int] = []
    events = EndpointEvents(tick=ticks.append)
    monkeypatch.setattr(pair.client, "events", events)
    session = await pair.open()
    ask(session)
    monkeypatch.setattr(Session, "expire", lambda session: 1 // 0)
    for n in (1, 2):
        pair.now += CoarseClock.TICK_MS / 1000
        with pytest.raises(ZeroDivisionError):
            pair.client._tick()
        assert len(ticks) == n
        assert pair.client._timer is not None
        assert not pair.client._timer.cancelled()
        pair.client._timer.cancel()
