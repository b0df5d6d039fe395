"""A node inside an application's own event loop: a web application, a script, a notebook.

    async with bus.run({"store.url": "redis://10.0.0.9", "node.seeds": ["10.0.0.1:7355"]}):
        await bus.ref(Counter, "page-7").add(2)

    ──start──> STARTING ──up──> RUNNING ──stop, an operator, the cluster──> LEAVING ──> ENDED
                   └──refused, no store──> ENDED   └──────downed──────────────────────────^

The node is that of `shardbus node start`, with its HTTP interface. It takes nothing from its
process: no signal handler, no event loop, no limit of descriptors, no setting of the garbage
collector, and it ends no process. So these are the application's own:

- *Signals.* At the end of `async with` the node hands its shards off and leaves. That takes up to
  the sum of all phases: a server that embeds the node must let its shutdown take that long.
- *A loop that stands still* keeps the node from what it must do. Membership has a thread of its
  own, and gives the node up after `app_stall_timeout`.
- *The end of the node before the application's*: others downed it, or an operator let it leave. It
  then closes, its references raise NodeLost, and `on_stopped` gets the reason. A process whose node
  is gone should end, and be started again.

Source: docs/how-to/web.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol

from shardbus.admin.pages import administer
from shardbus.config.settings import Settings
from shardbus.config.validation import check_exposure
from shardbus.errors import ConfigError, NodeLost, Refused
from shardbus.membership.events import LEFT
from shardbus.node.app_version import with_version
from shardbus.node.downing_log import check_downing
from shardbus.node.served_node import Application, ServedNode, leaves_within
from shardbus.node.shutdown import leave
from shardbus.task_set import TaskSet

log = logging.getLogger("shardbus.node")


class EmbeddedApplication(Application, Protocol):
    """The application of an embedded node: a ShardBus."""

    @property
    def runs(self) -> bool: ...


class EmbeddedNode:
    """A node in the running event loop; use it by `async with`, or by `start` and `stop`.

    Args:
        on_stopped: called with the reason when the node has ended by itself.

    Raises:
        ConfigError: the settings do not fit the application, or expose a node without a secret.
    """

    def __init__(
        self,
        bus: EmbeddedApplication,
        settings: Settings,
        on_stopped: Callable[[str], object] | None = None,
    ) -> None:
        check_exposure(settings)
        check_downing(settings.cluster.downing, bus.types)
        self._bus, self._settings, self._on_stopped = bus, settings, on_stopped
        self._served: ServedNode | None = None
        self._tasks = TaskSet()
        self._ending: asyncio.Task[None] | None = None
        self._in_time = False
        self.reason = ""
        """Why the node has ended: `left`, or another reason. Empty while it runs."""

    def __repr__(self) -> str:
        state = self.reason or ("runs" if self.running else "not started")
        return f"<node {self.address or self._bus.name!r}: {state}>"

    @property
    def running(self) -> bool:
        """True from the end of `start` until the node has ended."""
        return self._served is not None and not self.reason

    @property
    def address(self) -> str:
        """HOST:PORT at which others reach the node. Empty before the start."""
        return str(self._served.node.me.address) if self._served is not None else ""

    @property
    def http_url(self) -> str:
        """The URL of the node's own HTTP interface. Empty before the start."""
        return self._served.http_url if self._served is not None else ""

    async def __aenter__(self) -> EmbeddedNode:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> EmbeddedNode:
        """Start the node, and return when it is up and its regions are registered.

        Raises:
            ConfigError: a port is taken, or the application runs a node already.
            StoreUnavailable: the store does not answer.
            Refused: the cluster refuses the node.
            NodeLost: no seed answers, or the node has ended before it was up.
        """
        if self._served is not None:
            raise ConfigError("an embedded node is started once", hint="call bus.run again")
        if self._bus.runs:
            raise ConfigError(
                f"a node of {self._bus.name!r} runs in this process already",
                hint="one ShardBus runs one node; make another ShardBus",
            )
        own = await with_version(self._settings.node, self._bus.version_source)
        settings = replace(self._settings, node=own)
        served = self._served = ServedNode(self._bus, settings, administer)
        try:
            await served.start(self._leave_by_itself)
            await self._until_ready(served)
        except BaseException:
            self.reason = self.reason or "not started"
            await served.close()
            raise
        for ends in (served.node.stopped, served.node.cluster_stops):
            ends.add_done_callback(lambda _: self._leave_by_itself())
        return self

    async def _until_ready(self, served: ServedNode) -> None:
        node = served.node
        ready = asyncio.ensure_future(served.ready())
        try:
            ends: set[asyncio.Future[Any]] = {ready, node.stopped}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if node.stopped.done():
            self.reason = node.stopped.result()
            if node.refusals:
                raise Refused(self.reason)
            raise NodeLost(self.reason)
        ready.result()

    async def stop(self) -> bool:
        """Hand the shards off, leave and close. True if everything was handed off in time. It ends
        within the sum of the phases' timeouts, and has no effect on a node that has ended, or that
        could not be started."""
        if self._served is None or (self.reason and self._ending is None):
            return False
        await asyncio.shield(self._begin_to_end(self._served))
        return self._in_time

    def _leave_by_itself(self) -> None:
        """Leave at the command of an operator or of the cluster, or close a node that was
        downed."""
        if self._ending is None and self._served is not None:
            self._begin_to_end(self._served).add_done_callback(self._report)

    def _report(self, ended: asyncio.Task[None]) -> None:
        if ended.cancelled() or ended.exception() is not None:
            return
        log.warning("the embedded node has ended: %s", self.reason)
        if self._on_stopped is not None:
            self._on_stopped(self.reason)

    def _begin_to_end(self, served: ServedNode) -> asyncio.Task[None]:
        if self._ending is None:
            self._ending = self._tasks.spawn(self._end(served))
        return self._ending

    async def _end(self, served: ServedNode) -> None:
        node = served.node
        try:
            async with asyncio.timeout(leaves_within(node)):
                self._in_time = await leave(node, lambda text: log.info("%s", text))
        except TimeoutError:
            log.error("the embedded node stops before everything was handed off")
        finally:
            reason = node.stopped.result() if node.stopped.done() else "not handed off in time"
            self.reason = self.reason or (LEFT if self._in_time else reason)
            await served.close()
