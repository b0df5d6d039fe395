"""Routers over instances: which one a message goes to, as pure decisions."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.errors import ConfigError
from shardbus.ids import NodeId
from shardbus.routing.instance_policies import (
    HEDGE_AFTER_S,
    POLICIES,
    any_of,
    choice_of,
    distance,
    least_busy,
    nearest,
    nearest_other,
    next_in_turn,
    spread,
)

A, B, C = (NodeId("10.0.0.1", port, port) for port in (1, 2, 3))
READY = st.lists(st.integers(1, 9), min_size=1, max_size=9, unique=True).map(sorted)


def test_each_router_has_its_options() -> None:
    for policy in POLICIES:
        assert choice_of(policy).policy == policy
    assert choice_of("hash", key=7).key == "7"
    assert choice_of("first", after=1).after == 1.0
    assert choice_of("first").after == HEDGE_AFTER_S


@pytest.mark.parametrize(
    ("given_", "error"),
    [
        (("neerest",), "there is no router 'neerest'"),
        ((3,), "there is no router 3"),
        (("all", "k"), "router 'all' takes no key"),
        (("hash", ""), "key of a router is a text or a number"),
        (("hash", 1.5), "key of a router is a text or a number"),
        (("nearest", None, 1), "router 'nearest' takes no delay"),
        (("first", None, -1), "after is a number of seconds"),
        (("first", None, "soon"), "after is a number of seconds"),
    ],
)
def test_a_wrong_router_is_refused_in_one_line(given_: tuple[object, ...], error: str) -> None:
    with pytest.raises(ConfigError, match=error) as caught:
        choice_of(*given_)
    assert "\n" not in str(caught.value)


def test_a_close_name_is_proposed() -> None:
    with pytest.raises(ConfigError) as caught:
        choice_of("leastbusy")
    assert "least-busy" in caught.value.hint


@given(st.text(max_size=20), st.integers(1, 1000))
def test_a_key_stays_with_its_instance_when_another_one_comes(text: str, count: int) -> None:
    """Jump hashing: with one instance more, a key stays or goes to the new one."""
    before, after = spread(text, count), spread(text, count + 1)
    assert 1 <= before <= count
    assert after in (before, count + 1)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_keys_are_spread_evenly(count: int) -> None:
    counts = Counter(spread(f"account-{n}", count) for n in range(3000))
    assert min(counts.values()) > 0.8 * 3000 / count
    assert max(counts.values()) < 1.2 * 3000 / count


def test_the_own_node_is_nearest_then_the_own_zone() -> None:
    zones = {A: "west", B: "west", C: "east"}
    here = [distance(node, A, "west", zones) for node in (A, B, C)]
    assert here[0] < here[1] < here[2]
    assert nearest((1, 2, 3), here, "s x", 3) == 1
    assert nearest_other((1, 2, 3), here, 1) == 2
    assert nearest_other((1, 2, 3), here, 2) == 1
    zone = [distance(node, None, "east", zones) for node in (A, B, C)]
    assert nearest((1, 2, 3), zone, "s x", 3) == 3


@given(READY, st.text(max_size=9))
def test_nearest_is_stable_and_ready_and_has_a_second(ready: list[int], text: str) -> None:
    far = [2.0] * len(ready)
    first = nearest(ready, far, text, 9)
    assert nearest(ready, far, text, 9) == first
    assert first in ready
    assert nearest_other(ready, far, first) in ({*ready} - {first} or {None})


def test_senders_that_are_all_far_do_not_use_one_instance() -> None:
    counts = Counter(nearest((1, 2, 3), (2.0, 2.0, 2.0), f"client-{n} x", 3) for n in range(600))
    assert min(counts.values()) > 120


def test_without_a_home_every_router_names_an_instance() -> None:
    dice = Random(1)
    for n in range(50):
        assert nearest((), (), f"{n}", 3) in (1, 2, 3)
        assert next_in_turn((), n, 3) == n % 3 + 1
        assert any_of((), dice, 3) in (1, 2, 3)
        assert least_busy((), dice, 3, lambda k: 0) in (1, 2, 3)


@given(READY)
def test_turns_are_even(ready: list[int]) -> None:
    counts = Counter(next_in_turn(ready, turn, 9) for turn in range(10 * len(ready)))
    assert counts == dict.fromkeys(ready, 10)


def test_any_of_is_even() -> None:
    dice = Random(2)
    counts = Counter(any_of((1, 2, 3), dice, 3) for _ in range(3000))
    assert min(counts.values()) > 900


def test_the_less_busy_of_two_is_chosen_and_never_the_busiest() -> None:
    dice, open_asks = Random(3), {1: 5, 2: 0, 3: 1}
    counts = Counter(least_busy((1, 2, 3), dice, 3, lambda k: open_asks[k]) for _ in range(900))
    assert counts[1] == 0  # of any two, another one is less busy
    assert counts[2] > counts[3] > 0


def test_a_slow_instance_gets_few_asks() -> None:
    """Instance 1 answers a tenth as fast. Half of the asks that are open are its own at most."""
    dice, open_asks, sent = Random(5), Counter[int](), Counter[int]()
    for n in range(3000):
        k = least_busy((1, 2, 3), dice, 3, lambda k: open_asks[k])
        open_asks[k] += 1
        sent[k] += 1
        for other, every in ((1, 10), (2, 1), (3, 1)):
            if n % every == 0 and open_asks[other]:
                open_asks[other] -= 1
    assert sent[1] < 0.15 * 3000
