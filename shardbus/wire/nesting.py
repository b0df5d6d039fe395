"""The bound on nesting: how deep lists and maps may stand in each other, in a message, an answer or
a state.

Every codec and every interpreter has a bound of its own, from some hundred to some thousand levels,
and the stack of the caller counts. This one is below all of them, so that a value which may be sent
or stored can be read everywhere.

A level takes a byte of its payload at least, and its byte is one of a few. So most payloads are
shown to be shallow by their length, and almost all others by the number of such bytes. Only the
rest is decoded to count its levels.

Source: docs/guarantees.md, Limits.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import msgspec

from shardbus.wire.misfit import Misfit

NESTING_MAX = 128
"""Levels of lists and maps in each other."""
_OPENING = bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0)))
"""First bytes of arrays and maps in MessagePack."""
_OTHERS = bytes(set(range(256)) - set(_OPENING))
_CONTAINERS = frozenset((list, tuple, dict))
_decode_any = msgspec.msgpack.Decoder().decode


def check_nesting(payload: bytes, most: int = NESTING_MAX) -> None:
    """Check that an encoded value has at most `most` levels.

    Raises:
        Misfit: it has more.
    """
    if len(payload) > most and len(payload.translate(None, _OTHERS)) > most:
        try:
            deep = _is_deeper(_decode_any(payload), most)
        except RecursionError:
            deep = True
        except (msgspec.MsgspecError, TypeError, ValueError):
            return  # keys that only a declared type can have, or no message: the decoder decides
        if deep:
            raise too_deep()


def too_deep() -> Misfit:
    """Return the error for a value that is nested too deep."""
    return Misfit(f"is nested more than {NESTING_MAX} levels deep")


def _is_deeper(value: Any, most: int) -> bool:
    level = [value] if type(value) in _CONTAINERS else []
    for _ in range(most):
        if not level:
            return False
        inner = chain.from_iterable(chain(c, c.values()) if type(c) is dict else c for c in level)
        level = [part for part in inner if type(part) in _CONTAINERS]
    return bool(level)
