"""The `shardbus` command, from its arguments to the exit code of the process.

The help of all commands, the help of one, and plain `shardbus health` need no parser of command
lines, which takes longer to start than they do. All else is in `commands`.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from io import TextIOWrapper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


COMPLETION = ("--install-completion", "--show-completion", "--complete")
"""Options of `completion`; each stands first."""


def main() -> None:
    """Run one command and end the process with its exit code."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] in COMPLETION:
        from shardbus_cli import completion

        sys.exit(completion.run(arguments))
    head = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug = "--debug" in head
    if debug:
        arguments.remove("--debug")
    if isinstance(sys.stdout, TextIOWrapper):  # ids may have letters that its encoding has not
        with suppress(OSError):  # the descriptor was a file, and is a pipe by now
            sys.stdout.reconfigure(errors="backslashreplace")
    if command := _command_of(arguments):
        from shardbus_cli.process_end import ProcessEnd

        end = ProcessEnd(command)
        end.handle_signals()
        try:
            code = run(arguments, debug=debug, failing=end.within)
        except SystemExit as stop:  # a signal, before there was anything to end
            code = stop.code if isinstance(stop.code, int) else 1
        end.finish(code)
    else:
        code = run(arguments, debug=debug)
    sys.exit(code)


def _command_of(arguments: list[str]) -> str:
    """Return the command that is called; an empty text for help and for `health`, which start in
    no time and end at once."""
    if not arguments or arguments[0] == "health" or arguments[-1] in ("-h", "--help"):
        return ""
    from shardbus_cli.command_table import named_in

    return named_in(arguments)


def run(
    arguments: list[str], *, debug: bool = False, failing: Callable[[int], object] = int
) -> int:
    """Run one command and return its exit code. `failing` is called with the code of a failure
    before it is printed."""
    if not arguments or arguments[0] in ("-h", "--help"):
        from shardbus_cli.command_table import help_of_all

        (sys.stdout if arguments else sys.stderr).write(help_of_all())
        return 0 if arguments else 2
    if arguments[-1] in ("-h", "--help"):
        from shardbus_cli.command_table import help_of

        if (page := help_of(arguments)) is not None:
            sys.stdout.write(page)
            return 0
    if arguments[:1] == ["health"] and not debug:
        from shardbus_cli import health

        code = health.plain(arguments[1:])
        if code is not None:
            return code
    from shardbus_cli import commands

    return commands.run(arguments, debug=debug, failing=failing)
