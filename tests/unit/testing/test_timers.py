"""The table "Lifetimes" of the page "Timers", cell by cell, on a node in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from shardbus import Entity, EntityFailed, ShardBus, StaleActivation, handler
from shardbus.testing import TestCluster

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "timers.md"
DELAY_S = 12.0
bus = ShardBus("shop")
fired: list[tuple[str, str]] = []
"""The actions: the way by which it was begun, and the outcome."""


@dataclass
class Due:
    at: float = 0.0


class Clockwork(Entity):
    state: Due

    async def on_start(self) -> None:
        if self.state.at:
            left = self.state.at - self.context.now().timestamp()
            self.context.schedule_once(max(left, 0.0), "due")

    @handler
    async def begin(self, way: str, stays: bool) -> None:
        if stays:
            self.context.set_idle_timeout(0)
        match way:
            case "timer":
                self.context.schedule_once(DELAY_S, "ring")
            case "piped":
                self.context.pipe_to_self(asyncio.sleep(DELAY_S, "piped"))
            case "reminder":
                await self.context.remind("ring", handler="ring_reminded", after=DELAY_S)
            case "task":
                self.task = asyncio.create_task(self.later())
            case "state":
                self.state.at = self.context.now().timestamp() + DELAY_S
                await self.save()
                self.context.schedule_once(DELAY_S, "due")

    async def later(self) -> None:
        await asyncio.sleep(DELAY_S)
        try:
            self.context.passivate()
        except StaleActivation:
            fired.append(("task", "stale"))
        else:
            fired.append(("task", "acts"))

    @handler
    def ring(self) -> None:
        fired.append(("timer", "acts"))

    @handler
    def ring_reminded(self) -> None:
        fired.append(("reminder", "acts"))

    @handler
    def due(self) -> None:
        fired.append(("state", "acts"))

    @handler
    def fail(self) -> None:
        raise ValueError("on purpose")

    @handler
    async def wait(self) -> None:
        await asyncio.sleep(DELAY_S)
        fired.append(("handler", "acts"))

    async def receive(self, message: object) -> None:
        fired.append((str(message), "acts"))


@bus.entity("plain", passivate_after=4, handoff_timeout=60)
class Plain(Clockwork):
    pass


@bus.entity("remembered", remember=True, handoff_timeout=60)
class Remembered(Clockwork):
    pass


ACTS, STALE, ENDS = "acts", "stale", "ends"
TABLE: dict[tuple[str, type[Clockwork]], tuple[str, str, str, str]] = {
    ("timer", Plain): (ENDS, ENDS, ENDS, ENDS),
    ("piped", Plain): (ACTS, ENDS, ACTS, ENDS),
    ("handler", Plain): (ACTS, ACTS, ACTS, ENDS),
    ("task", Plain): (STALE, STALE, ENDS, ENDS),  # its process ends with the move
    ("state", Plain): (ENDS, ACTS, ENDS, ENDS),
    ("reminder", Plain): (ACTS, ACTS, ACTS, ACTS),
    ("state", Remembered): (ACTS, ACTS, ACTS, ACTS),
}
"""The events by themselves, without a further message, if the entity is idle, a handler of it
fails, its shard moves, or its node is killed."""
EVENTS = ("idle", "fails", "moves", "killed")


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize(("way", "kind"), TABLE)
async def test_what_survives_what(way: str, kind: type[Clockwork], event: str) -> None:
    fired.clear()
    async with TestCluster(bus, nodes=2 if event in ("moves", "killed") else 1) as cluster:
        ref = cluster.client().ref(kind, "a")
        if way == "handler":
            await ref.wait.tell()
            await cluster.until(lambda: any(node.entity(kind, "a") for node in cluster.nodes))
        else:
            await ref.begin(way, event != "idle")
        home = cluster.where(kind, "a")
        assert home is not None
        match event:
            case "fails" if way != "handler":
                with contextlib.suppress(EntityFailed):
                    await ref.fail()
            case "moves":
                leaving = cluster.spawn(cluster.leave(home))
                await cluster.advance(2 * DELAY_S)
                await leaving
            case "killed":
                await cluster.kill(home)
        await cluster.advance(2 * DELAY_S)
        outcome = TABLE[way, kind][EVENTS.index(event)]
        assert fired == ([] if outcome == ENDS else [(way, outcome)])


def test_the_page_has_a_row_for_each_way() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## Lifetimes")[2]
    rows = re.findall(r"^\| (?!\||---)(.+?) \|", table.partition("\n## ")[0], re.MULTILINE)
    assert len(rows) == len(TABLE)
