"""The beginning and the end of a process that runs for long: no signal is lost, and it does end.

**The beginning.** Process 1 of a container gets no signal that it has no handler for, and imports
take a second: a SIGTERM in that time would be lost. So the first thing that such a command does is
to handle SIGTERM and SIGINT. Until the node handles them itself there is nothing to leave: the
process ends with 0, by SystemExit, so that `finally` and `atexit` end what the application has
begun. Code that catches SystemExit, or does not return, has `EARLY_S`; a second signal ends the
process at once. A thread sees that signal: Python calls handlers only between two instructions of
the main thread, which may be in a call of the system that began just before the signal came. Other
commands end as by the signal's default.

**The end.** Threads of the application that are no daemons, `atexit`, and standard output with a
reader that stands still can each keep a process whose work is done. They have `END_S`.

Help and `health` do not import this module.

Source: docs/how-to/operate.md.
"""

from __future__ import annotations

import _thread
import atexit
import os
import select
import signal
import sys
import time
from types import FrameType

LASTING = ("node", "dev")
"""Commands that run for long."""
EARLY_S = 3.0
END_S = 15.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class ProcessEnd:
    """The signals before a command handles them itself, and the end of its process."""

    def __init__(self, command: str) -> None:
        self._lasts = command in LASTING
        self._asked = False

    def handle_signals(self) -> None:
        """Handle the signals, also those that came while a process started anew."""
        if self._lasts:
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, self.on_signal)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            # The last that `atexit` calls: Python then resets handlers, and the code would be lost.
            atexit.register(signal.pthread_sigmask, signal.SIG_BLOCK, SIGNALS)
        elif os.getpid() == 1:
            signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """End the process. Called between any two instructions."""
        if self._asked:
            os._exit(0)
        self._asked = True
        self.within(0, EARLY_S)
        raise SystemExit(0)

    def within(self, code: int, seconds: float | None = None) -> None:
        """Let the process end with this code in `seconds` (`END_S`), if it runs for long and has
        not ended before; a further signal ends it at once. Takes none of the locks of `threading`,
        which code that a signal has interrupted may hold."""
        if self._lasts:
            longest = END_S if seconds is None else seconds
            _thread.start_new_thread(_exit_after, (longest, code, _next_signal()))

    def finish(self, code: int) -> None:
        """Write what standard output and standard error hold, and let the process end with this
        code; a further signal ends it at once. A command that does not run for long waits for its
        readers, as always."""
        if not self._lasts:
            return
        self.within(code)
        for number in SIGNALS:
            signal.signal(number, lambda number, frame: os._exit(code))
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                try:
                    stream.flush()
                except OSError:  # nothing reads it any more
                    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _next_signal() -> int | None:
    """Return a descriptor from which the numbers of further signals can be read; None if no
    descriptor is left."""
    try:
        reading, writing = os.pipe()
    except OSError:
        return None
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading


def _exit_after(seconds: float, code: int, signals: int | None) -> None:
    if signals is None:
        time.sleep(seconds)
    else:
        waiting, ends = select.poll(), time.monotonic() + seconds
        waiting.register(signals, select.POLLIN)
        while waiting.poll(max(0.0, ends - time.monotonic()) * 1000):
            if not set(SIGNALS).isdisjoint(os.read(signals, 64)):
                break
    os._exit(code)
