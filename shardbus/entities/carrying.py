"""The memory that the entities of one type carry when their shard moves: from the old home to the
new one, without the store.

    old home   on_stop ──> freeze: state, dehydrate() ──> take: sent before Switch
    new home   put ──> the shard starts, and its entities with it ──> restore: state, rehydrate()
                   ──> on_start ──> forgotten

The carried memory must equal the entity's last, so it counts only under these rules:

- It is frozen after `on_stop` of an activation that stops because its shard moves. One that was cut
  off, that failed in `on_stop` or in its last handler, or whose last save has an unknown outcome
  carries nothing: the next activation loads from the store, which refuses the old one from then on.
- An activation that has ended cannot save any more (`context`). So the store needs no load at the
  new home to refuse a late save of the old one; the first save of the new activation raises the
  stored fence.
- It is for one fence: the new home's in this very move.
- It is forgotten once the entity has started, or saves. A start that fails has it again; an entity
  that cannot take it starts without it, from the store.
- A record of deliveries goes with the state. An entity with a delivery of its own that no save has
  stored carries nothing: it must not be sent before it is stored.
- Memory that no activation took when the shard moves on is carried on.

Bounds: `CARRIED_BYTES_MAX` for an entity, `CARRY_MAX` for a shard. Memory over these bounds is not
carried. The entities of a shard start `WAKE_MAX` in a turn of the loop.

Not here: the messages (`sharding/region/outgoing_moves`, `incoming_moves`).

Source: S3.80, N.4; docs/partitions.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from shardbus.entities.activation import MOVES, Activation, LifeState
from shardbus.entities.entity_type import EntityType
from shardbus.error_text import type_name
from shardbus.errors import StaleActivation
from shardbus.guarded_log import GuardedLog
from shardbus.sharding.messages import CARRIED_BYTES_MAX, CarriedEntity
from shardbus.sharding.region.incoming_moves import CARRY_MAX
from shardbus.wire.stored_state import with_record

log = GuardedLog("shardbus.entity")

WAKE_MAX = 256
"""Entities with something to take that start in one turn of the loop."""


class ShardCargo(msgspec.Struct):
    """The memory that the entities of one shard carry, by id, under the fence of the shard here."""

    fence: int
    entities: dict[str, CarriedEntity] = msgspec.field(default_factory=dict)
    size: int = 0
    """Bytes of all that was added."""


class CarriedStates:
    """The memory that the entities of one type carry out of this node, and into it.

    Args:
        kind: the entity type, which carries.
        carried: the counts by outcome, which this object raises.
        belongs: true if an entity id belongs to a shard.
    """

    def __init__(
        self, kind: EntityType, carried: dict[str, int], belongs: Callable[[str, str], bool]
    ) -> None:
        self._kind, self._carried, self._belongs = kind, carried, belongs
        self._shards: dict[str, ShardCargo] = {}
        self._saves: dict[Activation, int] = {}
        """Saves without a known outcome, by the activation that saves."""
        self._spoilt: dict[Activation, None] = {}
        """Activations that end by a failed handler: their memory has a part of its changes."""

    def _count(self, outcome: str) -> None:
        self._carried[outcome] = self._carried.get(outcome, 0) + 1

    # ---- out of this node

    @contextmanager
    def saving(self, activation: Activation) -> Iterator[None]:
        """Keep in mind that a save is under way, and afterwards its known outcome."""
        self.forget(activation)
        saves = self._saves
        saves[activation] = saves.get(activation, 0) + 1
        try:
            yield
        except StaleActivation:  # nothing was written
            self._close_save(activation)
            raise
        self._close_save(activation)

    def _close_save(self, activation: Activation) -> None:
        """Note that the outcome of a save is known."""
        open_saves = self._saves.get(activation, 0) - 1
        if open_saves > 0:
            self._saves[activation] = open_saves
        else:
            self._saves.pop(activation, None)

    def spoil(self, activation: Activation) -> None:
        """Note that a handler has failed, and that the entity ends instead of starting again with
        its stored state."""
        self._spoilt[activation] = None

    def freeze(self, activation: Activation, entity: object) -> None:
        """Keep the memory that an entity has after `on_stop`, if its shard moves."""
        hosted = activation.shard
        moves = activation.stopping in MOVES and hosted.stopping in MOVES
        if not moves or activation.state is LifeState.GONE:
            return
        record = activation.shard.records.get(activation.key)
        unsaved = record is not None and record.last > record.last_stored
        if activation in self._saves or unsaved:
            self._count("save_unknown")
            return
        frozen = None if activation in self._spoilt else self._frozen(activation, entity)
        if frozen is None:
            self._count("failed")
            return
        cargo = self._shards.setdefault(hosted.shard, ShardCargo(hosted.fence))
        if frozen.size > CARRIED_BYTES_MAX or cargo.size + frozen.size > CARRY_MAX:
            self._count("too_large")
            return
        cargo.entities[activation.key] = frozen
        cargo.size += frozen.size
        self._count("frozen")

    def _frozen(self, activation: Activation, entity: object) -> CarriedEntity | None:
        name, key = self._kind.name, activation.key
        try:
            data: Any = entity.dehydrate()  # type: ignore[attr-defined]
            if not issubclass(type(data), bytes):
                raise TypeError(f"dehydrate returned {type_name(data)}, not bytes")
            states = self._kind.states
            state = None if states is None else states.write(entity.state)  # type: ignore[attr-defined]
            record = activation.shard.records.get(key)
            if state is not None and record is not None:
                state = with_record(record.stored(), state)
        except BaseException:
            log.exception("%s %r carries nothing: dehydrate failed", name, key)
            return None
        return CarriedEntity(name, key, state, data)

    def ended(self, activation: Activation) -> None:
        """Forget an activation that has left memory."""
        self._saves.pop(activation, None)
        self._spoilt.pop(activation, None)

    def take(self, shard: str) -> tuple[CarriedEntity, ...]:
        """Return, once, the memory that the entities of a stopped shard carry."""
        cargo = self._shards.pop(shard, None)
        return () if cargo is None else tuple(cargo.entities.values())

    # ---- into this node

    def put(self, shard: str, fence: int, entities: Iterable[CarriedEntity]) -> None:
        """Keep the carried memory of a shard that is about to start under this fence."""
        mine = {entity.id: entity for entity in entities if self._belongs(entity.id, shard)}
        self._shards[shard] = ShardCargo(fence, mine, sum(entity.size for entity in mine.values()))

    def waiting(self, shard: str, fence: int) -> list[str]:
        """Return the entities of a shard that starts under this fence, and have something to take.
        Memory for another fence is forgotten."""
        cargo = self._shards.get(shard)
        if cargo is None:
            return []
        if cargo.fence != fence:
            del self._shards[shard]
            return []
        return list(cargo.entities)

    def has_for(self, shard: str, entity_id: str) -> bool:
        """True if something is there for this entity of the shard to take."""
        cargo = self._shards.get(shard)
        return cargo is not None and entity_id in cargo.entities

    def has(self, activation: Activation) -> bool:
        """True if something is there for the entity to take."""
        return self.has_for(activation.shard.shard, activation.key)

    def restore(self, activation: Activation) -> bool:
        """Give a new object its carried memory. Returns False if it cannot take that: then another
        object must be made, which has nothing to take."""
        carried = self._shards[activation.shard.shard].entities[activation.key]
        kind, entity = self._kind, activation.entity
        try:
            if kind.states is not None:
                if carried.state is None:
                    raise ValueError("the old home carried no state")
                entity.state = kind.states.read(activation.key, carried.state)
                activation.shard.host.deliveries.loaded(activation, carried.state)
            entity.rehydrate(carried.data)
        except BaseException:
            log.exception("%s %r starts without what it carried", kind.name, activation.key)
            self._count("not_taken")
            self.forget(activation)
            return False
        self._count("restored")
        return True

    def forget(self, activation: Activation) -> None:
        """Forget the memory that an entity carried here: it has started with it, or has something
        newer."""
        cargo = self._shards.get(activation.shard.shard)
        if cargo is not None:
            cargo.entities.pop(activation.key, None)
