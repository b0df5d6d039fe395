"""The beginning and the end of a process that runs for long: no signal is lost, and it does end.

**The beginning.** Process 1 of a container gets no signal that it has no handler for, and imports
take a second: a SIGTERM in that time would be lost. So the first thing that such a command does is
to handle SIGTERM and SIGINT. Until the node handles them itself there is nothing to leave: the
process ends with 0, by SystemExit, so that `finally` and `atexit` end the application's work. Code
that catches SystemExit, or does not return, has `EARLY_S`; a second signal ends the process at
once. A thread sees that signal: Python calls handlers only between two instructions of the main
thread, which may be in a call of the system that began just before the signal came. Other commands
end as by the signal's default.

**The end.** Threads of the application that are no daemons, `atexit`, and standard output with a
reader that stands still can each keep a process whose work is done. They have `END_S`; threads that
last for `NOTE_S` are named on standard error.

After these the interpreter takes itself apart, which is not safe beside other threads: ZeroMQ's,
and daemon threads, which run on into it. A node may have some then: the writers of lines, its
deadline and the link to its supervisor, a look-up of a name, a store or a strategy that did not
return, and other libraries' threads. So `finish` joins threads and calls the functions of `atexit`
while the interpreter is whole. All that is left for `atexit` is to flush open files and to end the
process by `os._exit`, with all of its threads at once and with the right code. No `__del__` runs.

Help and `health` do not import this module.

Source: docs/how-to/operate.md.
"""

from __future__ import annotations

import _thread
import atexit
import gc
import io
import os
import select
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from types import FrameType
from typing import Any

LASTING = ("node", "dev", "store")
"""Commands that run for long."""
EARLY_S = 3.0
END_S = 15.0
NOTE_S = 1.0
NAMES_MAX = 500
SIGNALS = (signal.SIGTERM, signal.SIGINT)
FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


class ProcessEnd:
    """The signals before a command handles them itself, and the end of its process."""

    def __init__(self, command: str) -> None:
        self._lasts = command in LASTING
        self._signalled = False

    def handle_signals(self) -> None:
        """Handle the signals, also those that came while a process started anew."""
        if self._lasts:
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, self.on_signal)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        elif os.getpid() == 1:
            signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """End the process. Called between any two instructions."""
        if self._signalled:
            os._exit(0)
        self._signalled = True
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
        """Do an interpreter's last steps, and let it end with this code in its next step; a further
        signal ends it at once. Nothing for a command that does not run for long: it ends as any
        program, and waits for its readers."""
        if not self._lasts:
            return
        self.within(code)
        for number in SIGNALS:
            signal.signal(number, lambda number, frame: os._exit(code))
        flush((sys.stdout, sys.stderr))
        note_threads()
        join_threads()
        call_atexit()
        atexit.register(_end, code)


def _end(code: int) -> None:
    try:
        flush((*open_files(), sys.stdout, sys.stderr))
    finally:
        os._exit(code)


def note_threads() -> None:
    """Name, after `NOTE_S`, the threads for which the end of the process still waits."""
    threading: Any = sys.modules.get("threading")
    if threading is None:
        return

    def note() -> None:
        time.sleep(NOTE_S)
        main = threading.main_thread()
        last = [t.name for t in threading.enumerate() if t is not main and not t.daemon]
        if last:
            names = ", ".join(last)[:NAMES_MAX]
            line = f"shardbus: the process waits for threads that are no daemons: {names}"
            os.write(2, f"{line}; {END_S - NOTE_S:.0f} s more at most\n".encode())

    _thread.start_new_thread(note, ())


def join_threads() -> None:
    """Wait for every thread that is no daemon, as the interpreter does first when it ends."""
    threading: Any = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()


def call_atexit() -> None:
    """Call the functions of `atexit`; an error is printed, and the next function is called."""
    atexit._run_exitfuncs()


def open_files() -> list[Any]:
    """Return every file that this process has open to write: an application may leave some."""
    gc.unfreeze()  # a node has frozen its application's open files
    return [candidate for candidate in gc.get_objects() if issubclass(type(candidate), FILES)]


def flush(files: Iterable[Any]) -> None:
    """Write the buffers of files."""
    for file in files:
        with suppress(OSError, ValueError, AttributeError):  # without a reader, closed, or None
            file.flush()


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
