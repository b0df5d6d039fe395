"""Carries out the effects of `dev.cluster`: starts processes, sends words, prints.

One loop takes events from a queue: reports and ends of processes, changes of files, signals. A
`SimpleQueue` may be filled by a signal handler while the loop waits in it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from shardbus_cli.dev import cluster
from shardbus_cli.dev.cluster import DevCluster, DevEffect, DevEvent, DevStage
from shardbus_cli.dev.guide import banner, reloaded
from shardbus_cli.dev.layout import HOST, WEAK, DevFolder, NodePlace
from shardbus_cli.dev.node_process import NodeProcess, Report
from shardbus_cli.dev.source_files import SourceFiles
from shardbus_cli.line_writer import Console
from shardbus_cli.workers.child_process import how_ended
from shardbus_cli.workers.prefixed_output import PrefixedOutput

LONGEST_WAIT_S = 3600.0
FIRST_NOTE_S, NOTE_S = 1.0, 5.0
"""Until the first report of which nodes have not ended, and between two."""


@dataclass(frozen=True, slots=True)
class DevOptions:
    """What the user asked for. `app` is None for the one of `pyproject.toml`; `store` is a URL;
    `file` and `sets` are for the nodes."""

    app: str | None
    store: str
    shown_store: str
    file: Path | None
    sets: tuple[str, ...]
    reload: bool


class DevRunner:
    """Runs the nodes until a signal ends them."""

    def __init__(self, nodes: Sequence[NodePlace], folder: DevFolder, options: DevOptions) -> None:
        self._places = {place.number: place for place in nodes}
        self._folder, self._options = folder, options
        self._cluster = DevCluster(len(nodes), reload=options.reload)
        self._events: SimpleQueue[DevEvent | tuple[int, Report] | list[str]] = SimpleQueue()
        self._processes: dict[int, NodeProcess] = {}
        self._output, self._console = PrefixedOutput(), Console()
        self._said: Report = {}
        self._changed: list[str] = []
        self._changed_at = 0.0
        self._code: int | None = None
        self._interrupted = False
        self._note_at: float | None = None
        """When to report which nodes have not ended yet."""

    def run(self) -> int:
        """Run until the last process has ended. Returns the exit code."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: self._events.put(cluster.Interrupt()))
        self._output.start()
        watched = self._watch() if self._options.reload else None
        self._handle(cluster.StartAll())
        try:
            while self._code is None:
                self._step()
            return self._code
        finally:
            for process in self._processes.values():
                process.kill()
            if watched is not None:
                watched.stop()
            self._output.close()
            self._console.flush()

    def _watch(self) -> SourceFiles:
        more = [self._options.file] if self._options.file else []
        watched = SourceFiles(Path.cwd(), more, self._events.put)
        watched.start()
        return watched

    def _step(self) -> None:
        """Wait for an event or the next deadline, and handle it."""
        dues = [due for due in (self._cluster.deadline(), self._note_at) if due is not None]
        wait = max(0.0, min(dues) - time.monotonic()) if dues else LONGEST_WAIT_S
        try:
            event = self._events.get(timeout=wait)
        except Empty:
            self._on_time(time.monotonic())
            return
        match event:
            case tuple():
                self._on_report(*event)
            case list():
                self._on_changed(event)
            case _:
                self._on_event(event)

    # ---- events

    def _on_event(self, event: DevEvent) -> None:
        if isinstance(event, cluster.Interrupt):
            self._console.note("shardbus: the nodes end")
            self._note_at = None if self._interrupted else time.monotonic() + FIRST_NOTE_S
            self._interrupted = True
        if isinstance(event, cluster.RunExited):
            self._processes.pop(event.run, None)
        self._handle(event)

    def _on_time(self, now: float) -> None:
        due = self._cluster.deadline()
        if self._note_at is not None and self._note_at <= now:
            self._note_ends(now)
        if due is not None and due <= now:
            self._carry_out(self._cluster.tick(now))

    def _note_ends(self, now: float) -> None:
        """Report which nodes have not ended yet, and how long they may take."""
        self._note_at = now + NOTE_S
        late = [str(n) for n, stage in self._cluster.stages.items() if stage is DevStage.ENDING]
        due = self._cluster.deadline()
        if late and due is not None:
            self._console.note(
                f"shardbus: waiting for the end of node {', '.join(late)}, {due - now:.0f} s more "
                "at most, then they are killed; a second Ctrl-C kills them at once"
            )

    def _on_changed(self, names: list[str]) -> None:
        self._changed = [os.path.relpath(name) for name in names]
        self._changed_at = time.monotonic()
        self._handle(cluster.SourceChanged())

    def _on_report(self, run: int, said: Report) -> None:
        match said.get("is"):
            case "loaded":
                self._said = said
                self._handle(cluster.AppLoaded(run))
            case "serves":
                self._handle(cluster.RunServes(run))
            case "ready":
                self._handle(cluster.RunReady(run))

    def _handle(self, event: DevEvent) -> None:
        self._carry_out(self._cluster.handle(event, time.monotonic()))

    # ---- effects

    def _carry_out(self, effects: Iterable[DevEffect]) -> None:
        for effect in effects:
            match effect:
                case cluster.StartRun(run, number, seeds):
                    self._start(run, number, seeds)
                case cluster.CommandRun(run, word):
                    self._send(run, word.value)
                case cluster.KillRun(run):
                    self._kill(run)
                case cluster.EndDev(code):
                    self._code = code
                case _:
                    self._print(effect)

    def _start(self, run: int, number: int, seeds: Iterable[int]) -> None:
        process = NodeProcess(
            number,
            lambda said: self._events.put((run, said)),
            lambda code: self._events.put(cluster.RunExited(run, code)),
        )
        self._processes[run] = process
        try:
            process.start(self._task(number, seeds), self._folder.lock, self._output)
        except OSError as failed:
            self._console.note(f"shardbus: node {number} cannot be started: {failed.strerror}")
            self._events.put(cluster.RunExited(run, cluster.FAILED))

    def _task(self, number: int, seeds: Iterable[int]) -> dict[str, Any]:
        """Return what a node's process needs to know."""
        place = self._places[number]
        strong = {
            "node.host": HOST,
            "node.port": str(place.port),
            "node.gossip_port": str(place.port + 1),
            "node.advertise": place.address,
            "node.seeds": ",".join(self._places[seed].address for seed in seeds),
            "node.join": "auto",
            "http.host": HOST,
            "http.port": str(place.http_port),
            "store.url": self._options.store,
        }
        options = self._options
        return {
            "app": options.app,
            "file": str(options.file) if options.file else "",
            "set": list(options.sets),
            "weak": {**WEAK, "http.token_file": str(self._folder.token)},
            "strong": strong,
        }

    def _send(self, run: int, word: str) -> None:
        process = self._processes.get(run)
        if process is not None:
            process.send(word)

    def _kill(self, run: int) -> None:
        process = self._processes.get(run)
        if process is not None:
            process.kill()

    def _print(self, effect: DevEffect) -> None:
        match effect:
            case cluster.AllReady(generation):
                self._announce(generation)
            case cluster.NodeRestarts(number, code, seconds):
                self._console.note(
                    f"shardbus: node {number} {how_ended(code)}; it starts again in {seconds:g} s"
                )
            case cluster.RunBack(number):
                self._console.data(
                    f"node {number} is ready again, process {self._pids().get(number, '-')}"
                )
            case cluster.RunLeft(number):
                self._console.note(
                    f"shardbus: node {number} has left, and stays away until `dev` starts again"
                )
            case cluster.NotLoaded(kept):
                what = "the nodes run the code as it was" if kept else "no node runs"
                self._console.note(f"shardbus: {what}; correct the error and save the file")

    def _announce(self, generation: int) -> None:
        if generation > 1:
            self._console.data(reloaded(self._changed, time.monotonic() - self._changed_at))
            return
        self._console.data(
            banner(
                str(self._said.get("cluster", "")),
                list(self._places.values()),
                self._pids(),
                self._options.shown_store,
                self._said.get("example", ()),
                reloads=self._options.reload,
            )
        )

    def _pids(self) -> dict[int, int]:
        return {process.number: process.pid for process in self._processes.values()}
