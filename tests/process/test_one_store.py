"""One store has one cluster of a name: a second one is refused, seeds that restart join the cluster
that lives, and a coordinator that cannot reach the store gives way to one that can."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shardbus.store import claim_registry
from shardbus.store.opening import open_store
from tests.ports import free_port
from tests.process.namespaces import Network, redis_on
from tests.process.nodes import NodeProcess, Processes
from tests.waiting import PATIENCE_S, until

REFUSED = 6


async def founders(*nodes: NodeProcess) -> set[str]:
    """The oldest nodes that these nodes see."""
    pages = await asyncio.gather(*(node.page("/v1/cluster") for node in nodes))
    return {str(page["oldest"]) for page in pages if page}


async def test_a_second_cluster_on_a_store_is_refused_with_the_addresses(
    lab: Processes, any_store: str
) -> None:
    await is_refused(lab, any_store, 0)


@pytest.mark.long
async def test_a_second_cluster_with_seeds_that_do_not_answer_is_refused(
    lab: Processes, store: str
) -> None:
    await is_refused(lab, store, 2)


async def is_refused(shared: Processes, store: str, seeds: int) -> None:
    shared.store = store
    production = await shared.start()
    port = free_port()
    seeds_given = [f"127.0.0.1:{port}", f"127.0.0.1:{free_port()}"][:seeds]
    staging = shared.begin(port=port, seeds=seeds_given)
    assert await staging.ended() == REFUSED
    assert f"another cluster writes this store: {production.address}" in staging.err.read_text()
    assert "ready: " not in staging.out.read_text()
    await shared.agree(production)


async def restart(lab: Processes, places: list[int], seeds: list[str]) -> list[NodeProcess]:
    return [lab.begin(port=place, seeds=seeds) for place in places]


@pytest.mark.parametrize(
    ("kind", "order"), [("sqlite", -1), pytest.param("redis", 1, marks=pytest.mark.long)]
)
async def test_both_seeds_restart_and_join_the_cluster_that_lives(
    lab: Processes, kind: str, order: int, request: pytest.FixtureRequest
) -> None:
    if kind == "redis":
        lab.store = request.getfixturevalue("redis_url")
    places = [free_port() for _ in range(4)]
    seeds = [f"127.0.0.1:{place}" for place in places[:2]]
    nodes = await restart(lab, places, seeds)
    await lab.agree(*nodes)
    for node in nodes[:2]:
        node.kill()
    await lab.agree(*nodes[2:])
    again = await restart(lab, places[:2][::order], seeds[::order])
    await lab.agree(*nodes[2:], *again)
    assert len(await founders(*nodes[2:], *again)) == 1


@pytest.mark.long
async def test_seeds_that_left_in_order_come_back_to_the_cluster_that_lives(
    lab: Processes,
) -> None:
    places = [free_port() for _ in range(3)]
    seeds = [f"127.0.0.1:{place}" for place in places[:2]]
    nodes = await restart(lab, places, seeds)
    await lab.agree(*nodes)
    assert await asyncio.gather(*(node.terminate() for node in nodes[:2])) == [0, 0]
    again = await restart(lab, places[:2], seeds)
    await lab.agree(nodes[2], *again)


@pytest.mark.long
async def test_a_cluster_that_was_killed_whole_starts_again_with_the_same_nodes(
    lab: Processes,
) -> None:
    places = [free_port() for _ in range(2)]
    seeds = [f"127.0.0.1:{place}" for place in places]
    nodes = await restart(lab, places, seeds)
    await lab.agree(*nodes)
    for node in nodes:
        node.kill()
    again = await restart(lab, places, seeds)
    await lab.agree(*again)


@pytest.mark.long
async def test_a_node_that_starts_again_without_the_others_waits_for_the_end_of_the_claim(
    lab: Processes,
) -> None:
    claim = ("cluster.founding_claim=40s",)
    places = [free_port() for _ in range(2)]
    seeds = [f"127.0.0.1:{place}" for place in places]
    nodes = [lab.begin(port=place, seeds=seeds, settings=claim) for place in places]
    await lab.agree(*nodes)
    store = open_store(lab.store, cluster="lab", timeout=PATIENCE_S)
    await store.start()

    async def recorded() -> bool:
        record = await claim_registry.read(store)
        return record is not None and len(record.members) == 2

    await until(recorded, "both nodes in the record")
    await store.close()
    for node in nodes:
        node.kill()
    alone = lab.begin(port=places[0], seeds=seeds, settings=claim)
    await alone.says("waits for the store's claim, which this cluster had")
    await lab.agree(alone)


@pytest.mark.long
async def test_S2_81_a_coordinator_without_its_store_gives_way_to_one_that_reaches_it(
    walled: Processes, network: Network, tmp_path: Path
) -> None:
    """The oldest node alone loses its way to Redis."""
    safe = network.machine()
    with redis_on(safe, tmp_path / "redis") as walled.store:
        first, second, third = await walled.together(3)
        assert first.machine is not None
        network.split([safe], [first.machine])

        async def ruler() -> NodeProcess | None:
            """The node of the coordinator, as the others see it."""
            page = await second.page("/v1/cluster")
            place = page["coordinators"]["page"]["node"] if page else ""
            holders = [node for node in (first, second, third) if place.startswith(node.address)]
            return holders[0] if holders else None

        async def moved() -> bool:
            return await ruler() in (second, third)

        await until(moved, "the coordinator on a node that reaches the store")
        heir = await ruler()
        await first.says("cannot use the store")
        network.heal()
        if heir is second:
            assert await third.terminate() == 0
        assert await ruler() is heir, "it does not come back by itself"


@pytest.mark.long
async def test_S2_81_a_coordinator_stays_while_no_node_reaches_the_store(
    walled: Processes, network: Network, tmp_path: Path
) -> None:
    safe = network.machine()
    with redis_on(safe, tmp_path / "redis") as walled.store:
        first, second = await walled.together(2)
        assert first.machine is not None
        assert second.machine is not None
        network.split([safe], [first.machine, second.machine])
        await first.says("does not respond")
        await second.says("does not respond")
        network.heal()
        await walled.agree(first, second)
        page = await second.page("/v1/cluster")
        assert page["coordinators"]["page"]["node"].startswith(first.address)
        assert "takes over its coordinators" not in first.err.read_text()
