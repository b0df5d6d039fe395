"""Defects made by rules: the defects of each rule, and code that it leaves alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants.catalogue import ROOT, problems
from tests.mutants.generated import Coverage, generate
from tests.mutants.operators import changes


def made(body: str) -> list[str]:
    """The defects of the body of a function, one line for each defect."""
    source = "def f(self, x):\n    " + body.replace("\n", "\n    ") + "\n"
    texts = []
    for change in changes(source):
        changed = source[: change.start] + change.after + source[change.end :]
        texts.append(ast.unparse(ast.parse(changed)).partition("\n")[2].replace("\n    ", "\n"))
    return [text.strip() for text in texts]


@pytest.mark.parametrize(
    ("body", "defects"),
    [
        ("self.a()", ["pass"]),
        ("return self.a", ["pass"]),
        ("self.a()\nself.b()", ["pass\nself.b()", "self.b()\nself.a()", "self.a()\npass"]),
        ("y = self.a()\nself.b(y)", ["y = self.a()\npass"]),
        ("if x < self.a: ...", ["if x <= self.a:\n    ..."]),
        ("if x is None: ...", ["if x is not None:\n    ..."]),
        ("if not x: ...", ["if bool(x):\n    ..."]),
        ("return x and self.a", ["pass", "return x or self.a"]),
        ("self.a = True", ["pass", "self.a = False"]),
        ("self.a = 3", ["pass", "self.a = 4"]),
    ],
)
def test_a_rule_makes_the_defects(body: str, defects: list[str]) -> None:
    assert made(body) == defects


@pytest.mark.parametrize(
    "body",
    ['"""Text."""', "raise ValueError(x or 1)", "assert x", "log.warning('x %s', 3)", "y = self.a"],
)
def test_what_is_no_behaviour_is_left_alone(body: str) -> None:
    assert made(body) == []


def test_what_runs_in_the_end_is_left_out_of_ends_by_an_error() -> None:
    [defect] = [d for d in made("try:\n    ...\nfinally:\n    self.a()") if "exception" in d]
    assert defect.endswith("if sys.exception() is None:\n        self.a()")


FILE = "shardbus/ids.py"


def test_every_defect_of_a_module_can_be_planted() -> None:
    """Not only the samples above: a whole file of the product."""
    source = (ROOT / FILE).read_text(encoding="utf-8")
    for change in changes(source):
        ast.parse(source[: change.start] + change.after + source[change.end :])


class Known(Coverage):
    """Lines with their tests, without a run."""

    def __init__(self, lines: range) -> None:
        super().__init__([FILE], 1, Path())
        self.tests = {(FILE, line): ["tests/unit/test_ids.py"] for line in lines}


def test_a_sample_is_drawn_and_its_defects_can_be_planted() -> None:
    length = (ROOT / FILE).read_text(encoding="utf-8").count("\n")
    mutants, untouched = generate({FILE: None}, Known(range(length + 1)), 12, 1)
    assert len(mutants) == 12
    assert untouched == []
    assert [problem for mutant in mutants for problem in problems(mutant)] == []
    assert mutants == generate({FILE: None}, Known(range(length + 1)), 12, 1)[0]


def test_only_the_chosen_lines_are_changed_and_lines_without_a_test_are_named() -> None:
    source = (ROOT / FILE).read_text(encoding="utf-8")
    line = changes(source)[0].line
    mutants, untouched = generate({FILE: frozenset({line})}, Known(range(0)), 100, 0)
    assert mutants == []
    assert {place.partition(": ")[0] for place in untouched} == {f"{FILE}:{line}"}
