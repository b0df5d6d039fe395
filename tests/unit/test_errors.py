"""Every place that makes a RequestError is in the table of `docs/guarantees.md`, which says whether
the error is definite there."""

from __future__ import annotations

import ast
import copy
import pickle
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from shardbus import errors
from shardbus.errors import ReentrancyError, Rejection, RequestError, Unhandled, is_definite
from tests.syntax import nodes_of, tree_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "shardbus"
CLASSES = {
    name
    for name, cls in vars(errors).items()
    if isinstance(cls, type) and issubclass(cls, RequestError | ReentrancyError)
}
SITES = {
    "admin/administration": {"BufferFull": 1},
    "app": {"NodeLost": 1},
    "client/asynchronous": {"BufferFull": 1, "NodeLost": 3, "RequestError": 1},
    "client/contact": {"NodeLost": 1},
    "client/outbox": {"DeliveryFailed": 3},
    "client/regions": {"NodeLost": 1, "UnknownEntityType": 3},
    "client/thread_bridge": {"AskTimeout": 1, "BufferFull": 3, "NodeLost": 2},
    "client/unknown_types": {"AskTimeout": 1, "BufferFull": 1},
    "client/work_queue": {
        "AskTimeout": 1,
        "BufferFull": 1,
        "MessageTooLarge": 1,
        "NodeLost": 1,
        "SchemaError": 1,
    },
    "admin/pages/projections": {"UnknownEntityType": 1},
    "cluster": {"NodeLost": 1},
    "deliveries/numbers": {"SchemaError": 1},
    "deliveries/record": {"BufferFull": 1},
    "embedding": {"NodeLost": 1},
    "entities/deferred": {"EntityFailed": 2, "MailboxFull": 1},
    "entities/deliveries": {"SchemaError": 1},
    "entities/durable_mailboxes": {"EntityFailed": 2, "MailboxFull": 1},
    "entities/event_log": {"StateUnreadable": 1},
    "entities/draining": {"Unhandled": 1},
    "entities/merged_state": {"SchemaError": 1, "StateUnreadable": 1},
    "entities/own_messages": {"AskTimeout": 1},
    "entities/projecting": {"StateUnreadable": 1},
    "entities/reminding": {"StateUnreadable": 1},
    "entities/runner": {"EntityFailed": 4, "MailboxFull": 1, "Unhandled": 1},
    "entities/running_handlers": {"ReentrancyError": 1},
    "entities/state_changes": {"AskTimeout": 1, "EntityFailed": 1},
    "entities/stopping": {"EntityFailed": 1},
    "entities/supervision": {"EntityFailed": 1},
    "entity": {"Unhandled": 1},
    "node/dispatch": {"UnknownEntityType": 4},
    "node/node": {"NodeLost": 1},
    "node/rpc": {
        "BufferFull": 1,
        "EntityFailed": 1,
        "SchemaError": 1,
        "Unhandled": 2,
        "UnknownEntityType": 1,
    },
    "node/session_loss": {"NodeLost": 3},
    "routing/delivering": {
        "BufferFull": 2,
        "DeliveryFailed": 1,
        "EntityFailed": 1,
        "KeyReused": 1,
        "MessageTooLarge": 1,
        "NodeLost": 1,
    },
    "routing/instance_sender": {"AskTimeout": 2, "NodeLost": 2},
    "routing/pending_message": {"AskTimeout": 1, "BufferFull": 1, "Unhandled": 5},
    "routing/region": {"Unhandled": 1},
    "routing/router": {"NodeLost": 1},
    "routing/shard_route": {"BufferFull": 2},
    "shells/region": {"NodeLost": 1, "Unhandled": 2, "UnknownEntityType": 1},
    "shells/text_messages": {"Unhandled": 2},
    "testing/store": {"UnknownEntityType": 1},
    "transport/asks": {
        "AskTimeout": 1,
        "EntityFailed": 4,
        "ReentrancyError": 1,
        "SchemaError": 1,
        "StateUnreadable": 2,
    },
    "transport/departures": {"NodeLost": 2},
    "transport/endpoint": {"NodeLost": 2},
    "transport/incoming": {"NodeLost": 7},
    "transport/outgoing": {"NodeLost": 6},
    "transport/send_buffer": {"BufferFull": 1},
    "transport/outbox": {"EntityFailed": 1, "MessageTooLarge": 1},
    "transport/session": {"NodeLost": 1},
    "wire/rejections": {"Rejection": 1, "SchemaError": 2},
    "wire/schema": {"SchemaError": 10},
    "wire/stored_events": {"SchemaError": 1, "StateUnreadable": 1},
    "wire/stored_state": {"SchemaError": 1, "StateUnreadable": 1},
}
"""How many places of a module make an error of a class. Whoever changes a number reads the rows of
that class in the table, and adds the new place to one, or a row."""


def _made(path: Path) -> Iterator[str]:
    """Yield the class of each RequestError that a module makes."""
    for node in nodes_of(tree_of(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if name in CLASSES:
                yield name


@cache
def rows() -> list[tuple[str, str, str, list[str], list[str]]]:
    """Return the rows of the table: class, where, whether definite, modules, tests."""
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    section = page.split("### Where each error arises")[1].split("\n## ")[0]
    table, cls = [], ""
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 5 or cells[0] == "error" or set(cells[1]) == {"-"}:
            continue
        cls = cells[0].strip("`") or cls
        in_code = re.compile("`([^`]+)`").findall
        table.append((cls, cells[1], cells[2], in_code(cells[3]), in_code(cells[4])))
    return table


def test_every_place_that_makes_a_request_error_is_counted() -> None:
    places = {
        path.relative_to(PACKAGE).with_suffix("").as_posix(): dict(Counter(_made(path)))
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != PACKAGE / "errors.py"
    }
    assert {module: made for module, made in places.items() if made} == SITES


def test_the_table_knows_every_class_in_every_module_that_makes_it() -> None:
    in_table = {(cls, module) for cls, _, _, modules, _ in rows() for module in modules}
    made = {(cls, module) for module, classes in SITES.items() for cls in classes}
    assert made <= in_table, "a place is not in the table of docs/guarantees.md"
    assert {cls for cls, _ in in_table} == CLASSES
    assert {module for _, module in in_table - made} <= set(SITES), "a module makes none any more"


def test_each_row_of_the_table_says_whether_it_is_definite_and_names_its_tests() -> None:
    for cls, where, definite, _, tests in rows():
        assert tests, where
        assert all((ROOT / test).is_file() for test in tests), where
        if cls == "ReentrancyError":
            assert not definite
            continue
        assert definite.startswith(("yes", "no")), where
        assert definite == "no" or getattr(errors, cls).definite, where


@pytest.mark.parametrize("cls", sorted(CLASSES))
def test_a_class_is_definite_if_a_row_of_it_is(cls: str) -> None:
    kinds = {definite[:2] for name, _, definite, _, _ in rows() if name == cls}
    assert getattr(getattr(errors, cls), "definite", False) is ("ye" in kinds)


def test_only_a_request_error_is_definite() -> None:
    assert is_definite(errors.MailboxFull("full"))
    assert not is_definite(errors.AskTimeout("late"))
    assert not is_definite(errors.StateTooLarge("cart", "a", 9, 8)), "it is about a write"


@dataclass
class Plain(Rejection):
    left: int
    note: str = ""


@dataclass(frozen=True)
class Frozen(Rejection):
    left: int


@dataclass(slots=True)
class Slotted(Rejection):
    left: int


def declined() -> Unhandled:
    error = Unhandled("takes no such int")
    error.definite, error.declined = False, True
    return error


@pytest.mark.parametrize(
    "error",
    [
        *(cls("why", hint="wait") for cls in (errors.MailboxFull, errors.AskTimeout, Rejection)),
        declined(),
        errors.EntityFailed("KeyError", "k"),
        errors.StateUnreadable("why", entity_type="cart", entity_id="7", version=3, field="x"),
        errors.StoreUnavailable("away", definite=True),
        errors.StaleFence("cart", "7", 1, 2),
        errors.StateTooLarge("cart", "7", 9, 8),
        ReentrancyError((("page", "a"), ("page", "a"))),
        *(Plain(3, note="n"), Frozen(3), Slotted(left=3)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_copied_and_pickled_with_all_that_it_says(error: errors.ShardBusError) -> None:
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert repr(twin) == repr(error)
        assert vars(twin) == vars(error)
        assert is_definite(twin) is is_definite(error)
        assert getattr(twin, "left", None) == getattr(error, "left", None)
