"""The application loop's end of membership, which runs in the cluster thread.

    start          runs membership
    joins          the attempts to join: at once, unless the operator decides when
    post           hands it an event; nothing happens before `start`
    stopped        done when membership has ended, with its reason
    cluster_stops  done when all members know that the whole cluster stops

The effects of membership arrive at the node (`Node._on_cluster`).

Source: docs/architecture.md; S1.60-S1.62, S2.52.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import cast

from shardbus.config.settings import Settings
from shardbus.errors import RequestError
from shardbus.guarded_log import GuardedLog
from shardbus.ids import Address, NodeId
from shardbus.membership import events as cluster
from shardbus.membership.member import Member
from shardbus.membership.messages import ControlMessage, JoinRefused
from shardbus.node.join_attempts import JoinAttempts
from shardbus.node.join_waits import Look
from shardbus.node.members import ClusterMembers
from shardbus.node.membership_store import MembershipStore
from shardbus.node.rpc import NodeRpc
from shardbus.node.stalled_peers import StalledPeers
from shardbus.shells.cluster_thread import MembershipRunner
from shardbus.store.protocol import StateStore
from shardbus.task_set import TaskSet
from shardbus.transport.endpoint import Endpoint
from shardbus.transport.permissions import JOIN_ANSWERS, JOIN_REQUESTS
from shardbus.transport.zmq.curve import Keyring
from shardbus.wire import gossip

log = GuardedLog("shardbus.node")

LINK_TEST = "link_test"
"""A question that every node answers at once."""


class MembershipLink:
    """The link of node `me` to its membership in the cluster `name`. `run` makes the cluster
    thread. `look` recognizes the program that listens at an address."""

    def __init__(
        self,
        name: str,
        me: NodeId,
        settings: Settings,
        store: StateStore,
        members: ClusterMembers,
        loop: asyncio.AbstractEventLoop,
        run: Callable[..., MembershipRunner],
        look: Look,
    ) -> None:
        self.cluster_name, self.me, self._settings = name, me, settings
        self._members, self._loop, self._run = members, loop, run
        self.stopped: asyncio.Future[str] = loop.create_future()
        self.cluster_stops: asyncio.Future[None] = loop.create_future()
        self.refusals: list[str] = []
        """Why the cluster refused this node, or a command of its operator."""
        self.runner: MembershipRunner | None = None
        """The cluster thread, once it runs."""
        self.requests = MembershipStore(store, self.post, lambda: members.view)
        self.joins = JoinAttempts(
            me.address, settings, store, loop, self.post, lambda: members.joined, look
        )
        self._stalled_peers = StalledPeers(settings.cluster.quarantine_after)
        self._link_tests = TaskSet()
        self._claimed: dict[str, int] = {}
        """The epochs that coordinators here have claimed in this turn of the loop."""

    def start(
        self,
        member: Member,
        shared: Mapping[str, str],
        keyring: Keyring | None,
        notify: Callable[[object], None],
        stalled: Callable[[float], None],
        confirmed: Callable[[float], None],
    ) -> None:
        """Run membership. `shared`: the settings that all members must have alike. The functions
        are called in the cluster thread (`ClusterThread`)."""
        settings = self._settings
        self.runner = self._run(
            member,
            self.cluster_name,
            settings.cluster,
            shared,
            bind_host=settings.node.host,
            bind_port=settings.node.gossip_port or settings.node.port + 1,
            notify=notify,
            stalled=stalled,
            keyring=keyring,
            confirmed=confirmed,
        )
        self.runner.start()

    def post(self, event: cluster.Event) -> None:
        """Hand an event to membership, if it runs."""
        if self.runner is not None:
            self.runner.post(event)

    @property
    def lag(self) -> float:
        """Seconds by which the application's loop is late, as the cluster thread measures it."""
        return self.runner.lag if self.runner is not None else 0.0

    def describe_joining(self) -> str:
        """Return why a node waits that is in no cluster (`JoinAttempts.describe`)."""
        return self.joins.describe(self.requests.waits_for)

    # ---- messages of other nodes

    def received(self, sender: NodeId, body: bytes, contact: Address | None) -> str:
        """Hand on a message of membership. `contact`: the address that this node asked to join, if
        this is its answer. Returns why the message was dropped, empty if it was not."""
        kind, allowed = gossip.kind_of(body), JOIN_REQUESTS if contact is None else JOIN_ANSWERS
        if kind not in allowed:
            log.warning("dropped a message of membership that %s may not send", sender)
            return "not_allowed"
        if self.runner is None or (contact is not None and self._is_late(contact)):
            return "early"  # or late: this node does not join now
        control = cast("ControlMessage", gossip.decode(body))
        self.post(cluster.ControlReceived(sender, control, contact))
        return ""

    def _is_late(self, contact: Address) -> bool:
        """True if this node has no use for an answer from there: it does not join now, and that is
        no seed of it."""
        watched = self.requests.suspects.union(self.joins.watched)
        return self._members.view is not None and contact not in watched

    def session_refused(self, reason: str, address: Address) -> None:
        """A node that this node asked to join refuses its session, so it refuses the node."""
        sender = NodeId(*address, 0)
        self.post(cluster.ControlReceived(sender, JoinRefused(reason), address))

    def denied(self, address: Address, reason: str) -> None:
        """Stop a node that no seed can admit, because its secret differs from all of theirs."""
        if self.joins.denied(address) and not self.stopped.done():
            self.refusals.append(reason)
            self.stopped.set_result(f"join failed: {reason}")

    # ---- epochs of coordinators

    def record_epoch(self, entity_type: str, epoch: int) -> None:
        """Spread the epoch of a coordinator here; those of one turn share a version of gossip."""
        if not self._claimed:
            self._loop.call_soon(self._record_epochs)
        self._claimed[entity_type] = epoch

    def _record_epochs(self) -> None:
        claimed, self._claimed = self._claimed, {}
        self.post(cluster.RecordEpochs(claimed))

    # ---- periodic

    def watch_joining(self) -> None:
        """Log which ways to others do not work. Called about once a second."""
        runner = self.runner
        if runner is not None:
            self.joins.watch(lambda: runner.overview.broken, ended=self.stopped.done())

    def quarantine_stalled_peers(self, endpoint: Endpoint, rpc: NodeRpc) -> None:
        """Quarantine members that answer heartbeats and acknowledge no message. Called about once
        a second."""
        reachable = self._members.reachable()
        for node in self._stalled_peers.check(endpoint.sessions(), reachable, self._loop.time()):
            log.error("%s answers heartbeats but acknowledges no message: quarantined", node)
            self.post(cluster.Quarantine(node))
        for node in self._stalled_peers.untested(reachable - {self.me}):
            self._link_tests.spawn(_test_link(rpc, node))

    # ---- the end

    def ended(self, reason: str) -> None:
        """Note that membership has ended."""
        if not self.stopped.done():
            self.stopped.set_result(reason)

    @property
    def ends_the_cluster(self) -> bool:
        """True if this node has left in good order, and no member is left."""
        left = self.stopped.done() and self.stopped.result() == cluster.LEFT
        return left and (self._members.alone or self.cluster_stops.done())

    async def close(self) -> None:
        """End membership at once, and release the cluster's claim if no member is left."""
        self._link_tests.cancel()
        if self.runner is not None:
            await self.runner.close()
        await self.joins.close()
        self.requests.close()
        if self.ends_the_cluster:
            await self.requests.release()


async def _test_link(rpc: NodeRpc, node: NodeId) -> None:
    """Send a question, so that the session has something to acknowledge."""
    with contextlib.suppress(RequestError):
        await rpc.ask(node, LINK_TEST)
