"""The application of the process tests in releases that have other entity types besides: those that
`APP_TYPES` names."""

from __future__ import annotations

import os

from shardbus import Entity, handler
from tests.process.app import bus

__all__ = ["bus"]


def declare(name: str) -> None:
    """Add an entity type."""

    @bus.entity(name, shards=12)
    class Thing(Entity):
        @handler
        def where(self) -> str:
            return self.context.node


for entity_type in os.environ.get("APP_TYPES", "").split():
    declare(entity_type)
