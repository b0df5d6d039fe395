"""Commands to coordinators: questions, early refusals, and refusals that come back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shardbus.admin.shard_control import SHARDS_MAX, ShardControl, address_of
from shardbus.errors import ConfigError, NodeLost, Refused, StoreUnavailable, UnknownEntityType
from shardbus.ids import Address, NodeId

NODE = NodeId("b", 7355, 2)
PAGE = "page"


class Around:
    """A control whose coordinator gives one answer and remembers the questions."""

    def __init__(self, answer: Any = None) -> None:
        self.questions: list[tuple[object, ...]] = []
        self.answer = answer
        self.region: Any = SimpleNamespace(
            name=PAGE,
            coordinator=NODE,
            router=SimpleNamespace(has_shard=lambda shard: shard.isdigit()),
        )
        rpc: Any = SimpleNamespace(ask=self._ask)
        self.control = ShardControl({PAGE: self.region}, rpc)

    async def _ask(self, node: NodeId, question: str, *arguments: object, of: str) -> Any:
        assert (node, arguments[0], of) == (NODE, PAGE, PAGE)
        self.questions.append((question, *arguments[1:]))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    "place", [NODE, NODE.address, "b:7355", "b:7355#0000000000000002"], ids=repr
)
def test_a_place_is_an_address(place: Any) -> None:
    assert address_of(place) == Address("b", 7355)


def test_a_text_that_is_no_place_is_refused() -> None:
    with pytest.raises(ConfigError):
        address_of("b")


@pytest.mark.parametrize("answer", [None, {}])
async def test_a_node_that_does_not_coordinate_is_a_refusal_to_try_again(answer: Any) -> None:
    with pytest.raises(Refused, match=r"the coordinator of 'page' is not known yet") as refused:
        await Around(answer).control.ask(PAGE, "table")
    assert refused.value.hint == "try again"


async def test_without_a_coordinator_no_node_is_asked() -> None:
    around = Around({"epoch": 1})
    around.region.coordinator = None
    with pytest.raises(Refused, match="not known yet"):
        await around.control.ask(PAGE, "table")
    assert around.questions == []


async def test_an_unknown_type_and_a_lost_node_are_named() -> None:
    with pytest.raises(UnknownEntityType):
        await Around({"epoch": 1}).control.ask("none", "table")
    with pytest.raises(NodeLost):
        await Around(NodeLost("gone")).control.ask(PAGE, "table")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("ConfigError", ConfigError),
        ("Refused", Refused),
        ("StoreUnavailable", StoreUnavailable),
        ("SomethingNewer", Refused),
    ],
)
async def test_a_refusal_of_the_coordinator_is_raised_as_it_was_there(
    name: str, error: Any
) -> None:
    around = Around({"refused": [name, "it has a reason", "and a hint"]})
    with pytest.raises(error) as refused:
        await around.control.ask(PAGE, "place")
    assert (refused.value.message, refused.value.hint) == ("it has a reason", "and a hint")
    assert type(refused.value) is error


@pytest.mark.parametrize(
    ("named", "question"),
    [
        ({}, ("rebalance",)),
        ({"paused": True}, ("slow", True, None)),
        ({"paused": False, "moves": 5}, ("slow", False, 5)),
        ({"moves": 0}, ("slow", None, 0)),
    ],
)
async def test_rebalancing_is_checked_paused_or_bounded(named: Any, question: Any) -> None:
    around = Around({"paused": False})
    assert await around.control.rebalance(PAGE, **named) == {"paused": False}
    assert around.questions == [question]


async def test_shards_are_stopped_once_each() -> None:
    around = Around({"stopped": ["2"], "stopping": ["1"]})
    assert await around.control.stop(PAGE, ["2", "1", "2"]) == around.answer
    assert around.questions == [("stop", ["2", "1"])]


async def test_places_are_read_and_set() -> None:
    around = Around({"places": {"1": "b:7355"}})
    places = {"1": Address("b", 7355)}
    assert await around.control.places(PAGE) == places
    assert await around.control.place(PAGE, {"1": Address("b", 7355), "2": None}) == places
    assert around.questions == [("places",), ("place", {"1": "b:7355", "2": ""})]


async def test_shards_that_the_type_does_not_have_or_too_many_are_refused_here() -> None:
    around = Around({"places": {}})
    control = around.control
    too_many = [str(n) for n in range(SHARDS_MAX + 1)]
    for call in (
        control.stop(PAGE, ["1", "x"]),
        control.stop(PAGE, too_many),
        control.place(PAGE, {"x": None}),
        control.place(PAGE, dict.fromkeys(too_many)),
    ):
        with pytest.raises(ConfigError, match=r"has no shard 'x'|at most"):
            await call
    assert around.questions == []
    await control.stop(PAGE, too_many[:-1])
