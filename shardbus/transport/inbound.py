"""A session that came by the door: what an endpoint keeps of it besides the session itself.

Source: docs/architecture.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardbus.transport.session import Session
    from shardbus.wire.batch import Hello


class Inbound:
    """A session that another process opened to our ROUTER. Its routing id changes when it connects
    anew."""

    __slots__ = ("heard", "hello", "identity", "session", "uid")

    def __init__(self, identity: bytes, uid: int, hello: Hello) -> None:
        self.identity, self.uid, self.hello = identity, uid, hello
        self.heard = 0
        self.session: Session
