"""The keyword arguments of `@bus.entity` for type checkers: one for each setting, of its kind."""

from __future__ import annotations

from dataclasses import Field, fields
from typing import Literal, Union, get_args, get_type_hints

import pytest

from shardbus.config.options import ValueType, option_of
from shardbus.config.settings import ShardingSettings
from shardbus.entities.entity_options import ARGUMENTS, EntityOptions
from shardbus.routing.instance_policies import POLICIES
from shardbus.sharding.allocation.strategies import AllocationStrategy
from shardbus.sharding.handoff_modes import MODES, HandoffMode

HINTS = get_type_hints(EntityOptions)
SETTINGS = [field for field in fields(ShardingSettings) if option_of(field) is not None]
TYPES: dict[ValueType, tuple[type, ...]] = {
    ValueType.SECONDS: (float, str),
    ValueType.SIZE: (int, str),
    ValueType.COUNT: (int,),
    ValueType.NUMBER: (float,),
    ValueType.FLAG: (bool,),
    ValueType.TEXT: (str,),
}
OBJECTS = {"handoff": (HandoffMode,), "allocation": (AllocationStrategy, type(None))}


def test_there_is_an_argument_for_each_setting() -> None:
    assert set(HINTS) - ARGUMENTS == {field.name for field in SETTINGS}


@pytest.mark.parametrize("field", SETTINGS, ids=lambda field: field.name)
def test_an_argument_has_the_kind_of_its_setting(field: Field[object]) -> None:
    option = option_of(field)
    assert option is not None
    if option.choices:
        expected: tuple[object, ...] = (Literal[option.choices], *OBJECTS.get(field.name, ()))
    else:
        expected = TYPES[option.kind]
        if option.off:
            off = (Literal["off"], None) if option.kind is ValueType.COUNT else (None,)
            expected = (*expected, *off)
    assert HINTS[field.name] == Union[expected]  # noqa: UP007 (made at run time)


def test_routers_and_hand_offs_are_those_that_exist() -> None:
    assert set(get_args(get_args(HINTS["router"])[0])) == set(POLICIES)
    assert set(get_args(get_args(HINTS["handoff"])[1])) == set(MODES)
