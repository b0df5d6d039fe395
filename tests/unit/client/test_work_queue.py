"""The worker's and the producer's side of a queue: what is shared, repeated, given back and given
up."""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from shardbus import (
    AskTimeout,
    BufferFull,
    ConfigError,
    EntityFailed,
    LocalProtocolError,
    MailboxFull,
    MessageTooLarge,
    NodeLost,
    SchemaError,
    ShardBus,
    Unhandled,
    UnknownEntityType,
)
from shardbus.client import work_queue
from shardbus.client.work_queue import BATCH_BYTES, ClientQueue, Work, wait_of
from shardbus.delivery import WorkQueue
from shardbus.testing import EntityProbe
from shardbus.wire.schema import encode_value
from tests.virtual_time import virtual

bus = ShardBus("works")


@bus.entity(name="jobs")
class Jobs(WorkQueue[str]):
    lease = 10.0
    limit = 10


class Home:
    """A queue as references show it: it writes requests down, and answers by the next function."""

    entity_id = "a"

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.answers: list[Callable[[], Any]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.within_s = 0.0

    def ref(self, kind: type, entity_id: str) -> Home:
        return self

    def within(self, seconds: float) -> Home:
        self.within_s = seconds
        return self

    def __getattr__(self, name: str) -> Any:
        async def ask(*arguments: Any) -> Any:
            self.seen.append((name, *arguments))
            await self.gate.wait()
            return self.answers.pop(0)()

        return ask

    def answer(self, *values: Any) -> None:
        """Answer the next requests with these values, or raise these errors."""
        self.answers += [partial(_answer, value) for value in values]


def _answer(value: Any) -> Any:
    if isinstance(value, Exception):
        raise value
    return value


def bodies(seen: tuple[Any, ...]) -> list[str]:
    return [body[1:].decode() for body in seen[1]]


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def row(number: int, lease: float = 10.0, attempt: int = 1) -> tuple[int, int, float, bytes]:
    return number, attempt, lease, b"\xa2n%d" % number


@pytest.mark.parametrize("given", [math.nan, "5", timedelta(seconds=5), None])
@virtual
async def test_a_timeout_that_is_no_number_of_seconds_is_refused(given: Any) -> None:
    home = Home()
    queue = ClientQueue(home, Jobs, "a")
    for call in (partial(queue.put, "a"), partial(queue.confirm, [1])):
        with pytest.raises(ConfigError, match=r"^a timeout is a number of seconds up to "):
            await call(timeout=given)
    assert home.seen == []


@virtual
async def test_puts_of_concurrent_callers_share_the_next_request() -> None:
    home = Home()
    queue = ClientQueue(home, Jobs, "a")
    home.gate.clear()
    home.answer(1, 3)
    first = asyncio.ensure_future(queue.put("a"))
    await until(lambda: home.seen)
    others = [asyncio.ensure_future(queue.put(value)) for value in "bcd"]
    await asyncio.sleep(1)
    home.gate.set()
    await asyncio.gather(first, *others)
    assert [(bodies(seen), seen[3]) for seen in home.seen] == [(["a"], 1), (["b", "c", "d"], 2)]


@virtual
async def test_a_put_without_an_answer_is_repeated_under_its_numbers() -> None:
    home = Home()
    queue = ClientQueue(home, Jobs, "a")
    home.answer(
        NodeLost("gone"),
        EntityFailed("StoreUnavailable", "away"),
        AskTimeout("late"),
        Unhandled("dropped while its shard moved"),
        2,
        1,
    )
    await queue.put_many(["a", "b"])
    await queue.put("c")
    assert [seen[3] for seen in home.seen] == [1, 1, 1, 1, 1, 3]
    assert len({seen[2] for seen in home.seen}) == 1, "one producer"


@virtual
async def test_the_rest_of_a_put_waits_for_room() -> None:
    home = Home()
    queue = ClientQueue(home, Jobs, "a")
    home.answer(2, 0, 1)
    await queue.put_many(["a", "b", "c"])
    assert [(bodies(seen), seen[3]) for seen in home.seen] == [
        (["a", "b", "c"], 1),
        (["c"], 3),
        (["c"], 3),
    ]


@virtual
async def test_a_full_queue_raises_once_the_time_is_over_and_the_numbers_go_on() -> None:
    home = Home()
    queue = ClientQueue(home, Jobs, "a")
    home.answer(*[0] * 1000)
    with pytest.raises(BufferFull, match="the queue 'a' is full") as full:
        await queue.put("a", timeout=3.0)
    assert not full.value.definite, "the request under way may find room"
    await asyncio.sleep(5)
    count = len(home.seen)
    await asyncio.sleep(5)
    assert len(home.seen) == count, "a request is repeated that nobody waits for"
    home.answers.clear()
    home.answer(1)
    await queue.put("b")
    assert (bodies(home.seen[-1]), home.seen[-1][3]) == (["b"], 2)


@virtual
async def test_a_put_in_doubt_raises_the_last_trouble() -> None:
    home = Home()
    queue = ClientQueue(home, Jobs, "a")
    home.answer(NodeLost("gone"), *[MailboxFull("full")] * 1000)
    with pytest.raises(
        AskTimeout, match="has not answered a put in 3 s: MailboxFull: full"
    ) as late:
        await queue.put("a", timeout=3.0)
    assert not late.value.definite, "the first copy may have been handled"


@virtual
async def test_puts_that_a_close_ends_say_whether_they_were_sent() -> None:
    home = Home()
    queue = ClientQueue(home, Jobs, "a")
    closed = LocalProtocolError("the client is closed")
    home.gate.clear()
    home.answer(1, NodeLost("gone"), *[closed] * 9)
    puts = [asyncio.ensure_future(queue.put("a"))]
    await until(lambda: home.seen)
    puts += [asyncio.ensure_future(queue.put(value)) for value in ("b", "c" * BATCH_BYTES)]
    await asyncio.sleep(1)
    home.gate.set()
    outcomes = await asyncio.gather(*puts, return_exceptions=True)
    assert outcomes[0] is None
    assert [(type(error), getattr(error, "definite", None)) for error in outcomes[1:]] == [
        (NodeLost, False),
        (NodeLost, True),
    ]
    with pytest.raises(LocalProtocolError):
        await queue.put("d")


@virtual
async def test_a_pull_that_a_close_ends_raises_its_last_error() -> None:
    home = Home()
    queue = ClientQueue(home, Jobs, "a")
    home.answer(NodeLost("gone"), *[LocalProtocolError("the client is closed")] * 2)
    with pytest.raises(NodeLost, match="gone"):
        await queue.pull()
    with pytest.raises(LocalProtocolError):
        await queue.pull()


@virtual
@pytest.mark.parametrize("timeout", [3.0, 9.0])
async def test_a_put_whose_request_is_still_under_way_has_no_answer(timeout: float) -> None:
    home = Home()
    queue = ClientQueue(home, Jobs, "a")
    home.answer(0, 1, *[0] * 1000)
    await queue.put("it was full once")
    with pytest.raises(BufferFull):
        await queue.put("it is full", timeout=timeout)
    await asyncio.sleep(timeout)
    home.gate.clear()
    with pytest.raises(AskTimeout, match=f"has not answered a put in {timeout:g} s") as late:
        await queue.put("no answer", timeout=timeout)
    assert not late.value.definite


@virtual
async def test_a_put_waits_at_the_queue_for_half_of_its_time_at_most() -> None:
    home = Home()
    queue = ClientQueue(home, Jobs, "a")
    home.answer(*[1] * 4)
    for timeout in (30.0, 10.0, 2.0, 0.5):
        await queue.put("a", timeout=timeout)
    assert [seen[4] for seen in home.seen] == [5.0, 5.0, 1.0, 0.25]
    assert wait_of([], 0.0) == 5.0


@virtual
async def test_a_put_that_was_sent_keeps_its_place_though_its_caller_has_given_up() -> None:
    home = Home()
    queue = ClientQueue(home, Jobs, "a")
    home.gate.clear()
    home.answer(NodeLost("gone"), 2)
    first = asyncio.ensure_future(queue.put("a"))
    second = asyncio.ensure_future(queue.put("b"))
    await until(lambda: home.seen)
    first.cancel()
    home.gate.set()
    await second
    assert [(bodies(seen), seen[3]) for seen in home.seen] == [(["a", "b"], 1), (["a", "b"], 1)]


@virtual
async def test_a_refusal_is_raised_at_once_and_later_puts_go_on() -> None:
    home = Home()
    queue = ClientQueue(home, Jobs, "a")
    home.answer(UnknownEntityType("no such"), 1)
    with pytest.raises(UnknownEntityType):
        await queue.put("a")
    await queue.put("b")
    assert home.seen[-1][3] == 2
    with pytest.raises(MessageTooLarge):
        await queue.put("x" * (work_queue.BODY_MAX + 1))


@virtual
async def test_requests_are_bounded_in_entries_and_bytes() -> None:
    home = Home()
    queue = ClientQueue(home, Jobs, "a")
    home.answer(work_queue.BATCH_MAX, 100, *[1] * 5)
    await queue.put_many(["x"] * (work_queue.BATCH_MAX + 100))
    await queue.put_many(["x" * 400_000] * 2)
    sizes = [len(seen[1]) for seen in home.seen]
    assert sizes == [work_queue.BATCH_MAX, 100, 1, 1]


@virtual
async def test_a_block_confirms_its_item_and_one_that_raises_gives_it_back() -> None:
    home = Home()
    queue = ClientQueue(home, Jobs, "a")
    home.answer([row(1), row(2)], 1, [2])
    first, second = await queue.pull(2)
    async with first as work:
        assert (work.value, work.number, work.attempt) == ("n1", 1, 1)
    with pytest.raises(ValueError, match="no"):
        async with second:
            raise ValueError("no")
    assert home.seen[1:] == [
        ("confirm", [1]),
        ("release", [2], second.token, "ValueError: no"),
    ]


@virtual
async def test_a_cancelled_block_gives_its_item_back_without_an_error() -> None:
    home = Home()
    queue = ClientQueue(home, Jobs, "a")
    home.answer([row(1)], [1])
    [work] = await queue.pull()

    async def never() -> None:
        async with work:
            await asyncio.Event().wait()

    task = asyncio.ensure_future(never())
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait([task])
    assert home.seen[-1] == ("release", [1], work.token, "")


@virtual
async def test_a_confirmation_is_repeated_and_its_end_is_an_error_of_the_worker() -> None:
    home = Home()
    queue = ClientQueue(home, Jobs, "a")
    home.answer(NodeLost("gone"), 1)
    await queue.confirm([5])
    assert home.seen == [("confirm", [5]), ("confirm", [5])]
    home.answer(*[NodeLost("gone")] * 100)
    with pytest.raises(AskTimeout, match="has not answered a confirmation in 2 s: NodeLost"):
        await queue.confirm([6], timeout=2.0)


@virtual
async def test_a_pull_without_an_answer_is_repeated_with_its_token() -> None:
    home = Home()
    queue = ClientQueue(home, Jobs, "a")
    home.answer(NodeLost("gone"), [row(1)], [])
    [work] = await queue.pull(3, wait=2.0)
    await queue.pull(3, wait=0.0)
    tokens = [seen[3] for seen in home.seen]
    assert [seen[4] for seen in home.seen] == [False, True, False]
    assert tokens[0] == tokens[1] == work.token != tokens[2]


@virtual
async def test_a_worker_that_reaches_no_queue_gives_up_after_its_patience() -> None:
    home = Home()
    queue = ClientQueue(home, Jobs, "a")
    home.answer(*[NodeLost("gone")] * 1000)
    begun = asyncio.get_running_loop().time()
    with pytest.raises(NodeLost):
        await queue.pull(wait=1.0, patience=5.0)
    assert 5.0 <= asyncio.get_running_loop().time() - begun < 10.0


@virtual
async def test_items_whose_lease_has_ended_are_not_begun() -> None:
    home = Home()
    queue = ClientQueue(home, Jobs, "a")
    home.answer([row(1), row(2), row(3, lease=50.0)])
    got: list[int] = []
    async for work in queue.work(most=3):
        got.append(work.number)
        await asyncio.sleep(11)
        if work.number == 3:
            break
    assert got == [1, 3]


@virtual
async def test_an_iteration_that_ends_gives_back_what_it_has_not_begun() -> None:
    home = Home()
    queue = ClientQueue(home, Jobs, "a")
    home.answer([row(1), row(2), row(3)], [2, 3])
    items = queue.work(most=3)
    work = await anext(items)
    await items.aclose()
    await queue.leave()
    assert home.seen[-1] == ("release", [2, 3], work.token, "")


def test_a_worker_that_is_cancelled_gives_all_its_items_back_before_its_client_closes() -> None:
    with EntityProbe(Jobs, "a") as probe:

        async def work() -> None:
            async for item in probe.client.queue(Jobs, "a").work(most=3):
                async with item:
                    await asyncio.Event().wait()

        async def scenario() -> None:
            client = probe.client
            await client.queue(Jobs, "a").put_many(["a", "b", "c"])
            worker = asyncio.ensure_future(work())
            await asyncio.sleep(1)
            assert (await client.ref(Jobs, "a").show())["leased"] == 3
            worker.cancel()
            await asyncio.wait([worker])
            del worker
            gc.collect()
            await asyncio.sleep(1)
            shown = await client.ref(Jobs, "a").show()
            assert (shown["ready"], [one["attempts"] for one in shown["items"]]) == (3, [0, 0, 0])

        probe.run(scenario())


@virtual
async def test_a_pull_that_is_cancelled_is_cancelled_at_the_queue() -> None:
    home = Home()
    queue = ClientQueue(home, Jobs, "a")
    home.gate.clear()
    home.answer([1])
    pull = asyncio.ensure_future(queue.pull())
    await asyncio.sleep(1)
    pull.cancel()
    home.gate.set()
    await until(lambda: len(home.seen) == 2)
    assert home.seen[1] == ("cancel", home.seen[0][3])


@virtual
async def test_a_lease_that_is_extended_begins_anew() -> None:
    home = Home()
    queue = ClientQueue(home, Jobs, "a")
    home.answer([row(1)], ([1], 10.0), ([], 10.0))
    [work] = await queue.pull()
    await asyncio.sleep(8)
    assert await work.extend()
    await asyncio.sleep(8)
    assert not work.has_ended
    assert not await work.extend()
    await asyncio.sleep(2)
    assert work.has_ended


def test_run_works_until_it_is_cancelled_and_survives_a_failing_call() -> None:
    with EntityProbe(Jobs, "a") as probe:
        done: list[str] = []
        tries: dict[str, int] = {}

        async def handle(value: str) -> None:
            tries[value] = tries.get(value, 0) + 1
            if value == "odd" and tries[value] < 3:
                raise ValueError("not yet")
            done.append(value)

        async def scenario() -> None:
            queue = probe.client.queue(Jobs, "a")
            workers = asyncio.ensure_future(queue.run(handle, at_once=2))
            await queue.put_many(["even", "odd", "last"])
            await until(lambda: len(done) == 3)
            workers.cancel()
            await asyncio.wait([workers])

        probe.run(scenario())
        assert sorted(done) == ["even", "last", "odd"]
        assert tries == {"even": 1, "odd": 3, "last": 1}


def test_run_takes_a_cancellation_of_another_task_for_a_failure() -> None:
    with EntityProbe(Jobs, "a") as probe:
        done: list[str] = []

        async def handle(value: str) -> None:
            if value == "odd" and "last" not in done:
                helper = asyncio.ensure_future(asyncio.Event().wait())
                asyncio.get_running_loop().call_soon(helper.cancel)
                await helper
            done.append(value)

        async def scenario() -> bool:
            queue = probe.client.queue(Jobs, "a")
            workers = asyncio.ensure_future(queue.run(handle))
            await queue.put_many(["odd", "last"])
            await until(lambda: len(done) == 2 or workers.done())
            workers.cancel()
            await asyncio.wait([workers])
            return workers.cancelled()

        assert probe.run(scenario()), "run ends when it is cancelled"
        assert done == ["last", "odd"]


def test_run_gives_items_back_without_an_error_when_it_is_cancelled() -> None:
    with EntityProbe(Jobs, "a") as probe:

        async def scenario() -> list[tuple[int, str]]:
            begun = asyncio.Event()

            async def handle(value: str) -> None:
                begun.set()
                await asyncio.Event().wait()

            queue = probe.client.queue(Jobs, "a")
            workers = asyncio.ensure_future(queue.run(handle))
            await queue.put("a")
            await begun.wait()
            workers.cancel()
            await asyncio.wait([workers])
            shown = await probe.ref.show()
            return [(item["attempts"], item["error"]) for item in shown["items"]]

        assert probe.run(scenario()) == [(0, "")]


@pytest.mark.parametrize("at_once", [1, 3])
async def test_run_raises_the_error_of_its_queue_as_it_is(at_once: int) -> None:
    home = Home()
    home.answer(*[UnknownEntityType("there is no queue")] * at_once)
    queue = ClientQueue(home, Jobs, "a")
    with pytest.raises(UnknownEntityType, match="there is no queue"):
        await queue.run(print, at_once=at_once)


class Caller:
    """Objects and functions of all kinds that a worker may be."""

    def __init__(self) -> None:
        self.done: list[str] = []

    async def __call__(self, value: str) -> None:
        await asyncio.sleep(0)
        self.done.append(value)

    def plain(self, value: str) -> str:
        self.done.append(value)
        return "no awaitable"

    async def waits(self, value: str) -> None:
        await self(value)

    def wrapped(self, value: str) -> Any:
        return self(value)

    async def twice(self, value: str, again: str) -> None:
        await self(value)

    def yields(self, value: str) -> Any:
        yield value

    async def yields_later(self, value: str) -> Any:
        yield value


WORKERS: dict[str, Callable[[Caller], Any]] = {
    "an object": lambda caller: caller,
    "a plain method": lambda caller: caller.plain,
    "a method": lambda caller: caller.waits,
    "a function that returns a coroutine": lambda caller: caller.wrapped,
    "a partial": lambda caller: partial(caller.twice, again=""),
    "a lambda": lambda caller: lambda value: caller.plain(value),
    "a lambda of a coroutine": lambda caller: lambda value: caller(value),
}


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_is_anything_that_can_be_called(name: str) -> None:
    with EntityProbe(Jobs, "a") as probe:
        caller = Caller()

        async def scenario() -> None:
            queue = probe.client.queue(Jobs, "a")
            workers = asyncio.ensure_future(queue.run(WORKERS[name](caller)))
            await queue.put_many(["first", "second"])
            await until(lambda: len(caller.done) == 2)
            await asyncio.sleep(1)
            workers.cancel()
            await asyncio.wait([workers])
            assert (await probe.ref.show())["items"] == []

        probe.run(scenario())
        assert caller.done == ["first", "second"]


@pytest.mark.parametrize("handle", [None, "send", 5, Caller().yields, Caller().yields_later])
async def test_what_runs_nothing_is_refused_at_the_call(handle: Any) -> None:
    home = Home()
    with pytest.raises(TypeError, match=r"queue\.run takes a function|has a yield"):
        await ClientQueue(home, Jobs, "a").run(handle)
    assert home.seen == []


@pytest.mark.parametrize("numbers", [{"at_once": 0}, {"most": 0}, {"at_once": -1}])
async def test_workers_that_take_nothing_are_refused(numbers: dict[str, int]) -> None:
    home = Home()
    with pytest.raises(ValueError, match="each is at least 1"):
        await ClientQueue(home, Jobs, "a").run(print, **numbers)
    assert home.seen == []


async def test_the_call_of_a_worker_is_refused() -> None:
    with pytest.raises(TypeError, match="not its call"):
        await ClientQueue(Home(), Jobs, "a").run(Caller()("value"))  # type: ignore[arg-type]


async def test_a_test_that_is_not_in_virtual_time_uses_a_queue_by_its_client() -> None:
    async with EntityProbe(Jobs, "a") as probe:
        queue = probe.client.queue(Jobs, "a")
        await queue.put("a")
        await queue.put("b")
        [first] = await queue.pull()
        async with first:
            assert first.value == "a"
        async for work in queue.work():
            async with work:
                assert work.value == "b"
            break
        assert (await probe.ref.show())["confirmed"] == 2
        assert isinstance(vars(first)["_target"], Work)


async def test_an_item_that_the_class_of_a_worker_cannot_read_is_named() -> None:
    queue = ClientQueue(Home(), Jobs, "a")
    with pytest.raises(SchemaError, match=r"an item of Jobs 'a' cannot be read: .*Expected `str`"):
        queue.decode(encode_value(7))
