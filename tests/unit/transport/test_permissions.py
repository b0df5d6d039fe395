"""Senders and their permitted messages: the tables, the proof of a name, and their use by incoming
sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from shardbus.ids import Address, NodeId
from shardbus.membership.singleton import messages as handover
from shardbus.sharding import messages
from shardbus.sharding.messages import Home
from shardbus.transport import incoming
from shardbus.transport.asks import CoarseClock
from shardbus.transport.endpoint import KEEP_ALIVE_S, LINK_IDLE_S, Endpoint
from shardbus.transport.endpoint_events import EndpointEvents
from shardbus.transport.incoming import IDLE_TICKS, NEWCOMER_TICKS, SILENCE_TICKS
from shardbus.transport.permissions import (
    BETWEEN_REGIONS,
    CLIENT,
    CONTROL,
    FOR_COORDINATOR,
    FRAMES,
    FROM_COORDINATOR,
    HANDOVER,
    JOIN_ANSWERS,
    JOIN_REQUESTS,
    NEWCOMER,
    NODE,
    QUESTIONS,
    RUNS,
    Role,
    authorize,
    client_name,
    may_ask,
    may_send,
    uid_of,
)
from shardbus.transport.session import Session
from shardbus.wire.batch import (
    PROTOCOL_VERSION,
    FrameType,
    Hello,
    Hold,
    MembershipFrame,
    Relayed,
    TellRun,
    encode_batch,
    encode_body,
    pack_header,
    read_header,
)
from shardbus.wire.control import Describe, Goodbye, Members, Refusals, TypeInfo
from tests.records import field_names
from tests.unit.transport.memory_network import MemoryLink, MemoryWorld
from tests.unit.transport.session_pair import Taker
from tests.unit.transport.test_endpoint import SlowLoop

SECRET, OTHER = b"a secret", b"another"
UID = uid_of(SECRET)
ME, PEER = NodeId("127.0.0.1", 7001, 1), NodeId("127.0.0.1", 7002, UID)
TICK_S = CoarseClock.TICK_MS / 1000


# The proof of a name


@pytest.mark.parametrize(
    ("name", "node", "secret", "expected"),
    [
        (str(PEER), PEER, SECRET, NEWCOMER),
        (str(PEER), PEER, OTHER, "is not proved"),
        (str(PEER), PEER, b"", "is not proved"),
        (str(PEER._replace(port=1)), PEER, SECRET, "is not that of the node"),
        ("x", PEER, SECRET, "is not that of the node"),
        (client_name(UID), PEER, SECRET, "is not that of the node"),
        (client_name(UID), None, SECRET, CLIENT),
        (client_name(UID), None, OTHER, "is not proved"),
        (client_name(7), None, SECRET, "is not proved"),
        (str(PEER), None, SECRET, "is not proved"),
        ("", None, SECRET, "is not proved"),
    ],
)
def test_a_name_is_that_of_a_uid_which_the_secret_proves(
    name: str, node: NodeId | None, secret: bytes, expected: object
) -> None:
    permissions = authorize(Hello("shop", name, node, 1, secret=secret), None)
    if isinstance(expected, str):
        assert isinstance(permissions, str)
        assert expected in permissions
    else:
        assert permissions == expected


def test_a_host_that_is_none_is_refused() -> None:
    node = NodeId("a host", 1, UID)
    assert isinstance(authorize(Hello("shop", str(node), node, 1, secret=SECRET), None), str)


# The tables


def sample(cls: type) -> Any:
    """A message of this class that its sender, PEER, may send in its own name."""
    values: dict[str, Any] = {
        "node": PEER, "coordinator": PEER, "proxy": False, "layout": "", "hosted": (),
        "homes": (Home("1", PEER, 1),), "behind": (), "left": (), "shards": ("1",), "loads": {},
        "kind": "messages", "spare": 1.0, "rate": 1.0, "busy": 0.5, "waiting": 1.0, "expected": 1.0,
        "epoch": 1, "reason": "", "count": 3,
        "mode": "ordered", "sender": PEER, "senders": (PEER,),
        "moves": (messages.ShardMove(Home("1", PEER, 1), Home("1", ME, 2)),),
        "move": messages.ShardMove(Home("1", PEER, 1), Home("1", ME, 2)),
        "carries": True, "entities": (), "version": 1, "wants_answer": False, "nodes": (PEER,),
        "changes": (),
    }  # fmt: skip
    return cls(**{name: values[name] for name in field_names(cls)})


MACHINES = (*messages.MESSAGES, *handover.MESSAGES)


@pytest.mark.parametrize("cls", MACHINES)
def test_who_may_send_a_message_of_a_machine(cls: type) -> None:
    """Every class is in exactly one row; a new one must be put into one."""
    message = sample(cls)
    rows = (FROM_COORDINATOR, FOR_COORDINATOR, HANDOVER, BETWEEN_REGIONS)
    assert sum(cls in row for row in rows) == 1
    coordinates = cls in FROM_COORDINATOR or cls in HANDOVER
    assert may_send(NODE, PEER, message, lambda: True)
    assert may_send(NODE, PEER, message, lambda: False) is not coordinates
    assert not may_send(NEWCOMER, PEER, message, lambda: True)
    assert may_send(CLIENT, PEER, message, lambda: True) is (cls is messages.GetShardHome)


@pytest.mark.parametrize(
    "cls", [c for c in sorted(FOR_COORDINATOR, key=str) if hasattr(sample(c), "node")]
)
def test_a_member_speaks_to_a_coordinator_only_for_itself(cls: type) -> None:
    assert may_send(NODE, PEER, sample(cls), lambda: False)
    assert not may_send(NODE, ME, sample(cls), lambda: False)


@pytest.mark.parametrize(
    ("message", "roles"),
    [
        (Describe(), {Role.CLIENT, Role.NODE}),
        (Goodbye(PEER), {Role.CLIENT, Role.NODE}),
        (TypeInfo(True, "", 1), {Role.NODE}),
        (Refusals(()), {Role.NODE}),
        (Members(()), set[Role]()),
    ],
)
def test_who_may_send_the_other_control_messages(message: object, roles: set[Role]) -> None:
    allowed = [p.role for p in (CLIENT, NEWCOMER, NODE) if may_send(p, ME, message, lambda: False)]
    assert set(allowed) == roles


def test_the_other_tables() -> None:
    numbered = {FrameType.DATA, FrameType.PART, FrameType.LAST_PART}
    assert not numbered & FRAMES[Role.NEWCOMER]
    assert FrameType.MEMBERSHIP not in FRAMES[Role.CLIENT]
    assert not RUNS[Role.NEWCOMER] | CONTROL[Role.NEWCOMER]
    assert RUNS[Role.NODE] - RUNS[Role.CLIENT] == {Relayed, Hold}
    few = {Role.CLIENT: {"outbox", "stored", "values"}, Role.NEWCOMER: set(), Role.STORE: set()}
    assert few | {Role.NODE: None} == QUESTIONS
    assert not FRAMES[Role.STORE] | RUNS[Role.STORE] | CONTROL[Role.STORE]
    for permissions in (CLIENT, NEWCOMER, NODE):
        assert may_ask(permissions, "stored") is (permissions is not NEWCOMER)
        assert may_ask(permissions, "leave") is (permissions is NODE)
    assert not set(JOIN_REQUESTS) & set(JOIN_ANSWERS)


# Sessions


class Door:
    """A node in a network of memory, and strangers that write frames by hand."""

    def __init__(self) -> None:
        self.world, self.now, self.taker = MemoryWorld(), 1000.0, Taker()
        self.membership: list[tuple[NodeId, bytes, Address | None]] = []
        self.node = Endpoint(
            "shop",
            str(ME),
            ME.uid,
            self.taker,
            network=self.world.network(),
            node=ME,
            events=EndpointEvents(
                membership=lambda sender, body, request_id: self.membership.append(
                    (sender, body, request_id)
                )
            ),
        )
        self.node.start(ME.host, ME.port)
        assert self.node._timer is not None
        self.node._timer.cancel()
        self.node.loop = SlowLoop(self)  # type: ignore[arg-type, assignment]
        self.node.clock.start(self.node.loop.time)
        self.node._kept_alive_at = self.now
        self.node.set_members([ME])

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.node._tick()
        assert self.node._timer is not None
        self.node._timer.cancel()

    @property
    def drops(self) -> dict[str, int]:
        return self.node.dropped_frames


class Stranger:
    """One connection."""

    def __init__(self, door: Door, secret: bytes = SECRET, node: NodeId | None = None) -> None:
        self.door, self.secret, self.uid = door, secret, uid_of(secret)
        self.node = node
        self.back: list[tuple[int, int]] = []
        network = door.world.network()
        self.link: MemoryLink = network.connect(ME.address, self._on, lambda: None, lambda: None)

    def _on(self, parts: list[bytes]) -> None:
        header = read_header(parts[0])
        self.back.append((header.kind, header.ack))

    async def send(self, kind: FrameType, body: bytes = b"", seq: int = 0) -> list[int]:
        """Send one frame; return the types of the answers."""
        meant = 0 if kind is FrameType.HELLO else ME.uid
        head = pack_header(PROTOCOL_VERSION, kind, self.door.node.tag, self.uid, meant, seq, 0)
        self.link.send(head, body)
        self.back.clear()
        await self.door.world.quiet()
        return [kind for kind, _ in self.back]

    async def hello(self, session: int = 1, name: str = "") -> list[int]:
        name = name or (str(self.node) if self.node else client_name(self.uid))
        hello = Hello("shop", name, self.node, session, secret=self.secret)
        return await self.send(FrameType.HELLO, encode_body(hello))

    async def tell(self, seq: int = 1) -> list[int]:
        run = TellRun("counter", "add", ["x"], [b""])
        return await self.send(FrameType.DATA, encode_batch([run]), seq)


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    door = Door()
    yield door
    door.node.close()


async def test_a_forged_name_takes_no_session_over(door: Door) -> None:
    owner = Stranger(door, node=PEER)
    assert await owner.hello() == [FrameType.WELCOME]
    [session] = door.node.sessions()
    thief = Stranger(door, secret=OTHER, node=PEER)
    assert await thief.hello(session=99) == [FrameType.REFUSED]
    assert door.node.sessions() == [session]
    assert session.lost is None
    assert door.drops == {"not_authorized": 1}


async def test_a_uid_in_a_header_that_is_not_the_senders_is_refused(door: Door) -> None:
    """It would stand for another client."""
    stranger = Stranger(door)
    stranger.uid += 1
    assert await stranger.hello(name=client_name(uid_of(SECRET))) == [FrameType.REFUSED]
    assert door.node.clients == 0


async def test_what_an_unknown_node_sends_waits_until_it_is_a_member(door: Door) -> None:
    node = Stranger(door, node=PEER)
    await node.hello()
    await node.tell()
    assert (door.taker.got, door.drops) == ([], {"not_a_member": 1})
    door.node.set_members([ME, PEER])
    await door.world.quiet()
    assert (FrameType.NAK, 0) in node.back
    await node.tell()
    assert door.taker.got == [("tell", "x", b"")]


async def test_a_node_that_left_stays_believed_until_its_session_ends(door: Door) -> None:
    door.node.set_members([ME, PEER])
    node = Stranger(door, node=PEER)
    await node.hello()
    door.node.set_members([ME])
    await node.tell()
    assert door.taker.got == [("tell", "x", b"")]


async def test_membership_comes_only_in_the_session_of_its_sender(door: Door) -> None:
    frame, forged = (encode_body(MembershipFrame(n, b"join")) for n in (PEER, PEER._replace(uid=2)))
    before = Stranger(door, node=PEER)
    assert await before.send(FrameType.MEMBERSHIP, frame) == [FrameType.UNKNOWN]
    client = Stranger(door)
    await client.hello()
    await client.send(FrameType.MEMBERSHIP, frame)
    await before.hello()
    await before.send(FrameType.MEMBERSHIP, forged)
    assert (door.membership, door.drops) == ([], {"no_session": 1, "not_allowed": 2})
    await before.send(FrameType.MEMBERSHIP, frame)
    assert door.membership == [(PEER, b"join", None)]


async def test_an_answer_goes_back_on_the_connection_that_asked_and_opens_none(door: Door) -> None:
    door.node.answer_membership(PEER, b"ack")
    assert door.node.outgoing_sessions == []
    assert door.drops == {"no_session": 1}
    node = Stranger(door, node=PEER)
    await node.hello()
    node.back.clear()
    door.node.answer_membership(PEER, b"ack")
    await door.world.quiet()
    assert node.back == [(FrameType.MEMBERSHIP, 0)]
    assert door.node.outgoing_sessions == []


# Bounds


def fakes(door: Door, count: int, *, nodes: bool) -> list[Stranger]:
    secrets = [b"fake %d" % n for n in range(count)]
    return [
        Stranger(door, secret, NodeId("10.0.0.1", 1, uid_of(secret)) if nodes else None)
        for secret in secrets
    ]


async def test_the_oldest_unknown_node_gives_way_and_no_client_does(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "NEWCOMERS_MAX", 3)
    client = Stranger(door)
    await client.hello()
    for fake in fakes(door, 5, nodes=True):
        assert await fake.hello() == [FrameType.WELCOME]
    assert len(door.node.sessions()) == 4
    assert door.drops == {"gave_way": 2}
    await client.tell()
    assert door.taker.got == [("tell", "x", b"")]


async def test_an_idle_client_gives_way_and_an_active_one_does_not(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "CLIENTS_MAX", 2)
    first, second, late, later = fakes(door, 4, nodes=False)
    for client in (first, second):
        await client.hello()
    assert await late.hello() == []
    assert door.drops == {"too_many_sessions": 1}
    door.tick(IDLE_TICKS * TICK_S + 1)
    await first.tell()
    assert await late.hello() == [FrameType.WELCOME]
    assert await later.hello() == []
    names = {session.name for session in door.node.sessions()}
    assert names == {client_name(first.uid), client_name(late.uid)}


async def test_an_unknown_node_is_forgotten_when_it_is_silent_or_never_a_member(door: Door) -> None:
    silent, busy = fakes(door, 2, nodes=True)
    for fake in (silent, busy):
        await fake.hello()
    door.tick(SILENCE_TICKS * TICK_S)
    await busy.send(FrameType.ACK)
    door.tick(KEEP_ALIVE_S)
    assert [session.name for session in door.node.sessions()] == [str(busy.node)]
    while door.now <= 1000 + NEWCOMER_TICKS * TICK_S:
        await busy.send(FrameType.ACK)
        door.tick(KEEP_ALIVE_S)
    door.tick(KEEP_ALIVE_S)
    assert door.node.sessions() == []
    assert door.drops["never_a_member"] == 1


async def test_a_member_that_sends_nothing_is_not_forgotten(door: Door) -> None:
    door.node.set_members([ME, PEER])
    await Stranger(door, node=PEER).hello()
    door.tick(NEWCOMER_TICKS * TICK_S)
    door.tick(NEWCOMER_TICKS * TICK_S)
    assert len(door.node.sessions()) == 1


async def test_a_link_to_a_process_that_is_no_member_ends_once_it_is_idle(door: Door) -> None:
    seed: Session = door.node.session_to(Address("127.0.0.1", 7009))
    door.tick(LINK_IDLE_S)
    assert seed.lost is None
    door.tick(KEEP_ALIVE_S)
    assert seed.lost is not None
    assert door.node.outgoing_sessions == []


async def test_a_hello_over_its_bound_is_not_decoded(door: Door) -> None:
    stranger = Stranger(door)
    assert await stranger.hello(name="n" * 300) == [FrameType.REFUSED]
    assert await stranger.hello(name="n" * 301) == []
    assert await stranger.send(FrameType.HELLO, bytes(1 << 20)) == []
    assert door.drops == {"not_authorized": 1, "malformed": 2}
