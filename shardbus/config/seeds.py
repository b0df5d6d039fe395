"""The forms of a seed, as `node.seeds` and `--seed` name it.

    10.0.0.1:7355         a node's address
    dns://NAME[:PORT]     every address of the name is a contact; by default at the node's port
    dns://_SERVICE._tcp.DOMAIN
                          every address of every SRV record of the name, at the record's port
    store                 the nodes that register themselves in the state store are contacts

Addresses are known before a node starts, and the first of the list may found a cluster. The other
two forms find contacts while the node joins; then the store's claim decides who founds
(`membership.founding`).

Source: docs/how-to/deploy.md; B.145.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from shardbus.errors import ConfigError
from shardbus.ids import Address, is_host

DNS = "dns://"
STORE = "store"
SERVICE = re.compile(r"_[A-Za-z0-9-]{1,62}\._tcp(\.[A-Za-z0-9_-]{1,63}){1,20}")
"""The name of SRV records. No host has a name that begins with an underscore."""


@dataclass(frozen=True, slots=True)
class DnsName:
    """A name whose addresses are contacts. `port` 0 is the port of the node that asks."""

    host: str
    port: int = 0

    @property
    def is_service(self) -> bool:
        """True if it is the name of a service, whose SRV records have hosts and ports."""
        return self.host.startswith("_")


@dataclass(frozen=True, slots=True)
class SeedList:
    """The seeds of a node, by form."""

    addresses: tuple[Address, ...] = ()
    names: tuple[DnsName, ...] = ()
    store: bool = False

    @property
    def discovers(self) -> bool:
        """True if contacts are found while the node joins."""
        return self.store or bool(self.names)


def parse_seed(text: str) -> Address | DnsName | str:
    """Read one seed.

    Raises:
        ConfigError: it has none of the forms.
    """
    if text == STORE:
        return STORE
    if not text.startswith(DNS):
        return Address.parse(text)
    rest = text.removeprefix(DNS).removesuffix("/")
    if rest.startswith("_"):
        if not SERVICE.fullmatch(rest):
            hint = "write dns://_SERVICE._tcp.DOMAIN; the port is in the record"
            raise ConfigError(f"not the name of a service: {rest[:100]!r}", hint=hint)
        return DnsName(rest)
    if ":" in rest:
        return DnsName(*Address.parse(rest))
    if not is_host(rest):
        raise ConfigError(f"not a name: {rest[:100]!r}", hint="write dns://NAME or dns://NAME:PORT")
    return DnsName(rest)


def parse_seeds(texts: Iterable[str]) -> SeedList:
    """Read a list of seeds. Raises as `parse_seed`."""
    seeds = [parse_seed(text) for text in texts]
    return SeedList(
        tuple(seed for seed in seeds if isinstance(seed, Address)),
        tuple(seed for seed in seeds if isinstance(seed, DnsName)),
        STORE in seeds,
    )
