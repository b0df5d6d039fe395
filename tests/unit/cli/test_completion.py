"""Completion: candidates for each place of a command line, a script for each shell, no parser."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shardbus_cli import completion
from shardbus_cli.command_table import COMMANDS, pages
from shardbus_cli.completion import FILES, SHELLS, HelpPage, candidates, lines_for
from tests.waiting import PATIENCE_S


def names(*words: str) -> list[str] | None:
    """The candidates for the last word."""
    words_found = candidates(list(words[:-1]), words[-1])
    return None if words_found is None else [name for name, _ in words_found]


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (("",), list(COMMANDS)),
        (("sta",), ["state"]),
        (("--ver",), ["--version"]),
        (("--debug", "sho"), []),
        (("--cacert", "ca.pem", "nod"), ["node", "nodes"]),
        (("node", ""), ["start", "leave", "down"]),
        (("node", "start", "--gossip"), ["--gossip-port"]),
        (("node", "start", "--log-level", ""), ["debug", "info", "warning", "error"]),
        (("node", "start", "--log-format=p"), ["--log-format=pretty"]),
        (("rebalance", "--re"), ["--resume"]),
        (("--install-completion", "z"), ["zsh"]),
        (("node", "start", "--port", ""), []),
        (("ask", "counter", "x", ""), []),
        (("nodez", ""), []),
    ],
)
def test_a_word_is_completed_by_its_place(words: tuple[str, ...], completions: list[str]) -> None:
    assert names(*words) == completions


@pytest.mark.parametrize(
    "words",
    [
        ("node", "start", ""),
        ("node", "start", "-c", "con"),
        ("node", "start", "--config=con"),
        ("--cacert", ""),
        ("init", ""),
        ("keys", "show", ""),
        ("state", "export", "--app", ""),
    ],
)
def test_files_are_left_to_the_shell(words: tuple[str, ...]) -> None:
    assert names(*words) is None
    assert lines_for("fish", list(words)) == [FILES]


def test_each_page_of_help_is_read_whole() -> None:
    for path, text in pages().items():
        page = HelpPage(text)
        assert "--help" in page.options, path
        below = {name.rpartition(" ")[2] for name in pages() if name.rpartition(" ")[0] == path}
        assert set(page.commands) == below, path


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (("shards", ""), ["counter", "book"]),
        (("explain", "cou"), ["counter"]),
        (("data", "show", "counter", "bo"), ["book"]),
        (("events", "--type", ""), ["counter", "book"]),
        (("drain", "127"), ["127.0.0.1:7355"]),
    ],
)
def test_types_and_nodes_are_those_of_the_node(
    url: str, words: tuple[str, ...], completions: list[str]
) -> None:
    assert names(*words) == completions


def test_a_node_that_the_line_names_is_asked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHARDBUS_NODE_URL")
    monkeypatch.setattr("shardbus_cli.health.NODE_URL", "http://127.0.0.1:1")
    assert names("shards", "--node", url, "") == ["counter", "book"]
    assert names("shards", f"--node={url}", "") == ["counter", "book"]
    assert names("shards", "") == []
    assert names("shards", "--node", "https://x", "") == []


def test_bash_gets_what_is_behind_its_last_break(url: str) -> None:
    assert lines_for("bash", ["shardbus node start --log-level=d"]) == ["debug"]
    assert lines_for("bash", ["shardbus drain 127.0.0.1:73"]) == ["7355"]
    assert lines_for("bash", ["shardbus 'open quo"]) == []
    assert lines_for("bash", ["shardbus "]) == list(COMMANDS)
    assert lines_for("zsh", ["drain", "127.0.0.1:73"]) == ["127.0.0.1:7355\tup"]


def test_completion_imports_no_parser() -> None:
    program = (
        "import sys; sys.argv = ['shardbus', '--complete', 'zsh', 'node', 'start', '--h'];"
        "from shardbus_cli.main import main\n"
        "try: main()\n"
        "except SystemExit: print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    *lines, loaded = done.stdout.splitlines()
    assert [line.partition("\t")[0] for line in lines] == ["--host", "--http-port", "--help"]
    assert not {name.split(".")[0] for name in loaded.split()} & {
        *("typer", "rich", "asyncio", "inspect", "dataclasses", "http", "ssl"),
    }


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_installed_once_and_read_at_the_start_of_the_shell(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    starts = tmp_path / f".{shell}rc"
    starts.write_text("# my own, without a newline")
    for _ in range(2):
        assert completion.run(["--install-completion", shell]) == 0
    script = Path(capsys.readouterr().out.splitlines()[0])
    assert script.read_text() == completion.SCRIPTS[shell]
    added = starts.read_text().splitlines()[1:]
    assert added == ([] if shell == "fish" else [f"[ -r '{script}' ] && . '{script}'"])
    assert completion.run(["--show-completion", shell]) == 0
    assert capsys.readouterr().out == completion.SCRIPTS[shell]


def test_another_shell_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert completion.run(["--install-completion", "tcsh"]) == 2
    assert "no shell 'tcsh'; name one of bash, zsh, fish" in capsys.readouterr().err
    monkeypatch.setenv("SHELL", "/bin/zsh")
    assert completion.shell_of() in SHELLS


COMPLETE_BY = {
    "bash": """
        . {script}
        COMP_LINE='{line}' COMP_POINT={length} COMP_WORDS=(shardbus) COMP_CWORD=1
        _shardbus
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """,
    "zsh": """
        compdef() {{ : }}
        _describe() {{ print -l -- "${{(@P)2}}" }}
        . {script}
        words=({line}) CURRENT={words}
        _shardbus
    """,
    "fish": """
        source {script}
        complete --do-complete '{line}'
    """,
}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_works_in_its_shell(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    script = tmp_path / "script"
    script.write_text(completion.SCRIPTS[shell])
    line = "shardbus node start --gos"
    program = COMPLETE_BY[shell].format(
        script=script, line=line, length=len(line), words=len(line.split())
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [shell, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "PATH": path, "HOME": str(tmp_path)},
    )
    words = [candidate.split(":")[0].split("\t")[0] for candidate in done.stdout.splitlines()]
    assert words == ["--gossip-port"], done.stderr
