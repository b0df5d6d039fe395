"""Nodes on machines of their own that start at once and know no address: they find each other by a
name that has the addresses of all, as a headless service's, or by the store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.process.name_server import NameServer
from tests.process.namespaces import Machine
from tests.process.nodes import NodeProcess, Processes
from tests.waiting import until

QUICK = ("cluster.discovery_interval=0.5", "cluster.founding_claim=5")


@pytest.fixture
def server(walled: Processes) -> Iterator[NameServer]:
    assert walled.network is not None
    made = NameServer(walled.network.machine(), "shop")
    yield made
    made.close()


def machine(walled: Processes, server: NameServer) -> Machine:
    assert walled.network is not None
    made = walled.network.machine()
    server.serves(made)
    return made


def begin(walled: Processes, seed: str, place: Machine) -> NodeProcess:
    return walled.begin(seeds=[seed], machine=place, settings=QUICK)


@pytest.mark.long
async def test_machines_find_each_other_by_a_name_whose_addresses_change(
    walled: Processes, server: NameServer
) -> None:
    """The name has an address as soon as a machine has one, before its node listens. A machine that
    is replaced leaves its address behind for a while."""
    places = [machine(walled, server) for _ in range(4)]
    server.addresses = [place.address for place in places]
    nodes = [begin(walled, "dns://shop", place) for place in places[:3]]
    await walled.agree(*nodes)
    nodes.pop(0).kill()
    nodes.append(begin(walled, "dns://shop", places[3]))
    await walled.agree(*nodes)
    server.addresses = [place.address for place in places[1:]]
    for node in nodes:
        assert await node.terminate() == 0


@pytest.mark.long
async def test_a_name_without_an_address_founds_nothing(
    walled: Processes, server: NameServer
) -> None:
    place = machine(walled, server)
    node = begin(walled, "dns://shop", place)
    await until(lambda: "cannot look up shop" in node.err.read_text(), "the warning")
    assert not (await node.page("/v1/nodes") or {}).get("nodes")
    server.addresses = [place.address]
    await walled.agree(node)


@pytest.mark.long
async def test_a_wall_while_nodes_find_each_other_by_the_store_leaves_one_cluster(
    walled: Processes, server: NameServer
) -> None:
    places = [machine(walled, server) for _ in range(4)]
    assert walled.network is not None
    walled.network.split(places[:2], places[2:])
    nodes = [begin(walled, "store", place) for place in places]

    async def founded() -> bool:
        pages = [await node.page("/v1/nodes") for node in nodes]
        sizes = sorted(len(page["nodes"]) if page else 0 for page in pages)
        return sizes == [0, 0, 2, 2]

    await until(founded, "a cluster on one side, and none on the other")
    walled.network.heal()
    await walled.agree(*nodes)
