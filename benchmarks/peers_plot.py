"""Draw the plot of `benchmarks.peers`: bars of ratios to bare pyzmq, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from xml.sax.saxutils import escape

WIDTH, ROW, LEFT, TOP, GAP = 230, 19, 350, 58, 36
PANELS = (
    ("tells a second", "more is better", "tell", -4, 0),
    ("asks a second, 256 in flight", "more is better", "ask256", -3, 0),
    ("one ask, p50", "less is better", "ask1_p50", 0, 1),
)
"""Title, which way is good, figure, and powers of ten at the ends of the axis."""
OURS, OTHERS = "#1b6ca8", "#b9c4cc"

Bars = Sequence[tuple[str, Mapping[str, float]]]


def text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" {more}>{escape(words)}</text>'


def panel(bars: Bars, number: int) -> list[str]:
    """Draw one figure of all systems. The first bar is ours."""
    title, good, figure, low, high = PANELS[number]
    x0, bottom = LEFT + number * (WIDTH + GAP), TOP + ROW * len(bars)

    def length(ratio: float) -> float:
        return max(1.0, min(1.0, (log10(ratio) - low) / (high - low)) * WIDTH)

    lines = [text(x0, 20, title, 'font-weight="bold"'), text(x0, 36, good, 'fill="#777"')]
    for power in range(low, high + 1):
        x = x0 + (power - low) / (high - low) * WIDTH
        lines.append(f'<path d="M{x:.1f} {TOP - 6}V{bottom}" stroke="#ddd"/>')
        lines.append(text(x, bottom + 16, f"{10.0**power:g} x", 'text-anchor="middle"'))
    for place, (_, ratios) in enumerate(bars):
        if figure not in ratios:
            continue
        ratio, y = ratios[figure], TOP + ROW * place
        size = f'width="{length(ratio):.1f}" height="{ROW - 6}"'
        colour = OURS if place == 0 else OTHERS
        lines.append(f'<rect x="{x0}" y="{y}" {size} fill="{colour}"/>')
        shown = f"{ratio:.2f}" if ratio >= 0.01 else f"{ratio:.4f}"
        inside = length(ratio) > WIDTH - 40
        anchor = 'text-anchor="end"' if inside else ""
        ink = "white" if place == 0 and inside else "#333"
        at = x0 + length(ratio) + (-4 if inside else 4)
        lines.append(text(at, y + ROW - 8, shown, f'font-size="10" fill="{ink}" {anchor}'))
    return lines


def drawn(bars: Bars) -> str:
    """Return the whole plot as SVG."""
    names = [
        text(LEFT - 10, TOP + ROW * place + ROW - 8, what, f'text-anchor="end" {_weight(place)}')
        for place, (what, _) in enumerate(bars)
    ]
    panels = [line for number in range(len(PANELS)) for line in panel(bars, number)]
    width = LEFT + len(PANELS) * (WIDTH + GAP)
    bottom = TOP + ROW * len(bars)
    foot = text(LEFT, bottom + 40, "ratio to bare pyzmq in the same session; logarithmic axes")
    style = 'font-family="sans-serif" font-size="12" fill="#333"'
    size = f'width="{width}" height="{bottom + 56}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>'
    ground = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head, ground, *names, *panels, foot, "</svg>"]) + "\n"


def _weight(place: int) -> str:
    return 'font-weight="bold"' if place == 0 else ""
