"""`docs/scale.svg` from the lines that `python -m benchmarks.scale` printed.

python -m benchmarks.scale > lines.json
python -m benchmarks.scale_plot lines.json docs/scale.svg
"""

from __future__ import annotations

import json
import sys
from math import log10
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP, GAP = 340, 260, 60, 40, 110
PANELS = (
    ("seconds", 1e-3, (-2, 1), ("join", "spread_by_rounds", "spread_by_news")),
    ("bytes", 1.0, (2, 6), ("change_by_news", "change_by_rounds", "state", "quiet")),
)
"""Title, factor, powers of ten at the ends of the axis, and names of the results."""
COLOURS = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e6bb0")
WORDS = {
    "join": "all have joined",
    "spread_by_rounds": "a change, by rounds alone",
    "spread_by_news": "a change, by news",
    "change_by_news": "a change, per node, by news",
    "change_by_rounds": "the same, by rounds alone",
    "state": "one state",
    "quiet": "per node and second, quiet",
}
Point = tuple[float, float]


def read(path: str) -> dict[str, list[Point]]:
    """Name of a result to (nodes, value)."""
    points: dict[str, list[Point]] = {}
    for line in Path(path).read_text().splitlines():
        row = json.loads(line)
        name = row["name"].removeprefix("scale_")
        points.setdefault(name, []).append((row["parameters"]["nodes"], row["value"]))
    return points


def text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" {more}>{words}</text>'


def panel(results: dict[str, list[Point]], number: int) -> list[str]:
    """Both axes are logarithmic; nodes from 10 to 1,000."""
    title, factor, (low, high), names = PANELS[number]
    x0, y0 = LEFT + number * (WIDTH + GAP), TOP + HEIGHT

    def at(nodes: float, value: float) -> Point:
        part = (log10(max(value * factor, 10**low)) - low) / (high - low)
        return x0 + (log10(nodes) - 1) / 2 * WIDTH, y0 - part * HEIGHT

    lines = [text(x0, TOP - 16, title, 'font-weight="bold"')]
    for power in range(low, high + 1):
        _, y = at(10, 10**power / factor)
        lines.append(f'<path d="M{x0} {y:.1f}h{WIDTH}" stroke="#ddd"/>')
        lines.append(text(x0 - 6, y + 4, f"{10**power:,g}", 'text-anchor="end"'))
    middle = 'text-anchor="middle"'
    lines += [text(at(n, 1)[0], y0 + 18, f"{n:,}", middle) for n in (10, 30, 100, 300, 1000)]
    for place, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        points = [at(*point) for point in sorted(results.get(name, []))]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        lines.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        lines.append(text(x0 + 12, y0 + 42 + 16 * place, WORDS[name], f'fill="{colour}"'))
    return lines


if __name__ == "__main__":
    drawn = [line for n in range(len(PANELS)) for line in panel(read(sys.argv[1]), n)]
    size = f'width="{2 * (LEFT + WIDTH) + GAP - LEFT + 30}" height="{TOP + HEIGHT + 110}"'
    style = 'font-family="sans-serif" font-size="12" fill="#333"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>'
    ground = '<rect width="100%" height="100%" fill="white"/>'
    Path(sys.argv[2]).write_text("\n".join([head, ground, *drawn, "</svg>"]) + "\n")
