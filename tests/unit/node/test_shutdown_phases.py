"""The phases of leaving: side by side, in time, and nobody stops the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from shardbus import ConfigError, ShardBus
from shardbus.config.settings import ShutdownSettings
from shardbus.node.shutdown_phases import HAND_OFF, HAND_OFF_MORE_S, PHASES, Phases

LONG = 20.0
SHORT = 0.02


class Told:
    """Phases, and their log lines."""

    def __init__(self) -> None:
        self.phases = Phases(ShutdownSettings())
        self.said: list[str] = []

    async def run(self, phase: str, seconds: float = LONG, own: Any = None) -> bool:
        return await self.phases.run(phase, seconds, self.said.append, own)


async def test_tasks_of_a_phase_run_side_by_side_and_those_of_others_do_not() -> None:
    log, met = Told(), asyncio.Barrier(3)

    async def meet() -> None:
        await met.wait()

    async def other() -> None:
        raise AssertionError("another phase")

    log.phases.add("service-stop", meet)
    log.phases.add("service-stop", meet)
    log.phases.add("service-unbind", other)
    assert await log.run("service-stop", own=meet())
    assert log.phases.current == "service-stop"
    assert len(log.said) == 1
    assert log.said[0].startswith("service-stop: ")
    assert log.said[0].count("meet") == 2


async def test_a_phase_without_tasks_says_nothing_and_takes_no_time() -> None:
    log = Told()
    assert await log.run("service-stop", seconds=0.0)
    assert log.said == []


async def test_plain_functions_and_failing_tasks_stop_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, done = Told(), []

    async def fails() -> None:
        raise ValueError("no")

    async def works() -> None:
        await asyncio.sleep(0)
        done.append("async")

    for task in (lambda: 1 / 0, fails, works, lambda: done.append("plain")):
        log.phases.add("service-stop", task)
    assert await log.run("service-stop", own=works())
    assert sorted(done) == ["async", "async", "plain"]
    assert sum("failed" in record.getMessage() for record in caplog.records) == 2


async def test_what_is_late_is_cancelled_named_and_not_waited_for() -> None:
    log, cancelled = Told(), asyncio.Event()

    async def late() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def deaf() -> None:
        while not cancelled.is_set():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await cancelled.wait()

    async def quick() -> None: ...

    for task in (late, deaf, quick):
        log.phases.add("service-stop", task)
    assert await log.run("service-stop", SHORT, own=quick())
    await asyncio.wait_for(cancelled.wait(), LONG)
    assert log.said[1].startswith("service-stop: not done after 0.02 s, going on: ")
    assert "late" in log.said[1]
    assert "deaf" in log.said[1]
    assert "quick" not in log.said[1]


async def test_the_nodes_own_work_says_whether_it_was_in_time() -> None:
    log = Told()

    async def own() -> None:
        await asyncio.Event().wait()

    assert not await log.run(HAND_OFF, SHORT, own=own())


async def test_a_phase_that_is_cancelled_cancels_its_tasks() -> None:
    log, begun, cancelled = Told(), asyncio.Event(), asyncio.Event()

    async def task() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    log.phases.add("service-stop", task)
    running = asyncio.ensure_future(log.run("service-stop"))
    await begun.wait()
    running.cancel()
    await asyncio.wait_for(cancelled.wait(), LONG)


def test_every_phase_has_a_setting_and_they_add_up() -> None:
    names = {f.name for f in fields(ShutdownSettings)}
    assert names == {phase.replace("-", "_") for phase in PHASES}
    phases = Phases(ShutdownSettings())
    assert phases.seconds(HAND_OFF, 60.0) == 60.0 + HAND_OFF_MORE_S
    assert Phases(ShutdownSettings(cluster_sharding_shutdown_region=3)).seconds(HAND_OFF, 60) == 3
    assert phases.total(60.0) == sum(phases.seconds(phase, 60.0) for phase in PHASES)


def test_a_phase_that_does_not_exist_is_refused_with_the_closest() -> None:
    bus = ShardBus("shop")
    with pytest.raises(ConfigError, match="did you mean before-cluster-shutdown"):
        bus.on_shutdown("before_cluster_shutdown")


async def test_the_decorator_gives_the_function_back_and_hangs_it_in() -> None:
    bus, done = ShardBus("shop"), []

    class Node:
        def __init__(self) -> None:
            self.phases = Phases(ShutdownSettings())

    @bus.on_shutdown("service-stop")
    def first() -> None:
        done.append("first")

    node: Any = Node()
    bus.attach(node)

    @bus.on_shutdown("service-stop")
    async def second() -> None:
        done.append("second")

    first()
    await node.phases.run("service-stop", LONG, done.append)
    says: Callable[[Any], bool] = lambda text: text.startswith("service-stop: ")  # noqa: E731
    assert [text for text in done if not says(text)] == ["first", "first", "second"]
