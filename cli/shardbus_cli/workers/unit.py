"""A unit: its workers under one supervisor, and its HTTP.

It hosts nothing and loads no application, so little can fail in it. It handles signals as a node
does: after the first SIGTERM or SIGINT all workers leave, after the second they stop at once.

Source: docs/reference/cli.md.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

from shardbus.config.settings import Settings
from shardbus.guarded_log import GuardedLog
from shardbus.http.guard import with_tokens
from shardbus.http.server import scheme, serve, tls_files
from shardbus.ids import Address
from shardbus.node.run import notify
from shardbus.quantities import how_ended
from shardbus_cli import output
from shardbus_cli.children import group
from shardbus_cli.children.process import ChildKind
from shardbus_cli.children.supervisor import ChildSupervisor
from shardbus_cli.line_writer import Console
from shardbus_cli.workers.http_front import Place, Row, create_front
from shardbus_cli.workers.plan import WorkerPlan
from shardbus_cli.workers.worker_group import WorkerGroup, WorkerStage

log = GuardedLog("shardbus.workers")

KIND = ChildKind("worker", "from shardbus_cli.main import main; main()")
ANY_INTERFACE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104
"""The address for requests to a worker that listens on every interface."""


async def run_unit(
    plan: WorkerPlan, settings: Settings, console: Console, ready_fd: int | None
) -> int:
    """Run a unit until a signal stops it or it cannot continue. Returns the exit code.

    Raises:
        ConfigError: the HTTP port cannot be used. Nothing was started.
    """
    unit = Unit(plan, settings, console, ready_fd)
    node, http = settings.node, with_tokens(settings.http)
    app = create_front(unit, http, node.advertise or node.host)
    server = serve(app, http.host, http.port, tls_files(http))
    await server.start()
    unit.url = f"{scheme(http)}://{Address(http.host, server.port)}"
    stops = [signal.SIGTERM, signal.SIGINT]
    if settings.security.secret:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, unit.reload_keys)
    else:
        stops.append(signal.SIGHUP)
    try:
        return await unit.children.run(*stops)
    finally:
        await server.stop()


class Unit:
    """The workers of one unit, and the `WorkerUnit` of its HTTP front. Made in the loop that runs
    it."""

    def __init__(
        self, plan: WorkerPlan, settings: Settings, console: Console, ready_fd: int | None
    ) -> None:
        self._plan, self._ready_fd, self._console = plan, ready_fd, console
        self._group = WorkerGroup(len(plan.workers))
        at_once = "a second Ctrl-C or SIGTERM stops them at once"
        self.children = ChildSupervisor(
            self._group, KIND, self._arguments, self._report, console, at_once
        )
        self.url = ""

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
        places: dict[int, Place] = {}
        for stage in (WorkerStage.READY, WorkerStage.JOINING):
            for n, facts in self.children.facts.items():
                if self._group.states[n].stage is stage:
                    host, port = str(facts["http"][0]), int(facts["http"][1])
                    places[n] = (ANY_INTERFACE.get(host, host), port)
        return places

    def rows(self) -> list[Row]:
        """Return one row for each worker, for `/v1/workers`."""
        return [self._row(n) for n in range(len(self._plan.workers))]

    def _row(self, number: int) -> Row:
        state, facts = self._group.states[number], self.children.facts.get(number, {})
        process = self.children.processes.get(number)
        host, port = facts.get("http", ("", 0))
        return {
            "worker": number,
            "stage": state.stage.value,
            "address": str(self._plan.workers[number].address),
            "http": f"{host}:{port}" if port else "",
            "pid": process.pid if process is not None else None,
            "starts": state.starts,
        }

    # ---- the supervisor's calls

    def _arguments(self, spawn: group.SpawnChild, fd: int) -> list[str]:
        """Return the arguments of `shardbus` for a worker."""
        return self._plan.command(spawn.number, fd, joins=bool(spawn.peers))

    def _report(self, effect: group.ChildEffect) -> None:
        """Log an effect, or announce that the unit is ready."""
        match effect:
            case group.KillChild(number):
                log.error("worker %d did not end in time and is killed", number)
            case group.RestartLater(number, code, seconds):
                how = how_ended(code)
                log.error("worker %d %s; it is restarted in %g s", number, how, seconds)
            case group.NotStarted(number, failed):
                log.error("worker %d cannot be started: %s", number, failed)
            case group.Ending():
                notify("STOPPING=1")
                workers = output.counted(len(self.expected), "worker leaves", "workers leave")
                self._console.note(f"shardbus: {workers}")
            case group.AllReady():
                self._announce()
            case _:
                pass

    def reload_keys(self) -> None:
        """Let every worker read the file of the cluster's secret again."""
        for process in self.children.processes.values():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGHUP)

    def _announce(self) -> None:
        """Print the line that the unit is ready, and notify `--ready-fd` and systemd."""
        facts = max(self.children.facts.values(), key=lambda facts: int(facts.get("up", 0)))
        addresses = ", ".join(str(worker.address) for worker in self._plan.workers)
        cluster = f"in cluster {facts['cluster']!r} ({facts['up']} up)"
        workers = output.counted(len(self._plan.workers), "worker")
        self._console.data(
            f"ready: {workers} {addresses} {cluster}, {self.url}, store {facts['store']}"
        )
        notify("READY=1")
        if self._ready_fd is not None:
            os.write(self._ready_fd, b"ready\n")
            os.close(self._ready_fd)
