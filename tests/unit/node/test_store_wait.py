"""The wait of a node for its store: the pauses, the end, and the line of each attempt."""

from __future__ import annotations

import asyncio
import logging

import pytest

from shardbus.errors import StoreUnavailable
from shardbus.node.store_wait import AGAIN_MAX_S, StoreWait
from tests.virtual_time import virtual


def attempts(within: float, lasts: float, most: int = 1000) -> list[float]:
    """The times of the attempts of a wait that began at 100, each of which takes `lasts` seconds
    and fails."""
    wait, now, times = StoreWait(within, 100.0, "starts"), 100.0, list[float]()
    while len(times) < most:
        times.append(now - 100.0)
        now += lasts
        pause = wait.pause(now)
        if pause is None:
            break
        now += pause
    return times


@pytest.mark.parametrize(
    ("within", "lasts", "times"),
    [
        (30.0, 0.0, [0.0, 0.5, 1.5, 3.5, 7.5, 15.5, 25.5, 30.0]),
        (30.0, 2.0, [0.0, 2.5, 5.5, 9.5, 15.5, 25.5, 30.0]),
        (1.0, 0.0, [0.0, 0.5, 1.0]),
        (1.0, 2.0, [0.0]),
        (0.001, 0.0, [0.0, 0.001]),
    ],
)
def test_attempts(within: float, lasts: float, times: list[float]) -> None:
    """The last one begins at the end of the time, however long an attempt takes."""
    assert attempts(within, lasts) == pytest.approx(times)


def test_a_wait_without_end() -> None:
    times = attempts(0.0, 0.0, most=100)
    assert times[-1] - times[-2] == AGAIN_MAX_S


@virtual
async def test_each_attempt_has_a_line_and_the_last_error_is_raised() -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("shardbus.node")
    logger.addHandler(handler)
    try:
        loop = asyncio.get_running_loop()
        wait = StoreWait(1.0, loop.time(), "starts")
        for which in ("first", "second"):
            await wait.after(StoreUnavailable(f"the {which} does not respond"))
        with pytest.raises(StoreUnavailable, match="third"):
            await wait.after(StoreUnavailable("the third does not respond"))
    finally:
        logger.removeHandler(handler)
    assert lines == [
        "this node starts once its store answers, for 1 s more: the first does not respond",
        "this node starts once its store answers, for 0 s more: the second does not respond",
    ]
