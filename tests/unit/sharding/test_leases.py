"""Leases: an owner knows when it holds one, and in time when it ends."""

from __future__ import annotations

from itertools import product

import pytest

from shardbus.sharding import leases as ls
from shardbus.sharding.events import Note
from shardbus.sharding.leases import LeaseEntry, Leases, LeaseState, LeaseTrigger
from shardbus.store.protocol import Lease
from tests.unit.transition_tables import check_drawing, check_step

TTL, RETRY = 20.0, 2.0
LEASE = Lease("s", "me", 1)
LOST = LeaseState.LOST


class Owner:
    """One machine and its events; notes are kept apart from its actions."""

    def __init__(self) -> None:
        self.now = 100.0
        self.machine = Leases(TTL, RETRY)
        self.notes: list[str] = []

    def tell(self, *events: ls.Event) -> list[ls.Effect]:
        effects = [e for event in events for e in self.machine.handle(event, self.now)]
        return self.only(effects) + self.turn()

    def turn(self) -> list[ls.Effect]:
        effects: list[ls.Effect] = []
        while (due := self.machine.deadline()) is not None and due <= self.now:
            effects += self.machine.tick(self.now)
        self.machine.check()
        return self.only(effects)

    def wait(self, seconds: float) -> list[ls.Effect]:
        """Time passes, deadline by deadline."""
        effects: list[ls.Effect] = []
        until = self.now + seconds
        while (due := self.machine.deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            effects += self.turn()
        self.now = until
        return effects

    def only(self, effects: list[ls.Effect]) -> list[ls.Effect]:
        self.notes += [effect.kind for effect in effects if isinstance(effect, Note)]
        return [effect for effect in effects if not isinstance(effect, Note)]


# The table


@pytest.mark.parametrize(("state", "trigger"), list(product(LeaseState, LeaseTrigger)))
def test_every_trigger_in_every_state(state: LeaseState, trigger: LeaseTrigger) -> None:
    entry = LeaseEntry(state)
    check_step(ls.TRANSITIONS, lambda: entry.state, entry.advance, trigger)


def test_the_drawing_names_every_state_and_trigger() -> None:
    check_drawing(ls, LeaseState, LeaseTrigger)


def test_a_lease_that_was_lost_is_never_held_again() -> None:
    """Only dropping it leads out of LOST: the work under it must have stopped."""
    out = {trigger: after for (state, trigger), after in ls.TRANSITIONS.items() if state is LOST}
    assert out == {LeaseTrigger.DROPPED: LeaseState.FREE}


# The owner's view


def holder() -> Owner:
    owner = Owner()
    owner.tell(ls.WantLease("s"))
    assert owner.tell(ls.LeaseGranted("s", 1, LEASE)) == [ls.LeaseHeld("s")]
    return owner


def test_nothing_starts_before_the_lease_is_granted() -> None:
    owner = Owner()
    assert owner.tell(ls.WantLease("s")) == [ls.AcquireCall("s", 1)]
    assert owner.wait(60) == [], "one question at a time"
    assert owner.tell(ls.LeaseGranted("s", 1, None)) == []
    assert owner.wait(RETRY) == [ls.AcquireCall("s", 2)]
    assert owner.tell(ls.LeaseCallFailed("s", 2)) == []
    assert owner.wait(RETRY - 0.1) == []
    assert owner.wait(0.1) == [ls.AcquireCall("s", 3)]
    assert owner.tell(ls.LeaseGranted("s", 3, LEASE)) == [ls.LeaseHeld("s")]
    assert owner.notes == ["lease_refused"], "said once, however often it is refused"


def test_leases_wanted_in_one_turn_are_requested_together() -> None:
    owner = Owner()
    requests = owner.tell(*(ls.WantLease(name) for name in "abc"), ls.WantLease("a"))
    assert requests == [ls.AcquireCall("a", 1), ls.AcquireCall("b", 2), ls.AcquireCall("c", 3)]


def test_all_leases_are_renewed_together_and_well_in_time() -> None:
    owner = Owner()
    leases = {name: Lease(name, "me", 1) for name in "abc"}
    for ticket, name in enumerate("abc", 1):
        owner.tell(ls.WantLease(name))
        owner.tell(ls.LeaseGranted(name, ticket, leases[name]))
        owner.now += 1.0
    renewed = owner.wait(TTL / 4 - 3.0)
    assert renewed == [ls.RenewCall(leases[name], 4 + i) for i, name in enumerate("abc")]
    for i, name in enumerate("abc"):
        assert owner.tell(ls.LeaseRenewed(name, 4 + i, True)) == []
    assert len(owner.wait(TTL / 4)) == 3
    assert owner.wait(TTL / 4) == [], "no answer yet"


def test_a_lease_that_is_not_confirmed_is_lost_in_time_to_stop() -> None:
    owner = holder()
    attempts: list[ls.Effect] = []
    began = owner.now
    while not any(isinstance(effect, ls.LeaseLost) for effect in attempts):
        events = owner.wait(0.5)
        attempts += events
        for effect in events:
            if isinstance(effect, ls.RenewCall):
                owner.tell(ls.LeaseCallFailed("s", effect.ticket))
    assert owner.now - began == TTL * 0.9
    assert [type(effect) for effect in attempts] == [ls.RenewCall] * 3 + [ls.LeaseLost]
    assert attempts[-1] == ls.LeaseLost("s", pytest.approx(TTL * 0.1))
    assert owner.machine.state_of("s") is LeaseState.LOST
    assert owner.notes == ["lease_lost"]
    assert owner.tell(ls.DropLease("s")) == [ls.ReleaseCall(LEASE, 0), ls.LeaseFree("s")]


def test_a_lease_counts_from_the_request_and_not_from_the_answer() -> None:
    owner = holder()
    [renew] = owner.wait(TTL / 4)
    assert isinstance(renew, ls.RenewCall)
    owner.wait(TTL / 2)
    owner.tell(ls.LeaseRenewed("s", renew.ticket, True))
    assert owner.machine.first_end == 100.0 + TTL / 4 + TTL * 0.9


def test_an_answer_older_than_the_lease_is_ignored() -> None:
    owner = Owner()
    owner.tell(ls.WantLease("s"))
    owner.wait(TTL * 0.95)
    assert owner.tell(ls.LeaseGranted("s", 1, LEASE)) == [ls.AcquireCall("s", 2)]


def test_a_lease_that_the_store_reports_as_lost_is_lost_at_once() -> None:
    owner = holder()
    [renew] = owner.wait(TTL / 4)
    assert isinstance(renew, ls.RenewCall)
    assert owner.tell(ls.LeaseRenewed("s", renew.ticket, False)) == [ls.LeaseLost("s", 0.0)]
    owner.tell(ls.DropLease("s"))
    assert owner.tell(ls.WantLease("s")) == [ls.AcquireCall("s", renew.ticket + 1)]
    newer = Lease("s", "me", 7)
    assert owner.tell(ls.LeaseGranted("s", renew.ticket + 1, newer)) == [ls.LeaseHeld("s")]


def test_an_owner_that_wakes_up_late_has_no_time_left() -> None:
    owner = holder()
    owner.now += 10 * TTL
    assert owner.machine.first_end is not None
    assert owner.machine.first_end < owner.now
    assert owner.turn() == [ls.LeaseLost("s", 0.0)], "and renews nothing"
    assert owner.machine.first_end is None


def test_a_lease_is_returned_before_it_is_free() -> None:
    owner = holder()
    assert owner.tell(ls.DropLease("s")) == [ls.ReleaseCall(LEASE, 2)]
    assert owner.tell(ls.DropLease("s")) == []
    assert owner.wait(100) == [], "it is neither renewed nor lost"
    assert owner.tell(ls.LeaseReturned("s", 2)) == [ls.LeaseFree("s")]
    assert owner.machine.names == []
    assert owner.machine.deadline() is None


def test_a_lease_wanted_again_while_it_is_returned_is_requested_after_that() -> None:
    owner = holder()
    owner.tell(ls.DropLease("s"))
    assert owner.tell(ls.WantLease("s")) == []
    assert owner.tell(ls.LeaseReturned("s", 2)) == [ls.LeaseFree("s"), ls.AcquireCall("s", 3)]
    owner.tell(
        ls.LeaseGranted("s", 3, LEASE), ls.DropLease("s"), ls.WantLease("s"), ls.DropLease("s")
    )
    assert owner.tell(ls.LeaseReturned("s", 4)) == [ls.LeaseFree("s")]


def test_a_lease_never_held_is_free_at_once_and_released_if_granted_late() -> None:
    owner = Owner()
    assert owner.tell(ls.DropLease("s")) == [ls.LeaseFree("s")]
    owner.tell(ls.WantLease("s"))
    assert owner.tell(ls.DropLease("s")) == [ls.LeaseFree("s")]
    assert owner.tell(ls.LeaseGranted("s", 1, LEASE)) == [ls.ReleaseCall(LEASE, 0)]


def test_a_late_answer_to_an_earlier_request_releases_no_lease_that_is_wanted_again() -> None:
    owner = Owner()
    owner.tell(ls.WantLease("s"))
    owner.tell(ls.DropLease("s"), ls.WantLease("s"))
    assert owner.tell(ls.LeaseGranted("s", 1, LEASE)) == []
    assert owner.tell(ls.LeaseGranted("s", 2, LEASE)) == [ls.LeaseHeld("s")]
