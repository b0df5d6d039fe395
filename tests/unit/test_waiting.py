"""The waits of tests when nothing comes."""

from __future__ import annotations

import asyncio

import pytest

from tests import waiting


def test_a_loop_with_nothing_to_do_fails_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "IDLE_S", 0.01)

    async def wait_in_vain() -> None:
        waiting.fail_when_idle(asyncio.get_running_loop())
        await asyncio.Event().wait()

    with pytest.raises(AssertionError, match="nothing is going to do"):
        asyncio.run(wait_in_vain())


def test_a_loop_that_waits_for_a_thread_or_a_timer_is_not_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def wait() -> str:
        waiting.fail_when_idle(asyncio.get_running_loop())
        await asyncio.sleep(0.02)
        return await asyncio.to_thread(lambda: "done")

    monkeypatch.setattr(waiting, "IDLE_S", 60.0)
    assert asyncio.run(wait()) == "done"
