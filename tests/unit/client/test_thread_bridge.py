"""The line in which threads stand for the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from shardbus.client.thread_bridge import ITEM_BYTES, LINE_BYTES, ThreadBridge
from shardbus.errors import BufferFull, LocalProtocolError, UnknownEntityType
from shardbus.wire.schema import decode_value

KEY = ("page", "add")


class Sender:
    """A router that writes down what it is to send; a test may make it wait, or refuse."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.sent: list[Any] = []
        self.done = loop.create_future()
        self.done.set_result(None)
        self.room = self.done
        self.refusals: list[Exception] = []
        self.enough: tuple[int, threading.Event] = (0, threading.Event())

    def tell(self, key: object, entity_id: str, payload: bytes) -> asyncio.Future[None]:
        if self.refusals:
            raise self.refusals[0]
        self.sent.append(entity_id)
        if len(self.sent) == self.enough[0]:
            self.enough[1].set()
        return self.room

    def ask_for(self, answer: Any, key: object, entity_id: str, *rest: Any) -> None:
        if self.refusals:
            raise self.refusals[0]
        self.sent.append(entity_id)
        answer.set_result(entity_id)


class Line:
    """A pipeline, its loop in a thread, and a sender at its end."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.pipeline = ThreadBridge(self.loop, timeout=0.05)
        self.sender = Sender(self.loop)
        self.thread.start()

    def tell(self, entity_id: str, size: int = 1) -> None:
        self.pipeline.tell((self.sender, KEY, entity_id, bytes(size)))  # type: ignore[arg-type]

    def ask(self, entity_id: str) -> Any:
        sender: Any = self.sender
        return self.pipeline.ask(sender, KEY, entity_id, b"", 1000, decode_value)

    def hold(self) -> asyncio.Future[None]:
        """The send buffer is full until the future that is returned is done."""
        self.sender.room = self.loop.create_future()
        return self.sender.room

    def free(self, room: asyncio.Future[None]) -> None:
        self.sender.room = self.sender.done
        self.loop.call_soon_threadsafe(room.set_result, None)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.close()


def test_everything_comes_in_the_order_in_which_it_stood_there(line: Line) -> None:
    order = [f"{n}" for n in range(10_000)]
    for n in order:
        if n.endswith("7"):
            assert line.ask(n) == n
        else:
            line.tell(n)

    async def sent() -> list[str]:
        return list(line.sender.sent)

    assert line.pipeline.run(sent) == order


def test_who_comes_to_a_full_line_waits_until_there_is_room(line: Line) -> None:
    room = line.hold()
    size = 50_000
    fit = LINE_BYTES // (size + ITEM_BYTES) + 1
    line.sender.enough = (1, threading.Event())
    line.tell("first", size)
    assert line.sender.enough[1].wait(20)  # the loop waits for room now; the line is empty
    for n in range(fit):
        line.tell(f"{n}", size)
    with pytest.raises(BufferFull):
        line.pipeline.tell_nowait((line.sender, KEY, "no", b""))  # type: ignore[arg-type]
    late = threading.Thread(target=line.tell, args=("late",))
    late.start()
    assert line.sender.sent == ["first"]
    line.free(room)
    late.join(20)
    assert line.ask("last") == "last"
    assert line.sender.sent == ["first", *(f"{n}" for n in range(fit)), "late", "last"]


def test_tell_nowait_does_not_stand_behind_what_waits_for_room(line: Line) -> None:
    room = line.hold()
    line.sender.enough = (1, threading.Event())
    line.tell("first")
    assert line.sender.enough[1].wait(20)

    async def turn() -> None:
        pass

    asyncio.run_coroutine_threadsafe(turn(), line.loop).result(20)
    with pytest.raises(BufferFull):
        line.pipeline.tell_nowait((line.sender, KEY, "no", b""))  # type: ignore[arg-type]
    line.free(room)
    assert line.ask("yes") == "yes"
    line.pipeline.tell_nowait((line.sender, KEY, "now", b""))  # type: ignore[arg-type]
    assert line.ask("end") == "end"
    assert line.sender.sent == ["first", "yes", "now", "end"]


def test_what_finds_no_home_is_tried_again_and_what_follows_stays_behind_it(line: Line) -> None:
    line.sender.refusals = [BufferFull("no home")]
    line.pipeline._timeout = 1000.0
    line.tell("a")
    line.tell("b")
    line.loop.call_soon_threadsafe(line.sender.refusals.clear)
    assert line.ask("c") == "c"
    assert line.sender.sent == ["a", "b", "c"]


def test_what_is_given_up_is_counted_and_told_to_a_later_call(line: Line) -> None:
    line.sender.refusals = [BufferFull("no home for it")]

    def flood() -> None:
        while True:
            line.tell("lost")

    with pytest.raises(BufferFull, match="no home for it"):
        flood()
    assert line.pipeline.dropped > 0
    line.loop.call_soon_threadsafe(line.sender.refusals.clear)
    assert "found" in answers(line)


def answers(line: Line) -> list[str]:
    """Ask until what was dropped before is told."""
    found: list[str] = []
    while not found:
        with contextlib.suppress(BufferFull):
            found.append(line.ask("found"))
    return found


def test_an_ask_that_cannot_be_sent_is_its_askers_error(line: Line) -> None:
    line.sender.refusals = [UnknownEntityType("no such type")]
    with pytest.raises(UnknownEntityType):
        line.ask("x")
    line.sender.refusals = []
    assert line.ask("y") == "y"


def test_who_waits_at_the_end_of_a_line_that_closes_is_sent_away(line: Line) -> None:
    room = line.hold()
    line.sender.enough = (1, threading.Event())
    line.tell("first")
    assert line.sender.enough[1].wait(20)
    outcome: list[BaseException] = []

    def flood() -> None:
        try:
            while True:
                line.tell("more", 100_000)
        except LocalProtocolError as e:
            outcome.append(e)

    thread = threading.Thread(target=flood)
    thread.start()
    line.pipeline.close()
    thread.join(20)
    assert "closed" in str(outcome[0])
    line.free(room)
