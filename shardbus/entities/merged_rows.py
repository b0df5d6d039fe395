"""The states that merge, as operators see and change them: beside the entities.

A state needs no owner to change it: a put of an operator takes the place of what the operator has
read, as a save does, and the instances get it as news. A state is shown as its function makes it of
all contents.

Source: docs/how-to/keep-state.md; docs/how-to/replicated-values.md.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from shardbus.entities.merged_state import MergedState, StateCopy
from shardbus.errors import ConfigError, StateChanged, StateUnreadable
from shardbus.quantities import counted
from shardbus.replication.kinds import Register, versioned
from shardbus.replication.versions import NOTHING, DataChange, DataValue, bytes_of, number_of
from shardbus.wire.plain_json import content_to_json
from shardbus.wire.shown_state import shown
from shardbus.wire.stored_state import NO_STATE

if TYPE_CHECKING:
    from shardbus.store.state_values import StateValues


def copy_of(form: MergedState, entity_id: str, value: DataValue) -> StateCopy:
    """Return a copy of a state for no entity. Raises StateUnreadable."""
    copy = StateCopy(SimpleNamespace(state=None))
    form.first(entity_id, copy, value)
    return copy


def row_of(form: MergedState, entity_id: str, value: DataValue, most: int | None) -> dict[str, Any]:
    """Return `version`, `bytes`, `revision`, `state` and `contents` (how many were saved at the
    same time), and `unreadable` with the reason if the contents do not merge."""
    row: dict[str, Any] = {"version": None, "bytes": 0, "state": None}
    if value.dots:
        try:
            row = _shown(form, entity_id, value, most)
        except StateUnreadable as error:
            row |= {"bytes": bytes_of(value), "unreadable": error.message}
    register = Register(value)
    contents = 1 + len(register.conflicts) if register.changes.dots else len(value.dots[:1])
    return row | {"revision": revision_of(value), "contents": contents}


def _shown(form: MergedState, entity_id: str, value: DataValue, most: int | None) -> dict[str, Any]:
    copy = copy_of(form, entity_id, value)
    if form.codec is not None:
        return shown(copy.stored, most)
    read = versioned(value)
    state = content_to_json(None if read is None else read.data)
    size = len(json.dumps(state))
    row: dict[str, Any] = {"version": 1, "bytes": bytes_of(value), "state": state}
    if most is not None and size > most:
        row |= {
            "state": None,
            "unreadable": f"its value has {counted(size, 'byte')}, at most {most} are shown",
        }
    return row


def revision_of(value: DataValue) -> str:
    """Return a short text for a value: after each write it is another one."""
    return f"{number_of(value.clock):016x}" if value.dots else NO_STATE


async def put_state(
    form: MergedState, values: StateValues, entity_id: str, data: bytes | None, revision: str
) -> None:
    """Put this stored form in the place of a state, None to remove it; only if the state has still
    this revision, empty for any.

    Raises:
        StateChanged: it has another one. ConfigError: a state of a kind is not put. Nothing was
            written. Errors of a write.
    """
    if data is not None and form.codec is None:
        raise ConfigError(
            "a state of a kind of replicated values is changed by its own methods",
            hint="send a message to the entity, or remove the state",
        )
    value = await values.read(entity_id)
    if revision and revision_of(value) != revision:
        text = f"the state of {entity_id!r:.100} has changed meanwhile"
        raise StateChanged(text, hint="read it again, and change that")
    if data is not None:
        content = Register(NOTHING).set(data).changes.change()
        assert content is not None
        await values.write(entity_id, content._replace(seen=value.clock))
    elif value.dots:
        await values.write(entity_id, DataChange("", seen=value.clock))
