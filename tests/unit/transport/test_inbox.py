"""A receiver without room: arriving messages are held and not acknowledged, except those that never
wait."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from shardbus.errors import NodeLost, RemoteProtocolError
from shardbus.transport.asks import CoarseClock
from shardbus.transport.inbox import HELD_BYTES_MAX, cut
from shardbus.transport.session import Session
from shardbus.transport.window import WINDOW_BATCHES, WINDOW_BYTES
from shardbus.wire.batch import MESSAGES_MAX, AskRun, Control, FrameType, Run, TellRun, encode_batch
from shardbus.wire.schema import decode_value
from tests.unit.transport.session_pair import Side, Taker, pair, quiet
from tests.waiting import turns

ADD = ("counter", "add")


def ids(side: Side) -> list[object]:
    return [row[1] for row in side.taker.got]


async def test_batches_received_without_room_are_held_and_not_acknowledged() -> None:
    a, b = pair()
    a.session.outbox.tell(ADD, "1", b"p")
    await quiet(a, b)
    b.session.pause()
    for name in "23":
        a.session.outbox.tell(ADD, name, b"p")
        await quiet(a, b)
    b.session.keep_alive()
    await quiet(a, b)
    assert ids(b) == ["1"]
    assert (a.session.link.window.acked, b.session.link.window.received) == (1, 1)
    assert a.session.link.held_reports == 1
    b.session.resume()
    await quiet(a, b)
    b.session.keep_alive()
    await quiet(a, b)
    assert ids(b) == ["1", "2", "3"]
    assert a.session.link.outstanding == 0
    assert a.session.link.held_reports == 1


async def test_a_sender_feels_it_in_its_window_and_machines_still_get_through() -> None:
    a, b = pair()
    b.session.pause()
    while a.session.outbox.writable:
        a.session.outbox.tell(ADD, "x", bytes(64 * 1024))
        await quiet(a, b)
    room = a.session.outbox.room()
    a.session.outbox.control(Control("T", "counter", b"now"))
    await quiet(a, b)
    assert b.taker.got == [("control", "T", b"now")]
    assert not room.done()
    b.session.resume()
    for _ in range(2 * WINDOW_BATCHES):
        await quiet(a, b)
    assert room.done()
    assert ids(b)[1:] == ["x"] * (WINDOW_BYTES // (64 * 1024))


async def test_answers_and_failures_pass_and_everything_else_keeps_its_order() -> None:
    a, b = pair()
    b.session.pause()
    waits: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    b.session.outbox.ask(ADD, "y", b"\x01", 60_000, waits, decode_value)
    a.session.outbox.tell(ADD, "1", b"p")
    await quiet(a, b)
    assert waits.result() == 1  # it came behind a tell that waits
    a.session.outbox.relay(ADD, "17", "2", b"p", 1, 0, None)
    a.session.outbox.flush_shard("counter", "17", 0, 500, Waiter())
    a.session.outbox.control(Control("T", "counter", b""))
    a.session.outbox.tell(ADD, "3", b"p")
    await quiet(a, b)
    assert [row[0] for row in b.taker.got] == ["control"]
    b.session.resume()
    await quiet(a, b)
    assert [row[0] for row in b.taker.got[1:]] == ["tell", "relayed", "flush", "tell"]


class Waiter:
    def resolve(self, payload: bytes) -> None: ...
    def fail(self, error: Exception) -> None: ...


async def test_two_pauses_need_two_resumes() -> None:
    a, b = pair()
    b.session.pause()
    b.session.pause()
    a.session.outbox.tell(ADD, "1", b"p")
    await quiet(a, b)
    b.session.resume()
    await quiet(a, b)
    assert ids(b) == []
    b.session.resume()
    await quiet(a, b)
    assert ids(b) == ["1"]


async def test_a_receiver_that_is_full_again_gets_no_second_batch() -> None:
    a, b = pair()
    b.session.pause()
    for name in "123":
        a.session.outbox.tell(ADD, name, b"p")
        await quiet(a, b)
    took = b.taker.on_tells

    def full(session: Session, run: TellRun) -> None:
        took(session, run)
        session.pause()

    b.taker.on_tells = full  # type: ignore[method-assign]
    for count in (1, 2, 3):
        b.session.resume()
        await quiet(a, b)
        assert len(b.taker.got) == count


async def test_a_break_while_something_is_held_repeats_and_loses_nothing() -> None:
    a, b = pair()
    b.session.pause()
    for name in "123":
        a.session.outbox.tell(ADD, name, b"p")
        await quiet(a, b)
    for side in (a, b):
        side.session.link.suspend()
        side.pipe.clear()
    a.session.opened(b.session.link.window.received)
    b.session.opened(a.session.link.window.received)
    a.session.outbox.tell(ADD, "4", b"p")
    await quiet(a, b)
    assert b.session.link.window.duplicates == 3
    b.session.resume()
    await turns(10)
    assert ids(b) == ["1", "2", "3", "4"]


async def test_the_deadline_of_an_ask_goes_on_while_it_is_held() -> None:
    _, b = pair()
    left: list[int] = []
    b.taker.on_asks = lambda session, run: left.append(run.timeout_ms)  # type: ignore[method-assign]
    b.session.pause()
    for seq, timeout_ms in enumerate((1000, 200), 1):
        run = AskRun("counter", "add", timeout_ms, ["x"], [b""], [seq])
        b.session.on_frame(FrameType.DATA, seq, 0, encode_batch([run]))
    b.clock.tick += 500 // CoarseClock.TICK_MS
    b.session.resume()
    await turns(10)
    assert left == [500, 0]


async def test_a_lost_session_hands_out_held_batches_before_newer_ones() -> None:
    a, b = pair()
    forced: list[bool] = []
    took = b.taker.on_tells

    def note(session: Session, run: TellRun) -> None:
        forced.append(session.inbox.forced)
        took(session, run)

    b.taker.on_tells = note  # type: ignore[method-assign]
    b.session.pause()
    a.session.outbox.tell(ADD, "1", b"p")
    await quiet(a, b)
    b.session.close(NodeLost("gone"))
    assert ids(b) == ["1"]
    assert forced == [True]
    b.session.resume()
    await quiet(a, b)
    assert ids(b) == ["1"]


async def test_a_process_that_ends_hands_out_nothing_more() -> None:
    a, b = pair()
    b.session.pause()
    a.session.outbox.tell(ADD, "1", b"p")
    await quiet(a, b)
    b.session.finish()
    assert ids(b) == []


async def test_a_sender_that_ignores_the_window_is_not_held_without_end() -> None:
    _, b = pair()
    b.session.pause()
    size, seq = 1024 * 1024, 0
    while not b.taker.got:
        seq += 1
        run = TellRun("counter", "add", [str(seq)], [bytes(size)])
        b.session.on_frame(FrameType.DATA, seq, 0, encode_batch([run]))
    assert ids(b) == ["1"]
    assert seq == HELD_BYTES_MAX // size  # a batch is a little more than its payload


async def test_a_batch_that_cannot_be_read_is_not_held_for_ever() -> None:
    a, b = pair()
    b.session.pause()
    with pytest.raises(RemoteProtocolError):
        b.session.on_frame(FrameType.DATA, 1, 0, b"\xc1")
    b.session.on_frame(
        FrameType.DATA, 2, 0, encode_batch([TellRun("counter", "add", ["x"], [b""])])
    )
    b.session.resume()
    await quiet(a, b)
    assert ids(b) == ["x"]
    assert b.session.link.window.received == 2


async def test_the_loopback_holds_own_tells_and_not_relayed_messages() -> None:
    taker = Taker()
    session = Session("self", asyncio.get_running_loop(), CoarseClock(), taker, None)
    session.pause()
    assert not session.outbox.writable
    session.outbox.tell(ADD, "1", b"p")
    session.outbox.relay(ADD, "17", "2", b"p", 1, 0, None)
    room = session.outbox.room()
    await turns()
    assert [row[:2] for row in taker.got] == [("relayed", "2")]
    assert not room.done()
    session.resume()
    await turns(10)
    assert [row[:2] for row in taker.got] == [("relayed", "2"), ("tell", "1")]
    assert room.done()
    assert session.outbox.writable


# A connection that cannot go on


async def test_a_peer_that_lacks_what_it_acknowledged_ends_the_session() -> None:
    """Only a spoiled number can say so; sending again would go on for ever."""
    a, b = pair()
    for name in "12":
        a.session.outbox.tell(ADD, name, b"p")
        await quiet(a, b)
    b.session.keep_alive()
    await quiet(a, b)
    assert a.session.link.window.acked == 2
    a.session.on_frame(FrameType.NAK, 0, 1, b"")
    assert a.session.link.peer_lost_data


async def test_an_acknowledgement_of_an_unsent_batch_is_ignored() -> None:
    a, b = pair()
    a.session.outbox.tell(ADD, "1", b"p")
    await turns()
    a.session.on_frame(FrameType.ACK, 0, 77, b"")
    assert a.session.link.outstanding > 0
    await quiet(a, b)
    b.session.keep_alive()
    await quiet(a, b)
    assert a.session.link.outstanding == 0


async def test_a_large_batch_is_handed_out_in_slices_in_order() -> None:
    """Another task of the loop runs between any two slices."""
    slice_messages = 1024
    a, b = pair()
    await quiet(a, b)
    names = [str(n) for n in range(MESSAGES_MAX - 1)]
    asks = AskRun("counter", "add", 60_000, names[:4000], [b"p"] * 4000, list(range(1, 4001)))
    tells = TellRun("counter", "add", names[4000:], [b"p"] * len(names[4000:]))
    sizes, turn = [], 0
    b.session.on_frame(
        FrameType.DATA, 1, 0, encode_batch([asks, tells, Control("T", "counter", b"")])
    )
    a.session.outbox.tell(ADD, "last", b"p")
    while len(ids(b)) < len(names) + 2 and turn < 100:
        sizes.append(len(b.taker.got))
        turn += 1
        await asyncio.sleep(0)
        if turn == 3:
            b.session.on_frame(
                FrameType.DATA, 2, 0, encode_batch([TellRun("counter", "add", ["last"], [b"p"])])
            )
    got = [row[1] for row in b.taker.got if row[0] != "control"]
    assert got == [*names, "last"]
    steps = [after - before for before, after in pairwise([0, *sizes])]
    assert max(steps) <= slice_messages + 1
    assert len([step for step in steps if step]) >= MESSAGES_MAX // slice_messages


def test_a_cut_keeps_every_message_once_and_in_order() -> None:
    for most in (1, 2, 3, 5, 6, 9, 100):
        runs: list[Run] = [
            TellRun("t", "m", ["a", "b", "c"], [b"1", b"2", b"3"]),
            Control("T", "t", b""),
            AskRun("t", "m", 5, ["d", "e"], [b"4", b"5"], [7, 8], (("t", "x", 1),)),
        ]
        parts, seen = 0, []
        while runs:
            rest = cut(runs, most)
            for run in runs:
                if isinstance(run, TellRun | AskRun):
                    seen += [*zip(run.ids, run.payloads, strict=True)]
                if isinstance(run, AskRun):
                    assert (run.timeout_ms, run.chain) == (5, (("t", "x", 1),))
                    assert [*zip(run.ids, run.corrs, strict=True)] in (
                        [("d", 7), ("e", 8)], [("d", 7)], [("e", 8)]
                    )  # fmt: skip
            runs, parts = rest, parts + 1
        assert seen == [*zip("abcde", [b"1", b"2", b"3", b"4", b"5"], strict=True)]
        assert parts == -(-6 // most)
