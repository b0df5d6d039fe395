"""The saves of many entities share round trips, keep their order, and fail together only with the
store."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

import pytest

from shardbus.errors import StaleFence, StoreError, StoreUnavailable
from shardbus.store import group_commit as group_module
from shardbus.store.batches import BatchEnded, BatchTasks
from shardbus.store.group_commit import AT_ONCE, SaveGroup, op_ids
from shardbus.store.memory import MemoryStore
from shardbus.store.protocol import Save


class Script(MemoryStore):
    """A store that keeps its batches, waits at a gate, and fails as often as set, before or after
    it wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[Save]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.failures = 0
        self.lose_answers = False
        self.defect: Exception | None = None

    async def save_states(self, saves: Sequence[Save]) -> list[StoreError | None]:
        self.batches.append(list(saves))
        await self.gate.wait()
        if self.defect is not None:
            raise self.defect
        self.failures -= 1
        if self.failures >= 0 and not self.lose_answers:
            raise StoreUnavailable("away", hint="wait")
        outcomes = await super().save_states(saves)
        if self.failures >= 0:
            raise StoreUnavailable("away", hint="wait")
        return outcomes


class Observer:
    """The reports of a group."""

    def __init__(self) -> None:
        self.calls, self.errors = 0, list[str]()
        self.backlogs = 0

    def saved(self, entity_type: str, seconds: Sequence[float]) -> None:
        assert min(seconds) >= 0
        self.calls += len(seconds)

    def failed(self, error: Exception) -> None:
        self.errors.append(type(error).__name__)

    def backed_up(self) -> None:
        self.backlogs += 1


def batches(store: Script) -> BatchTasks:
    return BatchTasks(lambda saves: store.save_states(saves))


@pytest.fixture
async def store() -> Script:
    store = Script()
    await store.start()
    return store


@pytest.fixture
def group(store: Script) -> SaveGroup:
    return SaveGroup(batches(store), itertools.count(1), Observer(), pause=0.0)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_saves_of_one_turn_share_a_call(store: Script, group: SaveGroup) -> None:
    await asyncio.gather(*(group.save("counter", "7", f"e-{n}", 1, b"x") for n in range(60)))
    assert [len(batch) for batch in store.batches] == [60]
    assert len({save.op_id for save in store.batches[0]}) == 60


@pytest.mark.parametrize(
    ("saves", "shared"), [(63, [63]), (64, [64]), (100, [64, 36]), (200, [100, 100])]
)
async def test_two_writers_share_what_waits(
    store: Script, group: SaveGroup, saves: int, shared: list[int]
) -> None:
    """Both batches are in flight at once."""
    store.gate.clear()
    answers = [group.save("counter", "7", f"e-{n}", 1, b"x") for n in range(saves)]
    await turns()
    assert [len(batch) for batch in store.batches] == shared
    store.gate.set()
    await asyncio.gather(*answers)
    assert await store.load_state("counter", "7", f"e-{saves - 1}", 1) == b"x"


async def test_what_waits_for_a_batch_is_counted_with_its_age(
    store: Script, group: SaveGroup
) -> None:
    assert group.backlog == (0, 0.0)
    store.gate.clear()
    answers = [group.save("counter", "7", "first", 1, b"x")]
    await turns()
    assert group.backlog == (0, 0.0), "it is in flight"
    answers += [group.save("counter", "7", f"e-{n}", 1, b"x") for n in range(5)]
    count, age = group.backlog
    assert count == 5
    assert age > 0
    assert group.backlog[1] > age
    store.gate.set()
    await asyncio.gather(*answers)
    assert group.backlog == (0, 0.0)


async def test_the_second_writer_begins_once_there_is_enough_for_it(
    store: Script, group: SaveGroup
) -> None:
    store.gate.clear()
    answers = [group.save("counter", "7", "first", 1, b"x")]
    await turns()
    for n in range(64):
        assert [len(batch) for batch in store.batches] == [1]
        answers.append(group.save("counter", "7", f"e-{n}", 1, b"x"))
        await turns()
    assert [len(batch) for batch in store.batches] == [1, 64]
    store.gate.set()
    await asyncio.gather(*answers)


async def test_an_entity_has_one_save_in_flight(store: Script, group: SaveGroup) -> None:
    """Whatever follows an entity's second save waits with it, so that order is kept."""
    store.gate.clear()
    answers = [group.save("counter", "7", "a", 1, b"1")]
    await turns()
    answers += [group.save("counter", "7", f"e-{n}", 1, b"x") for n in range(10)]
    answers += [group.save("counter", "7", "a", 1, b"2")]
    answers += [group.save("counter", "7", f"f-{n}", 1, b"x") for n in range(100)]
    await turns()
    assert [len(batch) for batch in store.batches] == [1, 10]
    store.gate.set()
    await asyncio.gather(*answers)
    in_flight = [[save.data for save in batch if save.entity_id == "a"] for batch in store.batches]
    assert [saves for saves in in_flight if saves] == [[b"1"], [b"2"]]
    assert await store.load_state("counter", "7", "a", 1) == b"2"


async def test_saves_are_counted_with_their_failures(store: Script) -> None:
    observer = Observer()
    group = SaveGroup(batches(store), itertools.count(1), observer, attempts=1)
    await store.load_state("counter", "7", "b", 9)
    await asyncio.gather(
        *(group.save("counter", "7", entity_id, 1, b"x") for entity_id in "abc"),
        return_exceptions=True,
    )
    store.failures = 1
    await asyncio.gather(
        *(group.save("counter", "7", entity_id, 1, b"x") for entity_id in "de"),
        return_exceptions=True,
    )
    assert observer.calls == 5
    assert observer.errors == ["StaleFence", "StoreUnavailable", "StoreUnavailable"]


async def test_saves_during_a_write_share_the_next_one(store: Script, group: SaveGroup) -> None:
    store.gate.clear()
    saves = [asyncio.ensure_future(group.save("counter", "7", "first", 1, b"x"))]
    await turns()
    for n in range(50):
        saves.append(asyncio.ensure_future(group.save("counter", "7", f"e-{n}", 1, b"x")))
        await turns(1)
    assert [len(batch) for batch in store.batches] == [1]
    store.gate.set()
    await asyncio.gather(*saves)
    assert [len(batch) for batch in store.batches] == [1, 50]


async def test_a_stale_one_fails_alone(store: Script, group: SaveGroup) -> None:
    await store.load_state("counter", "7", "b", 9)
    outcomes = await asyncio.gather(
        *(group.save("counter", "7", entity_id, 1, b"x") for entity_id in "abc"),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [type(None), StaleFence, type(None)]


async def test_batches_are_bounded(
    store: Script, group: SaveGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "BATCH_SAVES", 40)
    monkeypatch.setattr(group_module, "BATCH_BYTES", 100)
    await asyncio.gather(*(group.save("counter", "7", f"e-{n}", 1, b"") for n in range(100)))
    await asyncio.gather(*(group.save("counter", "7", f"e-{n}", 1, b"x" * 50) for n in range(3)))
    assert [len(batch) for batch in store.batches] == [40, 40, 20, 2, 1]


async def test_saves_of_one_entity_keep_their_order_in_batches_of_their_own(
    store: Script, group: SaveGroup
) -> None:
    answers = [group.save("counter", "7", "a", 1, b"%d" % n) for n in range(5)]
    await turns(50)
    assert all(answer.done() for answer in answers)
    assert [[save.data for save in batch] for batch in store.batches] == [
        [b"0"], [b"1"], [b"2"], [b"3"], [b"4"],
    ]  # fmt: skip
    assert await store.load_state("counter", "7", "a", 1) == b"4"


@pytest.mark.parametrize("lose_answers", [False, True])
async def test_an_absence_is_bridged_with_the_same_operation_ids(
    store: Script, group: SaveGroup, lose_answers: bool
) -> None:
    store.failures, store.lose_answers = 2, lose_answers
    await asyncio.gather(*(group.save("counter", "7", entity_id, 1, b"x") for entity_id in "ab"))
    assert len(store.batches) == 3
    assert store.batches[0] == store.batches[1] == store.batches[2]


async def test_a_store_that_stays_away_fails_every_caller_and_then_works_again(
    store: Script, group: SaveGroup
) -> None:
    store.failures = 3
    outcomes = await asyncio.gather(
        *(group.save("counter", "7", entity_id, 1, b"x") for entity_id in "ab"),
        return_exceptions=True,
    )
    assert [str(outcome) for outcome in outcomes] == ["away; wait", "away; wait"]
    assert outcomes[0] is not outcomes[1]
    assert len(store.batches) == 3
    await group.save("counter", "7", "a", 1, b"y")
    assert await store.load_state("counter", "7", "a", 1) == b"y"


async def test_a_cancelled_save_leaves_the_others_alone(store: Script, group: SaveGroup) -> None:
    store.gate.clear()
    saves = [
        asyncio.ensure_future(group.save("counter", "7", entity_id, 1, b"x")) for entity_id in "abc"
    ]
    await turns()
    late = asyncio.ensure_future(group.save("counter", "7", "d", 1, b"x"))
    await turns()
    saves[1].cancel()
    late.cancel()
    await turns()
    store.gate.set()
    outcomes = await asyncio.gather(*saves, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [
        type(None), asyncio.CancelledError, type(None),
    ]  # fmt: skip
    assert await store.load_state("counter", "7", "d", 1) is None


async def test_a_defect_of_the_store_reaches_the_callers(store: Script, group: SaveGroup) -> None:
    store.defect = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        await group.save("counter", "7", "a", 1, b"x")
    store.defect = None
    await group.save("counter", "7", "a", 1, b"x")


def test_operation_ids_differ_between_nodes_and_fit_63_bits() -> None:
    ids = [list(itertools.islice(op_ids(uid), 1000)) for uid in range(10)]
    flat = [op_id for node in ids for op_id in node]
    assert len(set(flat)) == len(flat)
    assert all(0 <= op_id < 2**63 for op_id in flat)


async def test_a_save_of_a_process_that_stood_still_is_not_sent_again(store: Script) -> None:
    """A store that failed over meanwhile may have lost the fence of the shard's next home."""
    now = [100.0]
    group = SaveGroup(
        batches(store), itertools.count(1), Observer(), pause=0.0, within=6.0, clock=lambda: now[0]
    )
    store.failures, store.gate = 1, asyncio.Event()
    saving = asyncio.ensure_future(group.save("counter", "7", "a", 1, b"x"))
    await turns()
    now[0] += 6.0
    store.gate.set()
    with pytest.raises(StoreUnavailable):
        await saving
    assert len(store.batches) == 1
    store.failures = 1
    await group.save("counter", "7", "a", 1, b"x")
    assert len(store.batches) == 3


@pytest.mark.parametrize("answers", [[True] * 3, [True, False, True], [False, True, True]])
async def test_a_refusal_is_definite_only_if_every_attempt_was_refused(
    store: Script, group: SaveGroup, answers: list[bool]
) -> None:
    left = list(answers)

    async def fail(saves: Sequence[Save]) -> list[StoreError | None]:
        raise StoreUnavailable("is full", definite=left.pop(0))

    store.save_states = fail  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable) as caught:
        await group.save("counter", "7", "a", 1, b"x")
    assert caught.value.definite is all(answers)
    assert left == []


async def test_a_store_that_answers_for_another_number_of_saves_leaves_no_caller_waiting(
    store: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a plugged-in store with a defect: the callers whose answer is missing get an error."""

    async def short(saves: Sequence[Save]) -> list[StoreError | None]:
        return [None] * (len(saves) - 1)

    group = SaveGroup(batches(store), itertools.count(1), Observer())
    monkeypatch.setattr(store, "save_states", short)
    saves = [group.save("counter", "7", name, 1, b"") for name in "abc"]
    answers = await asyncio.wait_for(asyncio.gather(*saves, return_exceptions=True), 60)
    assert answers[:2] == [None, None]
    assert isinstance(answers[2], ValueError)
    monkeypatch.undo()
    await group.save("counter", "7", "d", 1, b"")


async def test_a_group_tells_each_time_that_many_more_wait(store: Script) -> None:
    observer = Observer()
    group = SaveGroup(batches(store), itertools.count(1), observer)
    waits = [group.save("counter", "7", str(n), 1, b"") for n in range(2 * AT_ONCE + 1)]
    assert observer.backlogs == 2
    await asyncio.gather(*waits)
    await asyncio.gather(*(group.save("counter", "7", str(n), 1, b"") for n in range(AT_ONCE - 1)))
    assert observer.backlogs == 2


class Eager(Script):
    """A quick store, which answers the batches that have begun on the test's call."""

    quick = True

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[tuple[list[Save], BatchEnded]] = []
        self.cannot: Exception | None = None

    def begin_saves(self, saves: Sequence[Save], ended: BatchEnded) -> None:
        if self.cannot is not None:
            raise self.cannot
        self.begun.append((list(saves), ended))

    @property
    def sizes(self) -> list[int]:
        return [len(saves) for saves, _ in self.begun]

    def have(self) -> None:
        """Tell that the store has all of the first batch."""
        self.answer(*[None] * self.sizes[0])

    def answer(self, *outcomes: StoreError | None) -> None:
        """Give the first batch these outcomes, in a callback of the loop."""
        asyncio.get_running_loop().call_soon(self.begun.pop(0)[1], outcomes)

    async def silent(self, count: int) -> None:
        """Give the first batch no answer, and wait until it is sent again."""
        self.answer(*[StoreUnavailable("away") for _ in range(count)])
        await turns()


@pytest.fixture
async def eager() -> Eager:
    store = Eager()
    await store.start()
    return store


@pytest.fixture
def quick(eager: Eager) -> SaveGroup:
    return SaveGroup(eager, itertools.count(1), Observer(), pause=0.0)


def saved(group: SaveGroup, count: int, name: str = "e") -> list[asyncio.Future[None]]:
    return [group.save("counter", "7", f"{name}-{n}", 1, b"x") for n in range(count)]


async def test_a_batch_begins_without_a_task_in_the_turn_after_its_saves(
    eager: Eager, quick: SaveGroup
) -> None:
    tasks = asyncio.all_tasks()
    answers = saved(quick, 60)
    assert eager.sizes == []
    await turns(1)
    assert eager.sizes == [60]
    eager.have()
    await turns(2)
    assert all(answer.done() for answer in answers)
    assert asyncio.all_tasks() == tasks
    assert quick.backlog == (0, 0.0)


@pytest.mark.parametrize(
    ("saves", "at_once", "soon"),
    [(95, [], [95]), (96, [96], [96]), (159, [96], [96]), (160, [96], [96, 64]),
     (300, [96, 96, 96], [96, 96, 96])],
)  # fmt: skip
async def test_a_store_works_while_the_saves_of_one_turn_still_come(
    eager: Eager, quick: SaveGroup, saves: int, at_once: list[int], soon: list[int]
) -> None:
    answers = saved(quick, saves)
    assert eager.sizes == at_once
    await turns(1)
    assert eager.sizes == soon
    while eager.begun:
        eager.have()
        await turns(2)
    await asyncio.gather(*answers)


async def test_what_waits_goes_as_soon_as_a_batch_has_ended(eager: Eager, quick: SaveGroup) -> None:
    first = saved(quick, 1)
    await turns(1)
    others = saved(quick, 50, "f")
    await turns()
    assert eager.sizes == [1]
    eager.have()
    await turns(1)
    assert eager.sizes == [50]
    eager.have()
    await asyncio.gather(*first, *others)


async def test_an_error_before_a_batch_is_sent_is_for_its_callers(
    eager: Eager, quick: SaveGroup
) -> None:
    eager.cannot = ZeroDivisionError()
    outcomes = await asyncio.gather(*saved(quick, 200), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {ZeroDivisionError}


async def test_a_begun_batch_is_answered_save_by_save(eager: Eager, quick: SaveGroup) -> None:
    answers = saved(quick, 3)
    await turns(1)
    stale = StaleFence("counter", "e-1", 1, 9)
    eager.answer(None, stale, None)
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    assert outcomes == [None, stale, None]
    again = saved(quick, 1)
    await turns(1)
    eager.have()
    await asyncio.gather(*again)


async def test_a_begun_batch_without_an_answer_is_sent_again_with_the_same_operation_ids(
    eager: Eager, quick: SaveGroup
) -> None:
    answers = saved(quick, 3)
    await turns(1)
    [(sent, _)] = eager.begun
    await eager.silent(3)
    [(again, _)] = eager.begun
    assert again == sent
    eager.have()
    await asyncio.gather(*answers)


async def test_of_a_begun_batch_only_what_has_no_answer_is_sent_again(
    eager: Eager, quick: SaveGroup
) -> None:
    answers = saved(quick, 3)
    await turns(1)
    eager.answer(None, StoreUnavailable("away"), StaleFence("counter", "e-2", 1, 9))
    await turns()
    assert [[save.entity_id for save in saves] for saves, _ in eager.begun] == [["e-1"]]
    eager.have()
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), type(None), StaleFence]


async def test_a_begun_batch_of_a_process_that_stood_still_is_not_sent_again(
    eager: Eager,
) -> None:
    now = [100.0]
    group = SaveGroup(eager, itertools.count(1), Observer(), pause=0.0, clock=lambda: now[0])
    answers = saved(group, 1)
    await turns(1)
    now[0] += 6.0
    await eager.silent(1)
    with pytest.raises(StoreUnavailable):
        await answers[0]
    assert eager.begun == []


async def test_of_an_entity_one_save_is_in_flight_also_without_tasks(
    eager: Eager, quick: SaveGroup
) -> None:
    answers = [quick.save("counter", "7", "a", 1, b"%d" % n) for n in range(3)]
    for n in range(3):
        await turns(1)
        assert [[save.data for save in saves] for saves, _ in eager.begun] == [[b"%d" % n]]
        eager.have()
        await turns(1)
    await asyncio.gather(*answers)
