"""The words of a transcript: short names for incarnations, versions and leases, messages in a line,
and the nodes' views as a table.

    n3#2     the second process at n3's address
    v7       the seventh version that came into the world
    L1       the first lease that was requested
    up*      unreachable; `!` quarantined; `**` proved gone
"""

from __future__ import annotations

from collections.abc import Iterable

from shardbus.ids import NodeId
from shardbus.membership import messages as msg
from shardbus.membership.gossip import Gossip
from shardbus.membership.reachability import Flag
from shardbus.membership.vector_clock import VectorClock
from shardbus.simulation.membership.checks import version
from shardbus.simulation.membership.process import Process
from shardbus.wire.gossip import encode

Record = tuple[NodeId, NodeId, Flag]

MARKS = {
    Flag.REACHABLE: "",
    Flag.UNREACHABLE: "*",
    Flag.QUARANTINED: "!",
    Flag.TERMINATED: "**",
}


class Words:
    """The names of things, in the order in which they came up. `makers`: who made a version."""

    def __init__(self) -> None:
        self.makers: dict[str, NodeId] = {}
        self._labels: dict[NodeId, str] = {}
        self._versions: dict[tuple[object, ...], str] = {}
        self._leases: dict[str, str] = {}

    def add(self, node: NodeId) -> None:
        """A process starts."""
        nth = 1 + sum(label.host == node.host for label in self._labels)
        self._labels[node] = node.host if nth == 1 else f"{node.host}#{nth}"

    def label(self, node: NodeId | None) -> str:
        """A node's short name."""
        return self._labels.get(node, str(node)) if node else "nobody"

    def lease(self, name: str) -> str:
        """A lease's short name."""
        return self._leases.setdefault(name, f"L{len(self._leases) + 1}")

    def named(self, text: str) -> str:
        """The text with short names."""
        for node, label in self._labels.items():
            text = text.replace(str(node), label).replace(str(node.address), node.host)
        return text

    def version(self, gossip: Gossip, maker: NodeId | None = None) -> str:
        """The name of a version, which `maker` made if nobody has had it before."""
        name = self._versions.setdefault(version(gossip), f"v{len(self._versions) + 1}")
        if maker:
            self.makers.setdefault(name, maker)
        return name

    def clock(self, clock: VectorClock) -> str:
        """The version with this clock. A clock does not show the removals, so of several
        versions with one clock it names the last."""
        counters = tuple(sorted(clock.counters.items()))
        names = [
            name for (counters_of, _), name in self._versions.items() if counters_of == counters
        ]
        return names[-1] if names else "an old version"

    def message(self, message: msg.Message) -> str:
        """A message in a few words."""
        what = type(message).__name__
        match message:
            case msg.GossipState(_, gossip) | msg.Welcome(gossip):
                has = " ".join(map(self.label, sorted(gossip.seen))) or "nobody"
                return f"{what} {self.version(gossip)}, seen {has}"
            case msg.GossipSeen(clock) | msg.GossipStatus(clock):
                return f"{what} {self.clock(clock)}"
            case msg.JoinRefused(reason):
                return f"{what}: {self.named(reason)}"
            case _:
                return what

    def rows(self, before: list[Record], after: list[Record]) -> list[str]:
        """Who says something else of whom."""
        still = {record[:2] for record in after}
        gone = [(a, b, Flag.REACHABLE) for a, b, _ in before if (a, b) not in still]
        return [
            f"{self.label(a)} says {self.label(b)} is {flag.name.lower()}"
            for a, b, flag in [*gone, *(row for row in after if row not in before)]
        ]

    def table(self, processes: Iterable[Process]) -> list[str]:
        """The view of each of them."""
        shown = sorted(processes, key=lambda process: process.id)
        everybody = sorted({n for p in shown if p.running for n in p.machine.gossip.members})
        head = ["", *map(self.label, everybody), "leader", "oldest", "converged"]
        rows = [head, *(self._row(process, everybody) for process in shown)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]

    def _row(self, process: Process, everybody: list[NodeId]) -> list[str]:
        if not process.running:
            why = process.stopped.partition(":")[0] or "killed"
            return [self.label(process.id), *[""] * len(everybody), why, "", ""]
        gossip, view = process.machine.gossip, process.machine.view
        verdicts = gossip.unreachable()
        cells = [
            gossip.members[n].status.value + MARKS[verdicts.get(n, Flag.REACHABLE)]
            if n in gossip.members
            else ""
            for n in everybody
        ]
        waits = " ".join(map(self.label, gossip.waiting_for()))
        oldest = view.oldest()
        return [
            self.label(process.id),
            *cells,
            self.label(view.leader),
            self.label(oldest.node if oldest else None),
            f"waits for {waits}" if waits else "yes" if gossip.members else "",
        ]


def weight(process: Process, now: float) -> str:
    """How large its state is."""
    gossip = process.machine.gossip
    size = len(encode(msg.GossipState(process.id, gossip.flip_tombstones(now))))
    return (
        f"{len(gossip.members)} members, {len(gossip.clock.counters)} counters, "
        f"{len(gossip.tombstones)} tombstones, {size} bytes"
    )
