"""Attributes of a state that are no fields of its class: `save` leaves them out.

    self.state.totl = 5        a dataclass takes any name, and only its fields are stored

In debug mode of asyncio and in the test kit each save looks for them, and warns with its line. A
loop without debug mode looks for nothing. Names that begin with `_`, and those that the class has
(a cached property), are meant to be kept in memory only, so they do not warn.

Source: docs/how-to/keep-state.md.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

from shardbus.tasks.answers import caller, is_watched
from shardbus.wire.proofs import Proof
from shardbus.wire.round_trip import names_of
from shardbus.wire.stored_state import StateCodec

DEPTH_MAX, ELEMENTS_MAX = 8, 100
"""Levels of a state, and elements of a collection, that are looked at."""


class WatchingProof:
    """The proof of a state, which warns of attributes that are no fields first."""

    def __init__(self, entity_type: str, proof: Proof) -> None:
        self._entity_type, self._proof = entity_type, proof

    def __call__(self, state: Any) -> bool:
        for path, cls in lost_attributes(state):
            text = f"the state of {self._entity_type}{path} is not stored: {cls} has no such field"
            warnings.warn_explicit(text, RuntimeWarning, *caller())
        return self._proof(state)


def watch_states(states: StateCodec, loop: asyncio.AbstractEventLoop) -> None:
    """Let each save of a type warn of attributes it leaves out, if the loop is one that looks for
    these."""
    if is_watched(loop) and not isinstance(states.proof, WatchingProof):
        states.proof = WatchingProof(states.entity_type, states.proof)


def lost_attributes(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the path of each attribute that is no field, and the name of its object's class."""
    cls = type(value)
    if depth > DEPTH_MAX:
        return
    if isinstance(value, dict):
        parts = [(f"{path}.{key!s:.60}", inner) for key, inner in _first(value.items())]
    elif isinstance(value, list | tuple):
        parts = [(f"{path}[{n}]", inner) for n, inner in _first(enumerate(value))]
    elif (names := names_of(cls)) is None:
        return
    else:
        held = getattr(value, "__dict__", {})
        for name in held:
            if name not in names and not name.startswith("_") and not hasattr(cls, name):
                yield f"{path}.{name}", cls.__name__
        parts = [(f"{path}.{name}", getattr(value, name, None)) for name in names]
    for place, inner in parts:
        yield from lost_attributes(inner, place, depth + 1)


def _first(items: Any) -> Iterator[tuple[Any, Any]]:
    return islice(items, ELEMENTS_MAX)
