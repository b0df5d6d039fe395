"""SIGTERM, SIGINT and SIGHUP of a node's process: the first lets it leave, the second stops it.

The handler of asyncio runs when the loop turns, and Python then restarts the call that the signal
interrupts. So a handler that blocks the loop, such as a `print` whose reader stands still, would
keep both from the process. A handler of Python itself runs in the main thread between two
instructions, and in a blocking call that the signal interrupts. Here it does two things, both of
which take no lock: it sets the deadline of the process, and passes the request into the loop.

A node with a secret reads it again at SIGHUP instead (`run`). Without one it leaves: its terminal
was closed.

Source: docs/how-to/operate.md.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress

from shardbus.node.deadline import STOP_S, Deadline

NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}


class StopSignals:
    """The requests to stop, as events: the first and the second. Made in the loop that runs the
    node."""

    def __init__(self, deadline: Deadline) -> None:
        self.first, self.second = asyncio.Event(), asyncio.Event()
        self.count = 0
        """Signals so far. Written by the main thread."""
        self._deadline = deadline
        self._loop = asyncio.get_running_loop()

    def listen(self) -> None:
        """Handle the signals of this process from now on. Called in the main thread."""
        for number in NAMES:
            signal.signal(number, self.on_signal)

    def on_signal(self, number: int, frame: object) -> None:
        """Count a signal. Called between any two instructions of the main thread."""
        self.count += 1
        if self.count == 1:
            self._deadline.again = f"a second {NAMES[signal.Signals(number)]}"
            self._deadline.within()
        else:
            self._deadline.again = ""
            self._deadline.within(STOP_S)
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.stop)

    def stop(self) -> None:
        """Ask the node to leave; the second time, to stop."""
        if self.first.is_set():
            self.second.set()
        self.first.set()

    def stop_at_once(self) -> None:
        """Ask the node to stop."""
        self.first.set()
        self.second.set()
