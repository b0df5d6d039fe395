"""Tasks and futures of our own beside asyncio's, and all that leans on its internals.

Code of applications runs in handlers, and expects of each handler a task of asyncio. Such a task
for each message would cost more than most handlers. So this package makes parts that behave like
asyncio's and cost less, and only here may code use names of asyncio that begin with an underscore.

    eager          a handler's coroutine as the current task, without a task of asyncio
    light_future   a future whose owner sets the outcome in attributes
    batch_answer   the futures of one batch, settled in one callback of the loop
    waiters        which handler waits for a task, read from the callbacks of futures
    internals      the functions of asyncio that make a task current
    interrupts     which exceptions a signal has raised

**Contract.** Each rule that a part keeps is one of `asyncio.Task` or `asyncio.Future`, and its test
runs the same code under both (`tests/unit/tasks`, on every supported Python, on asyncio's loop and
on uvloop). Where Pythons differ, the rule of the latest holds.

Source: the documentation and the code of asyncio in Python 3.11 to 3.14; docs/architecture.md.
"""
