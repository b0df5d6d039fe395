"""Make the pages of the repository a site: what `mkdocs` calls while it builds.

    make docs

The pages are written for the repository, where each is read as it stands. A site differs in three
things, and this module is where they are:

- README, CONTRIBUTING and CHANGELOG are outside of `docs/`. They become pages of the site, and
  README its first. `SITE_PAGES` has all pages with another place.
- A link names a file of the repository. It is written anew for the place of the page. A link to a
  file that is no page, such as a program of `examples/`, becomes the words of the link.
- A state diagram is Mermaid text, which needs a script of 3 MB from elsewhere. The site shows its
  arrows as a table.

After the build no page may load a script, a style, a font or a picture from elsewhere.

The functions above `on_files` need no package, so that `tests/unit/test_site.py` runs without any.
"""

from __future__ import annotations

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

CODE = re.compile(r"(^ *```.*?^ *```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?P<mark>!?)\[(?P<words>[^\]]+)\]\((?P<target>[^)\s#]*)(?P<anchor>#[^)\s]*)?\)")
DIAGRAM = re.compile(r"^```mermaid\nstateDiagram-v2\n(?P<arrows>.*?)^```$", re.M | re.DOTALL)
ARROW = re.compile(r"^ *(?P<before>\S+) --> (?P<after>[^\s:]+)(?:: (?P<by>.+))?$", re.MULTILINE)
FOREIGN = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\"'> ]+"
    r"|<link\b(?![^>]*rel=[\"']?(?:canonical|prev|next))[^>]*\bhref=[\"']?(?:https?:)?//[^\"'> ]+"
    r"|class=[\"']?mermaid"
)
"""What makes a browser load something from elsewhere. The theme loads Mermaid for its class."""


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
    text = DIAGRAM.sub(lambda found: table_of_arrows(found["arrows"]), text)
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


def loaded_from_elsewhere(html: str) -> list[str]:
    """Return what a page would load from another server."""
    return FOREIGN.findall(html)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in `docs/`, and move its index."""
    from mkdocs.structure.files import File

    for name, place in SITE_PAGES.items():
        found = files.get_file_from_path(name.removeprefix("docs/")) if "/" in name else None
        if found is not None:
            files.remove(found)
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite a page before it is rendered."""
    return for_site(markdown, page.file.src_uri)


def on_post_build(config: Any) -> None:
    """End the build with an error if a page loads something from elsewhere."""
    from mkdocs.exceptions import PluginError

    site = Path(config["site_dir"])
    for path in sorted(site.rglob("*.html")):
        if found := loaded_from_elsewhere(path.read_text(encoding="utf-8")):
            raise PluginError(f"{path.relative_to(site)} loads from elsewhere: {found[0]}")
