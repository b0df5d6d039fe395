"""The rings of dead letters: their bounds, the fields of a letter, and that a replay sends it
once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.config.settings import ShardingSettings
from shardbus.entities.dead_letters import LETTER_BYTES, DeadLetter, DeadLetters, LetterRing
from shardbus.errors import BufferFull
from shardbus.transport.drop_reports import Origin

TRACE = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01|vendor=x"


def letter(number: int, payload: bytes | None = b"", entity_id: str = "x") -> DeadLetter:
    size = len(payload or b"")
    return DeadLetter(number, 1.0, "t", "failed", entity_id, "m", "s", False, "", size, payload)


def kept(ring: LetterRing) -> list[int]:
    return [letter.number for letter in ring]


def test_the_oldest_letters_go_when_their_number_is_reached() -> None:
    ring = LetterRing(3, 2**20, 0)
    for number in range(1, 6):
        ring.keep(letter(number))
    assert kept(ring) == [3, 4, 5]


def test_the_oldest_letters_go_when_their_bytes_are_reached() -> None:
    ring = LetterRing(100, 3 * (LETTER_BYTES + 104), 100)
    for number in range(1, 5):
        ring.keep(letter(number, bytes(100)))
    assert kept(ring) == [2, 3, 4]
    ring.keep(letter(5, b"", "é" * 20))
    assert ring.bytes == 2 * (LETTER_BYTES + 104) + LETTER_BYTES + 4 * 23


def test_a_body_over_its_bound_is_not_kept_and_a_letter_over_the_ring_neither() -> None:
    ring = LetterRing(3, 1024, 10)
    ring.keep(letter(1, bytes(10)))
    ring.keep(letter(2, bytes(11)))
    ring.keep(letter(3, b"", "x" * 1000))
    assert [(each.number, each.payload, each.size) for each in ring] == [
        (1, bytes(10), 10),
        (2, None, 11),
    ]
    wide = LetterRing(3, 1024, 4096)
    wide.keep(letter(1, bytes(1000)))
    assert [each.payload for each in wide] == [None]


def test_without_a_bound_for_bodies_none_is_kept() -> None:
    ring = LetterRing(3, 1024, 0)
    ring.keep(letter(1, b"secret"))
    ring.keep(letter(2, b""))
    assert [each.payload for each in ring] == [None, None]


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40))), st.integers(1, 20))
def test_the_bounds_always_hold(letters: list[tuple[int, int]], letters_max: int) -> None:
    ring = LetterRing(letters_max, 2000, 250)
    for number, (size, length) in enumerate(letters):
        ring.keep(letter(number, bytes(size), "é" * length))
        assert len(ring) <= letters_max
        assert ring.bytes == sum(each.weight for each in ring) <= 2000
    assert kept(ring) == sorted(kept(ring))


def test_a_replayed_letter_has_left_before_it_is_sent() -> None:
    ring = LetterRing(3, 2**20, 10)
    for number in (1, 2, 3):
        ring.keep(letter(number, b"abc"))
    sent: list[tuple[DeadLetter, list[int]]] = []

    def send(one: DeadLetter) -> str:
        sent.append((one, kept(ring)))
        return "sent"

    assert ring.replay(2, send) == "sent"
    assert sent == [(letter(2, b"abc"), [1, 3])]
    assert ring.bytes == sum(one.weight for one in ring)
    with pytest.raises(KeyError):
        ring.replay(2, send)
    assert len(sent) == 1


def test_a_letter_that_is_refused_where_it_is_sent_stays_and_is_no_second_one() -> None:
    ring = LetterRing(3, 2**20, 10)
    for number in (1, 2, 3):
        ring.keep(letter(number, f"body {number}".encode()))

    def refused(one: DeadLetter) -> None:
        ring.keep(one._replace(number=9, reason="buffer_full"))
        raise BufferFull("no room")

    with pytest.raises(BufferFull):
        ring.replay(2, refused)
    assert kept(ring) == [1, 2, 3]
    ring.keep(letter(2, b"body 2")._replace(number=4))
    assert kept(ring) == [2, 3, 4], "the same message may be dropped again later"


def test_a_letter_without_its_body_is_never_sent() -> None:
    ring = LetterRing(3, 2**20, 0)
    ring.keep(letter(1, b"abc"))
    with pytest.raises(KeyError):
        ring.replay(1, lambda one: pytest.fail("sent"))
    assert kept(ring) == [1]


def node(**settings: Any) -> tuple[DeadLetters, Any]:
    names = {-7: "client", Origin.OWN: "me"}
    letters = DeadLetters(lambda mark: names.get(mark, ""), lambda: 5.0)
    return letters, letters.keeper("page", ShardingSettings(**settings))


def test_a_letter_names_its_sender_and_its_trace() -> None:
    letters, keep = node(dead_letter_payloads=10)
    keep("schema", "a", "add", b"12", -7)
    keep("failed", "b", "add", b"", Origin.OWN, TRACE)
    keep("expired", "c", "add", b"3", "node", "nonsense", answered=True)
    keep("unhandled", "d", "gone", b"4", Origin.UNREPORTED)
    assert [letter[1:] for letter in letters] == [
        (5.0, "page", "schema", "a", "add", "client", False, "", 2, b"12"),
        (5.0, "page", "failed", "b", "add", "me", False, TRACE[3:35], 0, b""),
        (5.0, "page", "expired", "c", "add", "node", True, "", 1, b"3"),
        (5.0, "page", "unhandled", "d", "gone", "", False, "", 1, b"4"),
    ]
    assert [letter.number for letter in letters] == [1, 2, 3, 4]
    ring = letters.ring_of(2)
    assert ring is letters.rings["page"]
    assert letters.ring_of(5) is None


def test_without_letters_nothing_is_kept() -> None:
    letters, keep = node(dead_letters=0)
    assert keep is None
    letters.keep_strangers(ShardingSettings(dead_letters=0))
    letters.strangers("other", "unknown_type", "add", [("x", b"1")], "client", answered=False)
    assert list(letters) == []


def test_messages_of_strangers_share_a_ring_without_bodies() -> None:
    letters, keep = node(dead_letters=2, dead_letter_payloads=10)
    letters.keep_strangers(ShardingSettings(dead_letters=2, dead_letter_payloads=10))
    keep("failed", "a", "add", b"1", -7)
    rows = [(str(n), b"1") for n in range(5)]
    letters.strangers("page", "not_allowed", "add", rows, "client", answered=True)
    listed = [
        (letter.entity_type, letter.entity_id, letter.payload, letter.answered)
        for letter in letters
    ]
    assert listed == [
        ("page", "a", b"1", False),
        ("page", "3", None, True),
        ("page", "4", None, True),
    ]
    assert letters.ring_of(list(letters)[1].number) is None, "no replay finds it"
