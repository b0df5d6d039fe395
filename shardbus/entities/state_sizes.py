"""The sizes of the stored states of the running entities of one type, in bytes.

The size of an entity is the length of its state as it was last loaded or saved, which is about the
size of the state in memory, and a lower bound of it. Types without state have no such table, so
their entities cost nothing more.

Source: docs/how-to/keep-state.md.
"""

from __future__ import annotations

from shardbus.entities.activation import Activation


class StateSizes:
    """The sizes of the states of one type's activations, and their sum."""

    __slots__ = ("_sizes", "total")

    def __init__(self) -> None:
        self._sizes: dict[Activation, int] = {}
        self.total = 0
        """Bytes of all of them."""

    def note(self, activation: Activation, data: bytes | None) -> None:
        """Note the state that an activation has loaded or saved; None for none."""
        self.resize(activation, 0 if data is None else len(data))

    def resize(self, activation: Activation, size: int) -> None:
        """Note the bytes of an activation's state."""
        before = self._sizes.get(activation)
        if size != before:
            self.total += size - (before or 0)
            self._sizes[activation] = size

    def forget(self, activation: Activation) -> None:
        """Forget an activation that has left memory."""
        self.total -= self._sizes.pop(activation, 0)

    def of(self, activation: Activation) -> int:
        """Return the size of one state; 0 if the entity has none."""
        return self._sizes.get(activation, 0)
