"""Visits the states of a machine that short histories reach, and runs every sequence of events from
each.

A *world* is a machine and a small model of its surroundings. A history is a list of its events,
which are plain text: `tell`, `home B`, `break`. The explorer plays each history in a new world:

1. breadth first, up to `depth` events, each history that leads to a state not seen before. Two
   histories lead to one state if the `key` of their worlds is equal;
2. from each state that at most `near` events reach, every sequence of `tail` events, unmerged:
   state that a key leaves out shows here.

At the end of each history the world comes to `rest`: everything arrives, all deadlines pass. The
world checks its laws in `do` and in `rest`, and breaks one by any exception. The history of the
first failure loses events as long as it still fails with the same law, and is printed as a
transcript: `$ event`, and below it the lines that the world wrote down.

Nothing here is drawn, and no clock is real: a history always ends in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

History = tuple[str, ...]


class World(Protocol):
    """A machine and its surroundings at the beginning. `said` has the events; the explorer
    empties it after each event."""

    said: list[str]

    def events(self) -> Iterable[str]:
        """Return the events that may happen now, in a fixed order."""
        ...

    def do(self, event: str) -> None: ...
    def key(self) -> Hashable: ...
    def rest(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far a world is explored."""

    depth: int
    near: int
    tail: int


@dataclass(frozen=True, slots=True)
class Visited:
    """How much was explored."""

    states: int
    histories: int


class BrokenLaw(AssertionError):
    """A history breaks a law. The text is its transcript."""


@dataclass(slots=True)
class Played:
    """A history that was played: the world after its last event, or the failure."""

    key: Hashable = None
    events: tuple[str, ...] = ()
    error: BaseException | None = None
    possible: bool = True
    lines: Sequence[str] = ()

    @property
    def law(self) -> object:
        """Return which law is broken: the place of the check, and the kind of the exception."""
        at = None if self.error is None else self.error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        place = None if at is None else (at.tb_frame.f_code.co_filename, at.tb_lineno)
        return type(self.error), place


def play(make: Callable[[], World], history: History) -> Played:
    """Play one history to its end, and let the world come to rest."""
    lines: list[str] = []
    played = Played(lines=lines)
    world = make()
    try:
        for event in history:
            if event not in world.events():
                return Played(possible=False)
            lines.append(f"$ {event}")
            world.do(event)
            lines.extend(f"  {line}" for line in world.said)
            world.said.clear()
        played.key, played.events = world.key(), tuple(world.events())
        lines.append("$ rest")
        world.rest()
        lines.extend(f"  {line}" for line in world.said)
    except Exception as error:  # a broken law, whatever shows it
        lines.extend(f"  {line}" for line in world.said)
        played.error = error
    finally:
        world.close()
    return played


def explore(make: Callable[[], World], bounds: Bounds) -> Visited:
    """Visit every state within the bounds.

    Raises:
        BrokenLaw: a history breaks a law; the shortest one that was found.
    """
    first = _sound(make, ())
    states: dict[Hashable, History] = {first.key: ()}
    possible = {(): first.events}
    frontier: list[History] = [()]
    histories = 1
    for _ in range(bounds.depth):
        reached: list[History] = []
        for history in frontier:
            for event in possible[history]:
                longer = (*history, event)
                played = _sound(make, longer)
                histories += 1
                if played.key not in states:
                    states[played.key] = longer
                    possible[longer] = played.events
                    reached.append(longer)
        frontier = reached
    for history in states.values():
        if len(history) <= bounds.near and bounds.tail > 1:
            histories += _tails(make, history, possible[history], bounds.tail)
    return Visited(len(states), histories)


def _tails(make: Callable[[], World], history: History, events: History, tail: int) -> int:
    """Run every sequence of `tail` events behind a history; return their number."""
    if tail == 0:
        return 0
    count = 0
    for event in events:
        played = _sound(make, (*history, event))
        count += 1 + _tails(make, (*history, event), played.events, tail - 1)
    return count


def _sound(make: Callable[[], World], history: History) -> Played:
    played = play(make, history)
    if played.error is not None:
        raise broken(make, history, played)
    return played


def broken(make: Callable[[], World], history: History, played: Played) -> BrokenLaw:
    """Return the failure of the shortest history that still breaks the law."""
    shortest, failure = shrunk(make, history, played)
    said = (str(failure.error).splitlines() or [""])[0]
    law = f"{type(failure.error).__name__}: {said}"
    text = "\n".join([f"{len(shortest)} events break a law: {law}", *failure.lines])
    error = BrokenLaw(text)
    error.__cause__ = failure.error
    return error


def shrunk(make: Callable[[], World], history: History, played: Played) -> tuple[History, Played]:
    """Leave out events, many at a time and then one by one, while the same law breaks."""
    size = max(len(history) // 2, 1)
    while size:
        for at in range(len(history) - size, -1, -1):
            shorter = history[:at] + history[at + size :]
            tried = play(make, shorter)
            if tried.error is not None and tried.law == played.law:
                history, played = shorter, tried
                break
        else:
            size //= 2
    return history, played


def words(*parts: Iterable[str]) -> list[str]:
    """Return the events of an alphabet: `words(["tell"], "ab")` is `tell a`, `tell b`."""
    return [" ".join(row) for row in product(*parts)]
