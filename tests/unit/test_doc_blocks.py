"""Every code block of README, CONTRIBUTING, the examples' README and `docs/`, by its language.

Python is run and type-checked; TOML is loaded; the commands of shell blocks, of sessions and within
the text exist, with their options. Sessions are compared by `tests/process`: `SESSIONS` names the
test. A block that is not run has a comment with the reason, and `NOT_RUN` counts them.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from shardbus.config.loading import load
from shardbus.errors import ConfigError
from shardbus_cli.commands import command_line
from shardbus_cli.main import COMPLETION
from tests import doc_blocks
from tests.doc_blocks import PAGES, ROOT, Block, blocks, commands, every_block, simple_commands
from tests.mutants.catalogue import KEYS

LANGUAGES = {"python", "console", "sh", "toml", "mermaid", "text"}
SESSIONS = {
    "README.md": "tests/process/test_readme.py",
    "examples/README.md": "tests/process/test_readme.py",
    "docs/tutorial.md": "tests/process/test_tutorial.py",
    "docs/tutorial-partitions.md": "tests/process/test_tutorial.py",
    "docs/how-to/slow.md": "tests/process/test_slow.py",
    "docs/how-to/keys.md": "tests/process/test_tutorial.py",
}
"""The test that runs and compares the sessions of a page."""

FILES = {"docs/tutorial.md": ("stock.py", "client.py")}
"""Pages whose Python blocks are files of their own, which their sessions run."""

PRELUDE = (
    "import msgspec\nfrom dataclasses import dataclass\nfrom shardbus import *\n\n"
    "bus = ShardBus('shop')\n"
)
FREE = ("no-redef", "no-untyped-def", "no-untyped-call", "empty-body", "no-any-return")
"""Rights of a page's blocks: define a class again, and leave out types."""
MYPY = f'# mypy: disable-error-code="{",".join(FREE)}"\n'


def of(language: str) -> list[Block]:
    return [block for block in every_block() if block.language == language]


def with_python() -> list[str]:
    return sorted({block.page for block in of("python")})


def run_in_tests(language: str) -> list[Any]:
    return [
        pytest.param(block, id=f"{block.page}-{number}")
        for page in PAGES
        for number, block in enumerate(blocks(page))
        if block.language == language and not block.reason
    ]


def test_every_block_has_a_language_that_a_test_knows() -> None:
    assert [block.place for block in every_block() if block.language not in LANGUAGES] == []
    assert len(every_block()) > 70


def test_a_block_that_is_not_run_has_a_reason() -> None:
    reasons = {block.place: block.reason for block in every_block() if block.reason}
    assert [place for place, why in reasons.items() if len(why) < 10] == []
    assert [place for place in reasons if place.startswith("README.md")] == []


# -- Python ------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", with_python())
def test_python_blocks_run(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in the names of those before it, with a bus of its own."""
    module = ModuleType("block_of_a_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    # Objects that a process sets once, and the tests of traces set for theirs.
    monkeypatch.setattr(trace, "set_tracer_provider", TracerProvider.shutdown)
    exec(PRELUDE + doc_blocks.setup(page), module.__dict__)
    for block in blocks(page):
        if block.language != "python" or block.reason or page in FILES:
            continue
        exec("bus = ShardBus('shop')", module.__dict__)
        code = compile(block.text, block.place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if not code.co_flags & 0x80:  # a block with a bare `await` is only compiled
            exec(code, module.__dict__)


@pytest.mark.long
def test_python_blocks_are_well_typed(tmp_path: Path) -> None:
    places: dict[str, str] = {}
    for page in with_python():
        texts = [block.text for block in blocks(page) if block.language == "python"]
        names = FILES.get(page)
        if names:
            for name, text in zip(names, texts, strict=True):
                (tmp_path / name).write_text(MYPY + text)
                places[name] = page
            continue
        name = re.sub(r"\W", "_", page) + ".py"
        code = [in_a_function(text) if needs_a_loop(text) else text for text in texts]
        (tmp_path / name).write_text("\n".join([MYPY, PRELUDE, doc_blocks.setup(page), *code]))
        places[name] = page
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file="]
    command += ["--cache-dir", str(ROOT / ".mypy_cache" / "pages"), *sorted(places)]
    environment = {"MYPYPATH": f"{ROOT}:{ROOT / 'cli'}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, text=True, capture_output=True, check=False
    )
    assert done.stdout + done.stderr == ""


def needs_a_loop(text: str) -> bool:
    code = compile(text, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return bool(code.co_flags & 0x80)


def in_a_function(text: str) -> str:
    return "async def _() -> None:\n" + "".join(f"    {line}\n" for line in text.splitlines())


# -- TOML --------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", run_in_tests("toml"))
def test_toml_blocks_load(block: Block) -> None:
    read = tomllib.loads(block.text)
    if "mutant" in read:
        assert [row.keys() for row in read["mutant"]] == [KEYS]
    elif "tool" in read:
        assert read.keys() == {"tool"}
        assert read["tool"]["shardbus"].keys() == {"app"}
    else:
        try:
            load([(block.place, read)])
        except ConfigError as wrong:
            pytest.fail(str(wrong))


# -- commands ----------------------------------------------------------------------------------


@cache
def command_group() -> Any:
    return typer.main.get_command(command_line())


@cache
def targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([\w./-]+):(?!=)", makefile, re.MULTILINE))


def problem(words: list[str]) -> str | None:
    """Return the fault of a simple command, or None."""
    program = words[0].rpartition("/")[2]
    if program == "make":
        names = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
        lost = [name for name in names if name not in targets()]
        return f"no target {lost[0]}" if lost else None
    if program == "python" and words[1:2] == ["-m"]:
        try:
            is_there = importlib.util.find_spec(words[2]) is not None
        except ModuleNotFoundError:
            is_there = False
        return None if is_there else f"no module {words[2]}"
    return problem_of_shardbus(words[1:]) if program == "shardbus" else None


def problem_of_shardbus(words: list[str]) -> str | None:
    command: Any = command_group()
    path = "shardbus"
    while words and hasattr(command, "commands"):
        if words[0].startswith("-") or words[0] in ("...", "COMMAND"):
            break
        word, words = words[0], words[1:]
        if word not in command.commands:
            return f"{path} has no command {word}"
        command, path = command.commands[word], f"{path} {word}"
    names = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    names |= {"--help", "-h", "--json", "--debug", *COMPLETION}
    options = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    lost = [name for name in options if name not in names]
    return f"{path} has no option {lost[0]}" if lost else None


SHELL = [pytest.param(*example.values, id=example.id) for example in run_in_tests("sh")]
CONSOLE = [
    pytest.param(block, id=f"{block.page}-{number}")
    for page in PAGES
    for number, block in enumerate(blocks(page))
    if block.language == "console"
]


@pytest.mark.parametrize("block", [*SHELL, *CONSOLE])
def test_commands_of_blocks_exist(block: Block) -> None:
    for line in commands(block):
        done = subprocess.run(["bash", "-n", "-c", line], capture_output=True, check=False)
        assert done.returncode == 0, f"{block.place}: {line}"
        for words in simple_commands(line):
            assert problem(words) is None, f"{block.place}: {line}"


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_text_exist(page: str) -> None:
    for line in doc_blocks.other_commands(page):
        plain = re.sub(r"[\[\]()]|<[^>]*>", " ", line)
        for words in simple_commands(plain):
            assert problem(words) is None, f"{page}: {line}"


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("shardbus nodes --json", None),
        ("A=1 shardbus nodes | head -3", None),
        ("shardbus notes", "shardbus has no command notes"),
        ("shardbus node strat app", "shardbus node has no command strat"),
        ("shardbus nodes --jsn", "shardbus nodes has no option --jsn"),
        ("make tets", "no target tets"),
        ("make test PYTEST_FLAGS=-x", None),
        ("python -m benchmarks.nothing", "no module benchmarks.nothing"),
    ],
)
def test_a_command_that_does_not_exist_is_named(line: str, wrong: str | None) -> None:
    assert next(map(problem, simple_commands(line))) == wrong


def test_sessions_are_run_by_a_test() -> None:
    others = [block.place for block in of("console") if not block.reason]
    lost = [place for place in others if place.rpartition(":")[0] not in SESSIONS]
    assert lost == [], "run them in a test of SESSIONS, or say why not"
    assert [name for name in SESSIONS.values() if not (ROOT / name).is_file()] == []
