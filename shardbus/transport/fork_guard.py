"""After a fork, objects created by the parent are unusable in the child.

ZeroMQ's sockets and the threads behind them do not survive a fork. In the child they look intact,
but messages sent there go nowhere, or wake the parent. So in a child every object given to `guard`
raises an error with a hint at the remedy; only leaving its `with` block works, and does nothing.
Every object given to `silence` gets a call, because an event loop that goes on in the child may
still call it.

Nothing is checked at each use: the fork gives the objects another class. `subprocess` and the start
method `spawn` fork nothing of this.

Source: docs/guarantees.md; C.32.
"""

from __future__ import annotations

import os
from typing import Any, Protocol
from weakref import WeakSet

from shardbus.errors import LocalProtocolError


class ForkSilenced(Protocol):
    """An object that does nothing any more after `forked`."""

    def forked(self) -> None:
        """This process is a child: do nothing any more."""


_guarded: WeakSet[Any] = WeakSet()
_silenced: WeakSet[ForkSilenced] = WeakSet()


def guard(owner: object) -> None:
    """Make the object raise in a child of this process."""
    _guarded.add(owner)


def silence(part: ForkSilenced) -> None:
    """Call the object's `forked` in a child of this process."""
    _silenced.add(part)


def _unusable(cls: type) -> Any:
    """Return a class of the same layout whose objects raise on use."""

    def refuse(self: Any, name: str) -> Any:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        raise LocalProtocolError(
            f"this {cls.__name__} was made before this process was forked: its sockets and threads"
            " belong to the parent",
            hint="make one after the fork, or start processes by the method 'spawn'",
        )

    def leave(self: Any, *raised: object) -> None:
        """Close nothing: everything belongs to the parent."""

    async def leave_later(self: Any, *raised: object) -> None:
        """Close nothing: everything belongs to the parent."""

    body = {
        "__slots__": (),
        "__getattribute__": refuse,
        "__exit__": leave,
        "__aexit__": leave_later,
    }
    return type(cls.__name__, (cls,), body)


def _in_child() -> None:
    for part in list(_silenced):
        part.forked()
    for owner in list(_guarded):
        owner.__class__ = _unusable(type(owner))
    _silenced.clear()
    _guarded.clear()


os.register_at_fork(after_in_child=_in_child)
