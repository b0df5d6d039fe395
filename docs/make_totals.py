"""Write the totals at the top of `docs/FEATURES.md` from its rows.

python docs/make_totals.py          # or: make docs-generated
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

PAGE = Path(__file__).parent / "FEATURES.md"
STATES = ("works", "partly", "not yet", "declined")
ROW = re.compile(rf"^\| (S\d|B|N)\.\d+ \| .+ \| ({'|'.join(STATES)}) \| .+ \| .+ \|$", re.MULTILINE)
TOTAL = re.compile(r"^\| (?:(?P<section>S\d|B|N): [^|]+|all) (?P<counts>(?:\| \d+ )+\|)$", re.M)


def render(page: str) -> str:
    """Return the page with its totals counted anew."""
    rows = ROW.findall(page)

    def counted(line: re.Match[str]) -> str:
        section = line["section"]
        states = Counter(state for area, state in rows if section in (area, None))
        counts = "".join(f"| {states[state]} " for state in STATES)
        return f"{line[0].removesuffix(line['counts'])}{counts}|"

    return TOTAL.sub(counted, page)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
