"""Each event that the code logs is declared, and each declaration is of an event that it logs."""

from __future__ import annotations

import ast
import logging
from pathlib import Path
from typing import get_args

from shardbus.log_events import EVENTS, LogEvent, event_of, fields_of
from shardbus.membership.view import DomainEvent
from shardbus.node.event_log import ALARMING, NOTEWORTHY, event_name
from tests.syntax import nodes_of, tree_of

ROOT = Path(__file__).resolve().parents[2]
METHODS = {"debug", "info", "warning", "error", "exception", "critical"}
LOGGERS = {"log", "store_log", "frame_log", "output"}
OTHERS = {"simulation", "testing"}
"""Code that runs in tests only."""
NAMED = {("records", "%s: %s"), ("downing_log", "%s")}
"""Notes of machines and events of membership name themselves by `extra`."""


def logged(path: Path) -> set[str]:
    """The texts that a module logs."""
    events = set()
    for node in nodes_of(tree_of(path)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        owner = node.func.value
        if not (isinstance(owner, ast.Name) and owner.id in LOGGERS) or "health" in path.name:
            continue
        at = 1 if node.func.attr == "log" else 0 if node.func.attr in METHODS else None
        if at is not None:
            text = node.args[at]
            assert isinstance(text, ast.Constant), f"{path}: log a text with arguments"
            events.add(str(text.value))
    return events


def test_B62_every_logged_event_is_declared_and_every_declared_one_is_logged() -> None:
    events = set(NAMED)
    for folder in ("shardbus", "cli"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not OTHERS & set(path.parts):
                events |= {(path.stem, text) for text in logged(path)}
    writer = {key for key in EVENTS if key[0] == "log_writer"}
    assert events - NAMED - set(EVENTS) == set(), "declare them in shardbus/log_events.py"
    assert set(EVENTS) - events - writer == set(), "no code logs these"


def test_no_event_has_the_name_of_another_kind() -> None:
    declared = {event.name for event in EVENTS.values()}
    membership = {event_name(event) for event in get_args(DomainEvent)}
    notes = ALARMING | NOTEWORTHY
    assert not declared & membership
    assert not declared & notes
    assert not membership & notes


def test_names_are_plain_and_fields_fit_the_text() -> None:
    taken = {"message", "name", "node", "event", "time", "level", "logger"}
    for (_, text), event in EVENTS.items():
        assert event.name.replace("_", "").isalnum()
        assert event.name == event.name.lower()
        assert len(event.fields) <= text.count("%"), text
        assert not set(event.fields) & taken, text


def record(module: str, text: str, *args: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("shardbus.entity", 30, f"/x/{module}.py", 1, text, args, None)
    vars(made).update(extra)
    return made


def test_arguments_become_fields_also_behind_a_limit_on_the_rate() -> None:
    text = "%s %r %s: %s: %s (3 lines like it were left out)"
    made = record("supervision", text, "cart", "c-1", "failed", "ValueError", ValueError("no"))
    event = event_of(made)
    assert event is not None
    assert event.name == "entity_failed"
    assert fields_of(made, event) == {
        "entity_type": "cart",
        "entity_id": "c-1",
        "error_type": "ValueError",
        "error": "no",
    }


def test_a_caller_may_name_the_event_and_others_have_none() -> None:
    assert event_of(record("node", "%s: %s", event="rebalance")) == LogEvent("rebalance")
    assert event_of(record("elsewhere", "hello")) is None
