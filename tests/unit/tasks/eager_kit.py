"""Run a coroutine as a handler is run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from shardbus.tasks.eager import EagerRunner

Work = Callable[[], Coroutine[Any, Any, Any]]


def drive(driver: EagerRunner, work: Work) -> Any:
    """Run a coroutine as a handler is run; the future is its outcome."""
    coroutine = work()
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    entered = driver.enter()
    try:
        context = driver.base.copy()
        waits_for = driver.begin(coroutine, context)
        return driver.take_over(coroutine, waits_for, context)
    except StopIteration as end:
        done.set_result(end.value)
    except asyncio.CancelledError:
        done.cancel()
    except Exception as error:
        done.set_exception(error)
    finally:
        driver.leave(entered)
    return done
