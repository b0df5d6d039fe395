"""The program of a node's process of `shardbus dev`.

    dev sends   load   load the application; report `loaded`, or end with exit code 3
                run    start the node; it reports `serves` and `ready`
                end    stop with the whole cluster: entities end with `on_stop`, nothing moves
    the socket closes: as `end`, and after 3 s kill the process group

The library is imported before the first word, so that a reload needs little time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardbus import ShardBus
from shardbus.admin.page_table import administer
from shardbus.config.loading import for_types, origins
from shardbus.errors import LayoutDiffers, ShardBusError
from shardbus.http.page import NodePages
from shardbus.membership.events import PrepareForShutdown
from shardbus.node.node import Node
from shardbus.node.run import run_node
from shardbus.node.supervisor_link import SupervisorLink
from shardbus.store.urls import mask_url
from shardbus_cli.app_and_cluster import app_or_project
from shardbus_cli.app_loader import load_app
from shardbus_cli.children.group import Word
from shardbus_cli.config import checks_of, layers_of, settings_for
from shardbus_cli.dev.guide import example_of, ways_to_other_shards
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.line_writer import Console
from shardbus_cli.logs import configure, enable_loggers, recent_lines, unblock_handlers
from shardbus_cli.output import error
from shardbus_cli.process_end import ProcessEnd

ALONE_S = 3.0
"""For a node to end by itself after `dev` has ended."""


class DevLink(SupervisorLink):
    """The link to `shardbus dev`."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._arrivals = {word: threading.Event() for word in (Word.LOAD, Word.RUN)}
        self._running: Node | None = None
        self.alone = False
        """True once `dev` has ended."""
        self.origins: dict[str, str] = {}
        """Who set each setting."""

    def wait_for(self, word: Word) -> None:
        """Return when this word has come."""
        self._arrivals[word].wait()

    def pages_of(self, node: Node) -> NodePages:
        """Return the pages of the node, which is the one to stop from now on."""
        self._running = node
        return administer(node, self.origins, recent_lines)

    def on_command(self, command: bytes) -> None:
        """Carry out a word. Before the node has started, `end` ends the process."""
        for word, event in self._arrivals.items():
            if command == word.value.encode():
                event.set()
                return
        node = self._running
        if node is None:
            self.end_group()
            os._exit(0)
        try:
            node.loop.call_soon_threadsafe(self._end, node)
        except RuntimeError:  # the loop has ended, and the node with it
            return

    def on_closed(self) -> None:
        """End, and leave no process behind."""
        self.alone = True
        killer = threading.Timer(ALONE_S, self.end_group)
        killer.daemon = True
        killer.start()
        super().on_closed()

    def end_group(self) -> None:
        """Kill this process and the programs that the application started, if `dev` has ended. If
        it runs, it does so itself."""
        if self.alone:
            os.killpg(os.getpgrp(), signal.SIGKILL)

    def _end(self, node: Node) -> None:
        if node.members.is_up:
            node.cluster.post(PrepareForShutdown())
        else:
            super().on_command(b"stop")


def main() -> None:
    """Run one node, as the first argument describes it, and end the process."""
    task = json.loads(sys.argv[1])
    link = DevLink(task["fd"])
    link.hold()
    try:
        code = _run(task, link)
    except (CommandFailure, ShardBusError) as raised:
        failed = raised if isinstance(raised, CommandFailure) else CommandFailure.of(raised)
        error(str(failed))
        code = failed.code
    link.end_group()
    ProcessEnd("node").finish(code)
    sys.exit(code)


def _run(task: dict[str, Any], link: DevLink) -> int:
    link.wait_for(Word.LOAD)
    bus = load_app(app_or_project(task["app"]))
    file = Path(task["file"]) if task["file"] else None
    user, weak = layers_of(file, [], task["set"]), dict(task["weak"])
    if any(_sets_token(layer) for _, layer in user):
        del weak["http.token_file"]  # a node has one of the two
    layers = for_types([*_layers(weak), *user, *_layers(task["strong"])], bus.types)
    settings, link.origins = settings_for(layers, bus), origins(layers)
    from shardbus.ids import Address

    address = str(Address.advertised(settings.node.host, settings.node.port))
    configure(settings.log.level, settings.log.format, node=address)
    unblock_handlers()
    enable_loggers()
    for look in checks_of(bus, settings).values():
        look()
    link.report("loaded", cluster=bus.name, example=_example(bus))
    link.wait_for(Word.RUN)
    console = Console()
    try:
        return run_node(bus, settings, link.pages_of, console, supervisor=link)
    except LayoutDiffers as differs:
        ways = ways_to_other_shards(differs.entity_type, bus.name, mask_url(settings.store.url))
        raise CommandFailure(differs.message, ways, code=ExitCode.FAILED) from None
    finally:
        console.flush()


def _layers(settings: dict[str, str]) -> list[Any]:
    from shardbus.config.loading import from_assignments

    return from_assignments([f"{key}={value}" for key, value in settings.items()])


def _sets_token(layer: Mapping[str, object]) -> bool:
    http = layer.get("http")
    return isinstance(http, Mapping) and "token" in http


def _example(bus: ShardBus) -> list[str]:
    return example_of({name: kind.interface for name, kind in bus.types.items()})
