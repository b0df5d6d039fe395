"""Interrupts: exceptions that a signal has raised, in whatever code ran at that moment.

Code of the application may raise KeyboardInterrupt or SystemExit like any exception: a parser of
arguments calls `sys.exit`. That is the failure of one message. A signal may raise the same classes
in the midst of that code, and then the process is to end. The traceback distinguishes the two: an
exception of a signal comes from a frame of the function that Python calls for the signal. The
function of SIGINT that Python installs by itself has no frame; while it is installed, every
KeyboardInterrupt of the main thread counts as an interrupt.

A time limit, as of Celery or RQ, is such a function that raises an Exception. It ends no process,
but it belongs to the caller whose code ran: where a value of the caller is encoded, it is no error
of that value. `PyThreadState_SetAsyncExc`, as of Dramatiq, leaves no frame, and is not recognised.

Source: the `signal` module of Python; `asyncio.Runner`, whose function raises at the second Ctrl-C.
"""

from __future__ import annotations

import signal
import threading
from functools import partial
from types import CodeType
from typing import Any

from shardbus.error_text import is_a, is_exception, traceback_in


def is_interrupt(error: BaseException) -> bool:
    """True if a signal has raised the exception, so that it must end the process."""
    return not is_exception(error) and _by_signal(error)


def raise_interrupt(error: BaseException) -> None:
    """Raise the exception once more if a signal has raised it to end the process."""
    if is_interrupt(error):
        raise error


def raise_signalled(error: BaseException) -> None:
    """Raise the exception once more if a signal has raised it, of whatever class: its caller gets
    it instead of an error of the value that was encoded."""
    if _by_signal(error):
        raise error


def _by_signal(error: BaseException) -> bool:
    if threading.current_thread() is not threading.main_thread():
        return False
    installed = [signal.getsignal(number) for number in signal.valid_signals()]
    if is_a(error, KeyboardInterrupt) and signal.default_int_handler in installed:
        return True
    codes = {code for function in installed if (code := _code_of(function)) is not None}
    place = traceback_in(error)
    while place is not None:
        if place.tb_frame.f_code in codes:
            return True
        place = place.tb_next
    return False


def _code_of(function: Any) -> CodeType | None:
    """Return the code of a function of Python, under partials and methods."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code if isinstance(code, CodeType) else None
