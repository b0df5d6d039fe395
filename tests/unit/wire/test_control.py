"""Control messages: every class is read back, newer fields are ignored, noise is refused."""

from __future__ import annotations

from contextlib import suppress

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.bounds import SHARDS_MAX
from shardbus.errors import RemoteProtocolError
from shardbus.ids import NodeId
from shardbus.membership.singleton import messages as handover
from shardbus.sharding import messages
from shardbus.sharding.messages import (
    MESSAGES,
    CarriedEntity,
    Home,
    PartitionChange,
    ShardMove,
    TableState,
    TableStatus,
)
from shardbus.wire.batch import Control
from shardbus.wire.control import (
    Describe,
    Members,
    Refusals,
    TypeInfo,
    decode_control,
    encode_control,
)
from tests.records import field_names

A, B = NodeId("10.0.0.1", 7355, 2**64 - 1), NodeId("::1", 1, 0)
HOMES = (Home("17", A, 3), Home("ü", B, 2**40))
VALUES: dict[str, object] = {
    "node": A,
    "coordinator": B,
    "proxy": True,
    "layout": "crc32/100",
    "hosted": HOMES,
    "homes": HOMES,
    "epoch": 7,
    "reason": "because",
    "behind": HOMES,
    "left": ("1",),
    "loads": {"17": 0.5, "ü": 2e6},
    "kind": "time",
    "spare": 0.25,
    "rate": 125.0,
    "busy": 0.5,
    "waiting": 7.0,
    "expected": 100.0,
    "shards": ("1", "2"),
    "count": 3,
    "mode": "ordered",
    "senders": (A, B),
    "sender": A,
    "moves": (ShardMove(*HOMES),),
    "move": ShardMove(*HOMES),
    "carries": True,
    "entities": (CarriedEntity("t", "ü", None, b""), CarriedEntity("t", "2", b"state", b"data")),
}
EXAMPLES: list[object] = [
    cls(**{name: VALUES[name] for name in field_names(cls)})  # type: ignore[arg-type]
    for cls in (*MESSAGES, *handover.MESSAGES)
    if cls not in (TableStatus, TableState)
] + [
    TableStatus(7, 2**40, wants_answer=True),
    TableState(7, 3, (A, B), b"homes", (PartitionChange("17", A, None, "awaiting"),)),
    Describe(),
    TypeInfo(True, "crc32/100", 100),
    TypeInfo(False, "", 0, similar="counter"),
    TypeInfo(True, "crc32/100~N", 100, 3, "nearest"),
    Members((A, B)),
    Members((), (A,)),
    Refusals((("t", "schema", 3),)),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_TSU20_each_message_is_read_back(message: object) -> None:
    control = encode_control("counter", message)
    assert (control.tag, control.type) == (type(message).__name__, "counter")
    assert decode_control(control) == message


def test_a_field_of_a_newer_node_is_ignored() -> None:
    body = msgpack.packb({"shards": ["1"], "priority": 3})
    assert decode_control(Control("GetShardHome", "t", body)) == messages.GetShardHome(("1",))


@pytest.mark.parametrize(
    ("tag", "body"),
    [
        ("Nothing", b"\x80"),
        ("__class__", b"\x80"),
        ("GetShardHome", b""),
        ("GetShardHome", b"\x80"),
        ("GetShardHome", msgpack.packb({"shards": 1})),
        ("GetShardHome", b"\x81\xa6shards\x91\xa1\xff"),
        ("Register", msgpack.packb({"node": ["h", 1], "proxy": False, "layout": "", "hosted": []})),
        ("HostShard", msgpack.packb({"epoch": 2**31, "homes": []})),
        ("HostShard", msgpack.packb({"epoch": 1, "homes": [["7", ["h", 1, 1], 2**63]]})),
        ("HostShard", msgpack.packb({"epoch": 1, "homes": [["7", ["h", 1, 1], -1]]})),
        ("HostShard", msgpack.packb({"epoch": 1, "homes": [["7" * 257, ["h", 1, 1], 1]]})),
        ("HandOverDone", msgpack.packb({"epoch": 2**31})),
        ("Goodbye", msgpack.packb({"node": ["", 1, 1]})),
        ("Goodbye", msgpack.packb({"node": ["h" * 256, 1, 1]})),
        ("Goodbye", msgpack.packb({"node": ["h", 65536, 1]})),
        ("Goodbye", msgpack.packb({"node": ["h", 1, -1]})),
        ("GetShardHome", msgpack.packb({"shards": ["1"] * (SHARDS_MAX + 1)})),
        ("ShardLoads", msgpack.packb({"node": ["h", 1, 1], "loads": {"1": -1.0}})),
        ("ShardLoads", msgpack.packb({"node": ["h", 1, 1], "loads": {"1": float("nan")}})),
        ("ShardLoads", msgpack.packb({"node": ["h", 1, 1], "loads": {"1": float("inf")}})),
        ("ShardLoads", msgpack.packb({"node": ["h", 1, 1], "loads": {}, "spare": 0.0})),
        ("ShardLoads", msgpack.packb({"node": ["h", 1, 1], "loads": {}, "rate": float("inf")})),
    ],
)
def test_what_does_not_fit_is_refused(tag: str, body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_control(Control(tag, "t", body))


@given(st.sampled_from(EXAMPLES), st.data())
def test_damage_is_read_or_refused(message: object, data: st.DataObject) -> None:
    control = encode_control("t", message)
    body = bytearray(control.body or b"\x80")
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(RemoteProtocolError):
        decode_control(Control(control.tag, "t", bytes(body)))
