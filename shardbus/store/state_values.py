"""The states of one entity type whose instances share them, as replicated values.

The names of these values have a separator, which no key of an application has
(`replication.values.state_name`). So `bus.data` and `shardbus values` do not have them.

Source: docs/how-to/replicated-values.md; S3.81.
"""

from __future__ import annotations

from collections.abc import Callable

from shardbus.config.settings import DataSettings
from shardbus.replication.quorum import check_level
from shardbus.replication.values import SEPARATOR, state_name
from shardbus.replication.versions import DataChange, DataValue
from shardbus.store.protocol import StateStore
from shardbus.store.replicated_data import LocalValues, checked_values
from shardbus.store.replicated_values import Since


class StateValues:
    """Reads and writes the states of a type, by the levels of the settings. `wall_clock` returns
    seconds since 1970. Errors are those of `bus.data`.

    Raises:
        ConfigError: the store has no replicated values.
    """

    def __init__(
        self,
        entity_type: str,
        store: StateStore,
        settings: DataSettings,
        wall_clock: Callable[[], float],
    ) -> None:
        who = f"{entity_type!r} has instances that share a state, and needs"
        self._store = checked_values(who, store)
        self._type, self._wall_clock = entity_type, wall_clock
        self._r, self._w = check_level("data.r", settings.r), check_level("data.w", settings.w)
        self._limit = settings.value_limit

    @property
    def _values(self) -> LocalValues:
        return self._store.values

    async def read(self, entity_id: str) -> DataValue:
        """Return the value of an entity, as R replicas make it together."""
        return await self._values.get(state_name(self._type, entity_id), self._r)

    async def write(self, entity_id: str, change: DataChange) -> DataValue:
        """Write a change. Returns the value with it, once W replicas have it."""
        change = change._replace(time=int(self._wall_clock() * 1e6), limit=self._limit)
        return await self._values.write(state_name(self._type, entity_id), change, self._w)

    async def changed(self, since: Since) -> tuple[set[str], bool]:
        """Return the ids whose values have changed at the replicas in reach, and whether these are
        all. `since` is brought up to date."""
        names, complete = await self._values.changed(f"{self._type}{SEPARATOR}", since)
        return {_id_of(name) for name in names}, complete

    async def ids(self, prefix: str = "") -> list[str]:
        """Return the ids that begin with a text and have a state, sorted."""
        return [_id_of(name) for name in await self._values.keys(state_name(self._type, prefix))]


def _id_of(name: str) -> str:
    return name.partition(SEPARATOR)[2]
