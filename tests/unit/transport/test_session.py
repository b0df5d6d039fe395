"""Sessions: one conversation, whatever the connection does; the loopback by the same rules."""

from __future__ import annotations

import asyncio
import random

import pytest

from shardbus.errors import AskTimeout, NodeLost, RemoteProtocolError, Unhandled
from shardbus.transport.asks import CoarseClock, Unsent
from shardbus.transport.loopback import Loopback
from shardbus.transport.session import Session
from shardbus.transport.window import WINDOW_BYTES
from shardbus.wire.batch import (
    Control,
    Fail,
    Flush,
    FrameType,
    Relayed,
    ReplyRun,
    TellRun,
    encode_batch,
)
from shardbus.wire.schema import decode_value
from tests.unit.transport.session_pair import Side, Taker, pair, quiet
from tests.waiting import turns, until

ADD = ("counter", "add")
GONE = NodeLost("gone")


def future() -> asyncio.Future[object]:
    return asyncio.get_running_loop().create_future()


def ask(
    session: Session, payload: bytes = b"\x01", timeout_ms: int = 1000
) -> asyncio.Future[object]:
    waits = future()
    session.ask(ADD, "x", payload, timeout_ms, waits, decode_value)
    return waits


def break_connection(a: Side, b: Side) -> None:
    """What was under way is lost; both sides greet anew."""
    a.pipe.clear()
    b.pipe.clear()
    received = a.session.received, b.session.received
    a.session.opened(received[1])
    b.session.opened(received[0])


# One conversation


async def test_tells_arrive_and_asks_are_answered() -> None:
    a, b = pair()
    a.session.tell(ADD, "x", b"p")
    one, two = ask(a.session, b"\x01"), ask(a.session, b"\x02")
    await quiet(a, b)
    assert b.taker.got == [("tell", "x", b"p"), ("ask", "x", b"\x01"), ("ask", "x", b"\x02")]
    assert (one.result(), two.result()) == (1, 2)


async def test_an_answer_leaves_with_the_batch_that_asked_and_carries_its_acknowledgement() -> None:
    """It waits for no turn of the loop, and all of them are one frame."""
    a, b = pair()
    a.session.tell(ADD, "t", b"p")
    answers = [ask(a.session, b"\x01"), ask(a.session, b"\x02")]
    a.session.flush()
    a.carry()
    [(kind, _, ack, _)] = b.frames
    assert (kind, ack) == (FrameType.DATA, 1)
    b.carry()
    assert [answer.result() for answer in answers] == [1, 2]
    assert a.session.outstanding == 0
    await turns()
    assert len(b.frames) == 1


async def test_what_a_batch_was_answered_takes_along_what_waited_for_the_end_of_the_turn() -> None:
    a, b = pair()
    b.session.tell(ADD, "earlier", b"p")
    ask(a.session)
    a.carry()
    [runs] = b.batches
    assert [type(run) for run in runs] == [TellRun, ReplyRun]
    await quiet(a, b)
    assert len(b.batches) == 1
    b.session.tell(ADD, "later", b"p")
    await quiet(a, b)
    assert [row[1] for row in a.taker.got] == ["earlier", "later"]


async def test_nothing_is_sent_before_the_handshake() -> None:
    a, b = pair(is_open=False)
    opening = a.session.opening()
    a.session.tell(ADD, "x", b"p")
    await quiet(a, b)
    assert (a.frames, opening.done(), a.session.open) == ([], False, False)
    a.session.opened(0)
    await quiet(a, b)
    assert opening.done()
    assert a.session.open
    assert [row[1] for row in b.taker.got] == ["x"]


@pytest.mark.parametrize("seed", range(5))
async def test_broken_connections_lose_and_repeat_nothing(seed: int) -> None:
    dice = random.Random(seed)
    a, b = pair()
    answers = []
    for i in range(300):
        a.session.tell(ADD, f"t{i}", b"")
        answers.append(ask(a.session, b"\xcd" + i.to_bytes(2, "big")))
        match dice.randrange(8):
            case 0:
                break_connection(a, b)
            case 1:
                await turns(1)
                a.carry()
            case 2:
                await turns(1)
                b.carry()
            case 3 if a.pipe:
                await turns(1)
                for _ in range(dice.randrange(len(a.pipe))):
                    a.pipe.pop()
            case 4:
                await quiet(a, b)
    break_connection(a, b)
    await quiet(a, b)
    a.session.keep_alive()
    b.session.keep_alive()
    await quiet(a, b)
    assert [row[1] for row in b.taker.got if row[0] == "tell"] == [f"t{i}" for i in range(300)]
    assert [answer.result() for answer in answers] == list(range(300))
    assert (a.session.waiting_asks, a.session.outstanding) == (0, 0)


async def test_a_lost_tail_is_found_by_being_alive() -> None:
    a, b = pair()
    a.session.tell(ADD, "x", b"p")
    await turns(1)
    a.pipe.clear()
    a.session.keep_alive()
    await quiet(a, b)
    assert [row[1] for row in b.taker.got] == ["x"]


async def test_an_acknowledgement_goes_by_itself_after_a_while() -> None:
    a, b = pair()
    a.session.tell(ADD, "x", b"p")
    await turns(1)
    a.carry()
    assert b.frames == []
    await until(lambda: b.frames, "an acknowledgement")
    b.carry()
    assert a.session.outstanding == 0
    assert [frame[0] for frame in b.frames] == [FrameType.ACK]


async def test_an_acknowledgement_that_finds_no_room_is_said_again() -> None:
    """Nothing else comes that would bring it to mind."""
    a, b = pair()
    tries = 0
    transmit = b.session._window._transmit

    def rarely(kind: int, seq: int, ack: int, body: bytes) -> bool:
        nonlocal tries
        tries += 1
        b.has_room = tries > 3
        return transmit(kind, seq, ack, body)

    b.session._window._transmit = rarely
    a.session.tell(ADD, "x", b"p")
    await turns(1)
    a.carry()
    await until(lambda: b.carry() or not a.session.outstanding, "an acknowledgement")
    assert a.session.outstanding == 0


async def test_drained_is_done_when_all_so_far_is_acknowledged() -> None:
    a, b = pair()
    assert a.session.drained().done()
    a.session.tell(ADD, "x", b"p")
    first = a.session.drained()
    a.session.tell(ADD, "y", b"p")
    second = a.session.drained()
    await turns()
    assert not first.done()
    a.carry()
    b.session.keep_alive()
    b.carry()
    await turns()
    assert first.done()
    assert second.done()


async def test_a_full_window_makes_senders_wait_for_room() -> None:
    a, b = pair()
    assert a.session.room().done()
    while a.session.writable:
        a.session.tell(ADD, "x", bytes(256 * 1024))
    assert a.session.outstanding > WINDOW_BYTES
    room = a.session.room()
    await turns()
    assert not room.done()
    await quiet(a, b)
    b.session.keep_alive()
    await quiet(a, b)
    assert room.done()
    assert a.session.writable


async def test_a_socket_without_room_is_tried_again() -> None:
    a, b = pair()
    a.has_room = False
    a.session.tell(ADD, "x", b"p")
    await turns()
    a.has_room = True
    await until(lambda: a.carry() or b.taker.got, "the batch")
    assert [row[1] for row in b.taker.got] == ["x"]


async def test_a_socket_that_has_no_room_for_long_is_tried_until_it_has() -> None:
    """Nothing else is sent meanwhile that would bring it to mind."""
    a, b = pair()
    tries = 0
    transmit = a.session._window._transmit

    def rarely(kind: int, seq: int, ack: int, body: bytes) -> bool:
        nonlocal tries
        tries += 1
        a.has_room = tries > 3
        return transmit(kind, seq, ack, body)

    a.session._window._transmit = rarely
    a.session.tell(ADD, "x", b"p")
    await until(lambda: a.carry() or b.taker.got, "the batch")
    assert [row[1] for row in b.taker.got] == ["x"]


async def test_what_had_no_way_is_sent_once_the_session_is_opened_again() -> None:
    a, b = pair()
    a.has_room = False
    a.session.tell(ADD, "x", b"p")
    await turns()
    a.session.suspend()
    a.has_room = True
    a.session.opened(0)
    a.carry()
    assert [row[1] for row in b.taker.got] == ["x"]


# What arrives


async def test_a_body_that_does_not_fit_blocks_nothing() -> None:
    _, b = pair()
    with pytest.raises(RemoteProtocolError):
        b.session.on_data(1, 0, b"\xc1")
    b.session.on_data(2, 0, encode_batch([TellRun("counter", "add", ["x"], [b""])]))
    assert [row[1] for row in b.taker.got] == ["x"]


async def test_a_receiver_that_raises_fails_its_own_run_only() -> None:
    _, b = pair()

    def refuse(session: Session, run: object) -> None:
        raise ValueError("no")

    b.taker.on_control = refuse  # type: ignore[method-assign]
    runs = [Control("T", "t", b""), TellRun("counter", "add", ["x"], [b""])]
    b.session.on_data(1, 0, encode_batch(runs))
    assert [row[1] for row in b.taker.got] == ["x"]


async def test_an_answer_to_an_ask_nobody_made_is_nothing() -> None:
    a, _ = pair()
    a.session.on_data(1, 0, encode_batch([ReplyRun([9], [b""]), Fail(8, "Unhandled", "", "")]))
    assert a.session.received == 1


async def test_asks_that_are_over_are_not_sent_again_after_a_break() -> None:
    a, b = pair()
    a.session.tell(ADD, "1", b"p")
    over, kept = ask(a.session, b"\x01", timeout_ms=50), ask(a.session, b"\x02")
    waiter = over
    a.session.relay(ADD, "17", "4", b"p", 1, 50, Gone())
    a.session.tell(ADD, "5", b"p")
    await turns()
    a.session.suspend()
    a.pipe.clear()
    a.clock.tick += 10
    assert a.session.expire() == 2
    a.session.opened(0)
    await quiet(a, b)
    assert [row[1:] for row in b.taker.got] == [("1", b"p"), ("x", b"\x02"), ("5", b"p")]
    assert isinstance(waiter.exception(), AskTimeout)
    assert kept.result() == 2
    b.session.keep_alive()
    await quiet(a, b)
    assert a.session.outstanding == 0


class Gone:
    def resolve(self, payload: bytes) -> None: ...
    def fail(self, error: Exception) -> None: ...


# The end


async def test_messages_that_were_never_sent_come_back_in_order() -> None:
    a, _ = pair(is_open=False)
    s = a.session
    s.tell(ADD, "1", b"a")
    waits = ask(s, b"b")
    s.relay(ADD, "17", "3", b"c", 2, 500, None)
    s.control(Control("T", "counter", b""))
    s.reply(7, b"")
    s.flush()
    s.tell(ADD, "4", b"d")
    unsent = s.close(GONE)
    assert [(u.key, u.shard, u.entity_id, u.payload, u.hops) for u in unsent] == [
        (ADD, "", "1", b"a", 0),
        (ADD, "", "x", b"b", 0),
        (ADD, "17", "3", b"c", 2),
        (ADD, "", "4", b"d", 0),
    ]
    assert unsent[1].waiting is not None
    assert unsent[1].waiting.waiter is waits
    assert not waits.done()
    assert s.close(GONE) == []


async def test_what_was_never_sent_comes_back_with_its_chain() -> None:
    a, _ = pair(is_open=False)
    chain, waits = (("t", "a", 1),), future()
    a.session.ask_in_chain(ADD, "x", b"p", 1000, waits, decode_value, chain)
    a.session.relay(ADD, "17", "y", b"p", 2, 500, None, chain)
    a.session.tell(ADD, "z", b"p")
    assert [u.chain for u in a.session.close(GONE)] == [chain, chain, ()]


async def test_what_was_sent_is_lost_with_the_session_and_counted() -> None:
    a, _ = pair()
    waits = ask(a.session)
    a.session.tell(ADD, "x", b"")
    a.session.relay(ADD, "1", "x", b"", 1, 0, None)
    a.session.flush()
    drained, room = a.session.drained(), a.session.room()
    assert a.session.close(GONE) == []
    assert waits.exception() is GONE
    assert a.session.unconfirmed == {"counter": 2}
    assert drained.done()
    assert room.done()
    assert a.session.opening().done()
    assert not a.session.open


async def test_an_ask_that_has_timed_out_is_not_sent_another_way() -> None:
    a, _ = pair(is_open=False)
    waits = ask(a.session, timeout_ms=50)
    a.clock.tick += 1000
    assert a.session.expire() == 1
    unsent: list[Unsent] = a.session.close(GONE)
    assert unsent == []
    assert waits.exception() is not GONE


async def test_asks_on_a_lost_session_fail_at_the_end_of_the_turn() -> None:
    a, _ = pair()
    a.session.close(GONE)
    waits = ask(a.session)
    await turns()
    assert waits.exception() is GONE
    assert a.frames == []


async def test_a_session_ends_with_a_goodbye_after_what_is_open() -> None:
    a, b = pair()
    a.session.tell(ADD, "x", b"p")
    a.session.finish()
    assert [frame[0] for frame in a.frames] == [FrameType.DATA, FrameType.BYE]
    a.session.finish()
    assert len(a.frames) == 2
    assert b.session.lost is None


async def test_an_ask_that_never_left_fails_when_the_session_is_finished() -> None:
    a, _ = pair(is_open=False)
    waits = ask(a.session)
    a.session.tell(ADD, "x", b"p")
    a.session.finish()
    assert isinstance(waits.exception(), NodeLost)
    assert a.session.unconfirmed == {"counter": 1}


# The loopback


class Echo(Taker):
    """Sends to itself while it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = self.deepest = 0

    def on_tells(self, session: Session, run: TellRun) -> None:
        self.depth += 1
        self.deepest = max(self.deepest, self.depth)
        super().on_tells(session, run)
        for entity_id in run.ids:
            if len(entity_id) < 4:
                session.tell(ADD, entity_id + "'", bytes(100_000))
        self.depth -= 1


def loopback(taker: Taker) -> Loopback:
    return Loopback("self", asyncio.get_running_loop(), CoarseClock(), taker)


async def test_the_loopback_never_delivers_inside_a_senders_call() -> None:
    taker = Echo()
    session = loopback(taker)
    for _ in range(100):
        session.tell(ADD, "x", bytes(100_000))
        assert taker.got == []
    assert not session.writable
    room = session.room()
    await turns()
    assert room.done()
    assert session.writable
    assert taker.deepest == 1
    assert [row[1] for row in taker.got] == ["x"] * 100 + ["x'"] * 100 + ["x''"] * 100 + [
        "x'''"
    ] * 100


async def test_the_loopback_answers_itself() -> None:
    session = loopback(Taker())
    waits, flushed = ask(session, b"\x07"), future()

    class Waiter:
        def resolve(self, payload: bytes) -> None:
            flushed.set_result(payload)

        def fail(self, error: Exception) -> None:
            flushed.set_exception(error)

    session.flush_shard("counter", "17", 0, 500, Waiter())
    await turns()
    assert waits.result() == 7
    assert flushed.result() == b""
    assert session.drained().done()


async def test_a_failure_crosses_the_loopback() -> None:
    taker = Taker()
    taker.answers = False
    session = loopback(taker)
    waits = ask(session)
    await turns()
    session.fail(1, Unhandled("no"))
    await turns()
    assert isinstance(waits.exception(), Unhandled)


async def test_every_kind_of_run_reaches_the_receiver_in_order() -> None:
    _, b = pair()
    runs = [
        TellRun("counter", "add", ["1"], [b""]),
        Relayed("counter", "17", "2", "add", b"", 0, 0, 1),
        Control("T", "counter", b"3"),
        Flush("counter", "4", 1, 100, 0),
    ]
    b.session.on_data(1, 0, encode_batch(runs))
    assert [row[:2] for row in b.taker.got] == [
        ("tell", "1"),
        ("relayed", "2"),
        ("control", "T"),
        ("flush", "4"),
    ]
