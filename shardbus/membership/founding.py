"""Who founds the cluster when contacts are discovered: the holder of the store's claim.

Addresses that change name no first seed. Nodes that start together find each other at different
moments, and perhaps not at all, so no rule about who has the lowest address keeps two of them from
founding. The state store does: it is shared by all nodes of a cluster, and it grants the *claim*, a
lease, to one owner at a time.

    a node that joins          asks for the claim once every contact has answered that it is in no
                               cluster, or has been silent for `founding_claim`; founds if granted
    a member                   renews the claim, every quarter of its time
    a node that is refused     keeps contacting: the founder answers it
    with `new_cluster` off     a node never asks before it is a member

The owner of the claim is the cluster: a number derived from its founder, which spreads with the
gossip. Every member renews under it, so the claim lives as long as any member does, and not only
while the founder does. Where it has lapsed, because the founder died before others joined, or every
node has stopped, the next node gets it.

**A founder that pauses.** A grant counts from the moment at which it was asked for, and for half of
its time, so that the answer to an old request founds nothing. A founder that is stopped right
after, for longer than the claim lasts, finds it with another cluster when it renews. While it is
alone it then stops, and joins that cluster when it starts again. Until it knows, it admits no
node: alone, a member answers no request to join without a valid claim.

**A claim that lapsed although the cluster lives**, because no member reached the store for that
long: a node that starts still finds the members, for their registrations do not lapse by
themselves. If it reaches none of them either, and the store, it founds a second cluster. Both then
share the store; the fences of tables and entities keep its data whole. Members of the cluster
without the claim report `RivalCluster`.

Not here: finding contacts (`shells.discovery`, `membership.registrations`), contacting them
(`joining`).

Source: docs/guarantees.md; B.144.
"""

from __future__ import annotations

from math import inf

from shardbus.config.settings import ClusterSettings
from shardbus.ids import NodeId
from shardbus.membership.downing.split import first_epoch
from shardbus.membership.events import AcquireLease
from shardbus.membership.gossip import Gossip

FOUNDING = "$founding"
"""The name of the claim, and of the cluster's number among the coordinators' epochs. No entity type
can have it."""
ASK_AGAIN_AFTER = 0.5
"""Seconds between two requests of a node that joins."""
RENEW_PART = 0.25
TRUSTED_PART = 0.5
"""A grant founds a cluster for this part of its time."""


def owner_of(cluster: int) -> str:
    """Return the owner of the claim of the cluster with this number."""
    return f"cluster {cluster}"


class FoundingClaim:
    """One node's part in the store's claim. Off until `start`."""

    def __init__(self, me: NodeId, settings: ClusterSettings) -> None:
        self._me = me
        self._lasts, self._may_found = settings.founding_claim, settings.new_cluster
        self._on = False
        self._asked: tuple[str, float] | None = None
        """The owner in the last request without an answer, and when it was made."""
        self._ask_at = -inf
        self._valid_until = -inf
        self._granted_at = -inf

    @property
    def on(self) -> bool:
        """True if this node's contacts are discovered."""
        return self._on

    def start(self) -> None:
        """Take part."""
        self._on = True

    def deadline(self) -> float | None:
        """Return when a member must ask again."""
        return self._ask_at if self._on and self._asked is None else None

    def ask(self, gossip: Gossip, now: float) -> AcquireLease | None:
        """Return the request that is due. `gossip` is empty before this node is a member; call it
        then only if this node may found. There is one request at a time, so that an answer is never
        taken for that to a later one."""
        if not self._on or self._asked is not None or now < self._ask_at:
            return None
        if not gossip.members and not self._may_found:
            return None
        self._ask_at = now + (self._lasts * RENEW_PART if gossip.members else ASK_AGAIN_AFTER)
        number = gossip.epochs.get(FOUNDING, 0) if gossip.members else self.own_number
        if not number:
            return None
        owner = owner_of(number)
        self._asked = (owner, now)
        return AcquireLease(FOUNDING, owner, self._lasts)

    def on_result(self, granted: bool | None) -> None:
        """Record the store's answer. None: it could not be reached."""
        if self._asked is None:
            return
        (owner, at), self._asked = self._asked, None
        if granted:
            self._granted_at = at if owner == owner_of(self.own_number) else -inf
            self._valid_until = at + self._lasts
        elif granted is False:
            self._granted_at = self._valid_until = -inf

    def founds(self, now: float) -> bool:
        """True if this node may found a cluster now."""
        return self._on and now < self._granted_at + self._lasts * TRUSTED_PART

    def valid(self, now: float) -> bool:
        """True if the cluster surely has the claim."""
        return now < self._valid_until

    def is_founder(self, gossip: Gossip) -> bool:
        """True if this node has founded its cluster and is still alone in it."""
        return gossip.epochs.get(FOUNDING) == self.own_number and len(gossip.members) == 1

    @property
    def own_number(self) -> int:
        """The number of a cluster that this node founds; never zero."""
        return first_epoch(self._me) or 1
