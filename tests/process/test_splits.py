"""Splits of real nodes, of several shapes, with producers on both sides. `benchmarks.splits` judges
the nodes' records.

A loaded machine may show a split that the drawn seed does not have, for example a node that is
starved. The laws do not depend on that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from random import Random

import pytest

from benchmarks.splits import SHAPES, Field, field
from shardbus.entities.runs import RUN_SLICE
from tests.markers import long_only, soak_only
from tests.process.namespaces import missing


@pytest.fixture
async def cluster() -> AsyncIterator[Field]:
    if why := missing():
        pytest.skip(why)
    async with field(Random(1), "keep-majority", None) as made:
        yield made


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "shapes", [*long_only(("two", "deaf", "stopped")), *soak_only(SHAPES)], ids=len
)
async def test_no_entity_lives_twice_in_a_split_of_any_shape(
    cluster: Field, shapes: Sequence[str]
) -> None:
    for shape in shapes:
        report = await cluster.split(shape)
        assert (report["overlaps"], report["repeated"]) == (0, 0), report
        assert report.get("woken", 0) < RUN_SLICE, "at most the rest of a slice of a run"
        assert "unexplained" not in report["lost_by_reason"], report
        if not report["ended"]:
            assert report["lost"] == 0, report
