"""The commands of `shardbus`, as typer parses them.

`command_line` makes the parser: of the one command that is called, or of all of them, whose places
are in `command_table`. Commands do their imports when they run. Every failure ends in `run`: one
line on standard error, and the exit code of that kind of failure.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Annotated, Any

import typer

from shardbus_cli import usage_errors
from shardbus_cli.command_table import COMMANDS, named_in
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.output import data as print_data
from shardbus_cli.output import error

SENDING = ("tell", "ask")
"""Commands whose arguments may look like options: a negative number, for example."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a disk that takes no more of an output."""


def command_line(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the parser of these commands, by default of all."""
    app = typer.Typer(
        name="shardbus",
        help="Stateful entities, sharded over a cluster of Python processes.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    for name in names:
        module, _, attribute = COMMANDS[name].partition(":")
        command = getattr(import_module(f"shardbus_cli.{module}"), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            settings = {"ignore_unknown_options": True} if name in SENDING else None
            app.command(name, context_settings=settings)(command)
    return app


def version() -> None:
    """Print the version."""
    from shardbus.version import VERSION

    print_data(VERSION)


def _print_version(is_set: bool) -> None:
    if is_set:
        version()
        raise typer.Exit


def root(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
    cacert: Annotated[
        str | None,
        typer.Option(
            "--cacert",
            envvar="SHARDBUS_NODE_CACERT",
            metavar="FILE",
            help="PEM file with the certificates to trust in HTTPS to a node.",
        ),
    ] = None,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere.")
    ] = False,
) -> None:
    """Accept the options that precede a command."""
    if cacert is not None:
        os.environ["SHARDBUS_NODE_CACERT"] = cacert


def run(
    arguments: list[str], *, debug: bool = False, failing: Callable[[int], object] = int
) -> int:
    """Run one command and return its exit code. `failing` is called with the code of a failure
    before it is printed."""
    called = named_in(arguments)

    def failed(failure: CommandFailure) -> int:
        failing(failure.code)
        return _failed(failure, debug=debug)

    try:
        app = command_line([called] if called else COMMANDS)
        ended_with = app(args=arguments, prog_name=usage_errors.PROGRAM, standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()  # an error of the output is this command's
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else ExitCode.OK
    except CommandFailure as failure:
        return failed(failure)
    except BrokenPipeError:
        _silence_output()
        return ExitCode.FAILED
    except KeyboardInterrupt:
        return 130
    except typer.Abort:
        return 130
    except usage_errors.Unreadable as wrong:
        return _unreadable(wrong, debug=debug)
    except Exception as raised:
        from shardbus.errors import ShardBusError

        if isinstance(raised, ShardBusError):
            return failed(CommandFailure.of(raised))
        if isinstance(raised, OSError) and raised.errno in NO_ROOM:
            _silence_output()
            return failed(CommandFailure(f"cannot write: {raised.strerror}"))
        what = f"{type(raised).__name__}: {raised}".rstrip(": ")
        hint = "run it with --debug and report its output"
        return failed(CommandFailure(f"defect of this command: {what}", hint))
    return ended_with if isinstance(ended_with, int) else ExitCode.OK


def _silence_output() -> None:
    """Let what the interpreter still has to write at its end go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unreadable(wrong: Any, *, debug: bool) -> int:
    if usage_errors.is_help(wrong):
        wrong.show()
        return ExitCode.USAGE
    path, failure = usage_errors.said(wrong)
    return _failed(failure, debug=debug, command=path)


def _failed(failure: CommandFailure, *, debug: bool, command: str = usage_errors.PROGRAM) -> int:
    if debug:
        import traceback

        traceback.print_exc()
    error(str(failure), command)
    return failure.code
