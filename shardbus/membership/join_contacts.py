"""The addresses that a joining node contacts, and their answers.

    seeds, or looked up  ──InitJoin──> answers InitNack    in no cluster
                                       answers InitAck     in one, even if InitNack comes later
                                       is this node        left out from then on
    named by the store   ──InitJoin──> the same, but they keep no node from founding

Contacts that are looked up get InitJoin in turns, `ASKED_MAX` at a time; the time of the first one
is noted, so that a contact may be called silent.

The process of an InitNack may join a cluster a moment later, and be cut off. So the answer is proof
for `NACK_LASTS` only: longer than the pause between two questions, shorter than a store's claim.

Not here: when to ask, and what an answer means for the attempt (`joining`).

Source: S1.32, B.1-B.3, B.144.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardbus.ids import Address, NodeId

ASKED_MAX = 20
"""Contacts that get InitJoin at a time."""
NACK_LASTS = 10.0
"""Seconds for which an InitNack proves that there is no member at its address."""


class JoinContacts:
    """The contacts of one attempt. `me`: the node's own address."""

    def __init__(self, me: Address, seeds: Sequence[Address]) -> None:
        self._mine = [me]
        """Addresses at which this node has found itself."""
        self.addresses = [seed for seed in dict.fromkeys(seeds) if seed != me]
        self.named: list[Address] = []
        """Members that the store names."""
        self.looked_up = False
        """True once contacts have been looked up."""
        self.nacked: dict[Address, float] = {}
        """When the process at an address answered last that it is in no cluster."""
        self._acked: dict[Address, NodeId] = {}
        self._asked_since: dict[Address, float] = {}
        self._turn = 0

    def replace(self, contacts: Sequence[Address]) -> bool:
        """Take over the contacts of a look-up. True if there is a new one."""
        before, self.looked_up = self.addresses, True
        self.addresses = [at for at in dict.fromkeys(contacts) if at not in self._mine]
        for contact in self._asked_since.keys() - set(self.addresses):
            del self._asked_since[contact]
        return not set(self.addresses) <= set(before)

    def replace_named(self, members: Sequence[Address]) -> bool:
        """Take over the members that the store names. True if there is a new one."""
        before, others = self.named, (*self._mine, *self.addresses)
        self.named = [address for address in members if address not in others][:ASKED_MAX]
        return not set(self.named) <= set(before)

    def next_turn(self, now: float) -> list[Address]:
        """Return the next contacts in turn, which are asked now."""
        everyone = self.addresses
        start = self._turn % len(everyone) if len(everyone) > ASKED_MAX else 0
        turn = (everyone[start:] + everyone[:start])[:ASKED_MAX]
        self._turn = start + len(turn)
        for contact in turn:
            self._asked_since.setdefault(contact, now)
        return turn

    def on_ack(self, at: Address, sender: NodeId) -> None:
        """Record that a member answers at this address."""
        self._acked[at] = sender
        self.nacked.pop(at, None)

    def on_nack(self, at: Address, sender: NodeId, now: float) -> None:
        """Record that the process at this address is in no cluster, unless it has been a member."""
        if self._acked.get(at) != sender:
            self.nacked[at] = now
            self._asked_since.pop(at, None)

    def remove(self, at: Address) -> None:
        """Remove an address at which this node has found itself."""
        self._mine.append(at)
        self.addresses = [address for address in self.addresses if address != at]
        self._asked_since.pop(at, None)

    def forget_nacks(self) -> None:
        """Ask all of them anew."""
        self.nacked = {}

    def all_nacked(self) -> bool:
        """True if every contact is in no cluster."""
        return all(address in self.nacked for address in self.addresses)

    def in_no_cluster(self, now: float) -> list[Address]:
        """Return the addresses at which no member lives, by answers that are proof still."""
        return [at for at, since in self.nacked.items() if now - since < NACK_LASTS]

    def all_in_no_cluster(self, now: float) -> bool:
        """True if there are contacts, and no member lives at any. A silent one is no proof."""
        proved = self.in_no_cluster(now)
        return bool(self.addresses) and all(address in proved for address in self.addresses)

    def all_quiet(self, silence: float, now: float) -> bool:
        """True if every contact is in no cluster, or has been silent for `silence` seconds."""
        return all(
            address in self.nacked or now - self._asked_since.get(address, now) >= silence
            for address in self.addresses
        )
