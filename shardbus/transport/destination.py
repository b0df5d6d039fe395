"""Which of a host's addresses a connection uses now.

A connection has one numeric address at a time and reconnects to it by itself. Its host may have
several, and others tomorrow:

    a new answer names the address     it stays
    a new answer does not name it      a broken connection moves to the first address of the answer;
                                       one that works stays until it breaks
    an attempt fails                   the next address of the answer, in turn
    a connection that worked breaks    first the same address again

So every address is tried, in the order of the answer, which is the system's preference between IPv4
and IPv6.

Source: docs/architecture.md; C.32.
"""

from __future__ import annotations

import socket

ADDRESSES_MAX = 16
"""Addresses of one answer that are tried."""


def is_numeric(host: str) -> bool:
    """True if the host is an IPv4 or IPv6 address, which needs no look-up."""
    try:
        if ":" in host:
            socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
        else:
            socket.inet_pton(socket.AF_INET, host)
    except OSError:
        return False
    return True


class Destination:
    """The address that one connection uses. `at` is None before the first answer."""

    def __init__(self) -> None:
        self.at: str | None = None
        self.up = False
        """The connection works."""
        self._addresses: tuple[str, ...] = ()

    def learn(self, addresses: tuple[str, ...]) -> bool:
        """Take over an answer. Returns True if the connection must move to `at` now."""
        self._addresses = addresses[:ADDRESSES_MAX] or self._addresses
        return not self.up and self._leave_unknown()

    def on_up(self) -> None:
        """The connection works."""
        self.up = True

    def on_broken(self) -> bool:
        """The connection, or an attempt to connect, ended. Returns True if the connection must move
        to `at` now."""
        attempt, self.up = not self.up, False
        if self._leave_unknown():
            return True
        if not attempt or self.at is None or len(self._addresses) < 2:
            return False
        turn = self._addresses.index(self.at) + 1
        self.at = self._addresses[turn % len(self._addresses)]
        return True

    def _leave_unknown(self) -> bool:
        """Turn to the first known address if the present one is none of them."""
        if not self._addresses or self.at in self._addresses:
            return False
        self.at = self._addresses[0]
        return True
