"""A save of an entity: from the bytes of its state to the store, under the fence of its shard.

    checked    the state is compressed if the type wants that, and not over the limit
    joined     records of deliveries, and the reminders that the entity has set, are in one write
    written    by the loader of the node; a stale fence ends the entity
    confirmed  the save returns once the node is sure that it is not cut off (`gate`)

The object that saves must be the one that acts for the entity now; another one writes nothing.

Source: S0.5, S2.60; docs/guarantees.md.
"""

from __future__ import annotations

from collections.abc import Awaitable

from shardbus.config.settings import ShardingSettings
from shardbus.entities.activation import LifeState
from shardbus.entities.carrying import CarriedStates
from shardbus.entities.context import Context
from shardbus.entities.deliveries import EntityDeliveries
from shardbus.entities.entity_type import EntityType, StopReason
from shardbus.entities.runner import EntityRunner
from shardbus.entities.state_sizes import StateSizes
from shardbus.entities.supervision import StateLoader
from shardbus.error_text import is_a
from shardbus.errors import StaleActivation, StaleFence, StateTooLarge
from shardbus.wire.stored_state import compressed, is_compressed


class StateSaver:
    """Saves the states of one type through `keeper`. `carrying`: the memory that entities take to
    the next home, None for a type that carries none."""

    def __init__(
        self,
        kind: EntityType,
        settings: ShardingSettings,
        runner: EntityRunner,
        keeper: StateLoader,
        deliveries: EntityDeliveries,
        carrying: CarriedStates | None,
    ) -> None:
        self._name, self._settings = kind.name, settings
        self._runner, self._keeper = runner, keeper
        self._deliveries, self._carrying = deliveries, carrying
        self.sizes = None if kind.states is None else runner.measure(StateSizes())
        """The sizes of the states in memory; None for a type without state."""

    async def save(
        self,
        context: Context,
        data: bytes | None,
        *,
        alone: bool = False,
        clears: bool = False,
        early: bool = False,
    ) -> None:
        """Write the entity's state under its fence, and the reminders that it has set. Return once
        the node is confirmed, too. `alone`: only the reminders. `early`: as far as they belong into
        the store before events. `clears`: the reminders end, whatever is stored of the entity.

        Raises:
            StaleActivation: the object that saves is over. Nothing was written.
            StateTooLarge: the store was not asked.
        """
        activation = context._acting("save")
        key, shard, fence = activation.key, activation.shard.shard, activation.shard.fence
        if data is not None and (self._compresses or len(data) > self._settings.state_limit):
            data = self.stored_form(key, data)
        saving, reminding = None, self._runner.reminding
        if not alone and key in activation.shard.records:
            if self._deliveries.sends is not None:
                await self._deliveries.sends.before_save(activation)
                context._acting("save")
            data, saving = self._deliveries.begin_save(activation, data)
        try:
            if reminding is not None and (alone or reminding.writes(activation, clears=clears)):
                saved: Awaitable[None] = reminding.save(
                    activation, data, alone=alone, clears=clears, early=early
                )
            else:
                saved = self._keeper.save(self._name, shard, key, fence, data)
            if self._carrying is None or alone:
                await saved
            else:
                with self._carrying.saving(activation):
                    await saved
        except BaseException as error:
            if saving is not None:
                self._deliveries.fail_save(activation, saving, in_doubt=_is_in_doubt(error))
            if is_a(error, StaleFence) and not is_a(error, StaleActivation):
                activation.stopping = activation.stopping or StopReason.FAILURE
            raise
        if saving is not None:
            self._deliveries.end_save(activation, saving)
        if not alone and self.sizes is not None and activation.state is not LifeState.GONE:
            self.sizes.note(activation, data)
        if self._runner.gate.close_if_due():
            await self._runner.gate.passed()

    async def save_reminders(self, context: Context) -> None:
        """Write the reminders that the entity has set and not stored, without its state. Raises as
        `save`."""
        reminding = self._runner.reminding
        if reminding is not None and reminding.is_unsaved(context._acting("save")):
            await self.save(context, None, alone=True)

    async def stored(self, context: Context) -> bytes | None:
        """Return the state as the store has it, with its record, once the outcome of each save that
        was sent is certain. Raises as `StateLoader.load`."""
        activation = context._acting("save")
        shard = activation.shard
        return await self._keeper.load(self._name, shard.shard, activation.key, shard.fence)

    def stored_form(self, entity_id: str, data: bytes) -> bytes:
        """Return the form in which a state is stored. Raises StateTooLarge."""
        settings = self._settings
        if self._compresses and not is_compressed(data):
            data = compressed(data)
        if len(data) > settings.state_limit:
            raise StateTooLarge(self._name, entity_id, len(data), settings.state_limit)
        return data

    @property
    def _compresses(self) -> bool:
        return self._settings.state_compression != "none"


def _is_in_doubt(error: BaseException) -> bool:
    """True if the store may have a save that ended with this error: it has no answer, or its caller
    has given it up."""
    return not is_a(error, StaleFence) and not getattr(error, "definite", False)
