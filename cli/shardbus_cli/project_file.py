"""The table `[tool.shardbus]` of a project: its application, and its cluster.

    [tool.shardbus]
    app = "shop.app:bus"      as APP on the command line; a path is relative to this file
    cluster = "shop"          only needed where the application cannot be imported

The file is the nearest `pyproject.toml`, of the current directory or of one above it. A file
without the table belongs to another tool, and names nothing.

Source: docs/reference/cli.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from shardbus_cli.exit_codes import CommandFailure, ExitCode

PROJECT = "pyproject.toml"
TABLE = '`app = "app:bus"` below `[tool.shardbus]`'
KEYS = ("app", "cluster")


class ProjectFile(msgspec.Struct, frozen=True):
    """The names in a project's file; empty texts for missing ones."""

    path: Path
    app: str
    cluster: str

    def importable_app(self) -> str:
        """Return the application, as `load_app` takes it. Its folder becomes importable."""
        folder = self.path.parent
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
        where, colon, attribute = split_app(self.app)
        inside = where.endswith(".py") and not Path(where).is_absolute()
        return f"{folder / where}{colon}{attribute}" if inside else self.app


def project_file() -> ProjectFile | None:
    """Return the project of the current directory; None if no `pyproject.toml` is there or above.

    Raises:
        CommandFailure: the file cannot be read, or has a key that does not exist; exit code 3.
    """
    import tomllib

    here = Path.cwd()
    file = next((f for f in (at / PROJECT for at in (here, *here.parents)) if f.is_file()), None)
    if file is None:
        return None
    try:
        tools = tomllib.loads(file.read_text(encoding="utf-8-sig")).get("tool", {})
        table = dict(tools.get("shardbus", {}))
    except (OSError, ValueError, AttributeError, TypeError) as wrong:
        reason = str(wrong).partition("\n")[0]
        raise CommandFailure(
            f"{str(file)!r} cannot be read: {reason}", "correct the file", code=ExitCode.APP
        ) from None
    for key in table:
        if key not in KEYS:
            from shardbus.config.options import closest

            near = closest(key, KEYS)
            hint = f"did you mean {near}?" if near else f"there are {' and '.join(KEYS)}"
            raise CommandFailure(
                f"{str(file)!r}: [tool.shardbus] has no {key!r}", hint, code=ExitCode.APP
            )
    return ProjectFile(file, *(_text(table, key) for key in KEYS))


def split_app(app: str) -> tuple[str, str, str]:
    """Return module or path, colon, and attribute. Only a colon behind the last slash counts."""
    where, colon, attribute = app.rpartition(":")
    if not colon or "/" in attribute:
        return app, "", ""
    return where, colon, attribute


def _text(table: dict[str, object], key: str) -> str:
    value = table.get(key)
    return value if isinstance(value, str) else ""
