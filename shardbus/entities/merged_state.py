"""The state that all instances of an entity have in common, as one of them sees it: how it merges.

The state is one replicated value for a type and an id (`replication.versions`). Each instance has a
copy: `self.state`, and the newest value that is in it (`StateCopy`). There are two forms:

    a class, and `merge(a, b)`    the value is a register. Each save puts the stored form of the
                                  whole state in place of the contents that the instance has seen.
                                  Contents that were put at the same time stay beside each other,
                                  and the function makes one state of them.
    a kind, such as Counter       the value is of that kind. `self.state` collects changes, and a
                                  save writes them alone.

A newer value is taken into `self.state` as follows:

    a class, without a change that is not saved    the state is made of the contents anew
             with such a change                    merge(state, the contents that are new)
    a kind                                         the changes are put on top of the newer value

So the function must not care about order and repetition: merge(a, b) equals merge(b, a), and
merge(a, a) equals a. It is called for two contents at a time, the older one first. If it raises,
nothing is written, and the contents stay: StateUnreadable.

Nothing here waits, reads or writes; `merging` does.

Source: docs/how-to/replicated-values.md; docs/partitions.md; S3.81, B.135.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple, Protocol

from shardbus.error_text import text_of, type_name
from shardbus.errors import SchemaError, StateUnreadable
from shardbus.replication import versions
from shardbus.replication.kinds import KINDS, AnyKind, Register, rebased
from shardbus.wire.stored_state import StateCodec

Merge = Callable[[Any, Any], Any]


class StateCopy:
    """The copy of one object of an entity: its `entity.state`, and the knowledge of it."""

    __slots__ = ("entity", "merges", "news", "stored", "turn", "value")

    def __init__(self, entity: Any) -> None:
        self.entity = entity
        self.value = versions.NOTHING
        """The newest value that the state contains."""
        self.stored: bytes | None = None
        """The form of the state of a class that `write` returned when it was read or saved. None:
        the state has a change that is not saved."""
        self.news: versions.DataValue | None = None
        """A newer value, for which a message is under way to the entity."""
        self.merges = 0
        """Calls of the function."""
        self.turn = asyncio.Lock()
        """Saves of one object come one after the other."""


class SharedSave(NamedTuple):
    """A save on its way. `change` None: there is nothing to write."""

    change: versions.DataChange | None
    data: bytes = b""
    """The state of a class, as it is compared."""
    content: bytes = b""
    """The state of a class, as it is stored."""
    sent: tuple[versions.Dot, ...] = ()
    """The additions, of a kind."""


class MergedState(Protocol):
    """One of the two forms. `key` is the entity's id. A method that raises StateUnreadable has
    changed nothing."""

    codec: StateCodec | None
    """Writes and reads the states of a class; None for a kind."""

    def write(self, state: object) -> bytes:
        """Return the stored form of the state of a class, nothing for a kind, which has its changes
        itself. Raises SchemaError: it is no such state."""
        ...

    def first(self, key: str, copy: StateCopy, value: versions.DataValue) -> None:
        """Let the state be the value's. Raises StateUnreadable."""
        ...

    def take(self, key: str, copy: StateCopy, value: versions.DataValue) -> None:
        """Put a newer value into the state. Raises StateUnreadable."""
        ...

    def outgoing(self, copy: StateCopy, data: bytes, content: bytes) -> SharedSave:
        """Return the write of a save. `data`: the form of the state that `write` returns;
        `content`: the same as it is stored."""
        ...

    def saved(self, key: str, copy: StateCopy, save: SharedSave, value: versions.DataValue) -> None:
        """A save has made this value: put it into the state. Raises StateUnreadable."""
        ...

    def give_up(self, copy: StateCopy, save: SharedSave) -> None:
        """A save may have been stored, or not."""
        ...


class StateWithMerge:
    """The states of a class, which a function of the application merges."""

    def __init__(self, codec: StateCodec, merge: Merge) -> None:
        self.codec: StateCodec | None = codec
        self._codec, self._merge = codec, merge

    def write(self, state: object) -> bytes:
        return self._codec.write(state)

    def first(self, key: str, copy: StateCopy, value: versions.DataValue) -> None:
        _check_kind(self._codec.entity_type, key, value, versions.REGISTER)
        self._make(key, copy, _contents(value))
        copy.value = value

    def take(self, key: str, copy: StateCopy, value: versions.DataValue) -> None:
        self._take(key, copy, versions.joined(copy.value, value), _contents(copy.value))

    def outgoing(self, copy: StateCopy, data: bytes, content: bytes) -> SharedSave:
        change = Register().set(content).changes.change()
        assert change is not None
        return SharedSave(change._replace(seen=copy.value.clock), data, content)

    def saved(self, key: str, copy: StateCopy, save: SharedSave, value: versions.DataValue) -> None:
        copy.stored = save.data
        self._take(key, copy, versions.joined(copy.value, value), [save.content])

    def give_up(self, copy: StateCopy, save: SharedSave) -> None:
        """Do nothing: to save it twice has the same effect."""

    def _take(
        self, key: str, copy: StateCopy, value: versions.DataValue, former: Sequence[bytes]
    ) -> None:
        """Put the contents of a value that are not in `former` into the state."""
        contents = _contents(value)
        if set(contents) != set(former):
            if self._is_saved(copy):
                self._make(key, copy, contents)
            elif news := [content for content in contents if content not in former]:
                states = [copy.entity.state, *self._read(key, news)]
                copy.entity.state = self._merged(key, copy, states)
                copy.stored = None
        copy.value = value

    def _is_saved(self, copy: StateCopy) -> bool:
        """True if the state is as it was stored."""
        try:
            return copy.stored is not None and self.write(copy.entity.state) == copy.stored
        except SchemaError:
            return False

    def _make(self, key: str, copy: StateCopy, contents: Sequence[bytes]) -> None:
        """Let the state be made of these contents alone."""
        states = self._read(key, contents) if contents else [self._codec.cls()]
        copy.entity.state = self._merged(key, copy, states)
        copy.stored = self.write(copy.entity.state)

    def _read(self, key: str, contents: Sequence[bytes]) -> list[Any]:
        return [self._codec.read(key, content) for content in contents]

    def _merged(self, key: str, copy: StateCopy, states: Sequence[Any]) -> Any:
        """Return one state of several.

        Raises:
            StateUnreadable: the function has raised, or has returned no state.
        """
        if len(states) == 1:
            return states[0]
        copy.merges += len(states) - 1
        try:
            state = reduce(self._merge, states)
            self.write(state)
        except BaseException as error:  # a function of the application's may raise anything
            why = f"{type_name(error)}: {text_of(error)}"
            text = f"states that were saved at the same time do not merge: {why}"
            raise _unreadable(self._codec.entity_type, key, text) from error
        return state


class StateOfKind:
    """The state is an object of a kind of replicated values."""

    codec: StateCodec | None = None

    def __init__(self, entity_type: str, letter: str) -> None:
        self._entity_type, self._letter = entity_type, letter
        self._cls: type[AnyKind] = KINDS[letter]

    def write(self, state: object) -> bytes:
        if type(state) is not self._cls:
            raise SchemaError(
                f"cannot store the state of {self._entity_type}: it is a {type(state).__name__},"
                f" and not a {versions.KIND_NAMES[self._letter]}"
            )
        return b""

    def first(self, key: str, copy: StateCopy, value: versions.DataValue) -> None:
        _check_kind(self._entity_type, key, value, self._letter)
        copy.entity.state, copy.value = self._cls(value), value

    def take(self, key: str, copy: StateCopy, value: versions.DataValue) -> None:
        copy.value = versions.joined(copy.value, value)
        copy.entity.state = rebased(copy.entity.state, copy.value)

    def outgoing(self, copy: StateCopy, data: bytes, content: bytes) -> SharedSave:
        changes = copy.entity.state.changes
        return SharedSave(changes.change(), sent=tuple(changes.pending))

    def saved(self, key: str, copy: StateCopy, save: SharedSave, value: versions.DataValue) -> None:
        copy.value = versions.joined(copy.value, value)
        self.give_up(copy, save)

    def give_up(self, copy: StateCopy, save: SharedSave) -> None:
        """Leave out the additions that were sent: to send them again might count them twice."""
        copy.entity.state = rebased(copy.entity.state, copy.value, save.sent)


def _contents(value: versions.DataValue) -> list[Any]:
    """Return the different contents of a register, the latest last."""
    register = Register(value)
    return [*reversed(register.conflicts), register.value] if register.changes.dots else []


def _check_kind(entity_type: str, key: str, value: versions.DataValue, letter: str) -> None:
    """Refuse a value that was stored by another declaration.

    Raises:
        StateUnreadable: it is of another kind.
    """
    other = [
        versions.KIND_NAMES.get(kind, kind) for kind in versions.kinds_of(value) if kind != letter
    ]
    if other:
        text = f"it is a {other[0]}, and the class declares a {versions.KIND_NAMES[letter]}"
        raise _unreadable(entity_type, key, text)


def _unreadable(entity_type: str, key: str, why: str) -> StateUnreadable:
    return StateUnreadable(
        f"the stored state of {entity_type} {key!r:.100}: {why}",
        entity_type=entity_type,
        entity_id=key,
    )
