"""Running a node as a process: signals, the ready line, exit codes.

    0 drained · 1 failed · 4 store unreachable · 6 refused by the cluster · 7 drain deadline passed

The first SIGTERM or SIGINT hands off and leaves, with a deadline; the second stops at once. When
the whole cluster stops, the node ends by itself and hands nothing off.

Source: docs/reference/cli.md; B.12, B.15, B.141.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from shardbus.errors import ShardBusError, StoreUnavailable
from shardbus.http.app import create_app
from shardbus.http.server import serve
from shardbus.membership.member import Status
from shardbus.runtime.admin import Admin
from shardbus.runtime.departure import (
    LEAVE_WITHIN_S,
    LEFT,
    Progress,
    leave,
    longest_move,
    stop_here,
)
from shardbus.runtime.entity_type import EntityType
from shardbus.runtime.node import Node
from shardbus.settings import Settings
from shardbus.store.opening import default_url, mask_url, open_store

log = logging.getLogger("shardbus.node")

READY_POLL_S = 0.02
CALLBACKS_S = 5.0
GC_THRESHOLDS = (20_000, 20, 50)
OK, FAILED, UNREACHABLE, REFUSED, NOT_DRAINED = 0, 1, 4, 6, 7


class Application(Protocol):
    """What a node runs: a ShardBus."""

    name: str
    types: dict[str, EntityType]

    def attach(self, node: Node | None) -> None: ...


class _Signals:
    """Counts the requests to stop."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def stop(self) -> None:
        if self.first.is_set():
            self.second.set()
        self.first.set()


def run_node(bus: Application, settings: Settings, *, ready_fd: int | None = None) -> int:
    """Run a node until it is told to stop; returns the exit code of docs/reference/cli.md."""
    # What a node keeps, entities above all, lives long and is seldom cyclic: Python's defaults
    # would look through a million of them again and again while they start.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    return asyncio.run(_run(bus, settings, ready_fd))


async def _run(bus: Application, settings: Settings, ready_fd: int | None) -> int:
    signals = _Signals()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.stop)
    url = settings.store.url or default_url(bus.name)
    store = open_store(url, cluster=bus.name, timeout=settings.store.timeout)
    node = Node(bus.name, bus.types, settings, store)
    server = serve(create_app(Admin(node), settings.http), settings.http.host, settings.http.port)
    try:
        await node.start()
        bus.attach(node)
        await server.start()
        node.questions.on_leave = signals.stop
        node.join(f"{settings.http.host}:{server.port}")
        code = await _live(node, signals, ready_fd, server.port, mask_url(url))
    except StoreUnavailable as e:
        _say(f"error: {e}")
        code = UNREACHABLE
    except ShardBusError as e:
        _say(f"error: {e}")
        code = FAILED
    finally:
        if hasattr(node, "endpoint"):
            await node.observers.end(CALLBACKS_S)
        bus.attach(None)
        await server.stop()
        if hasattr(node, "endpoint"):
            await node.close()
    return code


async def _live(node: Node, signals: _Signals, ready_fd: int | None, http: int, store: str) -> int:
    ready = asyncio.ensure_future(_announce(node, ready_fd, http, store))
    first = asyncio.ensure_future(signals.first.wait())
    ends: set[asyncio.Future[Any]] = {first, node.stopped, node.cluster_stops}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    first.cancel()
    if node.stopped.done():
        return _ended(node)
    _notify("STOPPING=1")
    way = stop_here if node.cluster_stops.done() else leave
    return await _go(node, way, signals)


def _ended(node: Node) -> int:
    """The exit code of how membership has ended."""
    reason = node.stopped.result()
    if reason == LEFT:
        return OK
    _say(f"error: this node stops: {reason}")
    return REFUSED if node.refusals or reason.startswith("join failed") else FAILED


async def _go(
    node: Node, way: Callable[[Node, Progress], Coroutine[Any, Any, None]], signals: _Signals
) -> int:
    limit = longest_move(node) + LEAVE_WITHIN_S
    leaving = asyncio.ensure_future(way(node, _say))
    again = asyncio.ensure_future(signals.second.wait())
    ends: set[asyncio.Future[Any]] = {leaving, again}
    done, _ = await asyncio.wait(ends, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    again.cancel()
    if leaving in done:
        leaving.result()
        code = _ended(node)
        if code == OK:
            _say("left the cluster")
        return code
    leaving.cancel()
    _say("stopped before everything was handed off")
    return FAILED if done else NOT_DRAINED


async def _announce(node: Node, ready_fd: int | None, http: int, store: str) -> None:
    """Say once that the node is Up and its regions are registered."""
    while not all(check.ok for check in Admin(node).readiness().values()):
        await asyncio.sleep(READY_POLL_S)
    assert node.view is not None
    up = sum(m.status is Status.UP for m in node.view.members)
    host = node.settings.http.host
    print(
        f"ready: {node.me.address} in cluster {node.cluster_name!r} ({up} up), "
        f"http://{host}:{http}, store {store}",
        flush=True,
    )
    _notify("READY=1")
    if ready_fd is not None:
        os.write(ready_fd, b"ready\n")
        os.close(ready_fd)


def _say(text: str) -> None:
    print(f"shardbus: {text}", file=sys.stderr, flush=True)


def _notify(state: str) -> None:
    """systemd's notification, if it started us."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.connect("\0" + address[1:] if address.startswith("@") else address)
            s.send(state.encode())
