"""The address that a connection uses: kept while it is right, tried in turn otherwise."""

from __future__ import annotations

import pytest

from shardbus.transport.destination import ADDRESSES_MAX, Destination, is_numeric

SIX, FOUR, OTHER = "2001:db8::1", "10.0.0.1", "10.0.0.2"


def connected(*addresses: str) -> Destination:
    to = Destination()
    assert to.learn(addresses)
    to.on_up()
    return to


def test_the_first_address_is_first() -> None:
    to = Destination()
    assert to.at is None
    assert to.learn((SIX, FOUR))
    assert to.at == SIX


def test_no_answer_changes_nothing() -> None:
    to = Destination()
    assert not to.learn(())
    assert to.at is None
    to = connected(FOUR)
    assert not to.learn(())
    assert not to.on_broken()
    assert to.at == FOUR


def test_failed_attempts_try_every_address_in_turn() -> None:
    to = Destination()
    to.learn((SIX, FOUR, OTHER))
    tried = [to.at]
    for _ in range(3):
        assert to.on_broken()
        tried.append(to.at)
    assert tried == [SIX, FOUR, OTHER, SIX]


def test_the_only_address_is_kept() -> None:
    to = Destination()
    to.learn((FOUR,))
    assert not to.on_broken()
    assert to.at == FOUR


def test_a_connection_that_worked_tries_its_address_again_first() -> None:
    to = connected(SIX, FOUR)
    assert not to.on_broken()
    assert to.at == SIX
    assert to.on_broken()
    assert to.at == FOUR


def test_a_broken_connection_moves_to_the_new_address() -> None:
    to = connected(FOUR)
    assert not to.on_broken()
    assert to.learn((OTHER,))
    assert to.at == OTHER


def test_a_working_connection_stays_until_it_breaks() -> None:
    to = connected(FOUR)
    assert not to.learn((OTHER,))
    assert to.at == FOUR
    assert to.on_broken()
    assert to.at == OTHER


def test_an_answer_that_names_the_present_address_keeps_it() -> None:
    to = connected(FOUR)
    to.on_broken()
    assert not to.learn((OTHER, FOUR))
    assert to.at == FOUR


def test_an_answer_is_bounded() -> None:
    to, tried = Destination(), set()
    to.learn(tuple(f"10.0.0.{n}" for n in range(2 * ADDRESSES_MAX)))
    for _ in range(3 * ADDRESSES_MAX):
        tried.add(to.at)
        to.on_broken()
    assert len(tried) == ADDRESSES_MAX


@pytest.mark.parametrize("host", ["10.0.0.1", "127.0.0.1", "::1", "fe80::1%eth0", "::ffff:1.2.3.4"])
def test_an_address_is_numeric(host: str) -> None:
    assert is_numeric(host)


@pytest.mark.parametrize("host", ["node1", "localhost", "10.0.0", "1", "010.0.0.1", "a.b", "abcd:"])
def test_everything_else_is_a_name(host: str) -> None:
    assert not is_numeric(host)
