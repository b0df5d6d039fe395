"""The reminders of a shard by time, in the row of its list, as functions on that row.

The reminders of an entity are in the row of its state: a save of both is one change of one row.
But a shard's home must find those that are due without a read of every state. So the list of the
shard, which has the fence that a home raises, has an index besides, in two maps:

    due   entity -> when its first reminder is due; the row of its state says the same
    open  entity -> a save of its reminders may be under way; only the row of its state counts

A save has three steps. The second one is the save; it is refused or carried out as any other:

    intend   the entity is open. Refused under a fence below the list's    the list
    save     state and reminders                                           the state
    settle   due, if no other save has been intended since                 the list, later

**The index names too much, but never too little.** A save of reminders reaches the row of the state
only after its intent is chosen, and an entity stays open until a `settle` names this very intent. A
store object settles with a proof that the due time stays: its own save was answered, and the saves
of other objects are behind it. So wherever the process ends, the entity is open, or `due` is true:

| the process ends, or has no answer | then |
|---|---|
| in `intend` | the save is not sent: it has no effect for certain. The entity may be open |
| between `intend` and the save, in the save | open: its row has the former reminders, or the new |
| between the save and `settle`, in `settle` | open: its row has the new reminders |

**A new home** raises the fence of the list, then reads it. From then on no former home intends
anything. A save that was intended before may still be under way: its entity is open. So a reader
loads the state of each such entity under the fence of the list, two rounds at a majority, as an
activation does: a former save has its effect before, and is read, or has none. What was read so
can be settled. So only the home itself changes the index that it has read: no reminder is
lost, and none fires at a time that is not stored.

**Settling costs no write of its own**: it goes with the next intent of the shard. What is not
settled when a process ends stays open until a reader has loaded it.

An intent has a random number, because a save may be sent again, by another process, too.

**Rows of different times.** If a majority of the disks is lost, or a backup was taken while nodes
ran, the list may be older than the states. `reopened` opens each entity of which they differ.

Source: docs/architecture.md; docs/how-to/reminders.md; B.119.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest
from typing import NamedTuple

from shardbus.replication import values


class SettledSave(NamedTuple):
    """The save of this intent has had its effect: the entity is `due` then, 0 for never."""

    number: int
    due: int


def list_of(value: values.Value) -> values.ListValue:
    """Return the list that is stored, or an empty one."""
    return value if isinstance(value, values.ListValue) else values.NO_LIST


def intend(
    fences: Mapping[str, int], number: int, settled: Mapping[str, SettledSave]
) -> values.Function:
    """Open these entities, for saves under these fences, and settle others first. Result: the fence
    of the list. Entities with a lower fence are refused: they were not opened."""

    def function(value: values.Value) -> values.Written | values.Unchanged:
        before = list_of(value)
        opened = tuple(
            (entity_id, values.OpenSave(fence, number))
            for entity_id, fence in fences.items()
            if fence >= before.fence
        )
        change = values.ListChange(before.fence, settled=_settled(before, settled), opened=opened)
        return _written(value, before, change, before.fence)

    return function


def settle(settled: Mapping[str, SettledSave]) -> values.Function:
    """Settle entities whose last intents these are. Result: None."""

    def function(value: values.Value) -> values.Written | values.Unchanged:
        before = list_of(value)
        change = values.ListChange(before.fence, settled=_settled(before, settled))
        return _written(value, before, change, None)

    return function


def _settled(
    before: values.ListValue, settled: Mapping[str, SettledSave]
) -> tuple[tuple[str, int], ...]:
    saves = before.open
    return tuple(
        (entity_id, save.due)
        for entity_id, save in settled.items()
        if entity_id in saves and saves[entity_id].number == save.number
    )


def _written(
    value: values.Value, before: values.ListValue, change: values.ListChange, result: object
) -> values.Written | values.Unchanged:
    after = values.changed(value, change)
    return values.Unchanged(result) if after == before else values.Written(after, result, change)


def due_of(state: values.Value, shard: str) -> int:
    """Return when the row of a state says that the entity is due in a shard; 0 for never."""
    reminders = state.reminders if isinstance(state, values.StateValue) else None
    return reminders.due if reminders is not None and reminders.shard == shard else 0


def page(
    due: Mapping[str, int], after: tuple[int, str] | None, limit: int
) -> list[tuple[int, str]]:
    """Return the first entries of an index after this one, in order."""
    entries = ((moment, entity_id) for entity_id, moment in due.items() if moment)
    return nsmallest(limit, (entry for entry in entries if after is None or entry > after))


def reopened(
    before: values.ListValue, reminders: Mapping[str, values.RemindersValue], number: int
) -> values.ListValue | None:
    """Return a list in which the entities are open of which it says other times than the rows of
    their states; None if there are none. `reminders`: of all entities of the shard. `number`: a
    random one."""
    due = {entity_id: row.due for entity_id, row in reminders.items()}
    names = due.keys() | before.due.keys()
    differ = [
        entity_id
        for entity_id in sorted(names - before.open.keys())
        if due.get(entity_id) != before.due.get(entity_id)
    ]
    if not differ:
        return None
    opened = tuple((entity_id, values.OpenSave(-1, number)) for entity_id in differ)
    after = values.changed(before, values.ListChange(before.fence, opened=opened))
    assert isinstance(after, values.ListValue)
    return after
