"""The thread of the SQLite store: which requests it runs, and which it leaves out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from shardbus.errors import StoreUnavailable
from shardbus.store.sqlite_steps import Steps
from shardbus.store.sqlite_worker import SqliteWorker


def worker_of(tmp_path: Path, timeout: float = 20.0) -> SqliteWorker:
    worker = SqliteWorker(tmp_path / "bus.db", "shop", "me", full_sync=False, timeout=timeout)
    worker.start()
    return worker


def writes_down(ran: list[str], name: str) -> Callable[[Steps], None]:
    return lambda steps: ran.append(name)


async def test_a_call_that_was_given_up_before_its_turn_is_not_run(tmp_path: Path) -> None:
    worker = worker_of(tmp_path)
    ran: list[str] = []
    started, go_on = threading.Event(), threading.Event()

    def blocks(steps: Steps) -> None:
        started.set()
        go_on.wait(20)
        ran.append("first")

    first = asyncio.ensure_future(worker.call(blocks))
    await asyncio.to_thread(started.wait, 20)
    second = asyncio.ensure_future(worker.call(writes_down(ran, "second")))
    third = asyncio.ensure_future(worker.call(writes_down(ran, "third")))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    go_on.set()
    await first
    await third
    await worker.close()
    assert ran == ["first", "third"]


async def test_requests_run_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    worker = worker_of(tmp_path)
    ran: list[str] = []
    await asyncio.gather(*(worker.call(writes_down(ran, f"{n}")) for n in range(1000)))
    await worker.close()
    assert ran == [f"{n}" for n in range(1000)]


async def test_a_closed_worker_refuses_calls_and_starts_again(tmp_path: Path) -> None:
    worker = worker_of(tmp_path)
    await worker.close()
    with pytest.raises(StoreUnavailable, match="not open"):
        await worker.call(lambda steps: None)
    worker.start()
    assert await worker.call(lambda steps: 7) == 7
    await worker.close()


async def test_a_defect_fails_its_calls_and_does_not_end_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker = worker_of(tmp_path)

    def broken(self: SqliteWorker) -> Steps:
        raise KeyError("planted")

    monkeypatch.setattr(SqliteWorker, "_connected", broken)
    with pytest.raises(StoreUnavailable, match="planted"):
        await worker.call(lambda steps: None)
    assert "KeyError" in caplog.text
    monkeypatch.undo()
    assert await worker.call(lambda steps: 7) == 7
    await worker.close()
