"""The catalogue of planted defects: each can be planted, and the tests that must find it exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.catalogue import Mutant, load, problems
from tests.records import replace

ENTRY = """
[[mutant]]
id = "a"
behaviour = "B."
file = "code.py"
before = "x = 1"
after = "x = 2"
tests = ["test_code.py::test_x[3]"]
"""


@pytest.fixture
def mutant(tmp_path: Path) -> Mutant:
    (tmp_path / "code.py").write_text("x = 1\n")
    (tmp_path / "test_code.py").write_text("def test_x(): ...\n")
    (tmp_path / "a.toml").write_text(ENTRY)
    [mutant] = load(tmp_path)
    return mutant


@pytest.mark.long
def test_every_mutant_can_be_planted_and_its_tests_exist() -> None:
    stale = {mutant.id: why for mutant in load() if (why := problems(mutant))}
    assert stale == {}, "mend these entries of tests/mutants, or take them out"


def test_a_mutant_changes_one_place(mutant: Mutant, tmp_path: Path) -> None:
    assert problems(mutant, tmp_path) == []
    assert mutant.plant("x = 1\n") == "x = 2\n"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"before": "y = 1"}, "the snippet stands 0 times in code.py"),
        ({"after": "x = 1"}, "nothing changes"),
        ({"after": "x = ="}, "invalid syntax"),
        ({"file": "gone.py"}, "there is no gone.py"),
        ({"tests": ()}, "no test is named"),
        ({"tests": ("test_code.py::test_y",)}, "there is no test test_code.py::test_y"),
        ({"id": "A b"}, "the id is not in kebab-case"),
    ],
)
def test_a_stale_mutant_is_named(
    mutant: Mutant, tmp_path: Path, change: dict[str, object], why: str
) -> None:
    [said] = problems(replace(mutant, **change), tmp_path)
    assert why in said


def test_a_snippet_that_stands_twice_is_stale(mutant: Mutant) -> None:
    with pytest.raises(ValueError, match="stands 2 times"):
        mutant.plant("x = 1\nx = 1\n")


@pytest.mark.parametrize("text", [ENTRY * 2, ENTRY + 'more = "x"\n', "[[mutant]]\n"])
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ValueError, match=r"a\.toml: "):
        load(tmp_path)
