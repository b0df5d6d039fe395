"""A node that coordinates and cannot use the store gives way to one that can, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import pytest

from shardbus.errors import NodeLost, StoreUnavailable
from shardbus.ids import NodeId
from shardbus.shells import store_reach
from shardbus.shells.store_reach import PROBE_S, WITHIN_S, StoreReach
from shardbus.store.memory import MemoryStore
from shardbus.store.protocol import StoredTable
from tests.virtual_time import virtual

NEXT, LATER = NodeId("10.0.0.2", 7355, 2), NodeId("10.0.0.3", 7355, 3)
PATIENCE = 2.0
HANGS = "hangs"


class Store(MemoryStore):
    """A store that answers, raises, or hangs, as `state` says; `lost` are tables out of reach."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.probes, self.failures = "", 0, 10_000
        self.lost: set[str] = set()

    async def add_remembered(
        self, entity_type: str, shard: str, entity_ids: Sequence[str], fence: int
    ) -> None:
        self.probes += 1
        if self.state == HANGS and self.probes <= self.failures:
            await asyncio.sleep(3600)
        if self.state and self.probes <= self.failures:
            raise StoreUnavailable(self.state)
        await super().add_remembered(entity_type, shard, entity_ids, fence)

    async def load_table(self, entity_type: str) -> StoredTable | None:
        if entity_type in self.lost:
            raise StoreUnavailable("this server does not answer")
        return await super().load_table(entity_type)


class Stage:
    """One node's probes. `others`: answers or errors of the next nodes."""

    def __init__(
        self, others: Mapping[NodeId, bool | Exception | None], patience: float = PATIENCE
    ) -> None:
        self.store, self.others = Store(), dict(others)
        self.questions: list[tuple[NodeId, list[str]]] = []
        self.gave_way: list[float] = []
        self.coordinates = True
        self.on_ask: Callable[[], None] = lambda: None
        self.on_gave_way: Callable[[], None] = lambda: None
        self.reach = StoreReach(
            self.store,
            patience,
            lambda: list(self.others) if self.coordinates else [],
            self._ask,
            self._give_way,
        )

    def _give_way(self) -> None:
        """Note the moment; membership acts a little later, in its own thread."""
        loop = asyncio.get_running_loop()
        self.gave_way.append(loop.time())
        loop.call_later(0.01, lambda: self.on_gave_way())

    async def _ask(self, node: NodeId, types: list[str]) -> bool:
        self.questions.append((node, types))
        self.on_ask()
        answer = self.others[node]
        if answer is None:
            await asyncio.sleep(3600)
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    async def run(self, seconds: float) -> None:
        await self.store.start()
        self.reach.start()
        await asyncio.sleep(seconds)
        self.reach.stop()


@pytest.mark.parametrize("how", ["refuses", HANGS])
@virtual
async def test_S2_81_a_node_without_the_store_gives_way_to_one_that_reaches_it(how: str) -> None:
    stage = Stage({NEXT: False, LATER: True})
    stage.store.state = how
    began = asyncio.get_running_loop().time()
    stage.on_gave_way = lambda: setattr(stage, "coordinates", False)
    await stage.run(30.0)
    assert len(stage.gave_way) == 1, "it has given way, and coordinates nothing any more"
    assert PATIENCE <= stage.gave_way[0] - began <= PATIENCE + 2 * max(PROBE_S, WITHIN_S)


@pytest.mark.parametrize("answer", [False, None, NodeLost("gone")], ids=["no", "silent", "lost"])
@virtual
async def test_the_seat_stays_while_no_node_reaches_the_store(
    answer: bool | Exception | None,
) -> None:
    stage = Stage({NEXT: answer})
    stage.store.state = "refuses"
    await stage.run(60.0)
    assert stage.questions
    assert not stage.gave_way


@virtual
async def test_a_store_that_is_back_within_the_patience_keeps_the_seat() -> None:
    stage = Stage({NEXT: True}, patience=PROBE_S + 1.0)
    stage.store.state = "refuses"
    stage.on_ask = lambda: setattr(stage.store, "state", "")
    await stage.run(60.0)
    assert len(stage.questions) == 1
    assert not stage.gave_way


@virtual
async def test_only_a_failure_beside_anothers_success_gives_the_seat_away() -> None:
    """A store that all nodes lost for a moment answers them all again at once."""
    stage = Stage({NEXT: True}, patience=0.001)
    stage.store.state, stage.store.failures = HANGS, 1
    await stage.run(60.0)
    assert len(stage.questions) == 1
    assert not stage.gave_way


@virtual
async def test_a_node_that_coordinates_nothing_or_is_alone_probes_nothing() -> None:
    stage = Stage({NEXT: True})
    stage.coordinates = False
    stage.store.state = "refuses"
    await stage.run(60.0)
    assert stage.store.probes == 0


@virtual
async def test_without_patience_nothing_is_probed() -> None:
    stage = Stage({NEXT: True}, patience=0.0)
    stage.store.state = "refuses"
    await stage.run(60.0)
    assert (stage.store.probes, stage.gave_way) == (0, [])


@virtual
async def test_a_table_that_its_coordinator_failed_to_use_is_part_of_the_probe() -> None:
    """A store of several servers may be out of reach in parts."""
    stage = Stage({NEXT: True})
    stage.store.lost = {"cart"}
    stage.reach.suspect("cart")
    await stage.run(20.0)
    assert stage.gave_way
    assert all(types == ["cart"] for _, types in stage.questions)


@virtual
async def test_a_table_in_reach_is_read_once_more_and_then_forgotten() -> None:
    stage = Stage({NEXT: True})
    stage.reach.suspect("cart")
    await stage.run(5.0)
    stage.store.lost = {"cart"}
    await stage.run(20.0)
    assert not stage.gave_way


@virtual
async def test_of_many_nodes_the_next_are_asked_each_time_and_the_others_in_turn() -> None:
    nodes = [NodeId(f"10.0.1.{n}", 7355, n + 1) for n in range(12)]
    stage = Stage(dict.fromkeys(nodes, False))
    stage.store.state = "refuses"
    await stage.run(60.0)
    rounds = [
        [node for node, _ in stage.questions[at : at + store_reach.ASKED_MAX]]
        for at in range(0, len(stage.questions), store_reach.ASKED_MAX)
    ]
    assert all(round_[:-1] == nodes[: store_reach.ASKED_MAX - 1] for round_ in rounds)
    assert {node for round_ in rounds for node in round_} == set(nodes)
