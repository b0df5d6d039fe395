"""Settings of a type that its store cannot keep."""

from __future__ import annotations

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.config.settings import Settings, StoreSettings
from shardbus.entities.type_settings import settings_by_type
from shardbus.errors import ConfigError
from tests.records import replace

bus = ShardBus("shop")


@bus.entity(name="clock", remember=True)
class Clock(Entity):
    @handler
    async def now(self) -> int:
        return 0


def at(url: str) -> Settings:
    return replace(Settings(), store=StoreSettings(url=url))


def test_a_store_that_a_full_stop_empties_remembers_no_entities() -> None:
    assert settings_by_type(bus.types, at("cluster://"))["clock"].remember
    with pytest.raises(ConfigError, match="'clock': remember with cluster"):
        settings_by_type(bus.types, at("cluster://?durability=memory"))
