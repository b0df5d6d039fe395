"""Sessions: one conversation, whatever the connection does; the loopback by the same rules."""

from __future__ import annotations

import asyncio
import random

import pytest

from shardbus.errors import (
    AskTimeout,
    EntityFailed,
    MessageTooLarge,
    NodeLost,
    RemoteProtocolError,
    Unhandled,
)
from shardbus.transport.asks import Asks, CoarseClock, Unsent
from shardbus.transport.outbox import BATCH_WEIGHT_MAX, ENVELOPE_WEIGHT
from shardbus.transport.session import Session, without_expired
from shardbus.transport.window import WINDOW_BYTES
from shardbus.wire.batch import (
    PAYLOAD_BYTES_MAX,
    AskRun,
    Control,
    Fail,
    Flush,
    FrameType,
    Relayed,
    ReplyRun,
    TellRun,
    decode_batch,
    encode_batch,
)
from shardbus.wire.schema import decode_value
from tests.unit.transport.session_pair import Side, Taker, pair, quiet
from tests.waiting import turns, until

ADD, SUB = ("counter", "add"), ("counter", "sub")
GONE = NodeLost("gone")


def future() -> asyncio.Future[object]:
    return asyncio.get_running_loop().create_future()


def ask(
    session: Session, payload: bytes = b"\x01", timeout_ms: int = 1000
) -> asyncio.Future[object]:
    waits = future()
    session.outbox.ask(ADD, "x", payload, timeout_ms, waits, decode_value)
    return waits


def break_connection(a: Side, b: Side) -> None:
    """Frames under way are lost; both sides greet anew."""
    a.pipe.clear()
    b.pipe.clear()
    received = a.session.link.window.received, b.session.link.window.received
    a.session.opened(received[1])
    b.session.opened(received[0])


# One conversation


async def test_tells_arrive_and_asks_are_answered() -> None:
    a, b = pair()
    a.session.outbox.tell(ADD, "x", b"p")
    first, two = ask(a.session, b"\x01"), ask(a.session, b"\x02")
    await quiet(a, b)
    assert b.taker.got == [("tell", "x", b"p"), ("ask", "x", b"\x01"), ("ask", "x", b"\x02")]
    assert (first.result(), two.result()) == (1, 2)


async def test_an_answer_leaves_with_the_batch_that_asked_and_carries_its_acknowledgement() -> None:
    """It waits for no turn of the loop, and all of them are one frame."""
    a, b = pair()
    a.session.outbox.tell(ADD, "t", b"p")
    answers = [ask(a.session, b"\x01"), ask(a.session, b"\x02")]
    a.session.outbox.flush()
    a.carry()
    [(kind, _, ack, _)] = b.frames
    assert (kind, ack) == (FrameType.DATA, 1)
    b.carry()
    assert [answer.result() for answer in answers] == [1, 2]
    assert a.session.link.outstanding == 0
    await turns()
    assert len(b.frames) == 1


async def test_answers_to_a_batch_take_along_the_open_batch() -> None:
    a, b = pair()
    b.session.outbox.tell(ADD, "earlier", b"p")
    ask(a.session)
    a.carry()
    [runs] = b.batches
    assert [type(run) for run in runs] == [TellRun, ReplyRun]
    await quiet(a, b)
    assert len(b.batches) == 1
    b.session.outbox.tell(ADD, "later", b"p")
    await quiet(a, b)
    assert [row[1] for row in a.taker.got] == ["earlier", "later"]


async def test_nothing_is_sent_before_the_handshake() -> None:
    a, b = pair(is_open=False)
    opening = a.session.link.opening()
    a.session.outbox.tell(ADD, "x", b"p")
    await quiet(a, b)
    assert (a.frames, opening.done(), a.session.link.open) == ([], False, False)
    a.session.opened(0)
    await quiet(a, b)
    assert opening.done()
    assert a.session.link.open
    assert [row[1] for row in b.taker.got] == ["x"]


@pytest.mark.parametrize("seed", range(5))
async def test_broken_connections_lose_and_repeat_nothing(seed: int) -> None:
    dice = random.Random(seed)
    a, b = pair()
    answers = []
    for i in range(300):
        a.session.outbox.tell(ADD, f"t{i}", b"")
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
    assert (a.session.waiting_asks, a.session.link.outstanding) == (0, 0)


async def test_a_lost_tail_is_found_by_being_alive() -> None:
    a, b = pair()
    a.session.outbox.tell(ADD, "x", b"p")
    await turns(1)
    a.pipe.clear()
    a.session.keep_alive()
    await quiet(a, b)
    assert [row[1] for row in b.taker.got] == ["x"]


async def test_an_acknowledgement_goes_by_itself_after_a_while() -> None:
    a, b = pair()
    a.session.outbox.tell(ADD, "x", b"p")
    await turns(1)
    a.carry()
    assert b.frames == []
    await until(lambda: b.frames, "an acknowledgement")
    b.carry()
    assert a.session.link.outstanding == 0
    assert [frame[0] for frame in b.frames] == [FrameType.ACK]


async def test_an_acknowledgement_that_finds_no_room_is_said_again() -> None:
    """Nothing else comes that would bring it to mind."""
    a, b = pair()
    tries = 0
    transmit = b.session.link.window._transmit

    def rarely(kind: int, seq: int, ack: int, body: bytes) -> bool:
        nonlocal tries
        tries += 1
        b.has_room = tries > 3
        return transmit(kind, seq, ack, body)

    b.session.link.window._transmit = rarely
    a.session.outbox.tell(ADD, "x", b"p")
    await turns(1)
    a.carry()
    await until(lambda: b.carry() or not a.session.link.outstanding, "an acknowledgement")
    assert a.session.link.outstanding == 0


async def test_drained_is_done_when_all_so_far_is_acknowledged() -> None:
    a, b = pair()
    assert a.session.drained().done()
    a.session.outbox.tell(ADD, "x", b"p")
    first = a.session.drained()
    a.session.outbox.tell(ADD, "y", b"p")
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
    assert a.session.outbox.room().done()
    while a.session.outbox.writable:
        a.session.outbox.tell(ADD, "x", bytes(256 * 1024))
    assert a.session.link.outstanding > WINDOW_BYTES
    room = a.session.outbox.room()
    await turns()
    assert not room.done()
    await quiet(a, b)
    b.session.keep_alive()
    await quiet(a, b)
    assert room.done()
    assert a.session.outbox.writable


async def test_a_socket_without_room_is_tried_again() -> None:
    a, b = pair()
    a.has_room = False
    a.session.outbox.tell(ADD, "x", b"p")
    await turns()
    a.has_room = True
    await until(lambda: a.carry() or b.taker.got, "the batch")
    assert [row[1] for row in b.taker.got] == ["x"]


async def test_a_socket_that_has_no_room_for_long_is_tried_until_it_has() -> None:
    """Nothing else is sent meanwhile that would bring it to mind."""
    a, b = pair()
    tries = 0
    transmit = a.session.link.window._transmit

    def rarely(kind: int, seq: int, ack: int, body: bytes) -> bool:
        nonlocal tries
        tries += 1
        a.has_room = tries > 3
        return transmit(kind, seq, ack, body)

    a.session.link.window._transmit = rarely
    a.session.outbox.tell(ADD, "x", b"p")
    await until(lambda: a.carry() or b.taker.got, "the batch")
    assert [row[1] for row in b.taker.got] == ["x"]


async def test_unsent_batches_leave_when_the_session_is_resumed() -> None:
    a, b = pair()
    a.has_room = False
    a.session.outbox.tell(ADD, "x", b"p")
    await turns()
    a.session.link.suspend()
    a.has_room = True
    a.session.opened(0)
    a.carry()
    assert [row[1] for row in b.taker.got] == ["x"]


# Arriving messages


async def test_a_body_that_does_not_fit_blocks_nothing() -> None:
    _, b = pair()
    with pytest.raises(RemoteProtocolError):
        b.session.on_frame(FrameType.DATA, 1, 0, b"\xc1")
    b.session.on_frame(
        FrameType.DATA, 2, 0, encode_batch([TellRun("counter", "add", ["x"], [b""])])
    )
    assert [row[1] for row in b.taker.got] == ["x"]


async def test_a_receiver_that_raises_fails_its_own_run_only() -> None:
    _, b = pair()

    def refuse(session: Session, run: object) -> None:
        raise ValueError("no")

    b.taker.on_control = refuse  # type: ignore[method-assign]
    runs = [Control("T", "t", b""), TellRun("counter", "add", ["x"], [b""])]
    b.session.on_frame(FrameType.DATA, 1, 0, encode_batch(runs))
    assert [row[1] for row in b.taker.got] == ["x"]


async def test_an_answer_to_an_unknown_ask_is_ignored() -> None:
    a, _ = pair()
    a.session.on_frame(
        FrameType.DATA, 1, 0, encode_batch([ReplyRun([9], [b""]), Fail(8, "Unhandled", "", "")])
    )
    assert a.session.link.window.received == 1


async def test_asks_that_are_over_are_not_sent_again_after_a_break() -> None:
    a, b = pair()
    a.session.outbox.tell(ADD, "1", b"p")
    over, kept = ask(a.session, b"\x01", timeout_ms=50), ask(a.session, b"\x02")
    waiter = over
    a.session.outbox.relay(ADD, "17", "4", b"p", 1, 50, Gone())
    a.session.outbox.tell(ADD, "5", b"p")
    await turns()
    a.session.link.suspend()
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
    assert a.session.link.outstanding == 0


def test_a_run_whose_asks_are_all_over_is_left_out() -> None:
    body = encode_batch([AskRun("t", "m", 50, ["a"], [b""], [1], ())])
    assert decode_batch(without_expired(body, Asks(CoarseClock()))) == []


class Gone:
    def resolve(self, payload: bytes) -> None: ...
    def fail(self, error: Exception) -> None: ...


# The end


async def test_messages_that_were_never_sent_come_back_in_order() -> None:
    a, _ = pair(is_open=False)
    s = a.session
    s.outbox.tell(ADD, "1", b"a")
    waits = ask(s, b"b")
    s.outbox.relay(ADD, "17", "3", b"c", 2, 500, None)
    s.outbox.control(Control("T", "counter", b""))
    s.outbox.reply(7, b"")
    s.outbox.flush()
    s.outbox.tell(ADD, "4", b"d")
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


async def test_unsent_asks_are_returned_with_their_chain() -> None:
    a, _ = pair(is_open=False)
    chain, waits = (("t", "a", 1),), future()
    a.session.outbox.ask(ADD, "x", b"p", 1000, waits, decode_value, chain)
    a.session.outbox.relay(ADD, "17", "y", b"p", 2, 500, None, chain)
    a.session.outbox.tell(ADD, "z", b"p")
    assert [u.chain for u in a.session.close(GONE)] == [chain, chain, ()]


async def test_sent_tells_are_lost_with_the_session_and_counted() -> None:
    a, _ = pair()
    waits = ask(a.session)
    a.session.outbox.tell(ADD, "x", b"")
    a.session.outbox.relay(ADD, "1", "x", b"", 1, 0, None)
    a.session.outbox.flush()
    drained, room = a.session.drained(), a.session.outbox.room()
    assert a.session.close(GONE) == []
    assert waits.exception() is GONE
    assert a.session.unconfirmed == {"counter": 2}
    assert drained.done()
    assert room.done()
    assert a.session.link.opening().done()
    assert not a.session.link.open


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


async def test_a_session_ends_with_bye_after_its_open_batch() -> None:
    a, b = pair()
    a.session.outbox.tell(ADD, "x", b"p")
    a.session.finish()
    assert [frame[0] for frame in a.frames] == [FrameType.DATA, FrameType.BYE]
    a.session.finish()
    assert len(a.frames) == 2
    assert b.session.lost is None


async def test_an_ask_that_never_left_fails_when_the_session_is_finished() -> None:
    a, _ = pair(is_open=False)
    waits = ask(a.session)
    a.session.outbox.tell(ADD, "x", b"p")
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
                session.outbox.tell(ADD, entity_id + "'", bytes(100_000))
        self.depth -= 1


def loopback(taker: Taker) -> Session:
    return Session("self", asyncio.get_running_loop(), CoarseClock(), taker, None)


async def test_the_loopback_never_delivers_inside_a_senders_call() -> None:
    taker = Echo()
    session = loopback(taker)
    for _ in range(100):
        session.outbox.tell(ADD, "x", bytes(100_000))
        assert taker.got == []
    assert not session.outbox.writable
    room = session.outbox.room()
    await turns()
    assert room.done()
    assert session.outbox.writable
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

    session.outbox.flush_shard("counter", "17", 0, 500, Waiter())
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
    session.outbox.fail(1, Unhandled("no"))
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
    b.session.on_frame(FrameType.DATA, 1, 0, encode_batch(runs))
    assert [row[:2] for row in b.taker.got] == [
        ("tell", "1"),
        ("relayed", "2"),
        ("control", "T"),
        ("flush", "4"),
    ]


# The open batch: runs of neighbours, batches by weight, messages over the limit


async def test_a_batch_leaves_at_the_end_of_the_turn_that_began_it() -> None:
    side = Side("a")
    side.session.outbox.tell(ADD, "x", b"1")
    side.session.outbox.tell(ADD, "y", b"2")
    assert (side.frames, side.session.outbox.unflushed) == ([], True)
    await asyncio.sleep(0)
    assert side.batches == [[TellRun("counter", "add", ["x", "y"], [b"1", b"2"])]]
    assert not side.session.outbox.unflushed


async def test_an_ask_that_finds_nothing_under_way_leaves_at_once_and_the_next_wait() -> None:
    a, b = pair()
    for entity_id in ("1", "2", "3"):
        a.session.outbox.ask(ADD, entity_id, b"\x01", 5000, future(), decode_value)
    assert [[run.ids for run in batch if isinstance(run, AskRun)] for batch in a.batches] == [
        [["1"]]
    ]
    await asyncio.sleep(0)
    assert [[run.ids for run in batch if isinstance(run, AskRun)] for batch in a.batches] == [
        [["1"]],
        [["2", "3"]],
    ]
    await quiet(a, b)
    assert a.session.link.outstanding == 0  # their answers have acknowledged them
    a.session.outbox.ask(ADD, "4", b"\x01", 5000, future(), decode_value, (("t", "e", 1),))
    assert len(a.batches) == 3
    assert not a.session.outbox.unflushed


async def test_an_ask_behind_a_tell_of_the_same_turn_leaves_with_it() -> None:
    side = Side("a")
    side.session.outbox.tell(ADD, "1", b"")
    side.session.outbox.ask(ADD, "2", b"", 5000, future(), decode_value)
    assert side.frames == []
    await asyncio.sleep(0)
    assert [len(batch) for batch in side.batches] == [2]


async def test_an_ask_before_the_handshake_waits_for_it() -> None:
    side = Side("a", is_open=False)
    side.session.outbox.ask(ADD, "1", b"", 5000, future(), decode_value)
    await asyncio.sleep(0)
    assert side.frames == []
    side.session.opened(0)
    assert len(side.batches) == 1


async def test_neighbours_of_one_kind_are_one_run_and_order_is_kept() -> None:
    side = Side("a")
    s = side.session
    s.outbox.tell(ADD, "1", b"")
    s.outbox.tell(ADD, "2", b"")
    s.outbox.tell(SUB, "3", b"")
    s.outbox.ask(ADD, "4", b"", 100, future(), decode_value)
    s.outbox.ask(ADD, "5", b"", 100, future(), decode_value)
    s.outbox.ask(ADD, "6", b"", 200, future(), decode_value)
    s.outbox.tell(ADD, "7", b"")
    s.outbox.control(Control("T", "counter", b""))
    s.outbox.tell(ADD, "8", b"")
    s.outbox.flush()
    assert side.batches == [
        [
            TellRun("counter", "add", ["1", "2"], [b"", b""]),
            TellRun("counter", "sub", ["3"], [b""]),
            AskRun("counter", "add", 100, ["4", "5"], [b"", b""], [1, 2]),
            AskRun("counter", "add", 200, ["6"], [b""], [3]),
            TellRun("counter", "add", ["7"], [b""]),
            Control("T", "counter", b""),
            TellRun("counter", "add", ["8"], [b""]),
        ]
    ]


async def test_asks_of_one_chain_are_one_run_and_no_other_asks_are_in_it() -> None:
    side = Side("a")
    s, mine, other = side.session, (("t", "a", 1),), (("t", "b", 2),)
    s.outbox.tell(SUB, "0", b"")  # an ask before all others would leave at once
    s.outbox.ask(ADD, "1", b"", 100, future(), decode_value)
    s.outbox.ask(ADD, "2", b"", 100, future(), decode_value, mine)
    s.outbox.ask(ADD, "3", b"", 100, future(), decode_value, mine)
    s.outbox.ask(SUB, "4", b"", 100, future(), decode_value, mine)
    s.outbox.ask(SUB, "5", b"", 200, future(), decode_value, mine)
    s.outbox.ask(SUB, "6", b"", 200, future(), decode_value, other)
    s.outbox.ask(SUB, "7", b"", 200, future(), decode_value)
    s.outbox.ask(SUB, "8", b"", 200, future(), decode_value, other)
    s.outbox.tell(SUB, "9", b"")
    s.outbox.ask(SUB, "10", b"", 200, future(), decode_value, other)
    s.outbox.flush()
    s.outbox.ask(SUB, "11", b"", 200, future(), decode_value, other)
    s.outbox.flush()
    [runs, [last]] = side.batches
    ask_runs = [run for run in runs if isinstance(run, AskRun)]
    assert [(run.method, run.timeout_ms, run.ids, run.chain) for run in ask_runs] == [
        ("add", 100, ["1"], ()),
        ("add", 100, ["2", "3"], mine),
        ("sub", 100, ["4"], mine),
        ("sub", 200, ["5"], mine),
        ("sub", 200, ["6"], other),
        ("sub", 200, ["7"], ()),
        ("sub", 200, ["8"], other),
        ("sub", 200, ["10"], other),
    ]
    assert [corr for run in ask_runs for corr in run.corrs] == [*range(1, 10)]
    assert last == AskRun("counter", "sub", 200, ["11"], [b""], [10], other)


async def test_the_next_batch_begins_anew() -> None:
    side = Side("a")
    for _ in range(2):
        side.session.outbox.tell(ADD, "x", b"1")
        side.session.outbox.reply(7, b"")
        side.session.outbox.flush()
    runs = [TellRun("counter", "add", ["x"], [b"1"]), ReplyRun([7], [b""])]
    assert side.batches == [runs, runs]


async def test_replies_and_failures_reach_the_caller() -> None:
    side = Side("a")
    s = side.session
    s.outbox.reply(1, b"a")
    s.outbox.fail(2, EntityFailed("ValueError", "bad"))
    s.outbox.fail(3, Unhandled("no such handler"))
    s.outbox.fail(4, KeyError("k"))
    s.outbox.reply(5, b"b")
    s.outbox.flush()
    [runs] = side.batches
    answers = [run for run in runs if isinstance(run, ReplyRun)]
    assert [c for run in answers for c in run.corrs] == [1, 5]
    assert [run for run in runs if isinstance(run, Fail)] == [
        Fail(2, "EntityFailed", "bad", "ValueError"),
        Fail(3, "Unhandled", "no such handler", ""),
        Fail(4, "KeyError", "'k'", ""),
    ]


async def test_a_batch_is_full_by_weight() -> None:
    side = Side("a")
    payload = bytes(1000)
    fits = BATCH_WEIGHT_MAX // (1000 + ENVELOPE_WEIGHT)
    for i in range(fits + 1):
        assert not side.frames
        side.session.outbox.tell(ADD, str(i), payload)
    assert len(side.frames) == 1
    side.session.outbox.tell(ADD, "next", payload)
    side.session.outbox.flush()
    runs = [run for [run] in side.batches if isinstance(run, TellRun)]
    assert [len(run.ids) for run in runs] == [fits + 1, 1]


async def test_small_messages_fill_a_batch_by_their_envelopes() -> None:
    side = Side("a")
    for _ in range(2000):
        side.session.outbox.tell(ADD, "x", b"")
    await asyncio.sleep(0)
    assert [len(run.ids) for [run] in side.batches if isinstance(run, TellRun)] == [683, 683, 634]


async def test_many_asks_and_answers_travel_in_several_batches() -> None:
    """So that the other side has work while this one makes more."""
    side = Side("a")
    for _ in range(257):
        side.session.outbox.ask(ADD, "x", bytes(64), 5000, future(), decode_value)
    side.session.outbox.flush()
    assert [len(run.ids) for [run] in side.batches if isinstance(run, AskRun)] == [1, 121, 121, 14]
    assert all(isinstance(run, AskRun) for [run] in side.batches)
    for corr in range(256):
        side.session.outbox.reply(corr, bytes(64))
    side.session.outbox.flush()
    assert [len(run.corrs) for [run] in side.batches if isinstance(run, ReplyRun)] == [121, 121, 14]


@pytest.mark.parametrize("by_ask", [False, True])
async def test_a_message_that_is_too_large_leaves_the_rest(by_ask: bool) -> None:
    a, b = pair()
    waits = future()

    def send(entity_id: str, payload: bytes) -> None:
        if by_ask:
            a.session.outbox.ask(ADD, entity_id, payload, 1000, waits, decode_value)
        else:
            a.session.outbox.tell(ADD, entity_id, payload)

    a.session.outbox.tell(SUB, "before", b"\xc0")
    with pytest.raises(MessageTooLarge, match=f"at most {PAYLOAD_BYTES_MAX}"):
        send("big", bytes(PAYLOAD_BYTES_MAX + 1))
    send("after", b"\xc0")
    await quiet(a, b)
    assert [row[1] for row in b.taker.got] == ["before", "after"]
    assert a.session.waiting_asks == 0


async def test_a_lone_ask_that_is_too_large_leaves_those_behind_it() -> None:
    a, b = pair()
    with pytest.raises(MessageTooLarge):
        a.session.outbox.ask(ADD, "big", bytes(PAYLOAD_BYTES_MAX + 1), 1000, future(), decode_value)
    assert a.session.waiting_asks == 0
    answer = future()
    a.session.outbox.tell(ADD, "told", b"\xc0")
    a.session.outbox.ask(ADD, "asked", b"\x07", 1000, answer, decode_value)
    await quiet(a, b)
    assert [row[1] for row in b.taker.got] == ["told", "asked"]
    assert answer.result() == 7


async def test_the_largest_message_passes() -> None:
    a, b = pair()
    a.session.outbox.tell(ADD, "big", bytes(PAYLOAD_BYTES_MAX))
    await quiet(a, b)
    assert [(kind, i) for kind, i, _ in b.taker.got] == [("tell", "big")]


async def test_an_answer_that_is_too_large_is_an_error_and_leaves_the_rest() -> None:
    a, b = pair()
    b.taker.answers = False
    big, small = future(), future()
    a.session.outbox.ask(ADD, "x", b"", 1000, big, decode_value)
    a.session.outbox.ask(ADD, "x", b"", 1000, small, decode_value)
    await quiet(a, b)
    b.session.outbox.reply(1, bytes(PAYLOAD_BYTES_MAX + 1))
    b.session.outbox.reply(2, b"\x05")
    await quiet(a, b)
    assert isinstance(big.exception(), EntityFailed)
    assert "bytes" in str(big.exception())
    assert small.result() == 5


async def test_an_endless_text_of_an_error_is_cut() -> None:
    a, b = pair()
    b.taker.answers = False
    waits = future()
    a.session.outbox.ask(ADD, "x", b"", 1000, waits, decode_value)
    await quiet(a, b)
    b.session.outbox.fail(1, EntityFailed("ValueError", "x" * 2 * PAYLOAD_BYTES_MAX))
    await quiet(a, b)
    error = waits.exception()
    assert isinstance(error, EntityFailed)
    assert len(error.message) < 100_000


async def test_relays_and_flushes_register_their_waiters() -> None:
    a, b = pair()
    waits: list[object] = []

    class Waiter:
        def resolve(self, payload: bytes) -> None:
            waits.append(payload)

        def fail(self, error: Exception) -> None:
            waits.append(error)

    a.session.outbox.relay(ADD, "17", "x", b"p", 2, 500, None)
    a.session.outbox.relay(ADD, "17", "y", b"p", 2, 500, Waiter(), (("t", "a", 1),))
    a.session.outbox.flush_shard("counter", "17", 0, 500, Waiter())
    await quiet(a, b)
    assert b.taker.got == [("relayed", "x", b"p"), ("relayed", "y", b"p"), ("flush", "17")]
    [[first, second, _]] = a.batches
    assert isinstance(first, Relayed)
    assert isinstance(second, Relayed)
    assert (first.corr, second.corr, second.hops, second.timeout_ms) == (0, 1, 2, 500)
    assert (first.chain, second.chain) == ((), (("t", "a", 1),))
    assert waits == [b""]


# Each cause by which a session is under way


async def test_a_session_is_busy_while_an_ask_a_batch_or_a_held_message_waits() -> None:
    a, b = pair()
    assert not a.session.busy
    b.taker.answers = False
    waits = ask(a.session)
    await quiet(a, b)
    b.session.keep_alive()
    await quiet(a, b)
    assert (a.session.link.outstanding, a.session.outbox.unflushed) == (0, False)
    assert a.session.busy
    b.session.outbox.reply(1, b"\x01")
    await quiet(a, b)
    assert waits.done()
    assert not a.session.busy
    a.session.outbox.tell(ADD, "x", b"")
    assert a.session.busy
    a.session.outbox.flush()
    assert (a.session.outbox.unflushed, a.session.busy) == (False, True)
    await quiet(a, b)
    b.session.keep_alive()
    await quiet(a, b)
    assert not a.session.busy


async def test_a_message_over_the_limit_is_refused_behind_an_answer_too() -> None:
    """The run of tells is open still, but it is not the last of the batch."""
    side = Side("a")
    side.session.outbox.tell(ADD, "x", b"1")
    side.session.outbox.reply(7, b"2")
    with pytest.raises(MessageTooLarge):
        side.session.outbox.tell(ADD, "y", bytes(PAYLOAD_BYTES_MAX + 1))
    await turns()
    assert side.batches == [[TellRun("counter", "add", ["x"], [b"1"]), ReplyRun([7], [b"2"])]]


async def test_asks_in_a_chain_get_their_whole_time_whenever_they_are_made() -> None:
    """A handler may compute for long between two asks, which share a run."""
    side, chain = Side("a", is_open=False), (("page", "a", 1),)
    first, second = future(), future()
    side.session.outbox.ask(ADD, "x", b"", 500, first, decode_value, chain)
    side.clock.tick += 8
    side.session.outbox.ask(ADD, "y", b"", 500, second, decode_value, chain)
    side.clock.tick += 8
    side.session.expire()
    assert (first.done(), second.done()) == (True, False)
