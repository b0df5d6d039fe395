"""What ties a node to the process that supervises it: one end of a socket.

    the node says      serves    it listens; where, and within how long it leaves once told to
                       ready     it is Up, with its regions registered
                       closed    it takes no shard any more, and all members know
    it is told         close     take no shard any more
                       leave     as by a first SIGTERM; said twice it means no more
                       stop      stop at once
    the socket ends    the supervisor is gone, however it went: leave

A line is one JSON object, or one word. A thread of its own reads it, so that it is heard while a
handler keeps the loop waiting: from then on the process has a deadline, and no node outlives its
supervisor. Before the node has begun there is nothing to leave, and the process just ends.

A node's output goes through pipes to its supervisor. If that is gone, nobody reads them any more:
they are replaced by /dev/null, or what the node says while it leaves would fail.

Source: docs/reference/cli.md; B.12, C.8.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

OK = 0
STDOUT, STDERR = 1, 2


class SupervisedNode(Protocol):
    """What shall leave. Each of them may be called more than once, from any thread."""

    def close(self) -> None: ...

    def leave(self) -> None: ...

    def stop(self) -> None: ...


class SupervisorLink:
    """See the module. `fd` is the socket's descriptor, which was inherited."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._node: SupervisedNode | None = None
        self._lock = threading.Lock()

    def hold(self) -> None:
        """Begin to listen."""
        self._socket.set_inheritable(False)
        threading.Thread(target=self._listen, name="shardbus-leash", daemon=True).start()

    def attach(self, node: SupervisedNode) -> None:
        """From now on there is something to leave."""
        with self._lock:
            self._node = node

    def say(self, what: str, **facts: object) -> None:
        """Tell the supervisor, if there still is one."""
        with suppress(OSError):
            self._socket.sendall(json.dumps({"is": what, **facts}).encode() + b"\n")

    def _listen(self) -> None:
        with suppress(OSError), self._socket.makefile("rb") as lines:
            for line in lines:
                self._on_word(line.strip())
        _silence()
        self._on_word(b"leave")

    def _on_word(self, word: bytes) -> None:
        with self._lock:
            node = self._node
            if node is None:
                os._exit(OK)
        orders = {b"close": node.close, b"stop": node.stop}
        orders.get(word, node.leave)()


class LoopCaller:
    """Calls into a loop from another thread; `late` at once, for the loop may be stuck."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        close: Callable[[], None],
        leave: Callable[[], None],
        stop: Callable[[], None],
        late: Callable[[], None],
    ) -> None:
        self._loop, self._late = loop, late
        self._close, self._leave, self._stop = close, leave, stop

    def close(self) -> None:
        self._call(self._close)

    def leave(self) -> None:
        self._late()
        self._call(self._leave)

    def stop(self) -> None:
        self._late()
        self._call(self._stop)

    def _call(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has ended: so has the node
            self._loop.call_soon_threadsafe(function)


def _silence() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (STDOUT, STDERR):
        os.dup2(nowhere, descriptor)
