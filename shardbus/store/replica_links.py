"""Connections to the replicas of a store: calls of one turn of the loop share a frame.

    connected ──HELLO──> WELCOME: the disk behind the address, and whether it serves
    SendCall  ──CALL───> REPLY:   the answers of that disk
                         RING:    nothing was done: the replica has a newer ring, this one
                         WANTED:  nothing was done: it has an older one, and gets ours (ADOPT)

An address is where a replica listens, a disk is who votes. A connection that breaks may find
another disk, so the messages to a disk go by the last WELCOME.

The proposer sends a call again until it is answered. While the connection stands, the first one is
under way, and a second one would only add to the load that delays its answer. So a call that was
sent on this connection less than `AGAIN_S` seconds ago is not sent twice.

A store object stays with the store of its first ring. After a restore the replicas are of another
store, which knows nothing of the entities of this process: it sends them nothing, and says so.

Source: docs/architecture.md; S3.85.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from operator import is_

import msgspec

from shardbus.error_text import described
from shardbus.guarded_log import GuardedLog
from shardbus.ids import Address
from shardbus.replication.messages import AcceptChange, AcceptValue, MergeValue, TakeChange
from shardbus.replication.moves import DiskAnswer, DiskRequest
from shardbus.replication.ring import NO_RING, ReplicaRing, StoreCall, StoreReply, is_other_store
from shardbus.replication.values import growth_of, length_of
from shardbus.transport.network import Connection, Network
from shardbus.wire.disk_frames import decode_disk_answer, encode_disk_request
from shardbus.wire.replica_frames import (
    Numbered,
    ReplicaFrame,
    ShownBody,
    cluster_mark,
    decode_head,
    decode_reply,
    decode_ring,
    decode_shown,
    decode_welcome,
    encode_body,
    encode_call,
    encode_head,
)

log = GuardedLog("shardbus.store")

HELLO_S = 0.5
"""Between two HELLO to a replica that has not answered, or does not serve."""
FACTS_S = 5.0
"""Between two requests for the facts of a replica."""
AGAIN_S = 1.0
UNDER_WAY_MAX = 100_000
"""Calls without an answer that are remembered for one connection."""
CALL_BYTES = 4 * 2**20
"""Bytes of states after which another frame is begun."""
LINKS_MAX = 64
"""Connections of one store object; addresses beyond are not used."""
CALLS_MAX = 10_000
"""Calls that wait for one frame; beyond, they are dropped, and sent again later."""
OTHER_STORE = "it is of another store, which was restored or founded since: start this process anew"


SPARE = "spare"
"""The state of a replica that no ring has, in its STATUS."""


class _Facts(msgspec.Struct, frozen=True):
    """The part of a STATUS that is kept."""

    repairs: dict[str, float] = {}
    zone: str = ""
    state: str = ""


_read_facts = msgspec.json.Decoder(_Facts).decode


class ReplicaLink:
    """The connection to one address."""

    __slots__ = (
        "address", "connection", "disk", "facts", "ring", "shown", "under_way", "up", "waiting",
        "why",
    )  # fmt: skip

    def __init__(self, address: Address) -> None:
        self.address = address
        self.connection: Connection
        self.up = False
        self.disk: int | None = None
        """The disk that was there last; None before the first WELCOME."""
        self.ring: ReplicaRing = NO_RING
        self.shown: ShownBody | None = None
        """The answer to the last SHOW, None if there is none yet."""
        self.why = "it does not answer"
        """Why it does not serve; empty if it does."""
        self.facts = _Facts()
        """As it answered last."""
        self.waiting: list[StoreCall] = []
        self.under_way: dict[int, float] = {}
        """The calls without an answer that were sent on this connection, and when."""

    @property
    def serves(self) -> bool:
        """True if calls may be sent."""
        return self.up and not self.why


class ReplicaLinks:
    """The connections of one store object. Belongs to one event loop, from `open` on.

    Args:
        on_replies: takes the answers of one frame.
        on_change: called when a replica has begun or ceased to serve.
        on_rows: takes the answer of a disk to `ask`.
        on_refused: called when a disk has refused the calls of former rings, with its ring.
    """

    def __init__(
        self,
        cluster: str,
        addresses: Sequence[Address],
        network: Network,
        on_replies: Callable[[list[StoreReply]], None],
        on_change: Callable[[], None],
        on_rows: Callable[[int, DiskAnswer], None] = lambda disk, answer: None,
        on_refused: Callable[[int, ReplicaRing], None] = lambda disk, ring: None,
    ) -> None:
        self._mark, self._network = cluster_mark(cluster), network
        self._hello = encode_head(ReplicaFrame.HELLO, self._mark)
        self._on_replies, self._on_change, self._on_rows = on_replies, on_change, on_rows
        self._on_refused = on_refused
        self.links = {address: ReplicaLink(address) for address in addresses}
        self._newest = NO_RING
        """The newest ring that the store object has."""
        self._by_disk: dict[int, ReplicaLink] = {}
        self._scheduled = False
        self._ask_at = 0.0
        """When the replicas are asked for facts next."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop
        self.dropped = 0
        """Frames that no connection took, calls that have no bytes, and answers that could not be
        read."""

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to connect."""
        self._loop = loop
        self._network.open(loop)
        addresses = tuple(self.links)
        self.links.clear()
        self.connect_to(addresses)
        self._tick()

    def connect_to(self, addresses: Iterable[Address]) -> None:
        """Connect to these replicas, too."""
        for address in addresses:
            if address in self.links or len(self.links) >= LINKS_MAX:
                continue
            link = self.links[address] = ReplicaLink(address)
            link.connection = self._network.connect(
                address,
                partial(self._on_frame, link),
                partial(self._on_up, link),
                partial(self._on_down, link),
                partial(self._on_denied, link),
            )

    def take_ring(self, ring: ReplicaRing) -> None:
        """This ring holds from now on: connect to its disks."""
        if ring.number > self._newest.number and not is_other_store(ring, self._newest):
            self._newest = ring
            self.connect_to(addresses_of(ring))

    def adopt(self, ring: ReplicaRing, disks: Collection[int]) -> None:
        """Send a ring to these disks."""
        head, body = encode_head(ReplicaFrame.ADOPT, self._mark), encode_body(ring)
        for link in self.links.values():
            if link.up and link.disk in disks:
                link.connection.send(head, body)

    def show(self) -> None:
        """Have each replica show the place of its disk."""
        head = encode_head(ReplicaFrame.SHOW, self._mark)
        for link in self.links.values():
            link.shown = None
            if link.up:
                link.connection.send(self._hello, b"")
                link.connection.send(head, b"")

    def ask(self, disk: int, request: DiskRequest) -> bool:
        """Have a disk show digests or rows. Returns False if it does not serve."""
        link = self._by_disk.get(disk)
        if link is None or not link.serves:
            return False
        head = encode_head(ReplicaFrame.DIGESTS, self._mark)
        return link.connection.send(head, encode_disk_request(request))

    def close(self) -> None:
        """Close all connections."""
        if self._timer is not None:
            self._timer.cancel()
        goodbye = encode_head(ReplicaFrame.GOODBYE, self._mark)
        for link in self.links.values():
            if link.up:
                link.connection.send(goodbye, b"")
            link.connection.close()
        self._network.close()

    @property
    def ring(self) -> ReplicaRing:
        """The newest ring of the replicas that serve; NO_RING if none does."""
        rings = [link.ring for link in self.links.values() if link.serves]
        rings.append(self._newest)
        return max(rings, key=lambda ring: ring.number, default=NO_RING)

    def serving(self, ring: ReplicaRing) -> int:
        """Return how many disks of the ring serve now."""
        return sum(link.serves and link.disk in ring.disks for link in self.links.values())

    @property
    def serving_disks(self) -> frozenset[int]:
        """The disks that serve now."""
        return frozenset(disk for disk, link in self._by_disk.items() if link.serves)

    @property
    def troubles(self) -> str:
        """The replicas of the ring that do not serve, each with the reason; empty if all do."""
        return "; ".join(
            f"{link.address}: {link.why or 'it is out of reach'}"
            for link in self.links.values()
            if not link.serves and is_member(self.ring, link.address, link.disk)
        )

    @property
    def voters(self) -> tuple[int, tuple[str, ...]]:
        """The number of the ring, and the address of each disk of partition 0: where it was seen
        last, or else where the ring has it."""
        ring = self._newest
        places = {member.disk: member.address for member in ring.members}
        places |= {disk: str(link.address) for disk, link in self._by_disk.items()}
        return ring.number, tuple(sorted(places[disk] for disk in ring.voters))

    @property
    def rows(self) -> tuple[dict[str, object], ...]:
        """One row for each replica."""
        ring = self.ring
        zones = {member.address: member.zone for member in ring.members}
        return tuple(
            {
                "address": str(link.address),
                "serves": link.serves,
                "disk": None if link.disk is None else f"{link.disk:016x}",
                "why": "" if link.serves else link.why or "it is out of reach",
                "member": is_member(ring, link.address, link.disk),
                "spare": link.up and link.facts.state == SPARE,
                "zone": link.facts.zone or zones.get(str(link.address), ""),
                "repairs": dict(link.facts.repairs) if link.up else {},
            }
            for link in self.links.values()
        )

    def send(self, disk: int, call: StoreCall) -> bool:
        """Send a call with the others of this turn. Returns False if the disk is out of reach."""
        link = self._by_disk.get(disk)
        if link is None or not link.serves or len(link.waiting) >= CALLS_MAX:
            return False
        now = self._loop.time()
        if now - link.under_way.get(call.number, -AGAIN_S) < AGAIN_S:
            return True
        if len(link.under_way) >= UNDER_WAY_MAX:
            link.under_way.clear()
        link.under_way[call.number] = now
        link.waiting.append(call)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        return True

    def rekey(self) -> None:
        """Let each replica that can be reached read the file of its keys again."""
        for link in self.links.values():
            if link.up:
                link.connection.send(encode_head(ReplicaFrame.REKEY, self._mark), b"")

    def _flush(self) -> None:
        """Send the waiting calls. Disks that get the same calls share their bytes."""
        self._scheduled = False
        made: list[tuple[list[StoreCall], list[tuple[bytes, bytes]]]] = []
        for link in self._by_disk.values():
            calls, link.waiting = link.waiting, []
            if not calls:
                continue
            frames = next((encoded for other, encoded in made if _same(other, calls)), None)
            if frames is None:
                frames = list(self._frames(calls))
                made.append((calls, frames))
            for head, body in frames:
                if not link.connection.send(head, body):
                    self.dropped += 1

    def _frames(self, calls: list[StoreCall]) -> list[tuple[bytes, bytes]]:
        """Return the frames of calls. One frame is of one ring."""
        frames: list[tuple[bytes, bytes]] = []
        begin = weight = 0
        for place, call in enumerate(calls):
            weight += _weight(call)
            last = place + 1 == len(calls)
            if last or weight > CALL_BYTES or calls[place + 1].ring != call.ring:
                part = calls[begin : place + 1]
                if body := self._body(part):
                    frames.append((encode_head(ReplicaFrame.CALL, self._mark, call.ring), body))
                begin, weight = place + 1, 0
        return frames

    def _body(self, calls: list[StoreCall]) -> bytes:
        """Return calls as bytes, empty if there are none. One that cannot be encoded is left out,
        so that it harms no other."""
        requests = [(call.number, call.request) for call in calls]
        try:
            return encode_call(requests)
        except Exception as error:
            encodable = [request for request in requests if is_encodable(request)]
            self.dropped += len(requests) - len(encodable)
            log.error("a call of this store cannot be sent: %s", described(error))
        return encode_call(encodable) if encodable else b""

    # ---- arrivals

    def _on_frame(self, link: ReplicaLink, parts: list[bytes]) -> None:
        head = decode_head(parts[0]) if len(parts) == 2 else None
        if head is None or head.cluster != self._mark:
            self.dropped += 1
            return
        try:
            match head.kind:
                case ReplicaFrame.REPLY:
                    reply = decode_reply(parts[1])
                    for number, _ in reply.answers:
                        link.under_way.pop(number, None)
                    self._on_replies(
                        [StoreReply(n, reply.disk, head.ring, a) for n, a in reply.answers]
                    )
                case ReplicaFrame.WELCOME:
                    welcome = decode_welcome(parts[1])
                    self._on_welcome(link, welcome.disk, welcome.ring, welcome.waits_for)
                case ReplicaFrame.RING:
                    self._on_ring(link, decode_ring(parts[1]))
                case ReplicaFrame.WANTED:
                    link.under_way.clear()
                    if link.disk is not None and head.ring < self.ring.number:
                        self.adopt(self.ring, {link.disk})
                case ReplicaFrame.STATUS:
                    link.facts = _read_facts(parts[1])
                case ReplicaFrame.ROWS:
                    self._on_rows(*decode_disk_answer(parts[1]))
                case ReplicaFrame.SHOWN:
                    link.shown = decode_shown(parts[1])
                    self._on_change()
                case ReplicaFrame.REFUSED:
                    self._set_why(link, parts[1].decode(errors="replace")[:500])
                case _:
                    self.dropped += 1
        except msgspec.MsgspecError:
            self.dropped += 1

    def _on_welcome(self, link: ReplicaLink, disk: int, ring: ReplicaRing, why: str) -> None:
        if link.disk is not None and link.disk != disk:
            self._by_disk.pop(link.disk, None)
        link.disk = disk
        self._by_disk[disk] = link
        if is_other_store(ring, self._newest):
            link.ring = NO_RING
            self._set_why(link, OTHER_STORE)
            return
        link.ring = ring
        self._set_why(link, f"it waits for {why}" if why else "")

    def _on_ring(self, link: ReplicaLink, ring: ReplicaRing) -> None:
        if is_other_store(ring, self._newest):
            self._set_why(link, OTHER_STORE)
            return
        link.ring = ring
        self.take_ring(ring)
        link.under_way.clear()
        self._on_change()
        if link.disk is not None:
            self._on_refused(link.disk, ring)

    def _on_up(self, link: ReplicaLink) -> None:
        link.up = True
        link.under_way.clear()
        link.connection.send(self._hello, b"")

    def _on_down(self, link: ReplicaLink) -> None:
        link.up, link.shown = False, None
        link.waiting.clear()
        link.under_way.clear()
        self._set_why(link, "it is out of reach")

    def _on_denied(self, link: ReplicaLink, reason: str) -> None:
        self._set_why(link, reason)

    def _set_why(self, link: ReplicaLink, why: str) -> None:
        if link.why != why:
            link.why = why
            self._on_change()

    def _tick(self) -> None:
        asks = self._loop.time() >= self._ask_at
        if asks:
            self._ask_at = self._loop.time() + FACTS_S
        for link in self.links.values():
            if link.up and link.why:
                link.connection.send(self._hello, b"")
            if link.up and asks:
                link.connection.send(encode_head(ReplicaFrame.ASK, self._mark), b"")
        self._timer = self._loop.call_later(HELLO_S, self._tick)


def is_encodable(request: Numbered) -> bool:
    """True if a request has bytes."""
    try:
        encode_call([request])
    except Exception:
        return False
    return True


def addresses_of(ring: ReplicaRing) -> list[Address]:
    """Return the addresses that a ring has of its disks."""
    return [Address.parse(member.address) for member in ring.members if member.address]


def is_member(ring: ReplicaRing, address: Address, disk: int | None) -> bool:
    """True if the replica at the address is of the ring, or is to be: its disk may be lost."""
    if not ring.members:
        return True
    names = {member.address for member in ring.members}
    return disk in ring.disks or str(address) in names or names == {""}


def _same(these: list[StoreCall], those: list[StoreCall]) -> bool:
    return len(these) == len(those) and all(map(is_, these, those))


def _weight(call: StoreCall) -> int:
    request = call.request
    match request:
        case AcceptValue(_, _, value) | MergeValue(_, value):
            return length_of(value)
        case AcceptChange(_, _, _, change):
            return growth_of(None, change)
        case TakeChange(_, change):
            base = 0 if change.base is None else length_of(change.base)
            return base + sum(len(each.data) for each in change.adds)
        case _:
            return 0
