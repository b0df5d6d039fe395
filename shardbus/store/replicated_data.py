"""Replicated values for applications: `bus.data`.

    v = await bus.data.get("rate:eur")
    await bus.data.put("rate:eur", 1.09, after=v, w="all")
    await bus.data.update("hits", Counter, lambda hits: hits.add(1))
    async for key, v in bus.data.watch("rate:"):
        ...

A put replaces the values that its version has, and keeps those that were put at the same time
(`conflicts`). Without a version it reads first, and replaces what a get would show. An update reads
the value, lets a function change an object of its kind, and writes the changes alone.

The values are on the disks of the store inside the cluster; no other store has them.

Source: docs/how-to/replicated-values.md; S3.81-S3.89, B.133.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Protocol, cast

import msgspec

from shardbus.config.settings import DataSettings
from shardbus.errors import ConfigError
from shardbus.guarded_log import GuardedLog
from shardbus.ids import check_id
from shardbus.replication.kinds import KINDS, KindT, Register, Versioned, versioned
from shardbus.replication.quorum import Level, check_level, disks_needed
from shardbus.replication.versions import NOTHING, Clock, DataChange, DataValue, clock_of
from shardbus.store.protocol import CountsValues, StateStore
from shardbus.store.replicated import ReplicatedStore
from shardbus.store.replicated_values import ChangedValues, Since

log = GuardedLog("shardbus.store")

COUNTER_MAX = 2**56
"""Above the counters of any disk."""
LETTERS = {cls: letter for letter, cls in KINDS.items()}


class ValueStore(ChangedValues, Protocol):
    """A place at which values are read and written: the store, or a node that has it."""

    async def write(self, name: str, change: DataChange, level: Level, /) -> DataValue: ...
    def watch(
        self, prefix: str, level: Level, /
    ) -> AsyncGenerator[tuple[str, DataValue], None]: ...


class LocalValues(ValueStore, Protocol):
    """The values of a store of this process."""

    def replicas_of(self, name: str, /) -> list[str]: ...


class HoldsValues(Protocol):
    """A store that has replicated values."""

    @property
    def values(self) -> LocalValues: ...


def checked_values(who: str, store: StateStore) -> HoldsValues:
    """Return the store as one that has replicated values. `who` begins the error: it needs them.

    Raises:
        ConfigError: it has none.
    """
    if not isinstance(store, CountsValues):
        raise ConfigError(
            f"{who} the store inside the cluster; this node has another one",
            hint='set store.url to "cluster://"',
        )
    return cast("HoldsValues", store)


class SharedValues:
    """The replicated values of a cluster, for a node or for a client. `r` and `w` are numbers of
    replicas, or `majority`, `majority+1` or `all`; by default as the settings say.

    Each call may raise

        StoreUnavailable  too few replicas have answered within `store.timeout`. `definite` False:
                          the write may have its effect, now or later, once
        ConfigError       the key, `r`, `w` or the content is invalid, or the key has fewer
                          replicas; nothing was written
        ValueRefused      the value is of another kind, or too large; nothing was written
    """

    @property
    def _values(self) -> ValueStore:
        raise NotImplementedError

    def _level(self, name: str, level: Level | None) -> Level:
        """Return a level that is valid, or the default."""
        raise NotImplementedError

    def _stamped(self, change: DataChange) -> DataChange:
        """Return a change with its time and its limit."""
        raise NotImplementedError

    async def get(self, key: str, *, r: Level | None = None) -> Versioned | None:
        """Return the value of a key that `r` replicas make together; None if there is none.
        Replicas that are behind are repaired before it returns."""
        return versioned(await self._read(key, r))

    async def put(
        self,
        key: str,
        value: object,
        *,
        after: Versioned | None = None,
        w: Level | None = None,
        r: Level | None = None,
    ) -> Versioned:
        """Put a plain value in place of those that `after` has; without it, in place of those that
        `r` replicas have now. Returns once `w` replicas have it."""
        content = Register().set(value).changes.change()
        assert content is not None
        self._level("w", w)
        seen = _clock(after) if after is not None else (await self._read(key, r)).clock
        shown = versioned(await self._write(key, content._replace(seen=seen), w))
        assert shown is not None
        return shown

    async def update(
        self,
        key: str,
        kind: type[KindT],
        change: Callable[[KindT], object],
        *,
        r: Level | None = None,
        w: Level | None = None,
    ) -> Versioned:
        """Read a value of a kind, from `r` replicas; call `change` with it, once; and write the
        changes that it has made, to `w` replicas. Returns the value with them.

        `change` is a plain function, which calls methods of its argument. One that is async, or a
        generator, has not run when it returns: ConfigError."""
        if kind not in LETTERS:
            names = ", ".join(sorted(cls.__name__ for cls in LETTERS))
            raise ConfigError(f"{kind!r:.60} is no kind of value", hint=f"kinds are {names}")
        self._level("w", w)
        value = await self._read(key, r)
        view = kind(value)
        refuse_unfinished(change(view))
        changes = view.changes.change()
        if changes is not None:
            value = await self._write(key, changes, w)
        shown = versioned(value, LETTERS[kind])
        assert shown is not None
        return shown

    async def delete(
        self,
        key: str,
        *,
        after: Versioned | None = None,
        w: Level | None = None,
        r: Level | None = None,
    ) -> bool:
        """Delete the value that `after` has; without it, the value that `r` replicas have now. What
        others write at the same time stays. Returns False if there was none."""
        self._level("w", w)
        if after is not None:
            seen = _clock(after)
        else:
            value = await self._read(key, r)
            if not value.dots:
                return False
            seen = value.clock
        await self._write(key, DataChange("", seen=seen), w)
        return True

    async def watch(
        self, prefix: str = "", *, r: Level | None = None
    ) -> AsyncGenerator[tuple[str, Versioned | None], None]:
        """Yield each key that begins with `prefix`, with its value, and then each that changes;
        with None once it is deleted. A reader that is slow, or several changes in a row, may see
        only the last. It waits while replicas are out of reach, and ends when it is closed."""
        level = self._level("r", r)
        if prefix:
            prefix = check_id("a prefix of keys", prefix)
        async with aclosing(self._values.watch(prefix, level)) as changes:
            async for key, value in changes:
                yield key, versioned(value)

    async def keys(self, prefix: str = "") -> list[str]:
        """Return the keys that begin with `prefix`, as a majority of replicas has them. It looks at
        every key of the store."""
        if prefix:
            prefix = check_id("a prefix of keys", prefix)
        return await self._values.keys(prefix)

    async def _read(self, key: str, r: Level | None) -> DataValue:
        key = check_id("a key", key)
        level = self._level("r", r)
        return await self._values.get(key, level)

    async def _write(self, key: str, change: DataChange, w: Level | None) -> DataValue:
        key = check_id("a key", key)
        level = self._level("w", w)
        return await self._values.write(key, self._stamped(change), level)


class ReplicatedData(SharedValues):
    """The replicated values of a cluster, as a node reaches them: the calls of `SharedValues`."""

    def __init__(self, store: StateStore, settings: DataSettings) -> None:
        self._store, self._settings = store, settings

    @property
    def _values(self) -> LocalValues:
        return checked_values("replicated values need", self._store).values

    def replicas_of(self, key: str) -> list[str]:
        """Return the addresses of the replicas that hold a key."""
        return self._values.replicas_of(check_id("a key", key))

    def _level(self, name: str, level: Level | None) -> Level:
        default = self._settings.r if name == "r" else self._settings.w
        return check_level(name, default if level is None else level)

    def _stamped(self, change: DataChange) -> DataChange:
        return change._replace(time=time.time_ns() // 1000, limit=self._settings.value_limit)

    # ---- for clients

    async def answer_step(self, step: str, name: str, level: Level, content: Any) -> object:
        """Do a step for a client: `get`, `write` of a change, `keys` with a prefix, or `changed`
        since numbers. An empty `level` is the default. Raises as the calls."""
        chosen = level or None
        match step:
            case "get":
                return await self._read(name, chosen)
            case "write":
                return await self._write(name, _change_of(content), chosen)
            case "keys":
                return await self.keys(name)
            case "changed":
                if name:
                    check_id("a prefix of keys", name)
                since = _converted(content, Since)
                keys, complete = await self._values.changed(name, since)
                return [sorted(keys), complete, since]
            case _:
                raise ConfigError(f"values have no step {step!r:.60}")


def _converted(content: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"a step of values: {error}") from None


def _change_of(content: Any) -> DataChange:
    """Return the change of a client.

    Raises:
        ConfigError: it is none, or has versions that no get can have returned.
    """
    change: DataChange = _converted(content, DataChange)
    if change.kind and change.kind not in KINDS:
        raise ConfigError(f"{change.kind!r:.40} is no kind of value")
    base = change.base or NOTHING
    stamps = [*change.drops, *(change.seen or ()), *base.clock, *(dot.stamp for dot in base.dots)]
    if not all(0 <= disk < 2**63 and 0 < counter < COUNTER_MAX for disk, counter in stamps):
        raise ConfigError("a change has versions that no replica has given")
    return change


def refuse_unfinished(result: object) -> None:
    """Refuse the result of a function that has not run to its end when it returned.

    Raises:
        ConfigError: it is awaitable, or a generator.
    """
    if inspect.iscoroutine(result):
        result.close()
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise ConfigError(
            f"change is a plain function, and returned a {type(result).__name__}: it had no effect",
            hint="do what waits before the update, and change the value in a def without yield",
        )


def _clock(after: object) -> Clock:
    """Return the clock of a version.

    Raises:
        ConfigError: no get can have returned it.
    """
    clock = after.version if isinstance(after, Versioned) else None
    pairs = [(disk, counter) for disk, counter in clock or ()]
    is_whole = all(type(disk) is type(counter) is int for disk, counter in pairs)
    if (
        clock is None
        or not is_whole
        or not all(0 <= disk < 2**63 and 0 < counter < COUNTER_MAX for disk, counter in pairs)
    ):
        raise ConfigError(
            f"after: {after!r:.60} is no version of a value",
            hint="use the result of a get or a put",
        )
    return clock_of(pairs)


def warn_of_levels(store: StateStore, settings: DataSettings) -> None:
    """Log if a get may miss an acknowledged put, by the settings."""
    if not isinstance(store, ReplicatedStore):
        return
    ring = store.values.ring
    disks = min(ring.copies, len(ring.members))
    r, w = (disks_needed(check_level("data", level), disks) for level in (settings.r, settings.w))
    if r + w <= disks:
        log.warning(
            "data.r is %s and data.w is %s: of %d replicas, a get may miss an acknowledged put",
            settings.r, settings.w, disks,
        )  # fmt: skip
