"""Two sessions that are each other's peer, over a wire that tests can break; and a receiver that
writes down its messages."""

from __future__ import annotations

import asyncio
from collections import deque

from shardbus.transport.asks import CoarseClock
from shardbus.transport.permissions import CLIENT, NEWCOMER, Permissions
from shardbus.transport.send_buffer import SendBufferLimit
from shardbus.transport.session import Session
from shardbus.wire.batch import (
    AskRun,
    Control,
    Flush,
    FrameType,
    Hello,
    Relayed,
    Run,
    TellRun,
    decode_batch,
)


def anyone(hello: Hello, user_id: str | None) -> Permissions:
    """Believe every name, so that a test may choose uids."""
    return CLIENT if hello.node is None else NEWCOMER


class Taker:
    """A receiver: keeps messages in the order of their arrival, and may answer asks."""

    def __init__(self) -> None:
        self.got: list[tuple[object, ...]] = []
        self.answers = True

    def on_tells(self, session: Session, run: TellRun) -> None:
        self.got += [("tell", i, p) for i, p in zip(run.ids, run.payloads, strict=True)]

    def on_asks(self, session: Session, run: AskRun) -> None:
        for i, p, corr in zip(run.ids, run.payloads, run.corrs, strict=True):
            self.got.append(("ask", i, p))
            if self.answers:
                session.outbox.reply(corr, p)

    def on_relayed(self, session: Session, message: Relayed) -> None:
        self.got.append(("relayed", message.id, message.payload))

    def on_control(self, session: Session, control: Control) -> None:
        self.got.append(("control", control.tag, control.body))

    def on_flush(self, session: Session, flush: Flush) -> None:
        self.got.append(("flush", flush.shard))
        session.outbox.reply(flush.corr, b"")


class Side:
    """A session with its clock, its receiver and its pipe to the other side."""

    def __init__(
        self, name: str, *, is_open: bool = True, send_buffer_limit: SendBufferLimit | None = None
    ) -> None:
        self.clock, self.taker = CoarseClock(), Taker()
        self.frames: list[tuple[int, int, int, bytes]] = []
        self.pipe: deque[tuple[int, int, int, bytes]] = deque()
        self.has_room = True
        self.peer: Side | None = None
        loop = asyncio.get_running_loop()
        self.session = Session(
            name, loop, self.clock, self.taker, self._transmit, send_buffer_limit
        )
        if is_open:
            self.session.opened(0)

    def _transmit(self, kind: int, seq: int, ack: int, body: bytes) -> bool:
        if self.has_room:
            self.frames.append((kind, seq, ack, body))
            self.pipe.append((kind, seq, ack, body))
        return self.has_room

    @property
    def batches(self) -> list[list[Run]]:
        """The messages handed on, batch by batch."""
        return [decode_batch(body) for kind, _, _, body in self.frames if kind == FrameType.DATA]

    def carry(self) -> bool:
        """Bring sent frames to the peer; True if there were any."""
        assert self.peer is not None
        moved = bool(self.pipe)
        while self.pipe:
            kind, seq, ack, body = self.pipe.popleft()
            self.peer.session.on_frame(kind, seq, ack, body)
        return moved


def pair(
    *, is_open: bool = True, send_buffer_limit: SendBufferLimit | None = None
) -> tuple[Side, Side]:
    """Two sides of one session; `allowance` of the first."""
    a, b = (
        Side("a", is_open=is_open, send_buffer_limit=send_buffer_limit),
        Side("b", is_open=is_open),
    )
    a.peer, b.peer = b, a
    return a, b


async def quiet(*sides: Side) -> None:
    """Carry frames until nobody sends any."""
    still = 0
    while still < 3:
        await asyncio.sleep(0)
        still = 0 if sum(side.carry() for side in sides) else still + 1
