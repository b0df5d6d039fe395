"""An error that comes out of a node's loop does not end the node, unless a signal has raised it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator

import pytest

from shardbus.node.run import run_to_end
from tests.odd_exceptions import Panic


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    before = signal.signal(signal.SIGINT, lambda *_: None)  # as a loop does that handles it
    yield loop
    signal.signal(signal.SIGINT, before)
    loop.close()


async def _raise(error: BaseException) -> None:
    raise error


def raising(error: BaseException) -> Callable[[], object]:
    return lambda: asyncio.ensure_future(_raise(error))


ENDS: dict[str, Callable[[], object]] = {
    "exit": raising(SystemExit(2)),
    "interrupt": raising(KeyboardInterrupt()),
    "callback": lambda: asyncio.get_running_loop().call_soon(exit, 3),
    "stop": lambda: asyncio.get_running_loop().stop(),
}


@pytest.mark.parametrize("how", ENDS)
def test_no_task_of_a_handler_ends_the_loop(
    loop: asyncio.AbstractEventLoop, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> int:
        for _ in range(3):
            ENDS[how]()
            await asyncio.sleep(0.001)
        return 7

    assert run_to_end(loop, main()) == 7
    lines = [r for r in caplog.records if "has stopped the loop" in r.getMessage()]
    assert len(lines) == 3


@pytest.mark.parametrize("error", [SystemExit(2), KeyboardInterrupt(), Panic(), ValueError()])
def test_what_the_node_itself_raises_ends_it(
    loop: asyncio.AbstractEventLoop, error: BaseException
) -> None:
    with pytest.raises(type(error)):
        run_to_end(loop, _raise(error))  # type: ignore[arg-type]


def test_an_exception_of_a_signal_ends_the_node(loop: asyncio.AbstractEventLoop) -> None:
    def leave(number: int, frame: object) -> None:
        raise SystemExit(5)

    async def main() -> int:
        loop.call_soon(os.kill, os.getpid(), signal.SIGUSR1)
        await asyncio.sleep(60.0)
        return 0

    before = signal.signal(signal.SIGUSR1, leave)
    try:
        with pytest.raises(SystemExit) as ended:
            run_to_end(loop, main())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ended.value.code == 5
