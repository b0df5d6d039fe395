"""Worlds of code that needs an event loop: asks with futures, timers, tasks. Time is virtual."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from shardbus.simulation.timeline import Timeline
from shardbus.simulation.virtual_loop import VirtualLoop

T = TypeVar("T")

AT_ONCE_S = 0.001
"""A timer due within this time of an event belongs to the event."""


class LoopOfWorld:
    """A loop with virtual time, and the way into it."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self._errors: list[dict[str, Any]] = []
        self.loop = VirtualLoop(self.timeline, self._errors.append)  # type: ignore[abstract]

    def run(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call a function within the loop, and run the callbacks due at once."""
        results: list[T] = []
        raised: list[BaseException] = []

        def turn() -> None:
            try:
                results.append(call(*arguments))
            except Exception as error:  # it belongs to the caller, not to the loop
                raised.append(error)

        self.loop.call_soon(turn)
        self.wait(AT_ONCE_S)
        if raised:
            raise raised[0]
        return results[0]

    def spawn(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Begin a task, and run the callbacks due at once."""
        return self.run(lambda: self.loop.create_task(work))

    def wait(self, seconds: float) -> None:
        """Let time pass. Raises the error that no code of the loop caught."""
        self.timeline.run(seconds)
        self.raise_uncaught()

    def raise_uncaught(self) -> None:
        """Raise the error that no code of the loop caught."""
        if self._errors:
            context = self._errors.pop(0)
            raise context.get("exception") or AssertionError(context["message"])

    def close(self) -> None:
        """End the loop and the tasks in it."""
        self.loop.kill()
        self.loop.discard()


class AskOutcomes:
    """The asks of a world: each must have exactly one outcome in the end."""

    def __init__(self) -> None:
        self.futures: dict[str, Any] = {}
        self.handled: set[str] = set()
        """Asks that a handler was given."""

    def outcome(self, name: str) -> str:
        """Return how an ask ended, empty while it is open."""
        future = self.futures[name]
        if not future.done():
            return ""
        if future.cancelled():
            return "cancelled"
        error = future.exception()
        return "answered" if error is None else type(error).__name__

    def open(self) -> list[str]:
        """Return the asks without an outcome."""
        return [name for name, future in self.futures.items() if not future.done()]

    def check(self) -> None:
        """Check that no ask with a definite error was given to a handler."""
        for name, future in self.futures.items():
            if future.done() and not future.cancelled() and future.exception() is not None:
                definite = getattr(future.exception(), "definite", False)
                assert not (definite and name in self.handled), (
                    f"{name} was handled, and its asker has a definite {self.outcome(name)}"
                )
