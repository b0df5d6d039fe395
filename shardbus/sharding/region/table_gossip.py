"""The shard table by gossip: regions compare their versions, and the newer table travels.

With `sharding.homes = "gossip"` the coordinator sends new homes to the regions that request them,
and gives each new version of its whole table to the region on its own node. From there regions
spread it among themselves, so the coordinator's work for a change does not grow with the cluster:

    a region gets a newer TableState     uses its homes, and sends TableStatus to its *fingers*: the
                                         nodes 1, 2, 4, 8, ... places behind it in the list of nodes
    every `STATUS_S`                     sends TableStatus to one finger, the next one each time
    a TableStatus is older than its own  answers TableState
    a TableStatus is newer               answers TableStatus, which requests the TableState; within
                                         `REQUEST_S` it requests that version from no other node

A region that keeps messages for a shard without a home asks the coordinator at once: by gossip the
home would come with the next version, tens of milliseconds later (`routing`).

So a change reaches all in a number of steps that grows with the logarithm of their number, and it
reaches a node that missed it within seconds, as long as any finger leads there.

**The truth stays in the store.** A version is an epoch and a number, and the coordinator alone
makes them, from durable data. A home by gossip is accepted by its fence, as in ShardHomes: an old
one costs a forward, and no safety. A region of a cluster whose coordinator does not gossip has no
state and sends nothing; one that gets none requests homes as usual.

Not here: the making of versions (`coordinator/table_versions`), the use of homes (`routing`).

Source: S3.33, S3.45, S3.54, N.17; docs/partitions.md.
"""

from __future__ import annotations

from bisect import bisect

from shardbus.errors import RemoteProtocolError
from shardbus.ids import NodeId
from shardbus.sharding import events as ev
from shardbus.sharding.messages import Home, TableState, TableStatus
from shardbus.sharding.table_state import unpack_homes

STATUS_S = 1.0
"""Seconds between two comparisons with another node."""
REQUEST_S = 0.25
"""Seconds for which the answer to a request is awaited before another node is asked."""

TableVersion = tuple[int, int]
"""An epoch, and the number of the table under it. Later ones are greater."""
NO_VERSION: TableVersion = (0, 0)


class TableGossip:
    """One region's copy of the table, by gossip. Effects are appended to `out`. A client, whose
    `me` is None, takes no part."""

    __slots__ = (
        "_fingers", "_gone", "_me", "_out", "_requested", "_turn", "due", "state", "versions",
    )  # fmt: skip

    def __init__(self, me: NodeId | None, out: list[ev.RegionEffect]) -> None:
        self._me, self._out = me, out
        self.state: TableState | None = None
        """The newest table known."""
        self.versions: dict[NodeId, TableVersion] = {}
        """The newest version that each other node is known to have."""
        self.due: float | None = None
        """When the next comparison is due."""
        self._gone: dict[NodeId, None] = {}
        self._fingers: tuple[NodeId, ...] = ()
        self._turn = 0
        self._requested: tuple[TableVersion, float] = (NO_VERSION, 0.0)

    @property
    def version(self) -> TableVersion:
        """The version of the table known; `NO_VERSION` if none is."""
        return (self.state.epoch, self.state.version) if self.state is not None else NO_VERSION

    def on_state(self, sender: NodeId, state: TableState, now: float) -> tuple[Home, ...]:
        """Take over a newer table, and report it to others. Returns its homes; none if this region
        has it already, or if it is malformed."""
        version = (state.epoch, state.version)
        self._saw(sender, version)
        if self._me is None or version <= self.version:
            return ()
        try:
            homes = unpack_homes(state.homes, state.nodes)
        except RemoteProtocolError as e:
            self._out.append(ev.Note("table_refused", f"{sender} sent {e}"))
            return ()
        self.state = state
        nodes = dict.fromkeys(state.nodes)
        self.versions = {node: at for node, at in self.versions.items() if node in nodes}
        self._gone = {node: None for node in self._gone if node in nodes}
        self._set_fingers()
        for node in self._fingers:
            if self.versions.get(node, NO_VERSION) < version:
                self._out.append(ev.Send(node, TableStatus(*version)))
        self.due = now + STATUS_S
        return homes

    def on_status(self, sender: NodeId, status: TableStatus, now: float) -> None:
        """Compare a version with the own one; the newer one travels."""
        theirs, mine = (status.epoch, status.version), self.version
        self._saw(sender, theirs)
        if self._me is None:
            return
        if theirs < mine and self.state is not None:
            self._out.append(ev.Send(sender, self.state))
        elif theirs > mine:
            requested, until = self._requested
            if theirs > requested or now >= until:
                self._requested = (theirs, now + REQUEST_S)
                self._out.append(ev.Send(sender, TableStatus(*mine)))
        elif status.wants_answer:
            self._out.append(ev.Send(sender, TableStatus(*mine)))

    def ask_versions(self) -> None:
        """Ask every node that is not known to have this version which one it has."""
        if self.state is not None:
            for node in self.behind(self.version):
                self._out.append(ev.Send(node, TableStatus(*self.version, wants_answer=True)))

    def behind(self, version: TableVersion) -> list[NodeId]:
        """Return the nodes of the table that live and are not known to have this version."""
        if self.state is None:
            return []
        others = (node for node in self.state.nodes if node != self._me and node not in self._gone)
        return [node for node in others if self.versions.get(node, NO_VERSION) < version]

    def forget_before(self, epoch: int) -> None:
        """Forget a table of an earlier epoch: its coordinator is no more, and the next one may not
        gossip."""
        if self.state is not None and self.state.epoch < epoch:
            self.state, self.due, self._fingers = None, None, ()

    def on_node_gone(self, node: NodeId) -> None:
        """Send nothing more to a node that is gone."""
        self.versions.pop(node, None)
        if self.state is not None and node in self.state.nodes:
            self._gone[node] = None
            self._set_fingers()

    def on_node_back(self, node: NodeId) -> None:
        """Send to the node again: it lives after all."""
        if self._gone.pop(node, node) is None:
            self._set_fingers()

    def tick(self, now: float) -> None:
        """Compare the version with one other node's, if that is due."""
        if self.due is None or now < self.due:
            return
        self.due = now + STATUS_S
        if self._fingers:
            self._turn += 1
            node = self._fingers[self._turn % len(self._fingers)]
            self._out.append(ev.Send(node, TableStatus(*self.version)))

    def _saw(self, node: NodeId, version: TableVersion) -> None:
        if node != self._me and (self.state is None or node in self.state.nodes):
            self.versions[node] = max(version, self.versions.get(node, NO_VERSION))

    def _set_fingers(self) -> None:
        me, state = self._me, self.state
        if me is None or state is None:
            return
        others = [node for node in state.nodes if node != me and node not in self._gone]
        at = bisect(others, me)
        ring = others[at:] + others[:at]
        self._fingers = tuple(ring[(1 << n) - 1] for n in range(len(ring).bit_length()))
