"""Errors of usage on one line: the command, the option, the fault, and the remedy.

The library that parses the command line would print four lines. Its suggestion of a similar name is
kept; otherwise the hint is the command's help.

Source: docs/reference/cli.md.
"""

from __future__ import annotations

import re
from typing import Any

import typer

from shardbus_cli.exit_codes import CommandFailure, ExitCode

PROGRAM = "shardbus"
Unreadable: type[Exception] = typer.BadParameter.__mro__[2]
"""The exception of a command line that cannot be parsed."""

_VALUE = re.compile(r"Invalid value for (?P<name>.+?): (?P<wrong>.*)", re.DOTALL)
_ALIKE = re.compile(r"(?P<wrong>.*)\. Did you mean (?P<names>.*)\?", re.DOTALL)


def said(wrong: Any) -> tuple[str, CommandFailure]:
    """Return the command that failed, and its failure on one line."""
    context = getattr(wrong, "ctx", None)
    path = context.command_path if context is not None else PROGRAM
    text, hint = str(wrong.format_message()), f"see `{path} -h`"
    alike = getattr(wrong, "possibilities", None)
    if alike:
        match = _ALIKE.fullmatch(str(wrong.message))  # some versions name them there, too
        text = match["wrong"] if match else str(wrong.message)
        hint = f"did you mean {' or '.join(sorted(alike))}?"
    elif match := _ALIKE.fullmatch(text):
        names = match["names"].replace("'", "").split(", ")
        text, hint = match["wrong"], f"did you mean {' or '.join(names)}?"
    elif match := _VALUE.fullmatch(text):
        name = match["name"].replace("'", "")
        text, mark, advice = match["wrong"].partition("; ")
        return path, CommandFailure(
            f"{name}: {_begun(text)}", advice if mark else hint, code=ExitCode.USAGE
        )
    return path, CommandFailure(_begun(text), hint, code=ExitCode.USAGE)


def is_help(wrong: Exception) -> bool:
    """True if a command group was given without a command, which prints its help."""
    return type(wrong).__name__ == "NoArgsIsHelpError"


def _begun(text: str) -> str:
    text = " ".join(text.split()).rstrip(".")
    return text[:1].lower() + text[1:]
