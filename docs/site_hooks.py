"""Make the pages of the repository a site: the functions that `mkdocs` calls while it builds.

    make docs

The pages are written for the repository, where each is read as it stands. A site differs in four
things, and this module is where they are:

- README, CONTRIBUTING and CHANGELOG are outside of `docs/`. They become pages of the site, and
  README its first. `SITE_PAGES` has all pages with another place.
- A link names a file of the repository. It is written anew for the place of the page. A link to a
  file that is no page, such as a program of `examples/`, becomes the words of the link.
- A state diagram is Mermaid text, which needs a script of 3 MB from elsewhere. The site shows its
  arrows as a table.
- The search finds answers before lists: `SEARCH` lifts some pages,
  lowers others, and leaves tables and measurements out.

After the build no page may load a script, a style, a font or a picture from elsewhere, and the
index of the search must be as `SEARCH` says.

The functions above `on_files` need no package, so that `tests/unit/test_site.py` runs without any.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SITE_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "docs/README.md": "pages.md",
}
"""Pages whose place on the site is not the one in `docs/`."""

SEARCH: dict[str, float] = {
    "troubleshooting.md": 8,
    "faq.md": 6,
    "cookbook.md": 5,
    "how-to/back-up.md": 5,
    "how-to/timers.md": 5,
    "how-to/event-sourcing.md": 5,
    "how-to/queue-work.md": 5,
    "start.md": 3,
    "tutorial.md": 3,
    "changelog.md": 0.1,
    "reference/licences.md": 0.1,
    "dependencies.md": 0.5,
    "performance.md": 0.5,
    "simulation.md": 0.5,
    "FEATURES.md": 0,
    "measurements.md": 0,
}
"""The weight of pages in the search; 1 for all others. A page of weight 0 is not in it."""

CODE = re.compile(r"(^ *```.*?^ *```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?P<mark>!?)\[(?P<words>[^\]]+)\]\((?P<target>[^)\s#]*)(?P<anchor>#[^)\s]*)?\)")
DIAGRAM = re.compile(r"^```mermaid\nstateDiagram-v2\n(?P<arrows>.*?)^```$", re.M | re.DOTALL)
ARROW = re.compile(r"^ *(?P<before>\S+) --> (?P<after>[^\s:]+)(?:: (?P<by>.+))?$", re.MULTILINE)
FOREIGN = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\"'> ]+"
    r"|<link\b(?![^>]*rel=[\"']?(?:canonical|prev|next))[^>]*\bhref=[\"']?(?:https?:)?//[^\"'> ]+"
    r"|class=[\"']?mermaid"
)
"""Text that makes a browser load something from elsewhere. The theme loads Mermaid for its
class."""


def site_path(name: str) -> str | None:
    """Return the place on the site of a file of the repository, or None if it has none."""
    if name in SITE_PAGES:
        return SITE_PAGES[name]
    inside = name.startswith("docs/") and not name.endswith(".py")
    return name.removeprefix("docs/") if inside else None


def repository_path(page: str) -> str:
    """Return the file of the repository that a page of the site comes from."""
    moved = {place: name for name, place in SITE_PAGES.items()}
    return moved.get(page, f"docs/{page}")


def for_site(text: str, page: str) -> str:
    """Return a page's text with diagrams as tables and with links as the site needs them."""
    text = DIAGRAM.sub(lambda match: table_of_arrows(match["arrows"]), text)
    parts = CODE.split(text)
    parts[::2] = [LINK.sub(lambda link: relinked(link, page), part) for part in parts[::2]]
    return "".join(parts)


def relinked(link: re.Match[str], page: str) -> str:
    """Return a link as it must be on the page of the site."""
    target = link["target"]
    if not target or "://" in target or target.startswith("mailto:"):
        return link[0]
    folder = posixpath.dirname(repository_path(page))
    place = site_path(posixpath.normpath(posixpath.join(folder, target)))
    if place is None:
        return link["words"]
    way = posixpath.relpath(place, posixpath.dirname(page) or ".")
    return f"{link['mark']}[{link['words']}]({way}{link['anchor'] or ''})"


def table_of_arrows(diagram: str) -> str:
    """Return the arrows of a state diagram as a table, one row for each."""
    rows = ["| from | to | by |", "|---|---|---|"]
    for arrow in ARROW.finditer(diagram):
        before = "*start*" if arrow["before"] == "[*]" else f"`{arrow['before']}`"
        after = "*end*" if arrow["after"] == "[*]" else f"`{arrow['after']}`"
        rows.append(f"| {before} | {after} | {arrow['by'] or ''} |")
    return "\n".join(rows)


def search_of(page: str) -> dict[str, object]:
    """Return the front matter for the theme's search of a page: nothing for most."""
    weight = SEARCH.get(page, 1)
    return {} if weight == 1 else {"boost": weight} if weight else {"exclude": True}


def wrong_in_index(index: dict[str, Any]) -> list[str]:
    """Return the differences of a built search index from `SEARCH`."""
    wrongs: dict[str, set[float]] = {}
    for entry in index["docs"]:
        page = entry["location"].partition("#")[0].removesuffix(".html") + ".md"
        wrongs.setdefault(page, set()).add(entry.get("boost", 1))
    weights = {page: SEARCH.get(page, 1) for page in {*wrongs, *SEARCH}}
    return sorted(
        f"{page} has weight {sorted(wrongs.get(page, {0}))}, not {weight}"
        for page, weight in weights.items()
        if wrongs.get(page, {0}) != {weight}
    )


def loaded_from_elsewhere(html: str) -> list[str]:
    """Return the files that a page would load from another server."""
    return FOREIGN.findall(html)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in `docs/`, and move its index."""
    from mkdocs.structure.files import File

    for name, place in SITE_PAGES.items():
        file = files.get_file_from_path(name.removeprefix("docs/")) if "/" in name else None
        if file is not None:
            files.remove(file)
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite a page before it is rendered, and give it its weight in the search."""
    page.meta["search"] = search_of(page.file.src_uri)
    return for_site(markdown, page.file.src_uri)


def on_post_build(config: Any) -> None:
    """End the build with an error if a page loads something from elsewhere, or if the search has
    other pages or weights than it should."""
    from mkdocs.exceptions import PluginError

    site = Path(config["site_dir"])
    for path in sorted(site.rglob("*.html")):
        if foreign := loaded_from_elsewhere(path.read_text(encoding="utf-8")):
            raise PluginError(f"{path.relative_to(site)} loads from elsewhere: {foreign[0]}")
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    if wrong := wrong_in_index(index):
        raise PluginError(f"the search differs from SEARCH: {', '.join(wrong)}")
