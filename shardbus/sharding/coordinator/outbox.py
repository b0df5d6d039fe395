"""A coordinator's messages of one turn, gathered into few per receiver.

Within one turn the order per receiver is fixed, so that a region can act on each message as it
comes: it is registered before it has commands, it stops shards before it starts others, and it
hosts a shard before other regions send to it. Lists longer than `CHUNK` are split, for frames are
bounded.

`HomeRequests` keeps the turn's requests. Each is answered at the turn's end with ShardHomes or
Wait. Regions and proxies get every new home anyway, unless the table travels by gossip. A node that
does not, as a client, is remembered with the shard until the shard has a home.

Source: S0.22, B.57, N.5; docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import chain

from shardbus.ids import NodeId
from shardbus.sharding import messages as msg
from shardbus.sharding.events import Message, Send

CHUNK = 500
"""Homes in one message."""


class HomeMessage(IntEnum):
    """The messages that carry homes, in the order in which they are sent."""

    REGISTER_ACK = 0
    BEGIN_HANDOFF = 1
    HANDOFF = 2
    HOST_SHARD = 3
    SHARD_HOMES = 4


class Outbox:
    """The messages of one turn."""

    __slots__ = ("_homes", "_leftovers", "_me", "_stopped", "_waits")

    def __init__(self, me: NodeId) -> None:
        self._me = me
        self._homes: dict[NodeId, dict[HomeMessage, dict[str, msg.Home]]] = {}
        self._waits: dict[NodeId, dict[str, dict[str, None]]] = {}
        self._stopped: dict[NodeId, None] = {}
        self._leftovers: dict[str, tuple[msg.Home, int]] = {}
        """Old homes that have leftovers for the next home, and that home's fence once it is known,
        0 before. Homes after the next one are not behind the leftovers."""

    def __bool__(self) -> bool:
        return bool(self._homes or self._waits or self._stopped)

    def add(self, to: NodeId, kind: HomeMessage, homes: Iterable[msg.Home]) -> None:
        """Send these homes to `to` in a message of that kind."""
        gathered = self._homes.setdefault(to, {}).setdefault(kind, {})
        for home in homes:
            gathered[home.shard] = home

    def wait(self, to: NodeId, shard: str, reason: str) -> None:
        """Answer that the shard has no home yet, and why."""
        self._waits.setdefault(to, {}).setdefault(reason, {})[shard] = None

    def set_leftovers(self, home: msg.Home, left: bool) -> None:
        """Record whether the old home has messages for the next home, which must request them."""
        if left:
            self._leftovers[home.shard] = (home, 0)
        else:
            self._leftovers.pop(home.shard, None)

    def region_stopped(self, node: NodeId) -> None:
        """Confirm to the region that it hosts nothing and is a proxy in the table."""
        self._stopped[node] = None

    def forget(self, node: NodeId) -> None:
        """Drop the messages for a dead node, and its leftovers."""
        for gathered in (self._homes, self._waits, self._stopped):
            gathered.pop(node, None)
        self._leftovers = {s: old for s, old in self._leftovers.items() if old[0].node != node}

    def drain(self, epoch: int) -> list[Send]:
        """Return everything gathered as messages; the outbox is empty afterwards."""
        receivers = dict.fromkeys(chain(self._homes, self._waits, self._stopped))
        sends = [Send(to, message) for to in receivers for message in self._messages(to, epoch)]
        self._homes, self._waits, self._stopped = {}, {}, {}
        return sends

    def _behind(self, homes: Iterable[msg.Home]) -> Iterator[msg.Home]:
        """Yield the old homes that come right before these and have leftovers for them."""
        for home in homes:
            old, fence = self._leftovers.get(home.shard, (None, 0))
            if old is not None and fence in (0, home.fence):
                self._leftovers[home.shard] = (old, home.fence)
                yield old
            elif old is not None:
                del self._leftovers[home.shard]

    def _messages(self, to: NodeId, epoch: int) -> Iterator[Message]:
        for kind, homes in sorted(self._homes.get(to, {}).items()):
            chunks = _chunks(tuple(homes.values()))
            if kind is HomeMessage.REGISTER_ACK:
                yield msg.RegisterAck(epoch, self._me, next(chunks, ()))
                yield from (msg.ShardHomes(epoch, chunk) for chunk in chunks)
            elif kind is HomeMessage.HOST_SHARD:
                for chunk in chunks:
                    yield msg.HostShard(epoch, chunk, tuple(self._behind(chunk)))
            else:
                yield from (_MESSAGE[kind](epoch, chunk) for chunk in chunks)
        for reason, shards in self._waits.get(to, {}).items():
            for start in range(0, len(shards), CHUNK):
                yield msg.Wait(epoch, tuple(shards)[start : start + CHUNK], reason)
        if to in self._stopped:
            yield msg.RegionStopped(to)


class HomeRequests:
    """The requests for homes of one turn, and the nodes that wait for a home."""

    __slots__ = ("_outbox", "_requests", "_waiting")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._requests: dict[tuple[NodeId, str], None] = {}
        self._waiting: dict[str, dict[NodeId, None]] = {}

    def add(self, asker: NodeId, shards: Iterable[str]) -> None:
        """Record requests, to be answered at the end of the turn."""
        self._requests.update(dict.fromkeys((asker, shard) for shard in shards))

    def shards(self) -> dict[str, None]:
        """Return the shards that were requested in this turn."""
        return dict.fromkeys(shard for _, shard in self._requests)

    def answer(
        self,
        home_of: Callable[[str], msg.Home | None],
        why_not: Callable[[str], str],
        gets_every_home: Callable[[NodeId], bool],
    ) -> list[tuple[NodeId, msg.Home]]:
        """Answer every request, and remember those without a home yet, unless the asker gets every
        home anyway. Returns those answered with a home: the asker and the home."""
        answered: list[tuple[NodeId, msg.Home]] = []
        for asker, shard in self._requests:
            home = home_of(shard)
            if home is not None:
                self._outbox.add(asker, HomeMessage.SHARD_HOMES, (home,))
                answered.append((asker, home))
                continue
            self._outbox.wait(asker, shard, why_not(shard))
            if not gets_every_home(asker):
                self._waiting.setdefault(shard, {})[asker] = None
        self._requests = {}
        return answered

    def forget(self, node: NodeId) -> None:
        """Answer a dead node no more."""
        for waiting in self._waiting.values():
            waiting.pop(node, None)

    def on_homes(self, homes: Iterable[msg.Home]) -> None:
        """Send these new homes to the nodes that wait for them."""
        for home in homes:
            for asker in self._waiting.pop(home.shard, ()):
                self._outbox.add(asker, HomeMessage.SHARD_HOMES, (home,))


_MESSAGE: dict[HomeMessage, Callable[[int, tuple[msg.Home, ...]], Message]] = {
    HomeMessage.BEGIN_HANDOFF: msg.BeginHandOff,
    HomeMessage.HANDOFF: msg.HandOff,
    HomeMessage.SHARD_HOMES: msg.ShardHomes,
}


def _chunks(homes: Sequence[msg.Home]) -> Iterator[tuple[msg.Home, ...]]:
    for start in range(0, len(homes), CHUNK):
        yield tuple(homes[start : start + CHUNK])
