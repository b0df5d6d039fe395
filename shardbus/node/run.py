"""Runs a node as a process: signals, the ready line, exit codes.

    0 left · 1 failed · 4 store unreachable · 6 refused by the cluster · 7 drain deadline passed

The first SIGTERM or SIGINT starts the phases of leaving; the second stops the node at once. When
the whole cluster stops, the node ends by itself and hands nothing off.

From the first signal on the process has a deadline (`deadline`): a function that blocks the loop, a
task that ignores its cancellation, or an output whose reader stands still does not keep it.

A node that membership has downed starts anew: the process is replaced by one with the same command,
which joins through the members that were not Down in this node's last view, and never founds a
cluster. It ends, as without the setting, if an operator downed it, a signal to stop has come, a
supervisor starts it again, or every member was downed: then the seeds of the settings decide who
founds a cluster. If the loop is blocked, the thread that ends the process starts it anew instead.

A node that a supervisor started also leaves at the supervisor's command, and reports through its
link instead of on standard output.

Source: S3.42; docs/reference/cli.md.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from shardbus.config.settings import Settings
from shardbus.errors import LayoutDiffers, ShardBusError, StoreUnavailable
from shardbus.guarded_log import GuardedLog
from shardbus.http.page import NodePages
from shardbus.membership.events import DOWNED, LEFT, SetService, Stopped
from shardbus.membership.member import Service, Status
from shardbus.node.app_version import version_source, with_version
from shardbus.node.deadline import DOWNED_S, NOT_DRAINED, Deadline, Output
from shardbus.node.event_loop import NodeEventLoop, take_own_policy
from shardbus.node.file_descriptors import FileDescriptors
from shardbus.node.node import Node
from shardbus.node.rejoining import contacts, named, next_turn, store_answers
from shardbus.node.served_node import READY_POLL_S, Application, ServedNode, leaves_within
from shardbus.node.shutdown import leave
from shardbus.node.stop_signals import StopSignals
from shardbus.node.store_wait import StoreWait
from shardbus.node.supervisor_link import LoopCaller, SupervisorLink
from shardbus.shells.cluster_thread import ClusterThread
from shardbus.task_set import TaskSet
from shardbus.tasks.interrupts import is_interrupt

log = GuardedLog("shardbus.node")

CANCEL_S = 2.0
"""For a step of the start to end after its cancellation."""
GC_THRESHOLDS = (50_000, 20, 50)
"""The first is above the objects of some thousand messages in flight, among which the collector
would find nothing."""
T = TypeVar("T")
OK, FAILED, UNREACHABLE, REFUSED = 0, 1, 4, 6


class _StopAsked(Exception):
    """A signal to stop came before the node could leave anything."""


def run_node(
    bus: Application,
    settings: Settings,
    administer: Callable[[Node], NodePages],
    output: Output,
    *,
    ready_fd: int | None = None,
    supervisor: SupervisorLink | None = None,
    rejoins_by: Sequence[str] = (),
    turn: int = 0,
    start_anew: Callable[[Sequence[str], int], None] | None = None,
) -> int:
    """Run a node until it has left or failed.

    Args:
        administer: lets the node answer operators, and returns its pages.
        output: gets the line that the node is ready, and its progress.
        ready_fd: a descriptor that gets a line when the node is ready.
        supervisor: the link to the process that started this one.
        rejoins_by: the members through which a node that was downed joins again, HOST:PORT.
        turn: how many times in a row it does so; 0 is none.
        start_anew: replaces this process by one that rejoins by these members, for the given time
            in a row; it returns if that is not possible. None: a node that is downed ends.

    Returns:
        An exit code of docs/reference/cli.md.

    Raises:
        LayoutDiffers: the stored table of a type is for other shards; the node did not start.
        ConfigError: the process may open too few file descriptors.
    """
    # Entities live long and are seldom cyclic. With Python's defaults the collector would go
    # through a million of them again and again while they start.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    deadline = Deadline(output)
    deadline.start()
    run = _NodeRun(bus, settings, administer, output, ready_fd, supervisor, deadline)
    run.rejoins_by, run.turn, run.start_anew = rejoins_by, turn, start_anew
    take_own_policy()
    try:
        with asyncio.Runner(loop_factory=NodeEventLoop) as runner:
            code = run_to_end(runner.get_loop(), _with_descriptors(run.run()))
    finally:
        deadline.cancel()
    run.rejoin()
    return code


def run_to_end(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, int]) -> int:
    """Run the node until it has its exit code.

    A task that raises SystemExit or KeyboardInterrupt ends the loop that runs it, and so does a
    call of `loop.stop()`. Handlers can begin such tasks, and no message may end a node: unless a
    signal has raised it, an exception out of the loop is logged, and the loop goes on where it
    was."""
    task = loop.create_task(main)
    while True:
        try:
            return loop.run_until_complete(task)
        except BaseException as error:
            if task.done() or loop.is_closed() or is_interrupt(error):
                raise
            log.error("a task of this process has stopped the loop, which goes on", exc_info=error)


async def _with_descriptors(run: Coroutine[Any, Any, int]) -> int:
    """Run it with the highest limit of file descriptors, and warn when they run out."""
    file_descriptors = FileDescriptors(asyncio.get_running_loop())
    file_descriptors.start()
    try:
        return await run
    finally:
        file_descriptors.stop()


class _NodeRun:
    """One run of a node, from its start to its exit code."""

    def __init__(
        self,
        bus: Application,
        settings: Settings,
        administer: Callable[[Node], NodePages],
        output: Output,
        ready_fd: int | None,
        supervisor: SupervisorLink | None,
        deadline: Deadline,
    ) -> None:
        self._bus, self._settings, self._administer = bus, settings, administer
        self._output, self._ready_fd = output, ready_fd
        self._supervisor, self._deadline = supervisor, deadline
        self._signals: StopSignals
        self._tasks = TaskSet()
        self.rejoins_by: Sequence[str] = ()
        self.turn = 0
        self.start_anew: Callable[[Sequence[str], int], None] | None = None
        self._downed = False

    async def run(self) -> int:
        """Start, live and leave. Returns the exit code."""
        signals = self._signals = StopSignals(self._deadline)
        signals.listen()
        if self._settings.security.secret:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._rekey)
        try:
            return await self._run(signals)
        except _StopAsked:
            return OK
        except StoreUnavailable as e:
            self._print(f"error: {e}")
            return UNREACHABLE
        except LayoutDiffers:
            raise
        except ShardBusError as e:
            self._print(f"error: {e}")
            return FAILED

    async def _run(self, signals: StopSignals) -> int:
        bus = self._bus
        source = version_source(self._settings.kubernetes, bus.version_source)
        versioned = await _unless_stopped(with_version(self._settings.node, source), signals)
        settings = replace(self._settings, node=versioned)
        if self.rejoins_by and not await _unless_stopped(
            store_answers(bus.name, settings), signals
        ):
            return OK
        served = await self._start(settings, signals)
        node = served.node
        code: int | None = None
        try:
            self._report("serves", node, served.server.port, leave_within=leaves_within(node))
            ready = self._tasks.spawn(self._announce(served))
            ended = await self._live(node)
            self._report("leaves", node, served.server.port)
            ready.cancel()
            if ended is None:
                self._deadline.within()
                ended = await self._leave(node)
            code = ended
            return ended
        finally:
            if code is not None:
                self._deadline.code = code
            await served.close()

    async def _start(self, settings: Settings, signals: StopSignals) -> ServedNode:
        """Start a node; again while its store does not answer, for `store.start_timeout`."""
        loop = asyncio.get_running_loop()
        wait = StoreWait(settings.store.start_timeout, loop.time(), "starts")
        while True:
            served = ServedNode(self._bus, settings, self._administer, self._membership)
            self._node = self._deadline.node = served.node
            self._attach_supervisor(served.node, loop)
            starting = served.start(signals.stop, self.rejoins_by, self.turn)
            try:
                await _unless_stopped(starting, signals)
            except StoreUnavailable as error:
                await served.close()
                await _unless_stopped(wait.after(error), signals)
            except BaseException:
                await served.close()
                raise
            else:
                return served

    def _rekey(self) -> None:
        """Read the file of the cluster's secret again, at SIGHUP."""
        try:
            if not self._node.rekey():
                log.info("the cluster's secret is as it was")
        except ShardBusError as refused:
            log.error("the keys stay as they were: %s", refused)

    def _membership(
        self, *args: Any, notify: Callable[[object], None], **more: Any
    ) -> ClusterThread:
        """A cluster thread that sets a deadline when membership ends other than by leaving: the
        application's loop may be blocked."""

        def notify_with_deadline(effect: object) -> None:
            if isinstance(effect, Stopped) and effect.reason != LEFT:
                self._downed = effect.reason == DOWNED
                self._deadline.instead = self.rejoin
                self._deadline.within(DOWNED_S)
            notify(effect)

        return ClusterThread(*args, notify=notify_with_deadline, **more)

    def rejoin(self) -> None:
        """Start anew if this node was downed and may rejoin; return otherwise."""
        settings = self._settings
        if not self._downed or not settings.cluster.rejoin_after_down:
            return
        signals = self._signals
        if signals.count or signals.first.is_set() or self._supervisor is not None:
            return
        by = contacts(self._node.view, settings.node.seeds)
        if by and self.start_anew is not None:
            self._print(f"this node was downed, and rejoins through {named(by)}")
            self.start_anew(by, next_turn(self.turn, self._node.members.joined_for()))

    def _attach_supervisor(self, node: Node, loop: asyncio.AbstractEventLoop) -> None:
        if self._supervisor is None:
            return
        signals = self._signals
        close = partial(_begin_to_cordon, node, self._supervisor, self._tasks)
        late = self._deadline.within
        self._supervisor.attach(
            LoopCaller(loop, close, signals.first.set, signals.stop_at_once, late)
        )

    async def _announce(self, served: ServedNode) -> None:
        """Report once that the node is Up and its regions are registered."""
        await served.ready()
        node, store = served.node, served.store_url
        assert node.view is not None
        up = sum(m.status is Status.UP for m in node.view.members)
        if self._supervisor is not None:
            cluster, port = node.membership.cluster_name, served.server.port
            self._report("ready", node, port, cluster=cluster, up=up, store=store)
            return
        self._output.data(
            f"ready: {node.me.address} in cluster {node.membership.cluster_name!r} ({up} up), "
            f"{served.http_url}, store {store}"
        )
        notify("READY=1")
        if self._ready_fd is not None:
            os.write(self._ready_fd, b"ready\n")
            os.close(self._ready_fd)

    def _report(self, what: str, node: Node, http: int, **facts: object) -> None:
        if self._supervisor is not None:
            address, where = str(node.me.address), [node.settings.http.host, http]
            self._supervisor.report(what, node=address, http=where, **facts)

    async def _live(self, node: Node) -> int | None:
        """Wait for the first signal or the stop of the cluster (None), or until membership has
        ended (the exit code)."""
        first = asyncio.ensure_future(self._signals.first.wait())
        stopped = node.membership.stopped
        ends: set[asyncio.Future[Any]] = {first, stopped, node.membership.cluster_stops}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        first.cancel()
        if stopped.done():
            return self._ended(node)
        notify("STOPPING=1")
        return None

    def _ended(self, node: Node) -> int:
        """Return the exit code for the reason with which membership ended."""
        reason = node.membership.stopped.result()
        if reason == LEFT:
            return OK
        self._print(f"error: this node stops: {reason}")
        if not reason.startswith("join failed"):
            return FAILED
        return REFUSED if node.membership.refusals else UNREACHABLE

    async def _leave(self, node: Node) -> int:
        """Leave, phase by phase, unless a second signal comes."""
        leaving = asyncio.ensure_future(leave(node, self._print))
        again = asyncio.ensure_future(self._signals.second.wait())
        ends: set[asyncio.Future[Any]] = {leaving, again}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        if not leaving.done():
            leaving.cancel()
            self._print("stopped before everything was handed off")
            return FAILED
        if leaving.result():
            self._print("left the cluster")
            return OK
        if node.membership.stopped.done() and node.membership.stopped.result() != LEFT:
            return self._ended(node)
        self._print("stopped before everything was handed off")
        return NOT_DRAINED

    def _print(self, text: str) -> None:
        self._output.note(f"shardbus: {text}")


async def _unless_stopped(work: Coroutine[Any, Any, T], signals: StopSignals) -> T:
    """Return the result of the work.

    Raises:
        _StopAsked: a signal to stop came first. The work was cancelled.
    """
    doing = asyncio.ensure_future(work)
    first = asyncio.ensure_future(signals.first.wait())
    await asyncio.wait({doing, first}, return_when=asyncio.FIRST_COMPLETED)
    first.cancel()
    if not doing.done():
        doing.cancel()
        await asyncio.wait({doing}, timeout=CANCEL_S)
        raise _StopAsked
    return doing.result()


def _begin_to_cordon(node: Node, supervisor: SupervisorLink, tasks: TaskSet) -> None:
    """Begin to take no further shard."""
    cordoning = tasks.spawn(_cordon(node, supervisor), node.loop)
    node.membership.stopped.add_done_callback(lambda _: cordoning.cancel())


async def _cordon(node: Node, supervisor: SupervisorLink) -> None:
    """Report when every member knows that this one takes no further shard; at once if this node is
    not a member yet."""
    if node.view is not None and node.members.is_up:
        node.cluster.post(SetService(node.me, Service.CORDONED))
        while not (node.view.converged and _service(node) is not Service.OPEN):
            await asyncio.sleep(READY_POLL_S)
    supervisor.report("closed")


def _service(node: Node) -> Service:
    mine = node.view.member(node.me) if node.view is not None else None
    return mine.service if mine is not None else Service.CORDONED


def notify(state: str) -> None:
    """Notify systemd, if it started this process and takes the notice now."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s, suppress(OSError):
            s.setblocking(False)
            s.connect("\0" + address[1:] if address.startswith("@") else address)
            s.send(state.encode())
