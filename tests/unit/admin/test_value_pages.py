"""The pages of replicated values: every kind as JSON, and what is not taken."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shardbus.admin.administration import Administration
from shardbus.admin.pages.values import delete_value, put_value, value, values
from shardbus.errors import ConfigError
from shardbus.replication.kinds import (
    AnyKind,
    Counter,
    Flag,
    Map,
    MultiMap,
    Register,
    Set,
    Versioned,
    versioned,
)
from shardbus.replication.versions import NOTHING, NotTaken, taken
from shardbus.store import replicated_data
from shardbus.store.memory import MemoryStore
from tests.unit.admin.admin_kit import FakeNode


def stored(kind: AnyKind) -> Versioned:
    change = kind.changes.change()
    assert change is not None
    step = taken(NOTHING, 10, 0, change)
    assert not isinstance(step, NotTaken)
    shown = versioned(step[0])
    assert shown is not None
    return shown


class Data:
    """Values in memory. `acts` has the calls."""

    def __init__(self) -> None:
        self.there: dict[str, Versioned] = {}
        self.acts: list[tuple[object, ...]] = []

    async def keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self.there if key.startswith(prefix))

    async def get(self, key: str, *, r: object) -> Versioned | None:
        self.acts.append(("get", key, r))
        return self.there.get(key)

    async def put(self, key: str, value: object, *, w: object) -> Versioned:
        self.acts.append(("put", key, value, w))
        self.there[key] = stored(Register().set(value))
        return self.there[key]

    async def delete(self, key: str, *, w: object) -> bool:
        self.acts.append(("delete", key, w))
        return self.there.pop(key, None) is not None

    def replicas_of(self, key: str) -> list[str]:
        return ["a:7357", "b:7357"]


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Data:
    data = Data()
    monkeypatch.setattr(replicated_data, "ReplicatedData", lambda store, settings: data)
    return data


@pytest.fixture
async def pages() -> Administration:
    node: Any = FakeNode()
    return Administration(node)


async def test_keys_are_listed_up_to_a_limit(pages: Administration, data: Data) -> None:
    for key in ("b", "a1", "a2"):
        data.there[key] = stored(Counter().add())
    assert await values(pages, "op", "a", 5) == {
        "values": [{"key": "a1"}, {"key": "a2"}],
        "more": False,
    }
    assert await values(pages, "op", "", 2) == {
        "values": [{"key": "a1"}, {"key": "a2"}],
        "more": True,
    }


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (Register().set({"a": [1.5, None]}), {"a": [1.5, None]}),
        (Register().set(b"x"), {"$bytes": "eA=="}),
        (Register().set(math.inf), {"$float": "inf"}),
        (Counter().add(3), 3),
        (Set().add("b", "a", 1), ["a", "b", 1]),
        (Set().add(("a", 1)), [["a", 1]]),
        (Map().set("x", b"y"), {"x": {"$bytes": "eQ=="}}),
        (MultiMap().add("x", 2, 1), {"x": [1, 2]}),
        (Flag().enable(), True),
    ],
)
async def test_each_kind_is_json(
    pages: Administration, data: Data, kind: AnyKind, shown: object
) -> None:
    data.there["k"] = stored(kind)
    page: Any = await value(pages, "k", "op", "all")
    assert page["value"] == shown
    assert page["kind"] == data.there["k"].kind
    assert page["hash"] == f"{data.there['k'].hash:016x}"
    assert page["version"][0]["disk"] == f"{10:016x}"
    assert page["replicas"] == ["a:7357", "b:7357"]
    assert data.acts == [("get", "k", "all")]


async def test_a_value_is_put_shown_and_deleted(pages: Administration, data: Data) -> None:
    none: Any = await value(pages, "k", "op")
    assert (none["kind"], none["value"], none["version"]) == (None, None, [])
    page = await put_value(pages, "k", {"$bytes": "eA=="}, "op", "2")
    assert page["value"] == {"$bytes": "eA=="}
    assert await delete_value(pages, "k", "op") == {"key": "k", "deleted": True}
    assert await delete_value(pages, "k", "op") == {"key": "k", "deleted": False}
    assert data.acts[1:3] == [("put", "k", b"x", "2"), ("delete", "k", None)]
    with pytest.raises(ConfigError, match="the value"):
        await put_value(pages, "k", {"$bytes": "!"}, "op")


async def test_another_store_has_no_values() -> None:
    node: Any = FakeNode()
    node.store = MemoryStore()
    with pytest.raises(ConfigError, match="cluster://"):
        await value(Administration(node), "k", "op")
