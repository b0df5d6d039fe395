"""Write the help of each command to `cli/shardbus_cli/help.json`, as the parser prints it.

python docs/make_help.py          # or: make docs-generated
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import typer

from shardbus_cli import commands

FILE = Path(__file__).parents[1] / "cli" / "shardbus_cli" / "help.json"
COLUMNS = "80"


def paths(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words that name each command below one."""
    for name, inner in getattr(command, "commands", {}).items():
        yield (*path, name)
        yield from paths(inner, (*path, name))


def printed(path: tuple[str, ...]) -> str:
    """Return the help of one command, as the parser prints it."""
    out = io.StringIO()
    with redirect_stdout(out), patch.dict(os.environ, COLUMNS=COLUMNS):
        commands.run([*path, "--help"])
    return out.getvalue()


def render() -> str:
    """Return the file."""
    root = typer.main.get_command(commands.command_line())
    pages = {" ".join(path): printed(path) for path in paths(root)}
    whole = {"typer": typer.__version__, "pages": pages}
    return json.dumps(whole, indent=0, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
