"""The queue by which threads reach the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from shardbus.client import thread_bridge
from shardbus.client.thread_bridge import ITEM_BYTES, QUEUE_BYTES, ThreadBridge, ThreadFuture
from shardbus.errors import (
    AskTimeout,
    BufferFull,
    LocalProtocolError,
    NodeLost,
    UnknownEntityType,
)
from shardbus.wire.schema import decode_value
from tests.virtual_time import virtual
from tests.waiting import IDLE_S, PATIENCE_S, until

KEY = ("page", "add")


class Sender:
    """A router that records its messages; a test may make it wait or refuse."""

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


class Queue:
    """A bridge, its loop in a thread, and a sender at its end."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.bridge = ThreadBridge(self.loop, timeout=0.05)
        self.sender = Sender(self.loop)
        self.thread.start()

    def tell(self, entity_id: str, size: int = 1) -> None:
        self.bridge.tell((self.sender, KEY, entity_id, bytes(size)))  # type: ignore[arg-type]

    def ask(self, entity_id: str, timeout_ms: int = 300_000) -> Any:
        sender: Any = self.sender
        return self.bridge.ask(sender, KEY, entity_id, b"", timeout_ms, decode_value)

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
def queue() -> Iterator[Queue]:
    queue = Queue()
    yield queue
    queue.close()


def test_items_keep_the_order_in_which_they_were_queued(queue: Queue) -> None:
    order = [f"{n}" for n in range(10_000)]
    for n in order:
        if n.endswith("7"):
            assert queue.ask(n) == n
        else:
            queue.tell(n)

    async def sent() -> list[str]:
        return list(queue.sender.sent)

    assert queue.bridge.run(sent) == order


def test_a_thread_waits_while_the_queue_is_full(queue: Queue) -> None:
    queue.bridge._timeout = PATIENCE_S
    room = queue.hold()
    size = 50_000
    fit = QUEUE_BYTES // (size + ITEM_BYTES) + 1
    queue.sender.enough = (1, threading.Event())
    queue.tell("first", size)
    assert queue.sender.enough[1].wait(
        PATIENCE_S
    )  # the loop waits for room now; the queue is empty
    for n in range(fit):
        queue.tell(f"{n}", size)
    with pytest.raises(BufferFull):
        queue.bridge.tell_nowait((queue.sender, KEY, "no", b""))  # type: ignore[arg-type]
    late = threading.Thread(target=queue.tell, args=("late",))
    late.start()
    assert queue.sender.sent == ["first"]
    queue.free(room)
    late.join(PATIENCE_S)
    assert queue.ask("last") == "last"
    assert queue.sender.sent == ["first", *(f"{n}" for n in range(fit)), "late", "last"]


@virtual
async def test_a_tell_that_is_tried_again_keeps_the_context_of_its_thread() -> None:
    class Tracer:
        plain, here = "", "span"
        used: list[str] = []  # noqa: RUF012

        def current(self) -> str:
            return self.here

        def under(self, context: str, call: Any) -> Any:
            self.used.append(context)
            return call()

    loop, tracer = asyncio.get_running_loop(), Tracer()
    bridge, sender = ThreadBridge(loop, timeout=1.0), Sender(loop)
    bridge.tracer = tracer  # type: ignore[assignment]
    sender.refusals = [BufferFull("no home")]
    bridge.tell((sender, KEY, "a", b""))  # type: ignore[arg-type]
    tracer.here = ""
    bridge.tell((sender, KEY, "b", b""))  # type: ignore[arg-type]
    await asyncio.sleep(0.005)
    sender.refusals = []
    await asyncio.sleep(0.1)
    assert (sender.sent, tracer.used) == (["a", "b"], ["span", "span"])


def test_a_dropped_tell_is_counted_and_raised_by_a_later_call(queue: Queue) -> None:
    queue.sender.refusals = [BufferFull("no home for it")]

    def flood() -> None:
        while True:
            queue.tell("lost")

    with pytest.raises(BufferFull, match="no home for it"):
        flood()
    assert queue.bridge.dropped > 0
    queue.loop.call_soon_threadsafe(queue.sender.refusals.clear)
    assert "found" in answers(queue)


def answers(queue: Queue) -> list[str]:
    """Ask until no earlier tell raises its error."""
    results: list[str] = []
    while not results:
        with contextlib.suppress(BufferFull):
            results.append(queue.ask("found"))
    return results


def test_an_ask_that_cannot_be_sent_raises_in_its_own_thread(queue: Queue) -> None:
    queue.sender.refusals = [UnknownEntityType("no such type")]
    with pytest.raises(UnknownEntityType):
        queue.ask("x")
    queue.sender.refusals = []
    assert queue.ask("y") == "y"


def test_an_ask_that_finds_no_room_in_the_queue_ends_by_its_deadline(queue: Queue) -> None:
    room = queue.hold()
    queue.sender.enough = (1, threading.Event())
    queue.tell("first")
    assert queue.sender.enough[1].wait(PATIENCE_S)
    queue.tell("large", 2 * QUEUE_BYTES)
    with pytest.raises(BufferFull, match="as long as the call may take") as full:
        queue.ask("late", 50)
    assert full.value.definite
    queue.free(room)
    assert queue.ask("next") == "next"
    assert queue.sender.sent == ["first", "large", "next"]


def test_work_that_does_not_end_is_given_up(queue: Queue) -> None:
    released: list[asyncio.Event] = []

    async def wait() -> None:
        released.append(asyncio.Event())
        await released[0].wait()

    with pytest.raises(AskTimeout):
        queue.bridge.run(wait, within=0.05)
    assert queue.ask("next") == "next"
    for gate in released:  # none, if the loop was too late to begin
        queue.loop.call_soon_threadsafe(gate.set)
    assert queue.ask("last") == "last"


def test_closing_refuses_threads_that_wait_for_room(queue: Queue) -> None:
    queue.bridge._timeout = PATIENCE_S
    room = queue.hold()
    queue.sender.enough = (1, threading.Event())
    queue.tell("first")
    assert queue.sender.enough[1].wait(PATIENCE_S)
    outcome: list[BaseException] = []

    def flood() -> None:
        try:
            while True:
                queue.tell("more", 100_000)
        except LocalProtocolError as e:
            outcome.append(e)

    thread = threading.Thread(target=flood)
    thread.start()
    queue.bridge.close()
    thread.join(PATIENCE_S)
    assert "closed" in str(outcome[0])
    queue.free(room)


class Waiting:
    """A thread in a call that does not end by itself, and if it is stubborn, not at once when it is
    cancelled."""

    def __init__(self, queue: Queue, *, stubborn: bool = False) -> None:
        self.begun, self.cancelled = threading.Event(), threading.Event()
        self.stubborn = stubborn
        self.outcome: BaseException | None = None
        self.thread = threading.Thread(target=self._call, args=(queue,), daemon=True)

    def _call(self, queue: Queue) -> None:
        try:
            queue.bridge.run(self.work)
        except BaseException as e:
            self.outcome = e

    async def work(self) -> None:
        self.begun.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if not self.stubborn or self.cancelled.is_set():
                    raise
            finally:
                self.cancelled.set()


@pytest.mark.parametrize("stubborn", [False, True])
def test_each_thread_that_waits_gets_an_error_when_the_client_stops(
    queue: Queue, stubborn: bool
) -> None:
    under_way, queued = Waiting(queue, stubborn=stubborn), Waiting(queue)
    under_way.thread.start()
    assert under_way.begun.wait(PATIENCE_S)
    queue.hold()
    queue.sender.enough = (1, threading.Event())
    queue.tell("first")
    assert queue.sender.enough[1].wait(PATIENCE_S)  # later items wait behind it
    queue.tell("never sent")
    queued.thread.start()
    queued_both = until(lambda: len(queue.bridge._queue) == 2, "the call is queued behind the tell")
    asyncio.run(queued_both)
    with patch.object(thread_bridge, "END_S", 0.05):
        queue.bridge.stop()
        for waiting in (under_way, queued):
            waiting.thread.join(IDLE_S)
        queue.thread.join(IDLE_S)
    assert isinstance(under_way.outcome, NodeLost)
    assert under_way.cancelled.is_set()
    assert isinstance(queued.outcome, LocalProtocolError)
    assert not queued.begun.is_set()
    assert queue.bridge.dropped == 1, "a tell that is not sent is counted"
    assert not queue.thread.is_alive()
    for task in asyncio.all_tasks(queue.loop):
        task.cancel()
        queue.loop.run_until_complete(asyncio.wait([task]))
    with pytest.raises(LocalProtocolError, match="closed"):
        queue.tell("later")


def test_the_calls_of_other_threads_end_before_the_client_closes(queue: Queue) -> None:
    waiting = Waiting(queue)
    waiting.thread.start()
    assert waiting.begun.wait(PATIENCE_S)
    assert queue.bridge.close()
    assert not queue.bridge.close(), "one thread closes a client"
    queue.bridge.run(queue.bridge.end_calls, last=True)
    waiting.thread.join(IDLE_S)
    assert isinstance(waiting.outcome, NodeLost)


def test_a_call_of_a_thread_that_is_interrupted_is_cancelled(queue: Queue) -> None:
    waiting = Waiting(queue)

    def interrupted(_: object) -> None:
        assert waiting.begun.wait(PATIENCE_S)
        raise KeyboardInterrupt

    with patch.object(ThreadFuture, "result", interrupted), pytest.raises(KeyboardInterrupt):
        queue.bridge.run(waiting.work)
    assert waiting.cancelled.is_set(), "it has ended before the thread goes on"


def test_a_call_that_its_thread_gives_up_in_the_queue_does_not_begin(queue: Queue) -> None:
    waiting = Waiting(queue)
    room = queue.hold()
    queue.sender.enough = (1, threading.Event())
    queue.tell("first")
    assert queue.sender.enough[1].wait(PATIENCE_S)
    with (
        patch.object(ThreadFuture, "result", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        queue.bridge.run(waiting.work)
    queue.free(room)
    assert queue.ask("next") == "next"
    assert not waiting.begun.is_set()


def test_the_loop_sends_without_the_context_variables_of_the_thread_that_woke_it() -> None:
    """Messages that a second thread has queued behind it would belong to the first one's trace."""
    tenant = contextvars.ContextVar("tenant", default="none")
    loop = asyncio.new_event_loop()
    bridge, seen = ThreadBridge(loop, timeout=1.0), list[str]()

    class Noting(Sender):
        def tell(self, key: object, entity_id: str, payload: bytes) -> asyncio.Future[None]:
            seen.append(tenant.get())
            return super().tell(key, entity_id, payload)

    sender = Noting(loop)

    def put() -> None:
        tenant.set("a")
        bridge.tell((sender, KEY, "x", b""))  # type: ignore[arg-type]

    contextvars.Context().run(put)
    bridge.tell((sender, KEY, "y", b""))  # type: ignore[arg-type]
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert sender.sent == ["x", "y"]
    assert seen == ["none", "none"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupt_while_a_thread_wakes_the_loop_keeps_no_later_item(
    queue: Queue, when: str
) -> None:
    """As of a time limit that a signal raises in the thread of a task."""
    wake, interrupts = queue.loop.call_soon_threadsafe, [KeyboardInterrupt()]

    def interrupted(*args: Any, **options: Any) -> Any:
        if when == "after":
            wake(*args, **options)
        if interrupts:
            raise interrupts.pop()
        return wake(*args, **options) if when == "before" else None

    with patch.object(queue.loop, "call_soon_threadsafe", interrupted):
        with pytest.raises(KeyboardInterrupt):
            queue.ask("interrupted")
        assert queue.ask("next", timeout_ms=int(PATIENCE_S * 1000)) == "next"
    assert queue.sender.sent == ["interrupted", "next"]
