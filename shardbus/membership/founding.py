"""Who founds the cluster: the holder of the store's claim.

Nodes that start together find each other at different moments, and perhaps not at all, so no rule
about who is first in a list keeps two of them from founding. The state store does: it is shared by
all nodes of a cluster, and it grants the *claim*, a lease, to one owner at a time. A store in the
memory of one process is shared with no node, so there the first seed founds without a claim.

    a node that may found      requests the claim: the first seed, or a node without seeds, once no
                               other seed is in a cluster; with discovery, any node once every
                               contact has answered that it is in no cluster, or has been silent for
                               `founding_claim`; founds if granted
    a member                   renews the claim, every quarter of its time, and writes the record of
                               its cluster (`claim_record`); of many members the first `RENEWERS`,
                               and the others once in its time
    a node that is refused     reads the record, and so does a node whose seeds do not answer
    a node that rejoins        requests the claim only if it is the first seed, or has none; each
                               member that it knew, each seed and each member in the record has
                               answered just now that it is in no cluster. It frees no claim: that
                               has to lapse, so members that it never knew are in its way, too
    with `new_cluster` off     a node never asks before it is a member

The owner of the claim is the cluster: a number derived from its founder, which spreads with the
gossip. Every member renews under it, so the claim lives as long as any member does, and not only
while the founder does. Where it has lapsed, because the founder died before others joined, or every
node has stopped, the next node gets it.

    the record is of           and the node
    its own cluster            contacts the members, and waits. If each of them is dead, because at
                               its address is a process in no cluster, it frees the claim; else the
                               claim lapses by itself
    another cluster that lives is refused, with the addresses of that cluster. Contacts that are
                               discovered may yet show its own cluster: then it waits
    another one, perhaps dead  waits, until the record changes or the claim lapses

**A founder that pauses.** A grant counts from the moment of its request, and for half of its time,
so that the answer to an old request founds nothing. A founder that is stopped right after, for
longer than the claim lasts, finds it with another cluster when it renews. While it is alone it then
stops, and joins that cluster when it starts again. Until it has found that, it admits no node:
alone, a member answers no request to join without a valid claim.

**A claim that lapsed although the cluster lives**, because no member reached the store for that
long: a node that starts still finds the members, by its seeds, their registrations or the record,
which do not lapse by themselves. If it reaches none of them, it founds a second cluster. Both then
share the store; the fences of tables and entities keep its data whole. Members of the cluster
without the claim report `RivalCluster`, with the addresses in the record.

Not here: finding contacts (`shells.discovery`, `membership.registrations`), contacting them
(`joining`).

Source: docs/guarantees.md; B.144.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf

import msgspec

from shardbus.backoff import doubling
from shardbus.config.settings import ClusterSettings
from shardbus.ids import Address, NodeId
from shardbus.membership.claim_record import CONTACTS_MAX, ClaimRecord, named, record_of
from shardbus.membership.downing.split import first_epoch
from shardbus.membership.events import AcquireLease, FreeClaim, ReadClaim, WriteClaim
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Status, leader_order
from shardbus.membership.view import FoundingWaits, RivalCluster

FOUNDING = "$founding"
"""The name of the claim, and of the cluster's number among the coordinators' epochs. No entity type
can have it."""
ASK_AGAIN_AFTER = 0.5
"""Seconds between two requests of a node that joins."""
READ_AGAIN_AFTER = 2.0
"""Seconds between two looks at the record, of a node whose seeds do not answer."""
LOOK_LASTS = 5.0
"""Seconds for which a node that rejoins relies on a look at the record."""
RENEW_PART = 0.25
LAPSED_PART = 1.25
"""After this part of its time a claim that no member renews has lapsed in any store: the replicas
of `cluster://` wait for 1.1."""
TRUSTED_PART = 0.5
"""A grant founds a cluster for this part of its time."""
RENEWERS = 5
"""Members that renew the claim every quarter of its time, so that the load of the store does not
grow with each node."""
REPORT_WAIT_AFTER = 2.0
"""Seconds of waiting before the first report: nodes that start together wait for less."""
REPORT_FIRST_S, REPORT_MAX_S = 5.0, 60.0
"""Seconds between two reports of one wait or one rival, at first and at most."""


def owner_of(cluster: int) -> str:
    """Return the owner of the claim of the cluster with this number."""
    return f"cluster {cluster}"


class ClaimFinding(msgspec.Struct, frozen=True):
    """The finding of a node that is no member, from a look at the record. `contacts`: members of
    its own cluster. `free`: that cluster has ended, and its claim can be freed. `refusal`: why this
    node must end."""

    contacts: tuple[Address, ...] = ()
    free: FreeClaim | None = None
    refusal: str = ""


class FoundingClaim:
    """One node's part in the store's claim. Off until `start`."""

    def __init__(self, me: NodeId, settings: ClusterSettings) -> None:
        self._me = me
        self._lasts, self._may_found = settings.founding_claim, settings.new_cluster
        self._on = self._waits = self._joins_any = self._rejoins = False
        self._request: tuple[str, float] | None = None
        """The owner in the last request without an answer, and when it was made."""
        self._ask_at = self._asked_at = -inf
        self._valid_until = -inf
        self._granted_at = -inf
        self._counter = 0
        self._own_addresses: tuple[Address, ...] = (me.address,)
        """This node's address and its seeds."""
        self._contacts: dict[Address, None] = {}
        """Addresses that belong to this node's cluster, the newest last."""
        self._written = 0
        self._read_at: float | None = -inf
        """When the record may be read again; None while it is being read."""
        self._looked_at = -inf
        """When the store showed the record; -inf if its last answer was none."""
        self._record: ClaimRecord | None = None
        self._lives = False
        """The record has changed, or the claim was renewed, since it was seen first."""
        self._refused_since: float | None = None
        self._report_at, self._reports = -inf, 0
        self._rival: RivalCluster | None = None

    @property
    def on(self) -> bool:
        """True if this node's cluster has a claim."""
        return self._on

    def start(
        self,
        seeds: Iterable[Address] = (),
        *,
        discovers: bool = True,
        joins_any: bool = False,
        rejoins: bool = False,
    ) -> None:
        """Take part.

        Args:
            seeds: the seeds of this node that are addresses.
            discovers: its contacts are discovered, so that it waits where another node is refused.
            joins_any: it joins whatever cluster has the store.
            rejoins: it was downed, and has the members that it knew as seeds.
        """
        self._on, self._waits, self._joins_any = True, discovers, joins_any
        self._rejoins = rejoins and not discovers
        self._own_addresses = (self._me.address, *seeds)
        self._contacts = dict.fromkeys(self._own_addresses)
        self._may_found = self._may_found or not (discovers or self._own_addresses[1:])

    # -- asking ----------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """Return when a member must ask again."""
        return self._ask_at if self._on and self._request is None else None

    def ask(self, gossip: Gossip, now: float) -> AcquireLease | None:
        """Return the request that is due. `gossip` is empty before this node is a member; call it
        then only if this node may found. There is one request at a time, so that an answer is never
        taken for that to a later one."""
        if not self._on or self._request is not None or now < self._ask_at:
            return None
        if not gossip.members and not self._may_found:
            return None
        self._ask_at = now + (self._lasts * RENEW_PART if gossip.members else ASK_AGAIN_AFTER)
        number = gossip.epochs.get(FOUNDING, 0) if gossip.members else self.own_number
        if not number or not (self._is_new(now) or self._renews(gossip)):
            return None
        owner = owner_of(number)
        self._request, self._asked_at = (owner, now), now
        return AcquireLease(FOUNDING, owner, self._lasts)

    def _is_new(self, now: float) -> bool:
        """True if this node has no valid claim: it has not written itself into the record."""
        return now >= self._valid_until or not self._written

    def _renews(self, gossip: Gossip) -> bool:
        """True if this member is one of the first that its gossip can reach."""
        unreachable = gossip.unreachable()
        before = 0
        mine = gossip.members.get(self._me)
        if mine is None:
            return True
        for node, member in gossip.members.items():
            ahead = member.status is not Status.DOWN and leader_order(member) < leader_order(mine)
            before += ahead and node not in unreachable
        return before < RENEWERS

    def on_result(self, granted: bool | None, counter: int, now: float) -> None:
        """Record the store's answer. None: it could not be reached."""
        if self._request is None:
            return
        (owner, at), self._request = self._request, None
        if granted:
            self._granted_at = at if owner == owner_of(self.own_number) else -inf
            self._valid_until, self._counter = at + self._lasts, counter
            self._refused_since = None
        elif granted is False:
            self._granted_at = self._valid_until = -inf
            if self._refused_since is None:
                self._refused_since = now

    def hurry(self, now: float) -> None:
        """Ask again at once: the store may have lost the claim, or another cluster writes it."""
        self._ask_at = min(self._ask_at, now)
        self._valid_until = min(self._valid_until, now)

    def founds(self, now: float) -> bool:
        """True if this node may found a cluster now."""
        return self._on and now < self._granted_at + self._lasts * TRUSTED_PART

    def permits(self, elsewhere: Collection[Address], now: float) -> bool:
        """True unless the record is in the way of founding by the claim: it may name a member of
        the cluster that has downed this node. `elsewhere` is as in `on_record`."""
        if not self._rejoins:
            return True
        ended = self._record is None or self._record.has_ended((self._me.address, *elsewhere))
        return now < self._looked_at + LOOK_LASTS and ended

    def valid(self, now: float) -> bool:
        """True if the cluster surely has the claim."""
        return now < self._valid_until

    @property
    def lost(self) -> bool:
        """True if the store's last answer was that another cluster has the claim."""
        return self._refused_since is not None

    def is_founder(self, gossip: Gossip) -> bool:
        """True if this node has founded its cluster and is still alone in it."""
        return gossip.epochs.get(FOUNDING) == self.own_number and len(gossip.members) == 1

    @property
    def own_number(self) -> int:
        """The number of a cluster that this node founds; never zero."""
        return first_epoch(self._me) or 1

    # -- the record ------------------------------------------------------------------------------

    def write(self, gossip: Gossip) -> WriteClaim:
        """Return the record of this node's cluster, which has the claim."""
        self._written += 1
        beat = (self._me.uid >> 2) + self._written
        number = gossip.epochs.get(FOUNDING, 0)
        return WriteClaim(record_of(gossip, number, self._counter, beat, self._contacts))

    def on_members(self, gossip: Gossip, now: float) -> None:
        """Remember the members' addresses, and write a new record soon."""
        for node in gossip.members:
            self._contacts.pop(node.address, None)
            self._contacts[node.address] = None
        for address in list(self._contacts)[: max(0, len(self._contacts) - CONTACTS_MAX)]:
            del self._contacts[address]
        if self._on and self.valid(now):
            self._ask_at = min(self._ask_at, max(now, self._asked_at) + ASK_AGAIN_AFTER)

    def on_entered(self) -> None:
        """Begin anew: this node is in a cluster."""
        self._refused_since, self._report_at, self._reports = None, -inf, 0

    def read(self, now: float) -> ReadClaim | None:
        """Return a look at the record, if none is under way."""
        if not self._on or self._read_at is None or now < self._read_at:
            return None
        self._read_at = None
        return ReadClaim()

    def on_record(
        self,
        record: ClaimRecord | None,
        elsewhere: Collection[Address],
        now: float,
        *,
        answered: bool = True,
    ) -> ClaimFinding:
        """Judge the record, before this node is a member. `elsewhere`: addresses at which processes
        have answered that they are in no cluster. `answered`: the store has."""
        self._take(record, now)
        self._looked_at = now if answered else -inf
        if record is not None and record.number == self.own_number:
            return ClaimFinding()
        if record is None or not (self._joins_any or record.meets(self._own_addresses)):
            if self._lives and not self._waits:
                return ClaimFinding(refusal=self._refusal())
            return ClaimFinding()
        ended = record.has_ended((self._me.address, *elsewhere))
        free = ended and not (self._lives or self._rejoins)
        return ClaimFinding(record.members, FreeClaim(record) if free else None)

    def _take(self, record: ClaimRecord | None, now: float) -> None:
        """Keep the record; find out whether its cluster lives."""
        before, self._record = self._record, record
        asks = self._refused_since is not None
        self._read_at = now + (ASK_AGAIN_AFTER if asks else READ_AGAIN_AFTER)
        number = record.number if record is not None else None
        if (before.number if before is not None else None) != number:
            self._lives = False
            self._refused_since = None if self._refused_since is None else now
        elif before is not None and record is not None and before.beat != record.beat:
            self._lives = True
        since = self._refused_since
        if since is not None and now >= since + self._lasts * LAPSED_PART:
            self._lives = True

    def _refusal(self) -> str:
        addresses = self._record.members if self._record is not None else ()
        return (
            f"another cluster writes this store: {named(addresses)}; give this one a store or a"
            " name of its own, or give this node a seed in that cluster"
        )

    # -- reports ---------------------------------------------------------------------------------

    def report_wait(self, now: float) -> FoundingWaits | None:
        """Return the wait of a node that may not found, if a report is due."""
        since = self._refused_since
        if since is None or now < max(self._report_at, since + REPORT_WAIT_AFTER):
            return None
        self._reports += 1
        self._report_at = now + doubling(REPORT_FIRST_S, REPORT_MAX_S, self._reports)
        record = self._record
        who = named(record.members if record is not None else ())
        ours = record is not None and (self._joins_any or record.meets(self._own_addresses))
        if not self._lives:
            left = max(0.0, since + self._lasts * LAPSED_PART - now)
            whose = "this cluster" if ours else "another cluster"
            return FoundingWaits(
                f"waits for the store's claim, which {whose} had: {who}; it ends within"
                f" {left:.0f} s unless a member of that cluster lives"
            )
        if ours:
            return FoundingWaits(f"waits for an answer of its cluster, which has the store: {who}")
        return FoundingWaits(f"founds no cluster: another cluster writes this store: {who}")

    def rivals(self, record: ClaimRecord | None, gossip: Gossip) -> tuple[Address, ...]:
        """Return the members of the cluster that has the claim of this one, if they are known."""
        foreign = record is not None and record.number != gossip.epochs.get(FOUNDING, 0)
        return record.members if record is not None and foreign else ()

    def report_rival(self, addresses: tuple[Address, ...], now: float) -> RivalCluster | None:
        """Return the report of a member that has lost the claim, if it is due."""
        self._read_at, since = now, self._refused_since
        rival = RivalCluster(addresses)
        early = not addresses and since is not None and now < since + ASK_AGAIN_AFTER
        if early or (rival == self._rival and now < self._report_at):
            return None
        self._reports = self._reports + 1 if rival == self._rival else 1
        self._report_at = now + doubling(REPORT_FIRST_S, REPORT_MAX_S, self._reports)
        self._rival = rival
        return rival

    def report_end(self) -> RivalCluster | None:
        """Return that the rival is gone, once: this cluster has the claim again."""
        rival, self._rival = self._rival, None
        return RivalCluster(rival.addresses, gone=True) if rival is not None else None
