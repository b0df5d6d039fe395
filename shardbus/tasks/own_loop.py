"""Calls belong to the thread and the event loop of the process's node or client.

Nothing of the machines has a lock. A call from another thread would change them in the middle of a
step, and one from another loop of the same thread would send, and then fail to wait. So each call
is checked before it changes anything: each ask and delivery, the first tell of a run, and the acts
of an entity's context.

Source: docs/how-to/send.md; `asyncio.loop.call_soon_threadsafe`.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop

from shardbus.errors import LocalProtocolError
from shardbus.tasks.internals import running_loop


def check_loop(loop: AbstractEventLoop) -> None:
    """Raise LocalProtocolError unless this loop runs the caller. Nothing has changed."""
    running = running_loop()
    if running is not loop:
        raise foreign_call(running)


def asyncio_loop() -> AbstractEventLoop:
    """Return the event loop that runs the caller.

    Raises:
        LocalProtocolError: it is none of asyncio's, as under trio, or there is none.
    """
    running = running_loop()
    if running is None:
        raise LocalProtocolError(
            "no event loop of asyncio runs here: clients and nodes need one",
            hint="start the program with asyncio.run; with trio or without a loop use Client, which"
            " has a thread of its own",
        )
    return running


def foreign_call(running: AbstractEventLoop | None) -> LocalProtocolError:
    """Return the error of a call from another loop, or from a thread without one."""
    where = "a thread without an event loop" if running is None else "another event loop"
    return LocalProtocolError(
        f"called from {where}: references, clients and contexts belong to the event loop in which"
        " their client or node was entered; nothing has changed",
        hint="enter an AsyncClient in each loop, use Client in threads, or go to the loop with"
        " asyncio.run_coroutine_threadsafe; a handler with thread=True returns what to send",
    )
