"""Passivation: when entities leave memory, as a type declares it in one value.

    @bus.entity(passivation=Passivation.idle(600))          after ten minutes without a message
    @bus.entity(passivation=Passivation.lru(100_000))       at most that many on one node
    @bus.entity(passivation=Passivation.never())

Each stands for settings of the type and for nothing else, so a file may replace every part of it
under `sharding.types.<name>`. An entity that leaves is stopped with reason PASSIVATION after its
current message, and its next message starts it again. That is the whole price of leaving, so a
policy only decides how often it is paid. An idle time and a limit work beside each other: an entity
that was idle for too long leaves even if there is room.

Not here: which entities are passivated (`passivation`), in which order (`eviction`), and how an
entity stops (`stopping`).

Source: S2.38, S2.57, B.79-B.84, B.86.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from shardbus.config.options import option_of, parse, shown
from shardbus.config.settings import ShardingSettings
from shardbus.errors import ConfigError

_IDLE = next(
    o for f in fields(ShardingSettings) if f.name == "passivate_after" and (o := option_of(f))
)


@dataclass(frozen=True, slots=True)
class Passivation:
    """When entities of a type leave memory. None: as the settings say. `after` is in seconds."""

    limit: int | None = None
    strategy: str | None = None
    after: float | None = None
    protected: float | None = None
    window: float | None = None

    @classmethod
    def idle(cls, after: float) -> Passivation:
        """Passivate entities without a message for `after` seconds."""
        return cls(after=after)

    @classmethod
    def never(cls) -> Passivation:
        """Passivate no entity, unless it requests it."""
        return cls(limit=0, after=0.0)

    @classmethod
    def lru(cls, limit: int, *, after: float | None = None) -> Passivation:
        """Passivate the least recently used: a good first choice."""
        return cls(limit, "lru", after)

    @classmethod
    def slru(
        cls, limit: int, *, protected: float | None = None, after: float | None = None
    ) -> Passivation:
        """Passivate the least recently used of those that were used once, so that a scan over many
        ids does not push out the others. `protected`: the part of the limit for the others."""
        return cls(limit, "slru", after, protected)

    @classmethod
    def mru(cls, limit: int, *, after: float | None = None) -> Passivation:
        """Passivate the second most recently used: for loops over more ids than the limit."""
        return cls(limit, "mru", after)

    @classmethod
    def lfu(cls, limit: int, *, after: float | None = None) -> Passivation:
        """Passivate the least often used. Old uses lose weight."""
        return cls(limit, "lfu", after)

    @classmethod
    def composite(
        cls,
        limit: int,
        *,
        window: float | None = None,
        protected: float | None = None,
        after: float | None = None,
    ) -> Passivation:
        """Passivate a new or a resident entity, whichever was used less often lately. `window`: the
        part of the limit for new entities at first; it adapts to the load."""
        return cls(limit, "composite", after, protected, window)

    def settings(self) -> dict[str, object]:
        """Return the settings that it stands for, by name."""
        chosen: dict[str, object] = {
            "active_entity_limit": self.limit,
            "passivation_strategy": self.strategy,
            "passivate_after": self.after,
            "passivation_protected": self.protected,
            "passivation_window": self.window,
        }
        return {name: value for name, value in chosen.items() if value is not None}


def duration(name: str, seconds: float | str) -> float:
    """Parse a duration in the format of `passivate_after`. `name` is the argument's.

    Raises:
        ConfigError: it is none.
    """
    try:
        return float(parse(_IDLE, seconds))
    except ConfigError as wrong:
        raise ConfigError(f"{name}: {wrong.message}", hint='write seconds, or "10m"') from None


def idle_timeout(seconds: float | str) -> float:
    """Parse the idle timeout of one entity, in the format of `passivate_after`; 0 is never.

    Raises:
        ConfigError: it is no duration.
    """
    try:
        return float(parse(_IDLE, seconds))
    except ConfigError as wrong:
        message = f"set_idle_timeout({shown(_IDLE, seconds)}): {wrong.message}"
        raise ConfigError(message, hint='write seconds, or "10m"; 0 is never') from None
