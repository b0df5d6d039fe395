"""The ports, seeds and command line of each worker of a unit. Pure.

    worker n    ROUTER port + 2n, gossip gossip_port + 2n, HTTP http.port + 1 + n

Ports are two apart, because the gossip port is one above by default. The HTTP of the unit uses
`http.port`; if that is 0, workers also use free ports. A worker reads all other settings as a
single node does: from the same file, environment and command line. The settings above are appended
as `--set`, which wins.

Source: docs/reference/cli.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shardbus.config.ports import PORT_MAX, clash
from shardbus.config.settings import Settings
from shardbus.errors import ConfigError
from shardbus.ids import Address

STEP = 2
APART = "choose node.port (--port), node.gossip_port (--gossip-port) and http.port (--http-port)"


class WorkerAddress(msgspec.Struct, frozen=True):
    """The ports of one worker, and the addresses by which other nodes reach it. `gossip`: the
    address of its gossip, None if it is not advertised by itself."""

    number: int
    address: Address
    port: int
    gossip_port: int
    http_port: int
    gossip: Address | None = None


class WorkerPlan(msgspec.Struct, frozen=True):
    """All workers of a unit. `seeds` are the user's; `arguments` are the common command line."""

    workers: tuple[WorkerAddress, ...]
    seeds: tuple[str, ...]
    arguments: tuple[str, ...]
    log_format: str

    def command(self, number: int, fd: int, *, joins: bool) -> list[str]:
        """Return the arguments of `shardbus` for a worker. `joins`: it does not found the cluster.
        `fd` is its end of the socket to the supervisor."""
        worker = self.workers[number]
        options = {
            "node.port": worker.port,
            "node.gossip_port": worker.gossip_port,
            "node.advertise": worker.address,
            **({"node.advertise_gossip": worker.gossip} if worker.gossip is not None else {}),
            "node.seeds": ",".join(self.seeds_of(joins=joins)),
            "http.port": worker.http_port,
            "log.format": self.log_format,
        }
        sets = [word for key, value in options.items() for word in ("--set", f"{key}={value}")]
        return [*self.arguments, *sets, "--leash-fd", str(fd)]

    def seeds_of(self, *, joins: bool) -> tuple[str, ...]:
        """Return the user's seeds and all workers, so that a restarted worker finds the others. The
        founder, without seeds of the user, has none."""
        if not (joins or self.seeds):
            return ()
        addresses = (str(worker.address) for worker in self.workers)
        return tuple(dict.fromkeys((*self.seeds, *addresses)))


def plan_of(
    settings: Settings, workers: int, arguments: Sequence[str], log_format: str
) -> WorkerPlan:
    """Assign the ports.

    Raises:
        ConfigError: a port is above 65535 or assigned twice, or the store is private to a process.
    """
    if settings.store.url.startswith("memory:"):
        raise ConfigError(
            f"store.url is {settings.store.url!r}, which workers cannot share",
            hint="use sqlite://, redis:// or postgresql:// with --workers",
        )
    node = settings.node
    base = Address.advertised(node.advertise or node.host, node.port)
    gossip, http = node.gossip_port or node.port + 1, settings.http.port
    named = node.advertise_gossip
    advertised = Address.advertised(named, gossip) if named else None
    planned = tuple(
        WorkerAddress(
            n,
            Address(base.host, base.port + STEP * n),
            node.port + STEP * n,
            gossip + STEP * n,
            http and http + 1 + n,
            advertised and Address(advertised.host, advertised.port + STEP * n),
        )
        for n in range(workers)
    )
    _check(planned, http)
    return WorkerPlan(planned, node.seeds, tuple(arguments), log_format)


def _check(workers: Sequence[WorkerAddress], http: int) -> None:
    ports = [("HTTP of the unit", http)]
    for worker in workers:
        advertised = worker.address.port, worker.gossip.port if worker.gossip else 0
        bound = [
            (f"messages of worker {worker.number}", worker.port),
            (f"gossip of worker {worker.number}", worker.gossip_port),
            (f"HTTP of worker {worker.number}", worker.http_port),
        ]
        for what, port in bound:
            if max(port, *advertised) > PORT_MAX:
                raise ConfigError(f"{what} would be port {port}", hint=f"{APART} lower")
        ports += bound
    if both := clash(ports):
        raise ConfigError(
            f"port {dict(ports)[both[0]]} would be {both[0]} and {both[1]}",
            hint=f"{APART} further apart",
        )
