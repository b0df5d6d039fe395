"""Write the pages and their fields in `docs/reference/http.md` from the declarations.

python docs/make_http.py          # or: make docs-generated

The first paragraph of a docstring is the row of a page, the others are its fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from inspect import Parameter as Declared
from pathlib import Path

from shardbus.admin.page_table import PAGES
from shardbus.http.page import AnyPage, Number, Parameter, Source
from shardbus_cli.workers.http_front import PAGES as FRONT_PAGES

PAGE = Path(__file__).parent / "reference" / "http.md"
HEAD = "| page | parameters | answer |\n|---|---|---|\n"


def render(page: str) -> str:
    """Return the page with its generated parts made anew."""
    fields = "\n".join(line for one in (*PAGES, *FRONT_PAGES) for line in _fields(one))
    for name, part in {
        "pages": _table(PAGES),
        "front": _table(FRONT_PAGES),
        "fields": fields,
    }.items():
        begin, end = f"<!-- {name}: made by docs/make_http.py -->", f"<!-- end of {name} -->"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n\n{part}\n\n{end}{rest.partition(end)[2]}"
    return page


def _table(pages: Iterable[AnyPage]) -> str:
    return HEAD + "\n".join(
        f"| `{_title(one)}` | {', '.join(map(_shown, _asked(one)))} | {_paragraphs(one)[0]} |"
        for one in pages
    )


def _fields(page: AnyPage) -> Iterator[str]:
    rest = _paragraphs(page)[1:]
    if rest:
        yield f"- `{_title(page)}`: {' '.join(rest)}"


def _title(page: AnyPage) -> str:
    path, _, needed = page.path.partition("?")
    return f"{page.method} {path}" + (f"?{needed}=..." if needed else "")


def _paragraphs(page: AnyPage) -> list[str]:
    text = page.text.partition("\n\nRaises:")[0]
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]


def _asked(page: AnyPage) -> list[Parameter]:
    needed = page.path.partition("?")[2]
    return [one for one in page.parameters if one.source is Source.QUERY and one.name != needed]


def _shown(asked: Parameter) -> str:
    """Return the name of a parameter, with its default and its bounds."""
    name = f"`{asked.name}`" + " ..." * asked.many
    if asked.default not in (Declared.empty, None, "", ()):
        name += f" = {str(asked.default).lower().removesuffix('.0')}"
    if isinstance(asked.convert, Number):
        name += f" ({asked.convert.low} to {asked.convert.high})"
    return name


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
