"""What a coordinator says in one turn, gathered into few messages per receiver.

Within one turn the order per receiver is fixed, so that a region can act on each message when it
reads it: it is registered before it is told anything, it lets go before it takes on, and it hosts
before it hears that others send. Lists longer than `CHUNK` are split, for frames are bounded.

Source: B.57; docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import chain

from shardbus.ids import NodeId
from shardbus.sharding.events import Message, Send
from shardbus.sharding.messages import (
    BeginHandOff,
    HandOff,
    Home,
    HostShard,
    RegionStopped,
    RegisterAck,
    ShardHomes,
    Wait,
)

CHUNK = 500


class HomeMessage(IntEnum):
    """The messages that gather homes, in the order in which they are sent."""

    REGISTER_ACK = 0
    BEGIN_HANDOFF = 1
    HANDOFF = 2
    HOST_SHARD = 3
    SHARD_HOMES = 4


class Outbox:
    """Messages of one turn."""

    __slots__ = ("_homes", "_mail", "_me", "_stopped", "_waits")

    def __init__(self, me: NodeId) -> None:
        self._me = me
        self._homes: dict[NodeId, dict[HomeMessage, dict[str, Home]]] = {}
        self._waits: dict[NodeId, dict[str, dict[str, None]]] = {}
        self._stopped: dict[NodeId, None] = {}
        self._mail: dict[str, tuple[Home, int]] = {}
        """Homes that shards have left, and that pass messages on to the next, which has that fence
        once it is known. Those after that one are not behind them."""

    def __bool__(self) -> bool:
        return bool(self._homes or self._waits or self._stopped)

    def add(self, to: NodeId, kind: HomeMessage, homes: Iterable[Home]) -> None:
        """Say `kind` of these homes to `to`."""
        gathered = self._homes.setdefault(to, {}).setdefault(kind, {})
        for home in homes:
            gathered[home.shard] = home

    def wait(self, to: NodeId, shard: str, reason: str) -> None:
        """Answer that the shard has no home yet."""
        self._waits.setdefault(to, {}).setdefault(reason, {})[shard] = None

    def passes(self, home: Home, left: bool) -> None:
        """Whether the old home has messages for the next, which shall be told of it."""
        if left:
            self._mail[home.shard] = (home, 0)
        else:
            self._mail.pop(home.shard, None)

    def region_stopped(self, node: NodeId) -> None:
        """Confirm to the region that it is out of the table."""
        self._stopped[node] = None

    def forget(self, node: NodeId) -> None:
        """Nobody is there any more."""
        for gathered in (self._homes, self._waits, self._stopped):
            gathered.pop(node, None)
        self._mail = {s: mail for s, mail in self._mail.items() if mail[0].node != node}

    def drain(self, epoch: int) -> list[Send]:
        """Everything gathered, as messages; the outbox is empty afterwards."""
        receivers = dict.fromkeys(chain(self._homes, self._waits, self._stopped))
        sends = [Send(to, message) for to in receivers for message in self._messages(to, epoch)]
        self._homes, self._waits, self._stopped = {}, {}, {}
        return sends

    def _behind(self, homes: Iterable[Home]) -> Iterator[Home]:
        """The old homes that these come right after, and that have messages for them."""
        for home in homes:
            old, fence = self._mail.get(home.shard, (None, 0))
            if old is not None and fence in (0, home.fence):
                self._mail[home.shard] = (old, home.fence)
                yield old
            elif old is not None:
                del self._mail[home.shard]

    def _messages(self, to: NodeId, epoch: int) -> Iterator[Message]:
        for kind, homes in sorted(self._homes.get(to, {}).items()):
            chunks = _chunks(tuple(homes.values()))
            if kind is HomeMessage.REGISTER_ACK:
                yield RegisterAck(epoch, self._me, next(chunks, ()))
                yield from (ShardHomes(epoch, chunk) for chunk in chunks)
            elif kind is HomeMessage.HOST_SHARD:
                for chunk in chunks:
                    yield HostShard(epoch, chunk, tuple(self._behind(chunk)))
            else:
                yield from (_MESSAGE[kind](epoch, chunk) for chunk in chunks)
        for reason, shards in self._waits.get(to, {}).items():
            for start in range(0, len(shards), CHUNK):
                yield Wait(epoch, tuple(shards)[start : start + CHUNK], reason)
        if to in self._stopped:
            yield RegionStopped(to)


_MESSAGE: dict[HomeMessage, Callable[[int, tuple[Home, ...]], Message]] = {
    HomeMessage.BEGIN_HANDOFF: BeginHandOff,
    HomeMessage.HANDOFF: HandOff,
    HomeMessage.SHARD_HOMES: ShardHomes,
}


def _chunks(homes: Sequence[Home]) -> Iterator[tuple[Home, ...]]:
    for start in range(0, len(homes), CHUNK):
        yield tuple(homes[start : start + CHUNK])
