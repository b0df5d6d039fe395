"""Replaces the process of a downed node by a new one of the same command, which rejoins.

The process id stays, so a supervisor sees no end. Every descriptor that Python and
ZeroMQ opened closes with the old program. The line of `--ready-fd` is not written a second time.

Source: S3.42; docs/downing.md.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Sequence

REPLACED = ("--ready-fd", "--rejoin")
"""Options with a value that the new command does not take over."""


def start_anew(by: Sequence[str]) -> None:
    """Run this process's command again, to rejoin through these members, HOST:PORT. Return if the
    system cannot."""
    words = [sys.executable, *without(sys.orig_argv[1:], REPLACED), "--rejoin", ",".join(by)]
    sys.stdout.flush()
    sys.stderr.flush()
    for handler in logging.getLogger().handlers:
        handler.flush()
    try:
        os.execv(sys.executable, words)  # noqa: S606  (this very command)
    except OSError as error:
        print(f"shardbus: error: this process cannot start anew: {error}", file=sys.stderr)


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
