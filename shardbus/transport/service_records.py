"""Looks up SRV records: the hosts and ports of a service that a name server knows.

Python's standard library has no such look-up. It is dnspython's, which the extra `srv` brings, and
asks the name servers of the system, with its search list. It blocks, as every look-up of
`name_resolver` does, and runs in a thread there.

Source: RFC 2782; docs/how-to/deploy.md; B.145.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardbus.errors import ConfigError
from shardbus.ids import is_host

if TYPE_CHECKING:
    from dns.resolver import Resolver

    from shardbus.transport.name_resolver import LookUpFunction

WITHIN_S = 4.0
"""For one answer, all servers together."""


def service_look_up(resolver: Resolver | None = None) -> LookUpFunction:
    """Return a function that returns the `HOST:PORT` of each SRV record of a name, the records of
    the first priority first. By default it uses the system's name servers.

    Raises:
        ConfigError: dnspython is not installed. The function raises OSError if there are none.
    """
    try:
        from dns.exception import DNSException
        from dns.resolver import Resolver
    except ImportError as error:
        raise ConfigError(
            f"SRV records need dnspython: {error}", hint="pip install 'shardbus[srv]'"
        ) from None

    def look_up(name: str) -> tuple[str, ...]:
        try:
            answer = (resolver or Resolver()).resolve(name, "SRV", search=True, lifetime=WITHIN_S)
            rows = [
                (row.priority, row.target.to_text(omit_final_dot=True), row.port) for row in answer
            ]
        except DNSException as error:
            raise OSError(f"no SRV record: {error}"[:200]) from None
        return tuple(f"{host}:{port}" for _, host, port in sorted(rows) if port and is_host(host))

    return look_up
