"""The account of one entity type's messages on one node: the arrivals equal the sum of their fates.

    accepted = delivered + forwarded + buffered + waiting + dropped

    accepted    arrived here, or was sent here and had to wait for a home
    delivered   its handler has ended, and did not drop it
    forwarded   left for the home of its shard: from the buffer, or because that is elsewhere
    buffered    waits in the region for a home
    waiting     is in a mailbox or a stash, or a handler works on it
    dropped     no handler has got it, by reason

The equation is exact whenever no message is on its way within the node, as at the beginning of each
turn of the loop without one. Each number is counted where it happens, none is computed from the
others, so a message that gets lost in silence breaks the equation. A message that comes back,
because its link ended before it had left, is accepted again.

Messages that nodes send along known routes are no part of it, before they arrive somewhere: links
have an account of their own (`messages_sent`, and the reason `unconfirmed`).

Source: N.3; docs/reference/metrics.md.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from shardbus.routing.pending_message import PendingMessage
from shardbus.shells.region import RegionShell

OF_LINKS = ("unconfirmed",)
"""Reasons of drops of messages that had left the region."""


class MessageAccount(msgspec.Struct, frozen=True):
    """See the module."""

    accepted: int
    delivered: int
    forwarded: int
    buffered: int
    waiting: int
    dropped: int

    @property
    def missing(self) -> int:
        """Messages that were accepted and of which nothing is known; below zero, the other way
        round."""
        accounted = self.delivered + self.forwarded + self.buffered + self.waiting + self.dropped
        return self.accepted - accounted


def account_of(region: RegionShell) -> MessageAccount:
    """Return the account of a type. Costs a pass over the messages that wait."""
    counts, router, waiting = region.host.counts, region.router, region.host.waiting
    own_sent = router.entered - region.relayed_messages
    return MessageAccount(
        accepted=counts.accepted + own_sent + counts.own_dropped,
        delivered=counts.begun - counts.undone - region.host.runner.at_work,
        forwarded=router.left - counts.readmitted,
        buffered=buffered_by_type(region)[region.name],
        waiting=waiting,
        dropped=sum(n for reason, n in counts.dropped.items() if reason not in OF_LINKS),
    )


def buffered_by_type(region: RegionShell) -> Counter[str]:
    """Return the messages that wait for homes, by type: a type and the types that live within it
    share a region machine."""
    kept = region.table.router.region.kept()
    return Counter(
        message.key[0]
        for message in kept
        if isinstance(message, PendingMessage) and message.key is not None
    )
