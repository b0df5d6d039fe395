"""The ports of a process, or of several on one machine: no two may be the same.

The port of gossip is the port of messages + 1 unless it is set, so a collision may be with a number
that the user has never written. An error names both ports by their purpose, and both flags.
"""

from __future__ import annotations

from collections.abc import Iterable

PORT_MAX = 65535
FLAGS = {"node.port": "--port", "node.gossip_port": "--gossip-port", "http.port": "--http-port"}
"""The flag of `shardbus node start` for each setting."""


def clash(ports: Iterable[tuple[str, int]]) -> tuple[str, str] | None:
    """Return the first two names of one port; None if there are none. 0 is any free port."""
    name_of: dict[int, str] = {}
    for name, port in ports:
        if port and name_of.setdefault(port, name) != name:
            return name_of[port], name
    return None


def flagged(setting: str) -> str:
    """Return a setting with its flag, for a hint."""
    return f"{setting} ({FLAGS[setting]})" if setting in FLAGS else setting
