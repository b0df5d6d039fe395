"""The store of the page "Write a store of your own" passes the suite, as it stands there."""

from __future__ import annotations

import inspect
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shardbus.errors import ConfigError
from shardbus.store import opening
from shardbus.store.opening import open_store
from tests.doc_blocks import blocks

PAGE = "docs/how-to/own-store.md"


def load() -> dict[str, Any]:
    """Run the page's blocks in one module; return its names."""
    module = ModuleType("page_own_store")
    sys.modules[module.__name__] = module
    for block in blocks(PAGE):
        if block.language == "python":
            exec(compile(block.text, block.place, "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


NAMES = load()


class TestPairStore(NAMES["TestPairStore"]):  # type: ignore[misc]
    """The suite of the page's store, without the tests of reminders, which it does not keep: the
    suite would skip them."""


for name, method in inspect.getmembers(TestPairStore, inspect.isfunction):
    if "keeps" in inspect.signature(method).parameters:
        setattr(TestPairStore, name, None)


async def test_it_is_opened_by_its_scheme(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    entries = EntryPoints([EntryPoint("pairs", "page_own_store:open_pairs", opening.ENTRY_POINTS)])
    monkeypatch.setattr(opening, "entry_points", lambda **query: entries.select(**query))
    store = open_store(f"pairs:///{tmp_path}/bus.db", cluster="shop", timeout=60.0)
    await store.start()
    assert len(await store.identity()) == 16
    await store.close()
    with pytest.raises(ConfigError, match="pairs:///FILE"):
        open_store("pairs://host", cluster="shop")
