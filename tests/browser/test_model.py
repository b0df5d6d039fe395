"""The page's computations, called as functions: no element of the page takes part."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.synthetic import Served
from tests.browser.windows import Windows

INF = float("inf")
pytestmark = pytest.mark.asyncio(loop_scope="session")


class Model:
    """The functions of `ui/model.js` and `ui/format.js`."""

    def __init__(self, page: Any) -> None:
        self._page = page

    async def __call__(self, body: str, *values: Any) -> Any:
        """Return the result of a function `(m, ...values) => body`; `m` has the
        functions."""
        modules = "{...await import('/ui/model.js'), ...await import('/ui/format.js')}"
        text = f"async (v) => ((m, a, b, c) => ({body}))({modules}, ...v)"
        return await self._page.evaluate(text, list(values))


async def functions(windows: Windows, fleet: Served) -> Model:
    """The functions alone, in a window that shows their text: nothing of the page runs."""
    windows.expects_errors = True  # a text names no icon, so Chromium looks for one
    return Model(await windows.open(f"{fleet.url}/model.js"))


def a_node(name: str, **more: Any) -> dict[str, Any]:
    return {
        "node": name,
        "status": "up",
        "reachable": True,
        "answered": True,
        "suspended": None,
        "service": "open",
        "types": {
            "cart": {"received": 0, "failures": 0, "entities": 1, "shards": 1, "buffered": 0}
        },
        "vitals": {"busy": 0.1, "lag": 0.0, "mailbox": 0},
        "dropped": [],
        "slow": [],
        "late": 0,
        "store": [0, 0, 0],
        **more,
    }


def counted(received: int) -> dict[str, Any]:
    """The counters of a node that has received so many messages."""
    counts = {"received": received, "failures": 0, "entities": 1, "shards": 1, "buffered": 0}
    return {"types": {"cart": counts}}


async def test_texts_are_short_and_show_what_is_invisible(windows: Windows, fleet: Served) -> None:
    m = await functions(windows, fleet)
    assert await m("m.visible(a)", "a\u202eb\u0000\ufeff") == "a⟨U+202E⟩b⟨U+0000⟩⟨U+FEFF⟩"
    assert await m("m.visible(a, 3)", "abcdef") == "abc… (6 characters)"
    assert await m("m.visible(null)") == ""
    assert await m("m.address(a)", "h:7355#0a") == "h:7355"


WRITTEN: dict[str, dict[float | None, str]] = {
    "number": {0: "0", 999: "999", 12345: "12,345", 1.6: "2", None: "–"},
    "amount": {
        0: "0", 1.234: "1.23", 12.34: "12.3", 123.4: "123", 9999: "9,999", 12345: "12.3 k",
        123456: "123 k", 1.26e6: "1.3 M", 2.5e7: "25 M", None: "–",
    },
    "rate": {0: "0/s", 0.25: "0.25/s", 31000: "31 k/s", None: "–"},
    "percent": {0: "0 %", 0.004: "0.4 %", 0.5: "50 %", 1: "100 %", None: "–"},
    "bytes": {
        0: "0 B", 1: "1 B", 1023: "1,023 B", 1536: "1.5 KiB", 5 * 2**20: "5 MiB",
        3 * 2**29: "1.5 GiB", None: "–",
    },
    "duration": {
        0: "0", 0.00001: "0.01 ms", 0.0004: "0.4 ms", 0.00234: "2.3 ms", 0.0123: "12 ms",
        0.9994: "999 ms", 1: "1 s", 2.46: "2.5 s", 30: "30 s", 119: "119 s", 120: "2 min",
        600: "10 min", 7199: "120 min", 7200: "2 h", 172800: "2 d", INF: "> 30 s", None: "–",
    },
}  # fmt: skip
"""Functions that write a value, and texts by values."""
PHRASES = {
    "m.count(0, 'node')": "no node",
    "m.count(1, 'node')": "1 node",
    "m.count(2, 'node')": "2 nodes",
    "m.count(1, 'entity', 'entities')": "1 entity",
    "m.count(12345, 'entity', 'entities')": "12,345 entities",
    "m.listed(['a', 'b'], 2)": "a, b",
    "m.listed(['a', 'b', 'c', 'd'], 2)": "a, b and 2 more",
    "m.missing([])": "",
    "m.missing(['a'])": " 1 node did not answer: its part is missing.",
    "m.missing(['a', 'b'])": " 2 nodes did not answer: their part is missing.",
    "m.reason({message: 'no', hint: ''})": "no.",
    "m.reason({message: 'no', hint: 'wait'})": "no. wait",
    "m.sentence(m.count(0, 'event'))": "No event",
}


async def test_a_value_is_written_in_the_unit_that_suits_it_and_a_count_with_its_noun(
    windows: Windows, fleet: Served
) -> None:
    m = await functions(windows, fleet)
    for writes, texts in WRITTEN.items():
        assert {value: await m(f"m.{writes}(a)", value) for value in texts} == texts, writes
    assert {call: await m(call) for call in PHRASES} == PHRASES


async def test_rates_quantiles_and_attention(windows: Windows, fleet: Served) -> None:
    m = await functions(windows, fleet)
    # Rates compare each node with itself.
    before = {"nodes": [a_node("a", **counted(100)), a_node("b", **counted(900))]}
    after = {
        "nodes": [
            a_node("a", **counted(150), dropped=[["cart", "expired", 4]], store=[10, 0.5, 1]),
            a_node("c", **counted(10**6)),
            a_node("b", **counted(5)),
        ]
    }
    made = """((r) => ({...r, byNode: [...r.byNode], timesByNode: [...r.timesByNode],
        byType: [...r.byType], drops: [...r.drops]}))(m.rates(a, b, c))"""
    rates = await m(made, before, after, 2.0)
    assert (rates["received"], rates["byNode"]) == (25, [["a", 25], ["b", 0]])
    assert (rates["drops"], rates["dropped"]) == ([["cart\nexpired", 4]], 2)
    assert (rates["storeCalls"], rates["storeErrors"]) == (10, 1)
    assert (await m(made, None, after, 2.0))["received"] == 0
    for part, bound in ((0.5, 0.01), (0.9, 0.1), (0.99, None)):
        found_bound = await m("m.quantile([0, 5, 4, 1], [0.001, 0.01, 0.1], a)", part)
        assert found_bound == pytest.approx(bound or INF)
    half = await m("m.quantile([0, 10], [0.001, 0.003], 0.5)")
    assert half == pytest.approx(0.002), "within a bound as on a node"
    assert await m("m.quantile([], [], 0.5)") is None

    # Attention lists the node's confirmed findings, then losses.
    group = {"of": "members", "subjects": ["a:1#0"], "advice": "look", "confirmed": True}
    answer = {
        "findings": [
            {**group, "check": "unreachable", "level": "fault", "what": "is unreachable"},
            {**group, "check": "silent", "level": "fault", "what": "?", "confirmed": False},
            {
                **group,
                "check": "moving",
                "level": "warning",
                "of": "cart",
                "subjects": [str(n) for n in range(7)],
                "what": "is handing\u202e off",
            },
        ],
        "lost": [
            {
                "node": "b:1#0",
                "at": "2026-01-02T03:04:05+00:00",
                "by": "c:1#0",
                "why": "keep-majority: 2 of 3",
                "shards": {"cart": {"freed": 4, "homed": 3}},
            }
        ],
    }
    lines = await m("m.attention(a).map((p) => `${p.level}: ${p.text}. ${p.advice}`)", answer)
    assert lines[:2] == [
        "fault: member a:1 is unreachable. look",
        "warning: cart 0, 1, 2, 3, 4 and 2 more is handing⟨U+202E⟩ off. look",
    ]
    assert lines[2].startswith("note: b:1 was lost at ")
    why = "declared dead by c:1: keep-majority: 2 of 3"
    assert lines[2].endswith(f", {why}. 3 of its 4 shards of cart have a home again.")
    assert await m("m.attention(null)") == []


def a_map(homes: list[int], version: str, shards: list[str] | None = None, **more: Any) -> Any:
    shards = shards or [str(n) for n in range(len(homes))]
    head = {"type": "cart", "complete": True, "version": version, "nodes": ["a:1#0", "b:1#0"]}
    return {
        **head,
        "shards": shards,
        "homes": homes,
        "states": "r" * len(homes),
        "changes": [],
        **more,
    }


async def test_maps_differ_by_moves_and_keep_what_lost_its_home(
    windows: Windows, fleet: Served
) -> None:
    m = await functions(windows, fleet)
    moved = "m.diffMaps(m.nextMap(null, a), m.nextMap(m.nextMap(null, a), b))"
    first, second = a_map([0, 0, 1], "1"), a_map([0, 1, 1], "2")
    assert await m(moved, first, second) == [{"shard": "1", "from": "a:1#0", "to": "b:1#0"}]
    unchanged = {**first, **dict.fromkeys(("nodes", "shards", "homes", "states", "changes"))}
    assert await m(moved, first, unchanged) == []
    assert await m(moved, first, {**second, "type": "other"}) == []
    gone = a_map([0, 1], "2", ["0", "2"])
    assert await m(moved, first, gone) == [{"shard": "1", "from": "a:1#0", "to": None}]
    lost = "((n) => [n.shards, [...n.homes], n.states])(m.nextMap(m.nextMap(null, a), b))"
    assert await m(lost, first, gone) == [["0", "2", "1"], [0, 1, -1], "rru"]
    back = "((n) => [n.shards, n.states])(m.nextMap(m.nextMap(m.nextMap(null, a), b), a))"
    assert await m(back, first, gone) == [["0", "1", "2"], "rrr"]
    assert (await m(lost, first, {**gone, "complete": False}))[0] == ["0", "2"]

    # Lanes: every shard once, in the lane of its home; cells and points are inverse.
    placed = """((n) => {
        const p = m.layout(m.lanesOf(n, b), 500, 100);
        const ok = n.shards.every((_, i) => {
            const [x, y] = m.corner(p, i);
            return m.cellAt(p, x + 1, y + 1) === i;
        });
        return {ok, lanes: p.lanes.map((l) => [l.node, l.items.length]), cell: p.cell};
    })(m.nextMap(null, a))"""
    moves = await m(placed, a_map([n % 2 for n in range(300)], "1"), ["a:1#0", "b:1#0", "c:1#0"])
    assert moves["ok"]
    assert moves["lanes"] == [["a:1#0", 150], ["b:1#0", 150], ["c:1#0", 0]]
    small = await m(placed, a_map([0, 1], "1"), ["a:1#0", "b:1#0"])
    assert small["cell"] > moves["cell"]

    # Keys lead through every shard, and back.
    walk = """((n) => {
        const p = m.layout(m.lanesOf(n, b), 300, 100);
        const walk = (i, key) => {
            const seen = [];
            for (; seen.at(-1) !== i; i = m.nextCell(p, i, key)) seen.push(i);
            return seen;
        };
        const there = walk(m.nextCell(p, -1, "ArrowRight"), "ArrowRight");
        return [there, walk(there.at(-1), "ArrowLeft").reverse()];
    })(m.nextMap(null, a))"""
    there, back_again = await m(walk, a_map([0, 1, 1, 0, 1], "1"), ["a:1#0", "x:1#0", "b:1#0"])
    assert there == back_again == [0, 3, 1, 2, 4]


async def test_streams_are_cut_anywhere(windows: Windows, fleet: Served) -> None:
    m = await functions(windows, fleet)
    text = 'data: {"event": "a"}\n\n: comment\n\ndata: {"event": "b"}\n\n'
    for cut in range(len(text)):
        parts = """(() => {
            const [one, rest] = m.parseEvents(a.slice(0, b));
            const [two, left] = m.parseEvents(rest + a.slice(b));
            return [[...one, ...two].map((e) => e.event).join(""), left];
        })()"""
        assert await m(parts, text, cut) == ["ab", ""]
    node = {"node": "a", "status": "up", "reachable": True}
    event = {"event": "UnreachableMember", "node": "a"}
    assert await m("(m.applyEvent([a], b), a.reachable)", node, event) is False
    assert await m("m.applyEvent([a], b)", node, {"event": "LeaderChanged", "node": "a"}) is False


async def test_plots_show_the_hour_of_the_nodes_and_behind_it_what_the_page_has_seen(
    windows: Windows, fleet: Served
) -> None:
    m = await functions(windows, fleet)
    answer = {
        "columns": ["ago", "received", "handled", "store_calls", "store_seconds"],
        "rows": [[3590, 5, 0.5, 10, 1], [10, 7, 0, 0, 0]],
    }
    hour = await m("m.hourOf(a, 5e6)", answer)
    assert [(step["at"], step["received"]) for step in hour] == [(1_410_000, 5), (4_990_000, 7)]
    assert [(step["handled"], step["store"]) for step in hour] == [(0.5, 0.1), (None, None)]
    opened_at = [{"at": 4_989_000}, {"at": 4_992_000}]
    assert await m("m.joined(a, b).map((p) => p.at)", hour, opened_at) == [
        1_410_000,
        4_990_000,
        4_992_000,
    ]
    assert await m("m.joined([], a)", opened_at) == opened_at
    ended = [{"node": f"10.0.0.{n}:7355#beef", "ago": 60.0 - n} for n in range(8)]
    line = await m("m.endedNodes(a, 5e6)", {"ended": ended})
    assert line.startswith("With the part of 10.0.0.7:7355, which ended at ")
    assert line.endswith(" and 3 more.")
    assert await m("m.endedNodes(a, 5e6)", {"ended": []}) == ""
    for first, span in ((None, 300_000), (4_999_000, 300_000), (4_400_000, 600_000), (1, 3.6e6)):
        points = [] if first is None else [{"at": first}]
        assert await m("m.spanOf(a, 5e6)", points) == span

    # An unknown value is a gap, and so is a time without points.
    points = [[0, 9], [900_000, 1], [910_000, 2], [920_000, None], [930_000, 0], [999_000, 1]]
    path = await m("m.plotPath(a, 1e6, 2e5, 100, 44)", points)
    assert path["top"] == 2, "what is older than the plot does not count"
    assert (path["path"].count("M"), path["path"].count("L")) == (3, 1)
    assert await m("m.plotPath([[1, null]], 2, 10, 100, 44)") == {"path": "", "top": None}
    assert (await m("m.plotPath([[1, 0]], 2, 10, 100, 44)"))["top"] == 0


async def test_the_load_of_a_shard_is_a_part_of_that_of_the_one_with_the_most(
    windows: Windows, fleet: Served
) -> None:
    m = await functions(windows, fleet)
    levels = {0: 0, 0.1: 1, 24.9: 1, 25: 2, 50: 3, 75: 4, 100: 4}
    assert {value: await m("m.level(a, 100)", value) for value in levels} == levels
    assert await m("m.level(0, 0)") == 0


async def test_earlier_events_are_told_once_and_by_the_clock_of_the_page(
    windows: Windows, fleet: Served
) -> None:
    m = await functions(windows, fleet)

    def event(second: int, name: str, type: str = "", node: str = "a:1#1", by: str = "x") -> Any:
        at = f"2026-01-02T03:04:{second:02}.000+00:00"
        about = {"event": name, "type": type, "node": node, "text": f"{name} {node}"}
        return {"at": at, "seen_by": by, **about}

    rows = [
        event(1, "MemberUp"),
        event(3, "MemberUp", by="y"),  # another node has seen it, too
        event(4, "rebalance", "cart"),
        event(5, "rebalance", "cart"),
        event(6, "MemberUp", node="b:1#1"),
        event(7, "MemberUp"),  # the first node has seen it once more
        event(20, "MemberUp"),
        event(40, "MemberUp", node="late"),
    ]
    opened = await m("Date.parse(a) + 5000", "2026-01-02T03:04:30.000+00:00")
    events = await m("m.earlierEvents(a, b, 5000)", rows, opened)
    assert [(row["text"], opened - row["at"]) for row in events] == [
        ("MemberUp a:1#1", 10_000),
        ("MemberUp a:1#1", 23_000),
        ("MemberUp b:1#1", 24_000),
        ("rebalance a:1#1", 25_000),
        ("rebalance a:1#1", 26_000),
        ("MemberUp a:1#1", 29_000),
    ]
    many = [event(n % 30, "rebalance", "cart") for n in range(700)]
    assert len(await m("m.earlierEvents(a, b, 0)", many, opened)) == 500
