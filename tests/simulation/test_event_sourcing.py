"""Event-sourced entities and a projection in whole nodes over seeds: no event is lost, doubled or
out of order, replies come after storing, and planted faults are found."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from shardbus.entities.deliveries import EntityDeliveries
from shardbus.entities.event_log import EventLog
from shardbus.entities.projecting import Projecting
from shardbus.entities.reminding import Reminding
from shardbus.simulation.nodes.options import draw_node_options
from shardbus.simulation.nodes.run import NodeRun
from shardbus.store.journals import Journals
from shardbus.wire.stored_events import EventCodec
from tests.records import replace

Patch = pytest.MonkeyPatch


def run(seed: int, handoff: str = "buffer", kill_at: str = "", store: str = "") -> tuple[bool, str]:
    """Return whether a booking was answered, or no node has survived, and the report of a
    violation."""
    load = draw_node_options(
        seed,
        nodes=4,
        seconds=12.0,
        density="thin",
        handoff=handoff,
        kill_at=kill_at,
        events=True,
    )
    made = NodeRun(replace(load, store=store or load.store))
    outcome = made.run()
    answered = made.application.events.answered or outcome.survivors == 0
    return answered, "" if outcome.broken is None else outcome.report()


def test_the_command_replays_a_run_with_events() -> None:
    assert draw_node_options(3, events=True).command().endswith("--events")
    assert not draw_node_options(3).events


def long(seed: int, handoff: str, kill_at: str) -> Any:
    return pytest.param(seed, handoff, kill_at, marks=pytest.mark.long)


def soak(seed: int, handoff: str, kill_at: str) -> Any:
    return pytest.param(seed, handoff, kill_at, marks=pytest.mark.soak)


@pytest.mark.parametrize(
    ("seed", "handoff", "kill_at"),
    [
        (0, "buffer", ""),
        (100, "ordered", "any"),
        *(long(seed, "buffer", "") for seed in range(2, 5)),
        *(long(seed, "ordered", "any") for seed in range(102, 105)),
        *(long(seed, "drop", "any") for seed in range(300, 302)),
        *(long(seed, "forward", "any") for seed in range(200, 202)),
        *(soak(seed, "buffer", "") for seed in range(5, 40)),
        *(soak(seed, "ordered", "any") for seed in range(105, 134)),
        *(soak(seed, "drop", "any") for seed in range(302, 340)),
        *(soak(seed, "forward", "any") for seed in range(202, 240)),
    ],
)
def test_histories_stay_and_projections_follow(seed: int, handoff: str, kill_at: str) -> None:
    answered, broken = run(seed, handoff, kill_at)
    assert broken == ""
    assert answered


# ---- planted faults: each is named by the rule that finds it


def replays_all_but_the_last(patch: Patch) -> None:
    replay = EventCodec.replay

    def short(self: EventCodec, entity: Any, key: str, first: int, entries: list[bytes]) -> Any:
        _, deliveries = replay(self, entity, key, first, entries[:-1])
        return first + len(entries) - 1, deliveries

    patch.setattr(EventCodec, "replay", short)


def answers_before_the_events_are_stored(patch: Patch) -> None:
    append = EventLog._append

    async def hasty(self: EventLog, entity: Any, activation: Any, entries: Any) -> None:
        activation.shard.host.loop.create_task(quiet(append(self, entity, activation, entries)))

    async def quiet(work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            return

    patch.setattr(EventLog, "_append", hasty)


def takes_an_append_in_doubt_for_stored(patch: Patch) -> None:
    append = Journals.append

    async def trusting(self: Journals, *place: Any) -> None:
        try:
            await append(self, *place)
        except Exception:
            return

    patch.setattr(Journals, "append", trusting)


def keeps_the_number_with_the_snapshot_alone(patch: Patch) -> None:
    patch.setattr(EntityDeliveries, "begin_append", lambda self, activation: (b"", None))


def replays_no_deliveries(patch: Patch) -> None:
    patch.setattr(EntityDeliveries, "replayed", lambda self, *rest: None)


def stores_the_number_before_the_state(patch: Patch) -> None:
    save = Projecting._save

    async def early(self: Projecting, entity: Any, number: int, state: Any) -> None:
        await save(self, entity, number, self._states.cls())

    patch.setattr(Projecting, "_save", early)


def stores_the_state_without_the_number(patch: Patch) -> None:
    save = Projecting._save

    async def late(self: Projecting, entity: Any, number: int, state: Any) -> None:
        await save(self, entity, max(number - 1, 0), state)

    patch.setattr(Projecting, "_save", late)


def removes_events_that_the_projection_lacks(patch: Patch) -> None:
    async def all_handled(self: Projecting, shard: str, source_id: str) -> int:
        return 1_000_000

    patch.setattr(Projecting, "handled", all_handled)


def snapshots_with_the_next_number(patch: Patch) -> None:
    save = EventLog._save

    async def ahead(self: EventLog, entity: Any, state: Any, *, clears: bool = False) -> None:
        self.number += 1
        try:
            await save(self, entity, state, clears=clears)
        finally:
            self.number -= 1

    patch.setattr(EventLog, "_save", ahead)


async def nothing(self: Reminding, activation: Any, context: Any) -> bytes:
    return b""


def ends_firings_once_their_handlers_have_returned(patch: Patch) -> None:
    patch.setattr(Reminding, "end_append", nothing)
    patch.setattr(Reminding, "replayed", lambda *_: None)


def stores_reminders_once_their_handlers_have_returned(patch: Patch) -> None:
    patch.setattr(Reminding, "begin_append", nothing)
    patch.setattr(Reminding, "end_append", nothing)


FAULTS: tuple[tuple[Callable[[Patch], None], str, str, int], ...] = (
    (replays_all_but_the_last, "E1", "", 0),
    (snapshots_with_the_next_number, "E1", "", 0),
    (answers_before_the_events_are_stored, "E2", "", 0),
    (takes_an_append_in_doubt_for_stored, "E2", "away", 6),
    (keeps_the_number_with_the_snapshot_alone, "E3", "failing", 0),
    (replays_no_deliveries, "E3", "failing", 0),
    (stores_the_state_without_the_number, "E4", "", 0),
    (stores_the_number_before_the_state, "I11", "", 2),
    (removes_events_that_the_projection_lacks, "I11", "", 4),
    (ends_firings_once_their_handlers_have_returned, "E7", "", 0),
    (stores_reminders_once_their_handlers_have_returned, "E7", "", 0),
)
"""The fault, the rule that finds it, the mood of the store, and a seed that finds it."""


@pytest.mark.long
@pytest.mark.parametrize(("fault", "rule", "store", "seed"), FAULTS)
def test_a_planted_fault_is_found(
    fault: Callable[[Patch], None], rule: str, store: str, seed: int, monkeypatch: Patch
) -> None:
    fault(monkeypatch)
    seeds = (seed, *range(12))
    reports = (run(number, kill_at="any", store=store)[1] for number in seeds)
    report = next(filter(None, reports), "")
    assert f": {rule}:" in report.splitlines()[0]
