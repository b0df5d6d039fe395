"""Only an exception that a signal has raised is an interrupt."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from shardbus.tasks.interrupts import is_interrupt


@pytest.fixture
def handled() -> Iterator[Callable[[Any], None]]:
    """Install functions for a signal that nothing else sends."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR2)}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield partial(signal.signal, signal.SIGUSR2)
    for number, function in before.items():
        signal.signal(number, function)


def raised(work: Callable[[], object]) -> BaseException:
    try:
        work()
    except BaseException as e:
        return e
    raise AssertionError("nothing was raised")


def by_signal() -> None:
    signal.raise_signal(signal.SIGUSR2)


class Ends:
    """Functions for a signal."""

    def method(self, *_: object) -> None:
        sys.exit(3)

    @staticmethod
    def deep(*_: object) -> None:
        raise_interrupt_here()


def raise_interrupt_here() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("function", [Ends().method, Ends.deep, partial(Ends.deep, 1)])
def test_what_the_function_of_a_signal_raises_is_one(handled: Any, function: Any) -> None:
    handled(function)
    assert is_interrupt(raised(by_signal))


@pytest.mark.parametrize("work", [partial(sys.exit, 2), raise_interrupt_here])
def test_what_code_raises_is_none(handled: Any, work: Callable[[], object]) -> None:
    handled(Ends().method)
    assert not is_interrupt(raised(work))


def test_an_ordinary_error_is_none(handled: Any) -> None:
    def fails(*_: object) -> None:
        raise ValueError

    handled(fails)
    assert not is_interrupt(raised(by_signal))


def test_the_function_of_python_itself_leaves_no_frame(handled: Any) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert is_interrupt(raised(raise_interrupt_here))
    assert not is_interrupt(raised(partial(sys.exit, 2)))


def test_no_signal_raises_in_another_thread(handled: Any) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(is_interrupt(KeyboardInterrupt())))
    thread.start()
    thread.join()
    assert seen == [False]


def test_the_second_ctrl_c_of_a_runner_is_one() -> None:
    """`asyncio.Runner` cancels its task at the first one, and raises at the second."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seen: list[bool] = []

    async def main() -> None:
        signal.raise_signal(signal.SIGINT)
        seen.append(is_interrupt(raised(lambda: signal.raise_signal(signal.SIGINT))))

    with pytest.raises(KeyboardInterrupt), asyncio.Runner() as runner:
        runner.run(main())
    assert seen == [True]
