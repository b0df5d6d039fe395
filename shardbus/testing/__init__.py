"""A test kit: whole clusters and single entities inside a test, in virtual time.

    async with TestCluster(bus, nodes=3, seed=7) as cluster:
        counter = cluster.client().ref(Counter, "page-7")
        await counter.add(2)
        await cluster.kill(cluster.where(Counter, "page-7"))
        await cluster.advance(30)
        assert await counter.total() == 2

**Real parts.** Everything that a node runs, unchanged: sessions, regions, coordinators, hosts,
supervision, hand-off, saves, membership machines, downing, the phases of leaving, the callbacks of
the application; the wire formats; the client; and the application's own classes with `async def`
handlers, `asyncio.sleep`, `asyncio.timeout`, timers, piped work and references to other entities.

**Replaced parts**, always at an interface that production has, too:

- *The event loop.* Each node has a `simulation.virtual_loop.VirtualLoop`, all on one `Timeline`. A
  sleep of an hour takes no time, and events of the same moment have one order.
- *ZeroMQ and gossip sockets*, by the simulator's network in memory, with seeded delays, walls, and
  connections that break. Nothing is encrypted, and no port is opened. HTTP is not served.
- *The store*, by the store in memory behind seeded latency and failures. Its rules are unchanged.
- *The cluster thread*, by the simulator's shell around the same membership machine.
- *Signals*: `leave` is SIGTERM, `kill` is SIGKILL, `pause` and `resume` are SIGSTOP and SIGCONT.

A handler that is declared `thread=True` runs in a real thread. Virtual time stands still until it
returns. A virtual loop has no sockets and starts no process: an entity that requests one gets
`NotImplementedError`. `time.time` is the real one. Hand an entity the objects that reach out of its
process, and a test hands it others.

**Where the test runs.** In any loop of asyncio, or in none. Time passes in the cluster only while
the test awaits something of it; then the kit runs the cluster's callbacks within the test's loop.
`asyncio.sleep` in the test itself waits for real seconds in which the cluster stands still:
`cluster.advance(5)` is the way to wait. A coroutine given to `cluster.spawn` or `cluster.run` runs
in virtual time itself. So does an async test that uses the fixtures of the pytest plugin, unless
another plugin runs it.

**Determinism.** The seed draws every delay and every dice of a node. The same test with the same
seed has the same transcript, in every process, unless the application uses real time, threads, the
order of a set, or dice of its own. A failure names the seed.

    virtual_time      moves time while a test waits
    bridge            a client or a reference, usable from any loop
    world             the nodes, each with an application
    cluster           `TestCluster` and `TestNode`
    store             `cluster.store`: read it, break it
    probe             `EntityProbe`: one entity
    store_suite       `StoreSuite`: the laws of every store
    journal_suite     `JournalSuite`: the laws of a store's journals
    allocation_suite  `AllocationSuite`: the laws of every allocation strategy

Source: docs/simulation.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardbus.testing.cluster import TestCluster, TestNode
from shardbus.testing.probe import EntityProbe
from shardbus.testing.store import ClusterStore

if TYPE_CHECKING:
    from shardbus.testing.allocation_suite import AllocationSuite
    from shardbus.testing.journal_suite import JournalSuite
    from shardbus.testing.store_suite import StoreSuite

__all__ = [
    "AllocationSuite", "ClusterStore", "EntityProbe", "JournalSuite", "StoreSuite", "TestCluster",
    "TestNode",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a suite when it is used: it needs pytest, and the rest does not."""
    if name == "AllocationSuite":
        from shardbus.testing.allocation_suite import AllocationSuite

        return AllocationSuite
    if name == "JournalSuite":
        from shardbus.testing.journal_suite import JournalSuite

        return JournalSuite
    if name == "StoreSuite":
        from shardbus.testing.store_suite import StoreSuite

        return StoreSuite
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
