"""The thread of a strategy: one call at a time, and none that keeps the process from ending."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from shardbus.shells.strategy_thread import StrategyThread
from tests.waiting import PATIENCE_S, turns, until


async def test_a_call_runs_in_another_thread_and_its_answer_or_error_comes_back() -> None:
    thread = StrategyThread("page")
    assert await thread.run(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 / 0)


async def test_a_call_waits_for_an_earlier_one_even_if_nobody_waits_for_that() -> None:
    thread, go_on, calls = StrategyThread("page"), threading.Event(), list[str]()

    def hang() -> None:
        calls.append("hangs")
        go_on.wait(PATIENCE_S)

    first = asyncio.ensure_future(thread.run(hang))
    await until(lambda: calls, "the first call")
    first.cancel()
    later = [asyncio.ensure_future(thread.run(lambda: calls.append("goes on"))) for _ in range(3)]
    await turns()
    assert calls == ["hangs"]
    go_on.set()
    await asyncio.gather(*later)
    assert calls == ["hangs", *["goes on"] * 3]


def test_a_call_that_hangs_does_not_keep_the_process_from_ending() -> None:
    code = """
import asyncio, threading
from shardbus.shells.strategy_thread import StrategyThread
async def main():
    call = asyncio.ensure_future(StrategyThread("page").run(threading.Event().wait))
    await asyncio.sleep(0)
    call.cancel()
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)
