"""Large batches go in parts: small ones pass them, order per entity is kept, a break costs
nothing."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from shardbus.errors import NodeLost, RemoteProtocolError
from shardbus.transport.fragments import LARGE_WEIGHT, PART_BYTES, PARTS_AHEAD, FragmentAssembly
from shardbus.transport.window import WINDOW_BYTES
from shardbus.wire.batch import BODY_BYTES_MAX, Control, FrameType, TellRun, encode_batch
from shardbus.wire.schema import decode_value
from tests.unit.transport.session_pair import Side, pair, quiet
from tests.waiting import turns

ADD = ("counter", "add")
LARGE = bytes(3 * 1024 * 1024)
GONE = NodeLost("gone")


def ids(side: Side) -> list[object]:
    return [row[1] for row in side.taker.got]


def kinds(side: Side) -> list[int]:
    return [kind for kind, *_ in side.frames]


class Waiter:
    """Waits for the echo of a flush."""

    def __init__(self) -> None:
        self.done = False

    def resolve(self, payload: bytes) -> None:
        self.done = True

    def fail(self, error: Exception) -> None: ...


async def test_a_large_message_arrives_whole_and_never_blocks_the_line_with_all_of_it() -> None:
    a, b = pair()
    payload = random.Random(1).randbytes(len(LARGE))
    a.session.outbox.tell(ADD, "large", payload)
    await turns()
    assert kinds(a) == [FrameType.PART] * PARTS_AHEAD
    assert max(len(body) for *_, body in a.frames) == PART_BYTES
    assert a.session.link.outstanding > len(payload)
    await quiet(a, b)
    assert b.taker.got == [("tell", "large", payload)]
    assert kinds(a)[-1] == FrameType.LAST_PART
    assert a.session.link.outstanding == 0


async def test_small_messages_of_others_pass_a_large_one() -> None:
    a, b = pair()
    a.session.outbox.tell(ADD, "large", LARGE)
    a.session.outbox.tell(ADD, "small", b"1")
    a.session.outbox.control(Control("T", "counter", b""))
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    a.session.outbox.ask(ADD, "other", b"\x07", 1000, answer, decode_value)
    await quiet(a, b)
    assert ids(b) == ["small", "T", "other", "large"]
    assert answer.result() == 7


async def test_answers_pass_a_large_one() -> None:
    a, b = pair()
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    a.session.outbox.ask(ADD, "x", b"\x07", 1000, answer, decode_value)
    b.session.outbox.tell(ADD, "large", LARGE)
    await turns()
    a.carry()
    await turns()
    b.carry()  # the first parts, and the answer between them
    assert answer.done()
    assert a.taker.got == []


async def test_messages_for_the_same_entity_stay_behind_a_large_one() -> None:
    a, b = pair()
    a.session.outbox.tell(ADD, "large", LARGE)
    a.session.outbox.tell(ADD, "large", b"second")
    a.session.outbox.tell(ADD, "friend", b"in one batch with it")
    await turns(1)
    a.session.outbox.tell(ADD, "friend", b"later")
    a.session.outbox.tell(ADD, "stranger", b"in one batch with that")
    await turns(1)
    a.session.outbox.relay(ADD, "17", "large", b"third", 1, 0, None)
    await turns(1)
    a.session.outbox.tell(ADD, "passer", b"")
    await quiet(a, b)
    assert ids(b) == ["passer", "large", "large", "friend", "friend", "stranger", "large"]


async def test_a_flush_comes_behind_everything_that_was_sent_before_it() -> None:
    a, b = pair()
    waiter = Waiter()
    a.session.outbox.tell(ADD, "large", LARGE)
    a.session.outbox.flush_shard("counter", "17", 0, 500, waiter)
    await turns()
    a.carry()
    assert not waiter.done
    await quiet(a, b)
    assert waiter.done
    assert [row[0] for row in b.taker.got] == ["tell", "flush"]


async def test_two_large_ones_go_one_after_the_other() -> None:
    a, b = pair()
    for name in "12":
        a.session.outbox.tell(ADD, name, LARGE)
    await quiet(a, b)
    assert ids(b) == ["1", "2"]


async def test_large_messages_fill_the_window_as_they_are_sent() -> None:
    a, b = pair()
    count = 0
    while a.session.outbox.writable:
        a.session.outbox.tell(ADD, str(count), LARGE)
        count += 1
    assert count == WINDOW_BYTES // len(LARGE) + 1
    room = a.session.outbox.room()
    await quiet(a, b)
    assert room.done()
    assert len(b.taker.got) == count


async def test_drained_waits_for_large_ones() -> None:
    a, b = pair()
    a.session.outbox.tell(ADD, "large", LARGE)
    drained = a.session.drained()
    await turns()
    assert not drained.done()
    await quiet(a, b)
    assert drained.done()
    assert ids(b) == ["large"]


@pytest.mark.parametrize("seed", range(6))
async def test_broken_connections_lose_repeat_and_reorder_nothing(seed: int) -> None:
    dice = random.Random(seed)
    a, b = pair()
    sent: dict[str, list[int]] = {}
    number = 0
    for _ in range(120):
        name = str(dice.randrange(5))
        number += 1
        size = LARGE_WEIGHT + dice.randrange(200_000) if dice.random() < 0.1 else 8
        a.session.outbox.tell(ADD, name, number.to_bytes(size, "big"))
        sent.setdefault(name, []).append(number)
        match dice.randrange(6):
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
                b.session.pause()
                await quiet(a, b)
                b.session.resume()
    break_connection(a, b)
    while len(b.taker.got) < number:
        await quiet(a, b)
    got: dict[str, list[int]] = {}
    for _, name, payload in b.taker.got:
        got.setdefault(str(name), []).append(int.from_bytes(payload, "big"))  # type: ignore[arg-type]
    assert got == sent
    b.session.keep_alive()
    await quiet(a, b)
    assert a.session.link.outstanding == 0


def break_connection(a: Side, b: Side) -> None:
    for side in (a, b):
        side.session.link.suspend()
        side.pipe.clear()
    a.session.opened(b.session.link.window.received)
    b.session.opened(a.session.link.window.received)


async def test_one_that_was_not_sent_to_its_end_comes_back_in_order() -> None:
    a, b = pair()
    for name in "12":
        a.session.outbox.tell(ADD, name, LARGE)
    a.session.outbox.tell(ADD, "1", b"small")
    await turns()
    assert [u.entity_id for u in a.session.close(GONE)] == ["1", "2", "1"]
    assert a.session.unconfirmed == {}
    await quiet(a, b)
    assert b.taker.got == []


async def test_batches_behind_the_last_part_are_returned_behind_it() -> None:
    a, _ = pair()
    a.has_room = False
    a.session.outbox.tell(ADD, "large", LARGE[: LARGE_WEIGHT + 1])
    a.session.drained()  # its parts have numbers now, and none was handed on
    a.session.outbox.tell(ADD, "large", b"second")
    await turns()
    assert [len(u.payload) for u in a.session.close(GONE)] == [LARGE_WEIGHT + 1, len(b"second")]


async def test_one_that_was_sent_to_its_end_may_have_arrived() -> None:
    a, _ = pair()
    a.session.outbox.tell(ADD, "1", LARGE)
    a.session.drained()
    await turns()
    assert a.session.close(GONE) == []
    assert a.session.unconfirmed == {"counter": 1}


async def test_parts_that_never_end_are_refused() -> None:
    assembly = FragmentAssembly()
    for _ in range(BODY_BYTES_MAX // PART_BYTES):
        assembly.add(bytes(PART_BYTES))
    with pytest.raises(RemoteProtocolError):
        assembly.add(b"x")
    assert assembly.take() == b""


async def test_parts_of_a_session_that_has_ended_are_dropped() -> None:
    _, b = pair()
    b.session.on_frame(FrameType.PART, 1, 0, bytes(PART_BYTES))
    b.session.close(GONE)
    assert b.session.link.assembly.take() == b""


async def test_parts_that_make_no_batch_block_nothing() -> None:
    _, b = pair()
    b.session.on_frame(FrameType.PART, 1, 0, b"\xc1")
    with pytest.raises(RemoteProtocolError):
        b.session.on_frame(FrameType.LAST_PART, 2, 0, b"\xc1")
    run = encode_batch([TellRun("counter", "add", ["x"], [b""])])
    b.session.on_frame(FrameType.DATA, 3, 0, run)
    assert ids(b) == ["x"]


async def test_a_receiver_without_room_stops_the_parts() -> None:
    a, b = pair()
    b.session.pause()
    a.session.outbox.tell(ADD, "large", LARGE)
    await quiet(a, b)
    assert kinds(a).count(FrameType.PART) == PARTS_AHEAD
    b.session.resume()
    for _ in range(20):
        await quiet(a, b)
    assert ids(b) == ["large"]


async def test_an_entity_whose_large_batch_is_sent_waits_for_no_other_large_batch() -> None:
    """Once all parts of its batch have numbers, the window keeps the order."""
    a, b = pair()
    a.session.outbox.tell(ADD, "first", bytes((PARTS_AHEAD + 1) * PART_BYTES))
    a.session.outbox.flush()
    a.session.outbox.tell(ADD, "second", LARGE)
    a.session.outbox.flush()
    while FrameType.LAST_PART not in kinds(a):
        a.carry()
        b.carry()
    a.session.outbox.tell(ADD, "second", b"waits")
    a.session.outbox.flush()
    a.session.outbox.tell(ADD, "first", b"passes")
    a.session.outbox.flush()
    assert [run.ids for [run] in a.batches if isinstance(run, TellRun)] == [["first"]]
    await quiet(a, b)
    assert ids(b) == ["first", "first", "second", "second"]
