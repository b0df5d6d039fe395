"""States that instances share, as lines of an export, and back."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus import Entity, ShardBus, handler
from shardbus.errors import ConfigError
from shardbus.replication.kinds import (
    KINDS,
    Counter,
    Flag,
    Map,
    PNCounter,
    Register,
    Set,
    versioned,
)
from shardbus.replication.values import state_name
from shardbus.replication.versions import (
    AMOUNT_MAX,
    NOTHING,
    Addition,
    DataChange,
    DataValue,
    joined,
    taken,
)
from shardbus.simulation.nodes.values import SimValues, ValueDisk
from shardbus.store.journal_transfer import read_export_line
from shardbus.store.memory import MemoryStore
from shardbus.store.shared_states import (
    SharedImporter,
    SharedState,
    line_of_shared,
    shared_states,
    states_of,
    value_of,
)
from shardbus_cli.exit_codes import CommandFailure
from shardbus_cli.state_lines import import_lines, lines_of_type
from tests.process.merged_app import bus


class SharingStore(MemoryStore):
    """A store in memory that has replicated values, on one disk."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = ValueDisk()

        async def request(call: Callable[[], Awaitable[Any]]) -> Any:
            return await call()

        self.values = SimValues(self.disk, request, lambda name: None)
        self.value_counts: dict[tuple[str, str], int] = {}
        self.value_conflicts: dict[str, int] = {}

    def value(self, kind: str, entity_id: str) -> DataValue:
        return self.disk.rows.get(state_name(kind, entity_id), NOTHING)

    async def put(self, kind: str, entity_id: str, *changes: DataChange | None) -> None:
        for change in changes:
            assert change is not None
            await self.values.write(state_name(kind, entity_id), change, 1)  # type: ignore[arg-type]


class Alone(Entity):
    """An entity without instances."""

    @handler
    def look(self) -> None: ...


async def opened() -> SharingStore:
    store = SharingStore()
    await store.start()
    return store


async def exported(store: SharingStore, kind: str) -> list[str]:
    return [line async for line in lines_of_type(store, None, kind, "", None, 100_000)]


async def imported(
    store: SharingStore, lines: list[str], existing: str = "refuse", *, write: bool = True
) -> dict[str, int]:
    done = await import_lines(store, None, [line.encode() for line in lines], existing, write=write)
    return {what: count for what, count in done.items() if count}


def add(amount: int) -> DataChange | None:
    return Counter().add(amount).changes.change()


async def test_what_is_exported_reads_the_same_after_an_import() -> None:
    source, target = await opened(), await opened()
    views = {
        "counter": Counter().add(3).add(4),
        "pn": PNCounter().add(3).subtract(9),
        "set": Set().add("a", 1, b"x"),
        "map": Map().set("a", 1).set("b", [2]),
        "flag": Flag().enable(),
        "register": Register().set({"tea": 1}),
    }
    for entity_id, view in views.items():
        await source.put("t", entity_id, view.changes.change())
    lines = await exported(source, "t")
    assert len(lines) == len(views)
    assert lines[0] == '{"type":"t","id":"counter","shared":"counter","contents":[{"amount":7}]}'
    assert await imported(target, lines) == {"shared": len(views)}
    for entity_id, view in views.items():
        read = versioned(target.value("t", entity_id))
        assert read is not None
        assert read.data == view.value, entity_id
    assert await exported(target, "t") == lines
    assert await imported(target, lines) == {"same": len(views)}


async def test_states_saved_at_the_same_time_stay_beside_each_other_in_their_order() -> None:
    source, target = await opened(), await opened()
    for time, text in ((5, "late"), (3, "early"), (4, "middle")):
        change = Register().set(text).changes.change()
        assert change is not None
        await source.put("t", "a", change._replace(time=time))
    await imported(target, await exported(source, "t"))
    before, after = versioned(source.value("t", "a")), versioned(target.value("t", "a"))
    assert before is not None
    assert after is not None
    assert (after.data, after.conflicts) == (before.data, before.conflicts)
    assert after.data == "late"


async def test_another_state_that_is_there_is_refused_kept_or_replaced() -> None:
    source, target = await opened(), await opened()
    await source.put("t", "a", add(5))
    lines = await exported(source, "t")
    await target.put("t", "a", add(2))
    with pytest.raises(CommandFailure, match="line 1: t 'a' has another state"):
        await imported(target, lines)
    assert await imported(target, lines, "skip") == {"skipped": 1}
    assert await imported(target, lines, "replace", write=False) == {"shared": 1}
    assert Counter(target.value("t", "a")).value == 2
    assert await imported(target, lines, "replace") == {"shared": 1}
    assert Counter(target.value("t", "a")).value == 5
    await target.put("t", "a", DataChange("", seen=target.value("t", "a").clock))
    await target.put("t", "a", Flag().enable().changes.change())
    assert await imported(target, lines, "replace") == {"shared": 1}
    assert Counter(target.value("t", "a")).value == 5


async def test_a_state_that_was_removed_is_not_exported_and_may_be_imported_over() -> None:
    source = await opened()
    await source.put("t", "a", add(5))
    lines = await exported(source, "t")
    await source.put("t", "a", DataChange("", seen=source.value("t", "a").clock))
    assert await exported(source, "t") == []
    assert await imported(source, lines) == {"shared": 1}
    assert Counter(source.value("t", "a")).value == 5


async def test_a_store_without_replicated_values_refuses_them_and_has_none() -> None:
    source, plain = await opened(), MemoryStore()
    await plain.start()
    await source.put("t", "a", add(5))
    [line] = await exported(source, "t")
    with pytest.raises(CommandFailure, match=r"line 1: .*needs the store inside the cluster"):
        await import_lines(plain, None, [line.encode()], "refuse", write=True)
    assert [state async for state in shared_states(plain, "t")] == []


async def test_an_application_refuses_states_that_its_class_does_not_read() -> None:
    store = await opened()
    flag = line_of_shared(SharedState("hits", "a", "f", (Addition(),)))
    alone = '{"type":"hits","id":"a","shard":"0","version":1,"state":{}}'
    elsewhere = flag.replace("hits", "cart")
    unshared = ShardBus("lab")
    unshared.entity("hits")(Alone)
    with pytest.raises(
        CommandFailure, match="line 1: the type hits has no state that instances share"
    ):
        await import_lines(store, unshared, [flag.encode()], "refuse", write=True)
    for line, why in (
        (flag, "line 1: .*it is a flag, and the class declares a counter"),
        (alone, "line 1: the instances of hits share their states"),
    ):
        with pytest.raises(CommandFailure, match=why):
            await import_lines(store, bus, [line.encode()], "refuse", write=True)
    assert store.disk.rows == {}
    await import_lines(store, bus, [elsewhere.encode()], "refuse", write=True)
    good = line_of_shared(SharedState("hits", "a", "c", (Addition(amount=2),)))
    await import_lines(store, bus, [good.encode()], "refuse", write=True)
    assert Counter(store.value("hits", "a")).value == 2


@pytest.mark.parametrize(
    "change",
    [
        {"shared": "basket"},
        {"shared": None},
        {"contents": []},
        {"contents": "x"},
        {"contents": [5]},
        {"contents": [{"amount": -1}]},
        {"contents": [{"amount": True}]},
        {"contents": [{"amount": AMOUNT_MAX + 1}]},
        {"contents": [{"name": 5}]},
        {"contents": [{"data": "?"}]},
        {"contents": [{"data": 5}]},
        {"contents": [{"other": 5}]},
        {"other": 5},
        {"id": ""},
        {"id": 5},
    ],
    ids=str,
)
def test_a_line_that_is_no_state_is_refused(change: dict[str, Any]) -> None:
    row = {"type": "t", "id": "a", "shared": "counter", "contents": [{"amount": 1}]}
    assert isinstance(read_export_line(json.dumps(row)), SharedState)
    with pytest.raises(ConfigError):
        read_export_line(json.dumps(row | change))


async def test_the_importer_counts() -> None:
    store = await opened()
    importer = SharedImporter(store, existing="skip", write=True)
    for amount in (1, 1, 2):
        assert await importer.put(SharedState("t", "a", "c", (Addition(amount=amount),)))
    assert (importer.written, importer.same, importer.skipped) == (1, 1, 1)


ADDITIONS = st.builds(
    Addition, st.text(max_size=3), st.binary(max_size=3), st.integers(0, 9), st.integers(0, 9)
)


@given(
    st.sampled_from(sorted(KINDS)), st.lists(st.tuples(ADDITIONS, st.integers(1, 3)), min_size=1)
)
def test_any_value_of_several_disks_comes_back_by_its_line(
    kind: str, writes: list[tuple[Addition, int]]
) -> None:
    values, counters = dict.fromkeys((1, 2, 3), NOTHING), dict.fromkeys((1, 2, 3), 0)
    for time, (addition, disk) in enumerate(writes, 1):
        outcome = taken(
            values[disk], disk, counters[disk], DataChange(kind, (addition,), time=time)
        )
        assert isinstance(outcome[0], DataValue)
        values[disk], counters[disk] = outcome[0], int(outcome[1])
    value = joined(joined(values[1], values[2]), values[3])
    [state] = states_of("t", "a", value)
    assert read_export_line(line_of_shared(state)) == state
    assert states_of("t", "a", value_of(state)) == [state]
    written = taken(NOTHING, 9, 0, DataChange(kind, state.contents))
    assert isinstance(written[0], DataValue)
    assert states_of("t", "a", written[0]) == [state]
