"""The world of saves: the group commit of a node over a store of two servers.

    save x | y | z       an activation saves; z is on the other server
    over x               the activation of x ends; from now on another one saves
    load x               the next activation loads
    cancel               the newest caller gives up
    0 ok, 0 unknown, 0 refused    the oldest batch at server 0: done; done, and the answer is lost;
                         refused for certain. The same for server 1
    second               time passes

Laws: the store has the saves of an entity in the order of the calls; one of an entity is in flight
at a time; one whose activation is over is not sent any more; each caller has one outcome, and a
definite one is true; a load comes when no earlier save can still be applied. The oldest save counts
as long as one has no outcome. At rest nothing is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from shardbus.errors import StaleActivation, StoreUnavailable
from shardbus.store import group_commit
from shardbus.store.entity_state import EntityStates
from shardbus.store.protocol import Save
from tests.explore.on_a_loop import LoopOfWorld

LANES = {"x": 0, "y": 0, "z": 1}
ALONGSIDE = 2
"""Saves that are worth a second batch."""
HOW = "ok", "unknown", "refused"


@dataclass(eq=False)
class Batch:
    """A batch at a server, until it answers."""

    saves: list[Save]
    lane: int
    outcome: asyncio.Future[list[Exception | None]]


class TwoServers:
    """A store whose batches wait for the world."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.written: dict[str, list[int]] = {entity_id: [] for entity_id in LANES}
        self.attempts: list[str] = []
        self.at_once = False

    def lane(self, entity_type: str, shard: str) -> int:
        return LANES[shard]

    async def save_states(self, saves: Sequence[Save]) -> list[Exception | None]:
        batch = Batch(
            list(saves), LANES[saves[0].shard], asyncio.get_running_loop().create_future()
        )
        in_flight = [s.entity_id for other in self.batches for s in other.saves]
        for save in saves:
            assert save.entity_id not in in_flight, f"two saves of {save.entity_id} in flight"
        if self.at_once:
            self.apply(batch)
            return [None] * len(batch.saves)
        self.batches.append(batch)
        return await batch.outcome

    async def load_state(
        self, entity_type: str, shard: str, entity_id: str, fence: int
    ) -> bytes | None:
        in_flight = [s.entity_id for other in self.batches for s in other.saves]
        assert entity_id not in in_flight, f"{entity_id} is loaded while a save is in flight"
        return None

    def apply(self, batch: Batch) -> None:
        for save in batch.saves:
            written = self.written[save.entity_id]
            number = int(save.data or b"0")
            assert not written or written[-1] <= number, f"{number} comes behind {written}"
            written.append(number)


class StoreWorld:
    """A node's states."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.world, self.store = LoopOfWorld(), TwoServers()
        self._alongside, group_commit.ALONGSIDE = group_commit.ALONGSIDE, ALONGSIDE
        self.states: Any = self.world.run(EntityStates, self.store, 1)
        self.number = 0
        self.answers: dict[int, Any] = {}
        self.loads: list[Any] = []
        self.over: set[int] = set()
        """Saves that were not sent when their activation ended."""
        self.sent: set[int] = set()
        self.fences = dict.fromkeys(LANES, 1)
        self._entity: dict[int, str] = {}

    def events(self) -> Iterable[str]:
        verbs = [f"{verb} {x}" for verb in ("save", "over", "load") for x in LANES]
        verbs.append("second")
        for lane in (0, 1):
            if any(batch.lane == lane for batch in self.store.batches):
                verbs += [f"{lane} {how}" for how in HOW]
        if self._open():
            verbs.append("cancel")
        return verbs

    def _open(self) -> list[int]:
        return [n for n, answer in self.answers.items() if not answer.done()]

    def do(self, event: str) -> None:
        run = self.world.run
        match event.split():
            case ["save", entity]:
                self.number += 1
                data = b"%d" % self.number
                save = self._save(entity, data)
                self._entity[self.number] = entity
                self.answers[self.number] = self.world.spawn(save)
            case ["over", entity]:
                self._look()
                self.over |= {
                    n for n in self._open() if n not in self.sent and self._entity[n] == entity
                }
                run(self.states.refuse_unsent, "page", entity, entity)
            case ["load", entity]:
                load = self.states.load("page", entity, entity, self.fences[entity])
                self.loads.append(self.world.spawn(load))
            case ["cancel"]:
                run(self.answers[self._open()[-1]].cancel)
            case ["second"]:
                self.world.wait(1.0)
            case [lane, how]:
                self._end(int(lane), how)
        self.world.raise_uncaught()
        self._look()

    async def _save(self, entity: str, data: bytes) -> None:
        await self.states.save("page", entity, entity, self.fences[entity], data)

    def _end(self, lane: int, how: str) -> None:
        batch = next(batch for batch in self.store.batches if batch.lane == lane)
        self.store.batches.remove(batch)
        if how != "refused":
            self.store.apply(batch)
        if how == "ok":
            self.world.run(batch.outcome.set_result, [None] * len(batch.saves))
        else:
            error = StoreUnavailable("down", definite=how == "refused")
            self.world.run(batch.outcome.set_exception, error)

    def _look(self) -> None:
        for batch in self.store.batches:
            for save in batch.saves:
                number = int(save.data or b"0")
                self.sent.add(number)
                assert number not in self.over, f"save {number} is sent after its activation"
        for number, answer in self.answers.items():
            if not answer.done() or answer.cancelled():
                continue
            error = answer.exception()
            written = any(number in numbers for numbers in self.store.written.values())
            if error is None:
                assert written, f"save {number} is done, and the store has it not"
            elif isinstance(error, StaleActivation) or getattr(error, "definite", False):
                assert not written, f"save {number} failed for certain, and was written"
        wait = bool(self.store.batches)
        assert (self.states.longest_save > 0) >= wait, "no save counts as waiting"

    def key(self) -> Hashable:
        batches = tuple(
            (batch.lane, tuple(s.entity_id for s in batch.saves)) for batch in self.store.batches
        )
        groups = (self.states._group, *self.states._groups.values())
        waiting = tuple(tuple(save[0].entity_id for save in group._waiting) for group in groups)
        return (
            batches, waiting, len(self._open()), sum(not load.done() for load in self.loads),
            tuple(len(group._refused) for group in groups), len(self.over),
        )  # fmt: skip

    def rest(self) -> None:
        self.store.at_once = True
        while self.store.batches:
            self.do(f"{self.store.batches[0].lane} ok")
        self.world.wait(30.0)
        self._look()
        assert not self._open(), f"saves {self._open()} have no outcome"
        assert all(load.done() for load in self.loads), "a load has no outcome"
        assert self.states.longest_save == 0, "a save counts as waiting"
        for group in (self.states._group, *self.states._groups.values()):
            kept = (group._waiting, group._in_flight, group._outcomes, group._writing)
            assert not any(kept), f"the group keeps {kept}"

    def close(self) -> None:
        group_commit.ALONGSIDE = self._alongside
        for future in (*self.answers.values(), *self.loads):
            if future.done() and not future.cancelled():
                future.exception()
        self.world.close()
