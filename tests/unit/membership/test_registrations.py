"""Which registrations are alive, by the reader's own clock."""

from __future__ import annotations

import pytest

from shardbus.ids import Address
from shardbus.membership.registrations import Registrations, address_in, entry_of

A, B = Address("10.0.0.1", 7355), Address("10.0.0.2", 7355)


def test_an_entry_is_read_as_it_was_written() -> None:
    assert address_in(entry_of(A, 41)) == A
    assert address_in(entry_of(Address("::1", 7355), 0)) == Address("::1", 7355)


@pytest.mark.parametrize("text", ["", "10.0.0.1:7355", "10.0.0.1 4", "x:1 ", "x:1 -1", "x:1 ²"])
def test_another_text_is_no_entry(text: str) -> None:
    assert address_in(text) is None


def test_an_address_whose_beat_stays_is_stale_in_the_end() -> None:
    seen = Registrations(10.0)
    both = [entry_of(A, 1), entry_of(B, 7)]
    assert seen.read(both, 100.0) == ([A, B], [])
    assert seen.read([entry_of(A, 2), entry_of(B, 7)], 105.0) == ([A, B], [])
    assert seen.read([entry_of(A, 3), entry_of(B, 7)], 110.0) == ([A], [entry_of(B, 7)])


def test_a_restarted_node_is_alive_though_its_beat_is_lower() -> None:
    seen = Registrations(10.0)
    seen.read([entry_of(A, 900)], 100.0)
    assert seen.read([entry_of(A, 1)], 110.0) == ([A], [])


def test_two_beats_of_one_address_between_two_writes_are_one_address() -> None:
    seen = Registrations(10.0)
    seen.read([entry_of(A, 1)], 100.0)
    assert seen.read([entry_of(A, 1), entry_of(A, 2)], 110.0) == ([A], [])


def test_a_foreign_entry_is_left_alone() -> None:
    seen = Registrations(10.0)
    seen.read(["something else"], 0.0)
    assert seen.read(["something else"], 100.0) == ([], [])
