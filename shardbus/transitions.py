"""State machines whose arrows are a table: the next state for a state and a trigger.

The table of each machine is in the machine's module, beside the drawing that it is. `following` is
the one way to read it, so a transition that the drawing does not have is refused everywhere alike.
Activations read theirs themselves: they take a step for each entity that starts or stops.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from shardbus.errors import LocalProtocolError

State = TypeVar("State", bound=Enum)
Trigger = TypeVar("Trigger", bound=Enum)


def following(
    table: Mapping[tuple[State, Trigger], State], state: State, trigger: Trigger, machine: str
) -> State:
    """Return the state that follows. `machine` names the machine in errors.

    Raises:
        LocalProtocolError: the table has no such transition.
    """
    after = table.get((state, trigger))
    if after is None:
        raise LocalProtocolError(f"{machine}: {trigger.value!r} in {state.name}")
    return after
