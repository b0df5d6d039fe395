"""Running a node as a process: signals, the ready line, exit codes.

    0 drained · 1 failed · 4 store unreachable · 6 refused by the cluster · 7 drain deadline passed

The first SIGTERM or SIGINT hands off and leaves, phase by phase; the second stops at once. When the
whole cluster stops, the node ends by itself and hands nothing off. Each phase has its time, but no
timeout ends a function that blocks the loop, nor a task that takes no cancelling. So from the first
signal on a thread waits for the end, a while longer than all phases may take, and then ends the
process; and so it does for 15 s when the node was downed, perhaps because its loop is blocked.

A node that a supervisor started is told to leave by its leash, too, and reports there instead of on
standard output.

Source: docs/reference/cli.md; B.12, B.15, B.141.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from traceback import walk_stack
from typing import Any, Protocol, TypeVar

from shardbus.admin.answers import Admin
from shardbus.config.settings import Settings
from shardbus.entities.entity_type import EntityType
from shardbus.entities.slow_handlers import places
from shardbus.errors import ShardBusError, StoreUnavailable
from shardbus.http.app import create_app
from shardbus.http.server import serve
from shardbus.membership.events import SetService, Stopped
from shardbus.membership.member import Service, Status
from shardbus.node.app_version import VersionSource, with_version
from shardbus.node.file_descriptors import FileDescriptors
from shardbus.node.node import Node
from shardbus.node.shutdown import LEFT, leave, longest_move
from shardbus.node.supervisor_link import LoopCaller, SupervisorLink
from shardbus.shells.cluster_thread import ClusterThread
from shardbus.store import node_registry
from shardbus.store.opening import open_store
from shardbus.store.urls import default_url, mask_url

log = logging.getLogger("shardbus.node")

READY_POLL_S = 0.02
CALLBACKS_S = 5.0
OVER_S = 15.0
"""For a node that was downed to end; it hands nothing off."""
AFTERWARDS_S = 10.0
"""For callbacks and sockets after the last phase."""
STRIKE_S = 1.0
"""For the store to forget that this node runs. If it does not, a command will knock in vain."""
GC_THRESHOLDS = (20_000, 20, 50)
T = TypeVar("T")
OK, FAILED, UNREACHABLE, REFUSED, NOT_DRAINED = 0, 1, 4, 6, 7


class Application(Protocol):
    """What a node runs: a ShardBus."""

    name: str
    types: dict[str, EntityType]
    version_source: VersionSource | None

    def attach(self, node: Node | None) -> None: ...


class _Deadline:
    """Ends the process if it has not ended by then."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def set(self, node: Node, seconds: float = 0.0) -> None:
        """The node begins to leave, or shall, while its loop may be stuck."""
        self.cancel()
        main = threading.main_thread().ident
        seconds = seconds or leaves_within(node)
        self._timer = threading.Timer(seconds, self._end, (node, main))
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        """It has ended."""
        if self._timer is not None:
            self._timer.cancel()

    @staticmethod
    def _end(node: Node, thread: int) -> None:
        place = " < ".join(places(walk_stack(sys._current_frames().get(thread))))
        phase = node.phases.current or "what keeps the loop"
        _say(f"error: {phase} does not end, at {place}: this process is stopped")
        os._exit(NOT_DRAINED)


class _Signals:
    """Counts the requests to stop."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def stop(self) -> None:
        if self.first.is_set():
            self.second.set()
        self.first.set()

    def stop_at_once(self) -> None:
        self.first.set()
        self.second.set()


def leaves_within(node: Node) -> float:
    """Seconds after which a node that was told to leave has ended, if need be by force."""
    return node.phases.total(longest_move(node)) + AFTERWARDS_S


def run_node(
    bus: Application,
    settings: Settings,
    *,
    ready_fd: int | None = None,
    leash: SupervisorLink | None = None,
) -> int:
    """Run a node until it is told to stop; returns the exit code of docs/reference/cli.md."""
    # What a node keeps, entities above all, lives long and is seldom cyclic: Python's defaults
    # would look through a million of them again and again while they start.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    deadline = _Deadline()
    try:
        return asyncio.run(_watched(_run(bus, settings, ready_fd, deadline, leash)))
    finally:
        deadline.cancel()


async def _watched(run: Coroutine[Any, Any, int]) -> int:
    """Run it with as many descriptors as there may be, and an eye on them."""
    file_descriptors = FileDescriptors(asyncio.get_running_loop())
    file_descriptors.start()
    try:
        return await run
    finally:
        file_descriptors.stop()


async def _run(
    bus: Application,
    settings: Settings,
    ready_fd: int | None,
    deadline: _Deadline,
    leash: SupervisorLink | None,
) -> int:
    signals = _Signals()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.stop)
    known = await _unless_stopped(with_version(settings.node, bus.version_source), signals)
    if known is None:
        return OK
    settings = replace(settings, node=known)
    url = settings.store.url or default_url(bus.name)
    store = open_store(url, cluster=bus.name, timeout=settings.store.timeout)

    def membership(*args: Any, notify: Callable[[object], None], **more: Any) -> ClusterThread:
        """Once it is over, so is the process, though what it waits for may keep its loop."""

        def told(effect: object) -> None:
            if isinstance(effect, Stopped) and effect.reason != LEFT:
                deadline.set(node, OVER_S)
            notify(effect)

        return ClusterThread(*args, notify=told, **more)

    node = Node(bus.name, bus.types, settings, store, membership=membership)
    server = serve(create_app(Admin(node), settings.http), settings.http.host, settings.http.port)
    if leash is not None:
        close = partial(_begin_to_close, node, leash)
        late = partial(deadline.set, node)
        leash.attach(LoopCaller(loop, close, signals.first.set, signals.stop_at_once, late))
    try:
        await node.start()
        await node_registry.register(store, node.me.address)
        bus.attach(node)
        await server.start()
        node.rpc.on_leave = signals.stop
        node.join(f"{settings.http.host}:{server.port}")
        if leash is not None:
            _report(leash, "serves", node, server.port, leave_within=leaves_within(node))
        told = _announce(node, ready_fd, server.port, mask_url(url), leash)
        ready = asyncio.ensure_future(told)
        code = await _live(node, signals)
        ready.cancel()
        if code is None:
            deadline.set(node)
            code = await _go(node, signals)
    except StoreUnavailable as e:
        _say(f"error: {e}")
        code = UNREACHABLE
    except ShardBusError as e:
        _say(f"error: {e}")
        code = FAILED
    finally:
        if hasattr(node, "endpoint"):
            await node.subscriptions.end(CALLBACKS_S)
        bus.attach(None)
        await server.stop()
        if hasattr(node, "endpoint"):
            await _let_go(node)
    return code


async def _let_go(node: Node) -> None:
    """Close the node. The store shall know that it is gone."""
    with contextlib.suppress(TimeoutError, ShardBusError):
        async with asyncio.timeout(STRIKE_S):
            await node_registry.remove(node.store, [node.me.address])
    await node.close()


async def _unless_stopped(work: Coroutine[Any, Any, T], signals: _Signals) -> T | None:
    """What comes of it; None if the node shall stop before."""
    doing = asyncio.ensure_future(work)
    first = asyncio.ensure_future(signals.first.wait())
    await asyncio.wait({doing, first}, return_when=asyncio.FIRST_COMPLETED)
    first.cancel()
    if not doing.done():
        doing.cancel()
        return None
    return doing.result()


async def _live(node: Node, signals: _Signals) -> int | None:
    """Wait until the node shall leave (None), or has ended by itself (its exit code)."""
    first = asyncio.ensure_future(signals.first.wait())
    ends: set[asyncio.Future[Any]] = {first, node.stopped, node.cluster_stops}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    first.cancel()
    if node.stopped.done():
        return _ended(node)
    notify("STOPPING=1")
    return None


def _ended(node: Node) -> int:
    """The exit code of how membership has ended."""
    reason = node.stopped.result()
    if reason == LEFT:
        return OK
    _say(f"error: this node stops: {reason}")
    if not reason.startswith("join failed"):
        return FAILED
    return REFUSED if node.refusals else UNREACHABLE


async def _go(node: Node, signals: _Signals) -> int:
    """Leave, phase by phase, unless a second signal comes."""
    leaving = asyncio.ensure_future(leave(node, _say))
    again = asyncio.ensure_future(signals.second.wait())
    ends: set[asyncio.Future[Any]] = {leaving, again}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    again.cancel()
    if not leaving.done():
        leaving.cancel()
        _say("stopped before everything was handed off")
        return FAILED
    if leaving.result():
        _say("left the cluster")
        return OK
    if node.stopped.done() and node.stopped.result() != LEFT:
        return _ended(node)
    _say("stopped before everything was handed off")
    return NOT_DRAINED


async def _announce(
    node: Node, ready_fd: int | None, http: int, store: str, leash: SupervisorLink | None
) -> None:
    """Say once that the node is Up and its regions are registered."""
    while not all(check.ok for check in Admin(node).readiness().values()):
        await asyncio.sleep(READY_POLL_S)
    assert node.view is not None
    up = sum(m.status is Status.UP for m in node.view.members)
    if leash is not None:
        _report(leash, "ready", node, http, cluster=node.cluster_name, up=up, store=store)
        return
    host = node.settings.http.host
    print(
        f"ready: {node.me.address} in cluster {node.cluster_name!r} ({up} up), "
        f"http://{host}:{http}, store {store}",
        flush=True,
    )
    notify("READY=1")
    if ready_fd is not None:
        os.write(ready_fd, b"ready\n")
        os.close(ready_fd)


def _begin_to_close(node: Node, leash: SupervisorLink) -> None:
    """Take no shard any more."""
    closing = node.loop.create_task(_close(node, leash))
    node.stopped.add_done_callback(lambda _: closing.cancel())


async def _close(node: Node, leash: SupervisorLink) -> None:
    """Say so when all know; one that is no member yet has nothing to say."""
    if node.view is not None and node.is_up:
        node.cluster.post(SetService(node.me, Service.CORDONED))
        while not (node.view.converged and _service(node) is not Service.OPEN):
            await asyncio.sleep(READY_POLL_S)
    leash.say("closed")


def _service(node: Node) -> Service:
    mine = node.view.member(node.me) if node.view is not None else None
    return mine.service if mine is not None else Service.CORDONED


def _report(leash: SupervisorLink, what: str, node: Node, http: int, **facts: object) -> None:
    address, where = str(node.me.address), [node.settings.http.host, http]
    leash.say(what, node=address, http=where, **facts)


def _say(text: str) -> None:
    print(f"shardbus: {text}", file=sys.stderr, flush=True)


def notify(state: str) -> None:
    """systemd's notification, if it started us."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.connect("\0" + address[1:] if address.startswith("@") else address)
            s.send(state.encode())
