"""The command starts without the libraries of a node, and its help without any parser."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

from shardbus_cli.command_table import COMMANDS, SECTIONS, named_in
from shardbus_cli.commands import command_line


def test_starting_the_command_imports_nothing_heavy():
    program = "import sys, shardbus_cli.main; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {"zmq", "redis", "starlette", "uvicorn", "prometheus_client", "msgspec"}


def test_the_help_of_all_commands_imports_no_parser(shell):
    program = "import sys; from shardbus_cli.main import run; run(['-h']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    assert "Usage: shardbus [OPTIONS] COMMAND" in done.stdout
    loaded = {name.split(".")[0] for name in done.stdout.splitlines()[-1].split()}
    assert not loaded & {"typer", "rich", "pydantic", "asyncio", "inspect", "dataclasses"}
    assert shell("--help") == 0
    assert all(f"  {name} " in shell.out for name in COMMANDS)
    assert all(len(line) <= 100 for line in shell.out.splitlines())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_alone_is_the_one_among_all(shell, name):
    """Only the module of the command that is called is imported."""
    alone = typer.main.get_command(command_line([name])).commands  # type: ignore[attr-defined]
    assert list(alone) == [name]
    assert shell(name, "--help") == 0
    assert f"Usage: shardbus {name} " in shell.out


def test_the_table_has_one_line_for_each_command():
    lines = [line for rows in SECTIONS.values() for _, line in rows.values()]
    assert len(lines) == len(COMMANDS)
    assert all(line.endswith(".") and line[0].isupper() for line in lines)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("nodes --json", "nodes"),
        ("--cacert nodes types", "types"),
        ("--cacert=x types nodes", "types"),
        ("nodez nodes", ""),
        ("--version", ""),
        ("--cacert", ""),
        ("", ""),
    ],
)
def test_the_command_is_the_first_word_that_is_no_option(words, name):
    assert named_in(words.split()) == name
