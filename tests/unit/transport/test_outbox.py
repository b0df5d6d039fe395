"""The open batch: runs of neighbours, batches by weight, and what is too large leaves the rest."""

from __future__ import annotations

import asyncio

import pytest

from shardbus.errors import EntityFailed, MessageTooLarge, Unhandled
from shardbus.transport.session import BATCH_WEIGHT_MAX, ENVELOPE_WEIGHT
from shardbus.wire.batch import (
    PAYLOAD_BYTES_MAX,
    AskRun,
    Control,
    Fail,
    Relayed,
    ReplyRun,
    TellRun,
)
from shardbus.wire.schema import decode_value
from tests.unit.transport.session_pair import Side, pair, quiet

ADD, SUB = ("counter", "add"), ("counter", "sub")


def future() -> asyncio.Future[object]:
    return asyncio.get_running_loop().create_future()


async def test_a_batch_leaves_at_the_end_of_the_turn_that_began_it() -> None:
    side = Side("a")
    side.session.tell(ADD, "x", b"1")
    side.session.tell(ADD, "y", b"2")
    assert (side.frames, side.session.unflushed) == ([], True)
    await asyncio.sleep(0)
    assert side.batches == [[TellRun("counter", "add", ["x", "y"], [b"1", b"2"])]]
    assert not side.session.unflushed


async def test_an_ask_that_finds_nothing_under_way_leaves_at_once_and_the_next_wait() -> None:
    a, b = pair()
    for entity_id in ("1", "2", "3"):
        a.session.ask(ADD, entity_id, b"\x01", 5000, future(), decode_value)
    assert [[run.ids for run in batch if isinstance(run, AskRun)] for batch in a.batches] == [
        [["1"]]
    ]
    await asyncio.sleep(0)
    assert [[run.ids for run in batch if isinstance(run, AskRun)] for batch in a.batches] == [
        [["1"]],
        [["2", "3"]],
    ]
    await quiet(a, b)
    assert a.session.outstanding == 0  # their answers have acknowledged them
    a.session.ask_in_chain(ADD, "4", b"\x01", 5000, future(), decode_value, (("t", "e", 1),))
    assert len(a.batches) == 3
    assert not a.session.unflushed


async def test_an_ask_behind_a_tell_of_the_same_turn_leaves_with_it() -> None:
    side = Side("a")
    side.session.tell(ADD, "1", b"")
    side.session.ask(ADD, "2", b"", 5000, future(), decode_value)
    assert side.frames == []
    await asyncio.sleep(0)
    assert [len(batch) for batch in side.batches] == [2]


async def test_an_ask_before_the_handshake_waits_for_it() -> None:
    side = Side("a", is_open=False)
    side.session.ask(ADD, "1", b"", 5000, future(), decode_value)
    await asyncio.sleep(0)
    assert side.frames == []
    side.session.opened(0)
    assert len(side.batches) == 1


async def test_neighbours_of_one_kind_are_one_run_and_order_is_kept() -> None:
    side = Side("a")
    s = side.session
    s.tell(ADD, "1", b"")
    s.tell(ADD, "2", b"")
    s.tell(SUB, "3", b"")
    s.ask(ADD, "4", b"", 100, future(), decode_value)
    s.ask(ADD, "5", b"", 100, future(), decode_value)
    s.ask(ADD, "6", b"", 200, future(), decode_value)
    s.tell(ADD, "7", b"")
    s.control(Control("T", "counter", b""))
    s.tell(ADD, "8", b"")
    s.flush()
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
    s.tell(SUB, "0", b"")  # an ask before all others would leave at once
    s.ask(ADD, "1", b"", 100, future(), decode_value)
    s.ask_in_chain(ADD, "2", b"", 100, future(), decode_value, mine)
    s.ask_in_chain(ADD, "3", b"", 100, future(), decode_value, mine)
    s.ask_in_chain(SUB, "4", b"", 100, future(), decode_value, mine)
    s.ask_in_chain(SUB, "5", b"", 200, future(), decode_value, mine)
    s.ask_in_chain(SUB, "6", b"", 200, future(), decode_value, other)
    s.ask(SUB, "7", b"", 200, future(), decode_value)
    s.ask_in_chain(SUB, "8", b"", 200, future(), decode_value, other)
    s.tell(SUB, "9", b"")
    s.ask_in_chain(SUB, "10", b"", 200, future(), decode_value, other)
    s.flush()
    s.ask_in_chain(SUB, "11", b"", 200, future(), decode_value, other)
    s.flush()
    [runs, [last]] = side.batches
    asked = [run for run in runs if isinstance(run, AskRun)]
    assert [(run.method, run.timeout_ms, run.ids, run.chain) for run in asked] == [
        ("add", 100, ["1"], ()),
        ("add", 100, ["2", "3"], mine),
        ("sub", 100, ["4"], mine),
        ("sub", 200, ["5"], mine),
        ("sub", 200, ["6"], other),
        ("sub", 200, ["7"], ()),
        ("sub", 200, ["8"], other),
        ("sub", 200, ["10"], other),
    ]
    assert [corr for run in asked for corr in run.corrs] == [*range(1, 10)]
    assert last == AskRun("counter", "sub", 200, ["11"], [b""], [10], other)


async def test_the_next_batch_begins_anew() -> None:
    side = Side("a")
    for _ in range(2):
        side.session.tell(ADD, "x", b"1")
        side.session.reply(7, b"")
        side.session.flush()
    one = [TellRun("counter", "add", ["x"], [b"1"]), ReplyRun([7], [b""])]
    assert side.batches == [one, one]


async def test_replies_and_failures_say_what_happened() -> None:
    side = Side("a")
    s = side.session
    s.reply(1, b"a")
    s.fail(2, EntityFailed("ValueError", "bad"))
    s.fail(3, Unhandled("no such handler"))
    s.fail(4, KeyError("k"))
    s.reply(5, b"b")
    s.flush()
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
        side.session.tell(ADD, str(i), payload)
    assert len(side.frames) == 1
    side.session.tell(ADD, "next", payload)
    side.session.flush()
    runs = [run for [run] in side.batches if isinstance(run, TellRun)]
    assert [len(run.ids) for run in runs] == [fits + 1, 1]


async def test_small_messages_fill_a_batch_by_their_envelopes() -> None:
    side = Side("a")
    for _ in range(2000):
        side.session.tell(ADD, "x", b"")
    await asyncio.sleep(0)
    assert [len(run.ids) for [run] in side.batches if isinstance(run, TellRun)] == [683, 683, 634]


async def test_many_asks_and_answers_travel_in_several_batches() -> None:
    """So that the other side has work while this one makes more."""
    side = Side("a")
    for _ in range(257):
        side.session.ask(ADD, "x", bytes(64), 5000, future(), decode_value)
    side.session.flush()
    assert [len(run.ids) for [run] in side.batches if isinstance(run, AskRun)] == [1, 121, 121, 14]
    assert all(isinstance(run, AskRun) for [run] in side.batches)
    for corr in range(256):
        side.session.reply(corr, bytes(64))
    side.session.flush()
    assert [len(run.corrs) for [run] in side.batches if isinstance(run, ReplyRun)] == [121, 121, 14]


@pytest.mark.parametrize("asked", [False, True])
async def test_a_message_that_is_too_large_leaves_the_rest(asked: bool) -> None:
    a, b = pair()
    waits = future()

    def send(entity_id: str, payload: bytes) -> None:
        if asked:
            a.session.ask(ADD, entity_id, payload, 1000, waits, decode_value)
        else:
            a.session.tell(ADD, entity_id, payload)

    a.session.tell(SUB, "before", b"\xc0")
    with pytest.raises(MessageTooLarge, match=f"at most {PAYLOAD_BYTES_MAX}"):
        send("big", bytes(PAYLOAD_BYTES_MAX + 1))
    send("after", b"\xc0")
    await quiet(a, b)
    assert [row[1] for row in b.taker.got] == ["before", "after"]
    assert a.session.waiting_asks == 0


async def test_a_lone_ask_that_is_too_large_leaves_those_behind_it() -> None:
    a, b = pair()
    with pytest.raises(MessageTooLarge):
        a.session.ask(ADD, "big", bytes(PAYLOAD_BYTES_MAX + 1), 1000, future(), decode_value)
    assert a.session.waiting_asks == 0
    answer = future()
    a.session.tell(ADD, "told", b"\xc0")
    a.session.ask(ADD, "asked", b"\x07", 1000, answer, decode_value)
    await quiet(a, b)
    assert [row[1] for row in b.taker.got] == ["told", "asked"]
    assert answer.result() == 7


async def test_the_largest_message_passes() -> None:
    a, b = pair()
    a.session.tell(ADD, "big", bytes(PAYLOAD_BYTES_MAX))
    await quiet(a, b)
    assert [(kind, i) for kind, i, _ in b.taker.got] == [("tell", "big")]


async def test_an_answer_that_is_too_large_is_an_error_and_leaves_the_rest() -> None:
    a, b = pair()
    b.taker.answers = False
    big, small = future(), future()
    a.session.ask(ADD, "x", b"", 1000, big, decode_value)
    a.session.ask(ADD, "x", b"", 1000, small, decode_value)
    await quiet(a, b)
    b.session.reply(1, bytes(PAYLOAD_BYTES_MAX + 1))
    b.session.reply(2, b"\x05")
    await quiet(a, b)
    assert isinstance(big.exception(), EntityFailed)
    assert "bytes" in str(big.exception())
    assert small.result() == 5


async def test_an_endless_text_of_an_error_is_cut() -> None:
    a, b = pair()
    b.taker.answers = False
    waits = future()
    a.session.ask(ADD, "x", b"", 1000, waits, decode_value)
    await quiet(a, b)
    b.session.fail(1, EntityFailed("ValueError", "x" * 2 * PAYLOAD_BYTES_MAX))
    await quiet(a, b)
    error = waits.exception()
    assert isinstance(error, EntityFailed)
    assert len(error.message) < 100_000


async def test_relays_and_flushes_carry_who_waits() -> None:
    a, b = pair()
    waits: list[object] = []

    class Waiter:
        def resolve(self, payload: bytes) -> None:
            waits.append(payload)

        def fail(self, error: Exception) -> None:
            waits.append(error)

    a.session.relay(ADD, "17", "x", b"p", 2, 500, None)
    a.session.relay(ADD, "17", "y", b"p", 2, 500, Waiter(), (("t", "a", 1),))
    a.session.flush_shard("counter", "17", 0, 500, Waiter())
    await quiet(a, b)
    assert b.taker.got == [("relayed", "x", b"p"), ("relayed", "y", b"p"), ("flush", "17")]
    [[first, second, _]] = a.batches
    assert isinstance(first, Relayed)
    assert isinstance(second, Relayed)
    assert (first.corr, second.corr, second.hops, second.timeout_ms) == (0, 1, 2, 500)
    assert (first.chain, second.chain) == ((), (("t", "a", 1),))
    assert waits == [b""]
