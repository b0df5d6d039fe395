"""The machine of a work queue: each item is leased to one worker at a time, stays until it is
confirmed, and is never lost by a repeat, a restart or a clock."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

import pytest

from shardbus.deliveries.work_items import (
    PRODUCERS_MAX,
    WAITING_MAX,
    CancelPull,
    ConfirmWork,
    DropWork,
    ExtendWork,
    ItemPlace,
    PullWork,
    PutWork,
    Queued,
    QueueRules,
    QueueState,
    Removed,
    Request,
    RetryWork,
    ReturnWork,
    WorkItems,
)
from tests.markers import long_only


class Home:
    """A machine, its stored events, and its answers by ticket."""

    def __init__(self, **rules: Any) -> None:
        self.rules = QueueRules(**rules)
        self.now, self.ticket = 1000.0, 0
        self.stored = QueueState()
        self.machine = WorkItems(copy.deepcopy(self.stored), self.rules, self.now)
        self.answers: dict[int, Any] = {}
        self.events: list[Any] = []

    def do(self, request: Request) -> Any:
        """Return the answer to a request, None if it waits."""
        return self.answers.get(self.begin(request))

    def begin(self, request: Request) -> int:
        self.ticket += 1
        self.machine.handle(self.ticket, request, self.now)
        self.step()
        return self.ticket

    def step(self) -> None:
        events, answers = self.machine.step(self.now)
        self.events = copy.deepcopy(events)
        for event in self.events:
            self.stored.apply(event)
        self.answers.update(answers)
        self.machine.check()
        assert self.stored == self.machine.state

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.step()

    def restart(self) -> None:
        self.machine = WorkItems(copy.deepcopy(self.stored), self.rules, self.now)
        self.stored = copy.deepcopy(self.machine.state)  # with the ends that the start has bounded
        self.step()

    def put(self, *bodies: bytes, producer: str = "", first: int = 1, wait: float = 0.0) -> Any:
        return self.do(PutWork(bodies, producer, first, wait))

    def pull(self, token: str = "w/1", most: int = 1, *, again: bool = False) -> Any:
        return self.do(PullWork(token, most, 0.0, again))

    def numbers(self, token: str = "w/1", most: int = 1) -> list[int]:
        return [row[0] for row in self.pull(token, most)]


def test_items_are_leased_in_their_order_each_to_one_worker() -> None:
    home = Home()
    assert home.put(b"a", b"b", b"c") == 3
    assert home.pull("x/1") == [(1, 1, 30.0, b"a")]
    assert home.pull("y/1", 10) == [(2, 1, 30.0, b"b"), (3, 1, 30.0, b"c")]
    assert home.pull("z/1") == []


def test_a_confirmed_item_is_gone_and_a_repeated_confirmation_changes_nothing() -> None:
    home = Home()
    home.put(b"a", b"b")
    home.pull()
    assert home.do(ConfirmWork([1, 1, 7])) == 1
    assert home.do(ConfirmWork([1])) == 0
    assert home.events == []
    home.after(100)
    assert home.numbers("y/1", 10) == [2]
    assert home.stored.confirmed == 1


def test_an_item_goes_to_another_worker_once_its_lease_has_ended() -> None:
    home = Home(lease=30.0)
    home.put(b"a")
    home.pull("x/1")
    home.after(29.9)
    assert home.pull("y/1") == []
    home.after(0.1)
    assert home.pull("y/1") == [(1, 2, 30.0, b"a")]


def test_a_late_confirmation_counts_whoever_has_the_item_now() -> None:
    home = Home()
    home.put(b"a")
    home.pull("x/1")
    home.after(30)
    home.pull("y/1")
    assert home.do(ConfirmWork([1])) == 1
    home.after(100)
    assert home.pull("z/1") == []


def test_the_end_of_a_lease_counts_from_the_pull_which_may_have_waited() -> None:
    home = Home(lease=2.0)
    first = home.begin(PullWork("x/1", 1, 20.0))
    home.after(5)
    home.put(b"a")
    assert home.answers[first] == [(1, 1, 7.0, b"a")]
    second = home.begin(PullWork("y/1", 1, 20.0))
    home.after(-3600)  # the clock is set back
    home.put(b"b")
    assert home.answers[second] == [(2, 1, 2.0, b"b")]


def test_a_pull_waits_for_an_item_and_the_first_to_wait_gets_it() -> None:
    home = Home()
    first, second = (home.begin(PullWork(token, 5, 20.0)) for token in ("x/1", "y/1"))
    assert home.machine.waiting == (2, 0)
    assert home.machine.deadline() == home.now + 20.0
    home.put(b"a")
    assert [row[0] for row in home.answers[first]] == [1]
    assert second not in home.answers
    home.after(19.9)
    assert second not in home.answers
    home.after(0.1)
    assert home.answers[second] == []


def test_a_put_waits_for_room_and_no_put_passes_it() -> None:
    home = Home(limit=2)
    assert home.put(b"a", b"b") == 2
    third = home.begin(PutWork([b"c", b"d"], "p", 1, 5.0))
    fourth = home.begin(PutWork([b"e"], "q", 1, 5.0))
    assert home.machine.waiting == (0, 2)
    home.pull()
    home.do(ConfirmWork([1]))
    assert home.answers[third] == 1
    assert fourth not in home.answers
    assert [item.body for item in home.stored.items.values()] == [b"b", b"c"]
    home.after(5)
    assert home.answers[fourth] == 0
    assert home.put(b"d", producer="p", first=2) == 0, "the rest comes again, and has no room"


def test_bytes_bound_the_queue_and_one_large_item_has_room_alone() -> None:
    home = Home(bytes_limit=10)
    assert home.put(b"x" * 6, b"y" * 6) == 1
    home.pull()
    home.do(ConfirmWork([1]))
    assert home.put(b"z" * 50) == 1
    assert home.put(b"q") == 0


@pytest.mark.parametrize("restarts", [False, True])
def test_a_repeated_put_adds_only_what_is_new(restarts: bool) -> None:
    home = Home()
    assert home.put(b"a", b"b", producer="p", first=1) == 2
    if restarts:
        home.restart()
    assert home.put(b"a", b"b", producer="p", first=1) == 2
    assert home.events == []
    assert home.put(b"b", b"c", producer="p", first=2) == 2
    assert home.put(b"a", producer="other", first=1) == 1
    assert [item.body for item in home.stored.items.values()] == [b"a", b"b", b"c", b"a"]


def test_two_copies_of_a_put_that_wait_add_their_items_once() -> None:
    home = Home(limit=1)
    home.put(b"a")
    copies = [home.begin(PutWork([b"b"], "p", 1, 9.0)) for _ in range(2)]
    home.pull()
    home.do(ConfirmWork([1]))
    home.numbers("y/1")
    home.do(ConfirmWork([2]))
    assert [home.answers[copy] for copy in copies] == [1, 1]
    assert home.stored.last == 2


def test_the_producer_that_put_least_lately_is_forgotten() -> None:
    home = Home(limit=3 * PRODUCERS_MAX)
    for n in range(PRODUCERS_MAX):
        home.put(b"x", producer=f"p{n}", first=1)
    home.put(b"y", producer="p0", first=2)
    home.put(b"x", producer="late", first=1)
    assert len(home.stored.producers) == PRODUCERS_MAX
    assert "p0" in home.stored.producers
    assert "p1" not in home.stored.producers


def test_a_repeated_pull_gets_the_items_of_the_first_and_no_others() -> None:
    home = Home()
    home.put(b"a", b"b")
    home.pull("x/1")
    home.restart()
    home.after(10)
    assert home.pull("x/1", again=True) == [(1, 1, 20.0, b"a")]
    assert home.events == []
    home.after(20)
    assert home.pull("x/1", again=True) == [(1, 2, 30.0, b"a")], "its lease ended: a new one"


def test_leases_survive_a_restart_with_their_ends() -> None:
    home = Home()
    home.put(b"a", b"b")
    home.pull("x/1")
    home.after(10)
    home.restart()
    assert home.numbers("y/1", 5) == [2]
    home.after(19.9)
    assert home.numbers("y/2", 5) == []
    home.after(0.1)
    assert home.numbers("y/2", 5) == [1]


def test_a_clock_that_jumps_back_delays_no_item_for_longer_than_a_lease() -> None:
    home = Home()
    home.put(b"a")
    home.pull()
    home.now -= 3600
    home.restart()
    assert home.machine.deadline() == home.now + 30.0
    home.after(30)
    assert home.numbers("y/1") == [1]


def test_an_item_that_is_given_back_with_an_error_pauses_and_the_pause_doubles() -> None:
    home = Home(backoff=1.0, attempts=9)
    home.put(b"a")
    for pause in (1.0, 2.0, 4.0):
        assert home.numbers() == [1]
        assert home.do(ReturnWork("w/1", [1], "ValueError: no")) == [1]
        home.after(pause - 0.1)
        assert home.numbers() == []
        home.after(0.1)
    assert home.stored.items[1].error == "ValueError: no"


def test_an_item_that_was_not_begun_is_ready_at_once_and_no_attempt_counts() -> None:
    home = Home(attempts=2)
    home.put(b"a")
    for _ in range(5):
        assert home.pull()[0][:2] == (1, 1)
        assert home.do(ReturnWork("w/1", [1])) == [1]
    assert home.machine.aside == 0


def test_only_the_holder_gives_an_item_back_or_extends_its_lease() -> None:
    home = Home()
    home.put(b"a")
    home.pull("x/1")
    home.after(30)
    home.pull("y/1")
    assert home.do(ReturnWork("x/1", [1], "late")) == []
    assert home.do(ExtendWork("x/1", [1])) == ([], 30.0)
    home.after(20)
    assert home.do(ExtendWork("y/1", [1, 5])) == ([1], 30.0)
    home.after(29)
    assert home.pull("z/1") == []
    home.after(1)
    assert home.numbers("z/1") == [1]


def test_an_item_whose_lease_was_extended_twice_goes_to_one_worker_only() -> None:
    home = Home()
    home.put(b"a")
    home.pull("x/1")
    for _ in range(2):
        home.do(ExtendWork("x/1", [1]))
    home.after(30)
    assert home.numbers("y/1") == [1]
    assert home.numbers("z/1") == []


def test_an_item_is_set_aside_after_its_last_attempt_and_blocks_nobody() -> None:
    home = Home(attempts=2)
    home.put(b"poison", b"good")
    home.pull("x/1")
    home.do(ReturnWork("x/1", [1], "ValueError: no"))
    assert home.numbers("y/1", 5) == [2]
    home.after(1)
    home.pull("x/2")
    assert home.do(ReturnWork("x/2", [1], "ValueError: no")) == [1]
    assert home.stored.items[1].place is ItemPlace.ASIDE
    home.after(100)
    assert home.numbers("y/2", 5) == [2]


def test_a_worker_that_dies_each_time_sets_its_item_aside_too() -> None:
    home = Home(attempts=2)
    home.put(b"poison")
    for n in range(2):
        assert home.numbers(f"x/{n}") == [1]
        home.after(30)
    assert home.numbers("x/9") == []
    assert home.stored.items[1].place is ItemPlace.ASIDE
    assert home.stored.items[1].error == "the lease ended without a confirmation"


def test_an_operator_lets_an_item_be_tried_again_or_drops_it() -> None:
    home = Home(attempts=1)
    home.put(b"a", b"b", b"c")
    home.pull("x/1", 2)
    home.do(ReturnWork("x/1", [1, 2], "no"))
    assert home.do(RetryWork([1, 3, 9])) == 1
    assert home.pull("y/1")[0][:2] == (1, 1)
    assert home.do(DropWork([1, 2, 3])) == 1
    assert home.stored.dropped == 1
    assert list(home.stored.items) == [1, 3]


def test_while_no_more_can_be_set_aside_an_item_that_fails_stays_in_the_queue() -> None:
    home = Home(attempts=1, aside_limit=1)
    home.put(b"a", b"b")
    home.pull("x/1", 2)
    home.do(ReturnWork("x/1", [1, 2], "no"))
    assert [home.stored.items[n].place for n in (1, 2)] == [ItemPlace.ASIDE, ItemPlace.DELAYED]
    home.after(1)
    assert home.numbers("x/2") == [2]


def test_a_pull_that_nobody_waits_for_gets_nothing_and_gives_back_what_it_has() -> None:
    home = Home()
    waits = home.begin(PullWork("x/1", 1, 20.0))
    home.do(CancelPull("x/1"))
    assert home.answers[waits] == []
    home.put(b"a")
    assert home.numbers("y/1") == [1]
    assert home.do(CancelPull("y/1")) == [1]
    assert home.pull("z/1")[0][:2] == (1, 1)


def test_a_queue_that_leaves_answers_all_that_waits() -> None:
    home = Home(limit=1)
    home.put(b"a")
    home.numbers()
    pull = home.begin(PullWork("x/1", 1, 20.0))
    put = home.begin(PutWork([b"b"], "p", 1, 20.0))
    home.machine.leave()
    home.step()
    assert (home.answers[pull], home.answers[put]) == ([], 0)
    assert home.pull("x/2") == []


def test_requests_that_wait_are_bounded() -> None:
    home = Home()
    for n in range(WAITING_MAX):
        home.machine.handle(n, PullWork(f"w/{n}", 1, 9.0), home.now)
    assert home.machine.is_crowded


def test_events_of_one_step_are_in_order_and_before_their_answers() -> None:
    home = Home()
    home.machine.handle(1, PutWork([b"a"], "p", 1, 0.0), home.now)
    home.machine.handle(2, PullWork("x/1", 1, 0.0), home.now)
    home.machine.handle(3, ConfirmWork([1]), home.now)
    events, answers = home.machine.step(home.now)
    assert isinstance(events[0], Queued)
    assert not any(isinstance(event, Removed) for event in events)
    assert dict(answers)[1] == 1
    assert [row[0] for row in dict(answers)[2]] == [1]


@pytest.mark.parametrize("seed", [*range(6), *long_only(*range(6, 30))])
def test_whatever_happens_each_item_is_worked_and_none_after_its_confirmation(seed: int) -> None:
    dice = Random(seed)
    home = Home(lease=5.0, attempts=3, limit=6)
    sent = 0
    confirmed: set[bytes] = set()
    holders: dict[bytes, tuple[str, int, float]] = {}
    for turn in range(400):
        home.after(dice.choice([0.0, 0.1, 1.0, 6.0]))
        match dice.randrange(7):
            case 0 | 1:
                sent += home.put(b"%d" % (sent + 1), producer="p", first=sent + 1) or 0
            case 2 | 3:
                token = f"w/{turn}"
                for number, _, lease, body in home.pull(token, dice.randint(1, 3)):
                    assert body not in confirmed
                    assert body not in holders or holders[body][2] <= home.now
                    holders[body] = token, number, home.now + lease
            case 4 if holders:
                body = dice.choice(sorted(holders))
                home.do(ConfirmWork([holders[body][1]]))
                confirmed.add(body)
                del holders[body]
            case 5 if holders:
                token, number, _ = holders.pop(dice.choice(sorted(holders)))
                home.do(ReturnWork(token, [number], dice.choice(["", "failed"])))
            case 6:
                home.restart()
            case _:
                pass
    while home.stored.items:
        home.after(60.0)
        home.do(RetryWork(list(home.stored.items)))
        for number, _, _, body in home.pull(f"end/{home.now}", 10):
            assert body not in confirmed
            confirmed.add(body)
            home.do(ConfirmWork([number]))
    assert confirmed == {b"%d" % n for n in range(1, sent + 1)}
    assert home.stored.confirmed == sent
