"""The end of a node's process: at a deadline, whatever its loop and its output do.

Each phase of leaving has a timeout, but no timeout ends a function that blocks the loop, a task
that ignores its cancellation, or a `print` whose reader stands still. So a thread waits for
somewhat longer than all phases may take, and then ends the process. Deadlines are set

    at the first signal, when the node begins to leave      for the phases of leaving
    at the second                                           `STOP_S`
    when membership ends other than by leaving              `DOWNED_S`

and the earliest counts. Until then, the thread reports every `NOTE_S` the cause of the node's wait,
and its longest time.

The exit code is 7, or the node's own if the node has ended and only the process has not. A process
whose loop was blocked may start anew instead, but not if its output stands still: it would only
stand still again.

Source: S3.42; docs/how-to/operate.md.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from traceback import walk_stack
from typing import Protocol

from shardbus.entities.slow_handlers import places
from shardbus.error_text import described
from shardbus.node.node import Node
from shardbus.node.served_node import AFTERWARDS_S, leaves_within
from shardbus.node.shutdown import waits_for

DOWNED_S = 15.0
"""For a node that was downed to end; it hands nothing off."""
STOP_S = 5.0
"""For a node to end after the second signal."""
FIRST_NOTE_S, NOTE_S = 1.0, 5.0
"""Until the first report of the cause of a node's wait, and between two."""
BLOCKED_S = 1.0
"""A loop that has not turned for that long is reported as blocked."""
FLUSH_S = 1.0
"""For the last lines to be written, at the end of the process."""
STILL_MS = 200
"""An output that takes nothing for that long stands still."""
NOT_DRAINED = 7
STDOUT, STDERR = 1, 2


class Output(Protocol):
    """Standard output and standard error of a node's process. No method waits for a reader, but
    `flush`, which waits for a moment."""

    def data(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...
    def flush(self) -> None: ...


class Deadline:
    """Ends the process at a deadline. Belongs to the main thread; `within` may be called in any,
    also while a signal is handled: it takes no lock."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._orders: SimpleQueue[float | None] = SimpleQueue()
        """Seconds until the end; 0 for the phases of leaving, None to let the process run."""
        self._main = threading.main_thread().ident
        self._until: float | None = None
        self._note_at = 0.0
        self.node: Node | None = None
        """The node, once there is one."""
        self.again = ""
        """The way to end the process at once, for the reports; empty if there is none."""
        self.code = NOT_DRAINED
        """The exit code of the process if it is ended. Once the node has one of its own, only the
        end of the process takes too long, and that is no news for a supervisor."""
        self.instead: Callable[[], object] | None = None
        """Starts the process anew instead of ending it; it returns if it cannot."""

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="shardbus-deadline", daemon=True).start()

    def within(self, seconds: float = 0.0) -> None:
        """End the process in `seconds`, unless an earlier end is set; by default when the phases of
        leaving must have ended."""
        self._orders.put(seconds)

    def cancel(self) -> None:
        """Let the process run."""
        self._orders.put(None)

    def _run(self) -> None:
        while True:
            now = time.monotonic()
            due = None if self._until is None else min(self._until, self._note_at)
            try:
                order = self._orders.get(timeout=None if due is None else max(0.0, due - now))
            except Empty:
                if self._until is not None and time.monotonic() >= self._until:
                    self.end()
                    return
                self._note()
                continue
            if order is None:
                self._until = None
                continue
            if self._until is None:
                self._note_at = time.monotonic() + FIRST_NOTE_S
            until = time.monotonic() + (order or self._leaves_within())
            self._until = until if self._until is None else min(self._until, until)

    def _leaves_within(self) -> float:
        """Seconds within which the node leaves; one that is not there yet has nothing to leave."""
        return AFTERWARDS_S if self.node is None else leaves_within(self.node)

    def _note(self) -> None:
        """Report the cause of the node's wait."""
        assert self._until is not None
        self._note_at = time.monotonic() + NOTE_S
        left = max(0.0, self._until - time.monotonic())
        stops = f"; {self.again} stops it at once" if self.again else ""
        self._output.note(
            f"shardbus: this node waits for {self._waits_for()}, {left:.0f} s more at most{stops}"
        )

    def _waits_for(self) -> str:
        node = self.node
        if node is None:
            return "the present step of its start"
        if node.membership.lag >= BLOCKED_S:
            return f"its loop, which is blocked at {self._place()}"
        try:
            return waits_for(node)
        except Exception as changed:  # the loop's thread changes the objects that it reads
            return f"the end of {node.phases.current} ({described(changed, 100)})"

    def _place(self) -> str:
        """Return where the code of the main thread is."""
        return " < ".join(places(walk_stack(sys._current_frames().get(self._main or 0))))

    def end(self) -> None:
        """End the process now. Waits for no reader, lock or code of the application."""
        node, stands_still = self.node, output_stands_still()
        phase = (node.phases.current if node is not None else "") or "a blocked loop"
        self._output.note(
            f"shardbus: error: {phase} does not end, at {self._place()}: this process is stopped"
        )
        if self.instead is not None and not stands_still:
            self.instead()
        flush_output(self._output)
        os._exit(self.code)


def output_stands_still() -> bool:
    """True if standard output or standard error takes nothing: its reader stands still."""
    for descriptor in (STDOUT, STDERR):
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        if not poll.poll(STILL_MS):  # a closed one counts as ready
            return True
    return False


def flush_output(output: Output) -> None:
    """Write buffered output, for `FLUSH_S` at most: a reader may stand still, and code of the
    application may hold the lock of a stream or of a handler of `logging` for ever."""

    def flush() -> None:
        output.flush()
        for handler in logging.getLogger().handlers:
            handler.flush()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()

    flushing = threading.Thread(target=flush, name="shardbus-flush", daemon=True)
    flushing.start()
    flushing.join(FLUSH_S)
