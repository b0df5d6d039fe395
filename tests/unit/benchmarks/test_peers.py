"""The results of `benchmarks.peers` and `benchmarks.report` for lines whose figures are known."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import peers, report
from benchmarks.peers_plot import PANELS, drawn

ROOT = Path(__file__).resolve().parents[3]


def lines(**values: float) -> list[str]:
    """Lines of our own, by name with `__` for the slash."""
    return [json.dumps({"name": k.replace("__", "/"), "value": v}) for k, v in values.items()]


OURS = [
    *lines(shardbus__tell=100.0, raw_batched__tell=400.0, raw_ticked__ask256=50.0),
    *lines(shardbus__tell=300.0, shardbus__tell_p50=1.0),
    *lines(shardbus__tell=200.0, shardbus__memory=350.0, shardbus__ask256=100.0),
]
OTHERS = [
    json.dumps({"name": "raw_batched/tell", "value": 1000, "session": "x"}),
    json.dumps({"name": "raw_batched/tell", "value": 2000, "session": "y"}),
    json.dumps({"name": "a/b/tell", "value": 10, "session": "x", "kind": "k", "what": "A"}),
    json.dumps({"name": "a/b/ask256", "value": 7, "session": "x", "kind": "k", "what": "A"}),
    json.dumps({"name": "c/tell", "value": 20, "session": "y", "kind": "k", "what": "C"}),
]


def test_each_is_a_ratio_to_the_baseline_of_its_own_session() -> None:
    ours, a, c = peers.read(OURS, OTHERS)
    assert ours.ratios == {"tell": 0.5, "ask256": 2.0}
    assert a.ratios == {"tell": 0.01}
    assert c.ratios == {"tell": 0.01}


def test_lines_of_the_other_harness_are_read_too() -> None:
    other = [
        json.dumps({"peer": peer, "metric": "tell", "value": value})
        for peer, value in (("shardbus/handler", 50), ("shardbus/typed", 9), ("raw/batch256", 100))
    ]
    [ours] = peers.read(other, [])
    assert ours.ratios == {"tell": 0.5}


def test_the_table_leaves_open_what_was_not_measured() -> None:
    *_, ours, a, _ = peers.table(peers.read(OURS, OTHERS)).splitlines()
    assert ours == "| **shardbus**, Python | 200 (0.50 x) | 100 (2.00 x) |  |  | 350 |"
    assert a == "| A | 10 (0.01 x) | 7 |  |  |  |"


def test_the_table_goes_between_its_marks_and_nowhere_else() -> None:
    page = f"before\n{peers.BEGIN}\nold\n{peers.END}\nafter\n"
    once = peers.put_into(page, "new")
    assert once == f"before\n{peers.BEGIN}\n\nnew\n\n{peers.END}\nafter\n"
    assert peers.put_into(once, "new") == once
    with pytest.raises(ValueError, match="end of the table"):
        peers.put_into("a page", "new")


def test_the_page_has_the_marks_and_the_plot_its_bars() -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert peers.put_into(page, "x")
    assert peers.put_into(page, "x", report.BEGIN, report.END)
    measured = peers.MEASURED.read_text(encoding="utf-8").splitlines()
    rows = peers.read(OURS, measured)
    assert len(rows) > 10
    assert all(row.ratios for row in rows)
    picture = ElementTree.fromstring(drawn([(row.what, row.ratios) for row in rows]))
    bars = [element for element in picture.iter() if element.tag.endswith("rect")]
    expected = sum(figure in row.ratios for row in rows for _, _, figure, _, _ in PANELS)
    assert len(bars) == 1 + expected


def test_a_report_has_a_row_for_each_figure_that_there_is() -> None:
    def line(name: str, value: float, **parameters: object) -> str:
        return json.dumps({"name": name, "value": value, "parameters": parameters})

    lines = report.read(
        [
            line("shardbus/tell", 100.0, payload=64),
            line("shardbus/tell", 300.0, payload=64),
            line("raw_batched/tell", 50_049.0, payload=64),
            line("tell/ratio", 0.5, of="raw_batched"),
            line("scraped/less", 0.021),
            line("sizes/shardbus/tell", 7.0, payload=1_024),
            line("sizes/tell_ratio", 0.25, payload=1_024),
        ]
    )
    main, single, sizes = report.tables(lines).split("\n\n")
    assert main.splitlines()[2:] == ["| tells a second | 200 | 50,000 (`raw_batched`) | 0.50 x |"]
    assert single.splitlines()[2:] == ["| `/metrics` read once a second: fewer tells by | 2 % |"]
    assert sizes.splitlines()[2:] == ["| 1,024 | 7 | 0.25 x |  |  |"]
