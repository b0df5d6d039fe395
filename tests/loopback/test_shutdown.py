"""A node leaves phase by phase, and the application's tasks of a phase find the node in that
phase."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.membership.events import Down
from shardbus.membership.member import Status
from shardbus.node import shutdown
from shardbus.node.node import Node
from shardbus.node.shutdown_phases import HAND_OFF, PHASES
from tests.loopback.nodes import Nodes, http, ready
from tests.waiting import PATIENCE_S, until


def application() -> tuple[ShardBus, Any]:
    bus = ShardBus("shop")

    @bus.entity("counter", shards=1000)
    class Counter(Entity):
        @handler
        def add(self) -> str:
            return self.context.node

    return bus, Counter


def hosted(node: Node) -> int:
    return sum(len(kind.host.shards) for kind in node.regions.values())


async def test_B141_every_phase_finds_the_node_as_it_should_be(nodes: Nodes) -> None:
    bus, counter = application()
    pair = await nodes.cluster(bus, 2)
    leaver = pair[1]
    await asyncio.gather(*(leaver.ref(counter, f"e{i}").add() for i in range(40)))
    seen: list[tuple[str, bool, bool, bool]] = []

    def look(phase: str) -> None:
        up = leaver.view is not None and leaver.view.status is Status.UP
        seen.append((phase, up, hosted(leaver) > 0, leaver.membership.stopped.done()))

    for phase in PHASES:
        leaver.phases.add(phase, lambda phase=phase: look(phase))
    assert await shutdown.leave(leaver, lambda text: None)
    assert seen == [
        ("before-service-unbind", True, True, False),
        ("service-unbind", True, True, False),
        ("service-requests-done", True, True, False),
        ("service-stop", True, True, False),
        ("before-cluster-shutdown", True, True, False),
        ("cluster-sharding-shutdown-region", True, True, False),  # beside the handing off
        ("cluster-leave", True, False, False),
        ("cluster-shutdown", False, False, True),
    ]


async def test_TS8_asks_and_tells_before_cluster_shutdown_are_answered(nodes: Nodes) -> None:
    """The oldest two leave at once, with the coordinator; the third stays."""
    bus, counter = application()
    trio = await nodes.cluster(bus, 3)
    answers: list[str] = []

    def asks(node: Node) -> Any:
        async def task() -> None:
            fresh = [node.ref(counter, f"{node.me.port}-{i}") for i in range(20)]
            for ref in fresh:
                await ref.add.tell()
            answers.extend(await asyncio.gather(*(ref.add() for ref in fresh)))

        return task

    for node in trio[:2]:
        node.phases.add("before-cluster-shutdown", asks(node))
    await asyncio.gather(*(nodes.leave(node) for node in trio[:2]))
    assert len(answers) == 40
    await until(lambda: ready(trio[2]), "the one that stays")
    assert await trio[2].ref(counter, "last").add() == str(trio[2].me)


async def test_a_leaving_node_is_not_ready_from_the_first_phase_on(nodes: Nodes) -> None:
    bus, _ = application()
    node = await nodes.start(bus)
    seen: list[tuple[int, Any]] = []

    async def look() -> None:
        async with http(node) as client:
            answer = await client.get("/readyz")
        seen.append((answer.status_code, answer.json()["checks"]["membership"]["detail"]))

    node.phases.add("before-service-unbind", look)
    assert ready(node)
    await shutdown.leave(node, lambda text: None)
    assert seen == [(503, "before-service-unbind")]


async def test_a_handoff_that_is_late_ends_the_node_without_leaving(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, counter = application()
    pair = await nodes.cluster(bus, 2)
    leaver, seen, said = pair[1], list[str](), list[str]()
    for kind in leaver.regions.values():
        never = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(kind, "shutdown", lambda never=never: never)
    monkeypatch.setattr(
        leaver.phases, "seconds", lambda phase, longest: 0.05 if phase == HAND_OFF else 20.0
    )
    leaver.phases.add("cluster-leave", lambda: seen.append("cluster-leave"))
    leaver.phases.add("cluster-shutdown", lambda: seen.append("cluster-shutdown"))
    assert not await shutdown.leave(leaver, said.append)
    assert seen == ["cluster-shutdown"]
    assert not leaver.membership.stopped.done()
    assert "leaving the cluster" not in said
    assert await pair[0].ref(counter, "x").add()


@pytest.mark.parametrize("phase", ["service-unbind", HAND_OFF])
async def test_a_node_that_is_downed_as_it_leaves_stops_at_once(nodes: Nodes, phase: str) -> None:
    """The purpose of phases is fulfilled: others have its shards."""
    bus, _ = application()
    pair = await nodes.cluster(bus, 2)
    leaver, seen, said = pair[1], list[str](), list[str]()
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def linger() -> None:
        entered.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    leaver.phases.add(phase, linger)
    for late in PHASES[PHASES.index(phase) + 1 :]:
        leaver.phases.add(late, lambda late=late: seen.append(late))
    leaver.phases.seconds = lambda phase, longest: 3600.0  # type: ignore[method-assign]
    leaving = asyncio.ensure_future(shutdown.leave(leaver, said.append))
    await asyncio.wait_for(entered.wait(), PATIENCE_S)
    pair[0].cluster.post(Down(leaver.me))
    assert not await asyncio.wait_for(leaving, PATIENCE_S)
    assert leaver.membership.stopped.result() != shutdown.LEFT
    await asyncio.wait_for(cancelled.wait(), PATIENCE_S)
    assert seen == []
    assert "leaving the cluster" not in said
