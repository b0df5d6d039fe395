"""Finds other clusters of this one's name at its seeds.

Two groups of nodes that were founded separately never merge: each has a state of its own, and no
rule could tell whose members and epochs count. They come about by an error: a first seed that was
started while its other seeds were out of reach, a list of seeds with a gap, a split without a
downing strategy. Both groups work, and nothing in either is wrong, so it is reported to the
operator.

    every `EVERY_S`   InitJoin ──> each seed whose address belongs to no member
    InitAck           from a member (the seed is another name of it): no finding
                      from no member: the seed is in another cluster
    JoinRefused       the seed is in a cluster that this node could never be in
    InitNack          the seed is in no cluster: no finding

Gossip is late, so only the second answer in a row is a finding: `EVERY_S` later every node has a
new member in its state. A finding ends with another answer, with `SILENT_MAX` questions without
one, and when the seed becomes a member. An InitJoin changes nothing at a node that is in a cluster,
and makes one that is in none report when it is.

**Suspects** are nodes that the store names and that are no members, when the store shows an epoch
that no member has announced. They are asked at once, again after `SUSPECTED_S`, and then like
seeds, as long as they are in another cluster.

Source: S3.27, S3.29; docs/how-to/operate.md.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shardbus.ids import Address, NodeId
from shardbus.membership import messages as msg
from shardbus.membership.events import Effect, Notice, SendControl
from shardbus.membership.gossip import Gossip
from shardbus.membership.view import OtherCluster, OtherClustersChanged

EVERY_S = 30.0
"""Seconds between two questions to a seed."""
SURE_AFTER = 2
"""Answers in a row that make a finding."""
SILENT_MAX = 2
"""Questions without an answer that end a finding."""
SUSPECTED_S = 4.0
"""Seconds between the first two questions to a suspect."""
SUSPECTS_MAX = 50


class _Seed(msgspec.Struct):
    """The findings about one seed. `waits`: it has been asked, and has not answered."""

    ask_at: float
    suspect: bool = False
    answers: int = 0
    silent: int = 0
    waits: bool = False
    cluster: OtherCluster | None = None


class OtherClusters:
    """The seeds of one node, and their answers. `greeting` is the node's own."""

    def __init__(self, me: NodeId, greeting: msg.Greeting) -> None:
        self._me, self._greeting = me, greeting
        self._seeds: dict[Address, _Seed] = {}
        self._reported: tuple[OtherCluster, ...] = ()

    def watch(self, seeds: Iterable[Address], now: float) -> None:
        """Ask these seeds from now on, this node's own address aside."""
        at = now + EVERY_S
        self._seeds = {seed: _Seed(at) for seed in seeds if seed != self._me.address}

    def suspect(self, nodes: Iterable[Address], gossip: Gossip, now: float) -> None:
        """Ask these nodes at once, members and this node's own address aside."""
        members = {self._me.address, *(node.address for node in gossip.members)}
        room = SUSPECTS_MAX - sum(seed.suspect for seed in self._seeds.values())
        new = [node for node in nodes if node not in members and node not in self._seeds]
        self._seeds |= {node: _Seed(now, suspect=True) for node in new[:room]}

    def deadline(self) -> float | None:
        """Return when `tick` is due."""
        return min((seed.ask_at for seed in self._seeds.values()), default=None)

    def tick(self, gossip: Gossip, now: float) -> list[Effect]:
        """Ask the seeds that are no members and have their turn."""
        due = {address: seed for address, seed in self._seeds.items() if now >= seed.ask_at}
        if not due:
            return []
        members = {node.address for node in gossip.members}
        asks: list[Effect] = []
        for address, seed in due.items():
            sure = seed.answers >= SURE_AFTER or not seed.suspect
            seed.ask_at = now + (EVERY_S if sure else SUSPECTED_S)
            seed.silent = seed.silent + 1 if seed.waits else 0
            over = address in members or seed.silent >= SILENT_MAX
            if over:
                _forget(seed)
            if over and seed.suspect:
                del self._seeds[address]
                continue
            seed.waits = address not in members
            if seed.waits:
                asks.append(SendControl(address, msg.InitJoin(self._greeting)))
        return [*self._report(), *asks]

    def asks(self, address: Address) -> bool:
        """True if this address belongs to a seed that has not answered yet."""
        seed = self._seeds.get(address)
        return seed is not None and seed.waits

    def on_answer(
        self,
        gossip: Gossip,
        sender: NodeId,
        answer: msg.InitAck | msg.InitNack | msg.JoinRefused,
        address: Address,
    ) -> list[Effect]:
        """Take the answer of the seed at this address, which was asked."""
        seed = self._seeds[address]
        seed.waits, seed.silent = False, 0
        match answer:
            case msg.JoinRefused(reason):
                cluster = OtherCluster(address, None, reason, seed.suspect)
            case msg.InitAck() if sender not in gossip.members:
                cluster = OtherCluster(address, sender, "", seed.suspect)
            case _:
                _forget(seed)
                if seed.suspect:
                    del self._seeds[address]
                return self._report()
        seed.answers += 1
        seed.cluster = cluster if seed.answers >= SURE_AFTER else None
        return self._report()

    def _report(self) -> list[Effect]:
        clusters = tuple(seed.cluster for seed in self._seeds.values() if seed.cluster is not None)
        if clusters == self._reported:
            return []
        self._reported = clusters
        return [Notice(OtherClustersChanged(clusters))]


def _forget(seed: _Seed) -> None:
    seed.answers, seed.silent, seed.cluster = 0, 0, None
