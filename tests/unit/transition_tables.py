"""Checks of the tables by which machines go from state to state."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from types import ModuleType
from typing import Any

import pytest

from shardbus.errors import LocalProtocolError


def check_step(
    table: Mapping[Any, Enum],
    state: Callable[[], Enum],
    advance: Callable[[Any], object],
    trigger: Enum,
) -> None:
    """Check that the trigger leads from the machine's state to the table's state, or is refused
    and changes nothing."""
    before = state()
    after = table.get((before, trigger))
    if after is not None:
        assert advance(trigger) in (after, None)
        assert state() is after
        return
    with pytest.raises(LocalProtocolError, match=re.escape(f"{trigger.value!r} in {before.name}")):
        advance(trigger)
    assert state() is before


def check_drawing(module: ModuleType, *kinds: type[Enum]) -> None:
    """Check that the drawing in a module's text names each state and each trigger."""
    states, triggers = kinds
    text = " ".join((module.__doc__ or "").split())
    assert [state.name for state in states if state.name not in text] == []
    assert [trigger.value for trigger in triggers if trigger.value not in text] == []
