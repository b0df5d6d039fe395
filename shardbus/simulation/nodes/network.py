"""The simulated network of whole nodes: the connections under the real endpoints and links.

A connection carries frames in both directions, each in its order, for as long as it stands:

- A frame sent while it does not stand waits at the connecting end, and is refused at a listener.
- A wall holds frames up. If it falls in time, they arrive; after `HEARTBEAT_S` both ends find the
  connection broken. A rejecting wall breaks it soon, and so does the end of a process, unless its
  whole machine vanished, or a wall stops the notice of it.
- Frames under way on a broken connection are lost. `cut` breaks a connection at any time, without a
  reason. One that `hang` chooses swallows frames, in one direction or both, until it breaks.
- With a bound on the frames under way in one direction, one more finds no room.
- The connecting end tries again until it is closed.

Resending lost messages, noticing a death and giving up are the code under test, and not here.

Source: docs/simulation.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from shardbus.ids import Address
from shardbus.simulation.membership.network import Channel, SimPubSub
from shardbus.simulation.timeline import Timeline
from shardbus.simulation.virtual_loop import VirtualLoop
from shardbus.transport.network import (
    Connection,
    Listener,
    OnCut,
    OnDenied,
    OnFrame,
    SendResult,
)

HEARTBEAT_S = 5.0
"""Seconds behind a wall, or at a process that does nothing, after which a connection is broken."""
RETRY_S = (0.05, 0.5)
"""Seconds, drawn from this range, between two attempts to connect."""
BREAKS_WITHIN_S = 1.0
"""Seconds, at most, until a rejecting wall breaks a connection."""


@dataclass(eq=False, slots=True)
class FrameQueue:
    """One direction of a connection: frames in their order, each with the time of its arrival."""

    source: str
    target: str
    deliver: Callable[[list[bytes]], object]
    frames: deque[tuple[float, list[bytes]]] = field(default_factory=deque)
    last: float = 0.0
    stuck: bool = False
    """Frames sent stay under way until the connection breaks."""


@dataclass(eq=False, repr=False)
class SimExchange:
    """All listeners and connections of a world. `is_gone(name)`: its machine is gone, and refuses
    nothing. `room`: the frames that may be under way in one direction of a connection; 0 is no
    bound."""

    timeline: Timeline
    network: SimPubSub
    rng: Random
    is_gone: Callable[[str], bool]
    listeners: dict[Address, SimListener] = field(default_factory=dict)
    connections: dict[SimConnection, None] = field(default_factory=dict)
    room: int = 0
    _ids: int = 0

    def has_room(self, frames: int) -> bool:
        """True if one more frame may join those under way."""
        return not self.room or frames < self.room

    def fresh_id(self) -> bytes:
        """Return the id that a listener draws for a connection."""
        self._ids += 1
        return b"%d" % self._ids

    # ---- faults

    def changed(self, breaking: float = 0.0) -> None:
        """Apply that walls were raised or removed. Rejecting walls break the connections through
        them, others the part `breaking`."""
        for connection in list(self.connections):
            if not connection.up:
                continue
            a, b = connection.ends
            if not self.network.severed(a, b):
                connection.pump()
            elif self.network.rejects(a, b) or (breaking and self.rng.random() < breaking):
                self.break_soon(connection, self.rng.uniform(0.0, BREAKS_WITHIN_S))
            else:
                self._break_later(connection, lambda c=connection: self.network.severed(*c.ends))  # type: ignore[misc]

    def paused(self, name: str, is_paused: Callable[[], bool]) -> None:
        """Apply that the process is paused: it does not answer ZeroMQ's heartbeats either."""
        for connection in list(self.connections):
            if connection.up and name in connection.ends:
                self._break_later(connection, is_paused)

    def ended(self, name: str, *, silent: bool) -> None:
        """Apply that the process has ended. `silent`: its machine too, so that no peer is
        notified."""
        for address in [a for a, listener in self.listeners.items() if listener.name == name]:
            del self.listeners[address]
        for connection in list(self.connections):
            if name not in connection.ends:
                continue
            if connection.name == name:
                del self.connections[connection]
                connection.closed = True
            self.break_soon(connection, HEARTBEAT_S if silent else self.close_delay(connection))

    def close_delay(self, connection: SimConnection) -> float:
        """Return how long it takes one end to notice that the other is closed."""
        return HEARTBEAT_S if self.is_mute(connection) else self.network.delay()

    def is_mute(self, connection: SimConnection) -> bool:
        """True if a frame sent now does not arrive."""
        queues = (connection.inward, connection.outward)
        return self.network.severed(*connection.ends) or any(
            queue.stuck or self.holds(connection, queue) for queue in queues
        )

    def holds(self, connection: SimConnection, queue: FrameQueue) -> bool:
        """True if an unfair wall stops this direction of the connection, which stands."""
        return self.network.walled(queue.source, queue.target, Channel.MESSAGES, connection.name)

    def cut(self) -> None:
        """Break a drawn connection."""
        standing = [c for c in self.connections if c.up]
        if standing:
            self.rng.choice(standing).break_now()

    def hang(self) -> None:
        """Let a drawn connection swallow frames, in one direction or in both, until its ends
        notice."""
        standing = [c for c in self.connections if c.up and not self.is_mute(c)]
        if standing:
            connection = self.rng.choice(standing)
            both = (connection.inward, connection.outward)
            for queue in self.rng.choice((both, both[:1], both[1:])):
                queue.stuck = True
            self.break_soon(connection, self.rng.uniform(0.0, HEARTBEAT_S))

    def break_soon(self, connection: SimConnection, delay: float) -> None:
        """Break the connection after `delay`, unless it has been made anew by then."""
        number = connection.number

        def do() -> None:
            if connection.up and connection.number == number:
                connection.break_now()

        self.timeline.later(delay, do)

    def _break_later(self, connection: SimConnection, is_so: Callable[[], bool]) -> None:
        """Break the connection if that is still so after `HEARTBEAT_S`."""
        number = connection.number

        def break_if_still_so() -> None:
            if connection.up and connection.number == number and is_so():
                connection.break_now()

        self.timeline.later(HEARTBEAT_S, break_if_still_so)


class SimNetwork:
    """The network of one process: `Network` over the exchange."""

    missed_edges = 0

    def __init__(self, exchange: SimExchange, name: str, loop: VirtualLoop) -> None:
        self.exchange, self.name, self._loop = exchange, name, loop

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do nothing: the process has its loop already."""

    def listen(self, host: str, port: int, name: str, on_frame: OnFrame, on_cut: OnCut) -> Listener:
        """Listen at this process's address."""
        return SimListener(self.exchange, Address(self.name, port), self.name, self._loop, on_frame)

    def connect(
        self,
        address: Address,
        on_frame: OnFrame,
        on_up: Callable[[], None],
        on_down: Callable[[], None],
        on_denied: OnDenied = lambda reason: None,
    ) -> Connection:
        """Begin to connect."""
        return SimConnection(self, address, self._loop, on_frame, on_up, on_down)

    def rekey(self) -> None:
        """Do nothing: nothing is encrypted here."""

    async def probe(self, address: Address) -> bool:
        """As a fresh connection would find it."""
        exchange, network = self.exchange, self.exchange.network
        await asyncio.sleep(network.delay())
        if network.rejects(self.name, address.host, Channel.PROBES):
            return False
        if network.severed(self.name, address.host, Channel.PROBES) or exchange.is_gone(
            address.host
        ):
            await self._loop.create_future()  # no answer ever comes
        return address in exchange.listeners

    async def who_listens(self, address: Address, channel: str) -> str:
        """Nothing is known here."""
        return ""

    def close(self) -> None:
        """Do nothing: connections are closed with their links."""


class SimListener:
    """A listening address."""

    def __init__(
        self,
        exchange: SimExchange,
        address: Address,
        name: str,
        loop: VirtualLoop,
        on_frame: OnFrame,
    ) -> None:
        self.name, self.loop, self.on_frame = name, loop, on_frame
        self.here: dict[bytes, SimConnection] = {}
        self._exchange, self._address = exchange, address
        exchange.listeners[address] = self

    def user(self, of: bytes) -> str | None:
        """Return None: nothing is authenticated here."""
        return None

    def send(self, to: bytes, head: bytes, body: bytes) -> SendResult:
        connection = self.here.get(to)
        if connection is None or not connection.up:
            return SendResult.UNROUTABLE
        if not self._exchange.has_room(len(connection.inward.frames)):
            return SendResult.NO_ROOM
        connection.put(connection.inward, [head, body])
        return SendResult.TAKEN

    @property
    def full(self) -> bool:
        """Return False: simulated nodes have descriptors for all."""
        return False

    def dismiss(self, of: bytes) -> None:
        """Do nothing: no connection is refused."""

    def end_turn(self) -> None:
        """Do nothing: each frame has a turn of its own."""

    def close(self) -> None:
        if self._exchange.listeners.get(self._address) is self:
            del self._exchange.listeners[self._address]
        for connection in list(self.here.values()):
            self._exchange.break_soon(connection, self._exchange.close_delay(connection))


class SimConnection:
    """The connecting end. `number` grows with each time that the connection is made."""

    def __init__(
        self,
        network: SimNetwork,
        address: Address,
        loop: VirtualLoop,
        on_frame: OnFrame,
        on_up: Callable[[], None],
        on_down: Callable[[], None],
    ) -> None:
        self.name, self.up, self.closed, self.number = network.name, False, False, 0
        self.ends = (network.name, address.host)
        self._exchange, self._address, self._loop = network.exchange, address, loop
        self._on_up, self._on_down = on_up, on_down
        self._listener: SimListener | None = None
        self._id = b""
        self._waiting: list[list[bytes]] = []
        self.inward = FrameQueue(
            address.host,
            network.name,
            lambda parts: loop.call_soon(self._on_frames, on_frame, parts),
        )
        self.outward = FrameQueue(network.name, address.host, self._deliver)
        self._exchange.connections[self] = None
        self._try_later(2 * self._exchange.network.delay())

    # ---- the end that connects

    def send(self, head: bytes, body: bytes) -> bool:
        if not self._exchange.has_room(len(self.outward.frames if self.up else self._waiting)):
            return False
        if self.up:
            self.put(self.outward, [head, body])
        else:
            self._waiting.append([head, body])
        return True

    def close(self) -> None:
        """Close. Frames under way still arrive, if nothing breaks."""
        self.closed = True
        exchange, now = self._exchange, self._exchange.timeline.now
        exchange.connections.pop(self, None)
        self._waiting.clear()
        if self.up:
            last = max(self.outward.last, now)
            exchange.break_soon(self, HEARTBEAT_S if exchange.is_mute(self) else last - now + 0.001)

    def _on_frames(self, on_frame: OnFrame, parts: list[bytes]) -> None:
        if not self.closed:
            on_frame(parts)

    def _try_later(self, delay: float) -> None:
        if not self.closed and not self._loop.dead:
            self._exchange.timeline.later(delay, self._try)

    def _try(self) -> None:
        if self.closed or self.up or self._loop.dead:
            return
        exchange = self._exchange
        listener = exchange.listeners.get(self._address)
        if listener is None or exchange.network.severed(*self.ends):
            self._loop.call_soon(self._down)
            self._try_later(exchange.rng.uniform(*RETRY_S))
            return
        self.up, self._listener = True, listener
        self.number += 1
        self._id = exchange.fresh_id()
        listener.here[self._id] = self
        self._loop.call_soon(self._now_up)
        waiting, self._waiting = self._waiting, []
        for parts in waiting:
            self.put(self.outward, parts)

    def _now_up(self) -> None:
        if self.up and not self.closed:
            self._on_up()

    def _down(self) -> None:
        if not self.closed:
            self._on_down()

    # ---- both ends

    def put(self, queue: FrameQueue, parts: list[bytes]) -> None:
        """Put the frames on their way."""
        timeline = self._exchange.timeline
        queue.last = max(queue.last, timeline.now + self._exchange.network.delay())
        queue.frames.append((queue.last, parts))
        if len(queue.frames) == 1:
            timeline.later(queue.last - timeline.now, lambda: self._arrive(queue))

    def pump(self) -> None:
        """Deliver held frames: a wall fell."""
        for queue in (self.inward, self.outward):
            self._arrive(queue)

    def _arrive(self, queue: FrameQueue) -> None:
        """Deliver the frames that have arrived; schedule the rest."""
        exchange, now = self._exchange, self._exchange.timeline.now
        if not self.up or queue.stuck or exchange.network.severed(*self.ends):
            return
        if exchange.holds(self, queue):
            return
        frames = queue.frames
        while frames and frames[0][0] <= now:
            queue.deliver(frames.popleft()[1])
        if frames:
            exchange.timeline.later(frames[0][0] - now, lambda: self._arrive(queue))

    def _deliver(self, parts: list[bytes]) -> None:
        listener = self._listener
        if listener is not None:
            listener.loop.call_soon(listener.on_frame, [self._id, *parts])

    def break_now(self) -> None:
        """Break the connection. Frames under way are lost."""
        self.up = False
        for queue in (self.inward, self.outward):
            queue.frames.clear()
            queue.stuck = False
        if self._listener is not None:
            self._listener.here.pop(self._id, None)
            self._listener = None
        if not self.closed:
            self._loop.call_soon(self._down)
            self._try_later(self._exchange.rng.uniform(*RETRY_S))
