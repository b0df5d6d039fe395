"""Which asks an entity of the same node handles where they are awaited: the whole table."""

from __future__ import annotations

from itertools import product

import pytest

from shardbus.shells.direct_asks import goes_directly

CONDITIONS = ("clear", "room", "confirmed", "time_left", "stack_known", "no_leases")


@pytest.mark.parametrize("held", list(product((False, True), repeat=len(CONDITIONS))))
@pytest.mark.parametrize(("busy", "waits"), [(False, False), (True, False), (True, True)])
def test_an_ask_is_direct_only_if_nothing_is_in_question(
    held: tuple[bool, ...], busy: bool, waits: bool
) -> None:
    clear, room, confirmed, time_left, stack_known, no_leases = held
    direct = goes_directly(
        clear, room, confirmed, time_left, stack_known, not no_leases, busy, waits
    )
    assert direct is (all(held) and (not busy or waits))
