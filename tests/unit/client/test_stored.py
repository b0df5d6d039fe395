"""The list of stored ids: an error of a later page is not definite, for its entities may have been
called."""

from __future__ import annotations

import pytest

from shardbus.client.stored import stored_ids
from shardbus.errors import UnknownEntityType

PAGES = {"": (["a", "b"], "2"), "2": (["c"], "3"), "3": (["d"], None)}


@pytest.mark.parametrize("broken", ["", "2", "3"])
async def test_an_error_is_definite_on_the_first_page_only(broken: str) -> None:
    found: list[str] = []

    async def ask_page(cursor: str) -> tuple[list[str], str | None]:
        if cursor == broken:
            raise UnknownEntityType("this client may not use it")
        return PAGES[cursor]

    async def read() -> None:
        async for entity_id in stored_ids(ask_page, 0.0):
            found.append(entity_id)  # noqa: PERF401 - the loop ends by an error

    with pytest.raises(UnknownEntityType) as failed:
        await read()
    assert failed.value.definite is (not found)
