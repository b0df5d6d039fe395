"""Which entity types a member has, by its announcement."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.ids import NodeId
from shardbus.membership import known_types
from shardbus.membership.gossip import Gossip
from shardbus.membership.known_types import TYPES_MAX, announced, may_have
from shardbus.membership.member import FEATURES, Member
from shardbus.wire.state import gossip_of, wire_state


def test_a_member_may_have_any_type_if_it_announces_none() -> None:
    """A build from before announcements."""
    assert may_have((), "cart")
    assert may_have(("vitals", "of tomorrow"), "cart")
    assert Member(NodeId("a", 1, 1), 2).may_have_type("cart")


def test_a_member_without_types_has_none() -> None:
    assert not may_have(announced(()), "cart")


def test_a_member_has_the_types_that_it_announces_and_no_other() -> None:
    member = Member(NodeId("a", 1, 1), 2, features=(*FEATURES, *announced(("cart", "order"))))
    assert member.may_have_type("cart")
    assert member.may_have_type("order")
    assert not member.may_have_type("wishlist")


@given(st.sets(st.text(min_size=1, max_size=256), max_size=200))
def test_no_announced_type_is_ever_missed(names: set[str]) -> None:
    assert all(may_have(announced(names), name) for name in names)


def test_the_order_of_declarations_does_not_matter() -> None:
    """So members of one version announce equal features, which gossip compresses."""
    assert announced(("cart", "order")) == announced(("order", "cart"))


@pytest.mark.parametrize("count", [0, 1, 59, 60, 61, TYPES_MAX])
def test_the_gossip_state_has_room_for_every_type(count: int) -> None:
    names = [f"type-{i}" for i in range(count)]
    member = Member(NodeId("a", 1, 1), 2, features=(*FEATURES, *announced(names)))
    read = gossip_of(wire_state(Gossip({member.node: member}))).members[member.node]
    assert read == member
    assert all(map(read.may_have_type, names))
    assert not read.may_have_type("another")


def test_types_of_one_code_seem_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The member's answer to a registration corrects that."""
    monkeypatch.setattr(known_types, "_code", lambda name: "same")
    assert may_have((*announced(("cart",)), "x"), "order")
