"""Runs a replica as a process: its signals, its end, and the keys of its socket.

SIGTERM, SIGINT, and the end of the node or unit that started the process end it, after the turn
that is being written; `END_S` later it ends at once. Unanswered requests are then as after a crash.
If the node has left in order, the replica stays while other nodes need it, for `LINGER_S` at most.
SIGHUP reads the file of the cluster's secret again, and so does a frame by which a node that has
read its own asks for it; without a secret SIGHUP stops the replica.

A disk that is given up (`standing`) is put aside, and the replica goes on with a blank one in the
same process.

Source: docs/reference/cli.md; S2.31.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from shardbus.config.settings import SecuritySettings
from shardbus.errors import ConfigError
from shardbus.guarded_log import GuardedLog
from shardbus.ids import Address
from shardbus.replica.disk import Disk
from shardbus.replica.memory_disk import MemoryDisk
from shardbus.replica.server import ReplicaKeys, ReplicaServer, RingPart
from shardbus.transport.permissions import Role
from shardbus.transport.zmq.curve import Keyring
from shardbus.transport.zmq.network import ZmqNetwork

log = GuardedLog("shardbus.store")

OK, FAILED = 0, 1
END_S = 2.0
LINGER_S, LINGER_LOOK_S = 60.0, 0.1
LOCK_S, LOCK_PAUSE_S = 5.0, 0.1
"""For the last process of this directory to end."""
GC_THRESHOLDS = (50_000, 20, 50)
"""Calls and answers live for one turn; the collector finds little."""


class ReplicaOptions(msgspec.Struct, frozen=True):
    """How a replica runs. `host` and `port`: where it listens. `memory` and `log_bytes`: as the
    settings of these names."""

    cluster: str
    me: Address
    peers: tuple[Address, ...]
    host: str
    port: int
    path: Path
    memory: int
    log_bytes: int
    part: RingPart
    repair: float
    security: SecuritySettings
    in_memory: bool = False
    """It keeps no log, and `path` is not used."""


def run_replica(
    options: ReplicaOptions,
    on_start: Callable[[ReplicaServer], None],
    stops: Callable[[Callable[[bool], None]], None] = lambda stop: None,
) -> int:
    """Run a replica until it is stopped or its disk fails. Returns the exit code.

    Args:
        on_start: called once the replica listens.
        stops: called with a function that stops the replica, from any thread: with True once no
            store needs it, with False at once.

    Raises:
        ConfigError: the directory or the port cannot be used.
    """
    security = options.security
    keyring = Keyring.at(security.secret, security.keys, security.allowed)
    while True:
        failures: list[str] = []
        network = ZmqNetwork(keyring)
        disk = MemoryDisk() if options.in_memory else Disk(options.path, options.log_bytes)
        server = ReplicaServer(
            options.cluster,
            options.me,
            options.peers,
            disk,
            network,
            memory=options.memory,
            part=options.part,
            keys=ReplicaKeys(partial(_admits, keyring), partial(_rekey_soon, network, keyring)),
            on_failed=failures.append,
            joining=lambda: ZmqNetwork(
                Keyring.at(security.secret, security.keys, security.allowed)
            ),
            repair=options.repair,
        )
        gc.disable()  # the rows that are read stay
        _open(server)
        gc.freeze()
        gc.enable()
        gc.set_threshold(*GC_THRESHOLDS)
        with asyncio.Runner() as runner:
            begins_anew = runner.run(
                _serve(server, network, keyring, options, failures, on_start, stops)
            )
        if not begins_anew:
            return FAILED if failures else OK
        gc.unfreeze()


def _open(server: ReplicaServer) -> None:
    """Open the disk, once the last process of the directory has ended."""
    until = time.monotonic() + LOCK_S
    while True:
        try:
            server.open()
            return
        except ConfigError:
            if time.monotonic() > until:
                raise
        time.sleep(LOCK_PAUSE_S)


async def _serve(
    server: ReplicaServer,
    network: ZmqNetwork,
    keyring: Keyring | None,
    options: ReplicaOptions,
    failures: list[str],
    on_start: Callable[[ReplicaServer], None],
    stops: Callable[[Callable[[bool], None]], None],
) -> bool:
    """Run a server. Returns True if its disk was given up, so that a blank one is to follow."""
    loop, stop, leave = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    if keyring is not None:
        loop.add_signal_handler(signal.SIGHUP, _rekey, network, keyring)
    network.open(loop)
    try:
        server.start(options.host, options.port)
        stops(partial(_stop_from_thread, loop, stop, leave))
        on_start(server)
        await _ends(server, failures, stop, leave)
        begins_anew = server.gave_up and not stop.is_set()
        if not begins_anew:
            _end_within(FAILED if failures else OK)
        server.close()
        return begins_anew
    finally:
        network.close()


async def _ends(
    server: ReplicaServer, failures: list[str], stop: asyncio.Event, leave: asyncio.Event
) -> None:
    """Wait until the replica is stopped, has failed, or is not needed any more."""
    loop, until = asyncio.get_running_loop(), 0.0
    while not (stop.is_set() or failures):
        if leave.is_set():
            until = until or loop.time() + LINGER_S
            if loop.time() > until or not server.lingers():
                return
        try:
            async with asyncio.timeout(LINGER_LOOK_S):
                await stop.wait()
        except TimeoutError:
            continue


def _stop_from_thread(
    loop: asyncio.AbstractEventLoop, stop: asyncio.Event, leave: asyncio.Event, lingers: bool
) -> None:
    if not lingers:
        _end_within(OK)
    try:
        loop.call_soon_threadsafe((leave if lingers else stop).set)
    except RuntimeError:  # the loop has ended
        return


def _end_within(code: int) -> None:
    timer = threading.Timer(END_S, os._exit, (code,))
    timer.daemon = True
    timer.start()


def _rekey_soon(network: ZmqNetwork, keyring: Keyring | None) -> None:
    if keyring is not None:
        asyncio.get_running_loop().call_soon(_rekey, network, keyring)


def _rekey(network: ZmqNetwork, keyring: Keyring) -> None:
    try:
        if keyring.adopt():
            network.rekey()
            log.warning("the replica listens under secret %s", keyring.newest.fingerprint)
    except ConfigError as refused:
        log.error("the keys stay as they were: %s", refused)


def _admits(keyring: Keyring | None, user: str | None) -> bool:
    """True if the process with this name may use a replica: it has the secret, or a key of a node
    or of a store."""
    if keyring is None or keyring.identities is None:
        return True
    roles = {identity.name: identity.role for identity in keyring.identities.values()}
    return user is not None and roles.get(user) in (Role.NODE, Role.STORE)
