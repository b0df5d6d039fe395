"""The pages under `docs/`, against their subjects: settings, commands, metrics, features."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

import shardbus
from shardbus.admin.metric_catalogue import METRICS
from shardbus.config.loading import options
from shardbus_cli.app_loader import load_app
from shardbus_cli.commands import command_line
from tests.syntax import nodes_of, tree_of
from tests.test_layers import FLOORS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
SECTIONS = {"S0": 39, "S1": 64, "S2": 90, "S3": 89, "S4": 42, "B": 166, "N": 25}
"""Features by section: their ids are `S0.1` to `S0.39`, and so on."""
STATES = ("works", "partly", "not yet", "declined")
ROW = re.compile(r"^\| ((?:S\d|B|N)\.\d+) \| (.+) \| ([a-z ]+) \| (.+) \| (.+) \|$", re.MULTILINE)
"""Id, requirement, state, the differences and gaps here, and the proof."""
FILE = re.compile(r"`((?:tests|shardbus|examples|configs|docs|cli|benchmarks)/[\w./-]*\w)`")
LINK = re.compile(r"\]\(([^)#:]+)\)")
MACHINE = re.compile(r"/(?:work|tmp|root|home/(?!you/))\b")

EXAMPLES = [
    page.relative_to(DOCS).as_posix()
    for page in PAGES
    if "```python" in page.read_text(encoding="utf-8")
]


@cache
def text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


@cache
def generator(name: str = "make_reference") -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text(page), re.MULTILINE | re.DOTALL)


# -- features ----------------------------------------------------------------------------------


def test_every_feature_has_one_row() -> None:
    expected = [f"{name}.{n + 1}" for name, count in SECTIONS.items() for n in range(count)]
    assert [row[0] for row in ROW.findall(text("FEATURES.md"))] == expected


def test_every_row_has_a_state_and_a_feature_that_works_is_shown() -> None:
    for feature, requirement, state, here, shown in ROW.findall(text("FEATURES.md")):
        assert state in STATES, feature
        assert requirement.strip() != "—", feature
        assert (state == "works") <= (shown != "—"), f"{feature} works, and no test is named"
        assert (state in ("not yet", "declined")) <= (shown == "—"), f"{feature} is not built"
        assert (state in ("partly", "declined")) <= (here != "—"), f"{feature}: say why"


def test_the_sums_are_those_of_the_rows() -> None:
    states = [(row[0].split(".")[0], row[2]) for row in ROW.findall(text("FEATURES.md"))]
    for section in SECTIONS:
        counts = [states.count((section, state)) for state in STATES]
        line = re.search(rf"^\| {section}: .+$", text("FEATURES.md"), re.MULTILINE)
        assert line is not None
        assert [int(n) for n in re.findall(r"\| (\d+)", line[0])] == counts
    totals = " | ".join(str(sum(s == state for _, s in states)) for state in STATES)
    assert f"| all | {totals} |" in text("FEATURES.md")


# -- reference ---------------------------------------------------------------------------------


def test_the_page_of_settings_is_the_declarations() -> None:
    again = "run `python docs/make_reference.py`"
    assert text("reference/settings.md") == generator().render(), again


def test_the_page_of_python_is_the_docstrings() -> None:
    again = "run `python docs/make_python.py`"
    assert text("reference/python.md") == generator("make_python").render(), again


def test_every_public_name_is_on_the_page_of_python() -> None:
    made = generator("make_python")
    shown = [name for title in made.SECTIONS for name, _ in made._objects(title)]
    beside = [cls.__name__ for classes in made.BESIDE.values() for cls in classes]
    assert sorted(shown) == sorted([*shardbus.__all__, *beside])


def test_every_public_function_method_and_attribute_has_its_types_on_the_page() -> None:
    made = generator("make_python")
    page = text("reference/python.md")
    for title in made.SECTIONS:
        for name, public in made._objects(title):
            for method, value in (
                made.members(public) if isinstance(public, type) else [("", public)]
            ):
                heading = f"#### {name}.{method}" if method else f"### {name}"
                call = page.partition(f"\n{heading}\n\n")[2].partition("\n\n")[0]
                typed = rf"{method}: \w" if isinstance(value, property) else r"\) -> \S"
                assert re.search(typed, call), f"{heading}: {call}"
                for each in () if isinstance(value, property) else made.signatures(value):
                    untyped = [p.name for p in inspect.signature(each).parameters.values()]
                    untyped = [p for p in untyped if p not in (*each.__annotations__, "self")]
                    assert untyped == [], f"{heading}: annotate {untyped}"
            if isinstance(public, type):
                assert all(made.attributes(public).values()), name


def test_a_signature_is_shown_with_its_types() -> None:
    made = generator("make_python")

    async def call(first: int, *rest: str, timeout: float | None = None) -> list[str]:
        return [first, *rest][:timeout]  # type: ignore[misc]

    assert made._call("call", call, None) == (
        "`await call(first: int, *rest: str, timeout: float | None = None) -> list[str]`\n"
    )


def test_settings_without_effect_are_marked() -> None:
    """A setting whose name is read nowhere has no effect; one that is read is not marked so."""
    marked: dict[str, str] = generator().NO_EFFECT
    keys = [key for key, _ in options()]
    assert [key for key in marked if key not in keys] == []
    read = set(attributes_read())
    silent = {key for key in keys if key.rpartition(".")[2] not in read}
    said = {key for key, why in marked.items() if why.startswith("no effect yet")}
    assert silent - said == set(), "say so in NO_EFFECT of docs/make_reference.py"
    assert said - silent == set(), "these have an effect now: take them out there"


def attributes_read() -> Iterator[str]:
    for folder in ("shardbus", "cli"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in nodes_of(tree_of(path)):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    yield node.attr


def test_every_command_is_on_its_page_and_no_other() -> None:
    page = text("reference/cli.md")
    listed = re.findall(r"^\| `shardbus ([a-z-]+(?: [a-z]+)?)(?=[ `])", page, re.M)
    assert sorted(listed) == sorted(names_of(command_line(), ""))


def names_of(group: typer.Typer, prefix: str) -> Iterator[str]:
    for command in group.registered_commands:
        assert command.callback is not None
        yield f"{prefix}{command.name or command.callback.__name__.replace('_', '-')}"
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from names_of(inner.typer_instance, f"{inner.name} ")


def test_the_pages_of_http_are_those_of_the_declarations() -> None:
    made = generator("make_http")
    page = made.PAGE.read_text(encoding="utf-8")
    assert page == made.render(page), "run `make docs-generated`"


def test_pages_of_metrics_rules_and_dashboard_are_those_of_the_declarations() -> None:
    for path, content in generator("make_monitoring").files().items():
        assert path.read_text(encoding="utf-8") == content, "run `make docs-generated`"


def test_the_page_of_logs_is_that_of_the_declared_events() -> None:
    made = generator("make_logs")
    assert made.PAGE.read_text(encoding="utf-8") == made.render(), "run `make docs-generated`"


def test_the_picture_of_a_trace_is_that_of_its_spans() -> None:
    made = generator("make_trace")
    drawn = made.render(made.SPANS.read_text(encoding="utf-8"))
    assert made.PICTURE.read_text(encoding="utf-8") == drawn, "run `make docs-generated`"


def test_every_metric_has_a_panel_and_every_alert_names_metrics_that_exist() -> None:
    made = generator("make_monitoring")
    shown = json.dumps(made.dashboard()["panels"])
    names = {metric.exposed for metric in METRICS}
    assert [name for name in sorted(names) if name not in shown] == []
    for alert in made.ALERTS:
        named = re.findall(r"shardbus_\w+", alert.expr)
        assert named or alert.name == "ShardbusNodeDown"
        assert {name.removesuffix("_bucket") for name in named} <= names


def test_grafanas_own_types_know_every_word_of_the_dashboard() -> None:
    plugins.register_default_plugins()
    dashboard = json.loads(text("../deploy/grafana/shardbus.json"))
    assert list(unknown_to_grafana(dashboard)) == []
    first = next(at for at, panel in enumerate(dashboard["panels"]) if panel["type"] != "row")
    dashboard["panels"][first]["fieldConfig"]["defaults"]["units"] = "s"
    assert list(unknown_to_grafana(dashboard)) == [f".panels[{first}].fieldConfig.defaults.units"]


def unknown_to_grafana(dashboard: Any) -> Iterator[str]:
    """The parts lost or changed when Grafana's types read a dashboard. They add their defaults."""
    yield from lost(dashboard, json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard))))


def lost(written: Any, read: Any, place: str = "") -> Iterator[str]:
    if isinstance(written, dict) and isinstance(read, dict):
        for key, value in written.items():
            yield from lost(value, read.get(key), f"{place}.{key}")
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        for at, (value, kept) in enumerate(zip(written, read, strict=True)):
            yield from lost(value, kept, f"{place}[{at}]")
    elif written != read:
        yield place


def test_figures_of_the_comparison_are_those_of_the_page_of_performance() -> None:
    table = text("comparison.md").partition("## Figures")[2]
    figures = re.findall(r"(?<=\| )([\d,]{3,}(?: us)?)(?= \|)", table)
    assert len(figures) == 12
    assert [figure for figure in figures if f" {figure} " not in text("performance.md")] == []


# -- diagrams ----------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_diagrams_are_the_tables_in_the_code(page: Path) -> None:
    words = page.read_text(encoding="utf-8")
    assert words == generator("make_diagrams").render(words), "run `make docs-generated`"


def test_every_table_of_transitions_is_drawn_in_the_protocols() -> None:
    declared = re.compile(r"^TRANSITIONS\b", re.MULTILINE)
    tables = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sorted((ROOT / "shardbus").rglob("*.py"))
        if declared.search(path.read_text(encoding="utf-8"))
    ]
    drawn = re.findall(r"^<!-- diagram of ([\w.]+) -->$", text("protocols.md"), re.MULTILINE)
    assert sorted(drawn) == tables


MODULE = re.compile(r"(?<![\w/])([a-z_]+(?:/[a-z_]+)*\.py)\b")
WITHIN = ("", "shardbus", "shardbus/membership", "shardbus/sharding", "shardbus/store")
WITHIN += ("shardbus/sharding/coordinator", "shardbus/membership/singleton", "shardbus/transport")
WITHIN += ("shardbus/config",)
"""Folders that a section of the page on architecture is about."""


def test_the_architecture_is_a_page_for_newcomers() -> None:
    page = text("architecture.md")
    assert len(page.split()) <= 2500
    assert page.count("┐") >= 1
    assert "mermaid" not in page


def test_every_module_of_the_architecture_exists() -> None:
    both = text("architecture.md") + text("protocols.md")
    named = sorted(set(MODULE.findall(both)))
    assert len(named) > 50
    lost = [name for name in named if not any((ROOT / at / name).is_file() for at in WITHIN)]
    assert lost == []


def test_the_architecture_has_every_floor() -> None:
    listed = {}
    for floor, packages in re.findall(r"^\| (\d+) \| ([^|]+) \|", text("architecture.md"), re.M):
        listed |= dict.fromkeys(re.findall(r"`([^`]+)`", packages), int(floor))
    actual = {
        name.removeprefix("shardbus.").replace("shardbus_cli", "cli/shardbus_cli"): floor
        for name, floor in FLOORS.items()
        if name != "shardbus"
    }
    assert listed == actual


# -- all pages ---------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *PAGES], ids=lambda page: page.name)
def test_what_a_page_names_exists(page: Path) -> None:
    words = page.read_text(encoding="utf-8")
    assert [name for name in FILE.findall(words) if not (ROOT / name).exists()] == []
    assert [name for name in LINK.findall(words) if not (page.parent / name).exists()] == []
    assert MACHINE.findall(words) == []


HEADING = re.compile(r"^(##+) (.+)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
ANCHOR = re.compile(r"\]\(([^)#:]*)#([^)]+)\)")
WITHOUT_CONTENTS = {"FEATURES.md"}
"""Pages that are one table."""


def headings(page: Path) -> dict[str, int]:
    """The anchors of a page, as GitHub makes them, with the level of their heading."""
    words = FENCED.sub("", page.read_text(encoding="utf-8"))
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-"): len(level)
        for level, title in HEADING.findall(words)
    }


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_links_to_sections_lead_to_one(page: Path) -> None:
    for name, anchor in ANCHOR.findall(page.read_text(encoding="utf-8")):
        target = page.parent / name if name else page
        assert anchor in headings(target), f"{name}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_of_more_than_three_sections_has_a_table_of_contents(page: Path) -> None:
    sections = [anchor for anchor, level in headings(page).items() if level == 2]
    if len(sections) > 3 and page.name not in WITHOUT_CONTENTS:
        top = page.read_text(encoding="utf-8").partition("\n## ")[0]
        assert [anchor for anchor in sections if f"(#{anchor})" not in top] == []


@pytest.mark.parametrize("page", EXAMPLES)
def test_examples_import_what_exists(page: str) -> None:
    for example in code(page):
        for node in ast.walk(ast.parse(example)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shardbus"):
                module = importlib.import_module(node.module or "")
                assert [name.name for name in node.names if not hasattr(module, name.name)] == []


def test_the_tutorials_application_can_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "tutorial_stock.py").write_text(code("tutorial.md")[0], encoding="utf-8")
    bus = load_app(str(tmp_path / "tutorial_stock.py:bus"))
    assert bus.name == "warehouse"
    assert sorted(bus.types["article"].interface.methods) == ["put", "take"]
