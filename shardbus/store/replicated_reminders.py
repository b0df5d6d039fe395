"""The reminders of `cluster://`: in the rows of states, and an index in the list of each shard
(`replication.reminder_index`, which has the theory).

    save_states     ChangeValue of the list: the intents of all its saves; then SaveState of each
    load_reminders  ReadValue of the states
    page_due        ReadValue of the list; the open entities are loaded, and settled
    due_shards      scans of buckets

Saves of one shard that come together share the first step. This object remembers the saves that it
has carried out, and settles them with its next intent in the shard, or before it reads the index.

A save that its intent refuses may be a repeat, and was applied before, or is still under way. So
the state is loaded under the fence that refused: either the save was the last one, or it has no
effect from now on.

Source: docs/architecture.md; docs/how-to/reminders.md.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from shardbus.errors import StaleFence, StoreError, StoreUnavailable
from shardbus.replication import proposer, reminder_index, values
from shardbus.replication.reminder_index import SettledSave, due_of, list_of
from shardbus.store.batches import failures
from shardbus.store.protocol import Due, Save

SETTLED_MAX = 10_000
"""Saves that are remembered until they are settled."""
NUMBER_BITS = 63
NO_ANSWER = "too few replicas have answered in time"

Change = Callable[[str, int, values.Function], Awaitable[object]]
"""Changes the value of a key under a fence: returns the function's result."""
DoAll = Callable[[Sequence[tuple[str, proposer.Operation]]], Awaitable[list[proposer.Outcome]]]
Read = Callable[[str], Awaitable[values.Reading]]
SaveAll = Callable[[Sequence[Save]], Awaitable[list[StoreError | None]]]
"""Saves states with their reminders: the second step alone."""

Place = tuple[str, str]
"""Entity type and shard."""


class ReplicatedReminders:
    """The `ReminderStore` of a `ReplicatedStore`, by whose operations it works."""

    def __init__(self, change: Change, do_all: DoAll, read: Read, save_all: SaveAll) -> None:
        self._change, self._do_all, self._read = change, do_all, read
        self._save_all = save_all
        self._settled: dict[Place, dict[str, SettledSave]] = {}
        self._remembered = 0

    # ---- saves

    async def save_states(self, saves: Sequence[Save]) -> list[StoreError | None]:
        """Save states, some of which have reminders. All saves of an entity come in their order."""
        reminded = {save[:3] for save in saves if save.reminders is not None}
        parts: dict[Place | None, list[int]] = {}
        for number, save in enumerate(saves):
            place = save[:2] if save[:3] in reminded else None
            parts.setdefault(place, []).append(number)
        answers: list[Any] = [None] * len(saves)

        async def carry_out(place: Place | None, numbers: list[int]) -> None:
            part = [saves[number] for number in numbers]
            errors = await self._save_part(place, part)
            for number, error in zip(numbers, errors, strict=True):
                answers[number] = error

        await asyncio.gather(*(carry_out(place, numbers) for place, numbers in parts.items()))
        return answers

    async def _save_part(
        self, place: Place | None, saves: Sequence[Save]
    ) -> Sequence[Exception | None]:
        try:
            if place is None:
                return await self._save_all(saves)
            return await self._save_reminded(place, saves)
        except StoreUnavailable as e:
            return failures(e, len(saves))

    async def _save_reminded(
        self, place: Place, saves: Sequence[Save]
    ) -> Sequence[StoreError | None]:
        """Save entities of one shard, each of which has reminders in one of these saves."""
        number = secrets.randbits(NUMBER_BITS)
        fence = await self._intend(place, saves, number)
        errors: dict[int, StoreError | None] = {}
        for n, save in enumerate(saves):
            if save.reminders is not None and save.fence < fence:
                errors[n] = await self._refused(save, fence)
        sent = [n for n in range(len(saves)) if n not in errors]
        applied = [False] * len(saves)
        outcomes = await self._save_all([saves[n] for n in sent]) if sent else []
        for n, error in zip(sent, outcomes, strict=True):
            errors[n], applied[n] = error, error is None
        self._remember(place, saves, applied, number)
        return [errors[n] for n in range(len(saves))]

    async def _intend(self, place: Place, saves: Sequence[Save], number: int) -> int:
        """Take the first step. Returns the fence of the list.

        Raises:
            StoreUnavailable: too few replicas have answered in time. No save has an effect.
        """
        fences: dict[str, int] = {}
        for save in saves:
            if save.reminders is not None:
                fences[save.entity_id] = max(save.fence, fences.get(save.entity_id, 0))
        settled = self._take_settled(place)
        function = reminder_index.intend(fences, number, settled)
        try:
            fence = await self._change(values.list_key(*place), max(fences.values()), function)
        except BaseException as error:
            self._put_back(place, settled)
            if isinstance(error, StoreUnavailable):
                raise StoreUnavailable(error.message, hint=error.hint, definite=True) from error
            raise
        assert isinstance(fence, int)
        return fence

    async def _refused(self, save: Save, fence: int) -> StoreError | None:
        """Return the answer to a save that its intent has refused. It may have been sent before."""
        key = values.state_key(save.entity_type, save.entity_id)
        [outcome] = await self._do_all([(key, proposer.LoadState(fence))])
        match outcome:
            case proposer.Unanswered():
                return StoreUnavailable(f"{NO_ANSWER} about {save.entity_type} {save.entity_id!r}")
            case proposer.Completed(values.StateValue(op=op)) if op == save.op_id:
                return None
            case _:
                return StaleFence(save.entity_type, save.entity_id, save.fence, fence)

    def _remember(
        self, place: Place, saves: Sequence[Save], applied: Sequence[bool], number: int
    ) -> None:
        """Remember the entities all of whose saves were applied, to settle them."""
        due: dict[str, SettledSave] = {}
        doubtful = set[str]()
        for save, is_applied in zip(saves, applied, strict=True):
            if not is_applied:
                doubtful.add(save.entity_id)
            elif save.reminders is not None:
                moment = save.reminders.due if save.reminders.record is not None else 0
                due[save.entity_id] = SettledSave(number, moment)
        settled = {entity_id: save for entity_id, save in due.items() if entity_id not in doubtful}
        self._keep(place, self._take_settled(place) | settled)

    def _take_settled(self, place: Place) -> dict[str, SettledSave]:
        settled = self._settled.pop(place, {})
        self._remembered -= len(settled)
        return settled

    def _put_back(self, place: Place, settled: dict[str, SettledSave]) -> None:
        """Remember saves again, but for entities with later ones."""
        self._keep(place, settled | self._take_settled(place))

    def _keep(self, place: Place, settled: dict[str, SettledSave]) -> None:
        """Remember these saves of a shard. The oldest shards are forgotten: their entities stay
        open."""
        if settled:
            self._settled[place] = settled
            self._remembered += len(settled)
        while self._remembered > SETTLED_MAX:
            self._take_settled(next(iter(self._settled)))

    # ---- reads

    async def load(self, entity_type: str, entity_ids: Sequence[str]) -> list[bytes | None]:
        """Return the records of these entities."""
        reads = (self._read(values.state_key(entity_type, entity_id)) for entity_id in entity_ids)
        return [_record(reading.value) for reading in await asyncio.gather(*reads)]

    async def page_due(
        self, entity_type: str, shard: str, after: Due | None, limit: int
    ) -> list[Due]:
        """Return entries of the index of a shard."""
        place, key = (entity_type, shard), values.list_key(entity_type, shard)
        if settled := self._take_settled(place):
            try:
                await self._change(key, 0, reminder_index.settle(settled))
            except BaseException:
                self._put_back(place, settled)
                raise
        value = list_of((await self._read(key)).value)
        due = {**value.due, **await self._due_of_open(place, value)} if value.open else value.due
        return reminder_index.page(due, after, limit)

    async def _due_of_open(self, place: Place, value: values.ListValue) -> dict[str, int]:
        """Return when the entities are due that are open. Saves under lower fences than the list's
        have no effect afterwards."""
        entity_type, shard = place
        former = {name: save for name, save in value.open.items() if save.fence < value.fence}
        works: list[tuple[str, proposer.Operation]] = [
            (
                values.state_key(entity_type, name),
                proposer.LoadState(value.fence) if name in former else proposer.ReadValue(),
            )
            for name in value.open
        ]
        due, settled = dict[str, int](), dict[str, SettledSave]()
        for entity_id, outcome in zip(value.open, await self._do_all(works), strict=True):
            match outcome:
                case proposer.Completed(values.Reading(state)):
                    due[entity_id] = due_of(state, shard)
                case proposer.Completed(state):
                    assert state is None or isinstance(state, values.StateValue)
                    due[entity_id] = due_of(state, shard)
                    settled[entity_id] = SettledSave(former[entity_id].number, due[entity_id])
                case proposer.Outdated():
                    reading = await self._read(values.state_key(entity_type, entity_id))
                    due[entity_id] = due_of(reading.value, shard)
                case _:
                    raise StoreUnavailable(f"{NO_ANSWER} about {entity_type} {entity_id!r:.100}")
        if settled:
            with suppress(StoreUnavailable):  # they stay open
                function = reminder_index.settle(settled)
                await self._change(values.list_key(*place), value.fence, function)
        return due


def _record(value: values.Value) -> bytes | None:
    reminders = value.reminders if isinstance(value, values.StateValue) else None
    return None if reminders is None else reminders.record
