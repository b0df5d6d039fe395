"""The output of commands: JSON unchanged, tables for people and for `awk`, errors on one line.

Standard output holds only data. On a terminal a table is drawn by rich; otherwise its columns are
aligned with spaces and never cut. Control characters of foreign text are escaped, so that no id can
move the cursor.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence

Row = Mapping[str, object]


def safe(value: object) -> str:
    """Return the value as one line: lists joined, mappings as `a=1`, no control characters."""
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case Mapping():
            return ", ".join(f"{safe(key)}={safe(inner)}" for key, inner in value.items()) or "-"
        case list() | tuple():
            return ", ".join(safe(inner) for inner in value) or "-"
        case _:
            return escape(str(value))


def escape(text: str) -> str:
    """Return the text with non-printable characters escaped as in a Python string."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def counted(number: int, noun: str, many: str = "") -> str:
    """Return the number with its noun, as `shardbus.quantities.counted` does: a command that only
    prints does not load the package."""
    return f"{number} {noun if number == 1 else many or f'{noun}s'}"


def data(text: str) -> None:
    """Print one piece of data."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")


def as_json(value: object) -> str:
    """Return the value as JSON on one line."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def note(text: str) -> None:
    """Print a line on standard error."""
    sys.stderr.write(f"{escape(text)}\n")


def error(text: str, command: str = "shardbus") -> None:
    """Print why the command failed, on one line of standard error."""
    note(f"{command}: {text}")


def table(columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Print rows under upper-case headings. A missing value is shown as `-`."""
    if sys.stdout.isatty():
        headings, *cells = _cells(columns, rows)
        _drawn(headings, cells)
        return
    for line in table_lines(columns, rows):
        data(line)


def table_lines(columns: Sequence[str], rows: Iterable[Row]) -> list[str]:
    """Return the lines of a table as it is without a terminal."""
    return aligned(_cells(columns, rows))


def _cells(columns: Sequence[str], rows: Iterable[Row]) -> list[list[str]]:
    headings = [column.upper() for column in columns]
    return [headings, *([safe(row.get(column)) for column in columns] for row in rows)]


def checks(outcomes: Mapping[str, Mapping[str, object]]) -> None:
    """Print health checks as a table."""
    rows = [
        {"check": name, "result": "ok" if row.get("ok") else "FAILED", "detail": row["detail"]}
        for name, row in outcomes.items()
    ]
    table(("check", "result", "detail"), rows)


def facts(values: Mapping[str, object]) -> None:
    """Print names and values, one per line."""
    for line in aligned([[name, safe(value)] for name, value in values.items()]):
        data(line)


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of cells as text, each column as wide as its widest cell."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))] if lines else []
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def _drawn(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        drawn.add_column(heading, overflow="fold")
    for line in cells:
        drawn.add_row(*(Text(cell) for cell in line))
    Console().print(drawn)
