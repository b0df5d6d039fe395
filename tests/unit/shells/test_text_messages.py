"""Texts for types without `receive`: which handler each message of a run calls."""

from __future__ import annotations

from typing import Any

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.entities.entity_type import EntityType
from shardbus.routing.refs import NO_ARGUMENTS
from shardbus.shells.text_messages import handler_call, handler_runs, unhandled
from shardbus.wire.batch import METHOD_MAX, AskRun, Relayed, TellRun
from shardbus.wire.schema import encode_value


class Page(Entity):
    @handler
    def total(self) -> int:
        return 0

    @handler
    def add(self, amount: int) -> int:
        return amount


@pytest.fixture
def page() -> EntityType:
    bus = ShardBus("shop")
    bus.entity("page")(Page)
    return bus.types["page"]


def test_a_run_is_cut_where_the_handler_changes_and_keeps_its_order(page: EntityType) -> None:
    values: list[Any] = ["total", "total", "add", 7, "nothing", "total"]
    payloads = [encode_value(value) for value in values]
    ids, corrs = list("abcdef"), [1, 2, 3, 4, 5, 6]
    parts = list(handler_runs(AskRun("page", "", 500, ids, payloads, corrs), page))
    assert [(p.method, p.ids, p.corrs) for p in parts] == [
        ("total", ["a", "b"], [1, 2]),
        ("add", ["c"], [3]),
        ("", ["d"], [4]),
        ("", ["e"], [5]),
        ("total", ["f"], [6]),
    ]
    assert all(p.payloads == [NO_ARGUMENTS] * len(p.ids) for p in parts)
    assert {p.timeout_ms for p in parts} == {500}
    tells = list(handler_runs(TellRun("page", "", ids, payloads), page))
    assert [(p.method, p.ids) for p in tells] == [(p.method, p.ids) for p in parts]


@pytest.mark.parametrize("method", ["gone", ":Hit"])
def test_a_run_for_a_named_method_stays_as_it_is(page: EntityType, method: str) -> None:
    run = TellRun("page", method, ["a"], [encode_value("total")])
    assert list(handler_runs(run, page)) == [run]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        encode_value("$start"),
        encode_value("receive"),
        encode_value(["total"]),
        encode_value("total" + " " * METHOD_MAX),
    ],
    ids=["empty", "broken", "start", "no handler", "list", "long"],
)
def test_any_other_payload_names_no_handler(page: EntityType, payload: bytes) -> None:
    [part] = handler_runs(TellRun("page", "", ["a"], [payload]), page)
    assert part.method == ""
    relayed = Relayed("page", "1", "a", "", payload, 1, 500, 1)
    assert handler_call(relayed, page) is relayed


def test_a_forwarded_text_calls_the_handler(page: EntityType) -> None:
    relayed = Relayed("page", "1", "a", "", encode_value("total"), 1, 500, 1)
    call = handler_call(relayed, page)
    assert (call.method, call.payload, call.corr) == ("total", NO_ARGUMENTS, 1)
    other = Relayed("page", "1", "a", "gone", encode_value("total"), 1, 500, 1)
    assert handler_call(other, page) is other


def test_the_error_says_what_is_missing(page: EntityType) -> None:
    assert str(unhandled(page, "gone")) == "page has no handler 'gone'; it has total, add"
    assert str(unhandled(page, "totl")) == "page has no handler 'totl'; did you mean total?"
    assert str(unhandled(page, "")) == "page has no receive, and the message names no handler"
