"""The cluster thread: runs this node's membership.

Gossip, heartbeats and failure detection have a thread, an event loop and sockets of their own, so
that a handler that blocks the application's loop for seconds does not get its node removed. The two
loops share no objects: events come in through `post`, and effects for the application go out
through `notify`, which is called in this thread.

    socket, timer, post ──> ClusterMembership.handle / tick ──> effects ──> socket, probe, notify
                                    │
                              one timer, armed to ClusterMembership.deadline

**The watchdog** watches the application, which calls `app_alive` from its loop at least every
250 ms. A node that answers heartbeats and handles no message is not alive:

    coordinator_stall    the node becomes the youngest member: its coordinators move to the next
                         oldest node, and their epochs refuse its late writes
    app_stall_timeout    the node declares itself down

The watchdog counts its own ticks, not the clock, so that a process that was stopped as a whole does
not accuse its application. At each tick it passes the stall to `stalled`, which finds the handler
that blocks the loop.

**The clock** of this loop goes on while the machine is suspended, where the platform has such a
clock. Otherwise a node would trust contacts from before the suspension. `confirmed` receives, in
this thread, the time of that clock until which entities may handle messages (`entities.gate`).

An exception in this thread ends the node's membership: it is logged, and reported as Stopped.

Source: docs/architecture.md; S2.81.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum, auto
from typing import Protocol, assert_never

from shardbus.config.settings import ClusterSettings
from shardbus.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from shardbus.guarded_log import GuardedLog
from shardbus.ids import NodeId
from shardbus.membership import events as ev
from shardbus.membership.cluster import ClusterMembership
from shardbus.membership.diagnostics import Overview
from shardbus.membership.member import Member
from shardbus.membership.messages import PublishedMessage
from shardbus.membership.view import MembershipView
from shardbus.shells.prober import Prober
from shardbus.task_set import TaskSet, failed_tasks
from shardbus.transport.fork_guard import guard
from shardbus.transport.machine_timer import MachineTimer
from shardbus.transport.suspend_clock import SuspendAwareLoop
from shardbus.transport.zmq.curve import Keyring
from shardbus.transport.zmq.pubsub import PubSubSockets
from shardbus.wire.gossip import decode, encode

TICK = 0.25
"""Seconds between two ticks of the watchdog."""
TICKS_PER_OVERVIEW = 4
COOKIE_KEY_BYTES = 16
START_WITHIN = 30.0
CLOSE_WITHIN = 2.0

log = GuardedLog("shardbus.cluster")

AppEffect = (
    ev.SendControl
    | ev.ViewChanged
    | ev.Notice
    | ev.AcquireLease
    | ev.ReadClaim
    | ev.WriteClaim
    | ev.FreeClaim
    | ev.Stopped
    | ev.CommandRefused
)
"""The effects passed to `notify`."""


class MembershipRunner(Protocol):
    """The runner of a node's membership, as the node needs it; `ClusterThread` describes the
    methods."""

    @property
    def overview(self) -> Overview: ...
    @property
    def lag(self) -> float: ...
    @property
    def dropped_frames(self) -> dict[str, int]: ...
    @property
    def failed_tasks(self) -> int: ...
    def start(self) -> None: ...
    def post(self, event: ev.Event) -> None: ...
    def app_alive(self) -> None: ...
    def rekey(self) -> None: ...
    async def close(self) -> None: ...


class StallStep(Enum):
    """The consequences of a stall of the application."""

    YIELD = auto()
    """The node becomes the youngest, so that coordinators run where a loop turns."""
    YIELD_AGAIN = auto()
    """The same after another `coordinator_stall`: the node may have got them back."""
    DOWN = auto()


class Watchdog:
    """Counts the ticks in which the application's loop has not turned. `due`: when the next tick
    is; `stalled`: seconds, by ticks, since the loop has turned."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._yield_at = settings.coordinator_stall
        self._gave_up = False
        self.app_seen = True
        self.stalled = self.due = 0.0

    def tick(self, now: float) -> list[StallStep]:
        """Count a tick, and return its consequences."""
        self.due = now + TICK
        self.stalled = 0.0 if self.app_seen else self.stalled + TICK
        self.app_seen = False
        steps = []
        patience = self._settings.coordinator_stall
        if not patience or self.stalled < patience:
            self._yield_at = patience
        elif self.stalled >= self._yield_at:
            first = self._yield_at == patience
            steps.append(StallStep.YIELD if first else StallStep.YIELD_AGAIN)
            self._yield_at = self.stalled + patience
        if self.stalled >= self._settings.app_stall_timeout and not self._gave_up:
            self._gave_up = True
            steps.append(StallStep.DOWN)
        return steps


class ClusterThread:
    """Runs one `ClusterMembership`. `bind_port` is the port to bind, 0 for any free one; without
    it, `me.gossip_port`, to which others connect."""

    def __init__(
        self,
        me: Member,
        cluster: str,
        settings: ClusterSettings,
        fingerprint: Mapping[str, str],
        *,
        bind_host: str,
        bind_port: int | None = None,
        notify: Callable[[AppEffect], None],
        stalled: Callable[[float], None] = lambda seconds: None,
        keyring: Keyring | None = None,
        confirmed: Callable[[float], None] = lambda until: None,
    ) -> None:
        guard(self)
        self.me = me
        self.cluster = cluster
        self.settings = settings
        self.fingerprint = fingerprint
        self.bind_host = bind_host
        self._bind_port = me.gossip_port if bind_port is None else bind_port
        self.notify = notify
        self._on_stalled = stalled
        self._confirmed = confirmed
        self.gossip_port = 0
        self.view = MembershipView(me.node)
        """The last view; replaced as a whole, so any thread may read it."""
        self.overview = Overview()
        """Gossip's knowledge of other nodes, at most a second old; replaced as a whole, too."""
        self.dropped: Counter[str] = Counter()
        """Messages without effect, by reason."""
        self._started_loop: asyncio.AbstractEventLoop | None = None
        self._sockets = PubSubSockets(me.node, self, keyring)
        self._prober = Prober(cluster, me.node.uid, self._sockets.resolver, keyring)
        self._thread = threading.Thread(target=self._run, name="shardbus-cluster", daemon=True)
        self._ready = threading.Event()
        self._ended = asyncio.Event()
        self._failure: ConfigError | None = None
        self._machine: ClusterMembership | None = None
        self._timer = MachineTimer(self._deadline, self._tick)
        self._ticks = 0
        self._probes = TaskSet()
        self._watchdog = Watchdog(settings)

    # ---- in the application's thread

    def start(self) -> None:
        """Bind the port and run. `gossip_port` is the bound port when this returns.

        Raises:
            ConfigError: the port cannot be bound. Nothing runs.
        """
        self._started_loop = SuspendAwareLoop()
        self._thread.start()
        if not self._ready.wait(START_WITHIN):
            raise LocalProtocolError(f"the cluster thread did not start within {START_WITHIN} s")
        if self._failure:
            self._thread.join(START_WITHIN)
            raise self._failure

    def stop(self, timeout: float = 5.0) -> bool:
        """End the thread without leaving the cluster. True if it ended within `timeout` seconds."""
        if self._started_loop is None:
            return True
        self._call(self._ended.set)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    async def close(self) -> None:
        """Stop the thread from a loop, without blocking it, within `CLOSE_WITHIN`."""
        await asyncio.get_running_loop().run_in_executor(None, self.stop, CLOSE_WITHIN)

    def post(self, event: ev.Event) -> None:
        """Hand the machine an event, from any thread; ignored once this thread has ended."""
        self._call(lambda: self._handle(event))

    def rekey(self) -> None:
        """Listen under the keys that are the newest now, from any thread."""
        self._call(self._sockets.rekey)

    def app_alive(self) -> None:
        """Record that the application's loop turns."""
        self._watchdog.app_seen = True

    @property
    def lag(self) -> float:
        """Seconds since the application's last `app_alive`."""
        return self._watchdog.stalled

    @property
    def dropped_frames(self) -> dict[str, int]:
        """Frames that the sockets dropped, and messages without effect, by reason."""
        without_effect = {reason.replace(" ", "_"): n for reason, n in self.dropped.items()}
        return dict(self._sockets.dropped + Counter(without_effect))

    @property
    def failed_tasks(self) -> int:
        """Tasks of this thread's loop that ended by an error."""
        return failed_tasks(self._started_loop) if self._started_loop is not None else 0

    @property
    def missed_edges(self) -> int:
        """Messages that only the watchdog of the sockets found."""
        return self._sockets.missed_edges

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        if self._started_loop is None:
            raise LocalProtocolError("the cluster thread is not started")
        return self._started_loop

    # ---- in the cluster thread

    def on_frames(self, sender: bytes, payload: bytes) -> None:
        """Handle a message published to this node."""
        waited = max(0.0, self._loop.time() - self._watchdog.due)
        try:
            node = NodeId.parse(sender.decode())
            message = decode(payload)
        except (RemoteProtocolError, ConfigError, UnicodeDecodeError) as error:
            log.debug("dropped a malformed message: %s", error)
            self.dropped["malformed"] += 1
            return
        if isinstance(message, PublishedMessage):
            self._handle(ev.PubSubReceived(node, message, waited))
        else:
            self.dropped["malformed"] += 1

    def on_listening(self, uid: int) -> None:
        """Handle a peer's subscription to this node."""
        self._handle(ev.PeerListening(uid))

    def on_disconnected(self, node: NodeId) -> None:
        """Handle the end of a connection."""
        self._handle(ev.PeerDisconnected(node))

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_exception_handler(self._on_exception)
        try:
            self._open()
            self._ready.set()
            self._loop.run_until_complete(self._ended.wait())
        except ConfigError as error:
            self._failure = error
        finally:
            self._machine = None
            self._sockets.close()
            self._probes.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._prober.close()
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
            self._ready.set()

    def _open(self) -> None:
        self._sockets.open(self.bind_host, self._bind_port, self._loop)
        self.gossip_port = self._sockets.port
        if self.me.gossip_port in (0, self._bind_port):
            self.me = replace(self.me, gossip_port=self.gossip_port)
        rng, secret = random.Random(secrets.randbits(64)), secrets.token_bytes(COOKIE_KEY_BYTES)
        self._machine = ClusterMembership(
            self.me, self.cluster, self.settings, self.fingerprint, rng, secret
        )
        self._watch()

    def _watch(self) -> None:
        """One tick of the watchdog."""
        self._ticks += 1
        if self._ticks % TICKS_PER_OVERVIEW == 0 and self._machine is not None:
            self.overview = self._machine.overview(self._loop.time())
        watchdog = self._watchdog
        steps = watchdog.tick(self._loop.time())
        self._on_stalled(stalled := watchdog.stalled)
        for step in steps:
            if step is StallStep.DOWN:
                self._handle(ev.Down(self.me.node))  # before the line: a log's handler may wait
                log.error("the application has not turned its loop for %.1f s: down", stalled)
            else:
                self._handle(ev.YieldSeniority())
                log.log(
                    logging.WARNING if step is StallStep.YIELD else logging.DEBUG,
                    "the application has not turned its loop for %.1f s: "
                    "the next oldest node takes over its coordinators",
                    stalled,
                )
        self._loop.call_at(watchdog.due, self._watch)

    def _handle(self, event: ev.Event) -> None:
        if self._machine is not None:
            self._apply(self._machine.handle(event, self._loop.time()))

    def _deadline(self) -> float | None:
        return self._machine.deadline() if self._machine is not None else None

    def _tick(self) -> None:
        if self._machine is not None:
            self._apply(self._machine.tick(self._loop.time()))

    def _apply(self, effects: list[ev.Effect]) -> None:
        for effect in effects:
            match effect:
                case ev.Publish(to, message):
                    self._sockets.publish(to, encode(message))
                case ev.Subscribe(member):
                    self._sockets.subscribe(member)
                case ev.Unsubscribe(node):
                    self._sockets.unsubscribe(node)
                case ev.Probe(node):
                    self._probes.spawn(self._probe(node))
                case ev.MessageDropped(_, reason):
                    self.dropped[reason] += 1
                case ev.HandlingConfirmed(until):
                    self._confirmed(until)
                case ev.ViewChanged(view):
                    self.view = view
                    self.notify(effect)
                case (
                    ev.SendControl()
                    | ev.Notice()
                    | ev.AcquireLease()
                    | ev.ReadClaim()
                    | ev.WriteClaim()
                    | ev.FreeClaim()
                    | ev.Stopped()
                    | ev.CommandRefused()
                ):
                    self.notify(effect)
                case _:
                    assert_never(effect)
        self._timer.arm()

    async def _probe(self, node: NodeId) -> None:
        outcome = await self._prober.probe(node)
        self._handle(ev.ProbeResult(node, outcome))

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        log.error(
            "the cluster thread failed: %s",
            context.get("message"),
            exc_info=error if isinstance(error, BaseException) else None,
        )
        self._machine = None
        self._ended.set()
        self.notify(ev.Stopped(f"cluster thread failed: {error or context.get('message')}"))

    def _call(self, action: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(action)
        except RuntimeError:
            log.debug("the cluster thread has ended")
