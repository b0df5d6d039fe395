"""A rolling restart of five real nodes under load, in every named mode of a hand-off."""

from __future__ import annotations

import pytest

from tests.process.nodes import Processes
from tests.process.test_ledger import ASK, PAGES, TELL, Ledger, Load
from tests.waiting import until


@pytest.mark.long
@pytest.mark.parametrize("mode", ["buffer", "ordered", "forward", "drop"])
async def test_a_rolling_restart_keeps_what_the_mode_says(lab: Processes, mode: str) -> None:
    settings = (f"sharding.types.page.handoff={mode}",)
    await lab.cluster(5, settings=settings)
    async with lab.client() as a, lab.client() as b:
        load = Load(a, b)
        await load.rounds(5)
        for _ in range(5):
            assert await lab.live[0].terminate() == 0
            await lab.start(settings=settings)
            await load.rounds(10)
        await load.end()
        tells, asks = load.producers
        assert a.lost_messages == 0
        sent = tells.rounds * PAGES

        def accounted() -> bool:
            """Every tell is in the ledger, or among those that were reported as dropped."""
            refusals = sum(a.refused_messages.values())
            return Ledger(lab.folder).total(TELL) + refusals == sent

        await until(accounted, "all tells are handled or reported")
        for node in lab.live:
            assert await node.terminate() == 0
        refusals = sum(a.refused_messages.values())
    ledger = Ledger(lab.folder)
    lost = sent - ledger.total(TELL)
    print(f"{mode}: {sent} tells, {lost} lost, {refusals} reported")
    assert ledger.repeated == []
    if mode != "forward":
        assert (ledger.reordered, ledger.overlaps) == ([], [])
    refused = sum(outcome == "refused" for outcome in asks.outcomes.values())
    assert set(asks.outcomes.values()) <= {"ok", "refused"}
    assert ledger.total(ASK) == asks.rounds * PAGES - refused
    assert refusals == lost
    if mode != "drop":  # which may drop nothing where a move takes few milliseconds
        assert (lost, refused) == (0, 0)
