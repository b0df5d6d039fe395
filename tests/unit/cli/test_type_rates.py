"""The rates of the types between two overviews, or since the start of the nodes."""

from __future__ import annotations

from typing import Any

from shardbus_cli.type_rates import quantile, type_rates

BOUNDS = [0.001, 0.25, 2.5]


def overview(at: float, **nodes: tuple[int, list[int]]) -> dict[str, Any]:
    """Nodes with the messages they have received and the times of their handlers."""
    rows: list[dict[str, Any]] = [
        {
            "node": name,
            "answered": True,
            "types": {"cart": {"received": n, "failures": 2, "handled": times, "waited": [n]}},
            "dropped": [["cart", "expired", 3], ["", "early", 9]],
        }
        for name, (n, times) in nodes.items()
    ]
    rows.append({"node": "silent", "answered": False, "types": None, "dropped": None})
    return {"at": at, "latency_bounds": BOUNDS, "types": [{"type": "cart"}], "nodes": rows}


def test_one_overview_has_what_happened_since_the_start() -> None:
    rates = type_rates(None, overview(10.0, a=(100, [98, 1, 1, 0])))
    assert rates == {
        "cart": {
            "msg/s": "",
            "failed": 2,
            "dropped": 3,
            "p50": "1 ms",
            "p99": "250 ms",
            "wait p99": "1 ms",
        }
    }


def test_two_overviews_have_what_happened_in_between() -> None:
    before = overview(10.0, a=(100, [98, 1, 1, 0]), gone=(7, [7, 0, 0, 0]))
    after = overview(12.0, a=(300, [98, 201, 1, 0]), new=(10**6, [0, 0, 0, 10**6]))
    row = type_rates(before, after)["cart"]
    assert (row["msg/s"], row["p50"], row["p99"]) == (100, "250 ms", "250 ms")
    assert (row["failed"], row["dropped"]) == (4, 6), "totals, of all nodes that answer"
    again = type_rates(after, overview(13.0, a=(0, [0, 0, 0, 0])))["cart"]
    assert (again["msg/s"], again["p99"]) == (0, ""), "a node that has started again"


def test_a_node_without_an_overview_shows_nothing() -> None:
    assert type_rates(None, {}) == {}
    assert quantile([0, 0, 0, 4], BOUNDS, 0.5) == "> 2.5 s"
    assert quantile([0, 0, 1], BOUNDS, 0.5) == "2.5 s"
    assert quantile([], [], 0.5) == ""
