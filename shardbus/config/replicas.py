"""The replicas of a store inside the cluster: their addresses, from the settings of a node.

    store.url                  replicas                              this process has one
    cluster://                 each of node.seeds, a port apart      if it is a seed, or has no seed
    cluster://HOST:PORT,...    these addresses                       if one of these is its own

With `?durability=memory` replicas keep no log: the rows of one are lost when it ends.

`store.replicas` of these have the rows, and the others are spares: which ones, the first start and
`shardbus store add` decide, and with `store.repair_after` the replicas themselves.

A replica listens at `store.port`, by default the first port after its node's: node.port + 2, and
with `--workers N` node.port + 2 N. A seed names a node, so its replica's port is as far from the
seed's port as it is here. All replicas of a store are started with the same addresses.

Source: docs/how-to/keep-state.md; S2.32.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from shardbus.config.ports import PORT_MAX
from shardbus.config.seeds import parse_seeds
from shardbus.config.settings import Settings
from shardbus.errors import ConfigError
from shardbus.ids import Address

SCHEME = "cluster"
URL = f"{SCHEME}://"
DISK, MEMORY = DURABILITIES = "disk", "memory"
PORTS_EACH = 2
"""Ports of a node, for messages and gossip."""


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """The replicas of a store. `me`: the address of this node's replica, None if there is none.
    `port`: where it listens."""

    peers: tuple[Address, ...]
    me: Address | None
    port: int
    options: str = ""
    """The query of `store.url`, with its mark."""

    @property
    def url(self) -> str:
        """The URL with all addresses."""
        return URL + ",".join(map(str, self.peers)) + self.options


def is_replicated(url: str) -> bool:
    """True if `url` names a store inside the cluster."""
    return url.startswith(URL)


def is_in_memory(url: str) -> bool:
    """True if the replicas of this URL keep no log.

    Raises:
        ConfigError: it has other options.
    """
    query = url.partition("?")[2]
    name, _, durability = query.partition("=")
    if query and (name != "durability" or durability not in DURABILITIES):
        raise ConfigError(
            f"store.url: the options {query!r:.60} of {URL} are unknown",
            hint=f"durability is one of {', '.join(DURABILITIES)}",
        )
    return durability == MEMORY


def replica_plan(settings: Settings, workers: int = 1) -> ReplicaPlan:
    """Return the replicas that these settings name. `workers`: the nodes of the unit.

    Raises:
        ConfigError: they name none, or fewer than `store.replicas`.
    """
    node, store = settings.node, settings.store
    is_in_memory(store.url)
    port = store.port or node.port + PORTS_EACH * workers
    this_node = Address.advertised(node.advertise or node.host, node.port)
    apart = port - node.port
    named = replicas_of(store.url)
    seeds = parse_seeds(node.seeds)
    if not named and seeds.discovers:
        raise ConfigError(
            "store.url is cluster://, and node.seeds has names to look up",
            hint="name the replicas, as in cluster://10.0.0.1:7357,10.0.0.2:7357,10.0.0.3:7357",
        )
    nodes = seeds.addresses or (this_node,)
    peers = named or tuple(_moved(address, apart) for address in nodes)
    peers = tuple(sorted(set(peers)))
    if len(peers) < store.replicas:
        names = "store.url" if named else "node.seeds" if node.seeds else "this node alone"
        raise ConfigError(
            f"store.replicas is {store.replicas}, and {names} names {len(peers)}",
            hint="name each of them, or set store.replicas; one replica tolerates no failure",
        )
    me = _moved(this_node, apart)
    _, mark, query = store.url.partition("?")
    return ReplicaPlan(peers, me if me in peers else None, port, mark + query)


def own_replica(settings: Settings) -> Address | None:
    """Return the address of this node's replica, None if it has none."""
    node, store = settings.node, settings.store
    if not is_replicated(store.url) or not store.port:
        return None
    this_node = Address.advertised(node.advertise or node.host, node.port)
    me = Address(this_node.host, this_node.port + store.port - node.port)
    return me if me in replicas_of(store.url) else None


def _moved(address: Address, apart: int) -> Address:
    port = address.port + apart
    if not 0 < port <= PORT_MAX:
        raise ConfigError(
            f"the replica of {address} would have port {port}", hint="set store.port lower"
        )
    return Address(address.host, port)


def replicas_of(url: str) -> tuple[Address, ...]:
    """Return the addresses in a URL of this kind.

    Raises:
        ConfigError: one is none.
    """
    places = url.removeprefix(URL).partition("?")[0]
    return tuple(Address.parse(place) for place in places.split(",")) if places else ()


def default_path(cluster: str, port: int) -> Path:
    """Return the directory of a replica without `store.path`: in the user's state directory."""
    return state_folder() / f"{quote(cluster, safe=' ')[:100]}-replica-{port}"


def state_folder() -> Path:
    """Return the folder of shardbus in the user's state directory.

    Raises:
        ConfigError: the user has no home, as a number without a name in a container.
    """
    state = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(state):
        return Path(state) / "shardbus"
    try:
        return Path.home() / ".local" / "state" / "shardbus"
    except RuntimeError:
        raise ConfigError(
            "this user has no home directory to keep data in",
            hint="set store.url, and for the replica of cluster:// store.path; or name a folder for"
            " all by XDG_STATE_HOME",
        ) from None
