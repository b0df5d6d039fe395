"""What a node must offer so that HTTP can show it.

Administration implements `NodeApi`; this package knows no more of a node. Answers are plain dicts
and lists in the shape of the public JSON, so that the command line prints what HTTP sent.

    liveness    this process works; asks neither the store nor another node
    readiness   this node can take work: it is up, and the coordinators are known

Source: docs/reference/http.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check. `detail` is for people: what was found, and what is missing."""

    ok: bool
    detail: str = ""


Checks = Mapping[str, Check]
"""Results by name, in the order in which a reader should see them."""


class NodeApi(Protocol):
    """A running node as its operators see it.

    Every method that takes an entity type raises `UnknownEntityType` if the cluster has none of
    that name, and any method may raise another `ShardBusError`. Nothing here changes state but
    `leave`, `down`, `serve`, `rebalance`, `stop`, `place`, `set_limit`, `set_state`,
    `remove_state`, `replay`, `join` and `shut_down`.
    """

    @property
    def cluster_name(self) -> str: ...

    async def cluster(self) -> Json:
        """Membership as this node sees it."""
        ...

    async def nodes(self) -> Json:
        """Every member with what it hosts."""
        ...

    async def overview(self) -> Json:
        """Members, types and the counters of every member, in one answer that readers share."""
        ...

    async def shard_map(self, type: str, known: str) -> Json:
        """The homes of a type's shards in columns, which are null if the map's version is
        `known`."""
        ...

    async def settings(self) -> Json:
        """The settings of this node, and who set them. Secrets are masked."""
        ...

    async def findings(self) -> Json:
        """What is wrong with the cluster, the nodes that it has lost, and the last failures of
        handlers, in one answer that readers share."""
        ...

    async def slow(self) -> Json:
        """The last reports of slow handlers of every member."""
        ...

    async def dead_letters(self, type: str, reason: str, within: float, limit: int) -> Json:
        """The last dropped messages of every member, newest first, without their bodies: of a type,
        for a reason, of the last `within` seconds; empty texts and 0 are for all."""
        ...

    async def replay(
        self,
        type: str,
        reason: str,
        within: float,
        names: tuple[str, ...],
        limit: int,
        operator: str,
        *,
        answered: bool,
        dry_run: bool,
    ) -> Json:
        """Send dropped messages again, at most `limit`: those of these names, or the oldest that
        the filter admits. `answered`: also those whose senders got an error. With `dry_run`, only
        return them.

        Raises:
            Refused: a named one is not kept, or no body is. ConfigError: a name is none.
        """
        ...

    async def recent_events(self, seconds: float, most: int) -> Json:
        """Up to `most` of the last events of every member that are no older than `seconds`, oldest
        first."""
        ...

    async def tasks(self) -> Json:
        """The stacks of this node's tasks, handlers that wait, and threads, in groups."""
        ...

    async def log_lines(self) -> Json:
        """The last lines of this node's log."""
        ...

    async def types(self) -> Json:
        """The entity types of the cluster."""
        ...

    async def shards(self, type: str) -> Json:
        """The homes of a type's shards."""
        ...

    async def partitions(self, type: str) -> Json:
        """The instances of each shard of a type, and the sorted nodes."""
        ...

    async def where(self, type: str, id: str) -> Json:
        """The home of one entity, whether it is in memory or not."""
        ...

    async def entities(
        self, type: str, shard: str | None, prefix: str, limit: int, cursor: str | None
    ) -> Json:
        """A page of at most `limit` entities in memory whose ids begin with `prefix`.

        Raises:
            ConfigError: the cursor is invalid.
        """
        ...

    async def explain(self, type: str, id: str) -> Json:
        """The reason for an entity's home, and what its messages wait for."""
        ...

    async def explain_shard(self, type: str, shard: str) -> Json:
        """The home of a shard, and its history.

        Raises:
            ConfigError: the type has no such shard.
        """
        ...

    async def downing(self) -> Json:
        """This node's decisions after splits, and their rules."""
        ...

    async def gossip(self) -> Json:
        """The version of the membership that each node has seen, and what prevents convergence."""
        ...

    async def load(self) -> Json:
        """How busy the nodes are, and the shards with the most messages."""
        ...

    async def checkup(self) -> Json:
        """The state of every member and of the store."""
        ...

    def events(self) -> AsyncIterator[Json]:
        """The membership as it is now, then events, until this node's membership ends."""
        ...

    def liveness(self) -> Checks: ...

    def readiness(self) -> Checks: ...

    def metrics(self) -> bytes:
        """The metrics in Prometheus's text format."""
        ...

    async def leave(self, node: str | None) -> Json:
        """Let a node begin to hand off and leave; None is this node. Returns when it has begun.

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
        """Declare a member dead; only for one that surely is. `force`: remove it at once, also if
        the cluster cannot agree.

        Raises:
            ConfigError: no member has that name.
        """
        ...

    async def plan(self, type: str, add: int, remove: tuple[str, ...]) -> Json:
        """The moves that would follow if `add` nodes came and those in `remove` went.

        Raises:
            ConfigError: no member has such a name. Refused: the coordinator does not answer.
        """
        ...

    async def rebalance(self, type: str, pause: bool | None, moves: int | None) -> Json:
        """Check the balance of a type now; or pause or resume rebalancing, or bound the moves at a
        time (0: as configured).

        Raises:
            Refused: the coordinator does not answer.
        """
        ...

    async def stored(
        self, type: str, shard: str | None, prefix: str, limit: int, cursor: str | None
    ) -> Json:
        """A page of about `limit` entities with a stored state."""
        ...

    async def state(self, type: str, id: str, operator: str, *, text: bool) -> Json:
        """The stored state of an entity: its version, size and revision, and its value as JSON, or
        the text of that JSON. `operator` names the client, for the log.

        Raises:
            ConfigError: the type has no state.
        """
        ...

    async def set_state(
        self, type: str, id: str, state: object, operator: str, revision: str
    ) -> Json:
        """Let the owner of an entity replace its state by this JSON value. `operator` names the
        client, for the log. `revision` is that of the state to be replaced, empty for any.

        Raises:
            ConfigError: it does not fit the class. Refused: the entity is busy, or its shard moves.
            StateChanged: another state is stored.
        """
        ...

    async def remove_state(self, type: str, id: str, operator: str, revision: str) -> Json:
        """Let the owner of an entity remove its state. Raises as `set_state`."""
        ...

    async def limits(self, type: str) -> Json:
        """The limit on entities in memory on every node that hosts the type."""
        ...

    async def set_limit(self, type: str, limit: int, node: str | None) -> Json:
        """Set the limit on entities in memory, 0 for none, on one node or on all.

        Raises:
            ConfigError: no member has that name. Refused: the type's entities are remembered, or
                that node does not host it.
        """
        ...

    async def stop(self, type: str, shards: tuple[str, ...]) -> Json:
        """Stop these shards until a message arrives for them. Shards that need longer than the
        answer may take are reported as stopping.

        Raises:
            ConfigError: no such shard. Refused: the coordinator does not answer.
        """
        ...

    async def places(self, type: str) -> Json:
        """The places that were set for shards, and their homes.

        Raises:
            Refused: the coordinator does not answer.
        """
        ...

    async def place(self, type: str, places: Mapping[str, str]) -> Json:
        """Set the places of shards; an empty address takes a place away.

        Raises:
            ConfigError: no such shard, or no address.
            Refused: the type has instances, a node there takes no shard, or the coordinator does
                not answer.
        """
        ...

    async def serve(self, node: str, service: str) -> Json:
        """Let a member take new shards (`open`), no new ones (`cordoned`), or none (`draining`).

        Raises:
            ConfigError: no member has that name.
        """
        ...

    async def join(self, seeds: tuple[str, ...]) -> Json:
        """Begin to join through these seeds; without any, found a cluster.

        Raises:
            Refused: this node is a member already. ConfigError: no address.
        """
        ...

    async def reload_keys(self, node: str | None) -> Json:
        """Let one member, or all, read the file of the cluster's secret again.

        Raises:
            ConfigError: no member has that name.
        """
        ...

    async def shut_down(self) -> Json:
        """Stop the whole cluster; shards end where they are.

        Raises:
            Refused: this node is no member.
        """
        ...
