"""An error of an application on a real node costs its own message and at most its
own entity: the neighbours of the same turn are answered, the asker gets an error, the entity takes
its next message, a failed tell is counted and reported, and the account of messages is exact."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, computed_field, model_validator

from shardbus import Entity, EntityFailed, RequestError, SchemaError, ShardBus, handler
from shardbus.client.asynchronous import AsyncClient
from shardbus.node.node import Node
from shardbus.shells.message_account import account_of
from tests.loopback.nodes import PATIENCE_S, Nodes, http
from tests.message_accounts import missing
from tests.odd_exceptions import ODD
from tests.waiting import until

OTHERS = 12


class Answer(BaseModel):
    how: str

    @computed_field
    @property
    def odd(self) -> str:
        raise ODD[self.how]()


@dataclass
class Order:
    number: int
    how: str = ""

    def __post_init__(self) -> None:
        if self.how:
            raise ODD[self.how]()


class Checked(BaseModel):
    number: int
    how: str = ""

    @model_validator(mode="after")
    def check(self) -> Checked:
        if self.how:
            raise ODD[self.how]()
        return self


class Page(Entity):
    """Fails in one place, for the ids that begin with its name."""

    def __init__(self) -> None:
        self.n = 0

    @handler
    def read(self) -> int:
        return self.n

    @handler
    def plain(self, how: str) -> int:
        self.n += 1
        if how:
            raise ODD[how]()
        return self.n

    @handler
    async def begins(self, how: str) -> int:
        return self.plain(how)

    @handler
    async def waits(self, how: str) -> int:
        await asyncio.sleep(0)
        return self.plain(how)

    @handler(thread=True)
    def threads(self, how: str) -> int:
        return self.plain(how)

    @handler
    async def asks(self, how: str) -> int:
        results = await asyncio.gather(asyncio.sleep(0, 1), self._later(how))
        return sum(results)

    async def _later(self, how: str) -> int:
        await asyncio.sleep(0)
        return self.plain("" if how in ("exit", "exit_text", "interrupt") else how)

    @handler
    def answers(self, how: str) -> Any:
        self.n += 1
        return Answer(how=how) if how else self.n

    @handler
    def takes(self, order: Order) -> int:
        self.n += 1
        return order.number

    @handler
    async def takes_later(self, order: Order) -> int:
        await asyncio.sleep(0)
        return self.takes(order)

    @handler
    def checks(self, order: Checked) -> int:
        self.n += 1
        return order.number

    @handler
    def ticks(self, how: str) -> int:
        self.context.schedule_once(0.0, {"how": how})
        return 1

    @handler
    def pipes(self, how: str) -> None:
        async def work() -> None:
            await asyncio.sleep(0)
            if how:
                raise ODD[how]()

        self.context.pipe_to_self(work(), answer=True)

    def receive(self, message: Any) -> int:
        if isinstance(message, dict) and message["how"]:
            raise ODD[message["how"]]()
        if issubclass(type(message), BaseException):
            raise message
        return 1


class Starts(Page):
    failed: set[str]

    async def on_start(self) -> None:
        how, key = self.context.entity_id.partition(":")[0], self.context.entity_id
        if how in ODD and key not in self.failed:
            self.failed.add(key)
            raise ODD[how]()


class Stops(Page):
    async def on_stop(self, reason: object) -> None:
        how, _, key = self.context.entity_id.partition(":")
        if how in ODD:
            if key.endswith("waits"):
                await asyncio.sleep(0)
            raise ODD[how]()

    @handler
    def leave(self) -> None:
        self.context.passivate()


class Built(Page):
    failed: set[str]

    def __init__(self) -> None:
        super().__init__()
        how, key = self.context.entity_id.partition(":")[0], self.context.entity_id
        if how in ODD and key not in self.failed:
            self.failed.add(key)
            raise ODD[how]()


def application() -> ShardBus:
    bus = ShardBus("shop")
    for cls in (Page, Starts, Stops, Built):
        bus.entity(cls.__name__.lower(), shards=4, entity_restart_backoff_min=0.001)(
            type(cls.__name__, (cls,), {"failed": set()})
        )
    return bus


@pytest.fixture
async def pair(nodes: Nodes) -> tuple[Node, AsyncClient]:
    node = await nodes.start(application())
    return node, await nodes.client(node)


async def outcome(call: Any) -> Any:
    try:
        return await call
    except RequestError as error:
        return error


async def in_one_turn(client: AsyncClient, kind: str, bad: str, method: str, how: str) -> list[Any]:
    """Ask many entities at once; the one in the middle fails. Returns its answer first."""
    ids = [f"{bad}-{method}-{n}" for n in range(OTHERS)]
    calls = [client.call(kind, i, method, "", timeout=PATIENCE_S) for i in ids]
    calls.insert(OTHERS // 2, client.call(kind, bad, method, how, timeout=PATIENCE_S))
    answers = await asyncio.gather(*map(outcome, calls))
    return [answers.pop(OTHERS // 2), *answers]


async def balanced(node: Node) -> None:
    async def lacks() -> bool:
        async with http(node) as client:
            return missing((await client.get("/metrics")).text) == {}

    await until(lacks, "an exact account")
    assert all(account_of(region).waiting == 0 for region in node.regions.values())


METHODS = ("plain", "begins", "waits", "threads", "asks", "answers", "pipes")


@pytest.mark.parametrize("method", METHODS)
async def test_a_handler_that_fails_costs_its_own_message(
    pair: tuple[Node, AsyncClient], method: str, caplog: pytest.LogCaptureFixture
) -> None:
    node, client = pair
    skipped = {"exit", "exit_text", "interrupt"} if method == "asks" else set()
    for how in ODD.keys() - skipped:
        error, *others = await in_one_turn(client, "page", f"{how}:{method}", method, how)
        assert isinstance(error, RequestError), (how, error)
        assert len(str(error).encode()) < 40_000
        assert not [o for o in others if isinstance(o, RequestError)], (how, others)
        assert isinstance(await client.call("page", f"{how}:{method}", "read"), int)
    await balanced(node)
    assert node.failed_tasks == 0
    assert not [r for r in caplog.records if "failed on a" in r.getMessage()]


@pytest.mark.parametrize("method", ["takes", "takes_later", "checks"])
@pytest.mark.parametrize("others", [2, OTHERS, 100])  # one by one, and a run decoded ahead
async def test_an_argument_whose_class_raises_costs_its_own_message(
    pair: tuple[Node, AsyncClient], method: str, others: int
) -> None:
    node, client = pair
    for how in ODD:
        ids = [f"{how}-{method}-{n}" for n in range(others + 1)]
        orders = [{"number": n, "how": how if n == others // 2 else ""} for n in range(others + 1)]
        calls = [client.call("page", i, method, o) for i, o in zip(ids, orders, strict=True)]
        answers = await asyncio.gather(*map(outcome, calls))
        error = answers[others // 2]
        assert isinstance(error, SchemaError | EntityFailed), (how, error)
        answers[others // 2] = others // 2
        assert answers == list(range(others + 1)), how
        assert await client.call("page", ids[others // 2], method, {"number": 7}) == 7
        if isinstance(error, SchemaError):
            assert await client.call("page", ids[others // 2], "read") == 1
    await balanced(node)


async def test_the_answer_names_the_exception(pair: tuple[Node, AsyncClient]) -> None:
    _, client = pair
    names = {
        "panic": "Panic", "no_text": "NoText", "odd_name": "OddName", "lies": "LiesAboutItsClass",
        "no_class": "HasNoClass", "no_attributes": "HasNoAttributes", "exit": "SystemExit",
        "generator_exit": "GeneratorExit", "group": "ExceptionGroup", "cycle": "ValueError",
        "exit_group": "BaseExceptionGroup", "stop_async": "StopAsyncIteration",
    }  # fmt: skip
    for how, name in names.items():
        for method in ("plain", "threads"):
            error = await outcome(client.call("page", f"{how}:{method}", method, how))
            assert getattr(error, "type", None) == name, (how, method, error)
    for method in ("waits", "threads"):  # no coroutine raises it
        error = await outcome(client.call("page", "stop", method, "odd_stop"))
        assert error.type == "RuntimeError"


@pytest.mark.parametrize("kind", ["starts", "built"])
async def test_a_start_that_fails_once_is_tried_again(
    pair: tuple[Node, AsyncClient], kind: str
) -> None:
    node, client = pair
    never = {"unreadable"}
    for how in ODD.keys() - never:
        answer, *others = await in_one_turn(client, kind, f"{how}:a", "plain", "")
        assert answer == 1, (how, answer)
        assert others == [1] * OTHERS, how
    await balanced(node)
    assert node.regions[kind].host.counts.failures >= len(ODD) - 1


@pytest.mark.parametrize("end", ["at_once", "waits"])
async def test_a_stop_that_fails_ends_the_entity(pair: tuple[Node, AsyncClient], end: str) -> None:
    node, client = pair
    counts = node.regions["stops"].host.counts
    for how in ODD:
        before = counts.stopped.get("passivation", 0)
        assert await client.call("stops", f"{how}:{end}", "leave") is None
        await until(lambda: counts.stopped.get("passivation", 0) > before, f"the end, {how}")  # noqa: B023
        assert await client.call("stops", f"{how}:{end}", "plain", "") == 1
    assert counts.failures == len(ODD)
    await balanced(node)


async def test_a_timer_that_fails_costs_its_own_entity(pair: tuple[Node, AsyncClient]) -> None:
    node, client = pair
    counts = node.regions["page"].host.counts
    for how in ODD:
        before = counts.own_dropped + counts.failures
        await client.call("page", f"{how}:t", "ticks", how)
        await until(lambda: counts.own_dropped + counts.failures > before, f"its timer, {how}")  # noqa: B023
        assert await client.call("page", f"{how}:t", "plain", "") >= 1
    await balanced(node)


async def test_a_told_message_that_fails_is_counted_and_reported(
    pair: tuple[Node, AsyncClient],
) -> None:
    node, client = pair
    for how in ODD:
        for method in ("plain", "waits", "threads"):
            await client.cast("page", f"{how}:{method}", method, how)
    await client.flush()
    expected = 3 * (len(ODD) - 1)  # a rejection is no failure
    counts = node.regions["page"].host.counts
    await until(lambda: counts.dropped.get("failed") == expected, "the drops")
    await until(lambda: client.refused_messages.get("failed") == expected, "the reports")
    await balanced(node)


async def test_the_log_names_entity_and_type(
    pair: tuple[Node, AsyncClient], caplog: pytest.LogCaptureFixture
) -> None:
    _, client = pair
    for how in ("panic", "no_text", "odd_name", "no_attributes"):
        caplog.clear()
        await outcome(client.call("page", f"{how}:x", "waits", how))
        name = type.__dict__["__name__"].__get__(type(ODD[how]()))
        [line] = [r for r in caplog.records if r.name == "shardbus.entity"]
        assert name in line.getMessage()
        assert f"{how}:x" in line.getMessage()
        assert line.exc_text is not None
        assert "tests/odd_exceptions" in line.exc_text or "test_containment" in line.exc_text


class Raises(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        raise SystemExit(3)


async def test_a_filter_of_the_log_that_raises_costs_nothing(
    pair: tuple[Node, AsyncClient], capsys: pytest.CaptureFixture[str]
) -> None:
    node, client = pair
    root, fails = logging.getLogger(), Raises()
    handlers = [*root.handlers]
    for output in handlers:
        output.addFilter(fails)
    try:
        for method in ("plain", "waits"):
            error, *others = await in_one_turn(client, "page", f"log:{method}", method, "plain")
            assert error.type == "ValueError"
            assert others == [1] * OTHERS
    finally:
        for output in handlers:
            output.removeFilter(fails)
    await balanced(node)
    assert "a line of the log was lost" in capsys.readouterr().err
