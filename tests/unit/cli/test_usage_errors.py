"""Wrong usage: one line that names the command, the option and a remedy."""

from __future__ import annotations

import re

import pytest

from shardbus_cli.exit_codes import ExitCode


@pytest.mark.parametrize(
    "words", [["frobnicate"], ["nodes", "--frob"], ["where", "counter"], [], ["node"]]
)
def test_wrong_usage(shell, words):
    assert shell(*words) == ExitCode.USAGE


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("frobnicate", "shardbus: no such command 'frobnicate'; see `shardbus -h`"),
        ("node strat", "shardbus node: no such command 'strat'; did you mean start\\?"),
        ("nodes --jsn", "shardbus nodes: no such option:? '?--jsn'?; did you mean --json\\?"),
        ("where counter", "shardbus where: missing argument 'ID'; see `shardbus where -h`"),
        ("nodes --json=1", "shardbus.*: .*'--json' does not take a value; see `shardbus.* -h`"),
        ("plan t --add -1", "shardbus plan: --add: .*; see `shardbus plan -h`"),
        ("drain n --timeout -1", "shardbus drain: --timeout: must be 0 to 86400 s: '-1'; write .*"),
        ("stop t 1 --timeout 2x", "shardbus stop: --timeout: not a duration: '2x'; write .*"),
        ("doctor --wait x", "shardbus doctor: --wait: not a duration: 'x'; write .*"),
        ("doctor --wait 100ms extra --nod", "shardbus doctor: .*--nod.*"),
        ("nodes extra", r"shardbus nodes: .*extra.*; see `shardbus nodes -h`"),
    ],
)
def test_wrong_usage_is_one_line_that_names_command_and_option(shell, words, line):
    assert shell(*words.split()) == ExitCode.USAGE
    assert re.fullmatch(line + "\n", shell.err)
    assert shell.out == ""
