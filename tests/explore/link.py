"""A link of two real sessions over a connection that a world stops, breaks and opens again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from shardbus.errors import NodeLost
from shardbus.transport.asks import CoarseClock, Unsent
from shardbus.transport.session import Session, tells_by_mark
from shardbus.wire.batch import (
    SESSION_FEATURES,
    AskRun,
    Control,
    Flush,
    FrameType,
    Relayed,
    Run,
    TellRun,
    decode_batch,
)
from tests.explore.on_a_loop import LoopOfWorld

Frame = tuple[int, int, int, bytes]
GONE = NodeLost("the other process is gone")
STEP_S = 0.05


def messages_of(run: Run) -> Iterator[tuple[str, str, str]]:
    """Yield kind, entity id and name of each message of a run. A name is the payload's beginning up
    to a space."""
    match run:
        case TellRun() | AskRun():
            kind = "ask" if isinstance(run, AskRun) else "tell"
            for entity_id, payload in zip(run.ids, run.payloads, strict=True):
                yield kind, entity_id, name_of(payload)
        case Relayed():
            yield ("ask" if run.corr else "tell"), run.id, name_of(run.payload)
        case Flush():
            yield "flush", run.shard, ""
        case Control():
            yield "control", run.tag, name_of(run.body)
        case _:
            pass


def name_of(payload: bytes) -> str:
    """Return the name of a message, with which its payload begins."""
    return payload[:16].split(b" ")[0].decode()


class End:
    """One end of a link: the session, its input, and the frames on their way from it."""

    def __init__(self, world: LoopOfWorld, name: str, clock: CoarseClock) -> None:
        self.name, self.pipe, self.has_room = name, deque[Frame](), True
        self.got: list[tuple[str, str, str]] = []
        self.open_asks: deque[tuple[int, str]] = deque()
        """The asks that wait for an answer of this end."""
        self.left_ms: list[tuple[str, int]] = []
        """The time that each ask had when this end was given it."""
        self.full: set[tuple[str, str]] = set()
        """Entities for which this end has no room."""
        self.tells_in: dict[int, int] = {}
        """Own tells by the number of the batch that has them; of a large one, of its last part."""
        self._parts: list[bytes] = []
        self.session = Session(name, world.loop, clock, self, self._transmit)
        self.session.features = frozenset(SESSION_FEATURES)

    def _transmit(self, kind: int, seq: int, ack: int, body: bytes) -> bool:
        if not self.has_room:
            return False
        self.pipe.append((kind, seq, ack, body))
        if kind == FrameType.DATA:
            self.tells_in[seq] = sum(tells_by_mark(decode_batch(body)).values())
        elif kind in (FrameType.PART, FrameType.LAST_PART) and seq not in self.tells_in:
            self._parts.append(body)
            self.tells_in[seq] = 0
            if kind == FrameType.LAST_PART:
                runs = decode_batch(b"".join(self._parts))
                self.tells_in[seq] = sum(tells_by_mark(runs).values())
                self._parts.clear()
        return True

    # ---- as the receiver of its session

    def on_tells(self, session: Session, run: TellRun) -> None:
        self._take(run)

    def on_asks(self, session: Session, run: AskRun) -> None:
        self._take(run)
        names = [name for _, _, name in messages_of(run)]
        self.open_asks.extend(zip(run.corrs, names, strict=True))
        self.left_ms += [(name, run.timeout_ms) for name in names]

    def on_relayed(self, session: Session, message: Relayed) -> None:
        self._take(message)
        if message.corr:
            self.open_asks.append((message.corr, name_of(message.payload)))

    def on_control(self, session: Session, control: Control) -> None:
        self._take(control)

    def on_flush(self, session: Session, flush: Flush) -> None:
        self._take(flush)
        session.outbox.reply(flush.corr, b"")

    def _take(self, run: Run) -> None:
        self.got.extend(messages_of(run))


class Link:
    """Two ends. Frames of a link that `stands` arrive at once; frames of a broken one are lost."""

    def __init__(self, world: LoopOfWorld, a: str, b: str, clock: CoarseClock) -> None:
        self._world = world
        self.a, self.b = End(world, b, clock), End(world, a, clock)
        self.stands, self.stopped, self.over = True, False, False
        world.run(self._opened)

    def _opened(self) -> None:
        for end, peer in ((self.a, self.b), (self.b, self.a)):
            end.session.opened(peer.session.link.window.received)

    @property
    def state(self) -> tuple[bool, bool, bool]:
        return self.stands, self.stopped, self.over

    def break_(self) -> None:
        """Lose the frames on their way."""
        self.stands = False
        for end in (self.a, self.b):
            end.pipe.clear()
            end.session.link.suspend()

    def open(self) -> None:
        """Connect again: each end gets the other end's position."""
        self.stands = True
        self._world.run(self._opened)

    def carry(self) -> None:
        """Bring frames over until none moves."""
        while self.stands and not self.stopped and not self.over:
            if not (self.a.pipe or self.b.pipe):
                return
            self._world.run(self._carry_once)

    def _carry_once(self) -> None:
        for source, target in ((self.a, self.b), (self.b, self.a)):
            for _ in range(len(source.pipe)):
                kind, seq, ack, body = source.pipe.popleft()
                if kind != FrameType.BYE:
                    target.session.on_frame(kind, seq, ack, body)

    def close(self) -> list[Unsent]:
        """End both sessions: the process at the far end is gone."""
        self.over = True
        unsent = self._world.run(self.a.session.close, GONE)
        self._world.run(self.b.session.close, GONE)
        return unsent

    def answer(self) -> str:
        """Let the far end answer its oldest ask; return the ask's name."""
        corr, name = self.b.open_asks.popleft()
        self._world.run(self.b.session.outbox.reply, corr, b"\xa2ok")
        return name

    def keep_alive(self) -> None:
        """Do the periodic work of endpoints: expire asks, and repeat numbers."""
        for end in (self.a, self.b):
            end.session.expire()
            end.session.keep_alive()

    @property
    def under_way(self) -> tuple[int, int, int]:
        """Batches of a that have left, and that have not, up to two; its open asks."""
        session: Any = self.a.session
        left, acked = session.link.window.sent, session.link.window.acked
        return min(left - acked, 2), min(session.link.window.last - left, 2), session.waiting_asks

    def check_rest(self) -> None:
        """Check that nothing is under way any more."""
        for end in (self.a, self.b):
            session: Any = end.session
            assert not session.waiting_asks, f"{end.name}: {session.waiting_asks} asks wait"
            assert not session.outbox.unflushed, f"{end.name}: messages have no number"
            outstanding = session.link.outstanding
            assert outstanding == 0, f"{end.name}: {outstanding} bytes outstanding"
            assert session.outbox.writable, f"{end.name}: not writable"
            assert not session.outbox.held, f"{end.name}: entities are held"
            assert session.link.bodies == [], f"{end.name}: batches are kept"
            link = session.link
            waiters = link._open_waiters, session.outbox._room_waiters, link._drain_waiters
            assert not any(waiters), f"{end.name}: futures wait"
            session.check()
