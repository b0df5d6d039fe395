"""When entities leave memory: what a type may say about it, in one value.

    @bus.entity(passivation=Passivation.idle(600))          ten minutes without a message
    @bus.entity(passivation=Passivation.lru(100_000))       at most so many on one node
    @bus.entity(passivation=Passivation.never())

Each stands for settings of the type and for nothing else, so a file may replace every part of it
under `sharding.types.<name>`. Whoever goes is stopped with reason PASSIVATION after its current
message, and the next message starts it again: that is the whole price of going, and why a policy is
only about how often it is paid. Idle time and a limit work beside each other: what was idle for too
long goes though there is room.

Not here: who is watched and told to go (`residents`), in which order (`replacement`, `admission`),
and how an entity ends (`stopping`).

Source: S2.38, S2.57; B.79-B.84, B.86.
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
    """See the module. None: as the settings say. `after` is in seconds."""

    limit: int | None = None
    strategy: str | None = None
    after: float | None = None
    protected: float | None = None
    window: float | None = None

    @classmethod
    def idle(cls, after: float) -> Passivation:
        """Who had no message for so long."""
        return cls(after=after)

    @classmethod
    def never(cls) -> Passivation:
        """Nobody, unless it wants to."""
        return cls(limit=0, after=0.0)

    @classmethod
    def lru(cls, limit: int, *, after: float | None = None) -> Passivation:
        """The least recently used: a good start."""
        return cls(limit, "lru", after)

    @classmethod
    def slru(
        cls, limit: int, *, protected: float | None = None, after: float | None = None
    ) -> Passivation:
        """The least recently used among those that were used once, so that a scan over many ids
        does not push out the others. `protected`: part of the places for those others."""
        return cls(limit, "slru", after, protected)

    @classmethod
    def mru(cls, limit: int, *, after: float | None = None) -> Passivation:
        """The most recently used but one: for going round and round over more ids than places."""
        return cls(limit, "mru", after)

    @classmethod
    def lfu(cls, limit: int, *, after: float | None = None) -> Passivation:
        """The least often used; old fame fades."""
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
        """Whichever of newcomer and resident was used less often lately. It finds out by itself how
        many newcomers to wait for; `window` is the part of the places to begin with."""
        return cls(limit, "composite", after, protected, window)

    def settings(self) -> dict[str, object]:
        """What it says, by setting name."""
        said: dict[str, object] = {
            "active_entity_limit": self.limit,
            "passivation_strategy": self.strategy,
            "passivate_after": self.after,
            "passivation_protected": self.protected,
            "passivation_window": self.window,
        }
        return {name: value for name, value in said.items() if value is not None}


def idle_timeout(seconds: float | str) -> float:
    """What an entity says for itself in place of `passivate_after`, read as that is; 0 is never.

    Raises:
        ConfigError: no such length of time.
    """
    try:
        return float(parse(_IDLE, seconds))
    except ConfigError as wrong:
        message = f"set_idle_timeout({shown(_IDLE, seconds)}): {wrong.message}"
        raise ConfigError(message, hint='write seconds, or "10m"; 0 is never') from None
