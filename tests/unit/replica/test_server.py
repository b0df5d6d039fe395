"""A replica between its socket and its disk: answers after the sync, bounds, rewriting, its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shardbus.ids import Address
from shardbus.replica import turns as module
from shardbus.replica.disk import Disk
from shardbus.replica.server import GROWTH_MAX, ReplicaKeys, ReplicaServer
from shardbus.replication import log
from shardbus.replication.messages import (
    ZERO,
    AcceptChange,
    AcceptValue,
    Ballot,
    PrepareBallot,
    Promised,
    ReadRow,
    Request,
    RowShown,
    TakeChange,
    Yes,
)
from shardbus.replication.registers import Registers, weight_of
from shardbus.replication.ring import RingMember, first_ring, next_ring
from shardbus.replication.values import (
    ListChange,
    OpenSave,
    RemindersValue,
    SaveChange,
    SavedReminders,
    StateValue,
    list_key,
    state_key,
)
from shardbus.replication.versions import Addition, DataChange
from shardbus.transport.network import SendResult
from shardbus.wire.replica_frames import (
    ReplicaFrame,
    Reply,
    cluster_mark,
    decode_head,
    decode_reply,
    encode_body,
    encode_call,
    encode_head,
)
from tests.waiting import until

ME = Address("127.0.0.1", 7357)
MARK = cluster_mark("shop")
KEY = state_key("counter", "a")


class Wire:
    """A network and its listener: keeps the frames of a replica, and hands frames to it."""

    missed_edges = 0

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, ReplicaFrame, bytes]] = []
        self.gone: set[bytes] = set()

    def listen(self, host: str, port: int, name: str, on_frame: Any, on_cut: Any) -> Wire:
        self.on_frame = on_frame
        return self

    def connect(self, *args: Any) -> Any:
        raise AssertionError("there is no other replica")

    def user(self, of: bytes) -> str | None:
        return of.decode()

    def send(self, to: bytes, head: bytes, body: bytes) -> SendResult:
        if to in self.gone:
            return SendResult.UNROUTABLE
        decoded = decode_head(head)
        assert decoded is not None
        self.sent.append((to, decoded.kind, body))
        return SendResult.TAKEN

    def close(self) -> None:
        pass

    @property
    def replies(self) -> list[Reply]:
        return [decode_reply(body) for _, kind, body in self.sent if kind is ReplicaFrame.REPLY]


class SlowDisk(Disk):
    """Its syncs end when the test says so."""

    writes = 0
    free: Callable[[], bool] = staticmethod(lambda: True)

    def write(self, body: bytes) -> None:
        self.writes += 1
        if not self.free():
            raise OSError("input/output error")
        super().write(body)


class Replica:
    """A store of one replica, which serves."""

    def __init__(self, path: Path, *, memory: int = 2**30, limit: int = 2**28, **more: Any) -> None:
        self.wire, self.disk = Wire(), SlowDisk(path, limit)
        self.failures: list[str] = []
        self.server = ReplicaServer(
            "shop", ME, [ME], self.disk, self.wire, memory=memory,  # type: ignore[arg-type]
            on_failed=self.failures.append, **more,
        )  # fmt: skip
        self.server.open()
        self._numbers = 0

    async def start(self) -> Replica:
        self.server.start(ME.host, ME.port)
        await until(lambda: self.server.serves, "the store of one replica")
        return self

    def frame(
        self, kind: ReplicaFrame, body: bytes = b"", sender: bytes = b"n", ring: int = 1
    ) -> None:
        self.wire.on_frame([sender, encode_head(kind, MARK, ring), body])

    def call(self, *requests: Request, sender: bytes = b"n", ring: int = 1) -> None:
        numbered = []
        for request in requests:
            self._numbers += 1
            numbered.append((self._numbers, request))
        self.frame(ReplicaFrame.CALL, encode_call(numbered), sender, ring)

    async def answers(self, count: int) -> list[Any]:
        """The answers, in the order of their requests."""

        def answered() -> list[tuple[int, Any]]:
            return [pair for reply in self.wire.replies for pair in reply.answers]

        await until(lambda: len(answered()) >= count, f"{count} answers")
        return [answer for _, answer in sorted(answered(), key=lambda pair: pair[0])]


def ballot(k: int, fence: int = 1) -> Ballot:
    return Ballot(fence, 0, 7, k)


def state(k: int, data: bytes = b"x") -> AcceptValue:
    return AcceptValue(KEY, ballot(k), StateValue(k, data))


async def test_answers_leave_after_the_sync(tmp_path: Path) -> None:
    replica = await Replica(tmp_path).start()
    replica.call(state(1), ReadRow(KEY))
    assert replica.wire.replies == [], "nothing is synced yet"
    stored, shown = await replica.answers(2)
    assert stored == Yes()
    assert shown == RowShown(ballot(1), ballot(1), StateValue(1, b"x"), 0.0)
    replica.server.close()
    again = await Replica(tmp_path).start()
    again.call(PrepareBallot(KEY, ballot(2)))
    assert await again.answers(1) == [Promised(ballot(1), ballot(1), StateValue(1, b"x"), 0.0)]
    again.server.close()


async def test_a_read_does_not_show_what_is_not_synced(tmp_path: Path) -> None:
    replica = await Replica(tmp_path).start()
    replica.disk.free = lambda: False
    replica.call(state(1))
    replica.call(ReadRow(KEY))
    await until(lambda: replica.failures, "the failure of the disk")
    assert replica.wire.replies == []
    assert not replica.server.serves
    replica.server.close()


async def test_calls_of_one_turn_share_a_sync(tmp_path: Path) -> None:
    replica = await Replica(tmp_path).start()
    before = replica.disk.writes
    for k in range(1, 101):
        replica.call(state(k))
    await replica.answers(100)
    assert replica.disk.writes - before <= 2
    reads = replica.disk.writes
    replica.call(ReadRow(KEY))
    await replica.answers(101)
    assert replica.disk.writes == reads, "a read needs no sync"
    replica.server.close()


async def test_memory_is_bounded_and_other_requests_go_on(tmp_path: Path) -> None:
    replica = await Replica(tmp_path, memory=5000).start()
    replica.call(state(1, bytes(4000)))
    await replica.answers(1)
    replica.call(
        state(2, bytes(6000)),
        AcceptValue(state_key("counter", "b"), ballot(3), StateValue(3, bytes(2000))),
        PrepareBallot(state_key("counter", "c"), ballot(4)),
        state(5, bytes(3000)),
    )
    assert await replica.answers(3) == [Yes(), Promised(ZERO, ZERO, None, 0.0), Yes()]
    assert [number for reply in replica.wire.replies for number in reply.full] == [2, 3]
    assert replica.server.registers.row(KEY).value == StateValue(5, bytes(3000))
    replica.server.close()


def test_a_call_makes_no_more_memory_than_its_length_says() -> None:
    """The shortest requests that make rows, and the shortest entries that make an index grow."""
    zero = Ballot(0, 0, 0, 1)
    names = [f"{n:x}" for n in range(100)]
    index = ListChange(0, settled=tuple((name, 1) for name in names))
    saves = ListChange(0, opened=tuple((name, OpenSave(0, 0)) for name in names))
    dot = DataChange("s", adds=(Addition("", b""),))
    for requests in (
        [AcceptValue(f"L{name}", zero, None) for name in names],
        [PrepareBallot(f"L{name}", zero) for name in names],
        [AcceptValue(f"s{name}", zero, StateValue(0, b"")) for name in names],
        [AcceptChange(list_key("", ""), zero, ZERO, index)],
        [AcceptChange(list_key("", ""), zero, ZERO, saves)],
        [TakeChange(f"d{name}", dot) for name in names],
    ):
        registers = Registers(1)
        for request in requests:
            registers.handle(request, 0.0)
        registers.check()
        body = encode_call([(number % 100, request) for number, request in enumerate(requests)])
        assert 0 < registers.bytes <= GROWTH_MAX * len(body), requests[0]


async def test_the_memory_of_changes_counts(tmp_path: Path) -> None:
    replica = await Replica(tmp_path, memory=5000).start()
    replica.call(state(1, bytes(1000)))
    await replica.answers(1)
    reminders = SavedReminders("7", 5, bytes(2000), alone=True)
    changes = [
        SaveChange(2, bytes(5000)),
        SaveChange(2, None, reminders),
        SaveChange(2, None, reminders),
        SaveChange(3, bytes(5000)),
        SaveChange(3, bytes(2000)),
    ]
    bases = [ballot(1), ballot(1), ballot(1), ballot(2), ballot(2)]
    replica.call(
        *(
            AcceptChange(KEY, ballot(change.op), base, change)
            for base, change in zip(bases, changes, strict=True)
        )
    )
    assert await replica.answers(4) == [Yes()] * 4
    assert [number for reply in replica.wire.replies for number in reply.full] == [2, 5]
    row = replica.server.registers.row(KEY)
    kept = RemindersValue("7", 5, bytes(2000))
    assert row.value == StateValue(3, bytes(2000), reminders=kept)
    assert replica.server.status()["memory"] == weight_of(KEY, row)
    replica.server.close()


async def test_rows_are_written_anew_and_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a list whose change comes between the begin of the rewriting and its own turn."""
    monkeypatch.setattr(module, "REWRITTEN_ROWS", 3)
    monkeypatch.setattr(log, "SEGMENT_BYTES", 2000)
    replica = await Replica(tmp_path, limit=6000).start()
    ring = first_ring((RingMember(replica.disk.id, "", str(ME)),), 1)
    replica.frame(ReplicaFrame.ADOPT, encode_body(next_ring(ring, ring.members)))
    lists = [list_key("counter", str(n)) for n in range(10)]
    done, base = 0, {key: Ballot(-1, 0, 0, 0) for key in lists}
    for k in range(1, 60):
        key = lists[-(k % 10)]
        change = ListChange(1, (f"e-{k}",), ())
        change_, write = AcceptChange(key, ballot(k), base[key], change), state(k, bytes(100))
        replica.call(change_, write, ring=2)
        base[key], done = ballot(k), done + 2
        await replica.answers(done)

    def oldest() -> int:
        return min(int(name.name[4:]) for name in tmp_path.glob("log-*"))

    await until(lambda: oldest() > 1, "the end of the rewriting, and of the first segments")
    rows = dict(replica.server.registers.rows)
    replica.server.close()
    again = Replica(tmp_path, limit=6000)
    assert again.server.registers.rows == rows
    assert again.disk.damage == ""
    facts = again.server.status()
    assert (facts["ring"], facts["unmerged"]) == (2, 0)
    again.disk.close()


async def test_frames_of_strangers_change_nothing(tmp_path: Path) -> None:
    reloads: list[None] = []
    keys = ReplicaKeys(lambda user: user == "n", lambda: reloads.append(None))
    replica = await Replica(tmp_path, keys=keys).start()
    call = encode_call([(1, state(1))])
    on_frame = replica.wire.on_frame
    on_frame([b"n", encode_head(ReplicaFrame.CALL, cluster_mark("other"), 1), call])
    on_frame([b"n", b"", call])
    on_frame([b"n"])
    replica.frame(ReplicaFrame.CALL, b"\xff")
    replica.frame(ReplicaFrame.REPORT, b"\xff")
    replica.frame(ReplicaFrame.REPLY, call)
    replica.call(state(1), sender=b"client")
    replica.call(state(1), ring=2)
    replica.frame(ReplicaFrame.REKEY, b"")
    kinds = [kind for _, kind, _ in replica.wire.sent]
    assert kinds == [ReplicaFrame.REFUSED, ReplicaFrame.WANTED]
    assert replica.server.registers.rows == {}
    assert replica.server.counts == {
        "not for this cluster": 3,
        "malformed": 2,
        "unexpected": 1,
        "not allowed": 1,
    }
    assert reloads == [None], "only a node may ask for it"
    replica.server.close()


async def test_a_replica_lingers_while_a_store_needs_it(tmp_path: Path) -> None:
    replica = await Replica(tmp_path).start()
    assert not replica.server.lingers()
    for store in (b"n", b"m"):
        replica.frame(ReplicaFrame.HELLO, sender=store)
    assert replica.server.lingers()
    replica.frame(ReplicaFrame.GOODBYE, sender=b"n")
    assert replica.server.lingers()
    replica.wire.gone = {b"m"}
    assert not replica.server.lingers(), "the other store ended without a GOODBYE"
    replica.server.close()


async def test_the_status_names_what_an_operator_needs(tmp_path: Path) -> None:
    replica = await Replica(tmp_path).start()
    replica.call(state(1))
    await replica.answers(1)
    replica.frame(ReplicaFrame.ASK)
    facts = msgspec.json.decode(replica.wire.sent[-1][2])
    assert (facts["state"], facts["rows"], facts["starts"]) == ("founded", 1, 1)
    assert facts["waits_for"] == ""
    replica.server.close()
    again = await Replica(tmp_path).start()
    assert again.server.status()["starts"] == 2
    again.server.close()
    await asyncio.sleep(0)
