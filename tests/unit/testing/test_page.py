"""The tests of the page "Test your entities" pass, as they stand there."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from shardbus import ShardBus
from shardbus.testing import TestCluster
from tests.doc_blocks import blocks

PAGE = "docs/how-to/test-entities.md"


def load() -> dict[str, Any]:
    """Run the page's blocks in one module; return its names."""
    module = ModuleType("page_test_entities")
    sys.modules[module.__name__] = module
    for block in blocks(PAGE):
        if block.language == "python":
            exec(compile(block.text, block.place, "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


NAMES = load()
TESTS = {name: test for name, test in NAMES.items() if name.startswith("test_")}


def test_the_page_has_them_all() -> None:
    assert len(TESTS) == 9
    assert len([cls for name, cls in NAMES.items() if name.startswith("TestMy")]) == 2


@pytest.mark.parametrize("name", TESTS)
async def test_it_passes(name: str) -> None:
    test: Callable[..., Any] = TESTS[name]
    if not inspect.iscoroutinefunction(test):
        test()
    elif not inspect.signature(test).parameters:
        await test()
    else:
        bus: ShardBus = NAMES["bus"]
        async with TestCluster(bus) as cluster:
            await cluster.spawn(test(cluster, cluster.client()))


class TestMyStore(NAMES["TestMyStore"]):  # type: ignore[misc]
    """The suite of the page's store."""


class TestMyStrategy(NAMES["TestMyStrategy"]):  # type: ignore[misc]
    """The suite of the page's strategy."""
