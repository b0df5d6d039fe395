"""Departure notices: nothing arrives late from a process that has ended.

A leaving node passes on the messages sent to it, and its senders wait for that: a Flush behind it
returns. If the node ends before (a connection broke, or the receiver had no room), the wait ends
too, and a newer message takes another route, which may be the faster one:

    sender ── 1 ──> leaving node ── 1 ... delayed ...> home
    sender ── 2 ─────────────────────────────────────> home

So a process that gives up a node announces it on every session it opened, before anything else that
it sends there. A process that gets such a notice, and knows that the node leaves, forwards it once
and treats it as a BYE to itself: it hands out the messages that have arrived by that node's
sessions, and accepts nothing more. Then 1 comes before 2 or not at all. The leaving node counts the
messages that were unacknowledged when it left, and reports that to its senders.

A notice about a member that still hosts shards is ignored: its sender may be cut off by a firewall.
So is one about a node that was never a member.

A member's notice is believed. A client's is not, because any program can be a client: the node
holds that client's messages, and connects to the process itself. If that refuses, it has ended, and
its sessions here end. Otherwise nothing ends, and after `VERIFY_S` the client's messages go on. A
client's notice is never forwarded.

Not covered: a message that a living node has passed on once more, behind the leaver, may be
delayed.

Source: docs/guarantees.md; S0.35; C.5.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

from shardbus.errors import NodeLost, RequestError
from shardbus.ids import NodeId
from shardbus.task_set import TaskSet
from shardbus.transport.network import Network
from shardbus.transport.session import Session
from shardbus.wire.control import Goodbye, encode_control

NEWS_S = 60.0
"""How long a notice is sent on sessions that are opened afterwards."""
KNOWN_MAX = 1000
"""Notices that are remembered, so that each is sent once; the oldest are forgotten first."""
VERIFY_S = 5.0
"""How long a client's messages are held while this process finds out whether a node has ended."""
PROBE_TIMEOUT_S = 1.0
PROBE_EVERY_S = 0.05


class NoticeSender(Protocol):
    """The endpoint, as the notices use it."""

    node: NodeId | None
    loop: asyncio.AbstractEventLoop
    network: Network

    @property
    def outgoing_sessions(self) -> list[Session]: ...
    def end_sessions(self, node: NodeId, error: RequestError) -> None: ...


class DepartureNotices:
    """The departure notices of one endpoint."""

    def __init__(self, endpoint: NoticeSender) -> None:
        self._endpoint = endpoint
        self._ended: dict[NodeId, float] = {}
        """Processes that have ended, and when this one received the news."""
        self._verifying: set[tuple[Session, NodeId]] = set()
        self._tasks = TaskSet()

    def announce(self, node: NodeId) -> None:
        """This process has given `node` up: send a notice on every session, before anything that
        is sent from now on."""
        self._ended.pop(node, None)
        self._ended[node] = self._endpoint.loop.time()
        if len(self._ended) > KNOWN_MAX:
            del self._ended[next(iter(self._ended))]
        for session in self._endpoint.outgoing_sessions:
            self._send(session, node)

    def on_session(self, session: Session) -> None:
        """A session is opened: send it the recent notices first."""
        now = self._endpoint.loop.time()
        for node in [node for node, at in self._ended.items() if now - at < NEWS_S]:
            self._send(session, node)

    def on_notice(self, node: NodeId) -> None:
        """Another process has given up `node`, which is known to leave: forward the notice and end
        the sessions."""
        if node != self._endpoint.node:
            if node not in self._ended:
                self.announce(node)
            self._endpoint.end_sessions(node, NodeLost(f"{node} has left"))

    def verify(self, session: Session, node: NodeId) -> None:
        """A client has given up `node`, which has left: hold the client's messages until it is
        known whether the process has ended."""
        if (session, node) not in self._verifying:
            self._verifying.add((session, node))
            session.pause()
            self._tasks.spawn(self._verify(session, node))

    async def _verify(self, session: Session, node: NodeId) -> None:
        loop = self._endpoint.loop
        until, gone = loop.time() + VERIFY_S, False
        try:
            while not gone and session.lost is None and loop.time() < until:
                with suppress(OSError, TimeoutError):
                    async with asyncio.timeout(PROBE_TIMEOUT_S):
                        gone = not await self._endpoint.network.probe(node.address)
                if not gone:
                    await asyncio.sleep(PROBE_EVERY_S)
            if gone:
                self._endpoint.end_sessions(node, NodeLost(f"{node} has left"))
        finally:
            self._verifying.discard((session, node))
            session.resume()

    def close(self) -> None:
        """Stop verifying."""
        self._tasks.cancel()

    def _send(self, session: Session, node: NodeId) -> None:
        """Send a notice in a batch of its own, which nothing holds up."""
        if session.tag != node:
            session.outbox.flush()
            session.outbox.control(encode_control("", Goodbye(node)))
            session.outbox.flush()
