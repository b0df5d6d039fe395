"""States that instances share, as lines of an export, and back into a store inside the cluster.

    {"type": "hits", "id": "7", "shared": "counter", "contents": [{"amount": 12}]}

`shared` is the kind of the replicated value (a class with a `merge` is a register), `contents` are
its dots without their stamps: `name` of a field, `data` in base64, `amount` and `minus` of a
counter. States of a class that were saved at the same time stay beside each other, in their order
of time. So one write into a key without a value makes a value that reads the same.

The disks of the source stay behind, and with them the clocks: an import compares contents. An
import that is repeated counts no addition twice, because what is there already is not written.

Source: docs/how-to/keep-state.md; docs/how-to/replicated-values.md.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from shardbus.config.settings import DataSettings
from shardbus.errors import ConfigError
from shardbus.ids import check_id
from shardbus.replication import versions
from shardbus.store.protocol import CountsValues, StateStore
from shardbus.store.state_values import StateValues

FIELDS = {"type", "id", "shared", "contents"}
CONTENT_FIELDS = {"name", "data", "amount", "minus"}
KINDS = {name: kind for kind, name in versions.KIND_NAMES.items()}


class SharedState(NamedTuple):
    """One line: the state that the instances of an entity share. `kind` as dots have it."""

    entity_type: str
    entity_id: str
    kind: str
    contents: tuple[versions.Addition, ...]


def states_of(entity_type: str, entity_id: str, value: versions.DataValue) -> list[SharedState]:
    """Return the state in a value: none without dots, and two if it was created as two kinds at
    the same time. Equal contents are equal in their order, too."""
    states = []
    for kind in versions.kinds_of(value):
        dots = [dot for dot in value.dots if dot.kind == kind]
        if kind in versions.COUNTERS:
            total, minus = sum(dot.amount for dot in dots), sum(dot.minus for dot in dots)
            contents = [versions.Addition(amount=total, minus=minus)]
        else:
            if kind in versions.TIMED:
                dots.sort(key=lambda dot: (dot.amount, dot.stamp), reverse=True)
            else:
                dots.sort(key=lambda dot: (dot.name, dot.data), reverse=True)
            latest = dict.fromkeys(versions.Addition(dot.name, dot.data) for dot in dots)
            contents = list(reversed(latest))
        states.append(SharedState(entity_type, entity_id, kind, tuple(contents)))
    return states


def value_of(state: SharedState) -> versions.DataValue:
    """Return a value that reads as the state, of a disk that is nowhere."""
    dots = tuple(
        versions.Dot(
            1,
            n,
            state.kind,
            content.name,
            content.data,
            n if state.kind in versions.TIMED else content.amount,
            content.minus,
        )
        for n, content in enumerate(state.contents, 1)
    )
    return versions.DataValue(((1, len(dots)),), dots)


def line_of_shared(state: SharedState) -> str:
    """Return the line of a state."""
    contents = []
    for content in state.contents:
        row: dict[str, Any] = {"name": content.name} if content.name else {}
        row |= {"data": base64.b64encode(content.data).decode()} if content.data else {}
        row |= {"amount": content.amount} if content.amount else {}
        contents.append(row | ({"minus": content.minus} if content.minus else {}))
    kind = versions.KIND_NAMES.get(state.kind, state.kind)
    row = {"type": state.entity_type, "id": state.entity_id, "shared": kind, "contents": contents}
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"))


def shared_in(row: dict[str, Any]) -> SharedState:
    """Return the state of a line.

    Raises:
        ConfigError: it is none.
    """
    if unknown := sorted(set(row) - FIELDS):
        raise ConfigError(f"it has an unknown field {unknown[0]!r:.60}")
    kind, entity_id = (check_id(name, row.get(name, "")) for name in ("type", "id"))
    letter, contents = KINDS.get(str(row["shared"])), row.get("contents")
    if letter is None or not isinstance(contents, list) or not contents:
        raise ConfigError(f"shared is {row['shared']!r:.60}, no kind with contents")
    return SharedState(kind, entity_id, letter, tuple(map(_content_in, contents)))


def _content_in(row: Any) -> versions.Addition:
    if not isinstance(row, dict) or set(row) - CONTENT_FIELDS:
        raise ConfigError(f"{row!r:.60} is no content")
    name, amounts = row.get("name", ""), (row.get("amount", 0), row.get("minus", 0))
    if not isinstance(name, str) or not all(
        type(amount) is int and 0 <= amount <= versions.AMOUNT_MAX for amount in amounts
    ):
        raise ConfigError(f"{row!r:.60} is no content")
    try:
        data = base64.b64decode(row.get("data", ""), validate=True)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"data: {error}") from None
    return versions.Addition(name, data, *amounts)


async def shared_states(
    store: StateStore, entity_type: str, prefix: str = ""
) -> AsyncIterator[SharedState]:
    """Yield the states that instances of a type share, whose ids begin with a text."""
    if not isinstance(store, CountsValues):
        return
    values = _values(store, entity_type)
    for entity_id in await values.ids(prefix):
        for state in states_of(entity_type, entity_id, await values.read(entity_id)):
            yield state


def _values(store: StateStore, entity_type: str) -> StateValues:
    """Return the values of a type. Raises ConfigError: the store has none."""
    return StateValues(entity_type, store, DataSettings(value_limit=0), time.time)


class SharedImporter:
    """Writes states that instances share. Arguments as for `transfer.Importer`."""

    def __init__(self, store: StateStore, *, existing: str, write: bool) -> None:
        self._store, self._existing, self._write = store, existing, write
        self.written = self.same = self.skipped = 0

    async def put(self, state: SharedState) -> bool:
        """Write a state. Returns False if another one is there, and that is refused.

        Raises:
            ConfigError: the store has no such states. StoreError: it refuses this one.
        """
        values = _values(self._store, state.entity_type)
        value = await values.read(state.entity_id)
        stored = states_of(state.entity_type, state.entity_id, value)
        if stored == [state]:
            self.same += 1
        elif stored and self._existing == "refuse":
            return False
        elif stored and self._existing == "skip":
            self.skipped += 1
        else:
            self.written += 1
            if self._write:
                if any(kept.kind != state.kind for kept in stored):
                    await values.write(state.entity_id, versions.DataChange("", seen=value.clock))
                change = versions.DataChange(state.kind, state.contents, seen=value.clock)
                await values.write(state.entity_id, change)
        return True
