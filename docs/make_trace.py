"""Draws `docs/trace.svg`, of the page on traces, from the spans in `docs/trace.jsonl`.

WRITE_TRACE=1 python -m pytest tests/loopback/test_tracing.py -k one_trace   the spans, anew
python docs/make_trace.py                                                    the picture
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
SPANS, PICTURE = DOCS / "trace.jsonl", DOCS / "trace.svg"
LABEL, WIDTH, ROW, TOP = 330, 560, 24, 34
COLOURS = {"ask": "#4878cf", "tell": "#4878cf", "handle": "#3a8f5c", "save": "#b47cc7"}
OTHER = "#d0803a"


def render(lines: str) -> str:
    """The picture of the spans, one JSON object a line."""
    spans: list[dict[str, Any]] = [json.loads(line) for line in lines.splitlines()]
    begin = min(span["start"] for span in spans)
    length = max(span["end"] for span in spans) - begin
    parents = {span["id"]: span["parent"] for span in spans}
    height = TOP + ROW * len(spans) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LABEL + WIDTH + 80}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="10" y="20" font-weight="bold">{length / 1e6:.0f} ms</text>',
    ]
    for n, span in enumerate(spans):
        depth, up = 0, span["parent"]
        while up in parents:
            depth, up = depth + 1, parents[up]
        x = LABEL + WIDTH * (span["start"] - begin) / length
        wide = max(2.0, WIDTH * (span["end"] - span["start"]) / length)
        y = TOP + n * ROW
        colour = COLOURS.get(span["name"].split()[0], OTHER)
        about = f"{span['name']}{span['about']}"
        ms = (span["end"] - span["start"]) / 1e6
        parts += [
            f'<text x="{10 + 12 * depth}" y="{y + 14}" fill="#222222">{escape(about)}</text>',
            f'<rect x="{x:.1f}" y="{y + 4}" width="{wide:.1f}" height="13" fill="{colour}"/>',
            f'<text x="{x + wide + 4:.1f}" y="{y + 15}" fill="#555555">{ms:.2f} ms</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(render(SPANS.read_text(encoding="utf-8")), encoding="utf-8")
