"""Replaces the process of a downed node by a new one of the same command, which rejoins.

The process id stays, so a supervisor sees no end. Every descriptor that Python and
ZeroMQ opened closes with the old program. The line of `--ready-fd` is not written a second time.

Source: S3.42; docs/downing.md.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Sequence

from shardbus.node.deadline import Output, flush_output
from shardbus_cli.process_end import SIGNALS

REPLACED = ("--ready-fd", "--rejoin", "--rejoin-turn")
"""Options with a value that the new command does not take over."""


def start_anew(output: Output, by: Sequence[str], turn: int) -> None:
    """Run this process's command again, to rejoin through these members, HOST:PORT, the `turn`-th
    time in a row. Return if the system cannot. A signal meanwhile waits until the new program
    handles signals."""
    words = [sys.executable, *without(sys.orig_argv[1:], REPLACED)]
    words += ["--rejoin", ",".join(by), "--rejoin-turn", str(turn)]
    flush_output(output)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        os.execv(sys.executable, words)  # noqa: S606  (this very command)
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        output.note(f"shardbus: error: this process cannot start anew: {error}")


def without(words: Iterable[str], options: Iterable[str]) -> list[str]:
    """Return the words of a command without these options and their values."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in options:
            next(rest, None)
        elif not word.startswith(tuple(f"{option}=" for option in options)):
            kept.append(word)
    return kept
