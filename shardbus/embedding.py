"""A node inside an application's own event loop: a web application, a script, a notebook.

    async with bus.run({"store.url": "redis://10.0.0.9", "node.seeds": ["10.0.0.1:7355"]}):
        await bus.ref(Counter, "page-7").add(2)

    ──start──> STARTING ──up──> RUNNING ──stop, an operator, the cluster──> LEAVING ──> ENDED
                   └──refused, no store──> ENDED   │ ^                                   ^
                                            downed │ │ up again                          │
                                                   v │                                   │
                                               REJOINING ──stop, refused, too late───────┘

The node is the same as `shardbus node start`'s, with its HTTP interface. It takes nothing from its
process: no signal handler, no event loop, no limit of descriptors, no setting of the garbage
collector, and it ends no process. So these are the application's own:

- *Signals.* At the end of `async with` the node hands its shards off and leaves. That takes up to
  the sum of all phases: a server that embeds the node must let its shutdown take that long.
- *A loop that stands still* keeps the node from its work. Membership has a thread of its own, and
  gives the node up after `app_stall_timeout`.
- *The end of the node before the application's*: an operator let it leave, or downed it. It then
  closes, its references raise NodeLost, and `on_stopped` gets the reason. A process whose node is
  gone should end, and be started again.

With the store `cluster://` an embedded node has the replica that the same settings give to `node
start`: a process beside this one, from before the node's start until after its end. It stays while
the node rejoins. If this process ends, however it does, the replica ends, too.

A node that membership has downed rejoins as a new incarnation, by the rules of `node.rejoining`:
it closes, waits for its store, and joins through the members that it knew. Its entities are gone
from memory. Until it is up again `bus.ref` raises NodeLost, or messages wait for a home; references
of the former incarnation raise NodeLost for ever. Each incarnation calls the callbacks of
`bus.on_member_up` and `bus.on_member_removed`.

Source: docs/how-to/web.md; S3.42.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from shardbus import errors
from shardbus.admin.page_table import administer
from shardbus.config.settings import Settings
from shardbus.config.validation import check_exposure
from shardbus.guarded_log import GuardedLog
from shardbus.membership.events import DOWNED, LEFT
from shardbus.node.app_version import version_source, with_version
from shardbus.node.downing_log import check_downing
from shardbus.node.node import Node
from shardbus.node.rejoining import contacts, named, next_turn, store_answers
from shardbus.node.served_node import Application, ServedNode, leaves_within
from shardbus.node.shutdown import leave
from shardbus.node.store_wait import StoreWait
from shardbus.replica.child import ReplicaChild, replica_words, with_replicas
from shardbus.task_set import TaskSet
from shardbus.tasks.own_loop import asyncio_loop

log = GuardedLog("shardbus.node")

T = TypeVar("T")


class EmbeddedApplication(Application, Protocol):
    """The application of an embedded node: a ShardBus."""

    @property
    def runs(self) -> bool: ...
    def set_away(self, reason: str) -> None: ...


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
        """The incarnation that has been started last."""
        self._replica: _OwnReplica | None = None
        """The replica of `cluster://` that runs beside this process, while there is one."""
        self._begun = False
        self._tasks = TaskSet()
        self._life: asyncio.Task[None] | None = None
        self._asked_to_end = False
        self._in_time = False
        self.rejoining = ""
        """Why the node is not in its cluster, while it rejoins after it was downed; else empty."""
        self._turn = 0
        """How many times in a row it has rejoined."""
        self.reason = ""
        """Why the node has ended: `left`, or another reason. Empty while it runs."""

    def __repr__(self) -> str:
        state = self.reason or self.rejoining or ("runs" if self.running else "not started")
        return f"<node {self.address or self._bus.name!r}: {state}>"

    @property
    def running(self) -> bool:
        """True from the end of `start` until the node has ended, but not while it rejoins."""
        return self._life is not None and not self.reason and not self.rejoining

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

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def start(self) -> EmbeddedNode:
        """Start the node, and return when it is up and its regions are registered.

        Raises:
            ConfigError: a port is taken, the replica of `cluster://` cannot run, or the application
                runs a node already.
            StoreUnavailable: the store has not answered within `store.start_timeout`.
            Refused: the cluster refuses the node.
            NodeLost: no seed answers, or the node has ended before it was up.
        """
        if self._begun:
            raise errors.ConfigError(
                "an embedded node is started once",
                hint="call bus.run again; lifespan(lambda: bus.run(...)) does at each start",
            )
        if self._bus.runs:
            raise errors.ConfigError(
                f"a node of {self._bus.name!r} runs in this process already",
                hint="one ShardBus runs one node; make another ShardBus",
            )
        asyncio_loop()
        source = version_source(self._settings.kubernetes, self._bus.version_source)
        node = await with_version(self._settings.node, source)
        self._settings, has_replica = with_replicas(replace(self._settings, node=node))
        self._begin_incarnation()
        self._begun = True
        try:
            if has_replica:
                self._replica = _OwnReplica(self._settings, self._bus.name)
                served = await self._replica.until_usable(self._first_start())
            else:
                served = await self._first_start()
        except BaseException:
            self.reason = self.reason or "not started"
            await self._end_replica()
            raise
        self._life = self._tasks.spawn(self._live(served))
        self._life.add_done_callback(self._report)
        return self

    async def _first_start(self) -> ServedNode:
        """Start a node, and wait until it is up; start it again while its store does not answer,
        for `store.start_timeout`."""
        now = asyncio.get_running_loop().time()
        wait = StoreWait(self._settings.store.start_timeout, now, "starts")
        while True:
            served = ServedNode(self._bus, self._settings, administer)
            try:
                await served.start(self._ask_to_end)
                self._served = served
                await self._until_ready(served)
            except errors.StoreUnavailable as error:
                await served.close()
                await wait.after(error)
            except BaseException:
                await served.close()
                raise
            else:
                return served

    async def _end_replica(self) -> None:
        replica, self._replica = self._replica, None
        if replica is not None:
            await replica.end()

    def _begin_incarnation(self) -> None:
        self._leaves: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when this incarnation is to leave: `stop`, or an operator."""
        if self._asked_to_end:
            self._leaves.set_result(None)

    async def _until_ready(self, served: ServedNode) -> None:
        node = served.node
        ready = asyncio.ensure_future(served.ready())
        try:
            ends: set[asyncio.Future[Any]] = {ready, node.membership.stopped}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if node.membership.stopped.done():
            self.reason = node.membership.stopped.result()
            if node.membership.refusals:
                raise errors.Refused(self.reason)
            raise errors.NodeLost(self.reason)
        ready.result()

    async def stop(self) -> bool:
        """Hand the shards off, leave and close. True if everything was handed off in time. It ends
        within the sum of the phases' timeouts, and has no effect on a node that has ended, or that
        could not be started."""
        if self._life is None or (self.reason and not self._asked_to_end):
            return False
        self._asked_to_end = True
        self._ask_to_end()
        await asyncio.shield(self._life)
        return self._in_time

    def _ask_to_end(self) -> None:
        if not self._leaves.done():
            self._leaves.set_result(None)

    async def _live(self, served: ServedNode) -> None:
        """Live until the node, and its replica after it, have ended for good."""
        try:
            await self._live_on(served)
        finally:
            await self._end_replica()

    async def _live_on(self, served: ServedNode) -> None:
        """Live through as many incarnations as it needs."""
        while True:
            try:
                await self._until_ended(served)
                by = self._rejoins_by(served.node)
                if by:
                    self._turn = next_turn(self._turn, served.node.members.joined_for())
                    self.rejoining = f"was downed, and rejoins through {named(by)}"
                    log.warning("this node %s", self.rejoining)
                    self._bus.set_away(f"this node {self.rejoining}")
            finally:
                await served.close()
            rejoined = await self._rejoin(by) if by else None
            if rejoined is None:
                break
            served = rejoined
        stopped = served.node.membership.stopped
        ended = stopped.result() if stopped.done() else "not handed off in time"
        self.reason = self.reason or (LEFT if self._in_time else ended)
        self.rejoining = ""
        self._bus.set_away("")

    def _rejoins_by(self, node: Node) -> Sequence[str]:
        """Return the members through which the node, which has ended, joins again; none if it must
        not."""
        downed = node.membership.stopped.done() and node.membership.stopped.result() == DOWNED
        if self._leaves.done() or not downed or not self._settings.cluster.rejoin_after_down:
            return ()
        return contacts(node.view, self._settings.node.seeds)

    async def _rejoin(self, by: Sequence[str]) -> ServedNode | None:
        """Start a new incarnation, and let it join through these members. Returns None if it could
        not start, with the reason set."""
        self._begin_incarnation()
        try:
            if not await self._unless_asked_to_end(store_answers(self._bus.name, self._settings)):
                self.reason = LEFT
                return None
            served = ServedNode(self._bus, self._settings, administer)
        except errors.ShardBusError as error:
            self.reason = f"not rejoined: {error}"
            return None
        try:
            await served.start(self._ask_to_end, by, self._turn)
            self._served = served
        except errors.ShardBusError as error:
            self.reason = f"not rejoined: {error}"
            await served.close()
            return None
        ready = self._tasks.spawn(self._rejoined(served))
        served.node.membership.stopped.add_done_callback(lambda _: ready.cancel())
        return served

    async def _unless_asked_to_end(self, work: Coroutine[Any, Any, bool]) -> bool:
        """Return the result of the work; False if `stop` is called before."""
        doing = asyncio.ensure_future(work)
        ends: set[asyncio.Future[Any]] = {doing, self._leaves}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        doing.cancel()
        await asyncio.wait({doing})
        return False

    async def _rejoined(self, served: ServedNode) -> None:
        await served.ready()
        log.warning("this node is up again, as %s", served.node.me)
        self.rejoining = ""
        self._bus.set_away("")

    def _report(self, ended: asyncio.Task[None]) -> None:
        if self._asked_to_end or ended.cancelled() or ended.exception() is not None:
            return
        log.warning("the embedded node has ended: %s", self.reason)
        if self._on_stopped is not None:
            self._on_stopped(self.reason)

    async def _until_ended(self, served: ServedNode) -> None:
        """Wait until the node is to end, and let it leave unless it was downed."""
        node, membership = served.node, served.node.membership
        ends: set[asyncio.Future[Any]] = {self._leaves, membership.stopped}
        ends.add(membership.cluster_stops)
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        try:
            async with asyncio.timeout(leaves_within(node)):
                self._in_time = await leave(node, lambda text: log.info("%s", text))
        except TimeoutError:
            log.error("the embedded node stops before everything was handed off")


class _OwnReplica:
    """The replica beside an embedded node, as the event loop sees it. Started when it is made.

    Raises:
        ConfigError: the system cannot start a process.
    """

    def __init__(self, settings: Settings, cluster: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._unusable: asyncio.Future[str] = self._loop.create_future()
        """Done, with the reason, if the replica cannot run."""
        words = replica_words(settings, ["--cluster", cluster])
        self._child = ReplicaChild(words, lambda how: self._resolve(self._unusable, how))
        self._child.start()

    async def until_usable(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of the work, which may wait for this replica.

        Raises:
            ConfigError: the replica cannot run. The work was cancelled.
        """
        doing = asyncio.ensure_future(work)
        try:
            ends: set[asyncio.Future[Any]] = {doing, self._unusable}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not doing.done():
                doing.cancel()
                await asyncio.wait({doing})
        if doing.cancelled() and self._unusable.done():
            raise errors.ConfigError(
                f"the replica of this node {self._unusable.result()} before it listened",
                hint="its lines in the log say why: store.port or store.path may be in use",
            )
        return doing.result()

    async def end(self) -> None:
        """End the process, and wait for its end in a thread of its own: the application may use
        the threads of the loop's executor."""
        ended: asyncio.Future[str] = self._loop.create_future()

        def stop() -> None:
            self._child.stop()
            self._resolve(ended, "")

        threading.Thread(target=stop, name="shardbus-replica-end", daemon=True).start()
        await ended

    def _resolve(self, future: asyncio.Future[str], result: str) -> None:
        """Resolve a future of the loop from another thread."""

        def resolve() -> None:
            if not future.done():
                future.set_result(result)

        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(resolve)
