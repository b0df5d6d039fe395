"""Rules between settings that are valid by themselves.

`check` is for every tree of settings, `check_leases` for each entity type; `check_exposure` runs
only before a node listens.

Source: S1.25.
"""

from __future__ import annotations

import re
from ipaddress import ip_address

from shardbus.bounds import ID_CHARACTERS_MAX
from shardbus.config.ports import PORT_MAX, clash, flagged
from shardbus.config.replicas import PORTS_EACH, is_replicated
from shardbus.config.seeds import parse_seeds
from shardbus.config.settings import (
    ClusterSettings,
    HttpSettings,
    KubernetesSettings,
    NodeSettings,
    Settings,
    ShardingSettings,
    StoreSettings,
)
from shardbus.errors import ConfigError
from shardbus.ids import Address
from shardbus.quantities import counted

WILDCARDS = ("", "*", "0.0.0.0", "::", "[::]")  # noqa: S104  (compared with, never bound)

TOKEN_CHARACTERS_MIN = 16
KUBERNETES_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
"""The name of a pod or a namespace: it becomes a part of a path."""
SUSPEND_S_MIN = 0.2
"""The shortest `cluster.suspend_after`, in seconds: four ticks of the gate in front of entities."""


def check(settings: Settings) -> None:
    """Check the rules between settings.

    Raises:
        ConfigError: two settings contradict each other; both are named.
    """
    node, cluster, http = settings.node, settings.cluster, settings.http
    detector, downing = cluster.failure_detector, cluster.downing
    _check_ports(node, http, settings.store)
    if len(node.zone) > ID_CHARACTERS_MAX or not node.zone.isprintable():
        raise ConfigError(
            f"node.zone is {node.zone!r:.60}, of {counted(len(node.zone), 'character')}",
            hint=f"a zone has at most {ID_CHARACTERS_MAX} printable characters",
        )
    if not cluster.new_cluster and not node.seeds and node.join == "auto":
        raise ConfigError(
            "cluster.new_cluster is off, and node.seeds are empty: there is no cluster to join",
            hint="set node.seeds, or leave new_cluster out",
        )
    if parse_seeds(node.seeds).discovers:
        _check_discovery(cluster, settings.store)
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
    _check_suspension(cluster)
    hand_over = cluster.singleton
    if hand_over.retire_timeout >= hand_over.hand_over_timeout:
        raise ConfigError(
            f"cluster.singleton.retire_timeout ({hand_over.retire_timeout:g} s) must be less than "
            f"hand_over_timeout ({hand_over.hand_over_timeout:g} s), or the next oldest node stops "
            "waiting while the coordinator still finishes"
        )
    _check_http(http)
    _check_kubernetes(settings.kubernetes)
    if settings.kubernetes.revision and node.version != NodeSettings().version:
        raise ConfigError(
            f"kubernetes.revision is on, and node.version is {node.version!r:.60}",
            hint="leave one of them out: a node has one version",
        )


def _check_ports(node: NodeSettings, http: HttpSettings, store: StoreSettings) -> None:
    """Check that the ports of one node differ, as bound and as advertised."""
    gossip, by_default = "node.gossip_port", not node.gossip_port
    ports = {"node.port": node.port, gossip: node.gossip_port or node.port + 1}
    if is_replicated(store.url):
        ports["store.port"] = store.port or node.port + PORTS_EACH
    hosts = {_host_bound(node.host), _host_bound(http.host)}
    if len(hosts) == 1 or hosts & set(WILDCARDS):
        ports["http.port"] = http.port
    if ports[gossip] > PORT_MAX:
        raise ConfigError(
            f"node.port is {node.port}, so there is no port + 1", hint=f"set {flagged(gossip)}"
        )
    if both := clash(ports.items()):
        defaults = {
            gossip: "the port of gossip, which is node.port + 1 by default," if by_default else "",
            "store.port": "" if store.port else "store.port, which is node.port + 2 by default,",
        }
        first, second = (defaults.get(name) or name for name in both)
        raise ConfigError(
            f"{first} and {second} are both {ports[both[0]]}",
            hint=f"set {' or '.join(map(flagged, reversed(both)))} to another number",
        )
    _check_advertised(node, ports[gossip])


def _check_advertised(node: NodeSettings, gossip_port: int) -> None:
    """Check the addresses for other nodes: they differ, and have the form of addresses."""
    if node.advertise_gossip:
        _advertised("node.advertise_gossip", node.advertise_gossip, gossip_port)
    if node.host in WILDCARDS and not node.advertise:
        raise ConfigError(
            f"node.host is {node.host!r}, to which no node can connect",
            hint="set node.advertise to HOST or HOST:PORT",
        )
    host = "node.advertise" if node.advertise else "node.host"
    messages = _advertised(host, node.advertise or node.host, node.port)
    gossip_host = node.advertise_gossip or messages.host
    if messages == _advertised("node.advertise_gossip", gossip_host, gossip_port):
        raise ConfigError(
            f"messages and gossip are both advertised at {messages}",
            hint="set node.advertise (--advertise) or node.advertise_gossip (--advertise-gossip)"
            " to another port",
        )


def _host_bound(host: str) -> str:
    return "127.0.0.1" if host == "localhost" else host


def _advertised(setting: str, text: str, port: int) -> Address:
    try:
        return Address.advertised(text, port)
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error.message}", hint=error.hint) from None


def _check_discovery(cluster: ClusterSettings, store: StoreSettings) -> None:
    """Check that one store decides who founds, and that claims are renewed in time."""
    if store.url.startswith("memory:"):
        raise ConfigError(
            f"store.url is {store.url!r}, and node.seeds are discovered: each node would found a "
            "cluster of its own, because the claim to it is in a store that all nodes share",
            hint="set store.url to a store that the nodes share, or node.seeds to addresses",
        )
    if cluster.founding_claim < 3 * cluster.discovery_interval:
        raise ConfigError(
            f"cluster.founding_claim ({cluster.founding_claim:g} s) must be at least three times "
            f"discovery_interval ({cluster.discovery_interval:g} s), or a registration that one "
            "write missed counts as stale"
        )


def _check_suspension(cluster: ClusterSettings) -> None:
    """Check that a node can be suspended in time, and is not suspended by its own requests."""
    downing = cluster.downing
    if cluster.suspends and cluster.suspended_within > downing.stable_after:
        raise ConfigError(
            f"cluster.suspend_after ({cluster.suspend_after:g} s) is too long: another side may "
            f"start this node's entities {downing.stable_after:g} s after a split, and a node is "
            f"surely suspended only {cluster.suspended_within:g} s after its last contact",
            hint="set it to 4/5 of cluster.downing.stable_after or less, or to 0, which is that",
        )
    if cluster.suspend_after and not cluster.suspends:
        by = "unsafe_auto_down_after" if downing.unsafe_auto_down_after else "strategy none"
        raise ConfigError(
            f"cluster.suspend_after is {cluster.suspend_after:g} s, but no node suspends with "
            f"cluster.downing.{by}",
            hint="choose another strategy, or leave suspend_after out",
        )
    if 0 < cluster.suspend_after < SUSPEND_S_MIN:
        raise ConfigError(
            f"cluster.suspend_after ({cluster.suspend_after:g} s) is too short: a node asks for "
            f"consent three times within it, so one late answer would suspend it",
            hint=f"set it to at least {SUSPEND_S_MIN:g} s",
        )


def _check_kubernetes(kubernetes: KubernetesSettings) -> None:
    """Check that a node that asks the API server about its pod has the pod's name."""
    for name in ("deletion_costs", "revision"):
        if getattr(kubernetes, name) and not kubernetes.pod:
            raise ConfigError(
                f"kubernetes.{name} is set without kubernetes.pod",
                hint="set SHARDBUS_KUBERNETES__POD from metadata.name of the downward API",
            )
    for what, name in (("pod", kubernetes.pod), ("namespace", kubernetes.namespace)):
        if name and not KUBERNETES_NAME.fullmatch(name):
            raise ConfigError(
                f"kubernetes.{what} is {name!r:.80}, which is no name in Kubernetes",
                hint="names have small letters, digits, dots and hyphens",
            )
    if kubernetes.api:
        try:
            Address.parse(kubernetes.api)
        except ConfigError as error:
            raise ConfigError(
                f"kubernetes.api: {error.message}", hint="write HOST:PORT, as in 10.96.0.1:443"
            ) from None


def _check_http(http: HttpSettings) -> None:
    if bool(http.tls_cert) != bool(http.tls_key):
        raise ConfigError(
            "only one of http.tls_cert and http.tls_key is set", hint="HTTPS needs both files"
        )
    for name, token, file in (
        ("http.token", http.token, http.token_file),
        ("http.reader_token", http.reader_token, http.reader_token_file),
    ):
        if token and file:
            raise ConfigError(f"{name} and {name}_file are both set", hint="set one of them")
        if token:
            check_token(name, token)
    if http.token and http.token == http.reader_token:
        raise ConfigError(
            "http.token and http.reader_token are equal, so every reader may write",
            hint="give readers a token of their own",
        )
    if http.write and not (http.token or http.token_file):
        raise ConfigError(
            "http.write is on without http.token", hint="set a token, as in SHARDBUS_HTTP__TOKEN"
        )


def check_token(name: str, token: str) -> None:
    """Refuse a token that can be guessed. `name`: the setting or the file that has it.

    Raises:
        ConfigError: it is too short.
    """
    if len(token) < TOKEN_CHARACTERS_MIN:
        raise ConfigError(
            f"{name} has {counted(len(token), 'character')}, at least {TOKEN_CHARACTERS_MIN} are "
            "needed: a shorter one can be guessed",
            hint="make one with `openssl rand -hex 16`",
        )


def check_leases(name: str, sharding: ShardingSettings, store: StoreSettings) -> None:
    """Check the rules between the settings of one entity type, declarations included.

    Raises:
        ConfigError: two settings contradict each other; both are named.
    """
    if sharding.use_lease != "off" and sharding.lease_ttl <= 4 * store.timeout:
        raise ConfigError(
            f"sharding.lease_ttl of {name!r} ({sharding.lease_ttl:g} s) must be more than four "
            f"times store.timeout ({store.timeout:g} s), or a lease runs out while it is renewed"
        )


def check_exposure(settings: Settings) -> None:
    """Refuse to listen outside the loopback, unless the operator permits it.

    Raises:
        ConfigError: a host is outside the loopback without a secret or a token and without
            `security.insecure`; or only some of the files of keys are set.
    """
    security = settings.security
    if (security.keys or security.allowed) and not (
        security.secret and security.keys and security.allowed
    ):
        raise ConfigError(
            "security.keys and security.allowed need each other, and security.secret",
            hint="see `shardbus keys own`",
        )
    if settings.security.insecure:
        return
    node, http = settings.node.host, settings.http.host
    if not settings.security.secret and not is_loopback(node):
        raise ConfigError(
            f"node.host is {node!r}, outside the loopback: every machine there may connect",
            hint="make a secret with `shardbus keys new` and name its file in security.secret, "
            "or set security.insecure = true if you trust that network",
        )
    server = settings.http
    tokens = server.token or server.reader_token or server.token_file or server.reader_token_file
    if not (tokens or is_loopback(http)):
        raise ConfigError(
            f"http.host is {http!r}, outside the loopback: every machine there may connect",
            hint="set http.reader_token_file or http.token, and http.tls_cert with http.tls_key, or"
            " set security.insecure = true if you trust that network",
        )


def is_address(host: str) -> bool:
    """True if the host is an IP address, not a name."""
    try:
        ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """True if only this machine can reach the host. Of names, only localhost counts as inside."""
    try:
        return ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return host == "localhost"
