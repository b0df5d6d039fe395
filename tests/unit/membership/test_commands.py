"""Commands of operators and of the application, as steps from one state to the next."""

from __future__ import annotations

from typing import Any

import pytest

from shardbus.errors import ConfigError
from shardbus.ids import NodeId
from shardbus.membership import events as ev
from shardbus.membership.commands import apply_command, check_meta
from shardbus.membership.gossip import EPOCHS_MAX, Gossip
from shardbus.membership.member import Status, age_order
from tests.records import replace
from tests.unit.membership.test_gossip import A, state


def aged(**statuses: Status) -> Gossip:
    """A state whose members came up in the order given."""
    gossip = state(**statuses)
    ages = (
        replace(gossip.members[NodeId(host, 1, 1)], up_number=number)
        for number, host in enumerate(statuses, 1)
    )
    return gossip.with_members(A, *ages)


def test_a_node_that_yields_becomes_the_youngest_and_only_once() -> None:
    before = aged(a=Status.UP, b=Status.UP, c=Status.LEAVING)
    after, refusal = apply_command(before, A, ev.YieldSeniority(), 0.0)
    assert not refusal
    assert sorted(after.members.values(), key=age_order)[-1].node == A
    assert after.members[A] == replace(before.members[A], up_number=4, yields=1)
    assert apply_command(after, A, ev.YieldSeniority(), 0.0)[0] is after


@pytest.mark.parametrize("status", [s for s in Status if s not in (Status.UP, Status.REMOVED)])
def test_only_an_up_member_yields(status: Status) -> None:
    before = aged(a=status, b=Status.UP)
    assert apply_command(before, A, ev.YieldSeniority(), 0.0)[0] is before


def test_what_an_operator_downs_is_kept_down_also_after_its_removal() -> None:
    b = NodeId("b", 1, 1)
    before = aged(a=Status.UP, b=Status.UP, c=Status.UP)
    decided, _ = apply_command(before, A, ev.Down(b), 0.0)
    assert (decided.members[b].status, decided.kept_down) == (Status.DOWN, frozenset())
    downed, _ = apply_command(decided, A, ev.Down(b, for_good=True), 0.0)
    assert downed.kept_down == {b}, "though it was Down already"
    assert not downed.same_version(decided)
    assert apply_command(downed, A, ev.Down(b, for_good=True), 0.0)[0] is downed
    gone = downed.without_members(A, (b,), 5.0)
    assert gone.kept_down == {b}
    assert gone.pruned(6.0).kept_down == frozenset()
    removed, _ = apply_command(before, A, ev.Remove(b), 0.0)
    assert removed.kept_down == {b}


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("rate", "1.09"), ("rate", bytearray(b"1")), ("rate", None), ("rate\ud800", b"1"),
        (b"rate", b"1"), (None, b"1"), ("", b"1"), ("n" * 129, b"1"), ("n", b"x" * 4097),
    ],
)  # fmt: skip
def test_S3_34_meta_that_gossip_cannot_carry_is_refused(name: Any, data: Any) -> None:
    with pytest.raises(ConfigError):
        check_meta(name, data)
    before = aged(a=Status.UP)
    after, refusal = apply_command(before, A, ev.SetMeta(name, data), 0.0)
    assert after is before
    assert refusal, "a node that is handed it all the same goes on"


def test_S3_34_meta_of_a_class_of_texts_is_kept_as_a_plain_one() -> None:
    name, data = check_meta(type("Name", (str,), {})("rate é"), type("B", (bytes,), {})(b"1"))
    assert (type(name), type(data)) == (str, bytes)
    assert (name, data) == ("rate é", b"1")


def test_the_only_working_member_keeps_its_age() -> None:
    before = aged(a=Status.UP, b=Status.LEAVING)
    assert apply_command(before, A, ev.YieldSeniority(), 0.0)[0] is before


def test_epochs_of_many_types_are_one_version() -> None:
    before = aged(a=Status.UP)
    after, refusal = apply_command(before, A, ev.RecordEpochs({"x": 3, "y": 1}), 0.0)
    assert (after.epochs, refusal) == ({"x": 3, "y": 1}, "")
    assert after.clock.counters[A] == before.clock.counters[A] + 1
    assert apply_command(after, A, ev.RecordEpochs({"x": 2, "y": 1}), 0.0)[0] is after
    higher, _ = apply_command(after, A, ev.RecordEpochs({"x": 2, "y": 7}), 0.0)
    assert higher.epochs == {"x": 3, "y": 7}


def test_names_beyond_the_bound_get_no_epoch_and_the_others_do() -> None:
    full = {f"type-{i}": 1 for i in range(EPOCHS_MAX - 1)}
    before, _ = apply_command(aged(a=Status.UP), A, ev.RecordEpochs(full), 0.0)
    after, refusal = apply_command(
        before, A, ev.RecordEpochs({"type-0": 2, "one": 5, "more": 6}), 0.0
    )
    assert refusal == f"{EPOCHS_MAX} entity types have had coordinators already"
    assert after.epochs == {**full, "type-0": 2, "one": 5}
