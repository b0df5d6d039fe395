"""All commands: each failure is one line with its exit code, and the help names every command."""

from __future__ import annotations

import re

import pytest
import typer

from shardbus.errors import (
    AskTimeout,
    ConfigError,
    Refused,
    StaleFence,
    StoreUnavailable,
)
from shardbus_cli.exit_codes import ExitCode


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, typer.Abort])
def test_an_interrupted_command_ends_with_130(shell, url, monkeypatch, interrupt):
    def interrupted(*args: object, **more: object) -> None:
        raise interrupt

    with monkeypatch.context() as patched:
        patched.setattr("shardbus_cli.node_http.NodeHttp._ask", interrupted)
        assert shell("nodes") == 130
    assert shell.out == ""
    # Some versions of Typer turn the interrupt into an exit, others let it through.
    monkeypatch.setattr("shardbus_cli.commands.command_line", interrupted)
    assert shell("nodes") == 130


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), ExitCode.USAGE),
        (Refused("x"), ExitCode.REFUSED),
        (StoreUnavailable("x"), ExitCode.UNREACHABLE),
        (StaleFence("t", "i", 1, 2), ExitCode.FAILED),
        (AskTimeout("x"), ExitCode.FAILED),
    ],
)
def test_every_error_of_the_library_has_an_exit_code(shell, monkeypatch, error, code):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("shardbus_cli.show.NodeHttp", fail)
    assert shell("nodes") == code
    assert shell.err == f"shardbus: {error}\n"


def test_a_defect_is_one_line_and_a_traceback_only_on_demand(shell, monkeypatch):
    def fail(*_: object) -> None:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr("shardbus_cli.show.NodeHttp", fail)
    assert shell("nodes") == ExitCode.FAILED
    assert shell.err.count("\n") == 1
    assert "ZeroDivisionError" in shell.err
    assert shell("nodes", debug=True) == ExitCode.FAILED
    assert "Traceback" in shell.err


def test_help_names_every_command(shell):
    assert shell("--help") == ExitCode.OK
    listed = re.findall(r"^  (\w+)  +\S", shell.out, re.MULTILINE)
    assert {"node", "nodes", "ask", "tell", "check", "health", "data", "config"} <= set(listed)
