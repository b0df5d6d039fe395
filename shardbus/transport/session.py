"""A session: the link between two processes, in both directions, over one connection.

    tell, ask, reply, control ──> outbox ──batches──> link ──> frames
    frames ──> link ──batches──> inbox ──> receiver
                                   └──> asks: one outcome each

ZeroMQ's `send` is not delivery: when a connection breaks, ZeroMQ silently drops the contents of its
buffers. So each direction numbers its batches, acknowledges and resends them (`link`, `window`),
and every ask has exactly one outcome (`asks`). Messages gather in the open batch (`outbox`);
arriving messages are passed to the receiver as soon as it has room for them (`inbox`). A session
with the process itself has no frames: its batches go from outbox to inbox (`loopback`).

    link       outbox                             inbox
    opening    fills; full batches are numbered   empty
    open       fills and leaves                   hands out, or holds for lack of room
    broken     fills; full batches are numbered   hands out the held ones
    ended      empty; additions fail              empty

`check` compares a session with this table.

An ask is answered on the session it came by. When the other process dies, unacknowledged messages
are lost (at most once) and counted; messages that were never sent are returned, to be sent another
way. When only the connection breaks, batches are sent again without the asks that have expired
meanwhile, so that no handler works for a caller that gave up.

Source: docs/architecture.md; S0.35, S0.36; B.108; N.15, N.16.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from shardbus.errors import NodeLost, RequestError
from shardbus.transport.asks import Asks, CoarseClock, Unsent, refuse
from shardbus.transport.direct_message import LocalOutbox
from shardbus.transport.fork_guard import guard
from shardbus.transport.full_entities import Target
from shardbus.transport.inbox import Inbox, Receiver
from shardbus.transport.link import NUMBERED, LinkState, SessionLink, wake
from shardbus.transport.log_limiter import log
from shardbus.transport.loopback import Loopback
from shardbus.transport.outbox import SessionOutbox, keep_waiting
from shardbus.transport.permissions import NODE, RUNS
from shardbus.transport.send_buffer import SendBufferLimit
from shardbus.transport.sent_messages import BatchDeparture, SentMessages
from shardbus.transport.window import Transmit, Window
from shardbus.wire.batch import (
    ENTITY_HOLDS,
    SESSION_FEATURES,
    AskRun,
    FrameType,
    Hold,
    Relayed,
    Run,
    TellRun,
    decode_batch,
    encode_batch,
)


def _nowhere(kind: int, seq: int, ack: int, body: bytes) -> bool:
    """Take a frame of a loopback, which sends none."""
    return True


class Session:
    """One session. `transmit(kind, seq, ack, body)` hands one frame to the connection and returns
    True if the connection took it. Without it, the other side is this process."""

    __slots__ = (
        "__weakref__", "_asks", "_asks_expired", "_local", "_loop", "_transmit", "closed_idle",
        "features", "inbox", "link", "lost", "mark", "outbox", "peer_ended", "permissions", "tag",
        "unconfirmed", "unconfirmed_runs", "wants_drop_reports",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        clock: CoarseClock,
        receiver: Receiver[Session],
        transmit: Transmit | None,
        send_buffer_limit: SendBufferLimit | None = None,
        sent: SentMessages | None = None,
    ) -> None:
        self.tag: Any = None
        """Set by the owner: which peer this is to the owner."""
        self.permissions = NODE
        """Set by the owner: the permissions of the other process."""
        self.features: frozenset[str] = frozenset(() if transmit else SESSION_FEATURES)
        """Set by the owner: the abilities that the other process has announced (`wire.batch`); none
        before it has greeted."""
        self.wants_drop_reports, self.mark = False, 0
        """Set by the owner: True if the other process takes reports of dropped tells; and the
        number that stands for this session in tells that arrive by it (`drop_reports`)."""
        self.lost: RequestError | None = None
        self.unconfirmed: dict[str, int] = {}
        """In a lost session: tells, by type, that may or may not have arrived."""
        self.unconfirmed_runs: list[Run] = []
        """The runs that have them, until the loss is settled."""
        self.peer_ended = True
        """In a lost session: the other process has ended, or left. If False, it may still live."""
        self.closed_idle = False
        """In a lost session: this process closed it with nothing under way; the other process may
        live."""
        self._loop, self._asks = loop, Asks(clock)
        self._asks_expired = False
        """Some asks have expired that stand in batches to be sent again."""
        self._transmit = transmit or _nowhere
        window = Window(self._transmit)
        asks, free, hold, local = self._asks, self._on_free, self._on_hold, transmit is None
        self.inbox: Inbox[Session] = Inbox(
            self, receiver, window, asks, loop, clock, free, hold, relayed_pass=local
        )
        self.link = SessionLink(name, loop, window, self._on_room)
        self._local = None if transmit else Loopback(name, loop, self.inbox, self._on_room)
        departure = BatchDeparture(sent or SentMessages(), loop)
        limit = send_buffer_limit or SendBufferLimit()
        self.outbox = (
            SessionOutbox(loop, self._asks, self.link, limit, departure)
            if self._local is None
            else LocalOutbox(loop, self._asks, self._local, limit, departure)
        )
        guard(self)
        guard(self.outbox)

    def _on_room(self) -> None:
        self.outbox.on_room()

    def _on_free(self) -> None:
        """The inbox holds nothing any more."""
        if self._local is None:
            self.link.acknowledge()
        else:
            self._local.free()

    @property
    def name(self) -> str:
        """Name of the other process."""
        return self.link.name

    @property
    def waiting_asks(self) -> int:
        """Asks without an outcome."""
        return len(self._asks.entries)

    @property
    def busy(self) -> bool:
        """True if something is under way: an ask, a batch, or a message that no batch has left."""
        return bool(self._asks.entries) or self.link.outstanding > 0 or self.outbox.unflushed

    def drained(self) -> asyncio.Future[None]:
        """Return a future that is done when everything sent so far is acknowledged, or the session
        is lost."""
        self.outbox.flush()
        self.link.number_all()
        held = self.outbox.held
        if held is None or not held.weight:
            return self.link.acknowledged()
        drained, left = self._loop.create_future(), self._loop.create_future()
        held.when_left(left)
        left.add_done_callback(
            lambda _: self.drained().add_done_callback(lambda _: wake([drained]))
        )
        return drained

    # ---- frames that arrive

    def opened(self, ack: int) -> None:
        """The handshake is done (again): the peer has everything up to `ack`; send the rest."""
        expired, self._asks_expired = self._asks_expired, False
        self.link.opened(ack, self._without_expired if expired else None)

    def _without_expired(self, body: bytes) -> bytes:
        return without_expired(body, self._asks)

    def on_frame(self, kind: int, seq: int, ack: int, body: bytes) -> None:
        """A frame of one of the `SESSION_FRAMES` arrived.

        Raises:
            RemoteProtocolError: the body does not fit the schema. The frame counts as received, so
                that it cannot block the rest.
        """
        link = self.link
        if kind == FrameType.DATA:
            if link.accept(seq, ack):
                self._receive(seq, body)
        elif kind not in NUMBERED:
            link.on_numbers(kind, seq, ack)
        elif link.accept(seq, ack):
            link.assembly.add(body)
            if kind == FrameType.LAST_PART:
                self._receive(seq, link.assembly.take())
            else:
                self.inbox.receive_part(seq)
            link.acknowledge()  # the sender holds the next part back until then

    def _receive(self, seq: int, body: bytes) -> None:
        """Pass a complete batch to the inbox. Answers that the receiver gives meanwhile leave when
        the whole batch is handled, without waiting for the end of the loop iteration."""
        outbox = self.outbox
        due, outbox.scheduled = outbox.scheduled, True
        try:
            self.inbox.receive(seq, body)
        finally:
            outbox.scheduled = due
            if outbox.runs:
                outbox.flush()

    def keep_alive(self) -> None:
        """Send the numbers of the last batches, so that the peer sees that this process lives, and
        both sides find the missing ones."""
        self.link.send_numbers(FrameType.HELD if self.inbox.holding else FrameType.ACK)

    def _on_hold(self, hold: Hold) -> None:
        if Hold in RUNS[self.permissions.role]:
            self.outbox.on_hold(hold)
        else:
            log.warning("dropped a Hold: %s may not send it", self.name)

    # ---- the receiver's room

    @property
    def holds_entities(self) -> bool:
        """True if the other side can hold back the messages of single entities."""
        return ENTITY_HOLDS in self.features

    def hold(self, target: Target) -> None:
        """The receiver has no room for an entity: withhold its messages, until `release`."""
        if self.lost is None and self.inbox.fill(target):
            self.outbox.report_full(target, begins=True)

    def release(self, target: Target) -> None:
        """The receiver has room for an entity again."""
        if self.lost is None and self.inbox.release(target):
            self.outbox.report_full(target, begins=False)

    def pause(self) -> None:
        """The receiver has no room: hold its messages, until `resume`."""
        self.inbox.pause()
        if self._local is not None:
            self.outbox.writable = False

    def resume(self) -> None:
        """The receiver has room again."""
        if self.lost is None:
            self.inbox.resume()

    # ---- deadlines and the end

    def expire(self) -> int:
        """Fail the asks whose deadline has passed; return their number."""
        expired = self._asks.expire(self.name)
        self._asks_expired = self._asks_expired or expired > 0
        return expired

    def unacknowledged(self) -> Iterator[Run]:
        """Iterate over the runs that the other side has not acknowledged, sent or not."""
        for body in self.link.bodies:
            yield from decode_batch(body)
        yield from self.outbox.unnumbered()

    def close(self, error: RequestError) -> list[Unsent]:
        """End the session: the other process is gone, or this one leaves it. Every waiting caller
        gets `error`, except for messages that were never handed to the connection. Those are
        returned in order, to be sent another way."""
        if self.lost is not None:
            return []
        self.inbox.release_all()
        self.lost = error
        lost, fresh = self.link.end()
        self.unconfirmed_runs = [run for body in lost for run in decode_batch(body)]
        self.unconfirmed = _tells_by_type(self.unconfirmed_runs)
        runs = [run for body in fresh for run in decode_batch(body)] + self.outbox.end(error)
        unsent = _unsent_messages(runs, self._asks)
        self._asks.abandon(error)
        return unsent

    def finish(self) -> None:
        """Send the open batch, then BYE. Messages not acknowledged yet, in either direction, are
        lost, and own tells count as `unconfirmed`: await `drained` first."""
        self.outbox.flush()
        self.link.number_all()
        self.inbox.discard()
        window = self.link.window
        if window.open:
            self._transmit(FrameType.BYE, window.last, window.received, b"")
        error = NodeLost(f"the link to {self.name} is closed")
        for message in self.close(error):
            if message.waiting is None:
                name = message.key[0]
                self.unconfirmed[name] = self.unconfirmed.get(name, 0) + 1
            else:
                refuse(message.waiting, error)

    def check(self) -> None:
        """Compare the session with its table."""
        state, window = self.link.state, self.link.window
        assert window.open is (state is LinkState.OPEN)
        assert (self.lost is None) is (self.outbox.lost is None)
        if self.outbox.held is not None:
            self.outbox.held.check()
        if state is LinkState.ENDED:
            assert self.lost is not None
            assert [self.link.bodies, self.inbox.holding, self.outbox.held] == [[], False, None]


def without_expired(body: bytes, asks: Asks) -> bytes:
    """Return a batch without the asks that have had their outcome."""
    waiting = list[Run]()
    for run in decode_batch(body):
        if isinstance(run, AskRun) and not keep_waiting(run, asks):
            continue
        if isinstance(run, Relayed) and run.corr and run.corr not in asks.entries:
            continue
        waiting.append(run)
    return encode_batch(waiting)


def tells_by_mark(runs: Iterable[Run]) -> dict[tuple[str, int], int]:
    """Count tells by type and by the mark of the session that they came by; 0 for own tells."""
    counts: Counter[tuple[str, int]] = Counter()
    for run in runs:
        if isinstance(run, TellRun):
            counts[run.type, 0] += len(run.ids)
        elif isinstance(run, Relayed) and not run.corr:
            counts[run.type, run.via] += 1
    return counts


def _tells_by_type(runs: Iterable[Run]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for (entity_type, _), count in tells_by_mark(runs).items():
        counts[entity_type] += count
    return dict(counts)


def _unsent_messages(runs: list[Run], asks: Asks) -> list[Unsent]:
    """Return the messages of runs that were never sent, in order, each with its waiting caller.
    A message whose caller waits no more is left out."""
    unsent: list[Unsent] = []
    take = asks.take
    for run in runs:
        match run:
            case TellRun():
                key = (run.type, run.method)
                rows = zip(run.ids, run.payloads, strict=True)
                trace = run.trace
                unsent += [Unsent(key, "", i, p, 0, None, (), 0, trace) for i, p in rows]
            case AskRun():
                key = (run.type, run.method)
                calls = zip(run.ids, run.payloads, run.corrs, strict=True)
                open_asks = [(i, p, take(corr)) for i, p, corr in calls]
                unsent += [
                    Unsent(key, "", i, p, 0, w, run.chain, 0, run.trace)
                    for i, p, w in open_asks
                    if w is not None
                ]
            case Relayed():
                key = (run.type, run.method)
                waiting = take(run.corr)
                if waiting is not None or not run.corr:
                    shard, hops, via, trace = run.shard, run.hops, run.via, run.trace
                    chain = run.chain
                    unsent.append(
                        Unsent(key, shard, run.id, run.payload, hops, waiting, chain, via, trace)
                    )
            case _:
                pass  # replies and control messages are for this very process
    return unsent
