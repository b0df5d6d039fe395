"""Lets a coordinator's node give way if it cannot use the store and another node can.

A coordinator without the store gives no shard a home. The cause may be the store, and then no other
node could do better; or the node's own route to it, and then the next oldest can take over.

    every `PROBE_S`    a node that coordinates a type, and is not alone, writes to the store
    after a failure    it writes again, and asks the next oldest nodes to do the same
    it fails again,    this node becomes the youngest member (`YieldSeniority`), as one whose loop
    another succeeds   stalls; the next oldest takes over, and gives way by the same rule
    all fail           the seat stays, and the probe is repeated

The probe writes nothing that a reader sees, and reads the tables of types whose coordinators have
failed to use the store since: a store may have several servers. A node gives way after
`cluster.coordinator_stall` of failures at the earliest; 0 switches this off.

Source: docs/guarantees.md; S2.81.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from shardbus.errors import ShardBusError
from shardbus.guarded_log import GuardedLog
from shardbus.ids import NodeId
from shardbus.store import node_registry
from shardbus.store.protocol import StateStore
from shardbus.task_set import TaskSet

log = GuardedLog("shardbus.node")

PROBE_S = 2.0
"""Between two probes."""
WITHIN_S = 2.0
"""For the store to answer a probe."""
ANSWER_S = 2.5
"""For a node to answer, whose store has `WITHIN_S`."""
ASKED_MAX = 5
"""Nodes that are asked in one round."""
TYPES_MAX = 5
"""Tables that one probe reads."""


async def reaches_store(store: StateStore, types: Sequence[str]) -> bool:
    """True if this process can write to the store, and read the tables of these types."""
    try:
        async with asyncio.timeout(WITHIN_S):
            await node_registry.touch(store)
            for entity_type in types[:TYPES_MAX]:
                await store.load_table(entity_type)
    except (ShardBusError, TimeoutError):
        return False
    except Exception:
        log.exception("the store was not probed")
        return False
    return True


@dataclass(eq=False, repr=False)
class StoreReach:
    """The probes of one node.

    Args:
        patience: `cluster.coordinator_stall`.
        successors: the nodes that could coordinate a type that this node coordinates, oldest first;
            empty if it coordinates none.
        ask: asks a node whether it reaches the store, and the tables of these types.
        give_way: makes this node the youngest member.
    """

    _store: StateStore
    _patience: float
    _successors: Callable[[], Sequence[NodeId]]
    _ask: Callable[[NodeId, list[str]], Awaitable[bool]]
    _give_way: Callable[[], None]
    _failing: dict[str, None] = field(default_factory=dict)
    """Types whose coordinators have failed to use the store since the last good probe."""
    _asked_from: int = 0
    _wakes: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: TaskSet = field(default_factory=TaskSet)

    def start(self) -> None:
        """Begin to probe."""
        if self._patience:
            self._tasks.spawn(self._run())

    def stop(self) -> None:
        """Probe no more."""
        self._tasks.cancel()

    def suspect(self, entity_type: str) -> None:
        """Probe soon: the coordinator of this type has failed to use the store."""
        if len(self._failing) < TYPES_MAX:
            self._failing[entity_type] = None
        self._wakes.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        since: float | None = None
        while True:
            began = loop.time()
            after = self._successors()
            if not after or await self._reaches():
                since, self._asked_from = None, 0
                await self._pause()
                continue
            since = began if since is None else since
            began = loop.time()
            able = await self._who_reaches(after)
            rules = bool(self._successors())
            if able is not None and rules and loop.time() >= since + self._patience:
                log.warning(
                    "this node cannot use the store, and %s can: the next oldest node takes over"
                    " its coordinators",
                    able,
                )
                self._give_way()
            await asyncio.sleep(max(0.0, began + PROBE_S - loop.time()))

    async def _pause(self) -> None:
        """Wait for the next probe, or until a coordinator has failed to use the store."""
        try:
            async with asyncio.timeout(PROBE_S):
                await self._wakes.wait()
        except TimeoutError:
            pass
        self._wakes.clear()

    async def _reaches(self) -> bool:
        types = list(self._failing)
        reaches = await reaches_store(self._store, types)
        if reaches:
            for entity_type in types:
                self._failing.pop(entity_type, None)
        return reaches

    async def _who_reaches(self, after: Sequence[NodeId]) -> NodeId | None:
        """Return a node that reaches the store while this one does not. The first nodes are asked
        in every round, and others in turn."""
        first, rest = list(after[: ASKED_MAX - 1]), after[ASKED_MAX - 1 :]
        if rest:
            first.append(rest[self._asked_from % len(rest)])
            self._asked_from += 1
        types = list(self._failing)
        mine, *theirs = await asyncio.gather(
            self._reaches(), *(self._answer_of(node, types) for node in first)
        )
        able = [node for node, reaches in zip(first, theirs, strict=True) if reaches]
        return None if mine or not able else able[0]

    async def _answer_of(self, node: NodeId, types: list[str]) -> bool:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._ask(node, types) is True
        except (ShardBusError, TimeoutError):
            return False
