"""The bound on a link's buffer for senders that do not wait; who waits does not meet it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from shardbus.errors import BufferFull
from shardbus.routing.pending_message import PendingMessage
from shardbus.transport.asks import CoarseClock, Key
from shardbus.transport.outbox import BATCH_WEIGHT_MAX, ENVELOPE_WEIGHT
from shardbus.transport.send_buffer import SendBufferLimit
from shardbus.transport.session import Session
from shardbus.transport.window import WINDOW_BYTES
from shardbus.wire.batch import Control
from shardbus.wire.schema import decode_value
from tests.unit.transport.session_pair import Side, Taker, pair, quiet
from tests.waiting import turns

ADD, SUB = ("counter", "add"), ("counter", "sub")
CHAIN = (("page", "a", 1),)
LIMIT = 2 * WINDOW_BYTES
KIB = bytes(1024)
MOST = LIMIT + BATCH_WEIGHT_MAX + ENVELOPE_WEIGHT + len(KIB)
"""The bound, and one batch."""


def future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


def takes(session: Session, number: int, size: int, keys: Sequence[Key] = (ADD,)) -> bool:
    """Tell without waiting; whether that was not refused. It must be in the end."""
    assert number * size < 10 * LIMIT, "nothing was refused"
    try:
        session.outbox.tell(keys[number % len(keys)], str(number), bytes(size))
    except BufferFull:
        return False
    return True


def fill(session: Session, size: int = 1024, keys: Sequence[Key] = (ADD,)) -> int:
    """Tell without waiting until that is refused; how many were taken."""
    return next(number for number in count() if not takes(session, number, size, keys))


def held(session: Session) -> int:
    return session.link.outstanding + session.outbox._weight


async def test_a_sender_that_does_not_wait_is_refused_over_the_limit() -> None:
    send_buffer_limit = SendBufferLimit(LIMIT)
    a, b = pair(is_open=False, send_buffer_limit=send_buffer_limit)
    taken = fill(a.session)
    assert LIMIT < held(a.session) <= MOST
    with pytest.raises(BufferFull, match="await your tells") as refusal:
        a.session.outbox.tell(SUB, "x", b"")
    assert refusal.value.definite
    assert send_buffer_limit.refused == {"counter": 2}
    a.session.opened(0)
    b.session.opened(0)
    await quiet(a, b)
    assert [row[1] for row in b.taker.got] == [str(n) for n in range(taken)]


async def test_lone_messages_in_turns_of_their_own_meet_the_same_bound() -> None:
    side, size = Side("a", is_open=False, send_buffer_limit=SendBufferLimit(LIMIT)), 16 * 1024
    for number in count():
        if not takes(side.session, number, size):
            break
        await asyncio.sleep(0)
    assert LIMIT < held(side.session) <= LIMIT + size + ENVELOPE_WEIGHT


async def test_messages_of_many_kinds_meet_the_same_bound() -> None:
    """Each opens a run of its own."""
    side = Side("a", is_open=False, send_buffer_limit=SendBufferLimit(LIMIT))
    fill(side.session, keys=(ADD, SUB))
    assert LIMIT < held(side.session) <= MOST


async def test_large_batches_that_wait_for_their_parts_count() -> None:
    side, size = Side("a", is_open=False, send_buffer_limit=SendBufferLimit(LIMIT)), 1024 * 1024
    assert fill(side.session, size) == LIMIT // size
    assert LIMIT < held(side.session) <= LIMIT + size + ENVELOPE_WEIGHT


async def test_with_room_again_it_goes_on() -> None:
    a, b = pair(send_buffer_limit=SendBufferLimit(LIMIT))
    a.has_room = False
    taken = fill(a.session)
    a.has_room = True
    for _ in range(10):
        a.session.link._unblock()
        await quiet(a, b)
        b.session.keep_alive()
    await quiet(a, b)
    assert (held(a.session), a.session.outbox.writable) == (0, True)
    a.session.outbox.tell(ADD, "last", b"")
    await quiet(a, b)
    assert len(b.taker.got) == taken + 1


async def test_tasks_that_each_await_one_tell_do_not_meet_the_bound() -> None:
    """Thousands of them, while nothing leaves: each has one message here."""
    send_buffer_limit = SendBufferLimit(LIMIT)
    a, b = pair(is_open=False, send_buffer_limit=send_buffer_limit)
    done: list[int] = []

    async def sender(number: int) -> None:
        for _ in range(2):
            a.session.outbox.tell(ADD, str(number), KIB)
            if not a.session.outbox.writable:
                await a.session.outbox.until_room
        done.append(number)

    tasks = (LIMIT - WINDOW_BYTES) // len(KIB) - BATCH_WEIGHT_MAX // len(KIB)
    senders = [asyncio.ensure_future(sender(number)) for number in range(tasks)]
    await turns()
    assert len(done) < tasks
    a.session.opened(0)
    b.session.opened(0)
    while len(done) < tasks:
        await quiet(a, b)
        b.session.keep_alive()
    assert send_buffer_limit.refused == {}
    await asyncio.gather(*senders)
    await quiet(a, b)
    assert len(b.taker.got) == 2 * tasks


async def test_a_sender_that_does_not_await_room_costs_nothing() -> None:
    side = Side("a", is_open=False, send_buffer_limit=SendBufferLimit(LIMIT))
    fill(side.session)
    assert side.session.outbox._room_waiters == []
    waits = asyncio.ensure_future(side.session.outbox.until_room)
    await turns()
    assert (waits.done(), len(side.session.outbox._room_waiters)) == (False, 1)
    waits.cancel()
    other = asyncio.ensure_future(side.session.outbox.until_room)
    await turns()
    assert not other.done()


async def test_an_ask_fails_with_the_same_error_and_its_asker_knows_at_once() -> None:
    side = Side("a", is_open=False, send_buffer_limit=SendBufferLimit(LIMIT))
    fill(side.session)
    plain, chained = future(), future()
    side.session.outbox.ask(ADD, "x", b"", 1000, plain, decode_value)
    side.session.outbox.ask(ADD, "x", b"", 1000, chained, decode_value, CHAIN)
    for answer in (plain, chained):
        assert isinstance(answer.exception(), BufferFull)
    assert side.session.waiting_asks == 0


async def test_accepted_messages_are_not_refused() -> None:
    a, b = pair(is_open=False, send_buffer_limit=SendBufferLimit(LIMIT))
    taken, clock = fill(a.session), CoarseClock()
    a.session.outbox.reply(7, KIB)
    a.session.outbox.fail(8, BufferFull("x"))
    a.session.outbox.control(Control("T", "counter", b""))
    PendingMessage(ADD, "17", "relayed", b"p", 1).send(a.session.outbox, clock)
    PendingMessage(ADD, "17", "homeless", b"p").send(a.session.outbox, clock)
    a.session.opened(0)
    b.session.opened(0)
    await quiet(a, b)
    assert [row[1] for row in b.taker.got[taken:]] == ["T", "relayed", "homeless"]


async def test_a_process_that_tells_itself_meets_the_bound_within_one_turn() -> None:
    taker, send_buffer_limit = Taker(), SendBufferLimit(LIMIT)
    session = Session(
        "self", asyncio.get_running_loop(), CoarseClock(), taker, None, send_buffer_limit
    )
    taken = fill(session)
    assert LIMIT < held(session) <= MOST
    PendingMessage(ADD, "17", "homeless", b"p").send(session.outbox, CoarseClock())
    assert send_buffer_limit.refused == {"counter": 1}
    await turns()
    assert len(taker.got) == taken + 1
    session.outbox.tell(ADD, "next", b"")
    await turns()
    assert len(taker.got) == taken + 2
