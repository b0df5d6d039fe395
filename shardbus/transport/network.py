"""The network as an endpoint needs it: connections that carry frames.

    Network.listen    one listener: frames of every peer that connects, each with its connection id
    Network.connect   one connection: frames of one peer, and calls when it is up and when it breaks
    Network.probe     does a process listen at that address?

Endpoints handle frames and no sockets, so the same endpoint runs over ZeroMQ (`zmq.network`) and
over the simulator's network. No network guarantees delivery: a frame that it took may be lost with
the connection, and the session sends it again.

Source: docs/architecture.md; C.32.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from shardbus.ids import Address

OnFrame = Callable[[list[bytes]], None]
"""Takes the parts of a frame: on a listener connection id, head and body; on a connection the last
two."""

OnDenied = Callable[[str], None]
"""Called when no handshake of a connection succeeds, because the keys differ; with the reason."""

OnCut = Callable[[str], None]
"""Called when a listener has ended a connection, with the reason."""


class SendResult(Enum):
    """The outcome of a frame at a listener."""

    TAKEN = "taken"
    NO_ROOM = "no room"
    UNROUTABLE = "unroutable"
    """No connection has that id now."""


class Listener(Protocol):
    """Accepts connections of other processes."""

    def send(self, to: bytes, head: bytes, body: bytes) -> SendResult: ...
    def user(self, of: bytes, /) -> str | None:
        """Return the name that authentication gave the peer of a connection, None without keys."""
        ...

    @property
    def full(self) -> bool:
        """True if the remaining connections and descriptors are for nodes, not for clients."""
        ...

    def dismiss(self, of: bytes, /) -> None:
        """End a connection that has sent something, once it had a moment to read its refusal."""
        ...

    def end_turn(self) -> None:
        """Let the loop's other work run before the next frame is handed out."""
        ...

    def close(self) -> None: ...


class Connection(Protocol):
    """A connection to one peer. It reconnects by itself until it is closed."""

    def send(self, head: bytes, body: bytes) -> bool:
        """Send one frame. Returns False if there is no room for it."""
        ...

    def close(self) -> None: ...


class Network(Protocol):
    """A way to reach other processes. Belongs to one event loop, from `open` on."""

    missed_edges: int
    """Reads that only a watchdog started."""

    def open(self, loop: asyncio.AbstractEventLoop) -> None: ...
    def listen(self, host: str, port: int, name: str, on_frame: OnFrame, on_cut: OnCut) -> Listener:
        """Listen at an address of this machine.

        Raises:
            ConfigError: the port is taken, or the host is not of this machine.
        """
        ...

    def connect(
        self,
        address: Address,
        on_frame: OnFrame,
        on_up: Callable[[], None],
        on_down: Callable[[], None],
        on_denied: OnDenied = lambda reason: None,
    ) -> Connection:
        """Begin to connect. The connection tries again until it is closed, also where this process
        has no descriptor left."""
        ...

    def rekey(self) -> None:
        """Listen under the newest keys, and end every connection that was accepted before."""
        ...

    async def probe(self, address: Address) -> bool:
        """Return False if a fresh connection is refused, so that the process has ended. True proves
        nothing.

        Raises:
            OSError: connecting failed in another way.
        """
        ...

    async def who_listens(self, address: Address, channel: str) -> str:
        """Return a description of the listener at an address where a node's port of `messages` or
        `gossip` is expected, for people; empty if that is there."""
        ...

    def close(self) -> None: ...
