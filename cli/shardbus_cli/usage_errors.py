"""Wrong usage, said on one line: which command, which option, what is wrong with it, what to do.

The library that reads the command line would say it on four. It says which names are alike, if any;
otherwise the hint is the command's own help.

Source: docs/reference/cli.md.
"""

from __future__ import annotations

import re
from typing import Any

import typer

from shardbus_cli.exit_codes import CommandFailure, ExitCode

PROGRAM = "shardbus"
Unreadable: type[Exception] = typer.BadParameter.__mro__[2]
"""What is raised for a command line that cannot be read."""

_VALUE = re.compile(r"Invalid value for (?P<name>.+?): (?P<wrong>.*)", re.DOTALL)
_ALIKE = re.compile(r"(?P<wrong>.*)\. Did you mean (?P<names>.*)\?", re.DOTALL)


def said(wrong: Any) -> tuple[str, CommandFailure]:
    """The command that it is about, and the failure in our words."""
    context = getattr(wrong, "ctx", None)
    path = context.command_path if context is not None else PROGRAM
    text, hint = str(wrong.format_message()), f"see `{path} -h`"
    alike = getattr(wrong, "possibilities", None)
    if alike:
        text, hint = str(wrong.message), f"did you mean {' or '.join(sorted(alike))}?"
    elif found := _ALIKE.fullmatch(text):
        names = found["names"].replace("'", "").split(", ")
        text, hint = found["wrong"], f"did you mean {' or '.join(names)}?"
    elif found := _VALUE.fullmatch(text):
        name = found["name"].replace("'", "")
        text, mark, own = found["wrong"].partition("; ")
        return path, CommandFailure(
            f"{name}: {_begun(text)}", own if mark else hint, code=ExitCode.USAGE
        )
    return path, CommandFailure(_begun(text), hint, code=ExitCode.USAGE)


def is_help(wrong: Exception) -> bool:
    """A command without anything behind it, which shows its help."""
    return type(wrong).__name__ == "NoArgsIsHelpError"


def _begun(text: str) -> str:
    text = " ".join(text.split()).rstrip(".")
    return text[:1].lower() + text[1:]
