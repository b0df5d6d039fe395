"""The nodes that stay and the partitions that heal, with real processes on machines of their own
and real walls between.

A wall that swallows is found by silence, one that rejects by refusals. In every picture: at most
one side stays, whoever goes ends with exit code 1, and its machine's next process joins again.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.process.namespaces import Machine, Network, Wall, redis_on
from tests.process.nodes import NodeProcess, Processes
from tests.waiting import until

QUICK = (
    "cluster.failure_detector.heartbeat_interval=200ms",
    "cluster.failure_detector.acceptable_heartbeat_pause=1500ms",
    "cluster.retry_unsuccessful_join_after=2s",
)


def rules(stable_after: str = "3s", **settings: object) -> tuple[str, ...]:
    """Settings of downing. On a starved machine reachability may keep changing, which is no reason
    here."""
    chosen = {"stable_after": stable_after, "down_all_when_unstable": "false", **settings}
    return (*QUICK, *(f"cluster.downing.{name}={value}" for name, value in chosen.items()))


def machines(*nodes: NodeProcess) -> list[Machine]:
    return [node.machine for node in nodes if node.machine is not None]


def net(lab: Processes) -> Network:
    assert lab.network is not None
    return lab.network


def split(lab: Processes, *sides: list[NodeProcess], wall: Wall = Wall.DROP) -> None:
    """A wall between these sides, in both directions."""
    net(lab).split(*(machines(*side) for side in sides), wall=wall)


async def gone(*nodes: NodeProcess) -> None:
    """Wait until these have ended, because they are out."""
    for node in nodes:
        assert await node.ended() == 1, node.err.read_text()[-2000:]
        assert "this node stops: downed" in node.err.read_text()


async def healed(
    lab: Processes, loser: NodeProcess, settings: tuple[str, ...], *stayed: NodeProcess
) -> NodeProcess:
    """After the walls have fallen, a new process on the loser's machine joins those that stayed."""
    net(lab).heal()
    again = lab.begin(settings=settings, machine=loser.machine)
    await lab.agree(*stayed, again)
    return again


async def accused(lab: Processes, *nodes: NodeProcess) -> None:
    """Wait until each of these calls somebody unreachable."""
    for node in nodes:
        await until(lambda node=node: cluster(node).get("unreachable"), f"suspicion at {node.name}")


async def peaceful(*nodes: NodeProcess) -> None:
    """Wait until these are the cluster, all reachable, and all know it."""

    def seen(node: NodeProcess) -> bool:
        page = cluster(node)
        return page.get("unreachable") == [] and page["members"] == len(nodes) and page["converged"]

    for node in nodes:
        await until(lambda node=node: seen(node), f"peace at {node.name}")


def cluster(node: NodeProcess) -> Any:
    """The cluster in a node's view. It has not ended."""
    assert node.running, node.err.read_text()[-2000:]
    return node.get("/v1/cluster") or {}


def statuses(node: NodeProcess) -> dict[str, str]:
    page = node.get("/v1/nodes")
    return {row["address"]: row["status"] for row in page["nodes"]} if page else {}


def decisions(*nodes: NodeProcess) -> list[str]:
    """The decisions in the logs of these nodes, without the lists of nodes."""
    return [
        line
        for node in nodes
        for line in re.findall(r"downing: (.*?) \(", node.err.read_text(errors="replace"))
    ]


# Clean splits


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "few", "many", "stays", "wall"),
    [
        (rules(), 2, 3, "many", Wall.DROP),
        (rules(), 1, 2, "many", Wall.REJECT),
        (rules(strategy="static-quorum", static_quorum_size=3), 2, 3, "many", Wall.REJECT),
        (rules(strategy="keep-oldest"), 2, 3, "few", Wall.DROP),
        (rules(strategy="keep-oldest"), 1, 2, "many", Wall.DROP),
        (rules(strategy="keep-oldest", down_if_alone="false"), 1, 2, "few", Wall.REJECT),
        (rules(strategy="lease-majority"), 1, 2, "many", Wall.DROP),
    ],
    ids=["majority", "refused", "quorum", "oldest", "oldest-alone", "oldest-kept", "lease"],
)
async def test_TC38_one_side_of_a_split_stays(
    walled: Processes, settings: tuple[str, ...], few: int, many: int, stays: str, wall: Wall
) -> None:
    """The oldest is among the few. A wall that rejects leaves the same side as one that swallows,
    though it looks as if nobody listened."""
    nodes = await walled.together(few + many, settings=settings)
    sides = {"few": nodes[:few], "many": nodes[few:]}
    split(walled, *sides.values(), wall=wall)
    stayed = sides.pop(stays)
    [went] = sides.values()
    await gone(*went)
    await walled.agree(*stayed)
    await healed(walled, went[0], settings, *stayed)


@pytest.mark.long
@pytest.mark.parametrize("wall", Wall)
async def test_TC38_an_equal_split_is_decided_by_the_lease(walled: Processes, wall: Wall) -> None:
    """Refused connections prove no death: the sweep shows that it is a wall."""
    nodes = await walled.together(4, settings=rules())
    sides = [nodes[:2], nodes[2:]]
    split(walled, *sides, wall=wall)
    await until(lambda: sum(not node.running for node in nodes) == 2, "the end of one side")
    [stayed] = [side for side in sides if all(node.running for node in side)]
    [went] = [side for side in sides if side is not stayed]
    await gone(*went)
    await walled.agree(*stayed)
    await until(
        lambda: any("; this side has the lease" in line for line in decisions(*stayed)),
        "the reason in the log",
    )
    await healed(walled, went[0], rules(), *stayed)


@pytest.mark.long
async def test_TC38_down_all_keeps_nobody(walled: Processes) -> None:
    nodes = await walled.together(3, settings=rules(strategy="down-all"))
    split(walled, nodes[:1], nodes[1:])
    await gone(*nodes)
    net(walled).heal()
    first = walled.begin(machine=nodes[0].machine, settings=rules(strategy="down-all"))
    await walled.agree(first)


# Walls that are not clean


@pytest.mark.long
@pytest.mark.parametrize("wall", Wall)
async def test_a_node_that_is_heard_by_nobody_goes(walled: Processes, wall: Wall) -> None:
    """Its messages are lost; messages to it arrive."""
    nodes = await walled.together(3, settings=rules())
    net(walled).stop(machines(nodes[0]), machines(*nodes[1:]), wall)
    await gone(nodes[0])
    await walled.agree(*nodes[1:])
    await healed(walled, nodes[0], rules(), *nodes[1:])


@pytest.mark.long
@pytest.mark.parametrize("wall", Wall)
async def test_TC47_of_two_that_cannot_see_each_other_one_goes(
    walled: Processes, wall: Wall
) -> None:
    """Both reach the third, so neither is cut off, and one is enough to cure it. A refusal between
    the two proves no death either."""
    first, second, third = await walled.together(3, settings=rules())
    split(walled, [first], [second], wall=wall)
    await until(lambda: sum(node.running for node in (first, second)) == 1, "one end of the link")
    went, stayed = (second, first) if first.running else (first, second)
    await gone(went)
    await walled.agree(stayed, third)
    lines = await until(lambda: decisions(first, second, third), "a decision in a log")
    assert all("links within this side fail" in line for line in lines)
    await healed(walled, went, rules(), stayed, third)


@pytest.mark.long
async def test_TC48_a_bad_link_and_a_split_leave_one_side_without_bad_links(
    walled: Processes,
) -> None:
    nodes = await walled.together(5, settings=rules())
    split(walled, nodes[:3], nodes[3:])
    split(walled, nodes[:1], nodes[1:2])
    await gone(*nodes[3:])
    await until(lambda: sum(node.running for node in nodes[:2]) == 1, "one end of the link")
    stayed = [node for node in nodes[:3] if node.running]
    await walled.agree(*stayed)
    went = next(node for node in nodes[:2] if not node.running)
    await gone(went)
    await healed(walled, went, rules(), *stayed)


@pytest.mark.long
async def test_TC46_who_sees_a_network_that_keeps_changing_goes(walled: Processes) -> None:
    """One link is bad all the time, another comes and goes. The first node, which sees both, gives
    up for all; or, where the others are quicker, one of them for its side. Those stay that the
    decision does not reach before its node ends."""
    first, second, third = nodes = await walled.together(
        3, settings=rules("8s", down_all_when_unstable="true")
    )

    def suspects(node: NodeProcess) -> bool | None:
        page = first.get("/v1/cluster")
        return page and any(name.startswith(node.address) for name in page["unreachable"])

    def decided() -> bool:
        return not all(node.running for node in nodes)

    while not decided():
        split(walled, [first], [second])
        split(walled, [first], [third])
        await until(lambda: suspects(second) or decided(), "two bad links")
        net(walled).heal()
        split(walled, [first], [third])
        await until(lambda: suspects(second) is False or decided(), "one bad link")
    await until(
        lambda: any("has kept changing for" in line for line in decisions(*nodes)),
        "the reason in a log",
    )
    net(walled).heal()

    def settled() -> bool:
        live = [node for node in nodes if node.running]
        expected = {node.address: "up" for node in live}
        return all(statuses(node) == expected for node in live)

    await until(settled, "one cluster of those that stay")


# Partitions that heal in time


@pytest.mark.long
async def test_TC41_what_heals_within_stable_after_costs_nobody(walled: Processes) -> None:
    """A bad link, a node alone, two islands, a newcomer during an outage."""
    settings = rules(stable_after="60s")
    nodes = await walled.together(4, settings=settings)
    before = [cluster(node)["self"] for node in nodes]
    for sides in ([nodes[:1], nodes[1:2]], [nodes[:1], nodes[1:]], [nodes[:2], nodes[2:]]):
        split(walled, *sides)
        await accused(walled, *nodes)
        net(walled).heal()
        await peaceful(*nodes)
    split(walled, nodes[:1], nodes[1:])
    await accused(walled, *nodes)
    newcomer = walled.begin(settings=settings, seeds=[node.address for node in nodes[1:]])
    split(walled, nodes[:1], [newcomer])
    await until(lambda: statuses(nodes[1]).get(newcomer.address), "the newcomer as a member")
    net(walled).heal()
    await peaceful(*nodes, newcomer)
    await walled.agree(*nodes, newcomer)
    assert [cluster(node)["self"] for node in nodes] == before
    assert decisions(*nodes, newcomer) == []


@pytest.mark.long
async def test_TC9_nobody_comes_up_while_a_member_is_unreachable(walled: Processes) -> None:
    settings = (*rules(strategy="none"), "cluster.allow_weakly_up_members=off")
    first, second, third = nodes = await walled.together(3, settings=settings)
    await peaceful(*nodes)
    split(walled, [first, second], [third])
    await accused(walled, *nodes)
    newcomer = walled.begin(settings=settings, seeds=[first.address, second.address])
    split(walled, [newcomer], [third])
    for node in (first, second):
        await until(lambda node=node: newcomer.address in statuses(node), "the newcomer")
        assert not cluster(node)["converged"]
    net(walled).heal()
    await walled.agree(*nodes, newcomer)

    def found(what: str) -> int:
        match = re.search(what, first.err.read_text())
        return match.start() if match else 0

    up = await until(lambda: found(f"{newcomer.address}#\\w+ is up"), "the newcomer in the log")
    assert 0 < found(f"{third.address}#\\w+ is reachable again") < up


@pytest.mark.long
async def test_TC23_newcomers_on_both_sides_are_weakly_up_until_it_heals(walled: Processes) -> None:
    settings = (*rules(strategy="none"), "cluster.allow_weakly_up_members=1s")
    nodes = await walled.together(2, settings=settings)
    newcomers = []
    split(walled, *([node] for node in nodes))
    await accused(walled, *nodes)
    for side, other in (nodes, nodes[::-1]):
        newcomer = walled.begin(settings=settings, seeds=[side.address])
        split(walled, [side, newcomer], [other, *newcomers])
        newcomers.append(newcomer)
    for side, newcomer in zip(nodes, newcomers, strict=True):
        await until(
            lambda side=side, newcomer=newcomer: (
                statuses(side).get(newcomer.address)
                == statuses(newcomer).get(newcomer.address)
                == "weakly_up"
            ),
            "a newcomer that is weakly up",
        )
    net(walled).heal()
    await walled.agree(*nodes, *newcomers)


@pytest.mark.long
async def test_TC43_a_machine_unplugged_marked_down_and_plugged_in_gets_a_new_member(
    walled: Processes,
) -> None:
    settings = (*rules(strategy="none"), "http.write=true", "http.token=secret-secret-16")
    nodes = await walled.together(3, settings=settings)
    first, second, third = nodes
    machine = third.machine
    assert machine is not None
    net(walled).unplug(machine)
    await accused(walled, first, second)
    command = ("node", "down", third.address, "--node", "http://127.0.0.1:8558")
    output = walled.run(*command, machine=first.machine, SHARDBUS_NODE_TOKEN="secret-secret-16")
    assert await output.ended() == 0, output.err.read_text()
    await walled.agree(first, second)
    assert third.running
    net(walled).plug(machine)
    await gone(third)
    again = walled.begin(settings=settings, machine=machine, seeds=[first.address])
    await walled.agree(first, second, again)


# The lease decides


@pytest.mark.long
async def test_TC49_only_the_side_with_the_lease_stays_twice(
    walled: Processes, network: Network, tmp_path: Path
) -> None:
    """The many cannot reach the store, which is a Redis on a machine of its own."""
    settings = rules(strategy="lease-majority", acquire_lease_delay_for_minority="1s")
    safe = network.machine()
    with redis_on(safe, tmp_path / "redis") as walled.store:
        first, second, *many = await walled.together(5, settings=settings)
        split(walled, [first, second], many)
        network.split([safe], machines(*many))
        await gone(*many)
        await walled.agree(first, second)
        third = await healed(walled, many[0], settings, first, second)
        split(walled, [first], [second, third])
        network.split([safe], machines(second, third))
        await gone(second, third)
        await walled.agree(first)
        await until(
            lambda: any("; this side has the lease" in line for line in decisions(first)),
            "the reason in the log",
        )
        assert all(
            "the store has answered no node of this side" in line for line in decisions(*many)
        )
