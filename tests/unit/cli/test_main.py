"""The command starts without the libraries of a node, and its help without any parser."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer

from shardbus_cli.command_table import COMMANDS, SECTIONS, help_of, named_in
from shardbus_cli.commands import command_line


def test_starting_the_command_imports_nothing_heavy():
    program = "import sys, shardbus_cli.main; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {"zmq", "redis", "starlette", "uvicorn", "prometheus_client", "msgspec"}


def test_a_node_imports_no_store_but_its_own():
    program = (
        "import sys, shardbus.node.run, shardbus.admin.page_table, shardbus.store.sqlite;"
        " print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    loaded = done.stdout.split()
    assert not {name.split(".")[0] for name in loaded} & {"redis", "asyncpg", "psycopg"}
    values = {f"shardbus.replication{name}" for name in ("", ".kinds", ".versions")}
    assert not [n for n in loaded if n.startswith("shardbus.replication") and n not in values]


def test_letters_that_the_output_has_not_are_escaped():
    program = (
        "import sys; from shardbus_cli import main; sys.argv[1:] = ['version'];"
        " main.run = lambda *a, **k: print('id-\\xfc\\u20ac') or 0; main.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        timeout=60,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )
    assert done.stdout == b"id-\xfc\\u20ac\n"


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


def test_the_help_of_one_command_imports_no_parser():
    program = (
        "import sys; from shardbus_cli.main import run;"
        " run(['node', 'start', '-h']); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.startswith("Usage: shardbus node start [OPTIONS] ")
    loaded = {name.split(".")[0] for name in done.stdout.splitlines()[-1].split()}
    assert not loaded & {"typer", "rich", "pydantic", "asyncio", "inspect", "dataclasses"}


def test_the_pages_of_help_are_what_the_parser_prints():
    """Another version of typer may print the same options in other words."""
    make = ModuleType("make_help")
    source = Path(__file__).parents[3] / "docs" / "make_help.py"
    make.__file__ = str(source)
    exec(compile(source.read_text(), str(source), "exec"), make.__dict__)
    again = "run `make docs-generated`"
    kept, now = json.loads(make.FILE.read_text(encoding="utf-8")), json.loads(make.render())
    if kept["typer"] == now["typer"]:
        assert kept == now, again
    assert {path: options(page) for path, page in kept["pages"].items()} == {
        path: options(page) for path, page in now["pages"].items()
    }, again


def options(page: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]*", page))


@pytest.mark.parametrize("arguments", [["nodez", "-h"], ["ask", "a", "b", "get", "--help"]])
def test_any_other_help_is_left_to_the_parser(shell, arguments):
    assert help_of(arguments) is None
    assert shell(*arguments) == (0 if arguments[0] == "ask" else 2)


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
