"""After a fork, what the parent had made is the parent's.

ZeroMQ's sockets and the threads behind them do not survive a fork: in the child they look whole,
and what is sent there goes nowhere, or wakes the parent. So in a child whatever `guard` was told of
refuses to be used, with an error that says what to do; only a `with` block may be left, and does
nothing. What `silence` was told of is asked to keep still, for a loop may call it that goes on in
the child.

Nothing is asked at each use: the objects get another class when the process is forked. `subprocess`
and the start method `spawn` fork nothing of this.

Source: docs/guarantees.md; C.32.
"""

from __future__ import annotations

import os
from typing import Any, Protocol
from weakref import WeakSet

from shardbus.errors import LocalProtocolError


class ForkSilenced(Protocol):
    """What can keep still."""

    def forked(self) -> None:
        """This is a child: do nothing any more."""


_guarded: WeakSet[Any] = WeakSet()
_silenced: WeakSet[ForkSilenced] = WeakSet()


def guard(owner: object) -> None:
    """Let it refuse in a child of this process."""
    _guarded.add(owner)


def silence(part: ForkSilenced) -> None:
    """Tell it in a child of this process."""
    _silenced.add(part)


def _of_the_parent(cls: type) -> Any:
    """A class with the same objects, which refuse."""

    def refuse(self: Any, name: str) -> Any:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        raise LocalProtocolError(
            f"this {cls.__name__} was made before this process was forked: its sockets and threads"
            " belong to the parent",
            hint="make one after the fork, or start processes by the method 'spawn'",
        )

    def leave(self: Any, *raised: object) -> None:
        """Nothing of this process is to be closed."""

    async def leave_later(self: Any, *raised: object) -> None:
        """The same."""

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
        owner.__class__ = _of_the_parent(type(owner))
    _silenced.clear()
    _guarded.clear()


os.register_at_fork(after_in_child=_in_child)
