"""Draw the state diagrams of the pages from the transition tables in the code.

    python docs/make_diagrams.py          # or: make docs-generated

A page marks the place of a diagram by a pair of comments, and this script replaces the lines
between:

    <!-- diagram of shardbus.membership.member -->
    <!-- end of the diagram -->

The module has its table in `TRANSITIONS`: from a state to the states that may follow, or from a
state and a trigger to the next state. Diagrams are Mermaid text, which GitHub draws. A test
compares the pages with this script, so that neither can change alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parent
PLACE = re.compile(
    r"^(?P<begin><!-- diagram of (?P<module>[\w.]+) -->\n).*?"
    r"(?P<end>^<!-- end of the diagram -->)$",
    re.MULTILINE | re.DOTALL,
)

MANY = 5
"""Number of states from which one trigger is described in words instead of arrows."""


def render(page: str) -> str:
    """Return the text of a page with each of its diagrams drawn anew."""

    def drawn(place: re.Match[str]) -> str:
        table = import_module(place["module"]).TRANSITIONS
        return f"{place['begin']}\n{diagram(table)}\n\n{place['end']}"

    return PLACE.sub(drawn, page)


def diagram(table: Mapping[Any, Any]) -> str:
    """Draw a table of transitions as a Mermaid state diagram.

    Arrows between the same two states become one arrow with all of their triggers. A trigger that
    leads from `MANY` states or more to one state becomes a line of text instead. States without an
    arrow out are final.
    """
    alike: dict[tuple[str, str], list[str]] = {}
    for before, after, trigger in _arrows(table):
        alike.setdefault((trigger, after), []).append(before)
    arrows: dict[tuple[str, str], list[str]] = {}
    notes = []
    for before, after, trigger in _arrows(table):
        sources = alike[trigger, after]
        if len(sources) < MANY:
            arrows.setdefault((before, after), []).append(trigger)
        elif before == sources[0]:
            by = f" by *{trigger}*" if trigger else ""
            notes.append(f"From {', '.join(f'`{source}`' for source in sources)}{by} to `{after}`.")
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {next(iter(arrows))[0]}"]
    for (before, after), triggers in arrows.items():
        labels = ", ".join(filter(None, triggers))
        lines.append(f"    {before} --> {after}{': ' if labels else ''}{labels}")
    left = {source for sources in alike.values() for source in sources}
    final = dict.fromkeys(after for _, after, _ in _arrows(table) if after not in left)
    lines += [f"    {state} --> [*]" for state in final]
    return "\n".join([*lines, "```", *(f"\n{note}" for note in notes)])


def _arrows(table: Mapping[Any, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield each arrow as state, next state and trigger; the trigger may be empty."""
    for key, value in table.items():
        if isinstance(key, tuple):
            before, trigger = key
            yield _name(before), _name(value), _name(trigger).replace("_", " ")
        else:
            for after in value:
                yield _name(key), _name(after), ""


def _name(state: Enum) -> str:
    return state.name.lower()


def main() -> None:
    """Draw the diagrams of all pages."""
    for page in sorted(PAGES.rglob("*.md")):
        before = page.read_text(encoding="utf-8")
        after = render(before)
        if after != before:
            page.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
