"""The code blocks of the pages, and the commands in them.

A comment before a block says why it is not run:

    <!-- not run: it needs two machines -->

A comment before the first Python block of a page makes the names that its blocks take for granted:

    <!-- python:
    from printing import Printer
    -->
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parents[1]
EVERY_PAGE = (*ROOT.glob("*.md"), ROOT / "examples" / "README.md", *(ROOT / "docs").rglob("*.md"))
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in EVERY_PAGE)
BLOCK = re.compile(
    r"(?:^ *<!-- not run: (?P<reason>[^>]+) -->\n\n?)?"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
SETUP = re.compile(r"^<!-- python:\n(.*?)^-->$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)(?: {4,}[^\n]+\n|\n(?= {4}))+")
SPAN = re.compile(r"`(shardbus [^`]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    reason: str
    """Why it is not run; empty if it is."""

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    words = (ROOT / page).read_text(encoding="utf-8")
    parsed = []
    for match in BLOCK.finditer(words):
        line = words.count("\n", 0, match.start("language")) + 1
        reason = (match["reason"] or "").strip()
        parsed.append(Block(page, line, match["language"], dedent(match["text"]), reason))
    return parsed


def every_block() -> list[Block]:
    """Return the blocks of all pages."""
    return [block for page in PAGES for block in blocks(page)]


def setup(page: str) -> str:
    """Return the names that a page's Python blocks use without defining them."""
    setup_block = SETUP.search(BLOCK.sub("", (ROOT / page).read_text(encoding="utf-8")))
    return setup_block[1] if setup_block else ""


def commands(block: Block) -> Iterator[str]:
    """Yield the commands of a shell or console block, lines that end in a backslash joined."""
    lines = block.text.replace("\\\n", " ").splitlines()
    for line in lines:
        if block.language == "console":
            if line.startswith("$ "):
                yield line.removeprefix("$ ")
        elif line.strip():
            yield line


def other_commands(page: str) -> Iterator[str]:
    """Yield the `shardbus` commands of a page's indented blocks and of code within its text."""
    words = (ROOT / page).read_text(encoding="utf-8")
    for block in INDENTED.findall(BLOCK.sub("", words)):
        for line in block.splitlines():
            text = line.strip().removeprefix("$ ")
            if text.startswith("shardbus "):
                yield text
    for span in SPAN.findall(BLOCK.sub("", words)):
        yield " ".join(span.split())


def simple_commands(command: str) -> Iterator[list[str]]:
    """Yield the words of each simple command, without variables, pipes and redirections."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="();|&<>")
    lexer.commenters = "#"
    lexer.whitespace_split = True
    words: list[str] = []
    skip = False
    for word in lexer:
        if set(word) <= set("();|&"):
            yield from [words] if words else []
            words = []
        elif set(word) <= set("<>"):
            skip = True
        elif skip:
            skip = False
        elif words or not re.fullmatch(r"\w+=.*", word, re.DOTALL):
            words.append(word)
    if words:
        yield words
