"""Frames between stores and replicas, and turns of a log: written bytes are read back."""

from __future__ import annotations

import msgspec
import pytest

from shardbus.ids import NodeId
from shardbus.replication.messages import (
    AcceptChange,
    AcceptValue,
    Answer,
    Ballot,
    BucketRows,
    ChangeRecord,
    No,
    OtherBase,
    PrepareBallot,
    Promised,
    PromiseRecord,
    ReadRow,
    Request,
    RowShown,
    ScanBucket,
    ValueRecord,
    Yes,
)
from shardbus.replication.ring import RingMember, first_ring
from shardbus.replication.values import (
    HomesChange,
    LeaseValue,
    ListChange,
    ListValue,
    OpenSave,
    RemindersValue,
    SaveChange,
    SavedReminders,
    StateValue,
    TableValue,
    lease_key,
    list_key,
    node_key,
    state_key,
    table_key,
)
from shardbus.wire.disk_frames import DiskState, LogTurn, decode_turn, encode_turn
from shardbus.wire.replica_frames import (
    ReplicaFrame,
    ReportBody,
    WelcomeBody,
    cluster_mark,
    decode_call,
    decode_head,
    decode_reply,
    decode_report,
    decode_welcome,
    encode_body,
    encode_call,
    encode_head,
    encode_reply,
    value_of,
)

RING = first_ring((RingMember(5), RingMember(2**63 - 1, "rack 1")), 2)
B, C = Ballot(2**62, 3, 2**63 - 1, 9), Ballot(-1, 0, 0, 0)
HOME = (NodeId("10.0.0.1", 7355, 2**64 - 1), 2**63 - 1)
OPEN = OpenSave(2**62, 2**63 - 1)
VALUES = {
    state_key("counter", "a"): StateValue(2**63 - 1, b"\x00\xff", 1.5, 7),
    state_key("counter", "b"): StateValue(1, None),
    state_key("counter", "c"): StateValue(1, None, reminders=RemindersValue("7", 2**53, b"\xff")),
    table_key("counter"): TableValue(3, "crc32/100", 5, 6, {"7": HOME}),
    list_key("counter", "7"): ListValue(4, frozenset({"a", "日本"})),
    list_key("counter", "8"): ListValue(4, frozenset(), {"a": 2**53}, {"b": OPEN}),
    lease_key("sbr"): LeaseValue("n1", 4, 5, 15.0, 6),
    node_key("identity"): "0123456789abcdef",
    node_key("pair"): ("a", 1),
    state_key("counter", "none"): None,
}
CHANGES = {
    table_key("counter"): HomesChange(6, {"7": HOME, "8": None}),
    list_key("counter", "7"): ListChange(4, ("a",), ("b", "c")),
    list_key("counter", "8"): ListChange(4, settled=(("a", 0),), opened=(("b", OPEN),)),
    state_key("counter", "a"): SaveChange(4, b"\xff"),
    state_key("counter", "b"): SaveChange(4, None, SavedReminders("7", 0, None, alone=True)),
}


def test_requests_come_back():
    requests: list[Request] = [AcceptValue(key, B, value, 0.5) for key, value in VALUES.items()]
    requests += [PrepareBallot("k", B), ReadRow("k")]
    requests += [AcceptChange(key, B, C, change) for key, change in CHANGES.items()]
    requests += [ScanBucket(4095, "s\x1fcounter")]
    numbered = list(enumerate(requests))
    read = decode_call(encode_call(numbered))
    assert read == numbered
    assert [type(frame) for _, frame in read] == [type(frame) for frame in requests]


def test_a_state_of_a_version_without_reminders_is_read():
    assert value_of("s", [7, b"x", None, 0]) == StateValue(7, b"x")
    assert value_of("l", [4, ["a"]]) == ListValue(4, frozenset({"a"}))


def test_answers_come_back():
    answers: list[tuple[int, Answer]] = [
        (n, Promised(B, C, value, 0.25)) for n, value in enumerate(VALUES.values())
    ]
    answers += [(n, RowShown(B, C, value, 0.0)) for n, value in enumerate(VALUES.values())]
    answers += [(90, Yes()), (91, No(B)), (92, OtherBase(C))]
    answers += [(93, BucketRows((("k", B, True), ("l", C, False))))]
    reply = decode_reply(encode_reply(2**63 - 1, answers, [94]))
    assert reply.disk == 2**63 - 1
    assert reply.full == [94]

    def place(numbered: tuple[int, Answer]) -> tuple[int, str]:
        return numbered[0], type(numbered[1]).__name__

    assert sorted(reply.answers, key=place) == sorted(answers, key=place)


def test_a_turn_comes_back_with_values_first():
    values = [ValueRecord(key, B, value) for key, value in VALUES.items()]
    changes = [ChangeRecord(key, B, C, change) for key, change in CHANGES.items()]
    promises = [PromiseRecord("k", B)]
    turn = LogTurn([*promises, *changes, *values], DiskState(3, RING, True), 7)
    read = decode_turn(memoryview(encode_turn(turn)))
    assert read == LogTurn([*values, *changes, *promises], turn.state, 7)
    assert decode_turn(encode_turn(LogTurn([]))) == LogTurn([])


def test_a_report_comes_back():
    report = ReportBody("10.0.0.1:7357", 2**63 - 1, RING, True, ("10.0.0.1:7357",), True)
    assert decode_report(encode_body(report)) == report


def test_a_welcome_comes_back():
    welcome = WelcomeBody(2**63 - 1, RING, "10.0.0.2:7357: it is not in sight")
    assert decode_welcome(encode_body(welcome)) == welcome


def test_a_head_names_kind_cluster_and_ring():
    mark = cluster_mark("shop")
    head = decode_head(encode_head(ReplicaFrame.CALL, mark, 1))
    assert head == (ReplicaFrame.CALL, mark, 1)
    assert mark != cluster_mark("shop2")
    for other in (b"", b"\x01", bytes(14), encode_head(ReplicaFrame.CALL, mark)[:-1] + b"ab"):
        assert decode_head(other) is None


@pytest.mark.parametrize("body", [b"", b"\xff", b"\x80", b"\x91\x91\x01", bytes(50)])
def test_what_is_no_body_is_refused(body: bytes):
    for decode in (decode_call, decode_turn, decode_report, decode_welcome):
        with pytest.raises(msgspec.MsgspecError):
            decode(body)
    with pytest.raises(msgspec.MsgspecError):
        decode_reply(body)


def test_a_value_of_another_kind_is_refused():
    call = encode_call([(1, AcceptValue(table_key("a"), B, StateValue(1, b"x")))])
    with pytest.raises(msgspec.MsgspecError):
        decode_call(call)
