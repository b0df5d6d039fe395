"""A replica: the rows of one disk in memory, its log, and a socket for stores and other replicas.

    CALL ──> rows ──> `turns`: one write, one sync ──> REPLY, under the ring of the CALL
    a CALL of an older ring ──> RING: the store takes it, and sends anew
    a CALL of a newer one   ──> WANTED: the store sends the ring (ADOPT)

Whether the replica serves is `standing`; the rows that disks owe each other are `exchange`; the
reports between replicas are `peers`; how a blank disk or a spare comes into the ring is `joining`.

**Memory.** Rows are in memory, as many as fit into `memory` bytes. Beyond that, a request that
makes a row, or one longer, is refused as `full`; all others are served. Rows of other disks are
taken in any case, because this disk holds them already for its store.

**The end.** A replica whose node has left stays while the others need it: as long as a store uses
it, and the replicas that are in reach are no majority without it. So the last nodes of a cluster
that stops can save their states. `lingers` says so; its caller bounds it.

**A disk that is given up** (`standing`) ends the server, too. The next one finds the mark on the
disk, puts the segments aside, and begins with a blank one.

Source: docs/architecture.md; S2.32, S3.85.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from shardbus.errors import ConfigError
from shardbus.guarded_log import GuardedLog
from shardbus.ids import Address
from shardbus.replica.disk import ReplicaDisk
from shardbus.replica.exchange import DiskExchange
from shardbus.replica.joining import Joining
from shardbus.replica.log_check import LogCheck
from shardbus.replica.peers import ReplicaPeers
from shardbus.replica.standing import Standing
from shardbus.replica.turns import DiskTurns
from shardbus.replication import messages as msg
from shardbus.replication.founding import Founding
from shardbus.replication.moves import AskDisk, RingDisk, partition_asked
from shardbus.replication.registers import ROW_BYTES, Registers
from shardbus.replication.ring import NO_RING, ReplicaRing
from shardbus.replication.values import PARTITIONS, growth_of, length_of
from shardbus.replication.versions import NotTaken
from shardbus.transport.network import Listener, Network, SendResult
from shardbus.transport.suspend_clock import suspend_clock
from shardbus.wire.disk_frames import DiskState, decode_turn
from shardbus.wire.replica_frames import (
    ReplicaFrame,
    ShownBody,
    WelcomeBody,
    cluster_mark,
    decode_call,
    decode_head,
    decode_report,
    decode_ring,
    encode_body,
    encode_head,
    encode_reply,
)

log = GuardedLog("shardbus.store")

REPLY_BYTES = 4 * 2**20
"""Bytes of states after which a further frame is begun."""
REPAIR_S = 60.0
"""Between two repairs, and between two counters of the disk."""
RUN_BITS = 62
WITH_VALUE = (msg.Promised, msg.RowShown, msg.Taken)
GROWTH_MAX = 64
"""Bytes by which the rows grow at most for each byte of a CALL: a new row takes 460, and a request
that makes one 12 at least; an entry of an index takes 100, and 4."""


class RingPart(NamedTuple):
    """The part of a replica in its ring. `may_found`: it may found a store. `zone`: where it runs.
    `members`: the disks of a new store, 0 for one of each replica. `repair_after`: seconds after
    which a member that is away gives way to a spare; 0 for never."""

    may_found: bool = True
    zone: str = ""
    members: int = 0
    repair_after: float = 0.0


class ReplicaKeys(NamedTuple):
    """The keys of a replica's process. `admits(user)`: True for the name that authentication gave a
    peer that may speak to it. `reload()`: reads the file again, soon; a node asks for it."""

    admits: Callable[[str | None], bool] = lambda user: True
    reload: Callable[[], object] = lambda: None


class ReplicaServer:
    """One replica. Belongs to one event loop, from `start` on.

    Args:
        cluster: the name of the cluster whose store this is.
        me: the address of this replica.
        peers: the addresses of all replicas of the store, this one included.
        memory: bytes for rows.
        part: its part in the ring.
        keys: which peers may speak to a replica, and how it reads its keys again.
        on_failed: called once when the disk can be used no longer; with the reason.
        joining: brings a blank disk into the ring; None leaves it to operators.
        repair: seconds between two repairs.
    """

    def __init__(
        self,
        cluster: str,
        me: Address,
        peers: Sequence[Address],
        disk: ReplicaDisk,
        network: Network,
        *,
        memory: int = 2**30,
        part: RingPart = RingPart(),  # noqa: B008  (it is immutable)
        keys: ReplicaKeys | None = None,
        on_failed: Callable[[str], None] = lambda why: None,
        clock: Callable[[], float] = suspend_clock,
        joining: Callable[[], Network] | None = None,
        repair: float = REPAIR_S,
    ) -> None:
        self.me, self.addresses, self._disk, self._network = me, tuple(peers), disk, network
        self._mark = cluster_mark(cluster)
        self._memory, self._part = memory, part
        self._keys, self._on_failed, self._clock = keys or ReplicaKeys(), on_failed, clock
        self._repair = repair
        self.counts: Counter[str] = Counter()
        """Frames that were dropped and connections that were cut, by reason."""
        self._place = RingDisk(-1)
        self._read_state = DiskState()
        self._standing: Standing
        self._turns: DiskTurns
        self._exchange: DiskExchange
        self._peers: ReplicaPeers
        self._joining = Joining(cluster, joining) if joining is not None else None
        self._listener: Listener
        self._stores: set[bytes] = set()
        """Connections of store objects that have not ended, as far as is known."""
        self._log_check = LogCheck(disk, self._checked)
        self._counted_at = 0.0
        self._has_served = False
        self.gave_up = False
        """The disk was given up, and marked: the next server has a blank one."""

    # ---- start and end

    def open(self) -> None:
        """Read the disk.

        Raises:
            ConfigError: another process has it, or the directory cannot be used.
        """
        began = time.perf_counter()
        self._disk.open(self._read, self._forget)
        self._place.identify(self._disk.id)
        self.registers.data.run = secrets.randbits(RUN_BITS) | 1
        log.info(
            "%d rows read from %s in %.1f s", len(self.registers.rows), self._disk.path,
            time.perf_counter() - began,
        )  # fmt: skip
        stored, place = self._read_state, self._place
        part = self._part
        founding = Founding(
            self.me, self.addresses, self._disk.id, stored.ring, stored.founded, part.may_found,
            part.zone, part.members,
        )  # fmt: skip
        self._standing = Standing(founding, place, stored, secrets.randbits(RUN_BITS))
        self._standing.advance(self._clock())
        standing = self._standing
        self._turns = DiskTurns(
            self._disk, place, lambda: standing.state, stored, self._on_stored, self._on_failed
        )
        self._exchange = DiskExchange(
            place, self._turns, self._send_to_disk, self._adopt, self._votes, self._clock,
            self._repair,
        )  # fmt: skip
        self._peers = ReplicaPeers(
            self._mark, self.me, self._report, self._awaited, self._on_answer,
            self._exchange.repair_soon, standing.on_silent, self._on_tick, self._drop,
        )  # fmt: skip

    def _read(self, body: memoryview) -> int:
        turn = decode_turn(body)
        for record in turn.records:
            self._place.replay(record)
        self._read_state = turn.state or self._read_state
        return turn.compacted

    def _forget(self) -> None:
        self._place, self._read_state = RingDisk(-1), DiskState()

    def start(self, host: str, port: int) -> None:
        """Listen, and look for the other replicas once the start of the disk is stored.

        Raises:
            ConfigError: the port is taken.
        """
        self._listener = self._network.listen(
            host, port, f"replica {self.me}", self._on_frame, self._cut
        )
        self._counted_at = self._clock()
        self._standing.founding.start()
        self._standing.advance(self._clock())
        self._turns.start()
        self._turns.after_sync(self._begin)

    def _begin(self) -> None:
        self._exchange.start()
        self._peers.start(self._network, self._others())

    def close(self) -> None:
        """Close sockets and files, after the turn that is being written."""
        if self._joining is not None:
            self._joining.close()
        self._exchange.close()
        self._log_check.close()
        self._peers.close()
        self._listener.close()
        self._turns.close()

    @property
    def registers(self) -> Registers:
        """The rows."""
        return self._place.registers

    @property
    def serves(self) -> bool:
        """True if the replica answers stores."""
        return not self._turns.failed and self._standing.serves(self._turns.stored)

    @property
    def waits_for(self) -> str:
        """The replicas for which this one waits, and why; empty if it serves."""
        return self._standing.waits_for(self._turns.stored)

    def _awaited(self) -> str:
        """Return the wait to be logged now and then. A spare may wait for ever."""
        return "" if self._standing.is_spare else self.waits_for

    def _others(self) -> list[Address]:
        """The addresses of the other replicas: by the settings, and by the ring."""
        ring, seen = self._standing.ring, self._standing.addresses
        moved = [m for m in ring.members if m.address and m.disk not in seen]
        return [*self.addresses, *seen.values(), *(Address.parse(m.address) for m in moved)]

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
        if not self._keys.admits(self._listener.user(connection)):
            self._drop("not allowed")
            self._refuse(connection, "this process may not use the store: its role is not `store`")
            return
        try:
            match head.kind:
                case ReplicaFrame.CALL:
                    self._on_call(connection, head.ring, body)
                case ReplicaFrame.REPORT:
                    self._on_report(body, connection)
                case ReplicaFrame.DIGESTS:
                    back = partial(self._send, connection, ReplicaFrame.ROWS)
                    if not self._exchange.on_digests(body, back):
                        self._drop("not voting")
                case ReplicaFrame.ADOPT:
                    self._exchange.on_ring(decode_ring(body))
                case _:
                    self._on_question(connection, head.kind)
        except (msgspec.MsgspecError, ConfigError, TypeError):
            self._drop("malformed")

    def _on_question(self, connection: bytes, kind: ReplicaFrame) -> None:
        match kind:
            case ReplicaFrame.HELLO:
                self._stores.add(connection)
                self._welcome(connection)
            case ReplicaFrame.GOODBYE:
                self._stores.discard(connection)
            case ReplicaFrame.ASK:
                body = msgspec.json.encode(self.status())
                self._send(connection, ReplicaFrame.STATUS, body)
            case ReplicaFrame.CHECK:
                self._log_check.ask(connection)
            case ReplicaFrame.REKEY:
                self._keys.reload()
            case ReplicaFrame.SHOW:
                standing = self._standing
                zone = standing.founding.zone
                status, votes = self._turns.status, standing.life.votes
                shown = ShownBody(status, votes, self.waits_for, zone)
                self._send(connection, ReplicaFrame.SHOWN, encode_body(shown))
            case _:
                self._drop("unexpected")

    def _checked(self, connection: bytes, facts: dict[str, Any]) -> None:
        facts |= {"address": str(self.me), "disk": f"{self._disk.id:016x}"}
        self._send(connection, ReplicaFrame.CHECKED, msgspec.json.encode(facts))

    def _on_call(self, connection: bytes, ring: int, body: bytes) -> None:
        if not self.serves:
            why = f"the replica {self.me} does not serve: {self.waits_for}"
            self._refuse(connection, why)
            return
        place = self._place
        if ring != place.ring.number:
            self._on_other_ring(connection, ring)
            return
        if self._turns.is_full:
            self._drop("busy")
            return
        registers, now = place.registers, self._clock()
        everywhere = len(place.voting) == PARTITIONS
        roomy = registers.bytes + GROWTH_MAX * len(body) <= self._memory
        yes, answers, full = list[int](), list[tuple[int, msg.Answer]](), list[int]()
        for number, request in decode_call(body):
            if not (everywhere or self._votes_on(request)):
                self._drop("not voting")
            elif not (roomy or self._fits(request)):
                if isinstance(request, msg.TakeChange):
                    answers.append((number, NotTaken("memory")))
                else:
                    full.append(number)
                self._drop("full")
            elif (answer := registers.handle(request, now)) is msg.YES:
                yes.append(number)
            else:
                answers.append((number, answer))
        count = max(len(yes) + len(answers), 1)
        self._turns.after_sync(partial(self._answer, connection, ring, yes, answers, full), count)

    def _on_other_ring(self, connection: bytes, ring: int) -> None:
        own_ring = self._place.ring
        if ring < own_ring.number:
            self._turns.after_sync(partial(self._send_ring, connection, own_ring))
        else:
            self._send(connection, ReplicaFrame.WANTED, b"", own_ring.number)

    def _send_ring(self, connection: bytes, ring: ReplicaRing) -> None:
        self._send(connection, ReplicaFrame.RING, encode_body(ring), ring.number)

    def _fits(self, request: msg.Request) -> bool:
        """True if the row takes no more memory with the value of this request, or there is room."""
        more = self._more(request)
        return more <= 0 or self.registers.bytes + more <= self._memory

    def _more(self, request: msg.Request) -> int:
        """Return how many more bytes of memory the row takes with the value of this request."""
        rows = self.registers.rows
        match request:
            case msg.AcceptValue(key, _, value):
                row = rows.get(key)
                former = -ROW_BYTES - len(key) if row is None else length_of(row.value)
                return length_of(value) - former
            case msg.PrepareBallot(key):
                return 0 if key in rows else ROW_BYTES + len(key)
            case msg.AcceptChange(key, ballot, _, change):
                row = rows.get(key)
                again = row is not None and row.ballot == ballot
                return 0 if again else growth_of(row and row.value, change)
            case msg.TakeChange() | msg.MergeValue():
                return self._more_data(request)
            case _:
                return 0

    def _more_data(self, request: msg.TakeChange | msg.MergeValue) -> int:
        row = self.registers.rows.get(request.key)
        former = ROW_BYTES + len(request.key) if row is None else -length_of(row.value)
        if isinstance(request, msg.MergeValue):
            return former + length_of(request.value)
        adds = sum(len(each.name) + len(each.data) for each in request.change.adds)
        return max(former, 0) + adds

    def _votes_on(self, request: msg.Request) -> bool:
        if isinstance(request, msg.ListChanges):
            return True
        return partition_asked(request) in self._place.voting

    def _refuse(self, connection: bytes, why: str) -> None:
        self._send(connection, ReplicaFrame.REFUSED, why.encode())

    def _welcome(self, connection: bytes) -> None:
        welcome = WelcomeBody(self._disk.id, self._turns.stored.ring, self.waits_for)
        self._send(connection, ReplicaFrame.WELCOME, encode_body(welcome))

    def lingers(self) -> bool:
        """True if stores still need this replica, whose process is to end. Notices stores that
        ended without a GOODBYE."""
        if not self._standing.leaves:
            self._standing.leaves = True
            self._peers.report_to_all()
        if not self.serves or self._standing.is_dispensable(self._clock()):
            return False
        for connection in list(self._stores):
            self._welcome(connection)
        return bool(self._stores)

    def _drop(self, why: str) -> None:
        self.counts[why] += 1

    def _send(self, connection: bytes, kind: ReplicaFrame, body: bytes, ring: int = 0) -> bool:
        sent = self._listener.send(connection, encode_head(kind, self._mark, ring), body)
        if sent is SendResult.UNROUTABLE:
            self._stores.discard(connection)
        if sent is not SendResult.TAKEN:
            self._drop("peer gone" if sent is SendResult.UNROUTABLE else "peer does not read")
        return sent is SendResult.TAKEN

    # ---- answers

    def _answer(
        self,
        connection: bytes,
        ring: int,
        yes: list[int],
        answers: list[tuple[int, msg.Answer]],
        full: list[int],
    ) -> None:
        """Send the answers to one call, in frames of bounded length."""
        begin = weight = 0
        for place, (_, answer) in enumerate(answers):
            if isinstance(answer, WITH_VALUE):
                weight += length_of(answer.value)
                if weight > REPLY_BYTES:
                    self._reply(connection, ring, answers[begin : place + 1])
                    begin, weight = place + 1, 0
        if yes or full or begin < len(answers):
            self._reply(connection, ring, answers[begin:], full, yes)

    def _reply(self, connection: bytes, ring: int, *parts: Sequence[Any]) -> None:
        """Send a frame. `parts`: as `encode_reply` takes them."""
        body = encode_reply(self._disk.id, *parts)
        self._send(connection, ReplicaFrame.REPLY, body, ring)

    # ---- other replicas

    def _report(self) -> bytes:
        return encode_body(self._standing.report(self._turns.stored, None, self._clock()))

    def _on_report(self, body: bytes, connection: bytes | None) -> None:
        """Take a report, and answer it after the sync if it came by the listener."""
        report = decode_report(body)
        stored = self._turns.stored
        verdict, effects = self._standing.on_report(report, stored, self._clock())
        if connection is not None and not report.answers:

            def answer() -> None:
                answering = self._standing.report(self._turns.stored, verdict, self._clock())
                self._send(connection, ReplicaFrame.REPORT, encode_body(answering))

            self._turns.after_sync(answer)
        self._turns.soon()
        if report.disk in self._place.away:
            self._place.away.discard(report.disk)
            effects = [*effects, *self._place.tick(self._clock())]
        self._exchange.ask(effects)

    def _on_answer(self, kind: ReplicaFrame, body: bytes) -> None:
        """A frame of another replica has come by the connection to it."""
        match kind:
            case ReplicaFrame.REPORT:
                self._on_report(body, None)
            case ReplicaFrame.ROWS:
                self._exchange.on_rows(body)
            case _:
                self._drop("unexpected")

    def _send_to_disk(self, disk: int, kind: ReplicaFrame, body: bytes) -> bool:
        address = self._standing.addresses.get(disk)
        return address is not None and self._peers.send(address, kind, body)

    def _votes(self) -> bool:
        standing = self._standing
        return standing.life.votes and not standing.founding.is_copied and not self._turns.failed

    def _adopt(self, ring: ReplicaRing) -> list[AskDisk]:
        return self._standing.adopt(ring, self._clock())

    def _on_tick(self) -> None:
        """Count, judge, and give up a disk that is lost."""
        now, standing = self._clock(), self._standing
        if now - self._counted_at >= self._repair:
            self._counted_at = now
            if standing.count():
                self._turns.soon()
        standing.tick(now, self._turns.stored)
        self._note_serving()
        self._place.away = set(standing.away)
        self._exchange.ask(self._place.tick(now))
        self._peers.connect_to(self._others())
        if why := standing.is_lost(now):
            self._give_up(why)
        elif self._joining is not None:
            self._change_ring(self._joining, now)

    def _change_ring(self, joining: Joining, now: float) -> None:
        """Bring a blank disk into the ring, or a spare in place of a member that is away."""
        standing = self._standing
        if standing.founding.stands_beside_a_store and not standing.is_spare:
            standing.joining = joining.progress
            joining.begin(self.me, self._disk.id, self._others())
            return
        if standing.is_spare:
            joining.note_spare(self.me)
            return
        repair = standing.repair(now, self._turns.stored, self._part.repair_after)
        joining.repair(repair, self._others())

    def _note_serving(self) -> None:
        if self.serves and not self._has_served:
            self._has_served = True
            disks = len(self._turns.stored.ring.members)
            log.info("the replica %s serves: its store has %d disks", self.me, disks)

    def _give_up(self, why: str) -> None:
        if self._turns.failed:
            return
        self._turns.failed = True
        log.error("the disk %s is given up, and put aside: %s", self._disk.path, why)
        try:
            self._disk.give_up(why)
            self.gave_up = True
        except OSError as error:
            why = f"{why}; the mark cannot be written: {error}"
        self._on_failed(why)

    def _on_stored(self, before: DiskState) -> None:
        """A turn has stored other facts of the disk, or another place."""
        stored = self._turns.stored
        self._note_serving()
        if before.ring != NO_RING and stored.ring != before.ring and stored.ring != NO_RING:
            log.info(
                "the replica %s has ring %d of %d disks",
                self.me, stored.ring.number, len(stored.ring.members),
            )  # fmt: skip
        if (stored.ring, stored.founded) != (before.ring, before.founded):
            self._peers.connect_to(self._others())
            self._peers.report_to_all()

    # ---- status

    def status(self) -> dict[str, Any]:
        """Return the facts of this replica."""
        plan, place, standing = self._disk.plan, self._place, self._standing
        state = standing.replica_state(self._turns.stored)
        return {
            "address": str(self.me),
            "disk": f"{self._disk.id:016x}",
            "starts": standing.starts,
            "state": "failed" if self._turns.failed else state.value,
            "waits_for": self.waits_for,
            "zone": standing.founding.zone,
            "repair": self._joining.repairs if self._joining is not None else "",
            "replicas": [str(peer) for peer in self.addresses],
            "ring": place.ring.number,
            "members": [member.address or f"{member.disk:016x}" for member in place.ring.members],
            "unmerged": standing.unmerged,
            "behind": place.behind,
            "rows": len(self.registers.rows),
            "memory": self.registers.bytes,
            "values": self.registers.data.count,
            "memory_limit": self._memory,
            "log_bytes": plan.bytes,
            "segments": len(plan.sizes),
            "damage": self._disk.damage,
            "turns": self._turns.count,
            "repairs": self._exchange.facts,
            "counts": dict(self.counts),
        }
