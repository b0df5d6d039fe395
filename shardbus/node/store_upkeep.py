"""The upkeep of a node's store beside loads and saves: its identity, the expiry of idle states,
probes whether this node reaches it, the replicas that vote about a split, and the rows that another
server may lack.

Source: docs/architecture.md; docs/guarantees.md; N.7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from shardbus.entities.gate import SuspensionGate
from shardbus.errors import ShardBusError
from shardbus.guarded_log import GuardedLog
from shardbus.ids import NodeId
from shardbus.membership import events as cluster
from shardbus.membership.downing.electorate import RingVoters
from shardbus.node.members import ClusterMembers
from shardbus.node.membership_link import MembershipLink
from shardbus.node.rpc import NodeRpc
from shardbus.sharding.coordinator.epoch_claim import CoordinatorState
from shardbus.sharding.messages import Home
from shardbus.shells.region import RegionShell
from shardbus.shells.singleton import SingletonShell
from shardbus.shells.state_expiry import EXPIRE_STATES, StateExpiry
from shardbus.shells.store_reach import StoreReach, reaches_store
from shardbus.store import node_registry
from shardbus.store.protocol import StateStore, on_new_server, voters_of
from shardbus.task_set import TaskSet

log = GuardedLog("shardbus.node")

REACHES_STORE = "reaches_store"
"""The question whether a node can use the store."""


class StoreUpkeep:
    """The upkeep of one node's store.

    Args:
        store, gate, rpc: of the node.
        regions, singletons: by entity type; filled until `open`.
        patience: `cluster.coordinator_stall`.
        now: returns seconds that all nodes agree on.
    """

    def __init__(
        self,
        store: StateStore,
        regions: Mapping[str, RegionShell],
        singletons: Mapping[str, SingletonShell],
        gate: SuspensionGate,
        rpc: NodeRpc,
        membership: MembershipLink,
        members: ClusterMembers,
        patience: float,
        now: Callable[[], float],
    ) -> None:
        self._store, self._regions, self._singletons = store, regions, singletons
        self._membership, self._members = membership, members
        self.identity: str | None = None
        """The store's, None until it has answered."""
        self._expiry = StateExpiry(
            regions, store, gate, self._homes_here, partial(_expire, rpc), now
        )
        self._reach = StoreReach(
            store,
            patience,
            self._successors,
            lambda node, types: rpc.ask(node, REACHES_STORE, types),
            lambda: membership.post(cluster.YieldSeniority()),
        )
        self._reassertions = TaskSet()
        self._voters: tuple[int, tuple[str, ...]] | None = None
        """The voters that membership has received."""
        rpc.register(EXPIRE_STATES, self._expiry.expire)
        rpc.register(REACHES_STORE, partial(reaches_store, store))

    async def open(self) -> None:
        """Open the store.

        Raises:
            StoreUnavailable: it does not answer.
        """
        await self._store.start()
        self.identity = await self._store.identity()

    def start(self) -> None:
        """Begin to sweep and to probe, and watch for another server."""
        on_new_server(self._store, self._reassert)
        self._expiry.start()
        self._reach.start()

    def stop(self) -> None:
        """End all of it."""
        self._reassertions.cancel()
        self._expiry.stop()
        self._reach.stop()

    def suspect(self, entity_type: str) -> None:
        """Probe soon: the coordinator of this type has failed to use the store."""
        self._reach.suspect(entity_type)

    def show_voters(self) -> None:
        """Pass the voters of the store's ring to membership if they have changed."""
        voters = voters_of(self._store)
        if voters is not None and voters != self._voters:
            self._voters = voters
            self._membership.post(cluster.SetRing(RingVoters(*voters)))

    def _successors(self) -> list[NodeId]:
        """Return the members that could take over a coordinator that rules here, oldest first."""
        ruling = [singleton for singleton in self._singletons.values() if singleton.rules]
        others = self._members.others_up() if ruling else []
        return [m.node for m in others if any(shell.may_rule_at(m) for shell in ruling)]

    def _homes_here(self, entity_type: str) -> Mapping[str, Home] | None:
        """Return the homes of a type's shards if this node coordinates it, None otherwise. A type
        within another one has its table."""
        table = self._regions[entity_type].table.name
        machine = self._singletons[table].coordinator.machine
        rules = machine is not None and machine.state is CoordinatorState.RULING
        return machine.table.homes if machine is not None and rules else None

    # ---- another server

    def _reassert(self) -> None:
        """Write again the rows that another server of the store may lack, and check the claims of
        the coordinators here."""
        log.warning("the store has another server, which may have lost writes: fences are raised")
        self._reassertions.cancel()
        self._reassertions.spawn(self._register_again())
        for shell in self._regions.values():
            self._reassertions.spawn(shell.host.reassert())
        self._membership.post(cluster.CheckClaim())
        for singleton in self._singletons.values():
            self._reassertions.spawn(singleton.coordinator.check_claim())

    async def _register_again(self) -> None:
        try:
            await self._store.identity(self.identity or "")
            await node_registry.register(self._store, self._membership.me.address)
        except ShardBusError as e:
            log.warning("the store may lack its identity and this node's address: %s", e)


async def _expire(rpc: NodeRpc, node: NodeId, entity_type: str, ids: list[str]) -> object:
    return await rpc.ask(node, EXPIRE_STATES, entity_type, ids, of=entity_type)
