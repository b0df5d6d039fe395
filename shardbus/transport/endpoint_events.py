"""How the owner of an endpoint, a node or a client, handles its events."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shardbus.ids import Address, NodeId
from shardbus.transport.asks import Unsent
from shardbus.transport.session import Session


def _ignore(*event: object) -> None:
    """Do nothing with an event."""


class EndpointEvents(msgspec.Struct, frozen=True):
    """One function for each event."""

    opened: Callable[[Session], object] = _ignore
    """A connection was welcomed (again)."""
    lost: Callable[[Session, list[Unsent]], object] = _ignore
    """A session ended; the messages were never sent on it."""
    client: Callable[[Session], object] = _ignore
    """A client has opened a session."""
    leaving: Callable[[Session], object] = _ignore
    """The node at the other end leaves."""
    refused: Callable[[str, Address], object] = _ignore
    """The node at this address refuses this process, for a reason."""
    busy: Callable[[str], object] = _ignore
    """A node has no room for a session of this process now."""
    denied: Callable[[Address, str], object] = _ignore
    """The keys of the process at an address differ from this one's."""
    tick: Callable[[int], object] = _ignore
    """The coarse clock has moved to this tick."""
    membership: Callable[[NodeId, bytes, Address | None], object] = _ignore
    """A node sent a membership message in its session. The address: where this process opened the
    connection; None if the sender opened it."""
