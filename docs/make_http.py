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


def render(text: str) -> str:
    """Return the text with its generated parts made anew."""
    fields = "\n".join(line for page in (*PAGES, *FRONT_PAGES) for line in _fields(page))
    parts = {"pages": _table(PAGES), "front": _table(FRONT_PAGES), "fields": fields}
    for name, part in parts.items():
        begin, end = f"<!-- {name}: made by docs/make_http.py -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n\n{part}\n\n{end}{rest.partition(end)[2]}"
    return text


def _table(pages: Iterable[AnyPage]) -> str:
    return HEAD + "\n".join(
        f"| `{_title(page)}` | {', '.join(map(_shown, _asked(page)))} | {_paragraphs(page)[0]} |"
        for page in pages
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
    return [
        parameter
        for parameter in page.parameters
        if parameter.source is Source.QUERY and parameter.name != needed
    ]


def _shown(parameter: Parameter) -> str:
    """Return the name of a parameter, with its default and its bounds."""
    name = f"`{parameter.name}`" + " ..." * parameter.many
    if parameter.default not in (Declared.empty, None, "", ()):
        name += f" = {str(parameter.default).lower().removesuffix('.0')}"
    if isinstance(parameter.convert, Number):
        name += f" ({parameter.convert.low} to {parameter.convert.high})"
    return name


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
