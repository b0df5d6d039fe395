"""Frames and batches: written bytes are read back, and foreign bytes raise RemoteProtocolError and
no other error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardbus.errors import RemoteProtocolError
from shardbus.ids import NodeId
from shardbus.transport.outbox import BATCH_WEIGHT_MAX
from shardbus.wire import batch
from shardbus.wire.batch import (
    CONTROL_BYTES_MAX,
    MESSAGES_MAX,
    REJECTION_BYTES_MAX,
    AskRun,
    Control,
    Fail,
    Flush,
    Hello,
    LinkWelcome,
    MembershipFrame,
    RefusedBody,
    Relayed,
    ReplyRun,
    Run,
    SessionVersions,
    TellRun,
    cluster_tag,
    decode_batch,
    decode_hello,
    decode_membership,
    decode_refused,
    decode_welcome,
    encode_batch,
    encode_body,
    pack_header,
    read_header,
)

NODE = NodeId("10.0.0.1", 7355, 2**64 - 1)
RUNS: list[Run] = [
    TellRun("counter", "add", ["a", "é"], [b"\x91\x01", b""]),
    AskRun("counter", ":Move", 5000, ["a", "b"], [b"\x90", b"x" * 300], [1, 2**63]),
    AskRun("counter", "add", 5000, ["a"], [b"\x90"], [3], (("page", "é", 2**62), ("user", "b", 1))),
    ReplyRun([1, 2], [b"\xc0", b""]),
    Fail(7, "EntityFailed", "division by zero", "ZeroDivisionError"),
    Fail(8, "Rejection", "left=3", "shop:OutOfStock", b"\x81\xa4left\x03"),
    Fail(9, "Unhandled", "declined", "", begun=True),
    Relayed("counter", "17", "a", "", b"\xc0", 9, 250, 3),
    Relayed("counter", "17", "a", "", b"\xc0", 9, 250, 3, (("page", "é", 2**62),)),
    Relayed("counter", "17", "a", "", b"\xc0", 0, 0, 3, (), -7),
    Control("Register", "counter", b"\x80"),
    Flush("counter", "17", 4, 60_000, 1),
]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: type(run).__name__)
def test_each_run_is_read_back(run: Run) -> None:
    assert decode_batch(encode_batch([run])) == [run]


def test_runs_keep_their_order() -> None:
    assert decode_batch(encode_batch(RUNS + RUNS)) == RUNS + RUNS
    assert decode_batch(encode_batch([])) == []


def test_another_implementation_of_messagepack_reads_it() -> None:
    read = msgpack.unpackb(encode_batch(RUNS))
    assert read == [
        [0, "counter", "add", ["a", "é"], [b"\x91\x01", b""], ""],
        [1, "counter", ":Move", 5000, ["a", "b"], [b"\x90", b"x" * 300], [1, 2**63], [], ""],
        [
            *[1, "counter", "add", 5000, ["a"], [b"\x90"], [3]],
            [["page", "é", 2**62], ["user", "b", 1]],
            "",
        ],
        [2, [1, 2], [b"\xc0", b""]],
        [3, 7, "EntityFailed", "division by zero", "ZeroDivisionError", b"", False],
        [3, 8, "Rejection", "left=3", "shop:OutOfStock", b"\x81\xa4left\x03", False],
        [3, 9, "Unhandled", "declined", "", b"", True],
        [4, "counter", "17", "a", "", b"\xc0", 9, 250, 3, [], 0, ""],
        [4, "counter", "17", "a", "", b"\xc0", 9, 250, 3, [["page", "é", 2**62]], 0, ""],
        [4, "counter", "17", "a", "", b"\xc0", 0, 0, 3, [], -7, ""],
        [5, "Register", "counter", b"\x80"],
        [6, "counter", "17", 4, 60_000, 1],
    ]
    assert decode_batch(msgpack.packb(read)) == RUNS


def test_runs_of_a_build_without_chains_are_read() -> None:
    ask, relayed = AskRun("t", "m", 1, ["a"], [b""], [1]), Relayed("t", "1", "a", "m", b"", 1, 2, 3)
    ask_run, sent_on = msgpack.unpackb(encode_batch([ask, relayed]))
    for old in (sent_on[:-3], sent_on[:-2], sent_on[:-1]):  # without link, without trace
        for older in (ask_run[:-2], ask_run[:-1]):
            assert decode_batch(msgpack.packb([older, old])) == [ask, relayed]


def test_a_failure_of_a_build_without_rejections_is_read() -> None:
    [failed] = msgpack.unpackb(encode_batch([Fail(1, "Unhandled", "no", "")]))
    for old in (failed[:-2], failed[:-1]):  # without fields, without the begun one
        assert decode_batch(msgpack.packb([old])) == [Fail(1, "Unhandled", "no", "")]


def test_the_fields_of_a_rejection_are_bounded() -> None:
    fail = Fail(1, "Rejection", "", "m:C", b"x" * REJECTION_BYTES_MAX)
    assert decode_batch(encode_batch([fail])) == [fail]
    fail.fields += b"x"
    with pytest.raises(RemoteProtocolError):
        decode_batch(encode_batch([fail]))


def test_a_build_without_chains_reads_these_runs() -> None:
    class OldAsk(msgspec.Struct, array_like=True, tag_field="op", tag=1):
        type: str
        method: str
        timeout_ms: int
        ids: list[str]
        payloads: list[bytes]
        corrs: list[int]

    run = AskRun("t", "m", 1, ["a"], [b""], [1], (("t", "b", 5),))
    [old] = msgspec.msgpack.decode(encode_batch([run]), type=list[OldAsk])
    assert old.corrs == [1]


@pytest.mark.parametrize(
    "run",
    [
        [0, "t", "m", ["a"], []],
        [0, "t", "m", [], [b""]],
        [1, "t", "m", 1, ["a"], [b""], []],
        [1, "t", "m", 1, ["a"], [], [1]],
        [1, "t", "m", 1, [], [b""], [1]],
        [2, [1], []],
        [2, [], [b""]],
    ],
)
def test_columns_of_different_length_are_refused(run: list[object]) -> None:
    with pytest.raises(RemoteProtocolError, match="differ in length"):
        decode_batch(msgpack.packb([[5, "T", "t", b""], run]))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x91",
        b"\xc1",
        msgpack.packb({}),
        msgpack.packb([[7, "t"]]),
        msgpack.packb([[0, "t", "m", ["a"]]]),
        msgpack.packb([[0, 1, "m", [], []]]),
        msgpack.packb([[0, "t", "m", ["a"], ["text, not bytes"]]]),
        msgpack.packb([[2, [-1.5], [b""]]]),
        msgpack.packb([]) + b"\x00",
        b"\xdd\xff\xff\xff\xff",
        b"\x91\x95\x00\xdb\xff\xff\xff\xff",
        b"\x91" * 100_000,
        msgpack.packb([[0, "t", "m", [], []]] * (batch.RUNS_MAX + 1)),
        b"\x91\x95\x00\xa1\xff\xa1m\x90\x90",
        msgpack.packb([[1, "t", "m", 1, [], [], [], [["t", "a", 1]] * (batch.CHAIN_MAX + 1)]]),
        msgpack.packb([[1, "t", "m", 1, [], [], [], [["t", "a"]]]]),
    ],
    ids=range(17),
)
def test_what_does_not_fit_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_batch(body)


BODIES: list[tuple[Callable[[bytes], Any], Any]] = [
    (decode_hello, Hello("shop", f"{NODE}/3", NODE, 3)),
    (decode_hello, Hello("shop", "client#1", None, 1)),
    (decode_hello, Hello("shop", "client#1", None, 1, True, b"x", SessionVersions(1, 2), ("a",))),
    (decode_welcome, LinkWelcome(NODE, True)),
    (decode_welcome, LinkWelcome(NODE, True, SessionVersions(3, 3), ("a", "b"))),
    (decode_refused, RefusedBody("another cluster", False)),
    (decode_refused, RefusedBody("no room", False, busy=True)),
    (decode_membership, MembershipFrame(NODE, b"\x00\xff")),
]


@pytest.mark.parametrize(("decode", "body"), BODIES)
def test_the_other_bodies_are_read_back(decode: Callable[[bytes], Any], body: Any) -> None:
    assert decode(encode_body(body)) == body
    fields = msgpack.unpackb(encode_body(body))
    for wrong in (b"", b"\xc0", msgpack.packb(fields[:1]), msgpack.packb([*fields[:-1], [[]]])):
        with pytest.raises(RemoteProtocolError):
            decode(wrong)


class OldHello(msgspec.Struct, array_like=True):
    """The features of a build whose sessions declare neither versions nor features."""

    cluster: str
    name: str
    node: NodeId | None
    session: int
    listens: bool = False
    secret: bytes = b""


class OldWelcome(msgspec.Struct, array_like=True):
    """The same of the answer."""

    node: NodeId
    fresh: bool


def test_N19_greetings_of_builds_without_versions_are_read_and_theirs_read_ours() -> None:
    hello = Hello("shop", "client#1", None, 1, True, b"x", SessionVersions(1, 2), ("a",))
    old = msgspec.msgpack.decode(encode_body(hello), type=OldHello)
    assert (old.name, old.session, old.listens, old.secret) == ("client#1", 1, True, b"x")
    assert decode_hello(encode_body(old)) == Hello("shop", "client#1", None, 1, True, b"x")
    welcome = LinkWelcome(NODE, True, SessionVersions(1, 2), ("a",))
    before = msgspec.msgpack.decode(encode_body(welcome), type=OldWelcome)
    assert decode_welcome(encode_body(before)) == LinkWelcome(NODE, True)


@pytest.mark.parametrize(
    ("ours", "theirs", "meet"),
    [((1, 1), (1, 1), True), ((1, 2), (2, 3), True), ((2, 3), (1, 2), True),
     ((1, 1), (2, 3), False), ((2, 3), (1, 1), False), ((1, 4), (2, 3), True)],
)  # fmt: skip
def test_N19_ranges_of_versions_meet_if_they_share_one(
    ours: tuple[int, int], theirs: tuple[int, int], meet: bool
) -> None:
    assert SessionVersions(*ours).meets(SessionVersions(*theirs)) is meet


def test_a_header_is_read_back() -> None:
    frame = pack_header(1, 4, cluster_tag("shop"), 2**64 - 1, 3, 2**40, 7)
    assert len(frame) == batch.HEADER_BYTES
    header = read_header(frame)
    assert msgspec.structs.astuple(header) == (4, cluster_tag("shop"), 2**64 - 1, 3, 2**40, 7)


@given(st.binary(max_size=2 * batch.HEADER_BYTES).filter(lambda f: len(f) != batch.HEADER_BYTES))
def test_a_header_of_another_size_is_refused(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="bytes, expected"):
        read_header(frame)


def test_a_header_of_another_version_is_refused() -> None:
    """Also of a newer one, which may give the same bytes another meaning."""
    assert batch.PROTOCOL_VERSION == 1
    for version in (0, *range(2, 256)):
        frame = pack_header(version, 4, cluster_tag("shop"), 1, 3, 5, 7)
        said = f"protocol version {version}, this build speaks"
        with pytest.raises(RemoteProtocolError, match=said):
            read_header(frame)


DECODERS = st.sampled_from(
    [decode_batch, decode_hello, decode_welcome, decode_refused, decode_membership]
)
LIKELY = st.recursive(
    st.integers(0, 9) | st.binary(max_size=4) | st.text(max_size=4) | st.none(),
    lambda inner: st.lists(inner, max_size=6),
    max_leaves=20,
)


@given(DECODERS, st.binary(max_size=200) | LIKELY.map(msgpack.packb))
@example(decode_hello, b"\x94\xa1\xff\xa0\xc0\x01")
def test_noise_is_read_or_refused(decode: Callable[[bytes], Any], body: bytes) -> None:
    with suppress(RemoteProtocolError):
        decode(body)


@given(st.data())
def test_a_damaged_batch_is_read_or_refused(data: st.DataObject) -> None:
    body = bytearray(encode_batch(RUNS))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(RemoteProtocolError):
        decode_batch(bytes(body[: data.draw(st.integers(0, len(body)))]))


def test_a_batch_of_too_many_messages_is_refused() -> None:
    """Over all runs together, and over each column by itself."""
    half = TellRun("t", "m", ["a"] * (MESSAGES_MAX // 2), [b""] * (MESSAGES_MAX // 2))
    failure = Fail(1, "NodeLost", "", "")
    assert decode_batch(encode_batch([half, half])) == [half, half]
    whole = ["a"] * (MESSAGES_MAX + 1)
    for runs in ([half, half, failure], [TellRun("t", "m", whole, [b""] * len(whole))]):
        with pytest.raises(RemoteProtocolError):
            decode_batch(encode_batch(runs))


@pytest.mark.parametrize(
    "run",
    [
        TellRun("t" * 257, "m", [], []),
        TellRun("t", "m" * 1025, [], []),
        AskRun("t", "m", -1, [], [], []),
        AskRun("t", "m", 10**12 + 1, [], [], []),
        Flush("t", "7", 1, 1, 2**16 + 1),
        Relayed("t", "7", "a", "m", b"", 1, -5, 0),
    ],
    ids=repr,
)
def test_a_field_out_of_bounds_is_refused(run: Run) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_batch(encode_batch([run]))


def test_a_hello_over_its_bound_is_refused_before_it_is_decoded() -> None:
    fields = ["shop", "client#1", None, 1, True, b"", [1, 1], []]
    assert decode_hello(encode_body([*fields, "x" * 8000])).name == "client#1"
    with pytest.raises(RemoteProtocolError, match="at most 8192"):
        decode_hello(encode_body([*fields, "x" * 8192]))
    for name, secret in (("n" * 301, b""), ("n", bytes(65))):
        with pytest.raises(RemoteProtocolError, match="not a Hello"):
            decode_hello(encode_body(["shop", name, None, 1, True, secret]))


def test_many_large_control_messages_in_one_batch_are_refused() -> None:
    """One may do much work, and as many as fit into a frame would add up to seconds."""
    half = Control("ShardHomes", "page", bytes(CONTROL_BYTES_MAX // 2))
    huge = Control("ShardHomes", "page", bytes(8 * CONTROL_BYTES_MAX))
    for sound in ([half, half], [huge], [half, huge, half]):
        assert decode_batch(encode_batch(sound)) == sound
    control = Control("Describe", "page", b"x")
    for wrong in ([half, huge, half, control], [huge, huge], [half, half, half, control]):
        with pytest.raises(RemoteProtocolError, match="bytes of control messages"):
            decode_batch(encode_batch(wrong))


def test_what_a_session_puts_into_one_batch_stays_far_below_that_bound() -> None:
    assert 2 * BATCH_WEIGHT_MAX <= CONTROL_BYTES_MAX
