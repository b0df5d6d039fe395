"""A network in memory for endpoints: frames travel in turns of the loop, and tests break it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from shardbus.ids import Address
from shardbus.transport.network import OnCut, OnDenied, OnFrame, SendResult

Parts = list[bytes]


class MemoryLink:
    """One connection. Frames wait in `out` and `back` until `MemoryWorld.carry`."""

    def __init__(
        self,
        world: MemoryWorld,
        address: Address,
        on_frame: OnFrame,
        on_up: Callable[[], None],
        on_down: Callable[[], None],
    ) -> None:
        self.world, self.address, self.on_frame = world, address, on_frame
        self.on_up, self.on_down = on_up, on_down
        self.up, self.closed, self.has_room = True, False, True
        self.identity = b""
        self.out: deque[Parts] = deque()
        self.back: deque[Parts] = deque()
        self.sent: list[Parts] = []
        """Every frame that this end has sent."""
        world.links.append(self)
        self.connect()

    def connect(self) -> None:
        """Come up (again) under a new id."""
        self.world.ids += 1
        self.up, self.identity = True, b"%d" % self.world.ids

    def send(self, head: bytes, body: bytes) -> bool:
        if not self.has_room:
            return False
        self.sent.append([head, body])
        if self.up:
            self.out.append([head, body])
        return True

    def close(self) -> None:
        self.closed = True

    def cut(self) -> None:
        """Break: frames under way are lost."""
        self.up = False
        self.out.clear()
        self.back.clear()
        self.on_down()

    def restore(self) -> None:
        """Connect again."""
        self.connect()
        self.on_up()


class MemoryListener:
    """Accepts every link to its address."""

    def __init__(self, world: MemoryWorld, address: Address, on_frame: OnFrame) -> None:
        self.world, self.address, self.on_frame = world, address, on_frame
        self.closed = False
        world.listeners[address] = self

    def user(self, of: bytes) -> str | None:
        """Nothing is authenticated here."""
        return None

    def send(self, to: bytes, head: bytes, body: bytes) -> SendResult:
        for link in self.world.links:
            if link.up and link.identity == to:
                link.back.append([head, body])
                return SendResult.TAKEN
        return SendResult.UNROUTABLE

    full = False
    """Set by tests."""

    def dismiss(self, of: bytes) -> None:
        """Links end with their sessions."""

    def end_turn(self) -> None:
        """Each frame is carried by itself."""

    def close(self) -> None:
        self.closed = True
        self.world.listeners.pop(self.address, None)


class MemoryWorld:
    """All listeners and links."""

    def __init__(self) -> None:
        self.listeners: dict[Address, MemoryListener] = {}
        self.links: list[MemoryLink] = []
        self.ids = 0
        self.refuses: deque[bool] = deque()
        """Outcomes of the next probes; afterwards a probe is refused if there is no listener."""
        self.probes = 0

    def carry(self) -> bool:
        """Deliver every frame that is under way. Returns True if there was one."""
        moved = False
        for link in list(self.links):
            while link.out:
                moved = True
                parts = link.out.popleft()
                listener = self.listeners.get(link.address)
                if listener is not None:
                    listener.on_frame([link.identity, *parts])
            while link.back:
                moved = True
                parts = link.back.popleft()
                if not link.closed:
                    link.on_frame(parts)
        return moved

    async def quiet(self) -> None:
        """Deliver frames until there are none."""
        still = 0
        while still < 3:
            await asyncio.sleep(0)
            still = 0 if self.carry() else still + 1

    def network(self) -> MemoryNetwork:
        return MemoryNetwork(self)


class MemoryNetwork:
    """The network of one process."""

    missed_edges = 0

    def __init__(self, world: MemoryWorld) -> None:
        self.world = world
        self._opened: list[MemoryLink | MemoryListener] = []

    def open(self, loop: asyncio.AbstractEventLoop) -> None: ...

    def listen(
        self, host: str, port: int, name: str, on_frame: OnFrame, on_cut: OnCut
    ) -> MemoryListener:
        listener = MemoryListener(self.world, Address(host, port), on_frame)
        self._opened.append(listener)
        return listener

    def connect(
        self,
        address: Address,
        on_frame: OnFrame,
        on_up: Callable[[], None],
        on_down: Callable[[], None],
        on_denied: OnDenied = lambda reason: None,
    ) -> MemoryLink:
        link = MemoryLink(self.world, address, on_frame, on_up, on_down)
        self._opened.append(link)
        return link

    def rekey(self) -> None:
        """Nothing is encrypted here."""

    async def probe(self, address: Address) -> bool:
        self.world.probes += 1
        await asyncio.sleep(0)
        if self.world.refuses:
            return not self.world.refuses.popleft()
        return address in self.world.listeners

    async def who_listens(self, address: Address, channel: str) -> str:
        """Nothing is known here."""
        return ""

    def close(self) -> None:
        """Refuse to close before everything that it opened is closed: ZeroMQ would wait, and timers
        would open it again."""
        open_still = [one for one in self._opened if not one.closed]
        assert not open_still, f"the network is closed before {open_still}"
