"""Which registrations of contacts in the state store are alive.

A node that looks for contacts in the store registers its own address there, with a *beat*: a number
that it raises in every interval. An entry does not expire by itself, and clocks of machines differ.
So each reader judges by its own clock: an address whose beat has not changed for `founding_claim`
is stale, and any reader may remove it. A reader that has just started takes every address for
alive; a dead one costs it an attempt.

    "10.0.0.1:7355 41"   the address and its beat; between two writes an address has both beats

An entry that is no such text is left out, and left alone.

Source: B.145.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardbus.errors import ConfigError
from shardbus.ids import Address


def entry_of(address: Address, beat: int) -> str:
    """Return the text of a registration."""
    return f"{address} {beat}"


def address_in(entry: str) -> Address | None:
    """Return the address of a registration, None if the text is none."""
    text, space, beat = entry.rpartition(" ")
    if not space or not (beat.isascii() and beat.isdigit()):
        return None
    try:
        return Address.parse(text)
    except ConfigError:
        return None


class Registrations:
    """The entries that one reader has seen. `lasts`: the seconds after which an entry that stays as
    it is is stale."""

    def __init__(self, lasts: float) -> None:
        self._lasts = lasts
        self._entries: dict[Address, tuple[frozenset[str], float]] = {}
        """The entries of each address, and since when they are these."""

    def read(self, entries: Iterable[str], now: float) -> tuple[list[Address], list[str]]:
        """Judge the store's present entries. Returns the addresses that are alive, in order, and
        the stale entries."""
        by_address: dict[Address, set[str]] = {}
        for entry in entries:
            if (address := address_in(entry)) is not None:
                by_address.setdefault(address, set()).add(entry)
        before, self._entries = self._entries, {}
        alive, stale = [], []
        for address in sorted(by_address):
            present = frozenset(by_address[address])
            earlier, since = before.get(address, (present, now))
            since = since if earlier == present else now
            self._entries[address] = (present, since)
            if now - since < self._lasts:
                alive.append(address)
            else:
                stale += sorted(present)
        return alive, stale
