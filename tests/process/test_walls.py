"""Who stays and what heals, with real processes on machines of their own and real walls between.

A wall that swallows is found by silence, one that rejects by refusals. In every picture: at most
one side stays, whoever goes ends with exit code 1, and its machine's next process joins again.
"""

from __future__ import annotations

import asyncio
import re

import pytest

from tests.process.namespaces import Machine, Wall
from tests.process.nodes import NodeProcess, Processes
from tests.waiting import until

QUICK = (
    "cluster.failure_detector.heartbeat_interval=200ms",
    "cluster.failure_detector.acceptable_heartbeat_pause=800ms",
    "cluster.retry_unsuccessful_join_after=2s",
)


def rules(stable_after: str = "1500ms", **settings: object) -> tuple[str, ...]:
    """Settings of downing."""
    chosen = {"stable_after": stable_after, **settings}
    return (*QUICK, *(f"cluster.downing.{name}={value}" for name, value in chosen.items()))


def machines(*nodes: NodeProcess) -> list[Machine]:
    return [node.machine for node in nodes if node.machine is not None]


def split(lab: Processes, *sides: list[NodeProcess], wall: Wall = Wall.DROP) -> None:
    """A wall between these sides, in both directions."""
    assert lab.network is not None
    lab.network.split(*(machines(*side) for side in sides), wall=wall)


async def gone(*nodes: NodeProcess) -> None:
    """Wait until these have ended, because they are out."""
    for node in nodes:
        assert await node.ended() == 1, node.err.read_text()[-2000:]
        assert "this node stops: downed" in node.err.read_text()


async def healed(
    lab: Processes, loser: NodeProcess, settings: tuple[str, ...], *stayed: NodeProcess
) -> NodeProcess:
    """After the walls have fallen, a new process on the loser's machine joins those that stayed."""
    assert lab.network is not None
    lab.network.heal()
    again = lab.begin(settings=settings, machine=loser.machine)
    await lab.agree(*stayed, again)
    return again


@pytest.mark.parametrize(
    ("settings", "few", "many", "stays"),
    [
        (rules(), 2, 3, "many"),
        (rules(strategy="static-quorum", static_quorum_size=3), 2, 3, "many"),
        (rules(strategy="keep-oldest"), 2, 3, "few"),
        (rules(strategy="keep-oldest"), 1, 2, "many"),
        (rules(strategy="keep-oldest", down_if_alone="false"), 1, 2, "few"),
        (rules(strategy="lease-majority"), 2, 3, "many"),
    ],
    ids=["majority", "quorum", "oldest", "oldest-alone", "oldest-kept", "lease"],
)
async def test_TC38_one_side_of_a_split_stays(
    walled: Processes, settings: tuple[str, ...], few: int, many: int, stays: str
) -> None:
    """The oldest is among the few."""
    nodes = await walled.together(few + many, settings=settings)
    sides = {"few": nodes[:few], "many": nodes[few:]}
    split(walled, *sides.values())
    stayed = sides.pop(stays)
    [went] = sides.values()
    await gone(*went)
    await walled.agree(*stayed)
    await healed(walled, went[0], settings, *stayed)
