"""The explorer on a small world: its visits, findings and output."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import pytest

from tests.explore.explorer import Bounds, BrokenLaw, explore, words


class Counter:
    """Counts up and down between 0 and 3. With `trap` it breaks a law where a key hides it."""

    def __init__(self, trap: str = "") -> None:
        self.said: list[str] = []
        self.trap, self.count, self.done = trap, 0, list[str]()

    def events(self) -> Iterable[str]:
        return [event for event in ("up", "down", "look") if self.possible(event)]

    def possible(self, event: str) -> bool:
        return {"up": self.count < 3, "down": self.count > 0}.get(event, True)

    def do(self, event: str) -> None:
        self.done.append(event)
        self.count += {"up": 1, "down": -1}.get(event, 0)
        self.said.append(f"count {self.count}")
        assert "".join(e[0] for e in self.done if e != "down") != self.trap, "the trap"

    def key(self) -> Hashable:
        return self.count

    def rest(self) -> None:
        assert self.trap != "rest" or self.count != 2, "it rests at two"

    def close(self) -> None: ...


def test_each_state_is_visited_once_and_tails_go_on_from_it() -> None:
    assert explore(Counter, Bounds(depth=5, near=0, tail=1)).states == 4
    few = explore(Counter, Bounds(depth=5, near=0, tail=1)).histories
    assert explore(Counter, Bounds(depth=5, near=1, tail=2)).histories > few


def test_what_a_key_hides_is_found_by_a_tail() -> None:
    make = lambda: Counter("lul")  # noqa: E731
    explore(make, Bounds(depth=5, near=0, tail=1))
    with pytest.raises(BrokenLaw, match="the trap"):
        explore(make, Bounds(depth=1, near=0, tail=3))


def test_a_finding_is_the_shortest_history_as_a_transcript() -> None:
    make = lambda: Counter("luu")  # noqa: E731
    with pytest.raises(BrokenLaw) as broken:
        explore(make, Bounds(depth=0, near=0, tail=4))
    assert str(broken.value).splitlines() == [
        "3 events break a law: AssertionError: the trap",
        "$ look",
        "  count 0",
        "$ up",
        "  count 1",
        "$ up",
        "  count 2",
    ]


def test_a_law_that_breaks_only_at_rest_is_found() -> None:
    with pytest.raises(BrokenLaw, match="it rests at two"):
        explore(lambda: Counter("rest"), Bounds(depth=3, near=0, tail=1))


def test_an_alphabet_is_made_of_words() -> None:
    assert words(["tell", "ask"], "ab") == ["tell a", "tell b", "ask a", "ask b"]
