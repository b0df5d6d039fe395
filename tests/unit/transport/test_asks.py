"""Asks: one outcome each, whatever comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from shardbus import errors
from shardbus.errors import (
    AskTimeout,
    EntityFailed,
    NodeLost,
    ReentrancyError,
    Rejection,
    RequestError,
    SchemaError,
    StateUnreadable,
    Unhandled,
)
from shardbus.transport.asks import LOOKS_TICKS, Asks, CoarseClock, fail_of, failure
from shardbus.wire.batch import Fail, ReplyRun
from shardbus.wire.schema import decode_value, encode_value


class Waiter:
    """Somebody who waits without a future."""

    def __init__(self) -> None:
        self.outcomes: list[object] = []

    def resolve(self, payload: bytes) -> None:
        self.outcomes.append(payload)

    def fail(self, error: RequestError) -> None:
        self.outcomes.append(type(error))


@pytest.fixture
def clock() -> CoarseClock:
    return CoarseClock()


@pytest.fixture
def asks(clock: CoarseClock) -> Asks:
    return Asks(clock)


def future() -> asyncio.Future[object]:
    return asyncio.get_running_loop().create_future()


def replies(*answers: tuple[int, bytes]) -> ReplyRun:
    return ReplyRun([corr for corr, _ in answers], [payload for _, payload in answers])


def later(clock: CoarseClock, ms: int) -> None:
    clock.tick += ms // CoarseClock.TICK_MS


async def test_answers_reach_their_asks_in_any_order(asks: Asks) -> None:
    first, second, waiter = future(), future(), Waiter()
    a, b = asks.expect(first, decode_value, 1000), asks.expect(second, decode_value, 1000)
    c = asks.expect(waiter, None, 1000)
    assert len({0, a, b, c}) == 4
    asks.on_replies(replies((c, b"raw"), (b, b"\x02"), (a, b"\x01")))
    assert (first.result(), second.result(), waiter.outcomes) == (1, 2, [b"raw"])
    assert not asks.entries


async def test_an_ask_made_after_the_loop_was_blocked_has_its_full_timeout() -> None:
    """The clock has not moved on yet then, and leaps before the answer can come."""
    now = 100.0
    clock = CoarseClock()
    clock.start(lambda: now)
    asks = Asks(clock)
    now += 10.0
    answer = future()
    asks.expect(answer, decode_value, 1000)
    for seconds, late in ((0.0, 0), (0.9, 0), (0.3, 1)):
        now += seconds
        clock.move()
        assert asks.expire("b") == late
    assert isinstance(answer.exception(), AskTimeout)


async def test_an_answer_without_an_ask_is_ignored(asks: Asks) -> None:
    waits = future()
    corr = asks.expect(waits, decode_value, 1000)
    asks.on_replies(replies((corr + 1, b"\x01"), (corr, b"\x02"), (corr, b"\x03")))
    asks.on_fail(Fail(corr, "Unhandled", "", ""))
    assert waits.result() == 2


async def test_an_answer_that_does_not_fit_is_a_schema_error(asks: Asks) -> None:
    broken, whole = future(), future()
    run = replies(
        (asks.expect(broken, decode_value, 1000), b"\xc1"),
        (asks.expect(whole, decode_value, 1000), b"\x01"),
    )
    asks.on_replies(run)
    misfit = broken.exception()
    assert isinstance(misfit, SchemaError)
    assert not misfit.definite, "the handler ran"
    assert SchemaError.definite
    assert whole.result() == 1


async def test_a_cancelled_caller_is_left_alone(asks: Asks, clock: CoarseClock) -> None:
    gone = [future() for _ in range(4)]
    corrs = [asks.expect(f, decode_value, 1000) for f in gone]
    for f in gone:
        f.cancel()
    asks.on_replies(replies((corrs[0], b"\x01")))
    asks.on_fail(Fail(corrs[1], "Unhandled", "", ""))
    asks.abandon(NodeLost("gone"))
    assert not asks.entries
    assert all(f.cancelled() for f in gone)


async def test_a_deadline_is_never_early_and_comes_once(asks: Asks, clock: CoarseClock) -> None:
    clock.tick = 1000
    waits, waiter = future(), Waiter()
    asks.expect(waits, decode_value, 120)
    corr = asks.expect(waiter, None, 120)
    later(clock, 120 + CoarseClock.TICK_MS)
    assert asks.expire("n1") == 0
    later(clock, CoarseClock.TICK_MS)
    assert asks.expire("n1") == 2
    assert isinstance(waits.exception(), AskTimeout)
    assert "n1" in str(waits.exception())
    assert asks.expire("n1") == 0
    asks.on_replies(replies((corr, b"late")))
    assert waiter.outcomes == [AskTimeout]


async def test_a_lost_session_fails_them_all_once(asks: Asks, clock: CoarseClock) -> None:
    waits, waiter = future(), Waiter()
    asks.expect(waits, decode_value, 50)
    asks.expect(waiter, None, 50)
    asks.abandon(NodeLost("n1 is gone"))
    later(clock, 1000)
    assert asks.expire("n1") == 0
    asks.abandon(NodeLost("again"))
    assert isinstance(waits.exception(), NodeLost)
    assert waiter.outcomes == [NodeLost]


async def test_a_removed_ask_gets_no_outcome_here(asks: Asks, clock: CoarseClock) -> None:
    waits = future()
    corr = asks.expect(waits, decode_value, 100)
    taken = asks.take(corr)
    assert taken is not None
    assert (taken.waiter, taken.decode) == (waits, decode_value)
    assert taken.deadline == clock.after(100)
    assert asks.take(corr) is None
    asks.abandon(NodeLost("gone"))
    assert not waits.done()


KNOWN = [
    cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, RequestError) and cls is not RequestError
]


@pytest.mark.parametrize("cls", KNOWN)
def test_every_request_error_arrives_as_itself(cls: type[RequestError]) -> None:
    failed = failure(Fail(1, cls.__name__, "why", "ValueError"))
    assert type(failed) is cls
    assert failed.message.endswith("why")
    assert failed.definite is cls.definite


@pytest.mark.parametrize("cls", [cls for cls in KNOWN if cls is not Rejection])
def test_no_error_is_definite_once_a_handler_has_begun(cls: type[RequestError]) -> None:
    made = cls("why", "ValueError") if cls is EntityFailed else cls("why")  # type: ignore[call-arg]
    fail = fail_of(1, made, begun=True)
    assert fail.begun is cls.definite, "it travels only where the class says otherwise"
    arrived = failure(fail)
    assert type(arrived) is cls
    assert not arrived.definite
    again = failure(fail_of(2, failure(fail, relayed=True)), relayed=True)
    assert not again.definite  # type: ignore[union-attr]
    assert failure(fail_of(3, made)).definite is cls.definite  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["ValueError", "RequestError", "ShardBusError", "annotations", ""])
def test_any_other_name_is_a_failed_entity(name: str) -> None:
    failed = failure(Fail(1, name, "why", ""))
    assert isinstance(failed, EntityFailed)
    assert (failed.type, failed.message, failed.definite) == (name, "why", False)


def test_an_unreadable_state_arrives_with_its_entity_its_version_and_its_field() -> None:
    error = StateUnreadable("why", entity_type="a", entity_id="é\n", version=3, field="x[...]")
    arrived = failure(fail_of(1, error))
    assert isinstance(arrived, StateUnreadable)
    assert vars(arrived) == vars(error)
    assert arrived.definite
    for detail in ("", "[]", '["a", 1, 3, "x"]', "{"):
        kept = failure(Fail(1, "StateUnreadable", "why", detail))
        assert (str(kept), vars(kept)["entity_id"]) == ("why", "")


def test_a_cycle_arrives_as_itself_with_its_entities() -> None:
    cycle = (("page", "a -> b"), ("user", "é'\""), ("page", "a -> b"))
    arrived = failure(fail_of(1, ReentrancyError(cycle)))
    assert isinstance(arrived, ReentrancyError)
    assert arrived.cycle == cycle
    assert "page 'a -> b' -> user" in str(arrived)


@pytest.mark.parametrize(
    "detail", ["", "{}", "[]", '[["page"]]', '[["page", 1], ["page", 2]]', "["]
)
def test_a_cycle_that_cannot_be_read_is_a_failed_entity(detail: str) -> None:
    failed = failure(Fail(1, "ReentrancyError", "why", detail))
    assert isinstance(failed, EntityFailed)
    assert (failed.type, failed.message) == ("ReentrancyError", "why")


@dataclass
class Empty(Rejection):
    left: int


@dataclass
class Boasts(Rejection):
    definite: bool = True


def test_no_rejection_is_definite_whatever_its_class_says() -> None:
    arrived = failure(fail_of(1, Boasts()))
    assert isinstance(arrived, Rejection)
    assert (arrived.type, arrived.definite) == ("Boasts", False)


def test_a_rejection_arrives_as_itself() -> None:
    fail = fail_of(1, Empty(3))
    assert (fail.error, fail.detail) == ("Rejection", f"{__name__}:Empty")
    assert failure(fail) == Empty(3)


def test_a_rejection_that_cannot_travel_is_a_failed_entity() -> None:
    failed = failure(fail_of(1, Empty(object())))  # type: ignore[arg-type]
    assert isinstance(failed, EntityFailed)
    assert failed.type == "SchemaError"


async def test_a_process_that_passes_a_rejection_on_does_not_read_it(asks: Asks) -> None:
    """Its version of the class may lack a field."""
    passed: list[Exception] = []

    class Relay(Waiter):
        def fail(self, error: RequestError) -> None:
            passed.append(error)

    fields = encode_value({"left": 3, "newer": 1})
    asks.on_fail(
        Fail(asks.expect(Relay(), None, 100), "Rejection", "t", f"{__name__}:Empty", fields)
    )
    [error] = passed
    assert type(error) is Rejection
    assert fail_of(9, error) == Fail(9, "Rejection", "t", f"{__name__}:Empty", fields)


async def test_a_failure_reaches_a_future_and_a_waiter(asks: Asks) -> None:
    waits, waiter = future(), Waiter()
    make: Callable[[int], Fail] = lambda corr: Fail(corr, "Unhandled", "no", "")  # noqa: E731
    asks.on_fail(make(asks.expect(waits, decode_value, 100)))
    asks.on_fail(make(asks.expect(waiter, None, 100)))
    with pytest.raises(Unhandled, match="no"):
        waits.result()
    assert waiter.outcomes == [Unhandled]


def test_asks_are_looked_at_only_when_one_may_expire(asks: Asks, clock: CoarseClock) -> None:
    """100,000 pending asks would cost a tenth of a core if each tick looked at them."""

    class Counted(dict[int, Any]):
        looks = 0

        def items(self) -> Any:
            self.looks += 1
            return super().items()

    entries = asks.entries = Counted()
    waiter, late = Waiter(), Waiter()
    asks.expect(waiter, None, 60_000)
    for _ in range(100):
        later(clock, CoarseClock.TICK_MS)
        assert asks.expire("n1") == 0
    assert entries.looks <= 100 / LOOKS_TICKS + 1
    asks.expect(late, None, 100)
    later(clock, 300)
    assert asks.expire("n1") == 1
    assert (waiter.outcomes, late.outcomes) == ([], [AskTimeout])
    deadline = asks.deadline(100)
    later(clock, 300)
    assert asks.expire("n1") == 0
    asks.entries[99] = (late, None, deadline)
    later(clock, 1000)
    assert asks.expire("n1") == 1, "its run was open for longer than its deadline"
    later(clock, 60_000)
    assert asks.expire("n1") == 1
