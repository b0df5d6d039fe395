"""Make the tables of `docs/performance.md` from the lines that the benchmarks printed.

    for b in tell ask activation typed storm sizes entities workers scraped; do
        python -m benchmarks.$b >> lines.json
    done
    python -m benchmarks.report lines.json         prints them
    python -m benchmarks.report lines.json docs    puts them into the page, with `benchmarks.peers`

`make report` does all of that, in about ten minutes. Where a figure stands in several lines, the
median counts. Figures without a line are left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from benchmarks import peers

BEGIN, END = "<!-- tables of benchmarks.report -->", "<!-- end of the tables -->"
MAIN = (
    ("tells a second", "tell", "raw_batched", "tell/ratio"),
    ("asks a second, one at a time", "ask1", "raw_ticked", "ask1/ratio_rate"),
    ("the same, p50 in us", "ask1_p50", "raw_ticked", "ask1/ratio_p50"),
    ("the same, p99 in us", "ask1_p99", "raw_ticked", "ask1/ratio_p99"),
    ("asks a second, 256 in flight", "ask256", "raw_ticked", "ask256/ratio_rate"),
    ("the same, p50 in us", "ask256_p50", "raw_ticked", "ask256/ratio_p50"),
    ("first messages to new entities, a second", "activation", "raw_batched", "activation/ratio"),
    ("memory of an idle entity, bytes", "memory", "raw_batched", ""),
)
"""The name, the figure, its baseline, and the line of the ratio."""
ONE_BY_ONE = (
    ("a dataclass of one field for bytes: tells take more time by", "typed/tell_one_field_more"),
    ("the same, asks with 256 in flight", "typed/ask256_one_field_more"),
    ("the same, processor time of a tell at the host", "typed/host_cpu_one_field_more"),
    ("a dataclass of four fields: tells take more time by", "typed/tell_four_fields_more"),
    ("the same, processor time of a tell at the host", "typed/host_cpu_four_fields_more"),
    ("100,000 first messages told at once: lost", "storm/tell_lost"),
    ("the same, entities a second", "storm/tell"),
    ("20,000 asks to new entities, 4,096 in flight: failed", "storm/ask_failed"),
    ("the same, entities a second", "storm/ask"),
    ("the same, p99 in ms", "storm/ask_p99"),
    ("`/metrics` read once a second: fewer tells by", "scraped/less"),
    ("the same, more processor time of the host by", "scraped/host_cpu_more"),
    ("the same, processor time of one page at the host in us", "scraped/page_host_cpu"),
)
TELLS, ASKS = ("tells a second",), ("asks a second, 256 in flight",)
MEMORY = ("resident memory, MiB", "bytes per entity")
SERIES = ("sizes/", "entities/", "workers/")
Lines = dict[tuple[str, object], list[float]]


def read(texts: Iterable[str]) -> Lines:
    """Return values by name, and by the variable of a series: payload, entities or nodes."""
    lines: Lines = {}
    for text in texts:
        line = json.loads(text)
        facts = line["parameters"] if line["name"].startswith(SERIES) else {}
        over = next((facts[key] for key in ("payload", "entities", "nodes") if key in facts), None)
        lines.setdefault((line["name"], over), []).append(line["value"])
    return lines


def number(lines: Lines, name: str, over: object = None, unit: str = "") -> str:
    """Return one figure, or an empty text."""
    values = lines.get((name, over))
    if not values:
        return ""
    value = median(values)
    if unit == "%":
        return f"{100 * value:.0f} %"
    if unit == "x":
        return f"{value:.2f} x"
    return f"{round(value, -2):,.0f}" if value >= 10_000 else f"{value:,.0f}"


def drawn(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown: names on the left, figures on the right."""
    kept = [row for row in rows if any(row[1:])]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *kept]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) if kept else ""


def overs(lines: Lines, prefix: str) -> list[int]:
    return sorted(
        {over for name, over in lines if name.startswith(prefix) and isinstance(over, int)}
    )


def tables(lines: Lines) -> str:
    """Return all tables."""

    def figure(name: str, over: object = None, unit: str = "") -> str:
        return number(lines, name, over, unit)

    def compared(what: str, name: str, baseline: str, ratio: str) -> list[str]:
        other = figure(f"{baseline}/{name}")
        other = f"{other} (`{baseline}`)" if other else ""
        return [what, figure(f"shardbus/{name}"), other, figure(ratio, unit="x")]

    def sized(size: int) -> list[str]:
        tell, ask = "sizes/shardbus/tell", "sizes/shardbus/ask256"
        ratios = [figure(f"sizes/{name}_ratio", size, "x") for name in ("tell", "ask256")]
        return [f"{size:,}", figure(tell, size), ratios[0], figure(ask, size), ratios[1]]

    def held(count: int) -> list[str]:
        names = ("first", "tell", "rss", "memory")
        return [f"{count:,}", *(figure(f"entities/{name}", count) for name in names)]

    def spread(nodes: int) -> list[str]:
        cells = [str(nodes)]
        for name in ("tell", "ask256", "work"):
            ratio = figure(f"workers/{name}_ratio", nodes, "x")
            cells.append(f"{figure(f'workers/{name}', nodes)} ({ratio})")
        return cells

    parts = [
        drawn(["what", "shardbus", "baseline", "ratio"], (compared(*row) for row in MAIN)),
        drawn(
            ["what", "seen"],
            ([what, figure(name, unit=_unit(name))] for what, name in ONE_BY_ONE),
        ),
        drawn(
            ["bytes of payload", *TELLS, "ratio to `raw_batched`", *ASKS, "ratio to `raw_ticked`"],
            map(sized, overs(lines, "sizes/")),
        ),
        drawn(
            ["entities in one process", "first messages a second", *TELLS, *MEMORY],
            map(held, overs(lines, "entities/")),
        ),
        drawn(
            ["nodes (`--workers`)", *TELLS, *ASKS, "asks that work for 200 us"],
            map(spread, overs(lines, "workers/")),
        ),
    ]
    return "\n\n".join(part for part in parts if part)


def _unit(name: str) -> str:
    return "%" if name.endswith(("more", "less")) else ""


def main(lines: str, docs: str = "") -> None:
    """Print the tables, or put them into the page."""
    text = tables(read(Path(lines).read_text().splitlines()))
    print(text)
    if docs:
        page = Path(docs) / "performance.md"
        page.write_text(peers.put_into(page.read_text(), text, BEGIN, END))
        peers.main(lines, docs)


if __name__ == "__main__":
    main(*sys.argv[1:3])
