"""How news of shared states find the entities here: which values are read, and which entities get a
message; and what a save does besides."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from shardbus.entities.gate import SuspensionGate
from shardbus.entities.merged_state import StateOfKind
from shardbus.entities.merging import MergedStates
from shardbus.entities.state_sizes import StateSizes
from shardbus.errors import ConfigError, StaleActivation, StoreUnavailable
from shardbus.replication.kinds import Counter
from shardbus.replication.versions import COUNTER, NOTHING, DataChange, DataValue, NotTaken, taken


class Values:
    """Values in memory. `errors` are raised by the next calls of `changed`, `read`, `write`."""

    def __init__(self) -> None:
        self.rows: dict[str, DataValue] = {}
        self.news: tuple[set[str], bool] = set(), True
        self.reads: list[str] = []
        self.errors: dict[str, Exception] = {}
        self.counter = 0
        self.writes = asyncio.Event()
        """Set while writes go on."""
        self.writes.set()

    def _fail(self, call: str) -> None:
        if (error := self.errors.pop(call, None)) is not None:
            raise error

    async def read(self, entity_id: str) -> DataValue:
        self.reads.append(entity_id)
        self._fail("read")
        return self.rows.get(entity_id, NOTHING)

    async def write(self, entity_id: str, change: DataChange) -> DataValue:
        self._fail("write")
        await self.writes.wait()
        step = taken(self.rows.get(entity_id, NOTHING), 1, self.counter, change)
        assert not isinstance(step, NotTaken)
        self.rows[entity_id], self.counter = step
        return self.rows[entity_id]

    async def changed(self, since: object) -> tuple[set[str], bool]:
        self._fail("changed")
        return self.news

    async def add(self, entity_id: str) -> None:
        """Another instance adds 1."""
        change = Counter().add(1).changes.change()
        assert change is not None
        await self.write(entity_id, change)


class Runner:
    """Keeps the messages of own entities; `handle` runs them."""

    def __init__(self) -> None:
        self.kind = SimpleNamespace(name="hits")
        self.gate = SuspensionGate()
        self.reminding: Any = None
        self.messages: list[tuple[Any, Any]] = []

    def measure(self, sizes: StateSizes) -> StateSizes:
        return sizes

    def receive(self, activation: Any, message: Any, *, counts: bool) -> None:
        assert not counts, "news keep no entity in memory"
        assert message.ends_with_activation
        self.messages.append((activation, message))

    def handle(self) -> None:
        messages, self.messages = self.messages, []
        for activation, message in messages:
            message.invoker.function(activation.entity, message.invoker.decode_message(b""))


class Saver:
    def __init__(self) -> None:
        self.saves: list[dict[str, Any]] = []

    def stored_form(self, entity_id: str, data: bytes) -> bytes:
        return data

    async def save(self, context: Any, data: object, **how: Any) -> None:
        self.saves.append(how)


class Context:
    """The context of an entity. It is over once `over` is true."""

    def __init__(self, activation: Any) -> None:
        self._activation, self.over = activation, False
        self.entity_id = activation.key.partition("~")[0]

    def _acting(self, what: str) -> Any:
        if self.over:
            raise StaleActivation("hits", self._activation.key, 1, what)
        return self._activation

    def _of(self) -> Any:
        return self._activation


class Place:
    """The states of one node."""

    def __init__(self) -> None:
        self.values, self.runner, self.saver = Values(), Runner(), Saver()
        parts: tuple[Any, ...] = (self.values, self.runner, self.saver)
        self.states = MergedStates(StateOfKind("hits", COUNTER), *parts)

    async def start(self, key: str) -> Any:
        # As a real one it is hashed by identity.
        activation: Any = type("Activation", (), {})()
        activation.key, activation.busy, activation.entity = key, False, SimpleNamespace()
        await self.states.load(activation)
        return activation

    async def look(self) -> None:
        self.states.sweep(0)
        while self.states._looks:
            await asyncio.sleep(0)


@pytest.fixture
async def place() -> Place:
    return Place()


async def test_only_changed_values_of_entities_here_are_read(place: Place) -> None:
    page = await place.start("page~1")
    await place.start("other~1")
    place.values.reads.clear()
    await place.values.add("page")
    place.values.news = {"page", "elsewhere"}, True
    await place.look()
    assert place.values.reads == ["page"]
    place.runner.handle()
    assert page.entity.state.value == 1
    assert place.states.counts["taken"] == 1
    await place.look()
    assert place.runner.messages == [], "it has that already"


async def test_all_are_read_if_a_replica_does_not_remember_its_changes(place: Place) -> None:
    for key in ("page~1", "other~1"):
        await place.start(key)
    place.values.reads.clear()
    place.values.news = set(), False
    await place.look()
    assert sorted(place.values.reads) == ["other", "page"]


@pytest.mark.parametrize("error", [StoreUnavailable("away"), ConfigError("r=3")])
@pytest.mark.parametrize("call", ["changed", "read"])
async def test_a_look_that_fails_goes_on_with_the_next(
    place: Place, call: str, error: Exception
) -> None:
    page = await place.start("page~1")
    await place.values.add("page")
    place.values.news = {"page"}, True
    place.values.errors[call] = error
    await place.look()
    assert place.runner.messages == []
    if call == "read":
        place.values.news = set(), True
    await place.look()
    place.runner.handle()
    assert page.entity.state.value == 1


async def test_a_busy_entity_has_one_message_of_news_at_a_time(place: Place) -> None:
    page = await place.start("page~1")
    page.busy = True
    place.values.news = {"page"}, True
    for _ in range(3):
        await place.values.add("page")
        await place.look()
    assert len(place.runner.messages) == 1
    place.runner.handle()
    assert page.entity.state.value == 3


async def test_a_message_of_news_that_was_lost_is_sent_again(place: Place) -> None:
    page = await place.start("page~1")
    place.values.news = {"page"}, True
    await place.values.add("page")
    await place.look()
    place.runner.messages.clear()  # the mailbox was full
    await place.look()
    place.runner.handle()
    assert page.entity.state.value == 1


async def test_news_for_a_former_object_change_nothing(place: Place) -> None:
    page = await place.start("page~1")
    await place.values.add("page")
    place.values.news = {"page"}, True
    await place.look()
    former, page.entity = page.entity, SimpleNamespace()
    await place.states.load(page)
    place.runner.handle()
    assert (former.state.value, page.entity.state.value) == (0, 1)
    assert place.states.counts["taken"] == 0


async def test_an_entity_that_has_left_memory_gets_no_news(place: Place) -> None:
    page = await place.start("page~1")
    assert place.states.sizes.of(page) == 0
    place.states.gone(page)
    place.states.gone(page)
    await place.values.add("page")
    place.states.sweep(0)
    assert not place.states._looks, "there is nothing to look for"


async def test_saves_of_one_object_come_one_after_the_other(place: Place) -> None:
    page = await place.start("page~1")
    context: Any = Context(page)
    place.values.writes.clear()
    saves = []
    for _ in range(2):
        page.entity.state.add(1)
        saves.append(asyncio.ensure_future(place.states.save(context, b"")))
        await asyncio.sleep(0)
    place.values.writes.set()
    await asyncio.gather(*saves)
    assert place.values.rows["page"].dots[0].amount == 2
    assert page.entity.state.value == 2


async def test_a_save_without_a_change_reads_what_is_new_and_writes_nothing(place: Place) -> None:
    page = await place.start("page~1")
    await place.values.add("page")
    stored = place.values.rows["page"]
    context: Any = Context(page)
    await place.states.save(context, b"")
    assert page.entity.state.value == 1
    assert place.values.rows["page"] is stored


async def test_a_save_of_an_object_that_is_over_writes_nothing(place: Place) -> None:
    page = await place.start("page~1")
    context: Any = Context(page)
    page.entity.state.add(1)
    context.over = True
    with pytest.raises(StaleActivation):
        await place.states.save(context, b"")
    assert place.values.rows == {}


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (StoreUnavailable("none in reach", definite=True), 1),
        (ConfigError("w=4"), 1),
        (StoreUnavailable("no answer"), 0),
        (asyncio.CancelledError(), 0),
    ],
)
async def test_a_write_in_doubt_gives_its_additions_up(place: Place, error: Any, left: int) -> None:
    page = await place.start("page~1")
    page.entity.state.add(1)
    place.values.errors["write"] = error
    with pytest.raises(type(error)):
        await place.states.save(Context(page), b"")  # type: ignore[arg-type]
    assert page.entity.state.value == left


async def test_a_clear_ends_the_reminders_too(place: Place) -> None:
    page = await place.start("page~1")
    await place.values.add("page")
    context: Any = Context(page)
    await place.states.save(context, None, clears=True)
    assert not place.values.rows["page"].dots
    assert place.saver.saves == []
    place.runner.reminding = object()
    await place.states.save(context, None, clears=True)
    assert place.saver.saves == [{"clears": True}]
    await place.states.save(context, None, alone=True)
    assert place.saver.saves[1:] == [{"alone": True}]
