"""The help of each command, from a file that `docs/make_help.py` writes with the parser.

To make the parser takes longer than all else that prints a page of help does. A test compares the
file with what the parser prints; the file names the version of typer that printed it.

Source: docs/reference/cli.md.
"""

from __future__ import annotations

import json
from pathlib import Path

FILE = Path(__file__).with_name("help.json")


def help_of(arguments: list[str]) -> str | None:
    """Return the page for `COMMAND... --help`; None if anything else stands before the option."""
    pages: dict[str, str] = json.loads(FILE.read_text(encoding="utf-8"))["pages"]
    return pages.get(" ".join(arguments[:-1]))
