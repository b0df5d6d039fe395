"""The codec of membership: round trips, bounds, and the effect of hostile bytes. T.U16."""

from __future__ import annotations

import tracemalloc
import zlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbus.errors import RemoteProtocolError
from shardbus.ids import Address, NodeId
from shardbus.membership import messages as m
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import FEATURES, Member, Status
from shardbus.membership.vector_clock import VectorClock
from shardbus.membership.vitals import Vitals
from shardbus.wire.gossip import BODY_MAX, COMPRESSED, FORMAT, decode, encode, kind_of
from shardbus.wire.state import WireState, member_of, wire_member
from tests.records import replace
from tests.unit.membership.test_gossip import A, B, arbitrary, histories

GREETING = m.Greeting("shop", 1, {"shards": "100"})
MEMBER = Member(
    NodeId("::1", 65535, 2**64 - 1), 1, "h:1", ("a", "b"), "1.0", Status.WEAKLY_UP, 3, zone="ü"
)
MESSAGES: list[m.Message] = [
    m.InitJoin(GREETING),
    m.InitAck(replace(GREETING, oldest=1, gossip=Address("::1", 7356))),
    m.InitNack(),
    m.Trial(MEMBER, 2**61),
    m.TrialResult("", "nothing has come yet", (Address("::1", 7355), Address("db", 1))),
    m.Join(GREETING, MEMBER),
    m.JoinRefused("because"),
    m.Welcome(Gossip().with_members(MEMBER.node, MEMBER)),
    m.Heartbeat(7, 123.25),
    m.HeartbeatReply(7, 123.25),
    m.GossipStatus(VectorClock({A: 3, B: 4}), 2),
    m.GossipSeen(VectorClock({A: 3})),
    m.GossipState(A, Gossip().with_members(MEMBER.node, MEMBER)),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_TU16_round_trip(message: m.Message) -> None:
    assert decode(encode(message)) == message


LARGE = m.Greeting("shop", 1, {f"setting {n}": str(n) for n in range(3000)})
STATE = Gossip().with_members(
    A, Member(A, 1), *(Member(NodeId(f"h{n}", 1, n), 1) for n in range(500))
)


@pytest.mark.parametrize(
    "message",
    [*MESSAGES, m.InitJoin(LARGE), m.Join(LARGE, MEMBER, 2**61), m.Welcome(STATE)],
    ids=lambda message: type(message).__name__,
)
def test_the_first_bytes_tell_what_a_message_is(message: m.Message) -> None:
    assert kind_of(encode(message)) is type(message)


@given(st.binary(max_size=40))
def test_noise_has_no_kind_or_one_of_a_message(data: bytes) -> None:
    for raw in (data, bytes((FORMAT, 0)) + data, bytes((FORMAT, 1)) + zlib.compress(data)):
        kind = kind_of(raw)
        try:
            assert type(decode(raw)) is kind
        except RemoteProtocolError:
            assert kind is None or kind in m.Message.__args__


def test_a_bomb_costs_its_first_bytes() -> None:
    bomb = bytes((FORMAT, COMPRESSED)) + zlib.compress(b"\x92\x06" + bytes(64 << 20))
    tracemalloc.start()
    assert kind_of(bomb) is m.Welcome
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_every_message_is_here() -> None:
    assert {type(message) for message in MESSAGES} == set(m.Message.__args__)


def test_a_gossip_port_on_another_host_travels_in_the_features_of_the_member() -> None:
    """A build that does not know it reads the state, and passes the feature on."""
    elsewhere = replace(MEMBER, gossip_host="10.0.0.9")
    again = decode(encode(m.Join(GREETING, elsewhere)))
    assert isinstance(again, m.Join)
    assert again.member == elsewhere
    assert again.member.gossip_address == Address("10.0.0.9", 1)
    assert wire_member(elsewhere).features == [*FEATURES, "gossip_host=10.0.0.9"]
    bad = wire_member(replace(MEMBER, gossip_host="no host"))
    with pytest.raises(RemoteProtocolError, match="not a host"):
        member_of(A, bad)


@pytest.mark.parametrize("place", ["", "nowhere", "h:0", "h:99999"])
def test_a_greeting_with_a_place_of_gossip_that_is_none_is_refused(place: str) -> None:
    forged = encode(m.InitJoin(replace(GREETING, settings={"$gossip": place})))
    with pytest.raises(RemoteProtocolError, match="no address"):
        decode(forged)


@given(arbitrary())
@settings(max_examples=60)
def test_any_state_survives(gossip: Gossip) -> None:
    assert decode(encode(m.GossipState(A, gossip))) == m.GossipState(A, gossip)


@given(histories())
@settings(max_examples=30)
def test_every_reachable_state_survives_and_encodes_alike(copies: list[Gossip]) -> None:
    for copy in copies:
        data = encode(m.Welcome(copy))
        assert decode(data) == m.Welcome(copy)
        assert encode(decode(data)) == data


def test_a_large_cluster_is_small_on_the_wire() -> None:
    nodes = [NodeId(f"10.0.{i // 250}.{i % 250}", 7355, i * 2**40) for i in range(1000)]
    gossip = Gossip().with_members(nodes[0], *(Member(n, 7356) for n in nodes))
    data = encode(m.GossipState(A, gossip))
    assert data[:2] == bytes((FORMAT, COMPRESSED))
    assert len(data) < 16_000, "30,000 without compression"


@given(st.binary(max_size=200))
@settings(max_examples=3 * settings.default.max_examples)
def test_noise_is_refused(data: bytes) -> None:
    for raw in (data, bytes((FORMAT, 0)) + data, bytes((FORMAT, 1)) + zlib.compress(data)):
        try:
            decode(raw)
        except RemoteProtocolError:
            continue


@given(st.sampled_from(MESSAGES), st.data())
@settings(max_examples=300)
def test_damaged_messages_are_refused_or_still_messages(
    message: m.Message, data: st.DataObject
) -> None:
    raw = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = decode(bytes(raw[: data.draw(st.integers(0, len(raw)))]))
    except RemoteProtocolError:
        return
    assert decode(encode(decoded)) == decoded


def body(*fields: object) -> bytes:
    return bytes((FORMAT, 0)) + msgspec.msgpack.encode(fields)


NODE = ("a", 1, 1)
TWO = [NODE, ("b", 1, 1)]
ONE = (1, "", [], "", 2, 1)
DEEP = b"\x91" * 100_000 + b"\x90"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        bytes((FORMAT + 1, 0)) + encode(m.InitNack())[2:],
        bytes((FORMAT, 2)) + encode(m.InitNack())[2:],
        body(99),
        body(3, "more"),
        body(5, "x" * 5000),
        body(7, -1, 0.0),
        body(7, 1, float("inf")),
        body(8, 1),
        body(9, [NODE], [1, 2], 1),
        body(10, [("a", 1, -1)], [1]),
        body(10, [("a", 0, 1)], [1]),
        body(10, [("", 1, 1)], [1]),
        body(9, [NODE, NODE], [1, 2], 1),
        body(10, [("a b", 1, 1)], [1]),
        bytes((FORMAT, 0)) + b"\x92\x0a\xdd\xff\xff\xff\xff",
        bytes((FORMAT, 0)) + b"\xdd\x00\x01\x00\x00" * 5000,
        bytes((FORMAT, 1)) + b"not zlib",
        bytes((FORMAT, 1)) + zlib.compress(b"\x91\x03")[:-3],
        bytes((FORMAT, 1)) + zlib.compress(b"\x91\x03") + b"tail",
        bytes((FORMAT, 1)) + zlib.compress(bytes(BODY_MAX + 1)),
    ],
)
def test_what_breaks_a_rule_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(data)


STATE: dict[str, object] = {
    "nodes": [*TWO, ("c", 1, 1)],
    "members": [ONE, ONE],
    "seen": [0],
    "rows": [(0, 1, [(1, 1)])],
    "clock": [(0, 1)],
    "tombstones": [7],
    "epochs": {"cart": 3},
    "meta": {"cart": (1, b"x")},
    "kept_down": [2],
}


def state(sender: object = NODE, **changed: object) -> bytes:
    """A gossip state with other values in some fields."""
    assert STATE.keys() == set(WireState.__struct_fields__)
    assert changed.keys() <= STATE.keys()
    fields = STATE | changed
    return body(11, sender, [fields[name] for name in WireState.__struct_fields__])


def test_the_state_that_is_broken_below_is_taken() -> None:
    decoded = decode(state())
    assert isinstance(decoded, m.GossipState)
    assert decode(encode(decoded)) == decoded


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (state(("tcp://a", 1, 1)), "not a host: 'tcp://a'"),
        (state(nodes=[NODE]), "each once"),
        (state(nodes=[NODE, NODE, ("c", 1, 1)]), "each once"),
        (state(nodes=[("a b", 1, 1), *TWO]), "not a host: 'a b'"),
        (state(members=[ONE]), "each once"),
        (state(members=[ONE, (1, "", [], "", 8, 1)]), r"<= 7 - at `\$\[2\]\[1\]"),
        (state(seen=[1, 1]), "b:1#0+1 is listed twice"),
        (state(seen=[2]), "not a member"),
        (state(seen=[-1]), ">= 0 - at"),
        (state(rows=[(0, 1, [(5, 1)])]), "not a member"),
        (state(rows=[(0, 1, [(0, 1)])]), "flag of its own observer"),
        (state(rows=[(0, 1, []), (0, 2, [])]), "a:1#0+1 is listed twice"),
        (state(rows=[(0, 1, [(1, 1), (1, 1)])]), "b:1#0+1 is listed twice"),
        (state(rows=[(0, 1, [(1, 9)])]), "<= 3 - at"),
        (state(rows=[(0, 1, "flags")]), "Expected `array`, got `str`"),
        (state(rows=[(0, 1, msgspec.Raw(DEEP))]), "recursion depth|Expected `array`"),  # by Python
        (state(clock=[(3, 1)]), "not a member"),
        (state(clock=[(0, 1), (0, 2)]), "a:1#0+1 is listed twice"),
        (state(tombstones=[]), "each once"),
        (state(epochs={"cart": 2**31}), "<= 2147483647"),
        (state(meta={"cart": (1, "text")}), "Expected `bytes`"),
        (state(kept_down=[3]), "not in it"),
        (state(kept_down=[2, 2]), "c:1#0+1 is listed twice"),
    ],
)
def test_a_state_that_breaks_a_rule_is_refused_for_it(data: bytes, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        decode(data)


def test_a_state_that_says_all_it_may_is_taken() -> None:
    """Each member flags each other one: as much as anybody can come to say."""
    nodes = [(f"n{i}", 1, i) for i in range(60)]
    rows = [(i, 1, [(s, 3) for s in range(60) if s != i]) for i in range(60)]
    message = decode(body(11, NODE, (nodes, [ONE] * 60, [], rows, [], [], {}, {}, [])))
    assert isinstance(message, m.GossipState)
    assert len(message.gossip.reachability.records()) == 60 * 59


def test_a_small_message_of_many_rows_is_refused_before_they_are_read() -> None:
    """Twenty thousand rows of 128 flags are 84 kB on the wire, and were hundreds of megabytes
    here."""
    nodes = [(f"n{i}", 1, i) for i in range(128)]
    row = [(s, 1) for s in range(128)]
    rows = [(i % 128, 1, row) for i in range(20_000)]
    plain = body(11, NODE, (nodes, [ONE] * 128, [], rows, [], [], {}, {}, []))
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match="twice"):
            decode(bytes((FORMAT, 1)) + zlib.compress(plain[2:], 9))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4 * len(plain)


@pytest.mark.parametrize("oldest", [0, 1, 9])
def test_a_greeting_carries_the_lowest_protocol_where_every_build_can_read_it(oldest: int) -> None:
    """Among the settings, which older builds read and do not compare."""
    greeting = m.Greeting("shop", 9, {"shards": "100"}, oldest)
    assert decode(encode(m.InitJoin(greeting))) == m.InitJoin(greeting)


@pytest.mark.parametrize("text", ["", "-1", "nine", "9" * 10, "\u00b2"])
def test_a_lowest_protocol_that_is_no_number_is_refused(text: str) -> None:
    greeting = m.Greeting("shop", 9, {"$oldest": text})
    with pytest.raises(RemoteProtocolError, match="no number"):
        decode(encode(m.InitJoin(greeting)))


def test_a_reply_without_vitals_has_no_field_for_them() -> None:
    """A build that does not know the field refuses it, also as None."""
    plain, busy = m.HeartbeatReply(1, 2.0), m.HeartbeatReply(1, 2.0, vitals=Vitals(rate=1.0))
    lengths = [msgspec.msgpack.decode(encode(reply)[2:]) for reply in (plain, busy)]
    assert [len(fields) for fields in lengths] == [5, 6]
    assert decode(encode(plain)) == plain
