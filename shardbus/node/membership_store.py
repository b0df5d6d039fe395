"""The requests of membership to the state store: leases, and the record of the cluster that has the
store's claim (`membership.founding`).

    AcquireLease                    the claim of the cluster, or the lease that decides a split
    ReadClaim, WriteClaim, FreeClaim
    Notice                          kept for the pages: another cluster writes this store, or this
                                    node waits before it founds one

**A foreign epoch.** A coordinator that meets a higher epoch in the store than it knows has a
successor in this cluster, which gossip announces soon, or another cluster writes this store. If
nothing is announced, membership checks the claim, and asks the nodes that the store names and that
are no members (`membership.other_clusters`).

Source: docs/how-to/deploy.md; B.144.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from shardbus.errors import ShardBusError
from shardbus.guarded_log import GuardedLog
from shardbus.ids import Address
from shardbus.membership import events as ev
from shardbus.membership import view as seen
from shardbus.membership.claim_record import named
from shardbus.membership.founding import FOUNDING
from shardbus.membership.other_clusters import SUSPECTS_MAX
from shardbus.store import claim_registry, node_registry
from shardbus.store.protocol import Lease, StateStore
from shardbus.task_set import TaskSet

log = GuardedLog("shardbus.node")

RELEASE_S = 1.0
ANNOUNCED_WITHIN_S = 2.0
"""Seconds within which gossip brings the epoch of a coordinator of this cluster."""

Request = ev.AcquireLease | ev.ReadClaim | ev.WriteClaim | ev.FreeClaim


@dataclass(eq=False, repr=False)
class MembershipStore:
    """Performs the requests of one node's membership. `post` hands it an event; `view` is its last
    view."""

    _store: StateStore
    _post: Callable[[ev.Event], None]
    _view: Callable[[], seen.MembershipView | None]
    _tasks: TaskSet = field(default_factory=TaskSet)
    _claim: Lease | None = None
    """The store's claim to the cluster, as this node got it last."""
    _rival: tuple[Address, ...] | None = None
    """The members, as far as they are known, of a cluster that has this one's claim."""
    other_clusters: tuple[seen.OtherCluster, ...] = ()
    waits_for: str = ""
    """Why this node, which is no member, founds no cluster yet."""
    suspects: frozenset[Address] = field(default_factory=frozenset)
    """Nodes that the store names and that were no members when they were looked for."""

    def perform(self, request: Request) -> None:
        """Begin a request of membership."""
        match request:
            case ev.AcquireLease():
                self._tasks.spawn(self._acquire(request))
            case ev.ReadClaim():
                self._tasks.spawn(self._read())
            case ev.WriteClaim(record):
                self._tasks.spawn(self._update(claim_registry.write(self._store, record)))
            case ev.FreeClaim(record):
                self._tasks.spawn(self._update(claim_registry.free(self._store, record)))

    async def _acquire(self, request: ev.AcquireLease) -> None:
        granted, counter = None, 0
        try:
            lease = await self._store.acquire_lease(request.name, request.owner, request.ttl)
        except ShardBusError as e:
            level = logging.DEBUG if request.name == FOUNDING else logging.WARNING
            log.log(level, "no answer about lease %s: %s", request.name, e)
        except Exception:
            log.exception("the lease %s was not asked for", request.name)
        else:
            granted, counter = lease is not None, lease.counter if lease is not None else 0
            if request.name == FOUNDING:
                self._claim = lease
        self._post(ev.LeaseResult(request.name, granted, counter))

    async def _read(self) -> None:
        record, answered = None, False
        try:
            record, answered = await claim_registry.read(self._store), True
        except ShardBusError as e:
            log.debug("the record of the cluster that has the store was not read: %s", e)
        except Exception:
            log.exception("the record of the cluster that has the store was not read")
        self._post(ev.ClaimRead(record, answered))

    async def _update(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except ShardBusError as e:
            log.debug("the record of the cluster that has the store stays as it was: %s", e)

    # ---- other clusters

    def epoch_met(self, entity_type: str, epoch: int) -> None:
        """Look for another cluster if no member announces this epoch, which the store has shown."""
        self._tasks.spawn(self._look_for_rivals(entity_type, epoch))

    async def _look_for_rivals(self, entity_type: str, epoch: int) -> None:
        await asyncio.sleep(ANNOUNCED_WITHIN_S)
        view = self._view()
        if view is None or view.epochs.get(entity_type, 0) >= epoch:
            return
        self._post(ev.CheckClaim())
        try:
            registered = await node_registry.registered(self._store)
        except ShardBusError as e:
            log.debug("no answer about the nodes that use this store: %s", e)
            return
        members = {member.node.address for member in view.members}
        suspects = tuple(sorted(registered - members)[:SUSPECTS_MAX])
        self.suspects = frozenset(suspects)
        self._post(ev.SuspectNodes(suspects))

    def on_notice(self, event: object) -> None:
        """Keep for the pages which other clusters membership has found, and why it waits."""
        match event:
            case seen.OtherClustersChanged(clusters):
                self.other_clusters = clusters
            case seen.RivalCluster(addresses, gone):
                self._rival = None if gone else addresses
            case seen.FoundingWaits(reason):
                self.waits_for = reason

    @property
    def rival(self) -> str:
        """The text for operators about another cluster that writes this store; empty if none
        does."""
        seeds = [other.seed for other in self.other_clusters if other.writes]
        if self._rival is None and not seeds:
            return ""
        addresses = dict.fromkeys((*(self._rival or ()), *seeds))
        return f"another cluster writes this store: {named(addresses)}"

    # ---- the end

    async def release(self) -> None:
        """Release the claim, which ends with this node, so that the next one need not wait until it
        lapses."""
        if self._claim is None:
            return
        with contextlib.suppress(TimeoutError, ShardBusError):
            async with asyncio.timeout(RELEASE_S):
                await self._store.release_lease(self._claim)

    def close(self) -> None:
        """Stop all work."""
        self._tasks.cancel()
