"""Passivation as a type declares it: one value, which stands for settings."""

from __future__ import annotations

from typing import Any

import pytest

from shardbus import Entity, Passivation, ShardBus, handler
from shardbus.config.settings import ShardingSettings
from shardbus.errors import ConfigError


class Counted(Entity):
    @handler
    def hit(self) -> None: ...


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Passivation.idle(60), {"passivate_after": 60.0}),
        (Passivation.never(), {"passivate_after": 0.0, "active_entity_limit": 0}),
        (Passivation.lru(9), {"active_entity_limit": 9, "passivation_strategy": "lru"}),
        (Passivation.mru(9), {"active_entity_limit": 9, "passivation_strategy": "mru"}),
        (Passivation.lfu(9, after=5), {"passivation_strategy": "lfu", "passivate_after": 5.0}),
        (
            Passivation.slru(9, protected=0.5),
            {"passivation_strategy": "slru", "passivation_protected": 0.5},
        ),
        (
            Passivation.composite(9, window=0.1, protected=0.5),
            {
                "passivation_strategy": "composite",
                "passivation_window": 0.1,
                "passivation_protected": 0.5,
                "passivate_after": 120.0,
            },
        ),
    ],
)
def test_a_policy_stands_for_settings(policy: Passivation, expected: dict[str, object]) -> None:
    bus = ShardBus("shop")
    bus.entity("page", passivation=policy)(Counted)
    chosen = ShardingSettings().for_type("page", bus.types["page"].declared)
    assert {name: getattr(chosen, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"passivation": Passivation.lru(9), "active_entity_limit": 8}, "set it once"),
        ({"passivation": Passivation.idle(9), "passivate_after": 8}, "set it once"),
        ({"passivation": "lru"}, "must be a Passivation"),
        ({"passivation": Passivation.lru(-1)}, "active_entity_limit"),
        ({"passivation": Passivation.slru(9, protected=2)}, "passivation_protected"),
        ({"passivation": Passivation.lru(9), "remember": True}, "both remember"),
        ({"passivation_strategy": "random"}, "must be one of lru"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_at_the_class(
    options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        ShardBus("shop").entity("page", **options)(Counted)
