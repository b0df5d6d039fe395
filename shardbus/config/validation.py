"""What must hold between settings, each of which is good by itself.

`check` asks that of every tree of settings, wherever its values came from; `check_leases` of each
entity type, and `check_exposure`, only before a node listens.

Source: B.1, B.32, S1.25.
"""

from __future__ import annotations

from ipaddress import ip_address

from shardbus.config.settings import Settings, ShardingSettings, StoreSettings
from shardbus.errors import ConfigError

WILDCARDS = ("", "*", "0.0.0.0", "::", "[::]")  # noqa: S104  (compared with, never bound)


def check(settings: Settings) -> None:
    """What must hold between settings.

    Raises:
        ConfigError: naming both settings.
    """
    node, cluster, http = settings.node, settings.cluster, settings.http
    detector, downing = cluster.failure_detector, cluster.downing
    if node.port == node.gossip_port:
        raise ConfigError(f"node.port and node.gossip_port are both {node.port}")
    if node.port == 65535 and not node.gossip_port:
        raise ConfigError(
            "node.port is 65535, so there is no port + 1", hint="set node.gossip_port"
        )
    if node.host in WILDCARDS and not node.advertise:
        raise ConfigError(
            f"node.host is {node.host!r}, which nobody can connect to",
            hint="set node.advertise to HOST or HOST:PORT",
        )
    if (
        detector.heartbeat_interval
        >= detector.acceptable_heartbeat_pause + detector.expected_response_after
    ):
        raise ConfigError(
            "cluster.failure_detector: heartbeat_interval must be below acceptable_heartbeat_pause"
            " + expected_response_after, or every node looks dead between two heartbeats"
        )
    if downing.strategy == "static-quorum" and not downing.static_quorum_size:
        raise ConfigError(
            "cluster.downing.strategy is static-quorum without a size",
            hint="set cluster.downing.static_quorum_size to more than half of the nodes",
        )
    if 0 < cluster.quarantine_after <= cluster.app_stall_timeout:
        raise ConfigError(
            f"cluster.quarantine_after ({cluster.quarantine_after:g} s) must be more than "
            f"app_stall_timeout ({cluster.app_stall_timeout:g} s), or a busy node is quarantined"
        )
    hand_over = cluster.singleton
    if hand_over.retire_timeout >= hand_over.hand_over_timeout:
        raise ConfigError(
            f"cluster.singleton.retire_timeout ({hand_over.retire_timeout:g} s) must be less than "
            f"hand_over_timeout ({hand_over.hand_over_timeout:g} s), or the next oldest node stops "
            "waiting while the coordinator still finishes"
        )
    if http.write and not http.token:
        raise ConfigError(
            "http.write is on without http.token", hint="set a token, as in SHARDBUS_HTTP__TOKEN"
        )


def check_leases(name: str, sharding: ShardingSettings, store: StoreSettings) -> None:
    """The same for one entity type, with what its class declares.

    Raises:
        ConfigError: naming both settings.
    """
    if sharding.use_lease != "off" and sharding.lease_ttl <= 4 * store.timeout:
        raise ConfigError(
            f"sharding.lease_ttl of {name!r} ({sharding.lease_ttl:g} s) must be more than four "
            f"times store.timeout ({store.timeout:g} s), or a lease runs out while it is renewed"
        )


def check_exposure(settings: Settings) -> None:
    """Refuse to listen where strangers can connect, unless the user said so.

    Raises:
        ConfigError: a host outside the loopback without `security.insecure`, or keys, which this
            version does not use: nobody shall believe that they protect anything.
    """
    if settings.security.keys or settings.security.allowed:
        raise ConfigError(
            "security.keys and security.allowed have no effect in this version",
            hint="leave them out, and keep strangers out of the network",
        )
    if settings.security.insecure:
        return
    for key, host in (("node.host", settings.node.host), ("http.host", settings.http.host)):
        if not is_loopback(host):
            raise ConfigError(
                f"{key} is {host!r}, outside the loopback, where anybody may connect",
                hint="set security.insecure = true if you trust that network",
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it. No name but localhost is believed to be inside."""
    try:
        return ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return host == "localhost"
