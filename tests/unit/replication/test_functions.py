from __future__ import annotations

import pytest

from shardbus.errors import LayoutDiffers, StaleEpoch, StaleFence
from shardbus.ids import NodeId
from shardbus.replication import functions
from shardbus.replication.functions import TAKE_OVER
from shardbus.replication.ring import RingMember, first_ring, next_ring, ring_of, ring_value
from shardbus.replication.values import (
    Function,
    HomesChange,
    LeaseValue,
    ListValue,
    Reading,
    StateValue,
    TableValue,
    Unchanged,
    Value,
    Written,
    changed,
)

HOME = (NodeId.parse("n1:25520#1"), 3)
TABLE = TableValue(3, "crc32/10", 8, 4, {"1": HOME})


def twice(function: Function, value: Value) -> object:
    """The result, which must be the same on the value that the function has made. A change that it
    sends alone makes that value, too."""
    step = function(value)
    if isinstance(step, Unchanged):
        return step.result
    if step.change is not None:
        assert changed(value, step.change) == step.value
    again = function(step.value)
    assert again.result == step.result
    return step.result


def test_a_claim_takes_a_lower_epoch_and_keeps_the_homes() -> None:
    claim = functions.claim("t", 4, "crc32/10", 9)
    assert twice(claim, None) == TableValue(4, "crc32/10", 9, 0, {})
    assert twice(claim, TABLE) == TableValue(4, "crc32/10", 9, 4, {"1": HOME})


@pytest.mark.parametrize("epoch", [2, 3])
def test_a_claim_of_an_epoch_that_is_not_higher_is_stale(epoch: int) -> None:
    assert isinstance(twice(functions.claim("t", epoch, "crc32/10", 9), TABLE), StaleEpoch)


def test_a_claim_of_another_layout_is_refused_while_there_are_homes() -> None:
    claim = functions.claim("t", 4, "crc32/20", 9)
    assert isinstance(twice(claim, TABLE), LayoutDiffers)
    assert isinstance(twice(claim, TABLE._replace(homes={})), TableValue)


def test_homes_are_written_by_the_claimer_of_the_epoch_once() -> None:
    write = functions.write_homes("t", 3, 8, {"1": None, "2": HOME}, 5)
    step = write(TABLE)
    assert isinstance(step, Written)
    assert step.value == TABLE._replace(op=5, homes={"2": HOME})
    assert step.change == HomesChange(5, {"1": None, "2": HOME})
    assert twice(write, TABLE) is None
    for other in (None, TABLE._replace(epoch=4), TABLE._replace(claimer=9)):
        assert isinstance(twice(write, other), StaleEpoch)
    assert twice(write, TABLE._replace(epoch=4, op=5)) is None


def test_homes_are_removed_once() -> None:
    assert twice(functions.remove_homes(77), TABLE) is True
    assert twice(functions.remove_homes(77), TABLE._replace(homes={})) is False
    assert twice(functions.remove_homes(77), None) is False


def test_a_state_expires_once_it_has_been_idle() -> None:
    state = StateValue(1, b"a")
    step = functions.expire(10.0, 5.0, 99)(state)
    assert step == Written(StateValue(1, b"a", 10.0), result=False)
    expire = functions.expire(20.0, 15.0, 99)
    assert twice(expire, StateValue(1, b"a", 10.0)) is True
    assert expire(StateValue(1, b"a", 10.0)) == Written(StateValue(1, None, None, 99), result=True)
    assert twice(expire, StateValue(1, None, None, 98)) is False
    assert twice(expire, StateValue(1, b"a", 16.0)) is False
    assert twice(expire, None) is False


def test_a_list_changes_under_its_fence() -> None:
    change = functions.change_list("t", "7", ("a", "b"), ("c",), 4)
    assert twice(change, None) is None
    assert change(ListValue(3, frozenset("c"))).result is None
    assert change(ListValue(4, frozenset("ab"))) == Unchanged()
    assert isinstance(twice(change, ListValue(5, frozenset())), StaleFence)
    assert functions.change_list("t", "7", (), (), 4)(ListValue(3, frozenset("a"))) != Unchanged()


def test_a_store_has_one_name() -> None:
    assert twice(functions.identify("", "fresh"), None) == "fresh"
    assert twice(functions.identify("", "fresh"), "stored") == "stored"
    assert twice(functions.identify("known", "fresh"), "stored") == "known"


def test_a_ring_is_decided_once() -> None:
    ring = first_ring((RingMember(1, "a"), RingMember(2, "b")), 3)
    after = next_ring(ring, (RingMember(1, "a"),))
    decided = twice(functions.decide_once(ring_value(after)), None)
    assert ring_of(decided) == after
    assert twice(functions.decide_once(ring_value(ring)), ring_value(after)) == ring_value(after)
    with pytest.raises(ValueError, match="is no ring"):
        ring_of(("?",))


LEASE = LeaseValue("n1", 4, 0, 10.0, 7)


def test_a_lease_is_taken_over_once_it_is_older_than_its_time() -> None:
    assert functions.acquire("n2", 5.0, Reading(LEASE, 10.0 * TAKE_OVER - 0.1), 8) is None
    take = functions.acquire("n2", 5.0, Reading(LEASE, 10.0 * TAKE_OVER), 8)
    assert take is not None
    assert twice(take, LEASE) == 5
    assert take(LEASE._replace(renewals=1)) == Unchanged()
    free = functions.acquire("n2", 5.0, Reading(None, 0.0), 8)
    assert free is not None
    assert free(None) == Written(LeaseValue("n2", 1, 0, 5.0, 8), 1)


def test_an_owner_keeps_its_counter_while_its_lease_lasts() -> None:
    again = functions.acquire("n1", 5.0, Reading(LEASE, 1.0), 8)
    late = functions.acquire("n1", 5.0, Reading(LEASE, 10.0), 8)
    assert again is not None
    assert late is not None
    assert (twice(again, LEASE), twice(late, LEASE)) == (4, 5)


def test_a_renewal_never_shortens_a_lease() -> None:
    step = functions.renew("n1", 4, 2.0)(LEASE)
    assert step == Written(LEASE._replace(renewals=1), result=True)
    step = functions.renew("n1", 4, 2.0, Reading(LEASE, 5.5))(LEASE)
    assert step == Written(LEASE._replace(renewals=1, time=5.0), result=True)


def test_a_lease_that_is_lost_is_not_renewed_and_not_released() -> None:
    for lost in (None, LEASE._replace(owner="n2"), LEASE._replace(counter=5)):
        assert functions.renew("n1", 4, 2.0)(lost) == Unchanged(result=False)
        assert functions.release("n1", 4)(lost) == Unchanged()
    assert functions.renew("n1", 4, 2.0, Reading(LEASE, 10.0))(LEASE) == Unchanged(result=False)
    assert functions.release("n1", 4)(LEASE) == Written(LeaseValue(None, 4, 0, 0.0, 0))
