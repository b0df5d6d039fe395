"""The nodes of `shardbus dev` under one supervisor: their settings, and their output."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from shardbus.quantities import how_ended
from shardbus_cli.children import group
from shardbus_cli.children.process import ChildKind
from shardbus_cli.children.supervisor import ChildSupervisor
from shardbus_cli.dev.cluster import DevCluster
from shardbus_cli.dev.guide import banner, reloaded
from shardbus_cli.dev.layout import HOST, WEAK, DevFolder, NodePlace
from shardbus_cli.dev.source_files import SourceFiles
from shardbus_cli.line_writer import Console

START = "from shardbus_cli.dev.node_main import main; main()"


class DevOptions(msgspec.Struct, frozen=True):
    """The user's choices. `app` is None for the one of `pyproject.toml`; `store` is a URL; `file`
    and `sets` are for the nodes."""

    app: str | None
    store: str
    shown_store: str
    file: Path | None
    sets: tuple[str, ...]
    reload: bool


async def run_dev(nodes: Sequence[NodePlace], folder: DevFolder, options: DevOptions) -> int:
    """Run the nodes until a signal ends them. Returns the exit code."""
    runner = DevRunner(nodes, folder, options)
    more = [options.file] if options.file else []
    watched = SourceFiles(Path.cwd(), more, runner.on_change)
    if options.reload:
        watched.start()
    try:
        return await runner.children.run(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    finally:
        if options.reload:
            watched.stop()
        runner.console.flush()


class DevRunner:
    """The nodes: how each is started, and their output. Made in the loop that runs them."""

    def __init__(self, nodes: Sequence[NodePlace], folder: DevFolder, options: DevOptions) -> None:
        self._places = {place.number: place for place in nodes}
        self._folder, self._options = folder, options
        self.console = Console()
        machine = DevCluster(len(nodes), reload=options.reload)
        kind = ChildKind("node", START, whole_group=True, held=(folder.lock,))
        at_once = "a second Ctrl-C kills them at once"
        self.children = ChildSupervisor(
            machine, kind, self._arguments, self._report, self.console, at_once
        )
        self._changed: list[str] = []
        self._changed_at = 0.0

    def on_change(self, names: list[str]) -> None:
        """Begin a reload. Called in the thread that watches the files."""
        self._changed = [os.path.relpath(name) for name in names]
        self._changed_at = time.monotonic()
        self.children.post(group.SourceChanged())

    # ---- the supervisor's calls

    def _arguments(self, spawn: group.SpawnChild, fd: int) -> list[str]:
        """Return the description of a node for its process."""
        place, options = self._places[spawn.number], self._options
        strong = {
            "node.host": HOST,
            "node.port": str(place.port),
            "node.gossip_port": str(place.port + 1),
            "node.advertise": place.address,
            "node.seeds": ",".join(self._places[peer].address for peer in spawn.peers),
            "node.join": "auto",
            "http.host": HOST,
            "http.port": str(place.http_port),
            "store.url": options.store,
        }
        task: dict[str, Any] = {
            "app": options.app,
            "file": str(options.file) if options.file else "",
            "set": list(options.sets),
            "weak": {**WEAK, "http.token_file": str(self._folder.token)},
            "strong": strong,
            "fd": fd,
        }
        return [json.dumps(task)]

    def _report(self, effect: group.ChildEffect) -> None:
        """Print an effect."""
        match effect:
            case group.AllReady(generation):
                self._announce(generation)
            case group.RestartLater(number, code, seconds):
                self._note(f"node {number} {how_ended(code)}; it starts again in {seconds:g} s")
            case group.ChildBack(number):
                pid = self._pids().get(number, "-")
                self.console.data(f"node {number} is ready again, process {pid}")
            case group.ChildLeft(number):
                self._note(f"node {number} has left, and stays away until `dev` starts again")
            case group.NotStarted(number, failed):
                self._note(f"node {number} cannot be started: {failed.strerror}")
            case group.Ending():
                self._note("the nodes end")
            case group.NotLoaded(kept):
                nodes = "the nodes run the code as it was" if kept else "no node runs"
                self._note(f"{nodes}; correct the error and save the file")
            case _:
                pass

    def _note(self, text: str) -> None:
        self.console.note(f"shardbus: {text}")

    def _announce(self, generation: int) -> None:
        if generation > 1:
            self.console.data(reloaded(self._changed, time.monotonic() - self._changed_at))
            return
        facts = next(iter(self.children.facts.values()))
        self.console.data(
            banner(
                str(facts["cluster"]),
                list(self._places.values()),
                self._pids(),
                self._options.shown_store,
                facts["example"],
                reloads=self._options.reload,
            )
        )

    def _pids(self) -> dict[int, int]:
        return {process.number: process.pid for process in self.children.processes.values()}
