"""Entities without room at the other end, over two real sessions: their messages wait in order,
others pass, nothing is lost, and every wait ends."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from random import Random
from typing import Any

import pytest

import shardbus.transport.link as link_module
import shardbus.transport.outbox as outbox_module
from shardbus.errors import AskTimeout, BufferFull, MessageTooLarge, NodeLost
from shardbus.transport import fragments, window
from shardbus.transport.asks import CoarseClock
from shardbus.transport.full_entities import RESTS_WEIGHT_MAX
from shardbus.transport.held_entities import HELD_MAX, PORTION_WEIGHT, HeldEntities
from shardbus.transport.permissions import CLIENT
from shardbus.transport.send_buffer import SendBufferLimit
from shardbus.transport.session import Session
from shardbus.wire.batch import (
    ENTITY_HOLDS,
    PAYLOAD_BYTES_MAX,
    AskRun,
    Control,
    Flush,
    FrameType,
    TellRun,
    encode_batch,
)
from shardbus.wire.schema import decode_value
from tests.unit.transport.session_pair import Side, Taker, pair, quiet
from tests.waiting import turns

ADD, SUB = ("line", "add"), ("line", "sub")
A, B = ("line", "a"), ("line", "b")
LIMIT = 16 * 1024 * 1024


def linked(limit: SendBufferLimit | None = None) -> tuple[Side, Side]:
    a, b = pair(send_buffer_limit=limit)
    for side in (a, b):
        side.session.features = frozenset({ENTITY_HOLDS})
    return a, b


def got(side: Side, entity_id: str) -> list[bytes]:
    return [row[2] for row in side.taker.got if row[1] == entity_id]  # type: ignore[misc]


async def full(a: Side, b: Side, *targets: tuple[str, str]) -> None:
    for target in targets or (A,):
        b.session.hold(target)
    await quiet(a, b)


async def test_a_tell_to_a_full_entity_waits_and_others_go_on() -> None:
    a, b = linked()
    await full(a, b)
    a.session.outbox.tell(ADD, "a", b"1")
    assert not a.session.outbox.writable
    room = asyncio.ensure_future(wait(a.session.outbox.until_room))
    a.session.outbox.tell(ADD, "b", b"2")
    assert a.session.outbox.writable
    await quiet(a, b)
    assert (got(b, "a"), got(b, "b")) == ([], [b"2"])
    assert not room.done()
    assert not a.session.outbox.has_room_for(A)
    assert a.session.outbox.has_room_for(B)
    b.session.release(A)
    await quiet(a, b)
    assert got(b, "a") == [b"1"]
    await room
    assert not a.session.outbox.held
    assert a.session.outbox.has_room_for(A)


async def wait(awaitable: Any) -> None:
    await awaitable


async def test_messages_that_were_on_their_way_are_acknowledged_and_wait_in_order() -> None:
    a, b = linked()
    for number in range(3):
        a.session.outbox.tell(ADD, "a", bytes([number]))
        a.session.outbox.tell(ADD, "b", bytes([number]))
        a.session.outbox.flush()
    b.session.hold(A)
    await quiet(a, b)
    b.session.keep_alive()
    await quiet(a, b)
    assert got(b, "b") == [b"\0", b"\1", b"\2"]
    assert got(b, "a") == []
    assert a.session.link.outstanding == 0
    a.session.outbox.tell(ADD, "a", b"\3")
    b.session.release(A)
    await quiet(a, b)
    assert got(b, "a") == [b"\0", b"\1", b"\2", b"\3"]


async def test_asks_wait_with_the_tells_and_end_at_their_deadline() -> None:
    a, b = linked()
    await full(a, b)
    late, answered, other = (asyncio.get_running_loop().create_future() for _ in range(3))
    a.session.outbox.tell(ADD, "a", b"1")
    a.session.outbox.ask(ADD, "a", b"2", 100, late, decode_value)
    a.session.outbox.ask(ADD, "a", b"\3", 60_000, answered, decode_value)
    a.session.outbox.ask(ADD, "b", b"\4", 60_000, other, decode_value)
    await quiet(a, b)
    assert other.result() == 4
    a.clock.tick += 1000 // CoarseClock.TICK_MS
    a.session.expire()
    assert isinstance(late.exception(), AskTimeout)
    left: list[int] = []
    took = b.taker.on_asks

    def note(session: Session, run: AskRun) -> None:
        left.append(run.timeout_ms)
        took(session, run)

    b.taker.on_asks = note  # type: ignore[method-assign]
    b.session.release(A)
    await quiet(a, b)
    assert answered.result() == 3
    assert got(b, "a") == [b"1", b"\3"], "nobody waits for the second"
    assert left == [59_000]


async def test_every_way_of_sending_is_held() -> None:
    a, b = linked()
    await full(a, b)
    loop, chain = asyncio.get_running_loop(), (("page", "x", 1),)
    session, waiters = a.session, [a.session._loop.create_future() for _ in range(5)]
    session.outbox.tell(ADD, "a", b"0")
    session.outbox.tell(SUB, "a", b"1", True)
    session.outbox.ask(ADD, "a", b"2", 1000, waiters[0], decode_value)
    session.outbox.ask(ADD, "a", b"3", 1000, waiters[1], decode_value, chain)
    session.outbox.ask(ADD, "a", b"4", 1000, waiters[2], decode_value, (), loop.time())
    session.outbox.ask(ADD, "a", b"5", 1000, waiters[3], decode_value, chain, loop.time())
    session.outbox.traced(ADD, "a", b"6", 1000, waiters[4], decode_value, (), 0.0, "00-t")
    session.outbox.traced(ADD, "a", b"7", 0, None, None, (), 0.0, "00-t")
    assert not session.outbox.writable
    await quiet(a, b)
    assert b.taker.got == []
    b.session.release(A)
    await quiet(a, b)
    assert b"".join(got(b, "a")) == b"01234567"
    runs = [run for batch in a.batches for run in batch if isinstance(run, TellRun | AskRun)]
    assert [run.trace for run in runs][-2:] == ["00-t", "00-t"]
    assert sum(isinstance(run, AskRun) and run.chain == chain for run in runs) == 2


async def test_messages_past_a_hold_share_runs() -> None:
    a, b = linked()
    await full(a, b)
    before = len(a.batches)
    for number in range(50):
        a.session.outbox.tell(ADD, f"x-{number}", b"")
    for number in range(50):
        future = asyncio.get_running_loop().create_future()
        a.session.outbox.ask(ADD, f"x-{number}", b"\0", 1000, future, decode_value)
    await quiet(a, b)
    assert [len(run.ids) for batch in a.batches[before:] for run in batch] == [50, 50]  # type: ignore[union-attr]


async def test_what_leaves_goes_ahead_of_the_flush_and_the_rest_is_handed_out_before_it() -> None:
    a, b = linked()
    a.session.outbox.tell(ADD, "a", b"1")
    a.session.outbox.flush()
    await full(a, b, A, B)
    a.session.outbox.tell(ADD, "a", b"2")
    a.session.outbox.tell(ADD, "b", b"3")
    a.session.outbox.leave(lambda target: target == A)
    a.session.outbox.flush_shard("line", "7", 0, 500, Waiter())
    await quiet(a, b)
    assert [row[:1] for row in b.taker.got if row[0] == "flush"]
    assert [row[-1] for row in b.taker.got] == [b"1", b"2", "7"]
    b.session.release(A)
    b.session.release(B)
    await quiet(a, b)
    assert got(b, "b") == [b"3"]
    assert not a.session.outbox.held


async def test_an_acknowledgement_of_a_move_does_not_pass_a_rest_or_a_paused_session() -> None:
    a, b = linked()
    b.session.hold(A)
    a.session.outbox.tell(ADD, "a", b"1")
    a.session.outbox.control(Control("MoveAck", "line", b""))
    await quiet(a, b)
    assert [row[0] for row in b.taker.got] == ["tell", "control"]
    b.session.pause()
    a.session.outbox.tell(ADD, "b", b"2")
    a.session.outbox.control(Control("MoveAck", "line", b""))
    a.session.outbox.control(Control("T", "line", b""))
    await quiet(a, b)
    assert [row[1] for row in b.taker.got[2:]] == ["T"]
    b.session.resume()
    await quiet(a, b)
    assert [row[0] for row in b.taker.got[3:]] == ["tell", "control"]


class Waiter:
    def resolve(self, payload: bytes) -> None: ...
    def fail(self, error: Exception) -> None: ...


async def test_a_queue_leaves_in_portions_and_stops_when_the_entity_is_full_again() -> None:
    a, b = linked()
    await full(a, b)
    size = PORTION_WEIGHT // 4
    for number in range(20):
        a.session.outbox.tell(ADD, "a", bytes([number]) * size)
    took = b.taker.on_tells

    def fill(session: Session, run: TellRun) -> None:
        took(session, run)
        session.hold(A)

    b.taker.on_tells = fill  # type: ignore[method-assign]
    cycles = 0
    while len(got(b, "a")) < 20:
        cycles += 1
        b.session.release(A)
        await quiet(a, b)
        assert b.session.inbox._full.weight < 3 * PORTION_WEIGHT
        assert cycles < 100
    assert [payload[0] for payload in got(b, "a")] == list(range(20))
    assert cycles > 4


async def test_a_lost_session_returns_queued_messages_as_the_newest_and_wakes_senders() -> None:
    a, b = linked()
    await full(a, b)
    a.session.link.suspend()
    a.session.outbox.tell(ADD, "b", b"1")
    answer = asyncio.get_running_loop().create_future()
    a.session.outbox.tell(ADD, "a", b"2")
    a.session.outbox.ask(ADD, "a", b"3", 1000, answer, decode_value)
    room = asyncio.ensure_future(wait(a.session.outbox.until_room))
    drained = a.session.drained()
    await turns()
    unsent = a.session.close(NodeLost("gone"))
    assert [(message.entity_id, message.payload) for message in unsent] == [
        ("b", b"1"), ("a", b"2"), ("a", b"3")
    ]  # fmt: skip
    assert [message.waiting is not None for message in unsent] == [False, False, True]
    assert not answer.done()
    await asyncio.wait_for(asyncio.gather(room, drained), 10)


async def test_rests_of_a_session_that_ends_are_handed_out_as_owed() -> None:
    a, b = linked()
    b.session.hold(A)
    a.session.outbox.tell(ADD, "a", b"1")
    await quiet(a, b)
    seen: list[tuple[bool, bool]] = []
    b.taker.on_tells = lambda session, run: seen.append((session.inbox.forced, session.inbox.owed))  # type: ignore[method-assign]
    b.session.close(NodeLost("gone"))
    assert seen == [(True, True)]
    b.session.release(A)
    assert seen == [(True, True)]


async def test_flushing_waits_for_messages_of_held_entities() -> None:
    a, b = linked()
    await full(a, b)
    a.session.outbox.tell(ADD, "a", b"1")
    drained = a.session.drained()
    await quiet(a, b)
    assert a.session.outbox.unflushed
    assert not drained.done()
    b.session.release(A)
    for _ in range(5):
        await quiet(a, b)
        b.session.keep_alive()
    assert drained.done()
    assert not a.session.outbox.unflushed


async def test_who_does_not_await_is_refused_over_half_of_the_send_buffer() -> None:
    limit = SendBufferLimit(LIMIT)
    a, b = linked(limit)
    await full(a, b, A, B)
    size = 64 * 1024

    def flood() -> None:
        for _ in range(2 * LIMIT // size):
            a.session.outbox.tell(ADD, "a", bytes(size))

    with pytest.raises(BufferFull):
        flood()
    held = a.session.outbox.held
    assert held is not None
    assert LIMIT // 2 < held.weight <= LIMIT // 2 + 2 * size
    answer = asyncio.get_running_loop().create_future()
    a.session.outbox.ask(ADD, "a", b"", 1000, answer, decode_value)
    assert isinstance(answer.exception(), BufferFull)
    with pytest.raises(BufferFull):
        a.session.outbox.admit(ADD, "a")
    a.session.outbox.traced(
        ADD, "a", b"", 0, None, None, (), 0.0, "00-t"
    )  # as released from a buffer
    assert limit.refused == {"line": 3}
    a.session.outbox.tell(ADD, "b", bytes(size))
    a.session.outbox.tell(ADD, "c", bytes(size))
    a.session.outbox.tell(ADD, "a", bytes(size), True)
    with pytest.raises(MessageTooLarge):
        a.session.outbox.tell(ADD, "b", bytes(PAYLOAD_BYTES_MAX + 1))
    await quiet(a, b)
    assert len(got(b, "c")) == 1


async def test_rests_over_their_bound_pause_the_session_until_half_of_it_is_free() -> None:
    a, b = linked()
    b.session.hold(A)
    size, seq = 1024 * 1024, 0
    while not b.session.inbox.holding:
        seq += 1
        run = TellRun("line", "add", ["a"], [bytes([seq % 256]) * size])
        b.session.on_frame(FrameType.DATA, seq, 0, encode_batch([run]))
    assert seq == RESTS_WEIGHT_MAX // size
    b.session.on_frame(
        FrameType.DATA, seq + 1, 0, encode_batch([TellRun("line", "add", ["b"], [b""])])
    )
    assert got(b, "b") == []
    b.session.release(A)
    await turns(10)
    assert len(got(b, "a")) == seq
    assert got(b, "b") == [b""]
    assert not b.session.inbox.holding
    await quiet(a, b)


async def test_a_client_cannot_hold_what_a_node_sends() -> None:
    a, b = linked()
    a.session.permissions = CLIENT
    await full(a, b)
    assert not a.session.outbox.held


def test_a_receiver_cannot_hold_entities_without_end() -> None:
    held = HeldEntities()
    for number in range(HELD_MAX):
        assert held.hold(("line", str(number)))
    assert not held.hold(("line", "one more"))
    assert held.hold(("line", "7"))


async def test_a_process_holds_back_its_own_messages_to_itself() -> None:
    taker = Taker()
    session = Session("self", asyncio.get_running_loop(), CoarseClock(), taker, None)
    session.hold(A)
    session.outbox.tell(ADD, "a", b"1")
    session.outbox.tell(ADD, "b", b"2")
    await turns()
    session.outbox.tell(ADD, "a", b"3")
    assert not session.outbox.writable
    session.outbox.tell(ADD, "b", b"4")
    assert session.outbox.writable
    await turns()
    assert [row[2] for row in taker.got] == [b"2", b"4"]
    session.outbox.leave(lambda target: target == A)
    await turns()
    assert [row[2] for row in taker.got] == [b"2", b"4", b"1", b"3"]
    session.outbox.tell(ADD, "a", b"5")
    session.release(A)
    await turns(10)
    assert [row[2] for row in taker.got][4:] == [b"5"]
    assert not session.outbox.held


# A model: a receiver with bounded mailboxes, and whatever happens to the link


class Mailboxes(Taker):
    """Entities with room for a few messages, which hold their sender when they are full."""

    ROOM = 5

    def __init__(self) -> None:
        super().__init__()
        self.boxes: dict[str, deque[bytes]] = defaultdict(deque)
        self.handled: dict[str, list[bytes]] = defaultdict(list)
        self.longest = self.largest_run = self.early = 0
        self.holding: set[str] = set()
        self.expected: list[tuple[str, int]] = []
        """The messages that must have arrived when a Flush does: of an entity, how many
        messages."""

    def on_tells(self, session: Session, run: TellRun) -> None:
        self._take(session, run)

    def on_asks(self, session: Session, run: AskRun) -> None:
        self._take(session, run)
        for corr in run.corrs:
            session.outbox.reply(corr, b"\1")

    def _take(self, session: Session, run: TellRun | AskRun) -> None:
        self.largest_run = max(self.largest_run, len(run.ids))
        for entity_id, payload in zip(run.ids, run.payloads, strict=True):
            self.boxes[entity_id].append(payload)
            self.longest = max(self.longest, len(self.boxes[entity_id]))
        for entity_id in dict.fromkeys(run.ids):
            if len(self.boxes[entity_id]) > self.ROOM:
                self.holding.add(entity_id)
                session.hold(("line", entity_id))

    def on_flush(self, session: Session, flush: Flush) -> None:
        entity_id, sent = self.expected.pop(0)
        self.early += len(self.handled[entity_id]) + len(self.boxes[entity_id]) < sent
        session.outbox.reply(flush.corr, b"")

    def handle(self, session: Session, entity_id: str) -> None:
        box = self.boxes[entity_id]
        if box:
            self.handled[entity_id].append(box.popleft())
        if entity_id in self.holding and len(box) <= self.ROOM * 3 // 4:
            self.holding.discard(entity_id)
            session.release(("line", entity_id))


class Model:
    """Sends numbered messages to four entities, of which two are slow."""

    def __init__(self, seed: int, longest: int = 0) -> None:
        self.dice, self.longest = Random(seed), longest
        self.a, self.b = linked()
        self.taker = Mailboxes()
        self.b.session.inbox._receiver = self.taker  # type: ignore[assignment]
        self.sent: dict[str, list[bytes]] = defaultdict(list)
        self.waiters: list[asyncio.Future[Any]] = []

    def send(self) -> None:
        entity_id, number = self.dice.choice("abcd"), len(self.sent)
        payload = sum(map(len, self.sent.values())).to_bytes(4, "big")
        payload += bytes(self.dice.randrange(self.longest + 1))
        self.sent[entity_id].append(payload)
        key = self.dice.choice((ADD, SUB))
        match self.dice.randrange(4):
            case 0:
                waiter = asyncio.get_running_loop().create_future()
                self.waiters.append(waiter)
                self.a.session.outbox.ask(key, entity_id, payload, 10**6, waiter, decode_value)
            case 1:
                self.a.session.outbox.traced(
                    key, entity_id, payload, 0, None, None, (), 0.0, f"t{number}"
                )
            case 2:
                self.a.session.outbox.tell(key, entity_id, payload, True)
            case _:
                self.a.session.outbox.tell(key, entity_id, payload)

    async def step(self) -> None:
        a, b = self.a, self.b
        match self.dice.randrange(12):
            case 0:
                await quiet(a, b)
            case 1:
                a.carry()
            case 2:
                b.carry()
            case 3:  # the connection breaks, and both resend
                for side in (a, b):
                    side.session.link.suspend()
                    side.pipe.clear()
                a.session.opened(b.session.link.window.received)
                b.session.opened(a.session.link.window.received)
            case 7 if self.dice.random() < 0.2:  # frames on their way are sent again
                b.session.link.send_numbers(FrameType.NAK)
                b.carry()
            case 4 if self.dice.random() < 0.2:
                leaving = self.dice.choice("ab")
                a.session.outbox.leave(lambda target: target[1] == leaving)
                a.session.outbox.flush_shard("line", leaving, 0, 10**6, Waiter())
                self.taker.expected.append((leaving, len(self.sent[leaving])))
            case 5 | 6:
                self.taker.handle(b.session, self.dice.choice("ab"))
            case _:
                self.send()
        for entity_id in "cd":  # these are never behind
            self.taker.handle(b.session, entity_id)
        self.check()

    def check(self) -> None:
        if self.a.session.outbox.held is not None:
            self.a.session.outbox.held.check()
        self.b.session.inbox._full.check()
        for entity_id, handled in self.taker.handled.items():
            assert handled == self.sent[entity_id][: len(handled)]

    async def finish(self) -> None:
        a, b = self.a, self.b
        await quiet(a, b)
        for going_on in ("cd", "abcd"):  # the others do not wait for the slow ones
            for _ in range(10_000):
                if all(self.taker.handled[i] == self.sent[i] for i in going_on):
                    break
                for entity_id in going_on:
                    self.taker.handle(b.session, entity_id)
                b.session.keep_alive()
                await quiet(a, b)
            for entity_id in going_on:
                assert self.taker.handled[entity_id] == self.sent[entity_id]
        await quiet(a, b)
        assert not self.taker.expected
        assert not self.taker.early
        assert not a.session.outbox.held
        assert not b.session.inbox._full.entities
        assert all(waiter.done() for waiter in self.waiters)


@pytest.mark.parametrize("block", range(5))
@pytest.mark.parametrize("far_ahead", [False, True], ids=["near", "far ahead, in parts"])
async def test_whatever_happens_to_the_link_each_entity_gets_its_messages_once_in_order(
    block: int, far_ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if far_ahead:
        monkeypatch.setattr(window, "AHEAD_BYTES", 600)
        monkeypatch.setattr(outbox_module, "TAKE_BACK_MIN", -1)
        for module in (fragments, link_module):
            monkeypatch.setattr(module, "LARGE_WEIGHT", 900)
        monkeypatch.setattr(fragments, "PART_BYTES", 150)
    held = 0
    for seed in range(block * 12, block * 12 + 12):
        model = Model(seed, 600 if far_ahead else 0)
        for _ in range(400):
            await model.step()
            held += model.a.session.outbox.held is not None
        await model.finish()
    assert held > 500, "the model hardly ever holds an entity"


# A sender that is far ahead


async def test_what_has_not_left_is_taken_back_and_a_flush_stays_behind_it() -> None:
    a, b = linked()
    size = 64 * 1024
    for number in range(400):
        a.session.outbox.tell(ADD, "a", number.to_bytes(2, "big") + bytes(size))
        if number == 300:
            a.session.outbox.flush_shard("line", "7", 0, 10**6, Waiter())
        a.session.outbox.tell(ADD, f"other-{number}", b"")
    a.carry()  # as much as the window lets leave
    b.session.hold(A)
    b.session.outbox.flush()
    b.carry()
    assert a.session.outbox.held
    await quiet(a, b)
    names = [row[1] for row in b.taker.got]
    assert [f"other-{n}" for n in range(400)] == [
        name for name in names if name.startswith("other")
    ]
    assert a.session.outbox.held is not None
    behind = sum(len(run.ids) for run in a.session.outbox.held.runs)
    assert 90 <= behind <= 99, "what came after the Flush, without the rest of its batch"
    b.session.release(A)
    while a.session.outbox.held:
        await quiet(a, b)
        b.session.keep_alive()
    rows = [int.from_bytes(payload[:2], "big") for payload in got(b, "a")]
    assert rows == list(range(400))
    flushed = [row[0] for row in b.taker.got].index("flush")
    assert sum(row[1] == "a" for row in b.taker.got[:flushed]) >= 301


async def test_messages_in_parts_are_taken_back_too() -> None:
    a, b = linked()
    for number in range(30):
        a.session.outbox.tell(ADD, "a", bytes([number]) * 1024 * 1024)
        a.session.outbox.tell(ADD, "b", bytes([number]))
    a.carry()
    b.session.hold(A)
    b.session.outbox.flush()
    b.carry()
    await quiet(a, b)
    assert [payload[0] for payload in got(b, "b")] == list(range(30))
    assert b.session.inbox._full.weight < 4 * 1024 * 1024
    b.session.release(A)
    while a.session.outbox.held:
        await quiet(a, b)
        b.session.keep_alive()
    for _ in range(200):
        await quiet(a, b)
        b.session.keep_alive()
    assert [payload[0] for payload in got(b, "a")] == list(range(30))
