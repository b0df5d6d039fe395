"""The recipes of CONTRIBUTING, followed in a copy of the tree: each step has the effect that the
page names, and each test that it names fails before the step and passes after it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doc_blocks import ROOT, Block, blocks, commands
from tests.supply.distribution import copy_tracked

pytestmark = pytest.mark.long
PAGE = "CONTRIBUTING.md"
LIMIT_S = 600.0
FOLLOWED = ("Run one test", "Repeat a seed", "Read a transcript")
"""Sections whose commands are run as they stand. Others set up a machine, or run for minutes."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with the environment of this run, which `make` does not set up again."""
    copy = tmp_path_factory.mktemp("tree")
    copy_tracked(copy)
    (copy / ".venv").symlink_to(Path(sys.executable).parents[1])
    return copy


def run(tree: Path, command: str) -> tuple[int, str]:
    """Run a command of the page in the copy; return its exit code and its output."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST")
    }
    environment |= {"PYTHONPATH": f"{tree}:{tree / 'cli'}"}
    command = command.replace("make ", "make -o .venv/all.stamp ")
    done = subprocess.run(
        ["bash", "-c", command], cwd=tree, env=environment, text=True, check=False, timeout=LIMIT_S,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, done.stdout


def pytest_in(tree: Path, *arguments: str) -> tuple[int, str]:
    return run(tree, f".venv/bin/python -m pytest -q -p no:cacheprovider {' '.join(arguments)}")


def section_of(block: Block) -> str:
    lines = (ROOT / PAGE).read_text(encoding="utf-8").splitlines()[: block.line]
    return next(line for line in reversed(lines) if line.startswith("## ")).removeprefix("## ")


def example(section: str) -> str:
    [block] = [b for b in blocks(PAGE) if b.language == "python" and section_of(b) == section]
    return block.text


def insert(path: Path, before: str, text: str) -> None:
    """Write a text before the only place of another one."""
    whole = path.read_text(encoding="utf-8")
    assert whole.count(before) == 1, (path, before)
    path.write_text(whole.replace(before, text + before), encoding="utf-8")


def indented(text: str) -> str:
    return "".join(f"    {line}\n" if line else "\n" for line in text.rstrip().split("\n"))


def shown() -> Iterator[str]:
    for block in blocks(PAGE):
        if block.language == "sh" and section_of(block) in FOLLOWED:
            yield from commands(block)


@pytest.mark.parametrize("command", list(shown()))
def test_a_command_of_the_page_works(tree: Path, command: str) -> None:
    code, said = run(tree, command)
    assert code == 0, said
    if "--rewrite" in command:
        written = next((tree / "tests" / "scenarios").rglob("06_leave.txt"))
        there = ROOT / written.relative_to(tree)
        assert written.read_bytes() == there.read_bytes(), "the transcript has changed"


@pytest.fixture(scope="module")
def changed(tree: Path) -> Path:
    """The copy with a setting, a command and a page, after `make docs-generated`."""
    settings = tree / "shardbus" / "config" / "settings.py"
    insert(settings, "    gossip_time_to_live: float", indented(example("Add a setting")))
    cli = tree / "cli" / "shardbus_cli"
    needs = ("from typing import Annotated", "import typer", "from shardbus_cli import output")
    head = "".join(f"{line}\n\n" for line in ('"""Greets."""', *needs))
    (cli / "greet.py").write_text(head + example("Add a command"), encoding="utf-8")
    row = re.search(r'`("greet": .+?)`', (ROOT / PAGE).read_text(encoding="utf-8"))
    assert row is not None
    insert(cli / "command_table.py", '        "top": ("top:top"', f"        {row[1]}\n")
    reference = tree / "docs" / "reference" / "cli.md"
    insert(reference, "| `shardbus nodes` |", "| `shardbus greet NAME` | greets |\n")
    with (tree / "shardbus" / "admin" / "pages" / "node.py").open("a", encoding="utf-8") as file:
        file.write("\n\n" + example("Add a page for operators"))
    code, said = run(tree, "make docs-generated")
    assert code == 0, said
    return tree


def test_a_setting_is_documented_and_must_be_read(changed: Path) -> None:
    page = (changed / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    assert "busy_notice_interval" in page
    code, said = pytest_in(changed, "tests/unit/test_docs.py -k settings")
    assert code == 1, said
    assert "busy_notice_interval" in said
    reader = changed / "shardbus" / "sharding" / "region" / "registration.py"
    with reader.open("a", encoding="utf-8") as file:
        file.write("\n\ndef notice_interval(settings):\n    return settings.busy_notice_interval\n")
    code, said = pytest_in(changed, "tests/unit/test_docs.py -k settings")
    assert code == 0, said


def test_a_command_is_called_and_helped(changed: Path) -> None:
    command = ".venv/bin/python -c 'from shardbus_cli.main import main; main()'"
    assert run(changed, f"{command} greet world") == (0, "hello, world\n")
    assert "Greet by name." in run(changed, f"{command} greet --help")[1]
    code, said = pytest_in(
        changed, "tests/unit/test_docs.py tests/unit/cli/test_main.py -k command"
    )
    assert code == 0, said


def test_a_page_for_operators_is_served_and_documented(changed: Path) -> None:
    reference = (changed / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
    assert "/v1/name" in reference
    code, said = pytest_in(changed, "tests/unit/test_docs.py tests/unit/http/test_app.py -k http")
    assert code == 0, said


def test_a_message_is_declared_refused_by_mypy_and_admitted(tree: Path) -> None:
    messages = tree / "shardbus" / "sharding" / "messages.py"
    insert(messages, "Message = (\n", example("Add a message") + "\n\n")
    insert(
        messages,
        "    Register | RegisterAck | RegisterRefused | GetShardHome",
        "    RegionBusy |\n",
    )
    insert(
        messages, "    Register, RegisterAck, RegisterRefused, GetShardHome", "    RegionBusy,\n"
    )
    region = tree / "shardbus" / "sharding" / "region" / "region.py"
    check = f".venv/bin/mypy --follow-imports=silent {region.relative_to(tree)}"
    code, said = run(tree, check)
    assert code == 1, said
    assert "RegionBusy" in said
    insert(
        region,
        "                msg.Register() | msg.ShardStarted()",
        "                msg.RegionBusy() |\n",
    )
    coordinator = tree / "shardbus" / "sharding" / "coordinator" / "coordinator.py"
    case = "            case msg.RegionBusy():\n                pass\n"
    insert(coordinator, "            case msg.ShardLoads():\n", case)
    code, said = run(tree, f"{check} {coordinator.relative_to(tree)}")
    assert code == 0, said
    code, said = pytest_in(tree, "tests/unit/transport/test_permissions.py")
    assert code == 1, said
    permissions = tree / "shardbus" / "transport" / "permissions.py"
    insert(
        permissions, "        messages.GracefulShutdownRequest,\n", "        messages.RegionBusy,\n"
    )
    rows = "tests/unit/transport/test_permissions.py tests/unit/wire/test_control.py"
    code, said = pytest_in(tree, rows)
    assert code == 0, said


def test_a_page_of_the_documentation_needs_its_two_rows(tree: Path) -> None:
    (tree / "docs" / "extra.md").write_text("# Extra\n\nMore.\n", encoding="utf-8")
    names = "navigation or table_of_contents"
    assert pytest_in(tree, f"tests/unit/test_site.py -k '{names}'")[0] == 1
    insert(tree / "mkdocs.yml", "      - Glossary: glossary.md\n", "      - Extra: extra.md\n")
    assert pytest_in(tree, f"tests/unit/test_site.py -k '{names}'")[0] == 1
    row = "| | [extra](extra.md) | see more |\n"
    insert(tree / "docs" / "README.md", "| | [glossary](glossary.md)", row)
    code, said = pytest_in(tree, f"tests/unit/test_site.py -k '{names}'")
    assert code == 0, said


def test_a_planted_fault_is_found(tree: Path) -> None:
    code, said = run(tree, "make mutants ONLY=ids-port-zero")
    assert code == 0, said
    assert "found" in said
