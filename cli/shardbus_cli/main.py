"""The `shardbus` command, from its arguments to the exit code of the process.

Plain `shardbus health` is answered without the parser of command lines: `health` says why. All else
is in `commands`.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run one command and end the process with its exit code."""
    arguments = sys.argv[1:]
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug = "--debug" in own
    if debug:
        arguments.remove("--debug")
    sys.exit(run(arguments, debug=debug))


def run(arguments: list[str], *, debug: bool = False) -> int:
    """Run one command and return its exit code."""
    if arguments[:1] == ["health"] and not debug:
        from shardbus_cli import health

        code = health.plain(arguments[1:])
        if code is not None:
            return code
    from shardbus_cli import commands

    return commands.run(arguments, debug=debug)
