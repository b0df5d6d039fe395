"""The link between a node and the process that supervises it: a socket.

    the node reports     serves    it listens; its addresses, and the seconds it needs to leave
                         ready     it is Up, with its regions registered
                         closed    it takes no further shard, and all members know
                         leaves    it ends: by a signal, a command, or as its membership has ended
    commands             close     take no further shard
                         leave     as a first SIGTERM; a second one changes nothing
                         stop      stop at once
    the socket closes    the supervisor has ended, for whatever reason: leave

A report is one line with a JSON object; a command is one word on a line. A thread of its own reads
commands, so that they arrive while a handler blocks the loop: the process has a deadline from then
on, and no node outlives its supervisor. Before the node has started, a command ends the process.

A node's output goes through pipes to its supervisor. When the supervisor has ended, the pipes have
no reader; they are replaced by /dev/null, or writes would fail while the node leaves.

Source: docs/reference/cli.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

OK = 0
STDOUT, STDERR = 1, 2


class SupervisedNode(Protocol):
    """The target of commands. Each method may be called more than once, from any thread."""

    def close(self) -> None: ...

    def leave(self) -> None: ...

    def stop(self) -> None: ...


class SupervisorLink:
    """The node's end of the link. `fd` is the inherited descriptor of the socket."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._node: SupervisedNode | None = None
        self._lock = threading.Lock()

    def hold(self) -> None:
        """Start to read commands."""
        self._socket.set_inheritable(False)
        threading.Thread(target=self._listen, name="shardbus-leash", daemon=True).start()

    def attach(self, node: SupervisedNode) -> None:
        """Let commands act on this node."""
        with self._lock:
            self._node = node

    def report(self, what: str, **facts: object) -> None:
        """Send a report to the supervisor, if it still runs."""
        with suppress(OSError):
            self._socket.sendall(json.dumps({"is": what, **facts}).encode() + b"\n")

    def _listen(self) -> None:
        with suppress(OSError), self._socket.makefile("rb") as lines:
            for line in lines:
                self.on_command(line.strip())
        self.on_closed()

    def on_closed(self) -> None:
        """Handle the end of the supervisor. Called in the thread that reads."""
        _discard_output()
        self.on_command(b"leave")

    def on_command(self, command: bytes) -> None:
        """Carry out a command. Called in the thread that reads."""
        with self._lock:
            node = self._node
            if node is None:
                os._exit(OK)
        commands = {b"close": node.close, b"stop": node.stop}
        commands.get(command, node.leave)()


@dataclass(eq=False, repr=False)
class LoopCaller:
    """Passes commands from another thread into the loop. Calls `late` at once: the loop may be
    blocked."""

    _loop: asyncio.AbstractEventLoop
    _close: Callable[[], None]
    _leave: Callable[[], None]
    _stop: Callable[[], None]
    _late: Callable[[], None]

    def close(self) -> None:
        self._call(self._close)

    def leave(self) -> None:
        self._late()
        self._call(self._leave)

    def stop(self) -> None:
        self._late()
        self._call(self._stop)

    def _call(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has ended, and the node with it
            self._loop.call_soon_threadsafe(function)


def _discard_output() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (STDOUT, STDERR):
        os.dup2(nowhere, descriptor)
