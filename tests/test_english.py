"""The words that hide who acts: no page, docstring, comment or message has one of them.

`docs/FEATURES.md` quotes requirements in the words of their source; its other columns are checked.

Constructions that circle a thing instead of naming it are rare in every package: `CONSTRUCTIONS`
lists them.
"""

from __future__ import annotations

import ast
import math
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
WORDS = re.compile(
    r"\b(shall|somebody|nobody|anybody|whom|whoever|so many|so long as|is told|are told"
    r"|tells? (?:it|them|him))\b",
    re.IGNORECASE,
)
SUFFIXES = {".py", ".md", ".toml", ".yml", ".yaml"}
FOLDERS = ("shardbus", "cli", "docs", "benchmarks", "examples", "configs")
QUOTED = re.compile(r"^(\| (?:S\d|B|N)\.\d+ \|) .+? (\| [a-z ]+ \| .+ \| .+ \|)$", re.MULTILINE)
"""A row of FEATURES.md without the quoted requirement."""


TEXTS = [
    path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in SUFFIXES
] + [*sorted(ROOT.glob("*.md")), ROOT / "docker-compose.yml", ROOT / "Makefile"]


def found(text: str) -> list[str]:
    """The forbidden words of a text, in order."""
    return [word.lower() for word in WORDS.findall(re.sub(r"\s+", " ", text))]


def checked(path: Path) -> str:
    """The text of a file that the rules are for."""
    text = path.read_text(encoding="utf-8")
    return QUOTED.sub(r"\1 \2", text) if path.name == "FEATURES.md" else text


def test_the_texts_name_who_acts() -> None:
    words = {path.relative_to(ROOT).as_posix(): found(checked(path)) for path in TEXTS}
    assert len(words) > 500
    assert {path: hits for path, hits in words.items() if hits} == {}


def test_words_are_found_at_their_bounds_and_across_lines() -> None:
    assert found("So\nmany shells Tell them; nobody's. Marshall is whomever.") == [
        "so many", "tell them", "nobody",
    ]  # fmt: skip


# ---- constructions, by package

PER_10_000 = 5
"""Occurrences of each construction that a package may have in 10,000 words, rounded up."""
CONSTRUCTIONS = {
    "what": re.compile(r"(?<!`)\bwhat\b(?!`)(?![^.]{0,80}\?)", re.IGNORECASE),
    "that of": re.compile(r"\b(?:that|those) of\b", re.IGNORECASE),
    "the one which": re.compile(r"\bthe ones? (?:which|that|who)\b", re.IGNORECASE),
    "a machine that asks or learns": re.compile(
        r"\b(?:(?<!`)(?:learns?|learned|learnt|wants?|wanted|told)(?!`)"
        r"|asks? (?:it|them|him|whether)|(?<!an )asks? for|asked (?:it|for|whether)"
        r"|tells? (?:it|them|how|whether|which|what))\b",
        re.IGNORECASE,
    ),
}
"""In docstrings, comments and pages. By the API a program tells or asks a message: `tells that`."""
PACKAGES = [
    *("shardbus/*.py", "tests/*.py", "tests/unit/*.py", "docs/*.py", "docs/*.md"),
    *("cli/**/*.py", "benchmarks/**/*.py", "examples/**/*.py", "examples/**/*.md"),
    *("docs/how-to/*.md", "docs/reference/cli.md", "docs/reference/http.md"),
    *("README.md", "CONTRIBUTING.md"),
    *(
        f"{folder.relative_to(ROOT).as_posix()}/**/*.py"
        for parent in ("shardbus", "tests", "tests/unit")
        for folder in sorted((ROOT / parent).iterdir())
        if folder != ROOT / "tests" / "unit" and any(folder.rglob("*.py"))
    ),
]
"""The files of each package or folder, and those beside them. The other pages of `docs/reference`
are made from the product's texts."""
CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]+`|\]\([^)\s]*\)", re.MULTILINE | re.DOTALL)
"""Parts of a page without prose: blocks, inline code, the targets of links."""


COMMENT = re.compile(r"(?:^ *|  )#+ ?(.*)", re.MULTILINE)
"""A comment as the formatter leaves it. Some texts are found, too; a tokenizer, which knows them,
takes a hundred times as long."""


def prose_of(path: Path) -> str:
    """Return the prose of a module or of a page, on one line."""
    return (
        module_of(path).prose
        if path.suffix == ".py"
        else re.sub(r"\s+", " ", CODE.sub("", checked(path)))
    )


class Module(NamedTuple):
    """The prose of a module, the names that it binds, and the attributes that it declares."""

    prose: str
    bindings: list[str]
    attributes: list[str]


@cache
def module_of(path: Path) -> Module:
    """Return the prose and the names of a module."""
    text = checked(path)
    nodes = list(ast.walk(ast.parse(text)))
    return Module(prose(text, nodes), bindings(nodes), attributes(nodes))


def prose(text: str, nodes: list[ast.AST]) -> str:
    """The docstrings and comments of a module, on one line."""
    parts = [
        node.value.value
        for node in nodes
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    parts += COMMENT.findall(text)
    return re.sub(r"\s+", " ", "\n".join(parts))


def occurrences(text: str) -> dict[str, list[str]]:
    """Each construction that a text has too often, with the places."""
    most = math.ceil(len(text.split()) * PER_10_000 / 10_000)
    places = {
        name: [text[max(0, m.start() - 40) : m.end() + 40] for m in pattern.finditer(text)]
        for name, pattern in CONSTRUCTIONS.items()
    }
    return {name: hits for name, hits in places.items() if len(hits) > most}


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_package_names_things_instead_of_circling_them(package: str) -> None:
    texts = [prose_of(path) for path in sorted(ROOT.glob(package))]
    assert texts
    assert occurrences(" ".join(texts)) == {}


def test_constructions_are_found_in_docstrings_and_comments_alone() -> None:
    module = '"""Keeps what\narrives."""\nx = "those of"  # that of a node\n# it wants more\n'
    text = prose(module, list(ast.walk(ast.parse(module))))
    assert {name: len(hits) for name, hits in occurrences(text * 2).items()} == {
        "what": 2, "that of": 2, "a machine that asks or learns": 2,
    }  # fmt: skip


def test_no_module_is_outside_of_the_packages() -> None:
    packaged = {path for package in PACKAGES for path in ROOT.glob(package)}
    folders = ("shardbus", "cli", "tests", "benchmarks", "docs", "examples")
    modules = {path for folder in folders for path in (ROOT / folder).rglob("*.py")}
    assert modules - packaged == set()


# ---- names that hold nothing

VAGUE = {"one", "found", "known", "own", "told", "asked", "wanted", "given"}
"""Names of variables, parameters and attributes that do not say what they hold."""
VAGUE_PER_1_000 = {"cli/**/*.py": 0, "shardbus/**/*.py": 1} | {
    package: 5
    for package in PACKAGES
    if package.endswith(".py") and package.split("/")[0] not in ("cli", "shardbus")
}
"""How many of 1,000 bindings of a package may have such a name, rounded up."""
FIXED = {"shardbus/sharding/instances.py: wanted", "shardbus/wire/control.py: known"}
"""The attributes that have such a name, for it cannot change: a method of the public API, and a
field that travels by its name."""


def bindings(nodes: list[ast.AST]) -> list[str]:
    """The names that a module's code assigns, and those of its parameters."""
    return [
        node.arg if isinstance(node, ast.arg) else node.id
        for node in nodes
        if isinstance(node, ast.arg)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    ]


@pytest.mark.parametrize("package", sorted(VAGUE_PER_1_000))
def test_a_binding_says_what_it_holds(package: str) -> None:
    names = {path: module_of(path).bindings for path in sorted(ROOT.glob(package))}
    vague = [f"{path.name}: {name}" for path in names for name in names[path] if name in VAGUE]
    total = sum(map(len, names.values()))
    assert len(vague) <= math.ceil(total * VAGUE_PER_1_000[package] / 1000), vague


def test_parameters_and_every_kind_of_assignment_are_bindings() -> None:
    text = "def f(own, *told): [one for one in own]\nif found := f(1): known = 2\n"
    assert sorted(bindings(list(ast.walk(ast.parse(text))))) == [
        "found",
        "known",
        "one",
        "own",
        "told",
    ]


# ---- attributes


def attributes(nodes: list[ast.AST]) -> list[str]:
    """The attributes that a module's code assigns, and the fields and methods of its classes."""
    assigned = [
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    ]
    bodies = [part for node in nodes if isinstance(node, ast.ClassDef) for part in node.body]
    declarations = [part for part in bodies if isinstance(part, ast.Assign | ast.AnnAssign)]
    fields = bindings([name for part in declarations for name in ast.walk(part)])
    methods = [
        part.name for part in bodies if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return assigned + fields + methods


def test_an_attribute_says_what_it_holds() -> None:
    paths = {path for package in VAGUE_PER_1_000 for path in ROOT.glob(package)}
    vague = {
        f"{path.relative_to(ROOT).as_posix()}: {name}"
        for path in paths
        for name in module_of(path).attributes
        if name.strip("_") in VAGUE
    }
    assert vague == FIXED


def test_assignments_fields_and_methods_are_attributes() -> None:
    text = """
class A:
    known: int
    own = 1
    def told(self, given): self._found, one.wanted = given, 2
    @property
    async def asked(self): local = self.one
"""
    assert sorted(attributes(list(ast.walk(ast.parse(text))))) == [
        "_found",
        "asked",
        "known",
        "own",
        "told",
        "wanted",
    ]
