"""Starts a child process with a socket for words and reports, and two pipes for its output.

The child is in a process group of its own, so that Ctrl-C on the terminal reaches only its parent.
It inherits no descriptors of other children, because a socket must close with the process at its
other end. Nothing here imports asyncio: the import would take processor time from the children.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence

from shardbus_cli.workers.prefixed_output import PrefixedOutput


def start_child(
    number: int,
    code: str,
    arguments: Callable[[int], Sequence[str]],
    output: PrefixedOutput,
    *held: int,
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process, and return it with the parent's end of the socket.

    Args:
        number: the number before each line of its output.
        code: the Python code that it runs.
        arguments: returns its arguments for the descriptor of its end of the socket.
        output: prints what it writes.
        held: descriptors that it inherits besides.

    Raises:
        OSError: the system cannot start a process. Nothing is left open.
    """
    ours, theirs = socket.socketpair()
    out, err = os.pipe(), os.pipe()
    try:
        process = subprocess.Popen(  # noqa: S603  (a fixed command)
            [sys.executable, "-c", code, *arguments(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=out[1],
            stderr=err[1],
            env={name: v for name, v in os.environ.items() if name != "NOTIFY_SOCKET"},
            pass_fds=[theirs.fileno(), *held],
            process_group=0,
        )
    except OSError:
        ours.close()
        os.close(out[0])
        os.close(err[0])
        raise
    finally:
        theirs.close()
        os.close(out[1])
        os.close(err[1])
    output.add(number, out=out[0], err=err[0])
    return process, ours


def how_ended(code: int) -> str:
    """Return in words how a process ended; a negative code is a signal."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
