"""Hints for a handler that an entity type lacks: a similar name, or why the name is no handler.

    ref.totl()      did you mean total?
    ref.save()      a reference has handlers only: call self.save() in a handler
    ref.refresh()   Counter.refresh has no @handler: write it over def refresh
    ref.whatever()  it has add, total
    call "hello"    receive takes it as a message: '"hello"' on the command line

References report this before anything is sent, and the host reports it for a call by name: the last
hint only to callers, and only for a type with `receive`. An error has one hint.

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
    return _as_end(_meant(interface, name) or _listed(tuple(interface.methods)))


def hint_of_call(interface: Interface, name: str) -> str:
    """Return a hint for a call by name, as `hint_of` does. The caller may mean a message."""
    meant = _meant(interface, name)
    if not meant and interface.messages:
        plain = name.isidentifier() and len(name) <= NAME_MAX
        example = f""": '"{name}"' on the command line""" if plain else ""
        meant = f"receive takes it as a message{example}"
    return _as_end(meant) if meant else hint_of(interface, name)


def _as_end(hint: str) -> str:
    return hint and f"; {hint}"


def _meant(interface: Interface, name: str) -> str:
    """Return why the name is no handler, or the handler with a similar name."""
    return interface.no_handlers.get(name) or _similar(tuple(interface.methods), name[:NAME_MAX])


@lru_cache(maxsize=256)
def _similar(handlers: tuple[str, ...], name: str) -> str:
    near = closest(name, handlers)
    return f"did you mean {near}?" if near else ""


def _listed(handlers: tuple[str, ...]) -> str:
    listed = ", ".join(handlers[:LISTED_MAX])
    return f"it has {listed}{', ...' * (len(handlers) > LISTED_MAX)}" if listed else ""
