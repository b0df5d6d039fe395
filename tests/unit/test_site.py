"""The site: its navigation holds every page, and the hooks' links lead to pages and sections.

`make docs` builds it with mkdocs; these tests need no package.
"""

from __future__ import annotations

import importlib.util
import posixpath
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@cache
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sources() -> list[str]:
    """The pages of the repository that the site has, by their paths."""
    inside = (f"docs/{path.relative_to(ROOT / 'docs')}" for path in (ROOT / "docs").rglob("*.md"))
    return sorted({*inside, *hooks().SITE_PAGES})


@cache
def pages() -> dict[str, str]:
    """The text of each page of the site, as the hooks write it, by its path there."""
    pages_ = {}
    for name in sources():
        place = hooks().site_path(name)
        pages_[place] = hooks().for_site((ROOT / name).read_text(encoding="utf-8"), place)
    return pages_


def prose(text: str) -> str:
    """The text without its code."""
    return str(hooks().CODE.sub("", text))


def anchors(text: str) -> set[str]:
    """The anchors of a page: its headings as GitHub and the site write them."""
    titles = re.findall(r"^#+ (.+)$", hooks().CODE.sub(code_in_heading, text), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", title.lower()).strip() for title in titles)
    return {title.replace(" ", "-") for title in plain}


def code_in_heading(code: re.Match[str]) -> str:
    return "" if code[0].lstrip().startswith("```") else code[0]


def test_the_navigation_holds_every_page_once() -> None:
    navigation = CONFIGURATION.partition("\nnav:\n")[2].partition("\n\n")[0]
    listed = re.findall(r"^ +- [^:]+: (\S+)$", navigation, re.MULTILINE)
    assert sorted(listed) == sorted(pages())
    assert listed[0] == "index.md"


@pytest.mark.parametrize("listing", ["docs/README.md", "docs/how-to/README.md"])
def test_a_table_of_contents_names_every_page_below_it(listing: str) -> None:
    here = ROOT / listing
    text = here.read_text(encoding="utf-8")
    below = (path.relative_to(here.parent) for path in here.parent.rglob("*.md"))
    assert [
        str(path) for path in below if path.name != "README.md" and f"({path})" not in text
    ] == []


def test_the_build_is_strict_and_takes_nothing_from_elsewhere() -> None:
    for line in ("strict: true", "font: false", "anchors: warn", "omitted_files: warn"):
        assert line in CONFIGURATION
    assert "://" not in CONFIGURATION


@pytest.mark.parametrize("name", sources())
def test_links_of_the_site_lead_to_pages_and_sections(name: str) -> None:
    site = pages()
    place = hooks().site_path(name)
    for link in hooks().LINK.finditer(prose(site[place])):
        if "://" in link["target"]:
            continue
        there = posixpath.normpath(posixpath.join(posixpath.dirname(place), link["target"]))
        there = there if link["target"] else place
        assert there in site or (ROOT / "docs" / there).is_file(), link[0]
        if link["anchor"]:
            assert link["anchor"][1:] in anchors(site[there]), link[0]


def test_no_page_has_a_diagram_that_needs_a_script() -> None:
    assert [place for place, text in pages().items() if "```mermaid" in text] == []
    assert "| `free` | `asking` | wanted |" in pages()["protocols.md"]


@pytest.mark.parametrize(
    ("page", "written", "expected"),
    [
        ("index.md", "[t](docs/tutorial.md#1-an-entity)", "[t](tutorial.md#1-an-entity)"),
        ("index.md", "[c](CONTRIBUTING.md)", "[c](contributing.md)"),
        ("how-to/send.md", "[r](../../README.md#limits)", "[r](../index.md#limits)"),
        ("how-to/send.md", "[all](../README.md)", "[all](../pages.md)"),
        ("contributing.md", "[g](docs/glossary.md)", "[g](glossary.md)"),
        ("tutorial.md", "[how](how-to/README.md)", "[how](how-to/README.md)"),
        ("tutorial.md", "[a program](../examples/counter.py)", "a program"),
        ("tutorial.md", "[here](#limits)", "[here](#limits)"),
        ("tutorial.md", "[there](https://example.org/x.md)", "[there](https://example.org/x.md)"),
        ("tutorial.md", "`[no](../README.md)`", "`[no](../README.md)`"),
        ("scale.md", "![plot](scale.svg)", "![plot](scale.svg)"),
    ],
)
def test_a_link_is_written_for_its_place(page: str, written: str, expected: str) -> None:
    assert hooks().for_site(written, page) == expected


@pytest.mark.parametrize(
    ("html", "is_found"),
    [
        ('<script src="https://cdn.example/x.js">', True),
        ('<link href="//fonts.example/x.css" rel=stylesheet>', True),
        ("<img src=https://example.org/a.png>", True),
        ('<pre class="mermaid">', True),
        ('<script src="assets/x.js">', False),
        ('<a href="https://example.org/">', False),
        ('<link rel="canonical" href="https://example.org/">', False),
    ],
)
def test_what_a_page_would_load_from_elsewhere_is_found(html: str, is_found: bool) -> None:
    assert bool(hooks().loaded_from_elsewhere(html)) is is_found


NEW = ("troubleshooting.md", "faq.md", "cookbook.md", "how-to/back-up.md", "how-to/timers.md")


def test_the_search_prefers_pages_with_answers() -> None:
    weights = hooks().SEARCH
    assert set(weights) <= set(pages())
    assert min(weights[page] for page in NEW) > 1 > weights["changelog.md"] > 0
    for page in ("FEATURES.md", "measurements.md"):
        assert hooks().search_of(page) == {"exclude": True}
    assert hooks().search_of("faq.md") == {"boost": weights["faq.md"]}
    assert hooks().search_of("how-to/send.md") == {}


def test_an_index_with_other_pages_or_weights_ends_the_build() -> None:
    good = [
        {"location": f"{page.removesuffix('.md')}.html{anchor}", "boost": weight}
        for page, weight in hooks().SEARCH.items()
        for anchor in ("", "#a")
        if weight
    ]
    assert hooks().wrong_in_index({"docs": [*good, {"location": "how-to/send.html"}]}) == []
    wrong = hooks().wrong_in_index({"docs": [*good[2:], {"location": "FEATURES.html#a"}]})
    assert wrong == [
        "FEATURES.md has weight [1], not 0",
        "troubleshooting.md has weight [0], not 8",
    ]
