"""Which names are looked up, and when: every rule of the module, and laws over any history."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardbus.transport.name_lookups import (
    FRESH_S,
    LOOKUPS_MAX,
    NAMES_MAX,
    OVERDUE_S,
    PAUSE_MAX_S,
    PAUSE_MIN_S,
    Answered,
    KnownName,
    LookUp,
    LookUpEvent,
    LookUpFailed,
    NameLookups,
    ReportName,
    Settled,
    Wanted,
)

ONE, TWO = ("10.0.0.1",), ("10.0.0.2",)


def begun(name: str = "n1") -> NameLookups:
    """A machine with one look-up under way since 0."""
    names = NameLookups()
    assert names.handle(Wanted(name), 0) == [LookUp(name)]
    return names


def answered(name: str = "n1") -> NameLookups:
    names = begun(name)
    assert names.handle(Answered(name, ONE), 0) == [ReportName(name)]
    return names


def test_a_name_is_looked_up_and_reported() -> None:
    names = begun()
    assert names.known_name("n1") == KnownName((), False, "not looked up yet")
    assert names.handle(Answered("n1", ONE), 0.1) == [ReportName("n1")]
    assert names.known_name("n1") == KnownName(ONE, True, "")
    assert names.deadline() is None


def test_one_look_up_per_name_is_under_way() -> None:
    names = begun()
    assert names.handle(Wanted("n1"), 0.5) == []
    assert names.handle(Wanted("n2"), 0.5) == [LookUp("n2")]


def test_a_fresh_answer_is_used_and_an_older_one_renewed() -> None:
    names = answered()
    assert names.handle(Wanted("n1"), FRESH_S - 0.01) == [ReportName("n1")]
    assert names.handle(Wanted("n1"), FRESH_S) == [LookUp("n1")]
    assert names.known_name("n1") == KnownName(ONE, True, "")


def test_an_answer_stays_known_and_sure_while_later_look_ups_fail_or_hang() -> None:
    names = answered()
    names.handle(Wanted("n1"), 5)
    assert names.handle(LookUpFailed("n1", "no such name"), 6) == [ReportName("n1")]
    assert names.known_name("n1") == KnownName(ONE, True, "no such name")
    assert names.tick(6 + PAUSE_MIN_S) == [LookUp("n1")]
    assert names.tick(9) == [ReportName("n1")]
    assert names.known_name("n1") == KnownName(ONE, True, "no answer within 2 s")


def test_a_new_process_makes_the_answer_unsure_until_the_next() -> None:
    names = answered()
    assert names.handle(Wanted("n1", new_process=True), 0.1) == [LookUp("n1")]
    assert names.known_name("n1") == KnownName(ONE, False, "")
    names.handle(Answered("n1", TWO), 0.2)
    assert names.known_name("n1") == KnownName(TWO, True, "")


def test_an_answer_to_a_look_up_from_before_the_new_process_is_unsure_and_repeated() -> None:
    names = begun()
    assert names.handle(Wanted("n1", new_process=True), 0.1) == []
    assert names.handle(Answered("n1", ONE), 0.2) == [ReportName("n1"), LookUp("n1")]
    assert names.known_name("n1") == KnownName(ONE, False, "")
    names.handle(Answered("n1", TWO), 0.3)
    assert names.known_name("n1") == KnownName(TWO, True, "")


def test_a_failure_is_repeated_after_growing_pauses() -> None:
    names, now, pauses = begun(), 0.0, []
    for _ in range(10):
        names.handle(LookUpFailed("n1", "no such name"), now)
        due = names.deadline()
        assert due is not None
        assert names.tick(due - 0.01) == []
        assert names.tick(due) == [LookUp("n1")]
        pauses.append(due - now)
        now = due
    assert pauses[:3] == [PAUSE_MIN_S, 2 * PAUSE_MIN_S, 4 * PAUSE_MIN_S]
    assert pauses[-1] == PAUSE_MAX_S


def test_during_the_pause_an_asker_gets_what_is_known_at_once() -> None:
    names = begun()
    names.handle(LookUpFailed("n1", "no such name"), 1)
    assert names.handle(Wanted("n1"), 1.1) == [ReportName("n1")]
    assert names.known_name("n1").reason == "no such name"


def test_a_settled_name_is_not_looked_up_again() -> None:
    names = begun()
    names.handle(LookUpFailed("n1", "no such name"), 1)
    assert names.handle(Settled("n1"), 1.1) == []
    assert names.deadline() is None
    assert names.tick(100) == []


def test_an_overdue_look_up_is_reported_once_and_keeps_its_thread() -> None:
    names = begun()
    assert names.deadline() == OVERDUE_S
    assert names.tick(OVERDUE_S) == [ReportName("n1")]
    assert names.deadline() is None
    assert names.handle(Wanted("n1"), 3) == [ReportName("n1")]
    assert names.running == 1
    assert names.handle(Answered("n1", ONE), 12) == [ReportName("n1")]
    assert names.known_name("n1") == KnownName(ONE, True, "")


def test_names_beyond_the_bound_of_threads_wait_for_one() -> None:
    names = NameLookups()
    for n in range(LOOKUPS_MAX):
        assert names.handle(Wanted(f"dead-{n}"), 0) == [LookUp(f"dead-{n}")]
    assert names.handle(Wanted("new"), 1) == []
    names.tick(OVERDUE_S)
    assert names.deadline() is None
    effects = names.handle(LookUpFailed("dead-3", "no answer"), 10)
    assert effects == [ReportName("dead-3"), LookUp("new")]


def test_names_that_failed_less_often_are_first() -> None:
    names = NameLookups()
    for n in range(LOOKUPS_MAX):
        names.handle(Wanted(f"dead-{n}"), 0)
        names.handle(LookUpFailed(f"dead-{n}", "no answer"), 0)
    names.tick(PAUSE_MIN_S)
    names.handle(Wanted("second"), 1)
    names.handle(LookUpFailed("dead-0", "no answer"), 2)  # frees a thread: `second` begins
    assert names.running == LOOKUPS_MAX
    names.handle(Wanted("third"), 3)
    assert names.tick(50) == [ReportName(f"dead-{n}") for n in range(1, LOOKUPS_MAX)] + [
        ReportName("second")
    ]
    assert names.handle(Answered("second", ONE), 51)[1:] == [LookUp("third")]
    assert names.handle(Answered("third", ONE), 52)[1:] == [LookUp("dead-0")]


def test_the_name_wanted_least_recently_makes_room() -> None:
    names = NameLookups()
    for n in range(NAMES_MAX):
        names.handle(Wanted(f"n{n}"), n)
        names.handle(Answered(f"n{n}", ONE), n)
    names.handle(Wanted("n0"), NAMES_MAX)
    names.handle(Answered("n0", ONE), NAMES_MAX)
    names.handle(Wanted("new"), NAMES_MAX)
    assert names.known_name("n0").addresses == ONE
    assert names.known_name("n1") == KnownName()


def test_without_room_a_name_is_reported_as_unknown() -> None:
    names = NameLookups()
    for n in range(NAMES_MAX):
        names.handle(Wanted(f"n{n}"), n)
    assert names.handle(Wanted("new"), NAMES_MAX) == [ReportName("new")]
    assert names.known_name("new") == KnownName()


@given(st.data())
def test_any_history_keeps_the_bounds_and_serves_every_name(data: st.DataObject) -> None:
    """Threads answer, fail or hang as they like; once all return, no name waits."""
    names, under_way, now = NameLookups(), list[str](), 0.0
    few = [f"n{n}" for n in range(2 * LOOKUPS_MAX)]

    def carry_out(effects: list[LookUp | ReportName]) -> None:
        for effect in effects:
            if isinstance(effect, LookUp):
                assert effect.name not in under_way, "one look-up per name"
                under_way.append(effect.name)
        assert len(under_way) <= LOOKUPS_MAX
        assert names.running == len(under_way)
        names.check()

    def returned(event: LookUpEvent) -> None:
        carry_out(names.handle(event, now))

    for _ in range(data.draw(st.integers(1, 60))):
        now += data.draw(st.sampled_from([0.0, 0.1, 1.0, 5.0]))
        carry_out(names.tick(now))
        what = data.draw(st.sampled_from(["want", "new", "settle", "answer", "fail"]))
        if what in ("answer", "fail") and under_way:
            name = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
            returned(Answered(name, ONE) if what == "answer" else LookUpFailed(name, "no"))
        elif what == "settle":
            carry_out(names.handle(Settled(data.draw(st.sampled_from(few))), now))
        else:
            carry_out(names.handle(Wanted(data.draw(st.sampled_from(few)), what == "new"), now))
    for name in few:
        carry_out(names.handle(Wanted(name), now))
    for _ in range(4 * len(few)):
        now += PAUSE_MAX_S
        carry_out(names.tick(now))
        if under_way:
            returned(Answered(under_way.pop(), TWO))
    assert under_way == []
    assert all(names.known_name(name).sure for name in few)
