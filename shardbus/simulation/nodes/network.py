"""Connections of simulated processes: the wiring under the real endpoints and links.

A connection carries frames in both directions, each in its order, for as long as it stands:

- what is sent while it does not stand waits at the end that connects, and is refused at a door;
- a wall holds frames up. If it falls in time, they arrive; after `HEARTBEAT_S` both ends find the
  connection broken. A wall that rejects breaks it soon, and so does the end of a process, unless
  its whole machine vanished, or nothing gets through that could tell of it;
- what was under way on a broken connection is lost. `cut` breaks one at any time, for no reason;
  one that `hangs` swallows what is sent, in one direction or both, until it is found to be broken;
- with a bound on the frames under way in one direction, one more finds no room;
- the end that connects tries again for as long as it is not closed.

Who sends again what was lost, who notices a death, and who gives up: that is the code under test.

Source: docs/simulation.md; RELIABILITY, ZeroMQ.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from shardbus.ids import Address
from shardbus.simulation.membership.network import SimPubSub
from shardbus.simulation.timeline import Timeline
from shardbus.simulation.virtual_loop import VirtualLoop
from shardbus.transport.network import Connection, Listener, OnCut, OnFrame, SendResult

HEARTBEAT_S = 5.0
"""After so long behind a wall, or at a process that does nothing, a connection is broken."""
RETRY_S = (0.05, 0.5)
BREAKS_WITHIN_S = 1.0


@dataclass(eq=False, slots=True)
class FrameQueue:
    """One direction of a connection: frames in their order, each with the time of its arrival."""

    source: str
    target: str
    deliver: Callable[[list[bytes]], object]
    frames: deque[tuple[float, list[bytes]]] = field(default_factory=deque)
    last: float = 0.0
    stuck: bool = False
    """What is sent stays under way until the connection breaks."""


class SimExchange:
    """All doors and connections of a world. `is_gone(name)`: nothing there answers, not even with a
    refusal. `room`: so many frames may be under way in one direction of a connection; 0 is any
    number."""

    def __init__(
        self,
        timeline: Timeline,
        network: SimPubSub,
        rng: Random,
        is_gone: Callable[[str], bool],
    ) -> None:
        self.timeline, self.network, self.rng, self.is_gone = timeline, network, rng, is_gone
        self.doors: dict[Address, SimListener] = {}
        self.connections: dict[SimConnection, None] = {}
        self.lost_frames = 0
        self.room = 0
        self._ids = 0

    def has_room(self, frames: int) -> bool:
        """Whether one more may join so many that are under way."""
        return not self.room or frames < self.room

    def fresh_id(self) -> bytes:
        """The id that a door draws for a connection."""
        self._ids += 1
        return b"%d" % self._ids

    # ---- what happens to them

    def changed(self, breaking: float = 0.0) -> None:
        """Walls came or went. Those that reject break what they part, others the part
        `breaking`."""
        for connection in list(self.connections):
            if not connection.up:
                continue
            a, b = connection.ends
            if not self.network.severed(a, b):
                connection.pump()
            elif self.network.rejects(a, b) or (breaking and self.rng.random() < breaking):
                self.break_soon(connection, self.rng.uniform(0.0, BREAKS_WITHIN_S))
            else:
                self._look_later(connection, lambda c=connection: self.network.severed(*c.ends))  # type: ignore[misc]

    def paused(self, name: str, is_paused: Callable[[], bool]) -> None:
        """The process does nothing; nor does it answer ZeroMQ's heartbeats."""
        for connection in list(self.connections):
            if connection.up and name in connection.ends:
                self._look_later(connection, is_paused)

    def ended(self, name: str, *, silent: bool) -> None:
        """The process is no more. `silent`: nor is its machine, and nobody is told."""
        for address in [a for a, door in self.doors.items() if door.name == name]:
            del self.doors[address]
        for connection in list(self.connections):
            if name not in connection.ends:
                continue
            if connection.name == name:
                del self.connections[connection]
                connection.closed = True
            self.break_soon(connection, HEARTBEAT_S if silent else self.word_of_end(connection))

    def word_of_end(self, connection: SimConnection) -> float:
        """How long it takes one end to learn that the other is closed."""
        return HEARTBEAT_S if self.mute(connection) else self.network.delay()

    def mute(self, connection: SimConnection) -> bool:
        """Whether something that is sent on it does not arrive now."""
        stuck = connection.inward.stuck or connection.outward.stuck
        return stuck or self.network.severed(*connection.ends)

    def cut(self) -> None:
        """Break some connection that stands."""
        standing = [c for c in self.connections if c.up]
        if standing:
            self.rng.choice(standing).break_up()

    def hang(self) -> None:
        """Nothing arrives any more on some connection that stands, in one direction or in both;
        after a while its ends notice."""
        standing = [c for c in self.connections if c.up and not self.mute(c)]
        if standing:
            connection = self.rng.choice(standing)
            both = (connection.inward, connection.outward)
            for lane in self.rng.choice((both, both[:1], both[1:])):
                lane.stuck = True
            self.break_soon(connection, self.rng.uniform(0.0, HEARTBEAT_S))

    def break_soon(self, connection: SimConnection, delay: float) -> None:
        number = connection.number

        def do() -> None:
            if connection.up and connection.number == number:
                connection.break_up()

        self.timeline.later(delay, do)

    def _look_later(self, connection: SimConnection, is_so: Callable[[], bool]) -> None:
        """Break it if that is so still after the heartbeat's patience."""
        number = connection.number

        def look() -> None:
            if connection.up and connection.number == number and is_so():
                connection.break_up()

        self.timeline.later(HEARTBEAT_S, look)


class SimNetwork:
    """The wiring of one process: `Network` over the exchange."""

    missed_edges = 0

    def __init__(self, exchange: SimExchange, name: str, loop: VirtualLoop) -> None:
        self.exchange, self.name, self._loop = exchange, name, loop

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """It has one already."""

    def listen(self, host: str, port: int, name: str, on_frame: OnFrame, on_cut: OnCut) -> Listener:
        """Open a door at this process's address."""
        return SimListener(self.exchange, Address(self.name, port), self.name, self._loop, on_frame)

    def connect(
        self,
        address: Address,
        on_frame: OnFrame,
        on_up: Callable[[], None],
        on_down: Callable[[], None],
    ) -> Connection:
        """Begin to connect."""
        return SimConnection(self, address, self._loop, on_frame, on_up, on_down)

    async def probe(self, address: Address) -> bool:
        """As a fresh connection would find it."""
        exchange, network = self.exchange, self.exchange.network
        await asyncio.sleep(network.delay())
        if network.rejects(self.name, address.host):
            return False
        if network.severed(self.name, address.host) or exchange.is_gone(address.host):
            await self._loop.create_future()  # nobody answers
        return address in exchange.doors

    def close(self) -> None:
        """What is left is closed with its links."""


class SimListener:
    """Where others connect to."""

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
        exchange.doors[address] = self

    def send(self, to: bytes, head: bytes, body: bytes) -> SendResult:
        connection = self.here.get(to)
        if connection is None or not connection.up:
            return SendResult.UNROUTABLE
        if not self._exchange.has_room(len(connection.inward.frames)):
            return SendResult.NO_ROOM
        connection.put(connection.inward, [head, body])
        return SendResult.TAKEN

    def close(self) -> None:
        if self._exchange.doors.get(self._address) is self:
            del self._exchange.doors[self._address]
        for connection in list(self.here.values()):
            self._exchange.break_soon(connection, self._exchange.word_of_end(connection))


class SimConnection:
    """One end that connects. `number` grows with each time it comes to stand."""

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
        self._door: SimListener | None = None
        self._id = b""
        self._waiting: list[list[bytes]] = []
        self.inward = FrameQueue(
            address.host, network.name, lambda parts: loop.call_soon(self._take, on_frame, parts)
        )
        self.outward = FrameQueue(network.name, address.host, self._hand_in)
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
        """What is under way still arrives, if nothing breaks."""
        self.closed = True
        exchange, now = self._exchange, self._exchange.timeline.now
        exchange.connections.pop(self, None)
        self._waiting.clear()
        if self.up:
            last = max(self.outward.last, now)
            exchange.break_soon(self, HEARTBEAT_S if exchange.mute(self) else last - now + 0.001)

    def _take(self, on_frame: OnFrame, parts: list[bytes]) -> None:
        if not self.closed:
            on_frame(parts)

    def _try_later(self, delay: float) -> None:
        if not self.closed and not self._loop.dead:
            self._exchange.timeline.later(delay, self._try)

    def _try(self) -> None:
        if self.closed or self.up or self._loop.dead:
            return
        exchange = self._exchange
        door = exchange.doors.get(self._address)
        if door is None or exchange.network.severed(*self.ends):
            self._loop.call_soon(self._down)
            self._try_later(exchange.rng.uniform(*RETRY_S))
            return
        self.up, self._door = True, door
        self.number += 1
        self._id = exchange.fresh_id()
        door.here[self._id] = self
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

    # ---- both

    def put(self, lane: FrameQueue, parts: list[bytes]) -> None:
        """On its way."""
        timeline = self._exchange.timeline
        lane.last = max(lane.last, timeline.now + self._exchange.network.delay())
        lane.frames.append((lane.last, parts))
        if len(lane.frames) == 1:
            timeline.later(lane.last - timeline.now, lambda: self._arrive(lane))

    def pump(self) -> None:
        """A wall fell."""
        for lane in (self.inward, self.outward):
            self._arrive(lane)

    def _arrive(self, lane: FrameQueue) -> None:
        """Hand over what has arrived; look again for the rest."""
        exchange, now = self._exchange, self._exchange.timeline.now
        if not self.up or lane.stuck or exchange.network.severed(*self.ends):
            return
        frames = lane.frames
        while frames and frames[0][0] <= now:
            lane.deliver(frames.popleft()[1])
        if frames:
            exchange.timeline.later(frames[0][0] - now, lambda: self._arrive(lane))

    def _hand_in(self, parts: list[bytes]) -> None:
        door = self._door
        if door is not None:
            door.loop.call_soon(door.on_frame, [self._id, *parts])

    def break_up(self) -> None:
        """It breaks; what is under way is lost."""
        self.up = False
        for lane in (self.inward, self.outward):
            self._exchange.lost_frames += len(lane.frames)
            lane.frames.clear()
            lane.stuck = False
        if self._door is not None:
            self._door.here.pop(self._id, None)
            self._door = None
        if not self.closed:
            self._loop.call_soon(self._down)
            self._try_later(self._exchange.rng.uniform(*RETRY_S))
