"""A replica: the rows of one disk in memory, its log, and a socket for stores and other replicas.

    CALL ──> rows in memory ──> answers wait ──┐
                                               ├─ a turn: one write, one sync ──> answers leave
    CALL ──> rows in memory ──> answers wait ──┘

A turn is all that came while the last one was written. Its records are written and synced in a
thread; meanwhile the loop handles further calls for the next turn. An answer shows rows, so it
leaves only once everything that was in memory before it is synced. A turn without records needs no
sync.

**Rewriting.** When the log is at its limit, every row is written again, some with each turn, and
then the older segments go (`replication.log`). A change of a row that is not written again yet is
written as the whole row, because the row that it is a change of goes with the older segments.

**Memory.** Rows are in memory, as many as fit into `memory` bytes. Beyond that, a request that
makes a row, or one longer, is refused as `full`; all others are served.

**The end.** A replica whose node has left stays while the others need it: as long as a store uses
it, and the replicas that are in reach are no majority without it. So the last nodes of a cluster
that stops can save what they have. `lingers` says so; its caller bounds it.

**Failure.** After a write or a sync that failed, nothing of that turn is answered, and the process
ends: what it has in memory is not what its disk has.

Source: docs/architecture.md; S2.32, S3.85.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import msgspec

from shardbus.errors import ConfigError
from shardbus.guarded_log import GuardedLog
from shardbus.ids import Address
from shardbus.replica.disk import Disk
from shardbus.replica.peers import ReplicaPeers
from shardbus.replication.founding import Founding, FoundingState
from shardbus.replication.messages import (
    ZERO,
    AcceptValue,
    Answer,
    ChangeRecord,
    PrepareBallot,
    Promised,
    PromiseRecord,
    Record,
    Request,
    Row,
    RowShown,
    ValueRecord,
    Yes,
)
from shardbus.replication.registers import Registers
from shardbus.replication.values import StateValue, Value
from shardbus.transport.network import Listener, Network, SendResult
from shardbus.transport.suspend_clock import suspend_clock
from shardbus.wire.replica_frames import (
    DiskState,
    LogTurn,
    ReplicaFrame,
    WelcomeBody,
    cluster_mark,
    decode_call,
    decode_head,
    decode_turn,
    encode_head,
    encode_reply,
    encode_turn,
    encode_welcome,
)

log = GuardedLog("shardbus.store")

ROW_BYTES = 460
"""Memory of a row, beside its key and its state: measured."""
REWRITTEN_ROWS, REWRITTEN_BYTES = 1000, 2**20
"""Rows that a turn writes anew, at most, and the bytes of their states after which it stops."""
REPLY_BYTES = 4 * 2**20
"""Bytes of states after which a further frame is begun."""
WAITING_MAX = 100_000
"""Answers that wait for a sync, above which further calls are dropped."""


@dataclass(slots=True)
class _Turn:
    """Answers that wait for the next sync."""

    replies: list[tuple[bytes, list[tuple[int, Answer]], list[int]]] = field(default_factory=list)
    """The connection, the answers to one call, and what was refused."""
    count: int = 0


@dataclass(slots=True)
class _Rewrite:
    """Every row is written anew. `number`: the first segment that has them."""

    number: int
    left: Iterator[str]
    unwritten: set[str]


class ReplicaServer:
    """One replica. Belongs to one event loop, from `start` on.

    Args:
        cluster: the name of the cluster whose store this is.
        me: the address of this replica.
        peers: the addresses of all replicas of the store, this one included.
        memory: bytes for rows.
        may_found: this replica may found a store.
        admits: True for the name that authentication gave a peer that may speak to a replica.
        on_failed: called once when the disk can be used no longer.
    """

    def __init__(
        self,
        cluster: str,
        me: Address,
        peers: Sequence[Address],
        disk: Disk,
        network: Network,
        *,
        memory: int = 2**30,
        may_found: bool = True,
        admits: Callable[[str | None], bool] = lambda user: True,
        on_failed: Callable[[str], None] = lambda why: None,
        clock: Callable[[], float] = suspend_clock,
    ) -> None:
        self.me, self.addresses, self._disk, self._network = me, tuple(peers), disk, network
        self._mark, self._memory, self._may_found = cluster_mark(cluster), memory, may_found
        self._admits, self._on_failed, self._clock = admits, on_failed, clock
        self.registers = Registers()
        self.bytes = 0
        """Bytes of memory that rows take, about."""
        self.counts: Counter[str] = Counter()
        """Turns, and what was dropped, by reason."""
        self._starts = 0
        self._founding: Founding
        self._stored = DiskState()
        """What the disk has stored of itself."""
        self._turn, self._writing, self._failed = _Turn(), False, False
        self._rewrite: _Rewrite | None = None
        self._threads = ThreadPoolExecutor(1, "shardbus-disk")
        self._listener: Listener
        self._peers: ReplicaPeers
        self._stores: set[bytes] = set()
        """Connections of store objects that have not ended, as far as is known."""
        self._loop: asyncio.AbstractEventLoop

    # ---- start and end

    def open(self) -> None:
        """Read the disk.

        Raises:
            ConfigError: another process has it, or the directory cannot be used.
        """
        began = time.perf_counter()
        self._disk.open(self._read, self._forget)
        self._starts = self._stored.starts + 1
        self.bytes = sum(map(_weight, self.registers.rows, self.registers.rows.values()))
        log.info(
            "%d rows read from %s in %.1f s", len(self.registers.rows), self._disk.path,
            time.perf_counter() - began,
        )  # fmt: skip
        stored = self._stored
        self._founding = Founding(
            self.me, self.addresses, self._disk.id, stored.ring, stored.founded, self._may_found
        )
        self._peers = ReplicaPeers(
            self._mark, self._founding, lambda: self._stored, self._turn_soon, self._drop
        )

    def _read(self, body: memoryview) -> int:
        turn = decode_turn(body)
        for record in turn.records:
            self.registers.replay(record)
        self._stored = turn.state or self._stored
        return turn.compacted

    def _forget(self) -> None:
        self.registers, self._stored = Registers(), DiskState()

    def start(self, host: str, port: int) -> None:
        """Listen, and look for the other replicas.

        Raises:
            ConfigError: the port is taken.
        """
        self._loop = asyncio.get_running_loop()
        self._listener = self._network.listen(
            host, port, f"replica {self.me}", self._on_frame, self._cut
        )
        self._founding.start()
        self._begin_turn()
        self._peers.start(self._network)

    def close(self) -> None:
        """Close sockets and files, after the turn that is being written."""
        self._peers.close()
        self._listener.close()
        self._threads.shutdown()
        self._disk.close()

    @property
    def serves(self) -> bool:
        """True if the store is founded, and this disk is one of it."""
        return not self._failed and self._peers.serves

    def _cut(self, reason: str) -> None:
        self.counts[f"cut: {reason}"] += 1

    # ---- frames

    def _on_frame(self, parts: list[bytes]) -> None:
        """A frame has come by the listener: connection, head and body."""
        head = decode_head(parts[1]) if len(parts) == 3 else None
        if head is None or head.cluster != self._mark:
            self._drop("not for this cluster")
            return
        connection, _, body = parts
        if not self._admits(self._listener.user(connection)):
            self._drop("not allowed")
            self._refuse(connection, "this process may not use the store: its role is not `store`")
            return
        try:
            match head.kind:
                case ReplicaFrame.CALL:
                    self._on_call(connection, head.ring, body)
                case ReplicaFrame.REPORT:
                    if self._peers.on_report(body):
                        answer = self._peers.report(answers=True)
                        self._send(connection, ReplicaFrame.REPORT, answer)
                case ReplicaFrame.HELLO:
                    self._stores.add(connection)
                    self._welcome(connection)
                case ReplicaFrame.GOODBYE:
                    self._stores.discard(connection)
                case ReplicaFrame.ASK:
                    body = msgspec.json.encode(self.status())
                    self._send(connection, ReplicaFrame.STATUS, body)
                case _:
                    self._drop("unexpected")
        except (msgspec.MsgspecError, ConfigError, TypeError):
            self._drop("malformed")

    def _on_call(self, connection: bytes, ring: int, body: bytes) -> None:
        if not self.serves:
            self._refuse(
                connection, f"the replica {self.me} does not serve: {self._peers.waits_for}"
            )
            return
        if ring != self._stored.ring.number:
            self._refuse(connection, f"the replica {self.me} is at ring {self._stored.ring.number}")
            return
        if self._turn.count > WAITING_MAX:
            self._drop("busy")
            return
        answers, full, now = list[tuple[int, Answer]](), list[int](), self._clock()
        for number, request in decode_call(body):
            more = self._more(request)
            if more > 0 and self.bytes + more > self._memory:
                full.append(number)
                self._drop("full")
                continue
            answer = self.registers.handle(request, now)
            answers.append((number, answer))
            if isinstance(answer, Yes | Promised):
                self.bytes += more
        self._turn.replies.append((connection, answers, full))
        self._turn.count += len(answers)
        self._turn_soon()

    def _more(self, request: Request) -> int:
        """Return the bytes of memory by which what the request stores is longer than what there
        is."""
        if not isinstance(request, AcceptValue | PrepareBallot):
            return 0
        row = self.registers.rows.get(request.key)
        if row is None:
            more = ROW_BYTES + len(request.key)
            return more + (_length(request.value) if isinstance(request, AcceptValue) else 0)
        if isinstance(request, PrepareBallot):
            return 0
        return _length(request.value) - _length(row.value)

    def _refuse(self, connection: bytes, why: str) -> None:
        self._send(connection, ReplicaFrame.REFUSED, why.encode())

    def _welcome(self, connection: bytes) -> None:
        welcome = WelcomeBody(self._disk.id, self._stored.ring, self._peers.waits_for)
        self._send(connection, ReplicaFrame.WELCOME, encode_welcome(welcome))

    def lingers(self) -> bool:
        """True if stores still need this replica. Notices stores that ended without a GOODBYE."""
        if not self.serves or self._peers.suffice:
            return False
        for connection in list(self._stores):
            self._welcome(connection)
        return bool(self._stores)

    def _drop(self, why: str) -> None:
        self.counts[why] += 1

    def _send(self, connection: bytes, kind: ReplicaFrame, body: bytes) -> None:
        sent = self._listener.send(
            connection, encode_head(kind, self._mark, self._stored.ring.number), body
        )
        if sent is SendResult.UNROUTABLE:
            self._stores.discard(connection)
        if sent is not SendResult.TAKEN:
            self._drop("peer gone" if sent is SendResult.UNROUTABLE else "peer does not read")

    # ---- turns

    def _turn_soon(self) -> None:
        if not self._writing:
            self._writing = True
            self._loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        """Write what has changed since the last turn; answer at once if nothing has."""
        turn, self._turn = self._turn, _Turn()
        if self._failed:
            return
        self._writing = True
        begins = self._rewrite is None and self._disk.plan.wants_compaction
        if begins:
            keys = list(self.registers.rows)
            number = self._disk.plan.current + 1
            self._rewrite = _Rewrite(number, iter(keys), set(keys))
        records: Sequence[Record] = self.registers.take_records()
        compacted = 0
        if self._rewrite is not None:
            records = self._whole_rows(records, self._rewrite)
            compacted = 0 if self._rewrite.unwritten else self._rewrite.number
        state = self._state()
        own = state if state != self._stored or compacted else None
        if not records and own is None and not begins:
            self._answer(turn)
            self._writing = False
            return
        body = encode_turn(LogTurn(records, own, compacted))
        work = self._threads.submit(self._write, body, begins, bool(compacted))
        work.add_done_callback(
            lambda done: self._post(partial(self._written, turn, state, done.exception()))
        )

    def _post(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop has ended
            return

    def _write(self, body: bytes, begins: bool, ends: bool) -> None:
        """Write and sync, in the thread of the disk."""
        if begins:
            self._disk.begin_compaction()
        self._disk.write(body)
        if ends:
            self._disk.end_compaction()

    def _written(self, turn: _Turn, state: DiskState, error: BaseException | None) -> None:
        if error is not None:
            self._failed = True
            log.error("the replica ends: its disk %s failed: %s", self._disk.path, error)
            self._on_failed(f"the disk {self._disk.path} failed: {error}")
            return
        self.counts["turns"] += 1
        before, self._stored = self._stored, state
        self._answer(turn)
        if state.founded and not before.founded:
            log.info(
                "the replica %s serves: its store has %d disks", self.me, len(state.ring.members)
            )
        if (state.ring, state.founded) != (before.ring, before.founded):
            self._peers.report_to_all()
        self._writing = False
        if self._rewrite is not None and not self._rewrite.unwritten:
            self._rewrite = None
        if self._turn.replies or self._rewrite is not None or self._state() != self._stored:
            self._turn_soon()

    def _state(self) -> DiskState:
        founding = self._founding
        return DiskState(self._starts, founding.ring, founding.founded)

    def _whole_rows(self, records: Sequence[Record], rewrite: _Rewrite) -> list[Record]:
        """Return the records of a turn and some rows that are written anew."""
        whole = list[Record]()
        for record in records:
            if isinstance(record, ChangeRecord) and record.key in rewrite.unwritten:
                whole += _records_of(record.key, self.registers.row(record.key))
                rewrite.unwritten.discard(record.key)
            else:
                whole.append(record)
        written = weight = 0
        for key in rewrite.left:
            if key not in rewrite.unwritten:
                continue
            rewrite.unwritten.discard(key)
            row = self.registers.row(key)
            whole += _records_of(key, row)
            written += 1
            weight += _length(row.value)
            if written >= REWRITTEN_ROWS or weight >= REWRITTEN_BYTES:
                break
        return whole

    def _answer(self, turn: _Turn) -> None:
        """Send the answers of a turn, in frames of bounded length."""
        for connection, answers, full in turn.replies:
            begin = weight = 0
            for place, (_, answer) in enumerate(answers):
                if isinstance(answer, Promised | RowShown):
                    weight += _length(answer.value)
                    if weight > REPLY_BYTES:
                        self._reply(connection, answers[begin : place + 1], [])
                        begin, weight = place + 1, 0
            self._reply(connection, answers[begin:], full)

    def _reply(self, connection: bytes, answers: list[tuple[int, Answer]], full: list[int]) -> None:
        if answers or full:
            body = encode_reply(self._disk.id, answers, full)
            self._send(connection, ReplicaFrame.REPLY, body)

    # ---- status

    def status(self) -> dict[str, object]:
        """Return the facts of this replica."""
        plan = self._disk.plan
        return {
            "address": str(self.me),
            "disk": f"{self._disk.id:016x}",
            "starts": self._starts,
            "state": "failed" if self._failed else FoundingState(self._founding.state).value,
            "waits_for": self._peers.waits_for,
            "replicas": [str(peer) for peer in self.addresses],
            "rows": len(self.registers.rows),
            "memory": self.bytes,
            "memory_limit": self._memory,
            "log_bytes": plan.bytes,
            "segments": len(plan.sizes),
            "damage": self._disk.damage,
            "counts": dict(self.counts),
        }


def _length(value: Value) -> int:
    return len(value.data or b"") if type(value) is StateValue else 0


def _weight(key: str, row: Row) -> int:
    return ROW_BYTES + len(key) + _length(row.value)


def _records_of(key: str, row: Row) -> list[Record]:
    """Return the records that make this row."""
    records = list[Record]()
    if row.ballot > ZERO:
        records.append(ValueRecord(key, row.ballot, row.value))
    if row.promise > row.ballot:
        records.append(PromiseRecord(key, row.promise))
    return records
