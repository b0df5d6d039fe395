"""The frames between store objects and replicas, as bytes.

A frame has a head of fixed length and a body of MessagePack. The head names the version, the kind
of the frame and the cluster, so that a store of another cluster changes nothing by mistake. In a
body, requests and answers stand in one list for each kind, each with the number of its request:
they are typed, and one call decodes them all. Their order between kinds means nothing, because a
store object makes one request at a time on a key.

    kind     body                          from
    CALL     requests                      a store object
    REPLY    answers                       a replica, after the sync
    RING     a ring                        a replica that has a newer one than the CALL
    WANTED   nothing                       a replica that has an older one: the head has its number
    ADOPT    a ring                        who has it, to a replica
    REFUSED  a text                        a replica that does not serve
    REPORT   the facts of the disk         a replica to another, and as the answer to it
    HELLO    nothing                       a store object
    WELCOME  the disk and its ring         a replica, as the answer to it
    GOODBYE  nothing                       a store object that ends
    ASK      nothing                       a command
    STATUS   a map of facts                a replica, as the answer to it
    SHOW     nothing                       who changes the ring
    SHOWN    the disk's place in the ring  a replica, as the answer to it
    DIGESTS  a request for rows            a replica to another, or a command (`disk_frames`)
    ROWS     digests or rows               a replica, as the answer to it
    CHECK    nothing                       a command
    CHECKED  a map of facts of the log     a replica that has read its log, as the answer to it

Source: docs/architecture.md; S3.85.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from hashlib import blake2b
from itertools import chain
from struct import Struct as Layout
from typing import Any, NamedTuple

import msgspec

from shardbus.replication import messages as msg
from shardbus.replication.disk_life import DiskVerdict
from shardbus.replication.journal_rows import BlockValue, JournalChange, JournalValue
from shardbus.replication.moves import DiskStatus
from shardbus.replication.ring import ReplicaRing
from shardbus.replication.values import (
    BLOCK,
    DATA,
    JOURNAL,
    LEASE,
    LIST,
    REMOVED,
    STATE,
    TABLE,
    AnyChange,
    HomesChange,
    LeaseValue,
    ListChange,
    ListValue,
    SaveChange,
    StateValue,
    TableValue,
    Value,
)
from shardbus.replication.versions import DataValue, NotTaken

VERSION = 2
CLUSTER_BYTES = 8
_made = tuple.__new__
"""Makes a named tuple in half the time that its class takes."""
_HEAD = Layout(f">BB{CLUSTER_BYTES}sI")


class ReplicaFrame(IntEnum):
    """The kinds of frames."""

    CALL = 1
    REPLY = 2
    REFUSED = 3
    REPORT = 4
    ASK = 5
    STATUS = 6
    HELLO = 7
    WELCOME = 8
    GOODBYE = 9
    RING = 10
    WANTED = 11
    ADOPT = 12
    SHOW = 13
    SHOWN = 14
    DIGESTS = 15
    ROWS = 16
    CHECK = 17
    CHECKED = 18
    REKEY = 19


_KINDS = frozenset(map(int, ReplicaFrame))


class Head(NamedTuple):
    """The head of a frame. `ring`: the number of the ring, 0 where none is meant."""

    kind: ReplicaFrame
    cluster: bytes
    ring: int


def cluster_mark(cluster: str) -> bytes:
    """Return the mark of a cluster in the heads of frames."""
    return blake2b(cluster.encode(), digest_size=CLUSTER_BYTES).digest()


def encode_head(kind: ReplicaFrame, cluster: bytes, ring: int = 0) -> bytes:
    """Return the head of a frame."""
    return _HEAD.pack(VERSION, kind, cluster, ring)


def decode_head(head: bytes) -> Head | None:
    """Return the head; None if it is of another version, or no head at all."""
    if len(head) != _HEAD.size or head[0] != VERSION or head[1] not in _KINDS:
        return None
    _, kind, cluster, ring = _HEAD.unpack(head)
    return Head(ReplicaFrame(kind), cluster, ring)


# -- values

_KINDS_OF: dict[type[Any], str] = {
    StateValue: STATE,
    TableValue: TABLE,
    ListValue: LIST,
    LeaseValue: LEASE,
    JournalValue: JOURNAL,
    BlockValue: BLOCK,
    DataValue: DATA,
}


def _kind_of(value: Value) -> str:
    """Return the kind of keys that have such values; empty for the store's own."""
    return _KINDS_OF.get(type(value), "")


_CLASSES = {kind: value for value, kind in _KINDS_OF.items()} | {REMOVED: DataValue}


_CHANGES: dict[str, type[AnyChange]] = {
    TABLE: HomesChange,
    JOURNAL: JournalChange,
    STATE: SaveChange,
}


def value_of(key: str, raw: Any) -> Value:
    """Return the value of a key, or of a kind of keys, from its plain form.

    Raises:
        msgspec.ValidationError: it is no value of that kind of key.
    """
    if raw.__class__ is list and key[:1] == STATE and len(raw) == 5 and raw[4] is None:
        return _made(StateValue, raw)  # most values by far: a state without reminders
    if raw is None:
        return None
    kind = _CLASSES.get(key[:1])
    if kind is None:
        return tuple(raw) if isinstance(raw, list) else raw
    value: Value = msgspec.convert(raw, kind)
    return value


def change_of(key: str, raw: Any) -> AnyChange:
    """Return the change of the value of a key from its plain form.

    Raises:
        msgspec.ValidationError: it is no change of that kind of key.
    """
    return msgspec.convert(raw, _CHANGES.get(key[:1], ListChange))


# -- calls


class _Accept(NamedTuple):
    number: int
    key: str
    ballot: msg.Ballot
    value: Any
    age: float


class _Change(NamedTuple):
    number: int
    key: str
    ballot: msg.Ballot
    base: msg.Ballot
    change: Any


class _Call(msgspec.Struct, array_like=True):
    accepts: list[_Accept]
    prepares: list[tuple[int, msg.PrepareBallot]] = []
    reads: list[tuple[int, msg.ReadRow]] = []
    changes: list[_Change] = []
    scans: list[tuple[int, msg.ScanBucket]] = []
    takes: list[tuple[int, msg.TakeChange]] = []
    merges: list[tuple[int, msg.MergeValue]] = []
    listings: list[tuple[int, msg.ListChanges]] = []


Numbered = tuple[int, msg.Request]
"""A request, with the number that its answer has."""
_pack = msgspec.msgpack.Encoder().encode
_read_call = msgspec.msgpack.Decoder(_Call).decode


_REQUESTS: tuple[type[msg.Request], ...] = (
    msg.AcceptValue, msg.PrepareBallot, msg.ReadRow, msg.AcceptChange,
    msg.ScanBucket, msg.TakeChange, msg.MergeValue, msg.ListChanges,
)  # fmt: skip
"""In the order of their lists in a CALL."""


_FLAT = msg.AcceptValue, msg.AcceptChange


def encode_call(requests: Iterable[Numbered]) -> bytes:
    """Return the body of a CALL."""
    call: dict[type[msg.Request], list[Any]] = {kind: [] for kind in _REQUESTS}
    for number, request in requests:
        kind = type(request)
        call[kind].append((number, *request) if kind in _FLAT else (number, request))
    return _pack(tuple(call.values()))


def decode_call(body: bytes) -> list[Numbered]:
    """Return the requests of a CALL.

    Raises:
        msgspec.MsgspecError: it is none.
    """
    call = _read_call(body)
    accepts = [
        (number, _made(msg.AcceptValue, (key, ballot, value_of(key, raw), age)))
        for number, key, ballot, raw, age in call.accepts
    ]
    changes = [
        (number, msg.AcceptChange(key, ballot, base, change_of(key, raw)))
        for number, key, ballot, base, raw in call.changes
    ]
    requests: list[Numbered] = [*accepts, *call.prepares, *call.reads, *changes]
    requests += [*call.scans, *call.takes, *call.merges, *call.listings]
    return requests


# -- replies


class _Reply(msgspec.Struct, array_like=True):
    disk: int
    yes: list[int]
    no: list[tuple[int, msg.No]] = []
    promised: list[tuple[int, str, msg.Ballot, msg.Ballot, Any, float]] = []
    shown: list[tuple[int, str, msg.Ballot, msg.Ballot, Any, float]] = []
    other_base: list[tuple[int, msg.OtherBase]] = []
    buckets: list[tuple[int, msg.BucketRows]] = []
    full: list[int] = []
    taken: list[tuple[int, msg.Taken]] = []
    not_taken: list[tuple[int, NotTaken]] = []
    gone: list[int] = []
    keys: list[tuple[int, msg.KeysChanged]] = []


class Reply(NamedTuple):
    """Answers of one disk. `full`: the requests that were refused because the memory is full."""

    disk: int
    answers: list[tuple[int, msg.Answer]]
    full: list[int]


_read_reply = msgspec.msgpack.Decoder(_Reply).decode


_ANSWERS: tuple[type[msg.Answer], ...] = (
    msg.Yes,
    msg.No,
    msg.Promised,
    msg.RowShown,
    msg.OtherBase,
    msg.BucketRows,
)
_ANSWERS_OF_DATA: tuple[type[msg.Answer], ...] = (msg.Taken, NotTaken, msg.Gone, msg.KeysChanged)
"""In the order of their lists in a REPLY, which has `full` between the two."""


def encode_reply(
    disk: int,
    answers: Iterable[tuple[int, msg.Answer]],
    full: Sequence[int] = (),
    yes: Iterable[int] = (),
) -> bytes:
    """Return the body of a REPLY. `yes`: the requests whose answer is Yes, beside `answers`."""
    reply: dict[type[msg.Answer], list[Any]] = {kind: [] for kind in (*_ANSWERS, *_ANSWERS_OF_DATA)}
    for number, answer in answers:
        match answer:
            case msg.Yes() | msg.Gone():
                reply[type(answer)].append(number)
            case msg.Promised() | msg.RowShown():
                reply[type(answer)].append((number, _kind_of(answer.value), *answer))
            case _:
                reply[type(answer)].append((number, answer))
    reply[msg.Yes] += yes
    lists = list(reply.values())
    place = len(_ANSWERS)
    return _pack((disk, *lists[:place], list(full), *lists[place:]))


def decode_reply(body: bytes) -> Reply:
    """Return the answers of a REPLY.

    Raises:
        msgspec.MsgspecError: it is none.
    """
    reply = _read_reply(body)
    answers: list[tuple[int, msg.Answer]] = [(number, msg.YES) for number in reply.yes]
    answers += chain(reply.no, reply.other_base, reply.buckets, reply.taken, reply.not_taken)
    answers += [(number, msg.Gone()) for number in reply.gone]
    answers += reply.keys
    answers += [
        (number, msg.Promised(promise, ballot, value_of(kind, raw), age))
        for number, kind, promise, ballot, raw, age in reply.promised
    ]
    answers += [
        (number, msg.RowShown(promise, ballot, value_of(kind, raw), age))
        for number, kind, promise, ballot, raw, age in reply.shown
    ]
    return Reply(reply.disk, answers, reply.full)


# -- reports and status


class ReportBody(msgspec.Struct, array_like=True, frozen=True):
    """A report of a replica, with the address by which the others reach it. `counter` and `run`:
    as in `disk_life`. `votes`: it answers stores. `verdict`: what it answers to the receiver's
    disk. `zone`: where it runs. `away`: the other disks of the ring that it does not see, and for
    how many seconds. `leaving`: the disks whose process is to end, as far as it has heard, its own
    included; None from a release before this field."""

    sender: str
    disk: int
    ring: ReplicaRing
    founded: bool
    peers: tuple[str, ...]
    answers: bool = False
    """This is the answer to a report; it needs none."""
    counter: int = 0
    run: int = 0
    votes: bool = False
    verdict: DiskVerdict | None = None
    zone: str = ""
    away: dict[int, float] = {}
    leaving: tuple[int, ...] | None = None


class WelcomeBody(msgspec.Struct, array_like=True, frozen=True):
    """The facts of a replica. `waits_for`: the replicas for which it waits before it serves, and
    why; empty if it serves."""

    disk: int
    ring: ReplicaRing
    waits_for: str


class ShownBody(msgspec.Struct, array_like=True, frozen=True):
    """The place of a disk in its ring, as it is synced. `votes`: the others have accepted it.
    `waits_for`: as in WelcomeBody. `zone`: where it runs."""

    status: DiskStatus
    votes: bool
    waits_for: str
    zone: str = ""


encode_body = _pack
"""Return the body of a REPORT, RING, ADOPT, SHOWN or WELCOME."""
decode_report = msgspec.msgpack.Decoder(ReportBody).decode
"""Return the report of a REPORT. Raises msgspec.MsgspecError, as the others, if it is none."""
decode_ring = msgspec.msgpack.Decoder(ReplicaRing).decode
decode_shown = msgspec.msgpack.Decoder(ShownBody).decode
decode_welcome = msgspec.msgpack.Decoder(WelcomeBody).decode
