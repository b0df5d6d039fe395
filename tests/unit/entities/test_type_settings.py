"""Settings of a type that its store cannot keep."""

from __future__ import annotations

import pytest

from examples.ledger import bus as ledger
from shardbus import Entity, ShardBus, handler
from shardbus.config.settings import Settings, ShardingSettings, StoreSettings
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


def test_states_with_numbers_of_events_never_expire() -> None:
    kinds, general = ledger.types, ShardingSettings(state_ttl=60.0)
    chosen = settings_by_type(kinds, replace(Settings(), sharding=general))
    assert {name: one.state_ttl for name, one in chosen.items()} == {
        "account": 0.0,
        "statement": 0.0,
        "bank": 60.0,
    }
    own = ShardingSettings(types={"statement": {"state_ttl": 60.0}})
    with pytest.raises(ConfigError, match=r"sharding\.types\.statement\.state_ttl"):
        settings_by_type(kinds, replace(Settings(), sharding=own))
