"""The page of handlers shows declarations and counters; a sent message has an answer."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime
from typing import Any

import pytest

from shardbus.admin.pages import sending
from shardbus.admin.pages.handlers import HandlerTotals, _parameter, handler_name
from shardbus.errors import AskTimeout, BufferFull, EntityFailed, Rejection
from shardbus.histograms import LATENCY_BOUNDS
from tests.unit.admin.admin_kit import ME, PEER

P = inspect.Parameter


@pytest.mark.parametrize(
    ("annotation", "default", "text"),
    [
        ("list[Item]", P.empty, "x: list[Item]"),
        ("str", "a=b", "x: str = 'a=b'"),
        (int, 1, "x: int = 1"),
        (P.empty, None, "x=None"),
        (P.empty, P.empty, "x"),
    ],
)
def test_a_parameter_is_shown_as_it_is_declared(annotation: Any, default: Any, text: str) -> None:
    kind = P.POSITIONAL_OR_KEYWORD
    assert _parameter(P("x", kind, default=default, annotation=annotation)) == text


def test_methods_have_the_names_that_applications_use() -> None:
    names = {"add": "add", "": "receive", ":Paid": "receive Paid", "$outcome": "receive"}
    assert {method: handler_name(method) for method in names} == names


def test_what_two_nodes_have_counted_is_one_row() -> None:
    totals = HandlerTotals("item: str")
    counts = [0] * (len(LATENCY_BOUNDS) + 1)
    fast, slow = counts.copy(), counts.copy()
    fast[0], slow[8] = 90, 10
    failures = [[9.0, "c", "KeyError", "c", ""], [20.0, "d", "KeyError", "d", ""]]
    totals.add(ME, [900, 2, fast, 300.0, failures])
    totals.add(PEER, [100, 2, slow, 100.0, [[12.0, "e", "KeyError", "e", "in add"], *failures[1:]]])
    row: Any = totals.row("cart", "add", datetime.now(UTC))
    assert (row["calls"], row["failures"], row["rate"]) == (1000, 4, 0.4)
    assert row["p50"] <= LATENCY_BOUNDS[0]
    assert LATENCY_BOUNDS[7] < row["p99"] <= LATENCY_BOUNDS[8]
    assert [(row_["node"], row_["entity"]) for row_ in row["last"]] == [
        (str(ME), "c"),
        (str(PEER), "e"),
        (str(ME), "d"),
    ]
    empty: Any = HandlerTotals().row("cart", "add", datetime.now(UTC))
    assert (empty["p50"], empty["p99"], empty["last"]) == (None, None, [])


def test_an_answer_keeps_its_digits_and_a_very_long_one_its_beginning() -> None:
    assert sending.as_text({"n": 2**63 - 1, "b": b"\0"}) == (
        '{\n  "n": 9223372036854775807,\n  "b": {\n    "$bytes": "AA=="\n  }\n}'
    )
    of_all = sending.as_text({"a:1#1": 7, "b:1#2": AskTimeout("late")})
    assert '"a:1#1": 7' in of_all
    assert '"error": "AskTimeout"' in of_all
    long = sending.as_text("x" * sending.ANSWER_MAX)
    assert long.endswith("\n...")
    assert len(long) < sending.ANSWER_MAX + 10


@pytest.mark.parametrize(
    ("error", "row"),
    [
        (EntityFailed("ValueError", "no"), ("EntityFailed", "ValueError: no", "")),
        (Rejection("no", hint="wait"), ("Rejection", "no", "wait")),
        (BufferFull("full"), ("BufferFull", "full", "it is safe to send it again")),
        (AskTimeout("late"), ("AskTimeout", "late", "only if twice does no harm")),
    ],
)
def test_an_error_says_whether_it_is_safe_to_send_again(error: Any, row: tuple[str, ...]) -> None:
    shown = sending.error_row(error)
    assert (shown["error"], shown["message"]) == row[:2]
    assert shown["hint"].endswith(row[2])
