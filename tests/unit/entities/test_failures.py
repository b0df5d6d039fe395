"""A type's record of failures: counts and texts, within bounds, and never an exception."""

from __future__ import annotations

import gc
import weakref

import pytest

from shardbus import Entity, EntityFailed, ShardBus, handler
from shardbus.entities.failures import (
    ERROR_MAX,
    KEPT,
    METHODS_MAX,
    STACK_EVERY_S,
    STACK_MAX,
    STARTS_MAX,
    HandlerFailures,
)
from tests.unit.entities.entity_kit import Bench
from tests.waiting import until


class Order(Entity):
    """Handlers that fail, before or with their answer."""

    @handler
    def pay(self, amount: int) -> None:
        raise ValueError(f"no money for {amount}")

    @handler
    def ship(self) -> object:
        return lambda: None

    async def on_stop(self, reason: object) -> None:
        raise OSError("no paper")


class Unspeakable(Exception):
    """An exception that has no text."""

    def __str__(self) -> str:
        raise RuntimeError


class Kept(Exception):
    """An exception that a weak reference can follow."""


def raised(error: Exception) -> Exception:
    """The exception with a traceback."""
    try:
        raise error
    except Exception as e:
        return e


def test_failures_are_counted_by_method_and_the_last_are_kept_as_text() -> None:
    failed = HandlerFailures()
    for n in range(KEPT + 2):
        failed.add(float(n), "pay", f"o-{n}", raised(ValueError(f"no {n}")))
    pay = failed.methods["pay"]
    assert pay.count == KEPT + 2
    assert [(failure.entity_id, failure.error, failure.text) for failure in pay.last] == [
        (f"o-{n}", "ValueError", f"no {n}") for n in range(2, KEPT + 2)
    ]
    assert "in raised" in pay.last[-1].stack
    assert pay.last[-1].stack.endswith(f"ValueError: no {KEPT + 1}")


def test_one_traceback_a_second_is_written() -> None:
    failed = HandlerFailures()
    for at in (0.0, 0.9 * STACK_EVERY_S, STACK_EVERY_S):
        failed.add(at, "pay", "o-1", raised(ValueError()))
    assert [bool(failure.stack) for failure in failed.methods["pay"].last] == [True, False, True]


def test_no_exception_is_kept_and_any_has_a_text() -> None:
    failed, error = HandlerFailures(), raised(Kept("x" * 10 * ERROR_MAX))
    gone = weakref.ref(error)
    failed.add(0.0, "pay", "o-1", error, "its answer cannot be sent: ")
    failed.not_started(0.0, "o-1", error, unreadable=False)
    del error
    gc.collect()
    assert gone() is None
    [kept] = failed.methods["pay"].last
    assert kept.text.startswith("its answer cannot be sent: xxx")
    assert len(kept.text) < 2 * ERROR_MAX
    assert len(kept.stack) <= STACK_MAX
    failed.add(9.0, "pay", "o-1", raised(Unspeakable()))
    assert failed.methods["pay"].last[-1].text == "<no text: str() raised RuntimeError>"


def test_methods_and_starts_are_bounded_and_those_that_failed_last_stay() -> None:
    failed = HandlerFailures()
    for n in range(METHODS_MAX):
        failed.add(0.0, f"m{n}", "o", ValueError())
    failed.add(1.0, "m0", "o", ValueError())
    failed.add(1.0, "new", "o", ValueError())
    assert len(failed.methods) == METHODS_MAX
    assert list(failed.methods)[-2:] == ["m0", "new"]
    assert "m1" not in failed.methods
    for n in range(STARTS_MAX + 1):
        failed.not_started(0.0, f"o-{n}", ValueError("no"), unreadable=n % 2 == 0)
    assert list(failed.starts) == [f"o-{n}" for n in range(1, STARTS_MAX + 1)]
    failed.not_started(5.0, "o-3", ValueError("still no"), unreadable=False)
    assert failed.starts["o-3"][:3] == (5.0, 2, "ValueError: still no")
    assert next(iter(failed.unreadable.items())) == ("o-2", "no")
    failed.started("o-3")
    assert "o-3" not in failed.starts


async def test_handlers_answers_and_ends_that_fail_are_listed_by_method() -> None:
    bus = ShardBus("shop")
    bus.entity("order")(Order)
    b = Bench(bus)
    for method, arguments in (("pay", (3,)), ("ship", ()), ("pay", (4,))):
        with pytest.raises(EntityFailed):
            await b.ask("o-1", method, *arguments)
    b.tell("o-2", "pay", 5)
    methods = b.host.counts.failed.methods
    await until(lambda: methods["pay"].count == 3, "a told message that fails")
    b.stop()
    await b.stopped()
    assert {name: kept.count for name, kept in methods.items()} == {
        "pay": 3,
        "ship": 1,
        "on_stop": 2,
    }
    assert methods["pay"].last[-1].text == "no money for 5"
    assert methods["ship"].last[0].text.startswith("its answer cannot be sent: ")
    assert b.host.counts.failures == 5, "the entity with the answer did not fail"
