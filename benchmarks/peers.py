"""Compare shardbus with other systems: a table and a plot.

Everybody did the same work: 10,000 keyed counters in one host process, one producer process,
64-byte payloads, the loopback, two cores. `peers.jsonl` holds the others' figures, each
with bare pyzmq in the same session. Ours is measured here and now, again with bare pyzmq. So the
comparison takes the ratio to bare pyzmq, which carries over from one machine to another of its
kind: tells and first messages to batched sockets, asks to sockets that send once for each turn of
the loop.

    python -m benchmarks.tell > lines.json
    python -m benchmarks.ask >> lines.json
    python -m benchmarks.activation >> lines.json
    python -m benchmarks.peers lines.json           prints the table
    python -m benchmarks.peers lines.json docs      puts it into docs/performance.md, and the plot
                                                    beside it

Lines of several runs may stand in the file: the median of each
figure counts. Lines of the harness that measured the others are read as well.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.peers_plot import drawn

MEASURED = Path(__file__).with_name("peers.jsonl")
OURS = "shardbus"
BASELINES = {
    "tell": "raw_batched",
    "activation": "raw_batched",
    "ask256": "raw_ticked",
    "ask1_p50": "raw_ticked",
}
"""The divisor of each figure."""
BEGIN, END = "<!-- table of benchmarks.peers -->", "<!-- end of the table -->"
COLUMNS = ("tell", "ask256", "ask1_p50", "activation")
SAME = {"shardbus/handler": OURS, "raw/batch256": "raw_batched", "raw/tick": "raw_ticked"}
"""Their names in the harness that measured the others."""
HEAD = (
    "| what | tells a second | asks a second, 256 in flight | one ask, p50 "
    "| first messages a second | bytes per entity |"
)


@dataclass
class Row:
    """Hold one compared system. `ratios` are to bare pyzmq in the same session."""

    name: str
    what: str
    kind: str
    values: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)


def read(ours: Iterable[str], measured: Iterable[str]) -> list[Row]:
    """Return the rows, ours first, from lines of JSON. Our rows need the lines of the baselines."""
    figures: dict[tuple[str, str], list[float]] = defaultdict(list)
    rows = {OURS: Row(OURS, "**shardbus**, Python", "entities")}
    places = {OURS: "here"}
    for session, text in [*(("here", line) for line in ours), *(("", line) for line in measured)]:
        line = json.loads(text)
        who, _, metric = _name(line).rpartition("/")
        session = session or line["session"]
        if who in (OURS, *BASELINES.values()):
            figures[session + who, metric].append(line["value"])
        elif "what" in line:
            row = rows.setdefault(who, Row(who, line["what"], line["kind"]))
            places[who] = session
            row.values[metric] = line["value"]
    rows[OURS].values = {
        metric: median(values) for (who, metric), values in figures.items() if who == "here" + OURS
    }
    for row in rows.values():
        for metric, baseline in BASELINES.items():
            raw = figures.get((places[row.name] + baseline, metric))
            if raw and metric in row.values:
                row.ratios[metric] = row.values[metric] / median(raw)
    return list(rows.values())


def _name(line: dict[str, str]) -> str:
    """Return the name of a line. Lines about other systems have it in two fields."""
    if "peer" not in line:
        return line["name"]
    return f"{SAME.get(line['peer'], line['peer'])}/{line['metric']}"


def table(rows: Iterable[Row]) -> str:
    """Return the rows in Markdown: each figure, and its ratio to bare pyzmq."""
    lines = [HEAD, "|---|---:|---:|---:|---:|---:|"]
    for row in rows:
        cells = [row.what, *(_cell(row, metric) for metric in COLUMNS)]
        cells.append(f"{row.values['memory']:,.0f}" if "memory" in row.values else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(row: Row, metric: str) -> str:
    value, ratio = row.values.get(metric), row.ratios.get(metric)
    if value is None:
        return ""
    text = f"{value:,.0f}" if value < 10_000 else f"{round(value, -2):,.0f}"
    unit = " us" if metric == "ask1_p50" else ""
    if not ratio:
        return f"{text}{unit}"
    return f"{text}{unit} ({ratio:.2f} x)" if ratio >= 0.1 else f"{text}{unit} ({ratio:.2g} x)"


def put_into(page: str, text: str, begin: str = BEGIN, end: str = END) -> str:
    """Return the page with the text between two marks."""
    before, present, rest = page.partition(begin)
    _, also, after = rest.partition(end)
    if not present or not also:
        raise ValueError(f"the page has no {begin} and {end}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def main(lines: str, docs: str = "") -> None:
    """Print the table; into the docs, write it and the plot."""
    rows = read(Path(lines).read_text().splitlines(), MEASURED.read_text().splitlines())
    print(table(rows))
    if docs:
        page = Path(docs) / "performance.md"
        page.write_text(put_into(page.read_text(), table(rows)))
        bars = [(row.what.replace("*", "").replace("`", ""), row.ratios) for row in rows]
        (Path(docs) / "peers.svg").write_text(drawn(bars))


if __name__ == "__main__":
    main(*sys.argv[1:3])
