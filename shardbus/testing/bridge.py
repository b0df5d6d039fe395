"""A client, or a reference of one, that a test may use from any loop.

The client and its references run in the virtual loop of the test. A `Bridge` around one of them
makes the call in that loop, and returns an object that the test can await in its own: a `Pending`
in place of a future or a coroutine, a `Bridge` in place of a reference, an outbox or a queue. A
`Bridge` among the arguments stands for its object there. Called from the virtual loop itself it
returns the very objects.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from typing import Any

from shardbus.client.asynchronous import AsyncClient
from shardbus.client.outbox import ClientOutbox
from shardbus.client.towards import Towards
from shardbus.client.work_queue import ClientQueue, Work
from shardbus.routing.refs import Call, Ref
from shardbus.routing.region import Region
from shardbus.simulation.virtual_loop import VirtualLoop
from shardbus.tasks.internals import running_loop
from shardbus.testing.virtual_time import Pending, VirtualTime

BRIDGED = (AsyncClient, ClientOutbox, ClientQueue, Work, Ref, Call, Region, Towards)


class Bridge:
    """Stands for an object of a virtual loop."""

    def __init__(self, time: VirtualTime, loop: VirtualLoop, target: Any) -> None:
        self.__dict__.update(_time=time, _loop=loop, _target=target)

    def __getattr__(self, name: str) -> Any:
        time, loop = self.__dict__["_time"], self.__dict__["_loop"]
        with time.entered(loop):
            value = getattr(self.__dict__["_target"], name)
        if isinstance(value, BRIDGED):
            return Bridge(time, loop, value)
        return partial(call, time, loop, value) if callable(value) else value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        attr = self.__dict__
        return call(attr["_time"], attr["_loop"], attr["_target"], *args, **kwargs)

    async def __aenter__(self) -> Bridge:
        attr = self.__dict__
        if isinstance(attr["_target"], ClientOutbox | Work):  # a client here is open already
            await call(attr["_time"], attr["_loop"], attr["_target"].__aenter__)
        return self

    async def __aexit__(self, *error: object) -> None:
        attr = self.__dict__
        target = attr["_target"]
        end = target.__aexit__ if isinstance(target, Work) else target.close
        await call(attr["_time"], attr["_loop"], end, *(error if isinstance(target, Work) else ()))

    def __dir__(self) -> list[str]:
        return dir(self.__dict__["_target"])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bridge):
            return NotImplemented
        return bool(self.__dict__["_target"] == other.__dict__["_target"])

    def __hash__(self) -> int:
        return hash(self.__dict__["_target"])

    def __copy__(self) -> Bridge:
        return self

    def __repr__(self) -> str:
        return repr(self.__dict__["_target"])


def call(time: VirtualTime, loop: VirtualLoop, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function in the virtual loop; return an object that the caller's loop can use."""
    args = tuple(map(_behind, args))
    if running_loop() is loop:
        return function(*args, **kwargs)
    with time.entered(loop):
        result = function(*args, **kwargs)
    if isinstance(result, BRIDGED):
        return Bridge(time, loop, result)
    if inspect.isasyncgen(result):
        return bridged_items(time, loop, result)
    if not inspect.isawaitable(result):
        return result
    pending: Pending[Any] = Pending(time, time.begin(result, loop))
    of_queue = isinstance(getattr(function, "__self__", None), ClientQueue)
    return _bridged_answer(time, loop, pending) if of_queue else pending


def _behind(value: Any) -> Any:
    """Return the object that a bridge stands for; any other value as it is."""
    return value.__dict__["_target"] if isinstance(value, Bridge) else value


async def bridged_items(
    time: VirtualTime, loop: VirtualLoop, items: AsyncGenerator[Any, Any]
) -> AsyncIterator[Any]:
    """Yield the items of a generator of the virtual loop."""

    async def following() -> tuple[Any, ...]:
        async for item in items:
            return (item,)
        return ()

    try:
        while batch := await Pending(time, time.begin(following(), loop)):
            [item] = batch
            yield Bridge(time, loop, item) if isinstance(item, BRIDGED) else item
    finally:
        await Pending(time, time.begin(items.aclose(), loop))


async def _bridged_answer(time: VirtualTime, loop: VirtualLoop, pending: Pending[Any]) -> Any:
    """Return the answer of a queue, with items that the test's loop can use."""
    answer = await pending
    return [Bridge(time, loop, item) for item in answer] if isinstance(answer, list) else answer
