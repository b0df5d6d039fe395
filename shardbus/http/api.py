"""What a node must be able to say for itself, so that HTTP can show it.

The runtime implements `NodeApi`; nothing in this package knows more of a node. Answers are plain
dicts and lists in the shapes of the public JSON, so that the command line prints what HTTP sent.

    liveness    this process works: never asks the store or another node
    readiness   this node should get work: it is up and the coordinators are known

Source: docs/reference/http.md; B.142, B.143.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `detail` is for people: what was seen, and what is missing."""

    ok: bool
    detail: str = ""


Checks = Mapping[str, Check]
"""What was looked at, by name, in the order in which a reader should see it."""


class NodeApi(Protocol):
    """A running node, as seen from outside.

    Every method that takes an entity type raises `UnknownEntityType` if the cluster has none of
    that name, and any method may raise another `ShardBusError`. Nothing here changes state but
    `leave`, `down`, `serve`, `rebalance`, `stop`, `place`, `set_limit`, `join`
    and `shut_down`.
    """

    @property
    def cluster_name(self) -> str: ...

    async def cluster(self) -> Json:
        """Membership as this node sees it."""
        ...

    async def nodes(self) -> Json:
        """Every member with what it hosts."""
        ...

    async def types(self) -> Json:
        """The entity types of the cluster."""
        ...

    async def shards(self, type: str) -> Json:
        """Where the shards of a type live."""
        ...

    async def where(self, type: str, id: str) -> Json:
        """Where one entity lives, or would."""
        ...

    async def entities(
        self, type: str, shard: str | None, prefix: str, limit: int, cursor: str | None
    ) -> Json:
        """A page of at most `limit` entities in memory whose ids begin with `prefix`.

        Raises:
            ConfigError: the cursor is none of ours.
        """
        ...

    async def explain(self, type: str, id: str) -> Json:
        """Why an entity is where it is, and what it waits for."""
        ...

    async def explain_shard(self, type: str, shard: str) -> Json:
        """Where a shard is, and how it came there.

        Raises:
            ConfigError: the type has no such shard.
        """
        ...

    async def downing(self) -> Json:
        """What this node decided after splits, and by which rule."""
        ...

    async def gossip(self) -> Json:
        """Who has seen which version of the membership, and who stands in the way."""
        ...

    async def checkup(self) -> Json:
        """What every member and the store say about themselves."""
        ...

    def events(self) -> AsyncIterator[Json]:
        """The membership as it is now, then what happens, until this node's membership ends."""
        ...

    def liveness(self) -> Checks: ...

    def readiness(self) -> Checks: ...

    def metrics(self) -> bytes:
        """The metrics in Prometheus's text format."""
        ...

    async def leave(self, node: str | None) -> Json:
        """Begin to hand off and leave; None is this node. Returns when that has begun.

        Raises:
            ConfigError: no member has that name.
        """
        ...

    async def shutdown_region(self, node: str, type: str) -> Json:
        """Begin to hand off every shard of a type on one node, which becomes a proxy of the type;
        `self` is this node. Returns when that has begun, with the number of shards left there.

        Raises:
            ConfigError: no member has that name. UnknownEntityType: there is no such type.
        """
        ...

    async def down(self, node: str, *, force: bool) -> Json:
        """Declare a member dead. Only for one that surely is. `force`: remove it on the spot,
        though the cluster may not be able to agree.

        Raises:
            ConfigError: no member has that name.
        """
        ...

    async def plan(self, type: str, add: int, remove: tuple[str, ...]) -> Json:
        """What would move with so many nodes more and without these.

        Raises:
            ConfigError: no member has such a name. Refused: the coordinator does not answer.
        """
        ...

    async def rebalance(self, type: str, pause: bool | None, moves: int | None) -> Json:
        """Look at the balance of a type now; or pause that or go on, or bound the moves at a time
        (0: as the settings say).

        Raises:
            Refused: the coordinator does not answer.
        """
        ...

    async def limits(self, type: str) -> Json:
        """The limit on entities in memory on every node that hosts the type."""
        ...

    async def set_limit(self, type: str, limit: int, node: str | None) -> Json:
        """Another limit on entities in memory, 0 for none, on one node or on all.

        Raises:
            ConfigError: no member has that name. Refused: the type's entities are remembered, or
                that node does not host it.
        """
        ...

    async def stop(self, type: str, shards: tuple[str, ...]) -> Json:
        """Stop these shards until somebody sends to them. Those that take longer than an answer may
        are said to be stopping.

        Raises:
            ConfigError: no such shard. Refused: the coordinator does not answer.
        """
        ...

    async def places(self, type: str) -> Json:
        """Where somebody said that shards shall live, and where they do.

        Raises:
            Refused: the coordinator does not answer.
        """
        ...

    async def place(self, type: str, places: Mapping[str, str]) -> Json:
        """Shards shall live at these addresses; empty takes a place away.

        Raises:
            ConfigError: no such shard, or no address. Refused: the type's strategy is its own, or
            the coordinator does not answer.
        """
        ...

    async def serve(self, node: str, service: str) -> Json:
        """Let a member take new work (`open`), or none (`cordoned`), or empty it (`draining`).

        Raises:
            ConfigError: no member has that name.
        """
        ...

    async def join(self, seeds: tuple[str, ...]) -> Json:
        """Begin to join by these seeds; without any, found a cluster.

        Raises:
            Refused: this node is a member already. ConfigError: no address.
        """
        ...

    async def shut_down(self) -> Json:
        """Stop the whole cluster, every node where it is.

        Raises:
            Refused: this node is no member.
        """
        ...
