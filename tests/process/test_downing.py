"""Who stays, with real processes: a stopped process (SIGSTOP) is a side that says nothing. Sides
that both run, and other strategies: `test_walls`."""

from __future__ import annotations

import json
import signal

import pytest

from tests.process.nodes import NodeProcess, Processes
from tests.waiting import until

QUICK = (
    "cluster.failure_detector.heartbeat_interval=200ms",
    "cluster.failure_detector.acceptable_heartbeat_pause=1500ms",
    "cluster.downing.stable_after=2s",
    "cluster.downing.down_all_when_unstable=false",  # a starved machine is no reason here
)


def rules(**settings: object) -> tuple[str, ...]:
    return (*QUICK, *(f"cluster.downing.{name}={value}" for name, value in settings.items()))


async def three(lab: Processes, **settings: object) -> list[NodeProcess]:
    """Three nodes; the first is the oldest."""
    return await lab.cluster(3, settings=rules(**settings))


def stop(*nodes: NodeProcess) -> None:
    for node in nodes:
        node.signal(signal.SIGSTOP)


async def resume_and_end(*nodes: NodeProcess) -> None:
    """They receive the decision made without them, and end."""
    for node in nodes:
        node.signal(signal.SIGCONT)
    for node in nodes:
        assert await node.ended() in (1, 6)


def reasons(node: NodeProcess) -> list[tuple[str, str, str]]:
    page = node.get("/v1/downing")
    return [(d["strategy"], d["outcome"], d["reason"]) for d in page["decisions"]]


@pytest.mark.long
async def test_static_quorum_keeps_the_side_with_enough(lab: Processes) -> None:
    first, second, third = await three(lab, strategy="static-quorum", static_quorum_size=2)
    stop(third)
    await lab.agree(first, second)
    rows = [row for node in (first, second) for row in reasons(node)]
    assert rows == [("static-quorum", "down others", "quorum: 2 votes here, 2 needed")]
    await resume_and_end(third)
    stop(second)
    assert await first.ended() == 1
    assert "no quorum: 1 vote here, 2 needed" in first.err.read_text()


@pytest.mark.long
async def test_lease_majority_keeps_whoever_has_the_lease(lab: Processes) -> None:
    """The few may have it, if the many do not ask."""
    first, second, third = await three(lab, strategy="lease-majority")
    stop(second, third)
    await lab.agree(first)
    rows = reasons(first)
    assert rows
    for strategy, outcome, reason in rows:
        assert (strategy, outcome) == ("lease-majority", "down others")
        assert reason.endswith("; this side has the lease")
    await resume_and_end(second, third)


@pytest.mark.long
async def test_none_keeps_everybody(lab: Processes) -> None:
    first, second, third = await three(lab, strategy="none")
    stop(third)
    for node in (first, second):
        await until(lambda node=node: node.get("/v1/cluster")["unreachable"], "an accusation")
    third.signal(signal.SIGCONT)
    for node in (first, second, third):
        await until(lambda node=node: not node.get("/v1/cluster")["unreachable"], "peace")
    await lab.agree(first, second, third)
    assert reasons(first) == []


RULE = """
from shardbus.membership.downing import Outcome, Split


def with_the_first(split: Split) -> tuple[Outcome, str]:
    here = split.elders[0] in split.side
    return (Outcome.DOWN_OTHERS if here else Outcome.DOWN_OURSELVES), f"it is here: {here}"
"""


@pytest.mark.long
async def test_a_function_of_the_users_decides(lab: Processes) -> None:
    """B.31."""
    (lab.folder / "shop_downing.py").write_text(RULE)
    first, second, third = await three(lab, strategy="shop_downing:with_the_first")
    stop(second, third)
    await lab.agree(first)
    decided = ("shop_downing:with_the_first", "down others", "it is here: True")
    assert set(reasons(first)) == {decided}
    await resume_and_end(second, third)
    mistyped = lab.begin(settings=rules(strategy="shop_downing:with_the_last"))
    assert await mistyped.ended() == 2
    (line,) = mistyped.err.read_text().splitlines()
    assert "cluster.downing.strategy: cannot load 'shop_downing:with_the_last'" in line


@pytest.mark.long
async def test_a_decision_can_be_read_on_the_command_line(lab: Processes) -> None:
    first, second, third = await three(lab, down_removal_margin="1s")
    stop(third)
    await lab.agree(first, second)
    said = []
    for node in (first, second):
        url = f"http://127.0.0.1:{node.http_port}"
        for form in ((), ("--json",)):
            command = lab.run("explain", "downing", "--node", url, *form)
            assert await command.ended() == 0, command.err.read_text()
            said.append(command.out.read_text())
    decisions = [d for text in said[1::2] for d in json.loads(text)["decisions"]]
    assert [d["reason"] for d in decisions] == ["majority: 2 votes here, at most 1 there"]
    assert [d["cut_off"] == d["down"] for d in decisions] == [True]
    assert "majority: 2 votes here, at most 1 there" in "".join(said[::2])
    await resume_and_end(third)


@pytest.mark.long
async def test_nodes_must_decide_by_the_same_rule(lab: Processes) -> None:
    await lab.start(settings=rules(strategy="static-quorum", static_quorum_size=2))
    for settings, key in [
        (rules(strategy="keep-oldest"), "cluster.downing.strategy"),
        (rules(strategy="static-quorum", static_quorum_size=3), "static_quorum_size"),
    ]:
        stranger = lab.begin(settings=settings)
        assert await stranger.ended() == 6
        assert key in stranger.err.read_text()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (rules(strategy="static-quorum"), "static_quorum_size"),
        (rules(strategy="keep-referee"), "keep-majority"),
        (rules(unsafe_auto_down_after="1s"), "entities are sharded"),
    ],
)
async def test_what_cannot_be_safe_is_refused(
    lab: Processes, settings: tuple[str, ...], text: str
) -> None:
    node = lab.begin(settings=settings)
    assert await node.ended() == 2
    [line] = node.err.read_text().splitlines()
    assert text in line


@pytest.mark.long
async def test_auto_down_must_be_forced_and_says_so_loudly(lab: Processes) -> None:
    forced = {"unsafe_auto_down_after": "1s", "unsafe_auto_down_with_sharding": "true"}
    first, second, third = await three(lab, **forced)
    for node in (first, second, third):
        await node.says("UNSAFE")
    stop(second, third)
    await lab.agree(first)
    rows = reasons(first)
    assert rows
    assert {row[::2] for row in rows} == {("unsafe-auto-down", "unreachable for 1 s")}
