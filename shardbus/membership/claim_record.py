"""The record of the cluster that holds the store's claim (`founding`).

The claim itself is a lease: it shows that a cluster lives, and not where. The members that renew it
also write this record, so that a node that starts finds them, or an operator can look for them.

    members   the addresses at which the members can be reached
    known     addresses that belong to the cluster: seeds of its members, and former members
    beat      changes with each write, so a reader that sees it change sees that the cluster lives

A node **belongs** to the cluster if its own address or one of its seeds is among these. Seeds that
restart belong to the cluster that lives on without them. A cluster that was started with the same
name on the same store by mistake has no address in common with it.

Source: docs/how-to/deploy.md; B.144.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from shardbus.ids import Address
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Status, leader_order

MEMBERS_MAX, CONTACTS_MAX = 100, 200
"""Addresses of each kind in a record, at most."""
SHOWN = 5
"""Addresses in a sentence, at most."""


class ClaimRecord(msgspec.Struct, frozen=True):
    """The cluster with this number, as one of its members has written it. `counter` is the lease's.
    `contacts`: its other addresses. `complete`: no member is left out."""

    number: int
    counter: int
    beat: int
    members: tuple[Address, ...]
    contacts: tuple[Address, ...] = ()
    complete: bool = True

    def meets(self, addresses: Iterable[Address]) -> bool:
        """True if one of these addresses belongs to the cluster."""
        return not {*self.members, *self.contacts}.isdisjoint(addresses)

    def has_ended(self, elsewhere: Collection[Address]) -> bool:
        """True if no member can live: at the address of each is a process that is no member."""
        return self.complete and all(member in elsewhere for member in self.members)


def record_of(
    gossip: Gossip, number: int, counter: int, beat: int, contacts: Iterable[Address]
) -> ClaimRecord:
    """Return the record of the cluster in this state."""
    live = [m for m in gossip.members.values() if m.status is not Status.DOWN]
    members = tuple(m.node.address for m in sorted(live, key=leader_order)[:MEMBERS_MAX])
    others = [address for address in dict.fromkeys(contacts) if address not in members]
    whole = len(live) <= MEMBERS_MAX
    return ClaimRecord(number, counter, beat, members, tuple(others[:CONTACTS_MAX]), whole)


def named(addresses: Collection[Address]) -> str:
    """Return these addresses as text, the first few by name."""
    if not addresses:
        return "its addresses are not known"
    shown = ", ".join(str(address) for address in list(addresses)[:SHOWN])
    more = len(addresses) - SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
