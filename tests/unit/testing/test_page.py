"""The tests of the pages "Test your entities", "Timers" and "Cookbook" pass as they stand there."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from shardbus import ShardBus
from shardbus.testing import TestCluster
from tests.doc_blocks import ROOT, blocks

PAGE = "docs/how-to/test-entities.md"
TESTS_OF = {
    PAGE: 9,
    "docs/how-to/timers.md": 2,
    "docs/how-to/reminders.md": 2,
    "docs/cookbook.md": 10,
}
"""Pages with tests, and how many each has."""


def load(page: str) -> dict[str, Any]:
    """Run a page's blocks in one module; return its names."""
    module = ModuleType(f"page_{re.sub(r'[^a-z]', '_', page)}")
    sys.modules[module.__name__] = module
    for block in blocks(page):
        if block.language == "python":
            exec(compile(block.text, block.place, "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


NAMES = {page: load(page) for page in TESTS_OF}
TESTS = [(page, name) for page in TESTS_OF for name in NAMES[page] if name.startswith("test_")]


@pytest.mark.parametrize("page", TESTS_OF)
def test_the_page_has_them_all(page: str) -> None:
    assert len([name for of, name in TESTS if of == page]) == TESTS_OF[page]


def test_the_page_of_tests_has_two_suites() -> None:
    assert len([name for name in NAMES[PAGE] if name.startswith("TestMy")]) == 2


def test_each_recipe_of_the_cookbook_has_a_test() -> None:
    page = (ROOT / "docs" / "cookbook.md").read_text(encoding="utf-8")
    recipes = page.split("\n## ")[1:]
    assert len(recipes) == 10
    assert [recipe.partition("\n")[0] for recipe in recipes if "def test_" not in recipe] == []


@pytest.mark.parametrize(("page", "name"), TESTS)
async def test_it_passes(page: str, name: str) -> None:
    test: Callable[..., Any] = NAMES[page][name]
    if not inspect.iscoroutinefunction(test):
        test()
    elif not inspect.signature(test).parameters:
        await test()
    else:
        bus: ShardBus = NAMES[page]["bus"]
        async with TestCluster(bus) as cluster:
            fixtures = {"shardbus_cluster": cluster, "shardbus_client": cluster.client()}
            parameters = inspect.signature(test).parameters
            await cluster.spawn(test(**{name: fixtures[name] for name in parameters}))


class TestMyStore(NAMES[PAGE]["TestMyStore"]):  # type: ignore[misc]
    """The suite of the page's store."""


class TestMyStrategy(NAMES[PAGE]["TestMyStrategy"]):  # type: ignore[misc]
    """The suite of the page's strategy."""
