"""Every shell of a store, every end of its first two calls, and the events that may come
meanwhile."""

from __future__ import annotations

import pytest

from tests.ends.stands import STANDS
from tests.ends.table import End, Meanwhile, judge, rows
from tests.virtual_time import virtual


@pytest.mark.parametrize("name", STANDS)
def test_a_call_may_end_in_any_way(name: str) -> None:
    wrongs: dict[str, str] = {}

    @virtual
    async def row(ends: tuple[End, End], then: Meanwhile) -> None:
        if wrong := await judge(STANDS[name], ends, then):
            wrongs[f"{ends}, {then}"] = wrong

    for ends, then in rows():
        row(ends, then)
    assert wrongs == {}, f"{len(wrongs)} of {len(rows())} rows"
