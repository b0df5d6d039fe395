"""Numbers with their nouns, and the texts of the source that write a plural behind any number."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardbus.quantities import counted
from shardbus_cli import output
from tests.syntax import nodes_of, tree_of

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("shardbus", "cli/shardbus_cli")
LEFT_OUT = (
    "shardbus/replication",
    "shardbus/sharding/table_state.py",
    "shardbus/simulation",
    "shardbus/testing",
    "shardbus/wire",
)
"""Reports of the simulator, and texts about bytes that a process or a disk has damaged."""
NOUNS = (
    "members|nodes|shards|states|entities|messages|letters|lists|lines|files|events|times|plans"
    "|keys|secrets|findings|things|changes|workers|clients|saves|senders|looks|votes|instances"
    "|regions|homes|fields|characters|bytes|deliveries|reminders|types|others|rows|journals|tasks"
    "|disks|replicas|rounds|elements|sessions|pages"
)
BETWEEN = "has|with|without|to|of|over|for|whose"
"""Words between a name and a plural that say nothing of a number."""
PLURALS = re.compile(rf" (?:(?!(?:{BETWEEN}) )[a-z]+ )?({NOUNS})\b")
MANY = {
    ("cli/shardbus_cli/report_bundle.py", "len(data)"),
    ("shardbus/entities/type_settings.py", "len(types)"),
    ("shardbus/inflate.py", "most"),
    ("shardbus/routing/delivering.py", "len(letter.payload)"),
    ("shardbus/transport/asks.py", "len(detail)"),
    ("shardbus/transport/outbox.py", "size"),
    ("shardbus/transport/send_buffer.py", "self.bytes"),
}
"""Numbers that a limit above one has exceeded."""


@pytest.mark.parametrize("of", [counted, output.counted])
def test_a_number_has_the_form_of_its_noun(of: object) -> None:
    assert callable(of)
    assert [of(n, "shard") for n in (0, 1, 2)] == ["0 shards", "1 shard", "2 shards"]
    assert of(1, "entity", "entities") == "1 entity"
    assert of(2, "message waits", "messages wait") == "2 messages wait"


def plurals_behind_numbers(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the expression and the plural behind it of each text that a number of one
    makes wrong. A limit is written in capitals, and above one."""
    for node in nodes_of(tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        for part, behind in zip(node.values, node.values[1:], strict=False):
            match part, behind:
                case ast.FormattedValue(value=value), ast.Constant(value=str(text)):
                    plural = PLURALS.match(text)
                    expression = ast.unparse(value)
                    shown = part.conversion == -1  # the repr of a name is no number
                    if plural and shown and not expression.rpartition(".")[2].isupper():
                        yield node.lineno, expression, plural[1]


def test_no_text_has_a_plural_behind_a_number_that_may_be_one() -> None:
    wrong = [
        f"{name}:{line}: {{{expression}}} {plural}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not (name := path.relative_to(ROOT).as_posix()).startswith(LEFT_OUT)
        for line, expression, plural in plurals_behind_numbers(tree_of(path))
        if (name, expression) not in MANY
    ]
    assert wrong == []


def test_a_plural_is_found_behind_an_expression_and_not_behind_a_limit() -> None:
    source = 'f"{n} stored states read, {m} of {LIMIT} bytes, {len(x)} of them, {counted(k)}"'
    assert list(plurals_behind_numbers(ast.parse(source))) == [(1, "n", "states")]
