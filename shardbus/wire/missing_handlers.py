"""Hints for a handler that an entity type lacks: a similar name, or why the name is no handler.

    ref.totl()      did you mean total?
    ref.save()      a reference has handlers only: call self.save() in a handler
    ref.refresh()   Counter.refresh has no @handler: write it over def refresh
    ref.whatever()  it has add, total

References report this before anything is sent, and the host reports it for a call by name.

Source: docs/how-to/send.md.
"""

from __future__ import annotations

from functools import lru_cache

from shardbus.config.options import closest
from shardbus.wire.schema import Interface

NAME_MAX = 64
"""Characters of a name that is compared with others."""
LISTED_MAX = 5
"""Handlers that a hint lists."""


def no_attribute(interface: Interface, name: str) -> AttributeError:
    """Return the error for an attribute that a reference does not have."""
    return AttributeError(
        f"entity type {interface.name!r} has no handler {name!r}{hint_of(interface, name)}"
    )


def hint_of(interface: Interface, name: str) -> str:
    """Return a hint, as the end of an error's text; empty if there is none."""
    hint = interface.no_handlers.get(name) or _similar(tuple(interface.methods), name[:NAME_MAX])
    return hint and f"; {hint}"


@lru_cache(maxsize=256)
def _similar(handlers: tuple[str, ...], name: str) -> str:
    near = closest(name, handlers)
    if near:
        return f"did you mean {near}?"
    listed = ", ".join(handlers[:LISTED_MAX])
    return f"it has {listed}{', ...' * (len(handlers) > LISTED_MAX)}" if listed else ""
