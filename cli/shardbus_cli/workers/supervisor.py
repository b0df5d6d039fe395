"""The supervisor of a unit: it starts workers and carries out the effects of `worker_group`.

It hosts nothing and loads no application, so little can fail in it. It handles signals as a node
does: after the first SIGTERM or SIGINT all workers leave, after the second they stop at once.

Source: docs/reference/cli.md.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from functools import partial
from typing import Any

from shardbus.config.settings import Settings
from shardbus.guarded_log import GuardedLog
from shardbus.http.guard import with_tokens
from shardbus.http.server import scheme, serve, tls_files
from shardbus.node.run import notify
from shardbus_cli.line_writer import Console
from shardbus_cli.workers import worker_group
from shardbus_cli.workers.child_process import how_ended
from shardbus_cli.workers.http_front import Place, Row, create_front
from shardbus_cli.workers.plan import WorkerPlan
from shardbus_cli.workers.prefixed_output import PrefixedOutput
from shardbus_cli.workers.process import WorkerProcess
from shardbus_cli.workers.worker_group import WorkerGroup, WorkerStage

log = GuardedLog("shardbus.workers")

ANY_INTERFACE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104
"""The address for requests to a worker that listens on every interface."""
FIRST_NOTE_S, NOTE_S = 1.0, 5.0
"""Until the first report of which workers have not ended, and between two."""


def supervise(plan: WorkerPlan, settings: Settings, console: Console, ready_fd: int | None) -> int:
    """Run a unit until a signal stops it or it cannot continue. Returns the exit code.

    Raises:
        ConfigError: the HTTP port cannot be used. Nothing was started.
    """
    return asyncio.run(UnitSupervisor(plan, settings, console, ready_fd).run())


class UnitSupervisor:
    """Runs the workers of one unit, and is the `WorkerUnit` of its HTTP front."""

    def __init__(
        self, plan: WorkerPlan, settings: Settings, console: Console, ready_fd: int | None
    ) -> None:
        self._plan, self._settings, self._ready_fd = plan, settings, ready_fd
        self._console = console
        self._group = WorkerGroup(len(plan.workers))
        self._processes: dict[int, WorkerProcess] = {}
        self._reports: dict[int, Row] = {}
        self._output = PrefixedOutput()
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> int:
        """Run until the last worker has ended. Returns the exit code."""
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        own, http = self._settings.node, with_tokens(self._settings.http)
        app = create_front(self, http, own.advertise or own.host)
        self._server = serve(app, http.host, http.port, tls_files(http))
        await self._server.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        if self._settings.security.secret:
            self._loop.add_signal_handler(signal.SIGHUP, self._reload_keys)
        self._output.start()
        self._handle(worker_group.StartUnit())
        try:
            return await self._ended
        finally:
            for process in self._processes.values():
                process.kill()
            await self._server.stop()
            await asyncio.to_thread(self._output.close)

    # ---- the unit of the HTTP front

    @property
    def announced(self) -> bool:
        """True if the unit was ready once."""
        return self._group.announced

    @property
    def leaving(self) -> bool:
        """True if the unit leaves: by a signal, or because it cannot continue."""
        return self._group.leaving

    @property
    def expected(self) -> list[int]:
        """Return the workers that have not left by order."""
        return [n for n, s in enumerate(self._group.states) if s.stage is not WorkerStage.GONE]

    @property
    def serving(self) -> dict[int, Place]:
        """Return the HTTP addresses of the workers that serve, those that are ready first."""
        found: dict[int, Place] = {}
        for wanted in (WorkerStage.READY, WorkerStage.JOINING):
            for n, said in self._reports.items():
                if self._group.states[n].stage is wanted:
                    host, port = str(said["http"][0]), int(said["http"][1])
                    found[n] = (ANY_INTERFACE.get(host, host), port)
        return found

    def rows(self) -> list[Row]:
        """Return one row for each worker, for `/v1/workers`."""
        return [self._row(n) for n in range(len(self._plan.workers))]

    def _row(self, number: int) -> Row:
        state, said = self._group.states[number], self._reports.get(number, {})
        running = state.stage in worker_group.RUNNING
        process = self._processes.get(number)
        host, port = said.get("http", ("", 0))
        return {
            "worker": number,
            "stage": state.stage.value,
            "address": str(self._plan.workers[number].address),
            "http": f"{host}:{port}" if port else "",
            "pid": process.pid if process is not None and running else None,
            "starts": state.starts,
        }

    # ---- events

    def _on_signal(self, number: int, frame: object) -> None:
        """Pass a signal into the loop. Unlike a handler of asyncio, it stays until the process
        ends, so that no signal changes the exit code."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        if not self._group.leaving:
            notify("STOPPING=1")
            self._console.note(f"shardbus: {len(self.expected)} workers leave")
            self._loop.call_later(FIRST_NOTE_S, self._note_ends)
        self._handle(worker_group.LeaveUnit())

    def _note_ends(self) -> None:
        """Report which workers have not ended yet, and how long they may take."""
        late = [n for n, s in enumerate(self._group.states) if s.stage in worker_group.RUNNING]
        if late and not self._ended.done():
            left = max(0.0, self._group.ends_by - time.monotonic())
            self._console.note(
                f"shardbus: waiting for the end of worker {', '.join(map(str, late))}, {left:.0f} s"
                " more at most, then they are killed; a second Ctrl-C or SIGTERM stops them at once"
            )
            self._loop.call_later(NOTE_S, self._note_ends)

    def _reload_keys(self) -> None:
        """Let every worker read the file of the cluster's secret again."""
        for row in self.rows():
            if row["pid"] is not None:
                os.kill(row["pid"], signal.SIGHUP)

    def _on_report(self, number: int, said: Row) -> None:
        match said.get("is"):
            case "serves":
                self._reports[number] = said
                self._handle(worker_group.WorkerServing(number, float(said["leave_within"])))
            case "ready":
                self._reports[number] = said
                self._handle(worker_group.WorkerReady(number))
            case "closed":
                self._handle(worker_group.WorkerClosed(number))
            case "leaves":
                self._handle(worker_group.WorkerLeaves(number))
            case _:
                log.warning("worker %d sent an unknown report", number)

    def _on_exited(self, number: int, code: int) -> None:
        self._reports.pop(number, None)
        self._handle(worker_group.WorkerExited(number, code))

    def _on_time(self) -> None:
        self._carry_out(self._group.tick(time.monotonic()))

    def _handle(self, event: worker_group.Event) -> None:
        self._carry_out(self._group.handle(event, time.monotonic()))

    # ---- effects

    def _carry_out(self, effects: list[worker_group.Effect]) -> None:
        for effect in effects:
            match effect:
                case worker_group.SpawnWorker(number, again):
                    self._start(number, again=again)
                case worker_group.CommandWorker(number, word):
                    self._processes[number].send(word)
                case worker_group.KillWorker(number):
                    log.error("worker %d did not end in time and is killed", number)
                    self._processes[number].kill()
                case worker_group.RestartLater(number, code, seconds):
                    how = how_ended(code)
                    log.error("worker %d %s; it is restarted in %g s", number, how, seconds)
                case worker_group.AnnounceReady():
                    self._announce()
                case worker_group.EndUnit(code):
                    self._ended.set_result(code)
        self._set_timer()

    def _start(self, number: int, *, again: bool) -> None:
        process = WorkerProcess(
            number, partial(self._on_report, number), partial(self._on_exited, number)
        )
        self._processes[number] = process
        try:
            process.start(partial(self._plan.command, number, again=again), self._output)
        except OSError as failed:
            log.error("worker %d cannot be started: %s", number, failed)
            self._loop.call_soon(self._on_exited, number, worker_group.FAILED)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = self._group.deadline()
        if due is not None and not self._ended.done():
            wait = max(0.0, due - time.monotonic())
            self._timer = self._loop.call_later(wait, self._on_time)

    def _announce(self) -> None:
        """Print the line that the unit is ready, and notify `--ready-fd` and systemd."""
        said: Any = max(self._reports.values(), key=lambda said: said["up"])
        addresses = ", ".join(str(worker.address) for worker in self._plan.workers)
        http = self._settings.http
        where = f"{scheme(http)}://{http.host}:{self._server.port}"
        told = f"in cluster {said['cluster']!r} ({said['up']} up), {where}, store {said['store']}"
        self._console.data(f"ready: {len(self._plan.workers)} workers {addresses} {told}")
        notify("READY=1")
        if self._ready_fd is not None:
            os.write(self._ready_fd, b"ready\n")
            os.close(self._ready_fd)
