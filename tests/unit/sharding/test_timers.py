"""Timers against a list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardbus.sharding.timers import Timers


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["set", "cancel", "due"]), st.sampled_from("abc"), st.integers(0, 9)
        )
    )
)
def test_timers_against_a_list(steps: list[tuple[str, str, int]]) -> None:
    timers: Timers[str] = Timers()
    plain: dict[str, tuple[int, int]] = {}
    for order, (what, key, at) in enumerate(steps):
        if what == "set":
            timers.set(key, at)
            plain[key] = (at, order)
        elif what == "cancel":
            timers.cancel(key)
            plain.pop(key, None)
        else:
            expected = sorted((k for k in plain if plain[k][0] <= at), key=lambda k: plain[k])
            assert timers.due(at) == expected
            for timer in expected:
                del plain[timer]
        assert timers.deadline() == min((at for at, _ in plain.values()), default=None)
        assert len(timers) == len(plain)


def test_timers_set_again_and_again_stay_small() -> None:
    timers: Timers[int] = Timers()
    for at in range(10_000):
        timers.set(at % 3, at)
    assert len(timers._heap) < 200
