"""All twelve combinations of a hand-off's choices, against a table written by hand."""

from __future__ import annotations

from itertools import product

import pytest

from shardbus import Entity, Handoff, ShardBus, handler
from shardbus.config.settings import HANDOFFS
from shardbus.errors import ConfigError
from shardbus.sharding.handoff_modes import (
    AFTER,
    ALLOWED,
    ARRIVALS,
    DURING,
    MODES,
    NAMED,
    REASONS,
    HandoffMode,
    check_mode,
)

TABLE = {
    ("keep", "open", "forward"): "2a 3a 4a",
    ("keep", "buffer", "forward"): "2a 3b 4a",
    ("keep", "open", "drop"): "2a 3a 4b",
    ("forward", "open", "forward"): "2b 3a 4a",
    ("forward", "buffer", "forward"): "2b 3b 4a",
    ("drop", "open", "drop"): "2c 3a 4b",
    ("drop", "open", "forward"): "2c 3a 4a",
    ("keep", "buffer", "drop"): "acknowledgements",
    ("forward", "buffer", "drop"): "acknowledgements",
    ("drop", "buffer", "drop"): "acknowledgements",
    ("forward", "open", "drop"): "forwarded first",
    ("drop", "buffer", "forward"): "no place in an order",
}
"""S3.65-S3.71: the options of the allowed ones, and a part of the reason for the others."""


@pytest.mark.parametrize("chosen", list(product(DURING, ARRIVALS, AFTER)), ids="/".join)
def test_every_combination_is_allowed_or_refused_with_its_reason(chosen: tuple) -> None:  # type: ignore[type-arg]
    assert len(TABLE) == 12
    if chosen in REASONS:
        with pytest.raises(ConfigError) as refused:
            HandoffMode(*chosen)
        assert TABLE[chosen] in str(refused.value)
        assert "\n" not in str(refused.value)
    else:
        assert HandoffMode(*chosen).options == TABLE[chosen]


def test_seven_of_the_twelve_are_allowed_and_settings_know_their_texts() -> None:
    assert len(ALLOWED) == 7
    assert tuple(MODES) == HANDOFFS
    assert all(MODES[mode.text] == mode for mode in ALLOWED)


@pytest.mark.parametrize(
    ("name", "one_active", "order", "loss"),
    [
        ("ordered", True, True, False),
        ("forward", False, False, False),
        ("drop", True, False, True),
    ],
)
def test_what_a_named_mode_promises(name: str, one_active: bool, order: bool, loss: bool) -> None:
    mode = NAMED[name]
    assert (not mode.overlaps, mode.keeps_order, mode.drops) == (one_active, order, loss)


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(ConfigError, match="arrivals is 'stack', not one of open, buffer"):
        HandoffMode("keep", "stack", "forward")  # type: ignore[arg-type]


@pytest.mark.parametrize("text", list(MODES))
@pytest.mark.parametrize(("state", "remember"), [(True, False), (False, True), (False, False)])
def test_modes_with_two_activations_are_refused_for_types_that_cannot_bear_them(
    text: str, state: bool, remember: bool
) -> None:
    mode = MODES[text]
    overlaps = mode is not None and mode.overlaps
    if overlaps and (state or remember):
        with pytest.raises(ConfigError, match="state" if state else "remember"):
            check_mode("t", text, state=state, remember=remember)
    else:
        check_mode("t", text, state=state, remember=remember)


def declared(**own: object) -> str:
    bus = ShardBus("test")

    class Thing(Entity):
        @handler
        def touch(self) -> None:
            pass

    bus.entity(name="thing", **own)(Thing)  # type: ignore[arg-type]
    return str(bus.types["thing"].declared.get("handoff"))


def test_a_declaration_takes_a_name_or_the_three_choices() -> None:
    assert declared(handoff="ordered") == "ordered"
    assert declared(handoff=Handoff(during="forward")) == "forward/buffer/forward"
    assert declared(handoff=Handoff("keep", "open", "forward")) == "forward"
    with pytest.raises(ConfigError, match="handoff"):
        declared(handoff="orderly")
    with pytest.raises(ConfigError, match="two nodes for a moment"):
        declared(handoff="forward", remember=True)
