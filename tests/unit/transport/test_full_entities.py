"""The receiver's half of holds: waiting messages, passing messages, and the time of their
hand-out."""

from __future__ import annotations

from shardbus.transport.full_entities import FullEntities
from shardbus.transport.run_queue import EntityRun
from shardbus.wire.batch import AskRun, TellRun

A, B = ("line", "a"), ("line", "b")


def tells(ids: str, first: int = 0, kind: str = "line") -> TellRun:
    return TellRun(kind, "add", list(ids), [bytes([first + n]) for n in range(len(ids))])


def asks(ids: str) -> AskRun:
    return AskRun("line", "add", 1000, list(ids), [b""] * len(ids), list(range(1, len(ids) + 1)))


def rows(run: EntityRun | None) -> list[tuple[str, int]]:
    return [] if run is None else [(i, p[0]) for i, p in zip(run.ids, run.payloads, strict=True)]


def test_messages_for_a_full_entity_wait_and_others_pass_in_order() -> None:
    full = FullEntities()
    assert full.add(A)
    assert not full.add(A), "the sender was told"
    assert rows(full.withhold(tells("abacb"), 0)) == [("b", 1), ("c", 3), ("b", 4)]
    assert full.withhold(tells("aa", 5), 0) is None
    full.check()
    handed_out = [row for run in full.released(A, 0) for row in rows(run)]
    assert handed_out == [("a", 0), ("a", 2), ("a", 5), ("a", 6)]
    assert A not in full
    assert full.weight == 0


def test_an_entity_of_another_type_with_the_same_id_is_another_one() -> None:
    full = FullEntities()
    full.add(A)
    run = tells("aa", kind="page")
    assert full.withhold(run, 0) is run


def test_asks_wait_with_the_tells_and_keep_who_asked() -> None:
    full = FullEntities()
    full.add(A)
    others = full.withhold(asks("bab"), 0)
    assert isinstance(others, AskRun)
    assert (others.ids, others.corrs) == (["b", "b"], [1, 3])
    (rest,) = full.released(A, 0)
    assert isinstance(rest, AskRun)
    assert (rest.ids, rest.corrs) == (["a"], [2])


def test_a_rest_is_handed_out_until_the_entity_is_full_again() -> None:
    full = FullEntities()
    full.add(A)
    for number in range(3):
        full.withhold(TellRun("line", f"method-{number}", ["a"], [bytes([number])]), 0)
    handed_out = []
    for run in full.released(A, 0):
        handed_out.append(run.method)
        if len(handed_out) == 2:
            assert not full.add(A), "it is listed still"
    assert handed_out == ["method-0", "method-1"]
    assert A in full
    full.check()
    assert [run.method for run in full.released(A, 0)] == ["method-2"]
    assert A not in full


def test_every_rest_is_handed_out_before_a_flush_and_the_entities_stay_full() -> None:
    full = FullEntities()
    full.add(A)
    full.add(B)
    full.withhold(tells("abab"), 0)
    handed_out = [row for run in full.all_rests(0) for row in rows(run)]
    assert sorted(handed_out) == [("a", 0), ("a", 2), ("b", 1), ("b", 3)]
    assert full.weight == 0
    full.check()
    assert full.withhold(tells("a"), 0) is None


def test_an_entity_that_is_unlisted_takes_messages_again() -> None:
    full = FullEntities()
    full.add(A)
    full.add(B)
    full.withhold(tells("ab"), 0)
    assert [rows(run) for run in full.unlist(lambda target: target == A, 0)] == [[("a", 0)]]
    assert rows(full.withhold(tells("ab"), 0)) == [("a", 0)]
